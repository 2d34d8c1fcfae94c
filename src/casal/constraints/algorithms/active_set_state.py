"""The polyhedron of an active-set search, its answer, and what it carries from step to step."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

EPSILON = torch.finfo(torch.float64).eps
UNDERFLOW, LARGEST = 1e-290, 1e300
"""Below the one, rounding is absolute; above the other, sums of squares overflow even after scaling."""


class Rows(NamedTuple):
    """G x <= b, prepared once.

    Attributes:
        matrix: G, (m, d), rows of length one.
        bound: b, (m,), finite.
        equal: (m,) bool, rows that are equations.
        gram: G G^T, (m, m).
        source: (m,), which of the rows given to ``of`` each one comes from.
        side: (m,), -1 for lower bounds (a row that was turned round), else 1.
    """

    matrix: Tensor
    bound: Tensor
    equal: Tensor
    gram: Tensor
    source: Tensor
    side: Tensor

    @classmethod
    def of(cls, matrix: Tensor, low: Tensor, high: Tensor) -> Rows:
        """low <= G x <= high, rows of G of length one; infinite bounds say nothing, equal ones make an equation."""
        equal = low == high
        upper = torch.nonzero(high < torch.inf).flatten()
        lower = torch.nonzero((low > -torch.inf) & ~equal).flatten()
        source = torch.cat([upper, lower])
        side = torch.cat([torch.ones_like(high[upper]), -torch.ones_like(low[lower])])
        turned = side[:, None] * matrix[source]
        bound = torch.cat([high[upper], -low[lower]])
        equations = torch.cat([equal[upper], torch.zeros_like(equal[lower])])
        return cls(turned, bound, equations, turned @ turned.T, source, side)

    def to(self, z: Tensor) -> Rows:
        """The same on the device of ``z``."""
        return self if self.matrix.device == z.device else Rows(*(part.to(z.device) for part in self))

    def signed(self, signs: Tensor) -> Tensor:
        """(n, m) bool: rows at their bounds, from signs +1 (upper), -1 (lower) and 0 of the rows given to ``of``."""
        return (signs[:, self.source] * self.side > 0) | self.equal


class Nearest(NamedTuple):
    """Nearest points and how they were found, chain by chain.

    Attributes:
        point: (n, d), the best point found.
        drift: (n, m), where the multipliers were running to at last: a Farkas certificate if the polyhedron is empty.
        converged: (n,) bool, the residual is within the tolerance.
        iterations: (n,) Newton steps.
        residual: (n,) the larger of the excess over a bound, relative to |x| + |b_i|, and of the complementarity
            min(lam_i, b_i - g_i . x), relative to |y| + |x| + |b_i|.
    """

    point: Tensor
    drift: Tensor
    converged: Tensor
    iterations: Tensor
    residual: Tensor


class State(NamedTuple):
    """The chains that are still at work; lengths in units of ``unit``.

    Attributes:
        chain: Their indices.
        unit: Size of what they are dealing with.
        size: |y|.
        bound: b, (n, m).
        x: y - G^T lam.
        lam: The multipliers.
        drift: Their last change.
        rho: Penalty of this round.
        top: Largest penalty that is presently tried.
        u: Newton iterate of this round.
        gu: G u.
        fresh: A round has just ended, and u = x.
        inner: Newton steps of this round.
        stale: Rounds without progress.
        best: Smallest residual so far.
        slip: |x - y + G^T lam|, where the steps ran out in the middle of a round.
        empty: The polyhedron has been proved to be empty.
    """

    chain: Tensor
    unit: Tensor
    size: Tensor
    bound: Tensor
    x: Tensor
    lam: Tensor
    drift: Tensor
    rho: Tensor
    top: Tensor
    u: Tensor
    gu: Tensor
    fresh: Tensor
    inner: Tensor
    stale: Tensor
    best: Tensor
    slip: Tensor
    empty: Tensor
