"""Obstacles in the way of a trajectory: forbidden intervals, discs, boxes and thick segments, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from casal.constraints.base import Budget, Constraint, Projection
from casal.constraints.obstacle_intervals import Interval, merged_gates
from casal.constraints.obstacle_scenes import FEASIBLE, scenes_of
from casal.constraints.obstacle_shapes import BoxShape, Disc, Segment, Shape, overlap
from casal.errors import SettingError, ShapeError
from casal.typing import Event


class Obstacles(Constraint):
    """C = {z : z_s lies in no obstacle that stands at time step s}, obstacles being open: their edges are allowed.

    Scalar trajectories, events (S,), have interval obstacles low < z_s < high; points, events (S, p), have

        disc     |z_s - c| < r
        box      low < z_s < high in every coordinate
        segment  distance of z_s to the segment from a to b < thickness / 2   (a capsule)

    Time steps are independent, and each is moved by the nearest way out:

        P(y)_s = y_s if it is free, else the nearest point of the edge of the union of the obstacles at step s.

    Overlapping intervals are merged first. For shapes, the way out of the deepest obstacle is the nearest way out
    of all of them whenever it is free. Where it is not, in the plane (p = 2) the answer is among finitely many
    points: the feet on the lines and circles that bound the shapes and the points where these meet; so intervals and
    plane shapes are exact, however they overlap. For p != 2 the point walks out of one shape after the other;
    then ``exact`` is true only if no two shapes overlap (bounding boxes are compared) at any common step, the
    result is a free point but not surely the nearest, and chains that did not get free are flagged.

    Equally near ways out: intervals take the low edge, boxes the first face, a disc at its centre the first axis.
    The set is not convex. The violation is the largest depth of penetration relative to the largest coordinate
    of the obstacle, size and position together: max(|low|, |high|), r + |c|, and so on; for an obstacle without
    end, its finite edge + |z_s|. Depths below 1e-13 of that are on the edge of a disc, box or segment.

    The residuals are, with slope one at the edges, (z - low)(high - z) / (high - low), (r^2 - |z - c|^2) / (2 r) and
    the same for segments, all <= 0 on C. A box has no smooth residual.

    Args:
        intervals: Rows (start, stop, low, high) for the steps start <= s < stop; one end may be infinite.
        discs: Rows (center, radius) for all steps, or (center, radius, start, stop).
        boxes: Rows (low, high) or (low, high, start, stop), axis-aligned; bounds may be infinite, but not all.
        segments: Rows (a, b, thickness) or (a, b, thickness, start, stop); a = b is allowed.

    >>> gate = Obstacles(intervals=[(1, 3, -1.0, 2.0)])
    >>> gate.project(torch.tensor([[0.0, 0.0, 1.0, 1.0]]))
    tensor([[ 0., -1.,  2.,  1.]])
    """

    solid = True
    one_sided = True

    def __init__(
        self,
        intervals: Sequence[Any] = (),
        discs: Sequence[Any] = (),
        boxes: Sequence[Any] = (),
        segments: Sequence[Any] = (),
    ) -> None:
        self.intervals = [Interval.read(row) for row in intervals]
        self.shapes: list[Shape] = [
            *(Disc.read(row) for row in discs),
            *(BoxShape.read(row) for row in boxes),
            *(Segment.read(row) for row in segments),
        ]
        if self.intervals and self.shapes:
            raise SettingError(
                "intervals are for events (S,), shapes for events (S, p); make them two sets of a Product"
            )
        dims = sorted({shape.dim for shape in self.shapes})
        if len(dims) > 1:
            raise ShapeError(f"the shapes have points with {dims} coordinates; all must have the same number")
        self._dim = dims[0] if dims else None
        self._gates = merged_gates(self.intervals)
        self._scenes = scenes_of(self.shapes)
        self.exact = self._dim in (None, 2) or not any(overlap(a, b) for a, b in combinations(self.shapes, 2))

    def __repr__(self) -> str:
        counts: dict[str, int] = {"intervals": len(self.intervals)}
        for shape in self.shapes:
            counts[shape.plural] = counts.get(shape.plural, 0) + 1
        return f"Obstacles({', '.join(f'{count} {name}' for name, count in counts.items() if count)})"

    def validate(self, event: Event) -> None:
        wanted = "(S,)" if self.intervals else f"(S, {self._dim})"
        fits = (len(event) == 1) if self.intervals else (self._dim is None or event[1:] == (self._dim,))
        if not fits or not event:
            raise ShapeError(f"these obstacles stand in the way of events {wanted}, got {event}")
        lasts = [item.stop for item in self.intervals] + [shape.stop or shape.start + 1 for shape in self.shapes]
        if max(lasts, default=0) > event[0]:
            raise ShapeError(f"an obstacle stands at step {max(lasts) - 1}, events {event} end at step {event[0] - 1}")

    def _arguments(self) -> dict[str, Any]:
        rows: dict[str, list[Any]] = {"intervals": [list(item) for item in self.intervals]}
        for kind in (Disc, BoxShape, Segment):
            rows[kind.plural] = [shape.row() for shape in self.shapes if isinstance(shape, kind)]
        return {name: value for name, value in rows.items() if value}

    def residual(self, z: Tensor) -> Tensor:
        boxes = sum(isinstance(shape, BoxShape) for shape in self.shapes)
        if boxes:
            raise SettingError(
                f"{boxes} of the obstacles are boxes, which have no smooth residual, so Penalty, PrimalDual and "
                "Decoupled cannot use this set; use discs or segments, or Projected, CASAL or WeightedCASAL"
            )
        parts = [item.residual(z[:, item.start : item.stop]) for item in self.intervals]
        parts += [shape.residual(z[:, shape.start : shape.stop]) for shape in self.shapes]
        return torch.cat(parts, dim=1) if parts else z.new_zeros(len(z), 0)

    def _violation(self, z: Tensor) -> Tensor:
        worst = torch.zeros(len(z), dtype=z.dtype, device=z.device)
        for item in self.intervals:
            worst = torch.maximum(worst, item.depth(z[:, item.start : item.stop]).amax(1))
        for shape in self.shapes:
            part = z[:, shape.start : shape.stop]
            if part.shape[1]:
                depth = shape.relative_depth(part.reshape(-1, part.shape[2]))
                worst = torch.maximum(worst, depth.reshape(part.shape[:2]).amax(1))
        return worst

    def _solve(self, z: Tensor, budget: Budget, warm: Tensor | None) -> Projection:
        if self.exact:
            return super()._solve(z, budget, warm)
        steps = torch.zeros(len(z), dtype=torch.long, device=z.device)
        point = self._leave(z, budget, steps)
        residual = self._violation(point)
        return Projection(point, residual <= max(budget.tolerance, FEASIBLE), steps, residual)

    def _project(self, z: Tensor) -> Tensor:
        return self._leave(z, Budget(), torch.zeros(len(z), dtype=torch.long, device=z.device))

    def _leave(self, z: Tensor, budget: Budget, steps: Tensor) -> Tensor:
        """Nearest way out; ``steps`` (n,) is raised to the number of walking steps of each chain."""
        out = z.clone()
        for start, stop, gates in self._gates:
            part = out[:, start:stop]
            for low, high in gates:
                edge = torch.where(part - low <= high - part, z.new_tensor(low), z.new_tensor(high))
                part = torch.where((part > low) & (part < high), edge, part)
            out[:, start:stop] = part
        for scene in self._scenes:
            part = z[:, scene.start : scene.stop]
            x = part.reshape(-1, part.shape[2])
            stuck = torch.nonzero(~scene.free(x)).flatten()
            if len(stuck):
                walked = torch.zeros(len(stuck), dtype=torch.long, device=z.device)
                x = x.index_copy(0, stuck, scene.leave(x[stuck], budget, walked))
                steps.scatter_reduce_(0, stuck // part.shape[1], walked, "amax")
                out[:, scene.start : scene.stop] = x.reshape(part.shape)
        return out
