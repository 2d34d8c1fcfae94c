"""Validators of plain values: each refuses what cannot work, with the number and the way out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from casal.errors import SettingError


def whole_number(value: object, name: str, least: int) -> int:
    """``value`` as an int, or SettingError: 8 and 8.0 are whole numbers, 2.5, nan and "many" are not."""
    number = value if isinstance(value, int | float) else None
    if number is None or not math.isfinite(number) or int(number) != number or number < least:
        raise SettingError(f"{name} must be a whole number >= {least}, got {value}")
    return int(number)


def positive(value: float, name: str) -> float:
    """``value`` as a float, or SettingError if it is not finite and > 0."""
    number = float(value)
    if not 0.0 < number < math.inf:
        raise SettingError(f"{name} must be finite and > 0, got {value}")
    return number


def share_of_chains(value: float, name: str) -> float:
    """A share in (0, 1]."""
    if not 0.0 < value <= 1.0:
        raise SettingError(f"{name} is a share of the chains in (0, 1], got {value}")
    return float(value)


def one_of(value: object, allowed: Sequence[object], name: str) -> None:
    """SettingError unless ``value`` is one of the allowed ones."""
    if value not in allowed:
        raise SettingError(f"{name} must be one of {tuple(allowed)}, got {value!r}")
