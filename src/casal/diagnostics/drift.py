"""Whether samples stay as they are when they move: a few Metropolis moves on the set, which keep p and nothing else.

    y = P(z + h w),   w ~ N(0, I),   z' = y with probability min(1, p(y) / p(z)) if y is in the set, else z' = z.

If z follows p, so does z', and E[f(z') - f(z)] = 0. On a curved set the density of y given z is that of z given y up to
O(h^3), which moves the mean of f by O(h^4), against h^2 for samples of another distribution. log p(y) - log p(z) is a
difference of the potential, so this check sees a score that does not belong to the potential; or, without a potential,
Simpson's rule for the integral of the score from z to y.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from casal.diagnostics.stein import fixed_directions
from casal.methods.population import Lineage

Map = Callable[[Tensor], Tensor]

MOVES = 5
"""Moves of a sample."""

FIRST_STEP = 1.0
"""h sqrt(d) of the first trial, in units of the spread of a coordinate."""

SHORTER, TRIALS, LEAST_ACCEPTED = 3.0, 4, 0.3
"""Factor by which h shrinks, and how often, until so many moves of the trial are accepted."""

TRIED = 5
"""One in how many samples a trial moves."""

UNSURE = 1.0
"""Difference of trapezoid and midpoint from which on a move is refused, in either direction."""


def simpson(score: Map, z: Tensor, y: Tensor) -> Tensor:
    """log p(y) - log p(z) by three scores on the line, (n,); minus infinity where they do not suffice."""
    line = y - z
    ends, middle = (score(z) + score(y)) / 2, score((z + y) / 2)
    trapezoid, midpoint = ((s * line).sum(1) for s in (ends, middle))
    return torch.where((trapezoid - midpoint).abs() > UNSURE, -torch.inf, (trapezoid + 2 * midpoint) / 3)


def moved(
    z: Tensor,
    step: float,
    moves: int,
    project: Map | None,
    inside: Map,
    rise: Callable[[Tensor, Tensor], Tensor],
    stream: torch.Generator,
) -> tuple[Tensor, float]:
    """Samples (n, d) after some moves, and the share of moves that was accepted.

    Args:
        z: Where they begin.
        step: h.
        moves: How many.
        project: P; None for a set with an interior.
        inside: Whether points are in the set, (n,) bool.
        rise: log p(y) - log p(z), (n,).
        stream: Of w and of the decisions.
    """
    accepted = 0.0
    for _ in range(moves):
        y = z + step * torch.randn(z.shape, generator=stream, dtype=z.dtype, device=z.device)
        y = y if project is None else project(y)
        u = torch.rand(len(z), generator=stream, dtype=z.dtype, device=z.device)
        go = inside(y) & (u.log() < rise(z, y))
        z, accepted = torch.where(go[:, None], y, z), accepted + float(go.to(z).mean()) / moves
    return z, accepted


def drift_terms(z: Tensor, after: Tensor, lineage: Lineage) -> Tensor:
    """f(z') - f(z) of heights along fixed directions and of their squares, (n, m), in units of the spread of f."""
    centre, c = lineage.mean_of_others(z), fixed_directions(z).T
    before, later = ((v - centre) @ c for v in (z, after))
    old, new = (torch.cat([height, height.square()], dim=1) for height in (before, later))
    spread = (lineage.weights @ (old - lineage.weights @ old).square()).sqrt()
    told = spread > 1e-6 * spread.max()
    return (new - old)[:, told] / spread[told]
