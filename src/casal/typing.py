"""Names for the shapes of things that cross room boundaries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from torch import Tensor

Event: TypeAlias = tuple[int, ...]
"""Shape of one sample, without the leading chain dimension."""

Tolerance: TypeAlias = float | Sequence[float] | Tensor
"""A number, or one for each row of the definition of a set."""

ScoreFunction: TypeAlias = Callable[..., Tensor]
"""``score(x, t)`` = gradient of the log-density at x, of the shape of x; ``score(x, t, **rows)`` given a condition."""

Check: TypeAlias = bool | Literal["drift"]
"""Whether checks of the distribution may evaluate the score: False for not at all, "drift" for one more check."""

Init: TypeAlias = Tensor | Callable[..., Tensor]
"""The starting points: a tensor (n, *event), or a callable (n, generator) -> tensor."""


Callback: TypeAlias = Callable[[Any], object]
"""``callback(view)``, the view a ``casal.StepView``; what it returns ends the run if it is true."""


@runtime_checkable
class StartDensity(Protocol):
    """The density of the starting points, where it is known: whatever has these two methods."""

    def log_density(self, x: Tensor) -> Tensor:
        """log q at points (n, *event), normalised: (n,) float64."""
        ...

    def score(self, x: Tensor) -> Tensor:
        """The gradient of log q, of the shape and dtype of x."""
        ...
