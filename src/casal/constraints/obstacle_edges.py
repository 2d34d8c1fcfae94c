"""Lines and circles that bound obstacles, and where two of them meet in the plane."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from casal.constraints.base import unit

TOUCHING = 1.0 + 1e-12


class Circle(NamedTuple):
    """|x - center| = radius."""

    center: Tensor
    radius: float

    def foot(self, x: Tensor) -> Tensor:
        first = x.new_zeros(x.shape[1])
        first[0] = 1.0
        center = self.center.to(x)
        return center + self.radius * unit(x - center, first)


class Line(NamedTuple):
    """origin + t along for low <= t <= high, |along| = 1."""

    origin: Tensor
    along: Tensor
    low: float
    high: float

    def foot(self, x: Tensor) -> Tensor:
        origin, along = self.origin.to(x), self.along.to(x)
        return origin + ((x - origin) @ along).clamp(self.low, self.high)[:, None] * along


def meet(first: Circle | Line, second: Circle | Line) -> list[list[float]]:
    """Points of the plane common to both; lines are taken without their ends."""
    if isinstance(first, Line) and isinstance(second, Circle):
        return meet(second, first)
    if isinstance(first, Circle) and isinstance(second, Circle):
        away = second.center - first.center
        distance = float(torch.linalg.vector_norm(away))
        apart = distance > TOUCHING * (first.radius + second.radius)
        if apart or distance == 0.0 or abs(first.radius - second.radius) > TOUCHING * distance:
            return []
        forth = 0.5 * (distance + (first.radius - second.radius) * ((first.radius + second.radius) / distance))
        return _pair(first.center, away / distance, forth, first.radius)
    if isinstance(first, Circle) and isinstance(second, Line):
        start = second.origin + ((first.center - second.origin) @ second.along) * second.along
        away = start - first.center
        distance = float(torch.linalg.vector_norm(away))
        across = torch.stack([-second.along[1], second.along[0]])
        across = across if float(across @ away) >= 0 else -across
        return _pair(first.center, across, distance, first.radius) if distance <= TOUCHING * first.radius else []
    assert isinstance(first, Line) and isinstance(second, Line)
    turn = float(first.along[0] * second.along[1] - first.along[1] * second.along[0])
    if turn == 0.0:
        return []
    gap = second.origin - first.origin
    forth = float(gap[0] * second.along[1] - gap[1] * second.along[0]) / turn
    return [(first.origin + forth * first.along).tolist()] if math.isfinite(forth) else []


def _pair(center: Tensor, along: Tensor, forth: float, radius: float) -> list[list[float]]:
    """The two points of a circle whose component along a direction is ``forth``."""
    aside = math.sqrt(max((radius - forth) * (radius + forth), 0.0))
    across = torch.stack([-along[1], along[0]])
    return [(center + forth * along + side * across).tolist() for side in (aside, -aside)]
