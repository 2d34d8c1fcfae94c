"""A linear subspace of decoded space, with coordinates: the place for projections that never leave it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from casal.typing import Event

INSIDE = 1e-12


class Subspace(NamedTuple):
    """The range of B, B^T B = I: points z = B c with coordinates c, and |z| = |c|.

    Attributes:
        event: Shape of z.
        synthesis: c -> B c, (n, *coordinates) -> (n, *event).
        analysis: z -> B^T z.
    """

    event: Event
    synthesis: Callable[[Tensor], Tensor]
    analysis: Callable[[Tensor], Tensor]

    def coordinates(self, vectors: Tensor) -> Tensor | None:
        """Coordinates (m, *coordinates) of flat float64 vectors (m, k); None if one of them is not in the subspace."""
        points = vectors.reshape(len(vectors), *self.event)
        found = self.analysis(points)
        outside = (self.synthesis(found) - points).flatten(1)
        if bool((torch.linalg.vector_norm(outside, dim=1) > INSIDE * torch.linalg.vector_norm(vectors, dim=1)).any()):
            return None
        return found
