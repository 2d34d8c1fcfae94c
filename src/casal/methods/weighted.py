"""WeightedCASAL: CASAL whose law is right, a sequential Monte Carlo over the coupling rho."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from casal.chunks import chain_by_chain
from casal.errors import SettingError
from casal.methods.base import Method, Segment, TableRow, burn_in_steps, split_records, table_rows
from casal.methods.finish import Finish, WeightedState, choose_finish
from casal.methods.ladder import Rung, half_square, next_rho
from casal.methods.problem import Problem
from casal.methods.resampling import normalised, population, resampled
from casal.schedules import Schedule, evaluate

MOVE = 0.2
"""Share of its distance to C that a chain may relax in one move; bounds the step by MOVE / rho."""

DRIFT_LIMIT = 10.0
"""Largest drift of one move, in units of the square root of its step: a steep tail cannot fling a chain away.
A stable step on a Gaussian stays below it up to ten standard deviations."""


@dataclass(frozen=True)
class WeightedCASAL(Method[WeightedState, TableRow]):
    """Climb pi_rho(x) ~ p(x) exp(-rho/2 dist(A x, C)^2) from rho = 0, with importance weights:

        weight *= exp(-(rho' - rho)/2 |A x - P(A x)|^2);   resample (systematic) if the effective size < ess n
        x' = x + S (score(x) - rho A^T (A x - P(A x))) + (S/2)^(1/2) (w + w')        (Langevin move for pi_rho')

    with S = (1/(tau D) + rho A^T A / MOVE)^-1, so that a move is stable at every rho. Half of the noise w is that of
    the move before (Leimkuhler and Matthews 2013): for every Gaussian on an affine set the law of x is then exactly
    pi_rho, whatever the step. The weight needs only the projection, so a score without a potential is enough. At
    the top, ``finish`` removes what is left of the error of a finite rho (see there), and z = P(A x) is returned with
    equal weights.

    Every rung looks at all chains at once; between rungs chains move on their own. The first ``burn_in`` steps
    run at rho = 0, because the ladder starts from samples of p: start with points that know all modes of p.

    Args:
        rho: Top of the ladder. With a number the rungs are placed by the chains themselves, in equal steps of
            the spread of the log-weights, as far as is known at each rung; a schedule is taken as it is.
        ess: Resample when the effective size falls below this share of the chains.
        burn_in: Steps at rho = 0: a number of steps, or a fraction below one.
        correct: Whether to run ``finish`` at the top.
    """

    rho: float | Schedule
    ess: float = 0.7
    burn_in: float = 0.2
    correct: bool = True

    name: ClassVar[str] = "WeightedCASAL"

    def __post_init__(self) -> None:
        if not 0.0 < self.ess <= 1.0:
            raise SettingError(f"ess is a share of the chains in (0, 1], got {self.ess}")
        if not callable(self.rho) and not 0.0 < self.rho < math.inf:
            raise SettingError(f"rho, the top of the ladder, must be finite and > 0, got {self.rho}")

    def plan(self, problem: Problem) -> Sequence[Segment]:
        table = problem.table
        if not table.static:
            raise SettingError("WeightedCASAL needs a fixed density (langevin, energy), not a diffusion")
        _ = problem.gram
        rows = table_rows(problem)
        finish = choose_finish(problem, self.correct)
        first, last = burn_in_steps(self.burn_in, len(rows)), len(rows) - finish.evaluations
        if last - first < 1:
            raise SettingError(f"{len(rows)} steps leave none for the ladder after {first} of burn-in; take more")
        rungs = self._rungs(last - first)
        climb = [Segment([row], rung) for rung, row in zip(rungs, rows[first:last], strict=True)]
        return [Segment(rows[:first]), *climb, Segment([], finish)]

    def init(self, problem: Problem, x: Tensor, generator: torch.Generator) -> WeightedState:
        order = torch.arange(len(x), device=x.device)
        zeros = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        return WeightedState(
            x, problem.project(problem.decode(x)), torch.zeros_like(x), zeros, order, zeros.new_zeros(())
        )

    def step(self, problem: Problem, state: WeightedState, row: TableRow, noise: Tensor) -> WeightedState:
        x, gram = state.x, problem.gram
        size = row.b / (1.0 + row.b * state.rho * gram.eigenvalues / MOVE)
        limit = DRIFT_LIMIT * size.sqrt()
        pull = problem.decoder.vjp(x)(problem.decode(x) - state.z)
        shift = (size * gram.whiten(problem.score(x, row.t))).clamp_(-limit, limit)
        shift.addcmul_(gram.whiten(pull), size * state.rho, value=-1)
        shift.addcmul_((state.noise + noise).reshape(shift.shape), (size / 2).sqrt())
        x = x + gram.unwhiten(shift).reshape(x.shape)
        return state._replace(x=x, z=problem.project(problem.decode(x), warm=state.z), noise=noise)

    def exchange(
        self, problem: Problem, state: WeightedState, rung: Rung | Finish, generator: torch.Generator
    ) -> tuple[WeightedState, Mapping[str, float]]:
        if isinstance(rung, Finish):
            return rung.apply(problem, state, generator)
        half = chain_by_chain(lambda x, z: half_square(problem.decode(x) - z), state.x, state.z)
        rho = torch.as_tensor(self._climb(state, half, rung), dtype=torch.float64, device=half.device)
        state = state._replace(rho=rho, log_weight=state.log_weight - (rho - state.rho) * half)
        info = population(state)
        if info["ess"] < self.ess * len(half) or rung.left == 1:
            state = resampled(state, generator)
        return state, info

    def output(self, problem: Problem, state: WeightedState) -> Tensor:
        return problem.strict(problem.decode(state.x), warm=state.z)

    def monitor(self, problem: Problem, state: WeightedState) -> Mapping[str, Tensor]:
        return split_records(problem, state.x, state.z)

    def _rungs(self, count: int) -> list[Rung]:
        if not callable(self.rho):
            return [Rung(None, count - k) for k in range(count)]
        ladder = evaluate(self.rho, range(count), "rho")
        if bool((ladder.diff() < 0).any()):
            raise SettingError("the ladder of rho must not descend; use geometric(low, high) or a number")
        return [Rung(rho, count - k) for k, rho in enumerate(ladder.tolist())]

    def _climb(self, state: WeightedState, half: Tensor, rung: Rung) -> float:
        """The next rho: given, or placed by the chains."""
        if rung.rho is not None:
            return rung.rho
        assert not callable(self.rho)
        return next_rho(float(state.rho), float(self.rho), half, normalised(state.log_weight), rung.left)
