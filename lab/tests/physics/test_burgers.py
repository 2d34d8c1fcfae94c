"""Burgers: what it conserves, how accurate it is, and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch

from casal.errors import DivergedError, SettingError
from casal_lab.physics.burgers import Burgers, energy, mass, random_states


@pytest.mark.parametrize(("amplitude", "horizon"), [(0.05, 8.0), (0.2, 4.0)])
def test_mass_and_energy_stay(amplitude: float, horizon: float) -> None:
    start = random_states(6, amplitude, torch.Generator().manual_seed(0))
    path = Burgers().trajectory(start, torch.linspace(horizon / 4, horizon, 4))
    assert float(((mass(path) - mass(start)) / (1 + mass(start).abs())).abs().max()) < 1e-12
    assert float((energy(path) / energy(start) - 1).abs().max()) < 1e-5
    assert float((path[-1] - start).abs().max()) > amplitude  # and something has moved


def test_the_slope_is_that_of_the_written_equation() -> None:
    u = random_states(3, 0.3, torch.Generator().manual_seed(1))
    solver = Burgers()
    h = 2 * math.pi / 200
    a, b = u.roll(-1, -1), u.roll(1, -1)
    expected = -(a**2 + a * u - u * b - b**2) / (6 * h) - 0.5 * (a - b) / (2 * h)
    torch.testing.assert_close(solver.slope(u), expected, rtol=1e-12, atol=1e-12)
    assert float((u * solver.slope(u)).sum(-1).abs().max()) < 1e-12  # skew: no energy is made


def test_before_shocks_the_characteristics_are_followed() -> None:
    """u(x + (u0(x) + c) t, t) = u0(x) for a smooth wave and a short time; halving the grid quarters the error."""
    time, errors = 0.5, []
    for points in (100, 200):
        solver = Burgers(points=points, step=0.005)
        x = solver.grid
        u = solver.advance((0.3 * torch.sin(x))[None], time)[0]
        foot = x.clone()
        for _ in range(200):
            foot = x - (0.3 * torch.sin(foot) + 0.5) * time
        errors.append(float((u - 0.3 * torch.sin(foot)).abs().max()))
    assert errors[1] < 1e-3 and 3.5 < errors[0] / errors[1] < 4.5


def test_linear_waves_travel_at_the_speed() -> None:
    solver = Burgers(speed=0.5, step=0.01)
    wave = 1e-8 * torch.sin(solver.grid)[None]
    moved = solver.advance(wave, 2.0)
    assert float((moved - 1e-8 * torch.sin(solver.grid - 1.0)).abs().max()) < 1e-11


def test_a_trajectory_is_the_same_in_one_go() -> None:
    start = random_states(2, 0.1, torch.Generator().manual_seed(2))
    solver = Burgers()
    torch.testing.assert_close(
        solver.trajectory(start, torch.tensor([0.5, 1.0]))[-1], solver.advance(start, 1.0), rtol=1e-10, atol=1e-12
    )


def test_states_have_the_spectrum_asked_for() -> None:
    states = random_states(4000, 0.2, torch.Generator().manual_seed(3))
    fluctuation = states - states.mean(1, keepdim=True)
    torch.testing.assert_close(
        fluctuation.square().mean(1).sqrt(), torch.full((4000,), 0.2, dtype=torch.float64), rtol=1e-10, atol=0
    )
    assert abs(float(states.mean(1).std()) - 0.2) < 0.01
    power = torch.fft.rfft(states).abs().square().mean(0)
    assert float(power[21:].max()) < 1e-20 * float(power[1])
    assert float(power[1]) > 3 * float(power[2]) > 0


def test_fields_cut_to_their_modes_keep_mass_and_energy() -> None:
    start = random_states(4, 0.2, torch.Generator().manual_seed(4))
    solver = Burgers(modes=20)
    path = solver.trajectory(start, torch.linspace(1.0, 4.0, 4))
    beyond = torch.fft.rfft(path)[..., 21:].abs().max()
    assert float(beyond) < 1e-9 and float(torch.fft.rfft(Burgers().advance(start, 4.0))[..., 21:].abs().max()) > 1e-2
    assert float((mass(path) - mass(start)).abs().max()) < 1e-11
    assert float((energy(path) / energy(start) - 1).abs().max()) < 1e-7
    assert float((u_slope := solver.slope(start)).abs().max()) > 0.1
    assert float((start * u_slope).sum(-1).abs().max()) < 1e-12  # the cut makes no energy
    torch.testing.assert_close(Burgers(modes=100).slope(start), Burgers().slope(start))


def test_bad_input_is_named() -> None:
    with pytest.raises(SettingError, match="a grid of 200 points has 100"):
        Burgers(modes=101)
    with pytest.raises(SettingError, match="beyond mode 5"):
        Burgers(modes=5).advance(random_states(1, 0.2, torch.Generator().manual_seed(0)), 0.1)
    with pytest.raises(SettingError, match="step"):
        Burgers(step=0.0)
    with pytest.raises(SettingError, match="100 points, the grid 200"):
        Burgers().advance(torch.zeros(1, 100), 1.0)
    with pytest.raises(SettingError, match="time"):
        Burgers().advance(torch.zeros(1, 200), -1.0)
    with pytest.raises(DivergedError, match="smaller step"):
        Burgers(step=5.0).advance(100 * torch.sin(Burgers().grid)[None], 5.0)
