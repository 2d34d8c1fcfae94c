"""Weights of a population of chains: effective size, systematic resampling."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor


class Population(Protocol):
    """What a state of weighted chains has in common: points, weights, where each chain comes from, the coupling."""

    @property
    def x(self) -> Tensor: ...
    @property
    def z(self) -> Tensor: ...
    @property
    def log_weight(self) -> Tensor: ...
    @property
    def ancestor(self) -> Tensor: ...
    @property
    def rho(self) -> Tensor: ...
    @property
    def _replace(self) -> Callable[..., Any]: ...


Weighted = TypeVar("Weighted", bound=Population)


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


def chosen(state: Weighted, index: Tensor) -> Weighted:
    """The chains with the given indices; parts without a chain dimension are common to all."""
    parts: tuple[Tensor, ...] = tuple(state)  # type: ignore[arg-type]
    return type(state)(*(part[index] if part.ndim else part for part in parts))


def resampled(state: Weighted, generator: torch.Generator) -> Weighted:
    """Draw the population anew by its weights; afterwards all weights are equal."""
    drawn = chosen(state, systematic(normalised(state.log_weight), generator))
    renewed: Weighted = drawn._replace(log_weight=torch.zeros_like(state.log_weight))
    return renewed


def resampled_islands(state: Weighted, generator: torch.Generator, islands: int, ess: float) -> Weighted:
    """Draw every island anew whose effective size is below a share ``ess`` of its chains (ess > 1: every one).

    An island is a block of chains that meets no other. It keeps its evidence: after the draw all of its chains
    carry the mean of its weights.
    """
    groups = state.log_weight.reshape(islands, -1)
    index, log_weight = torch.arange(groups.numel(), device=groups.device).reshape(islands, -1), groups.clone()
    for k, group in enumerate(groups):
        weight = normalised(group)
        if float(effective_size(weight)) < ess * len(group):
            index[k] = index[k][systematic(weight, generator)]
            log_weight[k] = torch.logsumexp(group, 0) - math.log(len(group))
    drawn: Weighted = chosen(state, index.flatten())._replace(log_weight=log_weight.flatten())
    return drawn


def population(state: Population) -> dict[str, float]:
    """What the trace keeps of every exchange: rho, effective size, and how many ancestors are alive."""
    return {
        "rho": float(state.rho),
        "ess": float(effective_size(normalised(state.log_weight))),
        "ancestors": float(torch.bincount(state.ancestor).count_nonzero()),
    }
