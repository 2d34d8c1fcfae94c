"""Sample with any method, project once at the end: the baseline every constrained sampler must beat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from casal.methods.base import Method, Segment
from casal.methods.problem import Problem
from casal.methods.unconstrained import Unconstrained


@dataclass(frozen=True)
class FinalProjection(Method[Any, Any]):
    """z = P(A x_T), with x_T from ``inner``. Feasible; in general not the conditional law.

    Args:
        inner: The method to run before the projection; unconstrained sampling if left out, a penalty for
            "guidance and one projection".
    """

    inner: Method[Any, Any] = field(default_factory=Unconstrained)

    name: ClassVar[str] = "final projection"

    def plan(self, problem: Problem) -> Sequence[Segment]:
        return self.inner.plan(problem)

    def init(self, problem: Problem, x: Tensor, generator: torch.Generator) -> Any:
        return self.inner.init(problem, x, generator)

    def step(self, problem: Problem, state: Any, row: Any, noise: Tensor) -> Any:
        return self.inner.step(problem, state, row, noise)

    def noise(self, problem: Problem, row: Any, n: int, generator: torch.Generator, out: Tensor | None = None) -> Any:
        return self.inner.noise(problem, row, n, generator, out)

    def exchange(
        self, problem: Problem, state: Any, rung: Any, generator: torch.Generator
    ) -> tuple[Any, Mapping[str, float]]:
        return self.inner.exchange(problem, state, rung, generator)

    def decoded_parts(self) -> tuple[str, ...] | None:
        return self.inner.decoded_parts()

    def output(self, problem: Problem, state: Any) -> Tensor:
        return problem.strict(self.inner.output(problem, state))

    def monitor(self, problem: Problem, state: Any) -> Mapping[str, Tensor]:
        return self.inner.monitor(problem, state)
