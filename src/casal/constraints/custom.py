"""A set given by the user's own projection and violation."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from casal.constraints.base import Constraint
from casal.errors import ProjectionError, SettingError, ShapeError


class FromProjection(Constraint):
    """C = {z : violation(z) = 0}, with the user's own projection onto it.

    The two functions must be independent of each other: the certificate rests on ``violation`` alone.
    ``casal.sample`` tries both on the starting points before the first step.

    Args:
        project: (n, *event) float64 -> (n, *event), a nearest point of C or an approximation of it.
        violation: (n, *event) float64 -> (n,), zero on C, positive elsewhere.
        exact: Whether ``project`` returns the nearest point.
        convex: Whether C is convex.
        solid: Whether C has an interior.
        residual: Optional smooth functions (n, *event) -> (n, m) that vanish on C: equations.
    """

    def __init__(
        self,
        project: Callable[[Tensor], Tensor],
        violation: Callable[[Tensor], Tensor],
        *,
        exact: bool = True,
        convex: bool = False,
        solid: bool = False,
        residual: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        if not callable(project) or not callable(violation):
            raise SettingError("FromProjection(project, violation) needs two callables")
        self._user_project, self._user_violation, self._user_residual = project, violation, residual
        self.exact, self.convex, self.solid, self.smooth = exact, convex, solid, residual is not None

    def equations(self, z: Tensor) -> Tensor:
        return super().equations(z) if self._user_residual is None else self._user_residual(z)

    def _project(self, z: Tensor) -> Tensor:
        out = self._user_project(z)
        if not isinstance(out, Tensor) or out.shape != z.shape:
            got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ShapeError(f"project returned {got} for points of shape {tuple(z.shape)}")
        if not bool(out.isfinite().all()):
            raise ProjectionError("project returned non-finite coordinates for finite points")
        return out

    def _violation(self, z: Tensor) -> Tensor:
        out = self._user_violation(z)
        if not isinstance(out, Tensor) or tuple(out.shape) != (len(z),):
            got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ShapeError(f"violation returned {got} for {len(z)} points; it must return one number per point")
        return out.to(z.dtype)
