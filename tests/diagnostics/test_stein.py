"""Stein's identity: mean zero under the right distribution, by quadrature, and not under another."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import casal
from casal.diagnostics import Lineage
from casal.diagnostics.modes import Modes
from casal.diagnostics.stein import SteinTerms, projections_needed, stein_terms, tangents

RADIUS = 2.0
PULL = torch.tensor([1.0, -0.5], dtype=torch.float64)
"""Mean of a Gaussian of spread one: on the circle it is von Mises."""

POINTS = 20_000
"""Of the quadrature; the mean without the point itself leaves an error of this order, 1 / POINTS."""


def circle() -> Tensor:
    angle = 2 * math.pi * torch.arange(POINTS, dtype=torch.float64) / POINTS
    return RADIUS * torch.stack([torch.cos(angle), torch.sin(angle)], dim=1)


def means(terms: SteinTerms, lineage: Lineage) -> Tensor:
    """|mean of L f| in units of the mean of |L f|."""
    return (lineage.weights @ terms.values).abs() / (lineage.weights @ terms.values.abs())


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_identity_on_a_circle(temperature: float) -> None:
    """z ~ p^(1/T) on the circle; L belongs to p."""
    z, constraint = circle(), casal.Sphere(RADIUS)
    lineage = Lineage(torch.softmax(z @ PULL / temperature, 0), torch.arange(POINTS))
    modes = Modes(torch.tensor([[2.0, 0.0], [-1.0, -1.0]]).double(), torch.zeros(POINTS), torch.tensor([0.7, 1.0]))
    terms = stein_terms(z, PULL - z, lineage, constraint.project, modes=modes)
    assert terms.values.shape == (POINTS, 7)  # two coordinates, their squares, the distance, two bumps
    worst = means(terms, lineage)
    if temperature == 1.0:
        assert float(worst.max()) < 1e-3
    else:
        assert float(worst.min()) > 0.01 and float(worst.max()) > 0.1


def test_the_energy_is_how_fast_a_function_is_forgotten() -> None:
    """E[f L f] = -E|grad f|^2 (integration by parts)."""
    z = circle()
    lineage = Lineage(torch.softmax(z @ PULL, 0), torch.arange(POINTS))
    terms = stein_terms(z, PULL - z, lineage, casal.Sphere(RADIUS).project)
    left = lineage.weights @ (terms.functions * terms.values)
    torch.testing.assert_close(left, -(lineage.weights @ terms.energy), rtol=2e-3, atol=0.0)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_identity_on_an_interval_with_a_factor(temperature: float) -> None:
    """exp(3 z) on [0, 1], g = min(z, 1 - z, 0.3), with its kinks."""
    z = (torch.arange(POINTS, dtype=torch.float64)[:, None] + 0.5) / POINTS
    lineage = Lineage(torch.softmax(3.0 * z[:, 0] / temperature, 0), torch.arange(POINTS))

    def factor(y: Tensor) -> Tensor:
        return torch.minimum(y, 1.0 - y)[:, 0].clamp_max(0.3)

    worst = means(stein_terms(z, torch.full_like(z, 3.0), lineage, factor=factor), lineage)
    assert float(worst.max()) < 1e-3 if temperature == 1.0 else float(worst.max()) > 0.1
    # Without the factor the edge has a flux, and the identity fails.
    assert float(means(stein_terms(z, torch.full_like(z, 3.0), lineage), lineage).max()) > 0.1


def test_tangents_of_a_sphere() -> None:
    """T = I - n n^T, H = -(d - 1) / R n."""
    z = casal.Sphere(RADIUS).project(torch.randn((50, 5), generator=torch.Generator().manual_seed(0)).double())
    at, normal = tangents(z, 1e-3, casal.Sphere(RADIUS).project), z / RADIUS
    torch.testing.assert_close(at.bend, -4.0 / RADIUS * normal, rtol=1e-5, atol=1e-5)
    v = torch.randn((50, 5), generator=torch.Generator().manual_seed(1)).double()
    torch.testing.assert_close(at.push(v), v - (v * normal).sum(1, keepdim=True) * normal, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(at.dimension, torch.full((50,), 4.0, dtype=torch.float64), rtol=1e-5, atol=0.0)


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
    at = tangents(z, 1e-2, ellipse.project)
    torch.testing.assert_close(at.bend, exact, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(at.push(slope), slope, rtol=1e-3, atol=1e-3)


def test_many_dimensions_are_estimated_without_bias() -> None:
    d, n = 40, 2000
    z = casal.Sphere(RADIUS).project(torch.randn((n, d), generator=torch.Generator().manual_seed(0)).double())
    at = tangents(z, 1e-3, casal.Sphere(RADIUS).project)
    along = -(at.bend * z).sum(1)  # d - 1 on average
    for value in (along, at.dimension):
        assert abs(float(value.mean()) - (d - 1)) < 4 * float(value.std()) / n**0.5 + 1e-3


def test_coordinates_that_an_equation_fixes_are_left_out() -> None:
    fixed = casal.Affine(torch.tensor([[1.0, 0.0, 0.0]]), 0.5)
    z = fixed.project(torch.randn((100, 3), generator=torch.Generator().manual_seed(0)).double())
    lineage = Lineage(torch.ones(100), torch.arange(100))
    assert stein_terms(z, -z, lineage, fixed.project).values.shape[1] == 5


@pytest.mark.parametrize("d", [3, 16, 17, 40])
def test_projections_are_as_many_as_announced(d: int) -> None:
    calls = 0

    def project(y: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return casal.Sphere(RADIUS).project(y)

    z = casal.Sphere(RADIUS).project(torch.randn((20, d), generator=torch.Generator().manual_seed(0)).double())
    modes = Modes(z[:4], torch.arange(20) % 4, torch.ones(4, dtype=torch.float64))
    stein_terms(z, -z, Lineage(torch.ones(20), torch.arange(20)), project, modes=modes)
    assert calls == projections_needed(d)


def test_the_widest_direction_is_looked_at_among_many() -> None:
    """Of 40 independent coordinates one is 30 % too wide; its direction is none of the fixed ones."""
    n, d = 2000, 40
    lineage = Lineage(torch.ones(n), torch.arange(n))
    z = torch.randn((n, d), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    precision = torch.ones(d, dtype=torch.float64)
    precision[0] = 1.0 / 4.0
    z[:, 0] *= 2.0

    def largest(z: Tensor) -> float:
        mean, error = lineage.mean(stein_terms(z, -z * precision, lineage).values)
        return float((mean / error).abs().max())

    assert largest(z) < 4.0
    z[:, 0] *= 1.3
    assert largest(z) > 6.0
