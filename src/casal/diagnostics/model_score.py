"""The score of a model at samples, where it can be had: grad log p of a fixed density, or of a diffusion model.

A network's score is known with noise only, and may be wrong where the noise is small.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from casal.diagnostics.behind import view_of
from casal.diagnostics.check import FEWEST_TESTED, Check, Evidence, NotAvailable, evenly
from casal.diagnostics.denoiser_calibration import calibration
from casal.methods import Problem, gaussian, move, table_rows
from casal.targets import slope

MOST_LEVELS = 8
"""Noise levels, each twice the one before, at which the score of a diffusion model is evaluated."""

BLUR = 0.3
"""The coarsest of these levels, at most, in units of the root of the samples' total variance. At 0.3 of the spread of a
direction the scores of an exact model at two levels differ by 0.2 along it, and are no longer taken (``stein.py``)."""

LEVELS_AGREE = 0.2
"""Relative difference, along a field, of the scores of two noise levels up to which that without noise is read off
them. An exact model of data ten times coarser than the first of them differs by 0.03."""

FEWEST_OWN, MOST_OWN = 32, 256
"""Samples of the model that are drawn for it."""

PAIRS, COARSE, FINE = 64, 12, (97, 48)
"""Pairs of samples, at most, between which the potential is compared with the integral of the score, by
Gauss's rule with so many points; and the two rules where they differ, which have to agree: where modes are narrow, any
rule may be wrong."""

GRADIENT_ERROR, WRONG_PAIRS = 0.1, 0.03
"""Difference of log p by potential and by score that is let pass, beside rounding, or half of what it is by the coarse
rule; and the share of pairs that may exceed it."""


def scores_at(problem: Problem, z: Tensor, evaluations: float) -> list[Tensor]:
    """grad log p at points z (n, *latent) of the model, in float64: one, or one for each of several noise levels.

    A fixed density has one. A diffusion model has that of p with noise, s_sigma(z) = (D(z, sigma) - z) / sigma^2; from
    two levels, s_0 = (4 s_sigma - s_2sigma) / 3 up to O(sigma^4). Levels double from the model's finest on. If the
    first two agree there are no more.

    Args:
        problem: Of these points.
        z: The points.
        evaluations: That may be used, of all points together.

    Raises:
        NotAvailable: There is no denoiser.
    """
    found = [level_score(problem, z)]
    if problem.table.static:
        return found
    widest = BLUR * float(z.flatten(1).to(torch.float64).var(0).sum().sqrt())
    most = min(MOST_LEVELS, int(min(evaluations / max(len(z), 1), MOST_LEVELS)))
    for k in range(1, max(2, most)):
        if k > 1 and (2.0**k * finest(problem) > widest or (k == 2 and agree(*found))):
            break
        found.append(level_score(problem, z, 2.0**k))
    return found


class Slope(NamedTuple):
    """s . v without noise.

    Attributes:
        values: (n,).
        level: Number of the noise level that it was read off.
        doubt: Its relative error by that.
    """

    values: Tensor
    level: int = 0
    doubt: float = 0.0


def along(score: Sequence[Tensor], v: Tensor) -> Slope | None:
    """(4 s_k - s_2k) . v / 3 of the finest two levels that agree; None if no two do.

    For a Gaussian whose variance is 1 / a times that of the noise, s_k is short of s by a share a, s_2k of s_k by
    r = 3 a, and this by 4 a^2 = 4 r^2 / 9.
    """
    slopes = [(s * v).sum(1) for s in score]
    if len(slopes) == 1:
        return Slope(slopes[0])
    for k, (near, far) in enumerate(pairwise(slopes)):
        if agree(near, far):
            apart = float((near - far).square().sum() / near.square().sum().clamp_min(torch.finfo(near.dtype).tiny))
            return Slope((4.0 * near - far) / 3.0, k, 4.0 * apart / 9.0)
    return None


def agree(near: Tensor, far: Tensor) -> bool:
    """Whether scores of two noise levels tell the same."""
    return float((near - far).square().sum()) <= LEVELS_AGREE**2 * float(near.square().sum())


def own_samples(problem: Problem, count: int) -> Tensor:
    """So many samples of the model alone, latents drawn by its own table for the first chains of the problem."""
    stream, init = torch.Generator(problem.like.device).manual_seed(4250), problem.target.init
    x = (init[:count] if isinstance(init, Tensor) else problem.target.draw(count, stream)).to(problem.like)
    for row in table_rows(problem):
        x = move(problem, x, problem.score(x, row.t), row, gaussian(problem, len(x), stream))
    return x


def refuse_wrong_network(problem: Problem, numbers: Collection[int], evaluations: float) -> None:
    """Whether a network's score fits the model's own samples, before it is held against others.

    It is asked at the noise levels with these numbers, and at twice that (``scores_at``). A few samples of the model
    are drawn by its own table, without the set, as many as so many evaluations allow.

    Raises:
        NotAvailable: It does not fit: a slope below one there (``denoiser_calibration``).
    """
    if problem.table.static or problem.target.denoise is None:
        return
    levels = sorted({2.0 ** (k + j) for k in numbers for j in (0, 1)})
    count = int(min(float(MOST_OWN), evaluations / (len(problem.table) + 2 * len(levels))))
    if count < FEWEST_OWN:
        return
    problem = problem.take(slice(0, count))
    x = own_samples(problem, count)
    found = calibration(problem.target, x, [times * finest(problem) for times in levels])
    problem.usage.add_scores(found.evaluations * len(x))
    if bool(found.erroneous.any()):
        worst = int(found.slope.argmin())
        raise NotAvailable(
            f"the score at noise {float(found.levels[worst]):.3g} has slope {float(found.slope[worst]):.2f} on the "
            "model's own samples, where 1 is right (casal.diagnostics.calibration): train the network there"
        )


def level_score(problem: Problem, z: Tensor, times: float = 1.0) -> Tensor:
    """grad log p of a fixed density; of a diffusion model with noise, ``times`` its finest level, and its soft term."""
    x, table = z.to(problem.like.dtype), problem.table
    if table.static:
        return problem.score(x, table.t[-1].to(x.device)).to(torch.float64)
    sigma = times * finest(problem)
    found = (problem.denoise(x, sigma).to(torch.float64) - x) / sigma**2
    term = problem.target.log_weight
    return found if term is None else found + slope(term, x).to(torch.float64)


def finest(problem: Problem) -> float:
    """The smallest noise level of the table of a model, in units of the clean sample."""
    table = problem.table
    if problem.target.denoise is None or table.alpha is None or table.sigma is None:
        raise NotAvailable(f"{problem.target.name} has no denoiser to compute the score from")
    return float((table.sigma / table.alpha).min())


def gradient(evidence: Evidence) -> Check:
    """Whether the score is the gradient of the log-density: their rises between pairs of samples.

        log p(y) - log p(z) = integral of s . (y - z) along the line from z to y

    by Gauss's rule. A step in an energy, or a score of another potential, differs.
    """
    problem = evidence.problem
    pairs = int(min(PAIRS, len(evidence.z) // 2, evidence.left / (COARSE + 2)))
    if problem.target.potential is None or not problem.table.static or pairs < FEWEST_TESTED:
        return Check()
    some = evenly(len(evidence.z), 2 * pairs).to(evidence.z.device)
    seen = view_of(evidence, some)
    x = seen.latent(seen.points).to(problem.like.dtype)
    here, there = problem.take(evidence.index[some[:pairs]]), problem.take(evidence.index[some[pairs:]])
    z, y = x[:pairs], x[pairs:]
    height, other = here.log_density(z), there.log_density(y)
    allowed = GRADIENT_ERROR + 64.0 * torch.finfo(x.dtype).eps * (height.abs() + other.abs() + 1.0)
    gap = other - height - _rise(here, z, y, COARSE)
    off = ~(gap.abs() <= allowed)
    some = torch.nonzero(off).flatten()
    if len(some) * sum(FINE) > evidence.left:
        return Check()
    if len(some):  # a rule that is too coarse improves with its points
        finer, again = ((other - height)[some] - _rise(here.take(some), z[some], y[some], points) for points in FINE)
        doubt = torch.maximum(gap[some].abs() / 2, 2.0 * (finer - again).abs())
        off[some] = ~(finer.abs() <= torch.maximum(allowed[some], doubt))
    share = float(off.to(torch.float64).mean())
    most = float(gap[off].abs().max()) if bool(off.any()) else 0.0
    return Check(
        share,
        WRONG_PAIRS,
        f"the score is not the gradient of the log-density: between {100 * share:.2g} % of {pairs} pairs of samples "
        f"they differ by up to {most:.2g}",
        "an energy with a step has a gradient that does not know of it: smooth the step, or give potential= and grad "
        "of one density",
        figures={"not_gradient": share},
    )


def _rise(problem: Problem, z: Tensor, y: Tensor, points: int) -> Tensor:
    """The integral of the score along the lines from z to y, (n,), by Gauss's rule."""
    total = torch.zeros(len(z), dtype=torch.float64, device=z.device)
    for place, weight in zip(*(v.tolist() for v in np.polynomial.legendre.leggauss(points)), strict=True):
        slope = level_score(problem, z + (1.0 + place) / 2.0 * (y - z))
        total += weight / 2.0 * (slope * (y - z)).flatten(1).sum(1)
    return total
