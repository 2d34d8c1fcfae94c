"""Shared types, and validators of plain values: each raises an error with the number and the remedy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import index
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from torch import Tensor

from casal.errors import SettingError, ShapeError

T = TypeVar("T")

Event: TypeAlias = tuple[int, ...]
"""Shape of one sample, without the leading chain dimension."""

Tolerance: TypeAlias = float | Sequence[float] | Tensor
"""A number, or one for each row of the definition of a set."""

ScoreFunction: TypeAlias = Callable[..., Tensor]
"""``score(x, t)`` = gradient of the log-density at x, of the shape of x; ``score(x, t, **rows)`` given a condition."""

Check: TypeAlias = bool | float
"""Whether checks of the distribution may evaluate the score; a number is the share of the run's evaluations."""

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


def whole_number(value: object, name: str, least: int) -> int:
    """``value`` as an int, or SettingError: whole numbers of Python, NumPy and torch are, 8.0, True and "8" are not."""
    with suppress(TypeError, RuntimeError):
        if not isinstance(value, bool) and (number := index(value)) >= least:  # type: ignore[arg-type]
            if number.bit_length() > 63:  # which Python may not even print
                raise SettingError(f"{name} must be below 2**63, got a number of {number.bit_length()} bits")
            return number
    raise SettingError(f"{name} must be a whole number >= {least}, got {value!r}")


def number_of(value: object, name: str) -> float:
    """``value`` as a float, or SettingError."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError) as error:
        raise SettingError(f"{name} must be a number, got {value!r}") from error


def positive(value: float, name: str) -> float:
    """A finite number > 0."""
    number = number_of(value, name)
    if not 0.0 < number < math.inf:
        raise SettingError(f"{name} must be finite and > 0, got {value}")
    return number


def share(value: float, name: str, of: str) -> float:
    """A number in (0, 1]: a share of something."""
    if not 0.0 < number_of(value, name) <= 1.0:
        raise SettingError(f"{name} is a share of {of} in (0, 1], got {value}")
    return float(value)


def one_of(value: T, name: str, allowed: Sequence[T]) -> T:
    """One of the allowed values."""
    if value not in allowed:
        raise SettingError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
    return value


def broadcasts_to(shape: Sequence[int], event: Sequence[int]) -> bool:
    """Whether a tensor of this shape broadcasts to an event without enlarging it.

    >>> broadcasts_to((3,), (2, 3)), broadcasts_to((), (3,)), broadcasts_to((3,), (1,))
    (True, True, False)

    ``torch.broadcast_shapes`` would import sympy, half a second of the first call.
    """
    return len(shape) <= len(event) and all(a in (1, b) for a, b in zip(shape[::-1], event[::-1], strict=False))


def event_shape(shape: int | Sequence[int]) -> Event:
    """The shape of one sample: whole numbers >= 1."""
    sizes = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    with suppress(SettingError):
        if sizes:
            return tuple(whole_number(size, "shape", 1) for size in sizes)
    raise ShapeError(f"shape is that of one sample, without chains: whole numbers >= 1, got {shape}")
