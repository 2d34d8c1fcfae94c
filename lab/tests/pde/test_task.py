"""Priors, tasks and cases: round trips, seeds, and sets that hold on the truth."""

from __future__ import annotations

import pytest
import torch

from casal_lab.pde.prior import Prior
from casal_lab.pde.task import Weight, sensors

from .small import MODES, POINTS, draw, prior, task


@pytest.fixture(scope="module")
def known() -> Prior:
    return prior()


def test_latents_go_round_and_are_of_unit_size(known: Prior) -> None:
    x = known.latents[:10]
    assert torch.allclose(known.encode(known.decode(x)), x, atol=1e-12)
    assert abs(float(known.latents.square().mean()) - 1.0) < 1e-12
    scale = known.decoder.scale
    assert scale is not None
    A = known.decoder.matrix((MODES,), torch.empty(0, dtype=torch.float64))
    assert torch.allclose(A.T @ A, torch.diag(scale.square()), atol=1e-12)


def test_residuals_are_what_no_latent_reaches(known: Prior) -> None:
    left = known.residuals.double()
    assert float(known.encode(left).abs().max()) < 1e-5
    fields = draw(50, torch.Generator().manual_seed(9))
    assert float(known.encode(fields - known.decode(known.encode(fields))).abs().max()) < 1e-12


def test_the_set_holds_on_the_truth(known: Prior) -> None:
    problem = task(known)
    cases = problem.cases(5, 0)
    assert float(problem.constraint(cases).violation(cases.fields).max()) < 1e-15
    chains = cases.repeated(3)
    assert float(problem.constraint(chains).violation(chains.fields).max()) < 1e-15
    wrong = problem.constraint(cases).violation(cases.fields.roll(1, 0))
    assert float(wrong.min()) > 1e-3


def test_seeds_give_other_cases_and_more_cases_begin_with_the_same(known: Prior) -> None:
    problem = task(known, noise=0.1)
    few, many, other = problem.cases(2, 0), problem.cases(4, 0), problem.cases(2, 1)
    assert torch.equal(few.fields, many.fields[:2]) and torch.equal(few.values, many.values[:2])
    assert not torch.allclose(few.fields, other.fields)
    assert not torch.equal(sensors(POINTS, 4, 0), sensors(POINTS, 4, 1))
    assert not torch.allclose(few.values, few.fields[:, problem.index])  # noisy


def test_the_mean_of_the_residual_is_subtracted(known: Prior) -> None:
    problem = task(known)
    cases = problem.cases(1, 0)
    given = problem.given(cases)
    level = cases.latents @ problem.known.T
    gap = (cases.values - problem.rows.mean) @ problem.rows.map.T
    assert torch.allclose(given, torch.cat([level, gap], 1))
    assert float(problem.rows.mean.abs().max()) < 0.1


def test_weights_of_dps() -> None:
    level = torch.tensor(4.0)
    assert float(Weight(8.0).at(level)) == 8.0 and float(Weight(8.0, 1).at(level)) == 2.0
    assert [str(Weight(8.0)), str(Weight(8.0, 1))] == ["weight 8", "weight 8 / sigma"]
