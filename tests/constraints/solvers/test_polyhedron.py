"""Nearest points of polyhedra against conic solvers, and proofs that there are none."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy
import numpy as np
import pytest
import scipy.optimize
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from casal.constraints import Budget
from casal.constraints.solvers.polyhedron import Nearest, Polyhedron, contradiction, nearest, touching
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


def below(G: Tensor, h: Tensor) -> Polyhedron:
    return Polyhedron.of(G, torch.full_like(h, -torch.inf), h)


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
    assert int(touching(found.point, below(G, h)).sum(1).min()) >= 60


def test_equations_and_two_sided_rows() -> None:
    G = unit_rows(6, 8, seed=26)
    low = torch.tensor([0.5, -torch.inf, -0.2, -torch.inf, 0.1, -0.3], dtype=torch.float64)
    high = torch.tensor([0.5, 0.4, 0.2, torch.inf, torch.inf, -0.3], dtype=torch.float64)
    y = 2.0 * normal(20, 8, seed=27)
    rows = Polyhedron.of(G, low, high)
    assert rows.equal.tolist() == [True, False, False, True, False, False]
    found = nearest(y, rows, Budget())
    assert bool(found.converged.all())
    finite_low, finite_high = torch.isfinite(low).numpy(), torch.isfinite(high).numpy()

    def build(x: cvxpy.Variable) -> list[cvxpy.Constraint]:
        values = G.numpy() @ x
        return [values[finite_low] >= low.numpy()[finite_low], values[finite_high] <= high.numpy()[finite_high]]

    for start, point in zip(y[:6].numpy(), found.point[:6].numpy(), strict=True):
        np.testing.assert_allclose(point, conic(start, build), rtol=0, atol=1e-7)
    pairs = Polyhedron.of(torch.cat([G, -G]), torch.full((12,), -torch.inf).to(y), torch.cat([high, -low]))
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


def test_a_guess_changes_the_speed_and_nothing_else() -> None:
    G, h = unit_rows(60, 20, seed=34), uniform(60, seed=35) + 0.1
    y = 2.0 * normal(50, 20, seed=36)
    rows = below(G, h)
    cold = nearest(y, rows, Budget())
    good = nearest(y, rows, Budget(), guess=touching(cold.point, rows))
    bad = nearest(y, rows, Budget(), guess=~touching(cold.point, rows))
    for other in (good, bad):
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
    assert float(near.mean()) < 0.5 * float(far.mean())


def contradictory(seed: int, gap: float) -> tuple[Tensor, Tensor]:
    """Polyhedron with v . G = 0 and v . h = -gap for some v > 0 of length one, among others."""
    G, h = normal(12, 5, seed=seed), normal(12, seed=seed + 1)
    v = uniform(7, seed=seed + 2) + 0.1
    G[6], h[6] = -(v[:6] @ G[:6]) / v[6], (-gap - v[:6] @ h[:6]) / v[6]
    lengths = G.norm(dim=1)
    return G / lengths[:, None], h / lengths


@pytest.mark.parametrize("gap", [10.0, 1e-2, 1e-6])
def test_an_empty_polyhedron_is_proved_empty(gap: float) -> None:
    for seed in range(0, 100, 10):
        G, h = contradictory(seed, gap)
        found = nearest(3.0 * normal(4, 5, seed=seed), below(G, h), Budget())
        assert not bool(found.converged.any())
        for drift in found.drift:
            proof = contradiction(below(G, h), drift)
            assert proof is not None
            only = G.numpy()[proof], h.numpy()[proof]
            assert scipy.optimize.linprog(np.zeros(5), *only, bounds=(None, None), method="highs").status == 2


def test_nothing_is_proved_about_a_polyhedron_with_points() -> None:
    rows = below(*_square())
    found = nearest(3.0 * normal(4, 2, seed=40), rows, Budget(1e-12, 1))
    for drift in (*found.drift, torch.zeros(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64)):
        assert contradiction(rows, drift) is None


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
