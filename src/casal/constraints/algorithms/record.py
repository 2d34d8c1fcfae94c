"""What an iteration over sets keeps of every chain: the best point so far, and whether it is good enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from casal.constraints.base import Projection
from casal.errors import SettingError

Map: TypeAlias = Callable[[Tensor], Tensor]
"""Points (n, *event) to points of the same shape, or to one number each (n,)."""


class Record:
    """Best points of a batch, and the chains that are still at work.

    Args:
        z: Starting points (n, *event).
        tolerance: Residual at which a chain is done.
    """

    def __init__(self, z: Tensor, tolerance: float) -> None:
        self.point, self.tolerance = z.clone(), tolerance
        self.residual = torch.full((len(z),), torch.inf, dtype=z.dtype, device=z.device)
        self.iterations = torch.zeros(len(z), dtype=torch.long, device=z.device)
        self.chain = torch.arange(len(z), device=z.device)

    def add(self, x: Tensor, residual: Tensor, step: int, done: Tensor | None = None) -> Tensor:
        """Keep what is better, and return which of the chains at work have to go on.

        Args:
            x: Points of the chains at work.
            residual: Their residuals (n,).
            step: How many steps they have taken.
            done: Which of them are done; those within the tolerance if left out.
        """
        residual = residual.to(self.residual)
        better = residual < self.residual[self.chain]
        chosen = self.chain[better]
        self.point[chosen], self.residual[chosen] = x[better], residual[better]
        self.iterations[self.chain] = step
        onwards = ~(residual <= self.tolerance if done is None else done)
        self.chain = self.chain[onwards]
        return onwards

    def projection(self) -> Projection:
        """The outcome."""
        return Projection(self.point, self.residual <= self.tolerance, self.iterations, self.residual)


def check_members(projections: Sequence[Map]) -> None:
    """An iteration over no sets at all has nothing to do."""
    if not projections:
        raise SettingError("an iteration over sets needs at least one projection, got none")
