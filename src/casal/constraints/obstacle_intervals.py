"""Forbidden intervals of a scalar trajectory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from casal.constraints.base import relative
from casal.constraints.obstacle_rows import read_window
from casal.errors import InfeasibleSet, SettingError


class Interval(NamedTuple):
    """low < z_s < high is forbidden for start <= s < stop."""

    start: int
    stop: int
    low: float
    high: float

    @classmethod
    def read(cls, row: Any) -> Interval:
        if not isinstance(row, Sequence) or len(row) != 4:
            raise SettingError(f"an interval obstacle is a row (start, stop, low, high), got {row!r}")
        start, stop = read_window(row[:2], row)
        low, high = float(row[2]), float(row[3])
        if not low < high:
            raise SettingError(f"an interval obstacle needs low < high, got {low:g} and {high:g}")
        if stop is None:
            raise SettingError(f"an interval obstacle needs the step at which it ends, got {row!r}")
        return cls(start, stop, low, high)

    def depth(self, part: Tensor) -> Tensor:
        edges = [abs(edge) for edge in (self.low, self.high) if math.isfinite(edge)]
        scale = torch.full_like(part, max(edges, default=0.0))
        scale = scale if len(edges) == 2 else scale + part.abs()
        return relative(torch.minimum(part - self.low, self.high - part).clamp_min(0.0), scale)

    def residual(self, part: Tensor) -> Tensor:
        if self.low == -math.inf:
            return self.high - part
        if self.high == math.inf:
            return part - self.low
        return (part - self.low) * ((self.high - part) / (self.high - self.low))


class Gates(NamedTuple):
    """What is forbidden for start <= s < stop: disjoint open intervals."""

    start: int
    stop: int
    intervals: list[tuple[float, float]]


def merged_gates(items: Sequence[Interval]) -> list[Gates]:
    """Cut time where an interval starts or stops, and merge the intervals of each piece that overlap."""
    times = sorted({item.start for item in items} | {item.stop for item in items})
    gates = []
    for start, stop in pairwise(times):
        union: list[tuple[float, float]] = []
        for low, high in sorted((item.low, item.high) for item in items if item.start <= start < item.stop):
            if union and low < union[-1][1]:
                union[-1] = (union[-1][0], max(high, union[-1][1]))
            else:
                union.append((low, high))
        if (-math.inf, math.inf) in union:
            raise InfeasibleSet(f"the intervals at steps {start} to {stop - 1} cover the whole line: no way out")
        if union:
            gates.append(Gates(start, stop, union))
    return gates
