"""Implicit sets against closed forms, scipy, quadrature, and their own promises."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

import casal
from casal.constraints import Budget, Constraint, Implicit, geometry
from casal.errors import ProjectionError, SettingError, ShapeError
from casal.methods import Problem
from casal.methods.coupling import choose_finish
from casal.methods.weighted import clean_score

from .implicit_cases import CENTER, ROWS, ball, ellipsoid, energy, low, mass_energy, rows, sphere, torus

Function = Callable[[Tensor], Tensor]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ------------------------------------------------------------------ a few more sets

POINTS = 32


def reaction_diffusion(z: Tensor) -> Tensor:
    """-u'' + u^3 - f on 32 interior points of (0, 1); both the field u and the source f are unknown."""
    u, f = z[:, :POINTS], z[:, POINTS:]
    padded = torch.nn.functional.pad(u, (1, 1))
    return (2 * u - padded[:, 2:] - padded[:, :-2]) * (POINTS + 1) ** 2 + u**3 - f


def diffusion(z: Tensor) -> Tensor:
    """-(e^k u')' - 1 on 31 interior points; both the field u and the logarithm k of the coefficient are unknown."""
    u, k = z[:, : POINTS - 1], z[:, POINTS - 1 :]
    flux = torch.exp(k) * torch.nn.functional.pad(u, (1, 1)).diff(dim=1) * POINTS
    return -flux.diff(dim=1) * POINTS - 1.0


def curved_walls(z: Tensor) -> Tensor:
    """Four inequalities, not convex."""
    x, y, w = z[:, 0], z[:, 1], z[:, 2]
    return torch.stack([z.square().sum(1) - 4, x**2 - y, w - x * y, (x - 1) ** 2 + y**2 - 2], dim=1)


def walls(z: Tensor) -> Tensor:
    """z_3 <= 0.2 and z_1 z_2 <= 1."""
    return torch.stack([z[:, 2] - 0.2, z[:, 0] * z[:, 1] - 1.0], dim=1)


def sine(z: Tensor) -> Tensor:
    """The graph z_2 = sin z_1."""
    return z[:, 1:] - torch.sin(z[:, :1])


SMOOTH: list[Any] = [
    pytest.param(torus, (3,), id="torus"),
    pytest.param(ellipsoid, (4,), id="ellipsoid"),
    pytest.param(energy, (2, 3), id="energy"),
    pytest.param(mass_energy, (7,), id="mass-energy"),
    pytest.param(sine, (2,), id="sine"),
    pytest.param(reaction_diffusion, (2 * POINTS,), id="reaction-diffusion"),
    pytest.param(diffusion, (2 * POINTS - 1,), id="diffusion"),
]


def beside(constraint: Constraint, event: tuple[int, ...], count: int, reach: float) -> Tensor:
    """Points at up to ``reach`` from the set."""
    found = constraint.solve(0.7 * normal(count, *event))
    on = found.point[found.converged]
    assert len(on) >= 0.9 * count
    offset = normal(len(on), *event, seed=1)
    length = torch.linalg.vector_norm(offset.flatten(1), dim=1).reshape(-1, *[1] * len(event))
    share = torch.rand(length.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return on + reach * share * offset / length


def tangential(fn: Function, z: Tensor, y: Tensor) -> Tensor:
    """Share of y - z that is not a combination of the gradients of fn at z; an independent Jacobian."""
    jacobian = torch.func.vmap(torch.func.jacrev(lambda point: fn(point[None])[0]))(z).flatten(2)
    offset = (y - z).flatten(1)
    scaled = jacobian / torch.linalg.vector_norm(jacobian, dim=2, keepdim=True)
    basis = torch.linalg.qr(scaled.mT).Q
    slide = offset - (basis @ (basis.mT @ offset[:, :, None])).squeeze(2)
    return torch.linalg.vector_norm(slide, dim=1) / torch.linalg.vector_norm(offset, dim=1)


# ------------------------------------------------------------------ convergence


@pytest.mark.parametrize(("fn", "event"), SMOOTH)
def test_ten_steps_from_near_the_set_are_enough(fn: Function, event: tuple[int, ...]) -> None:
    constraint = Implicit(fn)
    y = beside(constraint, event, 200, 0.3)
    found = constraint.solve(y, budget=Budget(1e-10, 10))
    assert bool(found.converged.all()) and int(found.iterations.max()) <= 10
    assert float(fn(found.point).abs().max()) <= 1e-10
    assert float(tangential(fn, found.point, y).max()) <= 1e-8


@pytest.mark.parametrize(("fn", "event"), SMOOTH[:-1])
def test_the_default_budget_goes_down_to_rounding(fn: Function, event: tuple[int, ...]) -> None:
    constraint = Implicit(fn)
    y = 1.5 * normal(300, *event, seed=3)
    found = constraint.solve(y)
    assert bool(found.converged.all()) and int(found.iterations.max()) <= 60
    assert float(constraint.violation(found.point).max()) <= 1e-14
    assert torch.equal(found.residual, constraint.violation(found.point))
    assert float(tangential(fn, found.point, y).max()) <= 1e-10
    assert torch.equal(constraint.project(found.point), found.point)
    assert int(constraint.solve(found.point).iterations.max()) == 0


def test_a_loose_budget_returns_the_point_it_reached_and_says_so() -> None:
    constraint = Implicit(ellipsoid)
    y = 3.0 * normal(50, 4)
    rough = constraint.solve(y, budget=Budget(1e-2, 1000))
    assert bool(rough.converged.all()) and float(constraint.violation(rough.point).max()) <= 1e-2
    assert float(rough.iterations.double().mean()) <= float(constraint.solve(y).iterations.double().mean()) - 1
    cut = constraint.solve(y, budget=Budget(1e-12, 2))
    assert not bool(cut.converged.any()) and bool((cut.iterations == 2).all())
    torch.testing.assert_close(cut.residual, constraint.violation(cut.point), rtol=1e-13, atol=1e-15)
    assert float(cut.residual.min()) > 1e-12
    untouched = constraint.solve(y, budget=Budget(1e-12, 0))
    assert torch.equal(untouched.point, y) and not bool(untouched.converged.any())


@pytest.mark.parametrize("fn", [ellipsoid, torus], ids=["ellipsoid", "torus"])
def test_a_warm_start_saves_steps_on_a_path(fn: Function) -> None:
    constraint, size = Implicit(fn), {ellipsoid: 4, torus: 3}[fn]
    y, drift = 1.2 * normal(40, size), 0.02 * normal(40, size, seed=4)
    z, cold_steps, warm_steps = constraint.project(y), 0, 0
    for _ in range(5):
        y = y + drift
        cold, warm = constraint.solve(y), constraint.solve(y, warm=z)
        near = torch.linalg.vector_norm(cold.point - warm.point, dim=1) < 1e-9
        assert float(near.double().mean()) > 0.9  # else another local minimum, which is no farther
        assert bool(warm.converged.all())
        cold_steps, warm_steps, z = (
            cold_steps + int(cold.iterations.sum()),
            warm_steps + int(warm.iterations.sum()),
            warm.point,
        )
    assert warm_steps < 0.75 * cold_steps


def test_a_useless_warm_start_is_not_used() -> None:
    constraint = Implicit(lambda z: torch.log(z[:, :1]) + z[:, 1:] ** 2)
    y = normal(6, 2).abs() + 0.5
    warm = torch.full_like(y, -1.0)
    warm[3] = torch.nan
    assert torch.equal(constraint.project(y, warm=warm), constraint.project(y))


# ------------------------------------------------------------------ the nearest point, from elsewhere


def slsqp(fn: Function | None, inequality: Function | None, y: Tensor, starts: int) -> Tensor:
    """The nearest point that scipy finds from many starts, started anew from its own answer."""
    y0, random = y.flatten().numpy(), np.random.default_rng(0)

    def constraint(kind: str, rows: Function, sign: float) -> dict[str, Any]:
        def one(v: Tensor) -> Tensor:
            return sign * rows(v.reshape(1, *y.shape))[0]

        jacobian = torch.func.jacrev(one)
        return {
            "type": kind,
            "fun": lambda v: one(torch.from_numpy(v)).numpy(),
            "jac": lambda v: jacobian(torch.from_numpy(v)).numpy(),
        }

    given = [constraint("eq", fn, 1.0)] if fn is not None else []
    given += [constraint("ineq", inequality, -1.0)] if inequality is not None else []
    best, least = None, np.inf
    for start in range(starts):
        v = y0 + (0.0 if start == 0 else 1.2) * random.standard_normal(y0.shape)
        for _ in range(2):
            answer = minimize(
                lambda v: 0.5 * ((v - y0) ** 2).sum(),
                v,
                jac=lambda v: v - y0,
                constraints=given,
                method="SLSQP",
                options={"ftol": 1e-16, "maxiter": 200},
            )
            v = answer.x
        off = max(
            float(np.abs(c["fun"](v)).max()) if c["type"] == "eq" else max(0.0, -float(c["fun"](v).min()))
            for c in given
        )
        if off < 1e-9 and answer.fun < least:
            best, least = v, answer.fun
    assert best is not None
    return torch.from_numpy(best).reshape(y.shape)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Values in x were outside bounds")
@pytest.mark.parametrize(
    ("fn", "inequality", "event"),
    [
        (torus, None, (3,)),
        (ellipsoid, None, (4,)),
        (energy, None, (2, 3)),
        (sphere, low, (3,)),
        (torus, walls, (3,)),
        (None, curved_walls, (3,)),
    ],
    ids=["torus", "ellipsoid", "energy", "sphere-cap", "torus-walls", "curved-walls"],
)
def test_no_point_of_scipy_is_nearer(fn: Function | None, inequality: Function | None, event: tuple[int, ...]) -> None:
    constraint = Implicit(fn, inequality, starts=6)
    y = 1.5 * normal(4, *event, seed=6)
    found = constraint.solve(y)
    assert bool(found.converged.all()) and float(constraint.violation(found.point).max()) <= 1e-12
    for mine, point in zip(found.point, y, strict=True):
        other = slsqp(fn, inequality, point, starts=4)
        distance, least = torch.linalg.vector_norm(mine - point), torch.linalg.vector_norm(other - point)
        assert float(distance) <= float(least) + 1e-9
        if float(distance) > float(least) - 1e-9:
            assert float((mine - other).abs().max()) <= 1e-6


def test_within_reach_one_start_is_enough_for_the_nearest_point() -> None:
    for fn, event in ((torus, (3,)), (ellipsoid, (4,))):
        y = beside(Implicit(fn), event, 4, 0.2)
        found = Implicit(fn).project(y)
        for mine, point in zip(found, y, strict=True):
            assert float((mine - slsqp(fn, None, point, starts=3)).abs().max()) <= 1e-6


@pytest.mark.slow
def test_more_starts_find_the_nearer_of_two_valleys() -> None:
    wave = Implicit(lambda z: z[:, 1:] - torch.cos(3.0 * z[:, :1]))
    y = torch.stack([torch.linspace(-3, 3, 8, dtype=torch.float64), torch.full((8,), -2.5, dtype=torch.float64)], 1)
    t = torch.linspace(-8, 8, 400_001, dtype=torch.float64)
    curve = torch.stack([t, torch.cos(3.0 * t)], dim=1)
    exact = torch.stack([torch.linalg.vector_norm(curve - point, dim=1).min() for point in y])
    once, often = (
        torch.linalg.vector_norm(Implicit(wave.fn, starts=starts).project(y) - y, dim=1) for starts in (1, 24)
    )
    assert bool((often <= once + 1e-12).all())
    assert float((often - exact).max()) < 1e-6 < float((once - exact).max())


# ------------------------------------------------------------------ closed forms


@pytest.mark.parametrize(
    ("implicit", "closed", "event"),
    [
        (Implicit(sphere), casal.Sphere(2.0, CENTER), (3,)),
        (Implicit(rows, convex=True), casal.Affine(ROWS, torch.tensor([1.0, -2.0])), (5,)),
        (Implicit(mass_energy), casal.MassEnergy(2.0, 9.0), (7,)),
        (Implicit(None, ball, convex=True), casal.Ball(1.5), (6,)),
        (Implicit(None, lambda z: z @ ROWS[:1].T - 1.0), casal.HalfSpace(ROWS[0], 1.0), (5,)),
        (Implicit(None, lambda z: torch.cat([z.flatten(1) - 1, -z.flatten(1) - 2], 1)), casal.Box(-2.0, 1.0), (2, 3)),
        (Implicit(lambda z: torch.cat([rows(z), 3 * rows(z)[:, :1]], 1)), casal.Affine(ROWS, [1.0, -2.0]), (5,)),
        (Implicit(lambda z: sphere(z) ** 3), casal.Sphere(2.0, CENTER), (3,)),
    ],
    ids=["sphere", "affine", "mass-energy", "ball", "half-space", "box", "redundant", "flat-rows"],
)
def test_equals_the_closed_form(implicit: Implicit, closed: Constraint, event: tuple[int, ...]) -> None:
    for size in (0.3, 1.0, 5.0, 1e3):
        y = size * normal(100, *event, seed=7)
        found = implicit.solve(y)
        assert bool(found.converged.all())
        assert float((found.point - closed.project(y)).abs().max()) <= 1e-10 * (1 + size)
        assert float(closed.violation(found.point).max()) <= 1e-12


# ------------------------------------------------------------------ starts that lead nowhere


def uphill(z: Tensor) -> Tensor:
    """A cubic with its only root at z_1 = -2.28, and a local minimum of 3 at z_1 = 1."""
    return z[:, :1] ** 3 - 3 * z[:, :1] + 5


def test_a_chain_that_cannot_get_there_is_flagged_and_only_that_chain() -> None:
    constraint = Implicit(uphill)
    y = torch.tensor([[-3.0, 1.0], [2.0, 0.0], [-2.0, 5.0], [1.0, 1.0], [-4.0, 0.0]], dtype=torch.float64)
    found = constraint.solve(y)
    assert found.converged.tolist() == [True, False, True, False, True]
    assert (constraint.violation(found.point) <= 1e-12).tolist() == found.converged.tolist()
    assert bool(torch.isfinite(found.point).all())
    assert int(found.iterations.max()) < 500
    alone = constraint.solve(y[[0, 2, 4]])
    assert torch.equal(alone.point, found.point[[0, 2, 4]])
    assert torch.equal(alone.iterations, found.iterations[[0, 2, 4]])


def test_an_empty_set_flags_every_chain() -> None:
    constraint = Implicit(lambda z: z.square().sum(1, keepdim=True) + 1.0)
    y = torch.cat([torch.zeros(1, 3, dtype=torch.float64), normal(5, 3)])
    found = constraint.solve(y)
    assert not bool(found.converged.any()) and float(found.residual.min()) > 0.5
    assert bool(torch.isfinite(found.point).all())
    contradiction = Implicit(lambda z: z[:, :1], lambda z: 1.0 - z[:, :1])
    assert not bool(contradiction.solve(y).converged.any())


def test_the_centre_of_a_sphere_goes_to_a_nearest_point() -> None:
    """Its gradient vanishes there; a fixed step aside breaks the tie, the same on every run."""
    constraint = Implicit(sphere)
    y = torch.stack([CENTER, CENTER + 1e-9, CENTER + 1.0])
    found = constraint.solve(y)
    assert bool(found.converged.all())
    assert float((torch.linalg.vector_norm(found.point - CENTER, dim=1) - 2.0).abs().max()) <= 1e-12
    assert torch.equal(constraint.project(y[:1]), found.point[:1])


def test_an_axis_of_symmetry_does_not_lead_to_the_farthest_point() -> None:
    ellipse = Implicit(lambda z: (z[:, :1] / 2) ** 2 + z[:, 1:] ** 2 - 1)
    foot = ellipse.project(torch.tensor([[0.5, 0.0]], dtype=torch.float64))[0]
    assert float(foot[0]) == pytest.approx(2 / 3, abs=1e-10)
    assert abs(float(foot[1])) == pytest.approx(math.sqrt(8 / 9), abs=1e-10)


def test_functions_that_are_not_finite_everywhere() -> None:
    constraint = Implicit(lambda z: torch.log(z[:, :1]) + z[:, 1:])
    y = torch.tensor([[1.0, 0.4], [-1.0, 0.0], [3.0, -2.0], [0.0, 1.0], [0.02, 3.0]], dtype=torch.float64)
    found = constraint.solve(y)
    assert found.converged.tolist() == [True, False, True, False, True]
    assert torch.equal(found.point[[1, 3]], y[[1, 3]])
    assert torch.isinf(constraint.violation(y)).tolist() == [False, True, False, True, False]
    assert torch.isinf(found.residual).tolist() == [False, True, False, True, False]
    with pytest.raises(ProjectionError, match="2 of 5"):
        constraint.project(torch.where(y == 3.0, torch.nan, y))


@pytest.mark.parametrize("size", [1e-300, 1e-12, 1e3, 1e12, 1e150])
def test_huge_and_tiny_points_arrive(size: float) -> None:
    for fn, event in ((sphere, (3,)), (ellipsoid, (4,)), (torus, (3,)), (energy, (2, 3)), (rows, (5,))):
        constraint = Implicit(fn)
        found = constraint.solve(size * normal(8, *event, seed=8))
        assert bool(found.converged.all())
        assert float(constraint.violation(found.point).max()) <= 1e-12


# ------------------------------------------------------------------ batches, dtypes, modes


@pytest.mark.slow
def test_chains_do_not_see_each_other() -> None:
    for constraint, event in (
        (Implicit(torus), (3,)),
        (Implicit(energy), (2, 3)),
        (Implicit(sphere, low), (3,)),
        (Implicit(torus, starts=3), (3,)),
    ):
        y = 1.5 * normal(60, *event, seed=9)
        whole, order = constraint.solve(y), torch.randperm(60, generator=torch.Generator().manual_seed(0))
        for pick in (order, torch.arange(17), torch.tensor([5])):
            part = constraint.solve(y[pick])
            assert float((part.point - whole.point[pick]).abs().max()) <= 1e-13
            assert torch.equal(part.converged, whole.converged[pick])


def test_large_batches_are_cut_into_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    constraint, y = Implicit(mass_energy), normal(50, 7)
    warm = constraint.project(y + 0.01)
    whole, warmed, violation = constraint.solve(y), constraint.solve(y, warm=warm), constraint.violation(y)
    tube = geometry.log_volume_factor(constraint, y, whole.point)
    monkeypatch.setattr("casal.constraints.implicit.TILE", 200)
    seen: list[int] = []

    def watched(z: Tensor) -> Tensor:
        seen.append(len(z))
        return mass_energy(z)

    cut = Implicit(watched)
    assert float((cut.project(y) - whole.point).abs().max()) <= 1e-14
    assert max(seen) <= 200 // 14
    assert torch.allclose(cut.violation(y), violation, rtol=1e-13)
    assert float((cut.project(y, warm=warm) - warmed.point).abs().max()) <= 1e-14
    again = geometry.log_volume_factor(cut, y, whole.point)
    assert tube is not None and again is not None and torch.allclose(again, tube, rtol=0, atol=1e-12)


def test_float32_goes_in_and_out() -> None:
    constraint, y = Implicit(ellipsoid), normal(20, 4).to(torch.float32)
    foot = constraint.project(y)
    assert foot.dtype == torch.float32
    assert torch.equal(foot, constraint.project(y.to(torch.float64)).to(torch.float32))
    assert constraint.violation(foot).dtype == torch.float64
    assert geometry.residual(Implicit(energy), y).dtype == torch.float32


def test_derivatives_are_taken_whatever_mode_the_caller_is_in() -> None:
    constraint, y = Implicit(sphere, low), normal(20, 3)
    expected, violation = constraint.project(y), constraint.violation(y)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert torch.equal(constraint.project(y), expected)
            assert torch.equal(constraint.violation(y), violation)
    leaf = y.clone().requires_grad_()
    assert not constraint.project(leaf).requires_grad


def test_an_empty_batch_and_a_single_coordinate() -> None:
    constraint = Implicit(lambda z: z**2 - 4.0)
    assert constraint.project(torch.zeros(0, 1)).shape == (0, 1)
    assert constraint.violation(torch.zeros(0, 1)).shape == (0,)
    foot = constraint.project(torch.tensor([[3.0], [-0.1], [2.0]], dtype=torch.float64))
    assert foot.flatten().tolist() == pytest.approx([2.0, -2.0, 2.0], abs=1e-14)


# ------------------------------------------------------------------ derivatives of all kinds


def test_a_jacobian_may_be_given() -> None:
    def jacobian(z: Tensor) -> Tensor:
        first = 2 * (z - CENTER)[:, None]
        return torch.cat([first, torch.eye(2, 3, dtype=z.dtype).expand(len(z), 2, 3)], dim=1)

    calls = 0

    def opaque(z: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return torch.from_numpy(sphere(z.detach()).numpy())

    y = 1.5 * normal(40, 3)
    given = Implicit(opaque, low, jacobian=jacobian).solve(y)
    assert bool(given.converged.all()) and calls > 0
    assert float((given.point - Implicit(sphere, low).project(y)).abs().max()) <= 1e-9
    with pytest.raises(ShapeError, match=r"jacobian returned \(40, 2\); it must return \(40, 1, 3\)"):
        Implicit(sphere, jacobian=lambda z: z[:, :2]).project(y)


class _Once(torch.autograd.Function):
    """A square that can be differentiated once."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        return z * z

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise RuntimeError("no second derivatives")
        (z,) = ctx.saved_tensors
        return 2 * z * gradients[0]


def test_functions_with_first_derivatives_only_are_enough() -> None:
    def fn(z: Tensor) -> Tensor:
        return torch.stack([_Once.apply(z).sum(1) - 9.0, z.sum(1) - 2.0], dim=1)

    y = normal(20, 7)
    found = Implicit(fn).solve(y)
    assert bool(found.converged.all()) and int(found.iterations.max()) <= 10
    assert float((found.point - casal.MassEnergy(2.0, 9.0).project(y)).abs().max()) <= 1e-10


def test_more_rows_than_coordinates() -> None:
    """A disc as the intersection of 40 half-planes, its vertices at distance 1 / cos(pi / 40)."""
    angle = 2 * math.pi * torch.arange(40, dtype=torch.float64) / 40
    normals = torch.stack([angle.cos(), angle.sin()], dim=1)
    polygon, same = Implicit(None, lambda z: z @ normals.T - 1.0), Implicit(None, lambda z: (z @ normals.T) ** 3 - 1.0)
    y = 3.0 * normal(50, 2)
    foot = polygon.solve(y)
    assert bool(foot.converged.all())
    reach = (foot.point @ normals.T).amax(1)
    outside = (y @ normals.T).amax(1) > 1
    assert float((reach[outside] - 1).abs().max()) <= 1e-12
    assert torch.equal(foot.point[~outside], y[~outside])
    assert float((same.project(y) - foot.point).abs().max()) <= 1e-8
    offset = (y - foot.point)[outside]
    vertices = torch.stack([normals, normals.roll(1, 0)], 1)
    corners = torch.linalg.solve(vertices, torch.ones(40, 2, 1, dtype=torch.float64)).squeeze(2)
    assert float(((corners @ offset.T) - (foot.point[outside] * offset).sum(1)).max()) <= 1e-10


# ------------------------------------------------------------------ violation, residual, messages


def test_violation_by_hand() -> None:
    z = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    circle = Implicit(lambda z: z.square().sum(1, keepdim=True) - 1.0)
    assert float(circle.violation(z)) == pytest.approx(24 / (24 + 2 * 25), rel=1e-13)
    assert float(Implicit(lambda z: 1e9 * circle.fn(z)).violation(z)) == pytest.approx(24 / 74, rel=1e-13)  # type: ignore[misc]
    assert float(circle.violation(torch.zeros(1, 2))) == 1.0
    assert float(Implicit(circle.fn, scale=2.0).violation(z)) == 12.0
    both = Implicit(lambda z: z[:, :1], lambda z: z - 1.0, scale=[1.0, 2.0, 4.0])
    assert float(both.violation(z)) == 3.0
    assert float(both.violation(torch.tensor([[0.0, 2.0]]))) == 0.25
    near = torch.tensor([[1.0 + 1e-9, 0.0]], dtype=torch.float64)
    assert float(circle.violation(near)) == pytest.approx(1e-9, rel=1e-6)


def test_projection_meets_the_unit_of_the_given_scale() -> None:
    y = normal(30, 4)
    for scale in (1e-3, 1.0, 1e6):
        constraint = Implicit(ellipsoid, scale=scale)
        found = constraint.solve(y)
        assert bool(found.converged.all()) and float(constraint.violation(found.point).max()) <= 1e-12


def test_flags_and_residuals_fit_the_rows() -> None:
    z = normal(5, 3)
    equation, both, wall = Implicit(sphere), Implicit(sphere, low), Implicit(None, low)
    assert equation.inequalities(z).shape == (5, 0) and wall.equations(z).shape == (5, 0)
    assert not equation.solid and not both.solid and wall.solid
    assert not equation.exact and not equation.convex and Implicit(None, ball, convex=True).convex
    values = geometry.residual(both, z)
    assert both._count_equations() == 1 and both.inequalities(z).shape == (5, 2)
    assert torch.equal(values, torch.cat([sphere(z), low(z)], dim=1))
    kept = geometry.positive_part(both, values)
    assert torch.equal(kept[:, :1], sphere(z)) and torch.equal(kept[:, 1:], low(z).clamp_min(0.0))
    assert repr(both) == "Implicit(sphere, inequality=low)"
    assert both.component_name((2,), 0) == "equation 0 of sphere"
    assert both.component_name((2,), 1) == "inequality 0 of low"
    named = Implicit(lambda z: z, lambda z: z[:, :1], names=["mass", "charge"])
    assert [named.component_name((2,), row) for row in range(3)] == ["mass", "charge", "inequality 0"]
    assert repr(named) == "Implicit(lambda, inequality=lambda)"
    assert "Newton" in both.explain() and "6 starts" in Implicit(sphere, starts=6).explain()


def test_mistakes_are_refused_with_the_way_out() -> None:
    z = normal(4, 3)
    with pytest.raises(SettingError, match="an equation fn, an inequality, or both"):
        Implicit(None)
    with pytest.raises(SettingError, match="fn must be a function"):
        Implicit(3.0)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="starts must be"):
        Implicit(sphere, starts=0)
    with pytest.raises(SettingError, match="scale must be finite and > 0, got -1"):
        Implicit(sphere, scale=-1.0)
    with pytest.raises(ShapeError, match=r"fn returned \(4,\) for 4 points.*h\[:, None\]"):
        Implicit(lambda z: z.sum(1)).project(z)
    with pytest.raises(ShapeError, match=r"inequality returned \(1, 3\)"):
        Implicit(sphere, lambda z: z[:1]).violation(z)
    with pytest.raises(ShapeError, match=r"scale has shape \(2,\) for 1 components"):
        Implicit(sphere, scale=[1.0, 2.0]).project(z)
    with pytest.raises(SettingError, match="holds functions"):
        Implicit(sphere).spec()


# ------------------------------------------------------------------ the volume factor of a tube


def test_the_tube_factor_of_spheres_is_that_of_the_closed_forms() -> None:
    for implicit, closed, size in (
        (Implicit(sphere), casal.Sphere(2.0, CENTER), 3),
        (Implicit(lambda z: torch.log(z.square().sum(1, keepdim=True))), casal.Sphere(1.0), 5),
        (Implicit(mass_energy), casal.MassEnergy(2.0, 9.0), 7),
        (Implicit(lambda z: torch.cat([mass_energy(z), -2 * mass_energy(z)], 1)), casal.MassEnergy(2.0, 9.0), 7),
        (Implicit(rows), casal.Affine(ROWS, torch.tensor([1.0, -2.0])), 5),
    ):
        x = 1.5 * normal(50, size, seed=10)
        z = closed.project(x)
        found, exact = geometry.log_volume_factor(implicit, x, z), geometry.log_volume_factor(closed, x, z)
        assert found is not None and exact is not None
        assert float((found - exact).abs().max()) <= 1e-10


def test_the_tube_factor_of_an_ellipse_is_one_plus_curvature_times_offset() -> None:
    a, b = 2.0, 1.0
    ellipse = Implicit(lambda z: (z[:, :1] / a) ** 2 + (z[:, 1:] / b) ** 2 - 1)
    t = torch.linspace(0, 2 * math.pi, 37, dtype=torch.float64)
    z = torch.stack([a * t.cos(), b * t.sin()], dim=1)
    outward = torch.nn.functional.normalize(torch.stack([t.cos() / a, t.sin() / b], dim=1), dim=1)
    curvature = a * b / ((a * t.sin()) ** 2 + (b * t.cos()) ** 2) ** 1.5
    for offset in (-0.2, 0.1, 3.0):
        found = geometry.log_volume_factor(ellipse, z + offset * outward, z)
        assert found is not None
        assert float((found - torch.log(1 + curvature * offset)).abs().max()) <= 1e-12


def test_the_tube_factor_of_an_ellipse_turns_areas_into_lengths() -> None:
    """Quadrature of exp(-rho/2 dist^2) / J over the plane is the length of the ellipse times sqrt(2 pi / rho)."""
    ellipse, rho = Implicit(lambda z: (z[:, :1] / 1.5) ** 2 + z[:, 1:] ** 2 - 1), 800.0
    step = 0.0125
    grid = torch.arange(-1.8, 1.8, step, dtype=torch.float64)
    x = torch.cartesian_prod(grid, grid)
    x = x[ellipse.violation(x) < 0.2]
    found = ellipse.solve(x, budget=Budget(1e-10, 50))
    assert bool(found.converged.all())
    tube = geometry.log_volume_factor(ellipse, x, found.point)
    assert tube is not None
    weight = torch.exp(-rho / 2 * (x - found.point).square().sum(1))
    t = torch.linspace(0, 2 * math.pi, 2001, dtype=torch.float64)[:-1]
    length = float(torch.sqrt((1.5 * t.sin()) ** 2 + t.cos() ** 2).mean()) * 2 * math.pi
    area = length * math.sqrt(2 * math.pi / rho)
    assert float((weight * torch.exp(-tube)).sum()) * step**2 == pytest.approx(area, rel=1e-6)


def test_the_tube_factor_is_known_for_small_equations_only() -> None:
    z = torch.ones(2, 3, dtype=torch.float64)
    assert geometry.log_volume_factor(Implicit(sphere, low), z, z) is None
    assert geometry.log_volume_factor(Implicit(lambda z: z[:, :1]), torch.ones(2, 65), torch.ones(2, 65)) is None
    unknown = geometry.log_volume_factor(Implicit(lambda z: torch.log(z[:, :1] - 1.0)), z, z)
    assert unknown is not None and unknown.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("constraint", "evaluations"),
    [(Implicit(sphere), 2), (Implicit(None, ball), 0), (Implicit(sphere, low), 2)],
    ids=["equation", "inequality", "both"],
)
def test_weighted_casal_finishes_as_the_rows_allow(constraint: Constraint, evaluations: int) -> None:
    target = casal.langevin(lambda x: x, steps=5, step_size=0.1, init=normal(4, 3))
    problem = Problem(target, constraint, casal.Identity(), torch.zeros(0, 3, dtype=torch.float64))
    assert choose_finish(problem, clean_score).evaluations == evaluations


# ------------------------------------------------------------------ sampling

WIDTH, HEIGHT = 2.0, 1.0
MEAN = torch.tensor([0.6, 0.4], dtype=torch.float64)
VARIANCE = torch.tensor([1.0, 0.5], dtype=torch.float64)


def ellipse() -> Implicit:
    return Implicit(lambda z: (z[:, :1] / WIDTH) ** 2 + (z[:, 1:] / HEIGHT) ** 2 - 1.0)


def gaussian(steps: int, step_size: float) -> casal.Target:
    return casal.langevin(
        lambda x: (x - MEAN.to(x)) / VARIANCE.to(x),
        steps=steps,
        step_size=step_size,
        init=lambda n, g: MEAN + VARIANCE.sqrt() * torch.randn(n, 2, generator=g, dtype=torch.float64),
    )


def exact_moments() -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the Gaussian restricted to the ellipse, with respect to its length."""
    t = torch.linspace(0, 2 * math.pi, 4001, dtype=torch.float64)[:-1]
    z = torch.stack([WIDTH * t.cos(), HEIGHT * t.sin()], dim=1)
    speed = torch.sqrt((WIDTH * t.sin()) ** 2 + (HEIGHT * t.cos()) ** 2)
    weight = torch.exp(-((z - MEAN).square() / VARIANCE).sum(1) / 2) * speed
    weight = weight / weight.sum()
    mean = (weight[:, None] * z).sum(0)
    return mean, (weight[:, None] * (z - mean).square()).sum(0).sqrt()


@pytest.mark.slow
@pytest.mark.statistical
def test_weighted_casal_samples_the_gaussian_on_an_ellipse() -> None:
    result = casal.sample(gaussian(60, 0.2), ellipse(), casal.WeightedCASAL(200.0), 1000, seed=0)
    assert bool(result.certificate.feasible.all()) and float(result.certificate.violation.max()) <= 1e-12
    mean, spread = exact_moments()
    ancestors = float(result.trace["ancestors"][-1])
    error = 4 * spread / math.sqrt(ancestors)
    assert bool(((result.samples.mean(0) - mean).abs() < error).all())
    assert bool(((result.samples.std(0) - spread).abs() < error).all())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_casal_samples_an_ellipse_and_a_cap(dtype: torch.dtype) -> None:
    for constraint in (ellipse(), Implicit(ellipse().fn, lambda z: z[:, :1] - 1.0)):
        result = casal.sample(gaussian(12, 0.1), constraint, casal.CASAL(20.0), 30, seed=1, run=casal.Run(dtype=dtype))
        assert bool(result.certificate.feasible.all()) and float(result.certificate.violation.max()) <= 1e-12
        assert float(result.samples.std(0).min()) > 0.1
    assert float(result.samples[:, 0].max()) <= 1.0 + 1e-12


def test_penalty_and_primal_dual_use_the_residual_of_both_kinds() -> None:
    """Penalty pulls every chain towards the set; PrimalDual holds the averages of h and g over the chains."""
    constraint = Implicit(lambda z: z.square().sum(1, keepdim=True) - 4.0, lambda z: z[:, :1] - 0.3)
    target = gaussian(400, 0.005)
    free, held, average = (
        casal.sample(target, constraint, method, 200, seed=2)
        for method in (casal.Unconstrained(), casal.Penalty(10.0), casal.PrimalDual(0.5))
    )
    assert float(held.certificate.violation.mean()) < 0.5 * float(free.certificate.violation.mean())
    before, after = (geometry.residual(constraint, run.samples).mean(0) for run in (free, average))
    assert abs(float(after[0])) < 0.5 * abs(float(before[0]))
    assert float(after[1]) < 0.5 * float(before[1])
