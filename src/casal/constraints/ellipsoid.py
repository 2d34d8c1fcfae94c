"""Ellipsoid: a bounded positive definite quadratic form."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from casal.constraints.base import Constraint, flat, norm, over_events, relative
from casal.errors import InfeasibleSet, SettingError, ShapeError
from casal.typing import Event

NEWTON_STEPS = 100
FARTHEST = 1e200
FLATTEST_AXES = 1e-100
FLATTEST_MATRIX = 1e-13
SYMMETRY = 1e-12
EPS = 2.0**-52


class Ellipsoid(Constraint):
    """C = {z : (z - c)^T Q (z - c) <= 1}, Q = V diag(1 / s_i^2) V^T with the semi-axes s_i.

    A point outside goes, in the eigenbasis y = V^T (z - c), to

        p_i = s_i^2 y_i / (s_i^2 + mu),   where mu > 0 solves   |s y / (s^2 + mu)| = 1   (the secular equation).

    1 / |s y / (s^2 + mu)| is increasing and concave in mu, so Newton's method on it climbs to the root from the
    left without a safeguard; it runs until no chain moves any more, about ten steps. The nearest point is unique
    everywhere, the centre is inside. The gauge of a point is sqrt((z - c)^T Q (z - c)); the violation is
    max(0, gauge - 1) / (1 + |c| / min s). Points whose gauge exceeds one by rounding only are left alone.

    Rounding: an axis-aligned ellipsoid is resolved to a few 1e-16 whatever its axes; one given by a matrix only
    to about 1e-16 times the condition number of Q, because that is what Q itself says.

    Args:
        axes_or_matrix: Semi-axes (d,), all positive, along the coordinates of the flattened event; or Q (d, d),
            symmetric positive definite.
        center: c, of the shape of an event; the origin if left out.

    >>> Ellipsoid([2.0, 1.0]).project(torch.tensor([[4.0, 0.0], [0.0, 3.0], [1.0, 0.5]]))
    tensor([[2.0000, 0.0000],
            [0.0000, 1.0000],
            [1.0000, 0.5000]])
    """

    convex = True
    solid = True
    one_sided = True

    def __init__(self, axes_or_matrix: Any, center: Any = None) -> None:
        given = torch.as_tensor(axes_or_matrix, dtype=torch.float64).clone()
        if given.ndim not in (1, 2) or not given.numel() or (given.ndim == 2 and given.shape[0] != given.shape[1]):
            raise ShapeError(
                f"Ellipsoid takes semi-axes (d,) or a matrix (d, d), got shape {tuple(given.shape)}; "
                "the axes of an event with several dimensions are given flattened"
            )
        if not bool(torch.isfinite(given).all()):
            raise InfeasibleSet("the ellipsoid has non-finite axes or matrix entries")
        self.axes = given if given.ndim == 1 else None
        self.matrix = given if given.ndim == 2 else None
        self.center = None if center is None else torch.as_tensor(center, dtype=torch.float64).clone()
        self._basis: Tensor | None
        self._semi: Tensor
        self._basis, self._semi = (None, given) if given.ndim == 1 else _eigenbasis(given)
        least, most = float(self._semi.min()), float(self._semi.max())
        if not least > 0.0 or least < FLATTEST_AXES * most:
            raise InfeasibleSet(
                f"the semi-axes must be positive and within a factor {1 / FLATTEST_AXES:.0e}, "
                f"got {least:g} to {most:g}; a set that is flat along some directions is an intersection with Affine"
            )
        self._least, self._most = least, most

    def __repr__(self) -> str:
        center = "" if self.center is None else ", center=..."
        return f"Ellipsoid(d={len(self._semi)}, semi-axes {self._least:g} to {self._most:g}{center})"

    def validate(self, event: Event) -> None:
        size = torch.Size(event).numel()
        if size != len(self._semi):
            raise ShapeError(f"the ellipsoid has {len(self._semi)} axes, events {event} have {size} coordinates")
        if self.center is not None and tuple(self.center.shape) != event:
            raise ShapeError(f"center has shape {tuple(self.center.shape)}, events have shape {event}")

    def _arguments(self) -> dict[str, Any]:
        return {"axes_or_matrix": self.matrix if self.axes is None else self.axes, "center": self.center}

    def residual(self, z: Tensor) -> Tensor:
        offset = self._offset(z)
        if self.matrix is None:
            return (offset / self._semi.to(z)).square().sum(1, keepdim=True) - 1.0
        return ((offset @ self.matrix.to(z)) * offset).sum(1, keepdim=True) - 1.0

    def _offset(self, z: Tensor) -> Tensor:
        return flat(z if self.center is None else z - self.center.to(z))

    def _project(self, z: Tensor) -> Tensor:
        offset = self._offset(z)
        sigma, basis = (self._semi / self._most).to(z), None if self._basis is None else self._basis.to(z)
        peak = offset.abs().amax(1, keepdim=True)
        rows = offset / torch.where(peak > 0, peak, torch.ones_like(peak))
        rows = rows if basis is None else rows @ basis
        # Beyond 1e200 semi-axes the nearest point depends on the direction only.
        y = rows * (peak / self._most).clamp_max(FARTHEST)
        outside = norm(y / sigma) > 1.0 + self._rounding()
        foot = _secular(y, sigma) * self._most
        foot = (foot if basis is None else foot @ basis.T).reshape(z.shape)
        foot = foot if self.center is None else foot + self.center.to(z)
        return torch.where(over_events(outside, z), foot, z)

    def _rounding(self) -> float:
        """How far the gauge of a computed foot may exceed one: the rounding of its coordinates over the axes."""
        size = len(self._semi)
        shift = 0.0 if self.center is None else float(self.center.abs().max())
        if self.matrix is None:
            return 2.0 * EPS * (size**0.5 + shift / self._least)
        return 4.0 * EPS * (size * (self._most / self._least) ** 2 + shift / self._least)

    def _violation(self, z: Tensor) -> Tensor:
        offset = self._offset(z)
        peak = offset.abs().amax(1, keepdim=True)
        rows = offset / torch.where(peak > 0, peak, torch.ones_like(peak))
        if self.matrix is None:
            gauge = norm(rows / (self._semi / self._most).to(z)) * (peak.squeeze(1) / self._most)
        else:
            gauge = ((rows @ self.matrix.to(z)) * rows).sum(1).clamp_min(0.0).sqrt() * peak.squeeze(1)
        shift = 0.0 if self.center is None else float(norm(self.center.reshape(1, -1))[0])
        return relative((gauge - 1.0).clamp_min(0.0), torch.full_like(gauge, 1.0 + shift / self._least))


def _secular(y: Tensor, sigma: Tensor) -> Tensor:
    """sigma^2 y / (sigma^2 + m) with |sigma y / (sigma^2 + m)| = 1, rows of y outside, max sigma = 1."""
    square, pull = sigma.square(), sigma * y
    # Where every coordinate of sigma y / (sigma^2 + m) is at most one, the largest of them equal to one.
    m = (pull.abs() - square).amax(1, keepdim=True).clamp_min(0.0)
    for _ in range(NEWTON_STEPS):
        p = pull / (square + m)
        length = torch.linalg.vector_norm(p, dim=1, keepdim=True)
        slope = (p.square() / (square + m)).sum(1, keepdim=True)
        step = torch.where(length > 1.0, (length - 1.0) * length.square() / slope, torch.zeros_like(m))
        moved = m + step
        if bool((moved == m).all()):
            break
        m = moved
    return square * y / (square + m)


def _eigenbasis(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvectors in columns, and the semi-axes 1 / sqrt(eigenvalue)."""
    peak = float(matrix.abs().max())
    gap = float((matrix - matrix.T).abs().max())
    if gap > SYMMETRY * peak:
        raise SettingError(
            f"the matrix is not symmetric: entries differ by {gap:g}; pass (Q + Q.T) / 2 if that is meant"
        )
    values, vectors = torch.linalg.eigh(matrix / (peak or 1.0))
    if not float(values[0]) > FLATTEST_MATRIX * float(values[-1]):
        raise InfeasibleSet(
            f"the matrix is not positive definite: eigenvalues {peak * float(values[0]):g} to "
            f"{peak * float(values[-1]):g}, least allowed ratio {FLATTEST_MATRIX:g}; pass extreme axes as a vector"
        )
    return vectors, (1.0 / values.sqrt()) / peak**0.5
