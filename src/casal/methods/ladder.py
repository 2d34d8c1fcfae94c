"""A ladder of couplings: its rungs, and where the next one goes."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Rung(NamedTuple):
    """One rung of the ladder: its rho if it is given, and the number of rungs left, itself included."""

    rho: float | None
    left: int


def half_square(v: Tensor) -> Tensor:
    """|v|^2 / 2, chain by chain, in float64."""
    return torch.linalg.vector_norm(v.reshape(len(v), -1), dim=1, dtype=torch.float64).square() / 2


def next_rho(rho: float, top: float, half: Tensor, weight: Tensor, left: int) -> float:
    """The next rho, placed so that the log-weights spread equally over the rungs that are left.

    The spread of the log-weight grows like sd(dist^2 / 2) d rho, which is c / (rho + r) for a squared distance that is
    nearly Gaussian in the normal direction, c = sqrt(1/2). Reading r off the present spread, equal steps of
    log(rho + r) up to the top are equal steps of the spread.

    Args:
        rho: Where the chains are.
        top: Where the ladder ends.
        half: dist^2 / 2 of every chain, (n,).
        weight: Weights of the chains that sum to one, (n,).
        left: Rungs that are left, this one included.
    """
    spread = float((weight * (half - (weight * half).sum()).square()).sum().sqrt())
    if left == 1 or spread == 0.0:
        return top
    base = max(math.sqrt(0.5) / spread, rho)
    return min(top, base * ((top - rho + base) / base) ** (1.0 / left) - base + rho)
