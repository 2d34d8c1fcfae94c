"""Iterations over projections: nearest points against conic solvers, and flags where there is nothing to find."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import cvxpy
import numpy as np
import pytest
import scipy.optimize
import torch
from torch import Tensor

from casal.constraints import Affine, Ball, Box, Budget, Constraint, HalfSpace, MassEnergy, Projection, Sphere, Union
from casal.constraints.base import Rows
from casal.constraints.solvers import splitting
from casal.constraints.solvers.flat_sets import FlatSet
from casal.constraints.solvers.splitting import (
    FEW,
    Members,
    Quadratic,
    admm,
    alternating,
    dykstra,
    dykstra_anywhere,
    on_box,
    separate,
)

from ..points import normal

Search = Callable[..., Projection]


def uniform(*shape: int, seed: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def over(members: list[Constraint]) -> Members:
    """What an iteration needs of its members."""
    return Members(
        [m._project for m in members],
        lambda z: torch.stack([m._violation(z) for m in members]).amax(0),
        each=[m._violation for m in members],
    )


def conic(
    z: np.ndarray, build: Callable[[cvxpy.Variable], list[cvxpy.Constraint]], tolerance: float = 1e-11
) -> np.ndarray:
    x = cvxpy.Variable(len(z))
    cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(x - z)), build(x)).solve(
        solver=cvxpy.CLARABEL, tol_gap_abs=tolerance, tol_gap_rel=tolerance, tol_feas=tolerance
    )
    return np.asarray(x.value)


# ------------------------------------------------------------------ Dykstra

D = 5
A_ROW, HALF = normal(1, D, seed=1), normal(D, seed=2)
ROWS = normal(2, D, seed=3)
CENTER = 0.3 * normal(D, seed=4)

INTERSECTIONS: dict[str, tuple[list[Constraint], Callable[[cvxpy.Variable], list[cvxpy.Constraint]]]] = {
    "box-half-space": (
        [Box(-0.5, 1.0), HalfSpace(HALF, -0.4)],
        lambda x: [x >= -0.5, x <= 1.0, HALF.numpy() @ x <= -0.4],
    ),
    "ball-half-space": (
        [Ball(1.0, CENTER), HalfSpace(HALF, -0.2)],
        lambda x: [cvxpy.norm(x - CENTER.numpy()) <= 1.0, HALF.numpy() @ x <= -0.2],
    ),
    "ball-affine": (
        [Ball(1.2, CENTER), Affine(A_ROW, 0.5)],
        lambda x: [cvxpy.norm(x - CENTER.numpy()) <= 1.2, A_ROW.numpy() @ x == 0.5],
    ),
    "box-affine": (
        [Affine(ROWS, [0.3, -0.2]), Box(-0.4, 0.6)],
        lambda x: [ROWS.numpy() @ x == np.array([0.3, -0.2]), x >= -0.4, x <= 0.6],
    ),
    "box-ball-half-space-affine": (
        [Box(-0.5, 0.8), Ball(1.0), HalfSpace(HALF, 0.1), Affine(A_ROW, 0.2)],
        lambda x: [
            x >= -0.5,
            x <= 0.8,
            cvxpy.norm(x) <= 1.0,
            HALF.numpy() @ x <= 0.1,
            A_ROW.numpy() @ x == 0.2,
        ],
    ),
}


@pytest.mark.parametrize("name", INTERSECTIONS)
def test_dykstra_finds_the_nearest_point(name: str) -> None:
    members, build = INTERSECTIONS[name]
    z = 2.0 * normal(12, D, seed=5)
    found = dykstra(z, over(members), Budget(1e-12, 5000))
    assert bool(found.converged.all()) and float(found.residual.max()) <= 1e-12
    assert float(over(members).violation(found.point).max()) <= 1e-12
    for point, start in zip(found.point.numpy(), z.numpy(), strict=True):
        normals = np.stack(active_normals(members, point), axis=1)
        assert scipy.optimize.nnls(normals, start - point)[1] <= 1e-9
    curved = any(isinstance(member, Ball) for member in members)
    for point, start in zip(found.point[:6].numpy(), z[:6].numpy(), strict=True):
        # Second-order cones cost the interior point method half its digits.
        expected = conic(start, build, 1e-9 if curved else 1e-11)
        np.testing.assert_allclose(point, expected, rtol=0, atol=5e-5 if curved else 1e-7)


def active_normals(members: list[Constraint], x: np.ndarray) -> list[np.ndarray]:
    """Outward normals at x, from the definitions: x is the foot of x + any combination with weights >= 0."""
    normals: list[np.ndarray] = []
    for member in members:
        if isinstance(member, Ball):
            offset = x - (0.0 if member.center is None else member.center.numpy())
            if np.linalg.norm(offset) > member.radius - 1e-8:
                normals.append(offset)
        elif isinstance(member, HalfSpace):
            if member.a.numpy() @ x > member.b - 1e-8:
                normals.append(member.a.numpy())
        elif isinstance(member, Affine):
            normals += [sign * row for row in member.A.numpy() for sign in (1.0, -1.0)]
        elif isinstance(member, Box):
            for i, axis in enumerate(np.eye(len(x))):
                if x[i] > float(member.high) - 1e-8:
                    normals.append(axis)
                if x[i] < float(member.low) + 1e-8:
                    normals.append(-axis)
    return normals or [np.zeros_like(x)]


def test_dykstra_agrees_with_the_active_set_to_ten_digits() -> None:
    members: list[Constraint] = [Box(-0.5, 1.0), HalfSpace(HALF, -0.4), Affine(A_ROW, 0.2)]
    G = torch.cat([torch.eye(D, dtype=torch.float64), (HALF / HALF.norm())[None], A_ROW / A_ROW.norm()])
    low = torch.cat([torch.full((D,), -0.5), torch.tensor([-torch.inf]), 0.2 / A_ROW.norm()[None]])
    high = torch.cat([torch.full((D,), 1.0), -0.4 / HALF.norm()[None], 0.2 / A_ROW.norm()[None]])
    z = 2.0 * normal(50, D, seed=6)
    found = dykstra(z, over(members), Budget(1e-14, 5000))
    exact = FlatSet(Rows.of(G, low.to(z), high.to(z))).nearest(z, Budget())
    assert bool(exact.converged.all())
    assert float((found.point - exact.point).abs().max()) <= 1e-10


def test_alternating_projections_are_feasible_but_not_nearest() -> None:
    """What the increments of Dykstra are for: without them this corner is missed by a fifth."""
    members: list[Constraint] = [HalfSpace([1.0, 0.0], 0.0), HalfSpace([1.0, 1.0], 0.0)]
    z = torch.tensor([[2.0, 0.5]], dtype=torch.float64)
    plain = alternating(z, over(members), Budget())
    exact = dykstra(z, over(members), Budget())
    assert bool(plain.converged[0]) and bool(exact.converged[0])
    assert exact.point[0].tolist() == pytest.approx([0.0, 0.0], abs=1e-10)
    assert plain.point[0].tolist() == pytest.approx([-0.25, 0.25], abs=1e-12)


def test_an_empty_intersection_flags_every_chain_with_its_best_residual() -> None:
    members: list[Constraint] = [Ball(1.0), HalfSpace([-1.0, 0.0], -3.0)]
    violation = over(members).violation
    z = 2.0 * normal(6, 2, seed=7)
    for search in (dykstra, alternating):
        found = search(z, over(members), Budget(1e-12, 200))
        assert not bool(found.converged.any())
        assert found.iterations.tolist() == [200] * 6
        assert bool((found.residual >= violation(found.point) - 1e-15).all())
        assert search is dykstra or bool((violation(found.point) <= violation(z)).all())
    # From far away all sweeps end at (3, 0): in the half-plane, and two radii outside the ball.
    found = alternating(z + 50.0, over(members), Budget(1e-12, 200))
    assert found.residual.tolist() == pytest.approx([2.0] * 6)
    assert torch.allclose(found.point, torch.tensor([3.0, 0.0], dtype=torch.float64).expand(6, 2), atol=1e-6)


def test_only_the_hard_chain_is_flagged() -> None:
    """Two half-spaces that meet at 0.01 rad: one chain has to go all the way to the corner."""
    wedge: list[Constraint] = [HalfSpace([0.0, 1.0], 0.0), HalfSpace([-0.01, -1.0], 0.0)]
    z = torch.tensor([[1.0, -0.001], [3.0, 0.0], [-1.0, 0.5], [0.5, 2.0]], dtype=torch.float64)
    found = dykstra(z, over(wedge), Budget(1e-12, 30))
    assert found.converged.tolist() == [True, True, False, True]
    assert found.iterations[2] == 30 and bool((found.iterations[[0, 1, 3]] < 30).all())
    assert float(found.residual[2]) > 1e-12


@pytest.mark.parametrize("search", [dykstra, alternating, dykstra_anywhere, admm])
def test_a_small_budget_gives_a_loose_point_and_says_so(search: Search) -> None:
    members: list[Constraint] = [Affine([[0.0, 1.0, 0.0]], 0.5), Affine([[0.3, 1.0, 0.2]], 0.2)]
    z = 3.0 * normal(20, 3, seed=8)
    loose = search(z, over(members), Budget(1e-12, 3))
    tight = search(z, over(members), Budget(1e-12, 3000))
    assert not bool(loose.converged.any()) and loose.iterations.tolist() == [3] * 20
    assert bool(tight.converged.all()) and bool((tight.iterations > 3).all())
    assert bool((loose.residual > tight.residual).all())
    tolerant = search(z, over(members), Budget(1e-3, 3000))
    assert bool(tolerant.converged.all()) and bool((tolerant.iterations < tight.iterations).all())


@pytest.mark.parametrize("search", [dykstra, alternating, dykstra_anywhere, admm])
def test_chains_that_are_done_are_left_alone(search: Search) -> None:
    """The members see only the chains that still work, and every chain ends as if it were alone."""
    members, _ = INTERSECTIONS["ball-half-space"]
    projections, violation = over(members)[:2]
    sizes: list[int] = []

    def watched(z: Tensor) -> Tensor:
        sizes.append(len(z))
        return projections[0](z)

    inner = CENTER - 0.8 * HALF / HALF.norm()
    z = torch.cat([inner + 0.01 * normal(3, D, seed=9), 5.0 * normal(9, D, seed=10)])
    together = search(z, Members([watched, projections[1]], violation), Budget())
    assert max(sizes) <= 9 and sizes == sorted(sizes, reverse=True)
    first_look = 9 if search is dykstra else 0
    assert sum(sizes) == int(together.iterations.sum()) + first_look
    assert together.iterations[:3].tolist() == [0, 0, 0] and torch.equal(together.point[:3], z[:3])
    for i in range(len(z)):
        alone = search(z[i : i + 1], over(members), Budget())
        assert torch.allclose(alone.point[0], together.point[i], rtol=0, atol=1e-12)
        assert bool(alone.converged[0]) == bool(together.converged[i])


@pytest.mark.parametrize("size", [1e6, 1e12, 1e150])
def test_dykstra_from_far_away_finds_the_nearest_point(size: float) -> None:
    members: list[Constraint] = [Ball(1.0, CENTER), HalfSpace(HALF, -0.2)]
    z = size * normal(10, D, seed=11)
    found = dykstra(z, over(members), Budget(1e-12, 3000))
    assert bool(found.converged.all())
    assert float(over(members).violation(found.point).max()) <= 1e-12
    for point, start in zip(found.point.numpy(), z.numpy(), strict=True):
        normals = np.stack(active_normals(members, point), axis=1)
        assert scipy.optimize.nnls(normals, (start - point) / size)[1] <= 1e-9


# ------------------------------------------------------------------ sets that are not convex


def test_mass_and_energy_by_alternating_projections() -> None:
    """Two sets that are met in closed form elsewhere, to ten digits."""
    mass, energy, size = 2.0, 9.0, 7
    members: list[Constraint] = [Affine(torch.ones(1, size), mass), Sphere(math.sqrt(energy))]
    z = 2.0 * normal(40, size, seed=12) + 0.5
    found = alternating(z, over(members), Budget(1e-15, 400))
    closed = MassEnergy(mass, energy).project(z)
    assert float((found.point - closed).abs().max()) <= 1e-10


# ------------------------------------------------------------------ ADMM

LINES: list[Constraint] = [Affine([[1.0, -2.0]], 0.0), Affine([[1.0, 1.0]], 3.0)]
AXIS: Constraint = Affine([[0.0, 1.0]], 0.0)


def test_admm_finds_the_point_where_two_lines_meet() -> None:
    z = 3.0 * normal(10, 2, seed=60)
    for members in (LINES, LINES[::-1]):
        found = admm(z, over(members), Budget())
        assert bool(found.converged.all())
        assert torch.allclose(found.point, torch.tensor([2.0, 1.0], dtype=torch.float64).expand(10, 2), atol=1e-10)


def test_admm_takes_the_steps_that_are_written_down() -> None:
    """Three iterations by hand, for a line and a circle."""
    line, circle = Affine([[0.0, 1.0]], 0.5), Sphere(1.0)
    start = torch.tensor([[2.0, 1.0]], dtype=torch.float64)
    z, w, points = start, torch.zeros_like(start), []
    for _ in range(3):
        x = torch.stack([(z - w)[:, 0], torch.full((1,), 0.5, dtype=torch.float64)], dim=1)
        z = (x + w) / (x + w).norm(dim=1, keepdim=True)
        w = w + x - z
        points.append(x)
    for count, x in enumerate(points, start=1):
        left = min(float(circle.violation(point)) for point in points[:count])
        found = admm(start, over([line, circle]), Budget(1e-12, count))
        assert float(found.residual) == pytest.approx(left, rel=1e-12)
        assert float(circle.violation(x)) > left or torch.allclose(found.point, x, atol=1e-14)


def test_admm_finds_the_points_where_a_line_meets_a_circle() -> None:
    z = 2.0 * normal(50, 2, seed=61)
    found = admm(z, over([Affine([[0.0, 1.0]], 0.5), Sphere(1.0)]), Budget(1e-12, 2000))
    assert bool(found.converged.all())
    meeting = torch.stack([math.sqrt(0.75) * z[:, 0].sign(), torch.full((50,), 0.5, dtype=torch.float64)], dim=1)
    assert torch.allclose(found.point, meeting, atol=1e-10)


def test_admm_finds_the_nearest_point_of_affine_sets() -> None:
    """The same as Dykstra's algorithm and least squares, with two sets and with four."""
    G, level = normal(4, 9, seed=62), normal(4, seed=63)
    z = 2.0 * normal(8, 9, seed=64)
    expected = z - (z @ G.T - level) @ torch.linalg.pinv(G).T
    for cuts in ((2, 2), (1, 1, 1, 1)):
        members: list[Constraint] = [Affine(rows, b) for rows, b in zip(G.split(cuts), level.split(cuts), strict=True)]
        found = admm(z, over(members), Budget(1e-13, 20_000))
        assert bool(found.converged.all())
        assert torch.allclose(found.point, expected, atol=1e-9)
        assert torch.allclose(dykstra(z, over(members), Budget(1e-13, 20_000)).point, expected, atol=1e-9)


def test_admm_agrees_with_dykstra_and_a_quadratic_programme_on_a_single_point() -> None:
    """x + y >= 2 touches the unit square in one corner."""
    members: list[Constraint] = [Box(0.0, 1.0), HalfSpace([-1.0, -1.0], -2.0)]
    z = 2.0 * normal(10, 2, seed=65)
    rows = Rows.of(
        torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5**0.5, 0.5**0.5]], dtype=torch.float64),
        torch.tensor([0.0, 0.0, 2.0**0.5], dtype=torch.float64),
        torch.tensor([1.0, 1.0, torch.inf], dtype=torch.float64),
    )
    for point in (
        admm(z, over(members), Budget(1e-10, 5000)).point,
        dykstra(z, over(members), Budget(1e-10, 5000)).point,
        FlatSet(rows).nearest(z, Budget()).point,
    ):
        assert torch.allclose(point, torch.ones_like(z), atol=1e-8)


def test_admm_leaves_a_point_where_alternating_projections_are_stuck() -> None:
    """Two points, one of them on the axis: the multiplier grows until the other one is left."""
    points = Union(Box([0.0, 1.0], [0.0, 1.0]), Box([3.0, 0.0], [3.0, 0.0]))
    z = torch.tensor([[0.2, 5.0]], dtype=torch.float64)
    stuck = alternating(z, over([points, AXIS]), Budget(1e-12, 500))
    assert not bool(stuck.converged) and float(stuck.residual) == 1.0
    found = admm(z, over([AXIS, points]), Budget(1e-12, 500))
    assert bool(found.converged) and found.point.tolist() == [[3.0, 0.0]]


@pytest.mark.parametrize(
    "members", [[Ball(1.0), HalfSpace([-1.0, 0.0], -3.0)], [AXIS, Ball(1.0, [0.0, 3.0]), Ball(1.0)]]
)
def test_the_point_of_admm_is_in_the_first_set_whatever_happens(members: list[Constraint]) -> None:
    """Also where the start misses the sets by less: these have no common point."""
    z = torch.cat([2.0 * normal(5, 2, seed=66), torch.tensor([[2.0, 0.0], [0.0, 1.001]], dtype=torch.float64)])
    for count in (1, 7, 100):
        found = admm(z, over(members), Budget(1e-12, count))
        assert not bool(found.converged.any()) and found.iterations.tolist() == [count] * 7
        assert float(members[0].violation(found.point).max()) <= 1e-15
        assert torch.equal(found.residual, over(members).violation(found.point))


def test_sweeps_with_increments_end_where_dykstra_ends_on_affine_sets() -> None:
    """There the increments do not change the path, so the first common point is the nearest one."""
    found = dykstra_anywhere(3.0 * normal(10, 2, seed=70), over(LINES), Budget())
    assert bool(found.converged.all())
    assert torch.allclose(found.point, torch.tensor([2.0, 1.0], dtype=torch.float64).expand(10, 2), atol=1e-10)


def test_a_start_of_one_member_alone_is_not_the_answer() -> None:
    found = admm(torch.tensor([[3.0, 1.0]], dtype=torch.float64), over(LINES), Budget(1e-12, 0))
    assert not bool(found.converged) and float(found.residual) == math.inf


@pytest.mark.parametrize("search", [alternating, dykstra_anywhere, admm])
def test_chains_do_not_depend_on_how_many_are_moved_at_a_time(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    members: list[Constraint] = [Affine([[0.0, 1.0]], 0.5), Sphere(1.0)]
    z = 2.0 * normal(23, 2, seed=67)
    together = search(z, over(members), Budget(1e-12, 50))
    monkeypatch.setattr(splitting, "AT_ONCE", 10)
    for whole, parts in zip(together, search(z, over(members), Budget(1e-12, 50)), strict=True):
        assert torch.equal(whole, parts)


@pytest.mark.parametrize("search", [dykstra, alternating, dykstra_anywhere, admm])
def test_no_chains_are_no_work(search: Search) -> None:
    found = search(torch.zeros(0, 2, dtype=torch.float64), over(LINES), Budget())
    assert found.point.shape == (0, 2) and found.converged.shape == found.residual.shape == (0,)


@pytest.mark.parametrize("search", [alternating, dykstra_anywhere, admm])
def test_members_keep_their_parameters_when_chains_leave(search: Search) -> None:
    """Circles of different radii, each met by the line: what chain i finds is where its own circle meets it."""
    radius = 0.6 + 0.1 * torch.arange(12, dtype=torch.float64)

    def circles(which: Tensor) -> Members:
        mine = radius[which]
        line = Affine([[0.0, 1.0]], 0.5)

        def onto(y: Tensor) -> Tensor:
            return mine[:, None] * y / y.norm(dim=1, keepdim=True)

        def violation(y: Tensor) -> Tensor:
            return torch.maximum((y.norm(dim=1) - mine).abs(), (y[:, 1] - 0.5).abs())

        return Members([line._project, onto], violation, lambda index: circles(which[index]))

    z = torch.tensor([1.5, 0.2], dtype=torch.float64).repeat(12, 1)
    found = search(z, circles(torch.arange(12)), Budget(1e-12, 5000))
    assert bool(found.converged.all()) and len(set(found.iterations.tolist())) > 3
    assert torch.allclose(found.point[:, 0], (radius**2 - 0.25).sqrt(), atol=1e-9)


def test_projections_start_from_their_last_answers() -> None:
    seen: list[tuple[Tensor, Tensor | None]] = []

    def near(y: Tensor, guess: Tensor | None) -> Tensor:
        answer = LINES[0].project(y)
        seen.append((answer, guess))
        return answer

    plain = over(LINES)
    members = plain._replace(near=[near, lambda y, guess: LINES[1].project(y)])
    z, warm = normal(1, 2, seed=68), normal(1, 2, seed=69)
    found = admm(z, members, Budget(1e-12, 20), warm)
    assert torch.equal(found.point, admm(z, plain, Budget(1e-12, 20)).point)
    assert seen[0][1] is warm
    for (before, _), (_, guess) in pairwise(seen):
        assert guess is before


# ------------------------------------------------------------------ accelerated gradients


@pytest.mark.parametrize("count", [1, 3, FEW])
def test_a_few_accelerated_gradients_are_those_that_are_written_down(count: int) -> None:
    H = torch.diag(torch.tensor([0.5, 1.0, 4.0], dtype=torch.float64))
    f, start = 2.0 * normal(6, 3, seed=52), 0.2 * normal(6, 3, seed=53)
    limit = torch.tensor([0.3, torch.inf, 0.4], dtype=torch.float64)
    beta = (math.sqrt(8.0) - 1.0) / (math.sqrt(8.0) + 1.0)
    u = v = start.clamp(-limit, limit)
    for _ in range(count):
        last, new = v, (v - (v @ H - f) / 4.0).clamp(-limit, limit)
        u, v = new, new + beta * (new - u)
    found = on_box(f, Quadratic.of(H), limit, Budget(1e-14, count), size=torch.ones(6).double(), start=start)
    assert torch.allclose(found.point, u, rtol=0, atol=1e-14) and found.iterations.tolist() == [count] * 6
    assert torch.allclose(found.residual, 2.0 * (u - last).norm(dim=1), rtol=0, atol=1e-14)


def test_accelerated_gradients_on_a_box_agree_with_least_squares() -> None:
    matrix = normal(12, 8, seed=50)
    H = matrix.T @ matrix / 12 + 0.5 * torch.eye(8, dtype=torch.float64)
    quadratic = Quadratic.of(H)
    f = 2.0 * normal(10, 8, seed=51)
    limit = torch.tensor([0.3, 0.5, torch.inf, 1.0, 0.1, 0.7, 0.2, torch.inf], dtype=torch.float64)
    size = torch.ones(10, dtype=torch.float64)
    found = on_box(f, quadratic, limit, Budget(1e-14, 2000), size=size)
    assert bool(found.converged.all())
    root = torch.linalg.cholesky(H).T.numpy()
    for i in range(10):
        target = np.linalg.solve(root.T, f[i].numpy())
        answer = scipy.optimize.lsq_linear(root, target, bounds=(-limit.numpy(), limit.numpy()), tol=1e-14)
        np.testing.assert_allclose(found.point[i].numpy(), answer.x, rtol=0, atol=1e-8)
    warm = on_box(f, quadratic, limit, Budget(1e-14, 2000), size=size, start=found.point)
    assert int(warm.iterations.max()) <= 2
    loose = on_box(f, quadratic, limit, Budget(1e-14, 3), size=size)
    assert not bool(loose.converged.any()) and loose.iterations.tolist() == [3] * 10


def test_separation_is_the_distance_of_convex_sets_and_a_bound_that_holds() -> None:
    z = 5.0 * torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    center = torch.tensor([3.0, 0.0, 0.0], dtype=torch.float64)
    found = separate(z, over([Ball(1.0), Ball(0.5, center)]), 1000)
    assert bool(found.proved.all())
    torch.testing.assert_close(found.gap, torch.full_like(found.gap, 1.5), rtol=1e-5, atol=0)
    # Sets that meet: the bound at a point never exceeds its distance to a common point.
    meeting = [Ball(1.0), Ball(2.5, center)]
    common = torch.tensor([0.8, 0.0, 0.0], dtype=torch.float64)
    assert bool((separate(z, over(meeting), 1).clear <= torch.linalg.vector_norm(z - common, dim=1)).all())
    assert not bool(separate(z, over(meeting), 1000).proved.any())
