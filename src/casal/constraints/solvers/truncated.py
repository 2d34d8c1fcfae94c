"""Gaussians restricted to an interval or a sphere: exact draws and log-masses, however far out they lie.

``truncated_normal`` and ``log_interval_mass`` for intervals; ``von_mises_fisher`` and ``log_sphere_mass`` for spheres,
whose normalisers are modified Bessel functions (``log_bessel_mean``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache

import torch
from torch import Tensor

from casal.devices import waits

NARROW = 1e-5
"""Width (in sigmas) below which the density is an exponential to eleven digits."""

NEWTON_STEPS = 20
NEWTON_TOLERANCE = 1e-12
STILL = 1e-15
FARTHEST = 1e150
"""Distance (in sigmas) beyond which a draw is the near end itself."""

LARGEST_ERF = 1.0 - 2.0**-53
ROOT_TWO = math.sqrt(2.0)
ROOT_TWO_OVER_PI = math.sqrt(2.0 / math.pi)
LOG_ROOT_TWO_PI = 0.5 * math.log(2.0 * math.pi)
TINY = torch.finfo(torch.float64).tiny

LARGEST_KAPPA = 1e300

TERMS = 12
"""Terms of Olver's expansion beyond the first."""

LEAST_ORDER = 20.0
"""Order from which the expansion is used; lower orders are reached by recurrence."""


# ------------------------------------------------------------------ intervals


@waits
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
        settled = bool((t - moved <= NEWTON_TOLERANCE * t + STILL * here).all())
        t = moved
        if settled:
            break
    return torch.where(thin, narrow, t)


# ------------------------------------------------------------------ spheres


@waits
def von_mises_fisher(
    mean: Tensor, kappa: Tensor, dimension: int, normal: Callable[[int], Tensor], generator: torch.Generator
) -> Tensor:
    """u ~ exp(kappa mean . u) on the unit sphere of a space with ``dimension`` dimensions, one draw per row.

    A Gaussian N(y, sigma^2 I) restricted to the sphere of radius R has the direction of y as its mean, and
    kappa = R |y| / sigma^2.

    Wood's rejection in the variable delta = 1 - mean . u, so that no digits are lost when kappa is large. With
    b = (d - 1) / (2 kappa + sqrt(4 kappa^2 + (d - 1)^2)) and delta_0 = 2 b / (1 + b),

        delta = 2 b Z / (1 - Z + b Z),      Z ~ Beta((d - 1) / 2, (d - 1) / 2),
        accept with probability  exp(kappa (delta_0 - delta)) (s / s_0)^(d-1),
        s = delta_0 + delta - delta_0 delta,   s_0 = delta_0 (2 - delta_0).

    Z = (1 + t) / 2 comes from the cosine t of a uniform direction with the mean (Ulrich); the part of that direction
    across the mean is uniform and independent of t, so one Gaussian vector gives both. About two thirds of the
    proposals or more are accepted, whatever kappa and d (0.65 in the plane). Rows are drawn in order from one
    generator until all are accepted.

    Reference: A. T. A. Wood, Simulation of the von Mises-Fisher distribution, 1994; G. Ulrich, 1984.

    Args:
        mean: Unit vectors (n, D), inside the space.
        kappa: Concentrations (n,) >= 0; zero is the uniform distribution.
        dimension: d, the dimension of the space; D or less.
        normal: Draws that many standard Gaussian vectors (rows, D) of the space.
        generator: For the uniform numbers.
    """
    kappa = kappa.clamp_max(LARGEST_KAPPA)
    if dimension == 1:
        ahead = _uniform(len(mean), mean, generator) <= torch.sigmoid(2.0 * kappa)
        return torch.where(ahead[:, None], mean, -mean)
    wide = float(dimension - 1)
    b = wide / (2.0 * kappa + torch.hypot(2.0 * kappa, torch.full_like(kappa, wide)))
    least = 2.0 * b / (1.0 + b)
    drawn, waiting = torch.empty_like(mean), torch.arange(len(mean), device=mean.device)
    while len(waiting):
        axis, here, start = mean[waiting], b[waiting], least[waiting]
        lower, upper, across = _split(normal(len(waiting)), axis)
        delta = 2.0 * here * lower / (upper + here * lower)
        log_ratio = torch.log((start + delta - start * delta) / (start * (2.0 - start)))
        log_accept = kappa[waiting] * (start - delta) + wide * log_ratio
        accepted = torch.log(_uniform(len(waiting), mean, generator)) <= log_accept
        delta = delta[:, None]
        drawn[waiting[accepted]] = ((1.0 - delta) * axis + torch.sqrt(delta * (2.0 - delta)) * across)[accepted]
        waiting = waiting[~accepted]
    return drawn


def log_sphere_mass(distance: Tensor, radius: float | Tensor, sigma: float, dimension: int) -> Tensor:
    """log of the integral of N(z; y, sigma^2 I) over the sphere |z| = R of R^d, from r = |y|.

    -(r - R)^2 / (2 sigma^2) - d/2 log(2 pi sigma^2) + (d - 1) log R + log |S^(d-1)| + log mean exp(kappa (cos - 1)),
    kappa = R r / sigma^2, |S^(d-1)| = 2 pi^(d/2) / Gamma(d/2). A sphere of radius zero is a point, of mass one. R is a
    number or (n,).
    """
    value = -0.5 * ((distance - radius) / sigma).square() - dimension * math.log(math.sqrt(2.0 * math.pi) * sigma)
    if isinstance(radius, float) and radius == 0.0:
        return value
    kappa = ((radius / sigma) * (distance / sigma)).clamp_max(LARGEST_KAPPA)
    log_radius = math.log(radius) if isinstance(radius, float) else torch.log(radius)
    log_area = math.log(2.0) + 0.5 * dimension * math.log(math.pi) - math.lgamma(0.5 * dimension)
    constant = (dimension - 1) * log_radius + log_area
    mass = value + constant + log_bessel_mean(0.5 * dimension - 1.0, kappa)
    return mass if isinstance(radius, float) else torch.where(radius == 0.0, value, mass)


def _split(vector: Tensor, axis: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(1 + t) / 2 and (1 - t) / 2 of the cosine t with the axis, both to full precision, and the direction across."""
    along = (vector * axis).sum(1)
    across = vector - along[:, None] * axis
    across = across - (across * axis).sum(1, keepdim=True) * axis  # once more, for what rounding left
    width = torch.linalg.vector_norm(across, dim=1)
    length = torch.hypot(along, width)
    far = 0.5 * (1.0 + along.abs() / length)
    near = 0.5 * (width / length) * (width / (length + along.abs()))
    ahead = along > 0
    return torch.where(ahead, far, near), torch.where(ahead, near, far), across / width[:, None]


def _uniform(rows: int, like: Tensor, generator: torch.Generator) -> Tensor:
    """Uniform on (0, 1]."""
    return 1.0 - torch.rand(rows, generator=generator, dtype=like.dtype, device=like.device)


# ------------------------------------------------------------------ Bessel functions


def log_bessel_mean(order: float, kappa: Tensor) -> Tensor:
    """log[Gamma(nu + 1) (2 / kappa)^nu I_nu(kappa)] - kappa, for nu >= -1/2 and kappa >= 0, in float64.

    On the unit sphere of R^d, with nu = d/2 - 1, this is log of the mean of exp(kappa (cos - 1)): zero at kappa = 0,
    -nu log kappa + const for large kappa. Olver's uniform expansion gives it for nu >= 20, where its error is below
    rounding for every kappa. Lower orders follow by the recurrence of the ratios r_nu = I_(nu+1) / I_nu,

        r_(nu-1) = kappa / (2 nu + kappa r_nu),        M_(nu-1) = M_nu (1 + kappa r_nu / (2 nu)),

    downwards, where all terms are positive. The error is a few 1e-14, absolute (so relative in the Bessel function).

    Reference: F. W. J. Olver, Asymptotics and Special Functions, 10.7; DLMF 10.41.

    >>> log_bessel_mean(0.5, torch.tensor([0.0, 1.0], dtype=torch.float64)).exp() * torch.tensor([1.0, math.e])
    tensor([1.0000, 1.1752], dtype=torch.float64)
    """
    kappa = kappa.to(torch.float64)
    shift = max(0, math.ceil(LEAST_ORDER - order))
    top = order + shift
    value = _olver(top, kappa)
    if not shift:
        return value
    ratio = kappa / (2.0 * (top + 1.0)) * torch.exp(_olver(top + 1.0, kappa) - value)
    for step in range(shift):
        above = top - step
        value = value + torch.log1p(kappa * ratio / (2.0 * above))
        ratio = kappa / (2.0 * above + kappa * ratio)
    return value


def _olver(order: float, kappa: Tensor) -> Tensor:
    """The expansion for large orders, divided by its own value at kappa = 0, which is Stirling's for Gamma."""
    z = kappa / order
    s = torch.hypot(torch.ones_like(z), z)
    rise = z * (z / (1.0 + s))  # s - 1 without cancellation
    leading = -order * ((rise + z) / (s + z) + torch.log1p(0.5 * rise)) - 0.5 * torch.log(s)
    return leading + torch.log(_series(order, 1.0 / s) / _series(order, torch.ones_like(s)))


def _series(order: float, p: Tensor) -> Tensor:
    """Sum over k of U_k(p) / nu^k."""
    total, square = torch.zeros_like(p), p.square()
    for coefficients in reversed(_polynomials()):
        inner = torch.zeros_like(p)
        for coefficient in reversed(coefficients):
            inner = inner * square + coefficient
        total = total * (p / order) + inner
    return total


@cache
def _polynomials() -> list[list[float]]:
    """U_k(p) = p^k (c_0 + c_1 p^2 + ... + c_k p^2k), from p^2 (1 - p^2) U' / 2 + 1/8 int_0^p (1 - 5 q^2) U dq."""
    found = [[Fraction(1)]]
    for k in range(TERMS):
        following = [Fraction(0)] * (k + 2)
        for i, c in enumerate(found[-1]):
            power = k + 2 * i
            following[i] += c * (Fraction(power, 2) + Fraction(1, 8 * (power + 1)))
            following[i + 1] -= c * (Fraction(power, 2) + Fraction(5, 8 * (power + 3)))
        found.append(following)
    return [[float(c) for c in coefficients] for coefficients in found]
