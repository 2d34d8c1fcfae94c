"""Violations row by row: a small row that is broken is seen beside large ones that hold."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import casal
from casal import Affine, Box, BoxHyperplane, Constraint, FromProjection, HalfSpace, Implicit, Monotone, Polytope
from casal.errors import InfeasibleSet, SettingError

WIDE = torch.float64
STATE = torch.tensor([1e5, 1e-6, 1e-6], dtype=WIDE)
"""A state in mixed units, such as a pressure and two concentrations."""

CONCENTRATIONS = Polytope([[0.0, 1.0, 1.0], [0.0, -1.0, 0.0], [0.0, 0.0, -1.0]], [1e-6, 0.0, 0.0])


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=WIDE)


def states(n: int) -> Tensor:
    return STATE * (1.0 + normal(n, 3))


def test_concentrations_beside_a_pressure() -> None:
    """Unconstrained states are certified only if they satisfy the constraint, and projections do."""
    z = states(500)
    excess = torch.stack([z[:, 1] + z[:, 2] - 1e-6, -z[:, 1], -z[:, 2]], dim=1).amax(1)
    certified = CONCENTRATIONS.violation(z) <= 1e-8
    assert bool((certified == (excess <= 1e-14)).all()) and 0 < int(certified.sum()) < 100
    found = CONCENTRATIONS.solve(z)
    assert bool(found.converged.all()) and float(CONCENTRATIONS.violation(found.point).max()) <= 1e-14
    assert bool((found.point[:, 1:] >= 0).all()) and torch.equal(found.point[:, 0], z[:, 0])


def circle(radius: float) -> Implicit:
    return Implicit(lambda z: z.square().sum(1, keepdim=True) - radius**2)


@pytest.mark.parametrize(
    ("constraint", "point", "expected"),
    [
        (Box([0.0, 0.0], [1.0, 1e10]), [6.0, 1e10], 5.0),
        (Box([1e10], [1e10 + 1]), [1e10 + 1.5], 0.5),
        (Box([0.0, -1e10], [math.inf, 1e10]), [-1e-6, 1e10], 1.0),
        (Affine([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]], [1e5, 1e-6]), [1e5, 2e-6, 0.0], 1 / 3),
        (HalfSpace([0.0, 1.0], 1e-6), [1e9, 3e-6], 0.5),
        (BoxHyperplane([0.0, 0.0, 0.0], [1e9, 1e-6, 1e-6], [0.0, 1.0, 1.0], 1e-6), [1e9, 1e-6, 1e-6], 1 / 3),
        (Monotone(), [2e-6, 1e-6, 1e9], 1 / 3),
        (casal.Sphere(1.0, torch.tensor([1e6, 0.0])), [1e6 + 2.0, 0.0], 1.0),
        (casal.Ball(1e-9), [1e-6, 0.0], 999.0),
        (casal.Ellipsoid([1e5, 1e-6]), [0.0, 3e-6], 2.0),
        (casal.PSDCone(), [[1e10, 0.0], [0.0, -1.0]], 1.0),
        (casal.PSDCone(), [[1e10, 2e-6], [1e-6, 1.0]], 1 / 3),
        (casal.Obstacles(discs=[([1e6, 0.0], 1.0)]), [[1e6, 0.0]], 0.5),
        (casal.Product(Box(0.0, 1.0), casal.Sphere(1e9), sizes=(1, 2)), [2.0, 1e9, 0.0], 1.0),
        (Affine([[1.0, 1.0]], 1e-6).through([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), [3e-6, 0.0, 1e9], 0.5),
        (Affine([[1.0, 1.0]], 1e-6).shifted([1.0, -1.0]), [1.0, -1.0], 1e-6 / (4.0 + 1e-6)),
        (circle(1e-9), [1.0, 0.0], 1 / 3),
        (Implicit(lambda z: z[:, 1:2] + z[:, 2:] - 1e-6), [1e5, 2e-6, 0.0], 1 / 3),
    ],
)
def test_by_hand(constraint: Constraint, point: Any, expected: float) -> None:
    z = torch.tensor([point], dtype=WIDE)
    assert float(constraint.violation(z)) == pytest.approx(expected, rel=1e-6)
    found = constraint.excess(z)
    assert float(found.violation().max()) == float(constraint.violation(z))
    row = int(found.violation()[0].argmax())
    assert row < constraint._row_count_of(tuple(z.shape[1:]))
    assert constraint.component_name(tuple(z.shape[1:]), row)
    onto = constraint.project(z)
    assert float(constraint.violation(onto)) <= 1e-12


def test_the_excess_is_in_the_unit_of_the_set() -> None:
    missed = Affine([[2.0, 0.0], [0.0, 1e-3]], [4.0, 1.0]).excess(torch.tensor([[3.0, 500.0]])).given()
    torch.testing.assert_close(missed, torch.tensor([[2.0, 0.5]], dtype=WIDE), rtol=1e-14, atol=0)
    assert casal.Box(0.0, 1.0).scaled(10.0).excess(torch.tensor([[15.0]])).given().tolist() == [[0.5]]  # of the image


def test_every_point_in_units_of_its_rows() -> None:
    """The same set and point in other units of the coordinates have the same violation."""
    A, b, z = normal(3, 5, seed=1), normal(3, seed=2), normal(20, 5, seed=3)
    units = torch.logspace(-9, 9, 5, dtype=WIDE)
    one, other = Affine(A, b), Affine(A / units, b)
    torch.testing.assert_close(one.violation(z), other.violation(z * units), rtol=1e-9, atol=0)
    box, wide = Box(-b[:1].abs(), b[:1].abs()), Box(-b[:1].abs() * units, b[:1].abs() * units)
    torch.testing.assert_close(box.violation(z), wide.violation(z * units), rtol=1e-12, atol=0)
    f = Implicit(lambda z: z.square() @ A.T - b)
    g = Implicit(lambda z: (z / units).square() @ A.T - b)
    torch.testing.assert_close(f.violation(z), g.violation(z * units), rtol=1e-9, atol=0)


@pytest.mark.parametrize("seed", range(4))
def test_equations_of_rows_in_different_units_are_met_row_by_row(seed: int) -> None:
    A = torch.tensor([[1.0, 1e9, 0.0], [1.0, 1.0, 1.0]], dtype=WIDE)
    constraint = Affine(A, [1e5, 1e-6])
    assert float(constraint.violation(constraint.project(states(500) * 10.0**seed)).max()) <= 1e-14


def test_units_that_float64_cannot_resolve_are_no_contradiction() -> None:
    with pytest.raises(SettingError, match=r"1\.0e\+14 times smaller .* Affine\(A \* units, b\)"):
        Affine([[1.0, 1e-14, 0.0], [1.0, 0.0, 1e-14]], [1.0, 2.0])
    with pytest.raises(InfeasibleSet, match="no solution"):
        Affine([[1.0, 1e-14], [1.0, 1e-14]], [1.0, 2.0])


@pytest.mark.parametrize("seed", range(6))
def test_positive_images_under_orthonormal_rows(seed: int) -> None:
    """-5e-17 in an image is the rounding of larger terms."""
    rows = torch.linalg.qr(normal(6, 3, seed=seed))[0].T
    constraint = Box(0.0, math.inf).through(rows)
    foot = constraint.project(normal(500, 6, seed=seed))
    assert float(constraint.violation(foot).max()) <= 1e-12
    assert float(constraint.violation(foot - 1e-6 * rows.sum(0)).max()) > 1e-7


def test_a_circle_through_the_origin_keeps_its_rounding() -> None:
    """Near the origin the terms of the linearised equation vanish, but the rounding of (z - c)^2 does not."""
    center = torch.tensor([1.0, 0.0], dtype=WIDE)
    constraint = Implicit(lambda z: (z - center).square().sum(1, keepdim=True) - 1.0)
    angle = torch.logspace(-5, 0, 200, dtype=WIDE)
    z = torch.stack([1.0 - torch.cos(angle), torch.sin(angle)], dim=1)
    assert float(constraint.violation(z).max()) <= 1e-8
    assert float(constraint.violation(z[angle > 1e-3] * (1.0 + 1e-6)).min()) > 1e-8


def test_functions_without_a_root_get_no_grant() -> None:
    constraint = Implicit(lambda z: z.square().sum(1, keepdim=True) + 1e-3)
    assert bool((constraint.violation(normal(50, 2)) > 0.1).all())


# ------------------------------------------------------------------------------------ what a user's functions say


@pytest.mark.parametrize("value", [-1.56e4, math.nan])
def test_a_violation_that_is_none_is_refused(value: float) -> None:
    constraint = FromProjection(lambda z: z, lambda z: torch.full((len(z),), value, dtype=z.dtype))
    with pytest.raises(SettingError, match=r"gave a violation of .* for 10 of 10 points"):
        constraint.violation(normal(10, 2))
    target = casal.langevin(lambda x: x, steps=3, step_size=0.1, init=normal(10, 2))
    with pytest.raises(SettingError, match="gave a violation of"):
        casal.sample(target, constraint, casal.Projected(), 10)


def test_a_wrong_jacobian_is_refused() -> None:
    def ring(z: Tensor) -> Tensor:
        return z.square().sum(1, keepdim=True) - 1.0

    right = Implicit(ring, jacobian=lambda z: 2.0 * z[:, None])
    assert torch.allclose(right.violation(normal(4, 3)), Implicit(ring).violation(normal(4, 3)))
    for wrong in (lambda z: z[:, None], lambda z: -2.0 * z[:, None], lambda z: 2e9 * z[:, None]):
        with pytest.raises(SettingError, match=r"jacobian of .* gives component 0 a slope of"):
            Implicit(ring, jacobian=wrong).violation(normal(4, 3))


def test_a_class_without_a_definition_is_refused() -> None:
    class Nothing(Constraint):
        """Says nothing."""

    with pytest.raises(TypeError, match="neither _excess nor _violation"):
        Nothing()
