"""Whether a network that is told the equations finds samples again under noise.

With y = x + s w, D(y) = E[x0 | y], S = Cov[x0 | y] = s^2 dD/dy and samples x of the model given A x = b,

    u = x - D(y) - K (b - A D(y)),    K = S A^T (A S A^T)^-1,        E[u g(y)] = 0 for every function g

where x0 given y is Gaussian: what is missed of a sample has mean zero, and nothing to do with y. Samples that are
shifted by c are missed by c s^2 / (v + s^2), v their variance along c; those that are too narrow or too wide are missed
in proportion to y. Noise is used with both signs: its own part of u cancels, and low levels see wide directions.

Columns of numbers, one for each sample, have mean zero: positions of u along its widest directions, and products of u
and y, summed over the two widest directions, the next ones and all others. An error of the network is no error of the
samples. Where it is not exact, samples f of the model alone show it: with A f in place of b, u is (I - K A) (f - D(f +
s w)). So a column then objects only if it differs both from zero and from theirs. What their positions vary by, beside
what the place explains, is an error that is made in one place and not in another: samples with equal values share it.

A network that is not exact may be unable to meet the equations, and the last projection then adds details that its own
samples lack. With V the span of errors e = f - D(f + s w) of one half of the free samples, s the last level, the share

    r(x) = |(1 - V V^T) e|^2 / |e|^2,                     e = x - D(x + s w)

of the samples is compared with that of the other half. The noise of e cancels: D takes away what lies outside V.

K is shared by the chains of a kind (mode): A S A^T is averaged over some of them, and eigenvalues below its
antisymmetric part, which is error, are raised.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from casal.diagnostics.check import FEWEST_TESTED, FOUND, REJECT, Check, Evidence, zero_test
from casal.diagnostics.model_score import finest
from casal.diagnostics.stein import by_score
from casal.methods.affine_modes import STEP, Ask, solve
from casal.methods.coupling import has_edge
from casal.methods.equations import equations_of
from casal.methods.matheron import FIRST, SYMMETRIC, denoised_rows
from casal.methods.population import Lineage, student_quantile

MOST_LEVELS = 3
"""Noise levels, at most."""

POSITIONS, WIDE = 8, (2, 8)
"""Directions of u at a level along which positions are compared, and over which products are summed: up to the second,
from there to the eighth, and all others."""

FAR = 2.5
"""Standard deviations at which the position of y in a product is cut off: E[u g(y)] = 0 for bounded g as well, and a
few samples of another mode then do not decide."""


SPAN, ROUGHER = 128, 2.0
"""Errors that span V, at most, and no more than half of the dimensions; and the factor of r from which on samples have
details that those of the model lack."""


NOT_EXACT = (
    "the network is not exact, so a check by its own answers can object, and its silence says little: "
    "casal.calibrate(target, family, method, n=64) tests the method on this model"
)


class Group(NamedTuple):
    """Points (n, d), their values A x (n, m), and the kind of each (n,)."""

    points: Tensor
    values: Tensor
    kind: Tensor


class Renoised(NamedTuple):
    """What was found at one level.

    Attributes:
        level: The noise s.
        names: Of the columns.
        samples: Columns of the samples, (n, k).
        free: Those of the model's own samples, (n', k).
        allowed: What may be added to each column by details below the last level of the table.
        local: Standard deviation of what a network that is not exact misses in one place and not in another: an error
            that samples with equal values share.
        follows: How far u follows the position of the samples along its widest direction: a correlation.
    """

    level: float
    names: tuple[str, ...]
    samples: Tensor
    free: Tensor
    allowed: Tensor
    local: Tensor
    follows: float

    def finds(self, errors: float) -> float:
        """Shift of the samples along that direction, in their standard deviations, which is so many errors of a mean.

        A shift of u by r of its standard deviations is one of the samples by r / follows.
        """
        return errors / math.sqrt(len(self.samples)) / max(self.follows, 1e-300)


def price_of(count: int, kinds: Tensor) -> int:
    """Evaluations of a level in all: both signs of both groups, and the gain."""
    return 4 * len(kinds) + sum(max(count, int(size)) for size in torch.bincount(kinds) if size)


def found_again(
    ask: Ask, samples: Group, free: Group, matrix: Tensor, s: float, unknown: float, generator: torch.Generator
) -> Renoised:
    """The columns of one level.

    Args:
        ask: The denoiser of points (k, d).
        samples: In the set.
        free: Samples of the model.
        matrix: A, orthonormal rows (m, d).
        s: The noise level.
        unknown: tr S at the last level of the table: what the model does not know of a sample.
        generator: Of the noise.
    """
    gains, left, images = dict[int, Tensor](), list[list[tuple[Tensor, Tensor]]](), list[Tensor]()
    for one in (samples, free):
        w, parts = torch.randn(one.points.shape, generator=generator, dtype=torch.float64).to(one.points), []
        answers = list[Tensor]()
        for y in (one.points + s * w, one.points - s * w):
            clean = ask(y, s)
            if not gains:  # at noisy samples: they come first
                gains = {k: _gain(ask, y, clean, matrix, s, samples.kind == k) for k in samples.kind.unique().tolist()}
            u, away, gap = one.points - clean, y - one.points.mean(0), one.values - clean @ matrix.T
            for k, gain in gains.items():
                mine = one.kind == k
                u[mine] -= gap[mine] @ gain
                away[mine] -= away[mine] @ matrix.T @ gain
            parts.append((u, away))
            answers.append(clean)
        left.append(parts)
        images.append(answers[0] - answers[1])
    means = [(plus[0] + minus[0]) / 2 for plus, minus in left]
    axes = _axes(torch.cat(means))[:POSITIONS]
    pairs = zip(means, left, images[::-1], strict=True)
    columns = [torch.cat([mean @ axes.T, widths(parts, image)], 1) for mean, parts, image in pairs]
    here, there = ((plus[1] + minus[1]) / 2 @ axes.T for plus, minus in left)
    follows = float(torch.corrcoef(torch.stack([columns[0][:, 0], here[:, 0]]))[0, 1])
    names = tuple(f"position along direction {k + 1}" for k in range(len(axes)))
    names += ("width along the widest directions", "width along wide directions", "width along the others")
    allowed, local = torch.zeros_like(columns[0][:2])
    allowed[-1] = unknown
    if len(samples.values.unique(dim=0)) < len(samples.values):
        local[: len(axes)] = _unexplained(columns[1][:, : len(axes)], there)
    return Renoised(s, names, columns[0], columns[1], allowed, local, follows)


def _unexplained(values: Tensor, places: Tensor) -> Tensor:
    """Standard deviations of columns (n, k) beside their linear regression on places (n, k)."""
    known = torch.cat([torch.ones_like(places[:, :1]), places], 1)
    left = values - known @ torch.linalg.lstsq(known, values).solution
    return (left.square().sum(0) / max(1, len(left) - known.shape[1])).sqrt()


def widths(parts: list[tuple[Tensor, Tensor]], images: Tensor) -> Tensor:
    """Products of u and y summed over the two widest directions, the next ones and all others, (n, 3).

    The directions are those of the network's answers to noise at other points: they know nothing of the samples.
    """
    axes = _axes(images)
    total = torch.zeros(len(parts[0][0]), 3).to(images)
    for u, y in parts:
        r, h = u @ axes.T, y @ axes.T
        spread, size = (v.std(0).clamp_min(1e-300) for v in (h, r))
        product = r * torch.clamp(h, -FAR * spread, FAR * spread) / (size * spread)
        rest = ((u - r @ axes) * (y - h @ axes)).sum(1)
        total += torch.stack([product[:, : WIDE[0]].sum(1), product[:, WIDE[0] :].sum(1), rest], 1) / 2
    return total


def _axes(u: Tensor) -> Tensor:
    """The widest directions of points, as rows."""
    return torch.linalg.svd(u - u.mean(0), full_matrices=False)[2][: WIDE[1]]


def _gain(ask: Ask, y: Tensor, clean: Tensor, matrix: Tensor, s: float, mine: Tensor) -> Tensor:
    """K^T (m, d): S A^T by differences of the network at some chains of a kind."""
    some = torch.nonzero(mine).flatten()
    some = some[: max(1, len(some) // len(matrix))]
    up = ask((y[some][:, None] + STEP * s * matrix).flatten(0, 1), s).reshape(len(some), *matrix.shape)
    across = (up - clean[some][:, None]).mean(0) * (s / STEP)
    return solve(across @ matrix.T, across, None)


def spaced(first: float, last: float, count: int) -> list[float]:
    """So many levels between two, in the middles of equal ratios."""
    return [last * math.exp((k + 0.5) / count * math.log(first / last)) for k in range(count)]


def details(ask: Ask, x: Tensor, free: Tensor, s: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """log r of points (n, d), (n,), and of the second half of free samples (k, d), whose first half spans V.

    Shares below the rounding of float32 count as that.
    """
    least = torch.finfo(torch.float32).eps

    def errors(points: Tensor) -> Tensor:
        w = torch.randn(points.shape, generator=generator, dtype=torch.float64, device=points.device)
        return points - ask(points + s * w, s)

    half, count = len(free) // 2, min(SPAN, 2 * len(free), x.shape[1] // 2)
    span = torch.linalg.svd(errors(free[torch.arange(count, device=free.device) % half]), full_matrices=False).Vh

    def share(e: Tensor) -> Tensor:
        outside = (e - (e @ span.T) @ span).square().sum(1)
        return (outside / e.square().sum(1).clamp_min(1e-300)).clamp_min(least).log()

    return share(errors(x)), share(errors(free[half:]))


def rougher(evidence: Evidence) -> Iterator[Check]:
    """Whether samples of a network that is not exact have details that the model's own samples lack."""
    problem, state, seen, n = evidence.problem, evidence.run.state, evidence.last, len(evidence.run.samples)
    if seen.get("asymmetry", 0.0) <= SYMMETRIC or "sigma" not in seen or problem.target.condition:
        return
    if n < FEWEST_TESTED or evidence.left < 4 * n:
        return
    x = (evidence.run.samples if problem.identity else state.x).flatten(1).to(torch.float64)
    free, stream = state.free.flatten(1).to(torch.float64), torch.Generator(x.device).manual_seed(4252)
    own, other = details(partial(denoised_rows, problem), x, free, seen["sigma"], stream)
    error = other.std() / math.sqrt(len(other))
    test = zero_test(evidence.everyone, own[:, None] - other.mean(), more=error)
    factor = math.exp(float(test.mean))
    yield Check(
        float(test.t) if factor > ROUGHER and float(test.p) < REJECT else 0.0,
        0.0,
        f"samples have details that the model's own samples lack: outside the directions of the network's own errors "
        f"they have {factor:.2g} times the share",
        "the network cannot meet these equations, and the last projection does; use fewer of them, or a network that "
        "was trained on fields that meet them",
        figures={"rougher": factor},
    )


def by_model(evidence: Evidence) -> Iterator[Check]:
    """Whether the network finds the samples again; where that is not known, whether they follow the score."""
    yield from rougher(evidence)
    told = list(renoised(evidence))
    yield from told or by_score(evidence)


def renoised(evidence: Evidence) -> Iterator[Check]:
    """Whether the network, told the equations, finds the samples again under noise.

    For chains that keep the samples of the model which they started from (``Matheron``), on linear equations.
    """
    problem, state, seen, n = evidence.problem, evidence.run.state, evidence.last, len(evidence.run.samples)
    if not {"first level", "asymmetry"} <= seen.keys() or problem.target.condition or n < FEWEST_TESTED:
        return
    found, kinds = equations_of(problem), state.kind.unique()
    if found.curved or not found.count or has_edge(problem):
        return
    x = (evidence.run.samples if problem.identity else state.x).flatten(1).to(torch.float64)
    free = state.free.flatten(1).to(torch.float64)
    home = torch.where(torch.isin(state.home, kinds), state.home, state.kind.mode().values)
    groups = Group(x, found.level.expand(n, -1), state.kind), Group(free, found.times(free), home)
    price = price_of(found.count, state.kind)
    count = int(min(MOST_LEVELS, evidence.left // price))
    if count < 1:
        share = math.ceil(100.0 * price / (evidence.evaluations * n) + 1.0) / 100.0
        call = f"casal.sample(..., check={share:g}), at most {100 * share:.0f} % more model calls"
        yield Check(missing=(f"the samples were not found again under noise: {call}",))
        return
    last, stream, ask = finest(problem), torch.Generator(x.device).manual_seed(4251), partial(denoised_rows, problem)
    unknown = float(state.error.flatten(1).to(torch.float64).square().sum(1).mean())
    levels = [
        found_again(ask, *groups, found.matrix, s, unknown, stream)
        for s in spaced(max(last, seen["first level"] / FIRST), last, count)
    ]
    columns = zip(*((one.samples, one.free, one.allowed, one.local) for one in levels), strict=True)
    own, other, allowed, local = (torch.cat(part, -1) for part in columns)
    everyone, twin = evidence.everyone, Lineage(torch.full((n,), 1.0 / n).to(x), torch.arange(n, device=x.device))
    tests, exact = [zero_test(everyone, own, allowed)], seen["asymmetry"] <= SYMMETRIC
    if not exact:
        model = twin.mean(other)
        error = torch.hypot(local, model.standard_error)
        tests = [zero_test(everyone, own, allowed, local), zero_test(everyone, own - model.value, allowed, error)]
    p = torch.stack([test.p for test in tests]).amax(0) * own.shape[1]
    worst = int(p.argmin())
    t, chance = min(float(test.t[worst]) for test in tests), min(1.0, float(p[worst]))
    name = [f"{name}, at noise {one.level:.2g}" for one in levels for name in one.names][worst]
    needed = student_quantile(REJECT / own.shape[1], everyone.effective - 1.0) + FOUND
    least = min(one.finds(needed) for one in levels) if exact else math.inf
    yield Check(
        t if chance < REJECT else 0.0,
        0.0,
        "noised and denoised with the equations, the samples are not found again as those of the model are "
        f"({name}, p = {chance:.1g})",
        "use more levels, or casal.calibrate(target, family, method, n=64), which says how far the method is off on "
        "this model",
        least if len(kinds) == 1 else math.inf,
        least,
        {"found_again_p": chance, "found_again_t": t, "asymmetry": seen["asymmetry"]}
        | {name: seen[name] for name in ("mode_error",) if name in seen},
        missing=() if exact else (NOT_EXACT,),
    )
