"""What sets promise, over many rows: feasible, blind to other chains, data in and out, refusals with the number."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import cvxpy
import numpy as np
import pytest
import torch
from pyproximal.projection import HyperPlaneBoxProj, L1BallProj, SimplexProj
from torch import Tensor

from casal import MassEnergy, Sphere
from casal.constraints import (
    BoxHyperplane,
    Constraint,
    Ellipsoid,
    L1Ball,
    Monotone,
    ObservedMassEnergy,
    Obstacles,
    PSDCone,
    SecondOrderCone,
    Simplex,
    constraint_from_spec,
    geometry,
)
from casal.errors import InfeasibleSet, ProjectionError, SettingError, ShapeError

from .closed_form_cases import CLUSTER, GATES, INF, NO_OUTSIDE, NO_RESIDUAL, SETS, form, ramp
from .iterative_cases import SETS as ITERATIVE
from .points import length, normal, one

every_row = pytest.mark.parametrize(("name", "constraint", "event"), SETS, ids=[row[0] for row in SETS])
Event = tuple[int, ...]


# ------------------------------------------------------------------ every row, in short


def points(event: Event) -> Tensor:
    base = normal(8, *event, seed=1)
    constants = torch.tensor([0.0, 0.1, -0.7, 1e8, 1e150, -1e150, 1e-300, 5e-324], dtype=torch.float64)
    return torch.cat(
        [base, 3 * base, 1e-6 * base, 1e150 * base, 1e-300 * base, constants.reshape(-1, *[1] * len(event)) + 0 * base]
    )


@every_row
def test_projection_is_feasible_idempotent_and_blind_to_other_chains(
    name: str, constraint: Constraint, event: Event
) -> None:
    z = points(event)
    found = constraint.solve(z)
    foot = found.point
    assert bool(found.converged.all()) and not bool(found.iterations.any())
    assert float(constraint.violation(foot).max()) <= 1e-12
    assert bool((length(constraint.project(foot) - foot) <= 1e-12 * length(foot)).all())
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(2))
    moved = length(constraint.project(z[order]) - foot[order])
    assert bool((moved <= 1e-15 * (length(z[order]) + length(foot[order]))).all())
    narrow = z.clamp(-1e30, 1e30).to(torch.float32)
    assert constraint.project(narrow).dtype == torch.float32
    if constraint.convex:
        before, after = length(z - z.roll(1, 0)), length(foot - foot.roll(1, 0))
        size = length(z) + length(z.roll(1, 0)) + length(foot) + length(foot.roll(1, 0))
        assert bool((after <= before * (1 + 1e-12) + 1e-14 * size).all())


@every_row
def test_spec_survives_json_bit_by_bit(name: str, constraint: Constraint, event: Event) -> None:
    copy = constraint_from_spec(json.dumps(constraint.spec()))
    assert type(copy) is type(constraint) and repr(copy) == repr(constraint)
    assert (copy.exact, copy.convex, copy.solid, copy.smooth, copy._count_equations()) == (
        constraint.exact,
        constraint.convex,
        constraint.solid,
        constraint.smooth,
        constraint._count_equations(),
    )
    z = torch.cat([normal(16, *event, seed=3), 10 * normal(8, *event, seed=4)])
    assert torch.equal(copy.project(z), constraint.project(z))
    assert torch.equal(copy.violation(z), constraint.violation(z))
    assert copy.spec() == constraint.spec()


@every_row
def test_residual_describes_the_set_or_is_refused(name: str, constraint: Constraint, event: Event) -> None:
    z = 3 * normal(64, *event, seed=5)
    if name in NO_RESIDUAL:
        with pytest.raises(SettingError, match="no smooth residual"):
            geometry.residual(constraint, z)
        return
    foot = constraint.project(z)
    on = geometry.positive_part(constraint, geometry.residual(constraint, foot)).abs()
    assert on.shape[0] == 64 and bool((on <= 1e-12 * (1 + length(foot)[:, None] ** 2)).all())
    if name not in NO_OUTSIDE:
        off = length(z - foot) > 1e-6
        assert int(off.sum()) >= 8
        assert bool((geometry.positive_part(constraint, geometry.residual(constraint, z)).abs().amax(1)[off] > 0).all())


@every_row
def test_events_of_the_wrong_shape_are_refused(name: str, constraint: Constraint, event: Event) -> None:
    if isinstance(constraint, Simplex | L1Ball | SecondOrderCone | Monotone) or name in (
        "obstacles-none",
        "observed-mass-energy-none",
    ):
        constraint.validate((5, 7))
        return
    with pytest.raises((ShapeError, InfeasibleSet)):
        constraint.validate((1,) if isinstance(constraint, ObservedMassEnergy) else (1, 13, 1))


# ------------------------------------------------------------------ convex sets against a conic solver


def conic(z: np.ndarray, conditions: Callable[[Any], list[Any]], accuracy: float) -> np.ndarray:
    x = cvxpy.Variable(z.shape)
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(x - z)), conditions(x))
    problem.solve(solver=cvxpy.CLARABEL, tol_gap_abs=accuracy, tol_gap_rel=accuracy, tol_feas=accuracy)
    return np.asarray(x.value)


Q = form(5, 50.0, 0).numpy()
CENTER = ramp(5)
BOUNDS = (np.array([-1.0, -2.0, 0.0, -0.5, -1.0]), np.array([1.0, 0.5, 3.0, 0.5, 2.0]))
NORMAL = np.array([1.0, -2.0, 0.0, 3.0, 0.5])
CONVEX: dict[str, tuple[Constraint, Event, Callable[[Any], list[Any]]]] = {
    "ellipsoid-axes": (
        Ellipsoid([1.0, 0.3, 2.0, 5.0, 0.7], CENTER),
        (5,),
        lambda x: [cvxpy.norm(cvxpy.multiply(1 / np.array([1.0, 0.3, 2.0, 5.0, 0.7]), x - CENTER.numpy())) <= 1],
    ),
    "ellipsoid-matrix": (Ellipsoid(Q), (5,), lambda x: [cvxpy.quad_form(x, cvxpy.psd_wrap(Q)) <= 1]),
    "simplex": (Simplex(2.5), (6,), lambda x: [x >= 0, cvxpy.sum(x) == 2.5]),
    "l1-ball": (L1Ball(1.5), (6,), lambda x: [cvxpy.norm1(x) <= 1.5]),
    "second-order-cone": (SecondOrderCone(), (5,), lambda x: [cvxpy.norm(x[1:]) <= x[0]]),
    "psd-cone": (PSDCone(), (4, 4), lambda x: [x == x.T, 0.5 * (x + x.T) >> 0]),
    "monotone": (Monotone(), (9,), lambda x: [cvxpy.diff(x) >= 0]),
    "monotone-falling": (Monotone(False), (9,), lambda x: [cvxpy.diff(x) <= 0]),
    "observed-mass": (
        ObservedMassEnergy([3, 1], [2.0, -1.0], mass=0.5),
        (5,),
        lambda x: [x[3] == 2, x[1] == -1, cvxpy.sum(x) == 0.5],
    ),
    "box-hyperplane": (
        BoxHyperplane(*BOUNDS, NORMAL, 1.2),
        (5,),
        lambda x: [x >= BOUNDS[0], x <= BOUNDS[1], NORMAL @ x == 1.2],
    ),
    "box-hyperplane-half-open": (
        BoxHyperplane([-INF, -2.0, 0.0, -INF, -1.0], [1.0, INF, INF, 0.5, 2.0], NORMAL, -3.0),
        (5,),
        lambda x: [x[[1, 2, 4]] >= [-2, 0, -1], x[[0, 3, 4]] <= [1, 0.5, 2], NORMAL @ x == -3.0],
    ),
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", CONVEX)
def test_convex_sets_agree_with_a_conic_solver(kind: str, seed: int) -> None:
    constraint, event, conditions = CONVEX[kind]
    z = 3.0 * normal(*event, seed=seed).numpy()
    assert constraint.convex and constraint.exact
    if kind.startswith("ellipsoid"):  # Clarabel finds the distance, but the point only to 1e-5; see below
        foot, there = one(constraint, z), conic(z, conditions, 1e-8)
        assert np.linalg.norm(foot - z) == pytest.approx(np.linalg.norm(there - z), abs=1e-7)
        np.testing.assert_allclose(foot, there, rtol=0, atol=1e-4)
    elif kind in ("second-order-cone", "psd-cone"):
        np.testing.assert_allclose(one(constraint, z), conic(z, conditions, 1e-9), rtol=0, atol=1e-7)
    else:
        np.testing.assert_allclose(one(constraint, z), conic(z, conditions, 1e-12), rtol=0, atol=1e-10)


@pytest.mark.parametrize("seed", range(5))
def test_three_sets_agree_with_pyproximal(seed: int) -> None:
    z = 2.0 * normal(12, seed=seed).numpy()
    np.testing.assert_allclose(one(Simplex(3.0), z), SimplexProj(12, 3.0, xtol=1e-13, maxiter=200)(z.copy()), atol=1e-8)
    np.testing.assert_allclose(one(L1Ball(3.0), z), L1BallProj(12, 3.0, xtol=1e-13, maxiter=200)(z.copy()), atol=1e-8)
    a = normal(12, seed=100 + seed).numpy()
    there = HyperPlaneBoxProj(a, 0.7, lower=-0.5, upper=1.0, xtol=1e-13, maxiter=200)(z.copy())
    np.testing.assert_allclose(one(BoxHyperplane(-0.5, 1.0, a, 0.7), z), there, atol=1e-8)


# ------------------------------------------------------------------ sets that contain each other's special cases


def test_sets_agree_where_they_are_the_same_set() -> None:
    z = 4.0 * normal(64, 7, seed=9)
    same: list[tuple[Constraint, Constraint]] = [
        (Simplex(2.0), BoxHyperplane(0.0, INF, torch.ones(7), 2.0)),
        (ObservedMassEnergy([], [], mass=2.0, energy=9.0), MassEnergy(2.0, 9.0)),
        (ObservedMassEnergy([], [], energy=9.0), Sphere(3.0)),
        (Ellipsoid(torch.full((7,), 1.5), ramp(7)), Ellipsoid(torch.eye(7, dtype=torch.float64) / 1.5**2, ramp(7))),
    ]
    for one_, other in same:
        assert torch.allclose(one_.project(z), other.project(z), rtol=0, atol=2e-14)
        tubes = [geometry.log_volume_factor(item, z, item.project(z)) for item in (one_, other)]
        if tubes[0] is not None and tubes[1] is not None:
            assert torch.allclose(tubes[0], tubes[1], rtol=0, atol=1e-13)
    assert torch.allclose(Monotone(False).project(z), -Monotone().project(-z), rtol=0, atol=1e-14)


# ------------------------------------------------------------------ violations worked out by hand


@pytest.mark.parametrize(
    ("constraint", "point", "expected"),
    [
        (Ellipsoid([2.0, 1.0]), [4.0, 0.0], 1.0),
        (Ellipsoid([2.0, 1.0]), [0.0, 0.5], 0.0),
        (Ellipsoid([[0.25, 0.0], [0.0, 1.0]]), [0.0, 3.0], 2.0),
        (Ellipsoid([2.0, 1.0], torch.tensor([3.0, 4.0])), [3.0, 6.0], 1.0),
        (Simplex(2.0), [1.0, 0.5], 0.25),
        (Simplex(2.0), [3.0, -1.0], 0.5),
        (L1Ball(2.0), [-1.0, 2.0], 0.5),
        (SecondOrderCone(), [1.0, 3.0], 0.5),
        (SecondOrderCone(), [-1.0, 0.0], 1.0),
        (Monotone(), [3.0, 1.0, 5.0], 2 / 4),
        (Monotone(False), [3.0, 1.0, 5.0], 4 / 6),
        (Obstacles(intervals=[(0, 1, -1.0, 3.0)]), [2.0, 0.0], 1 / 4),
        (Obstacles(intervals=[(0, 2, -INF, 3.0)]), [5.0, 1.0], 2 / 4),
        (Obstacles(discs=[([3.0, 4.0], 2.0)]), [[3.0, 5.0]], 1 / 4),
        (Obstacles(boxes=[([0.0, 0.0], [3.0, 4.0])]), [[1.0, 3.5]], 0.5 / 4),
        (Obstacles(segments=[([0.0, 0.0], [3.0, 4.0], 2.0)]), [[3.0, 4.0]], 1 / 2),
        (ObservedMassEnergy([1], [2.0]), [6.0, 1.0], 1 / 3),
        (ObservedMassEnergy([], [], mass=1.0), [3.0, 4.0], 6 / 8),
        (ObservedMassEnergy([0], [3.0], energy=10.0), [3.0, 4.0], 1.5),
        (BoxHyperplane(-1.0, 1.0, [3.0, 4.0], 5.0), [3.0, 4.0], 3 / 2),
        (BoxHyperplane(-1.0, 2.0, [1.0, 0.0], 5 / 3), [5 / 3, 4.0], 2 / 3),
    ],
)
def test_violation_by_hand(constraint: Constraint, point: Any, expected: float) -> None:
    got = constraint.violation(torch.tensor([point], dtype=torch.float64))
    assert got.tolist() == pytest.approx([expected], rel=1e-12, abs=0.0)


# ------------------------------------------------------------------ what is refused, and how


@pytest.mark.parametrize(
    ("build", "error", "says"),
    [
        (lambda: Ellipsoid([1.0, 0.0]), InfeasibleSet, "positive"),
        (lambda: Ellipsoid([1.0, INF]), InfeasibleSet, "non-finite"),
        (lambda: Ellipsoid(2.0), ShapeError, r"\(d,\) or a matrix"),
        (lambda: Ellipsoid(torch.ones(2, 3)), ShapeError, r"\(2, 3\)"),
        (lambda: Ellipsoid([[1.0, 0.5], [0.0, 1.0]]), SettingError, "not symmetric: entries differ by 0.5"),
        (lambda: Ellipsoid([[1.0, 2.0], [2.0, 1.0]]), InfeasibleSet, "eigenvalues -1 to 3"),
        (lambda: Simplex(-1.0), InfeasibleSet, "got -1"),
        (lambda: L1Ball(math.nan), InfeasibleSet, "got nan"),
        (lambda: PSDCone().project(torch.zeros(1, 2, 3)), ShapeError, r"\(2, 3\)"),
        (lambda: Obstacles(intervals=[(0, 2, 1.0, 1.0)]), SettingError, "low < high, got 1 and 1"),
        (lambda: Obstacles(intervals=[(2, 2, 0.0, 1.0)]), SettingError, "start < stop"),
        (lambda: Obstacles(intervals=[(0.5, 2, 0.0, 1.0)]), SettingError, "start < stop"),
        (lambda: Obstacles(intervals=[(0, 2, 0.0)]), SettingError, r"\(start, stop, low, high\)"),
        (lambda: Obstacles(intervals=[(0, 3, -INF, 1.0), (2, 5, 0.0, INF)]), InfeasibleSet, "steps 2 to 2"),
        (lambda: Obstacles(intervals=GATES, discs=CLUSTER), SettingError, "Product"),
        (lambda: Obstacles(discs=[([0.0, 0.0], -1.0)]), SettingError, "finite and > 0, got -1"),
        (lambda: Obstacles(discs=[([0.0, INF], 1.0)]), SettingError, "finite numbers"),
        (lambda: Obstacles(discs=[([0.0, 0.0], 1.0, 3)]), SettingError, r"\(center, radius, start, stop\)"),
        (lambda: Obstacles(discs=[([0.0, 0.0], 1.0), ([0.0], 1.0)]), ShapeError, r"\[1, 2\] coordinates"),
        (lambda: Obstacles(boxes=[([0.0, 0.0], [1.0, 0.0])]), SettingError, "low < high in every"),
        (lambda: Obstacles(boxes=[([-INF, -INF], [INF, INF])]), InfeasibleSet, "whole space"),
        (
            lambda: Obstacles(boxes=[([-INF, -INF], [1.0, INF]), ([0.0, -INF], [INF, INF])]),
            InfeasibleSet,
            "whole plane",
        ),
        (lambda: Obstacles(segments=[([0.0, 0.0], [1.0, 0.0], 0.0)]), SettingError, "thickness"),
        (lambda: Obstacles(segments=[([0.0, 0.0], [1.0], 1.0)]), ShapeError, "2 and 1 coordinates"),
        (lambda: Obstacles(intervals=GATES).project(torch.zeros(1, 7)), ShapeError, "step 7"),
        (lambda: Obstacles(discs=CLUSTER).project(torch.zeros(1, 4, 3)), ShapeError, r"\(S, 2\)"),
        (lambda: ObservedMassEnergy([0, 0], [1.0, 2.0]), SettingError, "position 0 is observed more than once"),
        (lambda: ObservedMassEnergy([0.5], [1.0]), SettingError, "integers"),
        (lambda: ObservedMassEnergy([0], [1.0, 2.0]), ShapeError, "1 observed positions but 2 values"),
        (lambda: ObservedMassEnergy([0], [1.0], energy=-1.0), InfeasibleSet, "energy -1"),
        (lambda: ObservedMassEnergy([9], [1.0]).project(torch.zeros(1, 3)), ShapeError, "0 to 2"),
        (lambda: ObservedMassEnergy([0], [3.0], energy=4.0).project(torch.zeros(1, 3)), InfeasibleSet, "below 9"),
        (lambda: ObservedMassEnergy([0], [0.0], 6.0, 11.0).project(torch.zeros(1, 4)), InfeasibleSet, "at least 12"),
        (
            lambda: ObservedMassEnergy([0], [1.0], 3.0, 9.0).project(torch.zeros(1, 2)),
            InfeasibleSet,
            "fix the energy at 5",
        ),
        (
            lambda: ObservedMassEnergy([0, 1], [1.0, 1.0], 3.0).project(torch.zeros(1, 2)),
            InfeasibleSet,
            "sum is 2, not 3",
        ),
        (lambda: BoxHyperplane(0.0, 1.0, [1.0, 1.0], 3.0), InfeasibleSet, "runs from 0 to 2"),
        (lambda: BoxHyperplane([0.0, -INF], 1.0, [2.0, 1.0], 4.0), InfeasibleSet, "runs from -inf to 3"),
        (lambda: BoxHyperplane(0.0, 1.0, [0.0, 0.0], 0.0), InfeasibleSet, "nonzero normal"),
        (lambda: BoxHyperplane(1.0, 0.0, [1.0, 1.0], 0.0), InfeasibleSet, "low <= high fails for 2 of 2"),
        (lambda: BoxHyperplane([0.0, 1.0, 2.0], 3.0, [1.0, 1.0], 0.0), ShapeError, "a has 2 coordinates, low 3 values"),
        (
            lambda: BoxHyperplane(0.0, 1.0, [1.0, 1.0], 1.0).project(torch.full((1, 2), 1e305, dtype=torch.float64)),
            ProjectionError,
            "overflows",
        ),
    ],
)
def test_bad_input_is_refused_with_the_number(build: Callable[[], Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        build()


# ------------------------------------------------------------------ iterative sets


every_iterative_set = pytest.mark.parametrize(
    ("constraint", "event"), [row[1:] for row in ITERATIVE], ids=[row[0] for row in ITERATIVE]
)


@every_iterative_set
def test_projections_converge_to_rounding(constraint: Constraint, event: tuple[int, ...]) -> None:
    z = 3.0 * normal(40, *event, seed=1)
    found = constraint.solve(z)
    assert bool(found.converged.all()) and float(found.residual.max()) <= 1e-14
    assert float(constraint.violation(found.point).max()) <= 2e-15
    assert not constraint.exact and constraint.convex
    again = constraint.project(found.point)
    assert torch.allclose(again, found.point, rtol=0, atol=4e-15)


@every_iterative_set
def test_a_set_comes_back_from_json(constraint: Constraint, event: tuple[int, ...]) -> None:
    copy = constraint_from_spec(json.loads(json.dumps(constraint.spec())))
    z = 2.0 * normal(5, *event, seed=2)
    assert type(copy) is type(constraint) and copy.spec() == constraint.spec()
    assert torch.equal(copy.project(z), constraint.project(z))
    assert torch.equal(copy.violation(z), constraint.violation(z))
    assert repr(copy) == repr(constraint) and copy.explain() == constraint.explain()


@every_iterative_set
def test_chains_are_alone_in_a_batch(constraint: Constraint, event: tuple[int, ...]) -> None:
    z = 4.0 * normal(7, *event, seed=3)
    together = constraint.solve(z)
    for i in range(7):
        alone = constraint.solve(z[i : i + 1])
        assert torch.allclose(alone.point[0], together.point[i], rtol=0, atol=2e-14)
    assert torch.allclose(constraint.project(z.flip(0)), together.point.flip(0), rtol=0, atol=2e-14)


@every_iterative_set
def test_a_warm_start_changes_no_answer(constraint: Constraint, event: tuple[int, ...]) -> None:
    z = 3.0 * normal(20, *event, seed=4)
    near = z + 1e-3 * normal(20, *event, seed=5)
    cold = constraint.solve(z)
    for start in (constraint.project(near), constraint.project(-z), z):
        warm = constraint.solve(z, warm=start)
        assert bool(warm.converged.all())
        assert torch.allclose(warm.point, cold.point, rtol=0, atol=2e-14)


@every_iterative_set
def test_single_precision_is_rounded_at_the_end(constraint: Constraint, event: tuple[int, ...]) -> None:
    z = (3.0 * normal(10, *event, seed=6)).to(torch.float32)
    found = constraint.solve(z)
    assert found.point.dtype == torch.float32 and bool(found.converged.all())
    assert torch.equal(found.point, constraint.project(z.to(torch.float64)).to(torch.float32))
    assert float(constraint.violation(found.point).max()) <= 1e-6


@every_iterative_set
@pytest.mark.parametrize("size", [1e-300, 1e-20, 1e8, 1e20, 1e150])
def test_numbers_of_any_size(constraint: Constraint, event: tuple[int, ...], size: float) -> None:
    z = size * normal(8, *event, seed=7)
    found = constraint.solve(z)
    assert bool(found.converged.all()) and bool(torch.isfinite(found.point).all())
    assert float(constraint.violation(found.point).max()) <= 1e-12
