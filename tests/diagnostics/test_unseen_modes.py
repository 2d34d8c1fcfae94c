"""Samples in a mode without a free sample are found, and those of known modes and of one mode alone are not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import casal
from casal.diagnostics.unseen_modes import other_modes

D, F64 = 16, torch.float64
MEAN = torch.tensor([[0.0], [1.0]], dtype=F64).expand(2, D)
VARIANCE = torch.tensor([0.09, 0.16], dtype=F64)


def denoiser(rare: float, dtype: torch.dtype = F64) -> Callable[[Tensor, float | Tensor], Tensor]:
    """Of a mixture of two Gaussians, the second with this weight."""
    log_weight = torch.tensor([1.0 - rare, rare], dtype=F64).clamp_min(1e-300).log()

    def exact(x: Tensor, sigma: float | Tensor) -> Tensor:
        y, s2 = x.to(F64), torch.as_tensor(sigma, dtype=F64).reshape(-1, 1) ** 2
        total = VARIANCE + s2
        away = y[:, None] - MEAN
        log_p = log_weight - away.square().sum(2) / (2.0 * total) - 0.5 * D * total.log()
        gain = (VARIANCE / total).expand(len(y), 2)[:, :, None]
        return (torch.softmax(log_p, 1)[:, :, None] * (MEAN + gain * away)).sum(1).to(dtype)

    return exact


def normal(seed: int, n: int, kind: int) -> Tensor:
    w = torch.randn(n, D, generator=torch.Generator().manual_seed(seed), dtype=F64)
    return MEAN[kind] + VARIANCE[kind].sqrt() * w


@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_samples_of_modes_without_a_free_sample(dtype: torch.dtype) -> None:
    exact, home = denoiser(1e-3, dtype), torch.zeros(16, dtype=torch.long)

    def found(free: Tensor, home: Tensor, samples: Tensor) -> list[int]:
        stream = torch.Generator().manual_seed(3)
        return other_modes(lambda x, s: exact(x, s).to(F64), free, home, samples, 0.3, stream).tolist()

    dark, bright = normal(0, 16, 0), normal(1, 16, 1)
    samples = torch.cat([normal(2, 50, 0), normal(3, 3, 1)])
    assert found(dark, home, samples) == [0] * 50 + [1] * 3
    assert found(torch.cat([dark, bright]), torch.cat([home, home + 1]), samples) == [0] * 53
    assert found(dark, home, normal(3, 30, 1)) == [1] * 30


@pytest.mark.parametrize(("rare", "verdict"), [(1e-4, "suspect"), (0.0, "trusted")])
def test_a_mode_that_only_the_equation_makes_likely_is_no_trusted_result(rare: float, verdict: str) -> None:
    """The mean of half the coordinates is given; the others tell the modes apart. The rare one has most of the set."""
    row = torch.cat([torch.ones(D // 2), torch.zeros(D // 2)]) / (D // 2)
    model = casal.edm(denoiser(rare), casal.karras_sigmas(30), shape=D)
    constraint = casal.Affine(row[None], torch.tensor([0.66]))
    result = casal.sample(model, constraint, casal.Matheron(), 200, seed=1, run=casal.Run(dtype=F64))
    assert result.fidelity.verdict == verdict
    assert (result.fidelity.figures["unseen_modes"] > 0.0) == (rare > 0.0)
    if rare:
        assert "were not found among its 200 free samples" in result.fidelity.reasons[0]
