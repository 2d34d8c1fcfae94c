"""Which derivatives of equations can differ from zero, found once, and all of them from a few backward passes.

Row i of the Jacobian depends on few coordinates where the equations are local: balances of cells, residuals on a grid.
Two rows without a common coordinate can be differentiated together: the derivative of their sum has the entries of
both. So rows get colours, rows of one colour share no coordinate, and there is one backward pass a colour. A last one,
for J^T w with all rows, would show derivatives elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from casal.devices import beside

PROBES = 3
"""Random points at which derivatives are looked for; a place that is zero at all of them is taken to be zero."""

WORTH = 2**14
"""Numbers in a dense Jacobian from which on its structure is looked for."""

SPARSE = 4
"""A structure is kept if it has at most one in so many entries, and colours for rows."""

SAME, ROUNDING = 1e-9, 1e-12
"""Relative difference of J^T w by all places and by those of a structure: of a coordinate, and of the largest one."""

Pull = Callable[[Tensor], Tensor]
"""Weights (n, r) -> J^T w, (n, d)."""


class IncompleteStructure(Exception):
    """A derivative differs from zero at a place where there was none at the points that were tried."""


class Structure(NamedTuple):
    """The places of the derivatives.

    Attributes:
        indices: Row and coordinate of every entry, (2, k).
        colour: Of every row, (r,).
        size: d.
    """

    indices: Tensor
    colour: Tensor
    size: int

    @property
    def rows(self) -> int:
        """r."""
        return len(self.colour)

    def entries(self, pull: Pull, n: int, like: Tensor) -> Tensor:
        """The entries (n, k), by one backward pass a colour, and one more that compares J^T w for all rows at once.

        Raises:
            IncompleteStructure: There are others.
        """
        row, column = beside(self.indices, like)
        colour = beside(self.colour, like)
        out = like.new_zeros(n, len(row))
        for k in range(int(self.colour.max()) + 1):
            mine = torch.nonzero(colour[row] == k).flatten()
            out[:, mine] = pull((colour == k).to(like).expand(n, -1))[:, column[mine]]
        weights = 1.5 + torch.sin(torch.arange(1, len(colour) + 1, device=like.device).to(like))  # no two are alike
        expected, size = (
            like.new_zeros(n, self.size).index_add(1, column, terms)
            for terms in (out * weights[row], (out * weights[row]).abs())
        )
        allowed = SAME * size + ROUNDING * size.amax(1, keepdim=True)
        if bool(((pull(weights.expand(n, -1)) - expected).abs() > allowed).any()):
            raise IncompleteStructure
        return out


def structure_of(linearise: Callable[[Tensor], Tensor], size: int, worth: int = WORTH) -> Structure | None:
    """The structure of a Jacobian, or None where it is small or has little of it.

    Args:
        linearise: Points (p, d) -> derivatives (p, r, d).
        size: d.
        worth: Numbers in a dense Jacobian from which on its structure is looked for.
    """
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(PROBES, size, generator=generator, dtype=torch.float64)
    points[0] = points[0].abs()  # for logarithms and roots
    try:
        found = (linearise(points[:1])[0] != 0).cpu()
        if found.numel() < worth or len(found) < SPARSE:
            return None
        for k in range(1, PROBES):
            found |= (linearise(points[k : k + 1])[0] != 0).cpu()
    except Exception:  # functions may refuse random points, or few chains, or be none of torch
        return None
    indices = torch.nonzero(found).T.contiguous()
    if not 0 < SPARSE * indices.shape[1] <= found.numel() or not bool(found.any(1).all()):
        return None
    colour = _colours(found)
    return None if SPARSE * (int(colour.max()) + 1) > len(found) else Structure(indices, colour, size)


def _colours(found: Tensor) -> Tensor:
    """The first colour for each row (r, d) whose rows share no coordinate with it."""
    taken = torch.zeros(0, found.shape[1], dtype=torch.bool)
    colour = torch.zeros(len(found), dtype=torch.long)
    for k, row in enumerate(found):
        free = torch.nonzero(~(taken[:, row].any(1))).flatten()
        if not len(free):
            taken, free = torch.cat([taken, torch.zeros_like(row)[None]]), torch.tensor([len(taken)])
        colour[k] = free[0]
        taken[free[0]] |= row
    return colour
