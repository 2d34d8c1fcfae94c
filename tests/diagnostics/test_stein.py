"""Stein's identity: mean zero under the right distribution, in closed form and by quadrature, and not under another."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import casal
from casal.diagnostics import Lineage
from casal.diagnostics.check import REJECT, zero_test
from casal.diagnostics.stein import SteinTerms, deviations, projections_needed, stein_terms, tangents, whitened

RADIUS = 2.0
PULL = torch.tensor([1.0, -0.5], dtype=torch.float64)
"""Mean of a Gaussian of spread one: on the circle it is von Mises."""

POINTS = 20_000
"""Of a quadrature; nodes go to the halves in turn by weight, so that both are quadratures."""


def circle() -> Tensor:
    angle = 2 * math.pi * torch.arange(POINTS, dtype=torch.float64) / POINTS
    return RADIUS * torch.stack([torch.cos(angle), torch.sin(angle)], dim=1)


def on_nodes(weights: Tensor) -> Lineage:
    """Every node its own ancestor."""
    return Lineage(weights, torch.arange(len(weights)))


def means(terms: list[SteinTerms]) -> Tensor:
    """|mean of a column| in units of the mean of its absolute value."""
    return torch.cat(
        [(t.lineage.weights @ t.values).abs() / (t.lineage.weights @ t.values.abs()).clamp_min(1e-300) for t in terms]
    )


def smallest_p(z: Tensor, score: Tensor, ancestors: Tensor | None = None) -> float:
    """Of all tests together, as the certificate has it."""
    lineage = Lineage(torch.ones(len(z)), torch.arange(len(z)) if ancestors is None else ancestors)
    p = torch.cat([zero_test(t.lineage, t.values).p for t in stein_terms(z, [score], lineage)])
    return float(p.min()) * len(p)


def normal(n: int, d: int, seed: int) -> Tensor:
    return torch.randn((n, d), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ------------------------------------------------------------------------------------ the identity


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_identity_on_a_circle(temperature: float) -> None:
    """z ~ p^(1/T) on the circle; the score belongs to p."""
    z, constraint = circle(), casal.Sphere(RADIUS)
    terms = stein_terms(z, [PULL - z], on_nodes(torch.softmax(z @ PULL / temperature, 0)), constraint.project)
    assert [t.values.shape[1] for t in terms] == [5, 5, 5]
    worst = means(terms)
    if temperature == 1.0:
        assert float(worst.max()) < 2e-3
    else:
        assert float(worst.max()) > 0.1


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_identity_on_an_interval_with_a_factor(temperature: float) -> None:
    """exp(3 z) on [0, 1], g = min(z, 1 - z, 0.3), with its kinks."""
    z = (torch.arange(POINTS, dtype=torch.float64)[:, None] + 0.5) / POINTS
    lineage = on_nodes(torch.softmax(3.0 * z[:, 0] / temperature, 0))

    def factor(y: Tensor) -> Tensor:
        return torch.minimum(y, 1.0 - y)[:, 0].clamp_max(0.3)

    worst = means(stein_terms(z, [torch.full_like(z, 3.0)], lineage, factor=factor))
    assert float(worst.max()) < 2e-3 if temperature == 1.0 else float(worst.max()) > 0.1
    # Without the factor the edge has a flux, and the identity fails.
    assert float(means(stein_terms(z, [torch.full_like(z, 3.0)], lineage)).max()) > 0.1


@pytest.mark.parametrize("units", [1.0, 1e4])
def test_means_are_errors_in_standard_deviations_whatever_the_units(units: float) -> None:
    """A Gaussian of spread 0.1 along (1, -1) and 1 along (1, 1), samples shifted by 0.3 and spread by 0.8 along it."""
    axes = torch.tensor([[1.0, -1.0], [1.0, 1.0]], dtype=torch.float64) / math.sqrt(2.0)
    u = normal(40_000, 2, 0) * torch.tensor([0.1, 1.0], dtype=torch.float64)
    precision = axes.T @ torch.diag(torch.tensor([100.0, 1.0], dtype=torch.float64)) @ axes
    scale = torch.tensor([1.0, units], dtype=torch.float64)

    def found(u: Tensor) -> Tensor:
        """Biases along the widest axis: of the mean and of the square."""
        x = u @ axes
        lineage = Lineage(torch.ones(len(u)), torch.arange(len(u)))
        every = stein_terms(x * scale, [-(x @ precision) / scale], lineage)[0]
        return (lineage.weights @ every.values).abs()[[0, 2]]

    shift = torch.tensor([0.0, 0.3], dtype=torch.float64)
    assert found(u).tolist() == pytest.approx([0.0, 0.0], abs=0.03)
    assert found(u + shift).tolist() == pytest.approx([0.3, 0.0], abs=0.03)  # E F = bias / spread
    narrow = u * torch.tensor([1.0, 0.8], dtype=torch.float64)
    assert found(narrow).tolist() == pytest.approx([0.0, 1 - 0.64], abs=0.03)  # E M = 1 - variance ratio


def test_whitened_coordinates() -> None:
    z = normal(500, 3, 1) @ normal(3, 3, 2) + 5.0
    weights = torch.softmax(normal(500, 1, 3)[:, 0], 0)
    white = whitened(z, weights, deviations(z, weights))
    u = (z - white.mean) @ white.slopes.T
    torch.testing.assert_close(u.T @ (weights[:, None] * u), torch.eye(3, dtype=torch.float64))
    torch.testing.assert_close(white.fields @ white.slopes.T, torch.eye(3, dtype=torch.float64))


# ------------------------------------------------------------------------------------ right and wrong samples


def slow(n: int, d: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Independent heights along random axes, variances from 1/1000 to 1; the axes; the variances."""
    axes = torch.linalg.qr(normal(d, d, 7))[0]
    variances = torch.logspace(-3.0, 0.0, d, dtype=torch.float64)
    return normal(n, d, seed) * variances.sqrt(), axes, variances


@pytest.mark.parametrize("d", [2, 10, 40])
def test_a_slow_direction_that_no_axis_shows(d: int) -> None:
    """Its variance is 40 % too small, or its mean off by half a deviation; along axes both drown in the score."""
    alarms = 0
    for seed in range(20):
        u, axes, variances = slow(500, d, seed)
        alarms += smallest_p(u @ axes.T, -(u / variances) @ axes.T) < REJECT
    assert alarms <= 1
    for change in (torch.tensor([0.0]), torch.tensor([0.5])):
        u, axes, variances = slow(500, d, 99)
        u[:, -1] = u[:, -1] * (0.6**0.5 if not float(change) else 1.0) + change.double()
        assert smallest_p(u @ axes.T, -(u / variances) @ axes.T) < REJECT or (d == 40 and not float(change))
        # What the axes alone would have said of the mean:
        s = -(u / variances) @ axes.T
        t = s.mean(0).abs() / s.std(0) * len(s) ** 0.5
        assert d == 2 or float(t.max()) < 3.6


def test_few_samples_are_not_rejected_because_squares_are_skewed() -> None:
    """200 runs of 32 samples: Student's t alone rejects about 20 of them."""
    alarms = sum(smallest_p(z := normal(32, 3, seed), -z) < REJECT for seed in range(200))
    assert alarms <= 9  # 1.7 % expected, and three standard errors


def test_copies_are_one_observation() -> None:
    alarms = 0
    for seed in range(40):
        z = normal(200, 3, seed).repeat_interleave(5, 0)
        alarms += smallest_p(z, -z, torch.arange(200).repeat_interleave(5)) < REJECT
    assert alarms <= 2
    assert smallest_p(z * 0.8, -z * 0.8, torch.arange(200).repeat_interleave(5)) < REJECT


# ------------------------------------------------------------------------------------ the surface


def test_tangents_of_a_sphere() -> None:
    """T = I - n n^T, H = -(d - 1) / R n."""
    z = casal.Sphere(RADIUS).project(normal(50, 5, 0))
    at, unit = tangents(z, torch.ones(5).double(), casal.Sphere(RADIUS).project), z / RADIUS
    torch.testing.assert_close(at.bend, -4.0 / RADIUS * unit, rtol=1e-4, atol=1e-4)
    v = normal(50, 5, 1)
    torch.testing.assert_close(at.push(v, 1e-3), v - (v * unit).sum(1, keepdim=True) * unit, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(at.dimension, torch.full((50,), 4.0, dtype=torch.float64), rtol=1e-4, atol=0.0)


def test_tangents_of_an_ellipse_found_by_newton() -> None:
    """(2 cos a, sin a): the curvature vector is d^2 z / ds^2."""
    angle = torch.linspace(0.1, 6.0, 40, dtype=torch.float64)
    sine, cosine = torch.sin(angle), torch.cos(angle)
    z, slope, bend = (
        torch.stack(pair, dim=1) for pair in ((2 * cosine, sine), (-2 * sine, cosine), (-2 * cosine, -sine))
    )
    speed = slope.square().sum(1, keepdim=True)
    exact = (bend - slope * (bend * slope).sum(1, keepdim=True) / speed) / speed
    ellipse = casal.Implicit(lambda y: y[:, :1].square() / 4 + y[:, 1:].square() - 1.0)
    at = tangents(z, torch.ones(2).double(), ellipse.project)
    torch.testing.assert_close(at.bend, exact, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(at.push(slope, 1e-3), slope, rtol=1e-3, atol=1e-3)


def test_many_dimensions_are_estimated_without_bias() -> None:
    d, n = 40, 2000
    z = casal.Sphere(RADIUS).project(normal(n, d, 0))
    at = tangents(z, torch.full((d,), 0.3, dtype=torch.float64), casal.Sphere(RADIUS).project)
    along = -(at.bend * z).sum(1)  # d - 1 on average
    for value in (along, at.dimension):
        assert abs(float(value.mean()) - (d - 1)) < 4 * float(value.std()) / n**0.5 + 1e-3


def test_directions_that_an_equation_fixes_are_left_out() -> None:
    fixed = casal.Affine(torch.tensor([[1.0, 0.0, 0.0]]), 0.5)
    z = fixed.project(normal(100, 3, 0))
    lineage = Lineage(torch.ones(100), torch.arange(100))
    assert len(whitened(z, lineage.weights, deviations(z, lineage.weights)).fields) == 2
    assert smallest_p(z[:, 1:], -z[:, 1:]) > REJECT
    point = torch.ones((100, 3), dtype=torch.float64)
    assert stein_terms(point, [-point], lineage) == []


@pytest.mark.parametrize("d", [3, 16, 17, 40])
def test_projections_are_as_many_as_announced(d: int) -> None:
    calls = 0

    def project(y: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return casal.Sphere(RADIUS).project(y)

    z = casal.Sphere(RADIUS).project(normal(60, d, 0))
    stein_terms(z, [-z], Lineage(torch.ones(60), torch.arange(60)), project)
    assert calls == projections_needed(d)


def test_numbers_whose_squares_overflow_and_fields_that_are_no_numbers_are_left_out() -> None:
    z, lineage = normal(60, 2, 0), Lineage(torch.ones(60), torch.arange(60))
    assert stein_terms(z * 1e200, [-z], lineage) == []

    def factor(y: Tensor) -> Tensor:
        return torch.where(y[:, 0] > 0.0, torch.nan, 1.0)

    assert stein_terms(z, [-z], lineage, factor=factor) == []


def test_few_chains_on_a_flat_set_are_compared_with_the_score_in_its_own_coordinates() -> None:
    """60 chains in 40 dimensions: no derivatives of equations, no projections, as for many chains."""
    d, rows = 60, 20
    A = torch.randn(rows, d, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    target = casal.langevin(lambda x: x, potential=lambda x: x.square().sum(1) / 2, init=torch.zeros(d).double())
    result = casal.sample(target, casal.Affine(A, torch.zeros(rows).double()) & casal.Box(-1.0, 1.0), casal.HMC(), 60)
    assert result.cost.check_projections == 0 and 0.0 < result.fidelity.figures["stein_p"] <= 1.0
