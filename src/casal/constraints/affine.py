"""Linear equations and one linear inequality."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from casal.constraints.algorithms.truncated_normal import log_interval_mass, truncated_normal
from casal.constraints.base import Constraint, flat, gaussian, norm, relative
from casal.constraints.subspace import Subspace
from casal.errors import InfeasibleSet, ShapeError
from casal.typing import Event

RANK_TOLERANCE = 1e-12
CONSISTENCY_TOLERANCE = 1e-9
ROUNDING = 64 * torch.finfo(torch.float64).eps
NOISE = 1e-14


def _normalised_rows(A: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Rows scaled to length one. A zero row says 0 = b_i: dropped if true, InfeasibleSet if not."""
    if not (bool(torch.isfinite(A).all()) and bool(torch.isfinite(b).all())):
        raise InfeasibleSet("the equations contain non-finite numbers")
    lengths = norm(A)
    empty = lengths == 0
    if bool((b[empty] != 0).any()):
        row = int(torch.nonzero(empty & (b != 0))[0])
        raise InfeasibleSet(f"row {row} of A is zero but b[{row}] = {float(b[row]):g}: no z can satisfy it")
    return A[~empty] / lengths[~empty, None], b[~empty] / lengths[~empty]


class Affine(Constraint):
    """C = {z : A z = b}; P(z) = z - A^+ (A z - b).

    The rows are scaled to length one and factorised once by singular values, so redundant and dependent rows
    do no harm; contradictory ones raise InfeasibleSet. (The paper prints the projection onto Az + b = 0 with
    the sign of b reversed.) The violation is the largest |a_i z - b_i| / (|a_i| |z| + |b_i|), a relative error.

    Args:
        A: Matrix (m, d), or one row (d,); d is the number of coordinates of an event. A sparse matrix of torch or
            SciPy is welcome; it is made dense, because its singular vectors are.
        b: Right-hand side (m,), or a number for all rows.

    >>> Affine(torch.ones(1, 2), 1.0).project(torch.zeros(1, 2))
    tensor([[0.5000, 0.5000]])
    """

    convex = True
    samples_near = True
    fast = True

    def __init__(self, A: Any, b: Any) -> None:
        matrix = torch.atleast_2d(torch.as_tensor(_dense(A), dtype=torch.float64)).clone()
        if matrix.ndim != 2:
            raise ShapeError(f"A must be a matrix (m, d), got shape {tuple(matrix.shape)}")
        right = torch.as_tensor(b, dtype=torch.float64, device=matrix.device).reshape(-1)
        if len(right) not in (1, len(matrix)):
            raise ShapeError(f"A has {len(matrix)} rows but b has {len(right)} entries")
        self.A, self.b = matrix, right.expand(len(matrix)).clone()
        self._rows, self._right = _normalised_rows(self.A, self.b)
        u, s, vh = torch.linalg.svd(self._rows, full_matrices=False)
        kept = s > RANK_TOLERANCE * (s[0] if len(s) else 1.0) * max(self._rows.shape)
        self._basis = vh[kept]
        self._level = (u[:, kept].T @ self._right) / s[kept]
        self._refuse_contradictions(u[:, kept])

    def _refuse_contradictions(self, range_basis: Tensor) -> None:
        """b must lie in the range of A, each row measured by the b of the rows it depends on, and by rounding."""
        if range_basis.shape[1] == len(range_basis):
            return
        gap = (self._right - range_basis @ (range_basis.T @ self._right)).abs()
        scale = (range_basis @ range_basis.T).abs() @ self._right.abs() + self._right.abs()
        rounding = len(gap) * ROUNDING * float(self._right.abs().max())
        if bool((gap > CONSISTENCY_TOLERANCE * scale + rounding).any()):
            raise InfeasibleSet(
                f"A z = b has no solution: rank {len(self._basis)} of {len(self.A)} rows, "
                f"least-squares residual {float(gap.max()):.3g} (rows scaled to length one)"
            )

    def __repr__(self) -> str:
        return f"Affine({self.A.shape[0]} x {self.A.shape[1]}, rank {len(self._basis)})"

    def validate(self, event: Event) -> None:
        _check_columns(self.A.shape[1], event)

    def _arguments(self) -> dict[str, Any]:
        return {"A": self.A, "b": self.b}

    def residual(self, z: Tensor) -> Tensor:
        return flat(z) @ self._rows.to(z).T - self._right.to(z)

    def residual_pull(self, z: Tensor, weights: Tensor) -> Tensor | None:
        return (weights @ self._rows.to(z)).reshape(z.shape)

    def log_tube_factor(self, x: Tensor, z: Tensor) -> Tensor | None:
        return torch.zeros(len(x), dtype=x.dtype, device=x.device)

    def _sample_near(self, y: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
        """P(y + sigma xi)."""
        return self._project(y + sigma * gaussian(y, generator))

    def _log_normaliser(self, y: Tensor, sigma: float) -> Tensor:
        """-dist^2 / (2 sigma^2) - m/2 log(2 pi sigma^2), m the rank of A."""
        height = (flat(y) @ self._basis.to(y).T - self._level.to(y)) / sigma
        return -0.5 * height.square().sum(1) - len(self._basis) * math.log(math.sqrt(2.0 * math.pi) * sigma)

    def project_fast(self, z: Tensor) -> Tensor:
        y, basis = flat(z), self._basis.to(z)
        return torch.addmm(y, y @ basis.T - self._level.to(z), basis, alpha=-1.0).reshape(z.shape)

    def within(self, space: Subspace) -> Constraint | None:
        rows = space.coordinates(self.A) if len(self._basis) else None
        return None if rows is None else Affine(rows.flatten(1), self.b)

    def _project(self, z: Tensor) -> Tensor:
        basis = self._basis.to(z)
        return (tangent(flat(z), basis) + self._level.to(z) @ basis).reshape(z.shape)

    def _violation(self, z: Tensor) -> Tensor:
        if not len(self._rows):
            return torch.zeros(len(z), dtype=z.dtype, device=z.device)
        error = (flat(z) @ self._rows.to(z).T - self._right.to(z)).abs()
        return relative(error, norm(flat(z))[:, None] + self._right.to(z).abs()).amax(1)


class HalfSpace(Constraint):
    """C = {z : a . z <= b}; P(z) = z - max(0, a . z - b) a / |a|^2.

    The violation is max(0, a . z - b) / (|a| |z| + |b|), a relative error.

    Args:
        a: Normal, with as many entries as an event has coordinates.
        b: Level.
    """

    convex = True
    solid = True
    one_sided = True
    samples_near = True
    fast = True

    def __init__(self, a: Any, b: float) -> None:
        self.a = torch.as_tensor(a, dtype=torch.float64).reshape(-1).clone()
        self.b = float(b)
        length = float(norm(self.a[None])[0])
        if not 0.0 < length < math.inf or not -math.inf < self.b < math.inf:
            raise InfeasibleSet(f"HalfSpace needs a finite, nonzero normal and level; got |a| = {length:g}, b = {b}")
        self._normal, self._level = self.a / length, self.b / length

    def __repr__(self) -> str:
        return f"HalfSpace(d={len(self.a)}, b={self.b:g})"

    def validate(self, event: Event) -> None:
        _check_columns(len(self.a), event)

    def _arguments(self) -> dict[str, Any]:
        return {"a": self.a, "b": self.b}

    def residual(self, z: Tensor) -> Tensor:
        return (flat(z) @ self._normal.to(z) - self._level)[:, None]

    def _sample_near(self, y: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
        """A Gaussian along the plane, a Gaussian cut at b across it."""
        normal, free = self._normal.to(y), flat(y + sigma * gaussian(y, generator))
        height = truncated_normal(flat(y) @ normal, sigma, *self._heights(y), generator)
        # A last projection for what rounding puts beyond the plane.
        return self._project((tangent(free, normal[None]) + height[:, None] * normal).reshape(y.shape))

    def _log_normaliser(self, y: Tensor, sigma: float) -> Tensor:
        """log Phi((b - a . y) / sigma), |a| = 1."""
        return log_interval_mass(flat(y) @ self._normal.to(y), sigma, *self._heights(y))

    def _heights(self, y: Tensor) -> tuple[Tensor, Tensor]:
        return y.new_tensor(-math.inf), y.new_tensor(self._level)

    def project_fast(self, z: Tensor) -> Tensor:
        y, normal = flat(z), self._normal.to(z)
        excess = (y @ normal - self._level).clamp_min(0.0)
        return (y - excess[:, None] * normal).reshape(z.shape)

    def within(self, space: Subspace) -> Constraint | None:
        normal = space.coordinates(self.a[None])
        return None if normal is None else HalfSpace(normal[0], self.b)

    def _project(self, z: Tensor) -> Tensor:
        y, normal = flat(z), self._normal.to(z)
        peak = y.abs().amax(1).clamp_min(1.0)
        outside = (y / peak[:, None]) @ normal > self._level / peak
        return torch.where(outside[:, None], tangent(y, normal[None]) + self._level * normal, y).reshape(z.shape)

    def _violation(self, z: Tensor) -> Tensor:
        excess = (flat(z) @ self._normal.to(z) - self._level).clamp_min(0.0)
        return relative(excess, norm(flat(z)) + abs(self._level))


def _dense(A: Any) -> Any:
    if isinstance(A, Tensor):
        return A if A.layout == torch.strided else A.to_dense()
    return A.toarray() if hasattr(A, "toarray") else A


def tangent(y: Tensor, basis: Tensor) -> Tensor:
    """The part of y (n, d) orthogonal to the rows of ``basis``: exactly zero where it is nothing but rounding.

    Without that, the foot of a point on the normal of a set through the origin would be noise, and its relative
    violation one, however small the noise.
    """
    peak = y.abs().amax(1, keepdim=True)
    peak = torch.where(peak > 0, peak, torch.ones_like(peak))
    scaled = y / peak
    part = scaled - (scaled @ basis.T) @ basis
    part = part - (part @ basis.T) @ basis
    noise = norm(part) <= NOISE * norm(scaled)
    return peak * torch.where(noise[:, None], torch.zeros_like(part), part)


def _check_columns(columns: int, event: Event) -> None:
    size = torch.Size(event).numel()
    if columns != size:
        raise ShapeError(f"the set is written for {columns} coordinates, events {event} have {size}")
