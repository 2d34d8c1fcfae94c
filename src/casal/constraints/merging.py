"""Sets whose intersection is one set again, or has a closed form: the tables, and what is in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from casal.checks import Event
from casal.constraints.base import Constraint, SphereInFlat
from casal.constraints.cones import PSDCone
from casal.constraints.flat import Affine, Box, BoxHyperplane, HalfSpace, Polytope
from casal.constraints.geometry import parts, sphere_in_flat
from casal.constraints.parameters import argument, first_failure, join, parameter, show, together
from casal.constraints.round import AffineRound, Ball, MassEnergy, MassEnergyBox, Round, Sphere
from casal.constraints.solvers.sparse_rows import stack
from casal.constraints.vectors import EPSILON, ROUNDING, flat
from casal.devices import chosen
from casal.errors import InfeasibleSet, SettingError


def merge(members: Sequence[Constraint]) -> list[Constraint]:
    """Replace pairs by their closed form until none is left to replace. Equations first, so that they meet as one."""
    parts = sorted(members, key=lambda member: type(member) is not Affine)
    found = True
    while found:
        found = False
        for i in range(len(parts)):
            for j in range(i + 1, len(parts)):
                both = _pair(parts[i], parts[j])
                if both is not None:
                    parts = [both, *(part for k, part in enumerate(parts) if k not in (i, j))]
                    found = True
                    break
            if found:
                break
    return parts


def _pair(a: Constraint, b: Constraint) -> Constraint | None:
    for one, other in ((a, b), (b, a)):
        merger = MERGES.get((type(one), type(other)))
        both = None if merger is None else merger(one, other)
        if both is not None:
            return both
    return None


def _equations(a: Affine, b: Affine) -> Affine:
    level = join(parameter(a.b), parameter(b.b))
    return Affine(stack(a.A, b.A), argument(level, a.chains is not None or b.chains is not None))


def _equations_cut_round(a: Affine, b: AffineRound) -> AffineRound:
    return AffineRound(_equations(a, b.flat_part), b.round_part)


def _equations_and_bounds(a: Affine, b: Box) -> Box | BoxHyperplane | None:
    """Equations on single coordinates fix them in the box; one equation on several has a closed form as well."""
    size = a.A.shape[1]
    if b._low.shape[1:].numel() not in (1, size):
        return None
    places, values = a.single_coordinates()
    if places is None:
        if len(a.A) != 1:
            return None
        level = argument(parameter(a.b)[:, 0], a.chains is not None)
        return BoxHyperplane(b.low, b.high, (a.A if isinstance(a.A, Tensor) else a.A.to_dense())[0], level)
    own = a.chains is not None or b.chains is not None
    count = max(len(values), len(b._low))
    low, high = (side.reshape(len(side), -1).expand(count, size).clone() for side in (b._low, b._high))
    known = values.expand(count, -1)
    slack = ROUNDING * (known.abs() + torch.where(torch.isinf(high), 0.0, high)[:, places].abs())
    outside = torch.nonzero((known < low[:, places] - slack) | (known > high[:, places] + slack))
    if len(outside):
        chain, row = (int(i) for i in outside[0])
        place, where = int(places[row]), "" if not own else f" in chain {chain}"
        raise InfeasibleSet(
            f"z[{place}] = {float(known[chain, row]):g} is out of reach{where}: "
            f"the bounds are {float(low[chain, place]):g} and {float(high[chain, place]):g}"
        )
    known = torch.clamp(known, low[:, places], high[:, places])
    low[:, places] = high[:, places] = known
    return Box.flattened(low, high, own)


def _bounds(a: Box, b: Box) -> Box:
    own = a.chains is not None or b.chains is not None
    low, high = torch.maximum(*together(a._low, b._low)), torch.minimum(*together(a._high, b._high))
    return Box(argument(low, own), argument(high, own))


def _bounds_once_more(a: MassEnergyBox, b: Box) -> MassEnergyBox:
    both = _bounds(a.box, b)
    return MassEnergyBox(a.conserved.mass, a.conserved.energy, both.low, both.high)


def _inequalities(a: HalfSpace | Polytope, b: HalfSpace | Polytope) -> Polytope | None:
    if a.chains is not None or b.chains is not None:
        return None
    (g, h), (k, m) = a.sides(), b.sides()
    return Polytope(torch.cat([g, k]), torch.cat([h, m]))


def _two_round(a: Round, b: Round) -> Constraint | None:
    """Concentric ones merge; balls or spheres too far apart, or one inside the other, have no common point."""
    centers = [part.center for part in (a, b) if part.center is not None]
    if a.chains is not None or b.chains is not None:
        return None
    if len(centers) == 2 and centers[0].shape != centers[1].shape:
        return None
    offset = sum((c if part is a else -c) for part in (a, b) for c in [part.center] if c is not None)
    gap = float(torch.linalg.vector_norm(torch.as_tensor(offset, dtype=torch.float64)))
    slack = ROUNDING * (a.radius + b.radius + gap)
    if gap > a.radius + b.radius + slack:
        raise InfeasibleSet(f"centres {gap:.6g} apart, but the radii are only {a.radius:.6g} and {b.radius:.6g}")
    shells = [part for part in (a, b) if not part.solid]
    for outer, inner, size, least in ((a, b, a.radius, b.radius), (b, a, b.radius, a.radius)):
        if outer in shells and gap + least + slack < size:
            raise InfeasibleSet(f"{inner!r} lies strictly inside the sphere of radius {size:.6g} and never touches it")
    if gap > 0:
        return None
    if len(shells) == 2 and abs(a.radius - b.radius) > slack:
        raise InfeasibleSet(f"two concentric spheres of radius {a.radius:.6g} and {b.radius:.6g}")
    return shells[0] if shells else a if a.radius <= b.radius else b


MERGES: dict[tuple[type[Constraint], type[Constraint]], Callable[[Any, Any], Constraint | None]] = {
    (Affine, Affine): _equations,
    (Affine, Sphere): AffineRound,
    (Affine, Ball): AffineRound,
    (Affine, AffineRound): _equations_cut_round,
    (Affine, Box): _equations_and_bounds,
    (Box, Box): _bounds,
    (MassEnergy, Box): lambda a, b: MassEnergyBox(a.mass, a.energy, b.low, b.high),
    (MassEnergyBox, Box): _bounds_once_more,
    (Sphere, Sphere): _two_round,
    (Sphere, Ball): _two_round,
    (Ball, Ball): _two_round,
    (HalfSpace, HalfSpace): _inequalities,
    (HalfSpace, Polytope): _inequalities,
    (Polytope, Polytope): _inequalities,
}
"""Pairs of sets whose intersection is again one set. A merger may return None: not these two."""


# ------------------------------------------------------------------ pairs with a closed form

Closed: TypeAlias = Callable[[Tensor], Tensor]
"""Finite float64 points (n, *event) to their nearest points."""


def closed_form(parts: Sequence[Constraint]) -> Closed | None:
    """The nearest point of two sets that have a closed form together but are no set of its own; else None."""
    if len(parts) != 2:
        return None
    for one, other in (parts, parts[::-1]):
        maker = CLOSED_FORMS.get((type(one), type(other)))
        if maker is not None:
            return maker(one, other)
    return None


def _round_and_half_space(a: Round | AffineRound, b: HalfSpace) -> Closed | None:
    """The nearest point of the sphere or ball; where the half-space does not hold there, of its edge."""
    try:
        plane = Affine(b.a[None], b.b)
        if not plane.rank:
            return None
        edge = AffineRound(plane, a) if isinstance(a, Round) else _equations_cut_round(plane, a)
    except (InfeasibleSet, SettingError):  # there is no plane, or it does not meet the rest
        return None

    def project(z: Tensor) -> Tensor:
        point = a._project(z)
        some = chosen(b._height(point) > 0)
        if len(some):
            point[some] = edge.take(some)._project(z[some])
        return point

    return project


def _round_and_orthant(a: Round, b: Box) -> Closed | None:
    """The positive part, brought to the sphere or ball; on the sphere, from -C the axis of the largest coordinate."""
    if a.center is not None or not (bool((b._low == 0).all()) and bool(torch.isinf(b._high).all())):
        return None

    def project(z: Tensor) -> Tensor:
        positive = flat(z).clamp_min(0.0)
        if not a.convex:
            nothing, first = (positive == 0).all(1, keepdim=True), flat(z).argmax(1, keepdim=True)
            axis = torch.zeros_like(positive).scatter_(1, first, 1.0)
            positive = torch.where(nothing, axis, positive)
        return a._project(positive.reshape(z.shape))

    return project


def _cone_and_trace(a: PSDCone, b: Affine) -> Closed | None:
    """Eigenvalues onto a simplex."""
    size = math.isqrt(b.A.shape[1])
    rows = b._rows if isinstance(b._rows, Tensor) else None
    if rows is None or len(rows) != 1 or size**2 != b.A.shape[1] or b.chains is not None:
        return None
    sign = float(rows[0, 0].sign())
    total = sign * float(b._right[0, 0]) * size**0.5
    eye = sign * torch.eye(size, dtype=torch.float64).flatten() * size**-0.5
    if not bool(((rows[0] - eye).abs() <= EPSILON).all()) or total < 0:
        return None
    return lambda z: a.of_trace(z, total)


CLOSED_FORMS: dict[tuple[type[Constraint], type[Constraint]], Callable[[Any, Any], Closed | None]] = {
    (Sphere, HalfSpace): _round_and_half_space,
    (Ball, HalfSpace): _round_and_half_space,
    (AffineRound, HalfSpace): _round_and_half_space,
    (Sphere, Box): _round_and_orthant,
    (Ball, Box): _round_and_orthant,
    (PSDCone, Affine): _cone_and_trace,
}
"""Pairs of sets with a closed form for the nearest point. A maker may return None: not these two."""


# ------------------------------------------------------------------ surfaces that meet


def meet(surfaces: Sequence[Constraint], event: Event) -> list[Constraint]:
    """Surfaces that meet, those that are linear equations and spheres as one in closed form."""
    known = [(surface, sphere_in_flat(surface, event)) for surface in surfaces]
    round_or_flat = [found for _, found in known if found is not None]
    # Bounds that fix coordinates are written as equations beside other surfaces.
    bounds = any(found is not None and _has_inequalities(surface, event) for surface, found in known)
    needed = len(round_or_flat) > 1 or (bounds and len(surfaces) > 1)
    both = _sphere_in_flats(round_or_flat, event) if needed else None
    return list(surfaces) if both is None else [both, *(surface for surface, found in known if found is None)]


def _has_inequalities(surface: Constraint, event: Event) -> bool:
    return surface.inequalities(torch.zeros(surface.chains or 1, *event, dtype=torch.float64)).shape[1] > 0


def _sphere_in_flats(known: Sequence[SphereInFlat], event: Event) -> Constraint | None:
    """Linear equations and at most one sphere: two spheres differ by a linear equation. None if it is not one for all.

    |z - c|^2 = R^2 and |z - k|^2 = S^2 say 2 (k - c) . z = R^2 - |c|^2 - S^2 + |k|^2.
    """
    matrix, level = torch.cat([part.matrix for part in known]), join(*(part.level for part in known))
    spheres = [(part.center, part.radius) for part in known if part.radius is not None]
    for other, size in spheres[1:]:
        center, radius = spheres[0]
        zero = torch.zeros(1, matrix.shape[1], dtype=torch.float64)
        first, second = zero if center is None else center, zero if other is None else other
        if len(first) > 1 or len(second) > 1:
            return None
        if torch.equal(first, second):
            bad = first_failure((radius - size).abs() <= ROUNDING * (radius + size))
            if bad is not None:
                raise InfeasibleSet(f"two concentric spheres of radius {show(radius, bad)} and {show(size, bad)}")
            continue
        gap = second.square().sum() - first.square().sum()
        value = radius**2 - size**2 + gap
        matrix, level = torch.cat([matrix, 2.0 * (second - first)]), join(level, value[:, None])
    flat_part = Affine(matrix, argument(level))
    if not spheres:
        return flat_part
    center, radius = spheres[0]
    sphere = Sphere(argument(radius), None if center is None else argument(center.reshape(-1, *event)))
    return parts(AffineRound(flat_part, sphere), event).surface if flat_part.rank else sphere
