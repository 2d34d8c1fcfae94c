"""Finitely many linear inequalities."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from casal.constraints.algorithms.active_set import Rows, contradiction, nearest, touching
from casal.constraints.base import Budget, Constraint, Projection, norm, relative
from casal.errors import InfeasibleSet, ShapeError
from casal.typing import Event

INTERIOR = 1e-6
"""A polytope is called solid if all its inequalities can hold with this much room, relative to |z| + |h_i|."""


class Polytope(Constraint):
    """C = {z : G z <= h}, row by row; P(z) = z - G^T lam with the multipliers lam >= 0 of the active rows.

    The nearest point is found by the method of multipliers with an exact active set
    (``casal.constraints.algorithms.active_set``): to rounding, typically within 5 to 30 Newton steps, for all chains
    at once. The rows are scaled to length one. Zero rows, redundant and repeated rows and pairs of opposite rows (an
    equation) do no harm; C need not be bounded. A chain that does not get there within the budget is flagged: that
    happens if active rows are parallel to better than about 1e-6.

    An empty C raises InfeasibleSet if a Farkas certificate v >= 0, G^T v = 0, h . v < 0 is found, which takes one
    projection. A set that is empty by less than rounding can tell is not caught there; then no chain converges, and
    each is returned with the smallest residual found.

    The violation is the largest max(0, g_i . z - h_i) / (|g_i| |z| + |h_i|), a relative error.

    Args:
        G: Matrix (m, d), or one row (d,); d is the number of coordinates of an event.
        h: Levels (m,), or a number for all rows. Plus infinity is allowed and says nothing.

    >>> Polytope([[1.0, 1.0], [-1.0, 1.0]], [2.0, 1.0]).project(torch.tensor([[1.0, 3.0], [2.0, 2.0]]))
    tensor([[0.5000, 1.5000],
            [1.0000, 1.0000]])
    """

    exact = False
    convex = True
    one_sided = True

    def __init__(self, G: Any, h: Any) -> None:
        matrix = torch.atleast_2d(torch.as_tensor(G, dtype=torch.float64)).clone()
        if matrix.ndim != 2:
            raise ShapeError(f"G must be a matrix (m, d), got shape {tuple(matrix.shape)}")
        level = torch.as_tensor(h, dtype=torch.float64, device=matrix.device).reshape(-1)
        if len(level) not in (1, len(matrix)):
            raise ShapeError(f"G has {len(matrix)} rows but h has {len(level)} entries")
        self.G, self.h = matrix, level.expand(len(matrix)).clone()
        unit_rows, level = _normalised(self.G, self.h)
        self._rows = Rows.of(unit_rows, torch.full_like(level, -torch.inf), level)
        self.solid = self._examine()

    def __repr__(self) -> str:
        return f"Polytope({self.G.shape[0]} x {self.G.shape[1]})"

    def explain(self) -> str:
        return f"{self!r}: method of multipliers with an exact active set, convex"

    def validate(self, event: Event) -> None:
        size = torch.Size(event).numel()
        if self.G.shape[1] != size:
            raise ShapeError(f"G has {self.G.shape[1]} columns, events {event} have {size} coordinates")

    def residual(self, z: Tensor) -> Tensor:
        return z.flatten(1) @ self._rows.matrix.to(z).T - self._rows.bound.to(z)

    def _arguments(self) -> dict[str, Any]:
        return {"G": self.G, "h": self.h}

    def _solve(self, z: Tensor, budget: Budget, warm: Tensor | None) -> Projection:
        rows = self._rows.to(z)
        guess = None if warm is None else touching(warm.flatten(1), rows)
        found = nearest(z.flatten(1), rows, budget, guess=guess)
        return Projection(found.point.reshape(z.shape), found.converged, found.iterations, found.residual)

    def _violation(self, z: Tensor) -> Tensor:
        y, level = z.flatten(1), self._rows.bound.to(z)
        if not len(level):
            return torch.zeros(len(z), dtype=z.dtype, device=z.device)
        scale = y.abs().amax(1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
        excess = (y / scale) @ self._rows.matrix.to(z).T - level / scale
        return relative(excess, norm(y / scale)[:, None] + (level / scale).abs()).amax(1)

    def _examine(self) -> bool:
        """Raise InfeasibleSet if C is provably empty; tell whether it has an interior."""
        rows = self._rows
        if not len(rows.matrix):
            return True
        start = rows.matrix.new_zeros(1, rows.matrix.shape[1])
        found = nearest(start, rows, Budget())
        if not bool(found.converged[0]):
            proof = contradiction(rows, found.drift[0])
            if proof is not None:
                raise InfeasibleSet(
                    f"G z <= h has no solution: {len(proof)} of {len(rows.matrix)} rows contradict each other; "
                    f"the best point found misses them by {float(found.residual[0]):.3g} (relative)"
                )
            return False
        room = INTERIOR * (norm(found.point) + rows.bound.abs())
        room = torch.where(room > 0, room, torch.full_like(room, INTERIOR))
        return bool(nearest(found.point, rows._replace(bound=rows.bound - room), Budget()).converged[0])


def _normalised(G: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Rows scaled to length one. A zero row says 0 <= h_i: dropped if true, InfeasibleSet if not."""
    if not bool(torch.isfinite(G).all()) or bool((torch.isnan(h) | (h == -torch.inf)).any()):
        raise InfeasibleSet("the inequalities contain non-finite numbers (only h = +infinity is allowed)")
    lengths = norm(G)
    empty = lengths == 0
    if bool((h[empty] < 0).any()):
        row = int(torch.nonzero(empty & (h < 0))[0])
        raise InfeasibleSet(f"row {row} of G is zero but h[{row}] = {float(h[row]):g} < 0: no z can satisfy it")
    kept = ~empty & (h < torch.inf)
    return G[kept] / lengths[kept, None], h[kept] / lengths[kept]
