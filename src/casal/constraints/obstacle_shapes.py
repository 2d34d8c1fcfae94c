"""Discs, boxes and thick segments: how deep a point is in one, and the nearest way out of it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from casal.constraints.base import relative, unit
from casal.constraints.obstacle_edges import Circle, Line
from casal.constraints.obstacle_rows import read_point, read_positive, split_row
from casal.errors import InfeasibleSet, SettingError, ShapeError


class Shape(ABC):
    """An open obstacle in R^p that stands for start <= s < stop."""

    plural: str

    def __init__(self, dim: int, size: float, start: int, stop: int | None) -> None:
        self.dim, self.size, self.start, self.stop = dim, size, start, stop

    def window(self) -> list[int | None]:
        """The end of a row, left out if the obstacle always stands."""
        return [] if self.start == 0 and self.stop is None else [self.start, self.stop]

    def relative_depth(self, x: Tensor) -> Tensor:
        """Depth (m,) of the points x (m, p) below the edge, in units of the obstacle; zero outside."""
        near = torch.ones(len(x), dtype=torch.bool, device=x.device)
        for column, low, high in zip(x.unbind(1), *(bound.tolist() for bound in self.bounds()), strict=True):
            near &= (column > low) & (column < high)
        near = torch.nonzero(near).flatten()
        depth = self.depth(x[near]).clamp_min(0.0)
        return x.new_zeros(len(x)).index_copy(0, near, relative(depth, self._unit(x[near])))

    def _unit(self, x: Tensor) -> Tensor:
        """What the depths (m,) of the points x (m, p) are measured in."""
        return torch.full_like(x[:, 0], self.size)

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

    @classmethod
    def read(cls, row: Any) -> Disc:
        (center, radius), (start, stop) = split_row(
            row, 2, "a disc is a row (center, radius) or (center, radius, start, stop)"
        )
        return cls(read_point(center, row), read_positive(radius, "the radius of a disc"), start, stop)

    def row(self) -> list[Any]:
        return [self.center.tolist(), self.radius, *self.window()]

    def depth(self, x: Tensor) -> Tensor:
        return self.radius - torch.linalg.vector_norm(x - self.center.to(x), dim=1)

    def exit(self, x: Tensor) -> Tensor:
        return Circle(self.center, self.radius).foot(x)

    def bounds(self) -> tuple[Tensor, Tensor]:
        return self.center - self.radius, self.center + self.radius

    def edges(self) -> list[Circle | Line]:
        return [Circle(self.center, self.radius)]

    def residual(self, part: Tensor) -> Tensor:
        return (self.radius**2 - (part - self.center.to(part)).square().sum(2)) / (2.0 * self.radius)


class BoxShape(Shape):
    """low < x < high in every coordinate."""

    plural = "boxes"

    def __init__(self, low: Tensor, high: Tensor, start: int, stop: int | None) -> None:
        corners = torch.stack([low, high])
        self.bounded = bool(torch.isfinite(corners).all())
        size = torch.where(torch.isfinite(corners), corners, torch.zeros_like(corners)).abs().amax(0)
        super().__init__(len(low), float(torch.linalg.vector_norm(size)), start, stop)
        self.low, self.high = low, high

    @classmethod
    def read(cls, row: Any) -> BoxShape:
        (low, high), (start, stop) = split_row(row, 2, "a box is a row (low, high) or (low, high, start, stop)")
        corners = read_point(low, row, finite=False), read_point(high, row, finite=False)
        if len(corners[0]) != len(corners[1]) or not bool((corners[0] < corners[1]).all()):
            raise SettingError(f"a box needs low < high in every coordinate, got {low} and {high}")
        if not bool(torch.isfinite(torch.stack(corners)).any()):
            raise InfeasibleSet("a box without any finite bound covers the whole space: no way out")
        return cls(*corners, start, stop)

    def row(self) -> list[Any]:
        return [self.low.tolist(), self.high.tolist(), *self.window()]

    def depth(self, x: Tensor) -> Tensor:
        return torch.minimum(x - self.low.to(x), self.high.to(x) - x).amin(1)

    def _unit(self, x: Tensor) -> Tensor:
        return super()._unit(x) if self.bounded else self.size + x.abs().amax(1)

    def exit(self, x: Tensor) -> Tensor:
        low, high = self.low.to(x), self.high.to(x)
        face = torch.cat([x - low, high - x], dim=1).argmin(1, keepdim=True)
        walls = torch.cat([low, high]).expand(len(x), -1)
        return x.scatter(1, face % self.dim, walls.gather(1, face))

    def bounds(self) -> tuple[Tensor, Tensor]:
        return self.low, self.high

    def edges(self) -> list[Circle | Line]:
        lines: list[Circle | Line] = []
        for axis in (0, 1):
            along = torch.zeros(2, dtype=torch.float64)
            along[1 - axis] = 1.0
            for wall in (float(self.low[axis]), float(self.high[axis])):
                if math.isfinite(wall):
                    origin = wall * (1.0 - along)
                    lines.append(Line(origin, along, float(self.low[1 - axis]), float(self.high[1 - axis])))
        return lines


class Segment(Shape):
    """Distance to the segment from a to b < thickness / 2."""

    plural = "segments"

    def __init__(self, a: Tensor, b: Tensor, thickness: float, start: int, stop: int | None) -> None:
        self.a, self.b, self.thickness, self.radius = a, b, thickness, 0.5 * thickness
        ends = torch.linalg.vector_norm(torch.stack([a, b]), dim=1)
        super().__init__(len(a), self.radius + float(ends.max()), start, stop)
        self.length = float(torch.linalg.vector_norm(b - a))
        first = torch.zeros_like(a)
        first[0] = 1.0
        self.along = unit((b - a)[None], first)[0]
        # Some direction across, for points on the segment itself: the coordinate axis most across it, made so.
        across = torch.zeros_like(a)
        across[int(self.along.abs().argmin())] = 1.0
        across = across - (across @ self.along) * self.along
        self.across = unit(across[None], first)[0] if self.length else first

    @classmethod
    def read(cls, row: Any) -> Segment:
        form = "a segment is a row (a, b, thickness) or (a, b, thickness, start, stop)"
        (a, b, thickness), (start, stop) = split_row(row, 3, form)
        ends = read_point(a, row), read_point(b, row)
        if len(ends[0]) != len(ends[1]):
            raise ShapeError(f"the ends of a segment have {len(ends[0])} and {len(ends[1])} coordinates")
        return cls(*ends, read_positive(thickness, "the thickness of a segment"), start, stop)

    def row(self) -> list[Any]:
        return [self.a.tolist(), self.b.tolist(), self.thickness, *self.window()]

    def _foot(self, x: Tensor) -> Tensor:
        """Nearest point of the segment itself."""
        a, along = self.a.to(x), self.along.to(x)
        return a + ((x - a) * along).sum(-1, keepdim=True).clamp(0.0, self.length) * along

    def depth(self, x: Tensor) -> Tensor:
        return self.radius - torch.linalg.vector_norm(x - self._foot(x), dim=1)

    def exit(self, x: Tensor) -> Tensor:
        foot = self._foot(x)
        offset, along, across = x - foot, self.along.to(x), self.across.to(x)
        middle = ((x - self.a.to(x)) * along).sum(1, keepdim=True)
        middle = (middle > 0) & (middle < self.length)
        offset = torch.where(middle, offset - (offset * along).sum(1, keepdim=True) * along, offset)
        # On the segment only the side can be told, not the direction.
        side = torch.where((offset * across).sum(1, keepdim=True) >= 0, across, -across)
        centred = torch.linalg.vector_norm(offset, dim=1, keepdim=True) <= 1e-15 * self.size
        return foot + self.radius * torch.where(centred, side, unit(offset, across))

    def bounds(self) -> tuple[Tensor, Tensor]:
        return torch.minimum(self.a, self.b) - self.radius, torch.maximum(self.a, self.b) + self.radius

    def edges(self) -> list[Circle | Line]:
        ends: list[Circle | Line] = [Circle(self.a, self.radius), Circle(self.b, self.radius)]
        across = torch.stack([-self.along[1], self.along[0]])
        return ends + [Line(self.a + side * self.radius * across, self.along, 0.0, self.length) for side in (1.0, -1.0)]

    def residual(self, part: Tensor) -> Tensor:
        return (self.radius**2 - (part - self._foot(part)).square().sum(2)) / (2.0 * self.radius)


def overlap(one: Shape, other: Shape) -> bool:
    """Whether two shapes stand at a common step and may share a point."""
    if max(one.start, other.start) >= min(one.stop or math.inf, other.stop or math.inf):
        return False
    if isinstance(one, Disc) and isinstance(other, Disc):
        return float(torch.linalg.vector_norm(one.center - other.center)) < one.radius + other.radius
    (low, high), (other_low, other_high) = one.bounds(), other.bounds()
    return bool(((low < other_high) & (other_low < high)).all())
