"""What a set must be able to do: project a point, and say from its own definition how far off a point is."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from casal.errors import ProjectionError, SettingError
from casal.typing import Event


class Constraint(ABC):
    """A set C in decoded space. Dim 0 of every argument is the chain, the other dims are the event.

    A subclass writes ``_project`` and ``_violation``; both receive finite float64 tensors. Two independent
    formulas on purpose: the certificate of a sample never goes through the projection that made it.

    Attributes:
        exact: The projection is the nearest point in closed form (up to rounding).
        convex: The set is convex, so the projection is unique and nonexpansive.
        solid: The set has an interior (a ball, a box), so a point can be strictly inside.
        one_sided: ``residual(z) <= 0`` describes the set, instead of ``residual(z) = 0``.
    """

    exact: bool = True
    convex: bool = False
    solid: bool = False
    one_sided: bool = False

    def project(self, z: Tensor) -> Tensor:
        """Nearest point of C, computed in float64 and returned in the dtype of ``z``.

        Args:
            z: Points (n, *event).

        Raises:
            ProjectionError: A coordinate of ``z`` is not finite.
        """
        wide = z.to(torch.float64)
        if not bool(torch.isfinite(wide).all()):
            lost = torch.nonzero(~torch.isfinite(wide).flatten(1).all(1)).flatten().tolist()
            raise ProjectionError(
                f"{type(self).__name__}.project got non-finite coordinates in {len(lost)} of {len(z)} points; "
                "check the score and the step size that produced them",
                chains=lost,
            )
        self.validate(tuple(z.shape[1:]))
        return self._project(wide).to(z.dtype)

    def violation(self, z: Tensor) -> Tensor:
        """How far each point is from satisfying the definition of C: (n,) float64, zero on C.

        The unit and the scale are in the docstring of the set. A point that is not finite gets infinity.
        """
        wide = z.to(torch.float64)
        finite = torch.isfinite(wide).flatten(1).all(1)
        self.validate(tuple(z.shape[1:]))
        value = self._violation(torch.where(_like(finite, wide), wide, torch.zeros_like(wide)))
        return torch.where(finite, value, torch.full_like(value, torch.inf))

    def residual(self, z: Tensor) -> Tensor:
        """Smooth functions (n, m) that vanish (or are <= 0, if ``one_sided``) exactly on C."""
        raise SettingError(
            f"{type(self).__name__} has no smooth residual, so Penalty, PrimalDual and Decoupled cannot use it; "
            "Projected, CASAL and WeightedCASAL need only its projection"
        )

    def validate(self, event: Event) -> None:
        """Raise ShapeError or InfeasibleSet if events of this shape cannot lie in C."""
        return

    def log_tube_factor(self, x: Tensor, z: Tensor) -> Tensor | None:
        """Logarithm of the volume factor J of the map (foot z, normal offset x - z) -> x, or None if unknown.

        A thin shell of points x around C covers the surface element at z with weight J(x, z): one for a flat
        set, (|x| / R)^(d-1) for a sphere. WeightedCASAL divides by it.
        """
        return None

    @abstractmethod
    def _project(self, z: Tensor) -> Tensor: ...

    @abstractmethod
    def _violation(self, z: Tensor) -> Tensor: ...


def flat(z: Tensor) -> Tensor:
    """(n, *event) -> (n, d)."""
    return z.reshape(len(z), -1)


def norm(v: Tensor) -> Tensor:
    """Euclidean norm of the rows of (n, d), safe from overflow and underflow of the squares."""
    peak = v.abs().amax(1, keepdim=True) if v.shape[1] else v.new_zeros(len(v), 1)
    scale = torch.where(peak > 0, peak, torch.ones_like(peak))
    return (scale * torch.linalg.vector_norm(v / scale, dim=1, keepdim=True)).squeeze(1)


def unit(v: Tensor, fallback: Tensor) -> Tensor:
    """Rows of (n, d) scaled to length one; a zero row becomes ``fallback`` (d,)."""
    peak = v.abs().amax(1, keepdim=True)
    scaled = v / torch.where(peak > 0, peak, torch.ones_like(peak))
    scaled = torch.where(peak > 0, scaled, fallback.expand_as(v))
    return scaled / torch.linalg.vector_norm(scaled, dim=1, keepdim=True)


def relative(excess: Tensor, scale: Tensor) -> Tensor:
    """``excess / scale`` with 0/0 = 0: a violation in units of the numbers it was computed from."""
    return torch.where(excess > 0, excess / scale.clamp_min(torch.finfo(torch.float64).tiny), torch.zeros_like(excess))


def _like(mask: Tensor, z: Tensor) -> Tensor:
    return mask.reshape(-1, *([1] * (z.ndim - 1)))
