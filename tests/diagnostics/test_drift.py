"""Metropolis moves keep right samples and shift wrong ones."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import casal
from casal.diagnostics import assess
from casal.diagnostics.drift import simpson
from casal.diagnostics.fidelity import REJECT, SHARE_WITH_DRIFT

from .populations import CENTRE, draws, evidence, gaussian

SETS = {
    "sphere": casal.Sphere(1.0),
    "box": casal.Box(torch.zeros(3), torch.full((3,), 1.5)),
    "mass and energy": casal.MassEnergy(0.3, 1.0),
}


def test_simpson_is_exact_for_a_gaussian() -> None:
    z, y = gaussian(5, 0), gaussian(5, 1) * 0.1 + 0.9 * gaussian(5, 0)
    rise = ((z - CENTRE).square() - (y - CENTRE).square()).sum(1) / 2
    torch.testing.assert_close(simpson(lambda x: CENTRE - x, z, y), rise)
    assert float(simpson(lambda x: torch.where(x > 0.5, 9.0, 0.0), torch.zeros(1, 1), torch.ones(1, 1))) == -math.inf


@pytest.mark.parametrize("name", SETS)
def test_right_samples_stay_and_cold_ones_drift(name: str) -> None:
    for seed in range(3):
        found = evidence(draws(SETS[name], 1000, seed), SETS[name])
        judged = assess(found, promised=True, spend="drift")
        assert judged.figures["drift_p"] > REJECT
        assert found.problem.usage.scores <= SHARE_WITH_DRIFT * 500.0 * 1000
    cold = assess(evidence(draws(SETS[name], 1000, 0, 0.5), SETS[name]), promised=True, spend="drift")
    assert cold.figures["drift_p"] < REJECT and any("Metropolis moves" in reason for reason in cold.reasons)


def test_a_score_that_is_not_that_of_the_potential_is_found() -> None:
    """Samples and score agree on half the temperature, the potential does not."""
    sphere = SETS["sphere"]

    def potential(x: Tensor) -> Tensor:
        return (x - CENTRE).square().sum(1) / 2

    wrong = casal.langevin(
        lambda x: 2.0 * (x - CENTRE), potential=potential, steps=10, step_size=0.1, init=gaussian(9, 0)
    )
    found = assess(evidence(draws(sphere, 1000, 0, 0.5), sphere, target=wrong), promised=True, spend="drift")
    assert found.figures["stein_p"] > REJECT > found.figures["drift_p"] and found.verdict == "suspect"
