"""Projected Langevin (Bubeck et al. 2015; for diffusion, Christopher et al. 2024): project after every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from casal.methods.base import Method, Segment, burn_in_steps, table_rows
from casal.methods.problem import Problem, move
from casal.methods.unconstrained import PointState


class ProjectedRow(NamedTuple):
    """A plain row, and whether its result is projected."""

    a: Tensor
    b: Tensor
    s: Tensor
    t: Tensor
    project: Tensor


@dataclass(frozen=True)
class Projected(Method[PointState, ProjectedRow]):
    """x' = A^+ P(A (a x + b score(x) + s w)) (paper, example projected). Feasible; stays where it starts.

    Args:
        burn_in: First steps without a projection: a number of steps, or a fraction of the run below one.
    """

    burn_in: float = 0

    name: ClassVar[str] = "projected"

    def plan(self, problem: Problem) -> Sequence[Segment]:
        first = burn_in_steps(self.burn_in, len(problem.table))
        project = torch.arange(len(problem.table)) >= first
        return [Segment(table_rows(problem, ProjectedRow, project=project))]

    def init(self, problem: Problem, x: Tensor, generator: torch.Generator) -> PointState:
        return PointState(x)

    def step(self, problem: Problem, state: PointState, row: ProjectedRow, noise: Tensor) -> PointState:
        x = move(problem, state.x, problem.score(state.x, row.t), row, noise)
        if row.project:
            x = problem.decoder.pinv(problem.project(problem.decode(x)), problem.latent)
        return PointState(x)

    def output(self, problem: Problem, state: PointState) -> Tensor:
        return problem.strict(problem.decode(state.x))
