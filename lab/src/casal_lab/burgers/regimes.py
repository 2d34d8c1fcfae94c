"""Set-up C: three regimes, one sensor, mass, energy and bounds known. The prior, its posterior, the exact reference.

    p(x) = sum_k w_k N(x; m_k, s^2 I) in the latent,   u = sqrt(N) A x,   y = u(site) + N(0, r^2)

The regimes have nearly the same mass and energy but other shapes. The posterior given y is again a mixture: the sensor
is linear, so every mode shrinks by the same amount along one direction. On top of it the field must have the true mass
and energy and stay within bounds; that often overturns which regime is likely.

The reference is importance sampling. c_0 is fixed by the mass, and the rest of the coefficients lies on a sphere of
radius r: directions are drawn from each regime, and weighted by the density there over that of the draws,
p_k(r theta) / integral of p_k(l theta) (l / r)^(d-1) dl, the integral by quadrature.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from casal import Box, Constraint, Fourier, MassEnergy, Target, ddpm, langevin
from casal_lab.problems.families import BETAS, eps_network
from casal_lab.problems.gaussian_mixture import GaussianMixture

POINTS, MODES = 64, 10
DIMENSION = 2 * MODES - 1
WEIGHTS = torch.tensor([0.6, 0.2, 0.2], dtype=torch.float64)
WITHIN = 0.15
SITE, SENSOR = 0, 0.5
MARGIN = 0.05
"""Of the bounds, as a share of the range of the truth."""

NODES = 96
SPECTRUM = torch.tensor([0, *range(1, MODES), *range(1, MODES)], dtype=torch.float64).clamp_min(1.0).pow(-1.0)
"""Scale of the coefficients, 1 / k; the decoder is A = F diag(scale), |A| = 1."""

DECODER = Fourier(MODES, POINTS, scale=SPECTRUM)
BASIS = Fourier(MODES, POINTS).matrix((DIMENSION,), torch.zeros((0, DIMENSION), dtype=torch.float64))


MEANS = torch.randn((3, DIMENSION), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
MEANS[:, 1:] /= torch.linalg.vector_norm((MEANS * SPECTRUM)[:, 1:], dim=1, keepdim=True)
MEANS[:, 0] *= WITHIN
"""Three shapes of nearly the same mass and energy, in the latent."""

REGIMES = GaussianMixture(WEIGHTS, MEANS, torch.full_like(WEIGHTS, WITHIN))
"""The prior on latents."""

SEEN = math.sqrt(POINTS) * BASIS[SITE] * SPECTRUM
"""The sensor on latents, (19,)."""

DIRECTION = SEEN / SEEN.norm()
"""h: what the sensor sees, of length one."""

_SIGNAL = WITHIN**2 * float(SEEN.square().sum())
GAIN = _SIGNAL / (_SIGNAL + SENSOR**2)
"""Share by which a mode moves towards the observation, along h."""

VARIANCES = (WITHIN**2 * (1.0 - GAIN), WITHIN**2)
"""Of a mode of the posterior, along h and across."""


class Case(NamedTuple):
    """A truth x, what the sensor says of it, and its field A x."""

    x: Tensor
    value: float
    field: Tensor

    @property
    def bounds(self) -> Box:
        """Least and largest value of the truth, with a margin."""
        low, high = float(self.field.min()), float(self.field.max())
        slack = MARGIN * (high - low)
        return Box(low - slack, high + slack)

    @property
    def constraint(self) -> Constraint:
        """Mass and energy of the truth, and the bounds."""
        return MassEnergy(float(self.field.sum()), float(self.field.square().sum())) & self.bounds


def case(seed: int) -> Case:
    """A truth of the prior and its observation."""
    generator = torch.Generator().manual_seed(seed)
    k = int(torch.multinomial(WEIGHTS, 1, generator=generator))
    x = MEANS[k] + WITHIN * torch.randn(DIMENSION, generator=generator, dtype=torch.float64)
    noise = float(torch.randn((), generator=generator, dtype=torch.float64))
    return Case(x, float(SEEN @ x) + SENSOR * noise, DECODER(x[None])[0])


@dataclass(frozen=True, eq=False)
class Posterior:
    """p(x | y): modes of equal covariance s^2 (I - h h^T) + v h h^T."""

    value: float

    @cached_property
    def means(self) -> Tensor:
        """(3, 19)."""
        gap = (self.value - MEANS @ SEEN) / SEEN.norm()
        return MEANS + GAIN * gap[:, None] * DIRECTION

    @cached_property
    def weights(self) -> Tensor:
        """P(regime | y)."""
        total = SENSOR**2 + _SIGNAL
        return torch.softmax(WEIGHTS.log() - (self.value - MEANS @ SEEN).square() / (2 * total), dim=0)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n exact draws, (n, 19) float64."""
        k = torch.multinomial(self.weights, n, replacement=True, generator=generator)
        w = torch.randn((n, DIMENSION), generator=generator, dtype=torch.float64)
        shrink = math.sqrt(1.0 - GAIN) - 1.0
        return self.means[k] + WITHIN * (w + shrink * (w @ DIRECTION)[:, None] * DIRECTION)

    def score(self, x: Tensor, alpha: Tensor | float = 1.0, sigma: Tensor | float = 0.0) -> Tensor:
        """Gradient of log p of alpha x0 + sigma noise."""
        scale, noise = float(alpha), float(sigma)
        along, across = (scale**2 * variance + noise**2 for variance in VARIANCES)
        h, centres = DIRECTION.to(x), (scale * self.means).to(x)
        gap = x[:, None] - centres
        part = gap @ h
        square = gap.square().sum(2)
        log_joint = self.weights.log().to(x) - (square - part.square()) / (2 * across) - part.square() / (2 * along)
        share = torch.softmax(log_joint, dim=1)
        mean_gap = (share[:, :, None] * gap).sum(1)
        return -mean_gap / across - (1 / along - 1 / across) * (mean_gap @ h)[:, None] * h

    def diffusion(self, steps: int) -> Target:
        """Ancestral sampling with the exact score."""
        return ddpm(eps_network(self.score), BETAS, shape=DIMENSION, steps=steps, time="scalar")

    def refined(self, steps: int) -> Target:
        """For a ladder over a denoiser: it starts with ancestral sampling."""
        return self.diffusion(steps)

    def static(self, steps: int, step_size: float) -> Target:
        """Langevin dynamics that starts from samples of the posterior."""
        return langevin(
            lambda x: -self.score(x),
            steps=steps,
            step_size=step_size,
            init=lambda n, generator: self.sample(n, generator).float(),
            preconditioner=WITHIN**2,
        )


class Reference(NamedTuple):
    """Weighted points of the exact distribution."""

    x: Tensor  # latents whose images are in C, (m, 19)
    weights: Tensor  # (m,), sum one
    modes: Tensor  # P(regime | y, C), (3,)
    size: float  # effective size


def reference(found: Case, posterior: Posterior, draws: int) -> Reference:
    """The distribution of x given y on C, by importance sampling with ``draws`` directions of each regime."""
    generator = torch.Generator().manual_seed(0)
    mass, energy = float(found.field.sum()), float(found.field.square().sum())
    first, length = mass / math.sqrt(POINTS), math.sqrt(energy - mass**2 / POINTS)
    h, (narrow, wide) = DIRECTION, VARIANCES
    covariance = wide * torch.eye(DIMENSION, dtype=torch.float64) + (narrow - wide) * torch.outer(h, h)
    covariance = SPECTRUM[:, None] * covariance * SPECTRUM
    inner = covariance[1:, 1:] - torch.outer(covariance[1:, 0], covariance[0, 1:]) / covariance[0, 0]
    root, precision = torch.linalg.cholesky(inner), torch.linalg.inv(inner)
    ratio = torch.linspace(0.02, 3.0, NODES, dtype=torch.float64)
    points, logs = [], []
    for k in range(len(WEIGHTS)):
        centre = posterior.means[k] * SPECTRUM
        given = centre[1:] + covariance[1:, 0] / covariance[0, 0] * (first - centre[0])
        across = posterior.weights[k].log() - (first - centre[0]).square() / (2 * covariance[0, 0])
        drawn = given + torch.randn((draws, DIMENSION - 1), generator=generator, dtype=torch.float64) @ root.T
        theta = drawn / torch.linalg.vector_norm(drawn, dim=1, keepdim=True)
        # -log p(l theta) = a l^2 / 2 - b l + constant; the constant is that of the mode, common to all draws
        a, b = length**2 * (theta @ precision * theta).sum(1), length * (theta @ (precision @ given))
        rest = given @ precision @ given / 2
        along = b[:, None] * ratio - a[:, None] * ratio.square() / 2 + (DIMENSION - 2) * ratio.log()
        inside = torch.logsumexp(along, dim=1) + math.log(float(ratio[1] - ratio[0]))
        logs.append(across + (b - a / 2 - rest) - (inside - rest))
        points.append(torch.cat([torch.full((draws, 1), first, dtype=torch.float64), length * theta], dim=1))
    c, box = torch.cat(points), found.bounds
    fields = c @ BASIS.T
    kept = ((fields >= box.low) & (fields <= box.high)).all(1)
    weights = torch.softmax(torch.where(kept, torch.cat(logs), -torch.inf), dim=0)
    modes = weights.reshape(len(WEIGHTS), draws).sum(1)
    return Reference(c[kept] / SPECTRUM, weights[kept], modes, float(1 / weights.square().sum()))
