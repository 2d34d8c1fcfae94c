"""Posterior scores on a Gaussian prior, where the mean of x0 given the noisy state and the observation is known."""

from __future__ import annotations

import pytest
import torch

import casal
from casal.errors import SettingError

MEAN = torch.tensor([0.5, -1.0, 0.2], dtype=torch.float64)
ROOT = torch.tensor([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [-0.3, 0.2, 0.5]], dtype=torch.float64)
COVARIANCE = ROOT @ ROOT.T
H = torch.tensor([[1.0, 0.0, 1.0], [0.0, 2.0, -1.0]], dtype=torch.float64)
SEEN = torch.tensor([0.7, -1.4], dtype=torch.float64)
NOISE = torch.tensor([0.3, 0.5], dtype=torch.float64)
BETAS = torch.linspace(1e-4, 0.05, 200, dtype=torch.float64)
ALPHA_BAR = (1 - BETAS).cumprod(0)


def eps(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """The exact noise prediction of the Gaussian."""
    a = ALPHA_BAR[t]
    spread = a * COVARIANCE + (1 - a) * torch.eye(3, dtype=torch.float64)
    return (1 - a).sqrt() * torch.linalg.solve(spread, (x - a.sqrt() * MEAN).T).T


def prior() -> casal.Target:
    return casal.ddpm(eps, BETAS, shape=(3,), dtype=torch.float64)


def clean_mean(target: casal.Target, x: torch.Tensor, row: int) -> torch.Tensor:
    table = target.table
    assert table.alpha is not None and table.sigma is not None
    return (x + table.sigma[row] ** 2 * target.score(x, table.t[row])) / table.alpha[row]


@pytest.mark.parametrize("row", [0, 60, 150, 198])
def test_moment_matching_is_exact_for_a_gaussian(row: int) -> None:
    x = torch.randn((5, 3), generator=torch.Generator().manual_seed(row), dtype=torch.float64)
    target = prior()
    alpha, sigma = target.table.alpha[row], target.table.sigma[row]  # type: ignore[index]
    eye = torch.eye(3, dtype=torch.float64)
    precision = torch.linalg.inv(COVARIANCE) + (alpha / sigma) ** 2 * eye + H.T @ torch.diag(NOISE**-2) @ H
    pull = torch.linalg.solve(COVARIANCE, MEAN) + (alpha / sigma**2) * x + (H.T @ (SEEN / NOISE**2))
    expected = torch.linalg.solve(precision, pull.T).T
    ours = clean_mean(casal.posterior(target, H, SEEN, NOISE, iterations=2), x, row)
    torch.testing.assert_close(ours, expected, atol=1e-8, rtol=1e-8)
    # The other ways are approximations: the comparison can tell.
    for way in ("pigdm", "flat", "dps"):
        other = clean_mean(casal.posterior(target, H, SEEN, NOISE, way=way), x, row)
        assert bool(torch.isfinite(other).all())
        if row == 60:
            assert float((other - expected).abs().max()) > 1e-3


def test_samples_follow_the_posterior() -> None:
    target = casal.posterior(prior(), H, SEEN, NOISE, iterations=2)
    free = casal.FromProjection(lambda z: z, lambda z: z.new_zeros(len(z)))
    samples = casal.sample(target, free, casal.Unconstrained(), 4000, seed=0).samples
    precision = torch.linalg.inv(COVARIANCE) + H.T @ torch.diag(NOISE**-2) @ H
    covariance = torch.linalg.inv(precision)
    mean = covariance @ (torch.linalg.solve(COVARIANCE, MEAN) + H.T @ (SEEN / NOISE**2))
    error = covariance.diagonal().sqrt() / 4000**0.5
    assert bool(((samples.mean(0) - mean).abs() < 4 * error + 0.02).all())
    assert bool(((samples.var(0) / covariance.diagonal() - 1).abs() < 0.15).all())


def test_a_fixed_density_and_negative_noise_are_refused_with_the_way_out() -> None:
    static = casal.langevin(lambda x: x, steps=3, step_size=0.1, init=torch.zeros(2, 3))
    with pytest.raises(SettingError, match="add the gradient of the likelihood"):
        casal.posterior(static, H, SEEN, NOISE)
    with pytest.raises(SettingError, match=r">= 0 \(0 for exact observations\), got -0\.5"):
        casal.posterior(prior(), H, SEEN, -0.5)


@pytest.mark.parametrize("way", ["moment", "pigdm", "dps", "flat"])
def test_a_posterior_can_be_differentiated(way: str) -> None:
    """By finite differences, on a network that is not linear: ``DPS`` on a posterior goes through it."""
    weights = torch.randn((3, 3), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target = casal.ddpm(lambda x, t: torch.tanh(x @ weights), BETAS, shape=(3,), dtype=torch.float64)
    given = casal.posterior(target, H, SEEN, NOISE, way=way, iterations=2)
    x = torch.randn((2, 3), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    t = given.table.t[120]
    assert torch.autograd.gradcheck(lambda leaf: given.score(leaf, t), (x.clone().requires_grad_(),))
    assert not given.score(x, t).requires_grad
