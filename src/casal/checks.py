"""Validators of plain values: each raises an error with the number and the remedy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from casal.errors import SettingError, ShapeError
from casal.typing import Event

T = TypeVar("T")


def whole_number(value: object, name: str, least: int) -> int:
    """``value`` as an int, or SettingError: 8 and 8.0 are whole numbers, 2.5, nan and "many" are not."""
    number = value if isinstance(value, int | float) else None
    if number is None or not math.isfinite(number) or int(number) != number or number < least:
        raise SettingError(f"{name} must be a whole number >= {least}, got {value}")
    return int(number)


def positive(value: float, name: str) -> float:
    """A finite number > 0."""
    number = float(value)
    if not 0.0 < number < math.inf:
        raise SettingError(f"{name} must be finite and > 0, got {value}")
    return number


def share(value: float, name: str, of: str) -> float:
    """A number in (0, 1]: a share of something."""
    if not 0.0 < value <= 1.0:
        raise SettingError(f"{name} is a share of {of} in (0, 1], got {value}")
    return float(value)


def one_of(value: T, name: str, allowed: Sequence[T]) -> T:
    """One of the allowed values."""
    if value not in allowed:
        raise SettingError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
    return value


def event_shape(shape: int | Sequence[int]) -> Event:
    """The shape of one sample: whole numbers >= 1."""
    sizes = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    if not sizes or not all(isinstance(size, int) and size >= 1 for size in sizes):
        raise ShapeError(f"shape is that of one sample, without chains: whole numbers >= 1, got {shape}")
    return sizes
