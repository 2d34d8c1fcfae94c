"""Units that do not fit: a decoder that was forgotten, a scheduler that clips standardised data."""

from __future__ import annotations

import dataclasses
import warnings

import pytest
import torch
from torch import Tensor

import casal
from casal.errors import CasalWarning

WIDE, SIZE, N = torch.float64, 64, 64
GRID = torch.arange(SIZE, dtype=WIDE)
FIELDS = torch.exp(-((GRID - 4.0 * GRID[:16, None]) ** 2) / 8.0)
"""One bump each, (16, 64): the data."""

CLEAN = (FIELDS - FIELDS.mean()) / FIELDS.std()
"""What the model knows: the same in standardised units."""

UNITS = casal.Standardise(float(FIELDS.mean()), float(FIELDS.std()))
GOAL = casal.Box(0.0, None) & casal.Affine(torch.ones(1, SIZE, dtype=WIDE), [float(FIELDS.sum(1).mean())])


def denoise(y: Tensor, sigma: Tensor) -> Tensor:
    """E[x0 | y] for x0 one of CLEAN."""
    distance = (y[:, None] - CLEAN.to(y)).square().sum(2)
    return torch.softmax(-distance / (2 * sigma.reshape(-1, 1) ** 2), dim=1) @ CLEAN.to(y)


def model() -> casal.Target:
    return casal.edm(denoise, casal.karras_sigmas(20, sigma_min=0.05, sigma_max=20.0), shape=(SIZE,), dtype=WIDE)


METHODS = {
    "final": casal.FinalProjection(),
    "projected": casal.Projected(),
    "casal": casal.CASAL(rho=casal.constant_gain(1.0)),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_forgotten_decoder_is_asked_about(name: str) -> None:
    """Feasible throughout; in the wrong units the set is a small part of the model's range."""
    with pytest.warns(CasalWarning, match=r"other units than the set.*casal.Standardise\(mean, std\) is missing\?"):
        wrong = casal.sample(model(), GOAL, METHODS[name], N)
    assert bool(wrong.certificate.feasible.all()) and wrong.fidelity.verdict == "not promised"
    assert "is missing?" in wrong.fidelity.reasons[1] and "is missing?" in str(wrong)
    right = casal.sample(model(), GOAL, METHODS[name], N, decoder=UNITS)  # warnings are errors
    assert bool(right.certificate.feasible.all()) and "units" not in str(right)


def test_it_costs_at_most_eight_in_a_hundred_and_nothing_without_checks() -> None:
    with pytest.warns(CasalWarning, match="other units"):
        result = casal.sample(model(), GOAL, METHODS["final"], N)
    assert 0.0 < result.cost.check_evaluations <= 0.08 * result.cost.score_evaluations
    assert casal.sample(model(), GOAL, METHODS["final"], N, check=False).cost.check_evaluations == 0.0


def test_a_set_that_is_far_away_is_asked_about_in_few_dimensions() -> None:
    """Temperatures in kelvin for a standardised model, and an ordinary rare event, three standard deviations out."""

    def gaussian(y: Tensor, sigma: Tensor) -> Tensor:
        return y / (1.0 + sigma.reshape(-1, 1) ** 2)

    target = casal.edm(gaussian, casal.karras_sigmas(20, sigma_min=0.01, sigma_max=20.0), shape=(2,), dtype=WIDE)
    with pytest.warns(CasalWarning, match="other units"):
        casal.sample(target, casal.Box(250.0, 320.0), casal.CASAL(10.0), N)
    for ordinary in (casal.Affine([[1.0, 0.0]], [3.0]), casal.HalfSpace([-1.0, 0.0], -3.0), casal.Sphere(2.0)):
        casal.sample(target, ordinary, casal.CASAL(10.0), N)


# -------------------------------------------------------------------------------------------------- clipping


def clipped(bound: float | None = 1.0) -> casal.Target:
    return dataclasses.replace(model(), clip=bound)


def run(target: casal.Target, constraint: casal.Constraint, decoder: casal.Decoder | None) -> casal.SampleResult:
    return casal.sample(target, constraint, casal.FinalProjection(), 4, decoder=decoder)


def test_standardised_data_that_a_scheduler_clips() -> None:
    with pytest.warns(CasalWarning, match=r"clips the model's samples to \[-1, 1\] .*clip=False.*clip=True says so"):
        result = run(clipped(), GOAL, UNITS)
    assert any("clip=False" in reason for reason in result.fidelity.reasons)


def test_a_set_that_a_clipped_model_cannot_reach() -> None:
    with pytest.warns(CasalWarning, match="the set has no point there"):
        run(clipped(), casal.Box(2.0, None), None)
    with pytest.warns(CasalWarning, match="the set has no point there"):
        run(clipped(), casal.Box(2.0, None), casal.Standardise(0.5, 0.5))


@pytest.mark.parametrize("decoder", [None, casal.Standardise(0.5, 0.5)])
def test_data_that_were_scaled_to_the_range_are_no_case(decoder: casal.Decoder | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(clipped(), casal.Box(0.0, 1.0), decoder)
        run(clipped(None), GOAL, UNITS)


def test_diffusers_hands_the_bound_over_unless_it_was_confirmed() -> None:
    diffusers = pytest.importorskip("diffusers")

    def network(x: Tensor, t: Tensor) -> Tensor:
        return 0.1 * x

    for scheduler, clip, bound in (
        (diffusers.DDPMScheduler(), None, 1.0),
        (diffusers.DDPMScheduler(), True, None),
        (diffusers.DDPMScheduler(), False, None),
        (diffusers.DDPMScheduler(clip_sample=False), None, None),
    ):
        assert casal.from_diffusers(network, scheduler, steps=5, shape=(2,), clip=clip).clip == bound
