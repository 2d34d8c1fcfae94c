"""The asymmetric double well of the authors' particle and field problems, in one coordinate."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from torch import Tensor

Number = TypeVar("Number", Tensor, "np.typing.NDArray[np.float64]")

CURVATURE = 2.0
"""A number between the curvatures 1.35 and 2.30 of the two wells, for preconditioners."""

STEEPEST, FLATTEST = 2.295, 1.35
"""V'' at the minima of the right and of the left well."""


def potential(m: Number) -> Number:
    """V(m) = ((m+1)^4 / 4 - 0.7 (m+1)^3 / 3 - 0.85 (m+1)^2) / 2: deep and narrow at 0.7, shallow and wide at -2."""
    u = m + 1.0
    return 0.5 * (u**4 / 4 - 0.7 / 3 * u**3 - 0.85 * u**2)


def slope(m: Number) -> Number:
    """V'(m)."""
    u = m + 1.0
    return 0.5 * (u**3 - 0.7 * u**2 - 1.7 * u)
