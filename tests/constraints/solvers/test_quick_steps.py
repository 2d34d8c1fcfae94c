"""Quick steps against strict projections: right to first order, and never silently wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import casal
from casal.constraints import Affine, Budget, Implicit, JacobianProducts
from casal.constraints.solvers import quick_steps

from ..implicit_cases import CENTER, energy, mass_energy, sphere, torus

Function = Callable[[Tensor], Tensor]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def lengths(z: Tensor) -> Tensor:
    return torch.linalg.vector_norm(z.to(torch.float64).flatten(1), dim=1)


def waves(z: Tensor) -> Tensor:
    """Five equations."""
    return z[:, :5] + 0.2 * torch.sin(z[:, 5:]) - 0.3


def quadrics(z: Tensor) -> Tensor:
    """A sphere and a saddle in five dimensions."""
    saddle = z[:, 0] * z[:, 1] + z[:, 2].square() - z[:, 3] * z[:, 4]
    return torch.stack([z.square().sum(1) - 4.0, saddle - 1.0], dim=1)


@pytest.mark.parametrize(
    ("fn", "event"),
    [(sphere, (3,)), (torus, (3,)), (energy, (2, 3)), (mass_energy, (7,)), (quadrics, (5,)), (waves, (10,))],
    ids=["sphere", "torus", "energy", "mass-energy", "quadrics", "waves"],
)
def test_quick_and_strict_agree_to_first_order(fn: Function, event: tuple[int, ...]) -> None:
    """The error is a small share of the distance, however small that is; off the set it is of second order."""
    constraint = Implicit(fn)
    on = constraint.project(1.2 * normal(100, *event))
    for size in (0.1, 0.01, 0.001):
        y = on + size * normal(100, *event, seed=1)
        foot = constraint.project(y)
        for chains in (y, y.float()):
            found = constraint.quick(chains)
            assert found is not None and bool(found.done.all()) and found.point.dtype == chains.dtype
            allowed = 0.02 * lengths(foot - y) + 5e-6 * lengths(y)
            assert bool((lengths(found.point - foot) <= allowed).all())
            assert torch.equal(constraint.project(chains, quick=True), found.point)
        assert float(constraint.violation(constraint.project(y, quick=True)).max()) <= size**2 + 1e-6


def test_two_steps_are_enough_near_the_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step of Newton's method leaves across the set counts to second order; along the set it does not."""
    seen = list[int]()
    own = quick_steps._advance

    def counted(system: object, some: quick_steps._Chains, **more: Any) -> object:
        seen.append(len(some.z))
        return own(system, some, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(quick_steps, "_advance", counted)
    # |z|^2 = 1 on the axis: the first step to radius 1.145 leaves 0.145 across and nothing along the set.
    y = torch.tensor([[1.7, 0.0, 0.0]], dtype=torch.float64)
    ball = Implicit(lambda z: z.square().sum(1, keepdim=True) - 1.0)
    for radius, steps in ((1.2, 2), (1.7, 3)):
        seen.clear()
        foot = ball.project(radius / 1.7 * y, quick=True)
        assert len(seen) == steps and abs(float(lengths(foot)) - 1.0) <= 0.01 * (radius - 1.0)
    # Half of y's distance along the set: an estimate of second order would call this done.
    seen.clear()
    ellipse = Implicit(lambda z: (z[:, :1] / 3) ** 2 + z[:, 1:] ** 2 - 1.0)
    y = torch.tensor([[2.5, 1.2]], dtype=torch.float64)
    foot = ellipse.project(y)
    assert bool((lengths(ellipse.project(y, quick=True) - foot) <= 0.02 * lengths(foot - y)).all()) and len(seen) > 3


def test_points_of_the_set_stay() -> None:
    circle = Implicit(lambda z: z.square().sum(1, keepdim=True) - 25.0)
    on = torch.tensor([[3.0, 4.0], [5.0, 0.0], [0.0, -5.0]], dtype=torch.float64)
    found = circle.quick(on)
    assert found is not None and bool(found.done.all()) and torch.equal(found.point, on)


def test_chains_that_quick_steps_lose_are_searched_for() -> None:
    """The centre, where the gradient vanishes; an axis of symmetry; a chain that is not finite stays as it is."""
    y = torch.cat([CENTER[None], CENTER + 1e-9 * normal(1, 3), 1e8 * normal(2, 3), normal(20, 3)])
    constraint = Implicit(sphere)
    found = constraint.quick(y)
    assert found is not None and not bool(found.done[0])
    foot = constraint.project(y, quick=True)
    off = (lengths(foot - CENTER) - 2.0).abs()
    assert float(off[:4].max()) <= 1e-9 and bool((off <= 0.02 * lengths(foot - y) + 1e-6).all())
    assert bool((off <= 1e-3 * lengths(foot)).all())  # COARSE, however far away they start
    y[4] = torch.nan
    assert torch.isnan(constraint.project(y, quick=True)).all(1).tolist() == [k == 4 for k in range(len(y))]
    ellipse = Implicit(lambda z: (z[:, :1] / 2) ** 2 + z[:, 1:] ** 2 - 1)
    inside = torch.tensor([[0.5, 0.0]], dtype=torch.float64)
    assert float(ellipse.project(inside, quick=True)[0, 0]) == pytest.approx(2 / 3, abs=0.02)
    empty = Implicit(lambda z: z.square().sum(1, keepdim=True) + 1.0)
    nowhere = empty.quick(normal(5, 3))
    assert nowhere is not None and not bool(nowhere.done.any())


def test_a_chain_does_not_see_the_others() -> None:
    constraint, y = Implicit(torus), 1.2 * normal(60, 3)
    whole = constraint.project(y, quick=True)
    for some in (slice(0, 1), slice(7, 30), slice(0, 60, 2)):
        torch.testing.assert_close(constraint.project(y[some], quick=True), whole[some], rtol=0, atol=1e-10)


def test_affine_functions() -> None:
    A, b, y = normal(6, 9, seed=2), normal(6, seed=3), normal(30, 9, seed=4)
    right = Affine(A, b).project(y)
    rows = Implicit(lambda z: z @ A.T - b)
    products = JacobianProducts(lambda z, v: v @ A.T, lambda z, w: w @ A)
    for given in (rows, Implicit(lambda z: z @ A.T - b, jacobian=products, scale=1.0)):
        torch.testing.assert_close(given.project(y, quick=True), right, rtol=0, atol=1e-7)
    twice = Implicit(lambda z: torch.cat([z @ A.T - b, z @ A.T - b], dim=1))
    torch.testing.assert_close(twice.project(y, quick=True), right, rtol=0, atol=1e-8)
    bump = Implicit(lambda z: z.sum(1, keepdim=True) - 0.2 + 0.1 * torch.exp(-20 * z.square().sum(1, keepdim=True)))
    some = 0.2 * normal(30, 2)
    foot = bump.project(some)
    assert bool((lengths(bump.project(some, quick=True) - foot) <= 0.02 * lengths(some - foot) + 1e-6).all())


def test_functions_with_constants_in_float64_work_in_a_loop_of_float32() -> None:
    rows = torch.eye(2, 4, dtype=torch.float64)
    constraint = Implicit(lambda z: (z @ rows.T).square() - 1.0)
    y = normal(20, 4).float()
    assert constraint.project(y, quick=True).dtype == torch.float32
    assert float((constraint.project(y, quick=True) - constraint.project(y)).abs().max()) <= 0.02 * float(y.abs().max())


def test_the_loop_takes_quick_steps_unless_there_is_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[int]()
    own = Implicit.quick

    def counted(self: Implicit, z: Tensor, warm: Tensor | None = None) -> object:
        calls.append(len(z))
        return own(self, z, warm)

    monkeypatch.setattr(Implicit, "quick", counted)
    constraint = Implicit(torus)
    target = casal.langevin(lambda x: x, steps=5, step_size=1e-2, init=constraint.project(1.5 * normal(8, 3)))
    for method in (casal.CASAL(rho=100.0), casal.Projected()):
        calls.clear()
        result = casal.sample(target, constraint, method, 8)
        assert len(calls) >= 5 and float(result.certificate.violation.max()) <= 1e-12
        calls.clear()
        casal.sample(target, constraint, method, 8, run=casal.Run(budget=Budget()))
        assert len(calls) <= 1  # that of the starting points


def power_flow(z: Tensor) -> Tensor:
    """Injected powers at 7 of the 10 buses of a made-up grid, less those of a known state: 14 quadratic equations.

    z holds the real and the imaginary parts of the voltages; at zero voltage there is no slope at all.
    """
    generator = torch.Generator().manual_seed(1)
    admittance = torch.zeros(10, 10, dtype=torch.complex128)
    for one, other in (*((k, k + 1) for k in range(9)), (0, 4), (2, 7), (3, 9), (1, 6), (5, 8)):
        r, x = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
        line = 1.0 / complex(0.01 + 0.1 * r, 0.05 + 0.3 * x)
        for i, k, sign in ((one, one, 1), (other, other, 1), (one, other, -1), (other, one, -1)):
            admittance[i, k] += sign * line
    angle = 0.1 * torch.randn(1, 10, generator=generator, dtype=torch.float64)
    known = torch.cat([angle.cos(), angle.sin()], dim=1)

    def powers(points: Tensor) -> Tensor:
        e, f, (g, b) = points[:, :10], points[:, 10:], (part.to(points) for part in (admittance.real, admittance.imag))
        real, imaginary = e @ g - f @ b, f @ g + e @ b  # of the currents; the matrix is symmetric
        return torch.cat([e * real + f * imaginary, f * real - e * imaginary], 1)[:, [*range(1, 8), *range(11, 18)]]

    return powers(z) - powers(known).to(z)


@pytest.mark.parametrize("around", [0.0, 1.0])
def test_chains_that_a_nearly_singular_jacobian_throws_far_out_are_not_done(around: float) -> None:
    constraint = Implicit(power_flow)
    z = 0.3 * torch.randn(40, 20, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    z[:, :10] += around
    distance = torch.linalg.vector_norm(constraint.project(z) - z, dim=1)
    for dtype in (torch.float32, torch.float64):
        found = constraint.quick(z.to(dtype))
        assert found is not None
        moved = torch.linalg.vector_norm(found.point.double() - z, dim=1)
        assert bool((moved <= 3.0 * distance)[found.done].all()), "far beyond the nearest point"
        assert bool((constraint.violation(found.point) <= 0.1)[found.done].all())
        quick = constraint.project(z.to(dtype), quick=True).double()
        assert bool((torch.linalg.vector_norm(quick - z, dim=1) <= 3.0 * distance).all())
        assert float(constraint.violation(quick).max()) <= 0.1


@pytest.mark.parametrize("noise", [0.1, 0.01])
def test_bounds_and_inequalities_in_quick_steps(noise: float) -> None:
    """Bounds hold exactly, and the point is the nearest one to a small share of the distance."""
    curve = Implicit(lambda z: z.prod(1, keepdim=True) - 1.0)
    cut = Implicit(torus, lambda z: z[:, :1] - 0.7)
    for constraint in (curve & casal.Box(0.5, None), cut, Implicit(torus) & casal.HalfSpace([0.0, 1.0, 1.0], 0.3)):
        on = constraint.project(1.0 + 0.5 * normal(200, 3))
        y = on + noise * normal(200, 3, seed=1)
        foot, found = constraint.project(y), constraint.project(y, quick=True)
        assert bool((lengths(found - foot) <= 0.03 * lengths(foot - y) + 5e-6 * lengths(y)).all())
        assert constraint.fast
    bounded = (curve & casal.Box(0.5, None)).project(y, quick=True)
    assert float(bounded.min()) >= 0.5 and int((bounded == 0.5).sum()) > 0


def test_known_values_are_no_rows() -> None:
    """Equations on single coordinates leave the rows of Newton's steps and hold to the bit."""
    rows, level = torch.eye(2, 5, dtype=torch.float64), torch.tensor([0.3, -0.2], dtype=torch.float64)
    both = Implicit(lambda z: z.square().sum(1, keepdim=True) - 1.0) & Affine(2.0 * rows, 2.0 * level)
    assert both._newton is not None and both._newton.equations(normal(3, 5)).shape == (3, 1)
    y = normal(50, 5)
    for quick in (False, True):
        point = both.project(y, quick=quick)
        assert torch.equal(point[:, :2], level.expand(50, 2))
    right = torch.cat(
        [level.expand(50, 2), y[:, 2:] * (1.0 - level.square().sum()).sqrt() / lengths(y[:, 2:])[:, None]], 1
    )
    torch.testing.assert_close(both.project(y), right, rtol=0, atol=1e-12)
