"""Weights of a population of chains: effective size, systematic resampling."""

from __future__ import annotations

import torch
from torch import Tensor


def normalised(log_weight: Tensor) -> Tensor:
    """Weights that sum to one, from their logarithms (n,)."""
    return torch.softmax(log_weight, dim=0)


def effective_size(weight: Tensor) -> Tensor:
    """1 / sum W^2: how many equally weighted chains the weighted ones are worth."""
    return 1.0 / weight.square().sum()


def systematic(weight: Tensor, generator: torch.Generator) -> Tensor:
    """Indices (n,) of the chains that live on: chain i is drawn n W_i times, rounded up or down.

    One uniform number decides for all chains, and the order of chains is kept, so the result depends on the
    generator alone, never on threads. The cost is one cumulative sum and one binary search a chain: O(n log n).
    """
    n = len(weight)
    edges = torch.cumsum(weight, dim=0)
    shift = torch.rand((), generator=generator, dtype=weight.dtype, device=weight.device)
    points = (torch.arange(n, dtype=weight.dtype, device=weight.device) + shift) / n * edges[-1]
    return torch.searchsorted(edges, points, right=True).clamp_max(n - 1)
