"""The density on a curved set is per surface area; log |grad h| in the potential makes it that of x given h(x) = 0."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import casal

ANGLE = torch.arange(4000, dtype=torch.float64) * 2 * math.pi / 4000


def ellipse(z: Tensor) -> Tensor:
    return z[:, :1] ** 2 / 9 + z[:, 1:] ** 2 - 1


def slope(z: Tensor) -> Tensor:
    """|grad h|."""
    return torch.stack([2 * z[:, 0] / 9, 2 * z[:, 1]], dim=1).norm(dim=1)


def exact(conditioned: bool) -> float:
    """E z1^2 by a sum over the angle: the speed of (3 cos, sin) is the length of the arc."""
    points = torch.stack([3 * ANGLE.cos(), ANGLE.sin()], dim=1)
    speed = torch.stack([3 * ANGLE.sin(), ANGLE.cos()], dim=1).norm(dim=1)
    weight = torch.exp(-points.square().sum(1) / 8) * speed / (slope(points) if conditioned else 1.0)
    return float((weight * points[:, 0] ** 2).sum() / weight.sum())


@pytest.mark.statistical
@pytest.mark.parametrize("conditioned", [False, True])
def test_the_measure_on_an_ellipse(conditioned: bool) -> None:
    def potential(x: Tensor) -> Tensor:
        gaussian = x.square().sum(1) / 8
        return gaussian + slope(x).log() if conditioned else gaussian

    start = casal.GaussianStart(2, std=2.0, dtype=torch.float64)
    target = casal.energy(potential, steps=200, step_size=0.05, init=start)
    result = casal.sample(target, casal.Implicit(ellipse), n=2000, seed=0)
    mean = result.expect(lambda z: z[:, 0] ** 2)
    assert abs(float(mean.value) - exact(conditioned)) < 4 * float(mean.standard_error)
    assert abs(float(mean.value) - exact(not conditioned)) > 6 * float(mean.standard_error)  # the test has power
