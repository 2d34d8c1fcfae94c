"""Whether samples are where the density is: the mass of regions around its peaks, beside the share of samples there.

Chains that were never in a mode, or step over a narrow one, leave no trace in any mean over samples. So the density is
climbed, from samples and from points far around them. Around each peak m that is found, with -Hess log p = K there,

    R = {x in C : (x - m)' K (x - m) <= c},        mass = E_q[p(x) / q(x); x in R],    q = N(m, K^-1) cut at R,

by independent draws of q: without bias, whatever the shape of p. Right samples have shares in these regions that are in
proportion to their masses. A narrower region, somewhat widened, is cut out of a wider one that holds it.

Everything is done in whitened coordinates of the samples, in a set with an interior. The density is asked in the set
alone: climbs slide along walls, and at a peak on a wall with slope g and normal n K is -Hess log p + (g . n)^2 n n',
since the density falls off by exp(-|g . n| s) from there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from casal.diagnostics.behind import view_of
from casal.diagnostics.check import FEWEST_TESTED, Check, Evidence, evenly
from casal.diagnostics.edges import slopes
from casal.diagnostics.model_score import COARSE
from casal.diagnostics.modes import line_integral, slope_of
from casal.methods.population import Lineage

Map = Callable[[Tensor], Tensor]

CLIMBS, ROUNDS = 96, 40
"""Points that climb, and steps that they take: a quadratic peak 100 times as long as it is wide is reached."""

FIRST_STEP, LONGER, FARTHEST_STEP = 0.01, 10.0, 2.0
"""First step of a climb, in standard deviations of the samples, so that points stay in a peak 100 times narrower; the
factor by which the next may be longer; and the longest, beside a quarter of the distance to the samples' mean."""

HALVINGS = 8
"""Of a step that leads up to a wall."""

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

BETWEEN_PEAKS = 401
"""Points of the line integral of the score from one peak to another: the score turns within a narrow valley."""

PEAK_ERRORS, SMALLEST_PEAK = 5.0, 0.05
"""Standard errors, and difference in shares, from which the samples around a peak are an objection: masses are means of
weights with long tails, and many regions are looked at."""


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


def climb(x: Tensor, score: Map, inside: Map, normal: Map | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Where points (n, d) come by following the score uphill in a set; the score there, and its part along the walls.

    Steps have the length of Barzilai and Borwein (1988), s.s / s.q with s the last step and q the change of the score,
    and are taken back where the score is no number, or has turned against them. One that would leave the set goes along
    its wall.

    Args:
        x: In the set.
        score: Of points in the set; NaN elsewhere.
        inside: Whether points are in the set.
        normal: The inward unit normal of the wall next to points; None where there are no walls.
    """
    g = score(x)

    def along(x: Tensor, g: Tensor, step: Tensor) -> Tensor:
        """g where a step along it stays in the set; else as much of its normal part as leads up to the wall."""
        out = torch.nonzero(~inside(x + step[:, None] * g)).flatten()
        if normal is None or not len(out):
            return g
        n, slid, left = normal(x[out]), g[out], g.new_ones(len(out), 1)
        off = (slid * n).sum(1, keepdim=True).clamp_max(0.0) * n
        for _ in range(HALVINGS):
            beyond = ~inside(x[out] + step[out, None] * (slid - (1.0 - left) * off))
            left = torch.where(beyond[:, None], left / 2.0, left)
        return g.index_add(0, out, -torch.where(beyond[:, None], 1.0, 1.0 - left) * off)

    step = FIRST_STEP / torch.linalg.vector_norm(g, dim=1).clamp_min(1e-300)
    for _ in range(ROUNDS):
        longest = FARTHEST_STEP + torch.linalg.vector_norm(x, dim=1) / 4.0
        step = torch.minimum(step, longest / torch.linalg.vector_norm(g, dim=1).clamp_min(1e-300))
        way = along(x, g, step)
        y = x + step[:, None] * way
        h = score(y)
        good = torch.isfinite(h).all(1) & ((h * way).sum(1) >= -0.5 * way.square().sum(1))
        s, q = y - x, g - h
        bend = (s * q).sum(1)
        longer = torch.where(bend > 0.0, s.square().sum(1) / bend.clamp_min(1e-300), math.inf)
        step = torch.where(good, torch.minimum(longer, LONGER * step), step / 4.0)
        x, g = torch.where(good[:, None], y, x), torch.where(good[:, None], h, g)
    return x, g, along(x, g, step.clamp_min(FIRST_STEP))


def around(u: Tensor, inside: Map, count: int) -> Tensor:
    """Points in the set at many distances from whitened samples, up to 2^WIDEST, the far ones first; at most count."""
    stream = torch.Generator(u.device).manual_seed(4251)
    scales = torch.exp2(torch.arange(WIDEST, 0, -1, dtype=u.dtype, device=u.device)).repeat_interleave(4 * count)
    way = torch.randn((len(scales), u.shape[1]), generator=stream, dtype=u.dtype, device=u.device)
    index = torch.randint(len(u), (len(scales),), generator=stream, device=u.device)
    y = u[index] + scales[:, None] * way / torch.linalg.vector_norm(way, dim=1, keepdim=True)
    ok = torch.nonzero(inside(y)).flatten()
    return y[ok[torch.randperm(len(ok), generator=stream, device=u.device)[:count]]]


def find_peaks(x: Tensor, g: Tensor, way: Tensor, order: Tensor, score: Map, inside: Map) -> list[Region]:
    """Peaks among the ends of climbs (n, d) with scores g and their parts along the walls, in an order.

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
        wall = way[k] - g[k]
        off = 2.0 * DIFFERENCE * wall / torch.linalg.vector_norm(wall).clamp_min(1e-300)  # differences stay in the set
        slopes = score(x[k] + off + steps)
        K = (slopes[d:] - slopes[:d]) / (2.0 * DIFFERENCE)
        if not bool(torch.isfinite(K).all()):
            continue
        values, axes = torch.linalg.eigh((K + K.T) / 2 + torch.outer(wall, wall))
        root = axes / values.clamp_min(1e-300).sqrt()
        if not float(values.min()) > 0.0 or not float((root.T @ way[k]).square().sum()) < 0.25:  # still on its way
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


def peaks(evidence: Evidence) -> Iterator[Check]:
    """Whether the samples are where the density is: in sets with an interior, of a fixed density."""
    problem, lineage, d = evidence.problem, evidence.lineage, evidence.flat.shape[1]
    alone = not problem.table.static or problem.chains is not None or evidence.one_mode
    if alone or lineage.effective < max(FEWEST_TESTED, 2 * d):
        return
    seen = view_of(evidence, torch.arange(len(evidence.z), device=evidence.z.device))
    z, event, potential = seen.points.flatten(1), tuple(seen.points.shape[1:]), problem.target.potential
    mean, d = lineage.weights @ z, z.shape[1]
    root, failed = torch.linalg.cholesky_ex(((z - mean) * lineage.weights[:, None]).T @ (z - mean))
    each = DRAWS * (1 if potential is not None else COARSE)
    spare = evidence.left - (MOST_PEAKS + 1) * each - 2 * MOST_PEAKS * 2 * d
    spare -= len(z) if potential is not None else MOST_PEAKS * BETWEEN_PEAKS
    count = int(min(CLIMBS, spare / (ROUNDS + 1)))
    if not seen.pointwise or seen.shape.project is not None or int(failed) or count < FEWEST_TESTED:
        return
    slope, factor = slope_of(problem, seen), seen.shape.factor

    def out(u: Tensor) -> Tensor:
        return (mean + u @ root.T).reshape(-1, *event)

    def inside(u: Tensor) -> Tensor:
        return seen.inside(out(u))

    def within(u: Tensor, value: Map, like: Tensor) -> Tensor:
        ok = inside(u)
        return like if not bool(ok.any()) else like.index_copy(0, torch.nonzero(ok).flatten(), value(out(u[ok])))

    def score(u: Tensor) -> Tensor:
        return within(u, lambda y: slope(y) @ root, torch.full_like(u, math.nan))

    def log_p(u: Tensor) -> Tensor:
        density: Map = lambda y: problem.log_density(seen.latent(y).to(problem.like.dtype)).to(u)  # noqa: E731
        return within(u, density, u.new_full((len(u),), -math.inf))

    def normal(u: Tensor) -> Tensor:
        assert factor is not None
        rise = slopes(factor, out(u)) @ root
        return rise / torch.linalg.vector_norm(rise, dim=1, keepdim=True).clamp_min(1e-300)

    u = torch.linalg.solve_triangular(root, (z - mean).T, upper=False).T
    some = evenly(len(u), count // 3).to(u.device)
    first = some if potential is None else log_p(u).argsort(descending=True)[: count // 3]
    starts = torch.cat([u[first], u[some], around(u, inside, count // 3)])
    x, g, way = climb(starts, score, inside, None if factor is None else normal)
    order = log_p(x).argsort(descending=True) if potential is not None else way.square().sum(1).argsort()
    found = with_bulk(find_peaks(x, g, way, order, score, inside), d)
    if len(found) < 2:
        return
    origin = found[0].centre

    def height(centre: Tensor, y: Tensor) -> Tensor:
        if potential is not None:
            return log_p(y)
        total = line_integral(score, origin[None], centre[None], points=BETWEEN_PEAKS)
        for place, weight in zip(*(v.tolist() for v in np.polynomial.legendre.leggauss(COARSE)), strict=True):
            total = total + weight / 2.0 * (score(centre + (1.0 + place) / 2.0 * (y - centre)) * (y - centre)).sum(1)
        return total

    worst = misplaced(weigh(found, u, lineage, height, inside), lineage.effective)
    if worst is None:
        return
    yield Check(
        abs(worst.share - worst.expected) if abs(worst.t) >= PEAK_ERRORS else 0.0,
        SMALLEST_PEAK,
        f"around a peak of the density there are {100 * worst.share:.2g} % of the samples, where its mass asks for "
        f"{100 * worst.expected:.2g} % ({abs(worst.t):.1f} standard errors): chains have missed a mode, or pass over a "
        "narrow one",
        f"start in all modes (init=), or {evidence.more_steps()}",
        figures={"peaks": float(worst.peaks), "peak_t": worst.t, "peak_error": worst.share - worst.expected},
    )
