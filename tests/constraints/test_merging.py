"""Pairs of sets with a closed form, against a conic solver, many random members, and what they replace."""

from __future__ import annotations

import cvxpy
import numpy as np
import pytest
import torch
from torch import Tensor

from casal import Affine, Ball, Box, HalfSpace, PerChain, PSDCone, Sphere
from casal.constraints import geometry
from casal.constraints.base import Way
from casal.errors import InfeasibleSet

from .points import normal

NORMAL = [1.0, -2.0, 0.5, 0.0]
CENTER = torch.tensor([0.3, -0.1, 0.2, 0.5])
EQUATION = Affine([[0.0, 1.0, 1.0, -1.0]], 0.4)

TIGHT = {"tol_gap_abs": 1e-9, "tol_gap_rel": 1e-9, "tol_feas": 1e-9}

CUT = {
    "ball": (Ball(1.5), 0.3),
    "ball away from zero": (Ball(1.5, CENTER), -1.0),
    "sphere": (Sphere(1.5), 0.3),
    "sphere away from zero": (Sphere(1.5, CENTER), -1.0),
    "sphere with an equation": (EQUATION & Sphere(1.5), 0.3),
    "ball with an equation": (EQUATION & Ball(1.5, CENTER), -0.5),
}


@pytest.mark.parametrize("name", CUT)
def test_round_sets_cut_by_a_half_space(name: str) -> None:
    """In the set, and no point of the set, however many are tried, is nearer."""
    whole, level = CUT[name]
    both = whole & HalfSpace(NORMAL, level)
    assert both.way is Way.CLOSED_FORM and both.exact
    z = 2.0 * normal(40, 4, seed=1)
    point = both.project(z)
    assert float(both.violation(point).max()) <= 1e-14
    assert torch.allclose(both.project(point), point, rtol=0, atol=1e-14)
    rivals = whole.project(3.0 * normal(20_000, 4, seed=2))
    rivals = rivals[rivals @ torch.tensor(NORMAL).double() <= level]
    least = torch.cdist(z, rivals).amin(1)
    assert len(rivals) > 1000 and bool(((z - point).norm(dim=1) <= least + 1e-12).all())
    beside = both.project(point + 1e-3 * normal(40, 4, seed=3))
    assert bool(((z - point).norm(dim=1) <= (z - beside).norm(dim=1) + 1e-12).all())


def test_half_spaces_that_do_not_cut() -> None:
    """One that holds the sphere changes nothing; one that misses it is refused as before."""
    z = normal(5, 4, seed=5)
    assert torch.allclose(
        (Sphere(1.0) & HalfSpace(NORMAL, 99.0)).project(z), Sphere(1.0).project(z), rtol=0, atol=1e-12
    )
    with pytest.raises(InfeasibleSet, match="lies in a ball of radius 1"):
        (Sphere(1.0) & HalfSpace(NORMAL, -99.0)).project(z)


def test_round_sets_for_each_chain() -> None:
    radii, levels = torch.tensor([1.0, 1.5, 2.0]).double(), torch.tensor([0.1, -0.2, 0.3]).double()
    z = 2.0 * normal(3, 4, seed=6)
    whole = Sphere(PerChain(radii)) & HalfSpace(NORMAL, PerChain(levels))
    assert whole.way is Way.CLOSED_FORM
    alone = [
        (Sphere(float(r)) & HalfSpace(NORMAL, float(b))).project(y[None])
        for r, b, y in zip(radii, levels, z, strict=True)
    ]
    assert torch.allclose(whole.project(z), torch.cat(alone), rtol=0, atol=1e-14)


def test_a_sphere_in_the_orthant() -> None:
    """The positive part, scaled; where there is none, the axis of the largest coordinate."""
    z = torch.tensor([[3.0, -1.0, 4.0], [-1.0, -0.5, -2.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    sphere, ball = Sphere(2.0) & Box(0.0, None), Ball(2.0) & Box(0.0, None)
    assert sphere.way is Way.CLOSED_FORM and ball.way is Way.CLOSED_FORM
    assert torch.allclose(sphere.project(z), torch.tensor([[1.2, 0, 1.6], [0, 2, 0], [2, 0, 0]]).double(), atol=1e-15)
    assert torch.allclose(ball.project(z), torch.tensor([[1.2, 0, 1.6], [0, 0, 0], [0, 0, 0]]).double(), atol=1e-15)
    y = normal(30, 6, seed=7)
    rivals = Sphere(2.0).project(normal(50_000, 6, seed=8).abs())
    assert bool(((sphere.project(y) - y).norm(dim=1) <= torch.cdist(y, rivals).amin(1) + 1e-12).all())
    assert (Sphere(2.0) & Box(0.1, None)).way is not Way.CLOSED_FORM


@pytest.mark.parametrize("size", [1, 2, 3, 6])
@pytest.mark.parametrize("scale", [1.0, -3.0])
def test_positive_semidefinite_matrices_of_a_given_trace(size: int, scale: float) -> None:
    rows = scale * torch.eye(size).reshape(1, size, size)
    both = PSDCone() & Affine(rows, 2.0 * scale)
    z = 2.0 * normal(12, size, size, seed=9)
    point = both.project(z)
    assert both.way is Way.CLOSED_FORM and float(both.violation(point).max()) <= 1e-12
    assert torch.allclose(both.project(point), point, rtol=0, atol=1e-13)
    for start, found in zip(z[:3].numpy(), point[:3].numpy(), strict=True):
        x = cvxpy.Variable((size, size), symmetric=True)
        held = [x >> 0, cvxpy.trace(x) == 2.0]
        cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(x - start)), held).solve(solver=cvxpy.CLARABEL, **TIGHT)
        np.testing.assert_allclose(found, x.value, rtol=0, atol=2e-6)


def known_values(count: int, size: int) -> tuple[Affine, Tensor, Tensor]:
    """Some coordinates are known, written with factors of their own."""
    places = torch.arange(count) * (size // count)
    rows = torch.zeros(count, size, dtype=torch.float64)
    factors = torch.linspace(-2.0, 3.0, count).double() + 0.1
    rows[torch.arange(count), places] = factors
    values = torch.linspace(0.0, 1.0, count).double()
    return Affine(rows, factors * values), places, values


@pytest.mark.parametrize("event", [(24,), (4, 6)])
def test_known_values_within_bounds_are_a_box(event: tuple[int, ...]) -> None:
    equations, places, values = known_values(6, 24)
    low, high = torch.zeros(24).double(), torch.ones(24).double()
    low[places] = high[places] = values
    z = normal(9, *event, seed=10)
    both = equations & Box(0.0, 1.0)
    assert both.way is Way.CLOSED_FORM and "6 coordinates fixed" in both.explain(z)
    wanted = Box(low.reshape(event), high.reshape(event)).project(z)
    assert torch.allclose(both.project(z), wanted, rtol=0, atol=1e-15)
    assert geometry.codimension(both, event) == 6
    assert float(both.violation(both.project(z)).max()) <= 1e-15


def test_known_values_of_each_chain() -> None:
    values = torch.tensor([[0.2, 0.9], [0.5, 0.0]], dtype=torch.float64)
    both = Affine(torch.eye(3)[:2], PerChain(values)) & Box(0.0, 1.0)
    assert both.project(torch.full((2, 3), 2.0).double()).tolist() == [[0.2, 0.9, 1.0], [0.5, 0.0, 1.0]]
    with pytest.raises(InfeasibleSet, match=r"z\[1\] = 3 is out of reach in chain 1: the bounds are 0 and 1"):
        Affine(torch.eye(3)[:2], PerChain(torch.tensor([[0.2, 0.9], [0.5, 3.0]]))) & Box(0.0, 1.0)
