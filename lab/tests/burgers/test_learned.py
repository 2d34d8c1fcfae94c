"""Set-up C of the assimilation with a learned prior: exact score, distribution under a network, a small run."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from casal import DPS, FinalProjection
from casal_lab.burgers.learned import ALPHA, SIGMA, Learned, LearnedPosterior, Training, draws, losses
from casal_lab.burgers.regime_runs import Entry, Scale, Trial, methods
from casal_lab.burgers.regimes import DIMENSION, REGIMES, Posterior
from casal_lab.nets import ProbabilityFlow
from casal_lab.problems.families import BETAS

SMALL = Training(500, 3000, 60)
SCALE = Scale(2, 60, 50, 60, 1, 7, 1000, SMALL)


def noise(x: Tensor, t: Tensor | int) -> Tensor:
    """E[w | alpha_t x0 + sigma_t w = x] of the regimes."""
    return -float(SIGMA[int(t)]) * REGIMES.score(x, ALPHA[int(t)], SIGMA[int(t)])


class Exact(nn.Module):
    """The exact noise of the regimes in the place of a network."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return noise(x, t)


@pytest.fixture(scope="module")
def exact() -> Learned:
    return Learned(Exact(), SMALL)


def test_the_flow_of_the_exact_noise_has_the_exact_density(exact: Learned) -> None:
    x = float(ALPHA[0]) * draws(100, 4)
    found = ProbabilityFlow(noise, BETAS, DIMENSION, 100).log_density(x)
    assert float((found - REGIMES.log_density(x, ALPHA[0], SIGMA[0])).abs().max()) < 0.1
    assert float(exact.log_ratio(draws(50, 5)).std()) < 0.05


def test_the_law_under_the_exact_noise_is_the_exact_law(exact: Learned) -> None:
    trial = Trial.of(1, 2000)
    reference = trial.under(exact).own
    assert float((reference.modes - trial.exact.modes).abs().max()) < 0.02
    assert float((reference.weights @ reference.x - trial.exact.weights @ trial.exact.x).abs().max()) < 0.1


def test_the_posterior_of_the_exact_noise_has_the_exact_score_and_samples(exact: Learned) -> None:
    ours, theirs = LearnedPosterior(exact, -0.4), Posterior(-0.4)
    x = theirs.sample(200, torch.Generator().manual_seed(0))
    target = ours.static(10, 0.2)
    score, expected = target.score(x, target.table.t[0]), theirs.score(x)
    assert float((score - expected).norm() / expected.norm()) < 0.02  # noise of 0.01 beside regimes of 0.15
    shares = torch.bincount(
        torch.cdist(ours.sample(2000, torch.Generator().manual_seed(1)).double(), theirs.means).argmin(1)
    )
    assert float((shares / 2000 - theirs.weights).abs().max()) < 0.05


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Learned:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CASAL_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr("casal_lab.burgers.learned.DRAWS", 20_000)
        patch.setattr("casal_lab.burgers.learned.BATCH", 256)
        return Learned.of(SMALL)


def test_a_short_training_is_nearer_to_the_exact_score_than_the_gaussian(trained: Learned) -> None:
    rows = losses(trained).rows
    middle = [row for row in rows if row["t"] in ("111", "197", "308")]
    assert all(1.0 <= row["network"] < row["gaussian"] for row in middle)


@pytest.mark.parametrize("label", ["final projection", "DPS", "SplitGibbs", "WeightedCASAL"])
def test_methods_run_with_the_network(label: str, trained: Learned) -> None:
    entry = methods(SCALE).get(label) or Entry(FinalProjection(DPS(0.1)))
    trial = Trial.of(0, 1000).under(trained)
    scores = trial.scores(entry, SCALE, 0)
    assert scores["violation"] < 1e-8
    assert set(scores) == {"modes", "sw1", "modes_exact", "sw1_exact", "reconstruction", "violation", "ancestors"}
    assert 0.0 <= scores["modes"] <= 1.0 and 0.0 < scores["sw1"] < 5.0
