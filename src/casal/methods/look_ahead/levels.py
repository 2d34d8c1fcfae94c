"""The noise levels of a run, placed by the scale of the data.

The covariance C of x0 given x, at the first level, is nearly that of the data. Its traces tell two scales:

    wide  = sqrt(tr C^2 / tr C)     the standard deviation of a leading direction
    grain = sqrt(tr C / d)          that of a coordinate

The levels come down from the model's first (from CAP wide, if that is lower) to MIDDLE wide, where the modes are
decided, and on to GRAIN grain. Between two of these they are equally spaced in the power 1/7 (Karras et al. 2022).

Where modes are far apart, the middle level is far above the scale within a mode. Moves need not climb beyond that. D
follows half of a change of x at the level ``inner``, on average over the coordinates; leading directions within a mode
are wider. So moves climb half the way from there to the middle level, in log s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from casal.methods.baselines import noise_levels
from casal.methods.moves import finest_level
from casal.methods.problem import Problem

CAP, MIDDLE, GRAIN = 20.0, 0.25, 0.06
"""First, middle and last level, in units of the scales."""

POWER = 7.0


class Span(NamedTuple):
    """The noise levels of a model: x = alpha (x0 + first noise) at its first row; ``finest`` is its smallest level."""

    alpha: float
    first: float
    finest: float


def span(problem: Problem) -> Span:
    """The first and the finest level of the model; SettingError if it has none, or no denoiser."""
    finest = finest_level(problem)
    alpha, sigma = noise_levels(problem.table)
    return Span(float(alpha[0]), float(sigma[0] / alpha[0]), finest)


@dataclass(frozen=True)
class Levels:
    """Levels number 0 (the model's first) to upper + lower.

    Attributes:
        first: The model's first level.
        finest: The smallest that it may be asked at.
        upper: Steps from the first to the middle level.
        lower: Steps from there on.
        wide: Standard deviation of a leading direction.
        grain: Standard deviation of a coordinate.
        inner: Scale within a mode, if it is below the middle level; else zero.
    """

    first: float
    finest: float
    upper: int
    lower: int
    wide: float
    grain: float
    inner: float = 0.0

    @property
    def top(self) -> float:
        """Where the levels start to be equally spaced."""
        return max(min(self.first, CAP * self.wide), 2.0 * self.finest)

    @property
    def middle(self) -> float:
        """Level at which the modes are decided."""
        return min(max(MIDDLE * self.wide, self.finest * 2.0), 0.7 * self.top)

    @property
    def last(self) -> float:
        """Where the reverse process ends."""
        return max(self.finest, min(GRAIN * self.grain, 0.5 * self.middle))

    @property
    def crest(self) -> float:
        """Where moves climb to from the last level."""
        return min(self.middle, max((self.inner * self.middle) ** 0.5, 2.0 * self.last)) if self.inner else self.middle

    def __getitem__(self, k: int) -> float:
        if k == 0:
            return self.first
        if k <= self.upper:
            return between(self.top, self.middle, k / self.upper)
        return between(self.middle, self.last, (k - self.upper) / self.lower)

    def climb(self, k: int, count: int) -> float:
        """Level number k of ``count`` + 1 on the way up, from the last to the crest."""
        return between(self.last, self.crest, k / count)


def between(high: float, low: float, share: float) -> float:
    """The level at a share of the way, equally spaced in the power 1/7."""
    first, last = high ** (1.0 / POWER), low ** (1.0 / POWER)
    return float((first + share * (last - first)) ** POWER)


def scales(trace: Tensor, square: Tensor, size: int, first: float) -> tuple[float, float]:
    """wide and grain, from tr C and tr C^2 of every chain (n,) at the first level; first / CAP if they fail."""
    total, power = float(trace.to(torch.float64).mean()), float(square.to(torch.float64).mean())
    if not total > 0.0 or not power > 0.0:
        return first / CAP, first / CAP
    return (power / total) ** 0.5, (total / size) ** 0.5
