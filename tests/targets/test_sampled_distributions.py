"""Unconstrained runs of every diffusion and flow family on laws whose score is known at every noise level."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import casal
from casal.errors import DivergedError
from casal.targets import annealed, ddim, ddpm, edm, flow, karras_sigmas, vp_sde

pytestmark = pytest.mark.statistical

CHAINS = 4096
F64 = torch.float64
BETAS = torch.linspace(1e-4, 0.02, 1000, dtype=F64)
ABAR = torch.cumprod(1 - BETAS, 0)


@dataclass(frozen=True)
class Mixture:
    """A mixture of Gaussians: weights (m,), means (m, d), covariances (m, d, d)."""

    weights: Tensor
    means: Tensor
    covariances: Tensor

    def score(self, x: Tensor, alpha: Tensor | float, sigma: Tensor | float) -> Tensor:
        """Gradient of the log-density of alpha x0 + sigma noise."""
        spread = alpha**2 * self.covariances + sigma**2 * torch.eye(2, dtype=F64)
        precision = torch.linalg.inv(spread)
        away = x[:, None] - alpha * self.means
        pull = torch.einsum("mij,nmj->nmi", precision, away)
        log = self.weights.log() - (torch.logdet(spread) + (away * pull).sum(-1)) / 2
        return -(torch.softmax(log, dim=1)[..., None] * pull).sum(1)

    def draw(self, n: int) -> Tensor:
        g = torch.Generator().manual_seed(99)
        which = torch.multinomial(self.weights, n, replacement=True, generator=g)
        w = torch.randn((n, 2), generator=g, dtype=F64)
        return self.means[which] + torch.einsum("nij,nj->ni", torch.linalg.cholesky(self.covariances)[which], w)

    def shares(self, x: Tensor) -> Tensor:
        """The part of the points nearest to each mean."""
        nearest = torch.cdist(x, self.means).argmin(1)
        return torch.bincount(nearest, minlength=len(self.means)) / len(x)


def _tensor(values: object) -> Tensor:
    return torch.tensor(values, dtype=F64)


GAUSSIAN = Mixture(_tensor([1.0]), _tensor([[1.0, -1.0]]), _tensor([[[2.0, 0.6], [0.6, 0.5]]]))
THREE = Mixture(
    _tensor([0.6, 0.2, 0.2]),
    _tensor([[1.2, 0.0], [-1.5, 1.0], [0.2, -2.2]]),
    torch.stack([sd**2 * torch.eye(2, dtype=F64) for sd in (0.35, 0.5, 0.3)]),
)


def vp(t: Tensor) -> tuple[Tensor, Tensor]:
    alpha = torch.exp(-(0.1 * t + 19.9 * t**2 / 2) / 2)
    return alpha, (1 - alpha**2).sqrt()


def families(law: Mixture, sign: float = 1.0) -> dict[str, Callable[[], casal.Target]]:
    """Every family on a law; sign = -1 turns the score round."""

    def score(x: Tensor, alpha: Tensor | float, sigma: Tensor | float) -> Tensor:
        return sign * law.score(x, alpha, sigma)

    def eps(x: Tensor, t: Tensor) -> Tensor:
        return -(1 - ABAR[t]).sqrt() * score(x, ABAR[t].sqrt(), (1 - ABAR[t]).sqrt())

    def denoiser(x: Tensor, sigma: Tensor) -> Tensor:
        return x + sigma**2 * score(x, 1.0, sigma)

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        if t == 0:
            return law.weights @ law.means - x
        return (x + (1 - t) * score(x, t, 1 - t)) / t

    def start(n: int, generator: torch.Generator) -> Tensor:
        return 10 * torch.randn((n, 2), generator=generator, dtype=F64)

    settings: dict[str, Any] = {"shape": (2,), "dtype": F64}
    return {
        "annealed": lambda: annealed(
            lambda x, sigma: score(x, 1.0, sigma),
            torch.logspace(1, -1, 20, dtype=F64),
            steps_per_level=60,
            step_size=0.5,
            init=start,
            denoise_last=True,
        ),
        "ddpm": lambda: ddpm(eps, BETAS, **settings),
        "ddim": lambda: ddim(eps, BETAS, steps=500, **settings),
        "ddim eta": lambda: ddim(eps, BETAS, steps=500, eta=0.5, **settings),
        "vp_sde": lambda: vp_sde(lambda x, t: score(x, *vp(t)), steps=500, **settings),
        "vp_sde corrected": lambda: vp_sde(
            lambda x, t: score(x, *vp(t)),
            steps=250,
            corrector_steps=1,
            **settings,
        ),
        "edm": lambda: edm(denoiser, karras_sigmas(500), **settings),
        "edm churn": lambda: edm(denoiser, karras_sigmas(500, 0.01, 30.0), churn=1.0, **settings),
        "flow": lambda: flow(velocity, steps=400, **settings),
        "flow noise": lambda: flow(velocity, steps=400, noise=1.0, **settings),
    }


def run(target: casal.Target) -> Tensor | None:
    """Samples of an unconstrained run; None if it diverged."""
    try:
        return casal.sample(target, casal.Sphere(1.0), casal.Unconstrained(), CHAINS, seed=7).samples
    except DivergedError:
        return None


def is_gaussian_law(x: Tensor | None) -> bool:
    """Mean and covariance of the Gaussian, to four Monte Carlo errors and 1.5 % for the discretisation."""
    if x is None:
        return False
    mean, covariance = GAUSSIAN.means[0], GAUSSIAN.covariances[0]
    variance = covariance.diag()
    mean_error = (variance / CHAINS).sqrt()
    covariance_error = ((covariance**2 + torch.outer(variance, variance)) / CHAINS).sqrt()
    off = 0.015 * variance.max()
    return bool(
        ((x.mean(0) - mean).abs() < 4 * mean_error + 0.01).all()
        and ((torch.cov(x.T) - covariance).abs() < 4 * covariance_error + off).all()
    )


@pytest.mark.parametrize("name", families(GAUSSIAN))
def test_the_gaussian_comes_back(name: str) -> None:
    assert is_gaussian_law(run(families(GAUSSIAN)[name]()))


@pytest.mark.parametrize("name", families(GAUSSIAN))
def test_the_gaussian_test_notices_a_flipped_score(name: str) -> None:
    assert not is_gaussian_law(run(families(GAUSSIAN, -1.0)[name]()))


def test_the_gaussian_test_notices_the_printed_predictor_noise() -> None:
    """b sqrt(2 tau), as the paper's eq. predictor has it, where the reverse diffusion has b sqrt(tau)."""
    target = families(GAUSSIAN)["vp_sde"]()
    printed = replace(target, table=replace(target.table, s=2**0.5 * target.table.s))
    assert not is_gaussian_law(run(printed))


REFERENCE = THREE.shares(THREE.draw(400_000))


def has_the_shares(x: Tensor | None) -> bool:
    """The three modes in their proportions, to four Monte Carlo errors."""
    error = (REFERENCE * (1 - REFERENCE) / CHAINS).sqrt()
    return x is not None and bool(((THREE.shares(x) - REFERENCE).abs() < 4 * error).all())


@pytest.mark.parametrize("name", [name for name in families(THREE) if name != "annealed"])
def test_a_mixture_comes_back_in_its_shares(name: str) -> None:
    """Annealed Langevin is left out: its few steps a level do not carry chains between modes."""
    assert has_the_shares(run(families(THREE)[name]()))


def test_the_test_of_shares_notices_other_weights() -> None:
    other = replace(THREE, weights=_tensor([0.55, 0.25, 0.2]))
    assert not has_the_shares(run(families(other)["edm"]()))
