"""The score of a model at samples, where it can be had: grad log p of a fixed density, or of a diffusion model.

A network's score is known with noise only, and may be wrong where the noise is small.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from casal.diagnostics.denoiser_calibration import calibration
from casal.diagnostics.stein import agree
from casal.methods import Problem, gaussian, move, table_rows
from casal.targets import slope

MOST_LEVELS = 8
"""Noise levels, each twice the one before, at which the score of a diffusion model is evaluated."""

BLUR = 0.3
"""The coarsest of these levels, at most, in units of the root of the samples' total variance. At 0.3 of the spread of a
direction the scores of an exact model at two levels differ by 0.2 along it, and are no longer taken (``stein.py``)."""

FEWEST_OWN, MOST_OWN = 32, 256
"""Samples of the model that are drawn for it."""


class NotAvailable(Exception):
    """Why a check cannot be made."""


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
