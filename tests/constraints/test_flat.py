"""Bounds with an equation, polytopes, sparse equations."""

from __future__ import annotations

import math

import cvxpy
import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from casal.constraints import (
    Affine,
    Box,
    BoxHyperplane,
    Budget,
    HalfSpace,
    Implicit,
    PerChain,
    Polytope,
    geometry,
)
from casal.errors import InfeasibleSet, ShapeError

from .closed_form_cases import INF
from .iterative_cases import cube, levels, matrix
from .points import normal, one

# ------------------------------------------------------------------ bounds that are not there


def unit_sphere(z: torch.Tensor) -> torch.Tensor:
    return z.flatten(1).square().sum(1, keepdim=True) - 1.0


def test_only_finite_bounds_are_rows() -> None:
    z = torch.tensor([[0.5, -2.0, 3.0]], dtype=torch.float64)
    assert Box(0.0, None).inequalities(z).tolist() == [[-0.5, 2.0, -3.0]]
    assert Box([0.0, -INF, 1.0], [INF, INF, 2.0]).inequalities(z).tolist() == [[-0.5, -2.0, 1.0]]
    assert Box().inequalities(z).shape == (1, 0)
    assert HalfSpace([1.0, 1.0, 1.0], math.inf).inequalities(z).shape == (1, 0)
    assert BoxHyperplane([0.0, -INF, -INF], INF, [1.0, 1.0, 1.0], 1.0).inequalities(z).tolist() == [[-0.5]]


def test_a_bound_of_some_chains_says_nothing_in_the_others() -> None:
    low = PerChain(torch.tensor([[0.0, -INF], [-INF, -INF], [0.0, 0.0]], dtype=torch.float64))
    z = torch.tensor([[-1.0, 2.0], [3.0, -7.0], [4.0, -5.0]], dtype=torch.float64, requires_grad=True)
    rows = Box(low, None).inequalities(z)
    assert rows[0].tolist() == [1.0, -1.0] and rows[2].tolist() == [-4.0, 5.0] and bool((rows[1] <= 0).all())
    (pull,) = torch.autograd.grad(rows.sum(), z)
    assert pull.tolist() == [[-1.0, 0.0], [0.0, 0.0], [-1.0, -1.0]]
    weights = torch.ones_like(rows)
    assert torch.equal(geometry.residual_pull(Box(low, None), z.detach(), weights), pull)


@pytest.mark.parametrize("own", [False, True], ids=["common", "for each chain"])
def test_a_surface_within_bounds_on_some_sides(own: bool) -> None:
    """On the sphere with z >= 0 in some coordinates, the nearest point is the positive part there, scaled."""
    y = normal(60, 20, seed=3)
    y[:, 0] += 2.0  # so that the positive part is not zero
    bounded = torch.rand(60, 20, generator=torch.Generator().manual_seed(5)) < 0.7
    if not own:
        bounded = bounded[:1].expand(60, -1)
    low = torch.where(bounded, 0.0, -torch.inf).double()
    found = (Implicit(unit_sphere) & Box(PerChain(low) if own else low[0], None)).solve(y)
    cut = torch.where(bounded, y.clamp_min(0.0), y)
    assert bool(found.converged.all())
    assert float((found.point - cut / cut.norm(dim=1, keepdim=True)).abs().max()) <= 1e-12


def test_flows_within_limits_that_bind() -> None:
    """Products of neighbours are given, as in power flow, and each number has limits; some have none."""
    size = 12

    def flows(z: torch.Tensor) -> torch.Tensor:
        return z[:, :size] * z[:, 1 : size + 1] * torch.sin(z[:, size + 1 :])

    exact = torch.cat([1.0 + 0.02 * normal(40, size + 1, seed=6).tanh(), 0.3 * normal(40, size, seed=7).tanh()], 1)
    level = flows(exact)[:1]
    low, high = torch.full((2 * size + 1,), -INF).double(), torch.full((2 * size + 1,), INF).double()
    low[: size + 1], high[: size + 1] = 0.98, 1.02
    limited = Implicit(lambda z: flows(z) - level) & Box(low, high)
    y = exact[:1] + 0.03 * normal(40, 2 * size + 1, seed=8)
    found = limited.solve(y)
    assert bool(found.converged.all())
    assert float(limited.violation(found.point).max()) <= 1e-12
    assert bool(((found.point - y).norm(dim=1) <= (exact[:1] - y).norm(dim=1)).all())


# ------------------------------------------------------------------ box and hyperplane


def test_box_hyperplane_with_huge_points() -> None:
    constraint = BoxHyperplane(-1.0, 1.0, [1.0, 1.0, 1.0], -0.5)
    np.testing.assert_allclose(one(constraint, [1e150, -2e150, 0.5e150]), [1.0, -1.0, -0.5], atol=1e-15)
    np.testing.assert_allclose(one(constraint, [1e150, 0.3, -0.2]), [1.0, -0.5, -1.0], atol=1e-15)
    np.testing.assert_allclose(
        one(BoxHyperplane(0.0, INF, np.ones(4), 1.0), np.full(4, 1e150)), np.full(4, 0.25), atol=1e-15
    )


@settings(max_examples=100)
@given(st.integers(0, 10_000), st.integers(1, 8), st.floats(-4, 4))
def test_box_hyperplane_agrees_with_a_root_finder(seed: int, size: int, exponent: float) -> None:
    rng = np.random.default_rng(seed)
    low = np.where(rng.random(size) < 0.2, -np.inf, rng.normal(size=size))
    high = np.where(rng.random(size) < 0.2, np.inf, np.maximum(low, -2.0) + rng.exponential(size=size))
    a = np.sign(rng.normal(size=size)) * rng.uniform(0.2, 2.0, size) * (rng.random(size) < 0.8)
    a[0] = 1.0
    member = np.clip(rng.normal(size=size), low, high)
    constraint = BoxHyperplane(low, high, a, float(a @ member))
    for y in 10.0**exponent * rng.normal(size=(3, size)):
        foot = one(constraint, y)
        far = 1e3 * (10.0**exponent + 10.0)
        lam = brentq(lambda t, y=y: a @ np.clip(y - t * a, low, high) - a @ member, -far, far, xtol=1e-300, rtol=1e-15)
        np.testing.assert_allclose(foot, np.clip(y - lam * a, low, high), rtol=0, atol=1e-12 * (1 + np.abs(y).max()))


# ------------------------------------------------------------------ polytopes


@pytest.mark.parametrize(("d", "m"), [(3, 6), (12, 30), (40, 60)])
@pytest.mark.parametrize("solver", ["CLARABEL", "OSQP"])
def test_polytopes_agree_with_other_solvers(solver: str, d: int, m: int) -> None:
    G, h = matrix(m, d, seed=10), levels(m, seed=11)
    z = 2.0 * normal(5, d, seed=12)
    foot = Polytope(G, h).project(z).numpy()
    options = (
        {"tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-11}
        if solver == "CLARABEL"
        else {"eps_abs": 1e-10, "eps_rel": 1e-10, "max_iter": 100_000, "polishing": True}
    )
    for start, point in zip(z.numpy(), foot, strict=True):
        x = cvxpy.Variable(d)
        problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(x - start)), [G.numpy() @ x <= h.numpy()])
        problem.solve(solver=solver, **options)
        np.testing.assert_allclose(point, x.value, rtol=0, atol=1e-7)


def test_a_cube_is_a_box() -> None:
    low, high = torch.tensor([-1.0, 0.0, -2.0]), torch.tensor([0.5, 0.0, 3.0])
    z = 3.0 * normal(50, 3, seed=13)
    polytope = Polytope(cube(3), torch.cat([high, -low]))
    assert torch.allclose(polytope.project(z), Box(low, high).project(z), rtol=0, atol=1e-15)
    assert not polytope.solid and Polytope(cube(3), 1.0).solid


def test_the_event_is_one_vector() -> None:
    G, h = matrix(10, 12, seed=4), levels(10, seed=4)
    z = 2.0 * normal(6, 3, 4, seed=14)
    polytope = Polytope(G, h)
    assert torch.equal(polytope.project(z), polytope.project(z.reshape(6, 12)).reshape(6, 3, 4))
    assert torch.equal(polytope.violation(z), polytope.violation(z.reshape(6, 12)))
    with pytest.raises(ShapeError, match=r"12 coordinates, events \(5,\) have 5"):
        polytope.project(torch.zeros(1, 5))


@pytest.mark.parametrize(
    ("G", "h", "point", "expected"),
    [
        ([[3.0, 4.0]], [5.0], [3.0, 4.0], 4 / 6),
        ([[3.0, 4.0]], [5.0], [-3.0, -4.0], 0.0),
        ([[3.0, 4.0], [0.0, 1e9]], [5.0, 0.0], [0.0, 2.0], 2 / 2),
        ([[3.0, 4.0], [0.0, 0.0]], [-5.0, 1.0], [0.0, 0.0], 1.0),
        ([[0.0, 0.0]], [1.0], [7.0, 7.0], 0.0),
    ],
)
def test_violation_of_a_polytope_by_hand(
    G: list[list[float]], h: list[float], point: list[float], expected: float
) -> None:
    got = Polytope(G, h).violation(torch.tensor([point], dtype=torch.float64))
    assert got.tolist() == pytest.approx([expected], rel=1e-14, abs=0.0)


def test_residual_of_a_polytope_by_hand() -> None:
    polytope = Polytope([[3.0, 4.0], [0.0, -2.0], [0.0, 0.0]], [5.0, 6.0, 0.0])
    z = torch.tensor([[1.0, 1.0], [0.0, -4.0]], dtype=torch.float64)
    assert polytope._count_equations() == 0
    assert geometry.residual(polytope, z).flatten().tolist() == pytest.approx([0.4, -4.0, -4.2, 1.0])


def test_a_set_without_inequalities_is_everything() -> None:
    everything = Polytope(torch.zeros(2, 3), [0.0, math.inf])
    z = normal(4, 3, seed=15)
    assert torch.equal(everything.project(z), z) and everything.violation(z).tolist() == [0.0] * 4
    assert everything.solid and geometry.residual(everything, z).shape == (4, 0)


@pytest.mark.parametrize(
    ("G", "h", "solid"),
    [
        ([[1.0], [-1.0]], [1.0, 0.0], True),
        ([[1.0], [-1.0]], [1.0, -1.0], False),
        ([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], [1.0, -1.0, 5.0], False),
        ([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0], True),
        ([[1e-9, 0.0], [0.0, 1e9]], [1.0, 1e-9], True),
    ],
)
def test_solid_means_that_all_inequalities_can_be_strict(G: list[list[float]], h: list[float], solid: bool) -> None:
    assert Polytope(G, h).solid is solid


@pytest.mark.parametrize(
    ("G", "h", "message"),
    [
        ([[1.0, 0.0], [-1.0, 0.0]], [0.0, -1.0], "2 of 2 rows contradict"),
        ([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], [1.0, -1.0 - 1e-9, 0.0], "2 of 3 rows contradict"),
        ([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]], [0.0, 0.0, -1.0], "3 of 3 rows contradict"),
        ([[1.0, 1.0], [0.0, 0.0]], [0.0, -2.0], r"row 1 of G is zero but h\[1\] = -2"),
        ([[1.0, math.nan]], [0.0], "non-finite"),
        ([[1.0, 1.0]], [-math.inf], "non-finite"),
    ],
)
def test_an_empty_polytope_is_refused(G: list[list[float]], h: list[float], message: str) -> None:
    with pytest.raises(InfeasibleSet, match=message):
        Polytope(G, h)


def test_shapes_of_a_polytope_are_checked() -> None:
    with pytest.raises(ShapeError, match="G has 3 rows, h 2 values; give one number, or 3"):
        Polytope(torch.zeros(3, 2), [1.0, 2.0])
    with pytest.raises(ShapeError, match="written for 6 coordinates"):
        Polytope(torch.ones(1, 2, 3), 1.0).project(torch.zeros(1, 5))


def test_the_edge_of_a_thin_wedge_is_found_far_away() -> None:
    """Two half-planes whose edges meet at 1e-9 rad, a thousand million away: found, or flagged; never called empty."""
    wedge = Polytope([[1.0, 0.0], [-1.0, 1e-9]], [0.0, -1.0])
    found = wedge.solve(normal(6, 2, seed=16))
    near = found.point[found.converged]
    assert torch.allclose(near, torch.tensor([0.0, -1e9], dtype=torch.float64), rtol=1e-9, atol=1e-9)
    assert float(wedge.violation(near).max()) <= 1e-12 and bool((found.residual[~found.converged] > 1e-12).all())


def test_a_chain_that_has_far_to_go_does_not_hold_up_the_others() -> None:
    """A wedge of 1e-8 rad: one chain has to go to its edge, a hundred thousand away."""
    wedge = Polytope([[0.0, 1.0], [-1e-8, -1.0]], [0.0, -1e-3])
    z = torch.tensor([[1e6, -0.1], [2e5, 3.0], [-1.0, 0.0], [3e5, -0.002]], dtype=torch.float64)
    found = wedge.solve(z)
    assert found.converged.tolist() == [True] * 4 and float(wedge.violation(found.point).max()) <= 1e-14
    assert torch.allclose(found.point[2], torch.tensor([1e5, 0.0], dtype=torch.float64), rtol=1e-9, atol=1e-9)


def test_a_polytope_keeps_to_its_budget() -> None:
    polytope = Polytope(matrix(60, 20, seed=17), levels(60, seed=17))
    z = 3.0 * normal(30, 20, seed=18)
    loose, exact = polytope.solve(z, budget=Budget(1e-12, 3)), polytope.solve(z)
    assert not bool(loose.converged.any()) and loose.iterations.tolist() == [3] * 30
    assert bool((loose.residual > 1e-12).all()) and bool((exact.iterations > 3).all())
    assert bool((loose.point - exact.point).norm(dim=1).mean() < 0.8 * (z - exact.point).norm(dim=1).mean())
    rough = polytope.solve(z, budget=Budget(1e-2))
    assert bool(rough.converged.all()) and float(rough.iterations.sum()) < float(exact.iterations.sum())


def test_a_polytope_at_full_size() -> None:
    """A hundred chains, two hundred coordinates, four hundred rows: all to rounding."""
    polytope = Polytope(matrix(400, 200, seed=19), 15.0 * levels(400, seed=20))
    z = normal(100, 200, seed=21)
    found = polytope.solve(z)
    assert bool(found.converged.all()) and float(found.residual.max()) <= 1e-14
    assert float(polytope.violation(found.point).max()) <= 1e-14
    # The nearest point is the one from which no member lies in the direction of z.
    others = found.point.roll(1, 0)
    assert bool((((z - found.point) * (others - found.point)).sum(1) <= 1e-12).all())


# ------------------------------------------------------------------ sparse equations


def test_sparse_matrices_of_torch_and_scipy_are_taken() -> None:
    A = torch.tensor([[1.0, 0.0, 0.0, -1.0], [0.0, 2.0, 0.0, 0.0]], dtype=torch.float64)
    z = torch.arange(8, dtype=torch.float64).reshape(2, 4)
    expected = Affine(A, [0.5, 1.0]).project(z)
    for sparse in (A.to_sparse(), A.to_sparse_coo(), scipy.sparse.csr_array(A.numpy())):
        torch.testing.assert_close(Affine(sparse, [0.5, 1.0]).project(z), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("high", [torch.inf, 1.0], ids=["one bound", "two bounds"])
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_newton_steps_on_a_plane_in_a_box_end_at_the_nearest_point(
    high: float, scale: float, dtype: torch.dtype
) -> None:
    """At scale 30 two bounds send some chains to and fro; these take the way of ``project``."""
    stream = torch.Generator().manual_seed(0)
    slope = torch.randn(40, generator=stream, dtype=torch.float64)
    constraint = BoxHyperplane(0.0, high, slope, 2.0)
    y = scale * torch.randn(50, 40, generator=stream, dtype=torch.float64).to(dtype)
    right, found = constraint.project(y.double()), constraint.project(y, quick=True)
    assert found.dtype == dtype and constraint.fast
    assert float((found - right).abs().max()) <= 50 * torch.finfo(dtype).eps * max(1.0, float(y.abs().max()))
    assert float(constraint.violation(found).max()) <= 20 * torch.finfo(dtype).eps
    y[3, 1] = torch.nan
    assert not bool(torch.isfinite(constraint.project(y, quick=True)[3]).all())


@pytest.mark.parametrize("seed", range(20))
def test_equations_that_have_a_solution_are_not_refused(seed: int) -> None:
    """Independent rows always have one, whatever b: with zeros, and with numbers of very different size."""
    generator = torch.Generator().manual_seed(seed)
    A = torch.randn(3, 6, generator=generator, dtype=torch.float64)
    for b in ([1.0, 0.0, -2.0], [0.0, 0.0, 1e10], [1e-12, 1.0, 1e12], [0.0, 0.0, 0.0]):
        right = torch.tensor(b, dtype=torch.float64)
        dependent = torch.cat([A, A[:1] - 2 * A[1:2]]), torch.cat([right, right[:1] - 2 * right[1:2]])
        for equations in (Affine(A, right), Affine(*dependent)):
            nearest = equations.project(torch.ones(1, 6, dtype=torch.float64))
            assert torch.allclose((A @ nearest[0]), right, rtol=1e-12, atol=1e-13 * max(1.0, float(right.abs().max())))


def test_a_large_field_makes_nothing_of_its_size_squared() -> None:
    """65,536 coordinates, whose square would be 34 GB: a direction along eight equations, and a box of known values."""
    size, rows = 65536, torch.zeros(8, 65536, dtype=torch.float64)
    rows[range(8), range(0, 80, 10)] = 1.0
    along = Affine(rows, torch.arange(8.0)).inside_direction()
    assert along is not None
    torch.testing.assert_close(rows @ along, torch.zeros(8, dtype=torch.float64))
    torch.testing.assert_close(along.norm(), torch.ones((), dtype=torch.float64))
    low, high = torch.full((size,), -INF), torch.full((size,), INF)
    low[:3] = high[:3] = torch.tensor([1.0, 2.0, 3.0])
    pinned = Box(low, high)._pins((size,))
    assert pinned is not None
    assert pinned.matrix.shape == (3, size)
    torch.testing.assert_close(pinned.matrix[:, :3], torch.eye(3, dtype=torch.float64))


@pytest.mark.parametrize(("width", "equations"), [(1e-7, 0), (0.0, 1)])
def test_a_thin_polytope_has_an_interior_and_one_without_width_an_equation(width: float, equations: int) -> None:
    """A turned box, as its reduction sees it: nothing may be lost of a direction that is only narrow."""
    turn = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)).Q
    high = torch.tensor([width, 1.0, 1.0, 1.0], dtype=torch.float64)
    box = Polytope(torch.cat([turn.T, -turn.T]), torch.cat([high, torch.zeros(4, dtype=torch.float64)]))
    reduced = box.reduction((4,))
    assert geometry.codimension(box, (4,)) == equations and box.solid == (equations == 0)
    assert reduced is not None and reduced.dimension == 4 - equations
