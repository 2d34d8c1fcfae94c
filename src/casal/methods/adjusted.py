"""Metropolis-adjusted Langevin moves, and the tempered start of ``WeightedCASAL`` that they make possible.

A move for the density pi(x) ~ q(x)^(1-b) p(x)^b exp(-rho/2 dist(A x, C)^2) proposes, in the coordinates u in which the
preconditioner D and A^T A are diagonal,

    u' = u + S g(u) + (2 S)^(1/2) w,   g = grad log pi,   S = size (b / tau + (1 - b) k + rho A^T A / MOVE)^-1
    accept with probability min(1, pi(u') exp(-|u - u' - S g(u')|^2 / 4S) / (pi(u) exp(-|u' - u - S g(u)|^2 / 4S)))

so it leaves pi as it is, whatever the step. log p comes from the potential. ``size`` follows the share of accepted
proposals.

**Tempered start.** With the density q of the starting points and the potential known, the chains go from q to
p exp(-rho_0/2 dist^2) through b = 0 ... 1, rho = b rho_0, with weights (``population.temper``):

    weight *= (p(x) exp(-rho_0/2 dist(A x, C)^2) / q(x))^(b' - b);   resample if the effective size < ess n;   one move

rho_0 leaves the distances that the starting points have anyway. It holds chains back where p alone is not integrable.
After it the modes of p have their right weights wherever the chains came from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from casal.constraints import half_square
from casal.methods.coupling import DRIFT_LIMIT, MOVE, distance_rho, population_record
from casal.methods.population import Groups, equal_weights, resample, temper
from casal.methods.problem import Problem, chain_by_chain, pick

WANTED, GAIN = 0.7, 0.5
"""Share of proposals to accept, and how fast the size of the step follows it from level to level."""

SIZES = (1e-3, 1e2)
"""Bounds of the size of the step, in units of the one that was asked for."""


class AdjustedState(NamedTuple):
    """A population of Metropolis-adjusted chains.

    Attributes:
        x: Points.
        z: Their nearest points P(A x).
        score: Score of p at x.
        log_p: log p at x up to a constant, (n,).
        half_distance2: dist(A x, C)^2 / 2, (n,).
        accepted: Whether the last proposal was accepted, (n,) 0 or 1.
        log_weight: Logarithms of the weights, (n,).
        ancestor: Starting chain each chain descends from, (n,).
    """

    x: Tensor
    z: Tensor
    score: Tensor
    log_p: Tensor
    half_distance2: Tensor
    accepted: Tensor
    log_weight: Tensor
    ancestor: Tensor


class AdjustedRow(NamedTuple):
    """What a move needs: tau, the time of the score, the b of its level, rho, and the size of the step."""

    b: float
    t: Tensor
    share: float
    rho: float
    size: float


class Start(NamedTuple):
    """Where a tempered start has come to: b, the size of the step, and rho_0; b = 0 before the first level."""

    share: float = 0.0
    size: float = 1.0
    rho_0: float = 0.0


def adjusted_noise(problem: Problem, n: int, generator: torch.Generator, out: Tensor | None = None) -> Tensor:
    """Standard normal numbers (n, d + 1): d for a proposal, and one that decides on it."""
    count = math.prod(problem.latent) + 1
    return torch.randn((n, count), generator=generator, device=generator.device).to(problem.like.dtype)


def begin(problem: Problem, x: Tensor) -> AdjustedState:
    """Chains with equal weights at x."""
    log_weight, ancestor = equal_weights(problem, len(x))
    score, log_p = problem.score(x, problem.table.t[0].to(x.device)), problem.log_density(x)
    decoded = problem.decode(x)
    z = problem.project(decoded)
    half_distance2, none = half_square(decoded - z), torch.zeros_like(log_weight)
    return AdjustedState(x, z, score, log_p, half_distance2, none, log_weight, ancestor)


def adjusted_step(problem: Problem, state: AdjustedState, row: AdjustedRow, noise: Tensor) -> AdjustedState:
    """Propose, and accept or not; the noise is from ``adjusted_noise``."""
    x, gram = state.x, problem.gram
    stiff = row.share / row.b + row.rho * gram.eigenvalues / MOVE
    if row.share < 1.0:
        stiff = stiff + (1.0 - row.share) * start_curvature(problem)
    size = (row.size / stiff).to(x.dtype)
    w, decide = noise[:, :-1], noise[:, -1]
    drift = _drift(problem, state, row, size)
    shift = drift + (2.0 * size).sqrt() * w.reshape(drift.shape)
    y = x + gram.unwhiten(shift).reshape(x.shape)
    decoded = problem.decode(y)
    z = problem.nearest(decoded, warm=state.z).to(state.z.dtype)
    new = state._replace(
        x=y,
        z=z,
        score=problem.score(y, row.t),
        log_p=problem.log_density(y),
        half_distance2=half_square(decoded - z),
    )
    back = (shift + _drift(problem, new, row, size)).to(torch.float64).square() / (4.0 * size)
    ratio = _log_pi(problem, new, row) - _log_pi(problem, state, row)
    ratio += w.to(torch.float64).square().sum(1) / 2 - back.reshape(len(x), -1).sum(1)
    yes = torch.special.log_ndtr(decide.to(torch.float64)) < ratio
    moved = AdjustedState(*(pick(yes, one, other) for one, other in zip(new, state, strict=True)))
    return moved._replace(accepted=yes.to(state.accepted))


def start_curvature(problem: Problem) -> Tensor | float:
    """Curvature k of -log q in the coordinates u, one for each where they are those of x, else their mean.

    From a difference of the score of q, which is exact for a Gaussian with independent coordinates. Moves for other q
    are exact as well, with another step.
    """
    assert problem.start is not None
    ends = torch.zeros((2, *problem.latent), dtype=torch.float64, device=problem.like.device)
    ends[1] = 1.0
    score = problem.start.score(ends)
    scaled = (score[0] - score[1]).abs().clamp_min(1e-300) * problem.gram.root.to(score).square()
    return scaled if problem.gram.basis is None else float(scaled.mean())


def _drift(problem: Problem, state: AdjustedState, row: AdjustedRow, size: Tensor) -> Tensor:
    """S g in the coordinates u, cut off far out: a steep tail cannot fling a proposal away."""
    gradient = state.score
    if row.share < 1.0 and problem.start is not None:
        gradient = row.share * gradient + (1.0 - row.share) * problem.start.score(state.x)
    if row.rho > 0.0:
        offset = (problem.decode(state.x) - state.z).to(state.x.dtype)
        gradient = gradient - row.rho * problem.decoder.vjp(state.x)(offset)
    limit = DRIFT_LIMIT * size.sqrt()
    return (size * problem.gram.whiten(gradient)).clamp(-limit, limit)


def _log_pi(problem: Problem, state: AdjustedState, row: AdjustedRow) -> Tensor:
    value = row.share * state.log_p - row.rho * state.half_distance2
    if row.share < 1.0 and problem.start is not None:
        value = value + (1.0 - row.share) * problem.start.log_density(state.x)
    return torch.where(torch.isnan(value), -torch.inf, value)


def next_start(
    problem: Problem,
    state: AdjustedState,
    at: Start,
    left: int,
    ess: float,
    groups: Groups,
    generator: torch.Generator,
) -> tuple[AdjustedState, Start, Mapping[str, float]]:
    """One level of the tempered start, ``left`` levels before its end, this one included."""
    assert problem.start is not None
    rho_0, size, rate = at.rho_0, at.size, 1.0
    if at.share == 0.0:
        rho_0 = distance_rho(0.0, state.half_distance2, groups.weights(state.log_weight))
    else:
        rate = float(state.accepted.mean())
        size = min(max(size * math.exp((rate - WANTED) * GAIN), SIZES[0]), SIZES[1])
    gain = state.log_p - rho_0 * state.half_distance2 - chain_by_chain(problem.start.log_density, state.x)
    b, log_weight = temper(at.share, state.log_weight, gain, groups, left)
    state = state._replace(log_weight=log_weight)
    info = {**population_record(state, groups, b * rho_0), "share": b, "acceptance": rate}
    return resample(state, generator, groups, ess), Start(b, size, rho_0), info
