"""Soft penalty, known as guidance in diffusion models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from casal.checks import one_of, whole_number
from casal.methods.base import Method, Recall, Stage, advance, burn_in_steps, table_rows, zero_before
from casal.methods.context import Context
from casal.methods.unconstrained import PointState, points
from casal.schedules import Schedule, evaluate


class PenaltyRow(NamedTuple):
    """A plain row and the weight of the penalty."""

    a: Tensor
    b: Tensor
    s: Tensor
    t: Tensor
    weight: Tensor
    recall: Recall | None = None


@dataclass(frozen=True)
class Penalty(Method[PointState]):
    """Adds a soft penalty c to the score (paper, eq. penalty), known as guidance:

        x' = a x + b (score(x) - weight grad c(x)) + s w
        c(x) = |h(A x)|^2  ("residual"),   dist(A x, C)^2 = |A x - P(A x)|^2  ("distance")

    h is the smooth residual of the set; the distance needs only a projection. For every finite weight P(x in C) < 1
    (paper, corollary penalty): the certificate flags what is not feasible. ``FinalProjection(Penalty(...))`` makes it
    strict.

    Args:
        weight: The paper's lambda >= 0: a number, or a schedule.
        burn_in: First steps without the penalty: a number of steps, or a fraction below one.
        of: What is squared: the "residual" or the "distance".
        repeats: Gradient steps of the penalty in a row of the table. More than one follow the free step y, each with
            its share of the weight: y <- y - (b weight / repeats) grad c(y).

    >>> import casal
    >>> import torch
    >>> target = casal.langevin(lambda x: x, steps=200, step_size=0.05, init=torch.ones(100, 2))
    >>> result = casal.sample(target, casal.Affine([[1.0, 1.0]], [2.0]), casal.Penalty(weight=5.0), n=100)
    >>> int(result.certificate.feasible.sum())
    0
    >>> strict = casal.FinalProjection(casal.Penalty(weight=5.0))
    >>> bool(casal.sample(target, casal.Affine([[1.0, 1.0]], [2.0]), strict, n=100).certificate.feasible.all())
    True
    """

    weight: float | Schedule
    burn_in: float = 0
    of: str = "residual"
    repeats: int = 1

    name: ClassVar[str] = "penalty"
    strict: ClassVar[bool] = False
    remembers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        one_of(self.of, "of", ("residual", "distance"))
        whole_number(self.repeats, "repeats", 1)

    def plan(self, context: Context, n: int) -> Sequence[Stage]:
        weight = evaluate(self.weight, context.table, "weight", positive=False)
        first = burn_in_steps(self.burn_in, len(context.table))
        return [Stage(table_rows(context, PenaltyRow, weight=zero_before(weight, first)), self.step)]

    def init(self, context: Context, x: Tensor, generator: torch.Generator) -> PointState:
        if self.of == "residual":
            context.check_smooth(x)
        return points(context, x)

    def step(self, context: Context, state: PointState, row: PenaltyRow, noise: Tensor) -> PointState:
        gradient = context.penalty_gradient if self.of == "residual" else context.distance_gradient
        score = context.score(state.x, row.t)
        if self.repeats == 1:
            return advance(context, state, score - (2 * row.weight) * gradient(state.x), row, noise)
        state = advance(context, state, score, row, noise)
        x = state.x
        for _ in range(self.repeats):
            x = x - context.precondition((2 * row.b * row.weight / self.repeats).to(x.dtype) * gradient(x))
        return state._replace(x=x)

    def output(self, context: Context, state: PointState) -> Tensor:
        return context.decode(state.x)

    def advice(self, state: PointState, row: PenaltyRow) -> str:
        numbers = f"(tau = {float(row.b):.3g}, weight = {float(row.weight):.3g})"
        return f"{numbers}; use a smaller weight, a smaller step_size or a preconditioner"
