"""A factor vanishes on the edge of a set, and sets that hide an edge are known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import casal
from casal.diagnostics.edges import edge_factor, has_hidden_edge, shape_near, slopes

from .populations import CENTRE, gaussian

SOLID: dict[str, casal.Constraint] = {
    "box": casal.Box(torch.zeros(3), torch.ones(3)),
    "orthant": casal.Box(torch.zeros(3), torch.full((3,), math.inf)),
    "ball": casal.Ball(1.0),
    "half-space": casal.HalfSpace(torch.tensor([1.0, 1.0, 0.0]), 0.5),
    "polytope": casal.Polytope(torch.tensor([[1.0, 1.0, 1.0], [-1.0, 0.0, 0.0]]), torch.tensor([1.0, 0.5])),
    "l1 ball": casal.L1Ball(1.0),
    "two boxes": casal.Box(-torch.ones(3), torch.ones(3)) | casal.Box(torch.full((3,), 0.5), torch.full((3,), 2.0)),
    "outside of a ball": casal.Implicit(None, lambda z: 1.0 - z.square().sum(1, keepdim=True)),
}

every_solid = pytest.mark.parametrize("name", SOLID)


def inside_and_outside(constraint: casal.Constraint) -> tuple[Tensor, Tensor]:
    """Draws projected, and which of them were outside."""
    x = gaussian(400, seed=2)
    return constraint.project(x), constraint.violation(x) > 0.0


@every_solid
def test_the_factor_vanishes_on_the_edge_and_is_positive_inside(name: str) -> None:
    z, outside = inside_and_outside(SOLID[name])
    factor = edge_factor(SOLID[name], z, torch.full((len(z),), 1.0 / len(z), dtype=torch.float64))
    assert factor is not None
    assert float(factor(z)[outside].abs().max()) < 1e-6
    assert float(factor(z)[~outside].min()) > 0.0 and float(factor(z).max()) <= 1.0


@every_solid
def test_the_gradient_of_the_factor_is_that_of_its_differences(name: str) -> None:
    """At all points but those beside a kink, and beyond the rounding of an end of a ray that is found by bisection."""
    z, outside = inside_and_outside(SOLID[name])
    z = z[~outside]
    factor = edge_factor(SOLID[name], z, torch.full((len(z),), 1.0 / len(z), dtype=torch.float64))
    assert factor is not None
    v, h = gaussian(len(z), seed=4), 1e-5
    difference = (factor(z + h * v) - factor(z - h * v)) / (2 * h)
    off = ((slopes(factor, z) * v).sum(1) - difference).abs()
    assert float((off > 1e-4 * (1.0 + difference.abs())).to(z).mean()) < 0.01
    assert float(difference.abs().mean()) > 0.1


def test_surfaces_have_no_edge() -> None:
    for constraint in (casal.Sphere(1.0), casal.Affine(torch.ones(1, 3), 1.0)):
        z = constraint.project(gaussian(200, seed=3))
        assert not has_hidden_edge(constraint, z, z.mean(0))


def test_planes_of_different_levels_have_no_edge() -> None:
    """The mean of all chains is on no plane of a chain: steps away from it leave every one of them."""
    planes = casal.Affine(torch.ones(1, 3), casal.PerChain(torch.arange(200.0)[:, None] % 2))
    z = planes.project(gaussian(200, seed=3))
    assert not has_hidden_edge(planes, z, z.mean(0))


def test_a_convex_set_without_inequalities_shows_its_edge() -> None:
    """A segment from a projection alone."""
    low, high = torch.zeros(2).double(), torch.tensor([1.0, 0.0]).double()
    segment = casal.FromProjection(
        lambda z: z.clamp(low, high), lambda z: (z - z.clamp(low, high)).abs().amax(1), convex=True
    )
    x = torch.linspace(-0.507, 1.507, 200, dtype=torch.float64)
    z = segment.project(torch.stack([x, x], dim=1))
    assert has_hidden_edge(segment, z, z.mean(0))


def test_no_factor_where_nothing_is_known() -> None:
    blind = casal.FromProjection(lambda z: z.clamp_min(0.0), lambda z: (-z).amax(1).clamp_min(0.0), solid=True)
    assert edge_factor(blind, CENTRE.expand(5, 3), torch.full((5,), 0.2, dtype=torch.float64)) is None


def test_pieces_of_a_union_with_equations_and_inequalities_each() -> None:
    """Two half circles: right of x = 0.5 with radius 1, left of it with radius 3."""
    right = casal.Sphere(1.0) & casal.HalfSpace(torch.tensor([-1.0, 0.0]), -0.5)
    left = casal.Sphere(3.0) & casal.HalfSpace(torch.tensor([1.0, 0.0]), 0.5)
    angle = torch.linspace(0.05, 6.2, 200, dtype=torch.float64)
    ring = torch.stack([torch.cos(angle), torch.sin(angle)], dim=1)
    inner, outer = ring[ring[:, 0] > 0.51], 3.0 * ring[ring[:, 0] < 0.16]
    corners = torch.tensor([[0.5, 0.75**0.5], [0.5, 8.75**0.5]], dtype=torch.float64)
    z = torch.cat([inner, outer, corners])
    shape = shape_near(right | left, z, torch.full((len(z),), 1.0 / len(z), dtype=torch.float64))
    assert shape.factor is not None and shape.project is not None
    assert float(shape.factor(z)[-2:].abs().max()) < 1e-12 and float(shape.factor(z)[:-2].min()) > 0.0
    torch.testing.assert_close(shape.project(1.2 * z), z)  # each on its own circle
