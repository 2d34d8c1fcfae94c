"""The score of a model at samples: that of a density as it is, that of a diffusion model extrapolated to no noise."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import casal
from casal.diagnostics.model_score import BadModel, NotAvailable, level_score, score_at
from casal.methods import Problem

from .populations import CENTRE, gaussian

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
    assert torch.equal(score_at(found, z), -3.0 * z) and found.usage.scores == 5


def test_a_diffusion_model_is_extrapolated_to_no_noise() -> None:
    """The score at noise s is -z / (v + s^2), v = SPREAD^2: off by s^2 / v, extrapolated by 4 (s^2 / v)^2."""
    z, exact = gaussian(5, 0), -gaussian(5, 0) / SPREAD**2
    for finest in (0.1, 0.05):
        error = 4 * (finest / SPREAD) ** 4
        torch.testing.assert_close(score_at(model(finest), z), exact, rtol=1.1 * error, atol=0.0)
        off = float((level_score(model(finest), z) / exact - 1.0).abs().max())
        assert off == pytest.approx(finest**2 / (SPREAD**2 + finest**2)) and off > 2 * error


def test_levels_that_disagree_are_not_used() -> None:
    with pytest.raises(NotAvailable, match=r"scores at noise 0\.2 and 0\.4 differ by 29\.3 %"):
        score_at(model(0.2), gaussian(5, 0))
    with pytest.raises(BadModel, match=r"differ by 60 %.* train the network"):  # too few points to know more
        score_at(model(0.5), gaussian(5, 0))


def test_an_exact_model_of_fine_data_is_no_bad_model() -> None:
    """Of samples of its own; of samples twice as narrow the score is too steep by the same factor, and is no error."""
    for spread in (SPREAD, 0.5 * SPREAD):
        with pytest.raises(NotAvailable, match="add finer noise levels") as caught:
            score_at(model(0.5), spread * (gaussian(400, 0) - CENTRE))
        assert not isinstance(caught.value, BadModel)


def test_a_score_that_is_error_is_a_bad_model() -> None:
    """D = y + sigma * wave(y): the score has the size 1 / sigma and nothing to do with the samples."""
    wave = problem(
        casal.edm(
            lambda y, sigma: y + sigma.to(y) * torch.sin(40.0 * y),
            casal.karras_sigmas(10, 0.05, 10.0),
            shape=3,
            dtype=torch.float64,
        )
    )
    with pytest.raises(BadModel, match="train the network there"):
        score_at(wave, SPREAD * gaussian(400, 0))


def test_a_model_without_a_denoiser_is_named() -> None:
    table = casal.Table(*(torch.ones(2, dtype=torch.float64) for _ in range(4)))
    found = problem(casal.Target(lambda x, t: -x, table, gaussian(5, 0), name="annealed"))
    with pytest.raises(NotAvailable, match="annealed has no denoiser"):
        score_at(found, gaussian(5, 0))


def test_scores_below_rounding_are_said_to_be() -> None:
    """-z / (100^2 + s^2) times s^2 is 1e-6 at s = 0.01: nothing is left of it beside z in float32."""

    def denoise(y: Tensor, sigma: Tensor) -> Tensor:
        return y * 1e4 / (1e4 + sigma.to(y) ** 2)

    levels = casal.karras_sigmas(10, 0.01, 1000.0)
    narrow = Problem(casal.edm(denoise, levels, shape=3), casal.Sphere(1.0), casal.Identity(), torch.zeros((0, 3)))
    with pytest.raises(NotAvailable, match=r"below the rounding of torch.float32 numbers of size \d+;.*torch.float64"):
        score_at(narrow, 100.0 * gaussian(50, 0))
    wide = problem(casal.edm(denoise, levels, shape=3, dtype=torch.float64))
    torch.testing.assert_close(score_at(wide, gaussian(50, 0)), -gaussian(50, 0) / 1e4, rtol=1e-6, atol=0.0)
