"""Assimilation on the Burgers equation: its linear algebra is exact, its sets are met, a quick run is whole."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from casal.decoders import Fourier
from casal.lab.physics.burgers import energy, mass
from casal.lab.problems import burgers
from casal.lab.problems.base import Outcome
from casal.lab.problems.burgers_cycle import Gaussian3DVar, guided
from casal.lab.problems.burgers_runs import METHODS
from casal.lab.problems.burgers_sets import Conserved, least_conserving, nearest_field
from casal.lab.problems.burgers_setup import BASIS, BETAS, DIMENSION, MODES, POINTS, SETUPS, climatology, truths
from casal.targets import ddpm


@pytest.fixture(scope="module")
def sigma() -> Tensor:
    return climatology(SETUPS["A"], 20, 1).square().mean(0).sqrt()


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing of the user's cache is read or written."""
    pytest.MonkeyPatch().setenv("CASAL_CACHE", str(tmp_path_factory.mktemp("cache")))


def test_the_decoder_has_norm_one_and_the_projection_stays_in_its_range(sigma: Tensor) -> None:
    scale = sigma / sigma.max()
    decoder = Fourier(MODES, POINTS, scale=scale)
    matrix = decoder.matrix((DIMENSION,), torch.zeros((0, DIMENSION), dtype=torch.float64))
    assert abs(float(torch.linalg.matrix_norm(matrix, 2)) - 1.0) < 1e-12
    fields = torch.randn(7, DIMENSION, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) @ matrix.T
    found = nearest_field(fields, torch.linspace(-1, 1, 7).double(), torch.linspace(2, 5, 7).double())
    assert float((found - found @ BASIS @ BASIS.T).abs().max()) < 1e-12


def test_every_chain_meets_its_own_mass_and_energy() -> None:
    truth = truths(SETUPS["B"], 5, 3)
    noisy = truth.initial + torch.randn(5, POINTS, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = Conserved(truth.mass, truth.energy, POINTS).project(noisy)
    assert float(((mass(found) - truth.mass) / (POINTS * truth.energy).sqrt()).abs().max()) < 1e-12
    assert float((energy(found) / truth.energy - 1).abs().max()) < 1e-12
    assert float(Conserved(truth.mass, truth.energy, POINTS).violation(noisy).min()) > 1e-3  # and noticed when not


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
    other, turn = variational.divided
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
            x = a * x + b * target.score(x, t)
        exact = goal / (1 + covariance.diagonal())
        errors.append(float((x - exact).abs().max()))
    assert max(errors) < 1e-4  # what is left of the signal at the first step


@pytest.fixture(scope="module")
def quick() -> Outcome:
    return burgers.EXPERIMENT.run(True, None, lambda line: None)


@pytest.mark.slow
def test_a_quick_run_has_every_method_and_keeps_mass_and_energy(quick: Outcome) -> None:
    free = {"3D-Var", "3D-Var, 5 draws", "EnKF", "unconstrained", "penalty, tuned"}
    for name, table in zip(SETUPS, quick.tables, strict=False):
        assert name in table.title and [row["method"] for row in table.rows] == list(METHODS)
        for row in table.rows:
            assert 0.0 < row["l2"] < 1.5 and row["worst_projected"] < 1e-12
            if row["method"] not in free:
                assert row["member_mass"] < 1e-12 and row["member_energy"] < 1e-12
    for part in ("regimes", "learned"):
        regimes = quick.data[part]["scores"]
        assert all(float(found["violation"].max()) < 1e-8 for found in regimes.values())
        assert float(regimes["SplitGibbs"]["modes"].mean()) < float(regimes["final projection"]["modes"].mean())


@pytest.mark.slow
def test_pictures_of_a_quick_run(quick: Outcome, tmp_path: Path) -> None:
    from casal.lab.report.figures import draw

    names = {path.name for path in draw(quick, tmp_path)}
    parts = ("states", "errors", "spectra", "trajectory", "hovmoeller", "invariants", "regimes")
    assert names == {f"burgers_{part}.png" for part in parts}
