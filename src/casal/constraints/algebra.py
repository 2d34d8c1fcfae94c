"""Sets made of sets: unions, products, shifts, scalings, and sets seen through a matrix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from casal.checks import positive
from casal.constraints.base import Budget, Constraint, Projection, Rows, Way, at_once, total_count
from casal.constraints.chains import bound, common_chains, raw, spread
from casal.constraints.flat import Affine, HalfSpace, Polytope
from casal.constraints.implicit import Implicit
from casal.constraints.intersection import Intersection, take_apart
from casal.constraints.solvers.splitting import behind_matrix
from casal.constraints.vectors import flat, gaussian, norm, tangent
from casal.errors import SettingError, ShapeError
from casal.typing import Event

ORTHOGONAL = 1e-12
"""How far A A^T may be from a multiple of I, relative to it."""


class Union(Constraint):
    """C = union of the members; P(z) is the nearest of the members' projections.

    The violation is the smallest of the members'.

    Args:
        members: Two or more sets.
    """

    def __init__(self, *members: Constraint) -> None:
        self.members = take_apart(Union, members)
        self.chains = common_chains(**{f"member {i}": member for i, member in enumerate(self.members)})
        self.exact = all(member.exact for member in self.members)
        self.solid = any(member.solid for member in self.members)

    def __repr__(self) -> str:
        return f"({' | '.join(map(repr, self.members))})"

    def explain(self) -> str:
        return f"nearest of {len(self.members)} members: " + "; ".join(member.explain() for member in self.members)

    def validate(self, event: Event) -> None:
        for member in self.members:
            member.validate(event)

    def _solve(self, z: Tensor, budget: Budget, warm: Tensor | None) -> Projection:
        tried = [member._solve(z, budget, warm) for member in self.members]
        distance = torch.stack([norm(flat(found.point) - flat(z)) for found in tried])
        # A member whose projection did not converge is taken only if none did.
        distance = torch.where(torch.stack([found.converged for found in tried]), distance, distance + 1e300)
        nearest = distance.argmin(0)
        chain = torch.arange(len(z), device=z.device)
        return Projection(*(torch.stack(parts)[nearest, chain] for parts in zip(*tried, strict=True)))

    def _violation(self, z: Tensor) -> Tensor:
        return torch.stack([member._violation(z) for member in self.members]).amin(0)


class Product(Constraint):
    """C = {z : block k of z lies in member k}, the event flattened and cut into consecutive blocks.

    Projection and certificate go block by block, so they are exact where the members' are. The violation is the
    largest of the blocks'.

    Args:
        members: One set a block; None leaves a block free.
        sizes: Coordinates in each block; they must fill the event.
    """

    def __init__(self, *members: Constraint | None, sizes: Sequence[int]) -> None:
        self.members, self.sizes = members, tuple(int(size) for size in sizes)
        if len(self.members) != len(self.sizes) or not members or min(self.sizes) < 1:
            raise ShapeError(f"{len(members)} members need as many sizes >= 1, got {self.sizes}")
        given = [member for member in members if member is not None]
        self.exact = all(member.exact for member in given)
        self.convex = all(member.convex for member in given)
        self.solid = all(member.solid for member in given)
        self.smooth = all(member.smooth for member in given)
        self.samples_near = all(member.samples_near for member in given)
        self.chains = common_chains(**{f"block {i}": member for i, member in enumerate(members)})

    def __repr__(self) -> str:
        return f"Product({', '.join(map(repr, self.members))}, sizes={self.sizes})"

    def explain(self) -> str:
        inner = "; ".join("free" if member is None else member.explain() for member in self.members)
        return f"block by block {self.sizes}: {inner}"

    def validate(self, event: Event) -> None:
        size = torch.Size(event).numel()
        if size != sum(self.sizes):
            raise ShapeError(f"blocks {self.sizes} hold {sum(self.sizes)} coordinates, events {event} have {size}")
        for member, block in zip(self.members, self.sizes, strict=True):
            if member is not None:
                member.validate((block,))

    def _blocks(self, z: Tensor) -> Iterator[tuple[Constraint, Tensor]]:
        """Members and their blocks, without those that are free."""
        for member, block in zip(self.members, flat(z).split(self.sizes, dim=1), strict=True):
            if member is not None:
                yield member, block

    def equations(self, z: Tensor) -> Tensor:
        return torch.cat([z.new_zeros(len(z), 0), *(member.equations(part) for member, part in self._blocks(z))], 1)

    def inequalities(self, z: Tensor) -> Tensor:
        return torch.cat([z.new_zeros(len(z), 0), *(member.inequalities(part) for member, part in self._blocks(z))], 1)

    def equation_count(self) -> int | None:
        return total_count(self.members, self._equation_count)

    def _solve(self, z: Tensor, budget: Budget, warm: Tensor | None) -> Projection:
        starts = [None] * len(self.sizes) if warm is None else flat(warm).split(self.sizes, dim=1)
        found = []
        for member, block, start in zip(self.members, flat(z).split(self.sizes, dim=1), starts, strict=True):
            found.append(at_once(block) if member is None else member._solve(block, budget, start))
        points, converged, iterations, residual = zip(*found, strict=True)
        return Projection(
            torch.cat(points, dim=1).reshape(z.shape),
            torch.stack(converged).all(0),
            torch.stack(iterations).amax(0),
            torch.stack(residual).amax(0),
        )

    def _sample_near(self, y: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
        """Block by block; a free block is y + sigma xi."""
        drawn = []
        for member, block in zip(self.members, flat(y).split(self.sizes, dim=1), strict=True):
            if member is None:
                drawn.append(block + sigma * gaussian(block, generator))
            else:
                drawn.append(member._sample_near(block, sigma, generator))
        return torch.cat(drawn, dim=1).reshape(y.shape)

    def _log_normaliser(self, y: Tensor, sigma: float) -> Tensor:
        """Sum over the blocks; a free block adds nothing."""
        parts = [member._log_normaliser(block, sigma) for member, block in self._blocks(y)]
        return torch.stack(parts).sum(0) if parts else torch.zeros(len(y), dtype=y.dtype, device=y.device)

    def _violation(self, z: Tensor) -> Tensor:
        parts = [member._violation(block) for member, block in self._blocks(z)]
        return torch.stack(parts).amax(0) if parts else torch.zeros(len(z), dtype=z.dtype, device=z.device)


class _Preimage(Constraint):
    """Points whose image lies in another set: {z : back(z) in inner}."""

    inner: Constraint

    def equations(self, z: Tensor) -> Tensor:
        return self.inner.equations(self._back(z))

    def inequalities(self, z: Tensor) -> Tensor:
        return self.inner.inequalities(self._back(z))

    def equation_count(self) -> int | None:
        return total_count((self.inner,), self._equation_count)

    def _violation(self, z: Tensor) -> Tensor:
        return self.inner._violation(self._back(z))

    def _back(self, z: Tensor) -> Tensor:
        raise NotImplementedError


class _Motion(_Preimage):
    """A set in other coordinates, its flags and its projection those of the set it is made of."""

    _stretch: float = 1.0

    def _adopt(self, inner: Constraint) -> None:
        self.inner = inner
        self.exact, self.convex, self.solid, self.smooth = inner.exact, inner.convex, inner.solid, inner.smooth
        self.samples_near, self.chains = inner.samples_near, inner.chains

    @property
    def way(self) -> Way:
        return self.inner.way

    def explain(self) -> str:
        return f"{type(self).__name__.lower()}: {self.inner.explain()}"

    def validate(self, event: Event) -> None:
        self.inner.validate(event)

    def log_tube_factor(self, x: Tensor, z: Tensor) -> Tensor | None:
        return self.inner.log_tube_factor(self._back(x), self._back(z))

    def _solve(self, z: Tensor, budget: Budget, warm: Tensor | None) -> Projection:
        found = self.inner._solve(self._back(z), budget, None if warm is None else self._back(warm))
        return found._replace(point=self._forth(found.point))

    def _sample_near(self, y: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
        return self._forth(self.inner._sample_near(self._back(y), sigma / self._stretch, generator))

    def _log_normaliser(self, y: Tensor, sigma: float) -> Tensor:
        return self.inner._log_normaliser(self._back(y), sigma / self._stretch)

    def _forth(self, z: Tensor) -> Tensor:
        raise NotImplementedError


class Shifted(_Motion):
    """C + t = {z + t : z in C}; P(z) = t + P_C(z - t). The violation is that of z - t.

    Args:
        inner: C.
        by: t, broadcastable to an event; PerChain: (n, ...), one such t for each chain.
    """

    per_chain = ("by",)

    def __init__(self, inner: Constraint, by: Any) -> None:
        self._adopt(inner)
        self.by = bound(by)
        self.chains = common_chains(set=inner, shift=self.by)
        if not bool(torch.isfinite(raw(self.by)).all()):
            raise SettingError("a shift must be finite")

    def __repr__(self) -> str:
        return f"{self.inner!r}.shifted(...)"

    def _back(self, z: Tensor) -> Tensor:
        return z - spread(self.by, z)

    def _forth(self, z: Tensor) -> Tensor:
        return z + spread(self.by, z)


class Scaled(_Motion):
    """s C = {s z : z in C}, s > 0; P(z) = s P_C(z / s). The violation is that of z / s.

    Args:
        inner: C.
        by: s > 0.
    """

    def __init__(self, inner: Constraint, by: float) -> None:
        self._adopt(inner)
        self.by = self._stretch = positive(by, "the factor that scales a set")

    def __repr__(self) -> str:
        return f"{self.inner!r}.scaled({self.by:g})"

    def _back(self, z: Tensor) -> Tensor:
        return z / self.by

    def _forth(self, z: Tensor) -> Tensor:
        return z * self.by


class Through(_Preimage):
    """{x : A x in C}. How P is found depends on A and C; ``explain()`` says which way was taken:

    - A A^T = c I: closed form, P(x) = x + A^T (P_C(A x) - A x) / c;
    - C of equations, half-spaces, bounds or a polytope: the same kind of set again, with A in its rows;
    - C smooth: Newton steps on its residual of A x;
    - otherwise splitting (ADMM) between x and A x, which finds the nearest point for a convex C.

    The violation is that of A x.

    Args:
        inner: C.
        A: Matrix (k, d) from flattened x to the flattened events of C.
        shape: Shape of the events of C; (k,) if left out.
    """

    def __init__(self, inner: Constraint, A: Any, *, shape: Event | None = None) -> None:
        self.inner = inner
        self.A = torch.as_tensor(A, dtype=torch.float64)
        if self.A.ndim != 2:
            raise ShapeError(f"through needs a matrix (k, d), got shape {tuple(self.A.shape)}")
        self._coordinates = self.A.shape[1]
        self.shape: Event = (len(self.A),) if shape is None else tuple(shape)
        inner.validate(self.shape)
        self.convex, self.smooth, self.chains = inner.convex, inner.smooth, inner.chains
        gram = self.A @ self.A.T
        self._square = float(gram.diagonal().mean())
        eye = self._square * torch.eye(len(gram), dtype=torch.float64)
        self._orthogonal = self._square > 0 and float((gram - eye).abs().max()) <= ORTHOGONAL * self._square
        self._same: Constraint | None = None
        if self._orthogonal:
            self._way, self.exact = inner.way, inner.exact
        elif self.chains is not None:
            alone = self._alone(0)
            self._way, self.exact = alone._way, alone.exact
        else:
            self._same = _with_rows(inner.polyhedron(len(self.A)), self.A)
            if self._same is None and inner.smooth and not inner.convex:
                self._same = Implicit(self.equations, self.inequalities)
            self._way = Way.SPLITTING if self._same is None else self._same.way
            self.exact = self._same is not None and self._same.exact
        self.solid = inner.solid and (self._same is None or self._same.solid or self._way is Way.NEWTON)

    @property
    def way(self) -> Way:
        return self._way

    def __repr__(self) -> str:
        return f"{self.inner!r}.through({len(self.A)} x {self.A.shape[1]})"

    def explain(self) -> str:
        if self._orthogonal:
            return f"{self!r}: {self.way.value}, A A^T is a multiple of I"
        if self._way is Way.NEWTON:
            return f"{self!r}: {self.way.value} on the residual of A x"
        if self._way is Way.SPLITTING:
            return f"{self!r}: {self.way.value} between x and A x"
        return f"{self!r}: as {self._same.explain()}" if self._same is not None else super().explain()

    def _solve(self, z: Tensor, budget: Budget, warm: Tensor | None) -> Projection:
        if self._orthogonal:
            found = self.inner._solve(self._back(z), budget, None)
            rows = self.A.to(z) / self._square**0.5
            point = tangent(flat(z), rows) + flat(found.point) @ rows / self._square**0.5
            return found._replace(point=point.reshape(z.shape))
        if self.chains is not None:
            return self._solve_by_group(z, budget, warm)
        if self._same is not None:
            return self._same._solve(z, budget, warm)
        found = behind_matrix(
            flat(z),
            self.A.to(z),
            lambda y: flat(self.inner._project(y.reshape(-1, *self.shape))),
            self._violation,
            budget,
        )
        return found._replace(point=found.point.reshape(z.shape))

    def _back(self, x: Tensor) -> Tensor:
        return (flat(x) @ self.A.to(x).T).reshape(len(x), *self.shape)


def _with_rows(rows: Rows | None, A: Tensor) -> Constraint | None:
    """The set of x itself, low <= G A x <= high, where C has flat sides."""
    if rows is None:
        return None
    matrix, low, high = rows.matrix @ A, rows.low, rows.high
    equal = low == high
    above, below = ~equal & (high < torch.inf), ~equal & (low > -torch.inf)
    sides, levels = torch.cat([matrix[above], -matrix[below]]), torch.cat([high[above], -low[below]])
    if len(sides) == 1 and not bool(sides.any()):
        return None
    parts: list[Constraint] = []
    if bool(equal.any()):
        parts.append(Affine(matrix[equal], low[equal]))
    if len(sides):
        parts.append(HalfSpace(sides[0], float(levels[0])) if len(sides) == 1 else Polytope(sides, levels))
    return Intersection(*parts) if len(parts) > 1 else next(iter(parts), None)
