"""Exact motion between flat walls {u : C u <= c}, all chains at once: billiards, Gaussian orbits, straight drifts.

A point moves with the velocity v. At the wall j, with its unit normal C_j, the velocity is turned,

    v <- v - 2 (C_j . v) C_j,

which keeps |v| and volumes, and with the velocity turned round the path leads back. So these flows leave the uniform
distribution (straight paths) or N(0, I) (paths u cos t + v sin t) inside the walls as it is. Slacks c - C u and rates
C v are carried along: a bounce changes the rates by a row of C C^T, and takes no product of matrices.

A flow that meets too many walls is refused. It would be refused backwards too, so this changes no distribution.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from casal.devices import waits
from casal.methods.scales import transposed

TIME, ORBIT = (1.25, 3.75), (0.4 * math.pi, 0.6 * math.pi)
"""Times of a billiard flow, in units of the spread, and of a Gaussian orbit: uniform between them."""

MOST_BOUNCES = 100
"""Walls that a flow may meet for every dimension."""


class Walls(NamedTuple):
    """{u : C u <= c}, unit rows.

    Attributes:
        normals: C (m, r).
        levels: c (1 or n, m).
        products: C C^T.
    """

    normals: Tensor
    levels: Tensor
    products: Tensor

    def of(self, chains: Tensor) -> Tensor:
        """c of some chains."""
        return self.levels if len(self.levels) == 1 else self.levels[chains]


class Flowed(NamedTuple):
    """Where chains have come to, and the share of their flows that were refused (n,)."""

    point: Tensor
    refused: Tensor


def rounded(normals: Tensor, levels: Tensor, centre: Tensor, scale: Tensor) -> Walls:
    """The walls of y = centre + L u in the coordinates u (``scales.py``).

    A set without walls gets one at infinity.
    """
    if not len(normals):
        normals = torch.eye(normals.shape[1], dtype=normals.dtype, device=normals.device)[:1]
        levels = torch.full_like(normals[:, :1], torch.inf)
    turned = transposed(scale, normals)
    length = torch.linalg.vector_norm(turned, dim=1)
    turned = turned / length[:, None]
    return Walls(turned, (levels - centre @ normals.T) / length, turned @ turned.T)


@waits
def flow(walls: Walls, u: Tensor, flows: int, gaussian: bool, generator: torch.Generator) -> Flowed:
    """So many flows of every chain, one after the other; chains do not wait for each other.

    Args:
        walls: The set.
        u: Points inside, (n, r).
        flows: Flows of each chain.
        gaussian: Whether the density is N(0, I); else it is constant.
        generator: For velocities and times.
    """
    n, r = u.shape
    C, G, times = walls.normals, walls.products, ORBIT if gaussian else TIME
    out, refused, most = u.clone(), u.new_zeros(n), 100 + MOST_BOUNCES * r

    def fresh(count: int) -> tuple[Tensor, Tensor]:
        v = torch.randn((count, r), generator=generator, dtype=u.dtype, device=u.device)
        t = torch.rand(count, generator=generator, dtype=u.dtype, device=u.device)
        return v, times[0] + (times[1] - times[0]) * t

    who, done, bounces = torch.arange(n, device=u.device), torch.zeros_like(u[:, 0]), torch.zeros_like(u[:, 0])
    v, left = fresh(n)
    u, c = u.clone(), walls.of(who)
    p, q = u @ C.T, v @ C.T
    while len(who) and flows:
        first, j = _orbit_hit(c, p, q) if gaussian else _line_hit(c, p, q)
        hits = first < left
        t = torch.where(hits, first, left)[:, None]
        left = left - t[:, 0]
        if gaussian:
            co, si = t.cos(), t.sin()
            u, v, p, q = co * u + si * v, co * v - si * u, co * p + si * q, co * q - si * p
        else:
            u.addcmul_(v, t)
            p.addcmul_(q, t)
        turn = torch.where(hits, 2.0 * q.gather(1, j[:, None])[:, 0].clamp_min(0.0), 0.0)[:, None]
        v.addcmul_(C[j], turn, value=-1)
        q.addcmul_(G[j], turn, value=-1)
        bounces = bounces + 1.0
        ended = torch.nonzero(~hits | (bounces > most)).flatten()
        if not len(ended):
            continue
        chains, late = who[ended], bounces[ended] > most
        here = torch.where(late[:, None], out[chains], u[ended])
        out[chains] = here
        refused[chains] += late.to(refused) / flows
        done[ended] += 1.0
        going = done < flows
        if len(ended) == len(who) and not bool(going.any()):
            break
        u[ended], bounces[ended] = here, 0.0
        v[ended], left[ended] = fresh(len(ended))
        p[ended], q[ended] = here @ C.T, v[ended] @ C.T
        if not bool(going[ended].all()):
            who, done, bounces, u, v, p, q, left = (part[going] for part in (who, done, bounces, u, v, p, q, left))
            c = walls.of(who)
    return Flowed(out, refused)


def _line_hit(c: Tensor, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Time of the first wall on u + t v, and which it is."""
    t, j = torch.where(q > 0, (c - p) / q, torch.inf).min(1)
    return t.clamp_min(0.0), j


def _orbit_hit(c: Tensor, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """The same on u cos t + v sin t, for times below pi. With w = tan(t / 2), D = q^2 - (c - p)(c + p):

    w = (c - p) / (q + sqrt D)  for q > 0,   (|q| + sqrt D) / |c + p|  for q <= 0 and c + p < 0;   none for D < 0.
    """
    s, over = (c - p).clamp_min(0.0), c + p
    D = q.square() - s * over
    root, up = D.clamp_min(0.0).sqrt(), q > 0
    w = torch.where(up, s, q.abs() + root) / torch.where(up, q + root, -over)
    w, j = torch.where((D >= 0) & (up | (over < 0)), w, torch.inf).min(1)
    return 2.0 * torch.atan(w), j


@waits
def drift(walls: Walls, u: Tensor, v: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """Straight motion for the times (n,): the new u and v; nan for chains that meet too many walls."""
    C, G = walls.normals, walls.products
    end, turned = u + time[:, None] * v, v.clone()
    who = torch.arange(len(u), device=u.device)
    c, p, q = walls.levels, u @ C.T, v @ C.T
    first, _ = _line_hit(c, p, q)
    who = torch.nonzero(first < time).flatten()
    u, v, p, q, left, bounces = u[who], v[who], p[who], q[who], time[who], 0
    while len(who):
        first, j = _line_hit(walls.of(who), p, q)
        hits = first < left
        t = torch.where(hits, first, left)[:, None]
        u, p, left = u + t * v, p + t * q, left - t[:, 0]
        turn = torch.where(hits, 2.0 * q.gather(1, j[:, None])[:, 0], 0.0)[:, None]
        v, q, bounces = v - turn * C[j], q - turn * G[j], bounces + 1
        if bounces > MOST_BOUNCES:
            u, hits = torch.where(hits[:, None], torch.nan, u), torch.zeros_like(hits)
        stop = ~hits
        if bool(stop.any()):
            end[who[stop]], turned[who[stop]] = u[stop], v[stop]
            who, u, v, p, q, left = (part[hits] for part in (who, u, v, p, q, left))
    return end, turned


def fold(z: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Coordinates laid back into [low, high], and the signs that their velocities take: a drift between bounds."""
    width = high - low
    finite = torch.isfinite(width)
    width = torch.where(finite, width, 1.0)
    u = torch.remainder(z - torch.where(finite, low, 0.0), 2.0 * width)
    back = finite & (u > width)
    between = low + torch.where(back, 2.0 * width - u, u)
    under, over = ~finite & (z < low), ~finite & (z > high)
    y = torch.where(finite, between, torch.where(under, 2.0 * low - z, torch.where(over, 2.0 * high - z, z)))
    sign = torch.where(back | under | over, -1.0, 1.0).to(z.dtype)
    return torch.minimum(torch.maximum(y, low), high), sign
