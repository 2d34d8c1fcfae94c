"""Obstacles against brute force, fine grids and a nonlinear solver."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from casal.constraints import (
    Budget,
    Obstacles,
    Through,
    constraint_from_spec,
    geometry,
)
from casal.errors import SettingError, ShapeError

from .closed_form_cases import CLUSTER, GATES, INF, ramp
from .points import normal, one

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
    assert float(gates.violation(z)) == pytest.approx(max(0.1 / 0.6, 0.3 / 4.3, 0.3 / 1.6))


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


# ------------------------------------------------------------------ obstacles: some of the channels

IN_CHANNELS: list[tuple[Obstacles, Obstacles, Any, tuple[int, ...]]] = [
    (Obstacles(intervals=GATES), Obstacles(intervals=GATES, channels=2), 2, (9, 4)),
    (Obstacles(discs=CLUSTER), Obstacles(discs=CLUSTER, channels=(3, 1)), [3, 1], (5, 4)),
    (Obstacles(**SCENES["boxes"]), Obstacles(**SCENES["boxes"], channels=[0, 1]), [0, 1], (2, 3)),
    (
        Obstacles(discs=[([0.0] * 3, 1.0), ([0.5, 0.0, 0.0], 1.0)]),
        Obstacles(discs=[([0.0] * 3, 1.0), ([0.5, 0.0, 0.0], 1.0)], channels=(1, 2, 4)),
        [1, 2, 4],
        (2, 5),
    ),
]


@pytest.mark.parametrize(("alone", "among", "channels", "event"), IN_CHANNELS)
def test_channels_are_projected_as_if_they_were_alone(
    alone: Obstacles, among: Obstacles, channels: Any, event: tuple[int, ...]
) -> None:
    z = normal(40, *event, seed=20)
    seen = z[..., channels]
    expected = z.clone()
    expected[..., channels] = alone.project(seen)
    assert torch.equal(among.project(z), expected) and not torch.equal(expected, z)
    assert among.exact == alone.exact and among.smooth == alone.smooth
    assert torch.equal(among.violation(z), alone.violation(seen)) and float(among.violation(z).max()) > 0.1
    for ours, theirs in zip(among.excess(z), alone.excess(seen), strict=True):
        assert torch.equal(torch.as_tensor(ours), torch.as_tensor(theirs))
    assert among.component_name(event, 0) == alone.component_name((event[0],), 0)
    assert torch.equal(constraint_from_spec(json.dumps(among.spec())).project(z), expected)
    assert among.spec()["channels"] == channels and "channels" not in alone.spec()
    assert f"channels={channels}" in repr(among) and "channels" not in repr(alone)


@pytest.mark.parametrize(("alone", "among", "channels", "event"), IN_CHANNELS[:2])
def test_residuals_of_channels_have_no_slope_in_the_others(
    alone: Obstacles, among: Obstacles, channels: Any, event: tuple[int, ...]
) -> None:
    z = normal(3, *event, seed=21).requires_grad_()
    values = geometry.residual(among, z)
    assert torch.equal(values, geometry.residual(alone, z[..., channels]))
    (slope,) = torch.autograd.grad(values.clamp_min(0.0).square().sum(), z)
    assert bool(slope[..., channels].any())
    others = [c for c in range(event[1]) if c not in torch.as_tensor(channels).reshape(-1).tolist()]
    assert not bool(slope[..., others].any())


def test_channels_in_sets_made_of_sets() -> None:
    gate = Obstacles(intervals=[(0, 2, -1.0, 2.0)], channels=1)
    z = torch.tensor([[[0.0, 0.5], [0.0, 3.0]]], dtype=torch.float64)
    by = torch.tensor([[9.0, 1.0], [9.0, 2.0]], dtype=torch.float64)
    assert gate.shifted(by).project(z).tolist() == [[[0.0, 0.0], [0.0, 4.0]]]
    assert gate.scaled(4.0).project(z).tolist() == [[[0.0, -4.0], [0.0, 8.0]]]
    turn = torch.eye(4, dtype=torch.float64)[[1, 0, 3, 2]]  # each step with its channels exchanged
    turned = Obstacles(intervals=[(0, 2, -1.0, 2.0)], channels=0)
    through = Through(gate, turn, shape=(2, 2))
    assert torch.allclose(through.project(z), turned.project(z), rtol=0, atol=1e-12)
    assert float(through.violation(z.flip(2))) == float(gate.violation(z)) > 0


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: Obstacles(intervals=GATES, channels=[0]), SettingError, r"one channel, a number.*got \[0\]"),
        (lambda: Obstacles(discs=CLUSTER, channels=0), SettingError, "2 coordinates, so channels is a list of as many"),
        (lambda: Obstacles(discs=CLUSTER, channels=[0]), SettingError, r"2 different numbers, got \[0\]"),
        (lambda: Obstacles(discs=CLUSTER, channels=[1, 1]), SettingError, r"2 different numbers, got \[1, 1\]"),
        (lambda: Obstacles(intervals=GATES, channels=-1), SettingError, "channels must be a whole number >= 0, got -1"),
        (lambda: Obstacles(channels=[]), SettingError, "one or more different numbers"),
        (lambda: Obstacles(intervals=GATES, channels=2).project(torch.zeros(1, 9, 2)), ShapeError, "c > 2"),
        (lambda: Obstacles(intervals=GATES, channels=0).project(torch.zeros(1, 9)), ShapeError, r"got \(9,\)"),
        (lambda: Obstacles(intervals=GATES, channels=0).project(torch.zeros(1, 7, 2)), ShapeError, "step 7"),
        (lambda: Obstacles(discs=CLUSTER, channels=(0, 3)).project(torch.zeros(1, 4, 3)), ShapeError, "c > 3"),
    ],
)
def test_channels_are_checked(build: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build()
