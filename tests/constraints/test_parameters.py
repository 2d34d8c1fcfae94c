"""Sets with parameters for each chain: n chains are n sets, chain by chain."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import casal
from casal.checks import broadcasts_to
from casal.constraints import (
    SETS,
    Affine,
    Ball,
    Box,
    BoxHyperplane,
    Constraint,
    Ellipsoid,
    HalfSpace,
    Implicit,
    L1Ball,
    MassEnergy,
    ObservedMassEnergy,
    PerChain,
    Polytope,
    Product,
    Simplex,
    Sphere,
    Subspace,
    constraint_from_spec,
    geometry,
)
from casal.constraints.parameters import over, parameter
from casal.errors import InfeasibleSet, SettingError, ShapeError

from .points import normal

N = 7
STEPS = torch.arange(N, dtype=torch.float64)
RADII = 1.0 + 0.3 * STEPS
MASSES, ENERGIES = 0.5 * STEPS - 1.0, 6.0 + STEPS
ROWS = normal(2, 4, seed=1)
TALL = normal(6, 4, seed=2)
TURNED = 2.0 * torch.eye(4, dtype=torch.float64)[[2, 0, 3, 1]]


class Case(NamedTuple):
    """A set as a function of its parameters, each (n, ...), and the shape of an event."""

    build: Callable[..., Constraint]
    parameters: Sequence[Tensor]
    event: tuple[int, ...] = (4,)
    tolerance: float = 1e-15

    def whole(self) -> Constraint:
        return self.build(*map(PerChain, self.parameters))

    def singles(self) -> list[Constraint]:
        return [
            self.build(*(float(p[i]) if p.ndim == 1 else p[i] for p in self.parameters))
            for i in range(len(self.parameters[0]))
        ]

    def points(self, dtype: torch.dtype = torch.float64) -> Tensor:
        return (2.0 * normal(N, *self.event, seed=3)).to(dtype)


CASES: dict[str, Case] = {
    "sphere": Case(Sphere, [RADII, normal(N, 4, seed=4)]),
    "sphere radius": Case(Sphere, [RADII], (2, 3)),
    "sphere center": Case(lambda c: Sphere(1.5, c), [normal(N, 2, 3, seed=5)], (2, 3)),
    "sphere point": Case(Sphere, [0.0 * RADII, normal(N, 4, seed=4)]),
    "ball": Case(Ball, [RADII, normal(N, 4, seed=4)]),
    "ball radius": Case(Ball, [RADII]),
    "mass and energy": Case(MassEnergy, [MASSES, ENERGIES]),
    "mass": Case(lambda m: MassEnergy(m, 9.0), [MASSES], (2, 3)),
    "energy": Case(lambda e: MassEnergy(1.0, e), [ENERGIES]),
    "one coordinate": Case(MassEnergy, [MASSES, MASSES**2], (1,)),
    "observed": Case(lambda *p: ObservedMassEnergy([2, 0], *p), [0.3 * normal(N, 2, seed=6), MASSES, ENERGIES], (6,)),
    "observed values": Case(lambda v: ObservedMassEnergy([2, 0], v, energy=9.0), [normal(N, 2, seed=6)], (6,)),
    "observed mass": Case(lambda m: ObservedMassEnergy([1], [0.5], mass=m), [MASSES]),
    "box": Case(Box, [-RADII, 0.5 * RADII]),
    "box low": Case(lambda low: Box(low, torch.full((4,), 3.0)), [-RADII], (3, 4)),
    "box tensors": Case(Box, [-normal(N, 4, seed=7).abs(), normal(N, 3, 4, seed=8).abs()], (3, 4)),
    "box half-open": Case(lambda low: Box(low, torch.inf), [normal(N, 4, seed=7)]),
    "affine": Case(lambda b: Affine(ROWS, b), [normal(N, 2, seed=9)]),
    "affine one row": Case(lambda b: Affine(torch.ones(1, 4), b), [MASSES]),
    "affine redundant": Case(lambda b: Affine(torch.ones(3, 4), b), [MASSES]),
    "half-space": Case(lambda b: HalfSpace(ROWS[0], b), [MASSES]),
    "box and hyperplane": Case(
        lambda low, high, b: BoxHyperplane(low, high, [1.0, -2.0, 0.0, 1.0], b),
        [-1.0 - normal(N, 4, seed=10).abs(), RADII, 0.1 * MASSES],
    ),
    "hyperplane without bounds": Case(
        lambda low, b: BoxHyperplane(low, torch.inf, [1.0, -2.0, 0.0, 1.0], b),
        [torch.where(normal(1, 4, seed=10) > 0, -torch.inf, -1.0 - normal(N, 4, seed=10).abs()), MASSES],
    ),
    "simplex": Case(Simplex, [RADII]),
    "l1 ball": Case(L1Ball, [RADII]),
    "shifted": Case(lambda t: Ball(1.0).shifted(t), [normal(N, 4, seed=11)]),
    "shifted per chain": Case(lambda r, t: Sphere(r).shifted(t), [RADII, MASSES], (2, 3)),
    "scaled": Case(lambda r: Sphere(r).scaled(0.5), [RADII]),
    "union": Case(lambda r: Sphere(r) | Box(-0.1, 0.1), [RADII]),
    "product": Case(lambda r, low: Product(Sphere(r), None, Box(low, 2.0), sizes=(2, 1, 1)), [RADII, -RADII]),
    "through a turn": Case(lambda r: Ball(r).through(TURNED), [RADII]),
    "through equations": Case(lambda b: Affine(torch.ones(1, 6), b).through(TALL), [MASSES], tolerance=1e-13),
    "through, smooth": Case(lambda r: Sphere(r).through(TALL), [RADII], tolerance=1e-12),
    "equation & sphere": Case(lambda b: Affine(torch.ones(1, 4), b) & Sphere(3.0), [MASSES]),
    "equation & spheres": Case(lambda r: Affine(ROWS, 0.1) & Sphere(r), [RADII]),
    "equations & ball": Case(
        lambda b, r, c: Affine(ROWS, b) & Ball(r, c), [0.1 * normal(N, 2, seed=9), RADII, 0.1 * normal(N, 4, seed=4)]
    ),
    "equations & equations": Case(lambda b: Affine(ROWS[:1], b) & Affine(ROWS[1:], 0.3), [MASSES]),
    "bounds & bounds": Case(lambda low, high: Box(low, 3.0) & Box(-2.0, high), [-RADII, normal(N, 4, seed=7).abs()]),
    "bounds & equation": Case(lambda high, b: Box(-2.0, high) & Affine(torch.ones(1, 4), b), [RADII, MASSES]),
    "mass, energy & bounds": Case(lambda m, e: MassEnergy(m, e) & Box(-4.0, 4.0), [MASSES, ENERGIES]),
    "bounds for mass and energy": Case(lambda high: MassEnergy(1.0, 6.0) & Box(-4.0, high), [3.0 + STEPS]),
    "spheres & half-space": Case(lambda r: Sphere(r) & HalfSpace(ROWS[0], 0.1), [RADII], tolerance=1e-12),
    "two spheres": Case(lambda r: Sphere(r) & Sphere(2.0, ROWS[0]), [1.5 + 0.1 * STEPS], tolerance=1e-12),
    "bounds & ball": Case(lambda high: Box(-0.5, high) & Ball(1.2), [0.3 * RADII], tolerance=1e-12),
    "bounds & ball, shifted": Case(
        lambda high, t: Ball(1.2).shifted(t) & Box(-0.5, high), [RADII, 0.3 * normal(N, 4, seed=11)], tolerance=1e-12
    ),
    "sphere & union": Case(lambda r: Sphere(r) & (Box(-0.5, 3.0) | Box(-3.0, 0.1)), [RADII], tolerance=1e-11),
    "bounds & half-space": Case(lambda high: Box(-1.0, high) & HalfSpace(ROWS[0], 0.1), [RADII], tolerance=1e-12),
}
every_case = pytest.mark.parametrize("name", CASES)


def chain_by_chain(case: Case, what: Callable[[Constraint, Tensor, int], Tensor | None], z: Tensor) -> Tensor | None:
    found = [what(single, z[i : i + 1], i) for i, single in enumerate(case.singles())]
    parts = [part for part in found if part is not None]
    assert len(parts) in (0, N)
    return torch.cat(parts) if parts else None


def assert_same(ours: Tensor | None, theirs: Tensor | None, tolerance: float) -> None:
    assert (ours is None) == (theirs is None)
    if ours is not None and theirs is not None:
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        off = torch.where(ours == theirs, 0.0, (ours - theirs).abs() / (1.0 + theirs.abs()))
        assert not off.numel() or float(off.max()) <= tolerance


@every_case
def test_chains_are_sets_of_their_own(name: str) -> None:
    case = CASES[name]
    whole, z = case.whole(), case.points()
    assert whole.chains == N and all(single.chains is None for single in case.singles())
    foot = whole.project(z)
    assert_same(foot, chain_by_chain(case, lambda c, y, i: c.project(y), z), case.tolerance)
    assert float(whole.violation(foot).max()) <= 1e-11
    assert_same(whole.violation(z), chain_by_chain(case, lambda c, y, i: c.violation(y), z), 4e-15)
    single = case.singles()[0]
    assert (whole.exact, whole.convex, whole.smooth, whole.fast, whole.way, whole.samples_near) == (
        *(single.exact, single.convex, single.smooth, single.fast, single.way, single.samples_near),
    )


@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_loop_projects_chain_by_chain(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    z = case.points(dtype)
    rounding = max(case.tolerance, 8 * torch.finfo(dtype).eps)
    fast = case.whole().project(z, quick=True)
    assert fast.dtype == dtype
    assert_same(fast, chain_by_chain(case, lambda c, y, i: c.project(y, quick=True), z), rounding)


@every_case
def test_smooth_descriptions_and_volumes_are_chain_by_chain(name: str) -> None:
    case = CASES[name]
    whole, z = case.whole(), case.points()
    if whole.smooth:
        assert_same(whole.equations(z), chain_by_chain(case, lambda c, y, i: c.equations(y), z), 1e-14)
        assert_same(whole.inequalities(z), chain_by_chain(case, lambda c, y, i: c.inequalities(y), z), 1e-14)
        residual = geometry.residual(whole, z)
        weights = normal(*residual.shape, seed=12)
        pulled = chain_by_chain(case, lambda c, y, i: geometry.residual_pull(c, y, weights[i : i + 1]), z)
        assert_same(geometry.residual_pull(whole, z, weights), pulled, 1e-14)
        cut = chain_by_chain(
            case, lambda c, y, i: (geometry.residual(c, y), geometry.positive_part(c, residual[i : i + 1]))[1], z
        )
        assert_same(geometry.positive_part(whole, residual), cut, 0.0)
    foot = whole.project(z)
    tubes = chain_by_chain(case, lambda c, y, i: geometry.log_volume_factor(c, y, c.project(y)), z)
    assert_same(geometry.log_volume_factor(whole, z, foot), tubes, 1e-11)


@every_case
def test_gaussians_are_restricted_chain_by_chain(name: str) -> None:
    case = CASES[name]
    whole, y = case.whole(), case.points()
    masses = chain_by_chain(case, lambda c, y, i: c.log_normaliser(y, 0.7), y)
    assert_same(whole.log_normaliser(y, 0.7), masses, 1e-14)
    draws = [whole.sample_near(y, 0.7, torch.Generator().manual_seed(1)) for _ in range(2)]
    assert_same(draws[0], draws[1], 0.0)
    if draws[0] is not None:
        assert draws[0].shape == y.shape and float(whole.violation(draws[0]).max()) <= 1e-12


@every_case
def test_chains_are_taken_and_grouped(name: str) -> None:
    case = CASES[name]
    whole, z = case.whole(), case.points()
    foot, violation = whole.project(z), whole.violation(z)
    for index in (slice(1, 4), torch.tensor([5, 0, 0, 3])):
        some = whole.take(index)
        assert type(some) is type(whole) and some.chains == len(z[index])
        assert_same(some.project(z[index]), foot[index], case.tolerance)
        assert_same(some.violation(z[index]), violation[index], 4e-15)
    labels = geometry.groups(whole.take(torch.tensor([5, 0, 0, 3, 5])))
    assert labels is not None and labels.dtype == torch.long and labels.shape == (5,)
    assert labels[0] == labels[4] and labels[1] == labels[2]
    assert len(labels.unique()) == 3
    single = case.singles()[0]
    assert single.take(slice(0, 2)) is single and geometry.groups(single) is None


@every_case
def test_chains_survive_json(name: str) -> None:
    case = CASES[name]
    whole, z = case.whole(), case.points()
    again = constraint_from_spec(json.dumps(whole.spec()))
    assert type(again) is type(whole) and repr(again) == repr(whole) and again.chains == N
    assert again.spec() == whole.spec() and again.explain() == whole.explain()
    assert torch.equal(again.project(z), whole.project(z)) and torch.equal(again.violation(z), whole.violation(z))


@every_case
def test_another_number_of_points_is_refused_with_both_numbers(name: str) -> None:
    whole, z = CASES[name].whole(), CASES[name].points()
    for ask in (whole.project, lambda y: whole.project(y, quick=True), whole.violation):
        for points in (z[:1], z[:3], torch.cat([z, z])):
            with pytest.raises(ShapeError, match=f"{len(points)} points .* {N} chains"):
                ask(points)
    if whole.smooth:
        with pytest.raises(ShapeError, match=f"2 points .* {N} chains"):
            geometry.residual(whole, z[:2])


@pytest.mark.parametrize(
    ("constraint", "inner"),
    [
        (Sphere(PerChain(RADII), PerChain(normal(N, 4, seed=4) @ ROWS.T @ torch.linalg.pinv(ROWS).T)), Sphere),
        (Affine(normal(1, 2, seed=3) @ ROWS, PerChain(MASSES)), Affine),
        (HalfSpace((normal(1, 2, seed=3) @ ROWS)[0], PerChain(MASSES)), HalfSpace),
        (Affine(normal(1, 2, seed=3) @ ROWS, PerChain(0.1 * MASSES)) & Ball(PerChain(RADII)), Constraint),
    ],
    ids=["sphere", "affine", "half-space", "equation & ball"],
)
def test_subspaces_keep_the_chains(constraint: Constraint, inner: type[Constraint]) -> None:
    basis = torch.linalg.qr(ROWS.T).Q
    space = Subspace((4,), lambda c: c @ basis.T, lambda z: z @ basis)
    small = geometry.within(constraint, space)
    assert isinstance(small, inner) and small.chains == N
    c = normal(N, 2, seed=13)
    torch.testing.assert_close(small.project(c) @ basis.T, constraint.project(c @ basis.T), rtol=0, atol=1e-13)


def test_mass_and_energy_in_a_subspace_keep_the_chains() -> None:
    basis = torch.linalg.qr(torch.cat([torch.ones(1, 8, dtype=torch.float64), normal(3, 8, seed=2)]).T).Q
    space = Subspace((8,), lambda c: c @ basis.T, lambda z: z @ basis)
    whole = MassEnergy(PerChain(MASSES), PerChain(ENERGIES))
    small = geometry.within(whole, space)
    assert small is not None and small.chains == N
    c = normal(N, 4, seed=13)
    torch.testing.assert_close(small.project(c) @ basis.T, whole.project(c @ basis.T), rtol=0, atol=1e-13)
    torch.testing.assert_close(small.project(c, quick=True), small.project(c), rtol=0, atol=1e-13)


def test_the_violation_is_that_of_the_conserved_fields() -> None:
    """The larger of |sum z - M| / (sum |z| + |M|) and | |z|^2 - E | / E, as a loop over chains would write it."""
    z = normal(N, 16, seed=14)
    off = (z.sum(1) - MASSES).abs() / (z.abs().sum(1) + MASSES.abs())
    worst = torch.maximum(off, (z.square().sum(1) - ENERGIES).abs() / ENERGIES)
    found = MassEnergy(PerChain(MASSES), PerChain(ENERGIES)).violation(z)
    torch.testing.assert_close(found, worst, rtol=1e-13, atol=0)


@pytest.mark.parametrize(
    ("build", "error", "says"),
    [
        (lambda: PerChain(3.0), ShapeError, "one value for each"),
        (lambda: PerChain(torch.zeros(0)), ShapeError, "n >= 1"),
        (lambda: Sphere(PerChain(torch.ones(3, 2))), ShapeError, r"radius is one number for each chain.*\(3, 2\)"),
        (lambda: Sphere(PerChain([1.0, -2.0])), InfeasibleSet, r"got -2 \(chain 1\)"),
        (lambda: MassEnergy(PerChain([1.0, 2.0]), PerChain([1.0, 2.0, 3.0])), ShapeError, "2 in mass, 3 in energy"),
        (lambda: Sphere(PerChain([1.0, 2.0])) & Box(PerChain([0.0] * 3), 1.0), ShapeError, "2 in member 0, 3 in"),
        (lambda: Sphere(PerChain([1.0, 2.0])) | Sphere(PerChain([1.0] * 4)), ShapeError, "2 in member 0, 4 in"),
        (lambda: Sphere(PerChain([1.0])).shifted(PerChain([1.0, 2.0])), ShapeError, "1 in set, 2 in shift"),
        (lambda: Box(PerChain([0.0, 2.0]), 1.0), InfeasibleSet, "low = 2, high = 1"),
        (lambda: MassEnergy(PerChain([0.0, 3.0]), 4.0).project(torch.zeros(2, 2)), InfeasibleSet, "chain 1"),
        (lambda: Affine(torch.ones(1, 2), PerChain([1.0, 9.0])) & Sphere(2.0), InfeasibleSet, r"6.36.* \(chain 1\)"),
        (lambda: BoxHyperplane(0.0, 1.0, [1.0, 1.0], PerChain([1.0, 3.0])), InfeasibleSet, "out of reach in chain 1"),
        (lambda: Affine(torch.zeros(1, 2), PerChain([0.0, 1.0])), InfeasibleSet, r"b\[0\] = 1"),
        (
            lambda: (Sphere(PerChain([1.0, 9.0])) & Sphere(1.0, torch.ones(2))).project(torch.ones(2, 2)),
            InfeasibleSet,
            "chain 1: .*inside",
        ),
        (lambda: Ellipsoid(PerChain(torch.ones(2, 3))), SettingError, r"Ellipsoid takes no axes_or_matrix .*Sphere"),
        (lambda: Polytope([[1.0, 1.0]], PerChain([1.0, 2.0])), SettingError, "Polytope takes no h for each chain"),
        (lambda: Sphere(1.0).scaled(PerChain([1.0])), SettingError, "Scaled takes no by"),  # type: ignore[arg-type]
        (lambda: Simplex(PerChain([1.0, 2.0])).take([0]), SettingError, "slice"),  # type: ignore[arg-type]
    ],
)
def test_mistakes_are_named(build: Callable[[], Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        build()


def test_what_a_set_takes_for_each_chain_is_an_argument_of_it() -> None:
    for kind in SETS.values():
        assert set(kind.per_chain) <= set(inspect.signature(kind.__init__).parameters)


def test_a_shape_is_never_guessed() -> None:
    """A plain tensor with as many rows as there are chains is one parameter of a field."""
    bounds = torch.linspace(0.0, 1.0, N, dtype=torch.float64)
    box = Box(-1.0, bounds)
    assert box.chains is None
    z = 3.0 * torch.ones(N, N, dtype=torch.float64)
    assert torch.equal(box.project(z)[0], bounds)
    assert torch.equal(Box(-1.0, PerChain(bounds)).project(z)[:, 0], bounds)


def test_functions_go_along_with_parameters_for_each_chain() -> None:
    """A set of functions has no data, but it needs none: it is common to all chains."""
    wall = Implicit(None, lambda z: z[:, :1])
    both = Sphere(PerChain(RADII)) & wall
    z = normal(N, 3, seed=15)
    foot = both.project(z)
    assert float(both.violation(foot).max()) <= 1e-11 and float(foot[:, 0].max()) <= 1e-11
    some = both.take(slice(2, 5))
    torch.testing.assert_close(some.project(z[2:5]), foot[2:5], rtol=0, atol=1e-12)
    moved = wall.shifted(PerChain(RADII))
    assert float((moved.project(z) - z)[:, 1:].abs().max()) <= 1e-15
    assert bool((moved.project(z)[:, 0] <= RADII + 1e-12).all())


def test_parameters_take_the_dtype_and_the_shape_of_points() -> None:
    """``over`` broadcasts (1 or n, *shape) over points; what a loop uses in inference mode can be differentiated."""
    for values in (parameter(PerChain(torch.ones(N, 3))), parameter(torch.ones(3))):
        for dtype in (torch.float32, torch.float64):
            with torch.inference_mode():
                assert over(values, torch.zeros(N, 3, dtype=dtype)).dtype == dtype
            leaf = torch.full((N, 3), 2.0, dtype=dtype, requires_grad=True)
            (gradient,) = torch.autograd.grad((leaf * over(values, leaf)).square().sum(), leaf)
            assert torch.equal(gradient, 2.0 * leaf.detach())
        assert over(values, torch.zeros(N, 2, 3)).shape == (len(values), 1, 3)
    with pytest.raises(ShapeError, match="points for a set"):
        over(parameter(PerChain(torch.ones(N, 3))), torch.zeros(N - 1, 3))
    fields = MassEnergy(PerChain(RADII), PerChain(9.0 * RADII.square() + 9.0))
    for size in (4, 9):  # one radius for each number of coordinates
        z = fields.project(normal(N, size), quick=True)
        torch.testing.assert_close(z.sum(1), RADII, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(z.square().sum(1), 9.0 * RADII.square() + 9.0, rtol=1e-12, atol=1e-12)


def test_the_public_name() -> None:
    assert casal.PerChain is PerChain and repr(PerChain(torch.zeros(3, 2))) == "PerChain(3, 2)"


def test_what_broadcasts_to_an_event_is_what_torch_says() -> None:
    every = [shape for length in range(4) for shape in product((0, 1, 2, 3), repeat=length)]
    for shape, event in product(every, every):
        try:
            expected = torch.broadcast_shapes(shape, event) == torch.Size(event)
        except RuntimeError:
            expected = False
        assert broadcasts_to(shape, event) == expected, (shape, event)
