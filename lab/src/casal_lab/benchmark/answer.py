"""The exact answer of a problem, how far samples are from it, and how far as many exact draws are.

Three distances, each from the samples alone:

- statistics: root mean square, over features and their squares, of the error of the mean in exact standard deviations;
- marginals: W1 between the samples' and the exact distribution of a feature, in exact standard deviations, mean over
  features;
- modes: total variation of the weights of modes, where there are several.

The floor of a distance is its mean over sets of exact draws of the same size: what no sampler of independent samples
beats on average.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

F64 = torch.float64
DRAWS = 40
"""Exact draws behind a reference that is no quadrature, for each sample of a run: its error is 1/sqrt(40) of theirs."""

REPEATS = 64
"""Sets of exact draws behind a floor."""

THINNING = 7
"""Nodes of a quadrature for each one that is kept when its error is bounded; no divisor of the sides of its grids."""

FIXED = 1e-9
"""A feature of a smaller standard deviation is a constant of the set and is left out."""

Map = Callable[[Tensor], Tensor]


class Reference(NamedTuple):
    """Points (m, d) of the set and their weights (m,), which sum to one: a quadrature, or independent draws."""

    points: Tensor
    weights: Tensor
    drawn: bool

    @classmethod
    def nodes(cls, points: Tensor, weights: Tensor) -> Reference:
        """A quadrature."""
        return cls(points, weights, False)

    @classmethod
    def draws(cls, points: Tensor) -> Reference:
        """Exact draws of equal weight."""
        return cls(points, torch.full((len(points),), 1.0 / len(points), dtype=F64), True)


Exact = Callable[[int, torch.Generator], Reference]
"""Makes a reference of as many draws; a quadrature has its own number of nodes."""


class Answer:
    """The exact distribution of a problem, made when it is first asked for.

    Args:
        exact: Makes the reference.
        features: Numbers of each point whose distributions are compared, (n, d) -> (n, k).
        modes: Weights of modes or pieces at each point, (n, d) -> (n, m), if there are several.
        chains: Samples of a run, at most.
        fresh: Makes draws that are not those of the reference, where ``exact`` has only a fixed number of them.
        source: Where the reference comes from, in a word or two: quadrature, closed form, rejection.
    """

    def __init__(
        self,
        exact: Exact,
        features: Map,
        modes: Map | None = None,
        chains: int = 1000,
        fresh: Exact | None = None,
        source: str = "quadrature",
    ) -> None:
        self.exact, self.features, self.modes, self.chains = exact, features, modes, chains
        self.fresh, self.source = fresh or exact, source
        self._floors: dict[int, dict[str, float]] = {}

    @cached_property
    def reference(self) -> Reference:
        """Points of the set with weights: a quadrature, or DRAWS times as many exact draws as a run has samples."""
        return self.exact(DRAWS * self.chains, stream(0))

    def draws(self, n: int, seed: int) -> Tensor:
        """n exact draws (n, d) that are not those of the reference; of a quadrature, nodes by their weights."""
        generator = stream(1_000_000 + seed)
        if self.reference.drawn:
            return self.fresh(n, generator).points
        return self._subset(n, generator)

    def _subset(self, n: int, generator: torch.Generator) -> Tensor:
        points, weights, drawn = self.reference
        return points[torch.multinomial(weights, n, replacement=not drawn, generator=generator)]

    @cached_property
    def _compared(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Which features vary; their means, standard deviations, sorted values (m, k) and the levels of these."""
        points, weights, _ = self.reference
        values = self.features(points)
        mean = weights @ values
        spread = (weights @ (values - mean).square()).sqrt()
        told = spread > FIXED
        ordered, index = values[:, told].sort(dim=0)
        cumulative = weights[index].cumsum(0) - weights[index] / 2
        return told, mean[told], spread[told], ordered, cumulative

    @cached_property
    def moments(self) -> tuple[Tensor, Tensor]:
        """Exact mean and standard deviation of each of the ``statistics``, (2 k,) each."""
        points, weights, _ = self.reference
        values = self.statistics(points)
        mean = weights @ values
        return mean, (weights @ (values - mean).square()).sqrt()

    def statistics(self, x: Tensor) -> Tensor:
        """Each feature in standard deviations from its exact mean, and the square of that: (n, 2 k)."""
        told, centre, spread, _, _ = self._compared
        u = (self.features(x)[:, told] - centre) / spread
        return torch.cat([u, u.square()], 1)

    def own_error(self, n: int) -> float:
        """Error of the reference in its statistics over the floor of n samples.

        Of m draws: sqrt(n / m). Of a quadrature: how far every THINNINGth of its nodes is from all of them, over the
        floor, which is more than the error of all nodes.
        """
        points, weights, drawn = self.reference
        if drawn:
            return math.sqrt(n / len(points))
        some = weights[::THINNING] / weights[::THINNING].sum()
        mean, spread = self.moments
        error = (some @ self.statistics(points[::THINNING]) - mean) / spread
        return float(error.square().mean().sqrt()) / self.floor(n)["statistics"]

    def distances(self, x: Tensor) -> dict[str, float]:
        """How far samples (n, d) are from the exact distribution, by each of the distances."""
        mean, spread = self.moments
        error = (self.statistics(x).mean(0) - mean) / spread
        found = {"statistics": float(error.square().mean().sqrt()), "marginals": self._marginals(x)}
        if self.modes is not None:
            found["modes"] = float((self.modes(x).mean(0) - self.mode_weights).abs().sum()) / 2
        return found

    @cached_property
    def mode_weights(self) -> Tensor:
        """Exact weights of the modes, (m,); of one if there are no others."""
        points, weights, _ = self.reference
        return torch.ones(1, dtype=F64) if self.modes is None else weights @ self.modes(points)

    def _marginals(self, x: Tensor) -> float:
        told, _, spread, ordered, levels = self._compared
        found = self.features(x)[:, told].sort(dim=0).values
        wanted = (torch.arange(len(x), dtype=F64) + 0.5) / len(x)
        exact = torch.stack(
            [_interpolated(wanted, levels[:, k], ordered[:, k]) for k in range(ordered.shape[1])], dim=1
        )
        return float(((found - exact).abs().mean(0) / spread).mean())

    def floor(self, n: int) -> dict[str, float]:
        """Each distance of n exact draws, mean over REPEATS sets of them: what no sampler beats on average.

        Sets taken from a reference of m draws, without replacement, are nearer to it than fresh ones, by the factor
        sqrt((1/n - 1/m) / (1/n + 1/m)) in the error of a mean; it is divided out.
        """
        if n not in self._floors:
            generator = stream(2_000_000)
            found = [self.distances(self._subset(n, generator)) for _ in range(REPEATS)]
            m = len(self.reference.points)
            nearer = math.sqrt((m - n) / (m + n)) if self.reference.drawn else 1.0
            self._floors[n] = {key: math.fsum(one[key] for one in found) / REPEATS / nearer for key in found[0]}
        return self._floors[n]


def _interpolated(at: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """y at some values of increasing x, linear between them."""
    k = torch.searchsorted(x.contiguous(), at).clamp(1, len(x) - 1)
    share = ((at - x[k - 1]) / (x[k] - x[k - 1]).clamp_min(1e-300)).clamp(0.0, 1.0)
    return y[k - 1] + share * (y[k] - y[k - 1])


def stream(seed: int) -> torch.Generator:
    """Random numbers of a reference."""
    return torch.Generator().manual_seed(seed)


def coordinates(*index: int) -> Map:
    """Some coordinates as features."""
    return lambda x: x[:, list(index)]


def along(directions: Tensor) -> Map:
    """Coordinates along some directions (d, k) as features."""
    return lambda x: x @ directions


def together(*parts: Map) -> Map:
    """Several features."""
    return lambda x: torch.cat([part(x) for part in parts], 1)


def smallest(x: Tensor) -> Tensor:
    """The smallest coordinate and the mean of all as features, (n, 2)."""
    return torch.stack([x.amin(1), x.mean(1)], 1)
