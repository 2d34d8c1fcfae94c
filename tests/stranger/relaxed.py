"""A method from outside the package: one file, one row of the registry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from casal.methods import METHODS, Context, Each, Entry, Method, TableRow, move, table_rows


class Position(NamedTuple):
    """Only the point."""

    x: Tensor


@dataclass(frozen=True)
class Relaxed(Method[Position]):
    """x' = (1 - share) y + share P(y), y the unconstrained step: a projection that goes only part of the way."""

    share: float = 0.5

    name: ClassVar[str] = "relaxed"

    def stages(self, context: Context, n: int) -> Sequence[Each]:
        return [Each(table_rows(context), self.step)]

    def init(self, context: Context, x: Tensor, generator: torch.Generator) -> Position:
        return Position(x)

    def step(self, context: Context, state: Position, row: TableRow, noise: Tensor) -> Position:
        y = move(context, state.x, context.score(state.x, row.t), row, noise)
        return Position((1.0 - self.share) * y + self.share * context.project(y))

    def output(self, context: Context, state: Position) -> Tensor:
        return context.strict(context.decode(state.x))


METHODS["relaxed"] = Entry(Relaxed(), "both", "#336699")
