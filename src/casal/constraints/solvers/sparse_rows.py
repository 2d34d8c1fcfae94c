"""A sparse matrix that stays sparse, and its rows as linear equations: A A^T is factorised once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from casal.constraints.solvers.banded import Bands
from casal.constraints.vectors import norm, peak
from casal.devices import placed
from casal.errors import SettingError, ShapeError

MOST_DENSE = 2**22
"""Numbers up to which a sparse matrix may be written out where only a dense one will do."""

SUSPECT = 1e-9
"""Squared distance of a row of length one from those before it below which it may depend on the others."""

DEPENDENT, RESOLVED = 1e-10, 1e-6
"""Distances of such a row from the others: up to the first it depends on them, from the second on U U^T resolves it."""

RIDGE = 1e-14
"""Added to the diagonal of U U^T in the search for dependent rows, so that none of them ends it."""

REFINED = 2
"""Repetitions of a solve on what the one before it left."""

TOGETHER = 256
"""Rows that are compared with the others at once."""


class SparseMatrix:
    """A matrix (m, d) kept as the places and values of its entries.

    Args:
        rows: Row of every entry (k,).
        columns: Its column.
        values: Its value; values at the same place add up.
        shape: (m, d).
    """

    def __init__(self, rows: Any, columns: Any, values: Any, shape: Sequence[int]) -> None:
        m, d = (int(length) for length in shape)
        if max(m, d) > 10**8:
            raise SettingError(f"a sparse matrix has at most 1e8 rows and columns, got {max(m, d):.1e} of them")
        places = torch.stack([torch.as_tensor(part, dtype=torch.long).reshape(-1) for part in (rows, columns)])
        numbers = torch.as_tensor(values, dtype=torch.float64).reshape(-1)
        if places.shape[1] != len(numbers):
            raise ShapeError(f"a sparse matrix has {places.shape[1]} places but {len(numbers)} values")
        if places.numel() and not (int(places.min()) >= 0 and int(places[0].max()) < m and int(places[1].max()) < d):
            raise ShapeError(f"a sparse matrix of shape {(m, d)} has an entry outside of it")
        whole = torch.sparse_coo_tensor(places, numbers, (m, d), check_invariants=False).coalesce()
        entries = whole.values() != 0  # not finite ones stay, and are refused by those who care
        self.rows, self.columns = whole.indices()[:, entries]
        self.values, self.shape = whole.values()[entries], torch.Size((m, d))

    @cached_property
    def _made(self) -> dict[tuple[torch.dtype, torch.device], Tensor]:
        """The matrix as a tensor of torch, in the dtypes that were asked for."""
        return {}

    @classmethod
    def of(cls, given: Any) -> SparseMatrix | None:
        """From a sparse matrix of torch or SciPy; None if it is neither."""
        if isinstance(given, cls):
            return given
        if isinstance(given, Tensor) and given.layout != torch.strided:
            whole = given.detach().to_sparse_coo().coalesce().cpu()
            return cls(whole.indices()[0], whole.indices()[1], whole.values(), whole.shape)
        if hasattr(given, "tocoo"):
            whole = given.tocoo()
            return cls(torch.tensor(whole.row), torch.tensor(whole.col), torch.tensor(whole.data), whole.shape)
        return None

    @classmethod
    def from_dense(cls, matrix: Tensor) -> SparseMatrix:
        """The entries of a dense matrix that are not zero."""
        rows, columns = torch.nonzero(matrix, as_tuple=True)
        return cls(rows, columns, matrix[rows, columns], matrix.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"SparseMatrix({self.shape[0]} x {self.shape[1]}, {len(self.values)} entries)"

    @property
    def device(self) -> torch.device:
        """Where the numbers are."""
        return self.values.device

    def to_dense(self) -> Tensor:
        """(m, d); only where it is small.

        Raises:
            SettingError: It is not.
        """
        if self.shape.numel() > MOST_DENSE:
            raise SettingError(
                f"{self!r} would have to be written out as {self.shape.numel():.1e} numbers here, more than "
                f"{MOST_DENSE:.1e}; pass a dense matrix if you have the memory"
            )
        return self._like(torch.float64, self.values.device).to_dense()

    def data(self) -> dict[str, Any]:
        """As plain data: {"shape": ..., "rows": ..., "columns": ..., "values": ...}, arguments of the constructor."""
        return {
            "shape": list(self.shape),
            "rows": self.rows.tolist(),
            "columns": self.columns.tolist(),
            "values": self.values.tolist(),
        }

    def _like(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        if (dtype, device) not in self._made:
            places, values = torch.stack([self.rows, self.columns]).to(device), self.values.to(device, dtype)
            whole = torch.sparse_coo_tensor(places, values, self.shape, check_invariants=False)
            self._made[dtype, device] = whole._coalesced_(True)
        return self._made[dtype, device]

    def across(self, y: Tensor) -> Tensor:
        """A y for the rows of y (n, d): (n, m)."""
        return torch.sparse.mm(self._like(y.dtype, y.device), y.T).T

    def back(self, weights: Tensor) -> Tensor:
        """A^T w for the rows of w (n, m): (n, d)."""
        return self._turned.across(weights)

    def times_dense(self, other: Tensor) -> Tensor:
        """A B for a dense matrix B (d, k)."""
        return torch.sparse.mm(self._like(other.dtype, other.device), other)

    @cached_property
    def _turned(self) -> SparseMatrix:
        return SparseMatrix(self.columns, self.rows, self.values, self.shape[::-1])

    @cached_property
    def absolute(self) -> SparseMatrix:
        """|A|, entry by entry."""
        return SparseMatrix(self.rows, self.columns, self.values.abs(), self.shape)

    def some_rows(self, chosen: Tensor, factors: Tensor | None = None) -> SparseMatrix:
        """The rows ``chosen``, in their order, each times a factor."""
        number = torch.full((self.shape[0],), -1, dtype=torch.long)
        number[chosen] = torch.arange(len(chosen))
        rows = number[self.rows]
        kept = rows >= 0
        values = self.values[kept] if factors is None else self.values[kept] * factors[rows[kept]]
        return SparseMatrix(rows[kept], self.columns[kept], values, (len(chosen), self.shape[1]))

    def over(self, other: SparseMatrix) -> SparseMatrix:
        """This matrix above another one."""
        return SparseMatrix(
            torch.cat([self.rows, other.rows + len(self)]),
            torch.cat([self.columns, other.columns]),
            torch.cat([self.values, other.values]),
            (len(self) + len(other), self.shape[1]),
        )

    def times(self, other: SparseMatrix) -> SparseMatrix:
        """The product of two of them: every entry (i, k) meets all entries (k, j), which stand in order of k."""
        ends = torch.searchsorted(other.rows, torch.arange(len(other) + 1))
        starts, counts = ends[self.columns], (ends[1:] - ends[:-1])[self.columns]
        left = torch.repeat_interleave(torch.arange(len(counts)), counts)
        right = starts[left] + torch.arange(len(left)) - (counts.cumsum(0) - counts)[left]
        values = self.values[left] * other.values[right]
        return SparseMatrix(self.rows[left], other.columns[right], values, (len(self), other.shape[1]))

    @cached_property
    def lengths(self) -> Tensor:
        """Norms (m,) of the rows, safe from overflow and underflow of the squares."""
        top = torch.zeros(len(self), dtype=torch.float64).scatter_reduce_(0, self.rows, self.values.abs(), "amax")
        unit = torch.where(top > 0, top, 1.0)
        squares = (self.values / unit[self.rows]).square()
        return top * torch.zeros_like(top).index_add_(0, self.rows, squares).sqrt()

    @cached_property
    def solved(self) -> SparseSystem:
        """The rows that are not zero, of length one and factorised: made once, for all right-hand sides."""
        kept = torch.nonzero(self.lengths > 0).flatten()
        return SparseSystem(self.some_rows(kept, self.lengths[kept].reciprocal()))


class Dependence(NamedTuple):
    """Rows that depend on the others: row = coefficients . independent rows.

    Attributes:
        rows: (j,).
        coefficients: (j, rank).
    """

    rows: Tensor
    coefficients: Tensor


class SparseSystem:
    """U z = r for sparse rows U of length one, with U U^T = L L^T over a largest set of independent rows.

    Attributes:
        matrix: U.
        rank: How many rows are independent.
        dependent: The others, and what they are made of.
    """

    def __init__(self, matrix: SparseMatrix) -> None:
        self.matrix = matrix
        everything = torch.arange(len(matrix))
        weak = self._take(everything, RIDGE)
        if len(weak):
            some = torch.ones(len(matrix), dtype=torch.bool)
            some[weak] = False
            self._take(everything[some], RIDGE)
            _, distance = self._compare(weak)
            unclear = torch.nonzero((distance > DEPENDENT) & (distance < RESOLVED)).flatten()
            if len(unclear):
                self._refuse(int(weak[unclear[0]]), float(distance[unclear[0]]))
            some[weak[distance >= RESOLVED]] = True
            weak, everything = weak[distance <= DEPENDENT], everything[some]
        again = self._take(everything, 0.0, SUSPECT * 1e-4)
        if len(again):
            self._refuse(int(again[0]), RESOLVED)
        self.rank, self.dependent = len(everything), Dependence(weak, self._compare(weak)[0])

    def _take(self, kept: Tensor, ridge: float, least: float = SUSPECT) -> Tensor:
        """Factorise U U^T + ridge over some rows. The answer is which of them may depend on the others."""
        self._kept, self._rows = kept, self.matrix if len(kept) == len(self.matrix) else self.matrix.some_rows(kept)
        self._bands = Bands(self._rows.rows, self._rows.columns, len(kept))
        self._factor, good = self._bands.factorise(self._bands.gram(self._rows.values[None]), ridge)
        pivots = self._bands.pivots(self._factor)[0]
        return kept[pivots <= least] if bool(good) else kept[pivots <= max(least, SUSPECT)]

    def _compare(self, some: Tensor) -> tuple[Tensor, Tensor]:
        """Rows as combinations (j, k) of the k rows that were taken, and how far they are from it, (j,)."""
        shares, distances = [torch.zeros(0, len(self._kept), dtype=torch.float64)], [torch.zeros(0).double()]
        for part in some.split(TOGETHER) if len(some) else ():
            rows = self.matrix.some_rows(part)
            target = torch.zeros(rows.shape, dtype=torch.float64).index_put_((rows.rows, rows.columns), rows.values)
            share, rest = torch.zeros(len(part), len(self._kept), dtype=torch.float64), target
            for _ in range(4):
                share = share + self._solve(self._rows.across(rest))
                rest = target - self._rows.back(share)
            shares.append(share)
            distances.append(norm(rest))
        return torch.cat(shares), torch.cat(distances)

    def _refuse(self, row: int, distance: float) -> None:
        raise SettingError(
            f"row {row} of the sparse equations (zero rows not counted) is within {distance:.1e} of a combination of "
            "others, in units of its length; products of rows in float64 do not resolve that. Leave it out, or pass a "
            "dense matrix: A.to_dense()"
        )

    def _solve(self, right: Tensor) -> Tensor:
        return self._bands.solve(placed(self._factor, right), right)

    @property
    def independent(self) -> Tensor:
        """The independent rows, (rank,)."""
        return self._kept

    def point(self, right: Tensor) -> Tensor:
        """The shortest z with U z = right, rows of (n, m)."""
        z = self._rows.back(self._solve(right[:, self._kept]))
        for _ in range(REFINED):
            z = z - self._rows.back(self._solve(self._rows.across(z) - right[:, self._kept]))
        return z

    def step(self, gap: Tensor) -> Tensor:
        """The shortest v with U v = gap up to rounding, for a correction of a point."""
        gap = gap[:, self._kept]
        v = self._rows.back(self._solve(gap))
        return v - self._rows.back(self._solve(self._rows.across(v) - gap))

    def heights(self, offset: Tensor) -> Tensor:
        """Numbers (n, k) whose squares add up to the squared distance of offsets from U z = 0."""
        return offset - self._inside(offset)

    def _inside(self, y: Tensor) -> Tensor:
        """The part of y (n, d) with U v = 0."""
        for _ in range(REFINED):
            y = y - self._rows.back(self._solve(self._rows.across(y)))
        return y

    def tangent(self, y: Tensor) -> Tensor:
        """The part of y with U v = 0, exactly zero where it is nothing but rounding; see ``vectors.tangent``."""
        if self.rank == y.shape[1]:
            return torch.zeros_like(y)
        scale = peak(y)
        scaled = y / scale
        part = self._inside(scaled)
        noise = norm(part) <= 1e-14 * norm(scaled)
        return scale * torch.where(noise[:, None], torch.zeros_like(part), part)

    def inside_fast(self, y: Tensor) -> Tensor:
        """The part of y with U v = 0, in one pass; in float64, because U U^T squares the condition of U."""
        wide = y.to(torch.float64)
        return (wide - self._rows.back(self._solve(self._rows.across(wide)))).to(y.dtype)

    def inside_direction(self) -> Tensor | None:
        """A fixed unit vector with U v = 0, or None if there is none."""
        size = self.matrix.shape[1]
        if self.rank >= size:
            return None
        number = torch.arange(1, size + 1, dtype=torch.float64)
        found = self._inside(self._inside((torch.cos(2.3999632297286533 * number.square()) + 0.1)[None]))[0]
        return found / torch.linalg.vector_norm(found)

    def log_determinant(self) -> float:
        """log det U U^T over the independent rows."""
        return float(self._bands.log_determinant(self._factor)[0])


def across(y: Tensor, rows: Tensor | SparseMatrix) -> Tensor:
    """A y for the rows of y (n, d), A dense or sparse: (n, m)."""
    return y @ placed(rows, y).T if isinstance(rows, Tensor) else rows.across(y)


def back(weights: Tensor, rows: Tensor | SparseMatrix) -> Tensor:
    """A^T w for the rows of w (n, m): (n, d)."""
    return weights @ placed(rows, weights) if isinstance(rows, Tensor) else rows.back(weights)


def stack(first: Tensor | SparseMatrix, second: Tensor | SparseMatrix) -> Tensor | SparseMatrix:
    """One matrix above the other; sparse if one of them is."""
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return torch.cat([first, second])
    one, other = (SparseMatrix.from_dense(part) if isinstance(part, Tensor) else part for part in (first, second))
    return one.over(other)
