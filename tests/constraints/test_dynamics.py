"""Linear dynamics: nearest trajectories against other solvers, units, budgets."""

from __future__ import annotations

import math

import cvxpy
import numpy as np
import pytest
import scipy.integrate
import scipy.linalg
import torch
from torch import Tensor

from casal.constraints import Budget, LinearDynamics, geometry
from casal.errors import InfeasibleSet, ProjectionError, SettingError, ShapeError

from .iterative_cases import oscillator
from .points import normal


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
    assert "quadratic programme" in dynamics.explain() and "accelerated" in quadrotor(20).explain()
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
    residual = geometry.residual(dynamics, z)
    assert dynamics._count_equations() == 2 and dynamics.inequalities(z).shape[1] == 4
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


@pytest.mark.parametrize("budget", [Budget(), Budget(1e-12, 3)])
def test_only_rollouts_stay_where_they_are(budget: Budget) -> None:
    """A trajectory stays to the bit, wherever the search starts; one that is off in a single late sample moves."""
    dynamics = quadrotor()
    z = dynamics.trajectory(smooth_inputs(8, 0.4, seed=41))
    far = dynamics.project(normal(8, 200, 2, seed=42))
    off = z.clone()
    off[4:, 150, 0] += 1e-6
    found = dynamics.solve(off, budget=budget, warm=far)
    assert torch.equal(found.point[:4], z[:4]) and found.iterations[:4].tolist() == [0] * 4
    assert not bool((found.point[4:] == off[4:]).flatten(1).all(1).any()) and bool((found.iterations[4:] > 0).all())
    assert float(dynamics.violation(found.point).max()) <= 1e-15


def test_a_few_steps_from_a_near_guess_come_near_and_go_on_where_they_stopped() -> None:
    dynamics = quadrotor()
    z = dynamics.trajectory(smooth_inputs(10, 1.0, seed=43)) + normal(10, 200, 2, seed=44)
    exact, point, gaps = dynamics.project(z), None, []
    for _ in range(20):
        point = dynamics.project(z, budget=Budget(1e-12, 3), warm=point)
        gaps.append(float((point - exact).abs().max()))
    assert gaps[0] > 1e-2 and gaps[-1] < 1e-4 * gaps[0]


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
        ({"steps": 0}, SettingError, "steps must be a whole number >= 1, got 0"),
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
