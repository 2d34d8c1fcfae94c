"""A few Gauss-Newton steps to the nearest point of a smooth set: what a loop takes between two strict projections.

The rows and bounds are those of ``gauss_newton.py``. A step goes to the nearest point of the linearised set to

    a = z + (y - z) / eta,

eta one number per chain for the curvature of the Lagrangian. With eta = 1 this is the plain step, whose error shrinks
by distance / radius of curvature, and which diverges where that is above one. The curvature along the last step costs
nothing more, eta += s . (z - y + J^T lam) / s . s: the step of Barzilai and Borwein. A minimum of the distance attracts
a chain that starts beside it; a maximum or a saddle repels it.

A chain leaves the batch when what is left of its error, estimated from the last two steps and then from c at the point
itself, is a small share of its distance from y; near the set that takes two steps. There is no search: a chain that
does not get there in a few steps, or gets there by a long way round, is not ``done``, and only that chain has to be
solved otherwise.

References:
    Barzilai and Borwein, IMA J. Numer. Anal. 8 (1988), for the length of a step from the last two gradients.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from casal.constraints.solvers.gauss_newton import System, aside_direction
from casal.constraints.solvers.linearised import Linearised, face
from casal.constraints.vectors import dots, lengths
from casal.devices import check_due, chosen, write

STEPS = 12
"""Most steps. One more for a few last chains costs little beside a search."""

LEAST, MOST = 0.3, 1e3
"""Bounds of eta: steps along the set are not longer than 1 / LEAST times those of Gauss and Newton."""

NUDGE = 1e-4
"""Share of the first step that goes aside, so that symmetry cannot hold a chain at a maximum of the distance."""

ANGLE, FINE, COARSE = 1e-2, 1e-6, 1e-3
"""Error that is allowed in z: FINE |z|, or ANGLE times its distance from y if that is more, up to COARSE |z|."""

LEFT = (0.1, 10.0)
"""Bounds of the error that is left, in units of the last step."""

ASTRAY = 4.0
"""A way longer than the distance from y by this factor may have passed a nearer point: the chain is not done."""


class Quick(NamedTuple):
    """Points (n, d), and which of them (n,) are nearest points to the tolerance."""

    point: Tensor
    done: Tensor


class _Chains(NamedTuple):
    """Chains at work: number in the batch, anchor, point, multipliers, eta, the last step, its length, the way."""

    chain: Tensor
    y: Tensor
    z: Tensor
    lam: Tensor
    eta: Tensor
    step: Tensor
    length: Tensor
    way: Tensor


class _Rows(NamedTuple):
    """The linearised set on its face: the factor of U U^T, the rows that are active, and the lengths of all rows."""

    factor: Tensor
    active: Tensor
    lengths: Tensor


def quick_points(system: System, y: Tensor, start: Tensor | None = None, steps: int | None = None) -> Quick:
    """Nearest points of y, or the start of a chain that does not get there.

    Args:
        system: Rows and bounds.
        y: Points (n, d), float64.
        start: Where to start, such as the nearest point of the step before; at y if left out.
        steps: So many steps, and no fewer; as many as it takes, up to STEPS, if left out.
    """
    z = y if start is None else start
    z = z if system.bounds is None else system.bounds.clip(z)
    one, zero = torch.ones_like(y[:, 0]), torch.zeros_like(y[:, 0])
    way = -lengths(z - y)  # the way to the start does not count
    some = _Chains(torch.arange(len(y), device=y.device), y, z, y[:, :0], one, torch.zeros_like(y), zero, way)
    out, open_ = Quick(z.clone(), zero > 0), one > 0
    for k in range(STEPS if steps is None else steps):
        some, rows, error = _advance(system, some, nudged=k == 0 and start is None, first=k == 0)
        distance = lengths(some.z - some.y)
        allowed = _allowed(some.z, distance)
        good = open_ & (error <= allowed) & (some.way <= ASTRAY * distance + allowed)
        good = good & _confirmed(system, some, rows, allowed)
        if steps is not None:
            out = Quick(some.z, good)
            continue
        open_ = open_ & (error > allowed)
        write(some.chain, good, (out.point, some.z), (out.done, True))
        if not check_due(k, y):
            continue
        left = chosen(open_)
        if not len(left):
            break
        if len(left) < len(open_):
            some, open_ = _Chains(*(part[left] for part in some)), open_[left]
    return out


def _advance(system: System, some: _Chains, *, nudged: bool, first: bool) -> tuple[_Chains, _Rows, Tensor]:
    """One step, the rows it was made with, and the error it leaves, as far as the last two tell.

    What is left of the part of a step along the set shrinks from step to step by some ``share``. The part across the
    set is a step of Newton's method: what it leaves is of second order, the share of that share.
    """
    algebra, (values, derivatives) = system.algebra, system.linearise(some.z)
    size = algebra.lengths(derivatives)
    usable = (size > 0) & torch.isfinite(size) & torch.isfinite(values)
    size = torch.where(usable, size, 1.0)
    unit = algebra.scaled(derivatives, usable, size)
    gap, away, tiny = torch.where(usable, values / size, 0.0), some.z - some.y, torch.finfo(some.z.dtype).tiny
    eta = some.eta
    if not first:
        offset = away + algebra.pull(unit, some.lam * size)
        offset = offset if system.bounds is None else offset * system.bounds.free(some.z)
        eta = (eta + dots(some.step, offset) / some.length.square().clamp_min(tiny)).clamp(LEAST, MOST)
    a = some.z - away / eta[:, None]
    if system.bounded(gap):
        warm = None if first else eta.reciprocal()[:, None] * some.lam * size
        linear = Linearised(algebra, unit, gap, system.inequality(gap).expand_as(gap), usable)
        met = face(linear, some.z, a, system.bounds, warm)
        rows = unit if system.bounds is None else algebra.masked(unit, met.free)
        active, step, lam = met.active, met.point - some.z, met.lam
        factor = algebra.factorise(algebra.gram(rows), active)
    else:
        rows, active = unit, usable
        factor = algebra.factorise(algebra.gram(unit), usable)
        lam = algebra.solve(factor, gap - algebra.apply(unit, away) / eta[:, None])
        step = -(algebra.pull(unit, lam) + away / eta[:, None])
    square = dots(step, step)
    length = square.sqrt()
    z = some.z + step
    if nudged:
        z = z + (NUDGE * length)[:, None] * aside_direction(z)
        z = z if system.bounds is None else system.bounds.clip(z)
    share = (length / (some.length - length).clamp_min(tiny)).clamp(*LEFT)  # large where steps grow
    across = _across(system, factor, torch.where(active, gap, 0.0))
    error = (square - across + across * share.square()).clamp_min(0.0).sqrt() * share
    error = torch.where(usable.all(1) & torch.isfinite(z).all(1), error, torch.nan)
    error = torch.where(length > 0, torch.inf, 0.0) if first else error
    lam = eta[:, None] * lam / size
    made = some._replace(z=z, lam=lam, eta=eta, step=step, length=length, way=some.way + length)
    return made, _Rows(factor, active, size), error


def _across(system: System, factor: Tensor, gap: Tensor) -> Tensor:
    """|U^T (U U^T)^-1 gap|^2, the squared length of a step of Newton's method."""
    return dots(gap, system.algebra.solve(factor, gap)).clamp_min(0.0)


def _confirmed(system: System, some: _Chains, rows: _Rows, allowed: Tensor) -> Tensor:
    """The chains that have arrived by their rows too: a step of Newton from z is allowed.

    Where J is nearly singular a chain is thrown far out, and its steps may be short beside z although c(z) is large.
    """
    gap = system.values(some.z) / rows.lengths
    gap = torch.where(system.inequality(gap), gap.clamp_min(0.0), gap)
    held = torch.where(rows.active, 0.0, gap).abs().amax(1) <= allowed if gap.shape[1] else allowed >= 0
    return held & (_across(system, rows.factor, torch.where(rows.active, gap, 0.0)).sqrt() <= allowed)


def _allowed(z: Tensor, distance: Tensor) -> Tensor:
    """Error (n,) that z may have: FINE |z| + ANGLE times its distance, at most COARSE |z|; and rounding."""
    size, rounding = lengths(z), 16 * torch.finfo(z.dtype).eps
    fine = FINE + rounding
    near = torch.add(fine * size, distance, alpha=ANGLE + rounding)
    return torch.minimum(near, torch.add((COARSE + fine) * size, distance, alpha=rounding))
