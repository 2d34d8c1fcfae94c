"""Weights of the modes of a diffusion or flow model given a set, from the network's affine models.

Chains of ``matheron.py`` are right inside a mode, but the mode is decided at high noise, before the narrow directions
of the equations have spoken. So where the model has separate modes they are found first, and every chain is started in
one that was drawn by its probability given the equations.

    Phi_j(c) = D(x_j) + J_j (c - x_j)        the network's affine model at x_j = f_j + s w, f_j a free sample

Inside a Gaussian mode all Phi_j agree, however wide it is: the values at two points c, one difference each, form one
cluster for each mode. The largest number of clusters that returns at the next lower level, with other noise, counts,
and the lower of the two levels is where the chains start. The Gaussian whose denoiser is the affine model at x has

    mu = x + (I - J)^-1 (D - x),     C A^T = (I - J)^-1 s^2 J A^T           (conjugate gradients, products J v by
                                                                              differences of the network)
    weight of the mode = share x integral of N(mu, C) over the set,   for linear equations N(b; A mu, A C A^T)

with the share counted on free samples. What the set makes of a mode, its integral and where chains start, is said by
``restricted.py``. Draws of a mode: its free samples, and mu + C^(1/2) w by Lanczos steps.

Where the affine models do not agree (trained networks, modes that are not Gaussian), nothing is found, and nothing
is changed. A mode of which no free sample is seen is lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from casal.devices import eigh
from casal.linalg import conjugate_gradients

Ask: TypeAlias = Callable[[Tensor, float], Tensor]
"""``ask(x, s)``: the denoiser at points (k, d), any k; float64 in and out."""

LEVELS = 9
"""Levels that are looked at, each half of the one before, from half the largest standard deviation on: modes of the
measured models part at 1 / 4 to 1 / 200 of it."""

STEP = 0.1
"""t of a difference over s. Steps of .01 to .1, one-sided or two-sided, gave the same figures."""

RADII, FINE = (0.1, 0.03, 0.01), 0.01
"""Distances within which affine models may agree, in units of their spread: for clusters, and for one Gaussian."""

LEAST, SHARE = 3, 0.8
"""Neighbours, itself included, that make a point the core of a cluster, and the share of cores below which there are no
clusters."""

WIDE = 48
"""Wide directions of the free samples that precondition conjugate gradients. Without them 30 iterations are useless at
low levels."""

ITERATIONS, LANCZOS = 30, 16
"""Conjugate gradients for a row at most (those for the mean take four times as many), and Lanczos steps of a draw."""

FITS = 2.0
"""Median squared distance of the free samples of a mode from its mean, over that of a Gaussian, from which on its
affine model is not believed."""

LEAST_VALUE = 1e-9
"""Eigenvalues below this share of the largest are rounding."""

DECIDED = 0.999
"""Probability of a mode from which on the shares of free samples no longer matter, and are not counted further."""

COUNTED, COARSE = 2, 12
"""Free samples that are counted, for each chain, and the evaluations of each. They serve to count alone. With the
chains' own free samples alone the error of the shares grows by a factor 1.7."""


class Level(NamedTuple):
    """What was seen at a noise level.

    Attributes:
        s: The level.
        x: Noisy free samples, (k, d).
        clean: D(x).
        at: The two points at which affine models are compared, (2, d).
        models: Their values there, (k, 2 d).
        distance: Between them, (k, k).
        spread: Root mean square of these distances, and not below a tenth of that of D(x).
    """

    s: float
    x: Tensor
    clean: Tensor
    at: Tensor
    models: Tensor
    distance: Tensor
    spread: float


class Clusters(NamedTuple):
    """A partition of the free samples: labels (k,), which are cores (k,), and the level at which the chains start."""

    label: Tensor
    core: Tensor
    level: Level

    @property
    def kinds(self) -> int:
        """Number of clusters."""
        return int(self.label.max()) + 1


@dataclass(frozen=True)
class AffineModel:
    """The network's affine model at a point x, at the level s: products with J by differences."""

    ask: Ask
    x: Tensor
    clean: Tensor
    s: float

    def times(self, v: Tensor) -> Tensor:
        """J v, v (k, d)."""
        size = torch.linalg.vector_norm(v, dim=1, keepdim=True).clamp_min(1e-300)
        return (self.ask(self.x + STEP * self.s * v / size, self.s) - self.clean) / (STEP * self.s) * size

    def draw(self, mean: Tensor, noise: Tensor) -> Tensor:
        """mean + C^(1/2) noise, C = s^2 J (I - J)^-1, by Lanczos steps for every row of the noise."""
        size = torch.linalg.vector_norm(noise, dim=1, keepdim=True)
        basis, main, side = [noise / size], list[Tensor](), list[Tensor]()
        for _ in range(min(LANCZOS, noise.shape[1])):
            w = self.times(basis[-1])
            main.append((w * basis[-1]).sum(1))
            for old in basis:
                w = w - (w * old).sum(1, keepdim=True) * old
            side.append(torch.linalg.vector_norm(w, dim=1))
            basis.append(w / side[-1][:, None].clamp_min(1e-30))
        small, off = torch.diag_embed(torch.stack(main, 1)), torch.stack(side, 1)[:, :-1]
        values, vectors = eigh(small + torch.diag_embed(off, 1) + torch.diag_embed(off, -1))
        values = values.clamp(1e-12, 1 - 1e-6)
        first = (self.s * (values / (1 - values)).sqrt() * vectors[:, 0])[..., None]
        return mean + size * torch.einsum("nk,nkd->nd", (vectors @ first)[..., 0], torch.stack(basis[:-1], 1))


class Mode(NamedTuple):
    """A Gaussian mode: its mean (d,), C A^T as rows (m, d), its affine model, and the numbers of its free samples."""

    mean: Tensor
    across: Tensor
    model: AffineModel
    members: Tensor


class Start(NamedTuple):
    """A mode restricted to the set.

    Attributes:
        log: Logarithm of the integral of the mode over the set of each chain, (1 or n,).
        points: ``points(chains, free)``: points of it, one for each of some chains (k,), given free samples of the mode
            (at most k).
    """

    log: Tensor
    points: Callable[[Tensor, Tensor], Tensor]


class Begun(NamedTuple):
    """Chains started in their modes.

    Attributes:
        x: Points on the set, (n, d).
        mode: Of every chain, (n,).
        label: Mode of every free sample, (n,).
        level: Noise level at which the chains start; infinite for one mode, which they need not be started in.
        weights: Mean probabilities of the modes.
        error: Largest standard error of these, by the free samples that were counted.
    """

    x: Tensor
    mode: Tensor
    label: Tensor
    level: float
    weights: list[float]
    error: float = 0.0


def begin(
    ask: Ask,
    free: Tensor,
    rows: Callable[[Tensor], Tensor],
    restrict: Callable[[Mode, Tensor, int], Start],
    top: float,
    first: float,
    pool: int,
    stream: torch.Generator,
) -> Begun | None:
    """Find the modes, weigh them, and start every chain in one.

    Where there is one mode, x is the free samples. None where the affine models do not agree, or do not fit.

    Args:
        ask: The denoiser.
        free: Free samples, one for each chain, (n, d) float64.
        rows: Rows R (m, d) for whose products C R^T a mode is asked, given half of its free samples.
        restrict: What the set makes of a mode, given R and the chains of a mode on average.
        top: Largest standard deviation of the free samples.
        first: The model's first level, from which samples are drawn that are counted.
        pool: Free samples that are compared with each other, at most.
        stream: Draws.
    """
    some = free[:pool]
    found, seen = find(ask, some, [top * 0.5**k for k in range(1, LEVELS + 1)], stream)
    if found is None:
        return None
    if found.kinds == 1:
        return Begun(free, torch.zeros_like(free[:, 0]).long(), torch.zeros_like(free[:, 0]).long(), math.inf, [1.0])
    starts = list[Start]()
    for k in range(found.kinds):
        matrix = rows(some[found.label == k][::2])  # the others check the fit, see ``gaussian_mode``
        one = gaussian_mode(ask, found, seen, k, some, matrix)
        if one is None:
            return None
        starts.append(restrict(one, matrix, -(-len(free) // found.kinds)))
    label = torch.cat([found.label, classify(ask, found, free[pool:], stream)])
    counts = torch.bincount(label, minlength=found.kinds).to(free)
    logs = torch.stack([one.log for one in starts], 1)
    weights = torch.softmax(logs + counts.log(), 1)
    if float(weights.amax(1).min()) < DECIDED and len(free) < pool:
        more = coarse_samples(ask, COUNTED * len(free), free.shape[1], first, found.level.s, stream)
        counts = counts + torch.bincount(classify(ask, found, more, stream), minlength=found.kinds)
        weights = torch.softmax(logs + counts.log(), 1)
    mode = drawn(weights, len(free), stream)
    x = torch.empty_like(free)
    for k in mode.unique().tolist():
        mine, its = (torch.nonzero(v == k).flatten() for v in (mode, label))
        its = its[torch.randperm(len(its), generator=stream, device=stream.device).to(its.device)]
        x[mine] = starts[k].points(mine, free[its[: len(mine)]])
    return Begun(x, mode, label, found.level.s, weights.mean(0).tolist(), share_error(weights.mean(0), counts))


def share_error(weights: Tensor, counts: Tensor) -> float:
    """Largest standard error of weights w_k ~ counts_k L_k, L known: w_k (sum_j (1_jk - w_j)^2 / counts_j)^(1/2).

    >>> round(share_error(torch.tensor([0.5, 0.5]), torch.tensor([50.0, 50.0])), 3)  # as of 100 draws
    0.05
    """
    change = (torch.eye(len(weights)).to(weights) - weights).square() / counts.clamp_min(1.0)
    return float((weights * change.sum(1).sqrt()).max())


def find(ask: Ask, free: Tensor, levels: list[float], stream: torch.Generator) -> tuple[Clusters | None, list[Level]]:
    """The clusters: at every level the partition with most of them, then the one that returns at the next level."""
    seen, parts = [look(ask, free, s, stream) for s in levels], list[Clusters | None]()
    for level in seen:
        rms = math.sqrt(2) * float(_scatter(level.models))
        least = 1e-3 * float((level.models - level.at.flatten()).square().sum(1).mean().sqrt())  # s^2 times the score
        every = [Clusters(*joined(level.distance, max(radius * rms, least)), level) for radius in RADII]
        tight = [one for one in every if float(one.core.to(torch.float64).mean()) >= SHARE]
        parts.append(max(tight, key=lambda one: one.kinds, default=None))
    kept = [low for high, low in pairwise(parts) if high is not None and low is not None and same(high, low)]
    return max(kept, key=lambda one: one.kinds, default=None), seen


def look(ask: Ask, free: Tensor, s: float, stream: torch.Generator) -> Level:
    """The affine models at noisy free samples."""
    x = free + s * normal(free.shape, free, stream)
    clean, at = ask(x, s), x[:2]
    models = extrapolated(ask, x, clean, s, at)
    distance = torch.cdist(models, models, compute_mode="donot_use_mm_for_euclid_dist")
    spread = max(float(_scatter(models)) * math.sqrt(2), 0.1 * float(_scatter(clean)))
    return Level(s, x, clean, at, models, distance, spread)


def extrapolated(ask: Ask, x: Tensor, clean: Tensor, s: float, at: Tensor) -> Tensor:
    """The affine model of every x at the points ``at``, (k, 2 d)."""
    return torch.cat([affine(ask, x, clean, s, point) for point in at], 1)


def affine(ask: Ask, x: Tensor, clean: Tensor, s: float, at: Tensor) -> Tensor:
    """D(x) + J (at - x) by one difference; x and D(x) are a point for each of ``at``, or one for all, or for one."""
    away = at - x
    size = torch.linalg.vector_norm(away, dim=1, keepdim=True)
    t = torch.where(size > 1e-6, STEP * s / size.clamp_min(1e-12), torch.ones_like(size))
    return clean + (ask(x + t * away, s) - clean) / t


def joined(distance: Tensor, radius: float) -> tuple[Tensor, Tensor]:
    """Labels and cores: points with LEAST neighbours are cores, connected cores a cluster, others join the nearest."""
    close = distance <= radius
    core, label = close.sum(1) >= LEAST, torch.full((len(distance),), -1, device=distance.device)
    for k in range(len(distance)):
        at = torch.nonzero(core & (label < 0)).flatten()
        if not len(at):
            break
        inside = torch.zeros_like(core)
        inside[at[0]] = True
        while True:
            grown = inside | (core & close[inside].any(0))
            if bool((grown == inside).all()):
                break
            inside = grown
        label[inside] = k
    if not bool(core.any()):
        return torch.zeros_like(label), core
    centres = torch.nonzero(core).flatten()
    label[~core] = label[centres[distance[~core][:, centres].argmin(1)]]
    return label, core


def same(one: Clusters, two: Clusters) -> bool:
    """Whether two partitions are the same up to names and a fifth of the points."""
    count = one.kinds
    if count != two.kinds:
        return False
    table = torch.bincount(one.label * count + two.label, minlength=count**2).reshape(count, count)
    return len(table.argmax(1).unique()) == count and int(table.amax(1).sum()) >= SHARE * len(one.label)


def classify(ask: Ask, found: Clusters, points: Tensor, stream: torch.Generator) -> Tensor:
    """The cluster of other free samples: that of the core whose affine model is nearest, at the level of the start."""
    if not len(points):
        return found.label[:0]
    level = found.level
    x = points + level.s * normal(points.shape, points, stream)
    models = extrapolated(ask, x, ask(x, level.s), level.s, level.at)
    core = torch.nonzero(found.core).flatten()
    return found.label[core[torch.cdist(models, level.models[core]).argmin(1)]]


def coarse_samples(ask: Ask, n: int, size: int, first: float, last: float, stream: torch.Generator) -> Tensor:
    """Free samples of few evaluations, by a multistep method of second order (Lu et al. 2022), down to ``last``."""
    ramp = torch.linspace(first ** (1 / 7), last ** (1 / 7), COARSE, dtype=torch.float64) ** 7
    sigmas = ramp.tolist()
    like = torch.zeros(1, dtype=torch.float64, device=stream.device)
    x, before = sigmas[0] * normal((n, size), like, stream), None
    for k, (s, to) in enumerate(pairwise(sigmas)):
        ahead = clean = ask(x, s)
        if before is not None:
            ahead = clean + (clean - before) * (0.5 * math.log(s / to) / math.log(sigmas[k - 1] / s))
        x, before = (to / s) * x + (1 - to / s) * ahead, clean
    return ask(x, sigmas[-1])


def gaussian_mode(ask: Ask, found: Clusters, seen: list[Level], k: int, free: Tensor, matrix: Tensor) -> Mode | None:
    """Mean and covariance of a cluster, at one of the three highest levels where its members agree.

    None above the start: there other modes still bend the model, by up to 40 nats of evidence.
    """
    members = torch.nonzero(found.label == k).flatten()
    below = [level for level in seen if level.s <= found.level.s]
    for level, i in list(_inside(below, members[found.core[members]]))[:3]:
        model = AffineModel(ask, level.x[i], level.clean[i], level.s)
        directions, stretch = _preconditioner(level.clean, found.label, level.s)
        offset = _solved(model, (model.clean - model.x)[None], 4 * ITERATIONS, directions, stretch, 1e-12)
        mean, right = model.x + offset[0], level.s**2 * model.times(matrix)
        across = _solved(model, right, ITERATIONS, directions, stretch, 1e-8)
        gap = (free[members[1::2]] - mean) @ matrix.T
        far = float((gap * solve(across @ matrix.T, gap.T, LEAST_VALUE).T).sum(1).median())
        if far < FITS * len(matrix):
            return Mode(mean, across, model, members)
    return None


def _inside(seen: list[Level], members: Tensor) -> Iterator[tuple[Level, int]]:
    """Levels from the top at which the members' affine models agree, and the member with most company there."""
    for level in seen:
        company = (level.distance[members][:, members] <= FINE * level.spread).sum(1)
        i = int(company.argmax())
        if int(company[i]) >= max(2, 0.3 * len(members)):
            yield level, int(members[i])


def _preconditioner(clean: Tensor, label: Tensor, s: float) -> tuple[Tensor, Tensor]:
    """Wide directions inside modes (rows), and (C + s^2) / s^2 along them: Var D = C^2 / (C + s^2)."""
    kinds = label.unique().tolist()
    away = torch.cat([clean[label == k] - clean[label == k].mean(0) for k in kinds])
    left = max(len(away) - len(kinds), 1)
    _, values, rows = torch.linalg.svd(away / math.sqrt(left), full_matrices=False)
    kept = slice(min(WIDE, left, len(rows)))
    power = values[kept].square()
    return rows[kept], 1 + (power + (power.square() + 4 * power * s**2).sqrt()) / (2 * s**2)


def _solved(
    model: AffineModel, right: Tensor, steps: int, directions: Tensor, stretch: Tensor, tolerance: float
) -> Tensor:
    """(I - J)^-1 right, every row by its own conjugate gradients, preconditioned along the directions.

    A row ends where its residual has fallen by ``tolerance``, or where the curvature is not positive.
    """

    def minus(v: Tensor) -> Tensor:
        live, image = v.any(1), torch.zeros_like(v)  # rows that are done are zero, and need not ask the network
        image[live] = v[live] - model.times(v[live])
        return image

    def precondition(r: Tensor) -> Tensor:
        return r + ((r @ directions.T) * (stretch - 1)) @ directions

    first = (right * precondition(right)).sum(1)
    return conjugate_gradients(minus, right, tolerance * first, steps, precondition=precondition)[0]


def evidence(mode: Mode, matrix: Tensor, level: Tensor) -> Tensor:
    """log N(b; A mu, A C A^T) + constant, (1 or n,); A are the first rows of which the mode was asked."""
    values, vectors = raised(mode.across[: len(matrix)] @ matrix.T, LEAST_VALUE)
    z = ((level - mode.mean @ matrix.T) @ vectors) / values.sqrt()
    return -0.5 * (z.square().sum(1) + values.log().sum())


def drawn(weights: Tensor, n: int, stream: torch.Generator) -> Tensor:
    """A mode for every chain: in strata, hence without multinomial noise, where all chains have the same weights."""
    total = weights.cumsum(1)
    u = torch.rand(n, generator=stream, dtype=weights.dtype, device=stream.device).to(weights.device)
    if len(weights) == 1:
        order = torch.randperm(n, generator=stream, device=stream.device).to(weights.device)
        u, total = (order + u[0]) / n, total.expand(n, -1).contiguous()
    return torch.searchsorted(total, u[:, None])[:, 0].clamp_max(weights.shape[1] - 1)


def raised(gram: Tensor, floor: float | None, least: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Eigenvalues and vectors of the symmetric part, the values raised to ``floor`` times the largest.

    None: to the norm of the antisymmetric part. It is zero for an exact denoiser, whose derivative is a covariance, so
    it is what the network itself shows of its error; smaller eigenvalues are noise. And to what ``least``, a matrix of
    the same shape, has along the vectors. Rows of lost chains, which are not finite, are left out: the loop reports
    them.
    """
    gram = torch.where(torch.isfinite(gram).all(-1, keepdim=True), gram, torch.eye(gram.shape[-1]).to(gram))
    values, vectors = eigh((gram + gram.mT) / 2)
    lowest = (LEAST_VALUE if floor is None else floor) * values.amax(-1, keepdim=True)
    if floor is None and gram.shape[-1] > 1:
        lowest = torch.maximum(lowest, torch.linalg.matrix_norm((gram - gram.mT) / 2, 2)[..., None])
    if floor is None and least is not None:
        lowest = torch.maximum(lowest, (vectors * (least @ vectors)).sum(-2))
    return torch.maximum(values, lowest).clamp_min(1e-300), vectors


def solve(gram: Tensor, right: Tensor, floor: float | None) -> Tensor:
    """gram^-1 right, with the eigenvalues of ``raised``."""
    values, vectors = raised(gram, floor)
    return vectors @ ((vectors.mT @ right) / values[..., None])


def normal(shape: tuple[int, ...] | torch.Size, like: Tensor, stream: torch.Generator) -> Tensor:
    """Standard normal numbers, drawn as float32 and widened."""
    return torch.randn(shape, generator=stream, dtype=torch.float32, device=stream.device).to(like)


def _scatter(points: Tensor) -> Tensor:
    """Root mean square distance from the mean."""
    return (points - points.mean(0)).square().sum(1).mean().sqrt()
