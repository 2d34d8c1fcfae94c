"""Round sets: against solvers, closed forms and the conditions of a nearest point."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from casal.constraints import (
    Affine,
    Ball,
    Box,
    Constraint,
    Ellipsoid,
    Implicit,
    MassEnergy,
    MassEnergyBox,
    ObservedMassEnergy,
    PerChain,
    Product,
    Sphere,
    constraint_from_spec,
    geometry,
)
from casal.constraints import round as rounds
from casal.errors import InfeasibleSet, ShapeError

from .closed_form_cases import INF, form, ramp
from .points import normal, one

# ------------------------------------------------------------------ ellipsoids

Q = form(5, 50.0, 0).numpy()
CENTER = ramp(5)


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


@pytest.mark.parametrize("aspect", [1.0, 1e3, 1e9, 1e60])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e5, 1e40])
def test_ellipsoid_satisfies_the_secular_equation(aspect: float, size: float) -> None:
    axes = torch.logspace(-math.log10(aspect), 0, 6, dtype=torch.float64)
    z = size * normal(200, 6, seed=11)
    z = z[(z / axes).square().sum(1) > 1]
    if not len(z):
        return
    nearest = Ellipsoid(axes).project(z)
    gauge = (nearest / axes).square().sum(1).sqrt()
    assert float((gauge - 1).abs().max()) <= 1e-14
    # z - p = mu p / s^2 with one mu >= 0 for all coordinates; it is read from the coordinate that shows it best.
    biggest = ((z - nearest) / z).abs().argmax(1, keepdim=True)
    mu = ((z - nearest) * axes.square() / nearest).gather(1, biggest)
    assert bool((mu >= 0).all())
    gap = (z - nearest - mu * (nearest / axes) / axes).abs()
    assert bool((gap <= 1e-13 * (z.abs() + nearest.abs() + (mu * nearest / axes / axes).abs())).all())


def test_ellipsoid_nearly_touched_and_far_away() -> None:
    ellipsoid = Ellipsoid([1.0, 2.0], torch.tensor([5.0, -5.0]))
    for offset in (1e-15, 1e-12, 1e-6, 1.0, 1e6, 1e150, 1e300):
        np.testing.assert_allclose(one(ellipsoid, [6.0 + offset, -5.0]), [6.0, -5.0], rtol=0, atol=2e-15)
    inside = torch.tensor([[5.3, -4.0]], dtype=torch.float64)
    assert torch.equal(ellipsoid.project(inside), inside) and float(ellipsoid.violation(inside)) == 0.0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize(
    "constraint",
    [
        Sphere(2.0),
        Sphere(0.5, torch.tensor([1.0, -2.0, 0.5])),
        Sphere(PerChain(torch.linspace(0.5, 3.0, 20))),
        Ball(1.0),
        Box(-0.5, 0.5),
    ],
    ids=repr,
)
def test_a_foot_comes_with_its_distance(constraint: Constraint, dtype: torch.dtype) -> None:
    z = 2.0 * torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    nearest, half = geometry.quick_projection(constraint, z)
    assert torch.equal(nearest, constraint.project(z, quick=True)) and half.dtype == torch.float64
    exact = (z.double() - constraint.project(z.double())).square().sum(1) / 2
    close = 1e-13 if dtype == torch.float64 else 2e-6
    torch.testing.assert_close(half, exact, rtol=close, atol=close)


# ------------------------------------------------------------------ spheres and balls inside flat sets

ROWS = normal(2, 6, seed=7)
SCALED: dict[str, Callable[[float], Constraint]] = {
    "sphere": lambda s: Sphere(2.0 * s, s * ramp(6)),
    "ball": lambda s: Ball(1.0 * s, s * ramp(6)),
    "spheres": lambda s: Sphere(PerChain(s * torch.linspace(0.5, 3.0, 20, dtype=torch.float64))),
    "mass and energy": lambda s: MassEnergy(2.0 * s, 9.0 * s**2),
    "known values": lambda s: ObservedMassEnergy([4, 1], [0.5 * s, -s], 1.5 * s, 9.0 * s**2),
    "equations and a sphere": lambda s: Affine(ROWS, 0.3 * s) & Sphere(2.0 * s, 0.3 * s * ramp(6)),
    "equations and a ball": lambda s: Affine(ROWS, 0.3 * s) & Ball(2.0 * s, 0.3 * s * ramp(6)),
}


@pytest.mark.parametrize("exponent", [-400, 400])
@pytest.mark.parametrize("name", SCALED)
def test_all_sizes_are_alike(name: str, exponent: int) -> None:
    """A power of two changes no bit, although |z|^2 = 1e240 or 1e-240."""
    scale, y = 2.0**exponent, 2.0 * normal(20, 6, seed=5)
    plain, scaled = SCALED[name](1.0), SCALED[name](scale)
    assert torch.equal(scaled.project(scale * y), scale * plain.project(y))
    torch.testing.assert_close(scaled.violation(scale * y), plain.violation(y), rtol=1e-14, atol=0)
    for far in (1e-12, 1.0, 1e12):
        quick = plain.project(far * y, quick=True)
        torch.testing.assert_close(quick, plain.project(far * y), rtol=0, atol=1e-12)


def test_radii_whose_squares_overflow() -> None:
    y = 1e200 * normal(20, 6, seed=5)
    for constraint, reach in ((Sphere(1e200), 1e200), (Ball(1e200, 1e200 * ramp(6)), INF)):
        assert float(constraint.violation(constraint.project(y)).max()) <= 1e-14
        assert geometry.reach(constraint, (6,)) == reach


def test_the_nearest_point_beside_the_centre() -> None:
    """A short u along the flat set keeps its direction: P(u) = q + r u / |u| if the centre is zero."""
    both = Affine(ROWS, 0.3) & Sphere(2.0)
    q = ROWS.T @ torch.linalg.solve(ROWS @ ROWS.T, torch.full((2,), 0.3, dtype=torch.float64))
    u = normal(20, 6, seed=8)
    u = u - u @ torch.linalg.pinv(ROWS) @ ROWS
    r = (4.0 - q.square().sum()).sqrt()
    wanted = q + r * u / u.norm(dim=1, keepdim=True)
    for size in (1.0, 1e-12, 1e-200):
        torch.testing.assert_close(both.project(size * u), wanted, rtol=0, atol=1e-14)


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


@pytest.mark.parametrize(
    ("constraint", "y", "point"),
    [
        (ObservedMassEnergy([0], [1.0], mass=4.0, energy=12.0), [9.0, 0.1, 0.1, 0.1], [1.0, 3.0, -1.0, 1.0]),
        (ObservedMassEnergy([0], [1.0], energy=5.0), [9.0, 0.0, 0.0], [1.0, 2.0, 0.0]),
        (MassEnergy(3.0, 11.0), [0.1, 0.1, 0.1], [1.0 + 2.0, 1.0 - 2.0, 1.0]),
        (Sphere(2.0, torch.tensor([1.0, 1.0])), [1.0, 1.0], [3.0, 1.0]),
    ],
    ids=["mass and energy", "energy", "no values", "sphere"],
)
def test_a_fixed_direction_is_taken_where_all_points_are_equally_near(
    constraint: Constraint, y: list[float], point: list[float]
) -> None:
    np.testing.assert_allclose(one(constraint, y), point, rtol=0, atol=1e-14)
    np.testing.assert_allclose(constraint.project(torch.tensor([y]), quick=True)[0], point, rtol=1e-6, atol=1e-6)


def test_two_fields_observed_at_123_points_with_circulation_and_enstrophy() -> None:
    """z_free = m + w sqrt(E - |y|^2 - n_f m^2) / |w|, m = (M - sum y) / n_f, for each chain its own observations."""
    chains, side, size = 3, 64, 64 * 64
    truth, z = normal(chains, 2, size, seed=21), 2.0 * normal(chains, 2, side, side, seed=22)
    fields, expected = [], torch.empty(chains, 2, size, dtype=torch.float64)
    for field in range(2):
        index = torch.randperm(size, generator=torch.Generator().manual_seed(field))[:123]
        own = truth[:, field]
        M, E = own.sum(1), own.square().sum(1)
        fields.append(ObservedMassEnergy(index, PerChain(own[:, index]), PerChain(M), PerChain(E)))
        free = torch.ones(size, dtype=torch.bool)
        free[index] = False
        y, n_f = own[:, index], size - 123
        m = (M - y.sum(1)) / n_f
        w = z[:, field].flatten(1)[:, free]
        w = w - w.mean(1, keepdim=True)
        r = (E - y.square().sum(1) - n_f * m**2).sqrt()
        expected[:, field, index] = y
        expected[:, field, free] = m[:, None] + w * (r / w.norm(dim=1))[:, None]
    both = Product(*fields, sizes=(size, size))
    nearest = both.project(z)
    torch.testing.assert_close(nearest.flatten(2), expected, rtol=0, atol=1e-13)
    assert float(both.violation(nearest).max()) <= 2e-15
    assert both.fast
    torch.testing.assert_close(both.project(z, quick=True), nearest, rtol=0, atol=1e-13)
    narrow = both.project(z.float(), quick=True)
    assert narrow.dtype == torch.float32 and float((narrow - nearest).abs().max()) <= 1e-5
    part = both.take(slice(1, 2))
    torch.testing.assert_close(part.project(z[1:2]), nearest[1:2], rtol=0, atol=1e-14)


# ------------------------------------------------------------------ mass, energy and bounds


def drawn(seed: int, size: int, *, equal: bool) -> tuple[MassEnergyBox, Tensor]:
    """A set with a known point in it, often close to a corner."""
    rng = np.random.default_rng(seed)
    low = -1.5 * rng.random(() if equal else size)
    high = low + 0.2 + 2.0 * rng.random(() if equal else size)
    inside = torch.as_tensor(low + (high - low) * rng.beta(0.5, 0.5, size=size))
    return MassEnergyBox(float(inside.sum()), float(inside.square().sum()), low, high), inside


def best_of_slsqp(constraint: MassEnergyBox, y: np.ndarray, starts: list[np.ndarray]) -> float:
    """Shortest distance of many local searches that end on the set."""
    mass, energy = constraint.conserved.mass, constraint.conserved.energy
    low, high = (bound.expand(len(y)).numpy() for bound in (constraint.box.low, constraint.box.high))
    rules = [
        {"type": "eq", "fun": lambda x: x.sum() - mass, "jac": np.ones_like},
        {"type": "eq", "fun": lambda x: (x**2).sum() - energy, "jac": lambda x: 2 * x},
    ]
    best = INF
    for start in starts:
        found = minimize(
            lambda x: ((x - y) ** 2).sum(),
            np.clip(start, low, high),
            jac=lambda x: 2 * (x - y),
            method="SLSQP",
            bounds=list(zip(low, high, strict=True)),
            constraints=rules,
            options={"ftol": 1e-14, "maxiter": 300},
        )
        if max(abs(found.x.sum() - mass), abs((found.x**2).sum() - energy)) < 1e-9:
            best = min(best, float(np.linalg.norm(found.x - y)))
    return best


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("equal", [True, False])
def test_no_local_search_ends_nearer(seed: int, equal: bool) -> None:
    size = 3 + seed % 3
    constraint, inside = drawn(seed, size, equal=equal)
    rng = np.random.default_rng(seed)
    y = 2.0 * rng.normal(size=size)
    y = np.round(y) if seed % 4 == 0 else y
    z = constraint.project(torch.as_tensor(y)[None])
    assert float(constraint.violation(z)[0]) <= 1e-12
    starts = [y, *(inside.numpy() + rng.normal(size=size) for _ in range(5)), *rng.normal(size=(5, size))]
    ours = float(np.linalg.norm(z[0].numpy() - y))
    if equal or has_multipliers(constraint, torch.as_tensor(y)[None], z)[0]:
        assert ours <= best_of_slsqp(constraint, y, starts) + 1e-8


def has_multipliers(constraint: MassEnergyBox, y: Tensor, z: Tensor) -> Tensor:
    """(n,) whether z = clip(alpha y + beta, low, high) for an alpha > 0: what proves it the nearest point.

    alpha and beta are read off the two free coordinates farthest apart in y; rows with fewer are not proved.
    """
    low, high = constraint.box.low.expand_as(z), constraint.box.high.expand_as(z)
    free = (z > low + 1e-9) & (z < high - 1e-9)
    first = torch.where(free, y, INF).argmin(1, keepdim=True)
    last = torch.where(free, y, -INF).argmax(1, keepdim=True)
    rise, run = (v.gather(1, last) - v.gather(1, first) for v in (z, y))
    alpha = rise / torch.where(run == 0, 1.0, run)
    line = alpha * (y - y.gather(1, first)) + z.gather(1, first)
    close = ((line.clamp(low, high) - z).abs() <= 1e-7 * (1.0 + alpha)).all(1)
    return close & (alpha > 0).squeeze(1) & (free.sum(1) >= 2)


def test_with_room_on_both_sides_the_conditions_of_the_nearest_point_hold() -> None:
    y = normal(200, 24, seed=6)
    for constraint in (
        MassEnergyBox(2.0, 6.0, -0.8, 1.0),
        MassEnergyBox(2.0, 6.0, -0.8 - 0.2 * normal(24, seed=7).abs(), 1.0 + 0.2 * normal(24, seed=8).abs()),
    ):
        z = constraint.project(y)
        clipped = (z == constraint.box.low) | (z == constraint.box.high)
        assert float(clipped.any(1).double().mean()) > 0.5
        assert bool(has_multipliers(constraint, y, z).all())


def test_the_general_way_is_never_nearer() -> None:
    constraint, y = MassEnergy(1.0, 3.0) & Box(-0.6, 1.2), normal(20, 6, seed=1)
    general = Implicit(MassEnergy(1.0, 3.0).equations, Box(-0.6, 1.2).inequalities).solve(y)
    ours, theirs = ((point - y).norm(dim=1) for point in (constraint.project(y), general.point))
    assert int(general.converged.sum()) >= 10
    assert bool((ours <= theirs + 1e-8)[general.converged].all())


def test_guessing_and_halving_agree() -> None:
    constraint = MassEnergyBox(2.0, 6.0, -0.8, 1.0)
    reduced = constraint._frame((24,)).reduced
    assert reduced is not None
    v = constraint._directions(normal(50, 24, seed=2))
    guessed, left = rounds._refine(v, reduced.low, reduced.high)
    assert len(left) == 0
    torch.testing.assert_close(rounds._bracket(v, reduced), guessed, rtol=0, atol=1e-12)


@pytest.mark.slow
@settings(max_examples=300)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(2, 12),
    equal=st.booleans(),
    levels=st.one_of(st.none(), st.integers(1, 4)),
    exponent=st.floats(-9.0, 9.0),
)
def test_random_bounds(seed: int, size: int, equal: bool, levels: int | None, exponent: float) -> None:
    """Points of all sizes, with and without ties: on the set, idempotent, no known point nearer if bounds are equal."""
    constraint, inside = drawn(seed, size, equal=equal)
    y = normal(8, size, seed=seed % 1000)
    y = 10.0**exponent * (y if levels is None else (y * levels).round() / levels)
    found = constraint.solve(y)
    assume(bool(found.converged.all()))
    assert float(constraint.violation(found.point).max()) <= 1e-12
    torch.testing.assert_close(constraint.project(found.point), found.point, rtol=0, atol=1e-14)
    # y . z decides which point is nearer; the distance would lose it beside a large y.
    if equal:
        reach, other = (found.point * y).sum(1), y @ inside
        assert bool((reach >= other - 1e-12 * size * y.abs().amax(1)).all())


ODD: dict[str, tuple[MassEnergyBox, int]] = {
    "no bounds": (MassEnergyBox(2.0, 9.0, -INF, INF), 7),
    "half open": (MassEnergyBox(2.0, 9.0, -0.3, INF), 7),
    "some open": (MassEnergyBox(2.0, 9.0, [-INF, 0.0, -1.0, -INF], [INF, 1.0, 2.0, 0.5]), 4),
    "one point": (MassEnergyBox(3.0, 3.0, 0.0, 1.0), 3),
    "one coordinate": (MassEnergyBox(-2.0, 4.0, -3.0, 0.0), 1),
    "corner": (MassEnergyBox(1.0, 3.0, -1.0, 1.0), 3),
    "corner of its own": (MassEnergyBox(3.5, 7.25, [0.0, 0.0, -1.0], [2.0, 1.5, 3.0]), 3),
    "fixed coordinates": (MassEnergyBox(1.0, 4.0, [0.5, -2.0, -2.0, 1.0], [0.5, 2.0, 2.0, 1.0]), 4),
    "least energy": (MassEnergyBox(2.0, 1.5, [1.0, 0.0, -1.0], [2.0, 0.5, 2.0]), 3),
    "thin": (MassEnergyBox(1e4, 1e8 / 5 + 1e-4, 1999.995, 2000.0055), 5),
    "tiny": (MassEnergyBox(0.0, 1e-200, -7e-101, 1e-100), 5),
    "huge": (MassEnergyBox(0.0, 1e200, -7e99, 1e100), 5),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_sets_and_odd_points(name: str) -> None:
    constraint, size = ODD[name]
    base = normal(8, size, seed=3)
    numbers = (0.0, 0.1, -0.7, 1e8, 1e150, -1e150, 1e-300, 5e-324)
    y = torch.cat([base, 1e-6 * base, 1e150 * base, 1e-300 * base, base.sign(), (base > 1).double()])
    y = torch.cat([y, *(torch.full((1, size), number, dtype=torch.float64) for number in numbers)])
    found = constraint.solve(y)
    assert bool(found.converged.all())
    assert float(constraint.violation(found.point).max()) <= 1e-12
    assert torch.equal(constraint.project(y[::3]), found.point[::3])
    again = constraint.project(found.point)
    assert bool(((again - found.point).norm(dim=1) <= 1e-12 * found.point.norm(dim=1)).all())
    same = constraint_from_spec(json.dumps(constraint.spec()))
    assert type(same) is MassEnergyBox and repr(same) == repr(constraint) and same.exact == constraint.exact
    assert torch.equal(same.project(y), found.point) and torch.equal(same.violation(y), constraint.violation(y))


def test_loose_bounds_change_nothing() -> None:
    y = normal(30, 9, seed=4)
    for box in (Box(-10.0, 10.0), Box(-INF, INF), Box(-torch.arange(5.0, 14.0), INF)):
        loose = (MassEnergy(1.0, 5.0) & box).project(y)
        torch.testing.assert_close(loose, MassEnergy(1.0, 5.0).project(y), rtol=0, atol=1e-14)


BUILDS: dict[str, tuple[Callable[[], Constraint], int, str]] = {
    "lows": (lambda: MassEnergy(1.0, 9.0) & Box(0.5, 3.0), 4, "sum to 2 at least and 12 at most"),
    "highs": (lambda: MassEnergy(9.0, 30.0) & Box(-3.0, 2.0), 4, "mass 9 is out of reach.*choose a mass in between"),
    "little": (lambda: MassEnergy(2.0, 2.3) & Box([1.5, -1.0, -1.0], 2.0), 3, "too little.*2.375 at least"),
    "much": (lambda: MassEnergy(1.0, 2.6) & Box(-0.5, 1.0), 4, "too much.*2.5 at most.*wider bounds"),
    "much, open above": (lambda: Box(0.0, INF) & MassEnergy(2.0, 4.1), 4, "too much.*4 at most"),
    "much, own bounds": (lambda: MassEnergy(1.0, 9.0) & Box([-1.0, -0.5, 0.0], [1.0, 1.5, 0.5]), 3, "too much"),
}


@pytest.mark.parametrize("name", BUILDS)
def test_bounds_without_room_are_refused_once_the_size_is_known(name: str) -> None:
    build, size, says = BUILDS[name]
    constraint = build()
    for action in (lambda: constraint.validate((size,)), lambda: constraint.project(torch.zeros(2, size))):
        with pytest.raises(InfeasibleSet, match=says):
            action()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((1.0, 9.0, [1.0, 2.0], 5.0), "a sum of 3 or more"),
        ((-1.0, 9.0, -5.0, [-1.0, -2.0]), "a sum of -3 or less"),
        ((0.0, 1.0, [1.0, -3.0], [2.0, -2.0]), "require 5 or more"),
        ((0.0, 1.0, 2.0, 1.0), "low <= high"),
        ((0.0, -1.0, 0.0, 1.0), "energy >= 0"),
    ],
)
def test_bounds_without_room_at_any_size_are_refused_at_once(arguments: tuple[Any, ...], says: str) -> None:
    with pytest.raises(InfeasibleSet, match=says):
        MassEnergyBox(*arguments)


def test_the_range_of_energy_is_sharp() -> None:
    """All corners by brute force: what is allowed is reached, what is beyond is refused."""
    for seed in range(20):
        constraint, inside = drawn(seed, 4, equal=True)
        low, high = float(constraint.box.low), float(constraint.box.high)
        mass = constraint.conserved.mass
        corners = [mass - k * high - (3 - k) * low for k in range(4)]
        tops = [k * high**2 + (3 - k) * low**2 + x**2 for k, x in enumerate(corners) if low <= x <= high]
        top = MassEnergyBox(mass, max(tops), low, high)
        assert float(top.violation(top.project(inside[None]))[0]) <= 1e-12
        with pytest.raises(InfeasibleSet, match="too much"):
            MassEnergyBox(mass, max(tops) * (1 + 1e-9), low, high).validate((4,))


def test_any_order_and_several_boxes_merge() -> None:
    conserved, wide, tight = MassEnergy(1.0, 2.0), Box(-0.5, 3.0), Box(-INF, torch.tensor([1.0, 1.0, 0.9, 2.0]))
    y = normal(10, 4)
    first = conserved & wide & tight
    for other in (wide & tight & conserved, tight & (conserved & wide), wide & conserved & tight):
        assert other.explain().startswith("iterative") and "alpha > 0 exists" in other.explain()
        assert torch.equal(other.project(y), first.project(y))
    assert (conserved & wide).explain().startswith("closed form, nearest point")
    with pytest.raises(ShapeError, match="broadcast"):
        first.project(normal(3, 5))
    more = first & Affine([[1.0, -1.0, 0.0, 0.0], [0.0, 0.0, 1.0, -1.0]], 0.0)
    assert more.explain().startswith("Newton")


def test_residuals_are_the_equations_and_then_the_bounds() -> None:
    constraint, z = MassEnergy(1.0, 2.0) & Box(-0.5, [1.0, 0.5, 1.0, 2.0]), normal(5, 4, seed=5).requires_grad_()
    residual = geometry.residual(constraint, z)
    expected = torch.cat(
        [geometry.residual(MassEnergy(1.0, 2.0), z), geometry.residual(Box(-0.5, [1.0, 0.5, 1.0, 2.0]), z)], dim=1
    )
    assert torch.equal(residual, expected)
    assert constraint._count_equations() == 2 and constraint.inequalities(z).shape == (5, 8)
    cut = geometry.positive_part(constraint, residual)
    assert torch.equal(cut[:, :2], residual[:, :2]) and bool((cut[:, 2:] >= 0).all())
    (gradient,) = torch.autograd.grad(0.5 * cut.square().sum(), z)
    pulled = geometry.residual_pull(constraint, z.detach(), cut.detach())
    assert pulled is not None
    torch.testing.assert_close(pulled, gradient)
