"""Set-up C with a learned prior: a network trained on draws of the regimes, and the distribution that it stands for.

The network is told nothing of the mixture but 200 000 draws. Its posterior given the sensor, for the methods:

- diffusion methods: ancestral sampling with moment-matching guidance (``casal.posterior``), exact for one sensor if x0
  is Gaussian given the noisy x;
- ``WeightedCASAL``: a fixed density, the network's score at its least noise level (t = 0: noise 0.01 beside regimes of
  size 0.15) plus the exact score of the likelihood;
- the ladders start from samples of the network weighted by the likelihood: exact but for the network.

The distribution that they should find is again importance sampling: points of the exact distribution on C, weighted by
p_net / p at t = 0, log p_net by the probability-flow ODE.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from casal import Target, ddpm, langevin, posterior
from casal_lab.artifacts import network
from casal_lab.burgers.regimes import DIMENSION, MEANS, REGIMES, SEEN, SENSOR, WITHIN, Reference
from casal_lab.experiment import ResultTable
from casal_lab.nets import Gaussian, ProbabilityFlow, WienerMLP, signal_and_noise, train_ddpm
from casal_lab.problems.families import BETAS

ALPHA, SIGMA = signal_and_noise(BETAS)
DRAWS, HELD_OUT = 200_000, 5_000
BATCH, RATE = 1024, 2e-3
LEVELS = (0, 3, 12, 49, 111, 197, 308, 444, 604, 789, 999)
FLOW_STEPS = 40
LEAST_SHARE, LEAST_POINTS = 1e-4, 20
"""Regimes of a smaller share have no points in the reference; others have at least so many."""

CHUNK = 2000
SEED = 11


def draws(n: int, seed: int) -> Tensor:
    """n draws of the regimes, (n, 19) float64."""
    return REGIMES.sample(n, torch.Generator().manual_seed(seed))


class Training(NamedTuple):
    """Updates of the network, samples of it that the ladders start from, points of a reference."""

    iterations: int
    pool: int
    points: int


@dataclass(frozen=True, eq=False)
class Learned:
    """A prior on latents that is a network."""

    net: nn.Module  # the noise predictor
    training: Training  # how much of everything

    @classmethod
    def of(cls, training: Training) -> Learned:
        """From the cache, or trained now (a minute)."""

        def train() -> nn.Module:
            x, held_out = draws(DRAWS, SEED).float(), draws(HELD_OUT, SEED + 1).float()
            net = WienerMLP.fit(x, BETAS, seed=SEED)
            options = {"batch_size": BATCH, "learning_rate": RATE, "iterations": training.iterations, "seed": SEED}
            train_ddpm(net, x, BETAS.float(), held_out=held_out, progress=False, **options)
            return net

        return cls(network(f"burgers_regimes_wiener_{training.iterations}", train).requires_grad_(False), training)

    @cached_property
    def flow(self) -> ProbabilityFlow:
        """The ODE of the network."""
        return ProbabilityFlow(self.net, BETAS, DIMENSION, FLOW_STEPS)

    @cached_property
    def pool(self) -> Tensor:
        """Samples of the network at t = 0, float32."""
        return self.flow.sample(self.training.pool, torch.Generator().manual_seed(SEED))

    def log_ratio(self, x: Tensor) -> Tensor:
        """log p_net / p (n,) of latents x, both at t = 0."""
        noisy = float(ALPHA[0]) * x
        log_net = torch.cat([self.flow.log_density(part) for part in noisy.float().split(CHUNK)])
        return log_net - REGIMES.log_density(noisy, ALPHA[0], SIGMA[0])

    def reference(self, exact: Reference) -> Reference:
        """The distribution on C under the network: exact points, regime by regime, weighted by p_net / p."""
        generator = torch.Generator().manual_seed(SEED)
        regime = torch.cdist(exact.x, MEANS).argmin(1)
        points, shares = [], []
        for k, share in enumerate(exact.modes.tolist()):
            if share < LEAST_SHARE:
                continue
            count = max(LEAST_POINTS, round(share * self.training.points))
            weights = torch.where(regime == k, exact.weights, 0.0)
            points.append(exact.x[torch.multinomial(weights, count, replacement=True, generator=generator)])
            shares.append(torch.full((count,), share / count, dtype=torch.float64))
        x, share_of = torch.cat(points), torch.cat(shares)
        weights = torch.softmax(share_of.log() + self.log_ratio(x), dim=0)
        regime = torch.cdist(x, MEANS).argmin(1)
        modes = torch.zeros(len(MEANS), dtype=torch.float64).index_add_(0, regime, weights)
        return Reference(x, weights, modes, float(1 / weights.square().sum()))


@dataclass(frozen=True, eq=False)
class LearnedPosterior:
    """p_net(x | y), in the forms that methods want."""

    learned: Learned
    value: float

    def _given(self, prior: Target) -> Target:
        return posterior(prior, SEEN[None], [self.value], SENSOR, iterations=1)

    def diffusion(self, steps: int) -> Target:
        """Ancestral sampling, guided."""
        return self._given(ddpm(self.learned.net, BETAS, shape=DIMENSION, steps=steps))

    def refined(self, steps: int) -> Target:
        """The guided denoiser, from samples of the posterior: only the last of the noise is taken away before."""
        target = self._given(ddpm(self.learned.net, BETAS, shape=DIMENSION, steps=1, spacing="leading"))
        return replace(target, init=self.sample)

    def static(self, steps: int, step_size: float) -> Target:
        """Langevin dynamics on the network's score at t = 0 and the likelihood's, from samples of the posterior."""
        alpha, sigma = float(ALPHA[0]), float(SIGMA[0])

        def gradient(x: Tensor) -> Tensor:
            prior = alpha / sigma * self.learned.net(alpha * x, torch.tensor(0))
            seen = SEEN.to(x)
            return prior - (self.value - x @ seen)[:, None] * seen / SENSOR**2

        return langevin(
            gradient,
            steps=steps,
            step_size=step_size,
            init=lambda n, generator: self.sample(n, generator) / alpha,
            preconditioner=WITHIN**2,
        )

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n samples of the network at t = 0, drawn by their likelihood."""
        pool = self.learned.pool
        gap = self.value - (pool.double() / float(ALPHA[0])) @ SEEN
        weights = torch.softmax(-gap.square() / (2 * SENSOR**2), dim=0)
        return pool[torch.multinomial(weights, n, replacement=True, generator=generator)]


@torch.no_grad()
def losses(learned: Learned) -> ResultTable:
    """Held-out loss of the network beside the least possible one, that of the exact score, per noise level."""
    x, gaussian, rows = draws(HELD_OUT, SEED + 2), Gaussian.fit(draws(DRAWS, SEED), dtype=torch.float64), []
    for t in LEVELS:
        alpha, sigma = float(ALPHA[t]), float(SIGMA[t])
        w = torch.randn(x.shape, generator=torch.Generator().manual_seed(t), dtype=torch.float64)
        noisy = alpha * x + sigma * w
        exact = -sigma * REGIMES.score(noisy, alpha, sigma)
        least = (exact - w).square().mean()
        off = (learned.net(noisy.float(), torch.tensor(t)).double() - exact).square().mean()
        plain = (gaussian.eps(noisy, alpha, sigma) - exact).square().mean()
        score = (off / exact.square().mean()).sqrt()
        numbers = {"network": 1 + off / least, "gaussian": 1 + plain / least, "score": score}
        rows.append({"t": f"{t}", "noise": sigma / alpha, **{key: float(value) for key, value in numbers.items()}})
    return ResultTable.of(
        "Set-up C: held-out loss of the network over that of the exact score",
        "t: step t | noise: noise / signal, .3f | network: network / exact, .4f | "
        "gaussian: Gaussian / exact, .4f | score: relative error of the score, .4f",
        rows,
        note="The loss of a noise predictor is that of the exact score plus its own squared distance to it; that "
        "distance is measured, so there is no noise in the ratio. Regimes have the size 0.15.",
    )
