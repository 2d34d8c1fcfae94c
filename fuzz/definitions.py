"""What it means to lie in a set, written out row by row in long double and without casal.

Every row has an excess >= 0, zero where it holds; a unit, which is the sum of the absolute values of its terms, or the
length of the set where it has one (a radius, the width of a box); and the terms, whose rounding no point can avoid. A
point is in the set if no row has

    excess > tolerance * unit + roundings * terms.

A definition gets the coordinates ``y`` (n, d) and their ``size`` (n, d), the sum of the absolute values of the terms
each coordinate was computed from: |z| itself, |z| + |t| for z - t, |A| |x| for A x. Parameters broadcast over n, so
a parameter for each chain has the chains first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.longdouble]

EPSILON = 2.0**-52
"""Rounding of one operation in float64, relative."""

TINY = np.longdouble("1e-4000")
"""In place of zero where it is divided by."""


def wide(values: Any) -> Array:
    return np.asarray(values, dtype=np.longdouble)


class Row(NamedTuple):
    name: str
    excess: Array
    unit: Array
    terms: Array


class Grant(NamedTuple):
    """How much a row may be off."""

    tolerance: float
    roundings: float


class Worst(NamedTuple):
    """The row that is off most, point by point; ``score`` <= 1 is in the set."""

    score: Array
    name: npt.NDArray[np.str_]
    excess: Array
    unit: Array


class Definition(ABC):
    @abstractmethod
    def judge(self, y: Array, size: Array, grant: Grant) -> Worst: ...


def judge(definition: Definition, z: npt.NDArray[Any], grant: Grant) -> Worst:
    """The worst row of each point z (n, d)."""
    with np.errstate(all="ignore"):
        y = wide(z).reshape(len(z), -1)
        return definition.judge(y, np.abs(y), grant)


def _pick(candidates: Sequence[Worst], chosen: npt.NDArray[np.intp]) -> Worst:
    place = (chosen, np.arange(len(chosen)))
    return Worst(*(np.stack(column)[place] for column in zip(*candidates, strict=True)))


@dataclass(frozen=True)
class Rows(Definition):
    """A set of rows, all of which must hold."""

    kind: str
    rows: Callable[[Array, Array], Iterator[Row]]

    def judge(self, y: Array, size: Array, grant: Grant) -> Worst:
        zero = np.zeros(len(y), dtype=np.longdouble)
        found = [Worst(zero, np.full(len(y), f"{self.kind}: no row", dtype="<U60"), zero, zero)]
        for name, excess, unit, terms in self.rows(y, size):
            allowed = grant.tolerance * unit + grant.roundings * terms
            score = np.where(excess > 0, excess / np.where(allowed > 0, allowed, TINY), 0)
            label = np.full(len(y), f"{self.kind}: {name}", dtype="<U60")
            found.append(Worst(score + zero, label, excess + zero, unit + zero))
        return _pick(found, np.stack([one.score for one in found]).argmax(0))


@dataclass(frozen=True)
class All(Definition):
    members: Sequence[Definition]

    def judge(self, y: Array, size: Array, grant: Grant) -> Worst:
        found = [member.judge(y, size, grant) for member in self.members]
        return _pick(found, np.stack([one.score for one in found]).argmax(0))


@dataclass(frozen=True)
class Either(Definition):
    members: Sequence[Definition]

    def judge(self, y: Array, size: Array, grant: Grant) -> Worst:
        found = [member.judge(y, size, grant) for member in self.members]
        return _pick(found, np.stack([one.score for one in found]).argmin(0))


@dataclass(frozen=True)
class Blocks(Definition):
    """Consecutive blocks of the coordinates; a member that is None leaves its block free."""

    members: Sequence[Definition | None]
    sizes: Sequence[int]

    def judge(self, y: Array, size: Array, grant: Grant) -> Worst:
        cuts = np.cumsum(self.sizes)[:-1]
        parts = zip(self.members, np.split(y, cuts, axis=1), np.split(size, cuts, axis=1), strict=True)
        found = [member.judge(part, sizes, grant) for member, part, sizes in parts if member is not None]
        found = found or [Rows("free", lambda y, size: iter(())).judge(y, size, grant)]
        return _pick(found, np.stack([one.score for one in found]).argmax(0))


@dataclass(frozen=True)
class Moved(Definition):
    """z - by is in the set."""

    inner: Definition
    by: Array

    def judge(self, y: Array, size: Array, grant: Grant) -> Worst:
        return self.inner.judge(y - self.by, size + np.abs(self.by), grant)


@dataclass(frozen=True)
class Seen(Definition):
    """A x is in the set."""

    inner: Definition
    A: Array

    def judge(self, y: Array, size: Array, grant: Grant) -> Worst:
        return self.inner.judge(y @ self.A.T, size @ np.abs(self.A).T, grant)


# ------------------------------------------------------------------ rows of single sets


def _over(value: Array) -> Array:
    return np.maximum(value, np.longdouble(0))


def _length(v: Array) -> Array:
    """Euclidean length of rows; long double has the range for the squares."""
    return np.sqrt((v * v).sum(1))


def _linear(A: Array, b: Array, y: Array, size: Array) -> Iterator[tuple[int, Array, Array]]:
    """a_i . z - b_i and its terms, one row after the other; b is (m,) or (n, m)."""
    value, terms = y @ A.T - b, size @ np.abs(A).T + np.abs(b)
    for i in range(len(A)):
        yield i, value[:, i], terms[:, i]


def equations(kind: str, A: Array, b: Array) -> Definition:
    """A z = b."""

    def rows(y: Array, size: Array) -> Iterator[Row]:
        for i, value, terms in _linear(A, b, y, size):
            yield Row(f"equation {i}", np.abs(value), terms, terms)

    return Rows(kind, rows)


def inequalities(kind: str, G: Array, h: Array) -> Definition:
    """G z <= h."""

    def rows(y: Array, size: Array) -> Iterator[Row]:
        for i, value, terms in _linear(G, h, y, size):
            yield Row(f"inequality {i}", _over(value), terms, terms)

    return Rows(kind, rows)


def bounds(kind: str, low: Array, high: Array) -> Definition:
    """low <= z <= high, (d,) or (n, d); the unit is the width of the side, where it has one."""

    def rows(y: Array, size: Array) -> Iterator[Row]:
        width = high - low
        for name, side, excess in (("low", low, low - y), ("high", high, y - high)):
            finite = np.isfinite(side)
            terms = np.where(finite, size + np.abs(np.where(finite, side, 0)), 1)
            unit = np.where(np.isfinite(width) & (width > 0), width, terms)
            off = np.where(finite, _over(excess), 0)
            for i in range(y.shape[1]):
                yield Row(f"{name} bound of coordinate {i}", off[:, i], unit[:, i], terms[:, i])

    return Rows(kind, rows)


def shell(kind: str, radius: Array, center: Array, *, solid: bool, relative_to_terms: bool = False) -> Definition:
    """|z - c| = R, or <= R; the unit is R, or the terms R + |z| + |c|."""

    def rows(y: Array, size: Array) -> Iterator[Row]:
        gap = _length(y - center) - radius
        terms = radius + _length(size) + _length(center.reshape(-1, y.shape[1]))
        unit = terms if relative_to_terms else np.where(radius > 0, radius, terms)
        yield Row("radius", _over(gap) if solid else np.abs(gap), unit, terms)

    return Rows(kind, rows)


def gauge(kind: str, Q: Array, center: Array, *, solid: bool, relative_to_terms: bool = False) -> Definition:
    """(z - c)^T Q (z - c) <= 1, or = 1; the unit is 1, or the terms of its derivative."""

    def rows(y: Array, size: Array) -> Iterator[Row]:
        offset, most = y - center, size + np.abs(center)
        square = np.einsum("ni,ij,nj->n", offset, Q, offset)
        terms = _square_terms(np.abs(offset), np.abs(Q), most) + 1
        unit = terms if relative_to_terms else np.ones_like(terms)
        yield Row("gauge", _over(square - 1) if solid else np.abs(square - 1), unit, terms)

    return Rows(kind, rows)


def _square_terms(v: Array, Q: Array, most: Array) -> Array:
    """Terms of v^T Q v if v has terms ``most``: 2 v^T Q most + v^T Q v, and most^T Q most to second order."""
    first = 2 * np.einsum("ni,ij,nj->n", v, Q, most) + np.einsum("ni,ij,nj->n", v, Q, v)
    terms: Array = first + 64 * EPSILON * np.einsum("ni,ij,nj->n", most, Q, most)
    return terms


def simplex(total: Array) -> Definition:
    """z >= 0, sum z = M; the unit is M."""

    def rows(y: Array, size: Array) -> Iterator[Row]:
        terms = size.sum(1) + total
        yield Row("sum", np.abs(y.sum(1) - total), np.where(total > 0, total, terms), terms)
        for i in range(y.shape[1]):
            yield Row(f"sign of coordinate {i}", _over(-y[:, i]), np.where(total > 0, total, size[:, i]), size[:, i])

    return Rows("Simplex", rows)


def l1_ball(radius: Array) -> Definition:
    """sum |z| <= R."""

    def rows(y: Array, size: Array) -> Iterator[Row]:
        terms = size.sum(1) + radius
        yield Row("sum", _over(np.abs(y).sum(1) - radius), np.where(radius > 0, radius, terms), terms)

    return Rows("L1Ball", rows)


def monotone(sign: int) -> Definition:
    """z_i <= z_(i+1), or >=."""

    def rows(y: Array, size: Array) -> Iterator[Row]:
        for i in range(y.shape[1] - 1):
            terms = size[:, i] + size[:, i + 1]
            yield Row(f"step {i}", _over(sign * (y[:, i] - y[:, i + 1])), terms, terms)

    return Rows("Monotone", rows)


def second_order_cone() -> Definition:
    """|v| <= t."""

    def rows(y: Array, size: Array) -> Iterator[Row]:
        terms = _length(size[:, 1:]) + size[:, 0]
        yield Row("cone", _over(_length(y[:, 1:]) - y[:, 0]), terms, terms)

    return Rows("SecondOrderCone", rows)


def positive_semidefinite(k: int) -> Definition:
    """Z = Z^T, u^T Z u >= 0 for all u, each u a row; the worst of them is found in float64, its value is computed here.

    Rows u are compared in units of their terms, so the worst is the eigenvector of D^-1 Z D^-1, D^2 the diagonal.
    """

    def rows(y: Array, size: Array) -> Iterator[Row]:
        Z, most = y.reshape(-1, k, k), size.reshape(-1, k, k)
        for i, j in zip(*np.triu_indices(k, 1), strict=True):
            terms = most[:, i, j] + most[:, j, i]
            yield Row(f"entries {i}, {j}", np.abs(Z[:, i, j] - Z[:, j, i]), terms, terms)
        S, most = wide(Z + Z.transpose(0, 2, 1)) / 2, wide(most + most.transpose(0, 2, 1)) / 2
        root = np.sqrt(np.maximum(np.abs(np.einsum("nii->ni", S)), EPSILON * most.max(2)) + TINY)
        plain = S / root[:, :, None] / root[:, None, :]
        plain = wide(plain / np.maximum(np.abs(plain).max((1, 2), keepdims=True), TINY))
        worst = wide(np.linalg.eigh(plain.astype(np.float64))[1][:, :, 0]) / root
        for name, u in (("eigenvalue", worst), *((f"entry {i}, {i}", wide(np.eye(k)[[i] * len(y)])) for i in range(k))):
            value, terms = (np.einsum("ni,nij,nj->n", v, M, v) for v, M in ((u, S), (np.abs(u), most)))
            yield Row(name, _over(-value), terms, terms)

    return Rows("PSDCone", rows)


def mass_energy(kind: str, mass: Array | None, energy: Array | None) -> Definition:
    """sum z = M, |z|^2 = E; the units are sqrt(N E) + |M| and E."""

    def rows(y: Array, size: Array) -> Iterator[Row]:
        if mass is not None:
            terms = size.sum(1) + np.abs(mass)
            unit = terms if energy is None else np.sqrt(y.shape[1] * energy) + np.abs(mass)
            yield Row("mass", np.abs(y.sum(1) - mass), np.where(unit > 0, unit, terms), terms)
        if energy is not None:
            terms = _square_terms(np.abs(y), np.eye(y.shape[1], dtype=np.longdouble), size) + energy
            yield Row("energy", np.abs((y * y).sum(1) - energy), np.where(energy > 0, energy, terms), terms)

    return Rows(kind, rows)


def obstacle(
    name: str, start: int, stop: int, depth: Callable[[Array], Array], length: float, reach: float, dim: int
) -> Definition:
    """No point at the steps start ... stop - 1 is inside; ``depth`` is positive there, ``length`` is its size."""

    def rows(y: Array, size: Array) -> Iterator[Row]:
        for s in range(start, stop):
            here = slice(s * dim, (s + 1) * dim)
            terms = _length(size[:, here]) + reach
            unit = np.full(len(y), length) if np.isfinite(length) else terms
            yield Row(f"{name} at step {s}", _over(depth(y[:, here])), unit, terms)

    return Rows("Obstacles", rows)


def box_obstacle(start: int, stop: int, low: Array, high: Array) -> Definition:
    """At each step, one coordinate is beyond one of its bounds; the unit is half the width of that side."""

    def beyond(column: int, sign: int, edge: np.longdouble, half: np.longdouble) -> Definition:
        def rows(y: Array, size: Array) -> Iterator[Row]:
            excess, terms = _over(sign * (edge - y[:, column])), size[:, column] + np.abs(edge)
            yield Row(f"face {edge:.3g} of coordinate {column}", excess, np.full(len(y), half), terms)

        return Rows("Obstacles", rows)

    dim, half = len(low), (high - low) / 2
    return All(
        [
            Either(
                [
                    beyond(s * dim + i, sign, edge[i], half[i])
                    for i in range(dim)
                    for sign, edge in ((1, high), (-1, low))
                ]
            )
            for s in range(start, stop)
        ]
    )


def exponential(matrix: Array) -> Array:
    """exp of a square matrix by its series, after halving until it is small, and squaring back."""
    halvings = max(0, int(np.ceil(np.log2(float(np.abs(matrix).sum(1).max()) + 1e-300))) + 8)
    small = matrix / np.longdouble(2) ** halvings
    term: Array = np.eye(len(matrix), dtype=np.longdouble)
    total: Array = term
    for k in range(1, 16):
        term = wide(term @ small / k)
        total = total + term
    for _ in range(halvings):
        total = total @ total
    return total


def hold(A: Array, B: Array, dt: float) -> tuple[Array, Array]:
    """Ad and Bd, the zero-order hold of y' = A y + B u."""
    p, q = B.shape
    joint = np.zeros((p + q, p + q), dtype=np.longdouble)
    joint[:p, :p], joint[:p, p:] = A, B
    joint = exponential(joint * np.longdouble(dt))
    return joint[:p, :p], joint[:p, p:]


def dynamics(
    A: Array,
    B: Array,
    steps: int,
    dt: float,
    u_max: Array,
    y0: Array,
    scale_y: Array,
    scale_u: Array,
    outputs: Sequence[int],
) -> Definition:
    """y_s = Ad y_(s-1) + Bd u_s, |u_s| <= u_max, events (steps, outputs + inputs) in units of the scales."""
    o = len(outputs)
    (Ad, Bd), (Ad_terms, Bd_terms) = hold(A, B, dt), hold(np.abs(A), np.abs(B), dt)

    def rows(y: Array, size: Array) -> Iterator[Row]:
        z, most = (part.reshape(len(y), steps, -1) for part in (y, size))
        state, terms = y0 + np.zeros((len(y), 1), dtype=np.longdouble), np.abs(y0) + np.zeros((len(y), 1))
        for s in range(steps):
            u, u_terms = z[:, s, o:] * scale_u, most[:, s, o:] * scale_u
            state, terms = state @ Ad.T + u @ Bd.T, terms @ Ad_terms.T + u_terms @ Bd_terms.T
            for k, channel in enumerate(outputs):
                own = z[:, s, k] * scale_y[k]
                every = most[:, s, k] * scale_y[k] + terms[:, channel]
                yield Row(f"output {k} at step {s}", np.abs(own - state[:, channel]), every, every)
            for k in range(u.shape[1]):
                if np.isfinite(u_max[k]):
                    every = u_terms[:, k] + u_max[k]
                    unit = u_max[k] + 0 * every if u_max[k] > 0 else every
                    yield Row(f"input {k} at step {s}", _over(np.abs(u[:, k]) - u_max[k]), unit, every)

    return Rows("LinearDynamics", rows)
