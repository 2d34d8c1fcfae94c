"""The modes that samples have found, and whether their weights are right.

Samples are cut into clusters by k-means, and clusters that overlap are not told apart. Between two of them, a and b, a
reflection R about the plane half-way between their centres is an isometry that is its own inverse. Where it maps the
set to itself (a sphere, equations, mass and energy, the inside of a solid set), samples of p satisfy

    E[al(z) (1_to(z) - 1_from(z))] = 0,
    al = min(1, p(R z) / p(z)) if R z is in the set and in the other cluster, else 0,

for each cluster: as much goes out as comes in. log p(R z) - log p(z) is a difference of the potential, or the line
integral of the score.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from casal.diagnostics.behind import View, view_of
from casal.diagnostics.check import (
    FEWEST_TESTED,
    NOT_CHECKED,
    REJECT,
    Check,
    Evidence,
    NotAvailable,
    ZeroTest,
    evenly,
    zero_test,
)
from casal.diagnostics.model_score import level_score
from casal.errors import CasalError
from casal.methods import Problem

MOST_MODES = 4

SEPARATION = 2.2
"""Distance of two centres, in units of the sum of the clusters' standard deviations along the line between them, from
which they are two modes. One Gaussian cut in two at its mean gives 1.3."""

SMALLEST = 8
SMALLEST_SHARE = 0.005
"""Samples, and share of all, that a mode must have."""

TRIALS = 3
ROUNDS = 25

LINE_POINTS = 41
"""Points of the line integral of the score, from one mode to the other through the valley between them. With 20, right
samples of three modes of width 0.3 on a circle of radius 2 raise false alarms."""

BOW = 0.15
"""How far a bowed line goes aside, in units of its length."""

UNSURE = 0.5
"""Difference to the integral with every second point from which a jump is refused, in either direction."""

SMALL_CHANGE = 0.02
"""Share of samples that a move between modes may shift."""

PATHS_AGREE, TRIED = 0.2, 5
"""Difference of log p along two paths between modes up to which a diffusion model's score is the gradient of something
there; and one in how many samples is tried."""


class Modes(NamedTuple):
    """Clusters of samples.

    Attributes:
        centres: (k, d).
        label: Which cluster each sample is in, (n,).
        radius: Root mean square distance of the samples of a cluster to its centre, (k,).
    """

    centres: Tensor
    label: Tensor
    radius: Tensor

    @property
    def number(self) -> int:
        """k."""
        return len(self.centres)

    def walls(self, y: Tensor) -> Tensor:
        """A factor of one point y for each sample, (n, d) -> (n,), that vanishes half-way to the next mode.

        The distance to the plane between the own centre and another, in units of the radius of the own mode, at most 1.
        """
        own = self.centres[self.label]
        line = self.centres - own[:, None]  # (n, k, d)
        length = torch.linalg.vector_norm(line, dim=2)
        margin = length / 2 - ((y - own)[:, None] * line).sum(2) / length.clamp_min(torch.finfo(y.dtype).tiny)
        margin = torch.where(length > 0.0, margin, torch.inf)
        return (margin.amin(1) / self.radius[self.label]).clamp_max(1.0)


def find_modes(z: Tensor, most: int = MOST_MODES) -> Modes:
    """The modes of samples (n, d): the most clusters, up to ``most``, that are all apart; one if there are no two.

    Centres are fitted to one half of the samples and judged on the other: in many dimensions centres fit noise.
    """
    found = z.mean(0, keepdim=True)
    stream = torch.Generator(z.device).manual_seed(4245)
    fit, judge = z[: len(z) // 2], z[len(z) // 2 :]
    for count in range(2, most + 1):
        trials = (_k_means(fit, count, stream) for _ in range(TRIALS))
        good = next((centres for centres in trials if centres is not None and _apart(judge, centres)), None)
        if good is not None:
            found = good
        elif count > 2:
            break
    label = torch.cdist(z, found).argmin(1)
    square = (z - found[label]).square().sum(1)
    own = torch.nn.functional.one_hot(label, len(found)).to(z)
    return Modes(found, label, (square @ own / own.sum(0)).sqrt())


def _k_means(z: Tensor, count: int, stream: torch.Generator) -> Tensor | None:
    """Centres (count, d), begun far from each other; None if one of them lost all samples."""
    if len(z) < count:
        return None
    centres = z[torch.randint(len(z), (1,), generator=stream, device=z.device)]
    for _ in range(count - 1):
        far = torch.cdist(z, centres).amin(1).square() + torch.finfo(z.dtype).tiny
        centres = torch.cat([centres, z[torch.multinomial(far, 1, generator=stream)]])
    for _ in range(ROUNDS):
        own = torch.nn.functional.one_hot(torch.cdist(z, centres).argmin(1), count).to(z)
        size = own.sum(0)
        if float(size.min()) == 0.0:
            return None
        moved = own.T @ z / size[:, None]
        if torch.equal(moved, centres):
            break
        centres = moved
    return centres


def _apart(z: Tensor, centres: Tensor) -> bool:
    """Whether all clusters are large enough, and any two of them apart along the line between their centres."""
    label = torch.cdist(z, centres).argmin(1)
    parts = [z[label == k] for k in range(len(centres))]
    if min(len(part) for part in parts) < max(SMALLEST, SMALLEST_SHARE * len(z)):
        return False
    for a, b in combinations(range(len(centres)), 2):
        line = centres[b] - centres[a]
        here, there = ((parts[k] @ line) / torch.linalg.vector_norm(line) for k in (a, b))
        if not float(there.mean() - here.mean()) > SEPARATION * float(here.std() + there.std()):
            return False
    return True


def jump_flow(
    z: Tensor,
    modes: Modes,
    nearest: Tensor,
    inside: Callable[[Tensor], Tensor],
    rise: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """al(z) (1_to - 1_from) of each sample for a reflection to another mode drawn at random, (n, k).

    Args:
        z: Samples (n, d).
        modes: Their clusters.
        nearest: The centres' nearest points on the surface part of the set, (k, d): planes between them keep it.
        inside: Whether points (n, d) are in the set, (n,) bool.
        rise: log p(y) - log p(z) for points z and y, (n,).
    """
    stream = torch.Generator(z.device).manual_seed(4246)
    further = torch.randint(1, modes.number, (len(z),), generator=stream, device=z.device)
    target = (modes.label + further) % modes.number
    line = nearest[target] - nearest[modes.label]
    line = line / torch.linalg.vector_norm(line, dim=1, keepdim=True)
    height = ((z - (nearest[target] + nearest[modes.label]) / 2) * line).sum(1, keepdim=True)
    y = z - 2.0 * height * line
    arrives = inside(y) & (torch.cdist(y, modes.centres).argmin(1) == target)
    accept = torch.zeros(len(z), dtype=z.dtype, device=z.device)
    if bool(arrives.any()):
        accept[arrives] = rise(z[arrives], y[arrives]).clamp_max(0.0).exp()
    to, away = (torch.nn.functional.one_hot(label, modes.number).to(z) for label in (target, modes.label))
    return accept[:, None] * (to - away)


def line_integral(
    score: Callable[[Tensor], Tensor], z: Tensor, y: Tensor, bow: Tensor | None = None, points: int = LINE_POINTS
) -> Tensor:
    """log p(y) - log p(z), the integral of the score along a line, (n,); minus infinity where it is unsure.

    By Clenshaw and Curtis's rule, whose every second point is a rule again. From y to z the points are the same.

    Args:
        score: grad log p, (n, d) -> (n, d).
        z: Where the line begins, (n, d).
        y: Where it ends.
        bow: The line is z + t (y - z) + 4 t (1 - t) bow; straight if left out.
        points: Of the rule, 4 k + 1.
    """
    half = points // 2
    places, fine = clenshaw_curtis(2 * half)
    coarse = np.zeros_like(fine)
    coarse[::2] = clenshaw_curtis(half)[1]
    sums, aside = torch.zeros((2, len(z)), dtype=z.dtype, device=z.device), z.new_zeros(z.shape) if bow is None else bow
    for t, *weights in zip(places.tolist(), fine, coarse, strict=True):
        at, speed = z + t * (y - z) + 4 * t * (1 - t) * aside, y - z + 4 * (1 - 2 * t) * aside
        sums += torch.tensor(weights, dtype=z.dtype, device=z.device)[:, None] * (score(at) * speed).sum(1)
    return torch.where((sums[0] - sums[1]).abs() > UNSURE, -torch.inf, sums[0])


def path_dependence(score: Callable[[Tensor], Tensor], z: Tensor, y: Tensor) -> float:
    """Median difference of the line integrals along a straight line and along one that is bowed aside.

    Zero for the gradient of a density. A network's score need not be one between the modes, where it saw no data.
    """
    stream = torch.Generator(z.device).manual_seed(4247)
    aside = torch.randn(z.shape[1:], generator=stream, dtype=z.dtype, device=z.device)
    length = torch.linalg.vector_norm(y - z, dim=1, keepdim=True)
    bow = BOW * length * aside / torch.linalg.vector_norm(aside)
    straight, bowed = line_integral(score, z, y), line_integral(score, z, y, bow)
    sure = torch.isfinite(straight) & torch.isfinite(bowed)
    return float((straight - bowed)[sure].abs().median()) if bool(sure.any()) else 0.0


def clenshaw_curtis(intervals: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Points in [0, 1] and weights of the rule with an even number of intervals.

    >>> points, weights = clenshaw_curtis(8)
    >>> bool(abs((weights * np.exp(points)).sum() - (np.e - 1.0)) < 1e-9)
    True
    """
    angle, j = np.arange(intervals + 1) * np.pi / intervals, np.arange(1, intervals // 2 + 1)
    terms = np.where(j == intervals // 2, 1.0, 2.0) / (4.0 * j**2 - 1.0) * np.cos(2.0 * np.outer(angle, j))
    weights = (1.0 - terms.sum(1)) / intervals
    weights[[0, -1]] /= 2.0
    return (1.0 - np.cos(angle)) / 2.0, weights


def modes_of(evidence: Evidence) -> Modes:
    """Clusters of the samples of a run; one where that is known, and where chains have their own sets or conditions."""
    alone = evidence.problem.chains is not None or evidence.one_mode
    return find_modes(evidence.flat, most=1 if alone else MOST_MODES)


def jump(evidence: Evidence) -> Iterator[Check]:
    """Whether the weights of the modes are right, by a t-test over ancestors of a reflection between them."""
    if evidence.everyone.effective < FEWEST_TESTED:
        return
    modes = modes_of(evidence)
    figures = {"modes": float(modes.number)}
    yield Check(figures=figures)
    if modes.number < 2:
        return
    try:
        found = _jump(evidence, modes)
    except (NotAvailable, CasalError) as reason:
        weighed = float(evidence.run.trace.get("weighed", torch.zeros(1))[-1]) == 1.0  # by fresh draws (``HMC``)
        sentence = f"the weights of the {modes.number} modes were not checked: {reason}"
        names = ("jump_t", "jump_p", "jump_change")
        yield Check(figures=dict.fromkeys(names, NOT_CHECKED), notes=() if weighed else (sentence,))
        return
    p, change = min(1.0, float(found.p.min()) * len(found.p)), float(found.mean.abs().max())
    yield Check(
        change if p < REJECT else 0.0,
        SMALL_CHANGE,
        f"the weights of the {modes.number} modes that were found are wrong: one move between them would shift "
        f"{100 * change:.2g} % of the samples (p = {p:.1g})",
        "start from samples of the unconstrained distribution, or use more chains and more steps",
        figures={"jump_t": float(found.t.max()), "jump_p": p, "jump_change": change},
    )


def _jump(evidence: Evidence, modes: Modes) -> ZeroTest:
    problem, potential = evidence.problem, evidence.problem.target.potential
    points = LINE_POINTS * (1.0 if problem.table.static else 1.0 + 2.0 / TRIED)
    index = evidence.affordable(2.0 if potential is not None else points)
    seen = view_of(evidence, index)
    if not seen.pointwise:
        raise NotAvailable("the density behind a decoder is not known at the samples")
    z, event = seen.points.flatten(1), tuple(seen.points.shape[1:])
    modes = modes._replace(label=modes.label[index]) if seen.same else find_modes(z)
    if modes.number < 2:
        raise NotAvailable("the latents have one mode")
    slope = slope_of(problem, seen)

    def inside(y: Tensor) -> Tensor:
        return seen.inside(y.reshape(len(y), *event))

    def rise(z: Tensor, y: Tensor) -> Tensor:
        if potential is not None:
            here, there = (seen.latent(v.reshape(len(v), *event)).to(problem.like.dtype) for v in (z, y))
            return problem.log_density(there) - problem.log_density(here)
        if not problem.table.static:
            some = evenly(len(z), min(len(z), len(index) // TRIED)).to(z.device)
            off = path_dependence(slope, z[some], y[some])
            if off > PATHS_AGREE:
                raise NotAvailable(f"the model's score is not a gradient between them (two paths differ by {off:.2g})")
        return line_integral(slope, z, y)

    nearest = seen.shape.nearest(modes.centres.reshape(-1, *event)).flatten(1)
    flow = jump_flow(z, modes, nearest, inside, rise)
    if float((flow.abs().sum(1) > 0.0).sum()) < SMALLEST:
        raise NotAvailable("no reflection maps the set and two of them to each other, or the valley is too deep")
    return zero_test(evidence.lineage.some(index), flow)


def slope_of(problem: Problem, seen: View) -> Callable[[Tensor], Tensor]:
    """The score of points of a view, (n, d) -> (n, d)."""
    event = tuple(seen.points.shape[1:])
    return lambda v: seen.pull(level_score(problem, seen.latent(v.reshape(len(v), *event)))).flatten(1)
