"""Held-out losses per noise level, a network beside the Gaussian model of its training data."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from casal.checks import whole_number
from casal.errors import SettingError
from casal.lab.nets.gaussian import Gaussian
from casal.lab.nets.report import LevelLosses
from casal.lab.nets.streams import HELD_OUT, normal_like, stream
from casal.typing import ScoreFunction

BATCH = 128
"""Points evaluated at once."""

Pair = Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]
"""(x, w, level) -> errors of the network and of the Gaussian, shaped as x."""


def signal_and_noise(betas: Tensor) -> tuple[Tensor, Tensor]:
    """alpha_t = sqrt(abar_t) and sigma_t = sqrt(1 - abar_t), abar_t = prod_{s <= t} (1 - beta_s), (T,) float64."""
    beta = torch.as_tensor(betas, dtype=torch.float64)
    if beta.ndim != 1 or not len(beta) or not bool(((beta > 0) & (beta < 1)).all()):
        raise SettingError("betas must be (T,) numbers between 0 and 1, as in torch.linspace(1e-4, 0.02, 1000)")
    abar = torch.cumprod(1 - beta, dim=0)
    return abar.sqrt(), (1 - abar).sqrt()


def compare_ddpm(
    eps: ScoreFunction,
    gaussian: Gaussian,
    points: Tensor,
    betas: Tensor,
    *,
    levels: int | Sequence[float] = 10,
    seed: int = 0,
) -> LevelLosses:
    """mean of |eps(alpha_t x + sigma_t w, t) - w|^2 per number, for a network and for the Gaussian.

    Args:
        eps: The network, or anything that predicts the noise.
        gaussian: Of the training data.
        points: Held-out data (n, *event).
        betas: (T,).
        levels: The steps t to look at, or how many: then they lie closer where there is little noise.
        seed: Of the noise w.
    """
    alpha, sigma = signal_and_noise(betas)
    last = len(alpha) - 1
    if isinstance(levels, int):
        steps = (torch.linspace(0, 1, whole_number(levels, "levels", 1), dtype=torch.float64).square() * last).round()
    else:
        steps = torch.as_tensor(levels, dtype=torch.float64)
    if not len(steps) or not bool(((steps >= 0) & (steps <= last) & (steps == steps.round())).all()):
        raise SettingError(f"levels of a DDPM are steps between 0 and {last}, got {steps.tolist()}")

    def errors(x: Tensor, w: Tensor, t: float) -> tuple[Tensor, Tensor]:
        a, s = float(alpha[int(t)]), float(sigma[int(t)])
        noisy = a * x + s * w
        return eps(noisy, torch.tensor(int(t), device=x.device)) - w, gaussian.eps(noisy, a, s) - w

    return _compare(errors, points, steps, "t", seed)


def compare_denoiser(
    denoiser: ScoreFunction,
    gaussian: Gaussian,
    points: Tensor,
    *,
    levels: int | Sequence[float] = 8,
    sigmas: Sequence[float] = (0.01, 3.0),
    seed: int = 0,
) -> LevelLosses:
    """mean of |D(x + sigma w, sigma) - x|^2 per number, for a network and for the Gaussian.

    Args:
        denoiser: The network D(y, sigma), or any other denoiser.
        gaussian: Of the training data.
        points: Held-out data (n, *event).
        levels: The sigmas to look at, or how many, in equal ratios over ``sigmas``.
        sigmas: The range.
        seed: Of the noise w.
    """
    if isinstance(levels, int):
        low, high = noise_range(sigmas)
        ends = torch.tensor([low, high], dtype=torch.float64).log()
        count = whole_number(levels, "levels", 1)
        values = torch.linspace(float(ends[0]), float(ends[1]), count, dtype=torch.float64).exp()
    else:
        values = torch.as_tensor(levels, dtype=torch.float64)
    if not len(values) or not bool((values > 0).all()):
        raise SettingError(f"levels of a denoiser are noise sizes > 0, got {values.tolist()}")

    def errors(x: Tensor, w: Tensor, level: float) -> tuple[Tensor, Tensor]:
        y, sigma = x + level * w, torch.tensor(level, dtype=x.dtype, device=x.device)
        return denoiser(y, sigma) - x, gaussian(y, sigma) - x

    return _compare(errors, points, values, "sigma", seed)


def noise_range(sigmas: Sequence[float]) -> tuple[float, float]:
    """The two ends, checked."""
    ends = tuple(float(sigma) for sigma in sigmas)
    if len(ends) != 2 or not 0 < ends[0] < ends[1] < float("inf"):
        raise SettingError(f"sigmas must be two numbers 0 < low < high, got {ends}")
    return ends[0], ends[1]


@torch.no_grad()
def _compare(errors: Pair, points: Tensor, levels: Tensor, name: str, seed: int) -> LevelLosses:
    if not len(points):
        raise SettingError("there are no held-out points; hold out at least one")
    rows = []
    for k, level in enumerate(levels.tolist()):
        generator = stream(seed, HELD_OUT, k)
        losses = [
            torch.stack([e.flatten(1).double().square().mean(1) for e in errors(x, normal_like(x, generator), level)])
            for x in points.split(BATCH)
        ]
        rows.append(torch.cat(losses, dim=1).cpu())
    per_point = torch.stack(rows)  # (L, 2, n)
    network, gaussian = per_point.mean(-1).unbind(1)
    ratio = network / gaussian
    spread = (per_point[:, 0] - ratio[:, None] * per_point[:, 1]).square().mean(-1).sqrt()
    return LevelLosses(name, levels, network, gaussian, spread / gaussian / len(points) ** 0.5)
