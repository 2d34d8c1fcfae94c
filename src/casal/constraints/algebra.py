"""Sets made of sets: unions, products, shifts, scalings, and sets seen through a matrix."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from casal.checks import Event, positive, whole_number
from casal.constraints.base import (
    Budget,
    Constraint,
    Excess,
    Geometry,
    OnSurface,
    Parts,
    Projection,
    Rows,
    SphereInFlat,
    Subspace,
    Way,
    at_once,
    build,
    largest,
    nearest_solution,
    row_of,
    side_by_side,
    total_count,
)
from casal.constraints.flat import Affine, HalfSpace, Polytope, unbounded
from casal.constraints.geometry import (
    codimension,
    geometry,
    log_volume_factor,
    nearest_on_surface,
    parts,
    reach,
    sphere_in_flat,
    within,
)
from casal.constraints.implicit import Implicit
from casal.constraints.intersection import MOST_PIECES, Intersection, take_apart, together_in
from casal.constraints.merging import meet
from casal.constraints.parameters import (
    argument,
    brief,
    check_fits,
    common_chains,
    copied,
    join,
    listed,
    over,
    over_flattened,
    parameter,
    real,
)
from casal.constraints.solvers.splitting import behind_matrix
from casal.constraints.vectors import flat, gaussian, norm, over_events, tangent
from casal.devices import on_host, placed
from casal.errors import SettingError, ShapeError

ORTHOGONAL = 1e-12
"""How far A A^T may be from a multiple of I, relative to it."""


class Union(Constraint):
    """Points that lie in at least one of several sets, ``a | b``.

    C = union of the members; P(z) is the nearest of the members' projections.

    The violation is the smallest of the members'.

    Args:
        members: Two or more sets.

    >>> import casal
    >>> import torch
    >>> either = casal.Sphere(1.0) | casal.Sphere(3.0)
    >>> isinstance(either, casal.Union), either.project(torch.tensor([[0.0, 2.5]])).tolist()
    (True, [[0.0, 3.0]])
    """

    in_pieces = True

    def __init__(self, *members: Constraint) -> None:
        self.members = take_apart(Union, members)
        self.chains = common_chains(**{f"member {i}": member for i, member in enumerate(self.members)})
        self.exact = all(member.exact for member in self.members)
        self.solid = any(member.solid for member in self.members)

    def __repr__(self) -> str:
        return f"({listed(self.members, ' | ')})"

    def _explained(self) -> str:
        return f"nearest of {len(self.members)} members: " + "; ".join(member._explained() for member in self.members)

    def validate(self, event: Event) -> None:
        for member in self.members:
            member.validate(event)

    def _solve(self, z: Tensor, budget: Budget, warm: Tensor | None) -> Projection:
        return nearest_solution(self.members, z, budget, warm)

    def _excess(self, z: Tensor, lost: Tensor | None) -> Excess:
        """The rows of all members, zero but for the member that a point misses least."""
        parts = [member._excess(z, lost) for member in self.members]
        best = torch.stack([largest(part.violation()) for part in parts]).argmin(0)
        parts = [
            part._replace(amount=torch.where((best == k)[:, None], part.amount, 0.0)) for k, part in enumerate(parts)
        ]
        return side_by_side(parts, z)

    def component_name(self, event: Event, row: int) -> str:
        member, own = row_of(self.members, [event] * len(self.members), row)
        return self.members[member].component_name(event, own)

    def _written_out(self, event: Event) -> tuple[Constraint, ...]:
        return tuple(piece for member in self.members for piece in member.pieces(event))

    def _geometry(self, event: Event) -> Geometry:
        """Itself, if all pieces are surfaces or all are solid."""
        apart = [geometry(piece, event).parts for piece in self.pieces(event)]
        if all(part is not None and part.surface is None for part in apart):
            return Geometry(Parts(None, self))
        if all(part is not None and part.solid is None for part in apart):
            return Geometry(Parts(self, None))
        return Geometry(None)


class Product(Constraint):
    """Points whose blocks of coordinates each lie in a set of their own.

    C = {z : block k of z lies in member k}, the event flattened and cut into consecutive blocks.

    Projection and certificate go block by block, so they are exact where the members' are. The violation is the
    largest of the blocks', up to the rounding of the largest coordinate.

    Args:
        members: One set per block; None leaves a block free.
        sizes: Coordinates in each block, whole numbers >= 1; they must fill the event.

    >>> import casal
    >>> import torch
    >>> cylinder = casal.Product(casal.Sphere(1.0), casal.Box(0.0, 2.0), sizes=(2, 1))
    >>> cylinder.project(torch.tensor([[3.0, 4.0, 5.0]], dtype=torch.float64)).numpy().round(6).tolist()
    [[0.6, 0.8, 2.0]]
    """

    def __init__(self, *members: Constraint | None, sizes: Sequence[int]) -> None:
        self.members, self.sizes = members, tuple(whole_number(size, "the size of a block", 1) for size in sizes)
        if len(self.members) != len(self.sizes) or not members:
            raise ShapeError(f"{len(members)} members need as many sizes, got {len(self.sizes)}: {self.sizes}")
        for member in members:
            if not isinstance(member, Constraint | None):
                raise SettingError(f"a block of a Product is a set, or None to leave it free; got {member!r}")
        given = [member for member in members if member is not None]
        self.exact = all(member.exact for member in given)
        self.convex = all(member.convex for member in given)
        self.solid = all(member.solid for member in given)
        self.smooth = all(member.smooth for member in given)
        self.samples_near = all(member.samples_near for member in given)
        self.fast = bool(given) and all(member.fast for member in given)
        self.in_pieces = any(member.in_pieces for member in given)
        self.flat_sided = all(member.flat_sided for member in given)
        self.chains = common_chains(**{f"block {i}": member for i, member in enumerate(members)})
        self._coordinates = sum(self.sizes)

    def __repr__(self) -> str:
        return f"Product({listed(self.members, ', ')}, sizes=[{listed(self.sizes, ', ')}])"

    def _explained(self) -> str:
        inner = "; ".join("free" if member is None else member._explained() for member in self.members)
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

    def _count_equations(self) -> int | None:
        return total_count(self.members, self._equation_count)

    def linear(self, event: Event) -> Rows | None:
        """Block by block: the rows of a block are zero in the others."""
        size, start = torch.Size(event).numel(), 0
        blocks = [Rows.within(*(side.flatten(1) for side in unbounded((size,))))]
        for member, width in zip(self.members, self.sizes, strict=True):
            rows = None if member is None else member.linear((width,))
            if rows is not None:
                blocks.append(rows.padded(start, size))
            elif member is not None:
                return None
            start += width
        return Rows.joined(blocks)

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

    def _project_fast(self, z: Tensor, warm: Tensor | None = None) -> Tensor:
        if not self.fast:
            return self.project(z)
        pairs = zip(self.members, flat(z).split(self.sizes, dim=1), strict=True)
        blocks = [block if member is None else member._project_fast(block) for member, block in pairs]
        return torch.cat(blocks, dim=1).reshape(z.shape)

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

    def _excess(self, z: Tensor, lost: Tensor | None) -> Excess:
        """Block by block."""
        blocks = list(self._blocks(z))
        missing: list[Tensor | None] = (
            [None] * len(blocks) if lost is None else [block for _, block in self._blocks(lost)]
        )
        pairs = zip(blocks, missing, strict=True)
        return side_by_side([member._excess(block, left) for (member, block), left in pairs], z)

    def component_name(self, event: Event, row: int) -> str:
        block, own = row_of(self.members, [(size,) for size in self.sizes], row)
        member = self.members[block]
        assert member is not None
        return f"block {block}: {member.component_name((self.sizes[block],), own)}"

    def _geometry(self, event: Event) -> Geometry:
        """Block by block."""
        return Geometry(
            self._apart(),
            codimension=lambda: self._total([codimension(member, size) for member, size in self._made_of(event)]),
            reach=self._reach,
            log_volume=self._log_volume,
            sphere_in_flat=self._sphere_in_flat,
            nearest=self._nearest,
        )

    def _apart(self) -> Parts | None:
        apart = [
            Parts(None, None) if member is None else geometry(member, (size,)).parts
            for member, size in zip(self.members, self.sizes, strict=True)
        ]
        known = [part for part in apart if part is not None]
        if len(known) < len(apart):
            return None
        surface, solid = (
            None
            if all(block is None for block in blocks)
            else self
            if all(block is member for block, member in zip(blocks, self.members, strict=True))
            else Product(*blocks, sizes=self.sizes)
            for blocks in zip(*known, strict=True)
        )
        return Parts(surface, solid)

    def _nearest(self, y: Tensor) -> OnSurface:
        self._check_chains(y)
        inside = torch.ones(len(y), dtype=torch.bool, device=y.device)
        log_volume: Tensor | None = torch.zeros(len(y), dtype=torch.float64, device=y.device)
        points = []
        for member, block in zip(self.members, flat(y).split(self.sizes, dim=1), strict=True):
            there = OnSurface(block, inside, log_volume) if member is None else nearest_on_surface(member, block)
            points.append(there.point)
            inside = inside & there.inside
            if member is not None:
                log_volume = None if log_volume is None or there.log_volume is None else log_volume + there.log_volume
        return OnSurface(torch.cat(points, dim=1).reshape(y.shape), inside, log_volume)

    def _log_volume(self, x: Tensor, z: Tensor) -> Tensor | None:
        total = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        for (member, before), (_, after) in zip(self._blocks(x), self._blocks(z), strict=True):
            part = log_volume_factor(member, before, after)
            if part is None:
                return None
            total = total + part
        return total

    @staticmethod
    def _total(counts: Sequence[int | None]) -> int | None:
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def _reach(self) -> float | None:
        widths = [reach(member, size) for member, size in self._made_of(())]
        known = [width for width in widths if width is not None]
        return min(known, default=math.inf) if len(known) == len(widths) else None

    def _written_out(self, event: Event) -> tuple[Constraint, ...]:
        choices = [
            (None,) if member is None else member.pieces((size,))
            for member, size in zip(self.members, self.sizes, strict=True)
        ]
        count = math.prod(map(len, choices))
        if count > MOST_PIECES:
            raise SettingError(f"unions in the blocks make {count} pieces, and at most {MOST_PIECES} are supported")
        return tuple(Product(*choice, sizes=self.sizes) for choice in itertools.product(*choices))

    def _searched(self, z: Tensor) -> Sequence[tuple[Constraint, Tensor]]:
        return list(self._blocks(z))

    def _made_of(self, event: Event) -> Sequence[tuple[Constraint, Event]]:
        """Members and their sizes, without blocks that are free."""
        pairs = zip(self.members, self.sizes, strict=True)
        return [(member, (size,)) for member, size in pairs if member is not None]

    def bounds(self, event: Event) -> tuple[Tensor, Tensor] | None:
        """Block by block."""
        count = self.chains or 1
        low, high = [], []
        for member, size in zip(self.members, self.sizes, strict=True):
            sides = unbounded((size,)) if member is None else member.bounds((size,))
            if sides is None:
                return None
            low.append(sides[0].expand(count, -1))
            high.append(sides[1].expand(count, -1))
        return torch.cat(low, dim=1).reshape(-1, *event), torch.cat(high, dim=1).reshape(-1, *event)

    def _sphere_in_flat(self) -> SphereInFlat | None:
        """Linear equations block by block."""
        size, start = sum(self.sizes), 0
        matrix = torch.zeros(0, size, dtype=torch.float64)
        level = matrix.T[:1]
        for member, width in zip(self.members, self.sizes, strict=True):
            if member is not None:
                found = sphere_in_flat(member, (width,))
                if found is None or found.radius is not None:
                    return None
                ends = start, size - start - width
                matrix = torch.cat([matrix, torch.nn.functional.pad(found.matrix, ends)])
                level = join(level, found.level)
            start += width
        return SphereInFlat(matrix, level)


NEAR, EXACT = 1e-3, 1e-13
"""Relative length of a step of a projection that may be rounding, and the violation up to which it is."""


class _Preimage(Constraint):
    """Points whose image lies in another set: {z : back(z) in inner}."""

    inner: Constraint

    def equations(self, z: Tensor) -> Tensor:
        return self.inner.equations(self._back(z))

    def inequalities(self, z: Tensor) -> Tensor:
        return self.inner.inequalities(self._back(z))

    def _count_equations(self) -> int | None:
        return total_count((self.inner,), self._equation_count)

    def _excess(self, z: Tensor, lost: Tensor | None) -> Excess:
        """That of the image. What cancels in it is the sum of the terms of each coordinate, less its absolute value."""
        image = self._back(z)
        terms = self._terms(z.abs() if lost is None else z.abs() + lost)
        return self.inner._excess(image, (terms - image.abs()).clamp_min(0.0))

    def component_name(self, event: Event, row: int) -> str:
        return self.inner.component_name(self._image_event(event), row)

    def _image_event(self, event: Event) -> Event:
        return event

    def _terms(self, size: Tensor) -> Tensor:
        """The sum of the absolute values of the terms of the image, for coordinates of these absolute values."""
        raise NotImplementedError

    def _back(self, z: Tensor) -> Tensor:
        raise NotImplementedError


class _Motion(_Preimage):
    """A set moved and stretched, {s y + t : y in C}: its flags and its projection are those of C.

    Attributes:
        inner: C.
        by: The argument of the subclass.
    """

    by: Any
    _stretch: float = 1.0  # s
    _shift: Tensor  # t, (1 or n, ...)

    def _adopt(self, inner: Constraint, shift: Any, stretch: float) -> None:
        self.inner = inner
        self.exact, self.convex, self.solid, self.smooth = inner.exact, inner.convex, inner.solid, inner.smooth
        self.samples_near, self.in_pieces, self.flat_sided = inner.samples_near, inner.in_pieces, inner.flat_sided
        self._shift, self._stretch = parameter(shift), stretch
        self.chains = common_chains(set=inner, shift=shift)

    @property
    def way(self) -> Way:
        return self.inner.way

    def _explained(self) -> str:
        return f"{type(self).__name__.lower()}: {self.inner._explained()}"

    def validate(self, event: Event) -> None:
        check_fits(self._shift, event, "shifts")
        self.inner.validate(event)

    def _back(self, z: Tensor) -> Tensor:
        return (z - over(self._shift, z)) / self._stretch

    def _forth(self, z: Tensor) -> Tensor:
        return z * self._stretch + over(self._shift, z)

    def _terms(self, size: Tensor) -> Tensor:
        return (size + over(self._shift, size).abs()) / self._stretch

    def _of(self, part: Constraint) -> Constraint:
        """The same motion of another set."""
        return self if part is self.inner else build(type(self), {"inner": part, "by": self.by})

    # -------------------------------------------------------------- what a set says

    def equations(self, z: Tensor) -> Tensor:
        """In float64 inside, since a shift may be large beside what is left."""
        return self.inner.equations(self._back(z.to(torch.float64))).to(z.dtype)

    def inequalities(self, z: Tensor) -> Tensor:
        return self.inner.inequalities(self._back(z.to(torch.float64))).to(z.dtype)

    def _residual_pull(self, z: Tensor, weights: Tensor) -> Tensor | None:
        pull = self.inner._residual_pull(self._back(z.to(torch.float64)), weights.to(torch.float64))
        return None if pull is None else (pull / self._stretch).to(z.dtype)

    def linear(self, event: Event) -> Rows | None:
        rows = self.inner.linear(event)
        return None if rows is None else rows.moved(self._stretch, over_flattened(self._shift, event))

    def bounds(self, event: Event) -> tuple[Tensor, Tensor] | None:
        sides = self.inner.bounds(event)
        if sides is None:
            return None
        low, high = (self._forth(side.expand(self.chains or 1, *event)) for side in sides)
        return low, high

    def _written_out(self, event: Event) -> tuple[Constraint, ...]:
        return tuple(self._of(piece) for piece in self.inner.pieces(event))

    def _made_of(self, event: Event) -> Sequence[tuple[Constraint, Event]]:
        return [(self.inner, event)]

    def _searched(self, z: Tensor) -> Sequence[tuple[Constraint, Tensor]]:
        return [(self.inner, self._back(z))]

    def _ball_around(self, event: Event) -> tuple[Tensor, Tensor] | None:
        found = self.inner._ball_around(event)
        if found is None:
            return None
        center, radius = found
        return self._forth(center.expand(self.chains or 1, *event)), self._stretch * radius

    # -------------------------------------------------------------- projections and draws

    def _solve(self, z: Tensor, budget: Budget, warm: Tensor | None) -> Projection:
        found = self.inner._solve(self._back(z), budget, None if warm is None else self._back(warm))
        point = self._forth(found.point)
        # A point that the rounding of the motion alone keeps off the set stays where it is.
        near = norm(flat(point - z)) <= NEAR * norm(flat(z))
        if not on_host(z) or (bool(near.any()) and not bool((point == z).all())):
            near &= self._violation(z) <= EXACT
            point = torch.where(over_events(near, z), z, point)
        return found._replace(point=point)

    def _sample_near(self, y: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
        return self._forth(self.inner._sample_near(self._back(y), sigma / self._stretch, generator))

    def _log_normaliser(self, y: Tensor, sigma: float) -> Tensor:
        return self.inner._log_normaliser(self._back(y), sigma / self._stretch)

    # -------------------------------------------------------------- geometry

    def _geometry(self, event: Event) -> Geometry:
        """That of the set, each part moved."""
        inner = geometry(self.inner, event).parts
        return Geometry(
            None if inner is None else Parts(*(None if part is None else self._of(part) for part in inner)),
            codimension=lambda: codimension(self.inner, event),
            reach=lambda: self._reach(event),
            log_volume=lambda x, z: log_volume_factor(self.inner, self._back(x), self._back(z)),
            sphere_in_flat=lambda: self._sphere_in_flat(event),
            nearest=self._nearest,
            within=self._within,
        )

    def _reach(self, event: Event) -> float | None:
        inner = reach(self.inner, event)
        return None if inner is None else self._stretch * inner

    def _nearest(self, y: Tensor) -> OnSurface:
        """That of the set; a coordinate that does not move stays what it is, to the last bit."""
        self._check_chains(y)
        back = self._back(y.to(torch.float64))
        there = nearest_on_surface(self.inner, back)
        return there._replace(point=torch.where(there.point == back, y, self._forth(there.point).to(y.dtype)))

    def _sphere_in_flat(self, event: Event) -> SphereInFlat | None:
        found = sphere_in_flat(self.inner, event)
        if found is None:
            return None
        shift = over_flattened(self._shift, event)
        return SphereInFlat(
            found.matrix,
            self._stretch * found.level + shift @ found.matrix.T,
            None if found.radius is None else self._stretch * found.radius,
            shift if found.center is None else self._stretch * found.center + shift,
        )

    def _within(self, space: Subspace) -> Constraint | None:
        """That of the set, moved by the coordinates of the shift, where the shift lies in the subspace."""
        inner = within(self.inner, space) if len(self._shift) == 1 and self.fast else None
        if inner is None:
            return None
        moved = space.coordinates(over_flattened(self._shift, space.event))
        return None if moved is None else Shifted(inner, moved[0])


class Shifted(_Motion):
    """All points of a set moved by t, ``a.shifted(t)``.

    C + t = {z + t : z in C}; P(z) = t + P_C(z - t). The violation is that of z - t.

    Args:
        inner: C.
        by: t, broadcastable to an event; PerChain: (n, ...), one such t for each chain.
    """

    per_chain = ("by",)

    def __init__(self, inner: Constraint, by: Any) -> None:
        self.by = copied(by)
        self._adopt(inner, self.by, 1.0)
        lost = self._shift[~torch.isfinite(self._shift)]
        if len(lost):
            raise SettingError(f"a shift must be finite, got {float(lost[0])} in it")
        self.fast = inner.fast

    def __repr__(self) -> str:
        return f"{self.inner!r}.shifted({brief(self.by)})"

    def _project_fast(self, z: Tensor, warm: Tensor | None = None) -> Tensor:
        """In float64, since a shift may be large beside what is projected."""
        return self._forth(self.inner._project_fast(self._back(z.to(torch.float64)))).to(z.dtype)


class Scaled(_Motion):
    """All points of a set multiplied by s > 0, ``a.scaled(s)``.

    s C = {s z : z in C}, s > 0; P(z) = s P_C(z / s). The violation is that of z / s.

    Args:
        inner: C.
        by: s > 0.
    """

    def __init__(self, inner: Constraint, by: float) -> None:
        self.by = positive(by, "the factor that scales a set")
        if math.isinf(1.0 / self.by):
            raise SettingError(
                f"the factor that scales a set, {self.by:g}, is out of the range of floating point numbers, as its "
                "inverse is infinite; take a larger one"
            )
        self._adopt(inner, 0.0, self.by)

    def __repr__(self) -> str:
        return f"{self.inner!r}.scaled({self.by:g})"


class Through(_Preimage):
    """All x whose image A x lies in a set, ``a.through(A)``.

    {x : A x in C}. How P is found depends on A and C; ``explain()`` says which way was taken:

    - A A^T = c I: closed form, P(x) = x + A^T (P_C(A x) - A x) / c;
    - a union in C: the nearest of its pieces, each through A;
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
        self.A = real(A).detach().clone()
        if self.A.ndim != 2:
            raise ShapeError(f"through needs a matrix (k, d), got shape {tuple(self.A.shape)}")
        if not bool(torch.isfinite(self.A).all()):
            worst = float(self.A[~torch.isfinite(self.A)][0])
            raise SettingError(f"through needs a matrix of finite numbers, got {worst} in it")
        self._coordinates = self.A.shape[1]
        self.shape: Event = (len(self.A),) if shape is None else tuple(shape)
        inner.validate(self.shape)
        self.convex, self.smooth, self.chains = inner.convex, inner.smooth, inner.chains
        self.in_pieces = inner.in_pieces
        gram = self.A @ self.A.T
        self._square = float(gram.diagonal().mean())
        eye = self._square * torch.eye(len(gram), dtype=torch.float64)
        self._orthogonal = self._square > 0 and float((gram - eye).abs().max()) <= ORTHOGONAL * self._square
        self._same: Constraint | None = None
        if self._orthogonal:
            self._way, self.exact = inner.way, inner.exact
        elif self.in_pieces:
            self._way, self.exact = Way.PIECES, all(piece.exact for piece in self.pieces(self.shape))
        elif self.chains is not None:
            alone = self._alone(0)
            self._way, self.exact = alone._way, alone.exact
        else:
            self._same = _with_rows(inner.linear(self.shape), self.A)
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

    def _explained(self) -> str:
        if self._orthogonal:
            return f"{self!r}: {self.way.value}, A A^T is a multiple of I"
        if self._way is Way.NEWTON:
            return f"{self!r}: {self.way.value} on the residual of A x"
        if self._way is Way.SPLITTING:
            return f"{self!r}: {self.way.value} between x and A x"
        return f"{self!r}: as {self._same._explained()}" if self._same is not None else super()._explained()

    def _geometry(self, event: Event) -> Geometry:
        if self._orthogonal:
            return Geometry(
                self._apart(event),
                codimension=lambda: codimension(self.inner, self.shape),
                reach=self._reach,
                log_volume=lambda x, z: log_volume_factor(self.inner, self._back(x), self._back(z)),
                sphere_in_flat=self._sphere_in_flat,
                nearest=self._nearest,
            )
        full = int(torch.linalg.matrix_rank(self.A)) == len(self.A)
        own = Geometry(
            self._apart(event),
            codimension=(lambda: codimension(self.inner, self.shape)) if full else None,
            sphere_in_flat=self._sphere_in_flat,
        )
        if self.in_pieces:
            return own
        if self.chains is not None:
            return own._replace(log_volume=lambda x, z: self._by_group(log_volume_factor, x, z))
        same = self._same
        if own.parts is not None and own.parts.surface is self:
            own = own._replace(codimension=own.codimension or (lambda: None))
        return own if same is None else own._replace(log_volume=lambda x, z: log_volume_factor(same, x, z))

    def _nearest(self, y: Tensor) -> OnSurface:
        self._check_chains(y)
        wide = y.to(torch.float64)
        image = self._back(wide)
        there = nearest_on_surface(self.inner, image)
        still = over_events(flat(there.point == image).all(1), y)
        return there._replace(point=torch.where(still, y, self._over(wide, there.point).to(y.dtype)))

    def _reach(self) -> float | None:
        inner = reach(self.inner, self.shape)
        return None if inner is None else inner / self._square**0.5

    def _made_of(self, event: Event) -> Sequence[tuple[Constraint, Event]]:
        return [(self.inner, self.shape)]

    def _written_out(self, event: Event) -> tuple[Constraint, ...]:
        return tuple(self._of(piece) for piece in self.inner.pieces(self.shape))

    def _of(self, part: Constraint) -> Constraint:
        """Another set, through the same matrix."""
        return self if part is self.inner else Through(part, self.A, shape=self.shape)

    def _apart(self, event: Event) -> Parts | None:
        """Those of the set, each through the matrix. A solid set that A x only touches is thin again."""
        if self._same is not None and self._same.flat_sided:
            return parts(self._same, event)
        inner = geometry(self.inner, self.shape).parts
        if inner is None:
            return None
        surface, solid = inner
        surfaces: list[Constraint] = [] if surface is None else [self._surface(surface)]
        if solid is not None and solid is not self.inner:
            rest = parts(self._of(solid), event)
            surfaces += [] if rest.surface is None else [rest.surface]
            return Parts(together_in(meet(surfaces, event)), rest.solid)
        return Parts(next(iter(surfaces), None), None if solid is None else self)

    def _surface(self, surface: Constraint) -> Constraint:
        """A surface through the matrix; linear equations stay linear equations."""
        found = sphere_in_flat(surface, self.shape)
        if found is None or found.radius is not None or self._orthogonal:
            return self._of(surface)
        return Affine(found.matrix @ self.A, argument(found.level))

    def _sphere_in_flat(self) -> SphereInFlat | None:
        found = sphere_in_flat(self.inner, self.shape)
        if found is None or found.radius is not None:
            return None
        return SphereInFlat(found.matrix @ self.A, found.level)

    def _over(self, x: Tensor, image: Tensor) -> Tensor:
        """The point nearest to x whose image under A is given, A A^T = c I."""
        rows = placed(self.A, x) / self._square**0.5
        return (tangent(flat(x), rows) + flat(image) @ rows / self._square**0.5).reshape(x.shape)

    def _solve(self, z: Tensor, budget: Budget, warm: Tensor | None) -> Projection:
        if self._orthogonal:
            found = self.inner._solve(self._back(z), budget, None)
            return found._replace(point=self._over(z, found.point))
        if self.in_pieces:
            return nearest_solution(self.pieces(tuple(z.shape[1:])), z, budget, warm)
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

    def _image_event(self, event: Event) -> Event:
        return tuple(self.shape)

    def _terms(self, size: Tensor) -> Tensor:
        return (flat(size) @ self.A.to(size).abs().T).reshape(len(size), *self.shape)

    def _back(self, x: Tensor) -> Tensor:
        return (flat(x) @ placed(self.A, x).T).reshape(len(x), *self.shape)


def _with_rows(rows: Rows | None, A: Tensor) -> Constraint | None:
    """The set of x itself, low <= G A x <= high, where C has flat sides."""
    if rows is None:
        return None
    matrix, (low,), (high,) = rows.written_out()
    matrix, equal = matrix @ A, low == high
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
