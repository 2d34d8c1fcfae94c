"""Obstacles in the way of a vehicle, and which ways past them there are.

Obstacles of the tilting vehicle are walls with a way above and below: each forbids an interval of y for five samples.
A way past K walls is one of 2^K classes, above (1) or below (0) each. How much room a class leaves is a linear
programme,

    margin = max m   over |u| <= u_max, m,   subject to   (G u)_s >= high + m  (above)  or  (G u)_s <= low - m  (below),

and a class with a negative margin cannot be flown at all. Obstacles of the planar vehicle are discs; the class says on
which side the path turns around each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor

from casal import LinearDynamics, Obstacles
from casal.errors import SettingError
from casal_lab.physics import quadrotor as physics
from casal_lab.quadrotor.setup import Vehicle, flights, vehicle

WINDOWS = ((57, 62), (107, 112), (157, 162))
"""Samples at which the walls stand."""

FAR = 4.0
"""Metres: an end of a wall beyond every path."""

RANDOM = 1717
"""Keeps the numbers of random scenes apart from all other seeds."""

LEAST_PASSING, LEAST_MARGIN = 0.003, 0.1
"""Share of obstacle-free flights that pass a random scene at least, and room that its best class leaves, in metres."""

ALLOWED = 0.01
"""Metres: a path this deep in an obstacle still counts as a solution."""


class Wall(NamedTuple):
    """low < y < high is forbidden, in metres, for start <= s < stop."""

    start: int
    stop: int
    low: float
    high: float


class Disc(NamedTuple):
    """A disc in the (x, z) plane, in metres, that always stands."""

    x: float
    z: float
    radius: float


SCENES = ("hard", "slalom", "random", "discs")

DISCS = (
    Disc(0.7, 0.15, 0.55), Disc(-0.7, -0.15, 0.55), Disc(0.15, 0.7, 0.5), Disc(-0.15, -0.7, 0.5),
    Disc(1.6, -0.6, 0.5), Disc(-1.6, 0.6, 0.5),
)  # fmt: skip
"""A ring around the start with gaps, and two more discs behind them: 3 of 100 obstacle-free flights pass."""


@dataclass(frozen=True)
class Scene:
    """Obstacles for one vehicle: walls for the tilting one, discs for the planar one."""

    name: str
    walls: tuple[Wall, ...] = ()
    discs: tuple[Disc, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.walls) == bool(self.discs):
            raise SettingError("a scene has walls or discs, at least one and not both")

    @property
    def vehicle(self) -> Vehicle:
        """The vehicle that flies here."""
        return vehicle("tilting" if self.walls else "planar")

    @cached_property
    def obstacles(self) -> Obstacles:
        """The set of whole events (S, channels) that keep clear, in the vehicle's units."""
        unit = self.vehicle.scales
        if self.walls:
            rows = [(w.start, w.stop, w.low / float(unit[0]), w.high / float(unit[0])) for w in self.walls]
            return Obstacles(intervals=rows, channels=0)
        return Obstacles(discs=self._discs, channels=(0, 1))

    @property
    def _discs(self) -> list[tuple[list[float], float]]:
        unit = float(self.vehicle.scales[0])
        return [([d.x / unit, d.z / unit], d.radius / unit) for d in self.discs]

    @cached_property
    def rows(self) -> Tensor:
        """Indices into a flat event of the numbers that the obstacles see."""
        steps, channels = self.vehicle.event
        place = torch.arange(steps * channels).reshape(steps, channels)
        if self.walls:
            return torch.cat([place[w.start : w.stop, 0] for w in self.walls])
        return place[:, :2].reshape(-1)

    @cached_property
    def seen(self) -> Obstacles:
        """The obstacles as a set of those numbers alone."""
        if self.discs:
            return Obstacles(discs=self._discs)
        unit, rows, first = self.vehicle.scales, [], 0
        for w in self.walls:
            last = first + w.stop - w.start
            rows.append((first, last, w.low / float(unit[0]), w.high / float(unit[0])))
            first = last
        return Obstacles(intervals=rows)

    @property
    def seen_event(self) -> tuple[int, ...]:
        """Shape of those numbers."""
        return (len(self.rows),) if self.walls else (self.vehicle.event[0], 2)

    def depth(self, positions: Tensor) -> Tensor:
        """How deep paths (n, S, outputs) get into an obstacle, metres; zero or less if they keep clear."""
        worst = torch.full_like(positions[:, 0, 0], -torch.inf)
        for w in self.walls:
            part = positions[:, w.start : w.stop, 0]
            worst = torch.maximum(worst, torch.minimum(part - w.low, w.high - part).amax(1))
        for d in self.discs:
            away = torch.linalg.vector_norm(positions[..., :2] - positions.new_tensor([d.x, d.z]), dim=2)
            worst = torch.maximum(worst, (d.radius - away).amax(1))
        return worst

    def classes(self, positions: Tensor) -> Tensor:
        """The class (n,) of paths (n, S, outputs): bits, the first obstacle's the highest."""
        label = torch.zeros(len(positions), dtype=torch.long)
        for w in self.walls:
            label = 2 * label + (positions[:, (w.start + w.stop) // 2, 0] > (w.low + w.high) / 2)
        for d in self.discs:
            away = positions[..., :2] - positions.new_tensor([d.x, d.z])
            angle = torch.atan2(away[..., 1], away[..., 0])
            turn = torch.remainder(angle.diff(dim=1) + np.pi, 2 * np.pi) - np.pi
            label = 2 * label + (turn.sum(1) > 0)
        return label

    def margins(self, u_max: float = physics.TILT) -> dict[int, float]:
        """The margin of every class of walls in metres, by linear programmes; negative where it cannot be flown."""
        return {label: self.margin(label, u_max) for label in range(2 ** len(self.walls))}

    def margin(self, label: int, u_max: float = physics.TILT) -> float:
        """The margin of one class."""
        sides = [bool(label >> k & 1) for k in reversed(range(len(self.walls)))]
        return _margin(self.vehicle.with_limit(u_max), self.walls, sides)


def _margin(model: LinearDynamics, walls: Sequence[Wall], sides: Sequence[bool]) -> float:
    """The largest m with which a path passes each wall above (True) or below."""
    steps = model.steps
    unit = torch.eye(steps, dtype=torch.float64)[:, :, None]
    response = model.rollout(unit)[:, :, 0].numpy().T  # column j: the path after one unit of u in interval j
    matrix, level = [], []
    for wall, above in zip(walls, sides, strict=True):
        part = response[wall.start : wall.stop]
        matrix.append(np.hstack([-part if above else part, np.ones((len(part), 1))]))
        level.append(np.full(len(part), -wall.high if above else wall.low))
    limit = float(model.u_max[0])
    found = linprog(
        np.r_[np.zeros(steps), -1.0],
        A_ub=np.vstack(matrix),
        b_ub=np.concatenate(level),
        bounds=[(-limit, limit)] * steps + [(None, None)],
        method="highs",
    )
    return float(found.x[-1])


def scene(name: str, *, r: float = 0.8, seed: int = 0) -> Scene:
    """A scene by name.

    Args:
        name: "hard", "slalom" (its middle wall can be passed on both sides), "random", or "discs" (planar vehicle).
        r: Half height of the last wall of "hard" and "slalom", metres.
        seed: Of "random".
    """
    if name in ("hard", "slalom"):
        if not 0.0 < r < np.inf:
            raise SettingError(f"r must be > 0 and finite, got {r}")
        middle = (-FAR, 0.3) if name == "hard" else (-0.8, 0.3)
        bounds = [(-0.1, 0.5), middle, (0.5 - r, 0.5 + r)]
        return Scene(f"{name}, r = {r:g}", tuple(Wall(*w, *b) for w, b in zip(WINDOWS, bounds, strict=True)))
    if name == "random":
        return random(seed)
    if name == "discs":
        return Scene(name, discs=DISCS)
    raise SettingError(f"there are the scenes {', '.join(SCENES)}; got {name!r}")


def random(seed: int) -> Scene:
    """Three walls drawn at random: at least 3 in 1000 obstacle-free flights pass, and some class leaves 10 cm.

    The middle of a wall is uniform within one standard deviation of y at its time, its half height between 0.5 and 1.5
    of them; one wall in four has one end beyond every path.
    """
    rng = np.random.default_rng([RANDOM, seed])
    paths = flights()
    while True:
        walls = []
        for start, stop in WINDOWS:
            size = float(paths[:, (start + stop) // 2, 0].std())
            middle, half = size * rng.uniform(-1, 1), size * rng.uniform(0.5, 1.5)
            low, high, end = middle - half, middle + half, rng.uniform()
            walls.append(Wall(start, stop, -FAR if end < 1 / 8 else low, FAR if end > 7 / 8 else high))
        found = Scene(f"random, seed {seed}", tuple(walls))
        passing = float((found.depth(paths) <= 0).double().mean())
        if passing >= LEAST_PASSING and max(found.margins().values()) >= LEAST_MARGIN:
            return found
