"""Equations and inequalities apart: parts, landings, volume factors, unions, reach; for each chain too."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import casal
from casal.constraints import (
    Affine,
    AffineRound,
    Ball,
    Box,
    BoxHyperplane,
    Constraint,
    HalfSpace,
    Implicit,
    L1Ball,
    LinearDynamics,
    MassEnergy,
    MassEnergyBox,
    ObservedMassEnergy,
    PerChain,
    Polytope,
    Product,
    PSDCone,
    Simplex,
    Sphere,
    Through,
    Way,
    geometry,
)
from casal.errors import InfeasibleSet, SettingError

from .closed_form_cases import SETS as CLOSED_FORM
from .implicit_cases import SETS as IMPLICIT
from .iterative_cases import SETS as ITERATIVE
from .points import length, normal

SIZE = 4
POINTS = normal(300, SIZE, seed=1)
SHIFT = torch.tensor([0.3, -0.2, 0.1, 0.4], dtype=torch.float64)
TURN = torch.linalg.qr(normal(SIZE, SIZE, seed=2)).Q
ROWS = torch.linalg.qr(normal(6, SIZE, seed=3)).Q.T
SKEW = torch.eye(SIZE, dtype=torch.float64) + 0.3 * normal(SIZE, SIZE, seed=4)
ONES = torch.ones(1, SIZE, dtype=torch.float64)
OFF = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)


def cap() -> Implicit:
    return Implicit(lambda z: z.square().sum(1, keepdim=True) - 1.5, lambda z: z[:, :1] - 0.5)


MIXED: dict[str, Constraint] = {
    "simplex": Simplex(1.0),
    "box with an equation": BoxHyperplane(-0.5, 1.0, [1.0, 2.0, -1.0, 0.5], 0.3),
    "box with an equation and a fixed coordinate": BoxHyperplane([0.2, -1, -1, -1], [0.2, 1, 1, 1], ONES[0], 0.3),
    "box with fixed coordinates": Box([0.2, -1.0, -1.0, 0.0], [0.2, 1.0, 1.0, 0.0]),
    "ball with an equation": Affine(ONES, 0.5) & Ball(1.5),
    "mass, energy and bounds": MassEnergyBox(1.0, 1.2, -0.5, 1.0),
    "mass, energy and a fixed coordinate": MassEnergyBox(1.0, 2.0, [0.1, -1, -1, -1], [0.1, 1.5, 1.5, 1.5]),
    "two equations and bounds": Affine(torch.cat([ONES, OFF[None]]), [0.5, 0.1]) & Box(-0.5, 1.0),
    "equation and half-space": Affine(ONES, 0.5) & HalfSpace([1.0, -1.0, 0.0, 0.0], 0.2),
    "opposite rows": Polytope(torch.cat([ONES, -ONES, OFF[None]]), [0.5, -0.5, 0.4]),
    "sphere and half-space": Sphere(1.2) & HalfSpace([1.0, -1.0, 0.0, 0.0], 0.2),
    "two spheres and a box": Sphere(1.2) & Sphere(1.0, OFF) & Box(-1.0, 1.0),
    "mass, energy, an equation and bounds": MassEnergy(1.0, 2.0) & Affine(OFF, 0.2) & Box(-1.0, 1.5),
    "product": Product(Sphere(1.0), Box(-1.0, 1.0), sizes=(2, 2)),
    "cap": cap(),
    "cap and a fixed coordinate": cap() & Box([-9.0, 0.2, -9.0, -9.0], [9.0, 0.2, 9.0, 9.0]),
    "ball and product": Product(Sphere(1.0), Box(0.0, 1.0), sizes=(2, 2)) & Ball(1.5),
}

ALGEBRA = {
    "as it is": lambda c: c,
    "shifted": lambda c: c.shifted(SHIFT),
    "scaled": lambda c: c.scaled(0.7),
    "turned": lambda c: c.through(2.0 * TURN),
    "behind orthonormal rows": lambda c: c.through(ROWS),
    "behind a matrix": lambda c: c.through(SKEW),
    "with a half-space": lambda c: c & HalfSpace([0.0, 1.0, 1.0, -0.5], 0.8),
}


def points_for(constraint: Constraint) -> Tensor:
    """Few points for sets that are projected by Newton steps."""
    count = 6 if constraint.way is Way.NEWTON else 25
    wide = isinstance(constraint, Through) and constraint.A.shape[1] == 6
    return normal(count, 6, seed=5) if wide else POINTS[:count]


def assert_parts_make_the_set(constraint: Constraint, y: Tensor) -> None:
    """z is in C if and only if it is in both parts; feet are on the surface; those inside are the nearest of C."""
    event = tuple(y.shape[1:])
    surface, solid = geometry.parts(constraint, event)
    assert geometry.parts(constraint, event).surface is surface and geometry.parts(constraint, event).solid is solid
    found = constraint.solve(y)
    member = found.point[found.converged]
    landed = geometry.nearest_on_surface(constraint, y)
    for part in (surface, solid):
        assert part is None or part.chains == constraint.chains or part.chains is None
    if surface is not None:
        assert float(surface.violation(landed.point).max()) <= 1e-9
        assert geometry.parts(surface, event).surface is not None and geometry.parts(surface, event).solid is None
        assert landed.log_volume is not None and bool(torch.isfinite(landed.log_volume).all())
    if solid is not None:
        assert geometry.parts(solid, event).surface is None
    if constraint.chains is None:
        for z in (member, y, landed.point):
            inside = constraint.violation(z) <= 1e-9
            both = torch.ones_like(inside)
            for part in (surface, solid):
                both = both if part is None else both & (part.violation(z) <= 1e-9)
            assert torch.equal(inside, both)
    assert float(constraint.violation(landed.point)[landed.inside].max() if landed.inside.any() else 0.0) <= 1e-9
    if constraint.convex:
        gap = length(landed.point - found.point)[landed.inside & found.converged]
        assert bool((gap <= 1e-7).all())


@pytest.mark.parametrize("change", ALGEBRA)
@pytest.mark.parametrize("name", MIXED)
def test_equations_and_inequalities_of_sets_made_of_mixed_sets(name: str, change: str) -> None:
    constraint = ALGEBRA[change](MIXED[name])
    y = points_for(constraint)
    found = constraint.solve(y)
    assert bool(found.converged.all())
    assert float(constraint.violation(found.point[found.converged]).max()) <= 1e-9
    assert_parts_make_the_set(constraint, y)
    assert geometry.codimension(constraint, tuple(y.shape[1:])) not in (0, None)


MANY = [row for row in (*CLOSED_FORM, *ITERATIVE, *IMPLICIT) if "tiny" not in row[0] and "huge" not in row[0]]


@pytest.mark.parametrize("row", MANY, ids=lambda row: row[0])
def test_equations_and_inequalities_of_every_set(row: tuple[str, Constraint, tuple[int, ...]]) -> None:
    _, constraint, event = row
    assert_parts_make_the_set(constraint, normal(50, *event, seed=6))
    assert geometry.codimension(constraint, event) is not None


# ------------------------------------------------------------------ which parts


def test_a_simplex_is_an_equation_and_an_orthant() -> None:
    landed = geometry.nearest_on_surface(
        Simplex(), torch.tensor([[0.5, 0.4, 0.4], [2.0, 0.0, -0.2]], dtype=torch.float64)
    )
    assert landed.inside.tolist() == [True, False]
    assert landed.point.tolist()[1] == pytest.approx([2.0 - 0.8 / 3, -0.8 / 3, -0.2 - 0.8 / 3])
    assert landed.log_volume is not None and landed.log_volume.tolist() == [0.0, 0.0]
    assert geometry.codimension(Simplex(), (3,)) == 1


@pytest.mark.parametrize(
    ("constraint", "point"),
    [
        (Simplex(0.0), [0.0, 0.0]),
        (L1Ball(0.0), [0.0, 0.0]),
        (Ball(0.0, torch.tensor([1.0, 2.0])), [1.0, 2.0]),
        (Box([1.0, 2.0], [1.0, 2.0]), [1.0, 2.0]),
        (BoxHyperplane(0.0, [1.0, 2.0], [1.0, 1.0], 3.0), [1.0, 2.0]),
        (MassEnergy(2.0, 2.0), [1.0, 1.0]),
        (Affine([1.0, 0.0], 1.0) & Ball(1.0), [1.0, 0.0]),
        (Affine([1.0, 0.0], 1.0) & Sphere(1.0), [1.0, 0.0]),
        (Sphere(0.0, torch.tensor([1.0, 2.0])), [1.0, 2.0]),
        (Box(0.0, 1.0) & Box(1.0, 2.0), [1.0, 1.0]),
        (Box(0.0, torch.inf) & HalfSpace([1.0, 1.0], 0.0), [0.0, 0.0]),
        (MassEnergyBox(3.0, 5.0, 0.0, [1.0, 2.0]), [1.0, 2.0]),
    ],
)
def test_a_point_is_a_surface_of_full_codimension(constraint: Constraint, point: list[float]) -> None:
    landed = geometry.nearest_on_surface(constraint, normal(5, 2))
    assert torch.allclose(landed.point, torch.tensor(point, dtype=torch.float64).expand(5, 2), atol=1e-9)
    assert (
        bool(landed.inside.all())
        and geometry.codimension(constraint, (2,)) == 2
        and geometry.reach(constraint, (2,)) == math.inf
    )
    assert landed.log_volume is not None and landed.log_volume.tolist() == [0.0] * 5


def test_equations_in_disguise_are_found_and_the_rest_keeps_an_interior() -> None:
    # z1 + z2 <= 1 and z1, z2 >= 1/2 leave one point of the plane and a free third coordinate in [0, 1].
    rows = [[1.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, -1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, -1.0]]
    constraint = Polytope(rows, [1.0, -0.5, -0.5, 1.0, 0.0])
    surface, solid = geometry.parts(constraint, (3,))
    assert surface is not None and solid is not None and geometry.codimension(constraint, (3,)) == 2
    landed = geometry.nearest_on_surface(
        constraint, torch.tensor([[3.0, 1.0, 0.5], [0.0, 0.0, 2.0]], dtype=torch.float64)
    )
    assert torch.allclose(landed.point[:, :2], torch.full((2, 2), 0.5, dtype=torch.float64))
    assert landed.inside.tolist() == [True, False]


def test_an_inequality_that_the_equations_touch_everywhere_keeps_all_points_inside() -> None:
    plane = Affine(ONES, 0.7) & HalfSpace(ONES[0], 0.7)
    assert bool(geometry.nearest_on_surface(plane, 100.0 * POINTS).inside.all())
    shell = MassEnergy(1.0, 2.0) & Ball(math.sqrt(2.0))
    assert bool(geometry.nearest_on_surface(shell, POINTS).inside.all())


def test_matrices_and_trajectories() -> None:
    z = normal(20, 3, 3)
    landed = geometry.nearest_on_surface(PSDCone(), z)
    assert torch.allclose(landed.point, 0.5 * (z + z.mT)) and geometry.codimension(PSDCone(), (3, 3)) == 3
    assert torch.equal(landed.inside, torch.linalg.eigvalsh(landed.point).amin(1) >= 0)
    system = LinearDynamics.double_integrator(1.0, steps=4, dt=0.5, u_max=0.8)
    landed = geometry.nearest_on_surface(system, normal(50, 4, 2))
    assert torch.equal(landed.inside, landed.point[..., 1].abs().amax(1) <= 0.8)
    assert 0 < int(landed.inside.sum()) < 50 and geometry.codimension(system, (4, 2)) == 4


def test_an_implicit_set_hands_its_jacobian_and_scales_to_its_parts() -> None:
    def jacobian(z: Tensor) -> Tensor:
        return torch.stack([2.0 * z, torch.eye(3, dtype=z.dtype)[0].expand_as(z)], dim=1)

    both = Implicit(
        lambda z: z.square().sum(1, keepdim=True) - 1.0, lambda z: z[:, :1], jacobian=jacobian, scale=[2.0, 3.0]
    )
    surface, solid = geometry.parts(both, (3,))
    assert surface is not None and solid is not None
    z = torch.tensor([[2.0, 0.0, 0.0]], dtype=torch.float64)
    assert surface.violation(z).tolist() == [1.5] and solid.violation(z).tolist() == [2.0 / 3.0]
    assert torch.allclose(surface.project(z), z / 2.0)


def test_inequalities_behind_a_matrix_stay_inequalities() -> None:
    ball = Implicit(None, lambda z: z.square().sum(1, keepdim=True) - 1.0)
    for A in (SKEW, 2.0 * TURN, ROWS, normal(6, SIZE, seed=7)):
        behind = ball.through(A)
        y = 0.3 * normal(50, A.shape[1], seed=8)
        landed = geometry.nearest_on_surface(behind, y)
        assert torch.equal(landed.point, y) and geometry.codimension(behind, (A.shape[1],)) == 0
        assert torch.equal(landed.inside, (y @ A.T).square().sum(1) <= 1.0) and bool(landed.inside.any())


# ------------------------------------------------------------------ volume factors


def numerical_tube(surface: Constraint, x: Tensor, dimension: int, step: float = 1e-5) -> Tensor:
    """-log |det DP(x)| over the tangent space at P(x), DP by central differences."""
    size = x.shape[1]
    columns = [
        (surface.project(x + step * axis) - surface.project(x - step * axis)) / (2.0 * step)
        for axis in torch.eye(size, dtype=torch.float64)
    ]
    derivative = torch.stack(columns, dim=2)
    tangents = torch.linalg.svd(derivative).U[:, :, :dimension]
    return -torch.linalg.slogdet(tangents.mT @ derivative @ tangents).logabsdet


@pytest.mark.parametrize(
    ("constraint", "size"),
    [
        (Product(Sphere(1.0), MassEnergy(0.5, 2.0), None, sizes=(3, 4, 1)), 8),
        (Product(Sphere(1.0), Simplex(), sizes=(3, 2)), 5),
        (Sphere(0.7).scaled(0.4).shifted(0.1), 3),
        (MassEnergy(1.0, 2.0).through(2.0 * TURN), 4),
        (Sphere(0.7).through(ROWS), 6),
        (Sphere(0.9).through(SKEW), 4),
        (Sphere(1.2) & Sphere(1.0, OFF) & Box(-1.0, 1.0), 4),
        (MassEnergy(1.0, 3.0) & Affine(OFF, 0.2), 4),
        (MassEnergyBox(1.0, 2.0, [0.1, -1, -1, -1], [0.1, 1.5, 1.5, 1.5]), 4),
        (Sphere(1.0).shifted(SHIFT) & Affine(ONES, 0.2), 4),
        (Box([0.2, -1.0, -1.0, 0.0], [0.2, 1.0, 1.0, 0.0]), 4),
        (cap(), 4),
    ],
)
def test_tube_factor_is_the_determinant_of_the_projection(constraint: Constraint, size: int) -> None:
    x = normal(12, size, seed=9)
    codimension = geometry.codimension(constraint, (size,))
    surface = geometry.parts(constraint, (size,)).surface
    assert codimension is not None and surface is not None
    landed = geometry.nearest_on_surface(constraint, x)
    assert landed.log_volume is not None
    expected = numerical_tube(surface, x, size - codimension)
    assert torch.allclose(landed.log_volume, expected, atol=1e-5)
    assert torch.allclose(landed.point, surface.project(x), atol=1e-12)


# ------------------------------------------------------------------ unions


def test_a_union_lands_on_the_nearest_piece() -> None:
    small, large = Sphere(0.5), Sphere(2.0)
    union = small | large
    y = 1.5 * POINTS
    landed = geometry.nearest_on_surface(union, y)
    near_small = length(y) < 1.25
    for chosen, member in ((near_small, small), (~near_small, large)):
        alone = geometry.nearest_on_surface(member, y)
        assert bool(chosen.any()) and torch.equal(landed.point[chosen], alone.point[chosen])
        assert landed.log_volume is not None and alone.log_volume is not None
        assert torch.equal(landed.log_volume[chosen], alone.log_volume[chosen])
    assert torch.equal(landed.point, union.project(y))
    assert geometry.codimension(union, (SIZE,)) == 1 and geometry.reach(union, (SIZE,)) == pytest.approx(0.5)
    assert geometry.parts(union, (SIZE,)).surface is union


def test_reach_of_a_union_is_half_the_distance_where_that_is_less() -> None:
    assert geometry.reach((Sphere(1.0) | Sphere(1.0, 3.0 * OFF)), (SIZE,)) == pytest.approx(0.5)
    assert geometry.reach((Sphere(1.0) | Sphere(1.2)), (SIZE,)) == pytest.approx(0.1)
    assert geometry.reach((Sphere(1.0) | Sphere(1.0, OFF)), (SIZE,)) == pytest.approx(1.0)
    assert geometry.reach((Affine(ONES, 0.0) | Affine(ONES, 4.0)), (SIZE,)) == pytest.approx(1.0)


def test_pieces_with_inequalities_land_by_the_distance_to_the_whole_piece() -> None:
    left = Affine([0.0, 1.0], 0.0) & Box([-torch.inf, -torch.inf], [0.0, torch.inf])
    right = Affine([0.0, 1.0], 1.0) & Box([0.0, -torch.inf], [torch.inf, torch.inf])
    union = left | right
    y = torch.tensor([[1.0, 0.1], [-1.0, 0.9], [1.0, 0.6], [-0.1, 2.0]], dtype=torch.float64)
    landed = geometry.nearest_on_surface(union, y)
    assert landed.point.tolist() == [[1.0, 1.0], [-1.0, 0.0], [1.0, 1.0], [-0.1, 1.0]]
    assert landed.inside.tolist() == [True, True, True, False]
    with pytest.raises(SettingError, match="treats each piece"):
        geometry.parts(union, (2,))


@pytest.mark.parametrize(
    "change",
    [
        lambda union: union,
        lambda union: union.shifted(SHIFT[:2]),
        lambda union: union.scaled(2.0),
        lambda union: union.through(torch.eye(2)),
        lambda union: union.through([[1.0, 0.5], [0.0, 2.0]]),
        lambda union: union & HalfSpace([1.0, 0.0], 0.5),
        lambda union: Product(union, None, sizes=(2, 1)),
    ],
)
@pytest.mark.parametrize("union", [Ball(0.0) | Sphere(1.0), Ball(0.5) | Sphere(1.0)], ids=["point", "disc"])
def test_pieces_of_different_dimension_are_refused_with_the_reason(union: Constraint, change: object) -> None:
    assert callable(change)
    made = change(union)
    event = (3,) if isinstance(made, Product) else (2,)
    with pytest.raises(SettingError, match=r"different dimension.*probability zero.*leave them out"):
        geometry.check_dimensions(made, event)
    assert geometry.codimension(made, event) is None


@pytest.mark.parametrize("name", MIXED)
def test_sets_without_a_union_and_pieces_of_one_dimension_pass(name: str) -> None:
    geometry.check_dimensions(MIXED[name], (SIZE,))
    geometry.check_dimensions((MIXED[name] | MIXED[name].shifted(3.0)), (SIZE,))


def test_a_union_meets_other_sets_piece_by_piece() -> None:
    union = (Sphere(0.5) | Sphere(2.0)) & HalfSpace(OFF, 0.2)
    assert "nearest of the pieces" in union.explain()
    y = 1.5 * POINTS
    landed, found = geometry.nearest_on_surface(union, y), union.solve(y)
    assert bool(found.converged.all()) and float(union.violation(found.point).max()) <= 1e-9
    spheres = Sphere(0.5) | Sphere(2.0)
    inside = landed.inside
    assert 0 < int(inside.sum()) < len(y)
    assert float(spheres.violation(landed.point).max()) <= 1e-12
    assert torch.equal(inside, landed.point[:, 0] <= 0.2)
    assert torch.allclose(landed.point[inside], found.point[inside], atol=1e-9)
    # Of two pieces, one is out of reach: the other is left.
    only = (Sphere(0.5) | Sphere(2.0)) & Ball(1.0)
    assert torch.allclose(geometry.nearest_on_surface(only, y).point, Sphere(0.5).project(y))
    with pytest.raises(InfeasibleSet, match="no common point"):
        geometry.nearest_on_surface(((Sphere(2.0) | Sphere(3.0)) & Ball(1.0)), y)


def test_bounds_and_centers_say_for_how_many_coordinates_they_are_written() -> None:
    """So a density on them needs no starting point."""
    three = torch.ones(3, dtype=torch.float64)
    for found in (casal.Box(0.0 * three, three), casal.Box(None, three), casal.Ball(1.0, three)):
        assert found.written_for == 3
        energy = casal.energy(lambda x: x.square().sum(1), steps=40)
        assert casal.sample(energy, found, casal.HMC(), 8).samples.shape == (8, 3)
    assert casal.Box(0.0, 1.0).written_for is None and casal.Ball(1.0).written_for is None
    assert casal.Box(0.0 * three, three).project(torch.zeros(2, 4, 3)).shape == (2, 4, 3)


def test_a_product_is_written_for_the_coordinates_of_all_its_blocks() -> None:
    """Free ones included, and not for those of the first block that knows its own number."""
    blocks = casal.Product(casal.Affine([[1.0, 1.0]], [1.0]), None, casal.Box(-1.0, 2.0), sizes=(2, 1, 1))
    assert blocks.written_for == 4 and (blocks & casal.Ball(3.0)).written_for == 4
    assert blocks.explain().endswith("; dimension 3 of 4; 2 walls")
    density = casal.langevin(lambda x: x, steps=20, step_size=0.1, potential=lambda x: x.square().sum(1) / 2)
    assert casal.sample(density, blocks, "auto", 8, check=False).samples.shape == (8, 4)


def test_products_and_motions_of_unions_land_as_their_blocks_do() -> None:
    union = Sphere(0.5) | Sphere(2.0)
    y = normal(30, 6)
    product = geometry.nearest_on_surface(Product(union, union, sizes=(3, 3)), y)
    blocks = [geometry.nearest_on_surface(union, y[:, :3]), geometry.nearest_on_surface(union, y[:, 3:])]
    assert torch.equal(product.point, torch.cat([block.point for block in blocks], dim=1))
    assert product.log_volume is not None
    assert torch.allclose(product.log_volume, blocks[0].log_volume + blocks[1].log_volume)  # type: ignore[operator]
    moved = geometry.nearest_on_surface(union.shifted(1.0).scaled(3.0), y)
    assert torch.allclose(moved.point, 3.0 * (geometry.nearest_on_surface(union, y / 3.0 - 1.0).point + 1.0))


def test_reach_of_surfaces() -> None:
    assert geometry.reach(Sphere(0.3), (3,)) == 0.3 and geometry.reach(
        Sphere(PerChain([0.3, 0.2])), (3,)
    ) == pytest.approx(0.2)
    assert geometry.reach(MassEnergy(1.0, 3.0), (4,)) == pytest.approx(math.sqrt(3.0 - 0.25))
    assert geometry.reach(ObservedMassEnergy([0], [1.0], energy=5.0), (3,)) == pytest.approx(2.0)
    assert geometry.reach(AffineRound(Affine([1.0, 0.0], 0.6), Sphere(1.0)), (2,)) == pytest.approx(0.8)
    assert (
        geometry.reach(Affine(ONES, 1.0), (SIZE,))
        == geometry.reach(Simplex(), (3,))
        == geometry.reach(Ball(1.0), (3,))
        == math.inf
    )
    assert geometry.reach(Sphere(0.3).scaled(2.0).shifted(1.0), (3,)) == pytest.approx(0.6)
    assert geometry.reach(Sphere(0.3).through(2.0 * TURN), (SIZE,)) == pytest.approx(0.15)
    assert geometry.reach(Product(Sphere(0.3), Sphere(0.2), sizes=(2, 2)), (4,)) == pytest.approx(0.2)
    assert geometry.reach(cap(), (SIZE,)) is None


# ------------------------------------------------------------------ parameters for each chain

N = 6
LEVELS = torch.linspace(0.4, 0.9, N, dtype=torch.float64)
CENTERS = 0.2 * normal(N, SIZE, seed=10)


@pytest.mark.parametrize(
    "constraint",
    [
        Simplex(PerChain(LEVELS)),
        Simplex(PerChain([0.0, 1.0, 1.0, 0.0, 2.0, 1.0])),
        Ball(PerChain([0.0, 1.0, 1.0, 0.0, 2.0, 1.0]), PerChain(CENTERS)),
        L1Ball(PerChain([0.0, 1.0, 1.0, 0.0, 2.0, 1.0])),
        Sphere(PerChain([0.0, 1.0, 1.0, 0.0, 2.0, 1.0])),
        BoxHyperplane(-0.5, PerChain(LEVELS + 0.3), ONES[0], PerChain(LEVELS)),
        BoxHyperplane(PerChain(torch.diag(LEVELS)[:, :4].clone()), 1.0, ONES[0], 1.0),
        Box(PerChain(CENTERS), PerChain(CENTERS + torch.tensor([0.0, 1.0, 1.0, 1.0]))),
        Box(PerChain(CENTERS), PerChain(torch.where(torch.eye(N)[:, :4] > 0, CENTERS, CENTERS + 1.0))),
        MassEnergyBox(PerChain(LEVELS), PerChain(1.0 + LEVELS), -0.8, 1.0),
        MassEnergyBox(PerChain(LEVELS), 1.5, [0.1, -1.0, -1.0, -1.0], [0.1, 1.0, 1.0, 1.0]),
        Affine(ONES, PerChain(LEVELS)) & Ball(1.5, PerChain(CENTERS)),
        Affine(ONES, PerChain(LEVELS)) & Affine(OFF, 0.1) & Box(-0.5, 1.0),
        MassEnergy(PerChain(LEVELS), 2.0) & HalfSpace(OFF, PerChain(LEVELS - 0.2)),
        Simplex(PerChain(LEVELS)).shifted(PerChain(CENTERS)),
        Simplex(PerChain(LEVELS)).through(SKEW),
        Sphere(PerChain(LEVELS)).through(SKEW) & HalfSpace(OFF, 0.3),
        Product(Sphere(PerChain(LEVELS)), Simplex(PerChain(LEVELS)), sizes=(2, 2)),
        Sphere(PerChain(LEVELS)) | Sphere(PerChain(3.0 * LEVELS)),
        (Sphere(PerChain(LEVELS)) | Sphere(2.0)) & HalfSpace(OFF, PerChain(LEVELS - 0.2)),
        Sphere(1.0, PerChain(CENTERS)) & Sphere(1.1) & HalfSpace(OFF, 0.3),
    ],
    ids=lambda constraint: type(constraint).__name__,
)
def test_each_chain_lands_as_it_would_alone(constraint: Constraint) -> None:
    y = normal(N, SIZE, seed=11)
    together = geometry.nearest_on_surface(constraint, y)
    assert together.log_volume is not None
    for chain in range(N):
        own = constraint.take(slice(chain, chain + 1))
        alone = geometry.nearest_on_surface(own, y[chain : chain + 1])
        assert own.chains == 1 and geometry.nearest_on_surface(
            own.take(slice(0, 1)), y[chain : chain + 1]
        ).inside.shape == (1,)
        assert torch.allclose(together.point[chain], alone.point[0], atol=1e-10)
        assert bool(together.inside[chain]) == bool(alone.inside[0])
        assert alone.log_volume is not None
        assert float(together.log_volume[chain]) == pytest.approx(float(alone.log_volume[0]), abs=1e-9)
        single = geometry.nearest_on_surface(constraint._alone(chain), y[chain : chain + 1])
        assert torch.allclose(together.point[chain], single.point[0], atol=1e-9)
        assert bool(together.inside[chain]) == bool(single.inside[0])


def test_bounds_that_fix_other_coordinates_in_each_chain_need_runs_of_their_own_with_mass_and_energy() -> None:
    low = torch.where(torch.eye(SIZE) > 0, 0.1, -1.0)
    constraint = MassEnergyBox(0.5, 1.5, PerChain(low), PerChain(torch.where(torch.eye(SIZE) > 0, 0.1, 1.5)))
    with pytest.raises(SettingError, match=r"runs of their own"):
        geometry.parts(constraint, (SIZE,))
    assert geometry.codimension(constraint.take(slice(1, 2)), (SIZE,)) == 3


def test_float32_points_land_on_the_rounded_feet() -> None:
    y = POINTS.to(torch.float32)
    for constraint in (Simplex(), MIXED["mass, energy and bounds"], MIXED["product"], Simplex().shifted(SHIFT)):
        landed, wide = (
            geometry.nearest_on_surface(constraint, y),
            geometry.nearest_on_surface(constraint, y.to(torch.float64)),
        )
        assert landed.point.dtype == torch.float32 and torch.equal(landed.point, wide.point.to(torch.float32))
        assert torch.equal(landed.inside, wide.inside)
