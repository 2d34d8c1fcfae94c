"""Distances to the law of three modes on a set: small for exact draws, large for others."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from casal_lab.problems.three_modes import CASES


@pytest.mark.parametrize("name", CASES)
def test_distances_are_small_for_exact_draws_and_the_chart_shows_them(name: str) -> None:
    case = CASES[name]
    z = case.exact.draw(4000, torch.Generator().manual_seed(7))
    floor = case.floor(4000, 5)
    assert case.total_variation(z) < 4 * floor["tv"]
    assert case.sliced(z) < 3 * floor["sliced"]
    tilted = z[z[:, 1] > z[:, 1].median()]
    assert case.total_variation(tilted) > 5 * floor["tv"]
    u = case.coordinate(z.numpy())
    mean = float((case.density * case.grid).sum() / case.density.sum())
    assert u.mean() == pytest.approx(mean, abs=4 * u.std() / np.sqrt(len(u)))
