"""Sets without a point: refused with a proof where there is one, and after a search where there is none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from casal.constraints import (
    Affine,
    Ball,
    Box,
    Constraint,
    Ellipsoid,
    FromProjection,
    HalfSpace,
    Implicit,
    L1Ball,
    MassEnergy,
    Monotone,
    Obstacles,
    PerChain,
    Polytope,
    Product,
    PSDCone,
    SecondOrderCone,
    Simplex,
    Sphere,
    geometry,
)
from casal.errors import InfeasibleSet

from .points import normal

FAR = torch.full((4,), 3.0, dtype=torch.float64)
FIRST = torch.eye(4, dtype=torch.float64)[0]


def rootless(z: Tensor) -> Tensor:
    return z.square().sum(1, keepdim=True) + 1.0


def contradiction(z: Tensor) -> Tensor:
    """sum z = 10 on the unit sphere."""
    return torch.stack([z.sum(1) - 10.0, z.square().sum(1) - 1.0], dim=1)


# ------------------------------------------------------------------ a ball around one set that another does not reach


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: Sphere(1.0) & Box(5.0, 6.0), "radius 1, the second stays 10 away"),
        (lambda: Sphere(10.0) & Box(0.0, 1.0), "radius 1, the second stays 9 away"),
        (lambda: Sphere(10.0) & Ellipsoid([1.0, 2.0, 3.0, 4.0]), "radius 4, the second stays 10 away"),
        (lambda: Sphere(1.0) & L1Ball(0.5), "radius 0.5, the second stays 1 away"),
        (lambda: Sphere(2.0) & Simplex(1.0), "radius 1, the second stays 2 away"),
        (lambda: MassEnergy(2.0, 9.0) & Ball(1.0), "radius 1, the second stays 3 away"),
        (lambda: Affine(torch.ones(1, 4), 1.0) & Sphere(1.0) & Box(2.0, 3.0), "have no common point"),
        (lambda: Sphere(1.0).shifted(FAR) & Box(-1.0, 0.0), "stays 6 away"),
        (lambda: Sphere(1.0).scaled(2.0) & Box(5.0, 6.0), "radius 2, the second stays 10 away"),
        (lambda: Sphere(1.0) & Box(5.0, 6.0) & Monotone(), "stays 10 away"),
        (lambda: Sphere(PerChain([1.0, 11.0, 1.0])) & Box(PerChain([-1.0, 5.0, 5.0]), 6.0), "in chain 2: .* 10 away"),
    ],
)
def test_sets_that_a_ball_separates_are_refused_when_they_see_an_event(
    build: Callable[[], Constraint], says: str
) -> None:
    empty = build()
    for ask in (
        lambda: empty.validate((4,)),
        lambda: empty.project(normal(3, 4)),
        lambda: empty.violation(normal(3, 4)),
    ):
        with pytest.raises(InfeasibleSet, match=says):
            ask()


def test_obstacles_that_fill_a_box_leave_nothing() -> None:
    with pytest.raises(InfeasibleSet, match=r"Obstacles.* have no common point"):
        (Obstacles(discs=[([0.0, 0.0], 2.0)]) & Box(-0.5, 0.5)).project(torch.zeros(1, 2, 2))


@pytest.mark.parametrize(
    "touching",
    [
        Sphere(10.0) & Box(5.0, 6.0),
        Sphere(2.0) & Box(0.0, 1.0),
        Sphere(1.0) & L1Ball(1.0),
        MassEnergy(2.0, 9.0) & Ball(3.0),
        Sphere(1.0) & Ellipsoid([1.0, 0.5, 0.5, 0.5]),
    ],
)
def test_sets_that_only_touch_are_not_refused(touching: Constraint) -> None:
    touching.validate((4,))
    geometry.check_nonempty(touching, normal(2, 4))


# ------------------------------------------------------------------ convex sets that planes separate

APART: dict[str, tuple[Constraint, tuple[int, ...], str]] = {
    "cone": (SecondOrderCone() & HalfSpace(FIRST, -1.0), (4,), "stay 1 apart"),
    "matrices": (PSDCone() & HalfSpace([1.0, 0.0, 0.0, 1.0], -1.0), (2, 2), "stay 0.707107 apart"),
    "flat": (Affine(FIRST, 0.0) & HalfSpace(-FIRST, -1.0), (4,), "stay 1 apart"),
    "three": (
        SecondOrderCone() & HalfSpace([1.0, 0.1, 0.0, 0.0], 0.0) & HalfSpace([0.0, -1.0, 0.0, 0.0], -1.0),
        (4,),
        "have no common point",
    ),
    "inside others": (
        Product((SecondOrderCone() & HalfSpace(FIRST, -1.0)).scaled(2.0), None, sizes=(4, 1)),
        (5,),
        "stay 1 apart",
    ),
    "one chain": (SecondOrderCone() & HalfSpace(FIRST, PerChain([1.0, -2.0])), (4,), "in chain 1: they stay 2 apart"),
    "one chain of a shift": (
        (SecondOrderCone() & HalfSpace(FIRST, PerChain([1.0, -2.0]))).shifted(PerChain([1.0, 2.0])),
        (4,),
        "in chain 1: they stay 2 apart",
    ),
    "ellipsoid and the user's own": (
        Ellipsoid([1.0, 2.0, 1.0, 1.0])
        & FromProjection(HalfSpace(-FIRST, -3.0).project, HalfSpace(-FIRST, -3.0).violation, convex=True),
        (4,),
        "radius 2, the second stays 3 away",
    ),
}


@pytest.mark.parametrize("name", APART)
def test_convex_sets_that_planes_separate_are_refused_with_their_distance(name: str) -> None:
    constraint, event, says = APART[name]
    for size in (1.0, 80.0):
        with pytest.raises(InfeasibleSet, match=says):
            geometry.check_nonempty(constraint, size * normal(2, *event))


# ------------------------------------------------------------------ sets of which a search finds no point


@pytest.mark.parametrize(
    ("constraint", "least"),
    [
        (Implicit(rootless), "1"),
        (Implicit(None, rootless), "1"),
        (Implicit(contradiction), "0.3"),
        (Product(Implicit(rootless), None, sizes=(3, 1)), "1"),
        (Implicit(rootless).shifted(FAR), "1"),
    ],
    ids=["equation", "inequality", "two equations", "block", "shifted"],
)
def test_sets_of_which_no_point_is_found_are_refused_by_name(constraint: Constraint, least: str) -> None:
    with pytest.raises(InfeasibleSet, match=f"no point of Implicit.* was found: from 8 starts .* is {least}"):
        geometry.check_nonempty(constraint, normal(2, 4))


def test_a_point_that_only_one_start_finds_is_enough() -> None:
    """z = 0.3 +- 0.01: from z = 40 waves lead Newton's steps astray, another start arrives."""

    def wavy(z: Tensor) -> Tensor:
        return (z - 0.3).square() - 1e-4 + 40.0 * (5.0 * z).sin().square() * (z.abs() > 1.0)

    hidden = Implicit(wavy)
    start = torch.tensor([[40.0]], dtype=torch.float64)
    assert not bool(hidden.solve(start).converged.any())
    geometry.check_nonempty(hidden, start)


NONEMPTY: list[Constraint] = [
    Ball(1.0) & HalfSpace(-FIRST, -1.0),  # touches in one point
    Ball(2.0, FAR) & Ellipsoid([8.0, 9.0, 10.0, 11.0]) & SecondOrderCone(),
    SecondOrderCone() & HalfSpace(FIRST, 0.0),  # meets in its tip
    Polytope(normal(6, 4, seed=1), 1.0) & Sphere(0.5),
    Implicit(lambda z: z.sin().sum(1, keepdim=True)),
    Sphere(1.0) & Obstacles(intervals=[(0, 4, -0.2, 0.2)]),
    Ball(1.0) | Sphere(2.0),
    SecondOrderCone() & HalfSpace(FIRST, PerChain([1.0, 2.0, 3.0])),
    FromProjection(lambda z: 0.5 * z, lambda z: z.flatten(1).norm(dim=1), exact=False),  # halfway to the origin
]


@pytest.mark.parametrize("constraint", NONEMPTY, ids=repr)
@pytest.mark.parametrize("size", [1.0, 1000.0])
def test_sets_with_points_pass(constraint: Constraint, size: float) -> None:
    geometry.check_nonempty(constraint, size * normal(2, 4))
