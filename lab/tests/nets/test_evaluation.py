"""Held-out losses against theory, and the density of a noise predictor where it is known: a mixture."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from casal.errors import SettingError
from casal_lab.nets import Gaussian, ProbabilityFlow, compare_ddpm, compare_denoiser

from .mixture import ABAR, BETAS, MEANS, SPREADS, WEIGHTS, draw, exact_eps
from .points import N, correlated

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
    with pytest.raises(SettingError, match="use at most 999"):
        ProbabilityFlow(exact_eps, BETAS, 2, 1000)


@pytest.mark.statistical
def test_on_gaussian_data_the_held_out_loss_is_the_theoretical_error() -> None:
    model = Gaussian.fit(correlated(200_000), dtype=torch.float64)
    fresh = correlated(seed=1)
    losses = compare_denoiser(model, model, fresh, levels=[0.03, 0.3, 3.0])
    lam = 4.0 * 4.0 ** -torch.arange(6, dtype=torch.float64)
    for sigma, loss in zip((0.03, 0.3, 3.0), losses.gaussian, strict=True):
        errors = (
            lam * sigma**2 / (lam + sigma**2)
        )  # of a point: the mean of squares of six normals with these variances
        standard_error = (2 * errors.square().sum()).sqrt() / 6 / N**0.5
        assert abs(float(loss) - float(errors.mean())) < 4 * float(standard_error)
        assert float(model.mse(sigma)) == pytest.approx(float(errors.mean()), rel=0.02)
        wrong = errors.mean() * 1.05  # power: five per cent would be seen
        assert abs(float(loss) - float(wrong)) > 4 * float(standard_error)
    assert torch.equal(losses.ratio, torch.ones(3, dtype=torch.float64))
    assert not losses.learned


@pytest.mark.statistical
def test_the_same_for_the_noise_of_a_ddpm() -> None:
    model = Gaussian.fit(correlated(200_000), dtype=torch.float64)
    betas = torch.linspace(1e-4, 0.02, 1000)
    abar = torch.cumprod(1 - betas.double(), 0)
    losses = compare_ddpm(lambda x, t: torch.zeros_like(x), model, correlated(seed=1), betas, levels=[0, 100, 500])
    lam = 4.0 * 4.0 ** -torch.arange(6, dtype=torch.float64)
    for t, loss, nothing in zip((0, 100, 500), losses.gaussian, losses.network, strict=True):
        errors = abar[t] * lam / (abar[t] * lam + 1 - abar[t])
        assert abs(float(loss - errors.mean())) < 4 * float((2 * errors.square().sum()).sqrt() / 6 / N**0.5)
        assert float(nothing) == pytest.approx(1.0, abs=4 * (2 / 6 / N) ** 0.5)


def test_levels_that_make_no_sense_are_refused() -> None:
    model, points = Gaussian(2), torch.zeros(3, 2)
    with pytest.raises(SettingError, match="between 0 and 9"):
        compare_ddpm(lambda x, t: x, model, points, torch.full((10,), 0.1), levels=[10])
    with pytest.raises(SettingError, match="betas"):
        compare_ddpm(lambda x, t: x, model, points, torch.tensor([0.1, 1.0]))
    with pytest.raises(SettingError, match="0 < low < high"):
        compare_denoiser(model, model, points, sigmas=(1.0, 0.1))
    with pytest.raises(SettingError, match="no held-out points"):
        compare_denoiser(model, model, points[:0])
