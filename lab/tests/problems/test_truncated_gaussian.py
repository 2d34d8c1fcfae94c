"""Gaussians on bounds, against quadrature; the Gibbs sampler, against both."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import special

from casal.errors import InfeasibleSet
from casal_lab.problems.truncated_gaussian import (
    TruncatedGaussian,
    interval_moments,
    interval_quantile,
    nonnegative_gibbs,
)

INTERVALS = [
    (-1.0, 2.0),
    (0.3, 0.4),
    (-math.inf, -2.0),
    (1.5, math.inf),
    (-math.inf, math.inf),
    (6.0, 9.0),
    (-40.0, -39.0),
    (20.0, math.inf),
]


@pytest.mark.parametrize(("a", "b"), INTERVALS)
def test_moments_against_quadrature(a: float, b: float) -> None:
    near = min(max(a, 0.0), b) if math.isfinite(a) or math.isfinite(b) else 0.0
    low, high = max(a, near - 12), min(b, near + 12)
    node, weight = np.polynomial.legendre.leggauss(400)
    t = low + (high - low) * (node + 1) / 2
    density = weight * (high - low) / 2 * np.exp(-(t**2 - near**2) / 2)
    mass = density.sum()
    mean = (density * t).sum() / mass
    found = interval_moments(np.array([a]), np.array([b]))
    assert found.log_mass[0] == pytest.approx(math.log(mass / math.sqrt(2 * math.pi)) - near**2 / 2, rel=1e-11)
    assert found.mean[0] == pytest.approx(mean, abs=1e-9)
    assert found.variance[0] == pytest.approx((density * (t - mean) ** 2).sum() / mass, abs=1e-9)


@pytest.mark.parametrize(("a", "b"), INTERVALS)
def test_quantile_inverts_the_distribution(a: float, b: float) -> None:
    u = np.array([0.01, 0.3, 0.5, 0.99])
    t = interval_quantile(u, np.full(4, a), np.full(4, b))
    assert ((t >= a) & (t <= b)).all()
    below = interval_moments(np.full(4, a), t).log_mass - interval_moments(np.array([a]), np.array([b])).log_mass
    np.testing.assert_allclose(np.exp(below), u, rtol=1e-9)


def test_empty_interval_is_refused() -> None:
    with pytest.raises(InfeasibleSet, match="below its upper bound"):
        interval_moments(np.array([1.0]), np.array([1.0]))


@pytest.mark.statistical
def test_draws_have_the_moments() -> None:
    mean, variance = torch.tensor([-1.0, 2.0, 0.0]).double(), torch.tensor([1.0, 4.0, 0.25]).double()
    low, high = torch.tensor([0.0, -math.inf, -0.2]).double(), torch.tensor([math.inf, 1.0, 0.3]).double()
    exact, n = TruncatedGaussian(mean, variance, low, high), 40_000
    x = exact.draw(n, torch.Generator().manual_seed(0))
    assert bool(((x >= low) & (x <= high)).all())
    z = (x.mean(0) - exact.means) / (exact.variances / n).sqrt()
    assert float(z.abs().max()) < 4
    assert float((x.var(0) / exact.variances - 1).abs().max()) < 0.05
    # Power: the moments without the bounds are far off.
    assert float(((x.mean(0) - mean) / (exact.variances / n).sqrt()).abs().min()) > 10


def test_log_probability_is_that_of_all_coordinates() -> None:
    exact = TruncatedGaussian(torch.tensor([1.0, -1.0]).double(), torch.ones(2).double(), 0.0, math.inf)
    assert exact.log_probability == pytest.approx(float(special.log_ndtr([1.0, -1.0]).sum()), rel=1e-12)


@pytest.mark.statistical
def test_gibbs_on_independent_coordinates() -> None:
    mean, variance = torch.tensor([-1.0, 0.5, 2.0]).double(), torch.tensor([1.0, 0.25, 4.0]).double()
    exact = TruncatedGaussian(mean, variance, 0.0, math.inf)
    found = nonnegative_gibbs(mean, torch.diag(1 / variance), replicas=200, sweeps=100, warmup=1)
    offset = (found.means - exact.means) / exact.variances.sqrt()
    assert float(offset.abs().max()) < 4 / math.sqrt(200 * 100)
    assert found.error == pytest.approx(1 / math.sqrt(200 * 100), rel=0.2)
    torch.testing.assert_close(found.variances, exact.variances, rtol=0.05, atol=0)


@pytest.mark.statistical
def test_gibbs_on_correlated_coordinates_against_quadrature() -> None:
    mean, covariance = np.array([-0.5, 0.3]), np.array([[1.0, 0.8], [0.8, 1.0]])
    t = np.linspace(0, 7, 1401)
    x, y = np.meshgrid(t, t, indexing="ij")
    offset = np.stack([x, y], axis=-1) - mean
    edge = np.where((np.arange(1401) == 0) | (np.arange(1401) == 1400), 0.5, 1.0)
    density = np.exp(-0.5 * np.einsum("abi,ij,abj->ab", offset, np.linalg.inv(covariance), offset)) * np.outer(
        edge, edge
    )
    density /= density.sum()
    found = nonnegative_gibbs(
        torch.from_numpy(mean), torch.linalg.inv(torch.from_numpy(covariance)), replicas=200, sweeps=200, warmup=50
    )
    for i, grid in enumerate((x, y)):
        exact = (density * grid).sum()
        spread = math.sqrt((density * (grid - exact) ** 2).sum())
        assert abs(float(found.means[i]) - exact) / spread < 4 * found.error
        assert float(found.variances[i]) == pytest.approx(spread**2, rel=0.05)
    assert 0.003 < found.error < 0.015


@pytest.mark.statistical
def test_gibbs_with_a_fixed_sum_against_quadrature() -> None:
    mean = np.array([1.0, 0.2, -0.3])
    covariance = np.array([[1.0, 0.5, 0.0], [0.5, 0.8, -0.2], [0.0, -0.2, 0.5]])
    t = (np.arange(600) + 0.5) / 600 * 2.0
    x, y = np.meshgrid(t, t, indexing="ij")
    points = np.stack([x, y, 2.0 - x - y], axis=-1)
    offset = points - mean
    density = np.exp(-0.5 * np.einsum("abi,ij,abj->ab", offset, np.linalg.inv(covariance), offset))
    density *= points[..., 2] >= 0
    density /= density.sum()
    found = nonnegative_gibbs(
        torch.from_numpy(mean),
        torch.linalg.inv(torch.from_numpy(covariance)),
        2.0,
        replicas=200,
        sweeps=200,
        warmup=50,
    )
    assert float((found.points.sum(1) - 2).abs().max()) < 1e-12 and bool((found.points >= 0).all())
    for i in range(3):
        exact = (density * points[..., i]).sum()
        spread = math.sqrt((density * (points[..., i] - exact) ** 2).sum())
        assert abs(float(found.means[i]) - exact) / spread < 4 * found.error + 0.003  # and the cells of the edge
        assert float(found.variances[i]) == pytest.approx(spread**2, rel=0.05)


@pytest.mark.statistical
def test_stationary_pools_coordinates() -> None:
    mean, precision = torch.zeros(6).double(), torch.eye(6).double()
    found = nonnegative_gibbs(mean, precision, replicas=200, sweeps=50, warmup=1)
    centre, variance, error = found.stationary()
    assert error == pytest.approx(1 / math.sqrt(200 * 50 * 6), rel=0.25)
    assert abs(centre - math.sqrt(2 / math.pi)) / math.sqrt(variance) < 4 * error
    assert variance == pytest.approx(1 - 2 / math.pi, rel=0.03)
