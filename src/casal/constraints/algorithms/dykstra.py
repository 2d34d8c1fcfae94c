"""Dykstra's algorithm: the nearest point of an intersection of convex sets, from the projections onto each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from casal.constraints.algorithms.record import Map, Record, check_members
from casal.constraints.base import Budget, Projection, flat, norm, relative

ROUNDING = 16 * torch.finfo(torch.float64).eps


def dykstra(z: Tensor, projections: Sequence[Map], violation: Map, budget: Budget) -> Projection:
    """Nearest points of the intersection of convex sets C_1, ..., C_K. One sweep takes every set in turn:

        x' = P_i(x + p_i),     p_i' = x + p_i - x',     from x = z and p_i = 0.

    The increments p_i are what plain alternating projections lack; they make the limit the nearest point. A sweep
    that changes x but little may still be far from the limit (the algorithm can stall), so a chain is done only if

        max( violation(x), sqrt(sum_i |p_i' - p_i|^2) / (|z| + |x|) ) <= tolerance,

    and this maximum is the residual that is returned. The rate is linear for polyhedra and may be slow where sets meet at
    small angles. In an empty intersection the increments grow without end; the chains are then flagged.

    When |z| is much larger than its projection, the rounding of z stays behind in x. A chain whose increments have
    settled to rounding, and which is not yet feasible, starts again from x, which moves it by no more than that.

    Args:
        z: (n, *event) finite float64.
        projections: P_1, ..., P_K, exact projections (n, *event) -> (n, *event) onto convex sets.
        violation: (n, *event) -> (n,), the largest violation of a member.
        budget: Tolerance on the residual, and the largest number of sweeps.

    References:
        Boyle and Dykstra, "A method for finding projections onto the intersection of convex sets in Hilbert spaces" (1986);
        Birgin and Raydan, "Robust stopping criteria for Dykstra's algorithm", SIAM J. Sci. Comput. 26 (2005).
    """
    check_members(projections)
    record = Record(z, budget.tolerance)
    settled = max(budget.tolerance, ROUNDING)
    x, size = z, norm(flat(z))
    increments = [torch.zeros_like(z) for _ in projections]
    inside = violation(x) <= min(budget.tolerance, ROUNDING)
    onwards = record.add(x, torch.where(inside, 0.0, torch.inf).to(x), 0)
    for step in range(1, budget.iterations + 1):
        if not bool(onwards.all()):
            x, size = x[onwards], size[onwards]
            increments = [p[onwards] for p in increments]
        if not len(x):
            break
        moved = torch.zeros_like(size)
        for i, project in enumerate(projections):
            target = x + increments[i]
            x = project(target)
            before, increments[i] = increments[i], target - x
            moved = torch.hypot(moved, norm(flat(increments[i] - before)))
        moved = relative(moved, size + norm(flat(x)))
        broken = violation(x)
        onwards = record.add(x, torch.maximum(broken, torch.where(moved <= settled, 0.0, moved)), step)
        again = onwards & (moved <= ROUNDING) & (norm(flat(x)) < 0.1 * size)
        if bool(again.any()):
            size = torch.where(again, norm(flat(x)), size)
            for p in increments:
                p[again] = 0.0
    return record.projection()
