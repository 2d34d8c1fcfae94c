"""The density of a noise predictor, where it is known: a mixture, by its exact noise."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from casal.errors import SettingError
from casal.lab.nets import ProbabilityFlow

from .mixture import ABAR, BETAS, MEANS, SPREADS, WEIGHTS, draw, exact_eps

ALPHA, SIGMA = float(ABAR[0].sqrt()), float((1 - ABAR[0]).sqrt())


def log_density(x: Tensor) -> Tensor:
    """Of the mixture at the least noise level."""
    variance = (ALPHA * SPREADS).square() + SIGMA**2
    square = (x[:, None] - ALPHA * MEANS).square().sum(-1)
    return torch.logsumexp(WEIGHTS.log() - square / (2 * variance) - torch.log(2 * math.pi * variance), 1)


def test_the_exact_noise_gives_the_exact_density_and_more_steps_a_better_one() -> None:
    x = ALPHA * draw(200, 0).double()
    errors = [
        float((ProbabilityFlow(exact_eps, BETAS, 2, steps).log_density(x) - log_density(x)).abs().max())
        for steps in (15, 30, 120)
    ]
    assert errors[1] < errors[0] / 2 and errors[1] < 0.03 and errors[2] < 0.01  # what is left: the start is N(0, I)


def test_a_standard_normal_law_does_not_move() -> None:
    levels = (1 - ABAR).sqrt()
    flow = ProbabilityFlow(lambda x, t: levels[int(t)] * x, BETAS, 3, 10)
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = -(x.square().sum(1) + 3 * math.log(2 * math.pi)) / 2
    torch.testing.assert_close(flow.log_density(x), expected, rtol=0, atol=1e-10)
    drawn = flow.sample(4, torch.Generator().manual_seed(1), torch.float64)
    start = torch.randn(4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(drawn, start, rtol=0, atol=1e-10)


def test_samples_of_the_exact_noise_have_the_weights_and_widths_of_the_mixture() -> None:
    x = ProbabilityFlow(exact_eps, BETAS, 2, 40).sample(20_000, torch.Generator().manual_seed(0), torch.float64)
    nearest = torch.cdist(x, MEANS).argmin(1)
    share = torch.bincount(nearest) / len(x)
    assert float((share - WEIGHTS).abs().max()) < 0.02
    spread = float((x[nearest == 2] - MEANS[2]).std())
    assert spread == pytest.approx(float(SPREADS[2]), rel=0.03)


def test_more_steps_than_noise_levels_are_refused() -> None:
    with pytest.raises(SettingError, match="take at most 999"):
        ProbabilityFlow(exact_eps, BETAS, 2, 1000)
