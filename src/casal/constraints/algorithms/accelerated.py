"""Accelerated projected gradients for a quadratic function on a box: fast where it is well conditioned."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from casal.constraints.algorithms.record import Record
from casal.constraints.base import Budget, Projection, norm, relative


class Quadratic(NamedTuple):
    """1/2 u . H u with its extreme curvatures, prepared once.

    Attributes:
        hessian: H, (d, d), symmetric and positive definite.
        least: Smallest eigenvalue of H.
        most: Largest eigenvalue of H.
    """

    hessian: Tensor
    least: float
    most: float

    @classmethod
    def of(cls, hessian: Tensor) -> Quadratic:
        """Find the extreme curvatures."""
        values = torch.linalg.eigvalsh(hessian)
        return cls(hessian, float(values[0]), float(values[-1]))

    @property
    def condition(self) -> float:
        """Largest over smallest curvature."""
        return self.most / self.least if self.least > 0 else math.inf


def on_box(
    f: Tensor,
    quadratic: Quadratic,
    limit: Tensor,
    budget: Budget,
    *,
    size: Tensor,
    start: Tensor | None = None,
    extra: int = 0,
) -> Projection:
    """Minimise 1/2 u . H u - f . u over |u| <= limit, by Nesterov's method for strongly convex functions.

        u' = clip(v - (H v - f) / L),     v' = u' + beta (u' - u),     beta = (sqrt(L) - sqrt(l)) / (sqrt(L) + sqrt(l)),

    with l and L the extreme curvatures. The error falls by about 1 - sqrt(l / L) in each iteration, one product with
    H. The residual is the length of a projected gradient step, |u - clip(u - (H u - f) / L)|, relative to ``size``.

    Args:
        f: (n, d).
        quadratic: H and its curvatures.
        limit: (d,), infinity where there is no bound.
        budget: Tolerance on the residual, and the largest number of iterations.
        size: (n,), size of the numbers that f was computed from.
        start: (n, d), a point near the answer.
        extra: Iterations that a chain takes after it has reached the tolerance; near rounding they make the answer
            independent of the iteration at which that happened.

    References:
        Nesterov, "Introductory lectures on convex optimization" (2004), section 2.2.
    """
    H, root = quadratic.hessian, math.sqrt(quadratic.condition)
    beta, step = (root - 1) / (root + 1), 1 / quadratic.most
    u = torch.zeros_like(f) if start is None else start.clamp(-limit, limit)
    record = Record(u, budget.tolerance)
    v, at_u, quiet = u, u @ H, torch.zeros(len(u), dtype=torch.long, device=u.device)
    at_v = at_u
    for count in range(budget.iterations + 1):
        residual = relative(norm(u - (u - step * (at_u - f)).clamp(-limit, limit)), size)
        quiet = quiet + ((residual <= budget.tolerance) | (quiet > 0)).long()
        onwards = record.add(u, residual, count, (quiet > extra) | (residual == 0))
        if not bool(onwards.all()):
            u, v, f, size, at_u, at_v, quiet = (part[onwards] for part in (u, v, f, size, at_u, at_v, quiet))
        if not len(u) or count == budget.iterations:
            break
        before, at_before = u, at_u
        u = (v - step * (at_v - f)).clamp(-limit, limit)
        at_u = u @ H
        v, at_v = u + beta * (u - before), at_u + beta * (at_u - at_before)
    return record.projection()
