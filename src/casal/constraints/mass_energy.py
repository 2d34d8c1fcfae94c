"""Two conserved quantities at once: the sum and the sum of squares."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from casal.constraints.affine import Affine
from casal.constraints.affine_round import AffineRound
from casal.constraints.algorithms.von_mises_fisher import log_sphere_mass, near_sphere
from casal.constraints.base import Constraint, flat, gaussian, leaned, norm, relative, shell_factor, unit
from casal.constraints.sphere import Sphere
from casal.constraints.subspace import Subspace
from casal.errors import InfeasibleSet
from casal.typing import Event

ROUNDING = 1e-12


class MassEnergy(Constraint):
    """C = {z in R^N : sum z = M, |z|^2 = E}, a sphere inside a hyperplane, in closed form.

    With the mean m = M / N and the radius r = sqrt(E - M^2 / N),

        P(y) = m + r (y - ybar) / |y - ybar|,

    which is also the limit of alternating projections onto the two sets. A constant y sits on the axis, equally
    far from all of C; there the direction (1, -1, 0, ...) / sqrt(2) is taken. The violation is the larger of
    |sum z - M| / (sqrt(N E) + |M|) and | |z|^2 - E | / E.

    Args:
        mass: M.
        energy: E; needs E >= M^2 / N, checked as soon as N is known.
    """

    samples_near = True
    fast = True

    def __init__(self, mass: float, energy: float) -> None:
        self.mass, self.energy = float(mass), float(energy)
        if not 0.0 <= self.energy < float("inf") or not abs(self.mass) < float("inf"):
            raise InfeasibleSet(f"MassEnergy needs a finite mass and an energy >= 0, got {mass} and {energy}")

    def __repr__(self) -> str:
        return f"MassEnergy(mass={self.mass:g}, energy={self.energy:g})"

    def validate(self, event: Event) -> None:
        size = torch.Size(event).numel()
        least = self.mass**2 / size
        if self.energy < least * (1.0 - ROUNDING):
            raise InfeasibleSet(
                f"energy {self.energy:g} is below mass^2 / N = {least:g} (mass {self.mass:g}, N = {size}): "
                "no field has so little energy at this mass"
            )
        if size == 1 and self.energy > least * (1.0 + ROUNDING):
            raise InfeasibleSet(f"one coordinate with sum {self.mass:g} has energy {least:g}, not {self.energy:g}")

    def _arguments(self) -> dict[str, Any]:
        return {"mass": self.mass, "energy": self.energy}

    def residual(self, z: Tensor) -> Tensor:
        y = flat(z)
        return torch.stack([y.sum(1) - self.mass, y.square().sum(1) - self.energy], dim=1)

    def residual_pull(self, z: Tensor, weights: Tensor) -> Tensor | None:
        return (flat(z) * (2.0 * weights[:, 1:])).add_(weights[:, :1]).reshape(z.shape)

    def log_tube_factor(self, x: Tensor, z: Tensor) -> Tensor | None:
        y, radius = flat(x), self._radius(flat(x).shape[1])
        if radius == 0.0:
            return None
        return (y.shape[1] - 2) * torch.log(norm(y - y.mean(1, keepdim=True)) / radius)

    def _radius(self, size: int) -> float:
        return float(max(self.energy - self.mass**2 / size, 0.0) ** 0.5)

    def project_fast(self, z: Tensor) -> Tensor:
        y = flat(z)
        size = y.shape[1]
        if size == 1:
            return torch.full_like(z, self.mass)
        radius = self._radius(size)
        offset = y - y.mean(1, keepdim=True)
        factor, _ = shell_factor(offset, radius)
        field = offset.mul_(factor).add_(self.mass / size)
        return leaned(leaned(field, factor, 0, 0.5**0.5), factor, 1, -(0.5**0.5)).reshape(z.shape)

    def within(self, space: Subspace) -> Constraint | None:
        """A sphere cut by one equation, if constant fields are in the subspace."""
        size = torch.Size(space.event).numel()
        ones = space.coordinates(torch.ones((1, size), dtype=torch.float64))
        if ones is None or ones.numel() < 2 or self._radius(size) == 0.0:
            return None
        return AffineRound(Affine(ones.flatten(1), self.mass), Sphere(self.energy**0.5))

    def _project(self, z: Tensor) -> Tensor:
        y = flat(z)
        size = y.shape[1]
        if size == 1:
            return torch.full_like(z, self.mass)
        return (self.mass / size + self._radius(size) * direction(y)).reshape(z.shape)

    def _sample_near(self, y: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
        """The mean, and a von Mises-Fisher direction around y - ybar in the hyperplane of sum zero."""
        rows, size = flat(y), flat(y).shape[1]
        if size == 1:
            return torch.full_like(y, self.mass)
        drawn = near_sphere(
            direction(rows),
            norm(_fluctuation(rows)) * 2.0,
            self._radius(size),
            sigma,
            size - 1,
            lambda count: _fluctuation(gaussian(rows[:count], generator)) * 2.0,
            generator,
        )
        return self._project(drawn.reshape(y.shape))

    def _log_normaliser(self, y: Tensor, sigma: float) -> Tensor:
        """A Gaussian at the distance of y from the hyperplane, times the normaliser of the sphere in it."""
        rows, size = flat(y), flat(y).shape[1]
        height = (rows.sum(1) - self.mass) / (math.sqrt(size) * sigma)
        across = -0.5 * height.square() - math.log(math.sqrt(2.0 * math.pi) * sigma)
        if size == 1:
            return across
        return across + log_sphere_mass(norm(_fluctuation(rows)) * 2.0, self._radius(size), sigma, size - 1)

    def _violation(self, z: Tensor) -> Tensor:
        y = flat(z)
        length = norm(y)
        top = (y.shape[1] * self.energy) ** 0.5 + abs(self.mass)
        mass = relative((y.sum(1) - self.mass).abs(), torch.full_like(length, top))
        energy = relative((length.square() - self.energy).abs(), torch.full_like(length, self.energy))
        return torch.maximum(mass, energy)


def _fluctuation(y: Tensor) -> Tensor:
    """(y - ybar) / 2 for rows (n, d): exactly zero for a constant row.

    Halving keeps differences of numbers near the largest float finite; taking them to the first coordinate makes a
    constant field exactly zero, where subtracting a rounded mean would leave a constant.
    """
    shifted = 0.5 * y - 0.5 * y[:, :1]
    return shifted - shifted.mean(1, keepdim=True)


def direction(y: Tensor) -> Tensor:
    """(y - ybar) / |y - ybar| for rows (n, d), d > 1."""
    axis = torch.zeros(y.shape[1], dtype=y.dtype, device=y.device)
    axis[0], axis[1] = 1.0, -1.0
    way = unit(_fluctuation(y), axis)
    # Centring again after the scaling removes the mean that rounding left in a small fluctuation.
    return unit(way - way.mean(1, keepdim=True), axis)
