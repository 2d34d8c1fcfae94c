"""Points that lie in several sets at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from casal.constraints.affine import Affine, HalfSpace
from casal.constraints.algorithms import active_set
from casal.constraints.algorithms.alternating import alternating
from casal.constraints.algorithms.dykstra import dykstra
from casal.constraints.base import Budget, Constraint, Projection, flat
from casal.constraints.box import Box
from casal.constraints.implicit import Implicit
from casal.constraints.merging import merged
from casal.constraints.polytope import Polytope
from casal.constraints.subspace import Subspace
from casal.errors import SettingError
from casal.typing import Event

FLAT_SIDED = (Affine, HalfSpace, Box, Polytope)


class Intersection(Constraint):
    """C = intersection of the members. How P is found depends on what they are; ``explain()`` says which way was taken:

    - a closed form, where the members merge into one set that has one (equations with equations, a sphere or a ball
      with equations, bounds with one equation or with mass and energy, ...);
    - a quadratic programme, where all members are flat-sided (equations, half-spaces, bounds, polytopes);
    - Dykstra's algorithm for other convex members: the nearest point, at a linear rate;
    - Newton steps on the residuals where all members are smooth, otherwise alternating projections: a point of
      the intersection near z, in general not the nearest.

    The iterative ways flag every chain that does not reach the tolerance. The violation is the largest of the members'.
    Members that provably have no common point raise InfeasibleSet; where it cannot be proved, all chains are flagged.

    Args:
        members: Two or more sets.
    """

    def __init__(self, *members: Constraint) -> None:
        self.members = flattened(Intersection, members)
        self._parts = merged(self.members)
        self.convex = all(member.convex for member in self.members)
        self.solid = len(self._parts) > 1 and all(member.solid for member in self.members)
        self._smooth: Implicit | None = None
        self._rows: dict[int, active_set.Rows] = {}
        if len(self._parts) == 1:
            only = self._parts[0]
            self.exact, self.solid, self.one_sided = only.exact, only.solid, only.one_sided
            self.fast = only.fast
            self.way = "closed form" if only.exact else "iterative"
        elif all(isinstance(part, FLAT_SIDED) for part in self._parts):
            self.exact, self.way = False, "quadratic programme"
        elif self.convex:
            self.exact, self.way = False, "Dykstra"
        elif all(has_residual(part) for part in self._parts):
            self.exact, self.way = False, "Newton steps on the residuals"
            self._smooth = self._as_implicit()
        else:
            self.exact, self.way = False, "alternating projections"

    def __repr__(self) -> str:
        return f"({' & '.join(map(repr, self.members))})"

    def explain(self) -> str:
        inner = self._parts[0].explain() if len(self._parts) == 1 else "; ".join(p.explain() for p in self._parts)
        return f"{self.way}{', nearest point' if self.convex or self.exact else ''}: {inner}"

    def validate(self, event: Event) -> None:
        for part in (*self.members, *self._parts):
            part.validate(event)

    def residual(self, z: Tensor) -> Tensor:
        parts = [part.residual(z) for part in self._parts]
        flags: list[bool] = []
        for part, values in zip(self._parts, parts, strict=True):
            given = part.one_sided
            flags.extend([given] * values.shape[1] if isinstance(given, bool) else given)
        self.one_sided = tuple(flags)
        return torch.cat(parts, dim=1)

    def project_fast(self, z: Tensor) -> Tensor:
        return self._parts[0].project_fast(z) if self.fast else self.project(z)

    def within(self, space: Subspace) -> Constraint | None:
        return self._parts[0].within(space) if len(self._parts) == 1 else None

    def residual_pull(self, z: Tensor, weights: Tensor) -> Tensor | None:
        return self._parts[0].residual_pull(z, weights) if len(self._parts) == 1 else None

    def log_tube_factor(self, x: Tensor, z: Tensor) -> Tensor | None:
        if len(self._parts) == 1:
            return self._parts[0].log_tube_factor(x, z)
        return None if self._smooth is None else self._smooth.log_tube_factor(x, z)

    def _solve(self, z: Tensor, budget: Budget, warm: Tensor | None) -> Projection:
        if len(self._parts) == 1:
            return self._parts[0]._solve(z, budget, warm)
        if self.way == "quadratic programme":
            found = active_set.nearest(flat(z), self._rows_for(flat(z).shape[1]).to(z), budget)
            return Projection(found.point.reshape(z.shape), found.converged, found.iterations, found.residual)
        if self._smooth is not None:
            return self._smooth._solve(z, budget, warm)
        projections = [lambda y, part=part: part._solve(y, budget, None).point for part in self._parts]
        search = dykstra if self.convex else alternating
        return search(z, projections, self._violation, budget)

    def _violation(self, z: Tensor) -> Tensor:
        return torch.stack([member._violation(z) for member in self.members]).amax(0)

    def _arguments(self) -> dict[str, Any]:
        return {"members": list(self.members)}

    def _rows_for(self, size: int) -> active_set.Rows:
        """All members as low <= G z <= high, for events of so many coordinates."""
        if size not in self._rows:
            parts = [_bounds(part, size) for part in self._parts]
            self._rows[size] = active_set.Rows.of(*(torch.cat(column) for column in zip(*parts, strict=True)))
        return self._rows[size]

    def _as_implicit(self) -> Implicit:
        """The members' residuals as one system; which of them are one-sided is known from the first evaluation on."""

        def split(z: Tensor) -> tuple[Tensor, Tensor]:
            values = self.residual(z)
            sided = torch.tensor(self.one_sided, device=values.device)
            return values[:, ~sided], values[:, sided]

        both = any(part.one_sided is not False for part in self._parts)
        return Implicit(lambda z: split(z)[0], (lambda z: split(z)[1]) if both else None)


def flattened(kind: type[Constraint], members: tuple[Constraint, ...]) -> tuple[Constraint, ...]:
    """The members, those of a nested set of the same kind taken out of it."""
    if len(members) < 2:
        raise SettingError(f"{kind.__name__} needs at least two sets, got {len(members)}")
    for member in members:
        if not isinstance(member, Constraint):
            raise SettingError(f"{kind.__name__} is made of sets, got {type(member).__name__}")
    return tuple(part for member in members for part in (member.members if isinstance(member, kind) else (member,)))  # type: ignore[attr-defined]


def has_residual(part: Constraint) -> bool:
    """Whether a set describes itself by smooth functions."""
    return type(part).residual is not Constraint.residual and getattr(part, "_user_residual", part) is not None


def _bounds(part: Constraint, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """(G, low, high) of a flat-sided set, rows of length one."""
    if isinstance(part, Affine):
        return part._rows, part._right, part._right
    if isinstance(part, HalfSpace):
        level = torch.tensor([part._level], dtype=torch.float64)
        return part._normal[None], torch.full_like(level, -torch.inf), level
    if isinstance(part, Box):
        low, high = (bound.reshape(-1).expand(size) for bound in (part.low, part.high))
        return torch.eye(size, dtype=torch.float64), low, high
    assert isinstance(part, Polytope)
    lengths = torch.linalg.vector_norm(part.G, dim=1)
    kept = lengths > 0
    level = part.h[kept] / lengths[kept]
    return part.G[kept] / lengths[kept, None], torch.full_like(level, -torch.inf), level
