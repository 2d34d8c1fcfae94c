"""Gibbs moves: draw z near x on the set in closed form, then x given z by the model's reverse process.

    z ~ N(A x, sigma^2) restricted to C,                       sigma = rho^(-1/2)
    c = x + A^T (z - A x) / |A|^2 + (sigma / |A|) (I - A^T A / |A|^2)^(1/2) w
    x ~ p(x0 | x0 + (sigma / |A|) noise = c)                   (the reverse process)

This is exact for p(x) N(z; A x, sigma^2) 1_C(z), but for the discretisation of the reverse process. A rung weighs by
Phi_sigma(x), the integral of N(z; A x, sigma^2) over C. It needs a set with closed forms (affine, box, sphere, mass and
energy) and a linear decoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from casal.constraints import half_square
from casal.methods.base import Stage, generator_of, key
from casal.methods.coupling import Finish, choose_finish
from casal.methods.moves import Moves, clean_score
from casal.methods.population import equal_weights
from casal.methods.problem import Problem


class GibbsState(NamedTuple):
    """A population that draws z given x and x given z.

    Attributes:
        x: The point that moves; clean at the end of a move.
        z: A point of C: the last draw from N(A x, 1 / rho) restricted to C; P(A x) before the first draw.
        estimate: The denoised estimate of the step before.
        log_weight: Logarithms of the weights, (n,).
        ancestor: Starting chain each chain descends from, (n,).
        rho: Coupling that all chains are at.
        top: Where the ladder ends, as far as the chains have shown.
        floor: Where the reverse process ends (``moves.data_floor``).
        blur: Size of its last noise, in units of its last level.
    """

    x: Tensor
    z: Tensor
    estimate: Tensor
    log_weight: Tensor
    ancestor: Tensor
    rho: Tensor
    top: Tensor
    floor: Tensor
    blur: Tensor


class GibbsMoves(Moves):
    """z given x in closed form, x given z by the reverse process."""

    def start(self, problem: Problem, x: Tensor) -> GibbsState:
        log_weight, ancestor = equal_weights(problem, len(x))
        z = problem.project(problem.decode(x))
        zero = log_weight.new_zeros(())
        return GibbsState(x, z, x, log_weight, ancestor, zero, zero, zero, zero)

    def sweep(self, problem: Problem) -> list[Stage]:
        _ = problem.gram
        return [Stage([()], self.draw, noise=key), Stage([()], self.centre), self.reverse_stage(problem)]

    def arrive(self, problem: Problem, state: GibbsState, moves: int) -> tuple[GibbsState, Mapping[str, float]]:
        if float(state.rho) > 0.0:
            return state, {}
        return state._replace(z=problem.nearest(problem.decode(state.x), warm=state.z)), {}

    def weigh(self, problem: Problem, state: GibbsState, rho: float) -> Tensor:
        decoded = problem.decode(state.x)
        return _log_mass(problem, decoded, rho) - _log_mass(problem, decoded, float(state.rho))

    def half(self, problem: Problem, state: GibbsState) -> Tensor:
        decoded = problem.decode(state.x)
        return half_square(decoded - problem.nearest(decoded, warm=state.z))

    def finish(self, problem: Problem) -> Finish:
        return choose_finish(problem, clean_score, _log_mass)

    def level(self, problem: Problem, state: GibbsState) -> float:
        return 1.0 / (float(state.rho) ** 0.5 * problem.decoder.norm())

    def draw(self, problem: Problem, state: GibbsState, row: Any, noise: Tensor) -> GibbsState:
        """z ~ N(A x, 1 / rho) restricted to C."""
        near = problem.decode(state.x)
        drawn = problem.constraint.sample_near(near, float(state.rho) ** -0.5, generator_of(noise, near))
        assert drawn is not None, "SplitGibbs takes these moves only where the set has closed forms"
        return state._replace(z=drawn.to(state.z.dtype))

    def centre(self, problem: Problem, state: GibbsState, row: Any, noise: Tensor) -> GibbsState:
        """c: the point whose noise of size sigma / |A| stands for both z and what A does not see of x."""
        x, gram, stiffness = state.x, problem.gram, problem.decoder.norm() ** 2
        blind = (1.0 - gram.eigenvalues / stiffness).clamp_min(0.0).sqrt()
        spread = gram.unwhiten((blind * noise.reshape(len(x), *blind.shape)) if blind.ndim else blind * noise)
        pull = problem.decoder.vjp(x)((state.z - problem.decode(x)).to(x.dtype)) / stiffness
        c = x + pull + self.level(problem, state) * spread.reshape(x.shape)
        return state._replace(x=c, estimate=c)


def _log_mass(problem: Problem, decoded: Tensor, rho: float) -> Tensor:
    """log Phi, zero at rho = 0."""
    if rho == 0.0:
        return torch.zeros(len(decoded), dtype=torch.float64, device=decoded.device)
    value = problem.constraint.log_normaliser(decoded, rho**-0.5)
    assert value is not None, "SplitGibbs takes these moves only where the set has closed forms"
    return value
