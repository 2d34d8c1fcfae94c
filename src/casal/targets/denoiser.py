"""Denoisers on a scale of noise levels (EDM, variance-exploding diffusion)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from casal.checks import positive, whole_number
from casal.errors import SettingError
from casal.targets.base import Table, Target
from casal.targets.conditions import checked
from casal.targets.noise import (
    Network,
    along,
    clean_from,
    column,
    gaussian_start,
    implicit_rows,
    next_values,
    noise_level,
    noise_levels,
    noise_share,
    prediction_of,
    score_from,
)


def edm(
    denoiser: Callable[..., Tensor],
    sigmas: Tensor | Sequence[float],
    *,
    shape: int | Sequence[int],
    churn: float = 0.0,
    prediction: str = "x0",
    time: str = "auto",
    dtype: torch.dtype = torch.float32,
    condition: Mapping[str, Any] | None = None,
) -> Target:
    """Sampling with a denoiser, from the noise level sigmas[0] down to 0:

        x' = x + (sigma_down - sigma) (x - denoiser(x, sigma)) / sigma + sigma_up w,
        sigma_up = churn sigma' sqrt(1 - (sigma' / sigma)^2),   sigma_down^2 + sigma_up^2 = sigma'^2,

    where sigma' is the next level. With score = (denoiser(x, sigma) - x) / sigma^2 (Tweedie) this is the row

        a = 1,   b = sigma (sigma - sigma_down),   s = sigma_up.

    churn = 0 is Euler on the probability-flow ODE, churn = 1 ancestral sampling. The last row goes to noise 0 and
    returns denoiser(x, sigmas[-1]). (Heun's second evaluation is not a row: for the same cost take twice the levels.)

    Args:
        denoiser: ``denoiser(x, sigma)`` = E[x0 | x0 + sigma noise = x].
        sigmas: Noise levels, strictly decreasing, see ``karras_sigmas``; a 0 at the end is implied.
        shape: Shape of one sample.
        churn: Share of ancestral noise in [0, 1].
        prediction: What the network returns at x = x0 + sigma noise: the clean sample "x0" (or "sample"), or the noise
            "eps" (or "epsilon").
        time: How ``denoiser`` wants sigma: "scalar" (0-d), "batch" (n,), or "auto" to find out.
        dtype: Dtype of the starting points, which are sigmas[0] times standard normal.
        condition: What the network is called with besides, ``denoiser(x, sigma, **condition)``:
            names to tensors (n, ...), one row per chain; see ``docs/models.md``.

    References:
        Karras et al. (2022), Elucidating the design space of diffusion-based generative models, Algorithm 1 without
        its correction.

    >>> edm(lambda x, s: x / (1 + s**2), [2.0, 1.0], shape=(2,)).table.b
    tensor([2., 1.], dtype=torch.float64)
    """
    network = Network(denoiser, "denoiser", time=time)
    kind = prediction_of(prediction, "edm", ("x0", "eps"))
    levels = column(sigmas, "sigmas")
    sigma = noise_levels(levels[:-1] if len(levels) > 1 and float(levels[-1]) == 0.0 else levels)
    one = torch.ones_like(sigma)
    a, b, s = implicit_rows(one, sigma, one, next_values(sigma, 0.0), noise_share(churn, "churn"))

    def score(x: Tensor, t: Tensor, /, **given: Tensor) -> Tensor:
        at = along(t, x)
        return score_from(kind, network(x, t, **given), x, torch.ones_like(at), at)

    def denoise(y: Tensor, sigma: Tensor, /, **given: Tensor) -> Tensor:
        level = noise_level(sigma, y)
        at = along(level, y)
        return clean_from(kind, network(y, level, **given), y, torch.ones_like(at), at)

    table = Table(a, b, s, sigma, alpha=one, sigma=sigma)
    start = gaussian_start(shape, float(sigma[0]), dtype)
    return Target(score, table, start, denoise=denoise, name="edm", condition=checked(condition))


def karras_sigmas(count: int, low: float = 0.002, high: float = 80.0, rho: float = 7.0) -> Tensor:
    """Noise levels that are dense near the data:

        sigma_i = (high^(1/rho) + i / (count - 1) (low^(1/rho) - high^(1/rho)))^rho,   i = 0 ... count - 1.

    Args:
        count: How many levels.
        low: The last one, > 0; a step to 0 follows it.
        high: The first one, well above the spread of the data.
        rho: 1 spaces them evenly; larger values put more of them near ``low``.

    References:
        Karras et al. (2022), eq. 5.

    >>> karras_sigmas(3, 1.0, 4.0, rho=1)
    tensor([4.0000, 2.5000, 1.0000], dtype=torch.float64)
    """
    count = whole_number(count, "count", 1)
    low, high, rho = positive(low, "low"), positive(high, "high"), positive(rho, "rho")
    if low >= high:
        raise SettingError(f"low = {low:g} must be below high = {high:g}")
    ramp = torch.linspace(high ** (1 / rho), low ** (1 / rho), count, dtype=torch.float64)
    return ramp**rho
