"""What every set offers: a projection, and a violation computed independently from its definition."""

from __future__ import annotations

import functools
import inspect
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from casal.checks import Event, positive
from casal.constraints.parameters import PerChain, check_count, join, shown
from casal.constraints.reduction import Reduction, reduced
from casal.constraints.solvers.sparse_rows import SparseMatrix, across, stack
from casal.constraints.vectors import EPSILON, floating, norm, over_events, relative
from casal.devices import on_host, seen
from casal.errors import CasalError, InfeasibleSet, ProjectionError, SettingError, ShapeError

Made = TypeVar("Made")


class Budget(NamedTuple):
    """Limits the work of an iterative projection.

    Attributes:
        tolerance: Stop once the violation (in the unit of the set) is below this.
        iterations: Stop after this many iterations in any case.

    >>> import casal
    >>> casal.Budget(tolerance=1e-6, iterations=50)
    Budget(tolerance=1e-06, iterations=50)
    """

    tolerance: float = 1e-12
    iterations: int = 1000


def tightening(first: float = 1e-2, last: float = 1e-10, iterations: int = 1000) -> Callable[[float], Budget]:
    """Budgets for ``casal.sample``: a loose tolerance early, where exactness is wasted, a tight one at the end.

    >>> round(tightening(1e-2, 1e-10)(0.5).tolerance, 12)
    1e-06
    """
    return lambda progress: Budget(first * (last / first) ** progress, iterations)


class Projection(NamedTuple):
    """The result of a projection, chain by chain.

    Attributes:
        point: (n, *event), the best point found.
        converged: (n,) bool; always true for closed forms.
        iterations: (n,) int; zero for closed forms.
        residual: (n,) what was left when it stopped, in the unit of the tolerance; zero for closed forms.

    >>> import casal
    >>> import torch
    >>> found = casal.Sphere(2.0).solve(torch.tensor([[3.0, 4.0]], dtype=torch.float64))
    >>> isinstance(found, casal.Projection), found.point.tolist(), found.converged.tolist()
    (True, [[1.2, 1.6]], [True])
    """

    point: Tensor
    converged: Tensor
    iterations: Tensor
    residual: Tensor


class Way(Enum):
    """How a projection is found."""

    CLOSED_FORM = "closed form"
    ITERATIVE = "iterative"
    QUADRATIC_PROGRAMME = "quadratic programme"
    GRADIENTS = "accelerated projected gradients"
    NEWTON = "Newton steps"
    DYKSTRA = "Dykstra"
    ALTERNATING = "alternating projections"
    ADMM = "ADMM"
    SPLITTING = "splitting"
    PIECES = "nearest of the pieces"


class Rows(NamedTuple):
    """A set with flat sides, low <= G z <= high and below <= z <= above, rows of G of length one; ends may be infinite.

    Attributes:
        matrix: G (m, d), dense or sparse.
        low: (1 or n, m), one row of numbers for all chains or one for each.
        high: Likewise.
        below: Bounds on single coordinates, (1 or n, d).
        above: Likewise.
    """

    matrix: Tensor | SparseMatrix
    low: Tensor
    high: Tensor
    below: Tensor
    above: Tensor

    @classmethod
    def of(cls, matrix: Tensor | SparseMatrix, low: Tensor, high: Tensor) -> Rows:
        """Rows without bounds; low and high (m,) or (1 or n, m)."""
        free = torch.full((1, matrix.shape[1]), torch.inf, dtype=torch.float64)
        return cls(matrix, torch.atleast_2d(low), torch.atleast_2d(high), -free, free)

    @classmethod
    def within(cls, below: Tensor, above: Tensor) -> Rows:
        """Bounds (1 or n, d) alone."""
        none = torch.zeros(1, 0, dtype=torch.float64)
        return cls(torch.zeros(0, below.shape[1], dtype=torch.float64), none, none, below, above)

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """The rows and the bounds of several sets."""
        matrix = functools.reduce(stack, (part.matrix for part in parts))
        low, high = (join(*ends) for ends in zip(*(part[1:3] for part in parts), strict=True))
        below, above = zip(*(part[3:] for part in parts), strict=True)
        tightest = functools.reduce(torch.maximum, below), functools.reduce(torch.minimum, above)
        return cls(matrix, low, high, *tightest)

    def padded(self, start: int, size: int) -> Rows:
        """The same for coordinates start, start + 1, ... of ``size``; the others are free."""
        ends = start, size - start - self.matrix.shape[1]
        if isinstance(self.matrix, SparseMatrix):
            own = self.matrix
            matrix: Tensor | SparseMatrix = SparseMatrix(own.rows, own.columns + start, own.values, (len(own), size))
        else:
            matrix = torch.nn.functional.pad(self.matrix, ends)
        below = torch.nn.functional.pad(self.below, ends, value=-math.inf)
        return Rows(matrix, self.low, self.high, below, torch.nn.functional.pad(self.above, ends, value=math.inf))

    def moved(self, stretch: float, shift: Tensor) -> Rows:
        """Of {stretch z + shift}, shift (1 or n, d)."""
        rows = across(shift, self.matrix)
        ends = (stretch * end + by for end, by in zip(self[1:], (rows, rows, shift, shift), strict=True))
        return Rows(self.matrix, *ends)

    @property
    def rows_and_bounds(self) -> int:
        """Rows, and coordinates that have a bound."""
        bounded = (torch.isfinite(self.below) | torch.isfinite(self.above)).any(0)
        return self.matrix.shape[0] + int(bounded.sum())

    @property
    def chains(self) -> int:
        """For how many chains there are numbers; one if they are common to all."""
        return max(len(part) for part in self[1:])

    def written_out(self) -> tuple[Tensor, Tensor, Tensor]:
        """G (m, d) dense, low and high (1 or n, m): finite bounds are rows too."""
        matrix = self.matrix if isinstance(self.matrix, Tensor) else self.matrix.to_dense()
        matrix = torch.cat([matrix, torch.eye(matrix.shape[1], dtype=torch.float64)])
        low, high = join(self.low, self.below), join(self.high, self.above)
        kept = torch.isfinite(low).any(0) | torch.isfinite(high).any(0)
        return matrix[kept], low[:, kept], high[:, kept]

    def bounds(self, event: Event) -> tuple[Tensor, Tensor] | None:
        """Low and high (1 or n, *event) if every inequality is about one coordinate; else None."""
        inequality = ((self.low < self.high) & (torch.isfinite(self.low) | torch.isfinite(self.high))).any(0)
        if not bool(inequality.any()):
            return self.below.reshape(-1, *event), self.above.reshape(-1, *event)
        whole = self.matrix if isinstance(self.matrix, SparseMatrix) else SparseMatrix.from_dense(self.matrix)
        matrix = whole.some_rows(torch.nonzero(inequality).flatten())
        if len(matrix.rows) != len(matrix) or len(matrix.rows.unique()) != len(matrix):
            return None
        ends = torch.stack([side[:, inequality] / matrix.values for side in (self.low, self.high)])
        at, one, other = (v.expand(self.chains, -1) for v in (matrix.columns[None], ends.amin(0), ends.amax(0)))
        low = self.below.expand(self.chains, -1).scatter_reduce(1, at, one, "amax")
        high = self.above.expand(self.chains, -1).scatter_reduce(1, at, other, "amin")
        return low.reshape(-1, *event), high.reshape(-1, *event)


class Excess(NamedTuple):
    """By how much points miss a definition, row by row: every equation, inequality and bound is a row.

    The violation of a row is max(0, amount - rounding) / unit.

    Attributes:
        amount: (n, m) >= 0, how far a row is from holding, times ``scale`` in the unit in which the set is written; for
            a set of images (through, shifted, scaled), in that of the set they lie in.
        unit: (n, m), what counts as one: the sum of the absolute values of the terms of the row, or a length of its
            own such as a radius or a width; never those of other rows.
        rounding: What rounding allows where the unit is a length of its own: 16 roundings of the terms, (n, m) or 0.
        scale: Amounts and units are kept in this unit, (n, m) or a number, so that they stay finite.
    """

    amount: Tensor
    unit: Tensor
    rounding: Tensor | float = 0.0
    scale: Tensor | float = 1.0

    def violation(self) -> Tensor:
        """(n, m): what is missing in units of the row. Below the smallest normal float, rounding is absolute."""
        small = self.scale.clamp_max(1.0) if isinstance(self.scale, Tensor) else min(self.scale, 1.0)
        return relative((self.amount - self.rounding).clamp_min(0.0) * small, self.unit * small)

    def given(self) -> Tensor:
        """(n, m): what is missing in the unit in which the set is written."""
        return (self.amount * self.scale).clamp_max(torch.finfo(torch.float64).max)


class Parts(NamedTuple):
    """C = surface & solid, its equations and its inequalities apart.

    Attributes:
        surface: The set of the equations alone, which has no edge; None if there are no equations.
        solid: A set with an interior, the set of the inequalities; None if there are none.
    """

    surface: Constraint | None
    solid: Constraint | None


class OnSurface(NamedTuple):
    """Nearest points on the surface part of C, chain by chain.

    Attributes:
        point: Nearest point of the surface part, (n, *event); the point itself where C has no equations.
        inside: Whether it satisfies the inequalities, (n,) bool.
        log_volume: ``geometry.log_volume_factor`` of the surface part, (n,); zero where C has no equations; None if
            unknown.
    """

    point: Tensor
    inside: Tensor
    log_volume: Tensor | None


class SphereInFlat(NamedTuple):
    """{z : A z = b, |z - c| = R} for flattened events: what spheres and linear equations have in common.

    Attributes:
        matrix: A (m, d); no rows if there are no linear equations.
        level: b, (1 or n, m).
        radius: R, (1 or n,); None if there is no sphere.
        center: c, (1 or n, d); None for the origin.
    """

    matrix: Tensor
    level: Tensor
    radius: Tensor | None = None
    center: Tensor | None = None


def flat_volume(x: Tensor, z: Tensor) -> Tensor:
    """The logarithm of the volume factor of a flat set, zero: (n,)."""
    return torch.zeros(len(x), dtype=x.dtype, device=x.device)


class Geometry(NamedTuple):
    """What a set says about itself to samplers, for events of one shape; ``geometry.py`` derives what is left out.

    The one hook of sets that know more than their equations: ``Constraint._geometry``.

    Attributes:
        parts: Equations and inequalities apart; None for a union whose pieces have both.
        codimension: Independent equations, or None if that is unknown or differs from chain to chain.
        reach: Largest distance up to which points have one nearest point on the surface part; None if unknown.
        log_volume: (x, z) -> logarithm of the volume factor of the surface part, or None.
        sphere_in_flat: The surface as linear equations and at most one sphere, if it is that.
        nearest: y -> nearest points on the surface part.
        within: {c : B c in C} in the coordinates of a subspace, if P(B c) is in the subspace for every c; else None.
    """

    parts: Parts | None
    codimension: Callable[[], int | None] | None = None
    reach: Callable[[], float | None] | None = None
    log_volume: Callable[[Tensor, Tensor], Tensor | None] | None = None
    sphere_in_flat: Callable[[], SphereInFlat | None] | None = None
    nearest: Callable[[Tensor], OnSurface] | None = None
    within: Callable[[Subspace], Constraint | None] | None = None


INSIDE = 1e-12
"""Share of a vector that may lie outside a subspace that holds it."""

DEEPEST = 64
"""Lists and mappings inside each other in the spec of a set, at most."""

ON_SET = 1e-9
"""Violation up to which a point counts as on the set although its projection did not reach the tolerance."""


class Subspace(NamedTuple):
    """The range of B, B^T B = I: points z = B c of decoded space with coordinates c, and |z| = |c|.

    Attributes:
        event: Shape of z.
        synthesis: c -> B c, (n, *coordinates) -> (n, *event).
        analysis: z -> B^T z.
    """

    event: Event
    synthesis: Callable[[Tensor], Tensor]
    analysis: Callable[[Tensor], Tensor]

    def coordinates(self, vectors: Tensor) -> Tensor | None:
        """Coordinates (m, *coordinates) of flat float64 vectors (m, k); None if one of them is not in the subspace."""
        points = vectors.reshape(len(vectors), *self.event)
        found = self.analysis(points)
        outside = (self.synthesis(found) - points).flatten(1)
        if bool((torch.linalg.vector_norm(outside, dim=1) > INSIDE * torch.linalg.vector_norm(vectors, dim=1)).any()):
            return None
        return found


WRITTEN = {
    "smooth": ("equations", "inequalities"),
    "flat_sided": ("linear",),
    "samples_near": ("_sample_near",),
    "fast": ("_project_fast",),
}
"""What a set can do that writes one of these methods."""


class Constraint:
    """Base class of all sets: what a sample must satisfy.

    A set C in decoded space. Dim 0 of every argument is the chain, the other dims are the event.

    A subclass writes ``_excess`` (row by row) or ``_violation`` (one number per point), and either ``_project`` (closed
    form) or ``_solve`` (iterative); all receive finite float64 tensors. Two independent formulas on purpose: the
    certificate of a sample never goes through the projection that made it. Everything else is optional, and a set
    declares what it has.

    Attributes:
        exact: The projection is the nearest point in closed form (up to rounding).
        convex: The set is convex, so the projection is unique and nonexpansive.
        solid: The set has an interior (a ball, a box), so a point can be strictly inside.
        smooth: ``equations`` and ``inequalities`` describe C: a set writes one of them.
        flat_sided: ``linear`` gives the rows and bounds of C.
        samples_near: ``sample_near`` and ``log_normaliser`` are available, in closed form: a set writes both.
        fast: ``project(z, quick=True)`` has a closed form, or quick steps, of its own: a set writes ``_project_fast``.
        in_pieces: There is a union in C, so it is treated piece by piece (``pieces``).
        chains: How many chains the parameters are for (``PerChain``); None if they are common to all.
        per_chain: Names of the arguments of the constructor that may be ``PerChain``.

    A set of your own, all points with whole coordinates:

    >>> import casal
    >>> import torch
    >>> class Lattice(casal.Constraint):
    ...     def _project(self, z):
    ...         return z.round()
    ...     def _violation(self, z):
    ...         return (z - torch.floor(z + 0.5)).abs().flatten(1).amax(1)
    >>> Lattice().project(torch.tensor([[0.4, 1.7]])).tolist()
    [[0.0, 2.0]]
    """

    exact: bool = True
    convex: bool = False
    solid: bool = False
    smooth: bool = False
    flat_sided: bool = False
    samples_near: bool = False
    fast: bool = False
    in_pieces: bool = False
    chains: int | None = None
    per_chain: tuple[str, ...] = ()
    _coordinates: int | None = None  # how many an event must have, for a set that is written for so many
    _equation_count: int | None = None  # a set that knows it says so; for others it is counted by ``residual``

    def __init_subclass__(cls, **arguments: Any) -> None:
        """What a class writes, its sets can do; sets made of sets find out when they are made."""
        super().__init_subclass__(**arguments)
        for flag, methods in WRITTEN.items():
            if flag not in cls.__dict__ and any(method in cls.__dict__ for method in methods):
                setattr(cls, flag, True)

    def __new__(cls: type[Self], *args: Any, **kwargs: Any) -> Self:
        """Refuse ``PerChain`` where the class does not take it, and a class without a definition of its points."""
        if cls._violation is Constraint._violation and cls._excess is Constraint._excess:
            raise TypeError(f"{cls.__name__} defines neither _excess nor _violation; define one of them")
        if any(isinstance(value, PerChain) for value in (*args, *kwargs.values())):
            given = inspect.signature(cls).bind(*args, **kwargs).arguments
            for name, value in given.items():
                if isinstance(value, PerChain) and name not in cls.per_chain:
                    can = "; ".join(f"{n} ({', '.join(kind.per_chain)})" for n, kind in SETS.items() if kind.per_chain)
                    raise SettingError(f"{cls.__name__} takes no {name} for each chain; these sets do: {can}")
        return super().__new__(cls)

    def __getstate__(self) -> dict[str, Any]:
        """Without what was found out along the way, which is found again."""
        return {name: value for name, value in self.__dict__.items() if name != "_cache"}

    # -------------------------------------------------------------- points

    def project(
        self, z: Tensor, *, budget: Budget | None = None, warm: Tensor | None = None, quick: bool = False
    ) -> Tensor:
        """Nearest point of C, computed in float64 and returned in the dtype of ``z``.

        Points of whole numbers (an integer or bool dtype) give float64: rounding the nearest point to integers leaves
        the set.

        Args:
            z: Points (n, *event).
            budget: How hard an iterative projection tries; closed forms do not need it.
            warm: A point near the answer, such as the projection of the step before; closed forms do not need it.
            quick: In the dtype of ``z`` and in few passes, for a loop between two strict projections. There is no
                check: a point that is not finite, or whose squares are not, comes out not finite. Closed forms are as
                exact as the dtype allows elsewhere. Sets of functions (``Implicit``, and its intersections) take a few
                steps of Gauss and Newton, to about a hundredth of the distance from z, and the strict projection for
                chains that these do not bring to the set.

        Raises:
            ProjectionError: A coordinate of ``z`` is not finite.
        """
        z = points(z)
        return self._project_fast(floating(z), warm) if quick else self.solve(z, budget=budget, warm=warm).point

    def solve(self, z: Tensor, *, budget: Budget | None = None, warm: Tensor | None = None) -> Projection:
        """As ``project``, with a convergence flag, the iterations and the residual of every chain."""
        z = points(z)
        wide = self._checked(z, "project")
        found = self._solve(wide, budget or Budget(), None if warm is None else warm.to(wide))
        if not seen(torch.isfinite(found.point).all()):
            raise ProjectionError(
                f"{type(self).__name__}.project overflowed: the points are as large as {float(wide.abs().max()):g}, or "
                f"{self!r} is out of the range of floating point numbers; write points and set in another unit, "
                "constraint.scaled(1 / unit)"
            )
        if not self.exact and seen(found.converged.any()):
            # An algorithm has its own residual; what it calls converged must also satisfy the definition.
            held = _usable(self, self._violation(found.point)) <= max((budget or Budget()).tolerance, ON_SET)
            found = found._replace(converged=found.converged & held)
        return found._replace(point=found.point.to(floating(z).dtype))

    def violation(self, z: Tensor) -> Tensor:
        """How far each point is from satisfying the definition of C: (n,) float64, zero on C.

        The largest over the rows of the definition (equations, inequalities, bounds), each in its own unit: what it
        misses, relative to the terms of that row or to a length of its own. Large numbers elsewhere in the point do not
        hide a small row that is broken. A point that is not finite gets infinity.

        Raises:
            SettingError: A user's function returned a violation that is negative or not a number.
        """
        wide, finite = self._measurable(z)
        value = _usable(self, self._violation(wide))
        return torch.where(finite, value, torch.full_like(value, torch.inf))

    def excess(self, z: Tensor) -> Excess:
        """What each point misses, row by row; see ``Excess``. The rows of a point that is not finite are infinite."""
        wide, finite = self._measurable(z)
        found = self._excess(wide, None)
        lost = ~finite[:, None]
        _usable(self, found.amount)
        return found._replace(
            amount=found.amount.masked_fill(lost, torch.inf), rounding=0.0 * found.unit + found.rounding
        )

    def component_name(self, event: Event, row: int) -> str:
        """Row of ``excess`` in words, for a message."""
        return f"component {row} of {self!r}"

    def _row_count_of(self, event: Event) -> int:
        """Rows of ``excess`` for events of a shape."""
        origin = torch.zeros(self.chains or 1, *event, dtype=torch.float64)
        return self._once(("rows", event), lambda: self._excess(origin, None).amount.shape[1])

    def _once(self, key: Any, make: Callable[[], Made]) -> Made:
        """What a set finds out about itself, once."""
        if key not in self._cache:
            self._cache[key] = make()
        return cast(Made, self._cache[key])

    @cached_property
    def _cache(self) -> dict[Any, Any]:
        """What was found out."""
        return {}

    def _measurable(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """z in float64 with zeros for points that are not finite, and which are finite."""
        z = points(z)
        wide = z.to(torch.float64)
        finite = torch.isfinite(wide).flatten(1).all(1)
        self._check_chains(z)
        self.validate(tuple(z.shape[1:]))
        return torch.where(over_events(finite, wide), wide, torch.zeros_like(wide)), finite

    def validate(self, event: Event) -> None:
        """Raise ShapeError or InfeasibleSet if events of this shape cannot lie in C."""
        size = torch.Size(event).numel()
        if self._coordinates not in (None, size):
            raise ShapeError(
                f"the set is written for {self._coordinates} coordinates, events {event} have {size}: write it for "
                f"{size} numbers, in the order of a flattened event"
            )

    @property
    def written_for(self) -> int | None:
        """How many coordinates an event must have; None where the set takes any number."""
        return self._coordinates or next(filter(None, (m.written_for for m in getattr(self, "members", ()))), None)

    def _in_chain(self, chain: int) -> str:
        """Words for a message that is about one chain; none where the set is common to all."""
        return "" if self.chains is None else f" in chain {chain}"

    def _searched(self, z: Tensor) -> Sequence[tuple[Constraint, Tensor]] | None:
        """Sets, and points of theirs for points z of C, in which points of C are searched for; None for C itself."""
        return None

    def _prove_empty(self, z: Tensor, first: int) -> None:
        """Raise InfeasibleSet if it can be proved from here that C has no point; a set that cannot does nothing."""
        return None

    # -------------------------------------------------------------- smooth descriptions

    def equations(self, z: Tensor) -> Tensor:
        """Smooth functions (n, m) that vanish on C; width zero if there are none."""
        return z.flatten(1)[:, :0]

    def inequalities(self, z: Tensor) -> Tensor:
        """Smooth functions (n, m) that are <= 0 on C; width zero if there are none."""
        return z.flatten(1)[:, :0]

    def bounds(self, event: Event) -> tuple[Tensor, Tensor] | None:
        """The inequalities as low <= z <= high, (1 or n, *event), infinite where there is none; None if some are more.

        A set without inequalities has infinite bounds. Bounds that fix a coordinate are equations.
        """
        rows = self.linear(event)
        return None if rows is None else rows.bounds(event)

    def linear(self, event: Event) -> Rows | None:
        """C as rows and bounds for events of this shape, flattened; None if it is not flat-sided."""
        return None

    def pieces(self, event: Event) -> tuple[Constraint, ...]:
        """Sets without unions inside them whose union is C; C itself unless a union is in it. Built once per shape."""
        return (
            self._once(("pieces", tuple(event)), lambda: self._written_out(tuple(event))) if self.in_pieces else (self,)
        )

    def _written_out(self, event: Event) -> tuple[Constraint, ...]:
        """What ``pieces`` returns."""
        return (self,)

    def _geometry(self, event: Event) -> Geometry:
        """What the set knows about itself beyond its equations; a surface part is its own surface part."""
        return Geometry(Parts(None, self) if self.solid else Parts(self, None))

    def _made_of(self, event: Event) -> Sequence[tuple[Constraint, Event]] | None:
        """Sets whose points make up those of C one by one, and their events; None for a set that is not made so."""
        return None

    def _ball_around(self, event: Event) -> tuple[Tensor, Tensor] | None:
        """Centre (m, *event) and radius (m,) of a ball that holds C, m one or ``chains``; None if none is known."""
        return None

    def _count_equations(self) -> int | None:
        """How many equations there are; None if a set of unknown functions has not been evaluated yet."""
        return self._equation_count

    def _residual(self, z: Tensor) -> Tensor:
        """All smooth functions that describe C: the equations, then the inequalities."""
        if not self.smooth:
            raise SettingError(
                f"{type(self).__name__} has no smooth residual, so Penalty, PrimalDual and Decoupled cannot use it; "
                "Projected, CASAL and WeightedCASAL need only its projection"
            )
        equations, inequalities = self.equations(z), self.inequalities(z)
        if self._count_equations() is None:
            self._equation_count = equations.shape[1]
        if not inequalities.shape[1]:
            return equations
        return torch.cat([equations, inequalities], dim=1) if equations.shape[1] else inequalities

    def _residual_pull(self, z: Tensor, weights: Tensor) -> Tensor | None:
        """J(z)^T weights, J the derivative of ``_residual`` (n, m, *event), where it is written out; else None."""
        return None

    # -------------------------------------------------------------- Gaussians restricted to C

    def sample_near(self, y: Tensor, sigma: float, generator: torch.Generator) -> Tensor | None:
        """z ~ N(y, sigma^2 I) restricted to C (surface measure): one exact draw per point (n, *event), in float64.

        This is z given x in split Gibbs sampling, with sigma^2 = 1 / rho. None if C has no closed form for it.
        """
        if not self.samples_near:
            return None
        return self._sample_near(self._checked(y, "sample_near"), positive(sigma, "sigma"), generator)

    def log_normaliser(self, y: Tensor, sigma: float) -> Tensor | None:
        """log of the integral of N(z; y, sigma^2 I) over C (surface measure): (n,) float64, or None as above.

        All constants are there, (2 pi sigma^2)^(-d/2) included; only a ``scaled`` set leaves out one of its own, which
        depends neither on y nor on sigma.
        """
        if not self.samples_near:
            return None
        return self._log_normaliser(self._checked(y, "log_normaliser"), positive(sigma, "sigma"))

    # -------------------------------------------------------------- parameters for each chain

    def take(self, index: slice | Tensor) -> Constraint:
        """The set with the parameters of these chains: a slice, or their numbers (k,). Itself if ``chains`` is None.

        A run cuts the set into the same slices again and again, so they are built once: a set may factorise a matrix.
        """
        if self.chains is None:
            return self
        if not isinstance(index, slice):
            return _with_parameters(self, lambda values: values.take(index))
        ends = index.indices(self.chains)
        return self._once(("slice", ends), lambda: _with_parameters(self, lambda values: values.take(index)))

    def _groups(self) -> Tensor | None:
        """(chains,) labels, equal where all parameters are equal to the bit; None if ``chains`` is None."""
        if self.chains is None:
            return None
        bits = [own.values.reshape(len(own.values), -1).contiguous().view(torch.int64) for own in _parameters(self)]
        return torch.unique(torch.cat(bits, dim=1), dim=0, return_inverse=True)[1]

    def _alone(self: Self, chain: int) -> Self:
        """The set of one chain, its parameters common to all points."""
        return _with_parameters(self, lambda own: own.values[chain])

    def _solve_by_group(self, z: Tensor, budget: Budget, warm: Tensor | None) -> Projection:
        """Chains of equal parameters together: for algorithms that put chains aside as they finish."""
        self._check_chains(z)
        zeros = torch.zeros(len(z), dtype=z.dtype, device=z.device)
        out = Projection(z.clone(), zeros != 0, zeros.long(), zeros)
        for chosen, alone in self._group_sets:
            part = alone._solve(z[chosen], budget, None if warm is None else warm[chosen])
            for whole, piece in zip(out, part, strict=True):
                whole[chosen] = piece
        return out

    def _by_group(
        self, function: Callable[[Constraint, Tensor, Tensor], Tensor | None], x: Tensor, z: Tensor
    ) -> Tensor | None:
        """(n,) function(set, x, z), likewise; None where the function gives None."""
        self._check_chains(x)
        out = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        for chosen, alone in self._group_sets:
            part = function(alone, x[chosen], z[chosen])
            if part is None:
                return None
            out[chosen] = part.to(out)
        return out

    @cached_property
    def _group_sets(self) -> list[tuple[Tensor, Constraint]]:
        """For each group of equal parameters, the numbers of its chains and their common set."""
        labels = self._groups()
        assert labels is not None
        found: list[tuple[Tensor, Constraint]] = []
        for chosen in labels.argsort(stable=True).split(torch.bincount(labels).tolist()):
            try:
                found.append((chosen, self._alone(int(chosen[0]))))
            except InfeasibleSet as error:
                raise InfeasibleSet(f"chain {int(chosen[0])}: {error}") from error
        return found

    def _check_chains(self, z: Tensor) -> None:
        if self.chains is not None:
            check_count(z, self.chains)

    # -------------------------------------------------------------- words and data

    @property
    def way(self) -> Way:
        """How the projection is found."""
        return Way.CLOSED_FORM if self.exact else Way.ITERATIVE

    def explain(self, z: Tensor | None = None) -> str:
        """Which set, what it became and how its projection is found; with points, how long one takes.

        Args:
            z: A few points (n, *event), such as those of a run, that are projected to take the time.

        >>> import casal
        >>> import torch
        >>> known = casal.Box(0.0, 1.0) & casal.Affine(torch.eye(3)[:2], [0.2, 0.4])
        >>> known.explain().partition("; ")[0]
        'closed form, nearest point: Box(low=(3,) in [0, 0.4], high=(3,) in [0.2, 1]): closed form, convex'
        >>> known.explain(torch.rand(100, 3)).endswith("ms a point in a batch of 100")
        True
        >>> known.explain().partition("; ")[2]
        'dimension 1 of 3; 2 coordinates fixed by the others; 2 walls'
        """
        if z is None:
            return f"{self._explained()}{self._shape_told()}"
        self.solve(z)  # the first one may prepare something
        start = time.process_time()
        found = self.solve(z)
        milliseconds, lost = 1e3 * (time.process_time() - start) / max(len(z), 1), int((~found.converged).sum())
        failed = f", {lost} did not converge" if lost else ""
        event = tuple(points(z).shape[1:])
        more = "".join(f", {what}" for what in self._tidied(event))
        return f"{self._explained()}{more}; {milliseconds:.2g} ms a point in a batch of {len(z)}{failed}"

    def _shape_told(self) -> str:
        """The dimension of a set with flat sides in so many coordinates, where some of them depend on others."""
        size = self.written_for
        if size is None or self.chains is not None or not self.flat_sided:
            return ""
        with suppress(CasalError):
            found = self.reduction((size,))
            return "" if found is None or found.dimension == size else f"; {found.told()}"
        return ""

    def reduction(self, event: Event) -> Reduction | None:
        """A set with flat sides as walls around an interior point, made once; None for other sets."""
        if self.in_pieces:
            return None
        return self._once(("reduction", event), lambda: reduced(self, event))

    def _tidied(self, event: Event) -> Sequence[str]:
        """What was found and put in order when the set was made ready for events of this shape, in words."""
        return ()

    def _explained(self) -> str:
        """One line: which set, what it became, and how its projection is found."""
        return f"{self!r}: {self.way.value}{', convex' if self.convex else ''}"

    def spec(self) -> dict[str, Any]:
        """The set as plain JSON data; ``casal.constraint_from_spec`` reads it back."""
        return {"set": type(self).__name__, **{name: encode(value) for name, value in self._arguments().items()}}

    # -------------------------------------------------------------- sets made of sets
    # Their classes derive from this one, so this file cannot import them: it finds them in the registry, by name.

    def __and__(self, other: Constraint) -> Constraint:
        """Points in both sets."""
        return SETS["Intersection"](self, other)

    def __bool__(self) -> bool:
        """Refused: Python's ``and`` and ``or`` would drop one of two sets."""
        raise SettingError(
            "a set is neither true nor false; write a & b for points in both, a | b for points in either"
        )

    def __or__(self, other: Constraint) -> Constraint:
        """Points in either set."""
        return SETS["Union"](self, other)

    def through(self, A: Any) -> Constraint:
        """{x : A x in C} for a matrix A; {x : g(x) in C} for a decoder g, which need not be linear."""
        return SETS["ThroughDecoder" if hasattr(A, "vjp") else "Through"](self, A)

    def shifted(self, by: Any) -> Constraint:
        """{z + by : z in C}; ``by`` may be PerChain."""
        return SETS["Shifted"](self, by)

    def scaled(self, by: float) -> Constraint:
        """{by z : z in C}, by > 0."""
        return SETS["Scaled"](self, by)

    # -------------------------------------------------------------- what a set writes

    def _solve(self, z: Tensor, budget: Budget, warm: Tensor | None) -> Projection:
        return at_once(self._project(z))

    def _project(self, z: Tensor) -> Tensor:
        return self._solve(z, Budget(), None).point

    def _project_fast(self, z: Tensor, warm: Tensor | None = None) -> Tensor:
        """What ``project(z, quick=True)`` returns; ``warm`` is a point near the answer, for sets that can use it."""
        if on_host(z) or not self.exact:
            return self.project(z)
        self._check_chains(z)
        self.validate(tuple(z.shape[1:]))
        return self._project(z.to(torch.float64)).to(z.dtype)  # without the looks of ``project``

    def _violation(self, z: Tensor) -> Tensor:
        """(n,), from ``_excess``; a set without rows writes this one."""
        return largest(self._excess(z, None).violation())

    def _excess(self, z: Tensor, lost: Tensor | None) -> Excess:
        """Row by row, from the definition.

        Args:
            z: Points.
            lost: What was lost by cancellation where z was computed from other numbers: the sum of the absolute values
                of the terms of each coordinate, less its own absolute value. None for points that were given. It widens
                the unit of a row, because the rounding of those terms is in z.
        """
        value = self._violation(z)[:, None]
        if lost is not None:
            noise = (z != 0) & (z.abs() <= 8.0 * EPSILON * lost)
            if not on_host(z) or bool(noise.any()):
                value = torch.minimum(value, self._violation(torch.where(noise, 0.0, z))[:, None])
        return Excess(value, torch.ones_like(value))

    def _sample_near(self, y: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
        raise NotImplementedError

    def _log_normaliser(self, y: Tensor, sigma: float) -> Tensor:
        raise NotImplementedError

    def _arguments(self) -> dict[str, Any]:
        """Arguments of the constructor, kept as attributes of the same names; ``members`` are positional."""
        kind = type(self)
        names = [] if kind.__init__ is object.__init__ else list(inspect.signature(kind.__init__).parameters)[1:]
        kept = {name: getattr(self, name) for name in names if hasattr(self, name)}
        if len(kept) < len(names) or any(callable(value) for value in kept.values()):
            raise SettingError(
                f"{kind.__name__} holds functions or does not keep its arguments, so it cannot be written as data; "
                "rebuild it in code"
            )
        return kept

    def _checked(self, z: Tensor, action: str) -> Tensor:
        """z in float64, of a shape that fits, or ProjectionError."""
        wide = z.to(torch.float64)
        if not seen(torch.isfinite(wide).all()):
            lost = torch.nonzero(~torch.isfinite(wide).flatten(1).all(1)).flatten().tolist()
            raise ProjectionError(
                f"{type(self).__name__}.{action} got non-finite coordinates in {len(lost)} of {len(z)} points; "
                "check the score and the step size that produced them",
                chains=lost,
            )
        self._check_chains(z)
        self.validate(tuple(z.shape[1:]))
        return wide


Self = TypeVar("Self", bound=Constraint)

SETS: dict[str, type[Constraint]] = {}
"""The registry: name -> class, for ``constraint_from_spec`` and for the operators; filled by ``register``."""


def register(kind: type[Self]) -> type[Self]:
    """Make a set known by the name of its class, so that its ``spec`` can be read back. Also a decorator."""
    SETS[kind.__name__] = kind
    return kind


def points(z: Any) -> Tensor:
    """Points (n, *event), from a list or an array too; ShapeError for one point without a dimension for chains."""
    if not isinstance(z, Tensor):
        try:
            z = torch.as_tensor(z)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise ShapeError(f"points are a tensor, an array or lists of numbers (n, *event): {error}") from None
    if z.ndim < 2:
        raise ShapeError(
            f"points have the shape (n, *event), n of them, got {tuple(z.shape)}; hand over one point z as z[None], n "
            "points of one coordinate as z[:, None]"
        )
    return z


def largest(values: Tensor) -> Tensor:
    """(n, m) -> (n,), zero if there are no columns."""
    return values.amax(1) if values.shape[1] else values.new_zeros(len(values))


def side_by_side(parts: Sequence[Excess], z: Tensor) -> Excess:
    """The rows of several sets for the same points."""
    if not parts:
        nothing = z.new_zeros(len(z), 0)
        return Excess(nothing, nothing)
    if len(parts) == 1:
        return parts[0]
    return Excess(
        torch.cat([part.amount for part in parts], dim=1),
        torch.cat([part.unit for part in parts], dim=1),
        _beside([part.rounding for part in parts], parts),
        _beside([part.scale for part in parts], parts),
    )


def _beside(values: Sequence[Tensor | float], parts: Sequence[Excess]) -> Tensor | float:
    first = values[0]
    if not isinstance(first, Tensor) and all(not isinstance(value, Tensor) and value == first for value in values):
        return first
    pairs = zip(values, parts, strict=True)
    return torch.cat([torch.as_tensor(v, dtype=p.unit.dtype).to(p.unit).expand_as(p.unit) for v, p in pairs], dim=1)


def stacked(parts: Sequence[Excess]) -> Excess:
    """The same rows for several groups of points."""
    wide = [
        (part.amount, part.unit, *(torch.as_tensor(v).to(part.unit).expand_as(part.unit) for v in part[2:]))
        for part in parts
    ]
    return Excess(*(torch.cat(columns) for columns in zip(*wide, strict=True)))


def row_of(members: Sequence[Constraint | None], events: Sequence[Event], row: int) -> tuple[int, int]:
    """The member that a row of ``side_by_side`` comes from, and its row there."""
    for index, (member, event) in enumerate(zip(members, events, strict=True)):
        count = 0 if member is None else member._row_count_of(event)
        if row < count:
            return index, row
        row -= count
    raise IndexError(f"there is no component {row}")


def _usable(owner: Constraint, values: Tensor) -> Tensor:
    """Violations, refused if one is negative or not a number: a certificate must not rest on it."""
    wrong = ~(values >= 0)
    if seen(wrong.any()):
        bad, count = float(values[wrong][0]), int(wrong.reshape(len(values), -1).any(1).sum())
        raise SettingError(
            f"{owner!r} gave a violation of {bad:g} for {count} of {len(values)} points; a violation is >= 0, and zero "
            "on the set: take the absolute value of an equation and the positive part of an inequality"
        )
    return values


def build(kind: type[Self], arguments: Mapping[str, Any]) -> Self:
    """The set with these arguments, as ``_arguments`` gives them."""
    named = dict(arguments)
    return kind(*named.pop("members", ()), **named)


def _parameters(value: Any) -> Iterator[PerChain]:
    """All parameters that differ from chain to chain, in a set, its members, or lists of them."""
    if isinstance(value, PerChain):
        yield value
    elif isinstance(value, Constraint) and value.chains is not None:
        yield from _parameters(list(value._arguments().values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _parameters(item)


def _with_parameters(value: Any, change: Callable[[PerChain], Any]) -> Any:
    """The same, every one of these parameters replaced."""
    if isinstance(value, PerChain):
        return change(value)
    if isinstance(value, Constraint) and value.chains is not None:
        arguments = value._arguments()
        return build(type(value), {name: _with_parameters(part, change) for name, part in arguments.items()})
    return [_with_parameters(item, change) for item in value] if isinstance(value, list | tuple) else value


def encode(value: Any) -> Any:
    """Plain JSON data: tensors become nested lists, sparse matrices entries, sets their specs, infinities words."""
    if isinstance(value, Constraint):
        return value.spec()
    if isinstance(value, PerChain):
        return {"per_chain": encode(value.values)}
    if isinstance(value, SparseMatrix):
        return {"sparse": encode(value.data())}
    if isinstance(value, Tensor):
        return encode(value.tolist())
    if isinstance(value, dict):
        return {name: encode(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise SettingError(f"{type(value).__name__} cannot be written as JSON data")


def constraint_from_spec(spec: Mapping[str, Any] | str) -> Constraint:
    """Build a set from ``constraint.spec()``, or from that as JSON text.

    >>> import casal
    >>> casal.constraint_from_spec(casal.Sphere(3.0).spec())
    Sphere(radius=3)
    """
    try:
        data = json.loads(spec) if isinstance(spec, str) else spec
    except (ValueError, RecursionError) as error:
        raise SettingError(f"the spec of a set is not JSON: {error}") from None
    _refuse_deep(data)
    return _from_data(data)


def _from_data(data: Any) -> Constraint:
    if not isinstance(data, Mapping) or "set" not in data:
        raise SettingError("a spec is a mapping with the key 'set', such as {'set': 'Sphere', 'radius': 3.0}")
    name = data["set"]
    if not isinstance(name, str) or name not in SETS:
        raise SettingError(f"no set named {shown(name)}; there are {sorted(SETS)}")
    try:
        return build(SETS[name], {name: _decode(value) for name, value in data.items() if name != "set"})
    except CasalError:
        raise
    except Exception as error:  # data from outside, handed to constructors that may be those of strangers
        raise SettingError(f"{name} does not take these arguments: {error}") from error


def _refuse_deep(data: Any) -> None:
    """SettingError for lists and mappings inside each other DEEPEST times, before anything follows them down."""
    level, depth = [data], 0
    while level := [part for part in level if isinstance(part, Mapping | list)]:
        depth += 1
        if depth > DEEPEST:
            raise SettingError(
                f"the spec of a set has more than {DEEPEST} lists and mappings inside each other; write sets of many "
                "members as one list of them"
            )
        level = [inner for part in level for inner in (part.values() if isinstance(part, Mapping) else part)]


def _decode(value: Any) -> Any:
    """The reverse of ``encode``, except that tensors stay lists: the constructors of sets take both."""
    if isinstance(value, Mapping) and "sparse" in value:
        return SparseMatrix(**{name: _decode(part) for name, part in value["sparse"].items()})
    if isinstance(value, Mapping):
        return PerChain(_decode(value["per_chain"])) if "per_chain" in value else _from_data(value)
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if value in ("inf", "-inf"):
        return float(value)
    return value


def nearest_solution(pieces: Sequence[Constraint], z: Tensor, budget: Budget, warm: Tensor | None) -> Projection:
    """The nearest of the projections onto several sets; one that did not converge is taken only if none did."""
    tried = [piece._solve(z, budget, warm) for piece in pieces]
    distance = torch.stack([norm((found.point - z).flatten(1)) for found in tried])
    distance = torch.where(torch.stack([found.converged for found in tried]), distance, distance + 1e300)
    nearest, chain = distance.argmin(0), torch.arange(len(z), device=z.device)
    return Projection(*(torch.stack(parts)[nearest, chain] for parts in zip(*tried, strict=True)))


def at_once(point: Tensor) -> Projection:
    """What a closed form found."""
    zeros = torch.zeros(len(point), dtype=point.dtype, device=point.device)
    return Projection(point, zeros == 0, zeros.long(), zeros)


def total_count(parts: Iterable[Constraint | None], otherwise: int | None = None) -> int | None:
    """Equations of all sets together; ``otherwise`` if one of them has not counted its own."""
    counts = [part._count_equations() for part in parts if part is not None]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else otherwise
