"""The trained network: mode weights from samples near the circle."""

from __future__ import annotations

import torch

import casal
from casal_lab.conditional.network import RADIUS, halves, shell_weights
from casal_lab.problems.three_modes import MIXTURE


def test_shell_weights_of_exact_samples() -> None:
    free = MIXTURE.sample(200_000, torch.Generator().manual_seed(0))
    exact = MIXTURE.restricted(casal.Sphere(RADIUS)).weights
    assert float((shell_weights(free) - exact).abs().sum()) / 2 < 0.03
    assert halves(free) < 0.02
