"""Whether a network that is told the equations finds samples again under noise.

With y = x + s w, D(y) = E[x0 | y], S = Cov[x0 | y] = s^2 dD/dy and samples x of the model given A x = b,

    u = x - D(y) - K (b - A D(y)),    K = S A^T (A S A^T)^-1,        E[u g(y)] = 0 for every function g

where x0 given y is Gaussian: what is missed of a sample has mean zero, and nothing to do with y. Samples that are
shifted by c are missed by c s^2 / (v + s^2), v their variance along c; those that are too narrow or too wide are missed
in proportion to y. The noise is used with both signs, so that its own part of u cancels and low levels see wide
directions.

Columns of numbers, one for each sample, have mean zero: positions of u along its widest directions, and products of u
and y, summed over the widest directions, some more and the rest. An error of the network is no error of the samples:
samples f of the model alone, with A f in place of b, leave u = (I - K A) (f - D(f + s w)). So a column objects only if
it differs both from zero, where an exact network has it, and from what the model's own samples show.

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

from casal.diagnostics.check import FEWEST_TESTED, FOUND, NOT_CHECKED, REJECT, Check, Evidence, zero_test
from casal.diagnostics.model_score import finest
from casal.methods.affine_modes import STEP, Ask, solve
from casal.methods.equations import equations_of
from casal.methods.matheron import denoised_rows
from casal.methods.population import Lineage, student_quantile

POSITIONS, WIDE = 8, (2, 8)
"""Directions of u at a level along which positions are compared, and over which products are summed: up to the second,
from there to the eighth, and all others."""

ROWS = 4
"""Random directions in which the derivative of the network is looked at, beside the rows of A."""

SYMMETRIC = 0.1
"""Asymmetry of the derivative of a network up to which it counts as exact."""

MOST_NOISE_LEVELS = 3
"""Noise levels, at most, at which samples are found again."""

FAR = 2.5
"""Standard deviations at which the position of y in a product is cut off: E[u g(y)] = 0 for bounded g as well, and a
few samples of another mode then do not decide."""


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
        allowed: What noise of the last level of the table, below which the model is not known, adds to each column.
        follows: How far u follows the position of the samples along its widest direction: a correlation.
        uneven: Size of the antisymmetric part of the derivative of the network over that of the symmetric one.
    """

    level: float
    names: tuple[str, ...]
    samples: Tensor
    free: Tensor
    allowed: Tensor
    follows: float
    uneven: float


def price(count: int, kinds: Tensor) -> int:
    """Evaluations of a level in all: both signs of both groups, and the gain."""
    return 4 * len(kinds) + sum(max(count + ROWS, int(size)) for size in torch.bincount(kinds) if size)


def columns(
    ask: Ask, samples: Group, free: Group, matrix: Tensor, s: float, last: float, generator: torch.Generator
) -> Renoised:
    """The columns of one level.

    Args:
        ask: The denoiser of points (k, d).
        samples: In the set.
        free: Samples of the model.
        matrix: A, orthonormal rows (m, d).
        s: The noise level.
        last: The last level of the table.
        generator: Of the noise.
    """
    gains, left, images = dict[int, Tensor](), list[list[tuple[Tensor, Tensor]]](), list[Tensor]()
    for one in (samples, free):
        w, parts = torch.randn(one.points.shape, generator=generator, dtype=torch.float64).to(one.points), []
        answers = list[Tensor]()
        for y in (one.points + s * w, one.points - s * w):
            clean = ask(y, s)
            if not gains:  # at noisy samples: they come first
                found = {
                    k: _gain(ask, y, clean, matrix, s, samples.kind == k, generator)
                    for k in samples.kind.unique().tolist()
                }
                gains, grams = {k: gain for k, (gain, _) in found.items()}, torch.cat([g for _, g in found.values()])
                uneven = float((grams - grams.mT).norm() / (grams + grams.mT).norm())
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
    numbers = [torch.cat([mean @ axes.T, widths(parts, image)], 1) for mean, parts, image in pairs]
    place = ((left[0][0][1] + left[0][1][1]) / 2) @ axes[0]
    follows = float(torch.corrcoef(torch.stack([numbers[0][:, 0], place]))[0, 1])
    names = tuple(f"position along direction {k + 1}" for k in range(len(axes)))
    names += ("width along the widest directions", "width along wide directions", "width along the others")
    allowed = torch.zeros_like(numbers[0][0])
    allowed[-1] = last**2 * axes.shape[1]
    return Renoised(s, names, numbers[0], numbers[1], allowed, follows, uneven)


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


def _gain(
    ask: Ask, y: Tensor, clean: Tensor, matrix: Tensor, s: float, mine: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """K^T (m, d), S A^T by differences of the network at some chains of a kind; and B S B^T, B: A and ROWS more."""
    m, some = len(matrix), torch.nonzero(mine).flatten()
    more = torch.randn((ROWS, matrix.shape[1]), generator=generator, dtype=torch.float64).to(matrix)
    rows = torch.cat([matrix, torch.nn.functional.normalize(more, dim=1)])
    some = some[: max(1, len(some) // len(rows))]
    up = ask((y[some][:, None] + STEP * s * rows).flatten(0, 1), s).reshape(len(some), len(rows), -1)
    products = (up - clean[some][:, None]) * (s / STEP)
    across = products[:, :m].mean(0)
    return solve(across @ matrix.T, across, None), products @ rows.T


def spaced(first: float, last: float, count: int) -> list[float]:
    """So many levels between two, in the middles of equal ratios."""
    return [last * math.exp((k + 0.5) / count * math.log(first / last)) for k in range(count)]


def found_again(evidence: Evidence) -> Iterator[Check]:
    """Whether a network that is told the equations finds samples again under noise, as well as it finds its own.

    For chains that keep the samples of the model which they started from (``Matheron``), on linear equations; nothing
    is said of others.
    """
    problem, state, n = evidence.problem, evidence.run.state, len(evidence.run.samples)
    free, first = getattr(state, "free", None), evidence.run.trace.get("first level")
    if free is None or first is None or problem.target.condition or n < FEWEST_TESTED:
        return
    equations = equations_of(problem)
    if equations.curved or not equations.count:
        return
    x = (evidence.run.samples if problem.identity else state.x).flatten(1).to(torch.float64)
    free, kinds = free.flatten(1).to(torch.float64), state.kind.unique()
    home = torch.where(torch.isin(state.home, kinds), state.home, state.kind.mode().values)
    cost = price(equations.count, state.kind)
    count = int(min(MOST_NOISE_LEVELS, evidence.left // cost))
    if count < 1:
        share = math.ceil(100.0 * cost / (evidence.evaluations * n) + 1.0) / 100.0
        call = f"casal.sample(..., check={share:g}), at most {100 * share:.0f} % more model calls"
        told = f"the samples were not compared with the model's own: {call}"
        yield Check(figures={"found_again_p": NOT_CHECKED}, missing=(told,))
        return
    stream = torch.Generator(x.device).manual_seed(4251)
    values = equations.times(x + equations.back(equations.gap(x)))
    groups = Group(x, values, state.kind), Group(free, equations.times(free), home)
    last = finest(problem)
    levels = [
        columns(partial(denoised_rows, problem), *groups, equations.matrix, s, last, stream)
        for s in spaced(float(first[-1]), last, count)
    ]
    names = [(one.level, name) for one in levels for name in one.names]
    own, other, allowed = (
        torch.cat(part, -1) for part in zip(*((one.samples, one.free, one.allowed) for one in levels), strict=True)
    )
    twin = Lineage(torch.full((n,), 1.0 / n).to(x), torch.arange(n, device=x.device))
    model, uneven = twin.mean(other), max(one.uneven for one in levels)
    tests = [zero_test(evidence.everyone, own, allowed)]
    if uneven > SYMMETRIC:
        tests.append(zero_test(evidence.everyone, own - model.value, allowed, model.standard_error))
    p = torch.stack([test.p for test in tests]).amax(0)
    worst, chance = int(p.argmin()), min(1.0, float(p.min()) * len(p))
    figures = {"found_again_p": chance, "found_again_t": min(float(test.t[worst]) for test in tests)}
    figures |= {"asymmetry": uneven}
    figures |= {name: value for name, value in evidence.last.items() if name == "mode_error"}
    needed = student_quantile(REJECT / len(p), evidence.everyone.effective - 1.0) + FOUND
    least = needed * math.sqrt(len(tests) / n) / max(max(one.follows for one in levels), 1e-300)
    yield Check(
        REJECT / max(chance, 1e-300),
        1.0,
        f"noised by {names[worst][0]:.2g} and denoised with the equations, what is missed of the samples is not what "
        f"is missed of the model's own (p = {chance:.1g}, {names[worst][1]})",
        "use more levels, or casal.calibrate(target, family, method, n=64), which says how far the method is off on "
        "this model",
        detectable=least if len(kinds) == 1 else math.inf,
        within=least,
        figures=figures,
    )
