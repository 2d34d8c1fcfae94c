"""Whether a network that is told the equations finds samples again under noise.

With y = x + s w, D(y) = E[x0 | y], S = Cov[x0 | y] = s^2 dD/dy and samples x of the model given A x = b,

    u = x - D(y) - K (b - A D(y)),    K = S A^T (A S A^T)^-1,        E[u g(y)] = 0 for every function g

where x0 given y is Gaussian: what is missed of a sample has mean zero, and nothing to do with y. Samples that are
shifted by c are missed by c s^2 / (v + s^2), v their variance along c; those that are too narrow or too wide are missed in
proportion to y. The noise is used with both signs, so that its own part of u cancels and low levels see wide directions.

Columns of numbers, one for each sample, have mean zero: positions of u along its widest directions, and products of u and
y, summed over the widest directions, some more and the rest. An error of the network is no error of the samples: samples
f of the model alone, with A f in place of b, leave u = (I - K A) (f - D(f + s w)). So a column objects only if it differs
both from zero, where an exact network has it, and from what the model's own samples show.

K is shared by the chains of a kind (mode): A S A^T is averaged over some of them, and eigenvalues below its
antisymmetric part, which is error, are raised.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from casal.methods.affine_modes import STEP, Ask, solve

POSITIONS, WIDE = 8, (2, 8)
"""Directions of u at a level along which positions are compared, and over which products are summed: up to the second,
from there to the eighth, and all others."""

ROWS = 4
"""Random directions in which the derivative of the network is looked at, beside the rows of A."""

FAR = 2.5
"""Standard deviations at which the position of y in a product is cut off: E[u g(y)] = 0 for bounded g as well, and a few
samples of another mode then do not decide."""


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


def found_again(
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
    columns = [torch.cat([mean @ axes.T, widths(*pair)], 1) for mean, pair in zip(means, zip(left, images[::-1], strict=True), strict=True)]
    place = ((left[0][0][1] + left[0][1][1]) / 2) @ axes[0]
    follows = float(torch.corrcoef(torch.stack([columns[0][:, 0], place]))[0, 1])
    names = tuple(f"position along direction {k + 1}" for k in range(len(axes)))
    names += ("width along the widest directions", "width along wide directions", "width along the others")
    allowed = torch.zeros_like(columns[0][0])
    allowed[-1] = last**2 * axes.shape[1]
    return Renoised(s, names, columns[0], columns[1], allowed, follows, uneven)


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
    """K^T (m, d), S A^T by differences of the network at some chains of a kind; and B S B^T there, B of ROWS more rows."""
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
