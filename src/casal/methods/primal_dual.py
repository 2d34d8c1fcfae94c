"""Primal-dual Langevin (Chamon et al. 2024): the constraint holds on average, not for each sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from casal.checks import one_of, positive
from casal.methods.base import Method, Stage, TableRow, refuse_own_sets, step_advice, table_rows
from casal.methods.context import Context, move


class PrimalDualState(NamedTuple):
    """The point and the multipliers (n, m) of the residuals."""

    x: Tensor
    lam: Tensor


@dataclass(frozen=True)
class PrimalDual(Method[PrimalDualState]):
    """Enforces the constraint on average, by a multiplier (Chamon et al. 2024):

        x' = a x + b (score(x) - J^T lam) + s w,      lam' = lam + dual_step E[h(x')]

    h is the smooth residual of the set and J its derivative. The expectation is over all chains
    (``average="chains"``, one multiplier for all) or over time along each chain (``average="time"``). Enforces
    E h = 0 only: single samples violate the constraint, and the certificate says so. For an inequality the
    multiplier is kept >= 0.

    Args:
        dual_step: Size of the dual ascent step, > 0.
        average: What stands for the expectation.

    >>> import casal
    >>> import torch
    >>> target = casal.langevin(lambda x: x, steps=500, step_size=0.05, init=torch.ones(400, 2))
    >>> result = casal.sample(target, casal.Affine([[1.0, 1.0]], [2.0]), casal.PrimalDual(dual_step=0.1), n=400)
    >>> abs(float(result.samples.sum(1).mean()) - 2.0) < 0.3     # on average, not for each sample
    True
    """

    dual_step: float
    average: str = "chains"

    name: ClassVar[str] = "primal-dual"
    strict: ClassVar[bool] = False

    def __post_init__(self) -> None:
        positive(self.dual_step, "dual_step")
        one_of(self.average, "average", ("chains", "time"))

    def plan(self, context: Context, n: int) -> Sequence[Stage]:
        rows = table_rows(context)
        if self.average == "time":
            return [Stage(rows, self.step)]
        refuse_own_sets(context, "average='chains'")
        return [Stage([row], self.step, None if step == 0 else self.meet) for step, row in enumerate(rows)]

    def init(self, context: Context, x: Tensor, generator: torch.Generator) -> PrimalDualState:
        return PrimalDualState(x, torch.zeros_like(context.constraint.residual(context.decode(x))))

    def step(self, context: Context, state: PrimalDualState, row: TableRow, noise: Tensor) -> PrimalDualState:
        with torch.enable_grad():
            leaf = state.x.detach().requires_grad_()
            h = context.constraint.residual(context.decode(leaf))
            (pull,) = torch.autograd.grad(h, leaf, grad_outputs=state.lam)
        x = move(context, state.x, context.score(state.x, row.t) - pull, row, noise)
        if self.average == "chains":
            return PrimalDualState(x, state.lam)
        return PrimalDualState(x, self._ascend(context, state.lam, context.constraint.residual(context.decode(x))))

    def meet(
        self, context: Context, state: PrimalDualState, generator: torch.Generator
    ) -> tuple[PrimalDualState, Mapping[str, float]]:
        """Move the one multiplier of all chains by the mean of their residuals."""
        mean = context.constraint.residual(context.decode(state.x)).mean(0, keepdim=True)
        return PrimalDualState(state.x, self._ascend(context, state.lam, mean)), {}

    def output(self, context: Context, state: PrimalDualState) -> Tensor:
        return context.decode(state.x)

    def monitor(self, context: Context, state: PrimalDualState) -> Mapping[str, Tensor]:
        return {
            "violation": context.constraint.violation(context.decode(state.x)),
            "dual_norm": torch.linalg.vector_norm(state.lam, dim=1),
        }

    def advice(self, state: PrimalDualState, row: TableRow) -> str:
        return step_advice(row)

    def _ascend(self, context: Context, lam: Tensor, h: Tensor) -> Tensor:
        return context.constraint.positive_part(lam + self.dual_step * h)
