"""How far the odds of modes are off."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from casal.diagnostics.distance import Distance, generator_of, normalised, points
from casal.errors import SettingError, ShapeError
from casal.methods import effective_size


def mode_weights_tv(
    samples: Tensor,
    exact_weights: Any,
    *,
    centers: Tensor | None = None,
    weights: Tensor | None = None,
    repeats: int = 2000,
    seed: int = 0,
) -> Distance:
    """TV = 1/2 sum_k |p_k - q_k|, p_k the share of samples in mode k, q_k the exact one.

    The floor is multinomial: what as many exact samples as these are worth would give.

    Args:
        samples: Labels (n,) of an integer dtype; or samples (n, *event), which take the nearest centre.
        exact_weights: q (K,), positive numbers; normalised.
        centers: (K, *event), needed for samples that are not labels.
        weights: Weights of the samples; equal if left out.
        repeats: Repetitions for the error and the floor.
        seed: Of the repetitions.
    """
    exact = torch.as_tensor(exact_weights, dtype=torch.float64).reshape(-1).to(samples.device)
    exact = normalised(exact, exact)
    labels = _labels(samples, centers)
    if bool(((labels < 0) | (labels >= len(exact))).any()):
        raise SettingError(f"labels must lie in 0 ... {len(exact) - 1}, got {int(labels.min())} to {int(labels.max())}")
    w = normalised(weights, labels)
    share = torch.zeros_like(exact).scatter_add_(0, labels, w)
    size, generator = max(1, round(float(effective_size(w)))), generator_of(seed, labels)
    floor = _variation(_multinomial(exact, size, repeats, generator), exact)
    again = _variation(_multinomial(share, size, repeats, generator), exact)
    return Distance(float(_variation(share, exact)), float(again.std()), float(floor.mean()), float(floor.std()))


def _variation(p: Tensor, q: Tensor) -> Tensor:
    return 0.5 * (p - q).abs().sum(-1)


def _labels(samples: Tensor, centers: Tensor | None) -> Tensor:
    if centers is not None:
        return torch.cdist(points(samples, "samples"), points(centers, "centers")).argmin(1)
    if samples.ndim != 1 or samples.is_floating_point():
        raise ShapeError(
            f"without centers the samples must be integer labels (n,), got {samples.dtype} {tuple(samples.shape)}; "
            "pass centers=(K, *event) to label samples by the nearest one"
        )
    return samples.long()


def _multinomial(law: Tensor, size: int, repeats: int, generator: torch.Generator) -> Tensor:
    """Shares (repeats, K) of ``size`` draws: one binomial after the other, so the cost does not grow with size."""
    left = torch.full((repeats,), float(size), dtype=law.dtype, device=law.device)
    remaining = law.flip(0).cumsum(0).flip(0)
    found = []
    for mass, rest in zip(law, remaining, strict=True):
        chance = (mass / rest).clamp(0.0, 1.0) if float(rest) > 0 else torch.zeros_like(mass)
        count = torch.binomial(left, chance.expand_as(left).contiguous(), generator=generator)
        found.append(count)
        left = left - count
    return torch.stack(found, dim=1) / size
