"""Gaussians restricted to bounds: exact moments and draws if independent, a Gibbs sampler if correlated.

For N(m, v) on [l, h], with a = (l - m) / sqrt(v), b = (h - m) / sqrt(v), Z = Phi(b) - Phi(a):

    mean = m + sqrt(v) (phi(a) - phi(b)) / Z,
    variance = v (1 + (a phi(a) - b phi(b)) / Z - ((phi(a) - phi(b)) / Z)^2).

Intervals above the mean are reflected first, so that far tails keep their digits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy import special
from torch import Tensor

from casal.errors import InfeasibleSet
from casal_lab.experiment import Array


class IntervalMoments(NamedTuple):
    """Of a standard normal on [a, b]."""

    log_mass: Array  # log(Phi(b) - Phi(a))
    mean: Array
    variance: Array


def interval_moments(a: Array, b: Array) -> IntervalMoments:
    """log mass, mean and variance of a standard normal on [a, b], element by element; bounds may be infinite."""
    low, high, flipped = _reflected(a, b)
    log_low, log_high = special.log_ndtr(low), special.log_ndtr(high)
    log_mass = log_high + np.log1p(-np.exp(log_low - log_high))
    at_low, at_high = _density(low, log_mass), _density(high, log_mass)
    mean = at_low - at_high
    variance = 1 + np.where(at_low > 0, low, 0.0) * at_low - np.where(at_high > 0, high, 0.0) * at_high - mean**2
    return IntervalMoments(log_mass, np.where(flipped, -mean, mean), variance)


def interval_quantile(u: Array, a: Array, b: Array) -> Array:
    """The point of [a, b] below which a standard normal on [a, b] has the probability u."""
    low, high, flipped = _reflected(a, b)
    share = np.where(flipped, 1 - u, u)
    log_low, log_high = special.log_ndtr(low), special.log_ndtr(high)
    point = np.clip(special.ndtri_exp(log_high + np.log(share + (1 - share) * np.exp(log_low - log_high))), low, high)
    return np.where(flipped, -point, point)


def _reflected(a: Array, b: Array) -> tuple[Array, Array, npt.NDArray[np.bool_]]:
    """[a, b], or [-b, -a] where its centre is positive, and where that is."""
    a, b = np.broadcast_arrays(np.asarray(a, dtype=float), np.asarray(b, dtype=float))
    if not bool((a < b).all()):
        raise InfeasibleSet("every lower bound must be below its upper bound")
    flipped = a > -b
    return np.where(flipped, -b, a), np.where(flipped, -a, b), flipped


def _density(t: Array, log_mass: Array) -> Array:
    """phi(t) / Z, zero at infinity."""
    return np.exp(-0.5 * t**2 - log_mass) / math.sqrt(2 * math.pi)


@dataclass(frozen=True, eq=False)
class TruncatedGaussian:
    """N(m, diag v) on the box low <= x <= high. Bounds broadcast against m and may be infinite."""

    mean: Tensor  # m, (d,)
    variance: Tensor  # v, (d,)
    low: Tensor | float
    high: Tensor | float

    @property
    def log_probability(self) -> float:
        """log P(low <= x <= high)."""
        return float(self._moments().log_mass.sum())

    @property
    def means(self) -> Tensor:
        """E[x_i], (d,)."""
        return self.mean + self.variance.sqrt() * torch.from_numpy(self._moments().mean)

    @property
    def variances(self) -> Tensor:
        """Var[x_i], (d,)."""
        return self.variance * torch.from_numpy(self._moments().variance)

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """n independent exact draws, (n, d) float64, by inversion."""
        a, b = self._bounds()
        u = torch.rand((n, len(self.mean)), generator=generator, dtype=torch.float64)
        drawn = self.mean + self.variance.sqrt() * torch.from_numpy(interval_quantile(u.numpy(), a, b))
        low, high = (torch.as_tensor(side, dtype=torch.float64) for side in (self.low, self.high))
        return torch.minimum(torch.maximum(drawn, low), high)

    def _bounds(self) -> tuple[Array, Array]:
        a, b = ((side - self.mean) / self.variance.sqrt() for side in (self.low, self.high))
        return a.numpy(), b.numpy()

    def _moments(self) -> IntervalMoments:
        return interval_moments(*self._bounds())


# ------------------------------------------------------------------ correlated coordinates


@dataclass(frozen=True, eq=False)
class GibbsReference:
    """What independent chains of a Gibbs sampler found: moments and the points where the chains ended."""

    points: Tensor  # (replicas, d), independent of each other
    averages: Tensor  # of each coordinate along each chain, (replicas, d)
    variances: Tensor  # of each coordinate over all chains, (d,)

    @property
    def means(self) -> Tensor:
        """E[x_i], (d,)."""
        return self.averages.mean(0)

    @property
    def error(self) -> float:
        """Standard error of the means, root mean square over coordinates, in standard deviations of x_i."""
        return float((self.averages.var(0) / len(self.averages) / self.variances).mean().sqrt())

    def stationary(self) -> tuple[float, float, float]:
        """Mean and variance of a coordinate, and the standard error of that mean in standard deviations.

        For distributions that do not change if the coordinates are shifted cyclically: averages over all of them.
        """
        mean = float(self.averages.mean())
        variance = float((self.variances + self.means.square()).mean()) - mean**2
        return mean, variance, float(self.averages.mean(1).std()) / math.sqrt(len(self.averages) * variance)


def nonnegative_gibbs(
    mean: Tensor,
    precision: Tensor,
    total: float | None = None,
    *,
    replicas: int = 256,
    sweeps: int = 400,
    warmup: int = 200,
    seed: int = 0,
) -> GibbsReference:
    """N(m, P^-1) on {x >= 0}, or on {x >= 0, sum x = total}, by Gibbs sampling of many chains at once.

    Given the others, x_i is N(x_i - g_i / P_ii, 1 / P_ii) on [0, inf), g = P (x - m). With a fixed sum, pairs move
    along x_i + t, x_j - t: t is N(-(g_i - g_j) / p, 1 / p) on [-x_i, x_j], p = P_ii + P_jj - 2 P_ij. The partner j is
    drawn anew at every step, the same for all chains, so that the chains stay independent.

    Args:
        mean: m, (d,).
        precision: P, (d, d), the inverse covariance.
        total: The sum of the coordinates, or None.
        replicas: Number of chains.
        sweeps: Sweeps over all coordinates that are averaged.
        warmup: Sweeps before.
        seed: Of the random numbers.
    """
    rng = np.random.default_rng(seed)
    m, P, d = mean.numpy()[:, None], precision.numpy(), len(mean)
    scale = 1 / np.sqrt(P.diagonal())
    x = rng.uniform(0.2, 1.2, (d, replicas)) * (np.abs(m) + scale[:, None])
    if total is not None:
        x *= total / x.sum(0)
    offset = x - m
    sums, squares = np.zeros_like(x), np.zeros_like(x)
    for sweep in range(warmup + sweeps):
        u = rng.random((d, replicas))
        partners = (np.arange(d) + rng.integers(1, d, d)) % d
        for i, j in enumerate(partners):
            if total is None:
                centre = x[i] - P[i] @ offset * scale[i] ** 2
                tail = special.log_ndtr(centre / scale[i]) + np.log(u[i])
                x[i] = np.maximum(centre - scale[i] * special.ndtri_exp(tail), 0.0)
                offset[i] = x[i] - m[i]
                continue
            sd = 1 / math.sqrt(P[i, i] + P[j, j] - 2 * P[i, j])
            centre = -((P[i] - P[j]) @ offset) * sd**2
            move = centre + sd * interval_quantile(u[i], (-x[i] - centre) / sd, (x[j] - centre) / sd)
            pair = x[i] + x[j]
            x[i] = np.clip(x[i] + move, 0.0, pair)
            x[j] = pair - x[i]
            offset[i], offset[j] = x[i] - m[i], x[j] - m[j]
        if sweep >= warmup:
            sums += x
            squares += x**2
    averages = sums / sweeps
    variances = (squares / sweeps).mean(1) - averages.mean(1) ** 2
    return GibbsReference(
        torch.from_numpy(x.T.copy()), torch.from_numpy(averages.T.copy()), torch.from_numpy(variances)
    )
