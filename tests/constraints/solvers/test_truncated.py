"""Truncated Gaussians and Bessel functions, far out in their tails."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import Tensor

from casal.constraints.solvers.truncated import log_bessel_mean, log_interval_mass, truncated_normal


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("beta", [0.0, 1e-3, 1.0, 5.0, 37.0, 1e4, 1e12, 1e100])
@pytest.mark.parametrize("width", [1e-30, 1e-12, 0.9e-5, 1.1e-5, 1e-2, 1.0, math.inf])
@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_truncated_normal_far_out(beta: float, width: float, side: float) -> None:
    """Distances from the near end follow their own law, at P(Z > 37) = 6e-300 and far beyond."""
    mean = torch.full((8_000,), -side * beta, dtype=torch.float64)
    low, high = (0.0, width) if side > 0 else (-width, 0.0)
    distance = side * truncated_normal(mean, 1.0, tensor(low), tensor(high), generator(4))
    assert bool(((distance >= 0) & (distance <= width)).all())

    def cdf(t: np.ndarray) -> np.ndarray:
        if min(width, 1.0 / beta if beta else 1.0) < 1e-3:  # an exponential, cut
            rate = max(beta, 1e-250)
            return np.expm1(-rate * t) / np.expm1(-rate * width)
        return (1.0 - tail(t)) / (1.0 - tail(np.array(width)))

    def tail(t: np.ndarray) -> np.ndarray:
        ratio = special.erfcx((beta + t) / math.sqrt(2.0)) / special.erfcx(beta / math.sqrt(2.0))
        return np.exp(-t * (0.5 * t + beta)) * ratio

    assert stats.kstest(distance.numpy(), cdf).pvalue > 1e-3


def test_interval_masses() -> None:
    """Against SciPy where it has digits, against the limits of thin intervals and far tails elsewhere."""

    def mass(mean: float, low: float, high: float, sigma: float = 1.0) -> float:
        return float(log_interval_mass(tensor(mean), sigma, tensor(low), tensor(high))[0])

    for low, high in [(-1.0, 2.0), (0.5, 0.6), (2.0, math.inf), (-math.inf, -5.0), (30.0, 31.0), (-300.0, -200.0)]:
        exact = stats.norm.logcdf(-abs(low) if low > 0 else high)
        gap = stats.norm.logcdf(-high if low > 0 else low) - exact
        assert mass(0.0, low, high) == pytest.approx(exact + math.log(-math.expm1(gap)), rel=1e-12, abs=1e-12)
        assert mass(3.0, 3.0 + 2.0 * low, 3.0 + 2.0 * high, 2.0) == pytest.approx(mass(0.0, low, high), rel=1e-12)
    density = stats.norm.logpdf(3.0)
    for width in (1e-30, 1e-9, 0.99e-5):
        assert mass(-3.0, 0.0, width) == pytest.approx(density + math.log(width) - 1.5 * width, abs=1e-10)
    assert mass(-3.0, 0.0, 0.99e-5) == pytest.approx(mass(-3.0, 0.0, 1.01e-5) + math.log(0.99 / 1.01), abs=1e-6)
    assert mass(0.0, 3.0, 3.0) == pytest.approx(density)
    assert mass(0.0, 1e8, math.inf) == pytest.approx(-5e15, rel=1e-14)


ORDERS = [-0.5, 0.0, 0.5, 1.0, 3.5, 10.0, 19.5, 20.0, 60.0, 199.0, 200.0]


@pytest.mark.parametrize("order", ORDERS)
def test_bessel_against_scipy(order: float) -> None:
    """Relative error 1e-10 of e^-kappa I_nu(kappa), wherever SciPy's number neither underflows nor gives up."""
    kappa = np.concatenate([np.logspace(-8, 9, 60), [order + 1.0]])
    exact = special.ive(order, kappa)
    ours = log_bessel_mean(order, torch.from_numpy(kappa)).numpy()
    ours = ours - special.gammaln(order + 1.0) + order * np.log(kappa / 2.0)
    trusted = exact > 1e-290
    assert trusted.sum() > 25
    assert np.abs(ours - np.log(exact, where=trusted, out=np.zeros_like(exact)))[trusted].max() < 2e-11


def test_bessel_in_closed_form_and_at_the_ends() -> None:
    """sinh(k) / k for order 1/2, cosh for -1/2; kappa / (2 nu + 2) series near zero, -(nu + 1/2) log kappa far out."""
    kappa = torch.logspace(-8, 12, 200, dtype=torch.float64)
    sinh = torch.log(-torch.expm1(-2.0 * kappa) / (2.0 * kappa))
    cosh = torch.log1p(torch.exp(-2.0 * kappa)) - math.log(2.0)
    assert float((log_bessel_mean(0.5, kappa) - sinh).abs().max()) < 1e-12
    assert float((log_bessel_mean(-0.5, kappa) - cosh).abs().max()) < 1e-12
    for order in ORDERS:
        small, large = tensor(0.0, 1e-8), tensor(1e12)
        series = torch.log1p(small.square() / (4.0 * (order + 1.0))) - small
        assert torch.allclose(log_bessel_mean(order, small), series, rtol=1e-13, atol=1e-15)
        hankel = math.log1p(-(4.0 * order**2 - 1.0) / 8e12) - (order + 0.5) * math.log(1e12)
        tail = math.lgamma(order + 1.0) + order * math.log(2.0) - 0.5 * math.log(2.0 * math.pi) + hankel
        assert float(log_bessel_mean(order, large)[0]) == pytest.approx(tail, abs=3e-12)
