"""The closed-form sets against answers from elsewhere: conic and nonlinear solvers, brute force, other libraries."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import cvxpy
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyproximal.projection import HyperPlaneBoxProj, L1BallProj, SimplexProj
from scipy.optimize import brentq, isotonic_regression, minimize
from torch import Tensor

from casal import MassEnergy, Sphere
from casal.constraints import (
    BoxHyperplane,
    Budget,
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
)
from casal.errors import InfeasibleSet, ProjectionError, SettingError, ShapeError

from .closed_form_cases import CLUSTER, GATES, INF, NO_OUTSIDE, NO_RESIDUAL, SETS, form, ramp

every_row = pytest.mark.parametrize(("name", "constraint", "event"), SETS, ids=[row[0] for row in SETS])
Event = tuple[int, ...]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def length(v: Tensor) -> Tensor:
    rows = v.reshape(len(v), math.prod(v.shape[1:]))
    peak = rows.abs().amax(1).clamp_min(1e-320)
    return peak * (rows / peak[:, None]).square().sum(1).sqrt()


def one(constraint: Constraint, point: Any) -> np.ndarray:
    return constraint.project(torch.as_tensor(point, dtype=torch.float64)[None])[0].numpy()


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
    assert (copy.exact, copy.convex, copy.solid, copy.smooth, copy.equation_count()) == (
        constraint.exact,
        constraint.convex,
        constraint.solid,
        constraint.smooth,
        constraint.equation_count(),
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
            constraint.residual(z)
        return
    foot = constraint.project(z)
    on = constraint.positive_part(constraint.residual(foot)).abs()
    assert on.shape[0] == 64 and bool((on <= 1e-12 * (1 + length(foot)[:, None] ** 2)).all())
    if name not in NO_OUTSIDE:
        off = length(z - foot) > 1e-6
        assert int(off.sum()) >= 8
        assert bool((constraint.positive_part(constraint.residual(z)).abs().amax(1)[off] > 0).all())


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


@pytest.mark.parametrize("seed", range(6))
def test_ellipsoids_agree_with_a_nonlinear_solver(seed: int) -> None:
    z, center = 3.0 * normal(5, seed=seed).numpy(), CENTER.numpy()
    answer = minimize(
        lambda x: ((x - z) ** 2).sum(),
        center,
        jac=lambda x: 2 * (x - z),
        constraints={
            "type": "ineq",
            "fun": lambda x: 1 - (x - center) @ Q @ (x - center),
            "jac": lambda x: -2 * Q @ (x - center),
        },
        options={"ftol": 1e-16, "maxiter": 500},
    )
    np.testing.assert_allclose(one(Ellipsoid(Q, CENTER), z), answer.x, rtol=0, atol=1e-6)


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
        tubes = [item.log_tube_factor(z, item.project(z)) for item in (one_, other)]
        if tubes[0] is not None and tubes[1] is not None:
            assert torch.allclose(tubes[0], tubes[1], rtol=0, atol=1e-13)
    assert torch.allclose(Monotone(False).project(z), -Monotone().project(-z), rtol=0, atol=1e-14)


# ------------------------------------------------------------------ ellipsoid


@pytest.mark.parametrize("aspect", [1.0, 1e3, 1e9, 1e60])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e5, 1e40])
def test_ellipsoid_satisfies_the_secular_equation(aspect: float, size: float) -> None:
    axes = torch.logspace(-math.log10(aspect), 0, 6, dtype=torch.float64)
    z = size * normal(200, 6, seed=11)
    z = z[(z / axes).square().sum(1) > 1]
    if not len(z):
        return
    foot = Ellipsoid(axes).project(z)
    gauge = (foot / axes).square().sum(1).sqrt()
    assert float((gauge - 1).abs().max()) <= 1e-14
    # z - p = mu p / s^2 with one mu >= 0 for all coordinates; it is read from the coordinate that shows it best.
    biggest = ((z - foot) / z).abs().argmax(1, keepdim=True)
    mu = ((z - foot) * axes.square() / foot).gather(1, biggest)
    assert bool((mu >= 0).all())
    gap = (z - foot - mu * (foot / axes) / axes).abs()
    assert bool((gap <= 1e-13 * (z.abs() + foot.abs() + (mu * foot / axes / axes).abs())).all())


def test_ellipsoid_nearly_touched_and_far_away() -> None:
    ellipsoid = Ellipsoid([1.0, 2.0], torch.tensor([5.0, -5.0]))
    for offset in (1e-15, 1e-12, 1e-6, 1.0, 1e6, 1e150, 1e300):
        np.testing.assert_allclose(one(ellipsoid, [6.0 + offset, -5.0]), [6.0, -5.0], rtol=0, atol=2e-15)
    inside = torch.tensor([[5.3, -4.0]], dtype=torch.float64)
    assert torch.equal(ellipsoid.project(inside), inside) and float(ellipsoid.violation(inside)) == 0.0


# ------------------------------------------------------------------ simplex, cones


def test_simplex_and_ball_at_ties_and_shifts() -> None:
    np.testing.assert_allclose(one(Simplex(), [0.2, 0.2, 0.2, 0.2]), np.full(4, 0.25), atol=1e-16)
    np.testing.assert_allclose(one(Simplex(), [1e15, 1e15, -1e15]), [0.5, 0.5, 0.0], atol=0)
    np.testing.assert_allclose(one(Simplex(3.0), [-7.0, -7.0, -8.5]), [4 / 3 + 1 / 6 + 0, 1.5, 0.0], atol=1e-15)
    np.testing.assert_allclose(one(L1Ball(2.0), [-5.0, 5.0]), [-1.0, 1.0], atol=1e-16)
    np.testing.assert_allclose(one(L1Ball(2.0), [0.0, 0.0]), [0.0, 0.0], atol=0)


def test_second_order_cone_has_three_cases() -> None:
    cone = SecondOrderCone()
    for point, expected in (
        ([5.0, 3.0, 4.0], [5.0, 3.0, 4.0]),
        ([-5.0, 3.0, 4.0], [0.0, 0.0, 0.0]),
        ([1.0, 3.0, 4.0], [3.0, 1.8, 2.4]),
        ([-2.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
        ([3e155, 4e155, 0.0], [3.5e155, 3.5e155, 0.0]),
    ):
        np.testing.assert_allclose(one(cone, point), expected, rtol=1e-15, atol=1e-15)
    with pytest.raises(ProjectionError, match="overflows for 1 of 1"):
        cone.project(torch.full((1, 9), 1.7e308, dtype=torch.float64))


def test_psd_cone_clips_a_known_spectrum() -> None:
    basis = torch.linalg.qr(normal(5, 5, seed=12)).Q
    spectrum = torch.tensor([-3.0, -1e-3, 0.0, 2.0, 2.0], dtype=torch.float64)
    skew = normal(5, 5, seed=13)
    z = basis @ torch.diag(spectrum) @ basis.T + 0.5 * (skew - skew.T)
    expected = basis @ torch.diag(spectrum.clamp_min(0)) @ basis.T
    np.testing.assert_allclose(one(PSDCone(), z), expected.numpy(), atol=1e-14)
    assert float(PSDCone().violation(torch.diag(torch.tensor([4.0, -3.0]))[None])) == pytest.approx(3 / 5)
    assert float(PSDCone().violation(torch.tensor([[[0.0, 1.0], [-1.0, 0.0]]]))) == pytest.approx(1.0)


# ------------------------------------------------------------------ monotone


def staircase(kind: str, rows: int, size: int) -> Tensor:
    noise = normal(rows, size, seed=14)
    if kind == "outlier":  # one block swallows its neighbours one by one: the slow case of the parallel rounds
        rising = torch.arange(size, dtype=torch.float64) + 0 * noise
        rising[:, 0] = 1e5
        return rising
    return {
        "noise": noise,
        "walk": noise.cumsum(1),
        "ties": (2 * noise).round(),
        "falling": -torch.arange(size, dtype=torch.float64) + 0.1 * noise,
        "wide": 10.0 ** (6 * normal(rows, size, seed=15)) * noise,
    }[kind]


@pytest.mark.parametrize("size", [2, 5, 60, 200])
@pytest.mark.parametrize("kind", ["noise", "walk", "ties", "falling", "outlier", "wide"])
def test_monotone_agrees_with_scipy(kind: str, size: int) -> None:
    z = staircase(kind, 12, size)
    for increasing in (True, False):
        foot = Monotone(increasing).project(z).numpy()
        for row, got in zip(z.numpy(), foot, strict=True):
            there = isotonic_regression(row, increasing=increasing).x
            np.testing.assert_allclose(got, there, rtol=0, atol=1e-13 * np.abs(row).max())
        assert bool((np.diff(foot) >= 0).all() if increasing else (np.diff(foot) <= 0).all())


def test_monotone_mixes_short_and_long_chains() -> None:
    z = torch.cat(
        [staircase(kind, 3, 50) for kind in ("outlier", "noise", "walk")] + [ramp(1, 50), 0.8e308 * ramp(1, 50).flip(1)]
    )
    foot = Monotone().project(z)
    for chain in range(len(z)):
        assert torch.equal(Monotone().project(z[chain : chain + 1])[0], foot[chain])
    assert torch.equal(foot[-2], z[-2])
    np.testing.assert_allclose(foot[-1] / 1e308, (z[-1] / 1e308).mean().expand(50), rtol=1e-14)


# ------------------------------------------------------------------ obstacles: intervals


def nearest_free_number(value: float, intervals: list[tuple[float, float]]) -> float:
    """By trying the number itself and every edge."""
    edges = [value, *(edge for interval in intervals for edge in interval if math.isfinite(edge))]
    free = [edge for edge in edges if not any(low < edge < high for low, high in intervals)]
    return min(free, key=lambda edge: (abs(edge - value), edge))


finite = st.floats(-5.0, 5.0).map(lambda x: round(x, 1))
windows = st.tuples(
    st.integers(0, 5), st.integers(1, 4), finite, st.floats(0.1, 4.0), st.sampled_from(["", "", "", "low", "high"])
)


@settings(max_examples=150)
@given(st.lists(windows, min_size=1, max_size=7), st.integers(0, 1000))
def test_interval_obstacles_agree_with_brute_force(rows: list[Any], seed: int) -> None:
    intervals = []
    for start, steps, low, width, end in rows:
        # Ends at infinity stay away from each other, so that there is a way out.
        intervals.append((start, start + steps, -INF if end == "low" else low, low + width))
        if end == "high":
            intervals[-1] = (start, start + steps, low + 20.0, INF)
    constraint = Obstacles(intervals=intervals)
    z = torch.cat([4.0 * normal(6, 10, seed=seed), (4.0 * normal(6, 10, seed=seed)).round(), torch.full((1, 10), 25.0)])
    foot = constraint.project(z)
    for chain in range(len(z)):
        for step in range(10):
            here = [(low, high) for start, stop, low, high in intervals if start <= step < stop]
            assert float(foot[chain, step]) == nearest_free_number(float(z[chain, step]), here)
    assert float(constraint.violation(foot).max()) == 0.0
    assert bool(((constraint.violation(z) > 0) == (foot != z).any(1)).all())


def test_touching_intervals_leave_the_point_between_them() -> None:
    gate = Obstacles(intervals=[(0, 1, 0.0, 1.0), (0, 1, 1.0, 2.0), (1, 2, 0.0, 1.5), (1, 2, 1.0, 2.0)])
    assert one(gate, [0.9, 0.9]).tolist() == [1.0, 0.0]
    assert one(gate, [1.0, 1.0]).tolist() == [1.0, 0.0]
    assert one(gate, [0.5, 2.0]).tolist() == [0.0, 2.0]


def test_quadrotor_gates() -> None:
    gates = Obstacles(intervals=[(57, 62, -0.1, 0.5), (107, 112, -4.0, 0.3), (157, 162, -0.3, 1.3)])
    z = torch.zeros(1, 200, dtype=torch.float64)
    foot = gates.project(z)[0]
    moved = torch.nonzero(foot != z[0]).flatten().tolist()
    assert moved == [*range(57, 62), *range(107, 112), *range(157, 162)]
    assert foot[57].item() == -0.1 and foot[107].item() == 0.3 and foot[157].item() == -0.3
    assert float(gates.violation(z)) == pytest.approx(max(0.1 / 0.5, 0.3 / 4.0, 0.3 / 1.3))


# ------------------------------------------------------------------ obstacles: shapes

Shapes = dict[str, list[Any]]
SCENES: dict[str, Shapes] = {
    "disc": {"discs": [([0.5, -0.5], 1.5)]},
    "cluster": {"discs": CLUSTER},
    "ring": {"discs": [([math.cos(t), math.sin(t)], 0.7) for t in np.arange(6) * math.pi / 3]},
    "boxes": {"boxes": [([-1.0, -0.5], [0.5, 0.5]), ([0.0, -1.0], [1.0, 0.0]), ([0.2, -0.2], [1.7, 0.6])]},
    "gap": {"boxes": [([-0.2, -INF], [0.2, 0.3]), ([-0.2, 0.9], [0.2, INF])]},
    "corner": {"boxes": [([-INF, -INF], [0.5, 0.0]), ([0.0, -INF], [INF, -0.4])]},
    "cross": {"segments": [([-1.0, 0.0], [1.0, 0.5], 0.6), ([0.0, -1.0], [0.0, 1.0], 0.4)]},
    "dot": {"segments": [([0.3, 0.3], [0.3, 0.3], 1.4)]},
    "mixed": {
        "discs": [([0.0, 0.0], 0.8), ([0.9, 1.0], 0.5)],
        "boxes": [([-0.5, 0.2], [1.5, 0.9])],
        "segments": [([0.3, -1.0], [1.0, 0.6], 0.5)],
    },
    "same twice": {"discs": [([0.0, 0.0], 1.0)] * 2, "boxes": [([-1.0, -1.0], [0.0, 0.0])] * 2},
}


def inside(shapes: Shapes, x: np.ndarray) -> np.ndarray:
    """How deep the points x (m, 2) are in the deepest shape; written apart from the library."""
    depth = np.full(len(x), -np.inf)
    for center, radius in shapes.get("discs", []):
        depth = np.maximum(depth, radius - np.hypot(*(x - np.array(center)).T))
    for low, high in shapes.get("boxes", []):
        depth = np.maximum(depth, np.minimum(x - np.array(low), np.array(high) - x).min(1))
    for a, b, thickness in shapes.get("segments", []):
        start, along = np.array(a), np.array(b) - np.array(a)
        share = np.clip((x - start) @ along / max(along @ along, 1e-300), 0, 1)
        depth = np.maximum(depth, thickness / 2 - np.hypot(*(x - start - share[:, None] * along).T))
    return depth


def outlines(shapes: Shapes, count: int) -> np.ndarray:
    """Many points on the edges of all shapes (m, 2)."""
    angle, share = np.linspace(0, 2 * np.pi, count), np.linspace(0, 1, count)[:, None]
    circle = np.stack([np.cos(angle), np.sin(angle)], 1)
    parts = [np.array(center) + radius * circle for center, radius in shapes.get("discs", [])]
    for low, high in shapes.get("boxes", []):
        low, high = np.maximum(low, -6.0), np.minimum(high, 6.0)
        corners = [
            np.array([x, y]) for x, y in ((low[0], low[1]), (high[0], low[1]), (high[0], high[1]), (low[0], high[1]))
        ]
        parts += [p + share * (q - p) for p, q in zip(corners, corners[1:] + corners[:1], strict=True)]
    for a, b, thickness in shapes.get("segments", []):
        p, q, radius = np.array(a), np.array(b), thickness / 2
        across = np.array([p[1] - q[1], q[0] - p[0]]) / max(np.hypot(*(q - p)), 1e-300)
        parts += [p + radius * circle, q + radius * circle]
        parts += [p + side * radius * across + share * (q - p) for side in (1, -1)]
    return np.concatenate(parts)


@pytest.mark.parametrize("scene", SCENES)
def test_shapes_agree_with_a_fine_grid_on_their_outlines(scene: str) -> None:
    shapes = SCENES[scene]
    constraint = Obstacles(**shapes)
    z = torch.cat([1.2 * normal(150, 1, 2, seed=16), ramp(10, 1, 2)])
    foot = constraint.project(z)
    assert constraint.exact and float(constraint.violation(foot).max()) <= 1e-12
    assert float(inside(shapes, foot[:, 0].numpy()).max()) <= 1e-12
    stuck = inside(shapes, z[:, 0].numpy()) > 1e-9
    assert bool((foot[~stuck] == z[~stuck]).all()) and stuck.sum() >= 10
    grid = outlines(shapes, 4001)
    grid = grid[inside(shapes, grid) <= 1e-12]
    start, end = z[stuck, 0].numpy(), foot[stuck, 0].numpy()
    best = np.linalg.norm(start[:, None] - grid, axis=2).min(1)
    distance = np.linalg.norm(end - start, axis=1)
    assert bool((distance <= best + 1e-12).all())
    assert bool((distance >= best - 4e-3).all())


@pytest.mark.parametrize("scene", ["cluster", "ring", "cross", "mixed"])
def test_shapes_agree_with_a_nonlinear_solver_from_many_starts(scene: str) -> None:
    shapes = SCENES[scene]
    z = 0.6 * normal(60, 2, seed=17).numpy()
    z = z[inside(shapes, z) > 0.02][:4]
    starts = np.concatenate([1.01 * outlines(shapes, 13), 0.9 * outlines(shapes, 13)])
    starts = starts[inside(shapes, starts) < 0]
    foot = Obstacles(**shapes).project(torch.from_numpy(z)[:, None])[:, 0].numpy()
    for point, got in zip(z, foot, strict=True):
        found = []
        for start in starts:
            answer = minimize(
                lambda x, p=point: ((x - p) ** 2).sum(),
                start,
                jac=lambda x, p=point: 2 * (x - p),
                constraints={"type": "ineq", "fun": lambda x: -inside_each(shapes, x)},
                method="SLSQP",
                options={"ftol": 1e-14},
            )
            if answer.success and inside(shapes, answer.x[None])[0] < 1e-9:
                found.append(math.sqrt(answer.fun))
        assert len(found) >= 5
        assert np.linalg.norm(got - point) == pytest.approx(min(found), abs=1e-6)


def inside_each(shapes: Shapes, x: np.ndarray) -> np.ndarray:
    return np.array([inside({kind: [row]}, x[None])[0] for kind, rows in shapes.items() for row in rows])


def test_shapes_come_and_go_with_time() -> None:
    field = Obstacles(
        discs=[([0.0, 0.0], 1.0, 0, 2), ([0.0, 0.5], 1.0, 1, 3)], boxes=[([-1.0, -1.0], [1.0, 1.0], 3, None)]
    )
    z = torch.tensor([0.1, 0.2], dtype=torch.float64).expand(1, 5, 2).clone()
    foot = field.project(z)[0]
    alone = [Obstacles(discs=[([0.0, 0.0], 1.0)]), Obstacles(discs=[([0.0, 0.0], 1.0), ([0.0, 0.5], 1.0)])]
    alone += [Obstacles(discs=[([0.0, 0.5], 1.0)]), *[Obstacles(boxes=[([-1.0, -1.0], [1.0, 1.0])])] * 2]
    for step, set_ in enumerate(alone):
        assert torch.equal(foot[step], set_.project(z[:, :1])[0, 0])
    assert field.spec()["discs"][0] == [[0.0, 0.0], 1.0, 0, 2]
    assert field.spec()["boxes"][0] == [[-1.0, -1.0], [1.0, 1.0], 3, None]


def test_shapes_at_their_degenerate_points() -> None:
    assert one(Obstacles(discs=[([1.0, 2.0], 0.5)]), [[1.0, 2.0]]).tolist() == [[1.5, 2.0]]
    assert one(Obstacles(boxes=[([-1.0, -1.0], [1.0, 1.0])]), [[0.0, 0.0]]).tolist() == [[-1.0, 0.0]]
    capsule = Obstacles(segments=[([0.0, 0.0], [3.0, 4.0], 1.0)])
    for share in (0.0, 0.3, 0.5, 1 / 3, 0.77, 1.0):
        foot = one(capsule, [[3.0 * share, 4.0 * share]])[0]
        across = foot - np.array([3.0 * share, 4.0 * share])
        assert np.hypot(*across) == pytest.approx(0.5, abs=1e-14) and across @ [3.0, 4.0] == pytest.approx(
            0.0, abs=1e-14
        )
    # Two discs, the point at the centre of one and on the axis of both: the way out is where the circles meet.
    pair = Obstacles(discs=[([0.0, 0.0], 1.0), ([1.0, 0.0], 1.0)])
    np.testing.assert_allclose(np.abs(one(pair, [[0.5, 0.0]])), [[0.5, math.sqrt(0.75)]], atol=1e-15)
    np.testing.assert_allclose(np.hypot(*one(pair, [[0.0, 0.0]])[0]), 1.0, atol=1e-15)
    # A point on the edge is free.
    assert one(pair, [[-1.0, 0.0]]).tolist() == [[-1.0, 0.0]]
    assert float(pair.violation(torch.tensor([[[-1.0, 0.0]]]))) == 0.0


def test_solid_shapes_in_space_are_exact_apart_and_flagged_together() -> None:
    apart = Obstacles(
        discs=[([0.0, 0.0, 0.0], 1.0), ([2.0, 0.0, 0.0], 0.9)], segments=[([0.0, 3.0, 0.0], [2.0, 3.0, 1.0], 1.0)]
    )
    assert apart.exact
    together = Obstacles(discs=[([0.0, 0.0, 0.0], 1.0), ([1.2, 0.0, 0.0], 1.0)])
    assert not together.exact and not Obstacles(discs=[([0.0] * 3, 1.0, 0, 2), ([1.0, 0.0, 0.0], 1.0, 1, 3)]).exact
    assert Obstacles(discs=[([0.0] * 3, 1.0, 0, 2), ([1.0, 0.0, 0.0], 1.0, 2, 3)]).exact
    z = torch.tensor([[[0.5, 0.2, 0.1]], [[0.6, 0.0, 0.0]], [[3.0, 0.0, 0.0]]], dtype=torch.float64)
    found = together.solve(z, budget=Budget(iterations=200))
    # The second point sits on the axis and is thrown from one centre to the other: it says so, the others are free.
    assert found.converged.tolist() == [True, False, True]
    assert bool((found.residual[[0, 2]] <= 1e-12).all()) and float(found.residual[1]) > 0.1
    assert found.iterations[1] == 200 and found.iterations[2] == 0
    foot = found.point[0, 0]
    assert float((z[0, 0] - foot).norm()) <= 1.05 * float(torch.tensor([0.1, 0.8 - math.hypot(0.2, 0.1)]).norm())


def test_crowded_capsules_in_space_get_free() -> None:
    rods = [
        ([-1.0, 0.0, 0.0], [1.0, 0.2, 0.1], 0.5),
        ([0.0, -1.0, 0.1], [0.1, 1.0, 0.0], 0.5),
        ([0.0, 0.1, -1.0], [0.2, 0.0, 1.0], 0.5),
    ]
    constraint = Obstacles(segments=rods, boxes=[([-0.4, -0.4, -0.4], [0.4, 0.4, 0.4])])
    z = 0.4 * normal(100, 3, 3, seed=18)
    found = constraint.solve(z)
    assert not constraint.exact and float(found.converged.double().mean()) > 0.9
    assert bool((constraint.violation(found.point)[found.converged] <= 1e-12).all())
    assert bool((constraint.violation(found.point)[~found.converged] > 1e-12).all())


# ------------------------------------------------------------------ observed coordinates, mass and energy


@pytest.mark.parametrize(("mass", "energy"), [(1.5, 9.0), (None, 9.0), (-2.0, 6.0)])
@pytest.mark.parametrize("seed", range(3))
def test_observed_mass_energy_agrees_with_a_nonlinear_solver(mass: float | None, energy: float, seed: int) -> None:
    index, values = [4, 1], np.array([1.0, -0.5])
    z = 2.0 * normal(6, seed=seed).numpy()
    conditions = [
        {"type": "eq", "fun": lambda x: x[index] - values},
        {"type": "eq", "fun": lambda x: x @ x - energy, "jac": lambda x: 2 * x},
    ]
    if mass is not None:
        conditions.append({"type": "eq", "fun": lambda x: x.sum() - mass, "jac": lambda x: np.ones(6)})
    best, where = math.inf, z
    for start in 2.0 * np.random.default_rng(seed).standard_normal((8, 6)):
        answer = minimize(
            lambda x: ((x - z) ** 2).sum(),
            start,
            jac=lambda x: 2 * (x - z),
            constraints=conditions,
            options={"ftol": 1e-15, "maxiter": 500},
        )
        if answer.success and answer.fun < best:
            best, where = answer.fun, answer.x
    np.testing.assert_allclose(one(ObservedMassEnergy(index, values, mass, energy), z), where, rtol=0, atol=1e-6)


def test_observed_mass_energy_at_a_constant_field() -> None:
    foot = one(ObservedMassEnergy([0], [1.0], mass=4.0, energy=12.0), [9.0, 0.1, 0.1, 0.1])
    np.testing.assert_allclose(foot, [1.0, 3.0, -1.0, 1.0], atol=1e-14)
    np.testing.assert_allclose(
        one(ObservedMassEnergy([0], [1.0], energy=5.0), [9.0, 0.0, 0.0]), [1.0, 2.0, 0.0], atol=1e-15
    )


def test_navier_stokes_size_to_rounding() -> None:
    z = 3.0 * normal(8, 64, 64, seed=19)
    index = torch.randperm(4096, generator=torch.Generator().manual_seed(0))[:123]
    truth = normal(4096, seed=20)
    known = ObservedMassEnergy(index, truth[index], mass=float(truth.sum()), energy=float(truth.square().sum()))
    foot = known.project(z).flatten(1)
    assert torch.equal(foot[:, index], truth[index].expand(8, -1))
    assert float(known.violation(foot.reshape(8, 64, 64)).max()) <= 1e-14
    assert float((foot.square().sum(1) / truth.square().sum() - 1).abs().max()) <= 1e-14


# ------------------------------------------------------------------ box and hyperplane


def test_box_hyperplane_with_huge_points() -> None:
    constraint = BoxHyperplane(-1.0, 1.0, [1.0, 1.0, 1.0], -0.5)
    np.testing.assert_allclose(one(constraint, [1e150, -2e150, 0.5e150]), [1.0, -1.0, -0.5], atol=1e-15)
    np.testing.assert_allclose(one(constraint, [1e150, 0.3, -0.2]), [1.0, -0.5, -1.0], atol=1e-15)
    np.testing.assert_allclose(
        one(BoxHyperplane(0.0, INF, np.ones(4), 1.0), np.full(4, 1e150)), np.full(4, 0.25), atol=1e-15
    )


@settings(max_examples=100)
@given(st.integers(0, 10_000), st.integers(1, 8), st.floats(-4, 4))
def test_box_hyperplane_agrees_with_a_root_finder(seed: int, size: int, exponent: float) -> None:
    rng = np.random.default_rng(seed)
    low = np.where(rng.random(size) < 0.2, -np.inf, rng.normal(size=size))
    high = np.where(rng.random(size) < 0.2, np.inf, np.maximum(low, -2.0) + rng.exponential(size=size))
    a = np.sign(rng.normal(size=size)) * rng.uniform(0.2, 2.0, size) * (rng.random(size) < 0.8)
    a[0] = 1.0
    member = np.clip(rng.normal(size=size), low, high)
    constraint = BoxHyperplane(low, high, a, float(a @ member))
    for y in 10.0**exponent * rng.normal(size=(3, size)):
        foot = one(constraint, y)
        far = 1e3 * (10.0**exponent + 10.0)
        lam = brentq(lambda t, y=y: a @ np.clip(y - t * a, low, high) - a @ member, -far, far, xtol=1e-300, rtol=1e-15)
        np.testing.assert_allclose(foot, np.clip(y - lam * a, low, high), rtol=0, atol=1e-12 * (1 + np.abs(y).max()))


# ------------------------------------------------------------------ violations worked out by hand


@pytest.mark.parametrize(
    ("constraint", "point", "expected"),
    [
        (Ellipsoid([2.0, 1.0]), [4.0, 0.0], 1.0),
        (Ellipsoid([2.0, 1.0]), [0.0, 0.5], 0.0),
        (Ellipsoid([[0.25, 0.0], [0.0, 1.0]]), [0.0, 3.0], 2.0),
        (Ellipsoid([2.0, 1.0], torch.tensor([3.0, 4.0])), [3.0, 6.0], 1 / 6),
        (Simplex(2.0), [1.0, 0.5], 0.25),
        (Simplex(2.0), [3.0, -1.0], 0.5),
        (L1Ball(2.0), [-1.0, 2.0], 0.5),
        (SecondOrderCone(), [1.0, 3.0], 0.5),
        (SecondOrderCone(), [-1.0, 0.0], 1.0),
        (Monotone(), [1.0, -2.0, 5.0], 3 / 5),
        (Monotone(False), [1.0, -2.0, 5.0], 7 / 5),
        (Obstacles(intervals=[(0, 1, -1.0, 3.0)]), [2.0, 0.0], 1 / 3),
        (Obstacles(intervals=[(0, 2, -INF, 3.0)]), [5.0, 1.0], 2 / 4),
        (Obstacles(discs=[([3.0, 4.0], 2.0)]), [[3.0, 5.0]], 1 / 7),
        (Obstacles(boxes=[([0.0, 0.0], [3.0, 4.0])]), [[1.0, 3.5]], 0.5 / 5),
        (Obstacles(segments=[([0.0, 0.0], [3.0, 4.0], 2.0)]), [[3.0, 4.0]], 1 / 6),
        (ObservedMassEnergy([1], [2.0]), [6.0, 1.0], 1 / 8),
        (ObservedMassEnergy([], [], mass=1.0), [3.0, 4.0], 6 / (math.sqrt(2) * 5 + 1)),
        (ObservedMassEnergy([0], [3.0], energy=10.0), [3.0, 4.0], 1.5),
        (BoxHyperplane(-1.0, 1.0, [3.0, 4.0], 5.0), [3.0, 4.0], 4 / 6),
        (BoxHyperplane(-1.0, 2.0, [1.0, 0.0], 5 / 3), [5 / 3, 4.0], 2 / 6),
    ],
)
def test_violation_by_hand(constraint: Constraint, point: Any, expected: float) -> None:
    got = constraint.violation(torch.tensor([point], dtype=torch.float64))
    assert got.tolist() == pytest.approx([expected], rel=1e-14, abs=0.0)


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
        (lambda: Simplex(-1.0), InfeasibleSet, "got -1.0"),
        (lambda: L1Ball(math.nan), InfeasibleSet, "got nan"),
        (lambda: PSDCone().project(torch.zeros(1, 2, 3)), ShapeError, r"\(2, 3\)"),
        (lambda: Obstacles(intervals=[(0, 2, 1.0, 1.0)]), SettingError, "low < high, got 1 and 1"),
        (lambda: Obstacles(intervals=[(2, 2, 0.0, 1.0)]), SettingError, "start < stop"),
        (lambda: Obstacles(intervals=[(0.5, 2, 0.0, 1.0)]), SettingError, "start < stop"),
        (lambda: Obstacles(intervals=[(0, 2, 0.0)]), SettingError, r"\(start, stop, low, high\)"),
        (lambda: Obstacles(intervals=[(0, 3, -INF, 1.0), (2, 5, 0.0, INF)]), InfeasibleSet, "steps 2 to 2"),
        (lambda: Obstacles(intervals=GATES, discs=CLUSTER), SettingError, "Product"),
        (lambda: Obstacles(discs=[([0.0, 0.0], -1.0)]), SettingError, "positive and finite, got -1"),
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
        (lambda: BoxHyperplane([0.0, 1.0, 2.0], 3.0, [1.0, 1.0], 0.0), ShapeError, "low has 3 entries"),
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
