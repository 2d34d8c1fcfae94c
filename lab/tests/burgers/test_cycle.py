"""The cycle of assimilation: its linear algebra is exact, its samples are feasible, its filter approaches Kalman's."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from casal import CASAL, FinalProjection, Method, Projected, ddpm
from casal_lab.burgers.comparison import Scores
from casal_lab.burgers.cycle import PSLD, Gaussian3DVar, assimilate, diffusion, forecast, guided, kalman
from casal_lab.burgers.setup import (
    BASIS,
    BETAS,
    DIMENSION,
    POINTS,
    SETUPS,
    SITES,
    Model,
    Truth,
    errors,
    least_conserving,
    truths,
)


def test_constrained_3dvar_is_the_least_of_all(sigma: Tensor) -> None:
    """Against a general solver from many starts: never farther, and feasible."""
    variational = Gaussian3DVar(SETUPS["A"], sigma)
    truth = truths(SETUPS["A"], 3, 5)
    mean = variational.mean(torch.zeros(3, DIMENSION, dtype=torch.float64), variational.observed(truth, 0))
    precision = variational.precision
    found = least_conserving(precision, mean, truth.mass, truth.energy, POINTS)
    assert float((math.sqrt(POINTS) * found[:, 0] - truth.mass).abs().max()) < 1e-10
    assert float((found.square().sum(1) / truth.energy - 1).abs().max()) < 1e-12
    K = precision.numpy() / float(precision.max())
    for k in range(3):
        m = mean[k].numpy()
        best = float("inf")
        for start in torch.randn(6, DIMENSION, dtype=torch.float64, generator=torch.Generator().manual_seed(k)):
            first = (start * sigma).numpy()
            result = minimize(
                lambda c, m=m: (c - m) @ K @ (c - m),
                first,
                jac=lambda c, m=m: 2 * K @ (c - m),
                method="SLSQP",
                constraints=[
                    {"type": "eq", "fun": lambda c, k=k: math.sqrt(POINTS) * c[0] - float(truth.mass[k])},
                    {"type": "eq", "fun": lambda c, k=k: (c @ c) / float(truth.energy[k]) - 1.0},
                ],
                options={"maxiter": 300, "ftol": 1e-14},
            )
            if result.success:
                best = min(best, float(result.fun))
        value = float((found[k] - mean[k]) @ precision @ (found[k] - mean[k]) / precision.max())
        assert value <= best * (1 + 1e-6) + 1e-12


def test_dividing_out_the_climatology_leaves_the_kalman_posterior(sigma: Tensor) -> None:
    """N(0, diag sigma^2) times N(m', P') is N(m, P), to rounding."""
    variational = Gaussian3DVar(SETUPS["B"], sigma)
    other, turn = variational.divided(variational.precision)
    mean = torch.randn(4, DIMENSION, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) * sigma
    precision = torch.diag(sigma.pow(-2)) + torch.linalg.inv(other)
    torch.testing.assert_close(torch.linalg.inv(precision), variational.covariance, rtol=1e-8, atol=1e-14)
    product = torch.linalg.solve(precision, torch.linalg.solve(other, (mean @ turn.T).T)).T
    torch.testing.assert_close(product, mean, rtol=1e-8, atol=1e-12)


def test_guidance_on_a_gaussian_score_leads_to_the_kalman_mean() -> None:
    """Without noise the guided sampler of N(0, I) ends at the mean of N(0, I) times N(m', P'), as steps grow."""
    covariance = torch.diag(torch.tensor([0.2, 0.5, 1.0], dtype=torch.float64))
    goal = torch.tensor([[0.5, -0.4, 0.8]], dtype=torch.float64)
    level = (1 - torch.cumprod(1 - BETAS, 0)).sqrt()
    errors = []
    for steps in (100, 1000):
        prior = ddpm(lambda x, t: level[t] * x, BETAS, shape=3, steps=steps, dtype=torch.float64)
        target = guided(prior, goal, covariance)
        x = torch.zeros(1, 3, dtype=torch.float64)
        for a, b, t in zip(target.table.a, target.table.b, target.table.t, strict=True):
            x = a * x + b * target.score(x, t, analysis=goal)
        exact = goal / (1 + covariance.diagonal())
        errors.append(float((x - exact).abs().max()))
    assert max(errors) < 1e-4  # what is left of the signal at the first step


def sigma_of(truth: Truth) -> torch.Tensor:
    return (truth.fields @ BASIS).reshape(-1, DIMENSION).square().mean(0).sqrt()


@pytest.mark.parametrize("method", [FinalProjection(), Projected(), CASAL.algorithm2(10.0), CASAL(10.0)])
def test_every_sample_of_a_cycle_is_feasible_and_in_range(method: Method[Any], model: Model, truth: Truth) -> None:
    variational = Gaussian3DVar(model.setup, model.sigma)
    scores = Scores(assimilate(variational, truth, diffusion(model, method, 100, 0)), truth, 0.2)
    for key in ("worst", "worst_projected", "out_of_range"):
        assert (scores.figures[key] or 0.0) < 1e-12, key
    energy = errors(scores.mean, truth.mass, truth.energy)[1].mean(0)
    assert float(energy.min()) > 1e-6  # the mean itself is not feasible


def test_gluing_behind_a_linear_decoder_is_the_misfit_again(model: Model, truth: Truth) -> None:
    """|D - A^+ (A D + H^+ g)| = |A^+ H^+ g|, whatever D is."""
    variational, decoder = Gaussian3DVar(model.setup, model.sigma), model.decoder
    D = torch.randn((len(truth), DIMENSION), generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    H = variational.seen_on_grid
    z = decoder(D)
    torch.testing.assert_close(z @ H.T * model.unit, (D * model.scale) @ variational.seen.T)
    spread = (variational.observed(truth, 0) / model.unit - z @ H.T) @ torch.linalg.pinv(H).T
    glued = D - decoder.pinv(z + spread, (DIMENSION,))
    torch.testing.assert_close(glued, -decoder.pinv(spread, (DIMENSION,)), rtol=1e-8, atol=1e-9)


def test_psld_comes_nearer_to_the_observations(model: Model, truth: Truth) -> None:
    variational = Gaussian3DVar(model.setup, model.sigma)
    seen, misses = variational.observed(truth, 0), []
    for weight in (0.0, 300.0):
        analyse = diffusion(model, FinalProjection(), 100, 0, psld=PSLD(weight, 0.0))
        first = assimilate(variational, truth, analyse)[0].mean(0) @ BASIS
        misses.append(float((first @ variational.seen.T - seen).norm()))
    assert misses[1] < 0.7 * misses[0]


@pytest.mark.parametrize("method", [Projected(), CASAL.algorithm2(10.0)])
def test_strict_observations_are_met_beside_mass_and_energy(method: Method[Any], model: Model, truth: Truth) -> None:
    variational = Gaussian3DVar(model.setup, model.sigma)
    members = assimilate(variational, truth, diffusion(model, method, 100, 0, strict=True))
    seen = truth.observed[::2][:, None]
    assert float((members[..., list(SITES)] - seen).abs().max()) < 1e-12
    assert float(torch.maximum(*errors(members, truth.mass, truth.energy)).max()) < 1e-12
    free = assimilate(variational, truth, diffusion(model, method, 100, 0))
    assert float((free[..., list(SITES)] - seen).abs().max()) > 1e-3


def test_the_forecast_shifts_and_damps() -> None:
    grid = torch.arange(POINTS, dtype=torch.float64) * (2 * math.pi / POINTS)
    u = 0.3 + torch.cos(grid) + 0.5 * torch.sin(3 * grid)
    moved = BASIS @ (forecast(2.0, 0.1) @ (BASIS.T @ u))
    exact = 0.3 + torch.cos(grid - 0.9) + 0.5 * torch.sin(3 * (grid - 0.9))
    torch.testing.assert_close(moved, math.exp(-0.2) * exact)


def test_the_ensemble_filter_approaches_the_kalman_filter(truth: Truth, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("casal_lab.burgers.cycle.KALMAN_MEMBERS", 4000)
    variational = Gaussian3DVar(SETUPS["B"], sigma_of(truth))
    first = kalman(variational, truth, 0.0, 0)[0].mean(0) @ BASIS
    mean = variational.mean(torch.zeros((len(truth), DIMENSION), dtype=torch.float64), variational.observed(truth, 0))
    gap = (first - mean) / variational.covariance.diagonal().sqrt()
    assert float(gap.square().mean().sqrt()) < 0.15
