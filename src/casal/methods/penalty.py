"""Soft penalty, known as guidance in diffusion models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from casal.methods.base import Method, Segment, burn_in_steps, masked, table_rows
from casal.methods.problem import Problem, move
from casal.methods.unconstrained import PointState
from casal.schedules import Schedule, evaluate


class PenaltyRow(NamedTuple):
    """A plain row and the weight of the penalty."""

    a: Tensor
    b: Tensor
    s: Tensor
    t: Tensor
    weight: Tensor


@dataclass(frozen=True)
class Penalty(Method[PointState, PenaltyRow]):
    """x' = a x + b (score(x) - weight grad c(x)) + s w, with c = |h(A x)|^2 (paper, eq. penalty).

    h is the smooth residual of the set. For every finite weight P(x in C) < 1 (paper, corollary penalty): the
    certificate flags what is not feasible. ``FinalProjection(Penalty(...))`` makes it strict.

    Args:
        weight: The paper's lambda >= 0: a number, or a schedule.
        burn_in: First steps without the penalty: a number of steps, or a fraction below one.
    """

    weight: float | Schedule
    burn_in: float = 0

    name: ClassVar[str] = "penalty"

    def plan(self, problem: Problem) -> Sequence[Segment]:
        weight = evaluate(self.weight, problem.table, "weight", positive=False)
        first = burn_in_steps(self.burn_in, len(problem.table))
        return [Segment(table_rows(problem, PenaltyRow, weight=masked(weight, first)))]

    def init(self, problem: Problem, x: Tensor, generator: torch.Generator) -> PointState:
        problem.residual(x[:1])
        return PointState(x)

    def step(self, problem: Problem, state: PointState, row: PenaltyRow, noise: Tensor) -> PointState:
        _, half_gradient = problem.residual_vjp(state.x)
        score = problem.score(state.x, row.t) - (2 * row.weight) * half_gradient
        return PointState(move(problem, state.x, score, row, noise))

    def output(self, problem: Problem, state: PointState) -> Tensor:
        return problem.decode(state.x)
