"""The score of a model at samples: that of a density as it is, that of a diffusion model extrapolated to no noise."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import casal
from casal.diagnostics.check import NotAvailable
from casal.diagnostics.model_score import MOST_LEVELS, along, level_score, scores_at
from casal.methods import Problem

from .populations import gaussian

SPREAD = 0.5


def problem(target: casal.Target) -> Problem:
    return Problem(target, casal.Sphere(1.0), casal.Identity(), torch.zeros((0, 3), dtype=torch.float64))


def model(finest: float) -> Problem:
    """The exact denoiser of N(0, SPREAD^2)."""

    def denoise(y: Tensor, sigma: Tensor) -> Tensor:
        return y * SPREAD**2 / (SPREAD**2 + sigma.to(y) ** 2)

    return problem(casal.edm(denoise, casal.karras_sigmas(10, finest, 10.0), shape=3, dtype=torch.float64))


def test_a_density_has_its_score() -> None:
    z = gaussian(5, 0)
    found = problem(casal.langevin(lambda x: 3.0 * x, steps=2, step_size=0.1, init=z))
    (score,) = scores_at(found, z, math.inf)
    assert torch.equal(score, -3.0 * z) and found.usage.scores == 5


def test_a_diffusion_model_is_extrapolated_to_no_noise() -> None:
    """The score at noise s is -z / (v + s^2), v = SPREAD^2: off by s^2 / v, extrapolated by 4 (s^2 / v)^2."""
    z, exact = gaussian(50, 0), -gaussian(50, 0)[:, 0] / SPREAD**2
    axis = torch.eye(3, dtype=torch.float64)[0].expand_as(z)
    for finest in (0.1, 0.05):
        scores, error = scores_at(model(finest), z, math.inf), 4 * (finest / SPREAD) ** 4
        found = along(scores, axis)
        assert len(scores) == 2 and found is not None and found[1] == 0
        torch.testing.assert_close(found[0], exact, rtol=1.1 * error, atol=0.0)
        off = float((level_score(model(finest), z)[:, 0] / exact - 1.0).abs().max())
        assert off == pytest.approx(finest**2 / (SPREAD**2 + finest**2)) and off > 2 * error


def test_directions_narrower_than_the_finest_level_are_not_known() -> None:
    """At a level of 0.2 data of spread 0.1 are blurred, data of spread 2 are not."""
    sd = torch.tensor([0.1, 2.0, 2.0], dtype=torch.float64)

    def denoise(y: Tensor, sigma: Tensor) -> Tensor:
        return y * sd**2 / (sd**2 + sigma.to(y) ** 2)

    levels = casal.karras_sigmas(10, 0.2, 10.0)
    found = problem(casal.edm(denoise, levels, shape=3, dtype=torch.float64))
    z = sd * torch.randn((400, 3), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores = scores_at(found, z, math.inf)
    narrow, wide, _ = torch.eye(3, dtype=torch.float64)
    told = along(scores, wide.expand_as(z))
    assert along(scores, narrow.expand_as(z)) is None and told is not None
    torch.testing.assert_close(told[0], -z[:, 1] / 4.0, rtol=0.01, atol=0.0)


def test_a_network_that_is_wrong_at_small_noise_is_read_off_coarser_levels() -> None:
    """D is off by sigma times a wave: an error of the score of 1 / sigma, that fades at larger noise."""

    def denoise(y: Tensor, sigma: Tensor) -> Tensor:
        s = sigma.to(y)
        return y / (1.0 + s**2) + 0.2 * s * torch.sin(40.0 * y) * (0.02 / (0.02 + s)) ** 2

    found = problem(casal.edm(denoise, casal.karras_sigmas(10, 0.005, 10.0), shape=3, dtype=torch.float64))
    z = torch.randn((400, 3), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    axis = torch.eye(3, dtype=torch.float64)[0].expand_as(z)
    scores = scores_at(found, z, math.inf)
    told = along(scores, axis)
    assert 2 < len(scores) <= MOST_LEVELS and told is not None and told[1] > 1
    assert float((told[0] + z[:, 0]).square().mean().sqrt()) < 0.3  # at the finest level it is above 20
    assert len(scores_at(found, z, 2.0 * len(z))) == 2  # where more cannot be paid for


def test_a_model_without_a_denoiser_is_named() -> None:
    table = casal.Table(*(torch.ones(2, dtype=torch.float64) for _ in range(4)))
    found = problem(casal.Target(lambda x, t: -x, table, gaussian(5, 0), name="annealed"))
    with pytest.raises(NotAvailable, match="annealed has no denoiser"):
        scores_at(found, gaussian(5, 0), math.inf)
