"""How a population at the top of the ladder is brought onto C without the error of a finite rho.

At the top the chains follow pi_rho(x) ~ p(x) exp(-rho/2 dist(x, C)^2), and z = P(x) follows the law of p on C only
up to O(1/rho). Three ways to do better, chosen by what the set allows:

- ``Confined``, for a set with an interior: given that x is inside, x follows p restricted to C exactly. The last
  rung is the indicator itself: chains outside (the boundary mass, reported) get weight zero and give way to copies
  of chains inside. If fewer than LEAST_INSIDE are inside, too few would be left, and the others are projected.
- ``Reweighted``, for a sphere, an affine set, mass and energy: x is a foot z and a normal offset, of density
  p(x) exp(-rho/2 |x - z|^2) J(x, z) in these coordinates. The weight p(z) / (p(x) J(x, z)) turns it into p(z) times a
  Gaussian offset, for every rho. log p(x) - log p(z) is the line integral of the score, by two Gauss points.
- ``Plain``: nothing; z = P(A x) carries an error O(1/rho). This is what is left for other sets and for a
  decoder with a thin set.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from casal.chunks import chain_by_chain
from casal.errors import DivergedError
from casal.methods.problem import Problem
from casal.methods.resampling import Weighted, population, resampled

LEAST_INSIDE = 0.1
"""Share of chains inside C below which ``Confined`` projects the others instead of replacing them."""

GAUSS_POINTS = (0.5 - 0.5 / math.sqrt(3.0), 0.5 + 0.5 / math.sqrt(3.0))


class WeightedState(NamedTuple):
    """A population.

    Attributes:
        x: Points.
        z: Their feet P(A x).
        noise: The noise of the last move, half of which enters the next one.
        log_weight: Logarithms of the weights, (n,).
        ancestor: Starting chain each chain descends from, (n,).
        rho: The rung all chains are at.
    """

    x: Tensor
    z: Tensor
    noise: Tensor
    log_weight: Tensor
    ancestor: Tensor
    rho: Tensor


class Finish(ABC):
    """What happens after the last rung."""

    evaluations: int = 0
    """How many of the table's score evaluations it uses."""

    @abstractmethod
    def apply(
        self, problem: Problem, state: Weighted, generator: torch.Generator
    ) -> tuple[Weighted, Mapping[str, float]]:
        """Reweight and resample the population."""


class Plain(Finish):
    """z = P(A x), with an error O(1/rho)."""

    def apply(
        self, problem: Problem, state: Weighted, generator: torch.Generator
    ) -> tuple[Weighted, Mapping[str, float]]:
        return state, population(state)


class Reweighted(Finish):
    """weight = p(z) / (p(x) J(x, z)): exact for every rho, at two more score evaluations."""

    evaluations = len(GAUSS_POINTS)

    def apply(
        self, problem: Problem, state: Weighted, generator: torch.Generator
    ) -> tuple[Weighted, Mapping[str, float]]:
        state = state._replace(log_weight=state.log_weight + self.log_weights(problem, state.x, state.z))
        lost = torch.nonzero(~torch.isfinite(state.log_weight)).flatten().tolist()
        if lost:
            steps = len(problem.table)
            raise DivergedError(
                f"{len(lost)} of {len(state.x)} chains have no finite score in the last correction, after step {steps}",
                step=steps,
                steps=steps,
                chains=lost,
            )
        info = population(state)
        return resampled(state, generator), {**info, "finish_ess": info["ess"]}

    def log_weights(self, problem: Problem, x: Tensor, z: Tensor) -> Tensor:
        """log p(z) - log p(x) - log J(x, z), from the score alone."""
        return chain_by_chain(partial(self._log_weights, problem), x, z)

    def _log_weights(self, problem: Problem, x: Tensor, z: Tensor) -> Tensor:
        offset, t = x - z, problem.table.t[-1].to(problem.like.device)
        scores = torch.stack([problem.score(z + share * offset, t) for share in GAUSS_POINTS]).mean(0)
        rise = (scores * offset).reshape(len(x), -1).sum(1).to(torch.float64)
        tube = problem.constraint.log_tube_factor(x.to(torch.float64), z.to(torch.float64))
        assert tube is not None, "choose_finish takes Reweighted only for sets with a tube factor"
        return -rise - tube


class Confined(Finish):
    """weight = 1 inside C, 0 outside."""

    def apply(
        self, problem: Problem, state: Weighted, generator: torch.Generator
    ) -> tuple[Weighted, Mapping[str, float]]:
        inside = chain_by_chain(lambda x: problem.constraint.violation(problem.decode(x)) == 0.0, state.x)
        outside = 1.0 - float(inside.to(torch.float64).mean())
        if 1.0 - outside < LEAST_INSIDE:
            return state, {**population(state), "boundary_mass": outside}
        state = state._replace(log_weight=torch.where(inside, state.log_weight, -torch.inf))
        return resampled(state, generator), {**population(state), "boundary_mass": outside}


def choose_finish(problem: Problem, correct: bool) -> Finish:
    """The best finish that the set and the decoder allow."""
    if correct and problem.constraint.solid:
        return Confined()
    probe = torch.zeros((1, *problem.latent), dtype=torch.float64, device=problem.like.device)
    if correct and problem.identity and problem.constraint.log_tube_factor(probe + 1.0, probe + 1.0) is not None:
        return Reweighted()
    return Plain()
