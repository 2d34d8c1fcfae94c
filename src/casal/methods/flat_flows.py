"""Exact motion between flat walls {u : C u <= c}, all chains at once: billiards, Gaussian orbits, straight drifts.

A point moves with the velocity v. At the wall j, with its unit normal C_j, the velocity is turned,

    v <- v - 2 (C_j . v) C_j,

which keeps |v| and volumes, and with the velocity turned round the path leads back. So these flows leave the uniform
distribution (straight paths) or N(0, I) (paths u cos t + v sin t) inside the walls as it is. Slacks c - C u and rates
C v are carried along, points are not: a bounce changes the rates by a row of C C^T, and takes no product of matrices.

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

TOGETHER = 4
"""Bounces of all chains after which those whose flow has ended are looked for: to begin a flow takes as many calls as
several bounces."""


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
    """The draws of the chains (draws, n, r), and the share of their flows that were refused (n,)."""

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
def flow(walls: Walls, u: Tensor, flows: int, gaussian: bool, generator: torch.Generator, draws: int = 1) -> Flowed:
    """So many flows of every chain from one draw to the next; chains do not wait for each other.

    A bounce changes slacks and rates only. What the walls did is added up, as a_k (T - t_k) for a bounce at the time
    t_k with the rate a_k (a_k sin(T - t_k) on an orbit), and turned into a point where the flow ends:

        u(T) = u + T v - 2 sum_k a_k (T - t_k) C_k.

    Args:
        walls: The set.
        u: Points inside, (n, r).
        flows: Flows of each chain for each draw.
        gaussian: Whether the density is N(0, I); else it is constant.
        generator: For velocities and times.
        draws: Draws of each chain.
    """
    n, r = u.shape
    C, G, times = walls.normals, walls.products, ORBIT if gaussian else TIME
    kept, refused, total = u.new_empty((draws, n, r)), u.new_zeros(n), flows * draws
    most, rounds = 100 + MOST_BOUNCES * r, 0

    def fresh(here: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        """Points, times, slacks (heights C u on an orbit), rates, and where they would come to without walls."""
        v = torch.randn(here.shape, generator=generator, dtype=u.dtype, device=u.device)
        t = torch.rand(len(here), generator=generator, dtype=u.dtype, device=u.device)
        t = times[0] + (times[1] - times[0]) * t
        ahead, aside = (t.cos()[:, None], t.sin()[:, None]) if gaussian else (1.0, t[:, None])
        height = here @ C.T
        return here, t, height if gaussian else c - height, v @ C.T, ahead * here + aside * v

    who = torch.arange(n, device=u.device)
    done, began, c = torch.zeros_like(who), torch.zeros_like(who), walls.levels
    here, left, s, q, end = fresh(u, c)
    turned, first = torch.zeros_like(s), who * len(C)
    while len(who):
        rate, j = (_orbit_rate(c, s, q) if gaussian else q / s.clamp_min_(1e-300)).max(1)
        t = rate.clamp_min_(0.0).reciprocal_()
        t = 2.0 * torch.atan(t) if gaussian else t
        hits, t = t < left, torch.minimum(t, left)
        left -= t
        if gaussian:
            co, si = t.cos()[:, None], t.sin()[:, None]
            s, q = co * s + si * q, co * q - si * s
        else:
            s.addcmul_(q, t[:, None], value=-1)
        at = first + j
        turn = q.take(at).mul_(hits)
        q.addcmul_(G[j], turn[:, None], value=-2)
        turned.view(-1).index_add_(0, at, turn * (left.sin() if gaussian else left))
        rounds += 1
        if rounds % TOGETHER:
            continue
        ended = torch.nonzero((left <= 0.0) | (began < rounds - most)).flatten()
        if not len(ended):
            continue
        late, chains = left[ended] > 0.0, who[ended]
        point = torch.where(late[:, None], here[ended], torch.addmm(end[ended], turned[ended], C, alpha=-2))
        refused[chains] += late / total
        done[ended] += 1
        number, out = done[ended], done[ended] % flows == 0
        kept[number[out] // flows - 1, chains[out]] = point[out]
        began[ended], turned[ended] = rounds, 0.0
        here[ended], left[ended], s[ended], q[ended], end[ended] = fresh(point, walls.of(chains))
        if not bool((number < total).all()):
            going = done < total
            parts = who, done, began, here, left, s, q, end, turned
            who, done, began, here, left, s, q, end, turned = (part[going] for part in parts)
            c, first = walls.of(who), first[: len(who)]
    return Flowed(kept, refused)


def _line_hit(c: Tensor, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Time of the first wall on u + t v, and which it is."""
    t, j = torch.where(q > 0, (c - p) / q, torch.inf).min(1)
    return t.clamp_min(0.0), j


def _orbit_rate(c: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """1 / tan(t / 2) for the times t, below pi, at which u cos t + v sin t meets walls; below zero for none.

    With heights p = C u, rates q = C v and D = q^2 - (c - p) (c + p) it is

        (q + sqrt D) / (c - p)  for q > 0,   -(c + p) / (|q| + sqrt D)  for q <= 0;   none for D < 0.
    """
    s, over = (c - p).clamp_min_(1e-300), c + p
    D, up = q.square() - s * over, q > 0
    far = q.abs() + D.clamp_min(0.0).sqrt_()
    rate = torch.where(up, far, -over).div_(torch.where(up, s, far))
    return rate.masked_fill_(D < 0.0, -1.0)


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
