"""How the chains of a diffusion model move at one rung of the ladder, and how the rung weighs them.

A coupling of strength rho is noise of size rho^(-1/2), so a move adds noise of about that size to a clean point and
runs the model's reverse process back down. It takes ``inner_steps`` evaluations of the denoiser D at levels
s_0 > s_1 > ... whose seventh roots are equally spaced. With r = (s' / s)^2 and h = log(s / s') of each step,

    x' = r x + (1 - r) (D + c (D - D_before) h / (2 h_before)) + s' sqrt(1 - r) w,     the last one x' = D(x)

The last one gets noise of variance e^2 s^2 if it is at the model's finest level s: the denoising error there
(``data_floor``), which is the variance of x0.

The first step has c = 0. c = 1 is a multistep method of second order (Lu et al. 2022, SDE-DPM-Solver++ 2M). Its
difference of two estimates carries their noise, so it makes the variance too large where s is far above the scale of
the data (20 steps, s = 100 scales: 11 %), as c = 0 makes it too small everywhere (10 to 20 %: what a move misses adds
up over many). So c is chosen such that the variance of a Gaussian of the finest scale of the data is exact.

Two kinds of moves share it: ``gibbs_moves.py`` and ``metropolis_moves.py``. ``level_moves.py`` has its own.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from casal.errors import SettingError
from casal.methods.base import Stage, free_step, table_rows
from casal.methods.coupling import Finish
from casal.methods.problem import Problem

RANGE = 0.1
"""The reverse process from s ends at RANGE min(s, scale of the data), or at the model's finest level above that."""

SHORT = 7
"""Steps of the reverse process far below the scale of the data."""

READ = 512
"""Chains from which the scale of the data is read."""

LEVEL_STEP = 2.0
"""Factor from one noise level to the next on the way to the scale of the data."""

SHARES = (0.5, 1.2)
"""Bounds of c, the share of the multistep term."""

SPACING = 7.0
"""The levels are equally spaced in their power 1 / SPACING."""


class Reverse(NamedTuple):
    """Row number ``at`` of the ``steps`` rows of the reverse process, which ends at the level ``finest`` or above."""

    at: int
    steps: int
    finest: float


class Moves(ABC):
    """One kind of moves. The states have the fields x, z, estimate, log_weight, ancestor, rho, top, floor, blur.

    Args:
        inner_steps: Evaluations of the denoiser in one move.

    Attributes:
        settles: Whether moves can go on within a set that has an interior, after the finish.
    """

    settles: ClassVar[bool] = False

    def __init__(self, inner_steps: int) -> None:
        self.inner_steps = inner_steps

    @property
    def evaluations(self) -> int:
        """Evaluations of the network in one move."""
        return self.inner_steps

    def first(self, problem: Problem) -> list[Stage]:
        """The way from starting points to clean points of the model: the rows of its table, unconstrained."""
        return [Stage(table_rows(problem), free_step)]

    @abstractmethod
    def start(self, problem: Problem, x: Tensor) -> Any:
        """The state of chains with equal weights at x, at rho = 0."""

    @abstractmethod
    def sweep(self, problem: Problem) -> list[Stage]:
        """The stages of one move."""

    @abstractmethod
    def arrive(self, problem: Problem, state: Any, moves: int) -> tuple[Any, Mapping[str, float]]:
        """The state as the next rung needs it, after some moves at the one before, and what the trace keeps of them."""

    @abstractmethod
    def weigh(self, problem: Problem, state: Any, rho: float) -> Tensor:
        """log Phi_rho'(x) - log Phi_rho(x) for the next rho', (n,)."""

    @abstractmethod
    def half(self, problem: Problem, state: Any) -> Tensor:
        """dist(A x, C)^2 / 2 of every chain, (n,)."""

    @abstractmethod
    def finish(self, problem: Problem) -> Finish:
        """What the chains do together after the last rung."""

    def settle(self, problem: Problem, state: Any) -> Any:
        """The state for moves within C itself, after the finish; where ``settles``."""
        raise NotImplementedError

    def samples(self, problem: Problem, state: Any) -> Tensor:
        """The samples."""
        return problem.strict(problem.decode(state.x), warm=state.z)

    @abstractmethod
    def level(self, problem: Problem, state: Any) -> float:
        """s: the noise of a move in the latent."""

    def reverse_stage(self, problem: Problem) -> Stage:
        """The reverse process from the level s down to a clean point."""
        finest = finest_level(problem)
        return Stage([Reverse(j, self.inner_steps, finest) for j in range(self.inner_steps)], self.reverse)

    def reverse(self, problem: Problem, state: Any, row: Reverse, noise: Tensor) -> Any:
        """One step of the reverse process."""
        s, floor = self.level(problem, state), float(state.floor)
        levels = reverse_levels(s, floor, row.finest, row.steps)
        at = row.at - (row.steps - len(levels))
        if at < 0:
            return state  # near the data fewer steps do
        here = levels[at]
        clean = problem.denoise(state.x, here)
        if at == len(levels) - 1:
            left = float(state.blur) * here if here <= row.finest else 0.0
            return state._replace(x=clean + left * noise)
        there, ahead = levels[at + 1], clean
        if at > 0:
            share = multistep_share(levels, floor / RANGE, levels[-1] <= row.finest)
            ahead = clean + share * _ratio(levels, at) * (clean - state.estimate)
        kept = (there / here) ** 2
        x = kept * state.x + (1.0 - kept) * ahead + there * math.sqrt(1.0 - kept) * noise
        return state._replace(x=x, estimate=clean)


@lru_cache(maxsize=4096)
def reverse_levels(s: float, floor: float, finest: float, steps: int) -> tuple[float, ...]:
    """The levels of the reverse process from s down to the floor, or to RANGE s if that is lower.

    There are ``steps`` of them from the scale of the data on, fewer below it (down to SHORT), and one at the model's
    finest level and below.
    """
    end = max(finest, min(floor, RANGE * s))
    if s <= end or steps == 1:
        return (s,)
    share = min(1.0, max(0.0, 1.0 + math.log10(RANGE * s / floor)))
    count = min(steps, SHORT + math.ceil(share * max(0, steps - SHORT)))
    first, last = s ** (1 / SPACING), end ** (1 / SPACING)
    return tuple(float((first + k / (count - 1) * (last - first)) ** SPACING) for k in range(count))


def _ratio(levels: Sequence[float], k: int) -> float:
    """h / (2 h_before) of step k."""
    return 0.5 * math.log(levels[k] / levels[k + 1]) / math.log(levels[k - 1] / levels[k])


@lru_cache(maxsize=4096)
def multistep_share(levels: tuple[float, ...], scale: float, noisy: bool) -> float:
    """c: with it the reverse process has the exact variance s^2 l^2 / (s^2 + l^2) on a Gaussian of scale l.

    By halving the interval SHARES: the variance rises with c.
    """
    exact = levels[0] ** 2 * scale**2 / (levels[0] ** 2 + scale**2)
    low, high = SHARES
    for _ in range(12):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _variance(levels, scale, middle, noisy) < exact else (low, middle)
    return 0.5 * (low + high)


def _variance(levels: Sequence[float], scale: float, share: float, noisy: bool) -> float:
    """Variance of the last point given the first, in the reverse process on a Gaussian of this scale.

    x and the estimate before are linear in all noise; their covariance is carried along.
    """
    xx = xd = dd = 0.0  # of x, of x with the estimate before, of the estimate before
    for k, here in enumerate(levels):
        gain = scale**2 / (scale**2 + here**2)
        if k == len(levels) - 1:
            return gain**2 * xx + (gain * here**2 if noisy else 0.0)
        kept = (levels[k + 1] / here) ** 2
        more = share * _ratio(levels, k) if k > 0 else 0.0
        mine, other = kept + (1.0 - kept) * gain * (1.0 + more), -(1.0 - kept) * more
        fresh = levels[k + 1] ** 2 * (1.0 - kept)
        xx, xd, dd = (
            mine**2 * xx + 2.0 * mine * other * xd + other**2 * dd + fresh,
            gain * (mine * xx + other * xd),
            gain**2 * xx,
        )
    return xx


def data_floor(problem: Problem, x: Tensor, generator: torch.Generator) -> tuple[float, float]:
    """The noise level s at which the reverse process may end, RANGE times the finest scale of the data, and e there.

    A coordinate of scale l has the denoising error E (D_i(x + s w) - x_i)^2 = s^2 l^2 / (l^2 + s^2), so it is half of
    s^2 at s = l. Clean points of the model itself are noised at rising levels, from its finest on, until the
    error of one coordinate falls below half: that coordinate tells the scale. e^2 is the error at the floor over s^2.

    Args:
        problem: Model, set and decoder.
        x: Clean points of the model, (n, *latent).
        generator: Draws the noise.
    """
    some = torch.arange(0, len(x), max(1, len(x) // READ), device=x.device)[:READ]
    few, problem = x[some], problem.take(some)

    def error(s: float) -> Tensor:
        noise = torch.randn(few.shape, generator=generator, dtype=torch.float32, device=few.device).to(few.dtype)
        return (problem.denoise(few + s * noise, s) - few).to(torch.float64).square().mean(0) / s**2

    finest = s = finest_level(problem)
    scale = widest = float(few.std(0).max()) if len(few) > 1 else 1.0
    while s < widest:
        least = float(error(s).min())
        if least < 0.5:
            scale = s * math.sqrt(least / (1.0 - least))
            break
        s *= LEVEL_STEP
    floor = max(finest, RANGE * scale)
    return floor, math.sqrt(min(1.0, float(error(floor).mean())))


def clean_score(problem: Problem, state: Any, x: Tensor) -> Tensor:
    """(D(x, s) - x) / s^2 at the floor s: the score of the data, smoothed by less than its own scale."""
    s = float(state.floor)
    return (problem.denoise(x, s) - x) / s**2


def finest_level(problem: Problem) -> float:
    """The smallest noise at which the model may be asked, in units of the clean sample."""
    table = problem.table
    if table.alpha is None or table.sigma is None or problem.target.denoise is None:
        raise SettingError(
            f"{problem.target.name} has no denoiser: this method needs a diffusion or flow model "
            "(ddpm, vp_sde, edm, flow); for a fixed density use WeightedCASAL"
        )
    finest = problem.target.finest
    return float((table.sigma / table.alpha).min()) if finest is None else finest
