"""How the chains of a diffusion model move at one rung of the ladder, and how the rung weighs them.

A coupling of strength rho is noise of size rho^(-1/2), so a move adds noise of about that size to a clean point and
runs the model's reverse process back down. It takes ``inner_steps`` evaluations of the denoiser D at levels
s_0 > s_1 > ... whose seventh roots are equally spaced. With r = (s' / s)^2 and h = log(s / s') of each step,

    x' = r x + (1 - r) (D + c (D - D_before) h / (2 h_before)) + s' sqrt(1 - r) w,     the last one x' = D(x) + e s w

with e^2 s^2 the denoising error of the model at the last level (``data_floor``), which is the variance of x0 there.
c = 1 is a multistep method of second order (Lu et al. 2022, SDE-DPM-Solver++ 2M). Its difference of two estimates
carries their noise, so it makes the variance too large, as c = 0 makes it too small. MULTISTEP = 0.85 balances both:
with 20 steps the variance of a Gaussian is right to 2 % for s from a tenth to 500 times its standard deviation (c = 1:
up to 14 % too large, c = 0: up to 45 % too small). The first step is of first order.

Two kinds of moves share it: ``gibbs_moves.py`` and ``metropolis_moves.py``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from casal.errors import SettingError
from casal.methods.base import Stage
from casal.methods.context import Context
from casal.methods.smc import Landed

RANGE = 0.1
"""The reverse process from s ends at RANGE min(s, scale of the data), or at the model's finest level."""

READ = 512
"""Chains from which the scale of the data is read."""

LEVEL_STEP = 2.0
"""Factor from one noise level to the next on the way to the scale of the data."""

MULTISTEP = 0.85
"""c, the share of the multistep term."""

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
    """

    def __init__(self, inner_steps: int) -> None:
        self.inner_steps = inner_steps

    @abstractmethod
    def start(self, context: Context, x: Tensor) -> Any:
        """The state of chains with equal weights at x, at rho = 0."""

    @abstractmethod
    def sweep(self, context: Context) -> list[Stage]:
        """The stages of one move."""

    @abstractmethod
    def arrive(self, context: Context, state: Any, moves: int) -> tuple[Any, Mapping[str, float]]:
        """The state as the next rung needs it, after some moves at the one before, and what the trace keeps of them."""

    @abstractmethod
    def weigh(self, context: Context, state: Any, rho: float) -> Tensor:
        """log Phi_rho'(x) - log Phi_rho(x) for the next rho', (n,)."""

    @abstractmethod
    def half(self, context: Context, state: Any) -> Tensor:
        """dist(A x, C)^2 / 2 of every chain, (n,)."""

    @abstractmethod
    def finish(self, context: Context) -> Landed:
        """What the chains do together after the last rung."""

    def output(self, context: Context, state: Any) -> Tensor:
        """The samples."""
        return context.strict(context.decode(state.x), warm=state.z)

    @abstractmethod
    def level(self, context: Context, state: Any) -> float:
        """s: the noise of a move in the latent."""

    def reverse_stage(self, context: Context) -> Stage:
        """The reverse process from the level s down to a clean point."""
        finest = finest_level(context)
        return Stage([Reverse(j, self.inner_steps, finest) for j in range(self.inner_steps)], self.reverse)

    def reverse(self, context: Context, state: Any, row: Reverse, noise: Tensor) -> Any:
        """One step of the reverse process."""
        s, floor = self.level(context, state), float(state.floor)
        here, there = (_level(s, floor, row, k) for k in (row.at, row.at + 1))
        clean = context.denoise(state.x, here)
        if row.at == row.steps - 1:
            return state._replace(x=clean + (float(state.blur) * here) * noise)
        ahead = clean
        if row.at > 0 and there < here:
            ratio_of_steps = math.log(here / there) / math.log(_level(s, floor, row, row.at - 1) / here)
            ahead = clean + (0.5 * MULTISTEP * ratio_of_steps) * (clean - state.estimate)
        kept = (there / here) ** 2
        x = kept * state.x + (1.0 - kept) * ahead + there * math.sqrt(1.0 - kept) * noise
        return state._replace(x=x, estimate=clean)


def _level(s: float, floor: float, row: Reverse, k: int) -> float:
    """Level number k of the reverse process from s, which ends at the floor, or at RANGE s if that is lower."""
    end = min(s, max(row.finest, min(RANGE * s, floor)))
    share = k / max(row.steps - 1, 1)
    return float((s ** (1 / SPACING) + share * (end ** (1 / SPACING) - s ** (1 / SPACING))) ** SPACING)


def data_floor(context: Context, x: Tensor, generator: torch.Generator) -> tuple[float, float]:
    """The noise level s at which the reverse process may end, RANGE times the finest scale of the data, and e there.

    A coordinate of scale l has the denoising error E (D_i(x + s w) - x_i)^2 = s^2 l^2 / (l^2 + s^2), so it is half of
    s^2 at s = l. Clean points of the model itself are noised at rising levels, from its finest on, until the
    error of one coordinate falls below half: that coordinate tells the scale. e^2 is the error at the floor over s^2.

    Args:
        context: Model, set and decoder.
        x: Clean points of the model, (n, *latent).
        generator: Draws the noise.
    """
    few = x[:: max(1, len(x) // READ)][:READ]

    def error(s: float) -> Tensor:
        noise = torch.randn(few.shape, generator=generator, dtype=torch.float32, device=few.device).to(few.dtype)
        return (context.denoise(few + s * noise, s) - few).to(torch.float64).square().mean(0) / s**2

    finest = s = finest_level(context)
    scale = widest = float(few.std(0).max()) if len(few) > 1 else 1.0
    while s < widest:
        least = float(error(s).min())
        if least < 0.5:
            scale = s * math.sqrt(least / (1.0 - least))
            break
        s *= LEVEL_STEP
    floor = max(finest, RANGE * scale)
    return floor, math.sqrt(min(1.0, float(error(floor).mean())))


def clean_score(context: Context, state: Any, x: Tensor) -> Tensor:
    """(D(x, s) - x) / s^2 at the floor s: the score of the data, smoothed by less than its own scale."""
    s = float(state.floor)
    return (context.denoise(x, s) - x) / s**2


def finest_level(context: Context) -> float:
    """The smallest noise at which the model may be asked, in units of the clean sample."""
    table = context.table
    if table.alpha is None or table.sigma is None or context.target.denoise is None:
        raise SettingError(
            f"{context.target.name} has no denoiser: this method needs a diffusion or flow model "
            "(ddpm, vp_sde, edm, flow); for a fixed density take WeightedCASAL"
        )
    finest = context.target.finest
    return float((table.sigma / table.alpha).min()) if finest is None else finest
