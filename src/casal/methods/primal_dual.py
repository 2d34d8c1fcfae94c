"""Primal-dual Langevin (Chamon et al. 2024): the constraint holds on average, not for each sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from casal.errors import SettingError
from casal.methods.base import Method, Segment, TableRow, table_rows
from casal.methods.problem import Problem, move


class PrimalDualState(NamedTuple):
    """The point and the multipliers (n, m) of the residuals."""

    x: Tensor
    lam: Tensor


@dataclass(frozen=True)
class PrimalDual(Method[PrimalDualState, TableRow]):
    """x' = a x + b (score(x) - J^T lam) + s w;   lam' = lam + dual_step E[h(x')].

    h is the smooth residual of the set and J its derivative. The expectation is over all chains
    (``average="chains"``, one multiplier for all) or over time along each chain (``average="time"``). Enforces
    E h = 0 only: single samples violate the constraint, and the certificate says so. For an inequality the
    multiplier is kept >= 0.

    Args:
        dual_step: Size of the dual ascent step, > 0.
        average: What stands for the expectation.
    """

    dual_step: float
    average: str = "chains"

    name: ClassVar[str] = "primal-dual"

    def __post_init__(self) -> None:
        if not self.dual_step > 0:
            raise SettingError(f"dual_step must be > 0, got {self.dual_step}")
        if self.average not in ("chains", "time"):
            raise SettingError(f"average must be 'chains' or 'time', got {self.average!r}")

    def plan(self, problem: Problem) -> Sequence[Segment]:
        rows = table_rows(problem)
        if self.average == "time":
            return [Segment(rows)]
        return [Segment([row], rung=None if step == 0 else step) for step, row in enumerate(rows)]

    def init(self, problem: Problem, x: Tensor, generator: torch.Generator) -> PrimalDualState:
        return PrimalDualState(x, torch.zeros_like(problem.constraint.residual(problem.decode(x))))

    def step(self, problem: Problem, state: PrimalDualState, row: TableRow, noise: Tensor) -> PrimalDualState:
        with torch.enable_grad():
            leaf = state.x.detach().requires_grad_()
            h = problem.constraint.residual(problem.decode(leaf))
            (pull,) = torch.autograd.grad(h, leaf, grad_outputs=state.lam)
        x = move(problem, state.x, problem.score(state.x, row.t) - pull, row, noise)
        if self.average == "chains":
            return PrimalDualState(x, state.lam)
        return PrimalDualState(x, self._ascend(problem, state.lam, problem.constraint.residual(problem.decode(x))))

    def exchange(
        self, problem: Problem, state: PrimalDualState, rung: Any, generator: torch.Generator
    ) -> tuple[PrimalDualState, Mapping[str, float]]:
        mean = problem.constraint.residual(problem.decode(state.x)).mean(0, keepdim=True)
        return PrimalDualState(state.x, self._ascend(problem, state.lam, mean)), {}

    def output(self, problem: Problem, state: PrimalDualState) -> Tensor:
        return problem.decode(state.x)

    def monitor(self, problem: Problem, state: PrimalDualState) -> Mapping[str, Tensor]:
        return {
            "violation": problem.constraint.violation(problem.decode(state.x)),
            "dual_norm": torch.linalg.vector_norm(state.lam, dim=1),
        }

    def _ascend(self, problem: Problem, lam: Tensor, h: Tensor) -> Tensor:
        return problem.constraint.positive_part(lam + self.dual_step * h)
