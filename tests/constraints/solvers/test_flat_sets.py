"""Nearest points of flat sets against conic solvers and the optimality conditions, and proofs that there are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy
import numpy as np
import pytest
import scipy.optimize
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from casal.constraints import Budget
from casal.constraints.base import Rows
from casal.constraints.solvers.flat_sets import FlatSet, Nearest
from casal.constraints.solvers.sparse_rows import SparseMatrix
from casal.errors import ProjectionError

from ..points import normal


def uniform(*shape: int, seed: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def conic(
    z: np.ndarray, build: Callable[[cvxpy.Variable], list[cvxpy.Constraint]], tolerance: float = 1e-11
) -> np.ndarray:
    x = cvxpy.Variable(len(z))
    cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(x - z)), build(x)).solve(
        solver=cvxpy.CLARABEL, tol_gap_abs=tolerance, tol_gap_rel=tolerance, tol_feas=tolerance
    )
    return np.asarray(x.value)


def unit_rows(m: int, d: int, seed: int) -> Tensor:
    G = normal(m, d, seed=seed)
    return G / G.norm(dim=1, keepdim=True)


def below(G: Tensor, h: Tensor) -> Rows:
    return Rows.of(G, torch.full_like(h, -torch.inf), h)


def nearest(y: Tensor, rows: Rows, budget: Budget, **more: Any) -> Nearest:
    return FlatSet(rows).nearest(y, budget, **more)


def assert_nearest(y: Tensor, x: Tensor, G: Tensor, h: Tensor, tolerance: float) -> None:
    """Feasible, and y - x is a combination of active normals with weights >= 0 (found by another algorithm)."""
    excess = (x @ G.T - h) / (x.norm(dim=1, keepdim=True) + h.abs())
    assert float(excess.max()) <= 1e-12
    for start, point, slack in zip(y.numpy(), x.numpy(), (h - x @ G.T).numpy(), strict=True):
        normals = G.numpy()[slack <= 1e-9 * (1 + np.linalg.norm(point))]
        missing = np.linalg.norm(start - point)
        if len(normals):
            missing = scipy.optimize.nnls(normals.T, start - point, maxiter=10_000)[1]
        assert missing <= tolerance * (1 + np.linalg.norm(start))


@pytest.mark.parametrize(("d", "m"), [(2, 5), (3, 40), (10, 8), (30, 80)])
def test_the_active_set_agrees_with_a_conic_solver(d: int, m: int) -> None:
    G, h = unit_rows(m, d, seed=20), uniform(m, seed=21) + 0.1
    y = 3.0 * normal(40, d, seed=22)
    found = nearest(y, below(G, h), Budget())
    assert bool(found.converged.all()) and float(found.residual.max()) <= 1e-14
    assert_nearest(y, found.point, G, h, 1e-12)
    for start, point in zip(y[:4].numpy(), found.point[:4].numpy(), strict=True):
        np.testing.assert_allclose(point, conic(start, lambda x: [G.numpy() @ x <= h.numpy()]), rtol=0, atol=1e-7)


def test_the_active_set_at_full_size() -> None:
    """Two hundred coordinates, four hundred inequalities, about ninety of them active."""
    G, h = unit_rows(400, 200, seed=23), uniform(400, seed=24) + 0.1
    y = normal(12, 200, seed=25)
    found = nearest(y, below(G, h), Budget())
    assert bool(found.converged.all()) and float(found.residual.max()) <= 1e-14
    assert_nearest(y, found.point, G, h, 1e-11)
    assert int((found.point @ G.T >= h - 1e-9).sum(1).min()) >= 60


def test_equations_and_two_sided_rows() -> None:
    G = unit_rows(6, 8, seed=26)
    low = torch.tensor([0.5, -torch.inf, -0.2, -torch.inf, 0.1, -0.3], dtype=torch.float64)
    high = torch.tensor([0.5, 0.4, 0.2, torch.inf, torch.inf, -0.3], dtype=torch.float64)
    y = 2.0 * normal(20, 8, seed=27)
    found = nearest(y, Rows.of(G, low, high), Budget())
    assert bool(found.converged.all())
    finite_low, finite_high = torch.isfinite(low).numpy(), torch.isfinite(high).numpy()

    def build(x: cvxpy.Variable) -> list[cvxpy.Constraint]:
        values = G.numpy() @ x
        return [values[finite_low] >= low.numpy()[finite_low], values[finite_high] <= high.numpy()[finite_high]]

    for start, point in zip(y[:6].numpy(), found.point[:6].numpy(), strict=True):
        np.testing.assert_allclose(point, conic(start, build), rtol=0, atol=1e-7)
    pairs = Rows.of(torch.cat([G, -G]), torch.full((12,), -torch.inf).to(y), torch.cat([high, -low]))
    assert float((nearest(y, pairs, Budget()).point - found.point).abs().max()) <= 1e-12


def test_repeated_and_dependent_rows_do_no_harm() -> None:
    G, h = unit_rows(9, 4, seed=28), uniform(9, seed=29) + 0.1
    y = 4.0 * normal(60, 4, seed=30)
    plain = nearest(y, below(G, h), Budget())
    many = nearest(y, below(G.repeat(4, 1), torch.cat([h, h, h + 1e-3, h + 5.0])), Budget())
    assert bool(many.converged.all())
    assert float((many.point - plain.point).abs().max()) <= 1e-13


@pytest.mark.slow
@settings(max_examples=100)
@given(seed=st.integers(0, 2**32 - 1), d=st.integers(1, 6), m=st.integers(1, 14), size=st.floats(-3.0, 3.0))
def test_every_polyhedron_around_zero_is_projected_onto(seed: int, d: int, m: int, size: float) -> None:
    G, h = unit_rows(m, d, seed=seed), uniform(m, seed=seed + 1)
    y = 10.0**size * normal(6, d, seed=seed + 2)
    found = nearest(y, below(G, h), Budget())
    assert bool(found.converged.all())
    assert_nearest(y, found.point, G, h, 1e-11)


@pytest.mark.parametrize("size", [1e4, 1e8, 1e16, 1e150, 1e299])
def test_far_points_go_to_the_best_vertex(size: float) -> None:
    """From far away the nearest point maximises y . x: a linear programme, solved elsewhere."""
    G, h = unit_rows(30, 6, seed=31), uniform(30, seed=32) + 0.1
    direction = unit_rows(8, 6, seed=33)
    found = nearest(size * direction, below(G, h), Budget())
    assert bool(found.converged.all())
    assert float((found.point @ G.T - h).max()) <= 1e-13
    for v, point in zip(direction.numpy(), found.point.numpy(), strict=True):
        best = scipy.optimize.linprog(-v, A_ub=G.numpy(), b_ub=h.numpy(), bounds=(None, None), method="highs")
        assert v @ point == pytest.approx(-best.fun, rel=1e-7 if size > 1e4 else 1e-2)


def test_a_point_too_long_to_square_is_refused() -> None:
    with pytest.raises(ProjectionError, match="overflow") as refused:
        nearest(torch.tensor([[1.0, 0.0], [1e305, 0.0]], dtype=torch.float64), below(*_square()), Budget())
    assert refused.value.chains == (1,)


def _square() -> tuple[Tensor, Tensor]:
    eye = torch.eye(2, dtype=torch.float64)
    return torch.cat([eye, -eye]), torch.ones(4, dtype=torch.float64)


def test_a_warm_start_changes_the_speed_and_nothing_else() -> None:
    G, h = unit_rows(60, 20, seed=34), uniform(60, seed=35) + 0.1
    y = 2.0 * normal(50, 20, seed=36)
    rows = below(G, h)
    cold = nearest(y, rows, Budget())
    good = nearest(y, rows, Budget(), warm=cold.point)
    for other in (good, nearest(y, rows, Budget(), warm=cold.point.flip(0)), nearest(y, rows, Budget(), warm=100 * y)):
        assert bool(other.converged.all()) and float((other.point - cold.point).abs().max()) <= 1e-13
    assert float(good.iterations.double().mean()) < 0.5 * float(cold.iterations.double().mean())


def test_a_budget_ends_the_newton_steps() -> None:
    G, h = unit_rows(60, 20, seed=37), uniform(60, seed=38) + 0.1
    y = 2.0 * normal(30, 20, seed=39)
    rows = below(G, h)
    exact = nearest(y, rows, Budget())
    for steps in (0, 1, 3):
        loose = nearest(y, rows, Budget(1e-12, steps))
        assert not bool(loose.converged.any()) and loose.iterations.tolist() == [steps] * 30
        assert bool((loose.residual > 1e-12).all()) and bool(torch.isfinite(loose.point).all())
    far = (nearest(y, rows, Budget(1e-12, 0)).point - exact.point).norm(dim=1)
    near = (nearest(y, rows, Budget(1e-12, 3)).point - exact.point).norm(dim=1)
    assert float(near.mean()) < 0.8 * float(far.mean())


def contradictory(seed: int, gap: float) -> tuple[Tensor, Tensor]:
    """Polyhedron with v . G = 0 and v . h = -gap for some v > 0 of length one, among others."""
    G, h = normal(12, 5, seed=seed), normal(12, seed=seed + 1)
    v = uniform(7, seed=seed + 2) + 0.1
    G[6], h[6] = -(v[:6] @ G[:6]) / v[6], (-gap - v[:6] @ h[:6]) / v[6]
    lengths = G.norm(dim=1)
    return G / lengths[:, None], h / lengths


@pytest.mark.parametrize("gap", [10.0, 1e-2, 1e-6])
def test_an_empty_set_is_proved_empty(gap: float) -> None:
    for seed in range(0, 100, 10):
        G, h = contradictory(seed, gap)
        whole = FlatSet(below(G, h), tidy=False)
        found = whole.nearest(3.0 * normal(4, 5, seed=seed), Budget())
        assert not bool(found.converged.any())
        for proof in whole.proves_empty(found.drift, torch.zeros(4, dtype=torch.long)):
            assert bool(proof.any())
            only = G.numpy()[proof], h.numpy()[proof]
            assert scipy.optimize.linprog(np.zeros(5), *only, bounds=(None, None), method="highs").status == 2


def test_equations_that_bounds_do_not_reach_are_proved_empty() -> None:
    """One of two chains has no point: the rows used in the proof contradict its bounds, says a linear programme."""
    A = unit_rows(3, 8, seed=44)
    level = torch.stack([A @ torch.full((8,), 0.5).double(), A @ torch.full((8,), 0.5).double()])
    level[1, 1] += 5.0
    box = torch.zeros(1, 8, dtype=torch.float64)
    whole = FlatSet(Rows(A, level, level, box, box + 1.0))
    found = whole.nearest(normal(2, 8, seed=45), Budget())
    proof = whole.proves_empty(found.drift, torch.arange(2))
    assert found.converged.tolist() == [True, False] and proof.any(1).tolist() == [False, True]
    some = proof[1].numpy()
    told = scipy.optimize.linprog(np.zeros(8), A_eq=A.numpy()[some], b_eq=level[1].numpy()[some], bounds=(0, 1))
    assert told.status == 2


def test_nothing_is_proved_about_a_set_with_points() -> None:
    whole = FlatSet(below(*_square()), tidy=False)
    found = whole.nearest(3.0 * normal(4, 2, seed=40), Budget(1e-12, 1))
    drifts = torch.cat([found.drift, torch.zeros(1, 4).double(), torch.ones(1, 4).double()])
    assert not bool(whole.proves_empty(drifts, torch.zeros(6, dtype=torch.long)).any())


# ------------------------------------------------------------------ equations, rows and bounds together


def optimal(y: np.ndarray, z: np.ndarray, rows: Rows, tolerance: float) -> None:
    """z is in the set, and z - y is a combination of the normals of its active ends, found by bounded least squares."""
    matrix, low, high = (part.numpy() for part in rows.written_out())
    low, high = low[0], high[0]
    values, size = matrix @ z, 1.0 + np.abs(z).max()
    assert (values >= low - 1e-12 * size).all() and (values <= high + 1e-12 * size).all()
    at_low, at_high = values <= low + 1e-9 * size, values >= high - 1e-9 * size
    some = at_low | at_high
    if not some.any():
        assert np.abs(y - z).max() <= tolerance * size
        return
    ends = np.where(at_low, -np.inf, 0.0)[some], np.where(at_high, np.inf, 0.0)[some]
    fit = scipy.optimize.lsq_linear(matrix[some].T, y - z, ends, tol=1e-15, method="bvls")
    assert np.linalg.norm(matrix[some].T @ fit.x - (y - z)) <= tolerance * (1.0 + np.linalg.norm(y))


def random_set(seed: int, d: int, *, dependent: bool = False) -> Rows:
    """Equations, inequalities and bounds around a point, some of them missing; also repeated and opposite rows."""
    stream = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.rand(*shape, generator=stream, dtype=torch.float64)  # noqa: E731
    inside, m = draw(d) - 0.5, 1 + d // 2
    G = torch.randn(m, d, generator=stream, dtype=torch.float64) * (draw(m, d) < 0.7)
    G[:, 0] += 1.0
    if dependent:
        G = torch.cat([G, -2.0 * G[:1], G[1:2] + G[:1], torch.eye(d, dtype=torch.float64)[:1]])
    G = G / G.norm(dim=1, keepdim=True)
    value, kind = G @ inside, draw(len(G))
    low = torch.where(kind < 0.6, value - 0.3 * (kind > 0.3) * draw(len(G)), -torch.inf)
    high = torch.where(kind > 0.15, value + 0.3 * (kind > 0.3) * draw(len(G)), torch.inf)
    if dependent:  # the ends of a combination of rows must agree with theirs
        low[-3:], high[-3:] = value[-3:] - 0.1, value[-3:] + 0.1
    free = draw(2, d)
    return Rows(
        G,
        low[None],
        high[None],
        torch.where(free[0] < 0.8, inside - 0.5 * draw(d), -torch.inf)[None],
        torch.where(free[1] < 0.8, inside + 0.5 * draw(d), torch.inf)[None],
    )


@pytest.mark.parametrize("dependent", [False, True], ids=["general", "dependent"])
@pytest.mark.parametrize("seed", range(25))
def test_random_flat_sets(seed: int, dependent: bool) -> None:
    rows = random_set(seed, 3 + seed % 10, dependent=dependent)
    y = 10.0 ** (seed % 4 - 1) * normal(5, 3 + seed % 10, seed=seed)
    found = nearest(y, rows, Budget())
    assert bool(found.converged.all())
    assert bool(((found.point >= rows.below) & (found.point <= rows.above)).all())
    for start, point in zip(y.numpy(), found.point.numpy(), strict=True):
        optimal(start, point, rows, 1e-10)


def network(size: int, rows: int, seed: int) -> SparseMatrix:
    """Balances: in each row a few numbers of both signs."""
    rng = np.random.default_rng(seed)
    place = np.concatenate([rng.choice(size, 4, replace=False) for _ in range(rows)])
    value = rng.choice([-2.0, -1.0, 1.0, 2.0], 4 * rows)
    matrix = SparseMatrix(np.repeat(np.arange(rows), 4), place, value, (rows, size))
    return matrix.some_rows(torch.arange(rows), matrix.lengths.reciprocal())


@pytest.mark.parametrize(("size", "rows"), [(60, 40), (400, 300)], ids=["dense", "in bands"])
def test_balances_within_bounds(size: int, rows: int) -> None:
    """The bounds hold to the bit; what is zero is zero; and a conic solver agrees."""
    S, zero = network(size, rows, seed=0), torch.zeros(1, rows, dtype=torch.float64)
    low = torch.where(uniform(size, seed=1) < 0.5, 0.0, -5.0)[None]
    given = Rows(S, zero, zero, low, torch.full_like(low, 5.0))
    y = 3.0 * normal(8, size, seed=2)
    found = nearest(y, given, Budget())
    assert bool(found.converged.all())
    assert bool((found.point >= given.below).all()) and bool((found.point <= given.above).all())
    assert float((found.point @ S.to_dense().T).abs().max()) <= 1e-14
    assert int(((found.point != 0) & (found.point.abs() < 1e-12)).sum()) == 0
    dense = S.to_dense().numpy()
    for start, point in zip(y[:2].numpy(), found.point[:2].numpy(), strict=True):
        other = conic(start, lambda x: [dense @ x == 0, x >= low[0].numpy(), x <= 5.0])
        np.testing.assert_allclose(point, other, rtol=0, atol=1e-7)


def test_levels_and_bounds_of_each_chain() -> None:
    """All at once, or one by one."""
    A, n = unit_rows(3, 7, seed=50), 6
    inside = uniform(n, 7, seed=51)
    rows = Rows(A, inside @ A.T - 0.1, inside @ A.T + 0.2, inside - uniform(n, 7, seed=52), inside + 0.3)
    y = 2.0 * normal(n, 7, seed=53)
    together = nearest(y, rows, Budget())
    assert bool(together.converged.all())
    for i in range(n):
        alone = nearest(y[i : i + 1], Rows(A, *(part[i : i + 1] for part in rows[1:])), Budget())
        assert float((alone.point[0] - together.point[i]).abs().max()) <= 1e-14


def test_what_is_tidied_up() -> None:
    """Single coordinates, fixed ones, repeated and opposite rows: the same set, and said so."""
    e = torch.eye(4, dtype=torch.float64)
    G = torch.stack([e[0], e[1], (e[1] + e[2]) / 2**0.5, (e[2] - e[3]) / 2**0.5, (e[3] - e[2]) / 2**0.5])
    inf = torch.inf
    low = torch.tensor([0.3, -inf, -inf, -0.4, -1.0], dtype=torch.float64)
    high = torch.tensor([0.3, 0.5, 0.2, inf, 0.6], dtype=torch.float64)
    whole, plain = FlatSet(Rows.of(G, low, high)), FlatSet(Rows.of(G, low, high), tidy=False)
    assert whole.count == 2 and plain.count == 5
    assert whole.found == ["2 rows on one coordinate are bounds", "1 coordinates fixed", "1 duplicate rows removed"]
    y = normal(30, 4, seed=54)
    one, other = whole.nearest(y, Budget()), plain.nearest(y, Budget())
    assert bool(one.converged.all()) and bool(other.converged.all())
    assert float((one.point - other.point).abs().max()) <= 1e-14


def test_ends_that_cross_are_found_when_a_set_is_made() -> None:
    """A coordinate above one and below zero; by rounding alone is no contradiction."""
    e = torch.eye(2, dtype=torch.float64)[:1]
    make = lambda low, high: Rows(e, *(torch.tensor([[v]]).double() for v in low), *high)  # noqa: E731
    box = (torch.zeros(1, 2).double(), torch.ones(1, 2).double())
    apart = FlatSet(make((2.0, 3.0), box))
    assert float(apart.crossed) > 0.1 and not bool(apart.nearest(torch.zeros(3, 2).double(), Budget()).converged.any())
    touching = FlatSet(make((1.0 + 1e-15, 3.0), box))
    assert float(touching.crossed) == 0 and touching.nearest(torch.zeros(1, 2).double(), Budget()).point.tolist() == [
        [1, 0]
    ]


def test_batches_of_one_and_of_none() -> None:
    G, h = unit_rows(20, 7, seed=41), uniform(20, seed=42)
    y = 3.0 * normal(9, 7, seed=43)
    together = nearest(y, below(G, h), Budget())
    for i in range(len(y)):
        alone = nearest(y[i : i + 1], below(G, h), Budget())
        assert float((alone.point[0] - together.point[i]).abs().max()) <= 1e-14 * float(y[i].norm())
    none = nearest(y[:0], below(G, h), Budget())
    assert isinstance(none, Nearest) and none.point.shape == (0, 7) and none.converged.shape == (0,)
    free = nearest(y, below(G[:0], h[:0]), Budget())
    assert torch.equal(free.point, y) and bool(free.converged.all())
