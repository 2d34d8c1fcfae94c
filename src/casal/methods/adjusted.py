"""Metropolis-adjusted Langevin moves, and the tempered start that they make possible.

A move for the density pi(x) ~ q(x)^(1-b) p(x)^b exp(-rho/2 dist(A x, C)^2) proposes, in the coordinates u in which the
preconditioner D and A^T A are diagonal,

    u' = u + S g(u) + (2 S)^(1/2) w,   g = grad log pi,   S = size (b / tau + (1 - b) k + rho A^T A / MOVE)^-1
    accept with probability min(1, pi(u') exp(-|u - u' - S g(u')|^2 / 4S) / (pi(u) exp(-|u' - u - S g(u)|^2 / 4S)))

so it leaves pi as it is, whatever the step. log p comes from the potential. ``size`` follows the share of accepted
proposals.

**Tempered start.** With the density q of the starting points and the potential known, the chains climb from q to
p exp(-rho_0/2 dist^2) through b = 0 ... 1, rho = b rho_0, with weights:

    weight *= (p(x) exp(-rho_0/2 dist(A x, C)^2) / q(x))^(b' - b);   resample if the effective size < ess n;   one move

rho_0 leaves the distances that the starting points have anyway. It holds chains back where p alone is not integrable.
After it the modes of p have their right weights wherever the chains came from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from casal.constraints import half_square
from casal.methods.base import TableRow
from casal.methods.context import Context, chain_by_chain, pick
from casal.methods.coupling import DRIFT_LIMIT, MOVE, distance_rho, population_record
from casal.methods.population import Groups, equal_weights, resample, temper

WANTED, PACE = 0.7, 0.5
"""Share of proposals to accept, and how fast the size of the step follows it from rung to rung."""

SIZES = (1e-3, 1e2)
"""Bounds of the size of the step, in units of the one that was asked for."""


class AdjustedState(NamedTuple):
    """A population of Metropolis-adjusted chains.

    Attributes:
        x: Points.
        z: Their feet P(A x).
        score: Score of p at x.
        log_p: log p at x up to a constant, (n,).
        half: dist(A x, C)^2 / 2, (n,).
        log_weight: Logarithms of the weights, (n,).
        ancestor: Starting chain each chain descends from, (n,).
        accepted: Proposals each chain has accepted since the last rung, (n,).
        rho: Coupling that all chains are at.
        top: rho_0; zero before the first rung.
        share: b, how far the start has come; 1 after it.
        size: Size of the step, in units of the one that was asked for.
    """

    x: Tensor
    z: Tensor
    score: Tensor
    log_p: Tensor
    half: Tensor
    log_weight: Tensor
    ancestor: Tensor
    accepted: Tensor
    rho: Tensor
    top: Tensor
    share: Tensor
    size: Tensor


def adjusted_noise(context: Context, n: int, generator: torch.Generator, out: Tensor | None = None) -> Tensor:
    """Standard normal numbers (n, d + 1): d for a proposal, and one that decides on it."""
    count = torch.Size(context.latent).numel() + 1
    return torch.randn((n, count), generator=generator, device=generator.device).to(context.like.dtype)


def begin(context: Context, x: Tensor) -> AdjustedState:
    """Chains with equal weights at x, as samples of p."""
    log_weight, ancestor = equal_weights(context, len(x))
    zeros, zero = torch.zeros_like(log_weight), log_weight.new_zeros(())
    score = context.score(x, context.table.t[0].to(x.device))
    log_p = context.log_density(x)
    z = context.project(context.decode(x))
    half = half_square(context.decode(x) - z)
    one = torch.ones_like(zero)
    return AdjustedState(x, z, score, log_p, half, log_weight, ancestor, zeros, zero, zero, one, one)


def adjusted_step(
    context: Context, state: AdjustedState, row: TableRow, noise: Tensor, *, stiffness: Tensor | float = 0.0
) -> AdjustedState:
    """Propose, and accept or not.

    Args:
        context: Model, set and decoder.
        state: The chains.
        row: Row of the table, whose b is tau.
        noise: From ``adjusted_noise``.
        stiffness: k, the curvature of -log q in the coordinates u; see ``start_stiffness``.
    """
    x, gram, b = state.x, context.gram, float(state.share)
    stiff = b / row.b + (1.0 - b) * stiffness + state.rho * gram.eigenvalues / MOVE
    size = (state.size / stiff).to(x.dtype)
    w, decide = noise[:, :-1], noise[:, -1]
    drift = _drift(context, state, size)
    shift = drift + (2.0 * size).sqrt() * w.reshape(drift.shape)
    y = x + gram.unwhiten(shift).reshape(x.shape)
    decoded = context.decode(y)
    z = context.foot(decoded, warm=state.z)
    score = context.score(y, row.t)
    new = state._replace(x=y, z=z, score=score, log_p=context.log_density(y), half=half_square(decoded - z))
    back = (shift + _drift(context, new, size)).to(torch.float64).square() / (4.0 * size)
    ratio = _log_pi(context, new, b) - _log_pi(context, state, b)
    ratio += w.to(torch.float64).square().sum(1) / 2 - back.reshape(len(x), -1).sum(1)
    yes = torch.special.log_ndtr(decide.to(torch.float64)) < ratio
    chosen = {
        name: pick(yes, getattr(new, name), getattr(state, name)) for name in ("x", "z", "score", "log_p", "half")
    }
    chosen["z"] = chosen["z"].to(state.z.dtype)
    return state._replace(**chosen, accepted=state.accepted + yes.to(state.accepted))


def start_stiffness(context: Context) -> Tensor | float:
    """Curvature of -log q in the coordinates u, one for each where they are those of x, else their mean.

    From differences of the score of q about zero, which are exact for a Gaussian.
    """
    assert context.start is not None
    size = torch.Size(context.latent).numel()
    unit = torch.eye(size, dtype=torch.float64, device=context.like.device).reshape(size, *context.latent)
    slopes = context.start.score(torch.zeros_like(unit)) - context.start.score(unit)
    curvature = slopes.reshape(size, size).diagonal().abs().reshape(context.latent).clamp_min(1e-300)
    scaled = curvature * context.gram.root.to(curvature).square()
    return scaled if context.gram.basis is None else float(scaled.mean())


def _drift(context: Context, state: AdjustedState, size: Tensor) -> Tensor:
    """S g in the coordinates u, cut off far out: a steep tail cannot fling a proposal away."""
    b, rho = float(state.share), float(state.rho)
    gradient = state.score
    if b < 1.0 and context.start is not None:
        gradient = b * gradient + (1.0 - b) * context.start.score(state.x)
    if rho > 0.0:
        gradient = gradient - rho * context.decoder.vjp(state.x)((context.decode(state.x) - state.z).to(state.x.dtype))
    limit = DRIFT_LIMIT * size.sqrt()
    return (size * context.gram.whiten(gradient)).clamp(-limit, limit)


def _log_pi(context: Context, state: AdjustedState, b: float) -> Tensor:
    value = b * state.log_p - state.rho * state.half
    if b < 1.0 and context.start is not None:
        value = value + (1.0 - b) * context.start.log_density(state.x)
    return torch.where(torch.isnan(value), -torch.inf, value)


def follow(state: AdjustedState) -> tuple[AdjustedState, float]:
    """The state with a step that follows the share of accepted proposals, and that share."""
    rate = float(state.accepted.mean())
    size = (state.size * torch.exp(torch.as_tensor((rate - WANTED) * PACE, dtype=torch.float64))).clamp(*SIZES)
    return state._replace(size=size, accepted=torch.zeros_like(state.accepted)), rate


def warm(
    left: int, ess: float, groups: Groups, context: Context, state: AdjustedState, generator: torch.Generator
) -> tuple[AdjustedState, Mapping[str, float]]:
    """One level of the tempered start, ``left`` levels before its end, this one included."""
    assert context.start is not None
    start, rate = context.start, 1.0
    if float(state.top) == 0.0:
        top = torch.full_like(state.top, distance_rho(0.0, state.half, groups.weights(state.log_weight)))
        state = state._replace(share=torch.zeros_like(state.share), top=top)
    else:
        state, rate = follow(state)
    gain = state.log_p - state.top * state.half - chain_by_chain(start.log_density, state.x)
    b, log_weight = temper(float(state.share), state.log_weight, gain, groups, left)
    state = state._replace(share=torch.full_like(state.share, b), rho=b * state.top, log_weight=log_weight)
    info = {**population_record(state, groups), "share": b, "acceptance": rate}
    return resample(state, generator, groups, ess), info
