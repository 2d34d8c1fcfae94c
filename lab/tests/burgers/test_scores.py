"""Scores of ensembles that are known."""

from __future__ import annotations

import math

import pytest
import torch

from casal_lab.burgers.comparison import FLOORS, Scores, analysed, classical, log_ratio
from casal_lab.burgers.cycle import Gaussian3DVar
from casal_lab.burgers.setup import BASIS, DIMENSION, POINTS, SOLVER, Model, Truth, errors, joined


def test_scores_of_known_ensembles(truth: Truth) -> None:
    perfect = Scores(analysed(truth)[:, None], truth, 0.2)
    assert (
        float(perfect.l2.max()) == 0.0 and float(perfect.crps.max()) == 0.0 and perfect.figures["spread_skill"] is None
    )
    both = joined([truth, truth])
    assert len(both) == 2 * len(truth) and both.fields.shape == (10, 2 * len(truth), POINTS)
    noise = torch.randn((5, 40, len(truth), POINTS), generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    shift = torch.randn((5, 1, len(truth), POINTS), generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    calibrated = Scores(analysed(truth)[:, None] + shift + noise, truth, 1.0)
    assert calibrated.figures["spread_skill"] == pytest.approx(1.0, abs=0.05)
    assert float(calibrated.crps.mean()) == pytest.approx(1 / math.sqrt(math.pi), abs=0.03)  # E|X - X'| / 2 of N(0, 1)


def test_power_in_high_modes_and_violation_of_known_ensembles(truth: Truth) -> None:
    exact = analysed(truth)[:, None]
    figures = Scores(2.0 * exact, truth, 0.2).figures
    assert figures["high"] == pytest.approx(math.log10(4.0)) and figures["high_se"] == pytest.approx(0.0, abs=1e-12)
    assert figures["beyond"] == pytest.approx(0.0, abs=1e-12)
    twice = Scores(2.0 * exact, truth, 0.2)
    mass_off, energy_off = errors(2.0 * exact, truth.mass, truth.energy)
    torch.testing.assert_close(twice.violation, (mass_off**2 + energy_off**2).sqrt()[:, 0])
    assert float(Scores(exact, truth, 0.2).violation.max()) < 1e-6 < 1.0 < float(twice.violation.min())
    wave = torch.cos(30 * SOLVER.grid)
    rough = Scores(exact + wave * (exact.square().sum(-1, keepdim=True) / wave.square().sum()).sqrt(), truth, 0.2)
    assert rough.figures["beyond"] == pytest.approx(0.5) and rough.figures["high"] == pytest.approx(0.0, abs=1e-9)


def test_the_error_of_a_log_ratio_is_that_of_repeated_draws() -> None:
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(400):
        common = torch.rand(100, generator=generator, dtype=torch.float64) + 0.5
        one, other = (common * (1 + 0.3 * torch.randn(100, generator=generator).double()) for _ in range(2))
        found.append(log_ratio(one, other))
    values, said = torch.tensor(found, dtype=torch.float64).T
    assert float(said.mean() / values.std()) == pytest.approx(1.0, abs=0.12)  # 3.5 standard errors of the spread
    assert abs(float(values.mean())) < 4 * float(values.std()) / 20


def test_no_field_of_the_latent_is_below_the_floors(model: Model, truth: Truth) -> None:
    variational = Gaussian3DVar(model.setup, model.sigma)
    plain, strict = (Scores(classical(label, variational, truth, 0.0), truth, 0.2) for label in FLOORS)
    assert strict.figures["worst"] is not None and strict.figures["worst"] < 1e-12
    generator = torch.Generator().manual_seed(1)
    for size in (1e-3, 1e-2, 1e-1):
        moved = analysed(truth) @ BASIS + size * torch.randn((5, len(truth), DIMENSION), generator=generator).double()
        other = Scores((moved @ BASIS.T)[:, None], truth, 0.2)
        assert bool((other.curve >= plain.curve).all())
        again = Scores(other.projected[:, None], truth, 0.2)
        assert bool((again.curve >= strict.curve - 1e-12).all()) and bool((strict.curve >= plain.curve).all())
