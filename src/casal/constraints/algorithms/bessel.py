"""Normalisers of exp(kappa cos) on a sphere: modified Bessel functions of any order, without overflow."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import torch
from torch import Tensor

TERMS = 12
"""Terms of Olver's expansion beyond the first."""

LEAST_ORDER = 20.0
"""Order from which the expansion is used; lower orders are reached by recurrence."""


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


def log_sphere_area(dimension: int) -> float:
    """log of 2 pi^(d/2) / Gamma(d/2), the area of the unit sphere of R^d."""
    return math.log(2.0) + 0.5 * dimension * math.log(math.pi) - math.lgamma(0.5 * dimension)


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
