"""The equations of a set as functions of the latent: linear rows as a matrix, the others as a function.

    M x = b          rows of M orthonormal, b common to all chains or one row for each
    h(A x) = 0       smooth functions, whose gradients come from autograd

Rows of a function that have the same gradient at three points are linear and go to M. Nothing here is d x d.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from casal.checks import Event
from casal.constraints import Constraint, Rows, geometry
from casal.errors import SettingError
from casal.linalg import jacobian, log_gram, row_svd
from casal.methods.coupling import decoded_event
from casal.methods.problem import Problem

SAME = 1e-9
"""Gradients that differ by less than this share of their length are equal: a hundred roundings of long sums."""


@dataclass(frozen=True)
class Equations:
    """M x = b and h(x) = 0.

    Attributes:
        matrix: M (m, d) with orthonormal rows, float64.
        level: b, (1 or n, m).
        surface: The set whose equations h are; None if all equations are linear.
        curved: Which of its equations are not linear, (k,).
        columns: Columns of M that are not zero, found once: known values of a large field take few of its coordinates.
    """

    matrix: Tensor
    level: Tensor
    surface: Constraint | None = None
    curved: tuple[int, ...] = ()
    columns: Tensor | None = None

    def __post_init__(self) -> None:
        if self.columns is None:
            object.__setattr__(self, "columns", torch.nonzero(self.matrix.any(0)).flatten())

    @property
    def count(self) -> int:
        """Number of equations."""
        return len(self.matrix) + len(self.curved)

    def take(self, first: int, chains: int) -> Equations:
        """Those of some chains."""
        if len(self.level) == 1 and self.surface is None:
            return self
        some = slice(first, first + chains)
        surface = self.surface if self.surface is None else self.surface.take(some)
        return replace(self, level=self.level if len(self.level) == 1 else self.level[some], surface=surface)

    def functions(self, problem: Problem, x: Tensor) -> Tensor:
        """h(A x), (n, k) float64."""
        assert self.surface is not None
        return self.surface.equations(problem.decode(x))[:, list(self.curved)].to(torch.float64)

    def slopes(self, problem: Problem, x: Tensor) -> tuple[Tensor, Tensor]:
        """dh/dx (n, k, d) and h (n, k)."""
        rows, h = jacobian(lambda x: self.functions(problem, x), x)
        return rows.to(torch.float64), h

    def log_lengths(self, problem: Problem, x: Tensor) -> Tensor:
        """Sum of log |dh/dx| over the curved equations, (n,)."""
        return torch.linalg.vector_norm(self.slopes(problem, x)[0], dim=2).log().sum(1)

    def log_volume(self, problem: Problem, x: Tensor) -> Tensor:
        """log det(h' h'^T)^(1/2) of all equations of the surface, derivatives in decoded space, (n,)."""
        assert self.surface is not None
        return 0.5 * log_gram(jacobian(self.surface.equations, problem.decode(x))[0].to(torch.float64))

    def gap(self, x: Tensor) -> Tensor:
        """b - M x, (n, m)."""
        return self.level - self.times(x.flatten(1).to(torch.float64))

    def times(self, x: Tensor) -> Tensor:
        """M x for points (n, d) float64, (n, m)."""
        return x[:, self.columns] @ self.matrix[:, self.columns].T

    def back(self, u: Tensor) -> Tensor:
        """M^T u for u (n, m), (n, d)."""
        assert self.columns is not None
        found = u.new_zeros(len(u), self.matrix.shape[1])
        return found.index_copy_(1, self.columns, u @ self.matrix[:, self.columns])

    def bent(self, problem: Problem, x: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of the curved equations, each of length one, (n, k, d), and -h / |grad h|, (n, k)."""
        rows, h = self.slopes(problem, x)
        size = torch.linalg.vector_norm(rows, dim=2).clamp_min(1e-300)
        return rows / size[:, :, None], -h / size

    def linear(self, problem: Problem, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rows (1 or n, m + k, d), each of length one, and what x misses along them, (n, m + k): gap = -h / |grad h|.

        x + v satisfies the linearised equations if rows v = gap.
        """
        if not self.curved:
            return self.matrix[None], self.gap(x)
        rows, more = self.bent(problem, x)
        if len(self.matrix):
            rows = torch.cat([self.matrix.expand(len(x), -1, -1), rows], 1)
        return rows, torch.cat([self.gap(x), more], 1)


def equations_of(problem: Problem) -> Equations:
    """The equations of the set of a problem, made once.

    Raises:
        SettingError: The set is a union, or has equations without gradients.
    """
    name = "identity" if problem.identity else id(problem.decoder)
    return problem.constraint._once(("equations", problem.latent, problem.like.device, name), lambda: _made(problem))


def _made(problem: Problem) -> Equations:
    event, size = decoded_event(problem), torch.Size(problem.latent).numel()
    like = torch.zeros(1, size, dtype=torch.float64, device=problem.like.device)
    none = Equations(like[:0], like[:, :0])
    if problem.constraint.in_pieces:
        raise SettingError("a union has no common equations; use SplitGibbs, which needs a projection alone")
    surface = geometry.parts(problem.constraint, event).surface
    if surface is None:
        return none
    rows = surface.linear(event)
    if rows is not None and problem.decoder.linear:
        return _flat(problem, *_equal_rows(rows, like), event)
    if not surface.smooth:
        raise SettingError(f"{surface!r} has no equations with gradients; use SplitGibbs, which needs a projection")
    return _sorted(problem, surface, none)


def _equal_rows(rows: Rows, like: Tensor) -> tuple[Tensor, Tensor]:
    """G z = g as a dense matrix (m, k) and levels (1 or n, m), fixed coordinates as rows of a unit matrix."""
    matrix = rows.matrix if isinstance(rows.matrix, Tensor) else rows.matrix.to_dense()
    fixed = torch.nonzero(torch.isfinite(rows.below).all(0) & (rows.below == rows.above).all(0)).flatten()
    units = matrix.new_zeros(len(fixed), matrix.shape[1])
    units[torch.arange(len(fixed)), fixed] = 1.0
    level = [rows.low, rows.below[:, fixed]]
    chains = max(map(len, level))
    return torch.cat([matrix, units]).to(like), torch.cat([v.expand(chains, -1) for v in level], 1).to(like)


def _flat(problem: Problem, matrix: Tensor, level: Tensor, event: Event) -> Equations:
    """G A x = g with orthonormal rows."""
    if not problem.identity:
        origin = problem.like.new_zeros((len(matrix), *problem.latent))
        matrix = problem.decoder.vjp(origin)(matrix.to(origin).reshape(len(matrix), *event)).flatten(1).to(level)
    return _orthonormal(matrix, level)


def _orthonormal(matrix: Tensor, level: Tensor) -> Equations:
    """Rows that say the same as M x = b, whatever units its rows are in."""
    size = torch.linalg.vector_norm(matrix, dim=1).clamp_min(1e-300)
    u, s, vh = row_svd(matrix / size[:, None])
    kept = s > 1e-12 * s.amax()
    return Equations(vh[kept].contiguous(), ((level / size) @ u[:, kept]) / s[kept])


def _sorted(problem: Problem, surface: Constraint, none: Equations) -> Equations:
    """Linear rows and others apart, by their gradients at three points."""
    stream, shape = torch.Generator().manual_seed(0), (surface.chains or 1, *problem.latent)
    points = [torch.randn(shape, generator=stream).to(problem.like) for _ in range(3)]
    count = surface.equations(problem.decode(points[0])).shape[1]
    every = Equations(none.matrix, none.level, surface, tuple(range(count)))
    first, *others = (every.slopes(problem, x)[0] for x in points)
    size = first.norm(dim=2) + 1e-300
    changes = [(other - first).norm(dim=2) / size for other in (*others, first[:1])]
    straight = (torch.stack(changes) < max(SAME, 10 * torch.finfo(problem.like.dtype).eps)).all(0).all(0)
    flat, bent = (torch.nonzero(v).flatten().tolist() for v in (straight, ~straight))
    if not flat:
        return every
    level = points[0].flatten(1).to(torch.float64) @ first[0, flat].T - every.functions(problem, points[0])[:, flat]
    return replace(_orthonormal(first[0, flat], level), surface=surface if bent else None, curved=tuple(bent))
