"""Dykstra's algorithm: the nearest point of an intersection of convex sets, from the projections onto each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from casal.constraints.algorithms.record import Map, Record, check_members
from casal.constraints.base import Budget, Projection, norm, over_events, relative

ROUNDING = 16 * torch.finfo(torch.float64).eps
AFAR = 30.0
"""Distance of z, in units of the point reached, from which on the other algorithm takes over."""
BALANCED, BALANCE_EVERY, BALANCE_UNTIL = 10.0, 10, 300
"""Ratio of the two residuals that rho is adapted to, how often, and for how long."""


def dykstra(z: Tensor, projections: Sequence[Map], violation: Map, budget: Budget) -> Projection:
    """Nearest points of the intersection of convex sets C_1, ..., C_K. One sweep takes every set in turn:

        x' = P_i(x + p_i),     p_i' = x + p_i - x',     from x = z and p_i = 0.

    The increments p_i are what plain alternating projections lack; they make the limit the nearest point. A sweep
    that changes x but little may still be far from the limit (the algorithm can stall), so a chain is done only if

        max( violation(x), sqrt(sum_i |p_i' - p_i|^2) / (|z| + |x|) ) <= tolerance,

    and this maximum is the residual that is returned. The rate is linear for polyhedra and may be slow where sets meet
    at small angles. In an empty intersection the increments grow without end; the chains are then flagged.

    A sweep changes the increments by no more than what the sets are violated, so points far away would need as many
    sweeps as they are far. They are left to the method of multipliers, whose step grows with the distance:

        x_i = P_i(v - w_i),   v = (z + rho sum_i (x_i + w_i)) / (1 + rho K),   w_i += x_i - v,   rho ~ |z - x| / |x|;

    the residual is then the largest of violation(x_K), |x_i - v| and |v' - v|, relative to |v| + sum_i |w_i|.

    Args:
        z: (n, *event) finite float64.
        projections: P_1, ..., P_K, exact projections (n, *event) -> (n, *event) onto convex sets.
        violation: (n, *event) -> (n,), the largest violation of a member.
        budget: Tolerance on the residual, and the largest number of sweeps.

    References:
        Boyle and Dykstra, "A method for finding projections onto the intersection of convex sets in Hilbert spaces"
        (1986); Birgin and Raydan, "Robust stopping criteria for Dykstra's algorithm", SIAM J. Sci. Comput. 26 (2005);
        Boyd et al., "Distributed optimization and statistical learning via the alternating direction method of
        multipliers" (2011), sections 3.4.1 and 5.1.
    """
    check_members(projections)
    inside = violation(z) <= min(budget.tolerance, ROUNDING)
    nothing = torch.zeros_like(inside, dtype=z.dtype)
    found = Projection(z.clone(), inside, nothing.long(), nothing)
    left = torch.nonzero(~inside).flatten()
    if budget.iterations < 1 or not len(left):
        return found._replace(residual=torch.where(inside, 0.0, torch.inf))
    rough = z[left]
    for project in projections:
        rough = project(rough)
    far = _norm(z[left] - rough) > AFAR * _norm(rough)
    for chains, search in ((left[~far], _sweeps), (left[far], _from_afar)):
        if len(chains):
            for whole, part in zip(found, search(z[chains], projections, violation, budget), strict=True):
                whole[chains] = part
    return found


def _sweeps(z: Tensor, projections: Sequence[Map], violation: Map, budget: Budget) -> Projection:
    """Dykstra's algorithm proper."""
    record, tiny = Record(z, budget.tolerance), max(budget.tolerance, ROUNDING)
    x, size, increments = z, _norm(z), [torch.zeros_like(z) for _ in projections]
    for step in range(1, budget.iterations + 1):
        moved = torch.zeros_like(size)
        for i, project in enumerate(projections):
            target = x + increments[i]
            x = project(target)
            before, increments[i] = increments[i], target - x
            moved = torch.hypot(moved, _norm(increments[i] - before))
        moved = relative(moved, size + _norm(x))
        onwards = record.add(x, torch.maximum(violation(x), torch.where(moved <= tiny, 0.0, moved)), step)
        if not bool(onwards.any()):
            break
        if not bool(onwards.all()):
            x, size, *increments = (part[onwards] for part in (x, size, *increments))
    return record.projection()


def _from_afar(z: Tensor, projections: Sequence[Map], violation: Map, budget: Budget) -> Projection:
    """The method of multipliers, alternating over the members; rho is adapted to balance |x_i - v| and |v' - v|."""
    record, count = Record(z, budget.tolerance), len(projections)
    v = z
    for project in projections:
        v = project(v)
    spread = torch.stack([_norm(project(v) - v) for project in projections]).amax(0)
    rho = (_norm(z - v) / (_norm(v) + spread).clamp_min(torch.finfo(torch.float64).tiny)).clamp(1.0, 1e300)
    w = [(z - v) / over_events(count * rho, z) for _ in projections]
    for step in range(1, budget.iterations + 1):
        points = [project(v - offset) for project, offset in zip(projections, w, strict=True)]
        total = torch.stack([x + offset for x, offset in zip(points, w, strict=True)]).sum(0)
        share = over_events(1 / (1 / rho + count), z)
        before, v = v, share * (z / over_events(rho, z) + total)
        w = [offset + (x - v) for x, offset in zip(points, w, strict=True)]
        apart = torch.stack([_norm(x - v) for x in points]).amax(0)
        moved = _norm(v - before)
        size = _norm(v) + torch.stack([_norm(offset) for offset in w]).sum(0)
        broken = torch.maximum(violation(points[-1]), relative(torch.maximum(apart, moved), size))
        if step % BALANCE_EVERY == 0 and step <= BALANCE_UNTIL:
            factor = torch.where(apart > BALANCED * moved, 2.0, torch.where(moved > BALANCED * apart, 0.5, 1.0)).to(z)
            rho, w = rho * factor, [offset / over_events(factor, z) for offset in w]
        onwards = record.add(points[-1], broken, step)
        if not bool(onwards.any()):
            break
        if not bool(onwards.all()):
            z, v, rho, *w = (part[onwards] for part in (z, v, rho, *w))
    return record.projection()


def _norm(z: Tensor) -> Tensor:
    return norm(z.flatten(1))
