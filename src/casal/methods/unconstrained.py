"""Sampling as if there were no constraint: what every other method is measured against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from casal.methods.base import Method, Segment, TableRow, table_rows
from casal.methods.problem import Problem, move


class PointState(NamedTuple):
    """Only the point itself."""

    x: Tensor


@dataclass(frozen=True)
class Unconstrained(Method[PointState, TableRow]):
    """x' = a x + b score(x) + s w (paper, eq. langevin_gradient-step). Samples are A x, feasible only by luck."""

    name: ClassVar[str] = "unconstrained"

    def plan(self, problem: Problem) -> Sequence[Segment]:
        return [Segment(table_rows(problem))]

    def init(self, problem: Problem, x: Tensor, generator: torch.Generator) -> PointState:
        return PointState(x)

    def step(self, problem: Problem, state: PointState, row: TableRow, noise: Tensor) -> PointState:
        return PointState(move(problem, state.x, problem.score(state.x, row.t), row, noise))

    def output(self, problem: Problem, state: PointState) -> Tensor:
        return problem.decode(state.x)
