"""Whether samples are where the density is: the mass of regions around its peaks, beside the share of samples there.

Chains that were never in a mode, or step over a narrow one, leave no trace in any mean over samples. So the density is
climbed, from samples and from points far around them. Around each peak m that is found, with -Hess log p = K there,

    R = {x in C : (x - m)' K (x - m) <= c},        mass = E_q[p(x) / q(x); x in R],    q = N(m, K^-1) cut at R,

by independent draws of q: without bias, whatever the shape of p. Right samples have shares in these regions that are in
proportion to their masses. A narrower region, somewhat widened, is cut out of a wider one that holds it.

Everything is done in whitened coordinates of the samples, in a set with an interior.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from casal.methods.population import Lineage

Map = Callable[[Tensor], Tensor]

CLIMBS, ROUNDS = 96, 40
"""Points that climb, and steps that they take: a quadratic peak 100 times as long as it is wide is reached."""

FIRST_STEP, LONGER, FARTHEST_STEP = 0.01, 10.0, 2.0
"""First step of a climb, in standard deviations of the samples, so that points stay in a peak 100 times narrower; the
factor by which the next may be longer; and the longest, beside a quarter of the distance to the samples' mean."""

WIDEST = 6
"""Points far around the samples are up to 2^WIDEST standard deviations away, as far as the set goes."""

MOST_PEAKS = 5
DRAWS = 64
"""Peaks that are looked at, beside the bulk of the samples, and draws around each: an error of a mass of 0.1 where the
density is nearly Gaussian."""

LEAST_EFFECTIVE = 0.2
"""Effective share of the draws of a region, below which its mass is not known: along a bent ridge most of a Gaussian
lies where the density has none."""

DIFFERENCE = 1e-4
"""Step of the differences of the score for K, in standard deviations of the samples; peaks that are less wide than some
of these steps are not seen."""

APART = 3.0
"""Standard deviations of a peak up to which the end of a climb belongs to it, and by which a region is widened before
it is cut out of a wider one."""


class Region(NamedTuple):
    """A part of the set around a peak.

    Attributes:
        centre: m, (d,).
        root: L with L L' = K^-1, (d, d).
        log_mass: log of the mass, up to a constant that all regions share.
        error: Its standard error.
        share: Of the samples, by weight.
        share_error: Its standard error.
    """

    centre: Tensor
    root: Tensor
    log_mass: float = math.nan
    error: float = math.inf
    share: float = math.nan
    share_error: float = math.inf


class Misplaced(NamedTuple):
    """The region whose share of the samples is farthest from what its mass says.

    Attributes:
        peaks: How many were found.
        share: Of the samples in it.
        expected: By its mass and that of the region with most samples.
        t: Their difference, in standard errors.
    """

    peaks: int
    share: float
    expected: float
    t: float


def climb(x: Tensor, score: Map, rounds: int = ROUNDS) -> tuple[Tensor, Tensor]:
    """Where points (n, d) come by following the score uphill, and the score there.

    They may leave the set: walls would stop them, and the region around a peak beyond a wall may reach into the set.

    Steps have the length of Barzilai and Borwein (1988), s.s / s.q with s the last step and q the change of the score,
    and are taken back where the score is no number, or has turned against them.
    """
    g = score(x)
    step = FIRST_STEP / torch.linalg.vector_norm(g, dim=1).clamp_min(1e-300)
    for _ in range(rounds):
        longest = FARTHEST_STEP + torch.linalg.vector_norm(x, dim=1) / 4.0
        step = torch.minimum(step, longest / torch.linalg.vector_norm(g, dim=1).clamp_min(1e-300))
        y = x + step[:, None] * g
        h = score(y)
        good = torch.isfinite(h).all(1) & ((h * g).sum(1) >= -0.5 * g.square().sum(1))
        s, q = y - x, g - h
        bend = (s * q).sum(1)
        longer = torch.where(bend > 0.0, s.square().sum(1) / bend.clamp_min(1e-300), math.inf)
        step = torch.where(good, torch.minimum(longer, LONGER * step), step / 4.0)
        x, g = torch.where(good[:, None], y, x), torch.where(good[:, None], h, g)
    return x, g


def around(u: Tensor, inside: Map, count: int) -> Tensor:
    """Points in the set at many distances from whitened samples, up to 2^WIDEST, the far ones first; at most count."""
    stream = torch.Generator(u.device).manual_seed(4251)
    scales = torch.exp2(torch.arange(WIDEST, 0, -1, dtype=u.dtype, device=u.device)).repeat_interleave(4 * count)
    way = torch.randn((len(scales), u.shape[1]), generator=stream, dtype=u.dtype, device=u.device)
    index = torch.randint(len(u), (len(scales),), generator=stream, device=u.device)
    y = u[index] + scales[:, None] * way / torch.linalg.vector_norm(way, dim=1, keepdim=True)
    ok = torch.nonzero(inside(y)).flatten()
    return y[ok[torch.randperm(len(ok), generator=stream, device=u.device)[:count]]]


def find_peaks(x: Tensor, g: Tensor, order: Tensor, score: Map, inside: Map) -> list[Region]:
    """Peaks among the ends of climbs (n, d) with scores g, in an order.

    Where K > 0 and the slope is small, and a part of the region is in the set.
    """
    left, found, d = torch.ones(len(x), dtype=torch.bool, device=x.device), list[Region](), x.shape[1]
    stream = torch.Generator(x.device).manual_seed(4253)
    trial = torch.randn((DRAWS, d), generator=stream, dtype=x.dtype, device=x.device)
    steps = DIFFERENCE * torch.cat([torch.eye(d, dtype=x.dtype, device=x.device)] * 2)
    steps[d:] *= -1.0
    for _ in range(2 * MOST_PEAKS):
        rest = order[left[order]]
        if len(found) == MOST_PEAKS or not len(rest):
            break
        k = int(rest[0])
        left[k] = False
        slopes = score(x[k] + steps)
        K = (slopes[d:] - slopes[:d]) / (2.0 * DIFFERENCE)
        values, axes = torch.linalg.eigh((K + K.T) / 2) if bool(torch.isfinite(K).all()) else (K[0] * 0.0 - 1.0, K)
        if not float(values.min()) > 0.0:
            continue
        root = axes / values.sqrt()
        newton = (root.T @ g[k]).square().sum()
        if not float(newton) < 0.25:  # still on its way
            continue
        here = Region(x[k], root)
        left &= ~(_distance(here, x) < APART)
        if bool(inside(here.centre + trial @ root.T).any()):
            found.append(here)
    return found


def with_bulk(peaks: list[Region], d: int) -> list[Region]:
    """The peaks, and the bulk of whitened samples where none of them is as wide: what a narrow peak is measured by."""
    if not peaks or any(float(peak.root.det().abs()) > 3.0**-d for peak in peaks):
        return peaks
    like = peaks[0].root
    return [*peaks, Region(torch.zeros_like(like[0]), torch.eye(d, dtype=like.dtype, device=like.device))]


def weigh(
    regions: list[Region], u: Tensor, lineage: Lineage, height: Callable[[Tensor, Tensor], Tensor], inside: Map
) -> list[Region]:
    """The regions with their masses and shares of the samples.

    Args:
        regions: Peaks, and the bulk of the samples.
        u: Whitened samples (n, d).
        lineage: Their weights and ancestors.
        height: log p(y) up to a constant, for points y (n, d) around a centre (d,): (centre, y) -> (n,).
        inside: Whether points are in the set.
    """
    stream, d = torch.Generator(u.device).manual_seed(4252), u.shape[1]
    radius = _radius(d)
    size = [float(region.root.det().abs().log()) for region in regions]
    found = list[Region]()
    for k, region in enumerate(regions):
        holes = [other for j, other in enumerate(regions) if size[j] < size[k]]
        v = torch.randn((8 * DRAWS, d), generator=stream, dtype=u.dtype, device=u.device)
        within = torch.linalg.vector_norm(v, dim=1) <= radius
        kept = float(within.to(u.dtype).mean())
        v = v[within][:DRAWS]
        if len(v) < DRAWS // 2:
            continue
        y = region.centre + v @ region.root.T
        ok = inside(y) & ~_in_holes(holes, y)
        if not bool(ok.any()):
            continue
        log_w = u.new_full((len(y),), -math.inf)
        log_w[ok] = height(region.centre, y[ok]) + v[ok].square().sum(1) / 2
        log_w = torch.nan_to_num(log_w, nan=-math.inf)
        top = float(log_w.max())
        if not math.isfinite(top):
            continue
        w = (log_w - top).exp()
        mean = float(w.mean())
        if float(w.sum().square() / w.square().sum()) < LEAST_EFFECTIVE * len(w):
            continue
        own = (_distance(region, u) <= radius) & ~_in_holes(holes, u)
        share = lineage.mean(own[:, None])
        found.append(
            region._replace(
                log_mass=top + math.log(mean * kept) + size[k],
                error=float(w.std()) / (mean * math.sqrt(len(w))),
                share=float(share.value),
                share_error=float(share.standard_error),
            )
        )
    return found


def misplaced(found: list[Region], effective: float) -> Misplaced | None:
    """The region that is farthest off, measured by the one whose share is known best; None for fewer than two."""
    reference = max(found, key=lambda region: region.share / (1.0 + 10.0 * region.error), default=None)
    if reference is None or len(found) < 2 or not reference.share > 0.0:
        return None
    worst: Misplaced | None = None
    for region in found:
        if region is reference:
            continue
        expected = reference.share * math.exp(min(50.0, region.log_mass - reference.log_mass))
        doubt = expected * math.sqrt(region.error**2 + reference.error**2 + _relative(reference) ** 2)
        chance = max(region.share_error, math.sqrt(max(min(expected, 1.0), 1.0 / effective) / effective))
        t = (region.share - expected) / math.hypot(doubt, chance)
        if worst is None or abs(t) > abs(worst.t):
            worst = Misplaced(len(found), region.share, expected / max(1.0, expected + reference.share), t)
    return worst


def _relative(region: Region) -> float:
    return region.share_error / region.share


def _distance(region: Region, x: Tensor) -> Tensor:
    """Of points to the centre, in standard deviations of the region, (n,)."""
    return torch.linalg.vector_norm(torch.linalg.solve(region.root, (x - region.centre).T), dim=0)


def _radius(d: int) -> float:
    """Of a region: half of a Gaussian in d coordinates lies in it, and more in one coordinate."""
    return math.sqrt(max(1.0, d - 2.0 / 3.0))


def _in_holes(holes: list[Region], x: Tensor) -> Tensor:
    out = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    for hole in holes:
        out |= _distance(hole, x) < _radius(x.shape[1]) + APART
    return out
