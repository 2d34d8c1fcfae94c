"""All shapes that stand at the same time, and the nearest way out of them together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

from casal.constraints.base import Budget, norm
from casal.constraints.obstacle_edges import Circle, Line, meet
from casal.constraints.obstacle_shapes import BoxShape, Shape
from casal.errors import InfeasibleSet

ON_THE_EDGE = 1e-13
FEASIBLE = 1e-12
CHUNK = 4_000_000


class Scene(NamedTuple):
    """The shapes that stand for start <= s < stop; in the plane, their edges and the free points where these meet."""

    start: int
    stop: int | None
    shapes: list[Shape]
    edges: list[Circle | Line]
    corners: Tensor

    def free(self, x: Tensor, edge: float = ON_THE_EDGE) -> Tensor:
        """Which of the points x (m, p) lie in no shape."""
        free = torch.ones(len(x), dtype=torch.bool, device=x.device)
        for shape in self.shapes:
            free &= shape.relative_depth(x) <= edge
        return free

    def leave(self, x: Tensor, budget: Budget, walked: Tensor) -> Tensor:
        """Nearest way out for points x (m, p) inside; ``walked`` (m,) counts the steps of a walk."""
        out = self._leave_deepest(x)
        stuck = torch.nonzero(~self.free(out)).flatten()
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
            inside = torch.nonzero((which == number) & (depth > 0)).flatten()
            if len(inside):
                out[inside] = shape.exit(x[inside])
        return out

    def _nearest_candidate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Nearest free point among the feet on all edges and the corners; distance infinite if there is none."""
        best, distance = x.clone(), torch.full_like(x[:, 0], torch.inf)
        for edge in self.edges:
            foot = edge.foot(x)
            away = torch.where(self.free(foot), norm(foot - x), torch.inf)
            best = torch.where((away < distance)[:, None], foot, best)
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
        edge = ON_THE_EDGE if budget.tolerance <= FEASIBLE else budget.tolerance
        best, distance = self._leave_deepest(x), torch.full_like(x[:, 0], torch.inf)
        for shape in self.shapes:
            foot = shape.exit(x)
            away = torch.where(self.free(foot, edge), norm(foot - x), torch.inf)
            best = torch.where((away < distance)[:, None], foot, best)
            distance = torch.minimum(distance, away)
        for _ in range(budget.iterations):
            stuck = torch.nonzero(~self.free(best, edge)).flatten()
            if not len(stuck):
                break
            best[stuck] = self._leave_deepest(best[stuck])
            steps[stuck] += 1
        return best


def scenes_of(shapes: Sequence[Shape]) -> list[Scene]:
    """Cut time where a shape appears or disappears."""
    times = sorted({shape.start for shape in shapes} | {shape.stop for shape in shapes if shape.stop is not None})
    scenes = []
    for start, stop in zip(times, [*times[1:], None], strict=False):
        present = [shape for shape in shapes if shape.start <= start and (shape.stop is None or start < shape.stop)]
        if not present:
            continue
        scene = Scene(start, stop, present, [], torch.zeros(0, 2, dtype=torch.float64))
        if present[0].dim == 2:
            meeting = torch.tensor(_meeting_points(present), dtype=torch.float64).reshape(-1, 2)
            edges = [edge for shape in present for edge in shape.edges()]
            scene = scene._replace(edges=edges, corners=meeting[scene.free(meeting)])
            _check_way_out(scene)
        scenes.append(scene)
    return scenes


def _check_way_out(scene: Scene) -> None:
    """Boxes without end may leave no free point at all."""
    for shape in scene.shapes:
        if isinstance(shape, BoxShape) and not shape.bounded:
            low, high = shape.low.nan_to_num(neginf=-1e150), shape.high.nan_to_num(posinf=1e150)
            inside = (0.5 * (low + high)).clamp(shape.low, shape.high)[None]
            stuck = not bool(scene.free(scene.leave(inside, Budget(), torch.zeros(1, dtype=torch.long))).all())
            if stuck:
                steps = (
                    f"from step {scene.start} on"
                    if scene.stop is None
                    else f"at steps {scene.start} to {scene.stop - 1}"
                )
                raise InfeasibleSet(f"the boxes {steps} cover the whole plane: no way out")


def _meeting_points(shapes: Sequence[Shape]) -> list[list[float]]:
    """Points where the edges of two different shapes meet."""
    points: list[list[float]] = []
    for one, other in combinations(shapes, 2):
        for first in one.edges():
            for second in other.edges():
                points += meet(first, second)
    return points
