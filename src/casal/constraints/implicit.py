"""Sets given by functions: equations, inequalities, or both; or the user's own projection and violation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from casal.checks import Event, one_of, whole_number
from casal.constraints.base import (
    Budget,
    Constraint,
    Excess,
    Geometry,
    Parts,
    Projection,
    Way,
    at_once,
    largest,
    register,
    side_by_side,
    stacked,
)
from casal.constraints.solvers.gauss_newton import nearest
from casal.constraints.solvers.linearised import Bounds
from casal.constraints.solvers.quick_steps import Quick, quick_points
from casal.constraints.solvers.rows import DENSE, Algebra, ProductRows, SparseRows, uneven
from casal.constraints.solvers.structure import WORTH, IncompleteStructure, Structure, structure_of
from casal.constraints.vectors import flat, norm, over_events, peak
from casal.devices import chosen, on_host
from casal.errors import ProjectionError, SettingError, ShapeError
from casal.linalg import pulled, rows_of

LARGEST_TUBE = 64
"""Coordinates up to which the volume factor is computed: it takes a dense Hessian and a determinant a chain."""

TILE = 2**22
"""Numbers in the Jacobians of one batch, to bound the memory."""

RANK_TOLERANCE = 1e-10
"""Share of the largest singular value below which a gradient counts as dependent on the others."""

STRICT = 1e-12
"""Violation beyond which the rounding of the functions is looked at."""

CLOSE, CLOSER = 1e-4, 1e-8
"""Violations up to which Newton's method asks whether what is left is rounding; the second for large systems."""

ROUNDING_WAYS, ROUNDING_STEP = 4, 1e-4
"""Directions in which the rounding of the functions is looked at, and steps relative to each coordinate."""

SLOPE_STEP = 1e-5
"""Relative step of the differences that a given Jacobian is compared with."""

JACOBIAN_ERROR = 1e-4
"""Share of its length by which a row of a given Jacobian may be off."""

DIFFERENCE = 1e-6
"""Relative step of the differences that replace second derivatives where there are none."""

FEW, ASTRAY = 3, 1e-2
"""Iterations up to which a budget with a warm start gets quick steps, where the Jacobian has structure, and the
violation up to which their result is taken."""

FACTORS = 2**20
"""Numbers in the factors of one batch: they stay in the cache, and memory of that size is used again."""

SEARCHED = Budget(1e-6, 200)
"""How hard the search tries in the loop for a chain that quick steps do not bring to the set."""

Function = Callable[[Tensor], Tensor]


class SparseJacobian:
    """Derivatives that are zero but at fixed places, for ``Implicit(fn, jacobian=...)``: a residual on a grid, say.

    J J^T is factorised in bands, chain by chain at once: 64 chains of 1024 equations in 2048 unknowns take a tenth of a
    second a step. Every row may have about as many entries as the others; a total is a set of its own.

    Args:
        indices: (2, k): row, and coordinate in the flattened event, of every entry that may differ from zero.
        values: (n, *event) -> (n, k), the entries.
    """

    def __init__(self, indices: Any, values: Function) -> None:
        self.indices = torch.as_tensor(indices, dtype=torch.long).detach().cpu().clone()
        self.values = values
        if self.indices.ndim != 2 or len(self.indices) != 2:
            raise ShapeError(f"indices of a sparse jacobian are (2, k), rows and coordinates; got {_shown(indices)}")
        if not callable(values):
            raise SettingError(f"values must be a function (n, *event) -> (n, k), got {type(values).__name__}")


class JacobianProducts:
    """Derivatives by their products alone, for ``Implicit(fn, jacobian=..., scale=...)``.

    J J^T is never formed: conjugate gradients solve with it. Slow where it is badly conditioned; a ``SparseJacobian``
    is faster where the places of the derivatives are known. Rows are not seen, so the violation needs a ``scale``.

    Args:
        forward: (z, v) -> J(z) v, (n, *event), (n, *event) -> (n, m), such as ``torch.func.jvp``.
        back: (z, w) -> J(z)^T w, (n, *event), (n, m) -> (n, *event), such as ``torch.func.vjp``.
    """

    def __init__(self, forward: Callable[[Tensor, Tensor], Tensor], back: Callable[[Tensor, Tensor], Tensor]) -> None:
        if not callable(forward) or not callable(back):
            raise SettingError("JacobianProducts(forward, back) needs two functions, (z, v) -> J v and (z, w) -> J^T w")
        self.forward, self.back = forward, back


@register
class Implicit(Constraint):
    """Smooth equations and inequalities, given as torch functions.

    C = {z : h(z) = 0, g(z) <= 0}; P(y) = argmin |z - y| over z in C, by batched Gauss-Newton / Newton steps.

    h = ``fn`` and g = ``inequality`` are torch functions of all chains at once, (n, *event) -> (n, m), that treat each
    chain on its own. They get float64. The
    algorithm is that of ``solvers/gauss_newton.py``: steps to the nearest point of the linearised set, corrected
    for its curvature, in a trust region; quadratic convergence near a regular point. The result is a local minimum
    of the distance, reached from y (or from ``warm``): the nearest point if y is within the reach of C; from
    farther away ``starts`` tries more than one way down. A chain that ends elsewhere, at an infeasible point or
    where h is not finite, is flagged by ``solve`` and by the certificate, and only that chain is.

    The violation is the largest over the rows c of h and g (positive part) of

        |c| / (|c| + sum_j |d c / d z_j| |z_j|),

    to first order the relative change of the coordinates that brings c to zero. It depends neither on the unit of c nor
    on those of the coordinates, and is one where the gradient vanishes off the surface. Numbers that cancel inside c do
    not show in it, so what their rounding leaves does not count: it is read off third differences of c. With ``scale``
    the violation is |c| / scale instead, and no gradient is needed. It is infinite where c is not finite.

    Args:
        fn: h, or None if there are only inequalities.
        inequality: g, or None.
        jacobian: Derivatives (n, m, *event) of all rows, those of h first; by automatic differentiation if left
            out: where there are many, equations that share no coordinate are differentiated together, and J stays
            sparse (``solvers/structure.py``). If given, curvatures come from differences of it, as they do for
            functions that torch can differentiate only once. A ``SparseJacobian`` or ``JacobianProducts`` for many
            equations, without inequalities: then a budget of up to three iterations with a warm start takes so many
            quick steps, one factorisation each, the first of them z = y - J^T (J J^T)^-1 (h + J (y - z)).
        scale: Unit of the violation > 0: a number, or one for each row, those of h first.
        convex: Whether C is convex (h affine, g convex), as far as you know.
        starts: Points to start from, the first at y (or ``warm``), the others around it; the nearest result counts.
        names: What the equations are called in messages and certificates, then the inequalities, such as
            ``["mass balance", "no-slip"]``; those without a name are "equation 0" and so on.

    >>> ellipse = Implicit(lambda z: (z[:, :1] / 2) ** 2 + z[:, 1:] ** 2 - 1)
    >>> ellipse.project(torch.tensor([[0.0, 3.0], [4.0, 0.0]], dtype=torch.float64)).round(decimals=10).abs()
    tensor([[0., 1.],
            [2., 0.]], dtype=torch.float64)
    """

    exact = False

    def __init__(
        self,
        fn: Function | None = None,
        inequality: Function | None = None,
        *,
        jacobian: Function | SparseJacobian | JacobianProducts | None = None,
        scale: Any = None,
        convex: bool = False,
        starts: int = 1,
        names: Sequence[str] = (),
        **other: Any,
    ) -> None:
        if other:
            raise SettingError(
                f"Implicit has no keyword {', '.join(other)}; the set h(z) = 0, g(z) <= 0 is Implicit(h, g), or "
                "Implicit(fn=h, inequality=g), or Implicit(None, g) without equations"
            )
        if fn is None and inequality is None:
            raise SettingError("Implicit needs an equation fn, an inequality, or both")
        for name, given in (("fn", fn), ("inequality", inequality), ("jacobian", jacobian)):
            known = isinstance(given, SparseJacobian | JacobianProducts)
            if given is not None and not callable(given) and not known:
                raise SettingError(f"{name} must be a function (n, *event) -> (n, m), got {type(given).__name__}")
            if known and inequality is not None:
                raise SettingError(
                    "a sparse jacobian, or products, is for equations only; state the inequality as a set of its own, "
                    "and take the intersection: Implicit(fn, jacobian=...) & Implicit(None, inequality)"
                )
        self.fn, self.inequality, self.jacobian = fn, inequality, jacobian
        self.scale = None if scale is None else torch.as_tensor(scale, dtype=torch.float64).clone()
        if self.scale is not None and not bool(((self.scale > 0) & (self.scale < torch.inf)).all()):
            raise SettingError(f"scale must be finite and > 0, got {scale}; it is the size of fn that counts as one")
        if isinstance(jacobian, JacobianProducts) and self.scale is None:
            raise SettingError(
                "products do not show single derivatives, so the violation needs a unit: scale=, the size of fn "
                "that counts as one"
            )
        self.convex = bool(one_of(convex, "convex", (True, False)))
        self.starts, self.solid = whole_number(starts, "starts", 1), fn is None
        self.names = (names,) if isinstance(names, str) else tuple(map(str, names))
        self.fast = self.starts == 1
        self._equation_count = 0 if fn is None else None
        self._jacobian_checked = False

    def __repr__(self) -> str:
        parts = [("", self.fn), ("inequality=", self.inequality)]
        return f"Implicit({', '.join(label + _name(part).strip('<>') for label, part in parts if part is not None)})"

    @property
    def way(self) -> Way:
        return Way.NEWTON

    def _explained(self) -> str:
        """One line: which set, and how its projection is computed."""
        more = "" if self.starts == 1 else f", nearest of {self.starts} starts"
        return f"{self!r}: {self.way.value} on the linearised set{more}{', convex' if self.convex else ''}"

    def equations(self, z: Tensor) -> Tensor:
        """h(z), in the unit of the function."""
        values = _evaluate(self.fn, "fn", z)
        self._equation_count = values.shape[1]
        return values

    def inequalities(self, z: Tensor) -> Tensor:
        """g(z), in the unit of the function."""
        return _evaluate(self.inequality, "inequality", z)

    def _geometry(self, event: Event) -> Geometry:
        """The rows of h are taken to be independent."""
        return Geometry(self._apart(event), codimension=lambda: self._row_count(event), log_volume=self._log_volume)

    def _apart(self, event: Event) -> Parts:
        """h(z) = 0, and g(z) <= 0."""
        if self.fn is None or self.inequality is None:
            return Parts(None, self) if self.fn is None else Parts(self, None)
        count, both = self._row_count(event), self.jacobian
        assert both is None or callable(both)  # those with structure are for equations only

        def rows(some: slice) -> Function | None:
            return None if both is None else lambda z: both(z).reshape(len(z), -1, *z.shape[1:])[:, some]

        def units(some: slice) -> Tensor | None:
            return self.scale if self.scale is None or self.scale.numel() == 1 else self.scale[some]

        first, second = slice(count), slice(count, None)
        return Parts(
            Implicit(self.fn, jacobian=rows(first), scale=units(first), convex=self.convex, starts=self.starts),
            Implicit(
                None,
                self.inequality,
                jacobian=rows(second),
                scale=units(second),
                convex=self.convex,
                starts=self.starts,
            ),
        )

    def _row_count(self, event: Event) -> int:
        """Rows of h, from its value at one point."""
        if self._equation_count is None:
            with _own_mode():
                self.equations(torch.zeros(1, *event, dtype=torch.float64))
        return self._equation_count or 0

    def algebra(self, event: Event) -> Algebra:
        """How Newton's steps handle the derivatives, for events of this shape."""
        key, given = tuple(event), self.jacobian
        if key not in self._algebras:
            size, places = math.prod(key), given if isinstance(given, SparseJacobian) else self._structure(key)
            if isinstance(given, JacobianProducts):
                rows = self._row_count(key)
                self._algebras[key] = ProductRows(*_on_flat(given, key, rows), rows, size)
            elif places is not None:
                self._algebras[key] = SparseRows(places.indices, self._row_count(key), size)
            else:
                self._algebras[key] = DENSE
        return self._algebras[key]

    def _structure(self, event: Event) -> Structure | None:
        """The places of the derivatives of equations alone, found once; None where they are few or everywhere."""
        size = math.prod(event)
        if self.jacobian is not None or self.fn is None or size**2 < WORTH:  # no more rows than coordinates
            return None
        if event not in self._structures:
            self._structures[event], self._algebras[event] = None, DENSE  # the places are looked for with dense rows

            def rows_at(z: Tensor) -> Tensor:
                with _own_mode():
                    if self.inequalities(z.reshape(1, *event)).shape[1]:
                        raise NotImplementedError("structure is for equations")
                    return _System(self, event).linearise(z)[1]

            found = structure_of(rows_at, size)
            self._structures[event] = None if found is not None and uneven(found.indices, found.rows) else found
            del self._algebras[event]
        return self._structures[event]

    def _worked(self, event: Event, do: Callable[[_System], Any]) -> Any:
        """What is done with the rows; with dense ones from now on if their structure was not all."""
        with _own_mode():
            try:
                return do(_System(self, event))
            except IncompleteStructure:
                self._structures[event], self._algebras[event] = None, DENSE
                return do(_System(self, event))

    _bounds_of: Callable[[Event], Bounds | None] = staticmethod(lambda event: None)  # an intersection adds its bounds

    def steps_quickly(self, event: Event, budget: Budget, warm: Tensor | None) -> bool:
        """Whether a projection takes quick steps, as many as the budget has, and no search."""
        return warm is not None and self.algebra(event) is not DENSE and 0 < budget.iterations <= FEW

    @cached_property
    def _algebras(self) -> dict[Event, Algebra]:
        """Those that were asked for."""
        return {}

    @cached_property
    def _structures(self) -> dict[Event, Structure | None]:
        """Those that were looked for."""
        return {}

    def _log_volume(self, x: Tensor, z: Tensor) -> Tensor | None:
        """log |det (I + sum_j a_j Hess h_j)| over the tangent space at z, where x - z = sum_j a_j grad h_j.

        For equations only, and up to LARGEST_TUBE coordinates; a chain where it is not finite gets zero.
        """
        size = math.prod(z.shape[1:])
        products = isinstance(self.jacobian, JacobianProducts)
        if size > LARGEST_TUBE or products or self.inequalities(z[:1]).shape[1]:
            return None

        def work(system: _System) -> Tensor:
            tile = self._tile(z)
            pairs = zip(flat(z).clone().split(tile), flat(x - z).clone().split(tile), strict=True)
            return torch.cat([_log_determinant(system, point, offset) for point, offset in pairs])

        found: Tensor = self._worked(tuple(z.shape[1:]), work)
        return found

    def _solve(self, z: Tensor, budget: Budget, warm: Tensor | None) -> Projection:
        event = tuple(z.shape[1:])
        if not z.numel():
            return at_once(z)

        def work(system: _System) -> Projection:
            tile = max(1, self._tile(z) // self.starts)
            anchors = flat(z).clone().split(tile)
            starts = [None] * len(anchors) if warm is None else flat(warm.expand_as(z)).clone().split(tile)
            parts = [self._nearest(system, y, start, budget) for y, start in zip(anchors, starts, strict=True)]
            return Projection(*(torch.cat(part) for part in zip(*parts, strict=True)))

        found: Projection = self._worked(event, work)
        return found._replace(point=found.point.reshape(z.shape))

    def _nearest(self, system: _System, y: Tensor, start: Tensor | None, budget: Budget) -> Projection:
        """The nearest of the points found from all starts."""
        quickly = start is not None and self.steps_quickly(system.event, budget, start)
        first = _few(system, y, start, budget) if quickly else nearest(system, y, start, budget)
        if self.starts == 1:
            return first
        around = y + norm(first.point - y)[:, None] * _directions(self.starts - 1, y)[:, None]
        others = nearest(system, y.expand_as(around).reshape(-1, y.shape[1]), around.flatten(0, 1), budget)
        tried = Projection(
            *(torch.cat([one[None], more.reshape(-1, *one.shape)]) for one, more in zip(first, others, strict=True))
        )
        distance = torch.linalg.vector_norm(tried.point - y, dim=2)
        best = torch.where(tried.converged, distance, torch.inf).argmin(0)
        taken = Projection(*(part[best, torch.arange(len(y), device=y.device)] for part in tried))
        return taken._replace(iterations=tried.iterations.sum(0))

    def quick(self, z: Tensor, warm: Tensor | None = None) -> Quick | None:
        """Nearest points by a few Gauss-Newton steps (``solvers/quick_steps.py``), and which were found.

        None if there is more than one start, or the derivatives of one chain do not fit into a batch.
        """
        event = tuple(z.shape[1:])
        dense = self.algebra(event) is DENSE
        if self.starts > 1 or not z.numel() or (dense and self._row_count(event) * math.prod(event) > TILE):
            return None

        def work(system: _System) -> Quick:
            tile, wide = self._tile(z), flat(z).to(torch.float64, copy=True)
            found = _in_tiles(system, tile, wide, None)
            left = None if warm is None else chosen(~found.done)
            if warm is not None and left is not None and len(left):
                start = flat(warm.expand_as(z))[left].to(torch.float64)
                found.point[left], found.done[left] = _in_tiles(system, tile, wide[left], start)
            return found

        found: Quick = self._worked(event, work)
        return Quick(found.point.to(z.dtype).reshape(z.shape), found.done)

    def _project_fast(self, z: Tensor, warm: Tensor | None = None) -> Tensor:
        found = self.quick(z, warm)
        return self.project(z, warm=warm) if found is None else searched_for(self, z, warm, found)

    def _excess(self, z: Tensor, lost: Tensor | None) -> Excess:
        if not z.numel():
            return side_by_side([], z)

        def work(system: _System) -> Excess:
            tile = self._tile(z)
            self._check_jacobian(system, flat(z)[:1].clone())
            more = [None] * -(-len(z) // tile) if lost is None else list(flat(lost).clone().split(tile))
            pairs = zip(flat(z).clone().split(tile), more, strict=True)
            return stacked([system.missed(part, extra) for part, extra in pairs])

        found: Excess = self._worked(tuple(z.shape[1:]), work)
        return found

    def component_name(self, event: Event, row: int) -> str:
        if row < len(self.names):
            return self.names[row]
        count = self._row_count(event)
        kind, name = ("equation", _name(self.fn)) if row < count else ("inequality", _name(self.inequality))
        return f"{kind} {row if row < count else row - count}{'' if '<' in name else f' of {name}'}"

    def _check_jacobian(self, system: _System, z: Tensor) -> None:
        """Compare a given Jacobian with differences of the functions, once: the certificate rests on it."""
        if self.jacobian is None or self._jacobian_checked:
            return
        off = system.jacobian_error(z)
        if off is not None:
            row, given, seen = off
            raise SettingError(
                f"jacobian of {self!r} gives component {row} a slope of {given:.6g} where differences of the function "
                f"give {seen:.6g}; return derivatives (n, m, *event), those of fn first, or leave jacobian out"
            )
        self._jacobian_checked = True

    def _tile(self, z: Tensor) -> int:
        """How many chains are worked on at once."""
        size, algebra = math.prod(z.shape[1:]), self.algebra(tuple(z.shape[1:]))
        if isinstance(algebra, SparseRows):
            return max(1, FACTORS // algebra.bands.numbers)
        if isinstance(algebra, ProductRows):
            return max(1, TILE // max(1, size))
        if len(z) * size**2 <= TILE:  # there are no more rows than coordinates, in most cases
            return max(1, len(z))
        rows = self._residual(z[:1].to(torch.float64)).shape[1]
        return max(1, TILE // max(1, size * rows))


@register
class FromProjection(Constraint):
    """A set given by your own projection and violation.

    C = {z : violation(z) = 0}, with the user's own projection onto it.

    The two functions must be independent of each other: the certificate rests on ``violation`` alone.
    ``casal.sample`` tries both on the starting points before the first step.

    Args:
        project: (n, *event) float64 -> (n, *event), a nearest point of C or an approximation of it.
        violation: (n, *event) float64 -> (n,), zero on C, positive elsewhere.
        exact: Whether ``project`` returns the nearest point.
        convex: Whether C is convex.
        solid: Whether C has an interior.
        residual: Optional smooth functions (n, *event) -> (n, m) that vanish on C: equations.
    """

    def __init__(
        self,
        project: Callable[[Tensor], Tensor],
        violation: Callable[[Tensor], Tensor],
        *,
        exact: bool = True,
        convex: bool = False,
        solid: bool = False,
        residual: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        if not callable(project) or not callable(violation):
            raise SettingError("FromProjection(project, violation) needs two callables")
        self._user_project, self._user_violation, self._user_residual = project, violation, residual
        for name, flag in (("exact", exact), ("convex", convex), ("solid", solid)):
            one_of(flag, name, (True, False))
        self.exact, self.convex, self.solid, self.smooth = exact, convex, solid, residual is not None

    def __repr__(self) -> str:
        return f"FromProjection({_name(self._user_project).strip('<>')}, {_name(self._user_violation).strip('<>')})"

    def _searched(self, z: Tensor) -> list[tuple[Constraint, Tensor]]:
        """A projection that is no more than near the set proves nothing."""
        return []

    def equations(self, z: Tensor) -> Tensor:
        return super().equations(z) if self._user_residual is None else self._user_residual(z)

    def _project(self, z: Tensor) -> Tensor:
        out = self._user_project(z)
        if not isinstance(out, Tensor) or out.shape != z.shape:
            raise ShapeError(f"project returned {_shown(out)} for points of shape {tuple(z.shape)}")
        if on_host(z) and not bool(out.isfinite().all()):
            raise ProjectionError("project returned non-finite coordinates for finite points")
        return out

    def _violation(self, z: Tensor) -> Tensor:
        out = self._user_violation(z)
        if not isinstance(out, Tensor) or tuple(out.shape) != (len(z),):
            raise ShapeError(f"violation returned {_shown(out)} for {len(z)} points, not one number per point")
        return out.to(z.dtype)


class _System:
    """The rows of an Implicit set as functions of flat points (n, d)."""

    def __init__(self, owner: Implicit, event: Event) -> None:
        self.owner, self.event = owner, event
        self.algebra = owner.algebra(event)
        self.bounds = owner._bounds_of(event)

    def bounded(self, like: Tensor) -> bool:
        return self.bounds is not None or like.shape[1] > (self.owner._count_equations() or 0)

    def inequality(self, like: Tensor) -> Tensor:
        return torch.arange(like.shape[1], device=like.device) >= (self.owner._count_equations() or 0)

    def values(self, z: Tensor) -> Tensor:
        return self.owner._residual(z.reshape(len(z), *self.event)).to(torch.float64)

    def linearise(self, z: Tensor) -> tuple[Tensor, Tensor]:
        if self.owner.jacobian is not None:
            values = self.values(z)
            return values, self._given(z, values.shape[1])
        with _differentiable(z) as leaf:
            values = self.values(leaf)
            if isinstance(self.algebra, SparseRows):
                found = self.owner._structure(self.event)
                assert found is not None
                entries = found.entries(lambda weights: pulled(values, leaf, weights).detach(), len(z), z)
                return values.detach(), self.algebra.kept(entries.to(torch.float64))
            rows = rows_of(values, leaf)
        return values.detach(), rows.detach().to(torch.float64)

    def curvature(self, z: Tensor, weights: Tensor) -> Function:
        if not isinstance(self.owner.jacobian, SparseJacobian | None):
            return self._differences(z, weights)
        try:
            with _differentiable(z) as leaf:
                values = self.values(leaf)
                gradient = pulled(values, leaf, weights, create_graph=True)
            pulled(gradient, leaf, torch.zeros_like(z))
        except (RuntimeError, NotImplementedError):  # a function that can be differentiated only once
            return self._differences(z, weights)
        if self.owner.jacobian is not None and not self._same_slope(z, weights, gradient):
            return self._differences(z, weights)
        return lambda v: pulled(gradient, leaf, v).detach()

    def _same_slope(self, z: Tensor, weights: Tensor, gradient: Tensor) -> bool:
        """Whether torch finds the derivatives that were given: a function may hide what it does from it."""

        def look() -> bool:
            given = self._gradient(z[:1], weights[:1])
            return bool((norm(gradient[:1].detach() - given) <= JACOBIAN_ERROR * norm(given)).all())

        return self.owner._once(("slope", self.event), look)

    def violation(self, values: Tensor, rows: Tensor, z: Tensor, *, rough: bool = False) -> Tensor:
        """(n,) from values (n, m) and derivatives at z. What is left close to the set may be rounding."""
        found = self._in_units(values, rows, z, None)
        value = largest(found.violation())
        below = CLOSE if self.algebra is DENSE else CLOSER
        if rough or self.owner.scale is not None:
            return value
        close = chosen((value > STRICT) & (value < below))
        if not len(close):
            return value
        left = found.amount[close] - self.rounding(z[close], values[close], rows[close])
        value = value.clone()
        value[close] = largest(Excess(left.clamp_min(0.0), found.unit[close]).violation())
        return value

    def _in_units(self, values: Tensor, rows: Tensor | None, z: Tensor, lost: Tensor | None) -> Excess:
        size, scale = torch.where(self.inequality(values), values.clamp_min(0.0), values.abs()), self.owner.scale
        if scale is None:
            assert rows is not None
            reach = z.abs() if lost is None else z.abs() + lost
            return Excess(size, size + self.algebra.terms(rows, reach))
        if scale.ndim > 1 or scale.numel() not in (1, values.shape[1]):
            count = values.shape[1]
            raise ShapeError(f"scale has shape {tuple(scale.shape)} for {count} components; give one number for each")
        return Excess(size, scale.to(values).expand_as(values))

    def missed(self, z: Tensor, lost: Tensor | None) -> Excess:
        """Row by row from scratch; infinite where a row is not finite."""
        values, rows = self.linearise(z) if self.owner.scale is None else (self.values(z), None)
        found = self._in_units(values, rows, z, lost)
        rounding = torch.zeros_like(found.amount)
        if rows is not None:
            off = chosen(largest(found.violation()) > STRICT)
            if len(off):
                rounding[off] = self.rounding(z[off], values[off], rows[off])
        good = torch.isfinite(found.amount) & torch.isfinite(found.unit)
        amount = torch.where(good, found.amount, torch.inf)
        return Excess(amount, torch.where(good, found.unit, 1.0), torch.where(torch.isfinite(rounding), rounding, 0.0))

    def rounding(self, z: Tensor, values: Tensor, rows: Tensor) -> Tensor:
        """What rounding leaves in every row at z, (n, m); zero where a step of Newton's method still gets nearer.

        Args:
            z: Points (n, d).
            values: c(z).
            rows: Its derivatives.
        """
        noise = self._noise(z)
        if self.algebra is not DENSE:  # a factorisation, only for chains in which it can make a difference
            left = self._in_units((values.abs() - noise).clamp_min(0.0), rows, z, None).violation()
            some = chosen(largest(left) <= STRICT)
            if not len(some):
                return torch.zeros_like(noise)
            if len(some) < len(z):
                out = torch.zeros_like(noise)
                out[some] = self._told_apart(z[some], values[some], rows[some], noise[some])
                return out
        return self._told_apart(z, values, rows, noise)

    def _told_apart(self, z: Tensor, values: Tensor, rows: Tensor, noise: Tensor) -> Tensor:
        """The noise, zero where a step of Newton's method gets nearer."""
        usable = torch.isfinite(rows).flatten(1).all(1) & torch.isfinite(values).all(1)
        slopes = torch.where(over_events(usable, rows), rows, 0.0)
        step = self.algebra.shortest(slopes, torch.where(usable[:, None], values, 0.0))
        nearer = self.values(z - step).abs() < 0.5 * values.abs()
        return torch.where(nearer, 0.0, noise)

    def _noise(self, z: Tensor) -> Tensor:
        """The rounding of c at z, (n, m): third differences of c over steps on which c is smooth.

        c(z + 3 v) - 3 c(z + 2 v) + 3 c(z + v) - c(z) is of the order of |v|^3 but for the rounding of the four values.
        The largest over a few directions v counts, times 2. Every coordinate moves in its own unit.
        """
        thirds = list[Tensor]()
        for way in _directions(ROUNDING_WAYS, z):
            near = [self.values(z + k * ROUNDING_STEP * z.abs() * way) for k in range(4)]
            thirds.append((near[3] - 3 * near[2] + 3 * near[1] - near[0]).abs())
        return 2.0 * torch.stack(thirds).amax(0)

    def jacobian_error(self, z: Tensor) -> tuple[int, float, float] | None:
        """A row, its slope by the given Jacobian, and by differences, where they disagree; None if they agree."""
        _, rows = self.linearise(z)
        length = torch.where(z != 0, z.abs(), peak(z))
        noise = self._noise(length)[0]
        for way in _directions(ROUNDING_WAYS, z):
            v = length * way
            given, size = self.algebra.apply(rows, v)[0], self.algebra.terms(rows, v.abs())[0]
            coarse, seen = (
                (self.values(z + step * v) - self.values(z - step * v))[0] / (2 * step)
                for step in (4 * SLOPE_STEP, SLOPE_STEP)
            )
            uncertainty = 10 * (coarse - seen).abs() + 10 * noise / SLOPE_STEP + JACOBIAN_ERROR * (size + seen.abs())
            wrong = torch.nonzero((given - seen).abs() > uncertainty).flatten()
            if len(wrong):
                row = int(wrong[0])
                return row, float(given[row]), float(seen[row])
        return None

    def _given(self, z: Tensor, rows: int) -> Tensor:
        given, points = self.owner.jacobian, z.reshape(len(z), *self.event)
        assert given is not None
        if isinstance(self.algebra, ProductRows):
            return self.algebra.kept(z)
        if isinstance(given, SparseJacobian) and isinstance(self.algebra, SparseRows):
            entries, wanted = given.values(points), (len(z), given.indices.shape[1])
            if not isinstance(entries, Tensor) or tuple(entries.shape) != wanted:
                raise ShapeError(f"values of the sparse jacobian returned {_shown(entries)}; it must return {wanted}")
            return self.algebra.kept(entries.to(torch.float64))
        assert callable(given)
        out = given(points)
        if not isinstance(out, Tensor) or out.numel() != len(z) * rows * z.shape[1]:
            raise ShapeError(f"jacobian returned {_shown(out)}; it must return {(len(z), rows, *self.event)}")
        return out.reshape(len(z), rows, z.shape[1]).to(torch.float64)

    def _gradient(self, z: Tensor, weights: Tensor) -> Tensor:
        """sum_j weights_j grad c_j."""
        if self.owner.jacobian is not None:
            return self.algebra.pull(self._given(z, weights.shape[1]), weights)
        with _differentiable(z) as leaf:
            return pulled(self.values(leaf), leaf, weights).detach()

    def _differences(self, z: Tensor, weights: Tensor) -> Function:
        def product(v: Tensor) -> Tensor:
            length = norm(v)
            step = DIFFERENCE * (1.0 + norm(z)) / torch.where(length > 0, length, 1.0)
            ahead = self._gradient(z + step[:, None] * v, weights)
            behind = self._gradient(z - step[:, None] * v, weights)
            return (ahead - behind) / (2.0 * step)[:, None]

        return product


def _few(system: _System, y: Tensor, start: Tensor | None, budget: Budget) -> Projection:
    """As many quick steps as the budget has; a chain that they lead astray is searched for.

    A violation within the tolerance counts as converged, nearest or not.
    """
    z = quick_points(system, y, start, budget.iterations).point
    values, rows = system.linearise(z)
    left = system.violation(values, rows, z, rough=True)
    count = torch.full_like(left, budget.iterations, dtype=torch.long)
    found = Projection(z, left <= budget.tolerance, count, left)
    lost = chosen(~((left <= ASTRAY) & torch.isfinite(z).all(1)))
    if len(lost):
        again = nearest(system, y[lost], None if start is None else start[lost], budget)
        for target, part in zip(found, again, strict=True):
            target[lost] = part
    return found


def _in_tiles(system: _System, tile: int, y: Tensor, start: Tensor | None) -> Quick:
    """Quick steps for so many chains at once."""
    starts = [None] * -(-len(y) // tile) if start is None else start.split(tile)
    parts = [quick_points(system, some, other) for some, other in zip(y.split(tile), starts, strict=True)]
    return Quick(*(torch.cat(column) for column in zip(*parts, strict=True)))


def searched_for(owner: Constraint, z: Tensor, warm: Tensor | None, found: Quick) -> Tensor:
    """The points that were found; chains that were not brought to the set are searched for by ``owner.project``.

    A chain that is not finite stays as it is: the loop looks for those.
    """
    left = chosen(~found.done)
    left = left[chosen(torch.isfinite(z[left]).flatten(1).all(1))] if len(left) else left
    if len(left):
        start = None if warm is None else warm.expand_as(z)[left]
        found.point[left] = owner.project(z[left], budget=SEARCHED, warm=start)
    return found.point


def _evaluate(function: Function | None, name: str, z: Tensor) -> Tensor:
    """(n, m), of width zero without a function."""
    if function is None:
        return z.new_zeros(len(z), 0)
    part = function(z)
    if not isinstance(part, Tensor) or part.ndim != 2 or len(part) != len(z):
        wanted = f"({len(z)}, m), one row per point: h[:, None] for a single equation"
        raise ShapeError(f"{name} returned {_shown(part)} for {len(z)} points; it must return {wanted}")
    return part


def _shown(out: object) -> object:
    """What a user's function returned, for a message."""
    return tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__


# ------------------------------------------------------------------ derivatives


def _on_flat(
    given: JacobianProducts, event: Event, rows: int
) -> tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]:
    """Both products for flat points and vectors (n, d), their shapes checked."""

    def checked(out: Tensor, wanted: tuple[int, ...], name: str) -> Tensor:
        if not isinstance(out, Tensor) or tuple(out.shape) != wanted:
            raise ShapeError(f"{name} of JacobianProducts returned {_shown(out)}; it must return {wanted}")
        return out.detach().to(torch.float64).reshape(len(out), -1)

    def forward(z: Tensor, v: Tensor) -> Tensor:
        n = len(z)
        return checked(given.forward(z.reshape(n, *event), v.reshape(n, *event)), (n, rows), "forward")

    def back(z: Tensor, w: Tensor) -> Tensor:
        return checked(given.back(z.reshape(len(z), *event), w), (len(z), *event), "back")

    return forward, back


@contextmanager
def _own_mode() -> Iterator[None]:
    """Record nothing, but be able to differentiate, whatever mode the caller is in."""
    with torch.inference_mode(False), torch.no_grad():
        yield


@contextmanager
def _differentiable(z: Tensor) -> Iterator[Tensor]:
    """A copy of z to differentiate by."""
    with torch.enable_grad():
        yield z.detach().clone().requires_grad_()


def _log_determinant(system: _System, z: Tensor, offset: Tensor) -> Tensor:
    """log |det| over the tangent space of I + sum_j a_j Hess h_j, offset = sum_j a_j grad h_j."""
    n, d = z.shape
    _, rows = system.linearise(z)
    rows = system.algebra.dense(rows) if isinstance(system.algebra, SparseRows) else rows
    finite = torch.isfinite(rows).all(2).all(1)
    rows = torch.where(finite[:, None, None], rows, 0.0)
    lengths = norm(rows.reshape(-1, d)).reshape(n, -1)
    lengths = torch.where(lengths > 0, lengths, 1.0)
    left, size, right = torch.linalg.svd(rows / lengths[:, :, None], full_matrices=False)
    kept = size > RANK_TOLERANCE * size.amax(1, keepdim=True).clamp_min(1e-300)
    along = (right @ offset[:, :, None]).squeeze(2)
    share = torch.where(kept, along / torch.where(kept, size, 1.0), 0.0)
    weights = (left @ share[:, :, None]).squeeze(2) / lengths
    bend = system.curvature(z, weights)
    eye = torch.eye(d, dtype=z.dtype, device=z.device)
    bent = torch.stack([bend(axis.expand(n, d)) for axis in eye], dim=2)
    normals = right * kept[:, :, None]
    normal = normals.mT @ normals
    # The identity on the normal space leaves the determinant over the tangent space.
    whole = eye + (eye - normal) @ torch.nan_to_num(bent, 0.0, 0.0, 0.0) @ (eye - normal)
    value = torch.linalg.slogdet(whole).logabsdet
    return torch.where(finite & torch.isfinite(value), value, 0.0)


def _directions(count: int, like: Tensor) -> Tensor:
    """(count, d) unit vectors, always the same, each followed by its opposite."""
    d = like.shape[1]
    draw = torch.randn((count + 1) // 2, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    draw = draw / torch.linalg.vector_norm(draw, dim=1, keepdim=True).clamp_min(1e-300)
    return torch.stack([draw, -draw], dim=1).reshape(-1, d)[:count].to(like)


def _name(part: Function | None) -> str:
    return str(getattr(part, "__name__", type(part).__name__))
