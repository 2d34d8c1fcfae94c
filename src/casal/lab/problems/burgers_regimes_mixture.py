"""Set-up C: draws of the regimes, and their exact noise and density at every noise level of a diffusion."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from casal.lab.nets import signal_and_noise
from casal.lab.problems.burgers_regimes_prior import DIMENSION, MEANS, WEIGHTS, WITHIN
from casal.lab.problems.mixture_families import BETAS

ALPHA, SIGMA = signal_and_noise(BETAS)


def draws(n: int, seed: int) -> Tensor:
    """n draws of the regimes, (n, 19) float64."""
    generator = torch.Generator().manual_seed(seed)
    k = torch.multinomial(WEIGHTS, n, replacement=True, generator=generator)
    return MEANS[k] + WITHIN * torch.randn((n, DIMENSION), generator=generator, dtype=torch.float64)


def _under_noise(x: Tensor, t: int) -> tuple[Tensor, Tensor, float]:
    """x - alpha m_k (n, 3, 19), log of w_k N(x; alpha m_k, v) without constants (n, 3), and v."""
    alpha, sigma = float(ALPHA[t]), float(SIGMA[t])
    variance = (alpha * WITHIN) ** 2 + sigma**2
    gap = x[:, None] - alpha * MEANS.to(x)
    return gap, WEIGHTS.log().to(x) - gap.square().sum(2) / (2 * variance), variance


def exact_eps(x: Tensor, t: Tensor | int) -> Tensor:
    """E[w | alpha_t x0 + sigma_t w = x] of the regimes."""
    gap, log_joint, variance = _under_noise(x, int(t))
    return float(SIGMA[int(t)]) / variance * (torch.softmax(log_joint, 1)[:, :, None] * gap).sum(1)


def exact_log_density(x: Tensor) -> Tensor:
    """log p (n,) of alpha_0 x0 + sigma_0 w."""
    _, log_joint, variance = _under_noise(x.double(), 0)
    return torch.logsumexp(log_joint, 1) - DIMENSION / 2 * math.log(2 * math.pi * variance)
