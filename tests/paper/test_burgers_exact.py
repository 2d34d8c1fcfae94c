"""Assimilation on Burgers, piece by piece: sets, filter, scores, regimes; each against an answer of its own."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from casal.lab.nets import MLP, Gaussian, compare_ddpm
from casal.lab.problems import burgers_regimes_prior
from casal.lab.problems.burgers_cycle import Gaussian3DVar, assimilate, diffusion, forecast
from casal.lab.problems.burgers_kalman import kalman
from casal.lab.problems.burgers_scores import Scores, analysed
from casal.lab.problems.burgers_sets import Conserved, conserved_latents, least_on_sphere, nearest_field
from casal.lab.problems.burgers_setup import (
    BASIS,
    BETAS,
    DIMENSION,
    MODES,
    POINTS,
    SETUPS,
    Model,
    Truth,
    joined,
    truths,
)
from casal.methods import CASAL, FinalProjection, Method, Projected

N = 4


@pytest.fixture(scope="module")
def truth() -> Truth:
    return truths(SETUPS["B"], N, 5)


@pytest.fixture(scope="module")
def model() -> Model:
    """An untrained network on a latent with a steep spectrum: what must hold holds for every network."""
    sigma = 0.1 * torch.tensor([1, *range(1, MODES), *range(1, MODES)], dtype=torch.float64).pow(-1.0)
    net = MLP(DIMENSION)
    points = torch.randn((64, DIMENSION), generator=torch.Generator().manual_seed(0))
    return Model(SETUPS["B"], sigma, sigma, net.eval(), compare_ddpm(net, Gaussian.fit(points), points, BETAS))


def sigma_of(truth: Truth) -> torch.Tensor:
    return (truth.fields @ BASIS).reshape(-1, DIMENSION).square().mean(0).sqrt()


def test_the_hard_case_of_the_secular_equation() -> None:
    precision = torch.diag(torch.tensor([1.0, 4.0, 9.0], dtype=torch.float64))
    mean = torch.tensor([[0.0, 0.3, 0.0], [0.0, 5.0, 1.0]], dtype=torch.float64)
    found = least_on_sphere(precision, mean, torch.tensor([2.0, 2.0], dtype=torch.float64))
    torch.testing.assert_close(found.norm(dim=1), torch.full((2,), 2.0, dtype=torch.float64))
    drawn = torch.randn((20_000, 3), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sphere = 2.0 * drawn / drawn.norm(dim=1, keepdim=True)
    for row, best in zip(mean, found, strict=True):
        every = ((sphere - row) @ precision * (sphere - row)).sum(1).min()
        assert float((best - row) @ precision @ (best - row)) <= float(every)


@pytest.mark.parametrize("method", [FinalProjection(), Projected(), CASAL.algorithm2(10.0), CASAL(10.0)])
def test_every_sample_of_a_cycle_is_feasible_and_in_range(method: Method[Any], model: Model, truth: Truth) -> None:
    variational = Gaussian3DVar(model.setup, model.sigma)
    scores = Scores(assimilate(variational, truth, diffusion(model, method, 100, 0)), truth, 0.2)
    assert scores.worst < 1e-12 and scores.worst_projected < 1e-12 and scores.out_of_range < 1e-12
    assert float(scores.mean_errors[1].min()) > 1e-6  # the mean itself is not feasible


def test_sets_of_latents_are_exact(model: Model, truth: Truth) -> None:
    inside = conserved_latents(model.scale, truth.mass, truth.energy, POINTS)
    y = torch.randn((N, DIMENSION), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    x = inside.project(y)
    assert float(inside.violation(x).max()) < 1e-12
    by_rescaling = nearest_field(y * model.scale @ BASIS.T, truth.mass, truth.energy) @ BASIS / model.scale
    assert bool(((x - y).norm(dim=1) <= (by_rescaling - y).norm(dim=1) + 1e-12).all())


def test_the_quick_projection_is_the_strict_one(truth: Truth) -> None:
    inside = Conserved(truth.mass, truth.energy, POINTS)
    y = torch.randn((N, POINTS), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    torch.testing.assert_close(inside.project_fast(y), inside.project(y))
    leaf = y.clone().requires_grad_()
    weights = torch.randn((N, 2), dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    (gradient,) = torch.autograd.grad((inside.residual(leaf) * weights).sum(), leaf)
    torch.testing.assert_close(inside.residual_pull(y, weights), gradient)


def test_the_forecast_shifts_and_damps() -> None:
    grid = torch.arange(POINTS, dtype=torch.float64) * (2 * math.pi / POINTS)
    u = 0.3 + torch.cos(grid) + 0.5 * torch.sin(3 * grid)
    moved = BASIS @ (forecast(2.0, 0.1) @ (BASIS.T @ u))
    exact = 0.3 + torch.cos(grid - 0.9) + 0.5 * torch.sin(3 * (grid - 0.9))
    torch.testing.assert_close(moved, math.exp(-0.2) * exact)


def test_the_ensemble_filter_approaches_the_kalman_filter(truth: Truth, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("casal.lab.problems.burgers_kalman.MEMBERS", 4000)
    variational = Gaussian3DVar(SETUPS["B"], sigma_of(truth))
    first = kalman(variational, truth, 0.0, 0)[0].mean(0) @ BASIS
    mean = variational.mean(torch.zeros((N, DIMENSION), dtype=torch.float64), variational.observed(truth, 0))
    gap = (first - mean) / variational.covariance.diagonal().sqrt()
    assert float(gap.square().mean().sqrt()) < 0.15


def test_scores_of_known_ensembles(truth: Truth) -> None:
    perfect = Scores(analysed(truth)[:, None], truth, 0.2)
    assert float(perfect.l2.max()) == 0.0 and float(perfect.crps.max()) == 0.0 and perfect.spread_skill is None
    both = joined([truth, truth])
    assert len(both) == 2 * N and both.fields.shape == (10, 2 * N, POINTS)
    noise = torch.randn((5, 40, N, POINTS), generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    shift = torch.randn((5, 1, N, POINTS), generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    calibrated = Scores(analysed(truth)[:, None] + shift + noise, truth, 1.0)
    assert calibrated.spread_skill == pytest.approx(1.0, abs=0.05)
    assert float(calibrated.crps.mean()) == pytest.approx(1 / math.sqrt(math.pi), abs=0.03)  # E|X - X'| / 2 of N(0, 1)


def test_the_posterior_of_the_regimes_has_this_score() -> None:
    posterior = burgers_regimes_prior.Posterior(0.4)
    x = posterior.sample(3, torch.Generator().manual_seed(0)).requires_grad_()
    h, (along, across) = posterior.direction, posterior.variances
    gap = x[:, None] - posterior.means
    part = gap @ h
    log = posterior.weights.log() - (gap.square().sum(2) - part**2) / (2 * across) - part**2 / (2 * along)
    (gradient,) = torch.autograd.grad(torch.logsumexp(log, 1).sum(), x)
    torch.testing.assert_close(posterior.score(x.detach()), gradient)


@pytest.mark.statistical
def test_the_reference_of_the_regimes_agrees_with_a_thin_shell() -> None:
    """Draws of the posterior in a thin shell around mass and energy and within the bounds, by brute force."""
    case = burgers_regimes_prior.case(1)
    posterior = burgers_regimes_prior.Posterior(case.value)
    exact = burgers_regimes_prior.reference(case, posterior, 20_000)
    generator, counts = torch.Generator().manual_seed(0), torch.zeros(3, dtype=torch.float64)
    box = case.bounds
    wanted = (case.field - case.field.mean()).norm()
    for _ in range(8):
        x = posterior.sample(100_000, generator)
        c = x * burgers_regimes_prior.SPECTRUM
        near = (c[:, 0] - case.field.sum() / math.sqrt(len(case.field))).abs() < 0.06
        x = x[near & ((c[:, 1:].norm(dim=1) - wanted).abs() < 0.06)]
        fields = burgers_regimes_prior.DECODER(x)
        x = x[((fields >= box.low) & (fields <= box.high)).all(1)]
        counts += torch.bincount(torch.cdist(x, posterior.means).argmin(1), minlength=3)
    assert float(counts.sum()) > 300
    assert float((counts / counts.sum() - exact.modes).abs().sum()) / 2 < 0.06
