"""Polytopes and linear dynamics: nearest points against other solvers, flags, budgets, data in and out."""

from __future__ import annotations

import json
import math

import cvxpy
import numpy as np
import pytest
import scipy.integrate
import scipy.linalg
import torch
from torch import Tensor

from casal.constraints import Box, Budget, Constraint, LinearDynamics, Polytope, constraint_from_spec
from casal.errors import InfeasibleSet, ProjectionError, SettingError, ShapeError

from .iterative_cases import SETS, cube, levels, matrix, oscillator

every_set = pytest.mark.parametrize(("constraint", "event"), [row[1:] for row in SETS], ids=[row[0] for row in SETS])


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ------------------------------------------------------------------ what both sets promise


@every_set
def test_projections_converge_to_rounding(constraint: Constraint, event: tuple[int, ...]) -> None:
    z = 3.0 * normal(40, *event, seed=1)
    found = constraint.solve(z)
    assert bool(found.converged.all()) and float(found.residual.max()) <= 1e-14
    assert float(constraint.violation(found.point).max()) <= 2e-15
    assert not constraint.exact and constraint.convex
    again = constraint.project(found.point)
    assert torch.allclose(again, found.point, rtol=0, atol=4e-15)


@every_set
def test_a_set_comes_back_from_json(constraint: Constraint, event: tuple[int, ...]) -> None:
    copy = constraint_from_spec(json.loads(json.dumps(constraint.spec())))
    z = 2.0 * normal(5, *event, seed=2)
    assert type(copy) is type(constraint) and copy.spec() == constraint.spec()
    assert torch.equal(copy.project(z), constraint.project(z))
    assert torch.equal(copy.violation(z), constraint.violation(z))
    assert repr(copy) == repr(constraint) and copy.explain() == constraint.explain()


@every_set
def test_chains_are_alone_in_a_batch(constraint: Constraint, event: tuple[int, ...]) -> None:
    z = 4.0 * normal(7, *event, seed=3)
    together = constraint.solve(z)
    for i in range(7):
        alone = constraint.solve(z[i : i + 1])
        assert torch.allclose(alone.point[0], together.point[i], rtol=0, atol=2e-14)
    assert torch.allclose(constraint.project(z.flip(0)), together.point.flip(0), rtol=0, atol=2e-14)


@every_set
def test_a_warm_start_changes_no_answer(constraint: Constraint, event: tuple[int, ...]) -> None:
    z = 3.0 * normal(20, *event, seed=4)
    near = z + 1e-3 * normal(20, *event, seed=5)
    cold = constraint.solve(z)
    for start in (constraint.project(near), constraint.project(-z), z):
        warm = constraint.solve(z, warm=start)
        assert bool(warm.converged.all())
        assert torch.allclose(warm.point, cold.point, rtol=0, atol=2e-14)


@every_set
def test_single_precision_is_rounded_at_the_end(constraint: Constraint, event: tuple[int, ...]) -> None:
    z = (3.0 * normal(10, *event, seed=6)).to(torch.float32)
    found = constraint.solve(z)
    assert found.point.dtype == torch.float32 and bool(found.converged.all())
    assert torch.equal(found.point, constraint.project(z.to(torch.float64)).to(torch.float32))
    assert float(constraint.violation(found.point).max()) <= 1e-6


@every_set
@pytest.mark.parametrize("size", [1e-300, 1e-20, 1e8, 1e20, 1e150])
def test_numbers_of_any_size(constraint: Constraint, event: tuple[int, ...], size: float) -> None:
    z = size * normal(8, *event, seed=7)
    found = constraint.solve(z)
    assert bool(found.converged.all()) and bool(torch.isfinite(found.point).all())
    assert float(constraint.violation(found.point).max()) <= 1e-12


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
    with pytest.raises(ShapeError, match=r"12 columns, events \(5,\) have 5"):
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
    assert polytope.equation_count() == 0
    assert polytope.residual(z).flatten().tolist() == pytest.approx([0.4, -4.0, -4.2, 1.0])


def test_a_set_without_inequalities_is_everything() -> None:
    everything = Polytope(torch.zeros(2, 3), [0.0, math.inf])
    z = normal(4, 3, seed=15)
    assert torch.equal(everything.project(z), z) and everything.violation(z).tolist() == [0.0] * 4
    assert everything.solid and everything.residual(z).shape == (4, 0)


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
    with pytest.raises(ShapeError, match="3 rows but h has 2"):
        Polytope(torch.zeros(3, 2), [1.0, 2.0])
    with pytest.raises(ShapeError, match=r"\(1, 2, 3\)"):
        Polytope(torch.zeros(1, 2, 3), 1.0)


def test_a_polytope_that_may_be_empty_flags_every_chain() -> None:
    """Two half-planes whose edges meet at 1e-9 rad, a thousand million away: beyond proof, and beyond reach."""
    doubtful = Polytope([[1.0, 0.0], [-1.0, 1e-9]], [0.0, -1.0])
    z = normal(6, 2, seed=16)
    found = doubtful.solve(z)
    assert not bool(found.converged.any())
    assert torch.allclose(found.residual, doubtful.violation(found.point), rtol=1e-6, atol=0)
    assert bool((found.residual < doubtful.violation(z)).all())


def test_in_a_batch_only_the_hard_chain_is_flagged() -> None:
    """A wedge of 1e-8 rad: only the chain that would have to go to its edge, far away, does not get there."""
    wedge = Polytope([[0.0, 1.0], [-1e-8, -1.0]], [0.0, -1e-3])
    z = torch.tensor([[1e6, -0.1], [2e5, 3.0], [-1.0, 0.0], [3e5, -0.002]], dtype=torch.float64)
    found = wedge.solve(z)
    assert found.converged.tolist() == [True, True, False, True]
    assert float(found.residual[2]) > 1e-12 and float(wedge.violation(found.point)[[0, 1, 3]].max()) <= 1e-14


def test_a_polytope_keeps_to_its_budget() -> None:
    polytope = Polytope(matrix(60, 20, seed=17), levels(60, seed=17))
    z = 3.0 * normal(30, 20, seed=18)
    loose, exact = polytope.solve(z, budget=Budget(1e-12, 3)), polytope.solve(z)
    assert not bool(loose.converged.any()) and loose.iterations.tolist() == [3] * 30
    assert bool((loose.residual > 1e-12).all()) and bool((exact.iterations > 3).all())
    assert bool((loose.point - exact.point).norm(dim=1).mean() < 0.5 * (z - exact.point).norm(dim=1).mean())
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


# ------------------------------------------------------------------ linear dynamics


def quadrotor(steps: int = 200) -> LinearDynamics:
    """The planar quadrotor of the paper, in the units of its data."""
    return LinearDynamics.double_integrator(9.81, steps=steps, dt=0.01, u_max=0.5, scale_y=0.698, scale_u=0.181)


def smooth_inputs(n: int, amplitude: float, seed: int) -> Tensor:
    """Sums of three sines, (n, 200, 1), rescaled to the amplitude."""
    generator = torch.Generator().manual_seed(seed)
    frequency, phase, weight = torch.rand(3, n, 3, 1, generator=generator, dtype=torch.float64)
    time = 0.01 * torch.arange(200, dtype=torch.float64)
    u = (weight * torch.sin(2 * math.pi * ((0.2 + 1.3 * frequency) * time + phase))).sum(1)
    return (amplitude * u / u.abs().amax(1, keepdim=True))[..., None]


def response(gain: float, dt: float, steps: int) -> np.ndarray:
    """Position at the end of step s due to a unit input held over step r: kinematics, written out."""
    s, r = np.mgrid[1 : steps + 1, 1 : steps + 1]
    return np.where(r <= s, gain * dt**2 * (s - r + 0.5), 0.0)


@pytest.mark.parametrize(("amplitude", "noise"), [(0.5, 0.3), (1.0, 0.5), (3.0, 1.0), (10.0, 1.0)])
def test_the_quadrotor_agrees_with_osqp(amplitude: float, noise: float) -> None:
    """Six samples for each amplitude, twenty-four in all; in the last twelve, sixty per cent or more are saturated."""
    dynamics = quadrotor()
    z = dynamics.trajectory(smooth_inputs(6, amplitude, seed=30)) + noise * normal(6, 200, 2, seed=31)
    found = dynamics.solve(z)
    assert bool(found.converged.all()) and float(dynamics.violation(found.point).max()) <= 1e-15
    G, limit = response(9.81, 0.01, 200) * 0.181 / 0.698, 0.5 / 0.181
    saturated = (found.point[..., 1].abs() >= limit * (1 - 1e-12)).double().mean(1)
    assert amplitude < 3.0 or float(saturated.min()) >= 0.6
    for start, point in zip(z.numpy(), found.point.numpy(), strict=True):
        u = cvxpy.Variable(200)
        cost = cvxpy.sum_squares(G @ u - start[:, 0]) + cvxpy.sum_squares(u - start[:, 1])
        cvxpy.Problem(cvxpy.Minimize(cost), [u <= limit, u >= -limit]).solve(
            solver=cvxpy.OSQP, eps_abs=1e-11, eps_rel=1e-11, max_iter=200_000, polishing=True
        )
        np.testing.assert_allclose(point[:, 1], u.value, rtol=0, atol=1e-8)
        np.testing.assert_allclose(point[:, 0], G @ u.value, rtol=0, atol=1e-8)


def test_the_discretisation_is_the_differential_equation() -> None:
    """Integrate y' = A y + B u over every interval with u held, to twelve digits."""
    dynamics = oscillator()
    u = normal(2, 5, 2, seed=32)
    states = dynamics.rollout(u).numpy()
    A, B = dynamics.A.numpy(), dynamics.B.numpy()
    for chain in range(2):
        y = np.array([1.0, -0.5])
        for s in range(5):
            held = u[chain, s].numpy()

            def slope(_: float, y: np.ndarray, held: np.ndarray = held) -> np.ndarray:
                return A @ y + B @ held

            y = scipy.integrate.solve_ivp(slope, (0.0, 0.2), y, rtol=1e-12, atol=1e-12).y[:, -1]
            np.testing.assert_allclose(states[chain, s], y, rtol=0, atol=1e-10)


def test_an_input_acts_on_the_sample_in_its_own_row_and_on_later_ones() -> None:
    dynamics = LinearDynamics.double_integrator(2.0, steps=4, dt=0.5, u_max=1.0, outputs=(0, 1))
    u = torch.tensor([[[0.0], [1.0], [0.0], [0.0]]], dtype=torch.float64)
    assert dynamics.rollout(u).flatten().tolist() == pytest.approx([0.0, 0.0, 0.25, 1.0, 0.75, 1.0, 1.25, 1.0])
    event = dynamics.trajectory(u)
    assert torch.equal(event[..., :2], dynamics.rollout(u)) and torch.equal(event[..., 2:], u)
    assert dynamics.violation(event).tolist() == [0.0] and torch.equal(dynamics.project(event), event)


def test_standardised_units_are_those_of_the_event() -> None:
    raw = LinearDynamics.double_integrator(9.81, steps=30, dt=0.05, u_max=0.5)
    scaled = LinearDynamics.double_integrator(9.81, steps=30, dt=0.05, u_max=0.5, scale_y=0.7, scale_u=0.2)
    u = 0.4 * torch.sin(torch.arange(30, dtype=torch.float64))[None, :, None]
    y, inputs = scaled.physical(scaled.trajectory(u))
    assert torch.allclose(inputs, u, rtol=0, atol=1e-15)
    assert torch.allclose(y, raw.trajectory(u)[..., :1], rtol=0, atol=1e-14)
    # In the units of the event the projection is Euclidean: no member is nearer, in either metric its own.
    z = normal(10, 30, 2, seed=33)
    for dynamics in (raw, scaled):
        foot = dynamics.project(z)
        member = dynamics.trajectory((0.5 * normal(10, 30, 1, seed=34)).clamp(-0.5, 0.5))
        assert bool(((z - foot) * (member - foot)).sum((1, 2)).max() <= 1e-12)


def test_several_inputs_and_one_output_agree_with_a_conic_solver() -> None:
    dynamics = oscillator()
    z = 2.0 * normal(6, 5, 3, seed=35)
    foot = dynamics.project(z).numpy()
    joint = scipy.linalg.expm(0.2 * np.block([[dynamics.A.numpy(), dynamics.B.numpy()], [np.zeros((2, 4))]]))
    for start, point in zip(z.numpy(), foot, strict=True):
        u, y = cvxpy.Variable((5, 2)), cvxpy.Variable((6, 2))
        conditions = [y[0] == np.array([1.0, -0.5]), cvxpy.abs(u[:, 0]) <= 0.7]
        conditions += [y[s + 1] == joint[:2, :2] @ y[s] + joint[:2, 2:] @ u[s] for s in range(5)]
        cost = cvxpy.sum_squares(y[1:, 1] / 0.4 - start[:, 0])
        cost += cvxpy.sum_squares(u[:, 0] / 0.3 - start[:, 1]) + cvxpy.sum_squares(u[:, 1] / 2.0 - start[:, 2])
        cvxpy.Problem(cvxpy.Minimize(cost), conditions).solve(
            solver=cvxpy.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11
        )
        expected = np.column_stack([y.value[1:, 1] / 0.4, u.value[:, 0] / 0.3, u.value[:, 1] / 2.0])
        np.testing.assert_allclose(point, expected, rtol=0, atol=1e-7)


def test_an_ill_conditioned_system_goes_through_the_active_set() -> None:
    """An unstable system: gradients crawl (condition number 1e5), and the saturated inputs are found exactly."""
    dynamics = LinearDynamics([[0.0, 1.0], [2.0, 0.0]], [[0.0], [1.0]], 40, 0.1, 1.0, y0=[0.1, 0.0])
    assert "active set" in dynamics.explain() and "accelerated" in quadrotor(20).explain()
    z = dynamics.trajectory(3.0 * normal(8, 40, 1, seed=36)) + normal(8, 40, 3, seed=37)
    found = dynamics.solve(z)
    assert bool(found.converged.all())
    u = found.point[..., 2]
    assert 0.2 < float((u.abs() >= 1 - 1e-12).double().mean()) < 0.95
    # Optimality, from the definition: the gradient vanishes at free inputs and points outwards at saturated ones.
    free = u.detach().clone().requires_grad_()
    y = dynamics.rollout(free[..., None])
    (0.5 * ((y - z[..., :2]) ** 2).sum() + 0.5 * ((free - z[..., 2]) ** 2).sum()).backward()
    assert free.grad is not None
    step = (u - free.grad).clamp(-1.0, 1.0)
    scale = z.abs().amax() * math.sqrt(dynamics._quadratic.condition)
    assert float((step - u).abs().max()) <= 1e-12 * float(scale)


def test_violation_of_dynamics_by_hand() -> None:
    dynamics = LinearDynamics([[0.0]], [[1.0]], 2, 1.0, 2.0, y0=[1.0], scale_y=2.0, scale_u=0.5)
    # u = 1, 1 leads from 1 to 2, 3; in units: y = 1, 1.5 and u = 2, 2, bounded by 4.
    right = [[1.0, 2.0], [1.5, 2.0]]
    off = [[1.0, 2.0], [2.0, 2.0]]
    hard = [[2.0, 6.0], [2.5, 2.0]]
    z = torch.tensor([right, off, hard], dtype=torch.float64)
    assert dynamics.violation(z).tolist() == pytest.approx([0.0, 0.5 / (2.0 + 1.5), 2.0 / (6.0 + 4.0)])
    residual = dynamics.residual(z)
    assert dynamics.equation_count() == 2 and dynamics.inequalities(z).shape[1] == 4
    assert residual[1].tolist() == pytest.approx([0.0, 0.5, -2.0, -2.0, -6.0, -6.0])
    assert residual[2].tolist() == pytest.approx([0.0, 0.0, 2.0, -2.0, -10.0, -6.0])


def test_what_comes_back_is_a_rollout_even_when_the_budget_runs_out() -> None:
    dynamics = quadrotor()
    z = dynamics.trajectory(smooth_inputs(10, 1.0, seed=38)) + normal(10, 200, 2, seed=39)
    loose, exact = dynamics.solve(z, budget=Budget(1e-12, 3)), dynamics.solve(z)
    assert not bool(loose.converged.any()) and loose.iterations.tolist() == [3] * 10
    for found in (loose, exact):
        u = found.point[..., 1:] * 0.181
        assert float(u.abs().max()) <= 0.5
        assert torch.equal(dynamics.trajectory(u)[..., 0], found.point[..., 0])
        assert dynamics.violation(found.point).tolist() == [0.0] * 10
    assert bool(((loose.point - z).norm(dim=(1, 2)) > (exact.point - z).norm(dim=(1, 2))).all())
    rough = dynamics.solve(z, budget=Budget(1e-4))
    assert bool(rough.converged.all()) and bool((rough.iterations < exact.iterations).all())
    assert float((rough.point - exact.point).abs().max()) < 0.1


def test_without_bounds_the_projection_is_linear() -> None:
    dynamics = LinearDynamics([[-1.0]], [[1.0]], 6, 0.5, math.inf, y0=[2.0])
    basis = torch.cat([dynamics._response, torch.eye(6, dtype=torch.float64)])
    z = normal(4, 6, 2, seed=40)
    target = torch.cat([z[..., 0] - dynamics._free, z[..., 1]], dim=1)
    u = torch.linalg.lstsq(basis, target.T).solution.T
    assert torch.allclose(dynamics.project(z)[..., 1], u, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"A": [[0.0, 1.0]]}, ShapeError, r"A must be \(p, p\)"),
        ({"B": [1.0, 2.0]}, ShapeError, r"A must be \(p, p\)"),
        ({"steps": 0}, SettingError, "steps >= 1"),
        ({"dt": -0.1}, SettingError, "0 < dt"),
        ({"u_max": -1.0}, InfeasibleSet, "u_max >= 0"),
        ({"u_max": [1.0, 2.0]}, ShapeError, "u_max needs one number or 1"),
        ({"y0": [1.0, 2.0, 3.0]}, ShapeError, "y0 needs one number or 2"),
        ({"scale_y": 0.0}, SettingError, "scale_y must be positive"),
        ({"scale_u": math.inf}, SettingError, "scale_u must be positive"),
        ({"outputs": [0, 2]}, SettingError, r"among 0 ... 1, got \[0, 2\]"),
        ({"outputs": [0, 0]}, SettingError, "distinct"),
        ({"outputs": []}, SettingError, "distinct"),
        ({"A": [[math.inf, 0.0], [0.0, 0.0]]}, SettingError, "finite"),
        ({"A": [[500.0, 0.0], [0.0, 0.0]], "y0": [1.0, 0.0]}, SettingError, "unstable"),
    ],
)
def test_settings_of_dynamics_are_checked(settings: dict[str, object], error: type[Exception], message: str) -> None:
    plain: dict[str, object] = {
        "A": [[0.0, 1.0], [0.0, 0.0]],
        "B": [[0.0], [1.0]],
        "steps": 10,
        "dt": 0.5,
        "u_max": 1.0,
    }
    with pytest.raises(error, match=message):
        LinearDynamics(**{**plain, **settings})  # type: ignore[arg-type]


def test_events_of_dynamics_are_checked() -> None:
    with pytest.raises(ShapeError, match=r"events must be \(6, 2\)"):
        quadrotor(6).project(torch.zeros(1, 2, 6))
    with pytest.raises(ShapeError, match=r"inputs must be \(n, 6, 1\), got \(1, 6\)"):
        quadrotor(6).rollout(torch.zeros(1, 6))
    with pytest.raises(ProjectionError, match="overflow"):
        quadrotor(6).project(torch.full((1, 6, 2), 1e305, dtype=torch.float64))
