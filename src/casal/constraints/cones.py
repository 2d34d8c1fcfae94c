"""Second-order cone and positive semidefinite matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from casal.constraints.base import Constraint, Parts, SphereInFlat, register
from casal.constraints.vectors import EPSILON, flat, norm, over_events, peak, refuse_overflow, relative
from casal.errors import ShapeError
from casal.typing import Event


@register
class SecondOrderCone(Constraint):
    """C = {(t, v) : |v| <= t}, t the first coordinate of the flattened event and v the others.

        P(t, v) = (t, v)                             inside,  |v| <= t
                  0                                  below,   |v| <= -t
                  (t + |v|) / 2 (1, v / |v|)         otherwise

    The nearest point is unique everywhere. A cone has no scale of its own: the violation is
    max(0, |v| - t) / (|v| + |t|), between 0 and 1. The inequalities are |v|^2 - t^2 and -t.

    >>> SecondOrderCone().project(torch.tensor([[0.0, 3.0, 4.0], [-6.0, 3.0, 4.0]]))
    tensor([[2.5000, 1.5000, 2.0000],
            [0.0000, 0.0000, 0.0000]])
    """

    convex = True
    solid = True
    smooth = True
    _equation_count = 0

    def __repr__(self) -> str:
        return "SecondOrderCone()"

    def validate(self, event: Event) -> None:
        if not torch.Size(event).numel():
            raise ShapeError(f"a second-order cone needs at least one coordinate, events have shape {event}")

    def inequalities(self, z: Tensor) -> Tensor:
        t, v = flat(z)[:, :1], flat(z)[:, 1:]
        return torch.cat([v.square().sum(1, keepdim=True) - t.square(), -t], dim=1)

    def _project(self, z: Tensor) -> Tensor:
        size = peak(flat(z))
        y = flat(z) / size
        t, v = y[:, :1], y[:, 1:]
        length = norm(v)[:, None]
        level = (0.5 * (t + length)).clamp_min(0.0)
        share = torch.where(length > 0, level / length.clamp_min(1e-300), torch.zeros_like(level))
        foot = refuse_overflow(size * torch.cat([level, share * v], dim=1), self).reshape(z.shape)
        return torch.where(over_events(_excess(z) <= 4.0 * EPSILON, z), z, foot)

    def _violation(self, z: Tensor) -> Tensor:
        return _excess(z)


@register
class PSDCone(Constraint):
    """C = {Z : Z = Z^T, u^T Z u >= 0 for all u}, events (k, k).

    P(Y) = V max(L, 0) V^T, where V L V^T is the eigendecomposition of the symmetric part (Y + Y^T) / 2: nearest in
    the Frobenius norm, and unique. A matrix whose negative eigenvalues are rounding (below 4 k eps of its norm)
    is only made symmetric. The violation is the larger of |Z - Z^T| / 2 and minus the smallest eigenvalue,
    relative to |Z| (Frobenius). Eigenvalues are not smooth where they meet, so there is no residual.

    >>> PSDCone().project(torch.tensor([[[0.0, 2.0], [0.0, 0.0]]]))
    tensor([[[0.5000, 0.5000],
             [0.5000, 0.5000]]])
    """

    convex = True

    def __repr__(self) -> str:
        return "PSDCone()"

    def validate(self, event: Event) -> None:
        if len(event) != 2 or event[0] != event[1] or not event[0]:
            raise ShapeError(f"PSDCone holds square matrices, events (k, k); got {event}")

    def _apart(self, event: Event) -> Parts:
        """Symmetric matrices, and matrices whose symmetric part is positive semidefinite."""
        return Parts(_Symmetric() if event[0] > 1 else None, _PositivePart())

    def _project(self, z: Tensor) -> Tensor:
        size = peak(flat(z))[:, :, None]
        scaled = z / size
        symmetric = 0.5 * (scaled + scaled.mT)
        values, vectors = torch.linalg.eigh(symmetric)
        clipped = (vectors * values.clamp_min(0.0)[:, None, :]) @ vectors.mT
        rounding = 4.0 * EPSILON * z.shape[1] * torch.linalg.vector_norm(symmetric, dim=(1, 2))
        inside = values.amin(1) >= -rounding
        foot = torch.where(over_events(inside, z), symmetric, 0.5 * (clipped + clipped.mT)) * size
        unmoved = inside & (z == z.mT).flatten(1).all(1)
        return torch.where(over_events(unmoved, z), z, refuse_overflow(foot, self))

    def _violation(self, z: Tensor) -> Tensor:
        size = peak(flat(z))
        scaled, size = z / size[:, :, None], size[:, 0].clamp_max(1.0)
        asymmetry = 0.5 * torch.linalg.vector_norm(scaled - scaled.mT, dim=(1, 2))
        below = -torch.linalg.eigvalsh(0.5 * (scaled + scaled.mT)).amin(1)
        worst = torch.maximum(asymmetry, below.clamp_min(0.0))
        return relative(size * worst, size * torch.linalg.vector_norm(scaled, dim=(1, 2)))


class _Symmetric(Constraint):
    """{Z : Z = Z^T}, the surface part of PSDCone; P(Z) = (Z + Z^T) / 2. The violation is |Z - Z^T| / (2 |Z|)."""

    convex = True

    def log_tube_factor(self, x: Tensor, z: Tensor) -> Tensor | None:
        return torch.zeros(len(x), dtype=x.dtype, device=x.device)

    def codimension(self, event: Event) -> int | None:
        return event[0] * (event[0] - 1) // 2

    def _sphere_in_flat(self, event: Event) -> SphereInFlat | None:
        above, right = torch.triu_indices(event[0], event[1], 1)
        rows = torch.zeros(len(above), *event, dtype=torch.float64)
        one = torch.arange(len(above))
        rows[one, above, right], rows[one, right, above] = 1.0, -1.0
        return SphereInFlat(rows.flatten(1), rows.new_zeros(len(above)))

    def _project(self, z: Tensor) -> Tensor:
        return 0.5 * z + 0.5 * z.mT

    def _violation(self, z: Tensor) -> Tensor:
        scaled = z / peak(flat(z))[:, :, None]
        return relative(0.5 * norm(flat(scaled - scaled.mT)), norm(flat(scaled)))


class _PositivePart(Constraint):
    """{Z : u^T Z u >= 0 for all u}, the solid part of PSDCone: its symmetric part is positive semidefinite.

    P(Z) replaces the symmetric part by its own projection and keeps the other. The violation is minus the smallest
    eigenvalue of the symmetric part, relative to |Z|.
    """

    convex = True
    solid = True

    def _project(self, z: Tensor) -> Tensor:
        return 0.5 * z - 0.5 * z.mT + PSDCone()._project(0.5 * z + 0.5 * z.mT)

    def _violation(self, z: Tensor) -> Tensor:
        scaled = z / peak(flat(z))[:, :, None]
        below = -torch.linalg.eigvalsh(0.5 * (scaled + scaled.mT)).amin(1)
        return relative(below.clamp_min(0.0), norm(flat(scaled)))


def _excess(z: Tensor) -> Tensor:
    """max(0, |v| - t) / (|v| + |t|), on the scale of the largest coordinate so that 1e308 is a number like others."""
    y, top = flat(z), peak(flat(z))
    t, length, size = y[:, 0] / top[:, 0], norm(y[:, 1:] / top), top[:, 0].clamp_max(1.0)
    return relative(size * (length - t).clamp_min(0.0), size * (length + t.abs()))
