"""The functions by which sets are written: values, slopes and bends, with and without decoders; what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import casal
from casal.errors import SettingError
from casal.methods.look_ahead.features import MOST_FEATURES, features_of

from .gaussian import close, diagonal, normal, problem_for

D, N = 6, 5
PRIOR = diagonal(D)
A = normal(1, 3, D)
OPEN = [-math.inf] * (D - 1)


def cubes(x: Tensor) -> Tensor:
    """A decoder."""
    return x + 0.1 * x**3


LINEAR = casal.Linear(torch.cat([torch.eye(D, dtype=torch.float64), 0.3 * normal(2, 2, D)]))
WIDE = normal(3, 2, D + 2)
CASES: dict[str, tuple[casal.Constraint, casal.Decoder | None, tuple[int, int, bool]]] = {
    # set, decoder, (rows, equations among them, whether a row bends)
    "affine": (casal.Affine(A, 0.5), None, (3, 3, False)),
    "affine, dependent": (
        casal.Affine(torch.cat([A, A[:1] - A[1:2]]), torch.tensor([1.0, 2, 3, -1])),
        None,
        (3, 3, False),
    ),
    "sphere": (casal.Sphere(2.0), None, (1, 1, True)),
    "sphere elsewhere": (casal.Sphere(2.0, normal(4, D)), None, (1, 1, True)),
    "mass and energy": (casal.MassEnergy(1.0, 4.0), None, (2, 2, True)),
    "affine and sphere": (casal.Affine(A, 0.2) & casal.Sphere(3.0), None, (4, 4, True)),
    "general": (casal.Implicit(lambda z: torch.stack([z.sin().sum(1), z[:, 0] * z[:, 1]], 1)), None, (2, 2, True)),
    "half-space": (casal.HalfSpace(A[0], 0.3), None, (1, 0, False)),
    "box on one": (casal.Box(torch.tensor([0.5, *OPEN]), math.inf), None, (1, 0, False)),
    "box": (casal.Box(0.0, 1.0), None, (D, 0, False)),
    "ball": (casal.Ball(2.0), None, (1, 0, True)),
    "simplex": (casal.Simplex(2.0), None, (D + 1, 1, False)),
    "affine and half-space": (casal.Affine(A[:2], 0.2) & casal.HalfSpace(A[2], 0.3), None, (3, 2, False)),
    "sphere and half-space": (casal.Sphere(2.0) & casal.HalfSpace(A[2], 0.3), None, (2, 1, True)),
    "equation and inequality": (
        casal.Implicit(lambda z: z.square().sum(1, keepdim=True) - 4, lambda z: z[:, :2].exp() - 3),
        None,
        (3, 1, True),
    ),
    "affine, linear decoder": (casal.Affine(WIDE, 0.5), LINEAR, (2, 2, False)),
    "sphere, linear decoder": (casal.Sphere(2.0), LINEAR, (1, 1, True)),
    "half-space, linear decoder": (casal.HalfSpace(WIDE[0], 0.5), LINEAR, (1, 0, False)),
    "affine, nonlinear decoder": (casal.Affine(A, 0.5), casal.Nonlinear(cubes, shape=(D,)), (3, 3, True)),
    "sphere, nonlinear decoder": (casal.Sphere(2.0), casal.Nonlinear(cubes, shape=(D,)), (1, 1, True)),
    "half-space, nonlinear decoder": (casal.HalfSpace(A[0], 0.5), casal.Nonlinear(cubes, shape=(D,)), (1, 0, True)),
    "levels of their own": (casal.Affine(A, casal.PerChain(normal(5, N, 3))), None, (3, 3, False)),
    "radii of their own": (casal.Sphere(casal.PerChain(1 + normal(6, N).abs())), None, (1, 1, True)),
    "half-spaces of their own": (casal.HalfSpace(A[0], casal.PerChain(normal(7, N))), None, (1, 0, True)),
}
every_case = pytest.mark.parametrize(("constraint", "decoder", "kind"), CASES.values(), ids=CASES)


@every_case
def test_rows_vanish_on_the_set_and_lie_within_their_bounds(
    constraint: casal.Constraint, decoder: casal.Decoder | None, kind: tuple[int, int, bool]
) -> None:
    problem = problem_for(PRIOR, constraint, decoder)
    features = features_of(problem, 4)
    assert (features.count, features.equal, features.curved) == kind
    assert features.rank == 0
    x = normal(8, N, D)
    values, e = features.values(x), features.equal
    assert values.shape == (N, features.count)
    assert features.low.shape == features.high.shape == (1, features.count - e)
    decoded = problem.decode(x)
    inside = ((values[:, e:] <= features.high) & (values[:, e:] >= features.low)).all(1)
    meets = (values[:, :e].abs() < 1e-9).all(1) & inside
    assert torch.equal(meets, constraint.violation(decoded) < 1e-9)
    if decoder is None:
        on = features.values(constraint.project(x))
        assert float(on[:, :e].abs().max() if e else 0.0) < 1e-7
        assert bool(((on[:, e:] <= features.high + 1e-7) & (on[:, e:] >= features.low - 1e-7)).all())


@every_case
def test_slopes_and_bends_are_derivatives(
    constraint: casal.Constraint, decoder: casal.Decoder | None, kind: tuple[int, int, bool]
) -> None:
    features = features_of(problem_for(PRIOR, constraint, decoder), 4)
    x, v, step = normal(8, N, D), normal(9, N, D), 1e-5
    slopes = features.slopes(x)
    close(
        (slopes @ v[..., None])[..., 0],
        (features.values(x + step * v) - features.values(x - step * v)) / (2 * step),
        1e-7,
    )
    close(features.bend(x, v), (features.slopes(x + step * v) - features.slopes(x - step * v)) / (2 * step), 1e-7)
    assert features.curved or not bool(features.bend(x, v).any())


def test_rows_of_equations_are_orthonormal() -> None:
    features = features_of(problem_for(PRIOR, casal.Affine(A, 0.5)), 4)
    rows = features.slopes(torch.zeros(1, D, dtype=torch.float64))[0]
    close(rows @ rows.T, torch.eye(3, dtype=torch.float64))
    close(rows.T @ rows, torch.linalg.pinv(A) @ A)


def test_rows_of_any_size_count() -> None:
    """A row in units of 1e-6 beside one in units of 1e6 is not taken for rounding."""
    prior, sizes = diagonal(6), torch.tensor([1e6, 1e-7], dtype=torch.float64)
    matrix = normal(1, 2, 6)
    level = matrix @ prior.mean
    scaled = features_of(problem_for(prior, casal.Affine(sizes[:, None] * matrix, sizes * level)), 1)
    plain = features_of(problem_for(prior, casal.Affine(matrix, level)), 1)
    assert scaled.count == 2
    x = normal(2, 5, 6)
    close(scaled.values(x).square().sum(1), plain.values(x).square().sum(1), 1e-8)


def test_a_norm_knows_its_row_and_radius() -> None:
    features = features_of(problem_for(PRIOR, casal.Affine(A[:2], 0.2) & casal.Sphere(3.0)), 4)
    assert features.norm == 2 and features.square is not None and features.square.tolist() == [9.0]
    x = normal(8, N, D)
    close(features.values(x)[:, 2], (x.square().sum(1) - 9) / 2)
    own = features_of(problem_for(PRIOR, casal.Sphere(casal.PerChain([1.0, 2.0]))), 4)
    assert own.square is not None and own.square.tolist() == [1.0, 4.0]


def test_the_area_of_slopes_counts_for_general_equations_only() -> None:
    x = normal(8, N, D)
    weights = torch.linspace(0.5, 1.5, D, dtype=torch.float64)
    general = features_of(problem_for(PRIOR, casal.Implicit(lambda z: z.square() @ weights[:, None] - 4)), 4)
    area = general.log_area(x)
    assert area is not None
    close(area, (2 * weights * x).norm(dim=1).log())
    for constraint in (casal.Affine(A, 0.5), casal.Sphere(2.0), casal.HalfSpace(A[0], 1.0), casal.Ball(1.0)):
        assert features_of(problem_for(PRIOR, constraint), 4).log_area(x) is None
    decoder = casal.Nonlinear(cubes, shape=(D,))  # the area is that of decoded space
    behind = features_of(problem_for(PRIOR, casal.Implicit(lambda z: z.square() @ weights[:, None] - 4), decoder), 4)
    found = behind.log_area(x)
    assert found is not None
    close(found, (2 * weights * cubes(x)).norm(dim=1).log())


def test_a_soft_term_adds_rows() -> None:
    features = features_of(problem_for(PRIOR, casal.Sphere(2.0), term=lambda v: v.sum(1)), 3)
    assert (features.count, features.rank) == (1, 3)
    assert features_of(problem_for(PRIOR, casal.Sphere(2.0)), 3).rank == 0


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (casal.Sphere(1.0) | casal.Sphere(2.0), "no equations or inequalities with gradients"),
        (casal.L1Ball(1.0), "no equations or inequalities with gradients"),
        (
            casal.FromProjection(lambda z: z.clamp(0, 1), lambda z: (z - z.clamp(0, 1)).abs().amax(1)),
            "no equations or inequalities with gradients",
        ),
    ],
    ids=["union", "l1 ball", "projection"],
)
def test_sets_without_gradients_are_refused(constraint: casal.Constraint, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        features_of(problem_for(PRIOR, constraint), 4)


@pytest.mark.parametrize("count", [MOST_FEATURES + 1, 4 * MOST_FEATURES])
def test_too_many_rows_are_refused(count: int) -> None:
    prior = diagonal(count)
    with pytest.raises(
        SettingError, match=rf"1 to {MOST_FEATURES} of them.*has {count}; use SplitGibbs, or BoundedHMC"
    ):
        features_of(problem_for(prior, casal.Box(0.0, 1.0)), 4)
    with pytest.raises(SettingError, match=f"has {count};"):
        features_of(problem_for(prior, casal.Affine(torch.eye(count, dtype=torch.float64), 1.0)), 4)


def test_a_box_without_bounds_is_refused() -> None:
    with pytest.raises(SettingError, match="has 0"):
        features_of(problem_for(PRIOR, casal.Box(-math.inf, math.inf)), 4)


def test_too_many_rows_beside_a_soft_term_are_not_sent_to_methods_that_refuse_it() -> None:
    problem = problem_for(diagonal(MOST_FEATURES + 1), casal.Box(0.0, math.inf), term=lambda x: x.sum(1))
    with pytest.raises(SettingError, match="no other method uses a soft term"):
        features_of(problem, 4)
