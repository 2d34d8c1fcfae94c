"""Between bounds, the point of sum zero and length one that reaches farthest along a direction v.

    maximise v . u   subject to   sum u = 0,  |u| = 1,  low <= u <= high

For alpha > 0 and any beta the point u = clip(alpha v + beta, low, high) maximises v . u - |u|^2 / (2 alpha) plus a
multiple of sum u, a strictly concave function, over the box. So one that meets both equations is the answer, and the
only one. With beta from the first equation, |u| never falls as alpha grows: from the least length at alpha = 0 to that
of the corner which fills the coordinates in the order of v.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from casal.constraints.algorithms.filling import crossing, filled

ROUNDS = 30
HALVINGS = 80
CORNERS = 50
SETTLED = 1e-13
TIED = 1e-14
WIDEST, NARROWEST = 1e20, 1e-20


class Bounds(NamedTuple):
    """A box that meets the sphere of sum zero and length one.

    Attributes:
        low: Finite lower bounds (d,).
        high: Finite upper bounds (d,).
        onto: The projection of rows (n, d) onto {low <= u <= high, sum u = 0}.
        longest: A point (d,) of that set, about as long as they come.
    """

    low: Tensor
    high: Tensor
    onto: Callable[[Tensor], Tensor]
    longest: Tensor


def farthest(v: Tensor, bounds: Bounds) -> Tensor:
    """The answer for rows v (n, d) of sum zero and length one.

    Where even the corner in the order of v is too short no alpha > 0 will do. Then a point between two longer corners
    is taken: on the set, not always the farthest one. This cannot happen if all coordinates have the same bounds, for
    then every corner is as long as the longest point.
    """
    u, left = _refined(v, bounds.low, bounds.high)
    if len(left):
        u[left] = _bracketed(v[left], bounds)
    return u


def _refined(v: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Answers, and the indices of the rows that have none yet.

    Which coordinates are clipped is guessed; the others get their own sum and length in closed form, which makes the
    next guess. A row that meets both equations is done, whatever the guesses before it were.
    """
    out = v.clone()
    left = torch.arange(len(v), device=v.device)
    line = v
    for _ in range(ROUNDS):
        u = line.clamp(low, high)
        lost = (u.sum(1).abs() > SETTLED) | ((u.square().sum(1) - 1.0).abs() > SETTLED)
        out[left] = u
        if not bool(lost.any()):
            return out, left[:0]
        if not bool(lost.all()):
            left, v, line, u = left[lost], v[lost], line[lost], u[lost]
        line = _fitted(v, u, (line > low) & (line < high))
    return out, left


def _fitted(v: Tensor, u: Tensor, free: Tensor) -> Tensor:
    """alpha v + beta with which the free coordinates supply what the clipped ones of u leave over."""
    share = free.to(v)
    clipped = u * (1.0 - share)
    total, power = -clipped.sum(1, keepdim=True), 1.0 - clipped.square().sum(1, keepdim=True)
    count = share.sum(1, keepdim=True).clamp_min(1.0)
    offset = v - (share * v).sum(1, keepdim=True) / count
    spread = (share * offset.square()).sum(1, keepdim=True)
    alpha = ((power - total.square() / count).clamp_min(0.0) / spread.clamp_min(1e-300)).sqrt()
    # Ties are not to be told apart by their rounding.
    alpha = torch.where(spread > TIED**2 * count, alpha, torch.zeros_like(alpha))
    return alpha * offset + total / count


def _bracketed(v: Tensor, bounds: Bounds) -> Tensor:
    """By halving the range of alpha until the same coordinates are clipped at both ends.

    In between u is then linear in alpha, and the answer lies on the segment from end to end.
    """
    order = _order(v, bounds)
    # From the coordinate at which beta ends up as alpha grows, so that a large alpha does not drown the bounds.
    v = v - v.gather(1, order).gather(1, crossing(order, bounds.low, bounds.high))
    start, end = bounds.onto(torch.zeros_like(v)), bounds.onto(WIDEST * v)
    near, far = (torch.full_like(v[:, :1], math.log(alpha)) for alpha in (NARROWEST, WIDEST))
    for _ in range(HALVINGS):
        differ = (_pattern(start, bounds) != _pattern(end, bounds)).any(1, keepdim=True)
        moving = differ & _short(start) & ~_short(end)
        if not bool(moving.any()):
            break
        middle = 0.5 * (near + far)
        point = bounds.onto(middle.exp() * v)
        up, down = moving & _short(point), moving & ~_short(point)
        start, end = torch.where(up, point, start), torch.where(down, point, end)
        near, far = torch.where(up, middle, near), torch.where(down, middle, far)

    stuck = torch.nonzero(_short(end).squeeze(1)).flatten()
    if len(stuck):
        start[stuck], end[stuck] = _corners(v[stuck], end[stuck], bounds)
    return _between(start, end)


def _corners(v: Tensor, start: Tensor, bounds: Bounds) -> tuple[Tensor, Tensor]:
    """Where alpha = infinity is too short: the last short corner and the first long one on the way to the longest.

    The corner that fills in the order of v breaks the ties of v, which is all it takes with equal bounds. Beyond it the
    order leans more and more on low + high, the energy that filling a coordinate adds for its mass.
    """
    end = bounds.longest.expand_as(v)
    near, far = torch.zeros_like(v[:, :1]), torch.ones_like(v[:, :1])
    share = near
    for _ in range(CORNERS):
        point = filled(_order(torch.lerp(v, bounds.low + bounds.high, share), bounds), bounds.low, bounds.high)
        short = _short(point)
        start, end = torch.where(short, point, start), torch.where(short, end, point)
        near, far = torch.where(short, share, near), torch.where(short, far, share)
        if not bool((far > near).any()):
            break
        share = 0.5 * (near + far)
    return start, end


def _order(v: Tensor, bounds: Bounds) -> Tensor:
    """Coordinates from the largest v to the smallest; of equal ones those with the higher bounds first."""
    high_first = (bounds.low + bounds.high).argsort(descending=True, stable=True)
    return high_first[v[:, high_first].argsort(dim=1, descending=True, stable=True)]


def _short(u: Tensor) -> Tensor:
    return u.square().sum(1, keepdim=True) < 1.0


def _pattern(u: Tensor, bounds: Bounds) -> Tensor:
    return (u >= bounds.high).to(torch.int8) - (u <= bounds.low).to(torch.int8)


def _between(p: Tensor, q: Tensor) -> Tensor:
    """The point of length one on the segment from p (no longer than one) to q (no shorter)."""
    step = q - p
    square, slope = step.square().sum(1, keepdim=True), (p * step).sum(1, keepdim=True)
    lack = (1.0 - p.square().sum(1, keepdim=True)).clamp_min(0.0)
    root = (slope.square() + square * lack).sqrt()
    # Two forms of the same root, of which the one without cancellation is taken.
    rising = slope > 0
    above, below = torch.where(rising, lack, root - slope), torch.where(rising, slope + root, square)
    share = torch.where(below > 0, above / below, torch.zeros_like(below)).clamp(0.0, 1.0)
    return torch.where(share < 0.5, p + share * step, q - (1.0 - share) * step)
