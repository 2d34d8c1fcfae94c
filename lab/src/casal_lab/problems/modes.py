"""The exact distribution of a mixture on a set, and how far samples are from it.

On a set C a mixture sum_k w_k p_k is again a mixture: mode k has the weight W_k ~ w_k times the mass of p_k on C, and
within it each coordinate u_i = b_i . x of an orthonormal basis has a mean and a variance. In many dimensions a few
hundred samples cannot show more than these numbers, so these are compared:

- the total variation of mode weights, 1/2 sum_k |mean P(mode k | x) - W_k|;
- z, the root mean square of sqrt(n_k) (mean of u_i - exact mean) / exact standard deviation. For exact draws it is 1;
- the ratio of the variance of u_i to the exact one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from casal.errors import SettingError

LEAST_WEIGHT = 0.03
LEAST_COUNT = 8
"""Modes that are rarer than this, in the distribution or in a run, are left out of means and variances."""

LEAST_SPREAD = 0.1
"""Coordinates with a smaller standard deviation are left out: samplers stop at a noise level near it."""

ModeSampler = Callable[[int, int, torch.Generator], Tensor]
"""``draw(k, count, generator)`` -> exact draws of mode k, (count, d)."""


@dataclass(frozen=True)
class ModeScore:
    """How far samples of one or several runs are from a ``ModeDistribution``."""

    total_variations: tuple[float, ...]  # of mode weights, one a run
    pooled_total_variation: float  # of all runs together: what is left is bias
    z: float  # root mean square error of within-mode means, over that of as many exact draws
    pooled_offset: float  # root mean square error of the means of all runs together, in standard deviations
    variance_ratio: float  # of all runs together, mean over coordinates
    zs: tuple[float, ...]  # z of each run alone

    @property
    def total_variation(self) -> float:
        """Mean over runs."""
        return sum(self.total_variations) / len(self.total_variations)


@dataclass(frozen=True, eq=False)
class ModeDistribution:
    """sum_k W_k p_k on a set: weights of the modes, means and variances of coordinates in each."""

    log_masses: Tensor  # log of w_k times the mass of mode k on the set, (m,)
    bases: Sequence[Tensor | None]  # (d, d) orthonormal columns b_i for each mode; None: the coordinates of x
    means: Tensor  # of b_i . x within each mode, (m, d)
    variances: Tensor  # likewise
    responsibilities: Callable[[Tensor], Tensor]  # P(mode k | x), (n, m)
    draw_mode: ModeSampler | None = None
    most_coordinates: int = 20  # how many are compared: the first half, and as many spread over the rest
    error: float = 0.0  # standard error of the means in standard deviations, where the distribution itself is sampled

    @property
    def weights(self) -> Tensor:
        """W, (m,)."""
        return torch.softmax(self.log_masses, dim=0)

    @property
    def log_probability(self) -> float:
        """log P(C); on a set of equations, log of the density of their left sides."""
        return float(torch.logsumexp(self.log_masses, dim=0))

    @property
    def mean(self) -> Tensor:
        """E[x], (d,)."""
        parts = [u if B is None else B @ u for B, u in zip(self.bases, self.means, strict=True)]
        return self.weights @ torch.stack(parts)

    def total_variation(self, x: Tensor) -> float:
        """1/2 sum_k |mean P(mode k | x) - W_k|."""
        return self._distance(self._shares(x))

    def floor(self, n: int) -> float:
        """Total variation of n exact draws, on average: 1/2 sum_k E|N(0, W_k (1 - W_k) / n)|."""
        variance = self.weights * (1 - self.weights) / n
        return float(variance.sqrt().sum()) * math.sqrt(2 / math.pi) / 2

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """n independent exact draws, (n, d) float64, in random order."""
        if self.draw_mode is None:
            raise SettingError("this distribution has no exact draws, only exact weights and moments")
        mode = torch.multinomial(self.weights, n, replacement=True, generator=generator)
        counts = torch.bincount(mode, minlength=len(self.log_masses)).tolist()
        points = torch.cat([self.draw_mode(k, count, generator) for k, count in enumerate(counts)])
        return points[torch.randperm(n, generator=generator)]

    def coordinates(self, k: int) -> Tensor:
        """Indices of the coordinates of mode k that are compared."""
        wide = torch.nonzero(self.variances[k].sqrt() > LEAST_SPREAD).flatten()
        if len(wide) <= self.most_coordinates:
            return wide
        leading = self.most_coordinates // 2
        spread = torch.linspace(leading, len(wide) - 1, self.most_coordinates - leading, dtype=torch.float64)
        return wide[torch.cat([torch.arange(leading), spread.long()])]

    def score(self, runs: Tensor | Sequence[Tensor]) -> ModeScore:
        """Compare the samples (n, d) of a run, or of several runs of the same problem.

        A sample counts for the mode that is most probable at it. Modes enter z and the variances by their weight W_k.
        """
        sets = [x.detach().to(torch.float64) for x in ([runs] if isinstance(runs, Tensor) else runs)]
        shares = [self._shares(x) for x in sets]
        pooled = torch.stack(shares).mean(0)
        z, offset, ratio = self._within(sets)
        return ModeScore(
            total_variations=tuple(self._distance(share) for share in shares),
            pooled_total_variation=self._distance(pooled),
            z=z,
            pooled_offset=offset,
            variance_ratio=ratio,
            zs=tuple(self._within([x])[0] for x in sets),
        )

    def _shares(self, x: Tensor) -> Tensor:
        return self.responsibilities(x.detach().to(torch.float64)).mean(0)

    def _distance(self, shares: Tensor) -> float:
        return float((shares - self.weights).abs().sum()) / 2

    def _within(self, sets: Sequence[Tensor]) -> tuple[float, float, float]:
        """z, offset of the pooled means and ratio of the pooled variances, means over modes by weight."""
        modes = [self.responsibilities(x).argmax(1) for x in sets]
        rows, weights = [], []
        for k, weight in enumerate(self.weights.tolist()):
            parts = [self._standardised(x[mode == k], k) for x, mode in zip(sets, modes, strict=True)]
            parts = [part for part in parts if len(part) >= LEAST_COUNT]
            if weight < LEAST_WEIGHT or not parts or not parts[0].shape[1]:
                continue
            z = torch.stack([len(u) * u.mean(0).square() for u in parts]).mean().sqrt()
            every = torch.cat(parts)
            mean = every.mean(0)
            ratio = every.square().mean(0) - mean.square()
            rows.append([float(z), float(mean.square().mean().sqrt()), float(ratio.mean())])
            weights.append(weight)
        if not rows:
            return math.nan, math.nan, math.nan
        total = torch.tensor(weights, dtype=torch.float64) / sum(weights)
        z_mean, offset, ratio_mean = (total @ torch.tensor(rows, dtype=torch.float64)).tolist()
        return z_mean, offset, ratio_mean

    def _standardised(self, x: Tensor, k: int) -> Tensor:
        """(u_i - mean) / standard deviation, (n, number of coordinates)."""
        chosen, basis = self.coordinates(k), self.bases[k]
        u = x[:, chosen] if basis is None else x @ basis[:, chosen]
        return (u - self.means[k, chosen]) / self.variances[k, chosen].sqrt()
