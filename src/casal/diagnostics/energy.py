"""Energy distance."""

from __future__ import annotations

import torch
from torch import Tensor

from casal.diagnostics.distance import Distance, distance, generator_of, points

CHUNK = 2**22
"""Distances held at a time."""


def energy_distance(
    x: Tensor,
    y: Tensor,
    *,
    weights: Tensor | None = None,
    reference_weights: Tensor | None = None,
    exact: Tensor | None = None,
    repeats: int = 40,
    seed: int = 0,
) -> Distance:
    """2 E|X - Y| - E|X - X'| - E|Y - Y'|, zero if and only if the laws agree.

    The V-statistic: pairs of a point with itself count, so the value is never negative and lies about
    E|Y - Y'| (1/n + 1/m) above the truth; the floor shows by how much. (SciPy's ``energy_distance`` is the root of
    it.) Time O((n + m)^2 (d + repeats)), memory O((n + m) repeats): the pairs are taken in blocks.

    Args:
        x: Samples (n, *event).
        y: Exact samples (m, *event).
        weights: Weights of x; equal if left out.
        reference_weights: Weights of y.
        exact: Exact draws independent of y, for the floor.
        repeats: Repetitions for the error and the floor.
        seed: Of the repetitions.
    """
    rows = points(x, "x")
    return distance(
        _energy,
        rows,
        y,
        weights,
        reference_weights,
        exact=exact,
        repeats=repeats,
        generator=generator_of(seed, rows),
    )


def _energy(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """-s^T D s with s = (a, -b) on the points of x and y: a quadratic form, so all rows share the distances."""
    together, sign = torch.cat([x, y]), torch.cat([a, -b], dim=1)
    together = together - together.mean(0)
    total = torch.zeros(len(a), dtype=x.dtype, device=x.device)
    block = max(1, CHUNK // len(together))
    for first in range(0, len(together), block):
        pairs = torch.cdist(together[first : first + block], together)
        total -= ((sign @ pairs.T) * sign[:, first : first + block]).sum(1)
    return total.clamp_min(0.0)
