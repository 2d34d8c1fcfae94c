"""Points that lie in several sets at once."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

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
    Way,
    at_once,
    nearest_solution,
    row_of,
    side_by_side,
    total_count,
)
from casal.constraints.flat import flat_parts
from casal.constraints.geometry import codimension, geometry, log_volume_factor, parts
from casal.constraints.implicit import Implicit, searched_for
from casal.constraints.joined import as_functions
from casal.constraints.merging import closed_form, meet, merge
from casal.constraints.parameters import common_chains, listed
from casal.constraints.solvers.flat_sets import FlatSet
from casal.constraints.solvers.splitting import Members, Near, admm, alternating, dykstra, dykstra_anywhere, separate
from casal.constraints.vectors import flat, norm
from casal.devices import chosen
from casal.errors import InfeasibleSet, SettingError

MOST_PIECES = 64
"""Pieces that an intersection of unions is written out into."""

ROUGH = Budget(1e-6, 100)
"""Alternating projections that find a new start for Newton's steps."""

CLEAR = 1e-9
"""Relative distance beyond the edge of a ball from which on a set does not meet it."""

SEPARATIONS = 1000, 30
"""Steps of the search for planes that separate convex sets: with fast projections, and with others."""

SEARCHES = {"newton": Way.NEWTON, "alternating": Way.ALTERNATING, "admm": Way.ADMM, "dykstra": Way.DYKSTRA}
"""Searches for a common point that can be asked for by name."""

MOST_EQUATIONS = 50
"""Equations up to which Newton's steps, which factorise a matrix with as many rows for each chain, are taken."""

IN_STEPS = {Way.GRADIENTS: 10}
"""Ways of projecting that improve a guess step by step and stay in the set, and their steps in an iteration of ADMM."""

MOST_COORDINATES = 1000
"""Coordinates up to which a set with flat sides is searched for inequalities that are equations in disguise."""


class Intersection(Constraint):
    """Points that lie in all of several sets, ``a & b``.

    C = intersection of the members. How P is found depends on what they are; ``explain()`` says which way was taken:

    - a closed form, where the members merge into one set that has one, or two of them have one together
      (``constraints/merging.py``: equations on single coordinates with bounds, a sphere or a ball with equations, a
      half-space or an orthant, bounds with one equation or with mass and energy, positive semidefinite matrices of a
      given trace, ...);
    - the nearest of the pieces, where a member is a union: each of its pieces meets the other members;
    - a quadratic programme, where all members are flat-sided (``solvers.flat_sets``), for all chains at once;
    - Dykstra's algorithm for other convex members: the nearest point, at a linear rate;
    - Newton steps on the residuals where all members are smooth and have few equations, or are equations with sparse
      Jacobians (``SparseJacobian``) and linear equations;
    - ADMM (Douglas-Rachford, ``solvers.splitting.admm``) where they have many, and fast projections;
    - otherwise alternating projections. These three find a point near z, in general not the nearest.

    ``way`` names one of the searches instead, where no closed form and no union decides. ADMM returns a point of one
    member, and the violation of the others is what is left: of the last member that has equations, which no point
    satisfies by chance, or of the last member if none has. So ``LinearDynamics(...) & Obstacles(...)`` gives exact
    rollouts also where the search fails. Alternating projections, and Dykstra's algorithm where a member is not convex,
    do the same, unless the start misses less.

    The iterative ways flag every chain that does not reach the tolerance. The violation is the largest of the members'.
    Members that provably have no common point raise InfeasibleSet: when they merge, when they see an event (one lies in
    a ball that another does not reach), or in ``check_nonempty``, which looks harder and which ``casal.sample`` asks
    before a run. Where it cannot be proved, a projection flags all chains.
    With parameters for each chain, Newton's steps go group by group, chains of equal parameters together.

    Args:
        members: Two or more sets.
        way: "newton", "alternating", "admm" or "dykstra"; None chooses. Dykstra's algorithm finds the nearest point of
            convex members; for others it is one more search without a guarantee. The way of a member that is itself an
            intersection holds for the whole if none is given.

    >>> import casal
    >>> moon = casal.Intersection(casal.Ball(1.0), casal.Obstacles(discs=[([1.0, 0.0], 1.0)]), way="admm")
    >>> moon.way.value
    'ADMM'
    >>> z = torch.tensor([[[0.4, 0.1]], [[3.0, 3.0]]], dtype=torch.float64)
    >>> float(moon.violation(moon.project(z)).max()) <= 1e-12
    True
    """

    def __init__(self, *members: Constraint, way: str | None = None) -> None:
        self._named = common_way(members) if way is None else way
        if self._named not in (None, *SEARCHES):
            raise SettingError(f"way must be one of {', '.join(SEARCHES)} or None, got {way!r}")
        self.members = take_apart(Intersection, members)
        self.chains = common_chains(**{f"member {i}": member for i, member in enumerate(self.members)})
        self._parts = merge(self.members)
        self._newton: Implicit | None = None
        self._met: set[Event] = set()
        self.convex = all(member.convex for member in self.members)
        self.smooth = all(part.smooth for part in self._parts)
        self.flat_sided = all(part.flat_sided for part in self._parts)
        self.exact, self.fast, self.solid = False, False, all(member.solid for member in self.members)
        self._closed = closed_form(self._parts) if self._named is None else None
        only = self._only
        self.in_pieces = any(part.in_pieces for part in self._parts)
        if self.in_pieces and only is None:
            self._way = Way.PIECES
        elif only is not None:
            self.exact, self.solid, self.fast, self._way = only.exact, only.solid, only.fast, only.way
        elif self._closed is None and self.chains is not None:
            alone = self._alone(0)
            self._way, self.exact, self.fast = alone._way, alone.exact, alone.fast
        else:
            self._way = self._choose() if self._named is None else self._search_named(self._named)
            if self.smooth and not self.convex:
                self._newton = as_functions(self._parts)
                self.fast = self._way is Way.NEWTON

    def _choose(self) -> Way:
        """The way for members that do not merge, from what they can do."""
        if self._closed is not None:
            self.exact = True
            return Way.CLOSED_FORM
        if self.flat_sided:
            return Way.QUADRATIC_PROGRAMME
        if self.convex:
            return Way.DYKSTRA
        quick = all(part.exact or part.way in IN_STEPS for part in self._parts)
        if self.smooth and not (quick and (total_count(self._parts) or 0) > MOST_EQUATIONS):
            return Way.NEWTON
        return Way.ADMM if self.smooth else Way.ALTERNATING

    def _search_named(self, name: str) -> Way:
        found = SEARCHES[name]
        if found is Way.NEWTON and not self.smooth:
            lost = ", ".join(repr(part) for part in self._parts if not part.smooth)
            raise SettingError(f"way='newton' needs residuals, which {lost} does not have; use 'admm' or 'alternating'")
        if found is Way.NEWTON and self.convex:
            raise SettingError(
                "way='newton' is for sets that are not convex; leave out way=, which selects a safer algorithm"
            )
        return found

    def _arguments(self) -> dict[str, Any]:
        return {"members": self.members} | ({} if self._named is None else {"way": self._named})

    @property
    def way(self) -> Way:
        return self._way

    @property
    def _only(self) -> Constraint | None:
        """The one set that all members merge into, if they do."""
        return self._parts[0] if len(self._parts) == 1 else None

    def __repr__(self) -> str:
        return f"({listed(self.members, ' & ')})"

    def _explained(self) -> str:
        searched = self._way in (Way.ADMM, Way.ALTERNATING)
        nearest_point = ", nearest point" if (self.convex and not searched) or self.exact else ""
        return f"{self.way.value}{nearest_point}: {'; '.join(part._explained() for part in self._parts)}"

    def _tidied(self, event: Event) -> Sequence[str]:
        only = self._only
        if only is not None:
            return only._tidied(event)
        return self._flat_set(event).found if self._way is Way.QUADRATIC_PROGRAMME else ()

    def validate(self, event: Event) -> None:
        for part in (*self.members, *self._parts):
            part.validate(event)
        if self._only is None and self.chains is not None and self._way is not Way.QUADRATIC_PROGRAMME:
            assert self._group_sets  # made here, so that chains without a common point are refused before they move
        self._refuse_balls_apart(tuple(event))

    def _refuse_balls_apart(self, event: Event) -> None:
        """InfeasibleSet if a part lies in a ball that another one, with an exact projection, does not reach."""
        if self._only is not None or event in self._met:
            return
        count = self.chains or 1
        for part in self._parts:
            ball = part._ball_around(event)
            if ball is None:
                continue
            center, radius = ball[0].expand(count, *event), ball[1].expand(count)
            for other in (other for other in self._parts if other is not part and other.exact):
                gap = norm(flat(other._project(center) - center))
                apart = torch.nonzero(gap > radius + CLEAR * (gap + radius + norm(flat(center)))).flatten()
                if len(apart):
                    chain = int(apart[0])
                    where = self._in_chain(chain)
                    raise InfeasibleSet(
                        f"{part!r} and {other!r} have no common point{where}: the first lies in a ball of radius "
                        f"{float(radius[chain]):.6g}, the second stays {float(gap[chain]):.6g} away from its centre"
                    )
        self._met.add(event)

    def _prove_empty(self, z: Tensor, first: int) -> None:
        """For convex members, by planes that separate them; for flat ones also by Farkas."""
        if self._only is not None or not self.convex:
            return
        steps = SEPARATIONS[0] if all(part.exact or part.flat_sided for part in self._parts) else SEPARATIONS[1]
        start = z if self.chains is not None else z[:1]
        found = separate(start, _maps(self._parts, self.members, Budget()), steps)
        proved = torch.nonzero(found.proved).flatten()
        if len(proved):
            chain = int(proved[0])
            where = self._in_chain(first + chain)
            raise InfeasibleSet(
                f"the sets of {self!r} have no common point{where}: they stay {float(found.gap[chain]):.6g} apart "
                f"(proved for all points within {float(found.clear[chain]):.2g} of the chain)"
            )
        if self._way is Way.QUADRATIC_PROGRAMME:
            self._refuse_contradictions(start, first)

    def _refuse_contradictions(self, z: Tensor, first: int) -> None:
        whole = self._flat_set(tuple(z.shape[1:]))
        found = whole.nearest(flat(z), Budget())
        rows = whole.proves_empty(found.drift, torch.arange(len(z))) & ~found.converged[:, None]
        empty = torch.nonzero(rows.any(1) | (whole.crossed > 0)).flatten()
        if len(empty):
            chain = int(empty[0])
            raise InfeasibleSet(
                f"the sets of {self!r} have no common point{self._in_chain(first + chain)}: "
                f"{int(rows[chain].sum())} of {whole.count} rows and the bounds contradict each other"
            )

    def equations(self, z: Tensor) -> Tensor:
        return torch.cat([part.equations(z) for part in self._parts], dim=1)

    def inequalities(self, z: Tensor) -> Tensor:
        return torch.cat([part.inequalities(z) for part in self._parts], dim=1)

    def _count_equations(self) -> int | None:
        return total_count(self._parts, self._equation_count)

    def linear(self, event: Event) -> Rows | None:
        parts = [part.linear(event) for part in self._parts]
        known = [part for part in parts if part is not None]
        return Rows.joined(known) if len(known) == len(parts) else None

    def _project_fast(self, z: Tensor, warm: Tensor | None = None) -> Tensor:
        if self._only is not None:
            return self._only._project_fast(z, warm)
        if self.chains is not None and self.fast:
            self._check_chains(z)
            out = z.clone()
            for some, one in self._group_sets:
                out[some] = one._project_fast(z[some], None if warm is None else warm[some])
            return out
        found = self._newton.quick(z, warm) if self.fast and self._newton is not None else None
        return self.project(z, warm=warm) if found is None else searched_for(self, z, warm, found)

    def _residual_pull(self, z: Tensor, weights: Tensor) -> Tensor | None:
        return None if self._only is None else self._only._residual_pull(z, weights)

    def _written_out(self, event: Event) -> tuple[Constraint, ...]:
        """Of a union and another set: the intersections of each piece with it, without those that are empty."""
        choices = [member.pieces(event) for member in self.members]
        count = math.prod(map(len, choices))
        if count > MOST_PIECES:
            raise SettingError(f"unions meet in {count} pieces, and at most {MOST_PIECES} are supported")
        found, empty = [], []
        for choice in itertools.product(*choices):
            try:
                piece = Intersection(*choice, way=self._named)
                parts(piece, event)
                found.append(piece)
            except InfeasibleSet as error:
                empty.append(str(error))
        if not found:
            raise InfeasibleSet(f"none of the {count} pieces of the unions meets the other sets: {empty[0]}")
        return tuple(found)

    def _geometry(self, event: Event) -> Geometry:
        only = self._only
        if only is not None:
            return geometry(only, event)
        if self.in_pieces:
            return Geometry(None)
        own = self._apart(event)
        return Geometry(
            own,
            codimension=(lambda: self._total_codimension(event)) if own.surface is self else None,
            log_volume=self._log_volume,
        )

    def _apart(self, event: Event) -> Parts:
        hidden = self._equations_in_disguise(event)
        if hidden is not None:
            return hidden
        surfaces, solids = split(self._parts, event)
        met = meet(surfaces, event)
        if not solids and len(met) == len(self._parts) and all(any(a is b for b in self._parts) for a in met):
            return Parts(self, None)
        return Parts(together_in(met), together_in(solids))

    def _total_codimension(self, event: Event) -> int | None:
        counts = [codimension(part, event) for part in self._parts]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def bounds(self, event: Event) -> tuple[Tensor, Tensor] | None:
        """The tightest of the parts'."""
        sides = [part.bounds(event) for part in self._parts]
        known = [side for side in sides if side is not None]
        if len(known) < len(sides) or not self.flat_sided:
            return None
        lows, highs = zip(*known, strict=True)
        return functools.reduce(torch.maximum, lows), functools.reduce(torch.minimum, highs)

    def _equations_in_disguise(self, event: Event) -> Parts | None:
        """The parts of a set with flat sides whose inequalities cannot all hold with room to spare."""
        size = torch.Size(event).numel()
        if not self.flat_sided or self.chains is not None or size > MOST_COORDINATES:
            return None
        rows = self.linear(event)
        return None if rows is None else flat_parts(rows, only_in_disguise=True)

    def _log_volume(self, x: Tensor, z: Tensor) -> Tensor | None:
        if self.chains is not None:
            return self._by_group(log_volume_factor, x, z)
        if self._newton is None:
            return None
        rows = self._once("rows of all", lambda: Implicit(self.equations, self.inequalities))
        return log_volume_factor(rows, x, z)

    def _solve(self, z: Tensor, budget: Budget, warm: Tensor | None) -> Projection:
        if self._only is not None:
            return self._only._solve(z, budget, warm)
        if self._closed is not None:
            return at_once(self._closed(z))
        if self.in_pieces:
            return nearest_solution(self.pieces(tuple(z.shape[1:])), z, budget, warm)
        if self._way is Way.ADMM:
            return admm(z, _maps(_thin_last(self._parts)[::-1], self.members, budget), budget, warm)
        if self._way is Way.ALTERNATING or (self._way is Way.DYKSTRA and not self.convex):
            search = alternating if self._way is Way.ALTERNATING else dykstra_anywhere
            return search(z, _maps(_thin_last(self._parts), self.members, budget), budget, warm)
        if self._way is Way.DYKSTRA:
            return dykstra(z, _maps(self._parts, self.members, budget), budget)
        if self._way is Way.QUADRATIC_PROGRAMME:
            return self._flat_set(tuple(z.shape[1:])).project(z, budget, warm)
        if self.chains is not None:
            return self._solve_by_group(z, budget, warm)
        return self._by_newton(z, budget, warm)

    def _by_newton(self, z: Tensor, budget: Budget, warm: Tensor | None) -> Projection:
        """Newton's steps; where they get stuck, once more from where alternating projections lead."""
        newton = self._newton
        assert newton is not None
        found = newton._solve(z, budget, warm)
        if newton.steps_quickly(tuple(z.shape[1:]), budget, warm):
            return found
        left = chosen(~found.converged)
        if len(left):
            near = alternating(z[left], _maps(_thin_last(self._parts), self.members, ROUGH), ROUGH).point
            again = newton._solve(z[left], budget, near)
            better = chosen(again.converged)
            for whole, part in zip(found, again, strict=True):
                whole[left[better]] = part[better]
        return found

    def _excess(self, z: Tensor, lost: Tensor | None) -> Excess:
        return side_by_side([member._excess(z, lost) for member in self.members], z)

    def component_name(self, event: Event, row: int) -> str:
        member, own = row_of(self.members, [event] * len(self.members), row)
        return self.members[member].component_name(event, own)

    def _flat_set(self, event: Event) -> FlatSet:
        """All members as one flat set, for events of this shape."""

        def made() -> FlatSet:
            rows = self.linear(event)
            assert rows is not None
            return FlatSet(rows)

        return self._once(("flat set", event), made)


# ------------------------------------------------------------------ surfaces that meet


def split(members: Sequence[Constraint], event: Event) -> tuple[list[Constraint], list[Constraint]]:
    """Surface parts and solid parts of sets that meet; solid parts that merge into a thin one are split again."""
    left = list(members)
    while True:
        apart = [parts(part, event) for part in left]
        surfaces = [part.surface for part in apart if part.surface is not None]
        solids = merge([part.solid for part in apart if part.solid is not None])
        if all(parts(part, event).surface is None for part in solids):
            return surfaces, solids
        left = [*surfaces, *solids]


def together_in(members: Sequence[Constraint]) -> Constraint | None:
    """The intersection of any number of sets."""
    return Intersection(*members) if len(members) > 1 else next(iter(members), None)


# ------------------------------------------------------------------ searches for a common point


def worst_violation(members: Sequence[Constraint], z: Tensor) -> Tensor:
    """(n,), the largest of the members'."""
    return torch.stack([member._violation(z) for member in members]).amax(0)


def _maps(parts: Sequence[Constraint], members: Sequence[Constraint], budget: Budget) -> Members:
    """Projections onto the parts, and the violation of the members, for an iteration over them."""
    inner = Budget(budget.tolerance, max(budget.iterations, Budget().iterations))  # the budget counts sweeps

    def onto(part: Constraint) -> Callable[[Tensor], Tensor]:
        return lambda y: part._solve(y, inner, None).point

    def near(part: Constraint) -> Near:
        steps = IN_STEPS.get(part.way)
        few = inner if steps is None else Budget(inner.tolerance, steps)
        return lambda y, guess: part._solve(y, few, guess).point

    def take(index: Tensor) -> Members:
        return _maps([part.take(index) for part in parts], [member.take(index) for member in members], budget)

    return Members(
        [onto(part) for part in parts],
        lambda y: worst_violation(members, y),
        None if all(member.chains is None for member in members) else take,
        [near(part) for part in parts],
        [part._violation for part in parts],
    )


def _thin_last(parts: Sequence[Constraint]) -> list[Constraint]:
    """In an order in which sets with an interior come before sets with equations."""
    return sorted(parts, key=lambda part: not part.solid)


def common_way(members: Sequence[Any]) -> str | None:
    """The search that was named for those of the sets that are intersections; SettingError if they differ."""
    named = {m._named for m in members if isinstance(m, Intersection) and m._named is not None}
    if len(named) > 1:
        raise SettingError(
            f"intersections with way = {' and '.join(sorted(named))} are combined; choose one: casal.Intersection(..., "
            "way=...)"
        )
    return next(iter(named), None)


def take_apart(kind: type[Constraint], members: Sequence[Any]) -> tuple[Constraint, ...]:
    """The members, those of a nested set of the same kind taken out of it."""
    if len(members) < 2:
        raise SettingError(f"{kind.__name__} needs at least two sets, got {len(members)}")
    parts: list[Constraint] = []
    for member in members:
        if not isinstance(member, Constraint):
            raise SettingError(f"{kind.__name__} is made of sets, got {type(member).__name__}")
        parts += member.members if isinstance(member, kind) else (member,)  # type: ignore[attr-defined]
    return tuple(parts)
