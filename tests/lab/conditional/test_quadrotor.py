"""The quadrotor: its integrator, its exact paths, how they are counted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from casal.lab.conditional import quadrotor


def test_the_integrator_is_the_double_integral() -> None:
    time = (np.arange(quadrotor.STEPS) + 1) * quadrotor.INTERVAL
    np.testing.assert_allclose(quadrotor.integrator() @ np.ones(quadrotor.STEPS), quadrotor.GRAVITY * time**2 / 2)
    position = velocity = 0.0
    u = np.sin(time)
    for k in range(quadrotor.STEPS):
        position += velocity * quadrotor.INTERVAL + quadrotor.GRAVITY * u[k] * quadrotor.INTERVAL**2 / 2
        velocity += quadrotor.GRAVITY * u[k] * quadrotor.INTERVAL
    assert (quadrotor.integrator() @ u)[-1] == pytest.approx(position)


def test_distinct_paths_are_counted_greedily() -> None:
    step = quadrotor.APART / quadrotor.UNIT
    heights = torch.tensor([0.0, 0.4, 1.1, 1.2, 5.0], dtype=torch.float64) * step
    assert quadrotor.distinct(heights[:, None].expand(-1, 7)) == 3
    assert quadrotor.distinct(torch.zeros(0, 7, dtype=torch.float64)) == 0


def test_exact_paths_are_free_and_in_classes() -> None:
    x = quadrotor.exact_draws(0.3, 20_000)
    z = x @ quadrotor.decoder()[quadrotor.ROWS].T
    assert len(x) > 100 and float(quadrotor.obstacles(0.3).violation(z).max()) <= 0
    found = torch.bincount(quadrotor.classes(z, 0.3), minlength=8)
    assert found.sum() == len(x) and found[7] > found[:6].sum()
