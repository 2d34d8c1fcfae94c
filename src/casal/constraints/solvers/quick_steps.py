"""A few Gauss-Newton steps to the nearest point of {z : c(z) = 0}, in the dtype of the chains: what a loop takes.

The foot z of y and its multipliers satisfy

    r = z - y + J(z)^T lam = 0,    c(z) = 0.

A step takes H = eta I for the curvature of the Lagrangian, one number per chain, and solves

    eta s + J^T m = -r,    J s = -c,    that is    J J^T m = eta c - J r,    s = -(r + J^T m) / eta,

then z += s, lam += m. With eta = 1 this is the plain Gauss-Newton step z + s = y - J^T (J J^T)^-1 (c + J (y - z)). Its
error shrinks by distance / radius of curvature, and it diverges where that is above one. The curvature along the last
step costs nothing more, eta += s . r / s . s with the new r: the step of Barzilai and Borwein. A minimum of the
distance attracts a chain that starts beside it; a maximum or a saddle repels it.

Few rows are differentiated anew in every step. For many, J J^T is factorised once and kept for a few steps; a step in
between needs c and one product with J^T at the new point. A chain leaves the batch when what is left of its error,
estimated from the last two steps, is a small share of its distance from y. There is no search: a chain that does not
get there in a few steps, or gets there by a long way round, is not ``done``, and has to be solved otherwise.

References:
    Barzilai and Borwein, IMA J. Numer. Anal. 8 (1988), for the length of a step from the last two gradients.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from casal.constraints.solvers.gauss_newton import aside_direction
from casal.devices import waits

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

SHORT = 16
"""Numbers in a row up to which a product with ones adds them faster than a sum."""

ANGLE, FINE, COARSE = 1e-2, 1e-6, 1e-3
"""Error of a foot z that is allowed: FINE |z|, or ANGLE times its distance from y if that is more, up to COARSE |z|."""

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
    """Points (n, d), and which of them (n,) are feet to the tolerance; the others are y."""

    point: Tensor
    done: Tensor


class _Chains(NamedTuple):
    """Chains at work.

    Attributes:
        chain: Number in the batch.
        y: Anchor.
        within: 16 roundings of |y|, (n,).
        z: Point.
        lam: Multipliers.
        eta: Curvature, (n, 1).
        step: The last one.
        length: Its length.
        way: Sum of the lengths, (n,).
        open: Whether a chain is still on its way, (n,) bool.
    """

    chain: Tensor
    y: Tensor
    within: Tensor
    z: Tensor
    lam: Tensor
    eta: Tensor
    step: Tensor
    length: Tensor
    way: Tensor
    open: Tensor


@waits
def quick_feet(system: QuickSystem, y: Tensor, start: Tensor | None = None) -> Quick:
    """Feet of y, or y itself for chains that do not get there in a few steps.

    Args:
        system: The equations.
        y: Points (n, d).
        start: Where to start, such as the foot of the step before; at y if left out.
    """
    out = Quick(y.clone(), torch.zeros(len(y), dtype=torch.bool, device=y.device))
    z = y if start is None else start
    values, rows = system.linearise(z)
    factor = system.factorise(rows)
    if start is None:
        lam = system.solve(factor, values)
        step = system.pull(rows, lam).neg_()
    else:
        offset = z - y
        lam = system.solve(factor, values - system.apply(rows, offset))
        step = (system.pull(rows, lam) + offset).neg_()
    length = torch.linalg.vector_norm(step, dim=1)
    within = 16 * torch.finfo(y.dtype).eps * torch.linalg.vector_norm(y, dim=1)
    z, way = z + step, length
    if start is None:
        z = torch.addcmul(z, aside_direction(y), (NUDGE * length)[:, None])
    else:
        way = way - torch.linalg.vector_norm(offset, dim=1)
    chain, one = torch.arange(len(y), device=y.device), torch.ones_like(length)
    some = _Chains(chain, y, within, z, lam, one[:, None], step, length, way, one > 0)
    some, left = _put_aside(out, some, length)
    for k in range(1, STEPS):
        if left is not None:
            some = _Chains(*(part[left] for part in some))
            if not len(left):
                break
            if system.keeps:
                rows, factor = rows[left], tuple(part[left] for part in factor)
        if system.keeps and k % KEPT:
            values, back = system.pulled(some.z, some.lam)
        else:
            values, rows = system.linearise(some.z)
            factor, back = system.factorise(rows), system.pull(rows, some.lam)
        some, error = _advance(system, some, values, rows, factor, back)
        some, left = _put_aside(out, some, error)
    return out


def _advance(
    system: QuickSystem, some: _Chains, values: Tensor, rows: Tensor, factor: tuple[Tensor, ...], back: Tensor
) -> tuple[_Chains, Tensor]:
    """One step, and the error it leaves, as far as the last two tell."""
    offset = back + some.z - some.y
    eta = (some.eta + (dots(some.step, offset) / some.length.square())[:, None]).clamp_(LEAST, MOST)
    more = system.solve(factor, eta * values - system.apply(rows, offset))
    step = (system.pull(rows, more) + offset).div_(-eta)
    length = torch.linalg.vector_norm(step, dim=1)
    share = length / (some.length - length).clamp_min_(0.0)  # infinite where steps grow
    error = share.clamp_(*LEFT).mul_(length)
    z = some.z + step
    return some._replace(z=z, lam=some.lam + more, eta=eta, step=step, length=length, way=some.way + length), error


def _put_aside(out: Quick, some: _Chains, error: Tensor) -> tuple[_Chains, Tensor | None]:
    """Write down the chains that have arrived; the numbers of those to go on with, if so few that it pays."""
    distance = torch.linalg.vector_norm(some.z - some.y, dim=1)
    allowed = _allowed(some.within, some.z, distance)
    still = (error > allowed) & (error < torch.inf) & some.open  # not a number is neither
    count = int(torch.count_nonzero(still))
    if count == len(still):
        return some, None
    good = (error <= allowed) & some.open & (some.way <= ASTRAY * distance + some.within)
    if len(good) == len(out.done):
        torch.where(good[:, None], some.z, out.point, out=out.point)
        out.done.logical_or_(good)
    else:
        arrived = torch.nonzero(good).flatten()
        gone = some.chain[arrived]
        out.point[gone], out.done[gone] = some.z[arrived], True
    some = some._replace(open=still)
    return some, torch.nonzero(still).flatten() if count <= FEWER * len(still) else None


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
    other = torch.linalg.vector_norm(system.pulled(y, lam)[1] - shift, dim=1)
    z = y - shift
    values, back = system.pulled(z, lam)
    offset = back + z - y
    step = offset + ((values - offset @ rows.T) @ inverse) @ rows
    rounding = 64 * torch.finfo(y.dtype).eps * torch.linalg.vector_norm(y, dim=1)
    done = torch.maximum(other, torch.linalg.vector_norm(step, dim=1)) <= _allowed(rounding, z)
    return Quick(torch.where(done[:, None], z - step, y), done)


def _allowed(rounding: Tensor, z: Tensor, distance: Tensor | None = None) -> Tensor:
    """Error (n,) that a foot z may have: a share of |z|, a larger one if its distance from y is not small."""
    size = torch.linalg.vector_norm(z, dim=1)
    near = torch.add(rounding, size, alpha=max(FINE, 16 * torch.finfo(z.dtype).eps))
    return near if distance is None else near + torch.minimum(ANGLE * distance, COARSE * size)


def dots(one: Tensor, other: Tensor) -> Tensor:
    """Sums of products over the last dimension; a product with ones is faster where that is short."""
    product = one * other
    return product @ product.new_ones(product.shape[-1]) if product.shape[-1] <= SHORT else product.sum(-1)
