"""Mixtures on spheres: the distances to the exact distribution."""

from __future__ import annotations

import pytest
import torch

from casal_lab.conditional.spheres import CASES, SphereCase


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_exact_draws_are_at_the_floor_and_shifted_ones_are_not(case: SphereCase) -> None:
    floor = case.floor(2000, 5)
    z = case.exact.draw(2000, torch.Generator().manual_seed(99))
    assert case.total_variation(z) < 4 * floor["tv"] and case.inside(z) < 2 * floor["inside"]
    turned = case.constraint.project(z + 0.3)
    assert case.inside(turned) > 3 * floor["inside"]
    assert case.total_variation(z[z[:, 0] > z[:, 0].median()]) > 5 * floor["tv"]
