"""Every model family with an exact network: what is wrong in a sample is then the sampler's."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from casal import Target, annealed, ddpm, edm, flow, karras_sigmas, langevin, vp_sde
from casal.devices import entry
from casal_lab.problems.gaussian_mixture import GaussianMixture

BETAS = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
"""Ho et al.'s linear schedule."""

BETA_RANGE = (0.1, 20.0)
"""beta(0) and beta(1) of the variance-preserving diffusion, the defaults of ``vp_sde``."""

LEVELS = 25
ANNEALED_SIGMAS = torch.logspace(1, -1.3, LEVELS, dtype=torch.float64)
ANNEALED_STEP = 0.2
"""Noise levels of annealed Langevin dynamics, and its step in units of sigma^2."""

LANGEVIN_STEP = 0.01

EXTENSIONS = ("edm (ODE)", "edm, ancestral", "flow")
"""Families that are ours: the paper covers energy-based, annealed, DDPM and score-SDE models, and names stochastic
interpolants as future work."""


def eps_network(score: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """eps(x, t) = E[noise | x] = -sigma_t score on the discrete chain of BETAS, t = 0 ... T - 1.

    ``score(x, alpha, sigma)`` is the gradient of the log density of alpha x0 + sigma noise.
    """
    log_abar = torch.cumsum(torch.log1p(-BETAS), 0)
    alpha, sigma = torch.exp(log_abar / 2), (-torch.expm1(log_abar)).sqrt()

    def eps(x: Tensor, t: Tensor) -> Tensor:
        level = entry(sigma, t)
        return -level.to(x).reshape(-1, 1) * score(x, entry(alpha, t), level)

    return eps


def vp_score(mixture: GaussianMixture) -> Callable[[Tensor, Tensor], Tensor]:
    """score(x, t) of the variance-preserving diffusion in continuous time."""
    low, high = BETA_RANGE

    def score(x: Tensor, t: Tensor) -> Tensor:
        t = t.to(torch.float64)
        decay = t * (low + t * (high - low) / 2)
        return mixture.score(x, torch.exp(-decay / 2), (-torch.expm1(-decay)).sqrt())

    return score


def velocity(mixture: GaussianMixture) -> Callable[[Tensor, Tensor], Tensor]:
    """The velocity E[x1 - noise | t x1 + (1 - t) noise = x], from noise (t = 0) to data (t = 1)."""
    mean = mixture.weights @ mixture.means

    def field(x: Tensor, t: Tensor) -> Tensor:
        if not bool(t.any()):
            return mean.to(x) - x
        at = t.to(x).reshape(-1, 1)
        return (x + (1 - at) * mixture.score(x, t, 1 - t)) / at

    return field


def _langevin(mixture: GaussianMixture, steps: int) -> Target:
    """The chains start as draws of p, as they would after a long run without a constraint."""
    return langevin(
        lambda x: -mixture.score(x),
        steps=steps,
        step_size=LANGEVIN_STEP,
        init=lambda n, g: mixture.sample(n, g).float(),
    )


def annealed_start(dimension: int) -> Callable[[int, torch.Generator], Tensor]:
    """Noise of the first level."""
    return lambda n, g: float(ANNEALED_SIGMAS[0]) * torch.randn((n, dimension), generator=g)


def steps_per_level(steps: int) -> int:
    """Langevin steps at each of the LEVELS, at least one."""
    return max(1, steps // LEVELS)


def _annealed(mixture: GaussianMixture, steps: int) -> Target:
    return annealed(
        lambda x, sigma: mixture.score(x, 1.0, sigma),
        ANNEALED_SIGMAS,
        steps_per_level=steps_per_level(steps),
        step_size=ANNEALED_STEP,
        init=annealed_start(mixture.dimension),
    )


def _edm(mixture: GaussianMixture, steps: int, churn: float) -> Target:
    sigmas = karras_sigmas(steps)
    return edm(lambda x, sigma: mixture.denoise(x, 1.0, sigma), sigmas, shape=mixture.dimension, churn=churn)


FAMILIES: dict[str, Callable[[GaussianMixture, int], Target]] = {
    "langevin": _langevin,
    "annealed": _annealed,
    "ddpm": lambda mixture, steps: ddpm(eps_network(mixture.score), BETAS, steps=steps, shape=mixture.dimension),
    "vp_sde + corrector": lambda mixture, steps: vp_sde(
        vp_score(mixture), steps=steps // 2, corrector_steps=1, shape=mixture.dimension
    ),
    "edm (ODE)": lambda mixture, steps: _edm(mixture, steps, churn=0.0),
    "edm, ancestral": lambda mixture, steps: _edm(mixture, steps, churn=1.0),
    "flow": lambda mixture, steps: flow(velocity(mixture), steps=steps, shape=mixture.dimension),
}
"""(mixture, score evaluations) -> target, in float32."""
