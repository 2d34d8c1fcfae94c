"""Whether chains that run on their own have mixed: split R-hat and effective sample size of recorded draws.

Each chain is cut in two halves of L draws. With W the mean of the variances within the halves, V the variance of
their means, and v+ = (L - 1) / L W + V,

    R-hat = sqrt(v+ / W)                                     (Gelman et al. 2013; one where all halves agree)
    rho_t = 1 - (W - mean autocovariance at lag t) / v+
    ESS   = halves L / (-1 + 2 sum_k P_k),   P_k = rho_2k + rho_2k+1,

the sum up to the last P_k > 0, each P_k at most the one before (Geyer 1992).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

FEWEST_DRAWS = 4
"""Draws a chain from which on it can be cut in two."""


class Mixing(NamedTuple):
    """How well chains have mixed, function by function; NaN where the draws do not vary.

    Attributes:
        r_hat: (k,), one where chains agree; above 1.01 they have not mixed.
        ess: (k,) independent draws that all draws of all chains are worth for a mean.
    """

    r_hat: Tensor
    ess: Tensor


def mixing(draws: Tensor) -> Mixing | None:
    """R-hat and effective sample size of draws (chains, draws, k); None for fewer than FEWEST_DRAWS draws per chain.

    >>> generator = torch.Generator().manual_seed(0)
    >>> found = mixing(torch.randn(50, 40, 1, generator=generator))
    >>> bool((found.r_hat - 1).abs() < 0.02)
    True
    """
    chains, count, _ = draws.shape
    if count < FEWEST_DRAWS:
        return None
    half = count // 2
    x = torch.cat([draws[:, :half], draws[:, count - half :]]).to(torch.float64)
    mean = x.mean(1, keepdim=True)
    within = x.var(1).mean(0)
    between = mean[:, 0].var(0)
    total = (half - 1) / half * within + between
    covariance = _autocovariance(x - mean).mean(0)
    rho = 1.0 - (within - covariance) / total
    rho[0] = 1.0
    pairs = rho[: half // 2 * 2].reshape(half // 2, 2, -1).sum(1)
    positive = (pairs > 0).to(pairs.dtype).cumprod(0)
    tau = -1.0 + 2.0 * (pairs.cummin(0).values * positive).sum(0)
    size = 2 * chains * half
    ess = size / tau.clamp_min(1.0 / math.log10(max(size, 11)))
    moves = within > 0
    return Mixing(torch.where(moves, (total / within).sqrt(), torch.nan), torch.where(moves, ess, torch.nan))


def _autocovariance(centred: Tensor) -> Tensor:
    """(halves, L, k) -> the same, at lags 0 .. L - 1, each sum divided by L."""
    length = centred.shape[1]
    spectrum = torch.fft.rfft(centred, n=2 * length, dim=1)
    return torch.fft.irfft(spectrum.abs().square(), n=2 * length, dim=1)[:, :length] / length
