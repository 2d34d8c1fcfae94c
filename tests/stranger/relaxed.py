"""A method from outside the package: one file, one row of the registry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from casal.methods import METHODS, Each, Entry, Method, Problem, TableRow, move, table_rows


class Position(NamedTuple):
    """Only the point."""

    x: Tensor


@dataclass(frozen=True)
class Relaxed(Method[Position]):
    """x' = (1 - share) y + share P(y), y the unconstrained step: a projection that goes only part of the way."""

    share: float = 0.5

    name: ClassVar[str] = "relaxed"

    def stages(self, problem: Problem, n: int) -> Sequence[Each]:
        return [Each(table_rows(problem), self.step)]

    def start(self, problem: Problem, x: Tensor, generator: torch.Generator) -> Position:
        return Position(x)

    def step(self, problem: Problem, state: Position, row: TableRow, noise: Tensor) -> Position:
        y = move(problem, state.x, problem.score(state.x, row.t), row, noise)
        return Position((1.0 - self.share) * y + self.share * problem.project(y))

    def samples(self, problem: Problem, state: Position) -> Tensor:
        return problem.strict(problem.decode(state.x))


METHODS["relaxed"] = Entry(Relaxed(), "both", "#336699")
