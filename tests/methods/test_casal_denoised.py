"""CASAL on the denoised estimate: what the score of a moved estimate is, and what the coupling leads to."""

from __future__ import annotations

import pytest
import torch

import casal
from casal.errors import SettingError
from casal.methods.baselines import estimate
from casal.methods.casal import score_of

MEAN = torch.tensor([0.5, -1.0, 0.2], dtype=torch.float64)
ROOT = torch.tensor([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [-0.3, 0.2, 0.5]], dtype=torch.float64)
COVARIANCE = ROOT @ ROOT.T
BETAS = torch.linspace(1e-4, 0.05, 200, dtype=torch.float64)
ALPHA_BAR = (1 - BETAS).cumprod(0)


def eps(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """The exact noise prediction of the Gaussian."""
    a = ALPHA_BAR[t]
    spread = a * COVARIANCE + (1 - a) * torch.eye(3, dtype=torch.float64)
    return (1 - a).sqrt() * torch.linalg.solve(spread, (x - a.sqrt() * MEAN).T).T


ODE = casal.ddim(eps, BETAS, shape=(3,), steps=50, dtype=torch.float64)
PLANE = casal.Affine([[1.0, 1.0, 1.0]], 0.4)


def test_the_score_of_an_estimate_is_its_inverse() -> None:
    x, clean = torch.randn((2, 4, 3), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    alpha, sigma = ALPHA_BAR[70].sqrt(), (1 - ALPHA_BAR[70]).sqrt()
    torch.testing.assert_close(estimate(x, score_of(x, clean, alpha, sigma), alpha, sigma), clean)


def test_a_huge_rho_puts_the_last_estimate_on_the_set_and_a_tiny_one_changes_nothing() -> None:
    strong = casal.sample(ODE, PLANE, casal.CASAL(casal.inverse_variance(1e8), dual_step=0.0), 50, seed=0)
    assert float(PLANE.violation(strong.state.x).max()) < 1e-6
    weak = casal.sample(ODE, PLANE, casal.CASAL(1e-9, dual_step=0.0), 50, seed=0)
    free = casal.sample(ODE, PLANE, casal.Unconstrained(), 50, seed=0)
    torch.testing.assert_close(weak.state.x, free.samples, atol=1e-6, rtol=0)


def test_a_sampler_without_noise_couples_the_estimate_by_itself() -> None:
    settings = {"rho": casal.inverse_variance(1.0)}
    auto = casal.sample(ODE, PLANE, casal.CASAL(**settings), 20, seed=0)
    asked = casal.sample(ODE, PLANE, casal.CASAL(**settings, couple="denoised"), 20, seed=0)
    assert torch.equal(auto.samples, asked.samples)
    assert float(auto.certificate.violation.max()) < 1e-12


def test_the_printed_variants_refuse_a_sampler_without_noise() -> None:
    for method in (casal.CASAL.algorithm1(1.0), casal.CASAL.algorithm2(1.0), casal.CASAL.released(1.0, 0.1)):
        with pytest.raises(SettingError, match="zero for a sampler without noise"):
            casal.sample(ODE, PLANE, method, 5)


@pytest.mark.parametrize("rho", [1.0, 10.0, 100.0, 1e4])
@pytest.mark.parametrize("steps", [20, 50, 200])
def test_the_default_coupling_stays_finite_along_a_diffusion(rho: float, steps: int) -> None:
    target = casal.ddpm(eps, BETAS, shape=(3,), steps=steps, dtype=torch.float64)
    for couple in ("state", "denoised"):
        result = casal.sample(target, casal.Sphere(1.5), casal.CASAL(rho, couple=couple), 20, seed=0)
        assert float(result.certificate.violation.max()) < 1e-12


def test_the_explicit_paper_variant_refuses_unstable_settings_with_the_number() -> None:
    target = casal.ddpm(eps, BETAS, shape=(3,), steps=20, dtype=torch.float64)
    with pytest.raises(SettingError, match=r"tau rho \|A\|\^2 = .* > 1"):
        casal.sample(target, casal.Sphere(1.5), casal.CASAL.algorithm2(1e4), 5)


def test_dps_pulls_the_estimate_towards_the_set() -> None:
    target = casal.ddpm(eps, BETAS, shape=(3,), steps=50, dtype=torch.float64)
    free = casal.sample(target, PLANE, casal.Unconstrained(), 300, seed=0).samples
    pulled = casal.sample(target, PLANE, casal.DPS(2.0), 300, seed=0).samples
    assert float((pulled.sum(1) - 0.4).abs().mean()) < 0.6 * float((free.sum(1) - 0.4).abs().mean())
    strict = casal.sample(target, PLANE, casal.FinalProjection(casal.DPS(2.0)), 300, seed=0)
    assert float(strict.certificate.violation.max()) < 1e-12


def test_a_damped_step_on_the_estimate_is_refused() -> None:
    with pytest.raises(SettingError, match="z_step='full'"):
        casal.sample(ODE, PLANE, casal.CASAL(5.0, couple="denoised", z_step="damped"), 4)
