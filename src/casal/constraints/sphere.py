"""Sphere and ball: a fixed, or a bounded, Euclidean norm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from casal.constraints.algorithms.von_mises_fisher import log_sphere_mass, near_sphere
from casal.constraints.base import Constraint, flat, gaussian, leaned, norm, over_events, relative, shell_factor, unit
from casal.constraints.subspace import Subspace
from casal.errors import InfeasibleSet, ShapeError
from casal.typing import Event


class _Round(Constraint):
    """What a sphere and a ball share: a centre, a radius, the residual |z - c|^2 - R^2."""

    def __init__(self, radius: float, center: Any = None) -> None:
        self.radius = float(radius)
        if not self.radius >= 0.0 or self.radius == float("inf"):
            raise InfeasibleSet(f"{type(self).__name__} needs a finite radius >= 0, got {radius}")
        self.center = None if center is None else torch.as_tensor(center, dtype=torch.float64).clone()
        if self.center is not None and not bool(torch.isfinite(self.center).all()):
            bad = float(self.center[~torch.isfinite(self.center)][0])
            raise InfeasibleSet(f"{type(self).__name__} needs a finite center, got {bad} in it")

    def __repr__(self) -> str:
        center = "" if self.center is None else ", center=..."
        return f"{type(self).__name__}(radius={self.radius:g}{center})"

    def validate(self, event: Event) -> None:
        if self.center is not None and tuple(self.center.shape) != event:
            raise ShapeError(f"center has shape {tuple(self.center.shape)}, events have shape {event}")

    def _arguments(self) -> dict[str, Any]:
        return {"radius": self.radius, "center": self.center}

    def residual(self, z: Tensor) -> Tensor:
        return self._offset(z).square().sum(1, keepdim=True) - self.radius**2

    def residual_pull(self, z: Tensor, weights: Tensor) -> Tensor | None:
        return (self._offset(z) * (2.0 * weights)).reshape(z.shape)

    def within(self, space: Subspace) -> Constraint | None:
        """A sphere or ball again, if its centre is in the subspace."""
        if self.center is None:
            return type(self)(self.radius)
        center = space.coordinates(self.center.reshape(1, -1))
        return None if center is None else type(self)(self.radius, center[0])

    def _offset(self, z: Tensor) -> Tensor:
        return flat(z if self.center is None else z - self.center.to(z))

    def _place(self, offset: Tensor, z: Tensor) -> Tensor:
        moved = offset.reshape(z.shape)
        return moved if self.center is None else moved + self.center.to(z)

    def _scale(self, z: Tensor) -> Tensor:
        shift = 0.0 if self.center is None else float(torch.linalg.vector_norm(self.center))
        return torch.full((len(z),), self.radius + shift, dtype=z.dtype, device=z.device)


class Sphere(_Round):
    """C = {z : |z - c| = R}; P(z) = c + R (z - c) / |z - c|.

    The centre itself is equally far from all of C; there P(c) = c + R e_1 (first coordinate), so that a
    projection is defined everywhere and the same on every run. The violation is | |z - c| - R | / (R + |c|).

    Args:
        radius: R >= 0.
        center: c, of the shape of an event; the origin if left out.

    >>> Sphere(3.0).project(torch.tensor([[0.0, 0.0], [0.0, 1.0]]))
    tensor([[3., 0.],
            [0., 3.]])
    """

    samples_near = True
    fast = True

    def project_fast(self, z: Tensor) -> Tensor:
        offset = self._offset(z)
        factor, _ = shell_factor(offset, self.radius)
        return self._place(leaned(offset * factor, factor, 0), z)

    def _project(self, z: Tensor) -> Tensor:
        offset = self._offset(z)
        return self._place(self.radius * unit(offset, _first(offset)), z)

    def _sample_near(self, y: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
        """A von Mises-Fisher direction around (y - c) / |y - c|, of concentration R |y - c| / sigma^2."""
        offset = self._offset(y)
        drawn = near_sphere(
            unit(offset, _first(offset)),
            norm(offset),
            self.radius,
            sigma,
            offset.shape[1],
            lambda rows: gaussian(offset[:rows], generator),
            generator,
        )
        return self._place(self.radius * unit(drawn, _first(drawn)), y)

    def _log_normaliser(self, y: Tensor, sigma: float) -> Tensor:
        """Gaussian at the distance of y from C, times the Bessel normaliser of the angle."""
        offset = self._offset(y)
        return log_sphere_mass(norm(offset), self.radius, sigma, offset.shape[1])

    def _violation(self, z: Tensor) -> Tensor:
        return relative((norm(self._offset(z)) - self.radius).abs(), self._scale(z))

    def log_tube_factor(self, x: Tensor, z: Tensor) -> Tensor | None:
        offset = self._offset(x)
        return (offset.shape[1] - 1) * torch.log(norm(offset) / self.radius)


def _first(offset: Tensor) -> Tensor:
    """The first unit vector (d,)."""
    first = torch.zeros(offset.shape[1], dtype=offset.dtype, device=offset.device)
    first[0] = 1.0
    return first


class Ball(_Round):
    """C = {z : |z - c| <= R}; points outside go to c + R (z - c) / |z - c|, points inside stay.

    The violation is max(0, |z - c| - R) / (R + |c|).

    Args:
        radius: R >= 0.
        center: c, of the shape of an event; the origin if left out.
    """

    convex = True
    solid = True
    one_sided = True
    fast = True

    def project_fast(self, z: Tensor) -> Tensor:
        offset = self._offset(z)
        factor, length = shell_factor(offset, self.radius)
        inside = ~(length > self.radius)
        moved = offset * torch.where(inside, torch.ones_like(factor), factor)
        if self.center is None:
            return moved.reshape(z.shape)
        return torch.where(over_events(inside, z), z, self._place(moved, z))

    def _project(self, z: Tensor) -> Tensor:
        offset = self._offset(z)
        outside = norm(offset) > self.radius
        shell = self._place(self.radius * unit(offset, offset.new_ones(offset.shape[1])), z)
        return torch.where(over_events(outside, z), shell, z)

    def _violation(self, z: Tensor) -> Tensor:
        return relative((norm(self._offset(z)) - self.radius).clamp_min(0.0), self._scale(z))
