"""What chains that move on their own still know of where they were: correlations over the chains."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from casal.methods.bounded_hmc import FEWEST_CHAINS, main_directions

MOST_MEMORY, ERRORS = 0.15, 4.5
"""Correlation with an earlier state that is let pass, beyond so many standard errors."""


class Memory(NamedTuple):
    """The largest correlation over chains between an earlier state and a later one, and what is no objection yet."""

    value: float
    limit: float


def memory(before: Tensor, after: Tensor, labels: Tensor | None = None) -> Memory | None:
    """What points (n, k) still know of what they were: over coordinates and the main directions of both.

    Args:
        before: Earlier points.
        after: Later points of the same chains.
        labels: Groups within which they are compared, (n,).

    Returns:
        None for fewer than FEWEST_CHAINS chains beyond the groups.
    """
    n = len(before)
    free = n - (1 if labels is None else len(labels.unique()))
    if free < FEWEST_CHAINS:
        return None
    one, other = centred(before, labels), centred(after, labels)
    scale = other.square().mean(0, keepdim=True).sqrt().clamp_min(1e-300)
    one, other = one / scale, other / scale
    stream = torch.Generator(before.device).manual_seed(0)
    directions = torch.cat([_directions(part, stream) for part in (one, other)], dim=1)
    found = torch.cat([_correlations(one, other), _correlations(one @ directions, other @ directions)])
    return Memory(float(found.max()), MOST_MEMORY + ERRORS / math.sqrt(free))


def centred(z: Tensor, labels: Tensor | None) -> Tensor:
    """Points minus the mean of their group."""
    if labels is None:
        return z - z.mean(0)
    labels = labels.to(z.device)
    count = torch.bincount(labels).clamp_min(1).to(z)
    total = torch.zeros((len(count), z.shape[1]), dtype=z.dtype, device=z.device).index_add(0, labels, z)
    return z - (total / count[:, None])[labels]


def _directions(points: Tensor, generator: torch.Generator) -> Tensor:
    """The main directions of points (n, k), as columns."""
    place = main_directions(points, generator)
    axes = points.T @ (place - place.mean(0))
    return axes / torch.linalg.vector_norm(axes, dim=0).clamp_min(1e-300)


def _correlations(one: Tensor, other: Tensor) -> Tensor:
    """Correlations of the columns; zero for constant ones."""
    size = (one.square().mean(0) * other.square().mean(0)).sqrt()
    return torch.where(size > 1e-20, (one * other).mean(0) / size.clamp_min(1e-300), 0.0)
