"""A sphere or a ball cut by linear equations: still a sphere or a ball, in a smaller space."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from casal.constraints.affine import Affine
from casal.constraints.base import Constraint, flat, norm, shell_factor, shortest, unit
from casal.constraints.sphere import Ball, Sphere
from casal.constraints.subspace import Subspace
from casal.errors import InfeasibleSet
from casal.typing import Event

ROUNDING = 1e-12


class AffineRound(Constraint):
    """C = {z : A z = b, |z - c| = R} (or <= R), in closed form.

    With q the foot of the centre c on the flat and r = sqrt(R^2 - |q - c|^2),

        P(z) = q + r u / |u|,    u = P_flat(z) - q        (u itself if the ball holds it).

    Where P_flat(z) = q all points of the sphere are equally near, and a fixed direction inside the flat is taken. The
    violation is the larger of those of the two sets.

    Args:
        flat_part: The equations.
        round_part: The sphere or ball.
    """

    fast = True

    def __init__(self, flat_part: Affine, round_part: Sphere | Ball) -> None:
        self.flat_part, self.round_part = flat_part, round_part
        self.convex = isinstance(round_part, Ball)
        self.one_sided = (*(False,) * len(flat_part._rows), self.convex)
        size = flat_part.A.shape[1]
        center = round_part.center
        self._center = torch.zeros(size, dtype=torch.float64) if center is None else center.reshape(-1)
        self._foot = flat_part._project(self._center[None])[0]
        gap = float(torch.linalg.vector_norm(self._foot - self._center))
        scale = max(round_part.radius, gap)
        if gap > round_part.radius * (1 + ROUNDING) + ROUNDING * scale:
            raise InfeasibleSet(
                f"the equations stay {gap:.6g} away from the centre, beyond the radius {round_part.radius:.6g}"
            )
        self._radius = math.sqrt(max(round_part.radius**2 - gap**2, 0.0))
        self._axis = self._inside_direction(size)
        self._quick: dict[tuple[torch.dtype, torch.device], tuple[Tensor, Tensor, Tensor | None, Tensor | None]] = {}
        if self._axis is None and self._radius > 1e-6 * scale and not self.convex:
            raise InfeasibleSet(f"the equations fix a single point at distance {gap:.6g}, not {round_part.radius:.6g}")

    def __repr__(self) -> str:
        return f"({self.flat_part!r} & {self.round_part!r})"

    def _inside_direction(self, size: int) -> Tensor | None:
        """A fixed unit vector with A v = 0, or None if there is none."""
        basis = self.flat_part._basis
        left = torch.eye(size, dtype=torch.float64) - basis.T @ basis
        best = int(left.diagonal().argmax())
        if float(left[best, best]) < 1e-9:
            return None
        return left[best] / torch.linalg.vector_norm(left[best])

    def validate(self, event: Event) -> None:
        self.flat_part.validate(event)
        self.round_part.validate(event)

    def residual(self, z: Tensor) -> Tensor:
        return torch.cat([self.flat_part.residual(z), self.round_part.residual(z)], dim=1)

    def log_tube_factor(self, x: Tensor, z: Tensor) -> Tensor | None:
        if self.convex or self._radius == 0.0:
            return None
        inside = flat(self.flat_part._project(x)) - self._foot.to(x)
        dimension = inside.shape[1] - len(self.flat_part._basis)
        return (dimension - 1) * torch.log(norm(inside) / self._radius)

    def project_fast(self, z: Tensor) -> Tensor:
        """u = (I - B^T B)(z - c), B an orthonormal basis of the rows of A."""
        basis, foot, center, axis = self._constants(z)
        if axis is None:
            return foot.expand(len(z), -1).reshape(z.shape)
        offset = flat(z) if center is None else flat(z) - center
        inside = torch.addmm(offset, offset @ basis.T, basis, alpha=-1.0)
        factor, length = shell_factor(inside, self._radius)
        if self.convex:
            factor = torch.where(length > self._radius, factor, torch.ones_like(factor))
        if not torch.compiler.is_compiling():  # see ``leaned``
            inside.add_(axis)
        return inside.mul_(factor).add_(foot).reshape(z.shape)

    def _constants(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """B, q, c and a shortest vector inside the flat, in the dtype of z; cast once, except in a compiled step."""
        key = (z.dtype, z.device)
        found = None if torch.compiler.is_compiling() else self._quick.get(key)
        if found is None:
            center = None if self.round_part.center is None else self._center.to(z)
            axis = None if self._axis is None else shortest(z.dtype) * self._axis.to(z)
            found = self.flat_part._basis.to(z), self._foot.to(z), center, axis
            if not torch.compiler.is_compiling():
                self._quick[key] = found
        return found

    def within(self, space: Subspace) -> Constraint | None:
        flat_part, round_part = self.flat_part.within(space), self.round_part.within(space)
        if not isinstance(flat_part, Affine) or not isinstance(round_part, Sphere | Ball):
            return None
        return AffineRound(flat_part, round_part)

    def _project(self, z: Tensor) -> Tensor:
        foot = self._foot.to(z)
        inside = flat(self.flat_part._project(z)) - foot
        if self._axis is None:
            return foot.expand(len(z), -1).reshape(z.shape)
        direction = unit(inside, self._axis.to(z))
        # Rounding leaves a normal part in a small offset; once more inside the flat, once more to length one.
        basis = self.flat_part._basis.to(z)
        direction = unit(direction - (direction @ basis.T) @ basis, self._axis.to(z))
        shell = foot + self._radius * direction
        if self.convex:
            within = (norm(inside) <= self._radius)[:, None]
            shell = torch.where(within, foot + inside, shell)
        return shell.reshape(z.shape)

    def _violation(self, z: Tensor) -> Tensor:
        return torch.maximum(self.flat_part._violation(z), self.round_part._violation(z))

    def _arguments(self) -> dict[str, Any]:
        return {"flat_part": self.flat_part, "round_part": self.round_part}
