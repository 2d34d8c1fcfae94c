"""The quadrotor: its decoder, its exact paths, how they are counted."""

from __future__ import annotations

import numpy as np
import torch

from casal_lab.conditional import quadrotor
from casal_lab.physics.quadrotor import APART, GRAVITY, INTERVAL, STEPS


def test_the_decoder_is_the_double_integral_of_waves() -> None:
    """y'' = g u, u the wave of each latent number, held for an interval; by the sums of position and velocity."""
    u = torch.linalg.lstsq(GRAVITY * held(), quadrotor.decoder() * quadrotor.UNIT).solution.numpy()
    waves = np.fft.rfft(u, axis=0)
    assert np.abs(waves[quadrotor.MODES :]).max() < 1e-6 * np.abs(waves).max()


def held() -> torch.Tensor:
    """Column j: twice integrated after one unit in interval j."""
    columns = []
    for u in np.eye(STEPS):
        position, velocity, path = 0.0, 0.0, []
        for value in u:
            position += velocity * INTERVAL + value * INTERVAL**2 / 2
            velocity += value * INTERVAL
            path.append(position)
        columns.append(path)
    return torch.tensor(columns, dtype=torch.float64).T


def test_distinct_paths_are_counted_greedily() -> None:
    step = APART / quadrotor.UNIT
    heights = torch.tensor([0.0, 0.4, 1.1, 1.2, 5.0], dtype=torch.float64) * step
    assert quadrotor.distinct(heights[:, None].expand(-1, 7)) == 3
    assert quadrotor.distinct(torch.zeros(0, 7, dtype=torch.float64)) == 0


def test_exact_paths_are_free_and_in_classes() -> None:
    x = quadrotor.exact_draws(0.3, 20_000)
    z = x @ quadrotor.decoder()[quadrotor.ROWS].T
    assert len(x) > 100 and float(quadrotor.obstacles(0.3).violation(z).max()) <= 0
    found = torch.bincount(quadrotor.classes(z, 0.3), minlength=8)
    assert found.sum() == len(x) and found[7] > found[:6].sum()
