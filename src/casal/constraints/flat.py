"""Sets with flat sides: linear equations, inequalities, bounds, and bounds with an equation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from casal.checks import Event
from casal.constraints.base import (
    Budget,
    Constraint,
    Excess,
    Geometry,
    Parts,
    Projection,
    Rows,
    SphereInFlat,
    Subspace,
    Way,
    flat_volume,
    register,
    side_by_side,
)
from casal.constraints.parameters import (
    argument,
    brief,
    check_fits,
    common_chains,
    copied,
    first_failure,
    join,
    one_number,
    over,
    over_flattened,
    parameter,
    real,
    show,
    together,
)
from casal.constraints.reduction import implied_equations
from casal.constraints.solvers.flat_sets import FlatSet
from casal.constraints.solvers.sparse_rows import MOST_DENSE, SparseMatrix, SparseSystem, across, back
from casal.constraints.solvers.truncated import log_interval_mass, truncated_normal
from casal.constraints.vectors import (
    EPSILON,
    GRANTED,
    LARGE,
    ROUNDING,
    flat,
    gaussian,
    norm,
    once,
    peak,
    refuse_overflow,
    tangent,
)
from casal.devices import amend, chosen, placed, seen
from casal.errors import InfeasibleSet, SettingError, ShapeError
from casal.linalg import row_svd

RANK_TOLERANCE = 1e-12
CONSISTENCY_TOLERANCE = 1e-9
INTERIOR = 1e-6
"""A polytope is called solid if all its inequalities can hold with this much room, relative to |z| + |h_i|."""
MOST_ROWS = 1000
"""Inequalities up to which those that are equations in disguise are looked for, one projection each."""
FARTHEST = 1e300
LOWEST = -torch.finfo(torch.float64).max
PASSES = 12


@register
class Affine(Constraint):
    """Linear equations.

    C = {z : A z = b}; P(z) = z - A^+ (A z - b).

    The rows are scaled to length one. A dense A is factorised once by singular values; a sparse one stays sparse, and
    A A^T over its independent rows is factorised once in bands (``solvers/banded.py``), A^+ = A^T (A A^T)^-1, refined
    to rounding. Redundant and dependent rows do no harm; contradictory ones raise InfeasibleSet. (The paper prints the
    projection onto Az + b = 0 with the sign of b reversed.) The violation is the largest
    |a_i . z - b_i| / (sum_j |a_ij z_j| + |b_i|).

    Args:
        A: Matrix (m, d), d the coordinates of an event; or (m, *event), m images or fields; or one row (d,). A sparse
            matrix of torch or SciPy stays sparse. It is made dense only where a set it is combined with needs that and
            it is small.
        b: Right-hand side (m,), or a number for all rows; PerChain: (n, m), or (n,).

    >>> Affine(torch.ones(1, 2), 1.0).project(torch.zeros(1, 2))
    tensor([[0.5000, 0.5000]])
    """

    convex = True
    per_chain = ("b",)
    b: Any  # a tensor, or PerChain

    def __init__(self, A: Any, b: Any) -> None:
        sparse = SparseMatrix.of(A)
        self.A: Tensor | SparseMatrix = _matrix(A) if sparse is None else sparse
        self._coordinates = self.A.shape[1]
        self.b = _for_each(b, self.A, "b", "A has {} row")
        self.chains = common_chains(b=self.b)
        numbers = self.A if isinstance(self.A, Tensor) else self.A.values
        lengths = norm(self.A) if isinstance(self.A, Tensor) else self.A.lengths
        self._right, self._kept = _right_of(numbers, lengths, parameter(self.b))
        self._lengths = lengths[self._kept]
        self._equation_count = len(self._kept)
        self._rows: Tensor | SparseMatrix
        self._system: _DenseSystem | SparseSystem
        if isinstance(self.A, Tensor):
            self._rows = self.A[self._kept] / self._lengths[:, None]
            self._system = _DenseSystem(self._rows)
            self._system.refuse_contradictions(self._right)
        else:
            self._system = self.A.solved
            self._rows = self._system.matrix
            _refuse_dependent(self._system, self._right, self._kept)
        self._point = self._system.point(self._right)

    @property
    def rank(self) -> int:
        """How many of the equations are independent."""
        return self._system.rank

    def __repr__(self) -> str:
        chains = "" if self.chains is None else f", b={self.b}"
        sparse = "" if isinstance(self.A, Tensor) else "sparse "
        return f"Affine({sparse}{self.A.shape[0]} x {self.A.shape[1]}, rank {self.rank}{chains})"

    def equations(self, z: Tensor) -> Tensor:
        y = flat(z)
        return across(y, self._rows) - over(self._right, y)

    def _residual_pull(self, z: Tensor, weights: Tensor) -> Tensor | None:
        return back(weights, self._rows).reshape(z.shape)

    def linear(self, event: Event) -> Rows | None:
        return Rows.of(self._rows, self._right, self._right)

    def bounds(self, event: Event) -> tuple[Tensor, Tensor] | None:
        """None at all."""
        return unbounded(event)

    def single_coordinates(self) -> tuple[Tensor | None, Tensor]:
        """If every equation is about one coordinate: which one (m,), and its values (1 or n, m); else None."""
        rows = SparseMatrix.from_dense(self._rows) if isinstance(self._rows, Tensor) else self._rows
        if len(rows.values) != len(rows):  # none of them is zero
            return None, self._right
        return rows.columns, self._right / rows.values

    def through(self, A: Any) -> Constraint:
        """{x : A x in C}. For sparse equations, and a sparse A or a small product: equations again."""
        if isinstance(self.A, Tensor) or hasattr(A, "vjp"):
            return super().through(A)
        other = SparseMatrix.of(A)
        if other is None:
            given = real(A)
            if given.ndim != 2 or len(self.A) * given.shape[1] > MOST_DENSE:
                raise SettingError(
                    f"{self!r} through a dense matrix of shape {tuple(given.shape)}: their product has more than "
                    f"{MOST_DENSE:.1e} numbers; give a sparse matrix (torch.sparse_coo_tensor, or of SciPy)"
                )
            return Affine(self.A.times_dense(given), self.b)
        if other.shape[0] != self.A.shape[1]:
            raise ShapeError(f"through a matrix of shape {tuple(other.shape)}, for {self.A.shape[1]} coordinates")
        return Affine(self.A.times(other), self.b)

    def _geometry(self, event: Event) -> Geometry:
        return Geometry(
            Parts(self if self.rank else None, None),
            codimension=lambda: self.rank,
            log_volume=flat_volume,
            sphere_in_flat=self._sphere_in_flat,
            within=self._within,
        )

    def _sphere_in_flat(self) -> SphereInFlat | None:
        if isinstance(self.A, Tensor):
            return SphereInFlat(self.A, parameter(self.b))
        return SphereInFlat(self.A.to_dense(), parameter(self.b)) if self.A.shape.numel() <= MOST_DENSE else None

    def _sample_near(self, y: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
        """P(y + sigma xi)."""
        return self._project(y + sigma * gaussian(y, generator))

    def _log_normaliser(self, y: Tensor, sigma: float) -> Tensor:
        """-dist^2 / (2 sigma^2) - m/2 log(2 pi sigma^2), m the rank of A."""
        height = self._system.heights(flat(y) - over(self._point, flat(y))) / sigma
        return -0.5 * height.square().sum(1) - self.rank * math.log(math.sqrt(2.0 * math.pi) * sigma)

    def _project_fast(self, z: Tensor, warm: Tensor | None = None) -> Tensor:
        y = flat(z)
        return (self._system.inside_fast(y) + over(self._point, y)).reshape(z.shape)

    def _within(self, space: Subspace) -> Affine | None:
        known = self._sphere_in_flat() if self.rank else None
        rows = None if known is None else space.coordinates(known.matrix)
        return None if rows is None else Affine(rows.flatten(1), self.b)

    def inside(self, v: Tensor) -> Tensor:
        """The part of directions (n, d) along the set: A v = 0."""
        return self._system.inside_fast(v)

    def inside_direction(self) -> Tensor | None:
        """A fixed unit vector with A v = 0, or None if there is none."""
        return self._system.inside_direction()

    def _project(self, z: Tensor) -> Tensor:
        y = flat(z)
        point = self._system.tangent(y) + over(self._point, y)
        # What the rounding of large coordinates leaves in small rows goes in a second step; of a huge y, in a few more.
        right = over(self._right, y).expand(len(y), -1)
        point = point - self._system.step(across(point, self._rows) - right)
        return amend(point, peak(y).squeeze(1) > LARGE, self._closer, point, right).reshape(z.shape)

    def _closer(self, point: Tensor, right: Tensor) -> Tensor:
        """What rounding has left of A z = b is taken off, a few times."""
        for _ in range(PASSES):
            point = point - self._system.step(across(point, self._rows) - right)
        return point

    def _excess(self, z: Tensor, lost: Tensor | None) -> Excess:
        y = flat(z)
        return rows_missed(y, lost, self._rows, over(self._right, y), self._lengths, equal=True)

    def component_name(self, event: Event, row: int) -> str:
        return f"equation {int(self._kept[row])} of A z = b"


class _DenseSystem:
    """U z = r for rows U of length one, by singular values; the same in words as ``SparseSystem``.

    Attributes:
        rank: Of U.
        basis: Orthonormal rows that span those of U, (rank, d).
    """

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows
        u, s, vh = row_svd(rows)
        kept = s > RANK_TOLERANCE * (s[0] if len(s) else 1.0) * max(rows.shape)
        self.basis, self._range = vh[kept], u[:, kept]
        self.rank = len(self.basis)
        self._size = s[kept]
        self._inverse = vh[kept].T / s[kept] @ u[:, kept].T
        self._made: dict[Any, Tensor] = {}

    def refuse_contradictions(self, right: Tensor) -> None:
        """b must lie in the range of A, each row measured by the b of the rows it depends on, and by rounding."""
        if self.rank == len(self._range):
            return
        right = right.T
        gap = (right - self._range @ (self._range.T @ right)).abs()
        scale = (self._range @ self._range.T).abs() @ right.abs() + right.abs()
        rounding = len(gap) * 64 * EPSILON * right.abs().amax(0)
        if bool((gap > CONSISTENCY_TOLERANCE * scale + rounding).any()):
            self._refuse_units()
            raise InfeasibleSet(
                f"A z = b has no solution: rank {self.rank} of {len(self._rows)} rows, "
                f"least-squares residual {float(gap.max()):.3g} (rows scaled to length one)"
            )

    def _refuse_units(self) -> None:
        """SettingError if the rows differ only in coordinates that vanish beside others: units, not a contradiction."""
        columns = self._rows.abs().amax(0)
        used = columns > 0
        if int(torch.linalg.matrix_rank(self._rows[:, used] / columns[used])) > self.rank:
            ratio = float(columns.max() / columns[used].min())
            raise SettingError(
                f"the equations differ in coordinates whose coefficients are {ratio:.1e} times smaller than others, "
                "which float64 cannot resolve. Write z in units that make its coordinates comparable: "
                "Affine(A * units, b) is the set of z / units"
            )

    def point(self, right: Tensor) -> Tensor:
        """The shortest z with U z = right, rows of (n, m)."""
        return (right @ self._range) / self._size @ self.basis

    def step(self, gap: Tensor) -> Tensor:
        """The same, for a correction."""
        return gap @ placed(self._inverse, gap).T

    def heights(self, offset: Tensor) -> Tensor:
        """Numbers (n, k) whose squares add up to the squared distance of offsets from U z = 0."""
        return offset @ self.basis.to(offset).T

    def tangent(self, y: Tensor) -> Tensor:
        return tangent(y, placed(self.basis, y))

    def inside_fast(self, y: Tensor) -> Tensor:
        """The part of y with U v = 0, in one pass."""
        basis = once(self._made, y, lambda: placed(self.basis, y))
        return torch.addmm(y, y @ basis.T, basis, alpha=-1.0)

    def inside_direction(self) -> Tensor | None:
        left = 1.0 - self.basis.square().sum(0)  # of the unit vectors, what is along the set: the largest is taken
        best = int(left.argmax())
        if float(left[best]) < 1e-9:
            return None
        v = -self.basis[:, best] @ self.basis
        v[best] += 1.0
        return v / torch.linalg.vector_norm(v)


def _refuse_dependent(system: SparseSystem, right: Tensor, kept: Tensor) -> None:
    """InfeasibleSet unless rows that are combinations of others ask for the same combination of b."""
    rows, coefficients = system.dependent
    if not len(rows):
        return
    known = right[:, system.independent]
    gap = (right[:, rows] - known @ coefficients.T).abs()
    scale = known.abs() @ coefficients.abs().T + right[:, rows].abs()
    rounding = len(system.matrix) * 64 * EPSILON * right.abs().amax(1, keepdim=True)
    wrong = torch.nonzero(gap > CONSISTENCY_TOLERANCE * scale + rounding)
    if len(wrong):
        chain, number = (int(i) for i in wrong[0])
        where = "" if len(right) == 1 else f" in chain {chain}"
        raise InfeasibleSet(
            f"A z = b has no solution{where}: rank {system.rank} of {len(system.matrix)} rows; row "
            f"{int(kept[rows[number]])} is a combination of others, which misses its b by "
            f"{float(gap[chain, number]):.3g} (rows scaled to length one)"
        )


@register
class HalfSpace(Constraint):
    """One linear inequality.

    C = {z : a . z <= b}; P(z) = z - max(0, a . z - b) a / |a|^2.

    The violation is max(0, a . z - b) / (sum_j |a_j z_j| + |b|), a relative error. C is all of space if a = 0 <= b or
    b is plus infinity, and empty if a = 0 > b.

    Args:
        a: Normal, with as many entries as an event has coordinates.
        b: Level; may be PerChain.
    """

    convex = True
    solid = True
    _equation_count = 0
    per_chain = ("b",)
    b: Any  # a number, or PerChain

    def __init__(self, a: Any, b: Any) -> None:
        self.a, self.b, length = _normal_and_level(a, b)
        self._coordinates = len(self.a)
        self.chains = common_chains(b=self.b)
        level, bad = parameter(self.b), first_failure(parameter(self.b) >= (0.0 if length == 0.0 else LOWEST))
        if not length < math.inf or bad is not None:
            found = f"|a| = {length:g}, b = {show(level, bad or 0)}"
            raise InfeasibleSet(f"a . z <= b needs a finite normal, and b >= 0 where that is zero; got {found}")
        self._normal = self.a / (length or 1.0)
        self._level = level / length if length else torch.full_like(level, torch.inf)

    def __repr__(self) -> str:
        return f"HalfSpace(d={len(self.a)}, b={self.b:g})"

    def sides(self) -> tuple[Tensor, Tensor]:
        """G and h of {z : G z <= h}, where b is common to all chains."""
        return self.a[None], torch.tensor([self.b], dtype=torch.float64)

    def inequalities(self, z: Tensor) -> Tensor:
        return self._side.rows((flat(z) @ placed(self._normal, z))[:, None])

    def linear(self, event: Event) -> Rows | None:
        kept = slice(1 if bool(torch.isfinite(self._level).any()) else 0)
        level = self._level[:, None][:, kept]
        return Rows.of(self._normal[None][kept], torch.full_like(level, -torch.inf), level)

    def _geometry(self, event: Event) -> Geometry:
        return Geometry(Parts(None, self), within=self._within)

    @cached_property
    def _side(self) -> BoundRows:
        """The inequality as a bound on a . z / |a|."""
        return BoundRows(self._level[:, None], 1.0)

    def _height(self, z: Tensor) -> Tensor:
        """(a . z - b) / |a|."""
        height = flat(z) @ placed(self._normal, z)
        return height - over(self._level, height)

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
        high = over(self._level, y.new_zeros(len(y)))
        return y.new_tensor(-math.inf), high.expand(len(y))

    def _project_fast(self, z: Tensor, warm: Tensor | None = None) -> Tensor:
        return (flat(z) - self._height(z).clamp_min(0.0)[:, None] * placed(self._normal, z)).reshape(z.shape)

    def _within(self, space: Subspace) -> Constraint | None:
        normal = space.coordinates(self.a[None])
        return None if normal is None else HalfSpace(normal[0], self.b)

    def _project(self, z: Tensor) -> Tensor:
        y, normal = flat(z), placed(self._normal, z)
        peak = y.abs().amax(1).clamp_min(1.0)
        outside = (y / peak[:, None]) @ normal > over(self._level, peak) / peak
        point = tangent(y, normal[None]) + over(self._level, y) * normal
        return torch.where(outside[:, None], point, y).reshape(z.shape)

    def _excess(self, z: Tensor, lost: Tensor | None) -> Excess:
        level = self._level[:, None].to(z)
        return rows_missed(flat(z), lost, self._normal[None], level, norm(self.a[None]))

    def component_name(self, event: Event, row: int) -> str:
        return f"a . z <= {self.b:g}" if self.chains is None else "a . z <= b"


@register
class Box(Constraint):
    """Bounds on every coordinate.

    C = {z : low <= z <= high}, coordinate by coordinate; P(z) = min(max(z, low), high).

    The violation is the largest excess over a bound, relative to |z_i| + |bound_i|, or to the width high_i - low_i if
    that is smaller.

    Args:
        low: Lower bounds: a number, or a tensor that broadcasts to an event. None or minus infinity for no bound.
            PerChain: (n,), or (n, ...) with one of these for each chain.
        high: Upper bounds, likewise; None or plus infinity for no bound.

    >>> Box(0.0, None).project(torch.tensor([[-1.0, 2.0]]))
    tensor([[0., 2.]])
    """

    convex = True
    _equation_count = 0
    per_chain = ("low", "high")
    low: Any  # tensors, or PerChain
    high: Any

    def __init__(self, low: Any = None, high: Any = None) -> None:
        self.chains = common_chains(low=low, high=high)
        sides = (
            parameter(copied(side)) for side in (-math.inf if low is None else low, math.inf if high is None else high)
        )
        self._low, self._high = together(*sides)
        self.low, self.high = (argument(side, self.chains is not None) for side in (self._low, self._high))
        _refuse_crossed(*(side if self.chains is not None else side[0] for side in (self._low, self._high)))
        self.solid = bool((self._low < self._high).all())

    def __repr__(self) -> str:
        low, high = (brief(side) for side in (self.low, self.high))
        return f"Box(low={low}, high={high})"

    @classmethod
    def flattened(cls, low: Tensor, high: Tensor, own: bool) -> Box:
        """From bounds (1 or n, d) on the coordinates of events of any shape, in their order."""
        box = cls(argument(low, own), argument(high, own))
        box._coordinates = low.shape[1]
        return box

    def validate(self, event: Event) -> None:
        if self._coordinates is None:
            check_fits(self._low, event, "bounds")
        super().validate(event)

    @property
    def written_for(self) -> int | None:
        """As many coordinates as there are bounds in a row; None for one bound, which serves any number."""
        several = self._low.ndim == 2 and self._low.shape[1] > 1
        return self._coordinates or (self._low.shape[1] if several else None)

    def inequalities(self, z: Tensor) -> Tensor:
        return torch.cat([side.rows(flat(z)) for side in self._sides(z)], dim=1)

    def _residual_pull(self, z: Tensor, weights: Tensor) -> Tensor | None:
        sides = self._sides(z)
        own = weights.split([side.count for side in sides], dim=1)
        pulled = [side.pull(flat(z), part) for side, part in zip(sides, own, strict=True)]
        return torch.stack(pulled).sum(0).reshape(z.shape)

    def _sides(self, z: Tensor) -> tuple[BoundRows, BoundRows]:
        """Lower and upper bounds as rows, for events of this shape."""
        event = tuple(z.shape[1:])
        ends = self._low, self._high
        return self._once(("sides", event), lambda: bound_rows(*(over_flattened(end, event) for end in ends)))

    def linear(self, event: Event) -> Rows | None:
        return Rows.within(*(over_flattened(side, event) for side in (self._low, self._high)))

    def bounds(self, event: Event) -> tuple[Tensor, Tensor] | None:
        low, high = (over_flattened(side, event).reshape(-1, *event) for side in (self._low, self._high))
        return low, high

    def _geometry(self, event: Event) -> Geometry:
        """Coordinates with low = high are equations. The surface part is a box too: no bounds on the others."""
        if self._coordinates is not None and len(event) > 1:
            return self._shaped(event)._geometry(event)
        if not bool(self._pinned.any()):
            return Geometry(Parts(None, self))
        edge = self._has_an_edge
        return Geometry(
            Parts(self._bounds_where(self._pinned), self._bounds_where(~self._pinned)) if edge else Parts(self, None),
            codimension=lambda: self._count_pinned(event),
            log_volume=None if edge else flat_volume,
            sphere_in_flat=None if edge else lambda: self._pins(event),
        )

    def _count_pinned(self, event: Event) -> int | None:
        counts = over_flattened(self._pinned, event).sum(1)
        return int(counts[0]) if bool((counts == counts[0]).all()) else None

    @cached_property
    def _pinned(self) -> Tensor:
        """Where low = high, in the shape of the bounds."""
        return self._low == self._high

    def _tidied(self, event: Event) -> Sequence[str]:
        count = self._count_pinned(event)
        return (f"{count} coordinates fixed",) if count else ()

    @cached_property
    def _has_an_edge(self) -> bool:
        """Whether a coordinate has bounds that do not fix it."""
        bounded = torch.isfinite(self._low) | torch.isfinite(self._high)
        return bool((bounded & ~self._pinned).any())

    def _bounds_where(self, chosen: Tensor) -> Box:
        """The same bounds where ``chosen``, none elsewhere."""
        low = torch.where(chosen, self._low, -torch.inf)
        high = torch.where(chosen, self._high, torch.inf)
        return Box(*(argument(side, self.chains is not None) for side in (low, high)))

    def _ball_around(self, event: Event) -> tuple[Tensor, Tensor] | None:
        low, high = (over_flattened(side, event) for side in (self._low, self._high))
        if not bool((torch.isfinite(low) & torch.isfinite(high)).all()):
            return None
        return (0.5 * (low + high)).reshape(-1, *event), 0.5 * norm(high - low)

    def _shaped(self, event: Event) -> Box:
        """The same for events of a shape, from bounds for flattened ones."""
        sides = (side.reshape(-1, *event) for side in (self._low, self._high))
        return Box(*(argument(side, self.chains is not None) for side in sides))

    def _pins(self, event: Event) -> SphereInFlat | None:
        """The coordinates that are fixed, as equations, where they are the same for all chains."""
        pinned, values = over_flattened(self._pinned, event), over_flattened(self._low, event)
        if self._has_an_edge or bool((pinned != pinned[:1]).any()):
            return None
        index = torch.nonzero(pinned[0]).flatten()
        rows = torch.zeros(len(index), pinned.shape[1], dtype=torch.float64).scatter_(1, index[:, None], 1.0)
        return SphereInFlat(rows, values[:, index])

    def _sample_near(self, y: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
        """Coordinate by coordinate, a Gaussian cut to [low, high]."""
        return truncated_normal(y, sigma, over(self._low, y), over(self._high, y), generator)

    def _log_normaliser(self, y: Tensor, sigma: float) -> Tensor:
        """Sum of log[Phi((high - y) / sigma) - Phi((low - y) / sigma)]; of log-densities where low = high."""
        return flat(log_interval_mass(y, sigma, over(self._low, y), over(self._high, y))).sum(1)

    def _project_fast(self, z: Tensor, warm: Tensor | None = None) -> Tensor:
        return self._project(z)

    def _project(self, z: Tensor) -> Tensor:
        return torch.clamp(z, over(self._low, z), over(self._high, z))

    def _excess(self, z: Tensor, lost: Tensor | None) -> Excess:
        low, high = (flat(over(side, z).expand_as(z)) for side in (self._low, self._high))
        return bounds_missed(flat(z), lost, low, high)

    def component_name(self, event: Event, row: int) -> str:
        return coordinate_bounds(row, event, *(over_flattened(side, event)[0] for side in (self._low, self._high)))


def points_where_zero(radius: Tensor, center: Tensor | None, event: Event) -> Box:
    """The centre (1 or n, ...) where a radius (1 or n,) is zero, all of space in chains where it is not."""
    middle = torch.zeros(1, *event, dtype=torch.float64) if center is None else center.reshape(-1, *event)
    zero = (radius == 0).reshape(-1, *[1] * len(event))
    return Box(*(argument(torch.where(zero, middle, free)) for free in (-torch.inf, torch.inf)))


def unbounded(event: Event) -> tuple[Tensor, Tensor]:
    """Bounds (1, *event) that say nothing."""
    low = torch.full((1, *event), -torch.inf, dtype=torch.float64)
    return low, -low


@register
class Polytope(Constraint):
    """Several linear inequalities.

    C = {z : G z <= h}, row by row; P(z) = z - G^T lam with the multipliers lam >= 0 of the active rows.

    The nearest point is found by Newton's method on the multipliers (``solvers.flat_sets``): to rounding, typically
    within 5 to 20 steps, for all chains at once. The rows are scaled to length one. Zero rows, redundant and repeated
    rows and pairs of opposite rows (an equation) do no harm; C need not be bounded. A chain that does not get there
    within the budget is flagged.

    An empty C raises InfeasibleSet if a Farkas certificate v >= 0, G^T v = 0, h . v < 0 is found, which takes one
    projection. A set that is empty by less than rounding can tell is not caught there; then no chain converges, and
    each is returned with the smallest residual found.

    The violation is the largest max(0, g_i . z - h_i) / (sum_j |g_ij z_j| + |h_i|), a relative error.

    Args:
        G: Matrix (m, d), d the coordinates of an event; or (m, *event); or one row (d,).
        h: Levels (m,), or a number for all rows. Plus infinity is allowed and says nothing.

    >>> Polytope([[1.0, 1.0], [-1.0, 1.0]], [2.0, 1.0]).project(torch.tensor([[1.0, 3.0], [2.0, 2.0]]))
    tensor([[0.5000, 1.5000],
            [1.0000, 1.0000]])
    """

    exact = False
    convex = True
    _equation_count = 0

    def __init__(self, G: Any, h: Any) -> None:
        self.G = _matrix(G)
        self._coordinates = self.G.shape[1]
        self.h = parameter(_for_each(h, self.G, "h", "G has {} row"))[0]
        unit_rows, level, self._kept = _inequalities(self.G, self.h)
        self._lengths = norm(self.G)[self._kept]
        self._matrix, self._level = unit_rows, level
        self._set = FlatSet(Rows.of(unit_rows, torch.full_like(level, -torch.inf), level))
        self.solid = self._examine()

    def __repr__(self) -> str:
        return f"Polytope({self.G.shape[0]} x {self.G.shape[1]})"

    @property
    def way(self) -> Way:
        return Way.QUADRATIC_PROGRAMME

    def sides(self) -> tuple[Tensor, Tensor]:
        """G and h."""
        return self.G, self.h

    def inequalities(self, z: Tensor) -> Tensor:
        return flat(z) @ placed(self._matrix, z).T - placed(self._level, z)

    def linear(self, event: Event) -> Rows | None:
        return Rows.of(self._matrix, torch.full_like(self._level, -torch.inf), self._level)

    def _geometry(self, event: Event) -> Geometry:
        """Rows that hold with equality on all of C, such as a pair of opposite rows, are equations."""
        rows = self.linear(event)
        return Geometry(Parts(None, self) if self.solid or rows is None else (flat_parts(rows) or Parts(self, None)))

    def _tidied(self, event: Event) -> Sequence[str]:
        return self._set.found

    def _solve(self, z: Tensor, budget: Budget, warm: Tensor | None) -> Projection:
        return self._set.project(z, budget, warm)

    def _excess(self, z: Tensor, lost: Tensor | None) -> Excess:
        return rows_missed(flat(z), lost, self._matrix, placed(self._level, z), self._lengths)

    def component_name(self, event: Event, row: int) -> str:
        return f"inequality {int(self._kept[row])} of G z <= h"

    def _examine(self) -> bool:
        """Raise InfeasibleSet if C is provably empty; tell whether it has an interior."""
        if not len(self._matrix):
            return True
        sides = _Sides(self._matrix, self._level, torch.zeros_like(self._level, dtype=torch.bool))
        if (implied := sides.implied()) is not None:
            return not bool(implied.any())
        start = self._matrix.new_zeros(1, self._matrix.shape[1])
        found = self._set.nearest(start, Budget())
        if bool(found.converged[0]):
            return sides.has_room(found.point, ~sides.equal)
        whole = FlatSet(sides.rows(), tidy=False)  # the proof is about the rows as they were given
        found = whole.nearest(start, Budget())
        proof = int(whole.proves_empty(found.drift, torch.zeros(1, dtype=torch.long)).sum())
        if proof:
            raise InfeasibleSet(
                f"G z <= h has no solution: {proof} of {len(self._matrix)} rows contradict each other; "
                f"the best point found misses them by {float(found.residual[0]):.3g} (relative)"
            )
        return False


class _Sides(NamedTuple):
    """Rows G z <= b, some with = instead, one by one."""

    matrix: Tensor
    bound: Tensor
    equal: Tensor

    @classmethod
    def of(cls, rows: Rows) -> _Sides:
        """All rows and bounds of a set that is common to all chains; those with two ends twice."""
        matrix, (low,), (high,) = rows.written_out()
        equal = low == high
        above, below = high < torch.inf, (low > -torch.inf) & ~equal
        turned = torch.cat([matrix[above], -matrix[below]]), torch.cat([high[above], -low[below]])
        return cls(*turned, torch.cat([equal[above], equal[below]]))

    def rows(self) -> Rows:
        return Rows.of(self.matrix, torch.where(self.equal, self.bound, -torch.inf), self.bound)

    def implied(self) -> Tensor | None:
        """Which inequalities hold with equality on all of the set, by linear programmes; None where these fail."""
        E, W = self.equal, ~self.equal
        few = len(self.equal) <= MOST_ROWS
        return implied_equations(self.matrix[E], self.bound[E], self.matrix[W], self.bound[W]) if few else None

    def has_room(self, point: Tensor, chosen: Tensor) -> bool:
        """Whether the chosen rows can all hold with room to spare, from a point (1, d) where all of them hold."""
        room = INTERIOR * (norm(point) + self.bound.abs())
        room = torch.where(room > 0, room, torch.full_like(room, INTERIOR))
        tighter = self._replace(bound=torch.where(chosen, self.bound - room, self.bound))
        return bool(FlatSet(tighter.rows()).nearest(point, Budget()).converged[0])


def flat_parts(rows: Rows, *, only_in_disguise: bool = False) -> Parts | None:
    """Equations and inequalities of a flat set apart; None if they cannot be told apart.

    An inequality is an equation in disguise if it cannot hold with room to spare while the others hold. If each of the
    rest can, all of them can at once (take the mean of the points), so the rest has an interior.

    Args:
        rows: The set, common to all chains.
        only_in_disguise: None as well if no inequality is an equation in disguise.
    """
    sides = _Sides.of(rows)
    equal = sides.equal.clone()
    implied = sides.implied()
    if implied is not None:
        equal[~equal] = implied
    elif bool((~equal).any()):
        found = FlatSet(rows).nearest(sides.matrix.new_zeros(1, sides.matrix.shape[1]), Budget())
        if not bool(found.converged[0]):
            return None
        if not sides.has_room(found.point, ~equal):
            if len(equal) > MOST_ROWS:
                return None
            for row in torch.nonzero(~equal).flatten():
                equal[row] = not sides.has_room(found.point, torch.arange(len(equal)) == row)
    if only_in_disguise and bool((equal == sides.equal).all()):
        return None
    try:
        surface = Affine(sides.matrix[equal], sides.bound[equal]) if bool(equal.any()) else None
        left = ~equal
        solid = Polytope(sides.matrix[left], sides.bound[left]) if bool(left.any()) else None
    except InfeasibleSet:
        return None
    return Parts(surface, solid) if solid is None or solid.solid else None


NEWTON_STEPS, SMALLEST_SLOPE = (8, 64), 1e-3
"""Newton steps of a fast projection, of all chains and of those that are not there then, and the least slope that they
divide by: the slope is one far inside the bounds."""


@register
class BoxHyperplane(Constraint):
    """Bounds on every coordinate and one linear equation.

    C = {z : low <= z <= high, a . z = b}.

    P(y) = z(lam) with z(lam) = min(max(y - lam a, low), high) and the multiplier lam such that a . z(lam) = b.
    a . z(lam) falls with lam and is linear between the breakpoints (y_i - low_i) / a_i and (y_i - high_i) / a_i, so
    Newton's method with an exact line search (``solvers.flat_sets``) ends after a few steps, and lies in the box. The
    nearest point is unique everywhere. Coordinates with a_i = 0 are only clamped.

    The violation is the larger of that of the bounds, see ``Box``, and |a . z - b| / (sum_j |a_j z_j| + |b|).

    Args:
        low: Lower bounds: a number, or one for each coordinate of the flattened event. Minus infinity is allowed.
            PerChain: (n,) or (n, d).
        high: Upper bounds, likewise; plus infinity is allowed.
        a: Normal, with as many entries as an event has coordinates.
        b: Level; may be PerChain.

    >>> BoxHyperplane(0.0, 1.0, [1.0, 1.0, 1.0], 1.5).project(torch.tensor([[3.0, 0.5, 0.0]]))
    tensor([[1.0000, 0.5000, 0.0000]])
    """

    convex = True
    _equation_count = 1
    per_chain = ("low", "high", "b")

    def __init__(self, low: Any, high: Any, a: Any, b: Any) -> None:
        self.a, self.b, length = _normal_and_level(a, b)
        level, bad = parameter(self.b), first_failure(torch.isfinite(parameter(self.b)))
        if not 0.0 < length < math.inf or bad is not None:
            found = f"|a| = {length:g}, b = {show(level, bad or 0)}"
            raise InfeasibleSet(f"BoxHyperplane needs a finite, nonzero normal and a finite level; got {found}")
        self._coordinates = len(self.a)
        self.chains = common_chains(low=low, high=high, b=self.b)
        self.low = _for_each(low, self.a, "low", "a has {} coordinate")
        self.high = _for_each(high, self.a, "high", "a has {} coordinate")
        below, above = self._low, self._high = parameter(self.low), parameter(self.high)
        wide = torch.broadcast_tensors(below, above)
        _refuse_crossed(*(side if len(side) > 1 else side[0] for side in wide))
        self._normal, self._level = self.a / length, parameter(self.b)[:, None] / length
        rising = self._normal >= 0
        # The corners of the box where a . z is largest (lam = -infinity) and smallest (lam = +infinity).
        self._top, self._bottom = torch.where(rising, above, below), torch.where(rising, below, above)
        for chain in range(self.chains or 1):
            self._check_level(length, chain)

    def _check_level(self, length: float, chain: int) -> None:
        used = self._normal != 0
        own_level, *corners = (part[chain if len(part) > 1 else 0] for part in (self._level, self._bottom, self._top))
        level, where = float(own_level), self._in_chain(chain)
        ends = [(self._normal[used] * corner[used]).tolist() for corner in corners]
        least, most = (
            math.fsum(end) if all(map(math.isfinite, end)) else sign * math.inf
            for end, sign in zip(ends, (-1, 1), strict=True)
        )
        slack = [ROUNDING * (abs(level) + sum(map(abs, end))) for end in ends]
        if level < least - slack[0] or level > most + slack[1]:
            raise InfeasibleSet(
                f"a . z = {length * level:g} is out of reach{where}: "
                f"inside the bounds a . z runs from {length * least:g} to {length * most:g}"
            )

    def __repr__(self) -> str:
        return f"BoxHyperplane(d={len(self.a)}, b={self.b:g})"

    def equations(self, z: Tensor) -> Tensor:
        self._check_chains(z)
        return self._gap(flat(z))

    def _gap(self, y: Tensor) -> Tensor:
        """(a . z - b) / |a|, (n, 1)."""
        return (y * placed(self._normal, y)).sum(1, keepdim=True) - over(self._level, y)

    def inequalities(self, z: Tensor) -> Tensor:
        return torch.cat([side.rows(flat(z)) for side in self._sides], dim=1)

    @cached_property
    def _sides(self) -> tuple[BoundRows, BoundRows]:
        """Lower and upper bounds as rows."""
        return bound_rows(self._low, self._high)

    def linear(self, event: Event) -> Rows | None:
        return Rows(self._normal[None], self._level, self._level, self._low, self._high)

    def bounds(self, event: Event) -> tuple[Tensor, Tensor] | None:
        return self._low.reshape(-1, *event), self._high.reshape(-1, *event)

    def _geometry(self, event: Event) -> Geometry:
        """a . z = b, and coordinates with low = high: all used ones where a . z can be no less, or no more, than b."""
        met = self._bounds_met()
        pinned, rest = met._pinned, met._bounds_where(~met._pinned)
        solid = rest._shaped(event) if rest._has_an_edge else None
        if not bool(pinned.any()):
            return Geometry(Parts(Affine(self.a, argument(parameter(self.b)[:, None])), solid))
        pins = met._bounds_where(pinned)
        if bool(pinned[..., self.a != 0].all()):
            return Geometry(Parts(pins._shaped(event), solid))
        if self._bounds._has_an_edge:
            return Geometry(Parts(BoxHyperplane(pins.low, pins.high, self.a, self.b), solid))
        count = self._bounds._count_pinned((self.a.numel(),))
        return Geometry(
            Parts(self, None),
            codimension=lambda: None if count is None else count + 1,
            log_volume=flat_volume,
            sphere_in_flat=self._sphere_in_flat,
        )

    @cached_property
    def _bounds(self) -> Box:
        """The bounds alone, for flattened events."""
        sides = (side.expand(self.chains or 1, -1) for side in (self._low, self._high))
        return Box(*(argument(side, self.chains is not None) for side in sides))

    def _bounds_met(self) -> Box:
        """The bounds, but both at one corner for the used coordinates if only that corner has the level."""
        used, count = self._normal != 0, self.chains or 1
        low, high = (side.expand(count, -1) for side in (self._low, self._high))
        for corner in (self._top, self._bottom):
            terms = torch.where(used, self._normal * corner, 0.0).expand(count, -1)
            slack = ROUNDING * (self._level.abs() + terms.abs().sum(1, keepdim=True))
            only = (terms.sum(1, keepdim=True) - self._level).abs() <= slack
            here = only & torch.isfinite(terms).all(1, keepdim=True) & used
            low, high = torch.where(here, corner, low), torch.where(here, corner, high)
        return Box(*(argument(side, self.chains is not None) for side in (low, high)))

    def _sphere_in_flat(self) -> SphereInFlat | None:
        pins = self._bounds._pins((self.a.numel(),))
        if pins is None:
            return None
        return SphereInFlat(torch.cat([self.a[None], pins.matrix]), join(parameter(self.b)[:, None], pins.level))

    @cached_property
    def _set(self) -> FlatSet:
        return FlatSet(Rows(self._normal[None], self._level, self._level, self._low, self._high))

    def _project(self, z: Tensor) -> Tensor:
        refuse_overflow(torch.where(flat(z).abs() > FARTHEST, torch.inf, flat(z)), self)
        self._check_chains(z)
        return self._set.project(z, Budget(), None).point

    def _project_fast(self, z: Tensor, warm: Tensor | None = None) -> Tensor:
        """A few Newton steps on a . z(lam) = b; many for chains that they send to and fro between two bounds."""
        self._check_chains(z)
        y = flat(z)
        ends = [over(part, y) for part in (self._level, self._low, self._high)]
        out, lost = _on_plane(y, placed(self._normal, y), *ends, steps=NEWTON_STEPS[0])
        if seen(lost.any()):
            some = chosen(lost)
            ends = [part[some] if len(part) > 1 else part for part in ends]
            out[some] = _on_plane(y[some], placed(self._normal, y), *ends, steps=NEWTON_STEPS[1])[0]
        return out.reshape(z.shape)

    def _excess(self, z: Tensor, lost: Tensor | None) -> Excess:
        """The equation, then the bounds."""
        self._check_chains(z)
        y = flat(z)
        equation = rows_missed(y, lost, self._normal[None], over(self._level, y), norm(self.a[None]), equal=True)
        bounds = bounds_missed(y, lost, over(self._low, y), over(self._high, y))
        return side_by_side([equation, bounds], z)

    def component_name(self, event: Event, row: int) -> str:
        return "a . z = b" if row == 0 else coordinate_bounds(row - 1, event, self._low[0], self._high[0])


def _on_plane(
    y: Tensor, normal: Tensor, level: Tensor, low: Tensor, high: Tensor, *, steps: int
) -> tuple[Tensor, Tensor]:
    """z(lam) = clip(y - lam a) after Newton steps on a . z(lam) = b, and which chains (n,) are not there.

    The slope is the sum of a_i^2 over the coordinates between their bounds. A step that leaves the interval where the
    root is known to be halves it instead, and so does every other one of many. Where no coordinate is between its
    bounds, steps get longer and longer.
    """
    lam, square = torch.zeros_like(y[:, :1]), normal.square()
    left, right = torch.full_like(lam, -torch.inf), torch.full_like(lam, torch.inf)
    eps = torch.finfo(y.dtype).eps
    for k in range(steps):
        out = torch.clamp(y - lam * normal, low, high)
        gap = (out * normal).sum(1, keepdim=True) - level
        left, right = torch.where(gap >= 0, lam, left), torch.where(gap <= 0, lam, right)
        free = ((out > low) & (out < high)).to(y) @ square
        step, middle = gap / free[:, None].clamp_min(SMALLEST_SLOPE * 4.0**-k), 0.5 * (left + right)
        halve = (lam + step <= left) | (lam + step >= right) | (k >= NEWTON_STEPS[0] and k % 2 == 1)
        halve = halve & (step.abs() > 8 * eps * lam.abs()) & torch.isfinite(middle)
        lam = torch.where(halve, middle, lam + step)
    size = (out * normal).abs().sum(1, keepdim=True) + level.abs()
    there = gap.abs() <= 4.0 * eps * math.sqrt(y.shape[1]) * size
    return out, torch.isfinite(y).all(1) & ~there.squeeze(1)


def rows_missed(
    y: Tensor,
    lost: Tensor | None,
    matrix: Tensor | SparseMatrix,
    level: Tensor,
    lengths: Tensor,
    *,
    equal: bool = False,
) -> Excess:
    """Rows g_i . y <= h_i, or = h_i, in units of sum_j |g_ij y_j| + |h_i|.

    Args:
        y: Points (n, d).
        lost: As in ``Constraint._excess``.
        matrix: g, rows of length one (m, d), dense or sparse.
        level: h, (m,), (1, m) or (n, m).
        lengths: |g_i| as they were written, (m,).
        equal: Whether the rows are equations.
    """
    sizes = matrix.abs() if isinstance(matrix, Tensor) else matrix.absolute
    top = peak(y)
    top = torch.where(top > LARGE, top, 1.0)  # numbers near the largest float are added in their own unit
    size = y.abs() if lost is None else y.abs() + flat(lost)
    gap, level = across(y / top, matrix) - level / top, torch.where(torch.isinf(level), 0.0, level.abs()) / top
    unit = across(size / top, sizes) + level
    return Excess(gap.abs() if equal else gap.clamp_min(0.0), unit, scale=top * placed(lengths, y))


def bounds_missed(y: Tensor, lost: Tensor | None, low: Tensor, high: Tensor) -> Excess:
    """Rows low_i <= y_i <= high_i, in units of |y_i| + |bound_i|, or of the width if that is smaller.

    Args:
        y: Points (n, d).
        lost: As in ``Constraint._excess``.
        low: Broadcasts to y.
        high: Likewise.
    """
    largest = torch.finfo(y.dtype).max
    amount = torch.maximum(low - y, y - high).clamp(0.0, largest)
    broken = torch.where(y < low, low, high)
    unit = y.abs() + torch.where(torch.isinf(broken), 0.0, broken.abs())
    width = high - low
    unit = torch.where((width > 0) & (width < unit), width, unit).clamp_max(largest)
    return Excess(amount, unit, 0.0 if lost is None else GRANTED * EPSILON * flat(lost))


class BoundRows:
    """Inequalities sign (y - level) <= 0 on single coordinates, for those that have a finite level in some chain.

    In a chain where it is infinite, such a row says nothing: it is a negative number of the size of the others that
    does not depend on the point, so that no gradient leads to it and no tolerance is taken from it.

    Args:
        level: Bounds (1 or n, d).
        sign: 1.0 for upper bounds, -1.0 for lower ones.
    """

    def __init__(self, level: Tensor, sign: float) -> None:
        finite = torch.isfinite(level)
        self._places = torch.nonzero(finite.any(0)).flatten()
        self._level, self._sign, self.count = level[:, self._places], sign, len(self._places)
        self._whole = self.count == level.shape[1]
        self._known = None if bool(finite[:, self._places].all()) else finite[:, self._places]

    def rows(self, y: Tensor) -> Tensor:
        """(n, count) for points (n, d)."""
        some = y if self._whole else y.index_select(1, self._places.to(y.device))
        found = self._sign * (some - over(self._level, y))
        if self._known is None:
            return found
        known = self._known.to(y.device)
        size = torch.where(known, found.detach().abs(), 0.0).amax(1, keepdim=True)
        return torch.where(known, found, -size)

    def pull(self, y: Tensor, weights: Tensor) -> Tensor:
        """What weights (n, count) of the rows are as a gradient (n, d)."""
        own = weights if self._known is None else torch.where(self._known.to(y.device), weights, 0.0)
        if self._whole:
            return self._sign * own
        return torch.zeros_like(y).index_add(1, self._places.to(y.device), own.to(y), alpha=self._sign)


def bound_rows(low: Tensor, high: Tensor) -> tuple[BoundRows, BoundRows]:
    """Lower and upper bounds (1 or n, d) as rows."""
    return BoundRows(low, -1.0), BoundRows(high, 1.0)


def coordinate_bounds(row: int, event: Event, low: Tensor, high: Tensor) -> str:
    """``low <= z[i] <= high`` in words, for flattened bounds."""
    place = torch.nonzero(torch.arange(len(low)).reshape(event) == row)[0]  # unravel_index imports sympy
    index = ", ".join(map(str, place.tolist()))
    return f"{float(low[row]):g} <= z[{index}] <= {float(high[row]):g}"


def _matrix(given: Any) -> Tensor:
    """A dense matrix (m, d) of its own, from (m, *event), one row (d,), or a sparse matrix of torch or SciPy."""
    if isinstance(given, Tensor) and given.layout != torch.strided:
        given = given.to_dense()
    dense = given.toarray() if hasattr(given, "toarray") else given
    return torch.atleast_2d(real(dense)).flatten(1).clone()


def _for_each(given: Any, rows: Tensor | SparseMatrix, name: str, what: str) -> Any:
    """An argument with one number for each of the rows, or for each of them and each chain."""
    value = copied(given)
    values = parameter(value)
    numbers = values.reshape(len(values), -1).to(rows.device)
    if numbers.shape[1] not in (1, len(rows)):
        count, given = len(rows), numbers.shape[1]
        own = common_chains(value=value) is not None or name == "h"
        hint = f"give one number, or {count}" if own else f"one per chain? Use casal.PerChain({name})"
        raise ShapeError(f"{what}{'s' * (count != 1)}, {name} {given} values; {hint}".format(count))
    return argument(numbers.expand(-1, len(rows)).clone(), common_chains(value=value) is not None)


def _normal_and_level(a: Any, b: Any) -> tuple[Tensor, Any, float]:
    """a and b of a . z = b or <= b, and |a|."""
    normal = real(a).reshape(-1).clone()
    return normal, one_number(b, "b"), float(norm(normal[None])[0])


def _right_of(numbers: Tensor, lengths: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """b (..., m) for rows scaled to length one, and which rows are kept.

    A zero row says 0 = b_i: dropped if true, InfeasibleSet if not.
    """
    if not (bool(torch.isfinite(numbers).all()) and bool(torch.isfinite(b).all())):
        raise InfeasibleSet("the equations contain non-finite numbers")
    empty, count = lengths == 0, len(lengths)
    wrong = torch.nonzero((empty & (b != 0)).reshape(-1, max(count, 1)))  # there may be no row at all
    if len(wrong):
        row, value = int(wrong[0, 1]), float(b.reshape(-1, count)[tuple(wrong[0])])
        raise InfeasibleSet(f"row {row} of A is zero but b[{row}] = {value:g}: no z can satisfy it")
    kept = torch.nonzero(~empty).flatten()
    return b[..., kept] / lengths[kept], kept


def _inequalities(G: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows scaled to length one, and which are kept. A zero row says 0 <= h_i: dropped if true, else InfeasibleSet."""
    if not bool(torch.isfinite(G).all()) or bool((torch.isnan(h) | (h == -torch.inf)).any()):
        raise InfeasibleSet("the inequalities contain non-finite numbers (only h = +infinity is allowed)")
    lengths = norm(G)
    empty = lengths == 0
    if bool((h[empty] < 0).any()):
        row = int(torch.nonzero(empty & (h < 0))[0])
        raise InfeasibleSet(f"row {row} of G is zero but h[{row}] = {float(h[row]):g} < 0: no z can satisfy it")
    kept = torch.nonzero(~empty & (h / lengths < torch.inf)).flatten()
    return G[kept] / lengths[kept, None], h[kept] / lengths[kept], kept


def _refuse_crossed(low: Tensor, high: Tensor) -> None:
    bad = ~(low <= high) | (low == torch.inf) | (high == -torch.inf)
    if bool(bad.any()):
        worst = tuple(torch.nonzero(bad)[0].tolist()) if bad.ndim else ()
        raise InfeasibleSet(
            f"low <= high fails for {int(bad.sum())} of {bad.numel()} bounds, first at {worst}: "
            f"low = {float(low[worst]):g}, high = {float(high[worst]):g}"
        )
