"""Linear algebra with the derivatives of rows, for many chains at once: dense, sparse, or products alone.

Newton's steps (``gauss_newton.py``) need of a Jacobian J (r, d) only its products with vectors, the lengths of its
rows, and solutions of U U^T x = b, U the rows scaled to length one. Every kind of Jacobian keeps its numbers in one
tensor with the chain first, so that chains can be taken out of it, and a factor of U U^T likewise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from casal.constraints.solvers.banded import bands_for_many
from casal.constraints.vectors import EPSILON, norm
from casal.devices import beside, chosen, in_host_memory, on_host, seen
from casal.errors import SettingError, ShapeError
from casal.linalg import conjugate_gradients

LONGEST = 8.0
"""The longest row of a sparse Jacobian may have so many times as many entries as the mean one: all are kept as long."""

PROBES = 32
"""Directions in which the lengths of rows are estimated where only products are known."""

PASSES = 3
"""Repetitions of a projection by U U^T: each shrinks what is left by the rounding times the condition of U U^T."""

SOLVED, SOLVING_STEPS = 1e-14, 2000
"""Relative residual that conjugate gradients go for, and their most steps."""


class Algebra(Protocol):
    """What is done with rows (n, ...), the derivatives in whatever form, and with a factor (n, ...) of U U^T."""

    def lengths(self, rows: Tensor) -> Tensor:
        """(n, r)."""

    def scaled(self, rows: Tensor, usable: Tensor, lengths: Tensor) -> Tensor:
        """Rows divided by (n, r), zero where they are not usable (n, r)."""

    def masked(self, rows: Tensor, free: Tensor) -> Tensor:
        """Rows without the coordinates that are not free (n, d)."""

    def apply(self, rows: Tensor, v: Tensor) -> Tensor:
        """J v, (n, r)."""

    def pull(self, rows: Tensor, weights: Tensor) -> Tensor:
        """J^T w, (n, d)."""

    def terms(self, rows: Tensor, size: Tensor) -> Tensor:
        """sum_j |J_ij| size_j, (n, r)."""

    def gram(self, rows: Tensor) -> Tensor:
        """U U^T, or what stands for it."""

    def factorise(self, gram: Tensor, active: Tensor, ridge: Tensor | float = 0.0) -> Tensor:
        """A factor of U U^T + ridge, a number or (n, 1), over the active rows (one elsewhere), with more if needed."""

    def solve(self, factor: Tensor, right: Tensor) -> Tensor:
        """(U U^T)^-1 right, (n, r)."""

    def basis(self, rows: Tensor, factor: Tensor, active: Tensor) -> Tensor:
        """What ``tangential`` and ``shares`` need of the active rows."""

    def tangential(self, basis: Tensor, factor: Tensor, v: Tensor) -> Tensor:
        """v - U^T (U U^T)^-1 U v, to rounding."""

    def shares(self, basis: Tensor, factor: Tensor, v: Tensor) -> Tensor:
        """(U U^T)^-1 U v, (n, r)."""

    def shortest(self, rows: Tensor, values: Tensor) -> Tensor:
        """The shortest step v with J v = values, (n, d), in the sense of least squares where there is none."""


class DenseRows:
    """Derivatives (n, r, d); the basis is L^-1 U, orthonormal."""

    def lengths(self, rows: Tensor) -> Tensor:
        return norm(rows.reshape(-1, rows.shape[2])).reshape(rows.shape[:2])

    def scaled(self, rows: Tensor, usable: Tensor, lengths: Tensor) -> Tensor:
        return torch.where(usable[:, :, None], rows, 0.0) / lengths[:, :, None]

    def masked(self, rows: Tensor, free: Tensor) -> Tensor:
        return rows * free[:, None, :]

    def apply(self, rows: Tensor, v: Tensor) -> Tensor:
        """Not by a matrix product, whose rounding depends on the number of chains."""
        return (rows * v[:, None, :]).sum(2)

    def pull(self, rows: Tensor, weights: Tensor) -> Tensor:
        return (rows * weights[:, :, None]).sum(1)

    def terms(self, rows: Tensor, size: Tensor) -> Tensor:
        return (rows.abs() * size[:, None, :]).sum(2)

    def gram(self, rows: Tensor) -> Tensor:
        return rows @ rows.mT

    def factorise(self, gram: Tensor, active: Tensor, ridge: Tensor | float = 0.0) -> Tensor:
        both = active[:, :, None] & active[:, None, :]
        matrix = torch.where(both, gram, torch.zeros_like(gram))
        added = torch.as_tensor(ridge).to(gram).clamp_min(EPSILON * 4 * gram.shape[1])
        diagonal = torch.where(active, added, 1.0)
        factor, info = torch.linalg.cholesky_ex(matrix + torch.diag_embed(diagonal))
        failed = info > 0
        while not on_host(gram) or bool(failed.any()):
            added = 100.0 * added
            again, info = torch.linalg.cholesky_ex(matrix + torch.diag_embed(torch.maximum(diagonal, added)))
            factor, failed = torch.where(failed[:, None, None], again, factor), failed & (info > 0)
            if not on_host(gram):
                break  # a hundred times the rounding is enough for rows of length one; a look is not worth it
        return factor

    def solve(self, factor: Tensor, right: Tensor) -> Tensor:
        return torch.cholesky_solve(right[:, :, None], factor).squeeze(2)

    def basis(self, rows: Tensor, factor: Tensor, active: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(factor, rows * active[:, :, None], upper=False)

    def tangential(self, basis: Tensor, factor: Tensor, v: Tensor) -> Tensor:
        """The second pass removes what the rounding of the basis left."""
        v = v - self.pull(basis, self.apply(basis, v))
        return v - self.pull(basis, self.apply(basis, v))

    def shares(self, basis: Tensor, factor: Tensor, v: Tensor) -> Tensor:
        along = self.apply(basis, v)
        return torch.linalg.solve_triangular(factor.mT, along[:, :, None], upper=True).squeeze(2)

    def shortest(self, rows: Tensor, values: Tensor) -> Tensor:
        return (torch.linalg.pinv(rows) @ values[:, :, None]).squeeze(2)


DENSE = DenseRows()


class ByNormalEquations(Algebra, Protocol):
    """What follows from ``apply``, ``pull`` and ``solve`` alone, where no orthonormal basis of the rows is kept."""

    def basis(self, rows: Tensor, factor: Tensor, active: Tensor) -> Tensor:
        return rows

    def tangential(self, basis: Tensor, factor: Tensor, v: Tensor) -> Tensor:
        for _ in range(PASSES):
            v = v - self.pull(basis, self.solve(factor, self.apply(basis, v)))
        return v

    def shares(self, basis: Tensor, factor: Tensor, v: Tensor) -> Tensor:
        return self.solve(factor, self.apply(basis, v))

    def shortest(self, rows: Tensor, values: Tensor) -> Tensor:
        """J^T (J J^T)^-1 values, rows that vanish left out."""
        lengths = self.lengths(rows)
        usable = (lengths > 0) & torch.isfinite(lengths)
        safe = torch.where(usable, lengths, 1.0)
        unit = self.scaled(rows, usable, safe)
        factor = self.factorise(self.gram(unit), usable)
        return self.pull(unit, self.solve(factor, torch.where(usable, values / safe, 0.0)))


def uneven(indices: Tensor, rows: int) -> bool:
    """Whether a row has so many more entries than others that ``SparseRows``, which keeps all as long, refuses it."""
    counts = torch.bincount(indices[0], minlength=rows)
    return bool(len(counts)) and int(counts.max()) * rows > LONGEST * indices.shape[1] + 2**16


class SparseRows(ByNormalEquations):
    """Derivatives at fixed places, kept as (n, r, q): q the entries of the longest row, shorter ones filled with zeros.

    Args:
        indices: Rows and coordinates of the entries, (2, k).
        rows: r.
        size: d.
    """

    def __init__(self, indices: Tensor, rows: int, size: int) -> None:
        row, column = indices
        if indices.numel() and not (int(indices.min()) >= 0 and int(row.max()) < rows and int(column.max()) < size):
            raise ShapeError(
                f"the sparse jacobian has entries up to row {int(row.max())} and coordinate {int(column.max())}, "
                f"the function has {rows} rows and {size} coordinates"
            )
        if len(torch.unique(row * size + column)) < len(row):
            raise SettingError("the sparse jacobian names a place more than once; add its values up")
        self._count, self._size = rows, size
        counts = torch.bincount(row, minlength=rows)
        most = max(1, int(counts.max())) if rows else 1
        if uneven(indices, rows):
            raise SettingError(
                f"row {int(counts.argmax())} of the sparse jacobian has {most} entries, the mean row "
                f"{len(row) / rows:.3g}; state that row as a set of its own, and take the intersection (&)"
            )
        order = torch.argsort(row, stable=True)
        slot = torch.arange(len(row)) - (counts.cumsum(0) - counts)[row[order]]
        self._spots = row[order] * most + slot  # of the entries in order of their rows
        self._order = order
        self._columns = torch.zeros(rows * most, dtype=torch.long)
        self._columns[self._spots] = column[order]
        self._most = most
        self.bands = bands_for_many(row[order], column[order], rows)
        by_column = torch.argsort(column[order], stable=True)
        uses = torch.bincount(column, minlength=size)
        deepest = max(1, int(uses.max())) if size else 1
        place = torch.arange(len(row)) - (uses.cumsum(0) - uses)[column[order][by_column]]
        self._uses = torch.full((size * deepest,), rows * most, dtype=torch.long)  # the last one is a zero
        self._uses[column[order][by_column] + place * size] = self._spots[by_column]

    def kept(self, values: Tensor) -> Tensor:
        """(n, r, q) from the entries (n, k)."""
        out = values.new_zeros(len(values), self._count * self._most)
        out[:, beside(self._spots, out)] = values[:, beside(self._order, values)]
        return out.reshape(len(values), self._count, self._most)

    def dense(self, rows: Tensor) -> Tensor:
        """(n, r, d)."""
        out = rows.new_zeros(len(rows), self._count, self._size)
        columns = beside(self._columns, rows).reshape(1, self._count, self._most)
        return out.scatter_add_(2, columns.expand_as(rows), rows)

    def lengths(self, rows: Tensor) -> Tensor:
        return DENSE.lengths(rows)

    def scaled(self, rows: Tensor, usable: Tensor, lengths: Tensor) -> Tensor:
        return DENSE.scaled(rows, usable, lengths)

    def masked(self, rows: Tensor, free: Tensor) -> Tensor:
        return rows * free[:, beside(self._columns, free)].reshape(rows.shape)

    def apply(self, rows: Tensor, v: Tensor) -> Tensor:
        return (rows * v[:, beside(self._columns, v)].reshape(rows.shape)).sum(2)

    def pull(self, rows: Tensor, weights: Tensor) -> Tensor:
        product = torch.nn.functional.pad((rows * weights[:, :, None]).flatten(1), (0, 1))
        return product[:, beside(self._uses, product)].reshape(len(rows), -1, self._size).sum(1)

    def terms(self, rows: Tensor, size: Tensor) -> Tensor:
        return self.apply(rows.abs(), size)

    @in_host_memory
    def gram(self, rows: Tensor) -> Tensor:
        return self.bands.gram(rows.flatten(1)[:, self._spots])

    @in_host_memory
    def factorise(self, gram: Tensor, active: Tensor, ridge: Tensor | float = 0.0) -> Tensor:
        ridges = torch.as_tensor(ridge).to(gram).clamp_min(4 * EPSILON).reshape(-1).expand(len(gram)).clone()
        factor, good = self.bands.factorise(gram, ridges, active)
        while not seen(good.all()):
            bad = chosen(~good)
            ridges[bad] *= 100.0
            factor[bad], good[bad] = self.bands.factorise(gram[bad], ridges[bad], active[bad])
        return factor

    @in_host_memory
    def solve(self, factor: Tensor, right: Tensor) -> Tensor:
        return self.bands.solve(factor, right)

    @in_host_memory
    def solve_once(self, gram: Tensor, active: Tensor, right: Tensor) -> Tensor:
        """``solve`` with a factor that is not needed again."""
        found, good = self.bands.solve_once(gram, right, 4 * EPSILON, active)
        if not seen(good.all()):
            bad = chosen(~good)
            found[bad] = self.solve(self.factorise(gram[bad], active[bad]), right[bad])
        return found


class ProductRows(ByNormalEquations):
    """Derivatives known by their products alone, kept as (n, d + r): the point, and what each row is divided by.

    U U^T x = b is solved by conjugate gradients; the rows have length one, which is its preconditioner. Their lengths
    are estimated, E (J v)_i^2 = |J_i|^2 for Gaussian v.

    Args:
        forward: (z, v) -> J(z) v, (n, d), (n, d) -> (n, r).
        back: (z, w) -> J(z)^T w, (n, d), (n, r) -> (n, d).
        rows: r.
        size: d.
    """

    def __init__(
        self,
        forward: Callable[[Tensor, Tensor], Tensor],
        back: Callable[[Tensor, Tensor], Tensor],
        rows: int,
        size: int,
    ) -> None:
        self._forward, self._back, self._count, self._size = forward, back, rows, size
        generator = torch.Generator().manual_seed(0)
        self._probes = torch.randn(PROBES, size, generator=generator, dtype=torch.float64)

    def kept(self, z: Tensor) -> Tensor:
        """The rows at z, as they are."""
        return torch.cat([z, z.new_ones(len(z), self._count)], dim=1)

    def _split(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return rows[:, : self._size], rows[:, self._size : self._size + self._count]

    def lengths(self, rows: Tensor) -> Tensor:
        squares = [self.apply(rows, probe.to(rows).expand(len(rows), -1)).square() for probe in self._probes]
        return torch.stack(squares).mean(0).sqrt()

    def scaled(self, rows: Tensor, usable: Tensor, lengths: Tensor) -> Tensor:
        z, factors = self._split(rows)
        return torch.cat([z, torch.where(usable, factors, 0.0) / lengths], dim=1)

    def masked(self, rows: Tensor, free: Tensor) -> Tensor:
        raise NotImplementedError("products with bounds")  # sets with products have none

    def apply(self, rows: Tensor, v: Tensor) -> Tensor:
        z, factors = self._split(rows)
        return factors * self._forward(z, v)

    def pull(self, rows: Tensor, weights: Tensor) -> Tensor:
        z, factors = self._split(rows)
        return self._back(z, factors * weights)

    def terms(self, rows: Tensor, size: Tensor) -> Tensor:
        """Up to a factor: the length of the row times that of the sizes."""
        return self.lengths(rows) * norm(size)[:, None]

    def gram(self, rows: Tensor) -> Tensor:
        return rows

    def factorise(self, gram: Tensor, active: Tensor, ridge: Tensor | float = 0.0) -> Tensor:
        """The rows again, with one on the diagonal of those that are not active."""
        added = torch.as_tensor(ridge).to(gram).clamp_min(64 * EPSILON)
        return torch.cat([gram, torch.where(active, added, 1.0)], dim=1)

    def solve(self, factor: Tensor, right: Tensor) -> Tensor:
        rows, ridge = factor[:, : self._size + self._count], factor[:, self._size + self._count :]

        def product(v: Tensor) -> Tensor:
            return self.apply(rows, self.pull(rows, v)) + ridge * v

        floor = (SOLVED * norm(right)).square()
        return conjugate_gradients(product, right, floor, SOLVING_STEPS)[0]
