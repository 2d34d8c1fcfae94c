"""Second-order cone and positive semidefinite matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from casal.checks import Event
from casal.constraints.base import (
    Constraint,
    Excess,
    Geometry,
    Parts,
    SphereInFlat,
    flat_volume,
    largest,
    register,
    side_by_side,
)
from casal.constraints.simplex import onto_simplex
from casal.constraints.vectors import EPSILON, flat, norm, over_events, peak, refuse_overflow
from casal.devices import chosen, eigh
from casal.errors import ShapeError

REFINEMENTS, REFINED = 4, 1e-13
"""Passes in the units of the diagonal after a projection onto PSD matrices, and the violation at which they end."""


@register
class SecondOrderCone(Constraint):
    """The second-order cone.

    C = {(t, v) : |v| <= t}, t the first coordinate of the flattened event and v the others.

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
        point = refuse_overflow(size * torch.cat([level, share * v], dim=1), self).reshape(z.shape)
        return torch.where(over_events(self._violation(z) <= 4.0 * EPSILON, z), z, point)

    def _excess(self, z: Tensor, lost: Tensor | None) -> Excess:
        return _missed(z, lost)

    def component_name(self, event: Event, row: int) -> str:
        return "|v| <= t"


@register
class PSDCone(Constraint):
    """Symmetric positive semidefinite matrices.

    C = {Z : Z = Z^T, u^T Z u >= 0 for all u}, events (k, k).

    P(Y) = V max(L, 0) V^T, where V L V^T is the eigendecomposition of the symmetric part (Y + Y^T) / 2: nearest in
    the Frobenius norm, and unique. A matrix whose negative eigenvalues are rounding (below 4 k eps of its norm)
    is only made symmetric. The violation is the larger of |Z_ij - Z_ji| / (|Z_ij| + |Z_ji|) and
    -v^T Z v / sum_ij |v_i Z_ij v_j| for the least positive direction v of D^-1 Z D^-1, D_i = sqrt(|Z_ii|): a small
    block beside a large one counts in its own unit. Eigenvalues are not smooth where they meet, so there is no
    residual.

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

    def _geometry(self, event: Event) -> Geometry:
        """Symmetric matrices, and matrices whose symmetric part is positive semidefinite."""
        return Geometry(Parts(_Symmetric() if event[0] > 1 else None, _PositivePart()))

    def _project(self, z: Tensor) -> Tensor:
        size = peak(flat(z))[:, :, None]
        scaled = z / size
        symmetric = 0.5 * (scaled + scaled.mT)
        values, vectors = eigh(symmetric)
        clipped = (vectors * values.clamp_min(0.0)[:, None, :]) @ vectors.mT
        rounding = 4.0 * EPSILON * z.shape[1] * torch.linalg.vector_norm(symmetric, dim=(1, 2))
        inside = values.amin(1) >= -rounding
        point = torch.where(over_events(inside, z), symmetric, 0.5 * (clipped + clipped.mT)) * size
        unmoved = inside & (z == z.mT).flatten(1).all(1)
        point = torch.where(over_events(unmoved, z), z, refuse_overflow(point, self))
        return _refined(point)

    def of_trace(self, z: Tensor, total: float) -> Tensor:
        """Nearest points of {Z in C : tr Z = total >= 0}: the eigenvalues go to the nearest point of a simplex."""
        values, vectors = eigh(0.5 * z + 0.5 * z.mT)
        values = onto_simplex(values, values.new_tensor(total))
        point = (vectors * values[:, None, :]) @ vectors.mT
        point = _refined(0.5 * (point + point.mT))
        trace = point.diagonal(dim1=1, dim2=2).sum(1)
        return point * over_events(total / torch.where(trace > 0, trace, 1.0), point)

    def _excess(self, z: Tensor, lost: Tensor | None) -> Excess:
        """Z_ij = Z_ji above the diagonal, row by row; then v^T Z v in the worst direction, and the diagonal."""
        return side_by_side([_asymmetry(z, lost), _positivity(z, lost)], z)

    def component_name(self, event: Event, row: int) -> str:
        return (
            _pair_name(event, row)
            if row < event[0] * (event[0] - 1) // 2
            else "smallest eigenvalue of D^-1 Z D^-1 >= 0"
        )


class _Symmetric(Constraint):
    """{Z : Z = Z^T}, the surface part of PSDCone; P(Z) = (Z + Z^T) / 2."""

    convex = True

    def _geometry(self, event: Event) -> Geometry:
        above, right = torch.triu_indices(event[0], event[1], 1)

        def equations() -> SphereInFlat:
            rows = torch.zeros(len(above), *event, dtype=torch.float64)
            one = torch.arange(len(above))
            rows[one, above, right], rows[one, right, above] = 1.0, -1.0
            return SphereInFlat(rows.flatten(1), rows.new_zeros(1, len(above)))

        count = event[0] * (event[0] - 1) // 2
        return Geometry(Parts(self, None), codimension=lambda: count, log_volume=flat_volume, sphere_in_flat=equations)

    def _project(self, z: Tensor) -> Tensor:
        return 0.5 * z + 0.5 * z.mT

    def _excess(self, z: Tensor, lost: Tensor | None) -> Excess:
        return _asymmetry(z, lost)

    def component_name(self, event: Event, row: int) -> str:
        return _pair_name(event, row)


class _PositivePart(Constraint):
    """{Z : u^T Z u >= 0 for all u}, the solid part of PSDCone: its symmetric part is positive semidefinite.

    P(Z) replaces the symmetric part by its own projection and keeps the other.
    """

    convex = True
    solid = True

    def _project(self, z: Tensor) -> Tensor:
        return 0.5 * z - 0.5 * z.mT + PSDCone()._project(0.5 * z + 0.5 * z.mT)

    def _excess(self, z: Tensor, lost: Tensor | None) -> Excess:
        return _positivity(z, lost)

    def component_name(self, event: Event, row: int) -> str:
        return _positivity_name(row)


def _asymmetry(z: Tensor, lost: Tensor | None) -> Excess:
    """Z_ij - Z_ji for i < j, in units of |Z_ij| + |Z_ji|."""
    above, right = torch.triu_indices(z.shape[1], z.shape[2], 1, device=z.device)
    half = 0.5 * (z.abs() if lost is None else z.abs() + lost)
    amount = (0.5 * z[:, above, right] - 0.5 * z[:, right, above]).abs()
    return Excess(amount, half[:, above, right] + half[:, right, above], scale=2.0)


def _own_units(scaled: Tensor, terms: Tensor) -> Tensor:
    """D_i = sqrt(|S_ii|) of symmetric matrices (n, k, k); an entry that is rounding beside its row counts as that."""
    noise = EPSILON * terms.amax(2)
    return torch.maximum(scaled.diagonal(dim1=1, dim2=2).abs(), noise).clamp_min(torch.finfo(scaled.dtype).tiny).sqrt()


def _refined(point: Tensor) -> Tensor:
    """Matrices whose small entries the rounding of large ones spoilt, clipped again in the units of the diagonal."""
    for _ in range(REFINEMENTS):
        left = chosen(largest(_positivity(point, None).violation()) > REFINED)
        if not len(left):
            break
        point[left] = _clipped_in_own_units(point[left])
    return point


def _clipped_in_own_units(z: Tensor) -> Tensor:
    """Negative eigenvalues of D^-1 Z D^-1 set to zero: what the rounding of large entries spoiled in small ones.

    Rows and columns whose diagonal entry is no more than that rounding become zero first.
    """
    noise = z.diagonal(dim1=1, dim2=2) <= 64.0 * EPSILON * z.shape[1] * peak(flat(z))
    z = z.masked_fill(noise[:, :, None] | noise[:, None, :], 0.0)
    root = _own_units(z, z.abs())
    values, vectors = eigh(z / root[:, :, None] / root[:, None, :])
    plain = (vectors * values.clamp_min(0.0)[:, None, :]) @ vectors.mT
    gone = plain.diagonal(dim1=1, dim2=2) <= REFINED * values.abs().amax(1, keepdim=True)
    plain = plain.masked_fill(gone[:, :, None] | gone[:, None, :], 0.0)
    return 0.5 * (plain + plain.mT) * root[:, :, None] * root[:, None, :]


def _positivity(z: Tensor, lost: Tensor | None) -> Excess:
    """v^T S v >= 0 for the direction v in which S, the symmetric part, is least positive; then S_ii >= 0.

    v belongs to the smallest eigenvalue of D^-1 S D^-1, D_i = sqrt(|S_ii|): S is positive semidefinite if and only if
    that matrix is, and its rows and columns have no unit. The unit of a row is sum_ij |v_i S_ij v_j|.
    """
    size = peak(flat(z))[:, :, None]
    scaled = 0.5 * (z / size) + 0.5 * (z / size).mT
    terms = scaled.abs() if lost is None else scaled.abs() + 0.5 * (lost / size) + 0.5 * (lost / size).mT
    root = _own_units(scaled, terms)
    plain = scaled / root[:, :, None] / root[:, None, :]
    v = eigh(plain / peak(flat(plain))[:, :, None])[1][:, :, 0] / root
    v = v / v.abs().amax(1, keepdim=True)
    value, unit = (torch.einsum("ni,nij,nj->n", w, part, w)[:, None] for w, part in ((v, scaled), (v.abs(), terms)))
    below = torch.cat([-value, -scaled.diagonal(dim1=1, dim2=2)], dim=1).clamp_min(0.0)
    return Excess(below, torch.cat([unit, terms.diagonal(dim1=1, dim2=2)], dim=1), scale=size[:, :, 0])


def _positivity_name(row: int) -> str:
    return f"Z[{row - 1}, {row - 1}] >= 0" if row else "v^T Z v >= 0 for all v"


def _pair_name(event: Event, row: int) -> str:
    above, right = torch.triu_indices(event[0], event[1], 1)[:, row].tolist()
    return f"Z[{above}, {right}] = Z[{right}, {above}]"


def _missed(z: Tensor, lost: Tensor | None) -> Excess:
    """|v| - t in units of |v| + |t|, on the scale of the largest coordinate so that 1e308 is a number like others."""
    y, top = flat(z), peak(flat(z))
    t, v = y[:, :1] / top, y[:, 1:] / top
    length = norm(v)[:, None]
    unit = length + t.abs()
    if lost is not None:
        unit = unit + norm(flat(lost) / top)[:, None]
    return Excess((length - t).clamp_min(0.0), unit, scale=top)
