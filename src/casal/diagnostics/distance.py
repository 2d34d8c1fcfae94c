"""What every distance between samples and a law reports: a value, its error, and the floor of sampling noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from casal.errors import SettingError, ShapeError
from casal.methods import effective_size

ROUNDING = 1e-12

Statistic = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Points x (n, d) and y (m, d), R rows of weights a (R, n) and b (R, m) -> R distances (R,)."""


@dataclass(frozen=True)
class Distance:
    """A distance between samples and a law, beside what exact samples would get.

    Attributes:
        value: The distance.
        standard_error: Standard deviation of ``value`` over repetitions of the samples.
        floor: Mean of the same statistic between two independent exact sets of the same (effective) sizes.
        floor_sd: Its standard deviation.

    >>> print(Distance(0.03412, 0.0021, floor=0.0283, floor_sd=0.0015))
    0.034 ± 0.002 (floor 0.028)
    """

    value: float
    standard_error: float
    floor: float
    floor_sd: float

    @property
    def excess(self) -> float:
        """(value - floor) / floor_sd: below about 4, exact samples could have given this value."""
        above = self.value - self.floor
        if self.floor_sd > 0:
            return above / self.floor_sd
        return math.copysign(math.inf, above) if abs(above) > ROUNDING else 0.0

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        size = self.standard_error if self.standard_error > 0 else max(abs(self.value), 1e-12) / 100
        digits = max(0, -math.floor(math.log10(size)))
        return f"{self.value:.{digits}f} ± {self.standard_error:.{digits}f} (floor {self.floor:.{digits}f})"


def distance(
    statistic: Statistic,
    x: Tensor,
    y: Tensor,
    weights: Tensor | None,
    reference_weights: Tensor | None,
    *,
    exact: Tensor | None,
    repeats: int,
    generator: torch.Generator,
    reference_is_law: bool = False,
) -> Distance:
    """The statistic of x against y, its bootstrap error, and its floor.

    The error draws the points of x (and of y) anew with their weights. The floor draws as many points as x and y are
    worth (their effective sizes), both from y: what is left is the noise of sampling. Fresh exact draws, if given,
    take the place of x there, so that y's own peculiarities count too.

    Args:
        statistic: See ``Statistic``.
        x: Samples (n, *event).
        y: Reference (m, *event).
        weights: Weights of x (n,), not necessarily normalised; equal if left out.
        reference_weights: Those of y.
        exact: More exact draws (k, *event), independent of y.
        repeats: Bootstrap and floor repetitions.
        generator: For the repetitions.
        reference_is_law: y is a grid of the law itself and carries no noise.
    """
    if repeats < 2:
        raise SettingError(f"repeats must be at least 2 to give an error, got {repeats}")
    x, y = pair(x, y)
    a, b = normalised(weights, x), normalised(reference_weights, y)
    fixed = b.expand(repeats, -1) if reference_is_law else None
    tried = torch.cat([a[None], _bootstrap(a, repeats, generator)])
    against = torch.cat([b[None], _bootstrap(b, repeats, generator) if fixed is None else fixed])
    found = statistic(x, y, tried, against)
    source, law = (y, b) if exact is None else (pair(exact, y, "exact")[0], normalised(None, exact))
    drawn = _drawn(law, _worth(a), repeats, generator)
    other = _drawn(b, _worth(b), repeats, generator) if fixed is None else fixed
    floor = statistic(source, y, drawn, other)
    return Distance(float(found[0]), float(found[1:].std()), float(floor.mean()), float(floor.std()))


def pair(x: Tensor, y: Tensor, name: str = "x") -> tuple[Tensor, Tensor]:
    """Samples and reference as rows with equally many coordinates, or ShapeError."""
    x, y = points(x, name), points(y, "y")
    if x.shape[1] != y.shape[1]:
        raise ShapeError(f"{name} has {x.shape[1]} coordinates a sample, y has {y.shape[1]}")
    return x, y


def points(x: Tensor, name: str) -> Tensor:
    """(n, *event) -> (n, d) in float64, or ShapeError."""
    rows = torch.as_tensor(x).detach().to(torch.float64)
    if rows.ndim == 0 or len(rows) < 2:
        raise ShapeError(f"{name} must hold at least two samples (n, *event), got shape {tuple(rows.shape)}")
    rows = rows.reshape(len(rows), -1)
    bad = int((~torch.isfinite(rows)).any(1).sum())
    if bad:
        raise ShapeError(f"{bad} of {len(rows)} samples of {name} are not finite; leave them out, and say so")
    return rows


def normalised(weights: Tensor | None, x: Tensor) -> Tensor:
    """Weights (n,) that sum to one."""
    if weights is None:
        return torch.full((len(x),), 1.0 / len(x), dtype=torch.float64, device=x.device)
    w = torch.as_tensor(weights).detach().to(torch.float64).to(x.device)
    if tuple(w.shape) != (len(x),):
        raise ShapeError(f"{len(x)} samples need as many weights, got shape {tuple(w.shape)}")
    if not bool((w >= 0).all()) or not 0.0 < float(w.sum()) < math.inf:
        raise SettingError("weights must be finite, >= 0 and not all zero")
    return w / w.sum()


def generator_of(seed: int, x: Tensor) -> torch.Generator:
    """A generator on the device of x."""
    return torch.Generator(device=x.device).manual_seed(seed)


def _worth(weights: Tensor) -> int:
    return max(2, round(float(effective_size(weights))))


def _counts(law: Tensor, size: int, repeats: int, generator: torch.Generator) -> Tensor:
    """How often each index is drawn in ``size`` draws: (repeats, n)."""
    edges = torch.cumsum(law, 0)
    u = torch.rand((repeats, size), generator=generator, dtype=law.dtype, device=law.device) * edges[-1]
    chosen = torch.searchsorted(edges, u, right=True).clamp_max(len(law) - 1)
    return torch.zeros((repeats, len(law)), dtype=law.dtype, device=law.device).scatter_add_(
        1, chosen, torch.ones_like(u)
    )


def _drawn(law: Tensor, size: int, repeats: int, generator: torch.Generator) -> Tensor:
    return _counts(law, size, repeats, generator) / size


def _bootstrap(weights: Tensor, repeats: int, generator: torch.Generator) -> Tensor:
    """Points drawn anew uniformly, each with its weight."""
    counts = _counts(torch.full_like(weights, 1.0 / len(weights)), len(weights), repeats, generator)
    again = counts * weights
    # A draw that misses every chain with weight says nothing; the weights themselves stand in for it.
    again = torch.where(again.sum(1, keepdim=True) > 0, again, weights)
    return again / again.sum(1, keepdim=True)
