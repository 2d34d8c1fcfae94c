"""Sampling as if there were no constraint: what every other method is measured against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, cast

import torch
from torch import Tensor

from casal.methods.base import Method, Stage, TableRow, free_step, nothing_past, step_advice, table_rows
from casal.methods.context import Context


class PointState(NamedTuple):
    """Only the point itself."""

    x: Tensor


class PointWithPast(NamedTuple):
    """The point, and the estimates (n, p, *latent) of the rows before, where rows look back."""

    x: Tensor
    past: Tensor


def points(context: Context, x: Tensor) -> PointState:
    """The state of chains that start at x: a point, with a past if rows of the table look back."""
    past = nothing_past(context, x)
    return PointState(x) if past is None else cast(PointState, PointWithPast(x, past))


@dataclass(frozen=True)
class Unconstrained(Method[PointState]):
    """Samples as if there were no constraint (paper, eq. langevin_gradient-step):

        x' = a x + b score(x) + s w

    The samples are A x, feasible only by luck.
    """

    name: ClassVar[str] = "unconstrained"
    strict: ClassVar[bool] = False
    remembers: ClassVar[bool] = True

    def plan(self, context: Context, n: int) -> Sequence[Stage]:
        return [Stage(table_rows(context), free_step)]

    def init(self, context: Context, x: Tensor, generator: torch.Generator) -> PointState:
        return points(context, x)

    def output(self, context: Context, state: PointState) -> Tensor:
        return context.decode(state.x)

    def advice(self, state: PointState, row: TableRow) -> str:
        return step_advice(row)
