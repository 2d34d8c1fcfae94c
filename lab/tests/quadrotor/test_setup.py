"""Vehicles and their latents: decoded flights obey the dynamics, and decoding inverts encoding."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from casal.errors import SettingError
from casal_lab.physics.quadrotor import tilt_inputs
from casal_lab.quadrotor.setup import KINDS, MODES, Prior, flights, modes_of, signals_of, vehicle

F64 = torch.float64


@pytest.mark.parametrize("name", KINDS)
def test_decoded_flights_obey_the_dynamics(name: str) -> None:
    machine = vehicle(name)
    x = torch.randn((20, machine.dimension), generator=torch.Generator().manual_seed(0), dtype=F64)
    events = machine.decode(x)
    y, u = machine.dynamics.physical(events)
    rolled = machine.dynamics.rollout(u)[..., machine.dynamics.outputs]
    torch.testing.assert_close(rolled, y, atol=1e-9, rtol=1e-9)
    with_room = machine.with_limit(1e9)
    assert float(with_room.violation(events).max()) < 1e-10


@pytest.mark.parametrize("name", KINDS)
def test_decoding_inverts_encoding(name: str) -> None:
    machine = vehicle(name)
    x = torch.randn((5, machine.dimension), generator=torch.Generator().manual_seed(1), dtype=F64)
    u = machine.dynamics.physical(machine.decode(x))[1]
    torch.testing.assert_close(machine.encode(u.numpy()), x, atol=1e-8, rtol=0)


@pytest.mark.parametrize("name", KINDS)
def test_units_are_those_of_the_data(name: str) -> None:
    """Latents of the data and their decoded channels are of size one."""
    machine = vehicle(name)
    x = machine.encode(KINDS[name].inputs(2000, 11))
    assert 0.8 < float(x.square().mean().sqrt()) < 1.2
    sizes = machine.decode(x).square().mean((0, 1)).sqrt()
    assert bool(((sizes > 0.5) & (sizes < 1.8)).all())


def test_modes_are_those_of_the_fourier_transform() -> None:
    u = tilt_inputs(3, 2)[:, :, None]
    numbers = modes_of(u)
    assert numbers.shape == (3, 2 * MODES - 1)
    low = np.fft.irfft(np.fft.rfft(u[:, :, 0], axis=1)[:, :MODES], n=200, axis=1)
    np.testing.assert_allclose(signals_of(numbers, 1, 200)[:, :, 0], low, atol=1e-12)


def test_the_planar_latent_leaves_out_what_hardly_varies() -> None:
    assert vehicle("tilting").dimension == 2 * MODES - 1
    assert 15 <= vehicle("planar").dimension < 2 * (2 * MODES - 1)
    assert float(vehicle("planar").scales[0]) == float(vehicle("planar").scales[1])  # discs stay discs
    assert flights("planar").shape == (10_000, 200, 3)


def test_a_model_is_trained_and_kept(brief: Prior) -> None:
    assert brief.diffusion(10).table.t.shape == (10,)
    assert brief.net(torch.zeros(2, 19), torch.tensor(3)).shape == (2, 19)
    with pytest.raises(SettingError, match="tilting, planar; got 'flying'"):
        vehicle("flying")
