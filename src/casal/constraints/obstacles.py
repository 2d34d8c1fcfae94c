"""Obstacles in the way of a trajectory: forbidden intervals, discs, boxes and thick segments, step by step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from casal.checks import Event, positive, whole_number
from casal.constraints.base import Budget, Constraint, Excess, Projection, at_once, register, side_by_side
from casal.constraints.parameters import real
from casal.constraints.vectors import EPSILON, GRANTED, axis, norm, relative, unit
from casal.devices import amend, chosen, placed
from casal.errors import InfeasibleSet, SettingError, ShapeError

TOUCHING = 1.0 + 1e-12
ON_THE_EDGE = 1e-13
"""Depth below the edge of a shape, relative to its size and position together, that is rounding."""
FEASIBLE = 1e-12
CHUNK = 4_000_000


@register
class Obstacles(Constraint):
    """Trajectories that avoid obstacles at every time step.

    C = {z : z_s lies in no obstacle of time step s}. Obstacles are open: their edges are allowed.

    Scalar trajectories, events (S,), have interval obstacles low < z_s < high; points, events (S, p), have shapes:

        disc     |z_s - c| < r
        box      low < z_s < high in every coordinate
        segment  distance of z_s to the segment from a to b < thickness / 2   (a capsule)

    Where an event has more channels than the obstacles stand in, (S, c), ``channels`` names those that they look at:
    the one that the intervals forbid values of, or the p that are the coordinates of the points. All other channels are
    free, and a projection leaves them as they are. So obstacles meet the trajectories of a system with inputs as they
    stand, ``LinearDynamics(...) & Obstacles(..., channels=0)``; their numbers are in the units of the event.

    Time steps are independent, and each is moved by the nearest way out:

        P(y)_s = y_s if it is free, else the nearest point of the edge of the union of the obstacles at step s.

    Overlapping intervals are merged first. For shapes, the way out of the deepest obstacle is the nearest way out
    of all of them whenever it is free. Where it is not, in the plane (p = 2) the answer is among finitely many
    points: the nearest on the lines and circles that bound the shapes, and those where these meet; so intervals and
    plane shapes are exact, however they overlap. For p != 2 the point walks out of one shape after the other;
    then ``exact`` is true only if no two shapes overlap (bounding boxes are compared) at any common step, the
    result is a free point but not surely the nearest, and chains that did not get free are flagged.

    Equally near ways out: intervals take the low edge, boxes the first face, a disc at its centre the first axis.
    The set is not convex. The violation is the largest depth of penetration relative to the smallest extent of
    the obstacle: the width, the diameter, the thickness; for an obstacle without end, its finite edge + |z_s|. Depths
    below 1e-13 of size and position together, such as r + |c|, are rounding: on the edge of a disc, box or segment.

    The inequalities are, with slope one at the edges, (z - low)(high - z) / (high - low), (r^2 - |z - c|^2) / (2 r) and
    the same for segments. A box has no smooth residual.

    Args:
        intervals: Rows (start, stop, low, high) for the steps start <= s < stop; one end may be infinite.
        discs: Rows (center, radius) for all steps, or (center, radius, start, stop).
        boxes: Rows (low, high) or (low, high, start, stop), axis-aligned; bounds may be infinite, but not all.
        segments: Rows (a, b, thickness) or (a, b, thickness, start, stop); a = b is allowed.
        channels: For events (S, c): the channel of the intervals, a number, or the channels of the p coordinates of
            the shapes, a list. None for events (S,) of intervals and (S, p) of shapes.

    >>> gate = Obstacles(intervals=[(1, 3, -1.0, 2.0)])
    >>> gate.project(torch.tensor([[0.0, 0.0, 1.0, 1.0]]))
    tensor([[ 0., -1.,  2.,  1.]])

    Steps of a position, a height and an input; the disc stands in the plane of the first two.

    >>> disc = Obstacles(discs=[([0.0, 0.0], 1.0)], channels=(0, 1))
    >>> disc.project(torch.tensor([[[0.5, 0.0, 0.3], [0.0, 2.0, 0.7]]]))
    tensor([[[1.0000, 0.0000, 0.3000],
             [0.0000, 2.0000, 0.7000]]])
    """

    solid = True
    _equation_count = 0

    def __init__(
        self,
        intervals: Sequence[Any] = (),
        discs: Sequence[Any] = (),
        boxes: Sequence[Any] = (),
        segments: Sequence[Any] = (),
        channels: int | Sequence[int] | None = None,
    ) -> None:
        self.intervals = [Interval.read(row) for row in intervals]
        self.shapes: list[Shape] = [
            *(Disc.read(row) for row in discs),
            *(BoxShape.read(row) for row in boxes),
            *(Segment.read(row) for row in segments),
        ]
        if self.intervals and self.shapes:
            raise SettingError("intervals are for events (S,), shapes for events (S, p); use a Product of two sets")
        dims = sorted({shape.dim for shape in self.shapes})
        if len(dims) > 1:
            raise ShapeError(f"the shapes have points with {dims} coordinates; all must have the same number")
        self.smooth = all(shape.smooth for shape in self.shapes)
        self._dim = dims[0] if dims else None
        self.channels = self._read_channels(channels)
        self._gates = _gates_of(self.intervals)
        self._scenes = _scenes_of(self.shapes)
        self.exact = self._dim in (None, 2) or not any(_overlap(a, b) for a, b in combinations(self.shapes, 2))

    def __repr__(self) -> str:
        counts: dict[str, int] = {"intervals": len(self.intervals)}
        for shape in self.shapes:
            counts[shape.plural] = counts.get(shape.plural, 0) + 1
        words = [f"{count} {name}" for name, count in counts.items() if count]
        return f"Obstacles({', '.join(words if self.channels is None else [*words, f'channels={self.channels}'])})"

    def _read_channels(self, given: int | Sequence[int] | None) -> int | list[int] | None:
        """One channel for intervals, a list of them for shapes."""
        if given is None:
            return None
        if isinstance(given, Sequence):
            found = [whole_number(channel, "a channel", 0) for channel in given]
            if self.intervals:
                raise SettingError(f"intervals look at one channel, a number such as channels=0, got {found}")
            if not found or len(set(found)) < len(found) or len(found) != (self._dim or len(found)):
                raise SettingError(f"channels must be {self._dim or 'one or more'} different numbers, got {found}")
            return found
        if self.shapes:
            raise SettingError(
                f"the shapes have {self._dim} coordinates, so channels is a list of as many, got {given}"
            )
        return whole_number(given, "channels", 0)

    def validate(self, event: Event) -> None:
        wanted = "(S,)" if self.intervals else f"(S, {self._dim})"
        fits = (len(event) == 1) if self.intervals else (self._dim is None or event[1:] == (self._dim,))
        if self.channels is not None:
            last = max(self.channels) if isinstance(self.channels, list) else self.channels
            wanted = f"(S, c) with c > {last}, as channels = {self.channels} needs"
            fits = len(event) == 2 and event[1] > last
        if not fits or not event:
            raise ShapeError(f"these obstacles are for events {wanted}, got {event}")
        lasts = [item.stop for item in self.intervals] + [shape.stop or shape.start + 1 for shape in self.shapes]
        if max(lasts, default=0) > event[0]:
            raise ShapeError(f"an obstacle is at step {max(lasts) - 1}, events {event} end at step {event[0] - 1}")

    def _arguments(self) -> dict[str, Any]:
        rows: dict[str, list[Any]] = {"intervals": [list(item) for item in self.intervals]}
        for kind in (Disc, BoxShape, Segment):
            rows[kind.plural] = [shape.row() for shape in self.shapes if shape.plural == kind.plural]
        given: dict[str, Any] = {name: value for name, value in rows.items() if value}
        return given if self.channels is None else given | {"channels": self.channels}

    def _seen(self, z: Tensor) -> Tensor:
        """What the obstacles look at: (n, S) for intervals, (n, S, p) for shapes."""
        return z if self.channels is None else z[..., self.channels]

    def _residual(self, z: Tensor) -> Tensor:
        if not self.smooth:
            boxes = f"{sum(not shape.smooth for shape in self.shapes)} of the obstacles are boxes"
            raise SettingError(f"{boxes}, which have no smooth residual; use discs or segments, or Projected or CASAL")
        return super()._residual(z)

    def inequalities(self, z: Tensor) -> Tensor:
        seen = self._seen(z)
        parts = [item.residual(seen[:, item.start : item.stop]) for item in self.intervals]
        parts += [shape.residual(seen[:, shape.start : shape.stop]) for shape in self.shapes]
        return torch.cat(parts, dim=1) if parts else z.new_zeros(len(z), 0)

    def _excess(self, z: Tensor, lost: Tensor | None) -> Excess:
        """Obstacle by obstacle, the deepest step of each; intervals first."""
        parts = []
        items: list[Interval | Shape] = [*self.intervals, *self.shapes]
        seen, hidden = self._seen(z), None if lost is None else self._seen(lost)
        for item in items:
            part, more = seen[:, item.start : item.stop], None if hidden is None else hidden[:, item.start : item.stop]
            if part.shape[1]:
                every = item.missed(part, more)
                _, deepest = every.violation().max(1, keepdim=True)
                parts.append(
                    Excess(*(torch.as_tensor(v).to(z).expand_as(every.amount).gather(1, deepest) for v in every))
                )
        return side_by_side(parts, z)

    def component_name(self, event: Event, row: int) -> str:
        names = [f"outside interval {k}" for k in range(len(self.intervals))]
        names += [f"outside {shape.plural[:-1]} {k}" for k, shape in enumerate(self.shapes) if event[0] > shape.start]
        return names[row]

    def _solve(self, z: Tensor, budget: Budget, warm: Tensor | None) -> Projection:
        steps = torch.zeros(len(z), dtype=torch.long, device=z.device)
        point = self._leave(self._seen(z), Budget() if self.exact else budget, steps)
        if self.channels is not None:
            whole_event = z.clone()
            whole_event[..., self.channels] = point
            point = whole_event
        if self.exact:
            return at_once(point)
        residual = self._violation(point)
        return Projection(point, residual <= max(budget.tolerance, FEASIBLE), steps, residual)

    def _leave(self, z: Tensor, budget: Budget, steps: Tensor) -> Tensor:
        """Nearest way out; ``steps`` (n,) is raised to the number of walking steps of each chain."""
        out = z.clone()
        for start, stop, gates in self._gates:
            part = out[:, start:stop]
            for low, high in gates:
                edge = torch.where(part - low <= high - part, z.new_full((), low), z.new_full((), high))
                part = torch.where((part > low) & (part < high), edge, part)
            out[:, start:stop] = part
        for scene in self._scenes:
            part = z[:, scene.start : scene.stop]
            x = part.reshape(-1, part.shape[2])
            stuck = chosen(~scene.free(x))
            if len(stuck):
                walked = torch.zeros(len(stuck), dtype=torch.long, device=z.device)
                x = x.index_copy(0, stuck, scene.leave(x[stuck], budget, walked))
                steps.scatter_reduce_(0, stuck // part.shape[1], walked, "amax")
                out[:, scene.start : scene.stop] = x.reshape(part.shape)
        return out


# ------------------------------------------------------------------ intervals


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
        start, stop = _read_window(row[:2], row)
        low, high = float(row[2]), float(row[3])
        if not low < high:
            raise SettingError(f"an interval obstacle needs low < high, got {low:g} and {high:g}")
        if stop is None:
            raise SettingError(f"an interval obstacle needs the step at which it ends, got {row!r}")
        return cls(start, stop, low, high)

    def missed(self, part: Tensor, lost: Tensor | None) -> Excess:
        """Depths (n, steps), in units of the width; without one, of |edge| + |z_s|."""
        width, edge = self.high - self.low, self.low if math.isfinite(self.low) else self.high
        unit = torch.full_like(part, width) if math.isfinite(width) else abs(edge) + part.abs()
        depth = torch.minimum(part - self.low, self.high - part).clamp_min(0.0)
        return Excess(depth, unit, 0.0 if lost is None else GRANTED * EPSILON * lost)

    def residual(self, part: Tensor) -> Tensor:
        if self.low == -math.inf:
            return self.high - part
        if self.high == math.inf:
            return part - self.low
        return (part - self.low) * ((self.high - part) / (self.high - self.low))


def _gates_of(items: Sequence[Interval]) -> list[tuple[int, int, list[tuple[float, float]]]]:
    """Cut time where an interval starts or stops: start, stop, and the disjoint intervals forbidden in between."""
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
            gates.append((start, stop, union))
    return gates


# ------------------------------------------------------------------ shapes


class Shape(ABC):
    """An open obstacle in R^p that stands for start <= s < stop."""

    plural: str
    smooth: bool = True
    bounded: bool = True
    ball: tuple[Tensor, float] | None = None
    """Centre and radius, if the shape is a ball."""

    def __init__(self, dim: int, size: float, start: int, stop: int | None) -> None:
        self.dim, self.size, self.start, self.stop = dim, size, start, stop

    def window(self) -> list[int | None]:
        """The end of a row, left out if the obstacle always stands."""
        return [] if self.start == 0 and self.stop is None else [self.start, self.stop]

    def relative_depth(self, x: Tensor) -> Tensor:
        """Depth (m,) of the points x (m, p) below the edge, beyond rounding, in units of the obstacle; zero outside."""
        depth, unit, rounding = self._measured(x)
        return relative((depth - rounding).clamp_min(0.0), unit)

    def missed(self, part: Tensor, lost: Tensor | None) -> Excess:
        """Depths (n, steps) of points (n, steps, p) in units of the obstacle."""
        x = part.reshape(-1, part.shape[2])
        depth, unit, rounding = self._measured(x)
        if lost is not None:
            rounding = rounding + GRANTED * EPSILON * norm(lost.reshape(x.shape))
        return Excess(*(value.reshape(part.shape[:2]) for value in (depth, unit, rounding)))

    def _measured(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Depth of the points x (m, p), zero outside, what it is measured in, and what of it is rounding, each (m,)."""
        return self._depth_inside(x), self._unit(x), torch.full_like(x[:, 0], ON_THE_EDGE * self.size)

    def _depth_inside(self, x: Tensor) -> Tensor:
        """Depth (m,), zero outside; only points in the bounding box are looked at."""
        near = torch.ones(len(x), dtype=torch.bool, device=x.device)
        for column, low, high in zip(x.unbind(1), *(bound.tolist() for bound in self.bounds()), strict=True):
            near &= (column > low) & (column < high)
        return amend(x.new_zeros(len(x)), near, lambda some: self.depth(some).clamp_min(0.0), x)

    def _unit(self, x: Tensor) -> Tensor:
        """What the depths (m,) of the points x (m, p) are measured in: the smallest extent of the shape."""
        low, high = self.bounds()
        return torch.full_like(x[:, 0], float((high - low).min()))

    @abstractmethod
    def row(self) -> list[Any]: ...

    @abstractmethod
    def depth(self, x: Tensor) -> Tensor:
        """Distance (m,) of the points x (m, p) inside to the edge; negative outside."""

    @abstractmethod
    def exit(self, x: Tensor) -> Tensor:
        """Nearest point of the edge to the points x (m, p), which are inside."""

    @abstractmethod
    def bounds(self) -> tuple[Tensor, Tensor]:
        """The axis-aligned box around the shape."""

    @abstractmethod
    def edges(self) -> list[Circle | Line]:
        """What bounds the shape if p = 2."""

    def residual(self, part: Tensor) -> Tensor:
        raise NotImplementedError


class Disc(Shape):
    """|x - c| < r."""

    plural = "discs"

    def __init__(self, center: Tensor, radius: float, start: int, stop: int | None) -> None:
        super().__init__(len(center), radius + float(torch.linalg.vector_norm(center)), start, stop)
        self.center, self.radius = center, radius
        self.ball = center, radius

    @classmethod
    def read(cls, row: Any) -> Disc:
        (center, radius), (start, stop) = _split_row(
            row, 2, "a disc is a row (center, radius) or (center, radius, start, stop)"
        )
        return cls(_read_point(center, row), positive(radius, "the radius of a disc"), start, stop)

    def row(self) -> list[Any]:
        return [self.center.tolist(), self.radius, *self.window()]

    def depth(self, x: Tensor) -> Tensor:
        return self.radius - torch.linalg.vector_norm(x - placed(self.center, x), dim=1)

    def exit(self, x: Tensor) -> Tensor:
        return Circle(self.center, self.radius).nearest(x)

    def bounds(self) -> tuple[Tensor, Tensor]:
        return self.center - self.radius, self.center + self.radius

    def edges(self) -> list[Circle | Line]:
        return [Circle(self.center, self.radius)]

    def residual(self, part: Tensor) -> Tensor:
        return (self.radius**2 - (part - self.center.to(part)).square().sum(2)) / (2.0 * self.radius)


class BoxShape(Shape):
    """low < x < high in every coordinate."""

    plural = "boxes"
    smooth = False

    def __init__(self, low: Tensor, high: Tensor, start: int, stop: int | None) -> None:
        corners = torch.stack([low, high])
        self.bounded = bool(torch.isfinite(corners).all())
        size = torch.where(torch.isfinite(corners), corners, torch.zeros_like(corners)).abs().amax(0)
        super().__init__(len(low), float(torch.linalg.vector_norm(size)), start, stop)
        self.low, self.high = low, high

    @classmethod
    def read(cls, row: Any) -> BoxShape:
        (low, high), (start, stop) = _split_row(row, 2, "a box is a row (low, high) or (low, high, start, stop)")
        corners = _read_point(low, row, finite=False), _read_point(high, row, finite=False)
        if len(corners[0]) != len(corners[1]) or not bool((corners[0] < corners[1]).all()):
            raise SettingError(f"a box needs low < high in every coordinate, got {low} and {high}")
        if not bool(torch.isfinite(torch.stack(corners)).any()):
            raise InfeasibleSet("a box without any finite bound covers the whole space: no way out")
        return cls(*corners, start, stop)

    def row(self) -> list[Any]:
        return [self.low.tolist(), self.high.tolist(), *self.window()]

    def depth(self, x: Tensor) -> Tensor:
        return torch.minimum(x - self.low.to(x), self.high.to(x) - x).amin(1)

    def _measured(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """By the face through which x leaves with the least of its own unit: the width there, or edge and point."""
        low, high = self.low.to(x), self.high.to(x)
        width = (high - low).expand_as(x)
        faces = []
        for depth, edge in ((x - low, low), (high - x, high)):
            size = torch.where(torch.isfinite(edge), edge.abs(), 0.0).expand_as(x)
            unit = torch.where(torch.isfinite(width), width, size + x.abs())
            faces.append((depth.clamp_min(0.0), unit, ON_THE_EDGE * size))
        depth, unit, rounding = (torch.cat(parts, dim=1) for parts in zip(*faces, strict=True))
        share = torch.where(torch.isfinite(depth), (depth - rounding).clamp_min(0.0) / unit, torch.inf)
        face = share.argmin(1, keepdim=True)
        return depth.gather(1, face)[:, 0], unit.gather(1, face)[:, 0], rounding.gather(1, face)[:, 0]

    def exit(self, x: Tensor) -> Tensor:
        low, high = self.low.to(x), self.high.to(x)
        face = torch.cat([x - low, high - x], dim=1).argmin(1, keepdim=True)
        walls = torch.cat([low, high]).expand(len(x), -1)
        return x.scatter(1, face % self.dim, walls.gather(1, face))

    def bounds(self) -> tuple[Tensor, Tensor]:
        return self.low, self.high

    def edges(self) -> list[Circle | Line]:
        lines: list[Circle | Line] = []
        for across, along in zip((0, 1), torch.eye(2, dtype=torch.float64).flip(0), strict=True):
            for wall in (float(self.low[across]), float(self.high[across])):
                if math.isfinite(wall):
                    ends = float(self.low[1 - across]), float(self.high[1 - across])
                    lines.append(Line(wall * (1.0 - along), along, *ends))
        return lines


class Segment(Shape):
    """Distance to the segment from a to b < thickness / 2."""

    plural = "segments"

    def __init__(self, a: Tensor, b: Tensor, thickness: float, start: int, stop: int | None) -> None:
        self.a, self.b, self.thickness, self.radius = a, b, thickness, 0.5 * thickness
        ends = torch.linalg.vector_norm(torch.stack([a, b]), dim=1)
        super().__init__(len(a), self.radius + float(ends.max()), start, stop)
        self.length = float(torch.linalg.vector_norm(b - a))
        first = axis(a[None], 1.0)
        self.along = unit((b - a)[None], first)[0]
        # Some direction across, for points on the segment itself: the coordinate axis most across it, made so.
        across = torch.zeros_like(a)
        across[int(self.along.abs().argmin())] = 1.0
        across = across - (across @ self.along) * self.along
        self.across = unit(across[None], first)[0] if self.length else first

    @classmethod
    def read(cls, row: Any) -> Segment:
        form = "a segment is a row (a, b, thickness) or (a, b, thickness, start, stop)"
        (a, b, thickness), (start, stop) = _split_row(row, 3, form)
        ends = _read_point(a, row), _read_point(b, row)
        if len(ends[0]) != len(ends[1]):
            raise ShapeError(f"the ends of a segment have {len(ends[0])} and {len(ends[1])} coordinates")
        return cls(*ends, positive(thickness, "the thickness of a segment"), start, stop)

    def row(self) -> list[Any]:
        return [self.a.tolist(), self.b.tolist(), self.thickness, *self.window()]

    def _nearest(self, x: Tensor) -> Tensor:
        """Nearest point of the segment itself."""
        a, along = self.a.to(x), self.along.to(x)
        return a + ((x - a) * along).sum(-1, keepdim=True).clamp(0.0, self.length) * along

    def depth(self, x: Tensor) -> Tensor:
        return self.radius - torch.linalg.vector_norm(x - self._nearest(x), dim=1)

    def _unit(self, x: Tensor) -> Tensor:
        return torch.full_like(x[:, 0], self.thickness)

    def exit(self, x: Tensor) -> Tensor:
        point = self._nearest(x)
        offset, along, across = x - point, self.along.to(x), self.across.to(x)
        middle = ((x - self.a.to(x)) * along).sum(1, keepdim=True)
        middle = (middle > 0) & (middle < self.length)
        offset = torch.where(middle, offset - (offset * along).sum(1, keepdim=True) * along, offset)
        # On the segment only the side can be told, not the direction.
        side = torch.where((offset * across).sum(1, keepdim=True) >= 0, across, -across)
        centred = torch.linalg.vector_norm(offset, dim=1, keepdim=True) <= 1e-15 * self.size
        return point + self.radius * torch.where(centred, side, unit(offset, across))

    def bounds(self) -> tuple[Tensor, Tensor]:
        return torch.minimum(self.a, self.b) - self.radius, torch.maximum(self.a, self.b) + self.radius

    def edges(self) -> list[Circle | Line]:
        ends: list[Circle | Line] = [Circle(self.a, self.radius), Circle(self.b, self.radius)]
        across = torch.stack([-self.along[1], self.along[0]])
        return ends + [Line(self.a + side * self.radius * across, self.along, 0.0, self.length) for side in (1.0, -1.0)]

    def residual(self, part: Tensor) -> Tensor:
        return (self.radius**2 - (part - self._nearest(part)).square().sum(2)) / (2.0 * self.radius)


def _overlap(one: Shape, other: Shape) -> bool:
    """Whether two shapes stand at a common step and may share a point."""
    if max(one.start, other.start) >= min(one.stop or math.inf, other.stop or math.inf):
        return False
    if one.ball is not None and other.ball is not None:
        return float(torch.linalg.vector_norm(one.ball[0] - other.ball[0])) < one.ball[1] + other.ball[1]
    (low, high), (other_low, other_high) = one.bounds(), other.bounds()
    return bool(((low < other_high) & (other_low < high)).all())


# ------------------------------------------------------------------ edges in the plane


class Circle(NamedTuple):
    """|x - center| = radius."""

    center: Tensor
    radius: float

    def nearest(self, x: Tensor) -> Tensor:
        center = placed(self.center, x)
        return center + self.radius * unit(x - center, axis(x, 1.0))

    def meet(self, other: Circle | Line) -> list[list[float]]:
        """Points of the plane common to both; lines are taken without their ends."""
        return other.meet_circle(self)

    def meet_circle(self, first: Circle) -> list[list[float]]:
        away = self.center - first.center
        distance = float(torch.linalg.vector_norm(away))
        apart = distance > TOUCHING * (first.radius + self.radius)
        if apart or distance == 0.0 or abs(first.radius - self.radius) > TOUCHING * distance:
            return []
        forth = 0.5 * (distance + (first.radius - self.radius) * ((first.radius + self.radius) / distance))
        return _pair(first.center, away / distance, forth, first.radius)

    def meet_line(self, line: Line) -> list[list[float]]:
        start = line.origin + ((self.center - line.origin) @ line.along) * line.along
        away = start - self.center
        distance = float(torch.linalg.vector_norm(away))
        across = torch.stack([-line.along[1], line.along[0]])
        across = across if float(across @ away) >= 0 else -across
        return _pair(self.center, across, distance, self.radius) if distance <= TOUCHING * self.radius else []


class Line(NamedTuple):
    """origin + t along for low <= t <= high, |along| = 1."""

    origin: Tensor
    along: Tensor
    low: float
    high: float

    def nearest(self, x: Tensor) -> Tensor:
        origin, along = self.origin.to(x), self.along.to(x)
        return origin + ((x - origin) @ along).clamp(self.low, self.high)[:, None] * along

    def meet(self, other: Circle | Line) -> list[list[float]]:
        return other.meet_line(self)

    def meet_circle(self, circle: Circle) -> list[list[float]]:
        return circle.meet_line(self)

    def meet_line(self, first: Line) -> list[list[float]]:
        turn = float(first.along[0] * self.along[1] - first.along[1] * self.along[0])
        if turn == 0.0:
            return []
        gap = self.origin - first.origin
        forth = float(gap[0] * self.along[1] - gap[1] * self.along[0]) / turn
        return [(first.origin + forth * first.along).tolist()] if math.isfinite(forth) else []


def _pair(center: Tensor, along: Tensor, forth: float, radius: float) -> list[list[float]]:
    """The two points of a circle whose component along a direction is ``forth``."""
    aside = math.sqrt(max((radius - forth) * (radius + forth), 0.0))
    across = torch.stack([-along[1], along[0]])
    return [(center + forth * along + side * across).tolist() for side in (aside, -aside)]


# ------------------------------------------------------------------ shapes that stand at the same time


class Scene(NamedTuple):
    """The shapes that stand for start <= s < stop; in the plane, their edges and the free points where these meet."""

    start: int
    stop: int | None
    shapes: list[Shape]
    edges: list[Circle | Line]
    corners: Tensor

    def free(self, x: Tensor, edge: float = 0.0) -> Tensor:
        """Which of the points x (m, p) lie in no shape."""
        free = torch.ones(len(x), dtype=torch.bool, device=x.device)
        for shape in self.shapes:
            free &= shape.relative_depth(x) <= edge
        return free

    def leave(self, x: Tensor, budget: Budget, walked: Tensor) -> Tensor:
        """Nearest way out for points x (m, p) inside; ``walked`` (m,) counts the steps of a walk."""
        out = self._leave_deepest(x)
        stuck = chosen(~self.free(out))
        if not len(stuck):
            return out
        if x.shape[1] == 2:
            found, distance = self._nearest_candidate(x[stuck])
            found = torch.where(torch.isinf(distance)[:, None], out[stuck], found)
        else:
            found = self._walk(x[stuck], budget, steps := torch.zeros_like(stuck))
            walked[stuck] = steps
        return out.index_copy(0, stuck, found)

    def _leave_deepest(self, x: Tensor) -> Tensor:
        """The way out of the shape that each point is deepest in: no way out of all shapes can be shorter."""
        depth, which = torch.stack([shape.depth(x) for shape in self.shapes]).max(0)
        out = x.clone()
        for number, shape in enumerate(self.shapes):
            out = amend(out, (which == number) & (depth > 0), shape.exit, x)
        return out

    def _nearest_candidate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Nearest free point among those of all edges and the corners; distance infinite if there is none."""
        best, distance = x.clone(), torch.full_like(x[:, 0], torch.inf)
        for edge in self.edges:
            point = edge.nearest(x)
            away = torch.where(self.free(point), norm(point - x), torch.inf)
            best = torch.where((away < distance)[:, None], point, best)
            distance = torch.minimum(distance, away)
        corners = self.corners.to(x)
        if len(corners):
            for part in torch.arange(len(x), device=x.device).split(max(CHUNK // len(corners), 1)):
                away, which = torch.cdist(x[part], corners, compute_mode="donot_use_mm_for_euclid_dist").min(1)
                best[part] = torch.where((away < distance[part])[:, None], corners[which], best[part])
                distance[part] = torch.minimum(away, distance[part])
        return best, distance

    def _walk(self, x: Tensor, budget: Budget, steps: Tensor) -> Tensor:
        """Try the ways out of every single shape, then leave the deepest shape again and again."""
        edge = 0.0 if budget.tolerance <= FEASIBLE else budget.tolerance
        best, distance = self._leave_deepest(x), torch.full_like(x[:, 0], torch.inf)
        for shape in self.shapes:
            point = shape.exit(x)
            away = torch.where(self.free(point, edge), norm(point - x), torch.inf)
            best = torch.where((away < distance)[:, None], point, best)
            distance = torch.minimum(distance, away)
        for _ in range(budget.iterations):
            stuck = chosen(~self.free(best, edge))
            if not len(stuck):
                break
            best[stuck] = self._leave_deepest(best[stuck])
            steps[stuck] += 1
        return best


def _scenes_of(shapes: Sequence[Shape]) -> list[Scene]:
    """Cut time where a shape appears or disappears."""
    times = sorted({shape.start for shape in shapes} | {shape.stop for shape in shapes if shape.stop is not None})
    scenes = []
    for start, stop in zip(times, [*times[1:], None], strict=False):
        present = [shape for shape in shapes if shape.start <= start and (shape.stop is None or start < shape.stop)]
        if not present:
            continue
        scene = Scene(start, stop, present, [], torch.zeros(0, 2, dtype=torch.float64))
        if present[0].dim == 2:
            edges = [edge for shape in present for edge in shape.edges()]
            pairs = [(a, b) for one, other in combinations(present, 2) for a in one.edges() for b in other.edges()]
            points = [point for first, second in pairs for point in first.meet(second)]
            meeting = torch.tensor(points, dtype=torch.float64).reshape(-1, 2)
            scene = scene._replace(edges=edges, corners=meeting[scene.free(meeting)])
            _check_way_out(scene)
        scenes.append(scene)
    return scenes


def _check_way_out(scene: Scene) -> None:
    """Boxes without end may leave no free point at all."""
    steps = f"from step {scene.start} on" if scene.stop is None else f"at steps {scene.start} to {scene.stop - 1}"
    for shape in scene.shapes:
        if not shape.bounded:
            low, high = shape.bounds()
            middle = 0.5 * (low.nan_to_num(neginf=-1e150) + high.nan_to_num(posinf=1e150))
            inside = middle.clamp(low, high)[None]
            if not bool(scene.free(scene.leave(inside, Budget(), torch.zeros(1, dtype=torch.long))).all()):
                raise InfeasibleSet(f"the boxes {steps} cover the whole plane: no way out")


# ------------------------------------------------------------------ rows that describe obstacles


def _split_row(row: Any, fields: int, form: str) -> tuple[Any, tuple[int, int | None]]:
    """The fields that describe an obstacle, and the steps at which it stands."""
    if not isinstance(row, Sequence) or len(row) not in (fields, fields + 2):
        raise SettingError(f"{form}, got {row!r}")
    return row[:fields], _read_window(row[fields:], row)


def _read_window(given: Any, row: Any) -> tuple[int, int | None]:
    """Start and stop of an obstacle; without them it always stands, and with stop None to the end."""
    start, stop = given or (0, None)
    whole = all(isinstance(step, int) for step in (start, 0 if stop is None else stop))
    if not whole or start < 0 or (stop is not None and stop <= start):
        raise SettingError(f"an obstacle covers the steps start <= s < stop with 0 <= start < stop, got {row!r}")
    return start, stop


def _read_point(given: Any, row: Any, *, finite: bool = True) -> Tensor:
    """A point (p,) in float64."""
    point = real(given).clone()
    good = point.isfinite() if finite else ~point.isnan()
    if point.ndim != 1 or not len(point) or not bool(good.all()):
        raise SettingError(f"a point of an obstacle is a list of p {'finite ' if finite else ''}numbers, got {row!r}")
    return point
