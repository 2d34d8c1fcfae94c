"""A few Gauss-Newton steps to the nearest point of {z : c(z) = 0}, in the dtype of the chains: what a loop takes.

The nearest z of y and its multipliers satisfy

    r = z - y + J(z)^T lam = 0,    c(z) = 0.

A step takes H = eta I for the curvature of the Lagrangian, one number per chain, and solves

    eta s + J^T m = -r,    J s = -c,    that is    J J^T m = eta c - J r,    s = -(r + J^T m) / eta,

then z += s, lam += m. With eta = 1 this is the plain Gauss-Newton step z + s = y - J^T (J J^T)^-1 (c + J (y - z)). Its
error shrinks by distance / radius of curvature, and it diverges where that is above one. The curvature along the last
step costs nothing more, eta += s . r / s . s with the new r: the step of Barzilai and Borwein. A minimum of the
distance attracts a chain that starts beside it; a maximum or a saddle repels it.

Few rows are differentiated anew in every step. For many, J J^T is factorised once and kept for a few steps; a step in
between needs c and one product with J^T at the new point. A chain leaves the batch when what is left of its error,
estimated from the last two steps and then from c at the point itself, is a small share of its distance from y; near the
set that takes two steps. There is no search: a chain that does not get there in a few steps, or gets there by a long
way round, is not ``done``, and has to be solved otherwise.

References:
    Barzilai and Borwein, IMA J. Numer. Anal. 8 (1988), for the length of a step from the last two gradients.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from casal.constraints.solvers.gauss_newton import aside_direction
from casal.constraints.vectors import dots, lengths
from casal.devices import amend, check_due, chosen, on_host, write

STEPS = 24
"""Most steps. One more for a few last chains costs little beside a search."""

KEPT = 4
"""Steps with one factorisation, where it is kept."""

LEAST, MOST = 0.3, 1e3
"""Bounds of eta: steps along the set are not longer than 1 / LEAST times those of Gauss and Newton."""

NUDGE = 1e-4
"""Share of the first step that goes aside, so that symmetry cannot hold a chain at a maximum of the distance."""

FEWER = 0.5
"""Share of the chains below which those that have arrived are left out of the batch."""

ANGLE, FINE, COARSE = 1e-2, 1e-6, 1e-3
"""Error that is allowed in z: FINE |z|, or ANGLE times its distance from y if that is more, up to COARSE |z|."""

LEFT = (0.1, 10.0)
"""Bounds of the error that is left, in units of the last step."""

ASTRAY = 4.0
"""A way longer than the distance from y by this factor may have passed a nearer point: the chain is not done."""


class QuickSystem(Protocol):
    """Equations c(z), their derivatives in some form (n, ...), and factors of J J^T; points are (n, d)."""

    @property
    def keeps(self) -> bool:
        """Whether a factor is kept for KEPT steps."""

    def values(self, z: Tensor) -> Tensor:
        """c(z), (n, r)."""

    def linearise(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """c(z), (n, r), and its derivatives."""

    def pulled(self, z: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """c(z), and J(z)^T weights (n, d)."""

    def apply(self, rows: Tensor, v: Tensor) -> Tensor:
        """J v, (n, r)."""

    def pull(self, rows: Tensor, weights: Tensor) -> Tensor:
        """J^T weights, (n, d)."""

    def factorise(self, rows: Tensor) -> tuple[Tensor, ...]:
        """What ``solve`` needs, tensors (n, ...); not finite for a chain without a factor."""

    def solve(self, factor: tuple[Tensor, ...], right: Tensor) -> Tensor:
        """(J J^T)^-1 right, (n, r)."""


class Quick(NamedTuple):
    """Points (n, d), and which of them (n,) are nearest points to the tolerance; the others are y."""

    point: Tensor
    done: Tensor


class _Chains(NamedTuple):
    """Chains at work.

    Attributes:
        z: Point.
        away: z - y.
        lam: Multipliers.
        eta: Curvature, (n, 1).
        step: The last one.
        length: Its length.
        way: Sum of the lengths, (n,).
    """

    z: Tensor
    away: Tensor
    lam: Tensor
    eta: Tensor
    step: Tensor
    length: Tensor
    way: Tensor


def quick_feet(system: QuickSystem, y: Tensor, start: Tensor | None = None) -> Quick:
    """Feet of y, or y itself for chains that do not get there in a few steps.

    Nobody looks after the first step: its length says how far y was from the set, not what is left of that. Off the
    host a look, and with it a smaller batch, is due every few steps only; chains that are there keep the point written.

    Args:
        system: The equations.
        y: Points (n, d).
        start: Where to start, such as the nearest point of the step before; at y if left out.
    """
    some, rows, factor = _first_step(system, y, start)
    out: Quick | None = None
    chain: Tensor | None = None  # numbers of the chains at work, if not all of them are
    open_: Tensor | None = None  # those of them that are not there yet, if not all
    for k in range(1, STEPS):
        back = None
        if system.keeps and k % KEPT:
            values, back = system.pulled(some.z, some.lam)
        else:
            values, rows = system.linearise(some.z)
            factor = system.factorise(rows)
        some, error = _advance(system, some, values, rows, factor, back)
        good, still = _arrived(some, error)
        good = _confirmed(system, some, factor, good)
        if open_ is not None:
            good, still = good & open_, still & open_
        out = Quick(some.z, good) if out is None else _written(out, chain, some.z, good)
        if not check_due(k - 1, y):
            open_ = still
            continue
        left = chosen(still)
        if not len(left):
            break
        open_ = still if len(left) < len(still) else open_
        if len(left) <= FEWER * len(still):
            some, open_ = _Chains(*(part[left] for part in some)), None
            chain = left if chain is None else chain[left]
            if system.keeps:
                rows, factor = rows[left], tuple(part[left] for part in factor)
    assert out is not None
    return Quick(amend(out.point, ~out.done, lambda part: part, y), out.done)


def _written(out: Quick, chain: Tensor | None, z: Tensor, good: Tensor) -> Quick:
    """The result with the chains that have arrived."""
    if chain is None:
        return Quick(torch.where(good[:, None], z, out.point), out.done | good)
    write(chain, good, (out.point, z), (out.done, True))
    return out


def _first_step(system: QuickSystem, y: Tensor, start: Tensor | None) -> tuple[_Chains, Tensor, tuple[Tensor, ...]]:
    """The plain step of Gauss and Newton, with its rows and their factor."""
    z = y if start is None else start
    values, rows = system.linearise(z)
    factor = system.factorise(rows)
    if start is None:
        lam = system.solve(factor, values)
        step = system.pull(rows, lam).neg_()
        length = way = lengths(step)
        away = torch.addcmul(step, aside_direction(y), (NUDGE * length)[:, None])
    else:
        before = z - y
        lam = system.solve(factor, values - system.apply(rows, before))
        step = (system.pull(rows, lam) + before).neg_()
        length = lengths(step)
        away, way = before + step, length - lengths(before)
    return _Chains(y + away, away, lam, torch.ones_like(length)[:, None], step, length, way), rows, factor


def _advance(
    system: QuickSystem, some: _Chains, values: Tensor, rows: Tensor, factor: tuple[Tensor, ...], back: Tensor | None
) -> tuple[_Chains, Tensor]:
    """One step, and the error it leaves, as far as the last two tell.

    With J at z itself J r = J J^T lam + J (z - y), so that lam + m = (J J^T)^-1 (eta c - J (z - y)). Where J is that of
    an earlier point, ``back`` is J(z)^T lam.

    What is left of the part of a step along the set shrinks from step to step by some ``share``. The part across the
    set, -J^T (J J^T)^-1 c, is a step of Newton's method: what it leaves is of second order, the share of that share.
    """
    tiny = torch.finfo(some.away.dtype).tiny
    offset = some.away + (system.pull(rows, some.lam) if back is None else back)
    bend = dots(some.step, offset).div_(some.length.square().clamp_min_(tiny))
    eta = (some.eta + bend[:, None]).clamp_(LEAST, MOST)
    if back is None:
        lam = system.solve(factor, eta * values - system.apply(rows, some.away))
        step = system.pull(rows, lam).add_(some.away)
    else:
        more = system.solve(factor, eta * values - system.apply(rows, offset))
        step, lam = system.pull(rows, more).add_(offset), some.lam + more
    step = step.div_(eta).neg_()
    square = dots(step, step)
    length = square.sqrt()
    share = (length / (some.length - length).clamp_min_(tiny)).clamp_(*LEFT)  # large where steps grow
    if back is None:
        across = dots(values, system.solve(factor, values))  # |normal part|^2
        square = torch.addcmul(square - across, across, share.square()).clamp_min_(0.0)
    error = square.sqrt_().mul_(share)
    return _Chains(some.z + step, some.away + step, lam, eta, step, length, some.way + length), error


def _arrived(some: _Chains, error: Tensor) -> tuple[Tensor, Tensor]:
    """Chains whose error is allowed, not by a long way round; and those to go on with. Not a number is neither."""
    distance = lengths(some.away)
    allowed = _allowed(some.z, distance)
    good = (error <= allowed).logical_and_(some.way <= torch.add(allowed, distance, alpha=ASTRAY))
    return good, error > allowed


def _confirmed(system: QuickSystem, some: _Chains, factor: tuple[Tensor, ...], good: Tensor) -> Tensor:
    """The chains that have arrived by their equations too: a step of Newton, |J^T (J J^T)^-1 c(z)|, is allowed.

    Where J is nearly singular a chain is thrown far out, and its steps may be short beside z although c(z) is large.
    """
    index = chosen(good) if on_host(good) else torch.arange(len(good), device=good.device)
    if not len(index):
        return good
    z, values = some.z[index], system.values(some.z[index])
    across = dots(values, system.solve(tuple(part[index] for part in factor), values)).clamp_min(0.0).sqrt()
    held = (across <= _allowed(z, lengths(some.away[index]))) & torch.isfinite(z).all(1)
    return good.index_put((index,), good[index] & held)


def common_feet(system: QuickSystem, y: Tensor, rows: Tensor, inverse: Tensor) -> Quick:
    """Feet of y for rows that seem to be the same everywhere: z = y - J^T (J J^T)^-1 c(y), in a few products.

    A chain is done only where the derivatives at y, and one more step with the equations and derivatives at z, agree.
    So nothing depends on whether the rows really are the same.

    Args:
        system: The equations.
        y: Points (n, d).
        rows: J (r, d).
        inverse: (J J^T)^-1 (r, r).
    """
    lam = system.values(y) @ inverse
    shift = lam @ rows
    other = lengths(system.pulled(y, lam)[1] - shift)
    z = y - shift
    values, back = system.pulled(z, lam)
    offset = back + z - y
    step = offset + ((values - offset @ rows.T) @ inverse) @ rows
    rounding = torch.finfo(y.dtype).eps
    allowed = torch.add(max(FINE, 16 * rounding) * lengths(z), lengths(y), alpha=64 * rounding)
    done = torch.maximum(other, lengths(step)) <= allowed
    return Quick(torch.where(done[:, None], z - step, y), done)


def _allowed(z: Tensor, distance: Tensor) -> Tensor:
    """Error (n,) that z may have: FINE |z| + ANGLE times its distance, at most COARSE |z|; and rounding."""
    size, rounding = lengths(z), 16 * torch.finfo(z.dtype).eps
    fine = max(FINE, rounding) + rounding
    near = torch.add(fine * size, distance, alpha=ANGLE + rounding)
    return torch.minimum(near, torch.add((COARSE + fine) * size, distance, alpha=rounding))
