"""Mixtures of round Gaussians: everything about them is known, with noise on them and restricted to a set.

    p(x) = sum_k w_k N(x; m_k, s_k^2 I)

Under noise, x = alpha x0 + sigma noise, mode k is N(alpha m_k, (alpha^2 s_k^2 + sigma^2) I), which gives the score and
the denoiser of every diffusion family. Restricted to a set C, mode k keeps its shape and gets the weight
W_k ~ w_k integral over C of N(x; m_k, s_k^2 I); on a sphere or an affine set the integral is over the surface measure.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch

import numpy as np
import scipy  # whose parts load when they are used: stats takes half a second
import torch
from scipy import special
from torch import Tensor

from casal import Affine, Constraint, HalfSpace, Sphere
from casal.errors import SettingError, ShapeError
from casal_lab.experiment import Array

ModeSampler = Callable[[int, int, np.random.Generator], Array]


@dataclass(frozen=True, eq=False)
class GaussianMixture:
    """p(x) = sum_k w_k N(x; m_k, s_k^2 I) in any dimension.

    Functions of x (n, d) keep its dtype; alpha and sigma are numbers, or one per chain (n,).
    """

    weights: Tensor  # w, (m,), positive; scaled to sum to one
    means: Tensor  # m_k, (m, d)
    spreads: Tensor  # s, (m,), the standard deviation of each mode in every direction

    def __post_init__(self) -> None:
        weights, means, spreads = (part.to(torch.float64) for part in (self.weights, self.means, self.spreads))
        if means.ndim != 2 or not weights.shape == spreads.shape == means.shape[:1]:
            raise ShapeError(f"means (m, d) need m weights and m spreads, got means {tuple(means.shape)}")
        if not bool((torch.stack([weights, spreads]) > 0).all()):
            raise SettingError("weights and spreads of a mixture must be > 0")
        for name, value in (("weights", weights / weights.sum()), ("means", means), ("spreads", spreads)):
            object.__setattr__(self, name, value)

    @property
    def dimension(self) -> int:
        """d."""
        return self.means.shape[1]

    def log_density(self, x: Tensor, alpha: Tensor | float = 1.0, sigma: Tensor | float = 0.0) -> Tensor:
        """log p(x), (n,), of alpha x0 + sigma noise."""
        log_joint, _, _ = self._log_joint(x, alpha, sigma)
        return torch.logsumexp(log_joint, dim=1) - 0.5 * self.dimension * math.log(2 * math.pi)

    def responsibilities(self, x: Tensor) -> Tensor:
        """P(mode k | x), (n, m). Their mean over samples of p on any set C is W_k: a soft count without bias."""
        return _shares(self._log_joint(x, 1.0, 0.0)[0])

    def score(self, x: Tensor, alpha: Tensor | float = 1.0, sigma: Tensor | float = 0.0) -> Tensor:
        """Gradient of ``log_density``: sum_k P(k | x) (alpha m_k - x) / (alpha^2 s_k^2 + sigma^2)."""
        log_joint, variance, scale = self._log_joint(x, alpha, sigma)
        pull = _shares(log_joint) / variance
        return scale * (pull @ self.means.to(x)) - pull.sum(1, keepdim=True) * x

    def denoise(self, x: Tensor, alpha: Tensor | float, sigma: Tensor | float) -> Tensor:
        """E[x0 | alpha x0 + sigma noise = x] (Tweedie)."""
        scale, noise = (torch.as_tensor(v, dtype=x.dtype).reshape(-1, 1) for v in (alpha, sigma))
        return (x + noise.square() * self.score(x, alpha, sigma)) / scale

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n draws, float64; fits ``init`` of a target."""
        mode = torch.multinomial(self.weights, n, replacement=True, generator=generator)
        noise = torch.randn((n, self.dimension), generator=generator, dtype=torch.float64)
        return self.means[mode] + self.spreads[mode, None] * noise

    def total_variation(self, x: Tensor, weights: Tensor) -> float:
        """1/2 sum_k |mean P(mode k | x) - W_k|: between the modes of samples and wanted weights W (m,)."""
        return float((self.responsibilities(x.to(torch.float64)).mean(0) - weights).abs().sum()) / 2

    def restricted(self, constraint: Constraint) -> RestrictedMixture:
        """The exact distribution on a Sphere, an Affine set or a HalfSpace."""
        return _restricted(constraint, self)

    def _log_joint(self, x: Tensor, alpha: Tensor | float, sigma: Tensor | float) -> tuple[Tensor, Tensor, Tensor]:
        """log w_k N(x; alpha m_k, v_k) + constant, v_k = alpha^2 s_k^2 + sigma^2 and alpha: each (n or 1, m or 1).

        |x - alpha m_k|^2 is multiplied out, so that no tensor is larger than x.
        """
        scale, noise = (torch.as_tensor(v, dtype=torch.float64).reshape(-1, 1) for v in (alpha, sigma))
        variance = (scale * self.spreads).square() + noise.square()
        base = self.weights.log() - 0.5 * self.dimension * variance.log()
        base = (base - scale.square() * self.means.square().sum(1) / (2 * variance)).to(x)
        scale, variance = scale.to(x), variance.to(x)
        square = (x * x).sum(1, keepdim=True)
        return base + (scale * (x @ self.means.to(x).T) - square / 2) / variance, variance, scale


@dataclass(frozen=True, eq=False)
class RestrictedMixture:
    """sum_k W_k p_k on a set, p_k the k-th Gaussian restricted to it."""

    log_masses: Tensor  # log of w_k times the integral of mode k over the set, (m,)
    draw_mode: ModeSampler  # (k, count, rng) -> exact draws of p_k, (count, d)

    @property
    def weights(self) -> Tensor:
        """W, (m,)."""
        return torch.softmax(self.log_masses, dim=0)

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """n independent exact draws, (n, d) float64, in random order."""
        rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        counts = rng.multinomial(n, self.weights.numpy())
        points = np.concatenate([self.draw_mode(k, int(count), rng) for k, count in enumerate(counts)])
        return torch.from_numpy(rng.permutation(points))

    def floor(self, n: int, repeats: int, **distances: Callable[[Tensor], float]) -> dict[str, float]:
        """Each distance of n exact draws, on average: what no sampler can beat."""
        draws = [self.draw(n, torch.Generator().manual_seed(k)) for k in range(repeats)]
        return {name: float(np.mean([distance(z) for z in draws])) for name, distance in distances.items()}


def _shares(log_joint: Tensor) -> Tensor:
    """Softmax over modes; torch's own is several times slower on rows of three numbers."""
    part = (log_joint - log_joint.detach().amax(1, keepdim=True)).exp()
    return part / part.sum(1, keepdim=True)


@singledispatch
def _restricted(constraint: Constraint, mixture: GaussianMixture) -> RestrictedMixture:
    raise SettingError(
        f"no exact distribution of a mixture on {constraint!r}; there is one on Sphere, Affine, HalfSpace"
    )


@_restricted.register
def _on_sphere(constraint: Sphere, mixture: GaussianMixture) -> RestrictedMixture:
    """Mode k is von Mises-Fisher about m_k - c with kappa = R |m_k - c| / s_k^2."""
    centre = torch.zeros(mixture.dimension) if constraint.center is None else constraint.center
    offset = (mixture.means - centre).numpy()
    distance = np.linalg.norm(offset, axis=1)
    d, radius, variance = mixture.dimension, constraint.radius, mixture.spreads.square().numpy()
    kappa = radius * distance / variance
    log_mass = (
        log_bessel_ratio(d / 2 - 1, kappa)
        + (d - 1) * math.log(radius)
        - d / 2 * np.log(variance)
        - (radius**2 + distance**2) / (2 * variance)
    )

    def draw(k: int, count: int, rng: np.random.Generator) -> Array:
        pole = offset[k] / distance[k] if distance[k] > 0 else np.eye(d)[0]
        turned = scipy.stats.vonmises_fisher(pole, max(float(kappa[k]), 1e-12)).rvs(count, random_state=rng)
        return centre.numpy() + radius * turned.reshape(count, d)

    return RestrictedMixture(mixture.weights.log() + torch.from_numpy(log_mass), draw)


@_restricted.register
def _on_affine(constraint: Affine, mixture: GaussianMixture) -> RestrictedMixture:
    """Mode k is Gaussian about P(m_k); its mass is its density across the set, at the distance of m_k."""
    feet = constraint.project(mixture.means)
    normals = int(torch.linalg.matrix_rank(constraint.A))
    squares = (mixture.means - feet).square().sum(1) / mixture.spreads.square()
    log_mass = -squares / 2 - normals * (mixture.spreads.log() + 0.5 * math.log(2 * math.pi))

    def draw(k: int, count: int, rng: np.random.Generator) -> Array:
        noise = torch.from_numpy(rng.standard_normal((count, mixture.dimension)))
        return constraint.project(mixture.means[k] + mixture.spreads[k] * noise).numpy()

    return RestrictedMixture(mixture.weights.log() + log_mass, draw)


@_restricted.register
def _in_half_space(constraint: HalfSpace, mixture: GaussianMixture) -> RestrictedMixture:
    """Across the border a truncated normal, along it free."""
    length = float(constraint.a.norm())
    normal = (constraint.a / length).numpy()
    high = ((constraint.b / length - mixture.means @ constraint.a / length) / mixture.spreads).numpy()

    def draw(k: int, count: int, rng: np.random.Generator) -> Array:
        noise = rng.standard_normal((count, mixture.dimension))
        across = scipy.stats.truncnorm.rvs(-np.inf, high[k], size=count, random_state=rng)
        noise += (across - noise @ normal)[:, None] * normal
        drawn: Array = mixture.means[k].numpy() + float(mixture.spreads[k]) * noise
        return drawn

    return RestrictedMixture(mixture.weights.log() + torch.from_numpy(special.log_ndtr(high)), draw)


def log_bessel_ratio(order: float, kappa: Array) -> Array:
    """log(I_order(kappa) / kappa^order): the mass of exp(kappa cos angle) on a unit sphere, over (2 pi)^(d/2).

    Where the scaled Bessel function underflows (high dimension, small kappa), by the series of 0F1.
    """
    scaled = special.ive(order, kappa)
    large = (scaled > 1e-290) & (kappa > 1e-6)
    safe = np.where(large, kappa, 1.0)
    by_bessel = np.log(np.where(large, scaled, 1.0)) + safe - order * np.log(safe)
    small = np.where(large, 0.0, kappa)
    by_series = -order * math.log(2.0) - special.gammaln(order + 1) + np.log(special.hyp0f1(order + 1, small**2 / 4))
    return np.where(large, by_bessel, by_series)
