"""A Gaussian cut to an interval: exact draws and log-masses, however far out the interval lies."""

from __future__ import annotations

import math

import torch
from torch import Tensor

NARROW = 1e-5
"""Width (in sigmas) below which the density is an exponential to eleven digits."""

NEWTON_STEPS = 20
NEWTON_TOLERANCE = 1e-12
ROUNDING = 1e-15
FARTHEST = 1e150
"""Distance (in sigmas) beyond which a draw is the near end itself."""

LARGEST_ERF = 1.0 - 2.0**-53
ROOT_TWO = math.sqrt(2.0)
ROOT_TWO_OVER_PI = math.sqrt(2.0 / math.pi)
LOG_ROOT_TWO_PI = 0.5 * math.log(2.0 * math.pi)
TINY = torch.finfo(torch.float64).tiny


def truncated_normal(mean: Tensor, sigma: float, low: Tensor, high: Tensor, generator: torch.Generator) -> Tensor:
    """z = F^-1(u), u uniform: N(mean, sigma^2) restricted to [low, high], element by element, in float64.

    An interval around the mean: z = sqrt(2) erfinv(u), u uniform between the erf of its ends. An interval to one
    side: with beta the distance of the near end (in sigmas), the distance t >= 0 from that end solves

        log Q(beta + t) - log Q(beta) = log q,    q = 1 - (1 - u) (1 - Q(beta + width) / Q(beta)),

    with Q the upper tail. The left side is -(t^2 / 2 + beta t) + log of a ratio of erfcx, so nothing underflows, and
    it is concave in t, so Newton's method comes down to the root from the start t^2 / 2 + beta t = -log q.

    Args:
        mean: Any shape; ``low`` and ``high`` broadcast to it, and may be infinite.
        sigma: Standard deviation > 0.
        low: Lower ends.
        high: Upper ends, >= ``low``.
        generator: One uniform number an element.
    """
    low, high = low.expand_as(mean), high.expand_as(mean)
    u = 1.0 - torch.rand(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
    left, right = torch.erf((low - mean) / (sigma * ROOT_TWO)), torch.erf((high - mean) / (sigma * ROOT_TWO))
    z = mean + sigma * ROOT_TWO * torch.special.erfinv(torch.lerp(left, right, u).clamp(-LARGEST_ERF, LARGEST_ERF))
    aside = (mean < low) | (mean > high)
    if bool(aside.any()):
        mean, low_end, high_end = mean[aside], low[aside], high[aside]
        distance = sigma * _distance_from_end(u[aside], *_tail(mean, sigma, low_end, high_end))
        z[aside] = torch.where(mean < low_end, low_end + distance, high_end - distance)
    return torch.clamp(z, low, high)


def log_interval_mass(mean: Tensor, sigma: float, low: Tensor, high: Tensor) -> Tensor:
    """log of the integral of N(mean, sigma^2) over [low, high]; of its density where low = high."""
    low, high = low.expand_as(mean), high.expand_as(mean)
    left, right = torch.erf((low - mean) / (sigma * ROOT_TWO)), torch.erf((high - mean) / (sigma * ROOT_TWO))
    around = torch.log((0.5 * (right - left)).clamp_min(TINY))
    beta, width = _tail(mean, sigma, low, high)
    middle = beta + 0.5 * torch.where(width < NARROW, width, torch.zeros_like(width))
    thin = torch.log(_rise(middle, width).clamp_min(TINY)) - LOG_ROOT_TWO_PI
    thick = torch.log(0.5 * torch.special.erfcx(beta / ROOT_TWO) * -torch.expm1(_log_tail_ratio(beta, width)))
    aside = torch.where(width < NARROW, thin, thick) - 0.5 * beta.square()
    point = -0.5 * beta.square() - LOG_ROOT_TWO_PI - math.log(sigma)
    mass = torch.where((mean < low) | (mean > high), aside, around)
    return torch.where(width == 0, point, mass)


def _tail(mean: Tensor, sigma: float, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Distance of the near end, zero where the interval holds the mean, and the width; both in sigmas."""
    beta = torch.maximum(low - mean, mean - high).clamp_min(0.0) / sigma
    return beta.clamp_max(FARTHEST), (high - low) / sigma


def _log_tail_ratio(beta: Tensor, t: Tensor) -> Tensor:
    """log Q(beta + t) - log Q(beta) for beta, t >= 0."""
    ratio = torch.special.erfcx((beta + t) / ROOT_TWO) / torch.special.erfcx(beta / ROOT_TWO)
    return torch.log(ratio) - t * (0.5 * t + beta)


def _rise(rate: Tensor, t: Tensor) -> Tensor:
    """(1 - exp(-rate t)) / rate, which is t at rate zero."""
    safe = rate.clamp_min(TINY)
    return torch.where(rate * t < 1e-300, t, -torch.expm1(-safe * t) / safe)


def _distance_from_end(u: Tensor, beta: Tensor, width: Tensor) -> Tensor:
    thin = width < NARROW
    rate = (beta + 0.5 * torch.where(thin, width, torch.zeros_like(width))).clamp_min(TINY)
    narrow = -torch.log1p(-(1.0 - u) * rate * _rise(rate, width)) / rate
    log_q = torch.log1p((1.0 - u) * torch.expm1(_log_tail_ratio(beta, width)))
    t = -2.0 * log_q / (beta + torch.sqrt(beta.square() - 2.0 * log_q)).clamp_min(TINY)
    start = torch.special.erfcx(beta / ROOT_TWO)
    for _ in range(NEWTON_STEPS):
        here = torch.special.erfcx((beta + t) / ROOT_TWO)
        step = (torch.log(here / start) - t * (0.5 * t + beta) - log_q) * (here / ROOT_TWO_OVER_PI)
        moved = torch.minimum(t, t + step).clamp_min(0.0)
        settled = bool((t - moved <= NEWTON_TOLERANCE * t + ROUNDING * here).all())
        t = moved
        if settled:
            break
    return torch.where(thin, narrow, t)
