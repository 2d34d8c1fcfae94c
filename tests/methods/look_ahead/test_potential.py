"""log psi against densities and probabilities of SciPy, and its derivatives against differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from casal.methods.look_ahead.features import Features, FlatBlock
from casal.methods.look_ahead.potential import log_between, potential

from .gaussian import close, normal

N = 5
LOW = torch.tensor([[-1.0, -math.inf, 0.5]], dtype=torch.float64)
HIGH = torch.tensor([[0.5, 0.3, math.inf]], dtype=torch.float64)


def features_of(equal: int, sides: int) -> Features:
    rows = FlatBlock(torch.zeros(equal + sides, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))
    return Features([rows], equal, LOW[:, :sides], HIGH[:, :sides])


def covariances(m: int, seed: int = 1) -> Tensor:
    root = normal(seed, N, m, m)
    return root @ root.mT + 0.3 * torch.eye(m, dtype=torch.float64)


def soft_part(r: int) -> tuple[Tensor, Tensor]:
    """tilt and stiffness, one direction without stiffness."""
    root = normal(8, N, r, max(r - 1, 0))
    return normal(7, N, r), root @ root.mT


# ------------------------------------------------------------------ value


def test_equations_have_the_density_of_a_gaussian() -> None:
    mean, covariance = normal(2, N, 3), covariances(3)
    value = potential(mean, covariance, features_of(3, 0), *soft_part(0)).value
    exact = [
        stats.multivariate_normal(m, c).logpdf(np.zeros(3))
        for m, c in zip(mean.numpy(), covariance.numpy(), strict=True)
    ]
    close(value - 1.5 * math.log(2 * math.pi), torch.tensor(np.array(exact)))


def test_bounds_have_the_probability_of_a_gaussian() -> None:
    mean, covariance = normal(2, N, 3), covariances(3)
    value = potential(mean, covariance, features_of(0, 3), *soft_part(0)).value
    scale = covariance.diagonal(dim1=1, dim2=2).sqrt().numpy()
    high, low = (stats.norm.cdf((side.numpy() - mean.numpy()) / scale) for side in (HIGH, LOW))
    close(value, torch.tensor(np.log(high - low).sum(1)))


def test_one_bound_beside_equations_is_a_conditional_probability() -> None:
    """N(0; r, S) P(low <= f <= high | the equations), exact for one row: by quadrature of the joint density."""
    mean, covariance = normal(2, N, 3), covariances(3)
    value = potential(mean, covariance, features_of(2, 1), *soft_part(0)).value
    for i in range(N):
        joint = stats.multivariate_normal(mean[i].numpy(), covariance[i].numpy())
        exact = integrate.quad(lambda t, joint=joint: joint.pdf([0.0, 0.0, t]), -1.0, 0.5, epsabs=0, epsrel=1e-12)[0]
        assert float(value[i]) == pytest.approx(math.log(exact) + math.log(2 * math.pi), rel=1e-9)


def test_a_soft_term_has_the_integral_of_a_gaussian() -> None:
    mean, covariance, (tilt, stiff) = normal(2, N, 1), covariances(1), (normal(7, N, 1), normal(8, N, 1, 1).abs())
    value = potential(mean, covariance, features_of(0, 0), tilt, stiff).value
    for i in range(N):
        m, sd, t, p = float(mean[i]), float(covariance[i]) ** 0.5, float(tilt[i]), float(stiff[i])
        exact = integrate.quad(
            lambda f, m=m, sd=sd, t=t, p=p: stats.norm.pdf(f, m, sd) * math.exp(t * f - p * f * f / 2), -30.0, 30.0
        )[0]
        assert float(value[i]) == pytest.approx(math.log(exact), abs=1e-9)


def test_a_soft_term_beside_equations_is_an_observation_more() -> None:
    """exp(-|f - y|^2 / 2 v) is, up to a constant, an equation f + noise = y."""
    mean, covariance = normal(2, N, 4), covariances(4)
    y, variance = normal(9, N, 2), 0.4
    stiff = (torch.eye(2, dtype=torch.float64) / variance).expand(N, -1, -1)
    value = potential(mean, covariance, features_of(2, 0), y / variance, stiff).value
    wide = covariance.clone()
    wide[:, 2:, 2:] += variance * torch.eye(2, dtype=torch.float64)
    moved = torch.cat([mean[:, :2], mean[:, 2:] - y], 1)
    exact = potential(moved, wide, features_of(4, 0), *soft_part(0)).value
    constant = y.square().sum(1) / (2 * variance) + math.log(variance)
    close(value, exact + constant)


def test_bounds_and_soft_terms_count_as_independent_given_the_equations() -> None:
    mean, covariance, (tilt, stiff) = normal(2, N, 6), covariances(6), soft_part(2)
    together = potential(mean, covariance, features_of(2, 2), tilt, stiff).value
    none = soft_part(0)
    first, pick = potential(mean[:, :2], covariance[:, :2, :2], features_of(2, 0), *none).value, [0, 1, 4, 5]
    with_bounds = potential(mean[:, :4], covariance[:, :4, :4], features_of(2, 2), *none).value
    with_soft = potential(mean[:, pick], covariance[:, pick][:, :, pick], features_of(2, 0), tilt, stiff).value
    close(together, with_bounds + with_soft - first)


# ------------------------------------------------------------------ derivatives


@pytest.mark.parametrize(
    ("equal", "sides", "rank"), [(2, 0, 0), (0, 3, 0), (0, 0, 2), (2, 3, 0), (1, 0, 2), (0, 2, 2), (2, 3, 2)]
)
def test_slope_and_curvature_are_derivatives(equal: int, sides: int, rank: int) -> None:
    m = equal + sides + rank
    mean, covariance, (tilt, stiff) = normal(2, N, m), covariances(m), soft_part(rank)
    features = features_of(equal, sides)
    found = potential(mean, covariance, features, tilt, stiff)
    for i in range(m):
        step = torch.zeros(m, dtype=torch.float64)
        step[i] = 1e-5
        up, down = (potential(mean + sign * step, covariance, features, tilt, stiff) for sign in (1, -1))
        close(found.slope[:, i], (up.value - down.value) / 2e-5, 1e-8)
        close(found.curvature[:, i], -(up.slope - down.slope) / 2e-5, 1e-8)
    assert float(torch.linalg.eigvalsh(found.curvature).min()) > -1e-10


# ------------------------------------------------------------------ tails


def tail(a: float, b: float) -> tuple[float, float, float]:
    """log P, mean and variance of a standard normal on [a, b], 0 < a, by quadrature of exp(-(t^2 - a^2) / 2)."""
    top = min(b, a + 60.0 / max(a, 1.0))

    def moment(k: int) -> float:
        return float(
            integrate.quad(lambda u: u**k * math.exp(-a * u - u * u / 2), 0.0, top - a, epsabs=0, epsrel=1e-12)[0]
        )

    mass, first, second = (moment(k) for k in range(3))
    value = math.log(mass) - a * a / 2 - math.log(2 * math.pi) / 2
    return value, a + first / mass, second / mass - (first / mass) ** 2


@pytest.mark.parametrize(
    ("a", "b"),
    [(0.5, 0.6), (2.0, 9.0), (8.0, math.inf), (12.0, 12.5), (30.0, math.inf), (35.0, 35.01), (40.0, 1000.0)],
)
def test_probabilities_far_in_either_tail(a: float, b: float) -> None:
    """The slope is minus the mean of the truncated normal, the curvature one minus its variance."""
    value, mean, variance = tail(a, b)
    sides = torch.tensor([a, -b], dtype=torch.float64), torch.tensor([b, -a], dtype=torch.float64)
    found = log_between(*sides)
    close(found.value, torch.tensor(value, dtype=torch.float64), 1e-9)
    close(found.slope, torch.tensor([-mean, mean], dtype=torch.float64), 1e-9)
    close(found.curvature, torch.tensor(1 - variance, dtype=torch.float64), 1e-7)


def test_reflected_bounds_are_the_same_bits() -> None:
    a, b = normal(1, 200) * 5, normal(2, 200).abs()
    one, other = log_between(a, a + b), log_between(-a - b, -a)
    assert torch.equal(one.value, other.value)
    assert torch.equal(one.slope, -other.slope)
    assert torch.equal(one.curvature, other.curvature)


def test_no_bounds_cost_nothing() -> None:
    nowhere = torch.full((3,), torch.inf, dtype=torch.float64)
    for part in log_between(-nowhere, nowhere):
        assert not bool(part.any())


@pytest.mark.parametrize("at", [0.0, 1.0, -7.0, 25.0])
def test_a_narrow_slab_is_an_equation(at: float) -> None:
    """log P tends to log(width) + log density, and the slope to minus the place."""
    width = 1e-7
    a = torch.tensor([at], dtype=torch.float64)
    found = log_between(a, a + width)
    exact = math.log(width) - (at + width / 2) ** 2 / 2 - math.log(2 * math.pi) / 2
    assert float(found.value) == pytest.approx(exact, abs=1e-6)
    assert float(found.slope) == pytest.approx(-at, abs=1e-4)
    assert 0.98 < float(found.curvature) <= 1.0
