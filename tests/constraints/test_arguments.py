"""What sets take: arguments that are copied and checked, points of whole numbers, bounds that broadcast."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from casal.constraints import (
    SETS,
    Affine,
    Ball,
    Box,
    BoxHyperplane,
    Constraint,
    Ellipsoid,
    FromProjection,
    HalfSpace,
    Implicit,
    L1Ball,
    LinearDynamics,
    MassEnergy,
    MassEnergyBox,
    Monotone,
    ObservedMassEnergy,
    Obstacles,
    PerChain,
    Polytope,
    Product,
    Scaled,
    Shifted,
    Simplex,
    Sphere,
    Through,
    geometry,
)
from casal.errors import CasalError, SettingError, ShapeError

from .points import normal

NAN = math.nan


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def single(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def squares(z: Tensor) -> Tensor:
    return z.square()


HALF, ROWS = numbers(0.5, 0.25, 0.5, 0.25), normal(2, 4, seed=1)
Arguments = dict[str, Any]

# Constructors and their arguments, for events (4,), or (2, 2) for PAIRS.
SOME: dict[str, tuple[Callable[..., Constraint], Arguments]] = {
    "affine": (Affine, {"A": ROWS, "b": numbers(0.2, 0.1)}),
    "affine per chain": (Affine, {"A": ROWS, "b": PerChain(normal(3, 2))}),
    "half-space": (HalfSpace, {"a": HALF, "b": single(0.3)}),
    "half-space per chain": (HalfSpace, {"a": HALF, "b": PerChain(numbers(0.1, 0.2, 0.3))}),
    "box": (Box, {"low": -HALF, "high": HALF}),
    "box of numbers": (Box, {"low": single(-0.5), "high": single(0.5)}),
    "box per chain": (Box, {"low": PerChain(-HALF.expand(3, 4)), "high": HALF}),
    "polytope": (Polytope, {"G": ROWS, "h": numbers(0.2, 0.1)}),
    "bounds and plane": (BoxHyperplane, {"low": -HALF, "high": HALF, "a": ROWS[0].clone(), "b": single(0.01)}),
    "sphere": (Sphere, {"radius": single(0.5), "center": HALF}),
    "sphere per chain": (Sphere, {"radius": PerChain(numbers(0.1, 0.2, 0.3)), "center": PerChain(HALF.expand(3, 4))}),
    "ball": (Ball, {"radius": single(0.5), "center": HALF}),
    "ellipsoid": (Ellipsoid, {"axes_or_matrix": HALF, "center": HALF}),
    "ellipsoid of a matrix": (Ellipsoid, {"axes_or_matrix": torch.eye(4, dtype=torch.float64), "center": HALF}),
    "simplex": (Simplex, {"total": single(0.5)}),
    "l1 ball": (L1Ball, {"radius": single(0.5)}),
    "mass and energy": (MassEnergy, {"mass": single(0.5), "energy": single(1.0)}),
    "mass and energy per chain": (MassEnergy, {"mass": PerChain(numbers(0.1, 0.2, 0.3)), "energy": single(1.0)}),
    "mass and energy in bounds": (
        MassEnergyBox,
        {"mass": single(0.5), "energy": single(0.6), "low": -torch.ones(4).double(), "high": torch.ones(4).double()},
    ),
    "observed": (
        ObservedMassEnergy,
        {"index": torch.tensor([1]), "values": numbers(0.3), "mass": single(0.5), "energy": single(1.0)},
    ),
    "dynamics": (
        LinearDynamics,
        {
            "A": numbers(-0.5).reshape(1, 1),
            "B": numbers(1.0).reshape(1, 1),
            "steps": 2,
            "dt": 0.5,
            "u_max": single(0.3),
            "y0": numbers(0.1),
            "scale_y": numbers(1.5),
            "scale_u": numbers(0.5),
        },
    ),
    "intervals": (Obstacles, {"intervals": [[0, 2, single(0.1), single(0.6)]]}),
    "discs": (Obstacles, {"discs": [[numbers(0.1, 0.2), single(0.6)]]}),
    "boxes": (Obstacles, {"boxes": [[numbers(-0.1, -0.2), numbers(0.6, 0.3)]]}),
    "segments": (Obstacles, {"segments": [[numbers(-0.1, -0.2), numbers(0.6, 0.3), single(0.2)]]}),
    "implicit": (Implicit, {"fn": lambda z: squares(z) - 0.1, "scale": numbers(1.0, 2.0, 3.0, 4.0)}),
    "shifted": (lambda by: Shifted(Ball(0.5), by), {"by": HALF}),
    "shifted by a number": (lambda by: Shifted(Ball(0.5), by), {"by": single(0.5)}),
    "shifted per chain": (lambda by: Shifted(Ball(0.5), by), {"by": PerChain(HALF.expand(3, 4))}),
    "scaled": (lambda by: Scaled(Ball(0.5), by), {"by": single(0.5)}),
    "through": (lambda A: Through(Ball(0.2), A), {"A": ROWS}),
    "through rows of length one": (lambda A: Through(Ball(0.2), A), {"A": torch.eye(4, dtype=torch.float64)[:2]}),
    "product": (lambda center: Product(Ball(0.1, center), None, sizes=(2, 2)), {"center": numbers(0.5, 0.5)}),
    "intersection": (lambda low, center: Box(low, 1.0) & Ball(0.5, center), {"low": -HALF, "center": HALF}),
    "union": (lambda low, center: Box(low, 1.0) | Ball(0.5, center), {"low": -HALF, "center": HALF}),
}
WITHOUT_NUMBERS = {
    "FromProjection",
    "Intersection",
    "Union",
    "Product",
    "SecondOrderCone",
    "PSDCone",
    "AffineRound",
} | {"ThroughDecoder"}
PAIRS = ("dynamics", "discs", "boxes", "segments")
every_constructor = pytest.mark.parametrize("name", SOME)


def test_the_table_has_every_constructor_that_takes_numbers() -> None:
    built = {type(build(**given)).__name__ for build, given in SOME.values()}
    assert set(SETS) - built <= WITHOUT_NUMBERS | {"Monotone"}


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors of arguments, to be changed in place."""
    if isinstance(value, PerChain):
        yield value.values
    elif isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)


def copied(value: Any, change: Callable[[Tensor], Any] = torch.clone) -> Any:
    """The same arguments, every tensor replaced."""
    if isinstance(value, PerChain):
        return PerChain(change(value.values))
    if isinstance(value, Tensor):
        return change(value)
    return [copied(item, change) for item in value] if isinstance(value, list | tuple) else value


def event_of(name: str) -> tuple[int, ...]:
    return (2, 2) if name in PAIRS else (4,)


# ------------------------------------------------------------------ arguments are copied


@every_constructor
@pytest.mark.parametrize("kind", ["tensor", "array"])
def test_sets_copy_the_arrays_they_are_given(name: str, kind: str) -> None:
    build, given = SOME[name]
    mine = {key: copied(value) for key, value in given.items()}
    handed = mine
    if kind == "array":  # as_tensor shares the memory of an array
        handed = {key: value.numpy() if isinstance(value, Tensor) else value for key, value in mine.items()}
    constraint, z = build(**handed), normal(3, *event_of(name), seed=2)
    before = constraint.violation(z), constraint.project(z), repr(constraint)
    for tensor in (part for value in mine.values() for part in tensors(value)):
        tensor.mul_(2).add_(1)
    after = constraint.violation(z), constraint.project(z), repr(constraint)
    assert torch.equal(before[0], after[0]) and torch.equal(before[1], after[1]) and before[2] == after[2]


def test_parameters_of_chains_are_copied_when_they_are_marked() -> None:
    values = numbers(1.0, 2.0)
    marked = PerChain(values)
    values.fill_(5.0)
    assert marked.values.tolist() == [1.0, 2.0]


# ------------------------------------------------------------------ arguments are numbers


def with_nan(value: Any) -> Iterator[Any]:
    """The value with one of its floats replaced by NaN, for each tensor or float in it."""
    if isinstance(value, PerChain):
        yield from (PerChain(changed) for changed in with_nan(value.values))
    elif isinstance(value, Tensor) and value.is_floating_point():
        spoiled = value.clone()
        spoiled.reshape(-1)[-1] = NAN
        yield spoiled
    elif isinstance(value, float):
        yield NAN
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from ([*value[:place], changed, *value[place + 1 :]] for changed in with_nan(item))


@every_constructor
def test_nan_is_refused_in_every_argument(name: str) -> None:
    build, given = SOME[name]
    tried = 0
    for key, value in given.items():
        for spoiled in with_nan(value):
            tried += 1
            with pytest.raises(CasalError):
                build(**{**given, key: spoiled})
    assert tried


@pytest.mark.parametrize(
    ("build", "error", "says"),
    [
        (lambda: Product(Ball(1.0), None, sizes=(2.7, 1)), SettingError, "size of a block .* >= 1, got 2.7"),  # type: ignore[arg-type]
        (lambda: Product(Ball(1.0), None, sizes=(NAN, 1)), SettingError, "got nan"),  # type: ignore[arg-type]
        (lambda: Product(Ball(1.0), None, sizes=(0, 1)), SettingError, ">= 1, got 0"),
        (lambda: Product(Ball(1.0), None, sizes="21"), SettingError, "got .2"),  # type: ignore[arg-type]
        (lambda: Product(Ball(1.0), None, sizes=(2,)), ShapeError, "2 members need as many sizes, got 1"),
        (lambda: Product(3.0, None, sizes=(2, 1)), SettingError, "a set, or None"),  # type: ignore[arg-type]
        (lambda: Monotone(NAN), SettingError, "increasing must be one of True, False, got nan"),  # type: ignore[arg-type]
        (lambda: Implicit(squares, convex=NAN), SettingError, "convex"),  # type: ignore[arg-type]
        (lambda: FromProjection(squares, squares, exact=NAN), SettingError, "exact"),  # type: ignore[arg-type]
        (lambda: LinearDynamics([[0.0]], [[1.0]], 2.5, 1.0, 1.0), SettingError, "steps"),  # type: ignore[arg-type]
        (lambda: LinearDynamics([[0.0]], [[1.0]], 2, 1.0, 1.0, outputs=[0.5]), SettingError, "output"),  # type: ignore[list-item]
        (lambda: Ball(1.0).shifted([0.0, math.inf]), SettingError, "finite, got inf"),
        (lambda: Ball(1.0).through([[1.0, math.inf]]), SettingError, "finite numbers, got inf"),
        (lambda: Ellipsoid([1.0, 2.0], [0.0, math.inf]), CasalError, "finite center, got inf"),
        (lambda: Sphere([1.0, 2.0]), SettingError, r"radius is one number, or PerChain .* got \[1.0, 2.0\]"),
        (lambda: Sphere("wide"), SettingError, "got 'wide'"),
        (lambda: Box(torch.zeros(3), torch.ones(4)), ShapeError, r"\(3,\) and \(4,\) do not broadcast"),
        (lambda: Box(torch.zeros(3), 1.0) & Box(torch.zeros(4), 2.0), ShapeError, "do not broadcast"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(build: Callable[[], Constraint], error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        build()


def test_sizes_may_be_whole_numbers_of_any_library() -> None:
    for sizes in ((2, 2), (np.int64(2), torch.tensor(2)), torch.tensor([2, 2])):
        product = Product(Ball(1.0), None, sizes=sizes)  # type: ignore[arg-type]
        assert product.sizes == (2, 2) and all(type(size) is int for size in product.sizes)


@pytest.mark.parametrize("by", [torch.zeros(3, 4), torch.zeros(5), torch.zeros(2, 1), PerChain(torch.zeros(3, 2, 4))])
def test_shifts_that_do_not_fit_the_event_are_refused(by: Any) -> None:
    shifted, z = Ball(1.0).shifted(by), torch.zeros(3, 4)
    for ask in (shifted.project, shifted.violation, lambda y: shifted.validate(tuple(y.shape[1:]))):
        with pytest.raises(ShapeError, match=r"shifts of shape .* do not broadcast to events \(4,\); give one number"):
            ask(z)


def test_shifts_broadcast_over_an_event() -> None:
    z, row = normal(5, 3, 4), numbers(1.0, 2.0, 3.0, 4.0)
    shifted = (Box(0.0, 1.0) & HalfSpace(torch.ones(12), 2.0)).shifted(row)
    whole = (Box(0.0, 1.0) & HalfSpace(torch.ones(12), 2.0)).shifted(row.expand(3, 4))
    torch.testing.assert_close(shifted.project(z), whole.project(z), rtol=0, atol=0)
    # Beside another set with flat sides it gives its rows.
    beside = Affine(normal(1, 12, seed=3), 0.5)
    torch.testing.assert_close((shifted & beside).project(z), (whole & beside).project(z), rtol=0, atol=0)


# ------------------------------------------------------------------ points of whole numbers


@every_constructor
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_whole_numbers_are_projected_in_float64(name: str, dtype: torch.dtype) -> None:
    build, given = SOME[name]
    constraint = build(**given)
    z = torch.tensor([[0, 1, 1, 0], [1, 1, 0, 1], [0, 0, 1, 1]]).reshape(3, *event_of(name))
    wide = z.to(torch.float64)
    for ask in (constraint.project, lambda y: constraint.project(y, quick=True), lambda y: constraint.solve(y).point):
        found = ask(z.to(dtype))
        assert found.dtype == torch.float64
        torch.testing.assert_close(found, ask(wide), rtol=0, atol=0)
    landed = geometry.nearest_on_surface(constraint, z.to(dtype)).point
    torch.testing.assert_close(landed, geometry.nearest_on_surface(constraint, wide).point, rtol=0, atol=0)
    drawn = constraint.sample_near(z.to(dtype), 0.1, torch.Generator().manual_seed(0))
    again = constraint.sample_near(wide, 0.1, torch.Generator().manual_seed(0))
    assert (drawn is None) == (again is None)
    if drawn is not None and again is not None:
        assert torch.equal(drawn, again)


# ------------------------------------------------------------------ bounds that broadcast over an event

EVENT = (3, 4)
BOUNDS: dict[str, tuple[Tensor, Tensor | float]] = {
    "columns": (numbers(0.0, -0.5, 0.0, 0.1), torch.ones(4)),
    "rows": (torch.zeros(3, 1), numbers(1.0, 0.5, 2.0)[:, None]),
    "one row": (numbers(0.0, -0.5, 0.0, 0.1)[None], 1.0),
    "a fixed column": (numbers(0.0, 0.0, 0.0, 0.5), numbers(1.0, 1.0, 1.0, 0.5)),
}
PARTNERS = {
    "two equations": Affine(normal(2, 12, seed=4), 0.1),
    "one equation": Affine(torch.ones(1, 12), 3.0),
    "half-space": HalfSpace(torch.ones(12), 3.0),
    "polytope": Polytope(normal(3, 12, seed=5), 0.5),
    "simplex": Simplex(3.0),
    "monotone": Monotone(),
    "ball": Ball(2.0),
    "mass and energy": MassEnergy(4.0, 3.0),
    "mass and energy in bounds": MassEnergyBox(4.0, 3.0, -1.0, 2.0),
}


@pytest.mark.parametrize("partner", PARTNERS)
@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("own", [False, True], ids=["common", "per chain"])
def test_bounds_broadcast_over_the_event_beside_sets_of_flattened_events(partner: str, bounds: str, own: bool) -> None:
    if (partner, bounds) == ("monotone", "a fixed column"):
        pytest.skip("no such sequence")
    z, other = normal(4, *EVENT, seed=6), PARTNERS[partner]
    low, high = (torch.as_tensor(side, dtype=torch.float64) for side in BOUNDS[bounds])
    written = Box(low.expand(EVENT), high.expand(EVENT))
    box = Box(PerChain(low.expand(4, *low.shape)), high) if own else Box(low, high)
    found, wanted = box & other, written & other
    point = found.project(z)
    torch.testing.assert_close(point, wanted.project(z), rtol=1e-9, atol=1e-9)
    assert geometry.codimension(found, EVENT) == geometry.codimension(wanted, EVENT)
    assert bool((point >= low - 1e-9).all()) and bool((point <= high + 1e-9).all())


def test_bounds_behind_a_matrix_broadcast_over_the_event() -> None:
    z, A = normal(4, 12, seed=6), normal(12, 12, seed=7)
    low, high = (torch.as_tensor(side, dtype=torch.float64) for side in BOUNDS["columns"])
    found = Through(Box(low, high), A, shape=EVENT).project(z)
    wanted = Through(Box(low.expand(EVENT), high.expand(EVENT)), A, shape=EVENT).project(z)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)


def test_bounds_that_do_not_fit_are_refused_at_once() -> None:
    with pytest.raises(ShapeError, match="12 coordinates, low 4 values"):
        BoxHyperplane(torch.zeros(4), 1.0, torch.ones(12), 2.0)
    flattened = Box(torch.zeros(12), 1.0) & Affine(torch.ones(1, 12), 2.0)
    with pytest.raises(ShapeError, match=r"bounds of shape \(12,\) do not broadcast to events \(3, 4\)"):
        flattened.project(torch.zeros(1, *EVENT))
