"""Reading the rows that describe obstacles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from casal.errors import SettingError


def split_row(row: Any, fields: int, form: str) -> tuple[Any, tuple[int, int | None]]:
    """The fields that describe an obstacle, and the steps at which it stands."""
    if not isinstance(row, Sequence) or len(row) not in (fields, fields + 2):
        raise SettingError(f"{form}, got {row!r}")
    return row[:fields], read_window(row[fields:], row)


def read_window(given: Any, row: Any) -> tuple[int, int | None]:
    """Start and stop of an obstacle; without them it always stands, and with stop None to the end."""
    start, stop = given or (0, None)
    whole = all(isinstance(step, int) for step in (start, 0 if stop is None else stop))
    if not whole or start < 0 or (stop is not None and stop <= start):
        raise SettingError(f"an obstacle stands for the steps start <= s < stop with 0 <= start < stop, got {row!r}")
    return start, stop


def read_point(given: Any, row: Any, *, finite: bool = True) -> Tensor:
    """A point (p,) in float64."""
    point = torch.as_tensor(given, dtype=torch.float64).clone()
    good = point.isfinite() if finite else ~point.isnan()
    if point.ndim != 1 or not len(point) or not bool(good.all()):
        raise SettingError(f"a point of an obstacle is a list of p {'finite ' if finite else ''}numbers, got {row!r}")
    return point


def read_positive(given: Any, name: str) -> float:
    """A length."""
    value = float(given)
    if not 0.0 < value < math.inf:
        raise SettingError(f"{name} must be positive and finite, got {value:g}")
    return value
