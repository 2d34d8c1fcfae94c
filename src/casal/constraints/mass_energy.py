"""Two conserved quantities at once: the sum and the sum of squares."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from casal.constraints.base import Constraint, flat, norm, relative, unit
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

    def log_tube_factor(self, x: Tensor, z: Tensor) -> Tensor | None:
        y, radius = flat(x), self._radius(flat(x).shape[1])
        if radius == 0.0:
            return None
        return (y.shape[1] - 2) * torch.log(norm(y - y.mean(1, keepdim=True)) / radius)

    def _radius(self, size: int) -> float:
        return float(max(self.energy - self.mass**2 / size, 0.0) ** 0.5)

    def _project(self, z: Tensor) -> Tensor:
        y = flat(z)
        size = y.shape[1]
        if size == 1:
            return torch.full_like(z, self.mass)
        axis = torch.zeros(size, dtype=z.dtype, device=z.device)
        axis[0], axis[1] = 1.0, -1.0
        # Halving keeps differences of numbers near the largest float finite; taking them to the first coordinate makes
        # a constant field exactly zero, where subtracting a rounded mean would leave a constant.
        shifted = 0.5 * y - 0.5 * y[:, :1]
        fluctuation = shifted - shifted.mean(1, keepdim=True)
        direction = unit(fluctuation, axis)
        # Centring again after the scaling removes the mean that rounding left in a small fluctuation.
        direction = unit(direction - direction.mean(1, keepdim=True), axis)
        return (self.mass / size + self._radius(size) * direction).reshape(z.shape)

    def _violation(self, z: Tensor) -> Tensor:
        y = flat(z)
        length = norm(y)
        top = (y.shape[1] * self.energy) ** 0.5 + abs(self.mass)
        mass = relative((y.sum(1) - self.mass).abs(), torch.full_like(length, top))
        energy = relative((length.square() - self.energy).abs(), torch.full_like(length, self.energy))
        return torch.maximum(mass, energy)
