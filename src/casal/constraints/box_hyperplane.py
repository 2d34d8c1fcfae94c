"""Bounds on each coordinate together with one linear equation."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from casal.constraints.base import Constraint, flat, norm, relative
from casal.constraints.cones import refuse_overflow
from casal.errors import InfeasibleSet, ShapeError
from casal.typing import Event

ROUNDING = 1e-12
FARTHEST = 1e300
EPS = 2.0**-52
PASSES = 12


class BoxHyperplane(Constraint):
    """C = {z : low <= z <= high, a . z = b}.

    P(y) = z(lam) with z(lam) = min(max(y - lam a, low), high) and the multiplier lam such that a . z(lam) = b.
    a . z(lam) falls with lam and is linear between the breakpoints (y_i - low_i) / a_i and (y_i - high_i) / a_i, so
    the breakpoints are sorted, the two around the answer are found by bisection, and z is interpolated between
    them: the answer is exact, lies in the box, and does not suffer from the size of lam. The nearest point is
    unique everywhere. Coordinates with a_i = 0 are only clamped.

    The violation is the larger of the excess over a bound relative to max |z| + |bound|, and
    |a . z - b| / (|a| |z| + |b|).

    Args:
        low: Lower bounds: a number, or one for each coordinate of the flattened event. Minus infinity is allowed.
        high: Upper bounds, likewise; plus infinity is allowed.
        a: Normal, with as many entries as an event has coordinates.
        b: Level.

    >>> BoxHyperplane(0.0, 1.0, [1.0, 1.0, 1.0], 1.5).project(torch.tensor([[3.0, 0.5, 0.0]]))
    tensor([[1.0000, 0.5000, 0.0000]])
    """

    convex = True

    def __init__(self, low: Any, high: Any, a: Any, b: float) -> None:
        self.a = torch.as_tensor(a, dtype=torch.float64).reshape(-1).clone()
        self.b = float(b)
        length = float(norm(self.a[None])[0]) if len(self.a) else 0.0
        if not 0.0 < length < math.inf or not math.isfinite(self.b):
            raise InfeasibleSet(
                f"BoxHyperplane needs a finite, nonzero normal and a level; got |a| = {length:g}, b = {b}"
            )
        self.low, self.high = self._bounds("low", low), self._bounds("high", high)
        bad = ~(self.low <= self.high) | (self.low == torch.inf) | (self.high == -torch.inf)
        if bool(bad.any()):
            first = int(torch.nonzero(bad)[0])
            raise InfeasibleSet(
                f"low <= high fails for {int(bad.sum())} of {len(bad)} bounds, first at {first}: "
                f"low = {float(self.low[first]):g}, high = {float(self.high[first]):g}"
            )
        self._normal, self._level = self.a / length, self.b / length
        rising = self._normal >= 0
        # The corners of the box where a . z is largest (lam = -infinity) and smallest (lam = +infinity).
        self._top = torch.where(rising, self.high, self.low)
        self._bottom = torch.where(rising, self.low, self.high)
        self._check_level(length)
        self.one_sided = (False, *(True,) * (2 * len(self.a)))

    def _bounds(self, name: str, given: Any) -> Tensor:
        bound = torch.as_tensor(given, dtype=torch.float64).reshape(-1)
        if len(bound) not in (1, len(self.a)):
            raise ShapeError(f"{name} has {len(bound)} entries, the normal has {len(self.a)}")
        return bound.expand(len(self.a)).clone()

    def _check_level(self, length: float) -> None:
        used = self._normal != 0
        ends = [(self._normal[used] * corner[used]).tolist() for corner in (self._bottom, self._top)]
        least, most = (
            math.fsum(end) if all(map(math.isfinite, end)) else sign * math.inf
            for end, sign in zip(ends, (-1, 1), strict=True)
        )
        slack = [ROUNDING * (abs(self._level) + sum(map(abs, end))) for end in ends]
        if self._level < least - slack[0] or self._level > most + slack[1]:
            raise InfeasibleSet(
                f"a . z = {self.b:g} is out of reach: "
                f"inside the bounds a . z runs from {length * least:g} to {length * most:g}"
            )

    def __repr__(self) -> str:
        return f"BoxHyperplane(d={len(self.a)}, b={self.b:g})"

    def validate(self, event: Event) -> None:
        size = torch.Size(event).numel()
        if size != len(self.a):
            raise ShapeError(f"the set is written for {len(self.a)} coordinates, events {event} have {size}")

    def _arguments(self) -> dict[str, Any]:
        return {"low": self.low, "high": self.high, "a": self.a, "b": self.b}

    def residual(self, z: Tensor) -> Tensor:
        y = flat(z)
        equation = (y * self._normal.to(z)).sum(1, keepdim=True) - self._level
        bounds = torch.cat([self.low.to(z) - y, y - self.high.to(z)], dim=1).clamp_min(-1e30)
        return torch.cat([equation, bounds], dim=1)

    def _project(self, z: Tensor) -> Tensor:
        out = refuse_overflow(torch.where(flat(z).abs() > FARTHEST, torch.inf, flat(z)), self)
        # From a huge y the rounding of the first pass may exceed the answer; from there a second pass is exact.
        for _ in range(PASSES):
            left = torch.nonzero(~self._holds(out)).flatten()
            if not len(left):
                break
            out[left] = self._pass(out[left])
        return out.reshape(z.shape)

    def _pass(self, y: Tensor) -> Tensor:
        lam = self._breakpoints(y)
        left = torch.zeros(len(y), 1, dtype=torch.long, device=y.device)
        right = left + lam.shape[1] - 1
        for _ in range(math.ceil(math.log2(lam.shape[1]))):
            middle = (left + right) // 2
            above = self._gap(self._at(y, lam.gather(1, middle))) >= 0
            left, right = torch.where(above, middle, left), torch.where(above, right, middle)
        near, far = lam.gather(1, left), lam.gather(1, right)
        # At |y| = 1e150 a coordinate crosses its whole range within one rounding of lam: look just beside both ends.
        for beside in (torch.nextafter(near, far), torch.nextafter(far, near)):
            above = self._gap(self._at(y, beside)) >= 0
            near, far = torch.where(above, beside, near), torch.where(above, far, beside)
        foot = self._between(self._at(y, near), self._at(y, far))

        first, last = self._at(y, lam[:, :1]), self._at(y, lam[:, -1:])
        foot = torch.where(self._gap(first) < 0, self._beyond(first, self._top.to(y)), foot)
        return torch.where(self._gap(last) > 0, self._beyond(last, self._bottom.to(y)), foot)

    def _at(self, y: Tensor, lam: Tensor) -> Tensor:
        """z(lam)."""
        return torch.clamp(y - lam * self._normal.to(y), self.low.to(y), self.high.to(y))

    def _gap(self, z: Tensor) -> Tensor:
        return (z * self._normal.to(z)).sum(1, keepdim=True) - self._level

    def _breakpoints(self, y: Tensor) -> Tensor:
        """Every multiplier at which a coordinate meets a bound, and zero, sorted."""
        used = (self._normal != 0).to(y.device)
        y, normal = y[:, used], self._normal.to(y)[used]
        parts = [torch.zeros_like(y[:, :1])]
        for bound in (self.low.to(y)[used], self.high.to(y)[used]):
            met = ((y - bound) / normal).clamp(-FARTHEST, FARTHEST)
            parts.append(torch.where(torch.isinf(bound), torch.zeros_like(met), met))
        return torch.cat(parts, dim=1).sort(1).values

    def _between(self, p: Tensor, q: Tensor) -> Tensor:
        """The point of the segment from p to q at which a . z = b."""
        start, drop = self._gap(p), self._gap(p) - self._gap(q)
        share = torch.where(drop == 0, torch.zeros_like(drop), start / drop).clamp(0.0, 1.0)
        return torch.where(share < 0.5, p + share * (q - p), q - (1.0 - share) * (q - p))

    def _beyond(self, point: Tensor, corner: Tensor) -> Tensor:
        """On from the outermost breakpoint, where only coordinates without a bound still move, towards a corner."""
        normal = self._normal.to(point)
        free = torch.where(torch.isinf(corner), normal, torch.zeros_like(normal))
        if bool((free != 0).any()):
            return point - self._gap(point) * (free / free.square().sum())
        return self._between(point, torch.where(normal == 0, point, corner))

    def _holds(self, y: Tensor) -> Tensor:
        """Points (n,) that satisfy the definition to rounding, which stay where they are."""
        size = (y * self._normal.to(y)).abs().sum(1) + abs(self._level)
        bounded = ((y >= self.low.to(y)) & (y <= self.high.to(y))).all(1)
        return bounded & (self._gap(y).squeeze(1).abs() <= 8.0 * EPS * size)

    def _violation(self, z: Tensor) -> Tensor:
        y = flat(z)
        peak = y.abs().amax(1, keepdim=True)
        worst = relative(self._gap(y).abs().squeeze(1), norm(y) + abs(self._level))
        for bound, sign in ((self.low.to(z), -1.0), (self.high.to(z), 1.0)):
            excess = (sign * (y - bound)).clamp_min(0.0)
            size = peak + torch.where(torch.isinf(bound), torch.zeros_like(bound), bound.abs())
            worst = torch.maximum(worst, relative(excess, size).amax(1))
        return worst
