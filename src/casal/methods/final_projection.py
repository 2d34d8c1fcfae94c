"""Sample with any method, project once at the end: the baseline every constrained sampler must beat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from casal.methods.base import Method, Stage
from casal.methods.context import Context
from casal.methods.unconstrained import Unconstrained


@dataclass(frozen=True)
class FinalProjection(Method[Any]):
    """Projects the samples of another method once, at the end: z = P(A x_T).

    Feasible; in general not distributed as p restricted to C.

    Args:
        inner: The method to run before the projection; unconstrained sampling if left out, a penalty for
            "guidance and one projection".
    """

    inner: Method[Any] = field(default_factory=Unconstrained)

    name: ClassVar[str] = "final projection"

    @property
    def remembers(self) -> bool:  # type: ignore[override]
        """Whether the inner method does."""
        return self.inner.remembers

    @property
    def states(self) -> tuple[type[Any], ...]:
        """Those of the inner method."""
        return self.inner.states

    def plan(self, context: Context, n: int) -> Sequence[Stage]:
        return self.inner.plan(context, n)

    def init(self, context: Context, x: Tensor, generator: torch.Generator) -> Any:
        return self.inner.init(context, x, generator)

    def output(self, context: Context, state: Any) -> Tensor:
        return context.strict(self.inner.output(context, state))

    def monitor(self, context: Context, state: Any) -> Mapping[str, Tensor]:
        return self.inner.monitor(context, state)

    def decoded_parts(self) -> tuple[str, ...] | None:
        return self.inner.decoded_parts()

    def levelled(self, states: Sequence[Any]) -> Sequence[Any]:
        return self.inner.levelled(states)

    def advice(self, state: Any, row: Any) -> str:
        return self.inner.advice(state, row)
