"""Cholesky factors of U U^T for sparse rows U: one pattern, many matrices at once, in blocks that torch multiplies.

The rows are ordered (reverse Cuthill-McKee, or as they stand if that is narrower) so that U U^T has its entries close
to the diagonal: it is block tridiagonal, or has a few more block diagonals below. Rows that meet nearly all others,
such as a total, come last, as a border:

    U U^T = [ G   B ]        G = L L^T in blocks,    X = G^-1 B,    S = C - B^T X,
            [ B^T C ]

    x_2 = S^-1 (r_2 - X^T r_1),    x_1 = G^-1 r_1 - X x_2.

Of a block column k with diagonal block L_k and the blocks P_k below it, L_k^-1 and P_k are kept, so that substitutions
are products. With one matrix for all chains that is the fastest way; with one per chain, LAPACK's banded routines are
faster, matrix after matrix (``python -m benchmarks --only sparse``), and are used where SciPy is installed.

Reference:
    Cuthill and McKee, "Reducing the bandwidth of sparse symmetric matrices" (1969); George and Liu, "Computer Solution
    of Large Sparse Positive Definite Systems" (1981).
"""

from __future__ import annotations

import importlib.util

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from casal.errors import SettingError

SMALLEST_BLOCK, LARGEST_BLOCK = 32, 96
"""Rows of a block: fewer cost more calls than work, more cost work on zeros."""

MOST_NUMBERS = 2**26
"""Numbers in the factor of one matrix: half a gigabyte."""

MOST_PAIRS = 2**26
"""Products of two entries that make up U U^T."""

HEAVY = 8
"""A row that meets so many times as many rows as the median one does may go to the border."""

Whole = NDArray[np.int64]


class Bands:
    """Where the entries of U U^T are, and how it is factorised and solved with; it holds no numbers of U.

    Args:
        rows: Row of every entry of U (k,).
        columns: Its column; entries that are always zero are left out.
        size: How many rows there are.

    Attributes:
        numbers: Numbers in one factor.
        bandwidth: Of the ordered matrix without its border.
        border: Rows in the border.
    """

    def __init__(self, rows: Tensor, columns: Tensor, size: int) -> None:
        self.size = size
        first, second = _pairs(rows.numpy(), columns.numpy())
        one, other = rows.numpy()[first], rows.numpy()[second]
        order, heavy = _ordering(one, other, size)
        self.border, count = heavy, size - heavy
        place = np.empty(size, dtype=np.int64)
        place[order] = np.arange(size)
        one, other = place[one], place[other]
        lower = one >= other
        first, second, one, other = first[lower], second[lower], one[lower], other[lower]
        inner = one < count
        self.bandwidth = int((one - other)[inner].max(initial=0))
        self._padded, self._band = self._lay_out(count)
        self.numbers = self._band + heavy * self._padded + heavy * heavy
        if self.numbers > MOST_NUMBERS:
            raise SettingError(
                f"the factor of {size} sparse equations takes {self.numbers:.1e} numbers (bandwidth {self.bandwidth} "
                f"and {heavy} rows that meet the others), more than {MOST_NUMBERS:.1e}; split the set, or write "
                "equations that touch fewer coordinates"
            )
        spots, number = np.unique(self._spot(one, other, count), return_inverse=True)
        self._first, self._second = torch.from_numpy(first), torch.from_numpy(second)
        self._number, self._spots = torch.from_numpy(number.reshape(-1)), torch.from_numpy(spots)
        self._order, self._place = torch.from_numpy(order), torch.from_numpy(place)
        diagonal = np.arange(self._padded)
        self._diagonal = torch.from_numpy(
            np.concatenate([self._spot(diagonal, diagonal, self._padded), self._corner(np.arange(heavy))])
        )
        self._real = torch.from_numpy(np.concatenate([np.arange(self._padded) < count, np.ones(heavy, dtype=bool)]))

    def _lay_out(self, count: int) -> tuple[int, int]:
        """Rows of G, those included that only fill up the last block, and the numbers kept of it."""
        self._block = min(max(-(-self.bandwidth // 2), SMALLEST_BLOCK), LARGEST_BLOCK, max(count, 1))
        self._below = -(-self.bandwidth // self._block)
        self._blocks = -(-count // self._block)
        self._width = (self._below + 1) * self._block
        return self._blocks * self._block, self._blocks * self._width * self._block

    def _inside(self, one: Whole, other: Whole) -> Whole:
        """Where entry (one, other), one >= other, of G is kept."""
        step = other // self._block
        return (step * self._width + one - step * self._block) * self._block + other - step * self._block

    def _spot(self, one: Whole, other: Whole, count: int) -> Whole:
        """The same for all entries of the ordered matrix."""
        inside, row = self._inside(one, other), one - count
        beside = self._band + row * self._padded + other
        corner = self._band + self.border * self._padded + row * self.border + other - count
        return np.where(one < count, inside, np.where(other < count, beside, corner))

    def _corner(self, row: Whole) -> Whole:
        return self._band + self.border * self._padded + row * (self.border + 1)

    # -------------------------------------------------------------- numbers

    def gram(self, entries: Tensor) -> Tensor:
        """The entries of U U^T that may differ from zero, (n, p), from those of U (n, k)."""
        sides = entries.T.contiguous()
        product = sides[self._first].mul_(sides[self._second])
        out = product.new_zeros(len(self._spots), len(entries))
        return out.index_add_(0, self._number, product).T

    def factorise(
        self, gram: Tensor, ridge: Tensor | float = 0.0, active: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Factors (n, numbers) of U U^T + ridge, and whether they exist (n,).

        Args:
            gram: From ``gram``.
            ridge: A number, or (n,).
            active: (n, m) rows that take part; the others must have entries zero, and get a one on the diagonal.
        """
        n = len(gram)
        store = gram.new_zeros(n, self.numbers)
        store[:, self._spots] = gram
        store[:, self._diagonal] += self._added(n, ridge, active)
        bad = self._eliminate(store)
        if self.border:
            beside, corner = self._sides(store)
            solved = self._substitute(store, beside.clone())
            root, info = torch.linalg.cholesky_ex(corner.tril() - solved @ beside.mT)
            bad |= info > 0
            beside[:], corner[:] = solved, torch.where((info > 0)[:, None, None], torch.eye(self.border).to(root), root)
        return store, ~bad

    def _added(self, n: int, ridge: Tensor | float, active: Tensor | None) -> Tensor:
        """What is added to the diagonal, (n, rows): the ridge; one in rows that take no part or fill up a block."""
        add = torch.ones(n, len(self._real), dtype=torch.float64)
        add[:, self._real] = torch.as_tensor(ridge, dtype=torch.float64).reshape(-1, 1).expand(n, self.size)
        if active is not None:
            add[:, self._real] = torch.where(active[:, self._order], add[:, self._real], 1.0)
        return add

    def _eliminate(self, store: Tensor) -> Tensor:
        """The factor of G in the place of G, and where there is none, (n,)."""
        bad = torch.zeros(len(store), dtype=torch.bool, device=store.device)
        band, eye = self._columns(store), torch.eye(self._block, dtype=store.dtype, device=store.device)
        s = self._block
        for k in range(self._blocks):
            below = min(self._below, self._blocks - 1 - k)
            root, info = torch.linalg.cholesky_ex(band[:, k, :s])
            bad |= info > 0
            root = torch.where((info > 0)[:, None, None], eye, root)
            inverse = torch.linalg.solve_triangular(root, eye.expand_as(root), upper=False)
            panel = band[:, k, s : (below + 1) * s] @ inverse.mT
            for j in range(1, below + 1):
                left, right = panel[:, (j - 1) * s :], panel[:, (j - 1) * s : j * s]
                band[:, k + j, : (below - j + 1) * s].baddbmm_(left, right.mT, alpha=-1.0)
            band[:, k, :s] = inverse
            band[:, k, s : (below + 1) * s] = panel
        return bad

    def solve(self, factor: Tensor, right: Tensor) -> Tensor:
        """(U U^T)^-1 right, (n, m); the factor may be one for all, (1, numbers)."""
        count = self.size - self.border
        ordered = right[:, self._order]
        inner = right.new_zeros(len(right), self._padded)
        inner[:, :count] = ordered[:, :count]
        if not self.border:
            return self._substitute(factor, inner[:, None])[:, 0, self._place]
        beside, corner = self._sides(factor)
        last = ordered[:, count:] - (beside @ inner[:, :, None]).squeeze(2)
        last = torch.cholesky_solve(last[:, :, None], corner).squeeze(2)
        inner = self._substitute(factor, inner[:, None])[:, 0] - (last[:, None] @ beside).squeeze(1)
        return torch.cat([inner[:, :count], last], dim=1)[:, self._place]

    def solve_once(
        self, gram: Tensor, right: Tensor, ridge: Tensor | float = 0.0, active: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """``factorise`` and ``solve``, where the factors are not needed again: (n, m), and whether they exist (n,)."""
        factor, good = self.factorise(gram, ridge, active)
        return self.solve(factor, right), good

    def pivots(self, factor: Tensor) -> Tensor:
        """Squares (n, m) of the diagonal of L: the squared distance of a row from those that come before it."""
        inside = self._roots(factor[:, self._diagonal[: self._padded]][:, : self.size - self.border])
        corner = factor[:, self._diagonal[self._padded :]]
        return torch.cat([inside, corner], dim=1).square()[:, self._place]

    def _roots(self, diagonal: Tensor) -> Tensor:
        """The diagonal of L from what is kept there."""
        return diagonal.reciprocal()

    def log_determinant(self, factor: Tensor) -> Tensor:
        """log det U U^T, (n,)."""
        return self.pivots(factor).log().sum(1)

    def _columns(self, store: Tensor) -> Tensor:
        """The block columns, (n, blocks, width, block)."""
        return store[:, : self._band].view(len(store), self._blocks, self._width, self._block)

    def _sides(self, store: Tensor) -> tuple[Tensor, Tensor]:
        """The border, (n, border, padded), and its corner."""
        end = self._band + self.border * self._padded
        beside = store[:, self._band : end].view(len(store), self.border, self._padded)
        return beside, store[:, end:].view(len(store), self.border, self.border)

    def _substitute(self, factor: Tensor, x: Tensor) -> Tensor:
        """G^-1 of the rows of x (n, j, padded), forwards and backwards, in place."""
        s, band = self._block, self._columns(factor)
        steps = [(k, k * s, (k + 1) * s, min(k + 1 + self._below, self._blocks) * s) for k in range(self._blocks)]
        for k, start, stop, end in steps:
            x[:, :, start:stop] = _times(x[:, :, start:stop], band[:, k, :s].mT)
            x[:, :, stop:end] -= _times(x[:, :, start:stop], band[:, k, s : s + end - stop].mT)
        for k, start, stop, end in reversed(steps):
            x[:, :, start:stop] -= _times(x[:, :, stop:end], band[:, k, s : s + end - stop])
            x[:, :, start:stop] = _times(x[:, :, start:stop], band[:, k, :s])
        return x


class LapackBands(Bands):
    """The same, G matrix after matrix by LAPACK's banded Cholesky (through SciPy), for factors that are used few times.

    G is kept as LAPACK wants it: column after column, the entries of the band below the diagonal.
    """

    def _lay_out(self, count: int) -> tuple[int, int]:
        return count, count * (self.bandwidth + 1)

    def _inside(self, one: Whole, other: Whole) -> Whole:
        return other * (self.bandwidth + 1) + one - other

    def _roots(self, diagonal: Tensor) -> Tensor:
        return diagonal

    def _eliminate(self, store: Tensor) -> Tensor:
        from scipy.linalg.lapack import dpbtrf

        bad = torch.zeros(len(store), dtype=torch.bool)
        for chain, band in enumerate(self._in_columns(store)):
            found, info = dpbtrf(band, lower=1, overwrite_ab=1)
            if found is not band:
                band[...] = found
            if info:
                bad[chain] = True
                band[...] = 0.0
                band[0] = 1.0
        return bad

    def _substitute(self, factor: Tensor, x: Tensor) -> Tensor:
        from scipy.linalg.lapack import dpbtrs

        bands = self._in_columns(factor)
        for chain, right in enumerate(x.numpy()):
            found, _ = dpbtrs(bands[chain % len(bands)], right.T, lower=1)
            right[...] = found.T
        return x

    def solve_once(
        self, gram: Tensor, right: Tensor, ridge: Tensor | float = 0.0, active: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """All in one place that is used again by the next chain, and stays in the cache of the processor."""
        if self.border:
            return super().solve_once(gram, right, ridge, active)
        from scipy.linalg.lapack import dpbsv

        entries, add = gram.contiguous().numpy(), self._added(len(gram), ridge, active).numpy()
        spots, diagonal, store = self._spots.numpy(), self._diagonal.numpy(), np.empty(self._band)
        band = store.reshape(self.size, self.bandwidth + 1).T
        ordered = right[:, self._order].contiguous().numpy()
        good = torch.ones(len(gram), dtype=torch.bool)
        for chain, column in enumerate(ordered):
            store.fill(0.0)
            store[spots] = entries[chain]
            store[diagonal] += add[chain]
            _, found, info = dpbsv(band, column, lower=1, overwrite_ab=1, overwrite_b=1)
            column[...], good[chain] = found, info == 0
        return torch.from_numpy(ordered)[:, self._place], good

    def _in_columns(self, store: Tensor) -> list[NDArray[np.float64]]:
        """(bandwidth + 1, rows) of every chain, in the order of Fortran."""
        shape = self.size - self.border, self.bandwidth + 1
        return [one[: self._band].reshape(shape).T for one in store.contiguous().numpy()]


def bands_for_many(rows: Tensor, columns: Tensor, size: int) -> Bands:
    """The way that is faster where every chain has a matrix of its own: LAPACK's if SciPy is installed."""
    kind = LapackBands if importlib.util.find_spec("scipy") is not None else Bands
    return kind(rows, columns, size)


def _times(x: Tensor, matrix: Tensor) -> Tensor:
    """(n, j, a) times (n, a, b), or times (1, a, b) for all."""
    if len(matrix) == len(x):
        return torch.bmm(x, matrix)
    return (x.flatten(0, 1) @ matrix[0]).reshape(*x.shape[:2], matrix.shape[2])


# ------------------------------------------------------------------ patterns


def _pairs(rows: Whole, columns: Whole) -> tuple[Whole, Whole]:
    """All pairs of entries in one column, as numbers of entries; both orders of each, and every entry with itself."""
    by_column = np.argsort(columns, kind="stable")
    ordered = columns[by_column]
    starts = np.searchsorted(ordered, ordered, side="left")
    counts = np.searchsorted(ordered, ordered, side="right") - starts
    if int(counts.sum()) > MOST_PAIRS:
        raise SettingError(
            f"a coordinate takes part in {int(counts.max())} of the sparse equations, so that their products are "
            f"{int(counts.sum()):.1e} numbers; give a dense matrix, or fewer equations"
        )
    first = np.repeat(np.arange(len(ordered)), counts)
    offset = np.arange(len(first)) - np.repeat(np.cumsum(counts) - counts, counts)
    return by_column[first], by_column[np.repeat(starts, counts) + offset]


def _ordering(one: Whole, other: Whole, size: int) -> tuple[Whole, int]:
    """An order of the rows in which those that meet are close, and how many of the last are the border.

    Args:
        one: Rows that meet ...
        other: ... these rows, in both orders.
        size: How many rows there are.
    """
    keys = np.unique(one * size + other)
    one, other = keys // size, keys % size
    degree = np.bincount(one, minlength=size)
    natural = np.arange(size)
    choices = [(natural, 0), (_cuthill_mckee(one, other, natural, size), 0)]
    heavy = degree > HEAVY * max(float(np.median(degree)), 4.0)
    if heavy.any():
        light, last = natural[~heavy], natural[heavy]
        for order in (light, _cuthill_mckee(one, other, light, size)):
            choices.append((np.concatenate([order, last]), len(last)))

    def numbers(choice: tuple[Whole, int]) -> float:
        order, border = choice
        place = np.empty(size, dtype=np.int64)
        place[order] = natural
        gap = np.abs(place[one] - place[other])
        inner = (place[one] < size - border) & (place[other] < size - border)
        return float((size - border) * (SMALLEST_BLOCK + int(gap[inner].max(initial=0))) + border * size)

    return min(choices, key=numbers)


def _cuthill_mckee(one: Whole, other: Whole, nodes: Whole, size: int) -> Whole:
    """Reverse Cuthill-McKee order of some nodes of a graph, started at an end of each of its components."""
    chosen = np.zeros(size, dtype=bool)
    chosen[nodes] = True
    kept = chosen[one] & chosen[other] & (one != other)
    one, other = one[kept], other[kept]
    ends = np.searchsorted(one, np.arange(size + 1))
    degree = np.diff(ends)
    neighbours = [other[ends[i] : ends[i + 1]] for i in range(size)]
    neighbours = [near[np.argsort(degree[near], kind="stable")] for near in neighbours]

    def levels(start: int, seen: NDArray[np.bool_]) -> tuple[list[int], int, int]:
        """Nodes in the order of their discovery, how many levels there are, and a node of the last one."""
        seen = seen.copy()
        seen[start] = True
        found, level = [start], [start]
        depth = 0
        while True:
            after: list[int] = []
            for node in level:
                near = neighbours[node]
                fresh = near[~seen[near]]
                seen[fresh] = True
                after += fresh.tolist()
            if not after:
                return found, depth, min(level, key=lambda node: int(degree[node]))
            found += after
            level, depth = after, depth + 1

    order: list[int] = []
    seen = ~chosen
    for start in nodes[np.argsort(degree[nodes], kind="stable")].tolist():
        if seen[start]:
            continue
        found, depth, end = levels(start, seen)
        for _ in range(4):  # walk to an end of the component, from where its levels are narrow
            farther, reached, last = levels(end, seen)
            better = reached > depth
            found, depth, end = farther, reached, last
            if not better:
                break
        seen[found] = True
        order += found
    return np.array(order[::-1], dtype=np.int64)
