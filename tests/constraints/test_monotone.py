"""Monotone sequences against isotonic regression."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import isotonic_regression
from torch import Tensor

from casal.constraints import (
    Monotone,
)

from .closed_form_cases import ramp
from .points import normal


def staircase(kind: str, rows: int, size: int) -> Tensor:
    noise = normal(rows, size, seed=14)
    if kind == "outlier":  # one block swallows its neighbours one by one: the slow case of the parallel rounds
        rising = torch.arange(size, dtype=torch.float64) + 0 * noise
        rising[:, 0] = 1e5
        return rising
    return {
        "noise": noise,
        "walk": noise.cumsum(1),
        "ties": (2 * noise).round(),
        "falling": -torch.arange(size, dtype=torch.float64) + 0.1 * noise,
        "wide": 10.0 ** (6 * normal(rows, size, seed=15)) * noise,
    }[kind]


@pytest.mark.parametrize("size", [2, 5, 60, 200])
@pytest.mark.parametrize("kind", ["noise", "walk", "ties", "falling", "outlier", "wide"])
def test_monotone_agrees_with_scipy(kind: str, size: int) -> None:
    z = staircase(kind, 12, size)
    for increasing in (True, False):
        foot = Monotone(increasing).project(z).numpy()
        for row, got in zip(z.numpy(), foot, strict=True):
            there = isotonic_regression(row, increasing=increasing).x
            np.testing.assert_allclose(got, there, rtol=0, atol=1e-13 * np.abs(row).max())
        assert bool((np.diff(foot) >= 0).all() if increasing else (np.diff(foot) <= 0).all())


def test_monotone_mixes_short_and_long_chains() -> None:
    z = torch.cat(
        [staircase(kind, 3, 50) for kind in ("outlier", "noise", "walk")] + [ramp(1, 50), 0.8e308 * ramp(1, 50).flip(1)]
    )
    foot = Monotone().project(z)
    for chain in range(len(z)):
        assert torch.equal(Monotone().project(z[chain : chain + 1])[0], foot[chain])
    assert torch.equal(foot[-2], z[-2])
    np.testing.assert_allclose(foot[-1] / 1e308, (z[-1] / 1e308).mean().expand(50), rtol=1e-14)
