"""What is looked at: the functions f(x0) of the clean sample by which a set is written, with slopes and bends.

    f_i(x0) = 0                for the equations, which come first
    low_i <= f_i(x0) <= high_i for the inequalities

Decoders are part of f: f(x0) = h(A x0). Linear rows stay a matrix. A norm is the row (|A x0 - c|^2 - R^2) / 2.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from casal.checks import Event
from casal.constraints import Constraint, Rows, SphereInFlat, geometry
from casal.errors import SettingError
from casal.linalg import jacobian, log_gram
from casal.methods.coupling import decoded_event
from casal.methods.problem import Problem

MOST_FEATURES = 128
"""Equations and inequalities up to which a set is looked at row by row."""


class Block(ABC):
    """Some rows of f.

    Attributes:
        count: How many.
        curved: Whether they bend.
    """

    count: int
    curved: bool

    @abstractmethod
    def values(self, x: Tensor) -> Tensor:
        """f(x), (n, count) float64, at points (n, *latent)."""

    @abstractmethod
    def slopes(self, x: Tensor) -> Tensor:
        """df/dx, (n, count, d) float64."""

    def bend(self, x: Tensor, v: Tensor) -> Tensor:
        """f''(x) v, (n, count, d) float64, for directions v (n, d)."""
        return v.new_zeros(len(v), self.count, v.shape[1])

    def log_area(self, x: Tensor) -> Tensor | None:
        """log of the area sqrt(det N N^T) that the slopes N in decoded space span; None where it is constant."""
        return None


@dataclass(frozen=True)
class FlatBlock(Block):
    """f(x) = M x - b.

    Attributes:
        matrix: M (m, d), float64.
        offset: b (m,), or one row per chain (n, m).
    """

    matrix: Tensor
    offset: Tensor
    curved = False

    @property
    def count(self) -> int:  # type: ignore[override]
        return len(self.matrix)

    def values(self, x: Tensor) -> Tensor:
        return x.flatten(1).to(torch.float64) @ self.matrix.T - self.offset

    def slopes(self, x: Tensor) -> Tensor:
        return self.matrix.expand(len(x), -1, -1)


@dataclass(frozen=True)
class CurvedBlock(Block):
    """Any differentiable f.

    Attributes:
        function: f, (n, *latent) -> (n, count).
        count: Number of rows.
        outer: The function of decoded space h, f(x) = h(A x), where the area of its slopes varies; else None.
        decode: A.
    """

    function: Callable[[Tensor], Tensor]
    count: int
    outer: Callable[[Tensor], Tensor] | None = None
    decode: Callable[[Tensor], Tensor] | None = None
    curved = True

    def values(self, x: Tensor) -> Tensor:
        return self.function(x).to(torch.float64)

    def slopes(self, x: Tensor) -> Tensor:
        return jacobian(self.function, x)[0].to(torch.float64)

    def bend(self, x: Tensor, v: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            f = self.function(leaf)
            rows = list[Tensor]()
            for i in range(self.count):
                (slope,) = torch.autograd.grad(f[:, i].sum(), leaf, create_graph=True)
                along = (slope.flatten(1) * v.to(slope.dtype)).sum()
                found = (
                    torch.autograd.grad(along, leaf, retain_graph=True, allow_unused=True)[0]
                    if along.requires_grad
                    else None
                )
                rows.append(torch.zeros_like(v) if found is None else found.flatten(1).to(torch.float64))
        return torch.stack(rows, 1)

    def log_area(self, x: Tensor) -> Tensor | None:
        if self.outer is None or self.decode is None:
            return None
        return log_gram(jacobian(self.outer, self.decode(x))[0].to(torch.float64)) / 2


@dataclass(frozen=True)
class Features:
    """All rows of f: the equations, then the inequalities.

    Attributes:
        blocks: The rows.
        equal: How many of them are equations.
        low: Lower bounds of the others, (1 or n, count - equal).
        high: Upper bounds.
        norm: Number of the row that is a norm; None if there is none.
        square: R^2 of that norm, (1 or n,).
        term: The soft term of the target, (n, *latent) -> (n,).
        most: Directions in which it is looked at.
    """

    blocks: Sequence[Block]
    equal: int
    low: Tensor
    high: Tensor
    norm: int | None = None
    square: Tensor | None = None
    term: Callable[[Tensor], Tensor] | None = None
    most: int = 0

    @property
    def count(self) -> int:
        """Number of rows."""
        return sum(block.count for block in self.blocks)

    @property
    def curved(self) -> bool:
        """Whether a row bends."""
        return any(block.curved for block in self.blocks)

    @property
    def rank(self) -> int:
        """Rows of the soft term, which come after the others."""
        return 0 if self.term is None else self.most

    def values(self, x: Tensor) -> Tensor:
        """f(x), (n, m)."""
        return _beside([block.values(x) for block in self.blocks], x.new_zeros(len(x), 0, dtype=torch.float64))

    def slopes(self, x: Tensor) -> Tensor:
        """df/dx, (n, m, d)."""
        nothing = x.new_zeros(len(x), 0, x[0].numel(), dtype=torch.float64)
        return _beside([block.slopes(x) for block in self.blocks], nothing)

    def bend(self, x: Tensor, v: Tensor) -> Tensor:
        """f''(x) v, (n, m, d)."""
        return torch.cat([block.bend(x, v) for block in self.blocks], 1)

    def log_area(self, x: Tensor) -> Tensor | None:
        """log of the area of the slopes in decoded space, where it varies."""
        found = [block.log_area(x) for block in self.blocks]
        known = [area for area in found if area is not None]
        return torch.stack(known).sum(0) if known else None


def _beside(parts: Sequence[Tensor], nothing: Tensor) -> Tensor:
    return torch.cat(list(parts), 1) if parts else nothing


def features_of(problem: Problem, most: int) -> Features:
    """The functions by which the set of a problem is written; SettingError where there are none, or too many.

    Args:
        problem: Model, set and decoder.
        most: Directions in which a soft term is looked at.
    """
    event = decoded_event(problem)
    surface, solid = geometry.parts(problem.constraint, event)
    blocks, norm, square = _equations(problem, surface, event)
    equal = sum(block.count for block in blocks)
    sides, low, high = _inequalities(problem, solid, event)
    terms = problem.target.log_weight
    found = Features([*blocks, *sides], equal, low, high, norm, square, terms, most)
    if not 1 <= found.count + found.rank <= MOST_FEATURES:
        way_out = (
            "use SplitGibbs, or BoundedHMC for bounds on all coordinates"
            if found.term is None
            else "no other method uses a soft term (casal.tilted): use a smaller set, or leave the term out"
        )
        raise SettingError(
            f"LookAhead evaluates every equation and inequality, 1 to {MOST_FEATURES} of them, and "
            f"{problem.constraint!r} has {found.count}; {way_out}"
        )
    return found


def _equations(
    problem: Problem, surface: Constraint | None, event: Event
) -> tuple[list[Block], int | None, Tensor | None]:
    if surface is None:
        return [], None, None
    found = geometry.sphere_in_flat(surface, event)
    if found is None:
        return [_smooth(problem, surface, surface.equations, area=True)], None, None
    blocks = list[Block]()
    if len(found.matrix):
        blocks.append(_flat(problem, *_independent(found.matrix, found.level)))
    if found.radius is None:
        return blocks, None, None
    square = found.radius.square().to(problem.like.device)
    blocks.append(CurvedBlock(_half_norm(problem, found, square), 1))
    return blocks, sum(block.count for block in blocks) - 1, square


def _half_norm(problem: Problem, found: SphereInFlat, square: Tensor) -> Callable[[Tensor], Tensor]:
    """(|A x - c|^2 - R^2) / 2."""
    center = found.center

    def half(x: Tensor) -> Tensor:
        z = problem.decode(x).flatten(1).to(torch.float64)
        if center is not None:
            z = z - center.to(z)
        return (z.square().sum(1) - square.to(z))[:, None] / 2

    return half


def _inequalities(problem: Problem, solid: Constraint | None, event: Event) -> tuple[list[Block], Tensor, Tensor]:
    none = torch.zeros(1, 0, dtype=torch.float64, device=problem.like.device)
    if solid is None:
        return [], none, none
    rows: Rows | None = solid.linear(event) if solid.chains is None else None
    if rows is None:
        block = _smooth(problem, solid, solid.inequalities)
        high = none.new_zeros(1, block.count)
        return [block], torch.full_like(high, -torch.inf), high
    if rows.rows_and_bounds > MOST_FEATURES:  # refused by the caller, which says what to take
        low = none.new_zeros(1, rows.rows_and_bounds)
        return [FlatBlock(low.T, low[0])], low, low
    matrix, low, high = rows.written_out()
    return [_flat(problem, matrix, none.new_zeros(1))], low.to(none), high.to(none)


def _smooth(
    problem: Problem, part: Constraint, function: Callable[[Tensor], Tensor], *, area: bool = False
) -> CurvedBlock:
    """Rows that are known as a function of decoded points alone."""
    if not part.smooth:
        raise SettingError(
            f"{part!r} has no equations or inequalities with gradients, which LookAhead needs; use SplitGibbs"
        )
    few = slice(0, 1)
    one = torch.zeros((1, *problem.latent), dtype=problem.like.dtype, device=problem.like.device)
    alone = part.take(few)
    count = geometry.residual(alone, problem.decode(one)).shape[1]
    equations = alone.equations(problem.decode(one)).shape[1]
    count = equations if area else count - equations
    return CurvedBlock(
        lambda x: function(problem.decode(x)), count, function if area else None, problem.decode if area else None
    )


def _flat(problem: Problem, matrix: Tensor, offset: Tensor) -> Block:
    """The rows M A x - b; a matrix again where A is linear."""
    matrix, offset = (v.to(device=problem.like.device, dtype=torch.float64) for v in (matrix, offset))
    if problem.identity:
        return FlatBlock(matrix, offset)
    if problem.decoder.linear:
        origin = problem.like.new_zeros((len(matrix), *problem.latent))
        pulled = problem.decoder.vjp(origin)(matrix.to(origin).reshape(len(matrix), *decoded_event(problem)))
        at_zero = problem.decode(origin[:1]).flatten(1).to(torch.float64) @ matrix.T  # zero unless A is affine
        return FlatBlock(pulled.flatten(1).to(torch.float64), offset - at_zero)
    return CurvedBlock(
        lambda x: problem.decode(x).flatten(1).to(torch.float64) @ matrix.T - offset.to(x.device), len(matrix)
    )


def _independent(matrix: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    """Orthonormal rows, and their level, that say the same as M z = b, whatever units its rows are in."""
    size = torch.linalg.vector_norm(matrix, dim=1)
    unit = torch.where(size > 0.0, size, 1.0)
    matrix, level = matrix / unit[:, None], level / unit.to(level)
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    kept = s > 1e-12 * s.max()
    return vh[kept], (level @ u[:, kept]) / s[kept]
