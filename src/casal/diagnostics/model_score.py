"""The score of a model at samples, where it can be had: grad log p of a fixed density, or of a diffusion model.

A network's score is known with noise only. Where its finest levels disagree, its score without noise is not known.
"""

from __future__ import annotations

import torch
from torch import Tensor

from casal.diagnostics.denoiser_calibration import FEWEST_POINTS, calibration
from casal.methods import Problem, gaussian, move, table_rows
from casal.targets import slope

LEVELS_AGREE, LEVELS_DIFFER = 0.2, 0.4
"""Relative difference of a diffusion model's scores at its finest noise level and at twice that: up to which the score
at zero noise is read off them, and from which on it is an objection, unless the denoiser fits the samples: then the
data are finer than the level. An exact model of data ten times coarser than the level differs by 0.03."""


ROUNDINGS = 4.0
"""Roundings of a sample by which the scores of two levels may differ without saying anything."""

OWN_LEVELS = (1.0, 2.0)
"""Noise levels at which a network is looked at, in units of its finest."""

FEWEST_OWN, MOST_OWN = 32, 256
"""Samples of the model that are drawn for it."""


class NotAvailable(Exception):
    """Why a check cannot be made."""


class BadModel(NotAvailable):
    """Why it cannot be made, and why the model is not to be trusted either."""


def score_at(problem: Problem, z: Tensor) -> Tensor:
    """grad log p at points z (n, *latent) of the model, in float64.

    A fixed density has it. A diffusion model has that of p with noise, s_sigma(z) = (D(z, sigma) - z) / sigma^2, at its
    finest level sigma and at twice that; s_0 = (4 s_sigma - s_2sigma) / 3 up to O(sigma^4).

    Raises:
        NotAvailable: The two levels disagree, or there is no denoiser.
    """
    near = level_score(problem, z)
    if problem.table.static:
        return near
    far = level_score(problem, z, 2.0)
    differ = float((near - far).square().sum().sqrt() / near.square().sum().sqrt().clamp_min(1e-300))
    if not differ <= LEVELS_AGREE:
        finest, dtype = _finest(problem), problem.like.dtype
        rounding = ROUNDINGS * torch.finfo(dtype).eps * z.square().sum().sqrt() / finest**2
        if bool((near - far).square().sum().sqrt() <= rounding):
            raise NotAvailable(
                f"the model's scores at noise {finest:.3g} are below the rounding of {dtype} numbers of size "
                f"{float(z.abs().max()):.3g}; set run=casal.Run(dtype=torch.float64)"
            )
        text = (
            f"the model's scores at noise {finest:.3g} and {2 * finest:.3g} differ by {100 * differ:.3g} %, so its "
            "score without noise is not known; add finer noise levels"
        )
        if differ <= LEVELS_DIFFER or _fits(problem, z, finest):
            raise NotAvailable(text)
        raise BadModel(f"{text}, or train the network there (casal.diagnostics.calibration)")
    return (4.0 * near - far) / 3.0


def own_samples(problem: Problem, count: int) -> Tensor:
    """So many samples of the model alone, latents drawn by its own table for the first chains of the problem."""
    stream, init = torch.Generator(problem.like.device).manual_seed(4250), problem.target.init
    x = (init[:count] if isinstance(init, Tensor) else problem.target.draw(count, stream)).to(problem.like)
    for row in table_rows(problem):
        x = move(problem, x, problem.score(x, row.t), row, gaussian(problem, len(x), stream))
    return x


def refuse_wrong_network(problem: Problem, evaluations: float) -> None:
    """Whether a network's score at its finest levels fits the model's own samples, before it is held against others.

    A few samples of the model are drawn by its own table, without the set, as many as so many evaluations allow.

    Raises:
        NotAvailable: It does not fit: a slope below one there (``denoiser_calibration``).
    """
    if problem.table.static or problem.target.denoise is None:
        return
    count = int(min(float(MOST_OWN), evaluations / (len(problem.table) + 2 * len(OWN_LEVELS))))
    if count < FEWEST_OWN:
        return
    problem = problem.take(slice(0, count))
    x = own_samples(problem, count)
    found = calibration(problem.target, x, [times * _finest(problem) for times in OWN_LEVELS])
    problem.usage.add_scores(found.evaluations * len(x))
    if bool(found.erroneous.any()):
        worst = int(found.slope.argmin())
        raise NotAvailable(
            f"the score at noise {float(found.levels[worst]):.3g} has slope {float(found.slope[worst]):.2f} on the "
            "model's own samples, where 1 is right (casal.diagnostics.calibration): train the network there"
        )


def _fits(problem: Problem, z: Tensor, sigma: float) -> bool:
    """Whether the denoiser, at a noise level, is calibrated on the samples: an exact one is, whatever the data."""
    if len(z) < FEWEST_POINTS:
        return False
    found = calibration(problem.target, z.to(problem.like.dtype), [sigma])
    problem.usage.add_scores(found.evaluations * len(z))
    return not bool(found.erroneous.any())


def level_score(problem: Problem, z: Tensor, times: float = 1.0) -> Tensor:
    """grad log p of a fixed density; of a diffusion model with noise, ``times`` its finest level, and its soft term."""
    x, table = z.to(problem.like.dtype), problem.table
    if table.static:
        return problem.score(x, table.t[-1].to(x.device)).to(torch.float64)
    sigma = times * _finest(problem)
    found = (problem.denoise(x, sigma).to(torch.float64) - x) / sigma**2
    term = problem.target.log_weight
    return found if term is None else found + slope(term, x).to(torch.float64)


def _finest(problem: Problem) -> float:
    table = problem.table
    if problem.target.denoise is None or table.alpha is None or table.sigma is None:
        raise NotAvailable(f"{problem.target.name} has no denoiser to compute the score from")
    return float((table.sigma / table.alpha).min())
