"""Sets made of sets, against independent solvers."""

from __future__ import annotations

import json
from collections.abc import Callable

import cvxpy
import numpy as np
import pytest
import scipy.optimize
import torch
from torch import Tensor

import casal
from casal.constraints import (
    Affine,
    Ball,
    Box,
    Constraint,
    HalfSpace,
    Implicit,
    Intersection,
    MassEnergy,
    Product,
    Simplex,
    Sphere,
    Union,
    constraint_from_spec,
    geometry,
)
from casal.errors import SettingError, ShapeError

from .small_sets import BALL, BOX, ONES, POINTS, RNG, SIZE, SKEW, SPHERE, SUM, TALL, TILT, TURN, WALLED, WALLS, WIDE

Rules = Callable[[cvxpy.Variable], list[cvxpy.Constraint]]

CONVEX: dict[str, tuple[Constraint, str, Rules]] = {
    "equations & equations": (SUM & SKEW, "closed form", lambda x: [ONES @ x == 0.5, TILT @ x == 0.2]),
    "equation & ball": (SUM & BALL, "closed form", lambda x: [ONES @ x == 0.5, cvxpy.norm(x) <= 1.5]),
    "equation & bounds": (SUM & BOX, "closed form", lambda x: [ONES @ x == 0.5, x >= -0.5, x <= 1]),
    "bounds & bounds": (BOX & Box(-1.0, 0.25), "closed form", lambda x: [x >= -0.5, x <= 0.25]),
    "balls": (Ball(2.0) & BALL, "closed form", lambda x: [cvxpy.norm(x) <= 1.5]),
    "equations & bounds": (
        SUM & SKEW & BOX,
        "quadratic programme",
        lambda x: [ONES @ x == 0.5, TILT @ x == 0.2, x >= -0.5, x <= 1],
    ),
    "half-spaces & polytope": (
        HalfSpace(TILT[0], 0.1) & HalfSpace(-ONES[0], 1.0) & WALLED,
        "quadratic programme",
        lambda x: [TILT @ x <= 0.1, -ONES @ x <= 1.0, WALLS.numpy() @ x <= 1],
    ),
    "ball & bounds": (BALL & BOX, "Dykstra", lambda x: [cvxpy.norm(x) <= 1.5, x >= -0.5, x <= 1]),
    "ball & half-space": (
        BALL & HalfSpace(TILT[0], -0.4),
        "closed form",
        lambda x: [cvxpy.norm(x) <= 1.5, TILT @ x <= -0.4],
    ),
    "two balls": (
        BALL & Ball(1.0, ONES[0]),
        "Dykstra",
        lambda x: [cvxpy.norm(x) <= 1.5, cvxpy.norm(x - np.ones(SIZE)) <= 1],
    ),
    "through a wide matrix": (
        BOX.through(WIDE),
        "as Polytope",
        lambda x: [WIDE.numpy() @ x >= -0.5, WIDE.numpy() @ x <= 1],
    ),
    "ball through a tall matrix": (BALL.through(TALL), "splitting", lambda x: [cvxpy.norm(TALL.numpy() @ x) <= 1.5]),
    "simplex through": (
        Simplex(1.0).through(WIDE),
        "quadratic programme",
        lambda x: [WIDE.numpy() @ x >= 0, cvxpy.sum(WIDE.numpy() @ x) == 1],
    ),
    "shifted": (BOX.shifted(ONES[0]), "shifted", lambda x: [x >= 0.5, x <= 2]),
    "scaled": (BALL.scaled(0.4), "scaled", lambda x: [cvxpy.norm(x) <= 0.6]),
    "blocks": (
        Product(Simplex(1.0), Ball(0.5), sizes=(2, 2)),
        "block by block",
        lambda x: [x[:2] >= 0, cvxpy.sum(x[:2]) == 1, cvxpy.norm(x[2:]) <= 0.5],
    ),
}


# Asked for more digits than it can vouch for, the solver warns; the comparison below is the judge.
@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize("name", CONVEX)
def test_convex_combinations_agree_with_a_conic_solver(name: str) -> None:
    constraint, way, rules = CONVEX[name]
    assert constraint.explain().startswith(way) or way in constraint.explain()
    found = constraint.solve(POINTS)
    assert bool(found.converged.all())
    assert float(constraint.violation(found.point).max()) <= 1e-12
    for z, ours in zip(POINTS[:8].numpy(), found.point[:8].numpy(), strict=True):
        x = cvxpy.Variable(SIZE)
        cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(x - z)), rules(x)).solve(
            solver=cvxpy.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10
        )
        np.testing.assert_allclose(ours, x.value, atol=5e-6)
        assert np.linalg.norm(ours - z) <= np.linalg.norm(x.value - z) + 1e-7


CURVED: dict[str, Constraint] = {
    "equation & sphere": SUM & SPHERE,
    "equations & sphere": SUM & SKEW & SPHERE,
    "sphere & half-space": SPHERE & HalfSpace(TILT[0], -0.3),
    "two spheres": SPHERE & Sphere(2.0, TILT[0]),
    "sphere & ball": SPHERE & Ball(1.0, 2.0 * ONES[0] / SIZE**0.5),
    "sphere through": SPHERE.through(TALL),
    "mass-energy & equation": MassEnergy(0.5, 4.0) & SKEW,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CURVED)
def test_curved_combinations_are_feasible_and_no_farther_than_slsqp_from_many_starts(name: str) -> None:
    constraint = CURVED[name]
    found = constraint.solve(POINTS)
    assert bool(found.converged.all()), constraint.explain()
    assert float(constraint.violation(found.point).max()) <= 1e-11

    def equations(x: np.ndarray) -> np.ndarray:
        return constraint.equations(torch.as_tensor(x)[None])[0].numpy()

    def inequalities(x: np.ndarray) -> np.ndarray:
        return -constraint.inequalities(torch.as_tensor(x)[None])[0].numpy()

    for z, ours in zip(POINTS[:6].numpy(), found.point[:6].numpy(), strict=True):
        best = np.inf
        for start in [ours + 0.3 * RNG.normal(size=SIZE) for _ in range(6)] + [z]:
            rules = [{"type": "eq", "fun": equations}, {"type": "ineq", "fun": inequalities}]
            answer = scipy.optimize.minimize(
                lambda x, z=z: 0.5 * ((x - z) ** 2).sum(),
                start,
                constraints=rules,
                options={"maxiter": 300, "ftol": 1e-14},
            )
            if answer.success and np.abs(equations(answer.x)).max(initial=0) < 1e-7:
                best = min(best, float(np.linalg.norm(answer.x - z)))
        assert np.linalg.norm(ours - z) <= best + 1e-5


def test_a_union_takes_the_nearest_member() -> None:
    union = SUM | SPHERE | BOX
    distance = torch.stack([(member.project(POINTS) - POINTS).norm(dim=1) for member in (SUM, SPHERE, BOX)])
    torch.testing.assert_close((union.project(POINTS) - POINTS).norm(dim=1), distance.amin(0))
    assert isinstance(union, Union) and len(union.members) == 3
    assert float(union.violation(SPHERE.project(POINTS)).max()) <= 1e-12


@pytest.mark.parametrize("name", [*CONVEX, *CURVED])
def test_specs_survive_json(name: str) -> None:
    constraint = CONVEX[name][0] if name in CONVEX else CURVED[name]
    again = constraint_from_spec(json.dumps(constraint.spec()))
    assert type(again) is type(constraint)
    assert torch.equal(again.project(POINTS), constraint.project(POINTS))
    assert torch.equal(again.violation(POINTS), constraint.violation(POINTS))


def test_members_are_flattened_and_checked() -> None:
    assert len((SUM & SKEW & BOX).members) == 3
    assert len(Intersection(SUM & SKEW, BOX & BALL).members) == 4
    with pytest.raises(SettingError, match="at least two"):
        Intersection(SUM)
    with pytest.raises(ShapeError, match="blocks"):
        Product(SPHERE, None, sizes=(2, 3)).project(POINTS)
    free = Product(Sphere(1.0), None, sizes=(2, 2)).project(POINTS)
    assert torch.equal(free[:, 2:], POINTS[:, 2:])


def test_penalty_works_on_smooth_combinations_and_names_what_does_not() -> None:
    target = casal.langevin(lambda x: x, steps=20, step_size=1e-3, init=POINTS)
    result = casal.sample(target, SPHERE & HalfSpace(TILT[0], 0.5), casal.Penalty(5.0), len(POINTS), seed=0)
    assert bool(torch.isfinite(result.samples).all())
    with pytest.raises(SettingError, match="no smooth residual"):
        casal.sample(target, SPHERE | BOX, casal.Penalty(1.0), len(POINTS), seed=0)


# ------------------------------------------------------------------ equations stay equations, inequalities inequalities


def radius(z: Tensor) -> Tensor:
    return z.square().sum(1, keepdim=True) - 4.0


def half(z: Tensor) -> Tensor:
    return z[:, :2] - 0.5


SHELL, WALL = Implicit(radius, half), Implicit(None, half, convex=True)
SHIFT = torch.linspace(-1.0, 1.0, SIZE, dtype=torch.float64)
MIXED: dict[str, tuple[Callable[[], Constraint], Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "shifted": (lambda: Implicit(radius, half).shifted(SHIFT), lambda z: radius(z - SHIFT), lambda z: half(z - SHIFT)),
    "scaled": (lambda: Implicit(radius, half).scaled(2.0), lambda z: radius(z / 2), lambda z: half(z / 2)),
    "through": (
        lambda: Implicit(None, half).through(TALL),
        lambda z: torch.zeros(len(z), 0, dtype=z.dtype),
        lambda z: half(z @ TALL.T),
    ),
    "through both": (
        lambda: Implicit(radius, half).through(TALL),
        lambda z: radius(z @ TALL.T),
        lambda z: half(z @ TALL.T),
    ),
    "product": (
        lambda: Product(Implicit(radius, half), None, Ball(1.5), sizes=(2, 1, 1)),
        lambda z: radius(z[:, :2]),
        lambda z: torch.cat([half(z[:, :2]), z[:, 3:].square() - 2.25], dim=1),
    ),
    "intersection": (
        lambda: HalfSpace(ONES[0], 0.2) & Implicit(radius, half) & Affine(TILT, 0.3),
        lambda z: torch.cat([(z @ TILT.T - 0.3) / TILT.norm(), radius(z)], dim=1),
        lambda z: torch.cat([(z.sum(1, keepdim=True) - 0.2) / 2.0, half(z)], dim=1),
    ),
    "ball through a shift": (
        lambda: BALL.shifted(SHIFT).through(TURN),
        lambda z: torch.zeros(len(z), 0, dtype=z.dtype),
        lambda z: (z @ TURN.T - SHIFT).square().sum(1, keepdim=True) - 2.25,
    ),
}


@pytest.mark.parametrize("name", MIXED)
def test_sets_made_of_sets_keep_equations_and_inequalities_apart(name: str) -> None:
    build, equations, inequalities = MIXED[name]
    constraint = build()
    torch.testing.assert_close(constraint.equations(POINTS), equations(POINTS))
    torch.testing.assert_close(constraint.inequalities(POINTS), inequalities(POINTS))
    residual = geometry.residual(constraint, POINTS)
    assert torch.equal(residual, torch.cat([constraint.equations(POINTS), constraint.inequalities(POINTS)], dim=1))
    expected = torch.cat([equations(POINTS), inequalities(POINTS).clamp_min(0.0)], dim=1)
    torch.testing.assert_close(geometry.positive_part(constraint, residual), expected)
    assert constraint.smooth and constraint._count_equations() == equations(POINTS).shape[1]


@pytest.mark.parametrize("name", MIXED)
def test_penalty_pulls_by_the_inequalities_that_are_broken(name: str) -> None:
    """One step without noise and without a potential: x' = x - tau grad(weight/2 |h|^2 + weight/2 |g_+|^2)."""
    build, equations, inequalities = MIXED[name]
    weight, tau = 0.7, 1e-3
    target = casal.langevin(lambda x: torch.zeros_like(x), steps=1, step_size=tau, init=POINTS)
    ours = casal.sample(target, build(), casal.Penalty(weight), len(POINTS), seed=0).samples
    free = casal.sample(target, build(), casal.Unconstrained(), len(POINTS), seed=0).samples
    leaf = POINTS.clone().requires_grad_()
    cost = equations(leaf).square().sum() + inequalities(leaf).clamp_min(0.0).square().sum()
    (gradient,) = torch.autograd.grad(cost, leaf)
    share = (free - ours).flatten() @ gradient.flatten() / gradient.square().sum()
    torch.testing.assert_close(free - ours, share * gradient, rtol=0, atol=1e-12)
    assert float(share) > 0


def test_an_inequality_behind_a_matrix_leaves_points_inside_where_they_are() -> None:
    walled = Implicit(None, lambda z: z.square().sum(1, keepdim=True) - 4.0).through(TALL)
    inside = 0.1 * POINTS / (POINTS @ TALL.T).norm(dim=1, keepdim=True)
    torch.testing.assert_close(walled.project(inside), inside, rtol=0, atol=1e-14)
    assert float(walled.violation(walled.project(POINTS)).max()) <= 1e-11


def test_flat_sides_give_their_rows() -> None:
    for constraint in (SUM, HalfSpace(TILT[0], 0.1), BOX, WALLED, SUM & BOX, SUM & SKEW & BOX & WALLED):
        rows = constraint.linear((SIZE,))
        assert rows is not None and constraint.flat_sided
        torch.testing.assert_close(rows.matrix.norm(dim=1), torch.ones(len(rows.matrix), dtype=torch.float64))
        value = constraint.project(POINTS) @ rows.matrix.T
        assert bool(((value >= rows.low - 1e-12) & (value <= rows.high + 1e-12)).all())
    for curved in (BALL, SPHERE, BALL & BOX):
        assert curved.linear((SIZE,)) is None and not curved.flat_sided
