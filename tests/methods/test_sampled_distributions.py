"""Sampled laws against known answers: fixed seeds, tolerances from the Monte Carlo error, and a check of power."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import casal
from casal.methods.weighted import WeightedState

from ..models import RADIUS, particle_answer, preconditioned_particle

pytestmark = pytest.mark.statistical

MEAN, VARIANCE = 1.70270, 0.17297


def gaussian(steps: int, step_size: float) -> casal.Target:
    """N((1,-1), [[2,.6],[.6,.5]])."""
    precision = torch.linalg.inv(torch.tensor([[2.0, 0.6], [0.6, 0.5]], dtype=torch.float64))
    mean = torch.tensor([1.0, -1.0], dtype=torch.float64)
    return casal.langevin(
        lambda x: (x - mean) @ precision,
        steps=steps,
        step_size=step_size,
        init=lambda n, g: torch.randn((n, 2), generator=g, dtype=torch.float64),
    )


def on_the_line(method: casal.Method[Any], n: int = 8000) -> torch.Tensor:
    return casal.sample(gaussian(1000, 5e-3), casal.Affine([[1.0, 1.0]], 1.0), method, n, seed=11).samples[:, 0]


def is_conditional_law(x: torch.Tensor) -> bool:
    """Mean 1.7027 and variance 0.173 within four Monte Carlo errors of 8,000 chains, which are 0.0047 and 1.6 %."""
    return bool(abs(float(x.mean()) - MEAN) <= 0.019 and abs(float(x.var()) / VARIANCE - 1.0) <= 0.064)


@pytest.mark.parametrize("method", [casal.CASAL(100.0), casal.CASAL(100.0, dual="mean"), casal.Projected()], ids=str)
def test_gaussian_on_a_line(method: casal.Method[Any]) -> None:
    assert is_conditional_law(on_the_line(method))


@pytest.mark.parametrize(
    "method",
    [casal.CASAL.algorithm1(100.0), casal.CASAL(2.0, dual_step=0.0), casal.FinalProjection(), casal.CASAL(2.0)],
    ids=["half temperature", "no dual", "one projection", "weak coupling"],
)
def test_the_gaussian_test_has_power(method: casal.Method[Any]) -> None:
    assert not is_conditional_law(on_the_line(method))


def test_gaussian_on_a_line_weighted() -> None:
    samples = casal.sample(
        gaussian(400, 0.1), casal.Affine([[1.0, 1.0]], 1.0), casal.WeightedCASAL(100.0), 20_000, seed=2
    ).samples[:, 0]
    assert float(samples.mean()) == pytest.approx(MEAN, abs=0.015)
    assert float(samples.var()) == pytest.approx(VARIANCE, rel=0.05)


def test_particle_weighted_at_500_evaluations() -> None:
    result = casal.sample(preconditioned_particle(500), casal.Sphere(RADIUS), casal.WeightedCASAL(400.0), 4000, seed=1)
    assert result.cost.score_evaluations == 500
    assert int((result.samples[:, 0] > 0).sum()) == 0
    assert float(result.samples[:, 1].std()) == pytest.approx(particle_answer()["sd_y"], rel=0.03)
    assert float(result.samples[:, 0].mean()) == pytest.approx(particle_answer()["mean_x"], abs=3e-4)
    assert float(result.certificate.violation.max()) <= 1e-12


def test_particle_without_weights_is_in_the_wrong_mode() -> None:
    """The power of the test above: the same moves and the same ladder, but every chain keeps its weight."""

    class Unweighted(casal.WeightedCASAL):
        def weigh(self, state: WeightedState, added: Any) -> WeightedState:
            return state

    result = casal.sample(preconditioned_particle(500), casal.Sphere(RADIUS), Unweighted(400.0), 1000, seed=1)
    assert int((result.samples[:, 0] > 0).sum()) > 20


def test_a_box_keeps_no_atom_on_its_boundary() -> None:
    """N(0, I) in the box [0.5, 2]^2: mean of a truncated normal; chains outside are replaced, not projected."""
    target = casal.langevin(
        lambda x: x, steps=400, step_size=0.1, init=lambda n, g: torch.randn((n, 2), generator=g, dtype=torch.float64)
    )
    result = casal.sample(target, casal.Box(0.5, 2.0), casal.WeightedCASAL(1000.0), 8000, seed=0)
    x = torch.linspace(0.5, 2.0, 20001, dtype=torch.float64)
    p = torch.exp(-x.square() / 2)
    mean = float((x * p).sum() / p.sum())
    spread = float((((x - mean) ** 2 * p).sum() / p.sum()).sqrt())
    assert 0.7 < float(result.trace["inside"][-1]) < 1.0
    assert not bool(((result.samples == 0.5) | (result.samples == 2.0)).any())
    assert float(result.samples.mean()) == pytest.approx(mean, abs=4 * spread / 8000**0.5)
    assert bool(result.certificate.feasible.all())
    projected = casal.sample(target, casal.Box(0.5, 2.0), casal.WeightedCASAL(1000.0, correct=False), 8000, seed=0)
    assert float((projected.samples == 0.5).double().mean()) > 0.02
