"""The vehicles: against the equations of motion, step by step and in closed form."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from casal_lab.physics import quadrotor
from casal_lab.physics.quadrotor import ARM, GRAVITY, INERTIA, INTERVAL, MASS, STEPS, TILT

F64 = torch.float64


def test_constant_tilt_is_a_parabola() -> None:
    u = torch.full((1, STEPS, 1), 0.3, dtype=F64)
    time = INTERVAL * torch.arange(1, STEPS + 1, dtype=F64)
    y = quadrotor.tilting().rollout(u)[0, :, 0]
    torch.testing.assert_close(y, 0.5 * GRAVITY * 0.3 * time**2, rtol=1e-12, atol=0)


def test_the_planar_vehicle_follows_its_equations() -> None:
    """Against an integrator of the equations of the module, with the inputs held."""
    steps = 30
    u = 0.5 * np.random.default_rng(1).standard_normal((steps, 2))

    def slope(t: float, s: np.ndarray) -> list[float]:
        one, two = u[min(int(t / INTERVAL), steps - 1)]
        return [s[3], s[4], s[5], -GRAVITY * s[2], (one + two) / MASS, ARM / INERTIA * (one - two)]

    state, states = np.zeros(6), []
    for k in range(steps):
        middle = solve_ivp(
            lambda t, s, k=k: slope((k + 0.5) * INTERVAL, s), (0, INTERVAL), state, rtol=1e-11, atol=1e-13
        )
        state = middle.y[:, -1]
        states.append(state)
    found = quadrotor.planar(steps=steps).rollout(torch.from_numpy(u)[None])[0]
    np.testing.assert_allclose(found.numpy(), states, rtol=1e-8, atol=1e-10)


def test_inputs_of_the_data_keep_their_limits() -> None:
    u = quadrotor.tilt_inputs(200, 3)
    largest = np.abs(u).max(1)
    assert largest.max() <= TILT + 1e-12 and largest.min() >= 0.2 * TILT - 1e-12
    forces = quadrotor.force_inputs(200, 3)
    model = quadrotor.planar()
    states = model.rollout(torch.from_numpy(forces))
    tilt = states[:, :, 2].abs().amax(1)
    assert float(tilt.max()) <= 1.2 * TILT and float(tilt.min()) > 0.15 * TILT  # the held moment adds a little
    assert np.abs(forces).max() < quadrotor.FORCE
    np.testing.assert_array_equal(quadrotor.tilt_inputs(5, 7), quadrotor.tilt_inputs(5, 7))


def test_what_is_flown_is_the_rollout_of_the_clipped_input() -> None:
    """A path that no input leads to is not believed."""
    model = quadrotor.tilting(scale_y=0.7, scale_u=0.2)
    z = torch.zeros((2, STEPS, 2), dtype=F64)
    z[0, :, 0] = 5.0  # claims to be far away, with no input
    z[1, :, 1] = 10.0  # an input of 2 rad
    flown = quadrotor.flown(model, z)[..., 0]
    assert float(flown[0].abs().max()) == 0.0
    end = 0.5 * GRAVITY * TILT * (STEPS * INTERVAL) ** 2
    assert float(flown[1, -1]) == pytest.approx(end, rel=1e-12)
