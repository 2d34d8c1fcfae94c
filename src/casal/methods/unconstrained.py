"""Sampling as if there were no constraint: what every other method is measured against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from casal.methods.base import Method, Stage, TableRow, free_step, step_advice, table_rows
from casal.methods.context import Context


class PointState(NamedTuple):
    """Only the point itself."""

    x: Tensor


@dataclass(frozen=True)
class Unconstrained(Method[PointState]):
    """Samples as if there were no constraint (paper, eq. langevin_gradient-step):

        x' = a x + b score(x) + s w

    The samples are A x, feasible only by luck.
    """

    name: ClassVar[str] = "unconstrained"
    strict: ClassVar[bool] = False

    def plan(self, context: Context, n: int) -> Sequence[Stage]:
        return [Stage(table_rows(context), free_step)]

    def init(self, context: Context, x: Tensor, generator: torch.Generator) -> PointState:
        return PointState(x)

    def output(self, context: Context, state: PointState) -> Tensor:
        return context.decode(state.x)

    def advice(self, state: PointState, row: TableRow) -> str:
        return step_advice(row)
