"""What every set promises, checked over all rows of ``sets.py``; then, set by set, answers from elsewhere."""

from __future__ import annotations

import math

import cvxpy
import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from casal import Affine, Ball, Box, Constraint, FromProjection, HalfSpace, MassEnergy, Sphere
from casal.constraints import SETS as REGISTRY
from casal.constraints import geometry
from casal.errors import ProjectionError, SettingError, ShapeError

from .sets import NO_RESIDUAL, SETS, SetCase, badly_scaled, matrix, ramp, redundant

FEASIBLE = 1e-12

contract = settings(phases=(Phase.explicit, Phase.generate, Phase.shrink))
few = settings(contract, max_examples=contract.max_examples // 5)
every_set, quick_set, slow_set = (
    pytest.mark.parametrize("case", rows, ids=lambda case: case.id)
    for rows in (SETS, [case for case in SETS if not case.seldom], [case for case in SETS if case.seldom])
)


# ------------------------------------------------------------------ points of all sizes, and how to measure them


class Draw:
    """What Hypothesis chooses: a seed, an order of magnitude, and a few awkward numbers."""

    def __init__(self, seed: int, exponent: float, awkward: list[float]) -> None:
        self.seed, self.exponent, self.awkward = seed, exponent, awkward

    def __repr__(self) -> str:
        return f"Draw({self.seed}, {self.exponent}, {self.awkward})"

    @property
    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)

    def points(self, case: SetCase) -> Tensor:
        """Sixteen points: at a drawn scale, of ordinary size, beside the set, along its normals, and awkward ones."""
        generator = self.generator
        normal = torch.randn(12, *case.event, generator=generator, dtype=torch.float64)
        foot = case.constraint.project(normal[8:])
        beside = foot * (1.0 + 1e-9 * normal[:4])
        along = foot[:2] + 10.0**self.exponent * (normal[8:10] - foot[:2])
        size = math.prod(case.event)
        pattern = torch.tensor((self.awkward * size)[:size], dtype=torch.float64).reshape(1, *case.event)
        flat = torch.full((1, *case.event), self.awkward[0], dtype=torch.float64)
        single = torch.zeros(1, size, dtype=torch.float64)
        single[0, self.seed % size] = self.awkward[-1]
        parts = [
            10.0**self.exponent * normal[:4],
            normal[4:7],
            beside,
            along,
            pattern,
            flat,
            single.reshape(flat.shape),
        ]
        return torch.cat(parts)


draws = st.builds(
    Draw,
    st.integers(0, 2**32 - 1),
    st.floats(-12.0, 12.0),
    st.lists(st.floats(-1e150, 1e150).map(lambda v: v if abs(v) > 1e-290 else 0.0), min_size=1, max_size=3),
)  # smaller numbers have no room for a violation beside them


def length(v: Tensor) -> Tensor:
    """Norm of each event; the squares of 1e150 and 1e-300 must not spoil a test."""
    rows = v.reshape(len(v), math.prod(v.shape[1:]))
    peak = rows.abs().amax(1).clamp_min(1e-320)
    return peak * (rows / peak[:, None]).square().sum(1).sqrt()


def ones(v: Tensor) -> list[int]:
    """A one for every dimension of an event, to shape or to repeat chains only."""
    return [1] * (v.ndim - 1)


def members(case: SetCase, draw: Draw, foot: Tensor) -> Tensor:
    """Five points of the set for every foot, (5 n, *event): two other feet, and projections of three points near it."""
    noise = torch.randn(3, *foot.shape, generator=draw.generator, dtype=torch.float64)
    size = length(foot).reshape(-1, *ones(foot)) + 1e-12
    moved = [foot + share * size * w for share, w in zip((1.0, 1e-2, 1e-4), noise, strict=True)]
    near = case.constraint.project(torch.cat(moved))
    assert float(case.constraint.violation(near).max()) <= FEASIBLE
    return torch.cat([foot.roll(1, 0), foot.roll(6, 0), near])


# ------------------------------------------------------------------ contracts


def test_every_registered_set_has_a_row() -> None:
    assert {type(case.constraint) for case in SETS} == set(REGISTRY.values())


@quick_set
@contract
@given(draw=draws)
def test_projection_lands_where_the_violation_vanishes(case: SetCase, draw: Draw) -> None:
    z = draw.points(case)
    untouched = z.clone()
    foot, violation = case.constraint.project(z), case.constraint.violation(z)
    assert foot.shape == z.shape and foot.dtype == torch.float64
    assert torch.equal(z, untouched)
    assert float(case.constraint.violation(foot).max()) <= FEASIBLE
    again = case.constraint.project(foot)
    assert bool((length(again - foot) <= 1e-12 * length(foot)).all())
    assert violation.shape == (len(z),) and violation.dtype == torch.float64 and bool((violation >= 0).all())
    off = length(z - foot) > 1e-6 * (length(z) + length(foot))
    assert bool((violation[off] > 0).all())
    unmoved = (z == foot).reshape(len(z), math.prod(case.event)).all(1)
    assert bool((violation[unmoved] <= FEASIBLE).all())
    assert_float32_is_rounded_float64(case, z)
    assert_chains_do_not_see_each_other(case, draw, z, foot, violation)


@quick_set
@contract
@given(draw=draws)
def test_no_member_is_nearer_than_the_projection(case: SetCase, draw: Draw) -> None:
    z = draw.points(case)
    foot = case.constraint.project(z)
    other = members(case, draw, foot)
    if case.constraint.exact:
        distance, rounding = length(z - foot), 1e-13 * (length(z) + length(foot))
        assert bool((distance.repeat(5) <= length(z.repeat(5, *ones(z)) - other) + rounding.repeat(5)).all())
    if case.constraint.convex:
        assert_obtuse(z.repeat(5, *ones(z)), foot.repeat(5, *ones(z)), other)
        assert_nonexpansive(z, foot)


@slow_set
@few
@given(draw=draws)
def test_projections_that_take_long_land_at_nearest_points(case: SetCase, draw: Draw) -> None:
    test_projection_lands_where_the_violation_vanishes.hypothesis.inner_test(case, draw)
    test_no_member_is_nearer_than_the_projection.hypothesis.inner_test(case, draw)


def assert_chains_do_not_see_each_other(case: SetCase, draw: Draw, z: Tensor, foot: Tensor, violation: Tensor) -> None:
    """A permuted or sliced batch is projected to the permuted or sliced projection."""
    order = torch.randperm(len(z), generator=draw.generator)
    for pick in (order, slice(draw.seed % 8, 11), slice(None, None, 5)):
        picked = case.constraint.project(z[pick])
        assert bool((length(picked - foot[pick]) <= 1e-15 * (length(z[pick]) + length(foot[pick]))).all())
        assert torch.allclose(case.constraint.violation(z[pick]), violation[pick], rtol=1e-13, atol=1e-15)


def assert_float32_is_rounded_float64(case: SetCase, z: Tensor) -> None:
    narrow = z.clamp(-1e30, 1e30).to(torch.float32)
    foot, violation = case.constraint.project(narrow), case.constraint.violation(narrow)
    assert foot.dtype == torch.float32 and violation.dtype == torch.float64
    assert torch.equal(foot, case.constraint.project(narrow.to(torch.float64)).to(torch.float32))
    assert torch.equal(violation, case.constraint.violation(narrow.to(torch.float64)))


def assert_nonexpansive(z: Tensor, foot: Tensor) -> None:
    size = length(z) + length(foot)
    for shift in (1, 4, 7):
        before, after = length(z - z.roll(shift, 0)), length(foot - foot.roll(shift, 0))
        assert bool((after <= before * (1 + 1e-12) + 1e-14 * (size + size.roll(shift, 0))).all())


def assert_obtuse(z: Tensor, foot: Tensor, member: Tensor) -> None:
    """(z - P z) . (m - P z) <= 0 for all members m: what makes P z the nearest point of a convex set."""
    size = torch.stack([length(z), length(foot), length(member)]).amax(0).clamp_min(1e-300)
    size = size.reshape(-1, *ones(z))
    away, along = (z / size - foot / size).reshape(len(z), -1), (member / size - foot / size).reshape(len(z), -1)
    reach = torch.linalg.vector_norm(away, dim=1) + torch.linalg.vector_norm(along, dim=1)
    assert bool(((away * along).sum(1) <= 1e-14 * reach).all())


# ------------------------------------------------------------------ awkward points

CONSTANTS = (0.1, 1 / 3, -0.7, 1.7365823230488875e-09, 1e8, 1e150, -1e150, 1e-300, -1e-300, 5e-324)


def degenerate_points(case: SetCase) -> Tensor:
    zero = torch.zeros(1, *case.event, dtype=torch.float64)
    points = [zero, -zero, *(zero + value for value in CONSTANTS)]
    center = getattr(case.constraint, "center", None)
    if center is not None:
        points.append(center[None].clone())
    normal = torch.randn(8, *case.event, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return torch.cat([*points, normal * 1e150, normal * 1e-300, case.constraint.project(normal)])


@every_set
def test_projection_is_defined_at_degenerate_points(case: SetCase) -> None:
    z = degenerate_points(case)
    foot = case.constraint.project(z)
    violation = case.constraint.violation(foot)
    bad = torch.nonzero(~(violation <= FEASIBLE)).flatten().tolist()
    assert not bad, f"violation {violation[bad].tolist()} after projecting {z[bad].tolist()}"
    again = case.constraint.project(foot)
    assert bool((length(again - foot) <= 1e-12 * length(foot)).all())
    assert torch.equal(case.constraint.project(z), foot)


@every_set
def test_points_of_the_set_stay_where_they_are(case: SetCase) -> None:
    normal = torch.randn(64, *case.event, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    on = case.constraint.project(normal)
    moved = length(case.constraint.project(on) - on)
    assert bool((moved <= 1e-15 * (1 + length(on))).all())


@every_set
def test_projection_near_the_largest_float_is_feasible_or_refused(case: SetCase) -> None:
    """Never a silent infinity: 1.5e308 is a finite number, so the answer is a member of the set or an error."""
    signs = torch.randn(8, *case.event, generator=torch.Generator().manual_seed(5), dtype=torch.float64).sign()
    for z in (1.5e308 * signs, torch.full_like(signs, 1.5e308)):
        try:
            foot = case.constraint.project(z)
        except ProjectionError:
            continue
        assert bool(torch.isfinite(foot).all())
        assert float(case.constraint.violation(foot).max()) <= FEASIBLE


@every_set
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_non_finite_points_are_refused_by_index(case: SetCase, number: float) -> None:
    z = torch.ones(6, *case.event, dtype=torch.float64)
    z[1].view(-1)[0] = number
    z[4].view(-1)[-1] = number
    with pytest.raises(ProjectionError, match="2 of 6") as refused:
        case.constraint.project(z)
    assert refused.value.chains == (1, 4)
    violation = case.constraint.violation(z)
    assert torch.isinf(violation).tolist() == [False, True, False, False, True, False]
    good = case.constraint.violation(torch.ones(1, *case.event, dtype=torch.float64))
    assert torch.allclose(violation[[0, 2, 3, 5]], good.expand(4), rtol=1e-14, atol=1e-15)


@every_set
def test_a_batch_may_be_empty(case: SetCase) -> None:
    nothing = torch.zeros(0, *case.event, dtype=torch.float64)
    assert case.constraint.project(nothing).shape == nothing.shape
    assert case.constraint.violation(nothing).shape == (0,)


@every_set
def test_violation_does_not_use_the_projection(case: SetCase, monkeypatch: pytest.MonkeyPatch) -> None:
    z = degenerate_points(case)
    before = case.constraint.violation(z)

    def forbidden(self: Constraint, *args: object) -> Tensor:
        raise AssertionError("the certificate went through the projection")

    for name in ("_project", "_solve"):
        monkeypatch.setattr(type(case.constraint), name, forbidden, raising=False)
    assert torch.equal(case.constraint.violation(z), before)
    with pytest.raises(AssertionError, match="certificate"):
        case.constraint.project(z)


@every_set
def test_every_set_has_a_name(case: SetCase) -> None:
    inner = [part for part in vars(case.constraint).values() if isinstance(part, Constraint)]
    parts = [case.constraint, *getattr(case.constraint, "members", ()), *inner]
    assert any(type(part).__name__ in repr(case.constraint) for part in parts)


# ------------------------------------------------------------------ equations and inequalities apart


@every_set
def test_surface_and_solid_part_together_are_the_set(case: SetCase) -> None:
    constraint = case.constraint
    y = torch.randn(32, *case.event, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    surface, solid = geometry.parts(constraint, case.event)
    landed, nearest = geometry.nearest_on_surface(constraint, y), constraint.project(y)
    assert surface is None or float(surface.violation(landed.point).max()) <= FEASIBLE
    assert surface is not None or torch.equal(landed.point, y)
    assert surface is None or geometry.parts(surface, case.event).solid is None
    assert solid is None or geometry.parts(solid, case.event).surface is None
    for z in (y, nearest, landed.point):
        parts = [part.violation(z) <= FEASIBLE for part in (surface, solid) if part is not None]
        both = torch.stack(parts).all(0) if parts else torch.ones(len(z), dtype=torch.bool)
        assert torch.equal(both, constraint.violation(z) <= FEASIBLE)
    inside = landed.inside
    if constraint.exact:  # the nearest point of the surface that satisfies the inequalities is the nearest of C
        assert bool((length(landed.point - nearest)[inside] <= 1e-9 * (1 + length(nearest)[inside])).all())


@every_set
def test_landings_know_their_volume_factor_and_dimension(case: SetCase) -> None:
    constraint = case.constraint
    y = torch.randn(8, *case.event, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    landed, codimension = geometry.nearest_on_surface(constraint, y), geometry.codimension(constraint, case.event)
    geometry.check_dimensions(constraint, case.event)
    if case.id == "from-projection-cylinder":  # a user's surface, of which nothing more is known
        assert landed.log_volume is None and codimension is None and geometry.reach(constraint, case.event) is None
        return
    assert landed.log_volume is not None and bool(torch.isfinite(landed.log_volume).all())
    assert codimension is not None and 0 <= codimension <= math.prod(case.event)
    assert (codimension == 0) == (geometry.parts(constraint, case.event).surface is None)
    reach = geometry.reach(constraint, case.event)
    assert reach is None or reach > 0


# ------------------------------------------------------------------ flags and residuals


smooth = [case for case in SETS if case.id not in NO_RESIDUAL]
no_outside = ("box-whole-space", "affine-no-equation")


def inequality(constraint: Constraint, residual: Tensor) -> Tensor:
    """(m,) bool: which of the residuals are inequalities."""
    count = constraint._count_equations()
    assert count is not None
    return torch.arange(residual.shape[1]) >= count


def residual_size(constraint: Constraint, z: Tensor) -> Tensor:
    """Size of the numbers that cancel in the residual: squares for sets of second degree."""
    size = length(z)
    if isinstance(constraint, Sphere | Ball):
        shift = torch.zeros(()) if constraint.center is None else torch.linalg.vector_norm(constraint.center)
        return (size + shift) ** 2
    return size**2 + math.prod(z.shape[1:]) ** 0.5 * size if isinstance(constraint, MassEnergy) else 1 + size


@pytest.mark.parametrize("case", smooth, ids=lambda case: case.id)
def test_residual_vanishes_on_the_set(case: SetCase) -> None:
    normal = torch.randn(64, *case.event, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    on = case.constraint.project(3.0 * normal)
    residual = geometry.residual(case.constraint, on)
    assert residual.ndim == 2 and len(residual) == 64
    assert bool(torch.isfinite(residual).all())
    off = torch.where(inequality(case.constraint, residual), residual.clamp_min(0.0), residual.abs())
    assert bool((off <= 1e-14 * residual_size(case.constraint, on)[:, None]).all())


@pytest.mark.parametrize("case", [case for case in smooth if case.id not in no_outside], ids=lambda case: case.id)
def test_residual_tells_off_from_on(case: SetCase) -> None:
    normal = torch.randn(256, *case.event, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    z = 3.0 * normal if case.id != "sphere-tiny" else 1e-100 * normal
    off = length(z - case.constraint.project(z)) > 1e-6 * (1e-200 + length(z))
    assert int(off.sum()) >= 16
    residual = geometry.residual(case.constraint, z)
    reach = torch.where(inequality(case.constraint, residual), residual, residual.abs())
    assert bool((reach.amax(1)[off] > 0).all())


@pytest.mark.parametrize(
    ("constraint", "inside"),
    [
        (Ball(2.0, ramp(3)), ramp(3) + 0.1),
        (Box(torch.tensor([-torch.inf, 0.0]), torch.tensor([1.0, 2.0])), torch.tensor([-50.0, 1.0])),
        (HalfSpace([3.0, 4.0], 10.0), torch.tensor([1.0, 1.0])),
    ],
    ids=["ball", "box", "half-space"],
)
def test_inequalities_are_negative_inside(constraint: Constraint, inside: Tensor) -> None:
    assert constraint.solid and constraint._count_equations() == 0 and constraint.convex
    z = inside[None].to(torch.float64)
    assert bool((geometry.residual(constraint, z) < 0).all())
    assert float(constraint.violation(z)[0]) == 0.0
    assert torch.equal(constraint.project(z), z)


def test_a_set_without_residual_says_who_can_use_it() -> None:
    cylinder = next(case.constraint for case in SETS if case.id == "from-projection-cylinder")
    with pytest.raises(SettingError, match=r"FromProjection has no smooth residual.*CASAL"):
        geometry.residual(cylinder, torch.zeros(1, 3))


def test_residuals_follow_their_formulas() -> None:
    z = matrix(5, 4, seed=11)
    A, b = matrix(2, 4, seed=12), torch.tensor([3.0, -1.0], dtype=torch.float64)
    rows = A / A.square().sum(1, keepdim=True).sqrt()
    expected = torch.einsum("nd,md->nm", z, rows) - b / A.square().sum(1).sqrt()
    assert torch.allclose(geometry.residual(Affine(A, b), z), expected, rtol=0, atol=1e-14)
    half = geometry.residual(HalfSpace([0.0, 3.0, 0.0, 4.0], 2.5), z)
    assert torch.allclose(half[:, 0], (3 * z[:, 1] + 4 * z[:, 3] - 2.5) / 5, rtol=0, atol=1e-14)
    round_ = geometry.residual(Sphere(2.0, torch.ones(4)), z)
    assert torch.allclose(round_[:, 0], (z - 1).pow(2).sum(1) - 4, rtol=0, atol=1e-14)
    box = geometry.residual(Box(-1.0, torch.inf), z)
    assert torch.equal(box[:, :4], -1.0 - z) and bool((box[:, 4:] < -1e20).all())
    conserved = geometry.residual(MassEnergy(1.0, 5.0), z)
    assert torch.allclose(conserved, torch.stack([z.sum(1) - 1, (z * z).sum(1) - 5], 1), rtol=0, atol=1e-14)


# ------------------------------------------------------------------ violations worked out by hand


@pytest.mark.parametrize(
    ("constraint", "point", "expected"),
    [
        (Sphere(3.0), [0.0, 5.0], 2 / 3),
        (Sphere(3.0), [0.0, 0.0], 1.0),
        (Sphere(5.0, torch.tensor([3.0, 4.0])), [3.0, 4.5], 4.5 / 5),
        (Ball(3.0), [3.0, 4.0], 2 / 3),
        (Ball(3.0), [1.0, -1.0], 0.0),
        (Ball(1.0, torch.tensor([0.0, 2.0])), [0.0, 0.0], 1.0),
        (Box(-1.0, 1.0), [0.5, 3.0], 2 / 2),
        (Box(-1.0, 1.0), [-5.0, 3.0], 4 / 2),
        (Box(0.0, torch.inf), [-2.0, 7.0], 2 / 2),
        (Box(0.0, torch.inf), [2.0, 7e9], 0.0),
        (HalfSpace([3.0, 4.0], 5.0), [3.0, 4.0], 4 / 6),
        (HalfSpace([3.0, 4.0], 5.0), [-3.0, -4.0], 0.0),
        (Affine([[3.0, 4.0]], [5.0]), [3.0, 4.0], 4 / 6),
        (Affine([[3.0, 4.0]], [5.0]), [-3.0, -4.0], 6 / 6),
        (Affine([[1.0, 0.0], [0.0, 10.0]], [0.0, 10.0]), [0.0, 3.0], 2 / 4),
        (MassEnergy(0.0, 2.0), [1.0, 1.0], 2 / 2),
        (MassEnergy(0.0, 2.0), [2.0, -2.0], 6 / 2),
        (MassEnergy(2.0, 10.0), [1.0, -3.0], 4 / (4 + 2)),
    ],
)
def test_violation_by_hand(constraint: Constraint, point: list[float], expected: float) -> None:
    got = constraint.violation(torch.tensor([point], dtype=torch.float64))
    assert got.tolist() == pytest.approx([expected], rel=1e-13, abs=0.0)


# ------------------------------------------------------------------ answers from elsewhere


@pytest.mark.parametrize(("mass", "energy", "size"), [(2.0, 9.0, 7), (0.0, 3.0, 5), (-4.0, 6.0, 4), (5.0, 20.0, 12)])
def test_mass_energy_is_the_limit_of_alternating_projections(mass: float, energy: float, size: int) -> None:
    start = 2.0 * np.random.default_rng(8).standard_normal((50, size)) + 0.5
    y = start.copy()
    for _ in range(2000):
        y -= (y.sum(1, keepdims=True) - mass) / size
        y *= math.sqrt(energy) / np.linalg.norm(y, axis=1, keepdims=True)
    foot = MassEnergy(mass, energy).project(torch.from_numpy(start)).numpy()
    np.testing.assert_allclose(foot, y, rtol=0, atol=1e-10)


def test_mass_energy_at_a_constant_field_takes_the_documented_direction() -> None:
    foot = MassEnergy(3.0, 11.0).project(torch.full((1, 3), 0.1, dtype=torch.float64))
    assert foot[0].tolist() == pytest.approx([3.0, -1.0, 1.0], abs=1e-14)


def test_sphere_at_its_center_takes_the_first_axis() -> None:
    center = ramp(2, 2)
    foot = Sphere(2.0, center).project(center[None])
    assert (foot[0] - center).tolist() == [[2.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("system", ["row", "rows", "redundant", "badly-scaled"])
def test_affine_is_the_least_squares_correction(system: str) -> None:
    A, b = {
        "row": (ramp(1, 4), torch.tensor([2.0], dtype=torch.float64)),
        "rows": (matrix(3, 6), torch.tensor([1.0, 0.0, -2.0], dtype=torch.float64)),
        "redundant": redundant(),
        "badly-scaled": badly_scaled(),
    }[system]
    z = 5.0 * np.random.default_rng(9).standard_normal((20, A.shape[1]))
    rows = A.numpy()
    sizes = np.maximum(np.linalg.norm(rows, axis=1), 1e-300)
    scaled, level = rows / sizes[:, None], b.numpy() / sizes
    correction = np.linalg.lstsq(scaled, scaled @ z.T - level[:, None], rcond=None)[0].T
    foot = Affine(A, b).project(torch.from_numpy(z)).numpy()
    np.testing.assert_allclose(foot, z - correction, rtol=0, atol=1e-12)
    np.testing.assert_allclose(scaled @ foot.T, np.broadcast_to(level[:, None], (len(b), 20)), rtol=0, atol=1e-12)


def solve(z: np.ndarray, conditions: list[cvxpy.Constraint], x: cvxpy.Variable) -> np.ndarray:
    cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(x - z)), conditions).solve(
        solver=cvxpy.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9
    )
    return np.asarray(x.value)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["ball", "box", "half-space", "affine"])
def test_convex_sets_agree_with_a_conic_solver(kind: str, seed: int) -> None:
    z = 3.0 * np.random.default_rng(seed).standard_normal(5)
    x = cvxpy.Variable(5)
    center, normal, A = ramp(5), matrix(1, 5, seed=13)[0], matrix(2, 5, seed=14)
    constraint: Constraint
    if kind == "ball":
        constraint, conditions = Ball(1.5, center), [cvxpy.norm(x - center.numpy()) <= 1.5]
    elif kind == "box":
        high = torch.tensor([0.5, torch.inf, 0.5, torch.inf, 2.5])
        constraint, conditions = Box(center, high.maximum(center)), [x >= center.numpy()]
        finite = np.isfinite(high.numpy())
        conditions.append(x[finite] <= high.maximum(center).numpy()[finite])
    elif kind == "half-space":
        constraint, conditions = HalfSpace(normal, -2.0), [normal.numpy() @ x <= -2.0]
    else:
        constraint, conditions = Affine(A, [1.0, -1.0]), [A.numpy() @ x == np.array([1.0, -1.0])]
    foot = constraint.project(torch.from_numpy(z)[None])[0].numpy()
    np.testing.assert_allclose(foot, solve(z, conditions, x), rtol=0, atol=1e-6)


def test_circle_and_cylinder_beat_a_fine_grid() -> None:
    angle = np.linspace(0.0, 2 * np.pi, 200_001)
    z = np.random.default_rng(10).standard_normal((20, 2)) * 2
    grid = np.stack([np.cos(angle), np.sin(angle)], 1)
    best = np.array([np.linalg.norm(point - 2 * grid, axis=1).min() for point in z])
    for constraint, points in (
        (Sphere(2.0), torch.from_numpy(z)),
        (
            next(case.constraint for case in SETS if case.id == "from-projection-cylinder"),
            torch.from_numpy(np.concatenate([z, np.ones((20, 1))], 1)),
        ),
    ):
        distance = length(points - constraint.project(points)).numpy()
        assert bool((distance <= best + 1e-15).all())
        np.testing.assert_allclose(distance, best, rtol=0, atol=1e-6)


def test_ball_and_box_by_hand() -> None:
    z = torch.tensor([[6.0, 8.0], [0.3, 0.4]], dtype=torch.float64)
    assert Ball(5.0).project(z).flatten().tolist() == pytest.approx([3.0, 4.0, 0.3, 0.4], abs=1e-15)
    assert Box([0.0, -1.0], [1.0, torch.inf]).project(z).tolist() == [[1.0, 8.0], [0.3, 0.4]]
    assert HalfSpace([0.0, 2.0], 1.0).project(z).tolist() == [[6.0, 0.5], [0.3, 0.4]]


# ------------------------------------------------------------------ user-given projections


def test_from_projection_refuses_what_is_not_a_projection() -> None:
    z = torch.zeros(3, 2, dtype=torch.float64)
    with pytest.raises(ShapeError, match=r"\(3, 1\) for points of shape \(3, 2\)"):
        FromProjection(lambda z: z[:, :1], lambda z: z[:, 0]).project(z)
    with pytest.raises(ShapeError, match="list"):
        FromProjection(lambda z: z.tolist(), lambda z: z[:, 0]).project(z)  # type: ignore[arg-type,return-value]
    with pytest.raises(ProjectionError, match="non-finite"):
        FromProjection(lambda z: z / 0, lambda z: z[:, 0]).project(z)
    with pytest.raises(ShapeError, match="one number per point"):
        FromProjection(lambda z: z, lambda z: z).violation(z)
    with pytest.raises(SettingError, match="callables"):
        FromProjection(3, lambda z: z)  # type: ignore[arg-type]


def test_from_projection_hands_over_float64() -> None:
    seen: list[torch.dtype] = []

    def project(z: Tensor) -> Tensor:
        seen.append(z.dtype)
        return z.clamp(0, 1)

    def violation(z: Tensor) -> Tensor:
        seen.append(z.dtype)
        return (z - z.clamp(0, 1)).abs().amax(1)

    own = FromProjection(project, violation)
    assert own.project(torch.full((2, 2), 1.5)).dtype == torch.float32
    assert own.violation(torch.full((2, 2), 1.5)).tolist() == [0.5, 0.5]
    assert seen == [torch.float64] * 2
