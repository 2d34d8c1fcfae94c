"""Whether chains that move on their own can be trusted: what they remember, whether they agree, and a second move.

**Memory** is the correlation over chains with where they were. **R-hat** compares the variance between the means of
single chains over K places of a run with that within chains,

    R-hat^2 = (K - 1) / K + F / K,     F = between / within,

and F of chains that have mixed is about 1 with a standard deviation of sqrt(2 / n + 2 / (n (K - 1))): so n chains with
few places show more than one by chance, up to an edge that is known. **A second kind of move**, which shares neither
the gradient nor the steps with the run, leaves the samples as they are if these follow the density: paired differences
of a few chains before and after it have mean zero.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from casal.methods.inside_chains import FIRST_PRICE, Control, HMCState, Row, Space
from casal.methods.problem import Problem
from casal.methods.scales import FEWEST_CHAINS, main_directions
from casal.methods.trajectories import pace, rattle, slices

MOST_MEMORY, ERRORS = 0.15, 4.5
"""Correlation with an earlier state that is let pass, beyond so many standard errors."""

ALLOWED_R_HAT = 0.2
"""Excess of R-hat over its edge that is no objection: a mean correlation of 0.35 between two of three places of a run.
The samples are the last of them, and memory, which compares the first with it, lets as much pass for 400 chains."""

SECOND_CHAINS, SECOND_MOVES, SECOND_SHARE = 512, (4, 12), 0.05
"""Chains that take a second kind of move, at most; the fewest and the most moves at a time; and the share of all
evaluations for them, and of those that are left, of which flows use hardly any."""

SECOND_LEVEL, SECOND_SHIFT, SECOND_POWER = 1e-6, 0.1, 1.5
"""Probability of an objection to right samples, if differences were normal; the shift in standard deviations below
which there is none; and the error of a mean, likewise, that it has to find to count as a check. Squares have longer
tails: one of some 60 runs passed the edge of 1e-4."""

LARGEST_SHIFT, LATE_ERRORS = 0.1, 2.0
"""What is left of a wrong start, in deviations, that is let pass; and the standard errors by which one of some tens of
means at rest moves."""


class Memory(NamedTuple):
    """The largest correlation over chains between an earlier state and a later one.

    Attributes:
        value: The correlation.
        limit: What is no objection yet.
        direction: Along which it is found, (k,): a height of the later points has variance one.
    """

    value: float
    limit: float
    direction: Tensor


def memory(before: Tensor, after: Tensor, labels: Tensor | None = None) -> Memory | None:
    """What points (n, k) still know of what they were: over coordinates and the main directions of both.

    Args:
        before: Earlier points.
        after: Later points of the same chains.
        labels: Groups within which they are compared, (n,).

    Returns:
        None for fewer than FEWEST_CHAINS chains beyond the groups.
    """
    n = len(before)
    free = n - (1 if labels is None else len(labels.unique()))
    if free < FEWEST_CHAINS:
        return None
    one, other = centred(before, labels), centred(after, labels)
    scale = other.square().mean(0, keepdim=True).sqrt().clamp_min(1e-300)
    one, other = one / scale, other / scale
    stream = torch.Generator(before.device).manual_seed(0)
    directions = torch.cat([_directions(part, stream) for part in (one, other)], dim=1)
    found = torch.cat([_correlations(one, other), _correlations(one @ directions, other @ directions)])
    k, size = int(found.argmax()), one.shape[1]
    axis = (torch.arange(size, device=one.device) == k).to(one)
    direction = axis if k < size else directions[:, k - size]
    direction = direction / scale[0] / (other @ direction).square().mean().sqrt().clamp_min(1e-300)
    return Memory(float(found.max()), MOST_MEMORY + ERRORS / math.sqrt(free), direction)


class Drift(NamedTuple):
    """The mean of a coordinate that moves on, farther than by chance, and goes on the same way; zeros if there is none.

    Chains that begin at one point have nothing to remember, and all of them are on their way together.

    Attributes:
        way: How far it moved, in standard deviations.
        late: How far in the last part of the way.
        told: The first in standard errors.
        left: How far it may still have to go: l^2 / (w - 2 l), where w and l = ``late`` are the first two terms of a
            geometric decay, at most l; and at least l less two standard errors, since there may be slower parts.
    """

    way: float
    late: float
    told: float
    left: float


def drift(anchor: Tensor, before: Tensor, y: Tensor) -> Drift:
    """Of means over chains, from where they were first (n, k) by way of a place in between to where they are."""
    if len(y) < FEWEST_CHAINS:
        return Drift(0.0, 0.0, 0.0, 0.0)
    spread = y.std(0).clamp_min(1e-300)
    (way, error), (late, late_error) = (
        (step.mean(0) / spread, (step.std(0) / spread / math.sqrt(len(y))).clamp_min(1e-12))
        for step in (y - anchor, y - before)
    )
    told = way.abs() / error
    late = torch.where(told > ERRORS, late * way.sign(), 0.0).clamp_min(0.0)
    decay = late.square() / (way.abs() - 2.0 * late).clamp_min(1e-300)
    left = torch.maximum(torch.minimum(decay, late), late - LATE_ERRORS * late_error)
    k = int(left.argmax())
    return Drift(float(way[k].abs()), float(late[k]), float(told[k]), float(left[k]))


class Agreement(NamedTuple):
    """R-hat, the largest over coordinates and main directions, and the edge up to which it is chance."""

    value: float
    edge: float


def agreement(places: list[Tensor], labels: Tensor | None = None) -> Agreement | None:
    """R-hat of chains by K places each, (n, k); None for fewer than FEWEST_CHAINS chains beyond the groups.

    >>> generator = torch.Generator().manual_seed(0)
    >>> found = agreement([torch.randn(400, 5, generator=generator) for _ in range(3)])
    >>> found.value < found.edge < 1.1
    True
    """
    n, K = len(places[0]), len(places)
    free = n - (1 if labels is None else len(labels.unique()))
    if free < FEWEST_CHAINS:
        return None
    every = torch.stack([centred(place, labels) for place in places])
    scale = every.square().mean((0, 1)).sqrt().clamp_min(1e-300)
    every = every / scale
    directions = _directions(every[-1], torch.Generator(every.device).manual_seed(0))
    every = torch.cat([every, every @ directions], 2)
    mean = every.mean(0)
    between, within = K * mean.square().sum(0) / free, (every - mean).square().sum((0, 1)) / (n * (K - 1))
    moving = within > 1e-12 * between
    ratio = float((between / within.clamp_min(1e-300))[moving].max()) if bool(moving.any()) else math.inf
    chance = (math.sqrt(2.0 * math.log(2.0 * every.shape[2])) + 2.0) * math.sqrt(2.0 / free + 2.0 / (n * (K - 1)))
    return Agreement(math.sqrt((K - 1 + ratio) / K), math.sqrt((K + chance) / K))


def second_kind(
    space: Space, problem: Problem, state: HMCState, control: Control, generator: torch.Generator
) -> dict[str, float]:
    """The largest shift under a second kind of move: its t over chains, the edge of that, and the shift in deviations.

    Slice moves on flat sets, a random walk on curved ones. They need the potential. With r the correlation of a
    coordinate before and after them, they undo a share 1 - r of an error of its mean, and m chains show that with a
    standard error of sqrt(2 (1 - r) / m) standard deviations: what they find 95 times in 100 follows, for the
    coordinate that they move least. Where that is too much for a check, and the score says little, as it is zero, or
    infinite where test functions vanish, they go on as long as evaluations are left.
    """
    n = len(state.y)
    price = 2.0 * FIRST_PRICE if space.flat is not None else 1.0  # slices of a narrow density in a wide set cost more
    every, spent = float(len(problem.table) * n), 0.0
    first, left = SECOND_SHARE * every / price, SECOND_SHARE * max(0.0, every - problem.usage.scores)
    m, budget = int(min(SECOND_CHAINS, n, first / SECOND_MOVES[0])), SECOND_SHARE * every + left
    if problem.target.potential is None or problem.chains is not None or m < 2 * FEWEST_CHAINS:
        return {}
    moves, eps = min(SECOND_MOVES[1], int(first / m)), control.eps
    some = torch.arange(m, device=state.y.device) * n // m
    chains = HMCState(*(part[some] for part in state))
    chains = chains._replace(log_p=problem.log_density(space.latents(chains.y, problem.like)))
    centre, scale = (
        torch.tensor(v, dtype=torch.float64, device=state.y.device) for v in (control.centre, control.scale)
    )
    row = Row("slice", problem.table.t[0], (1,) * moves, centre=centre, scale=scale)
    before, alone = chains, control.law in ("constant", "infinite")
    away = state.y - state.y.mean(0)
    spread = away.square().mean(0).sqrt().clamp_min(1e-300)

    def seen(part: HMCState) -> Tensor:
        u = (part.y - state.y.mean(0)) / spread
        return torch.cat([u, u.square(), part.log_p[:, None] / before.log_p.std().clamp_min(1e-9)], 1)

    edge = -float(torch.special.ndtri(torch.tensor(SECOND_LEVEL / (4 * before.y.shape[1] + 2), dtype=torch.float64)))
    while True:
        if space.flat is not None:
            chains = slices(space, problem, chains, row, generator)
        else:
            for _ in range(moves):  # eps is that of steps with a force, and the walk is checked, not used: it may adapt
                chains = rattle(space, problem, chains, row._replace(lengths=(1,), eps=eps, blind=True), generator)
                eps *= pace(float(chains.accepted.mean()), 1.0)
        cost = float(chains.gap.sum()) if space.flat is not None else float(m * moves)
        change, spent = seen(chains) - seen(before), spent + cost
        moved = change[:, : before.y.shape[1]].square().mean(0).amin().clamp(1e-9, 2.0) / 2.0  # 1 - r
        detectable = float(((edge + OFTEN) * (2.0 * moved / m).sqrt()).clamp_min(SECOND_SHIFT) / moved)
        if not alone or detectable <= SECOND_POWER or spent + cost > budget:
            break
    t = change.mean(0).abs() / (change.std(0) / math.sqrt(m)).clamp_min(1e-12)
    k = int(t.argmax())
    return {
        "second_detectable": detectable, "second_t": float(t[k]), "second_edge": edge,
        "second_shift": float(change.mean(0)[k].abs() / seen(before).std(0)[k].clamp_min(1e-9)),
    }  # fmt: skip


OFTEN = 1.645
"""Standard normal quantile of 95 %."""


def centred(z: Tensor, labels: Tensor | None) -> Tensor:
    """Points minus the mean of their group."""
    if labels is None:
        return z - z.mean(0)
    labels = labels.to(z.device)
    count = torch.bincount(labels).clamp_min(1).to(z)
    total = torch.zeros((len(count), z.shape[1]), dtype=z.dtype, device=z.device).index_add(0, labels, z)
    return z - (total / count[:, None])[labels]


def _directions(points: Tensor, generator: torch.Generator) -> Tensor:
    """The main directions of points (n, k), as columns."""
    place = main_directions(points, generator)
    axes = points.T @ (place - place.mean(0))
    return axes / torch.linalg.vector_norm(axes, dim=0).clamp_min(1e-300)


def _correlations(one: Tensor, other: Tensor) -> Tensor:
    """Correlations of the columns; zero for constant ones."""
    size = (one.square().mean(0) * other.square().mean(0)).sqrt()
    return torch.where(size > 1e-20, (one * other).mean(0) / size.clamp_min(1e-300), 0.0)
