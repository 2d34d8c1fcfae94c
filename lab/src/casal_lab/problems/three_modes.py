"""A mixture of three modes in the plane on four sets: the exact distribution, distances to it, one coordinate.

On a circle, a line or in a half-plane the weight of each mode is known in closed form (``gaussian_mixture``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from torch import Tensor

from casal import Affine, Constraint, HalfSpace, Sphere
from casal_lab.experiment import Array
from casal_lab.problems.gaussian_mixture import GaussianMixture, RestrictedMixture

MIXTURE = GaussianMixture(
    torch.tensor([0.6, 0.2, 0.2]),
    torch.tensor([[1.2, 0.0], [-1.5, 1.0], [0.2, -2.2]], dtype=torch.float64),
    torch.tensor([0.35, 0.5, 0.3], dtype=torch.float64),
)
"""Three modes: the heaviest is not the one that meets the sets best."""

DIRECTIONS = 8
REFERENCE = 25
"""Exact draws behind one quantile of the reference."""


@dataclass(frozen=True, eq=False)
class SetCase:
    """A set, the distribution of MIXTURE on it, and a coordinate along it."""

    name: str  # what a reader sees
    constraint: Constraint  # the set
    axis: str  # name of the coordinate
    coordinate: Callable[[Array], Array]  # points (n, 2) -> (n,)
    grid: Array  # values of the coordinate, increasing and evenly spaced
    profile: Array  # its exact density on the grid, up to a factor
    points: Array  # an even grid (m, 2) of the set itself, for integrals

    @cached_property
    def exact(self) -> RestrictedMixture:
        """The exact distribution."""
        return MIXTURE.restricted(self.constraint)

    @cached_property
    def density(self) -> Array:
        """Density of the coordinate on the grid."""
        return self.profile / (self.profile.sum() * (self.grid[1] - self.grid[0]))

    def grid_points(self) -> Tensor:
        """The even grid of the set, (m, 2) float64: sums over it are integrals over the set."""
        return torch.from_numpy(self.points)

    def total_variation(self, z: Tensor) -> float:
        """Of the mode weights, softly counted."""
        return MIXTURE.total_variation(z, self.exact.weights)

    def sliced(self, z: Tensor) -> float:
        """W1 to the exact distribution, averaged over DIRECTIONS fixed directions: sees the shape inside a mode too."""
        found = np.sort(z.to(torch.float64).numpy() @ _directions(), axis=0)
        return float(np.abs(found - self._quantiles(len(z))).mean())

    def loss(self, z: Tensor) -> float:
        """What tuned methods are tuned for."""
        return self.total_variation(z) + self.sliced(z)

    def floor(self, n: int, repeats: int) -> Mapping[str, float]:
        """Both distances of n exact draws, on average."""
        return self.exact.floor(n, repeats, tv=self.total_variation, sliced=self.sliced)

    @lru_cache(maxsize=8)  # noqa: B019 - the sets live as long as the program
    def _quantiles(self, n: int) -> Array:
        exact = self.exact.draw(REFERENCE * n, torch.Generator().manual_seed(12345)).numpy()
        return np.sort(exact @ _directions(), axis=0)[REFERENCE // 2 :: REFERENCE]


def _directions() -> Array:
    angle = np.pi * np.arange(DIRECTIONS) / DIRECTIONS
    return np.stack([np.cos(angle), np.sin(angle)])


def _density_at(points: Array) -> Array:
    return MIXTURE.log_density(torch.from_numpy(points)).exp().numpy()


def circle(radius: float) -> SetCase:
    """|z| = radius, seen by its angle."""
    angle = np.linspace(-150.0, 210.0, 721)  # cut where there is little to see
    turn = np.deg2rad(angle)
    points = radius * np.stack([np.cos(turn), np.sin(turn)], axis=1)

    def coordinate(z: Array) -> Array:
        return (np.rad2deg(np.arctan2(z[:, 1], z[:, 0])) + 150.0) % 360.0 - 150.0

    name, profile = f"circle R = {radius:g}", _density_at(points)
    return SetCase(name, Sphere(radius), "angle (degrees)", coordinate, angle, profile, points[:-1])


def line() -> SetCase:
    """2 z1 + z2 = 0, seen by the position along it."""
    along = np.array([-1.0, 2.0]) / np.sqrt(5.0)
    position = np.linspace(-4.0, 4.0, 801)
    line, points = Affine([[2.0, 1.0]], 0.0), position[:, None] * along
    name, axis = "line 2 x1 + x2 = 0", "position on the line"
    return SetCase(name, line, axis, lambda z: z @ along, position, _density_at(points), points)


def half_plane(level: float = 0.5) -> SetCase:
    """z1 <= level, seen by z1: the distribution has a density up to the border and no atom on it."""
    first = np.linspace(-3.5, 1.0, 901)
    mean, spread = MIXTURE.means[:, 0].numpy(), MIXTURE.spreads.numpy()
    modes = np.exp(-0.5 * ((first[:, None] - mean) / spread) ** 2) / spread
    profile = (modes @ MIXTURE.weights.numpy()) * (first <= level)
    side = HalfSpace([1.0, 0.0], level)
    across, along = np.linspace(level - 5.0, level, 250, endpoint=False) + 0.01, np.linspace(-5.0, 5.0, 501)
    points = np.stack(np.meshgrid(across, along), axis=-1).reshape(-1, 2)
    return SetCase(f"half-plane x1 <= {level:g}", side, "x1", lambda z: z[:, 0], first, profile, points)


CASES = {case.name: case for case in (circle(2.0), circle(1.2), line(), half_plane())}
