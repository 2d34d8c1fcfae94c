"""Points common to several sets, convex or not, from the projections onto each. Near the start, but not the nearest.

For sets that are not convex nothing guarantees convergence: the flags say which chains made it. For the *nearest*
point of an intersection of convex sets use ``dykstra``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from casal.constraints.algorithms.record import Map, Record, check_members
from casal.constraints.base import Budget, Projection


def alternating(z: Tensor, projections: Sequence[Map], violation: Map, budget: Budget) -> Projection:
    """x <- P_K(... P_2(P_1(x))), from x = z: alternating (cyclic) projections.

    Local linear convergence where the sets meet at an angle; the last set is met exactly at all times.

    Args:
        z: (n, *event) finite float64.
        projections: P_1, ..., P_K, each (n, *event) -> (n, *event).
        violation: (n, *event) -> (n,), the largest violation of a member; this is the residual.
        budget: Tolerance on the violation, and the largest number of sweeps.

    References:
        Lewis, Luke and Malick, "Local linear convergence for alternating and averaged nonconvex projections", Found.
        Comput. Math. 9 (2009).
    """
    check_members(projections)

    def sweep(x: Tensor) -> Tensor:
        for project in projections:
            x = project(x)
        return x

    return _repeat(z, sweep, violation, budget)


def averaged(z: Tensor, projections: Sequence[Map], violation: Map, budget: Budget) -> Projection:
    """x <- (P_1(x) + ... + P_K(x)) / K, from x = z: averaged projections.

    Gradient descent, with step one, on the mean squared distance to the sets: slower than ``alternating``, but
    it treats all sets alike and the mean squared distance never grows, whatever the sets.

    Args:
        z: (n, *event) finite float64.
        projections: P_1, ..., P_K, each (n, *event) -> (n, *event).
        violation: (n, *event) -> (n,), the largest violation of a member; this is the residual.
        budget: Tolerance on the violation, and the largest number of sweeps.
    """
    check_members(projections)
    share = 1.0 / len(projections)

    def sweep(x: Tensor) -> Tensor:
        mean = torch.zeros_like(x)
        for project in projections:
            mean = mean + share * project(x)
        return mean

    return _repeat(z, sweep, violation, budget)


def douglas_rachford(z: Tensor, projections: Sequence[Map], violation: Map, budget: Budget) -> Projection:
    """Feasibility by the alternating direction method of multipliers, which is Douglas-Rachford splitting.

    With two sets, from v = z and w = 0:

        x = P_1(v - w),     v = P_2(x + w),     w += x - v.

    With K > 2 sets, by consensus: x_i = P_i(v - w_i), v = mean_i(x_i + w_i), w_i += x_i - v. The multipliers w remember
    what was violated, so that chains leave places where alternating projections would stay for ever. The best v is
    returned; with two sets it is in C_2 whenever it stops.

    Args:
        z: (n, *event) finite float64.
        projections: P_1, ..., P_K, each (n, *event) -> (n, *event).
        violation: (n, *event) -> (n,), the largest violation of a member; this is the residual.
        budget: Tolerance on the violation, and the largest number of iterations.
    """
    check_members(projections)
    record = Record(z, budget.tolerance)
    onwards = record.add(z, violation(z), 0)
    count = 1 if len(projections) <= 2 else len(projections)
    v, multipliers = z, [torch.zeros_like(z) for _ in range(count)]
    for step in range(1, budget.iterations + 1):
        if not bool(onwards.all()):
            v, multipliers = v[onwards], [w[onwards] for w in multipliers]
        if not len(v):
            break
        if count == 1:
            first, last = projections[0], projections[-1]
            x = first(v - multipliers[0])
            v = last(x + multipliers[0])
            multipliers = [multipliers[0] + (x - v)]
        else:
            points = [project(v - w) for project, w in zip(projections, multipliers, strict=True)]
            v = torch.stack([x + w for x, w in zip(points, multipliers, strict=True)]).mean(0)
            multipliers = [w + (x - v) for x, w in zip(points, multipliers, strict=True)]
        onwards = record.add(v, violation(v), step)
    return record.projection()


def _repeat(z: Tensor, sweep: Map, violation: Map, budget: Budget) -> Projection:
    record = Record(z, budget.tolerance)
    x, onwards = z, record.add(z, violation(z), 0)
    for step in range(1, budget.iterations + 1):
        x = x[onwards]
        if not len(x):
            break
        x = sweep(x)
        onwards = record.add(x, violation(x), step)
    return record.projection()
