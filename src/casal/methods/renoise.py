"""A move that knows a model through its denoiser alone: add noise, run the reverse process back down, accept or not.

    y  = x + g(x) + s w                                       (w ~ N(0, I); g leads towards C)
    x' ~ p(x0 | x0 + s noise = y)                             (the reverse process from the level s down)
    accept with probability min(1, exp(-rho (V(x') - V(x))) T(x') / T(x)),   T(x) = N(y; x + g(x), s^2) / N(y; x, s^2)

with V(x) = dist(A x, C)^2 / 2 and g(x) = c A^T (P(A x) - A x). Two clean points that share a noisy one are
exchangeable under p: p(x) N(y; x) p(x' | y) is symmetric in x and x'. So without g and V the move leaves p as it is; T
pays for g, and the factor of V makes pi_rho(x) ~ p(x) exp(-rho V(x)) the law that stays. Nothing is asked of the set
but its projection, nothing of the decoder but its derivative.

The reverse process takes ``steps`` evaluations at levels s_0 > s_1 > ... whose cube roots are equally spaced. With
r = (s' / s)^2 and h = log(s / s') of each step,

    x' = r x + (1 - r) (D + (D - D_before) h / (2 h_before)) + s' sqrt(1 - r) w,       the last one x' = D(x)

a multistep method of second order (Lu et al. 2022, SDE-DPM-Solver++ 2M). The first step is of first order. On a
Gaussian the mean is exact and ten steps have the variance to 1 or 2 % where s is not above the scale of the data
(geometric levels: 7 %); features finer than the last level are smoothed.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from casal.constraints import over_events
from casal.errors import SettingError
from casal.methods.ladder import half_square
from casal.methods.problem import Problem

RANGE = 0.1
"""The reverse process from s ends at RANGE min(s, 1) (one: the scale of the data), or at the model's finest level."""

SPACING = 3.0
"""The levels are equally spaced in their power 1 / SPACING."""

TOWARDS = 0.75
"""Share of the way to C that g goes when the noise is as large as the slack rho^(-1/2)."""

WANTED = 0.65
"""Share of proposals to accept; the size of the noise adapts to it between two exchanges."""

SIZES = (0.05, 2.0)
"""Bounds of the size of the noise in units of rho^(-1/2) / |A|."""


class Renoised(NamedTuple):
    """Chains under way between a clean point and the next.

    Attributes:
        x: The point: clean between two moves, noisy within one.
        z: A point of C: P(A x), or a draw from N(A x, 1 / rho) restricted to C.
        clean: The clean point the present move started from.
        start: y of the present move.
        before: The denoised estimate of the step before.
        half: V of ``clean``, (n,).
        log_weight: Logarithms of the weights, (n,).
        ancestor: Starting chain each chain descends from, (n,).
        accepted: How many proposals each chain has accepted since the last exchange, (n,).
        rho: Coupling that all chains are at.
        size: Size of the noise in units of rho^(-1/2) / |A|.
    """

    x: Tensor
    z: Tensor
    clean: Tensor
    start: Tensor
    before: Tensor
    half: Tensor
    log_weight: Tensor
    ancestor: Tensor
    accepted: Tensor
    rho: Tensor
    size: Tensor


class Renoise(NamedTuple):
    """The first row of a move with noise s = ``scale`` ``size`` rho^(-1/2) / |A|."""

    scale: float = 1.0


class Reverse(NamedTuple):
    """Row number ``at`` of the ``steps`` rows of the reverse process, which ends at the level ``finest`` or above."""

    at: int
    steps: int
    finest: float
    scale: float = 1.0


class Accept(NamedTuple):
    """The last row of a move."""

    scale: float = 1.0


def reverse_rows(problem: Problem, steps: int, scale: float = 1.0) -> list[Reverse]:
    """The rows of a reverse process of ``steps`` evaluations."""
    finest = finest_level(problem)
    return [Reverse(j, steps, finest, scale) for j in range(steps)]


def move_rows(problem: Problem, steps: int, scale: float = 1.0) -> list[Any]:
    """The rows of one move of ``steps`` evaluations."""
    return [Renoise(scale), *reverse_rows(problem, steps, scale), Accept(scale)]


def finest_level(problem: Problem) -> float:
    """The smallest noise of the model's table, in units of the clean sample."""
    table = problem.table
    if table.alpha is None or table.sigma is None or problem.target.denoise is None:
        raise SettingError(
            f"{problem.target.name} has no denoiser: this method needs a diffusion or flow model "
            "(ddpm, vp_sde, edm, flow); for a fixed density take WeightedCASAL"
        )
    return float((table.sigma / table.alpha).min())


def start_of(problem: Problem, x: Tensor) -> Renoised:
    """Chains with equal weights."""
    zeros = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    order = torch.arange(len(x), device=x.device)
    z = problem.project(problem.decode(x))
    one = torch.ones((), dtype=torch.float64, device=x.device)
    return Renoised(x, z, x, x, x, zeros, zeros, order, zeros, zeros.new_zeros(()), one)


def footed(problem: Problem, state: Renoised) -> Renoised:
    """With the foot of every clean point and its distance."""
    decoded = problem.decode(state.x)
    z = problem.project(decoded, warm=state.z)
    return state._replace(z=z, half=half_square(decoded - z))


def noise_of(problem: Problem, state: Renoised, scale: float) -> float:
    """s: a multiple of the slack of the coupling, rho^(-1/2) / |A| in the latent."""
    return scale * float(state.size) / (float(state.rho) ** 0.5 * problem.decoder.norm())


def guide(problem: Problem, x: Tensor, z: Tensor, s: float, rho: Tensor) -> Tensor:
    """g(x) = c A^T (z - A x) with c |A|^2 = min(1, (s |A|)^2 rho) TOWARDS."""
    stiffness = problem.decoder.norm() ** 2
    share = TOWARDS * min(1.0, s**2 * stiffness * float(rho)) / stiffness
    return share * problem.decoder.vjp(x)(z - problem.decode(x))


def renoised(problem: Problem, state: Renoised, row: Renoise, noise: Tensor) -> Renoised:
    """y = x + g(x) + s w."""
    s = noise_of(problem, state, row.scale)
    y = state.x + guide(problem, state.x, state.z, s, state.rho) + s * noise
    return state._replace(x=y, start=y, clean=state.x, before=y)


def reversed_step(problem: Problem, state: Renoised, row: Reverse, noise: Tensor) -> Renoised:
    """One step of the reverse process that leads from the level s to a clean point."""
    s = noise_of(problem, state, row.scale)
    here, there = (_level(s, row, k) for k in (row.at, row.at + 1))
    clean = problem.denoise(state.x, here)
    if row.at == row.steps - 1:
        return state._replace(x=clean)
    ahead = clean
    if row.at > 0 and there < here:
        ratio_of_steps = math.log(here / there) / math.log(_level(s, row, row.at - 1) / here)
        ahead = clean + (0.5 * ratio_of_steps) * (clean - state.before)
    kept = (there / here) ** 2
    x = kept * state.x + (1.0 - kept) * ahead + there * math.sqrt(1.0 - kept) * noise
    return state._replace(x=x, before=clean)


def _level(s: float, row: Reverse, k: int) -> float:
    """Level number k of the reverse process from s."""
    end = min(s, max(row.finest, RANGE * min(s, 1.0)))
    share = k / max(row.steps - 1, 1)
    return float((s ** (1 / SPACING) + share * (end ** (1 / SPACING) - s ** (1 / SPACING))) ** SPACING)


def accepted(problem: Problem, state: Renoised, row: Accept, uniform: Tensor) -> Renoised:
    """Keep the proposal, or go back to the clean point the move started from."""
    new = footed(problem, state)
    yes = torch.log(uniform) < log_ratio(problem, state, new, noise_of(problem, state, row.scale))
    return state._replace(
        x=_pick(yes, state.x, state.clean),
        z=_pick(yes, new.z, state.z),
        half=torch.where(yes, new.half, state.half),
        accepted=state.accepted + yes.to(state.accepted),
    )


def log_ratio(problem: Problem, old: Renoised, new: Renoised, s: float) -> Tensor:
    """log of exp(-rho (V(x') - V(x))) T(x') / T(x), chain by chain; x is ``old.clean`` and x' is ``new.x``."""
    tilt = _tilt(problem, old, new.x, new.z, s) - _tilt(problem, old, old.clean, old.z, s)
    return tilt - old.rho * (new.half - old.half)


def adapted(state: Renoised, moves: int) -> Renoised:
    """The size of the noise for the next moves, from how many of the last ones were accepted; the count is reset."""
    rate = float(state.accepted.mean()) / moves
    size = (state.size * torch.exp(torch.as_tensor(rate - WANTED, dtype=torch.float64))).clamp(*SIZES)
    return state._replace(size=size, accepted=torch.zeros_like(state.accepted))


def _tilt(problem: Problem, state: Renoised, x: Tensor, z: Tensor, s: float) -> Tensor:
    """log N(y; x + g(x), s^2) - log N(y; x, s^2) = (g . (y - x) - |g|^2 / 2) / s^2."""
    g = guide(problem, x, z, s, state.rho).reshape(len(x), -1).to(torch.float64)
    away = (state.start - x).reshape(len(x), -1).to(torch.float64)
    return ((g * away).sum(1) - g.square().sum(1) / 2) / s**2


def _pick(yes: Tensor, one: Tensor, other: Tensor) -> Tensor:
    return torch.where(over_events(yes, one), one, other)
