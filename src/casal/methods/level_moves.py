"""Level moves: the chains live at one noise level of the model, and its own sampler leads from there to clean points.

    x  = G(u, e): the rows of the model's own table from the level s* down to a clean point, e the noise of these rows
    y  = u + h w                                                    (w ~ N(0, I))
    u' ~ p(u | u + h noise = y)                                     (STEPS steps of the reverse process, down to s*)
    x' = G(u', e'),   e' = (1 - b^2)^(1/2) e + b w,   b = min(1, h / s*)
    accept with probability min(1, exp(-rho (V(x') - V(x)))),      V(x) = dist(A x, C)^2 / 2

The other moves add noise to clean points and ask the denoiser at small noise, where networks are worst: a trained
network is then drawn away from its own samples. Here the denoiser is asked at s* and above alone. Below s* the network
is used as the model's own sampler uses it, so the chains keep the distribution of the model's own samples.

Share of the smaller mode on one equation, flow networks in the plane, sigma = .02, 20 levels, 723 evaluations (own
samples near the set; these moves; gibbs moves): well trained .113; .107; .011. Short training: .279; .243; .240, with
less than half of the right spread. Exact velocity: .060; .051 (standard error .008); .060.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from casal.methods.base import Stage, free_step, table_rows, uniform
from casal.methods.baselines import noise_levels
from casal.methods.metropolis_moves import AcceptedMoves
from casal.methods.population import equal_weights
from casal.methods.problem import Problem, move, pick

STEPS = 2
"""Steps of the reverse process from the noisy point y down to s*."""

LARGEST = 0.5
"""Above it two steps of the reverse process are too coarse: 2 moved the means of both modes of an exact model by .1."""


class LevelState(NamedTuple):
    """A population between a clean point and the next.

    Attributes:
        x: The point that moves; clean at the end of a move.
        z: The nearest point P(A x) of the clean point.
        clean: The clean point the present move started from.
        held: u, where the clean point comes from, in units of the clean sample.
        held_noise: e, the noise of the rows on its way, (n, rows, *latent); no rows if they have no noise.
        proposed: u'.
        proposed_noise: e'.
        half: V of the clean point, (n,).
        log_weight: Logarithms of the weights, (n,).
        ancestor: Starting chain each chain descends from, (n,).
        accepted: How many proposals each chain has accepted since the last rung, (n,).
        rho: Coupling that all chains are at.
        size: Size of the noise in units of rho^(-1/2) / |A|.
        top: Where the ladder ends, as far as the chains have shown.
        floor: The noise level at which the score of the data is read (``moves.data_floor``).
        blur: Denoising error there.
    """

    x: Tensor
    z: Tensor
    clean: Tensor
    held: Tensor
    held_noise: Tensor
    proposed: Tensor
    proposed_noise: Tensor
    half: Tensor
    log_weight: Tensor
    ancestor: Tensor
    accepted: Tensor
    rho: Tensor
    size: Tensor
    top: Tensor
    floor: Tensor
    blur: Tensor


class OwnRow(NamedTuple):
    """A row of the model's table below s*, and its number among them."""

    a: Tensor
    b: Tensor
    s: Tensor
    t: Tensor
    at: int


class LevelMoves(AcceptedMoves):
    """Moves at a row of the model's table.

    Args:
        problem: Model, set and decoder.
        level: s* in units of the clean sample; the nearest row of the table is taken.
    """

    wanted = 0.4
    sizes = (0.05, 10.0)

    def __init__(self, problem: Problem, level: float) -> None:
        super().__init__(STEPS)
        alpha, sigma = noise_levels(problem.table)
        levels, rows = sigma / alpha, table_rows(problem)
        k = int((levels.log() - math.log(level)).abs().argmin())
        self.s, self.scale = float(levels[k]), float(alpha[k])
        self.above, self.below = rows[:k], [OwnRow(row.a, row.b, row.s, row.t, j) for j, row in enumerate(rows[k:])]
        self.noisy = bool(problem.table.s[k:].any())

    def start(self, problem: Problem, x: Tensor) -> LevelState:
        log_weight, ancestor = equal_weights(problem, len(x))
        zero, none = torch.zeros_like(log_weight), log_weight.new_zeros(())
        noise = x.new_zeros((len(x), len(self.below) if self.noisy else 0, *x.shape[1:]))
        z = problem.project(problem.decode(x))
        one = torch.ones_like(none)
        return LevelState(x, z, x, x, noise, x, noise, zero, log_weight, ancestor, zero, none, one, none, none, none)

    @property
    def evaluations(self) -> int:
        return STEPS + len(self.below)

    def first(self, problem: Problem) -> list[Stage]:
        """The rows of the table, unconstrained: they leave u and e behind."""
        return [
            Stage(self.above, free_step),
            Stage([()], self.hold),
            Stage(self.below, self.down),
            Stage([()], self.keep),
        ]

    def sweep(self, problem: Problem) -> list[Stage]:
        return [
            Stage([()], self.renoise),
            Stage(range(STEPS), self.back),
            Stage([()], self.release),
            Stage(self.below, self.down),
            Stage([()], self.accept, noise=uniform),
        ]

    def level(self, problem: Problem, state: LevelState) -> float:
        """h: the noise of a move in the latent."""
        return min(LARGEST * self.s, float(state.size) / (math.sqrt(float(state.rho)) * problem.decoder.norm()))

    def hold(self, problem: Problem, state: LevelState, row: Any, noise: Tensor) -> LevelState:
        """Remember u on the way down."""
        return state._replace(held=state.x / self.scale)

    def keep(self, problem: Problem, state: LevelState, row: Any, noise: Tensor) -> LevelState:
        """Remember e at the end of the first way down."""
        return state._replace(held_noise=state.proposed_noise)

    def renoise(self, problem: Problem, state: LevelState, row: Any, noise: Tensor) -> LevelState:
        """y = u + h w."""
        h = self.level(problem, state)
        return state._replace(x=state.held + h * noise, clean=state.x)

    def back(self, problem: Problem, state: LevelState, row: int, noise: Tensor) -> LevelState:
        """One step of the reverse process from (s*^2 + h^2)^(1/2) down to s*, in equal ratios."""
        top = math.hypot(self.s, self.level(problem, state))
        here, there = (float(top * (self.s / top) ** (k / STEPS)) for k in (row, row + 1))
        kept = (there / here) ** 2
        x = kept * state.x + (1.0 - kept) * problem.denoise(state.x, here) + there * math.sqrt(1.0 - kept) * noise
        return state._replace(x=x)

    def release(self, problem: Problem, state: LevelState, row: Any, noise: Tensor) -> LevelState:
        """u' takes the model's own scale, for the rows of its table."""
        return state._replace(proposed=state.x, x=state.x * self.scale)

    def down(self, problem: Problem, state: LevelState, row: OwnRow, noise: Tensor) -> LevelState:
        """One row of the model's own table, with noise near that of the present clean point."""
        if self.noisy:
            fresh = 1.0 if float(state.rho) == 0.0 else min(1.0, self.level(problem, state) / self.s)
            noise = math.sqrt(1.0 - fresh**2) * state.held_noise[:, row.at] + fresh * noise
            parts = state.proposed_noise[:, : row.at], noise[:, None], state.proposed_noise[:, row.at + 1 :]
            state = state._replace(proposed_noise=torch.cat(parts, 1))
        return state._replace(x=move(problem, state.x, problem.score(state.x, row.t), row, noise))

    def accept(self, problem: Problem, state: LevelState, row: Any, noise: Tensor) -> LevelState:
        """Keep the proposal with its u and e, or go back."""
        kept, yes = self.decide(problem, state, noise)
        new: LevelState = kept._replace(
            held=pick(yes, state.proposed, state.held),
            held_noise=pick(yes, state.proposed_noise, state.held_noise),
        )
        return new

    def log_ratio(self, problem: Problem, old: LevelState, new: LevelState) -> Tensor:
        """log of exp(-rho (V(x') - V(x)))."""
        return -old.rho * (new.half - old.half)
