"""Corners of {low <= u <= high, sum u = 0}: all coordinates at a bound but one."""

from __future__ import annotations

import torch
from torch import Tensor

TRIALS, LARGEST = 20, 512


def filled(order: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """From all coordinates at their lower bound, fill them to the upper one in this order (n, d) until the sum is 0."""
    before, width, need = _fill(order, low, high)
    added = torch.minimum((need - before).clamp_min(0.0), width)
    return (low + torch.zeros_like(width).scatter_(1, order, added)).clamp(low, high)


def longest(low: Tensor, high: Tensor) -> tuple[Tensor, float]:
    """A corner (d,) of {low <= u <= high, sum u = 0} about as long as they come, and what no |u|^2 there exceeds.

    Filling a coordinate adds energy low + high for its mass, so they are filled in this order. That is the longest
    corner if all bounds are equal. Otherwise the one coordinate that is partly filled may be in the wrong place: to
    find the best is a knapsack problem. No corner is longer than if u^2 followed its chord there. If that leaves a
    doubt about length one, each coordinate is tried first and last.
    """
    order = (low + high).argsort(descending=True, stable=True)[None]
    corner = filled(order, low, high)[0]
    most = float((corner.square() + (corner - low) * (high - corner)).sum())
    for _ in range(TRIALS if len(low) <= LARGEST else 0):
        length = float(corner.square().sum())
        if length >= 1.0 or most < 1.0:
            break
        picked, everyone = torch.arange(len(low))[:, None], order.expand(len(low), -1)
        rest = everyone[everyone != picked].reshape(len(low), -1)
        tried = torch.cat([torch.cat([picked, rest], dim=1), torch.cat([rest, picked], dim=1)])
        points = filled(tried, low, high)
        best = int(points.square().sum(1).argmax())
        if float(points[best].square().sum()) <= length:
            break
        corner, order = points[best], tried[best][None]
    return corner, most


def crossing(order: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The place in the order (n, 1) of the coordinate that is filled last."""
    before, _, need = _fill(order, low, high)
    return ((before < need).sum(1, keepdim=True) - 1).clamp_min(0)


def _fill(order: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """In this order: what the coordinates before take up, the room in each (n, d), and what all must take up (n, 1)."""
    width = (high - low).expand(order.shape).gather(1, order)
    return width.cumsum(1) - width, width, -low.expand(order.shape).sum(1, keepdim=True)
