"""What samplers need of a set beyond its projection, derived from what the set says.

C = surface & solid: its equations and its inequalities apart. Chains approach the surface by a distance that shrinks,
and the inequalities hold for the nearest point on the surface or do not. A simplex is one equation and an orthant.
Sets that know more than their equations (``Constraint._geometry``) say so; all else follows here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from casal.checks import Event
from casal.constraints.base import ON_SET, Budget, Constraint, Geometry, OnSurface, Parts, SphereInFlat, Subspace
from casal.constraints.vectors import ROUNDING, floating, gaussian, half_square, norm, over_events
from casal.errors import InfeasibleSet, SettingError

REACHED = 1e-3
"""Violation up to which a search has found a point, or comes so near that only a longer one could tell."""

SEARCH = Budget(1e-6, 50)
"""How hard a search for a point tries from each start, before it tries the best of them in full."""

TRIES, TO_AND_FRO = 8, 40
"""Starts and rounds of the search for the distance of two pieces."""

SETTLED, MEETING = 0.99, 1e-9
"""Pieces are apart if their distance no longer falls from round to round, and is no rounding of the points' length."""


def geometry(constraint: Constraint, event: Event) -> Geometry:
    """What a set says for events of this shape, made once per shape.

    A surface part is its own surface part, a solid part its own solid part.
    """
    key = tuple(event)

    def made() -> Geometry:
        constraint.validate(key)
        found = constraint._geometry(key)
        surface, solid = (None, None) if found.parts is None else found.parts
        if surface is not None and surface is not constraint:
            _insist(surface, key, Parts(surface, None))
        if solid is not None and solid is not constraint:
            _insist(solid, key, Parts(None, solid))
        return found

    return constraint._once(("geometry", key), made)


def _insist(constraint: Constraint, event: Event, parts: Parts) -> None:
    """A part of a set has no parts but itself."""
    known = constraint._cache.get(("geometry", event)) or constraint._geometry(event)
    constraint._cache["geometry", event] = known if known.parts == parts else known._replace(parts=parts)


# ------------------------------------------------------------------ equations and inequalities apart


def parts(constraint: Constraint, event: Event) -> Parts:
    """C as its surface part (equations) and its solid part (inequalities); both None if C is the whole space.

    Raises:
        SettingError: C is a union of pieces that have both; ``nearest_on_surface`` treats each piece on its own.
    """
    found = geometry(constraint, event).parts
    if found is None:
        raise SettingError(
            "a union with inequalities has no parts as a whole; use ``nearest_on_surface``, which treats each piece"
        )
    return found


def nearest_on_surface(constraint: Constraint, y: Tensor) -> OnSurface:
    """Nearest points on the surface part to points (n, *event), and whether the inequalities hold there.

    A point that touches an inequality to rounding counts as inside; one on which the projection did not converge does
    not. A set without equations takes points as they are, and inside means a violation of exactly zero.
    """
    y, event = floating(y), tuple(y.shape[1:])
    own = geometry(constraint, event)
    if own.nearest is not None:
        return own.nearest(y)
    if constraint.in_pieces:
        return _nearest_piece(constraint.pieces(event), y)
    surface, solid = parts(constraint, event)
    inside = torch.ones(len(y), dtype=torch.bool, device=y.device)
    if surface is None:
        inside = inside if solid is None else solid.violation(y) == 0.0
        return OnSurface(y, inside, torch.zeros(len(y), dtype=torch.float64, device=y.device))
    wide = y.to(torch.float64)
    found = surface.solve(wide)
    if not bool(found.converged.all()):
        inside = found.converged | (surface.violation(found.point) <= ON_SET)
    if solid is not None:
        inside = inside & (solid.violation(found.point) <= ROUNDING)
    return OnSurface(found.point.to(y.dtype), inside, log_volume_factor(surface, wide, found.point))


def _nearest_piece(pieces: Sequence[Constraint], y: Tensor) -> OnSurface:
    """On a union: for each point that of the piece which is nearest to it, inequalities included."""
    chain = torch.arange(len(y), device=y.device)
    found = [nearest_on_surface(piece, y) for piece in pieces]
    distance = torch.stack([_distance(piece, y, there) for piece, there in zip(pieces, found, strict=True)])
    nearest = distance.argmin(0)
    factors = [there.log_volume for there in found if there.log_volume is not None]
    return OnSurface(
        torch.stack([there.point for there in found])[nearest, chain],
        torch.stack([there.inside for there in found])[nearest, chain],
        torch.stack(factors)[nearest, chain] if len(factors) == len(found) else None,
    )


def _distance(piece: Constraint, y: Tensor, there: OnSurface) -> Tensor:
    """Distances (n,) to a set. A point on the surface that is inside is the nearest; others are projected."""
    wide, point = y.to(torch.float64), there.point.to(torch.float64)
    lost = torch.zeros(len(y), dtype=torch.bool, device=y.device)
    if not bool(there.inside.all()):
        projected = piece.solve(wide)
        point = torch.where(over_events(there.inside, y), point, projected.point)
        lost = ~there.inside & ~projected.converged
    length = torch.linalg.vector_norm((point - wide).flatten(1), dim=1)
    return torch.where(lost, torch.inf, length)


# ------------------------------------------------------------------ numbers of the surface


def codimension(constraint: Constraint, event: Event) -> int | None:
    """Independent equations of C: 0 for a set with an interior, 1 for a sphere; None if that is not known.

    It is not known either if it differs from chain to chain, or from piece to piece of a union.
    """
    own = geometry(constraint, event)
    if own.codimension is not None:
        return own.codimension()
    if constraint.in_pieces:
        counts = {codimension(piece, event) for piece in constraint.pieces(event)}
        return counts.pop() if len(counts) == 1 else None
    surface = parts(constraint, event).surface
    if surface is None:
        return 0
    return constraint._count_equations() if surface is constraint else codimension(surface, event)


def reach(constraint: Constraint, event: Event) -> float | None:
    """Largest distance from the surface part up to which every point has one nearest point there.

    The radius for a sphere, infinity for a flat set and for a set without equations, at most half the distance between
    the pieces of a union. The smallest over chains; None if unknown.
    """
    own = geometry(constraint, event)
    if own.reach is not None:
        return own.reach()
    if constraint.in_pieces:
        return _reach_of_pieces(constraint.pieces(event), event)
    surface = parts(constraint, event).surface
    if surface is None:
        return math.inf
    if surface is not constraint:
        return reach(surface, event)
    return math.inf if constraint.convex else None


def _reach_of_pieces(pieces: Sequence[Constraint], event: Event) -> float | None:
    """Smallest of the pieces' own, and of half the distances between pieces that do not meet.

    Distances are found by projecting to and fro from a few fixed points: exact for convex pieces.
    """
    own = [reach(piece, event) for piece in pieces]
    known = [width for width in own if width is not None]
    if len(known) < len(own):
        return None
    chains = next((piece.chains for piece in pieces if piece.chains is not None), None)
    generator = torch.Generator().manual_seed(0)
    starts = torch.randn(TRIES, *event, generator=generator, dtype=torch.float64)
    for first, second in itertools.combinations(pieces, 2):
        for start in starts[:, None] if chains is None else starts[:, None].expand(-1, chains, *event):
            z, gaps = start, []
            for _ in range(TO_AND_FRO):
                point = first.project(z)
                z = second.project(point)
                gaps.append(torch.linalg.vector_norm((z - point).flatten(1), dim=1))
            apart = (gaps[-1] > SETTLED * gaps[-2]) & (
                gaps[-1] > MEETING * torch.linalg.vector_norm(z.flatten(1), dim=1)
            )
            known += (0.5 * gaps[-1][apart]).tolist()
    return min(known)


def log_volume_factor(constraint: Constraint, x: Tensor, z: Tensor) -> Tensor | None:
    """Logarithm of the volume factor J of the map (point z of the surface part, normal offset x - z) -> x, (n,).

    A thin shell of points x around the surface covers the element at z with weight J(x, z): one for a flat set,
    (|x| / R)^(d-1) for a sphere. WeightedCASAL divides by it. Zero for a set without equations; None if unknown.
    """
    event = tuple(x.shape[1:])
    own = geometry(constraint, event)
    if own.log_volume is not None:
        return own.log_volume(x, z)
    if constraint.in_pieces:
        return nearest_on_surface(constraint, x).log_volume
    surface = parts(constraint, event).surface
    if surface is not None and surface is not constraint:
        return log_volume_factor(surface, x, z)
    return torch.zeros(len(x), dtype=torch.float64, device=x.device) if surface is None else None


def sphere_in_flat(constraint: Constraint, event: Event) -> SphereInFlat | None:
    """The surface as linear equations and at most one sphere, if C is that; for sets that meet others."""
    own = geometry(constraint, event).sphere_in_flat
    return None if own is None else own()


def within(constraint: Constraint, space: Subspace) -> Constraint | None:
    """{c : B c in C} in the coordinates of a subspace, if P(B c) is in the subspace for every c; else None."""
    own = geometry(constraint, space.event).within
    return None if own is None else own(space)


def check_dimensions(constraint: Constraint, event: Event) -> None:
    """Refuse a set that has no distribution of one dimension: a union of pieces of different dimension.

    For samplers that promise the distribution.

    Raises:
        SettingError: Some pieces have probability zero beside the others; the message names them.
    """
    members = constraint._made_of(tuple(event))
    for member, own in members or ():
        check_dimensions(member, own)
    if members is not None or not constraint.in_pieces:
        return
    pieces, size = constraint.pieces(event), torch.Size(event).numel()
    counts = [codimension(piece, event) for piece in pieces]
    known = {count for count in counts if count is not None}
    if len(known) < 2:
        return
    least = min(known)
    thin = [f"{piece!r} ({size - c})" for piece, c in zip(pieces, counts, strict=True) if c is not None and c > least]
    full = [f"{piece!r} ({size - c})" for piece, c in zip(pieces, counts, strict=True) if c == least]
    raise SettingError(
        f"the union has pieces of different dimension: {', '.join(thin)} beside {', '.join(full)} (dimension in "
        "brackets). Pieces of smaller dimension have probability zero, as a point beside a circle has: leave them out, "
        "or sample them in a run of their own"
    )


# ------------------------------------------------------------------ points


def check_nonempty(constraint: Constraint, z: Tensor, *, together: int = 256) -> None:
    """Refuse a set that has no point, as far as a search can tell; for a run, before its first step.

    Closed forms check themselves when they are made or see an event. One point of z in a common set is enough. Other
    sets are projected onto from z. Where that does not arrive, the emptiness may be proved (``Intersection``); if not,
    more starts are tried, and a set of which none reaches a point is refused too: a run on it takes long, and none of
    its samples is feasible.

    Args:
        constraint: C.
        z: Points (k, *event) to start from. Where the set has parameters for each chain, every chain is searched for,
            from these points in turn.
        together: Chains with parameters of their own that are searched for at once.

    Raises:
        InfeasibleSet: No point was found; the message says whether that is proved.
    """
    if constraint.exact or not len(z):
        return
    if constraint.chains is None:
        if not bool((constraint.violation(z) <= Budget().tolerance).any()):
            _search(constraint, z.to(torch.float64), 0)
        return
    for some in torch.arange(constraint.chains).split(together):
        _search(constraint.take(some), z.to(torch.float64)[some % len(z)], int(some[0]))


def _search(constraint: Constraint, z: Tensor, first: int) -> None:
    """``check_nonempty``; with parameters for each chain there is a point for each, ``first`` names the first."""
    inner = constraint._searched(z)
    for member, points in inner or ():
        _search(member, points, first)
    if inner is not None or constraint.exact:
        return
    common = constraint.chains is None
    missed = _missed(constraint, z, SEARCH)
    if bool((missed == 0).any() if common else (missed == 0).all()):
        return
    constraint._prove_empty(z, first)
    lost = torch.nonzero(missed > REACHED).flatten()
    if not len(lost) or (common and len(lost) < len(z)):
        return
    some, starts = (constraint, _starts(z[:2])) if common else (constraint.take(lost), _starts(z[lost]))
    chain = torch.arange(starts.shape[1])
    everywhere = some if common else some.take(chain.repeat(len(starts)))
    least, which = _missed(everywhere, starts.flatten(0, 1), SEARCH).reshape(starts.shape[:2]).min(0)
    best = starts[which, chain]
    left = least.argmin().reshape(1) if common else torch.nonzero(least > REACHED).flatten()
    if not bool((least[left] > REACHED).any()):
        return
    last = _missed(some if common else some.take(left), best[left], Budget())
    if bool((last > REACHED).any()):
        where = constraint._in_chain(0 if common else first + int(lost[left[last.argmax()]]))
        raise InfeasibleSet(
            f"no point of {constraint!r} was found{where}: from {len(starts)} starts the smallest violation reached is "
            f"{float(last.max()):.3g}. Check its definition for a contradiction; if it has points, start near one"
        )


def _missed(constraint: Constraint, z: Tensor, budget: Budget) -> Tensor:
    """Violations (n,) of the projections of z, zero where they converged."""
    found = constraint.solve(z, budget=budget)
    return torch.where(found.converged, 0.0, constraint.violation(found.point))


def _starts(z: Tensor) -> Tensor:
    """Points (k, n, *event) to start a search from: z, nearer to the origin, beyond it, and around it at random."""
    generator = torch.Generator(z.device).manual_seed(0)
    size = over_events(norm(z.flatten(1)) / math.sqrt(max(1, z[0].numel())), z)
    aside = [gaussian(z, generator) for _ in range(4)]
    return torch.stack([z, 0.1 * z, 0.01 * z, -z, aside[0], 0.1 * aside[1], 10.0 * aside[2], size * aside[3]])


def quick_projection(constraint: Constraint, z: Tensor, warm: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """``project(z, quick=True)`` and |z - P(z)|^2 / 2, (n,) float64."""
    point = constraint._project_fast(floating(z), warm)
    return point, half_square(z - point)


def groups(constraint: Constraint) -> Tensor | None:
    """(chains,) labels, equal where all parameters are equal to the bit; None if ``chains`` is None."""
    return constraint._once("groups", constraint._groups)


# ------------------------------------------------------------------ all smooth functions of a set


def residual(constraint: Constraint, z: Tensor) -> Tensor:
    """All smooth functions that describe C: the equations, then the inequalities.

    Raises:
        SettingError: The set has none.
    """
    return constraint._residual(z)


def residual_pull(constraint: Constraint, z: Tensor, weights: Tensor) -> Tensor | None:
    """J(z)^T weights, J the derivative of ``residual`` (n, m, *event), where a set has it written out; else None."""
    return constraint._residual_pull(z, weights)


def positive_part(constraint: Constraint, values: Tensor) -> Tensor:
    """Values (n, m) of residuals or multipliers, those of inequalities cut off at zero."""
    count = constraint._count_equations()
    if count is None:
        raise SettingError(f"{constraint!r} does not know the number of its equations yet; evaluate residual first")
    if count >= values.shape[1]:
        return values
    inequalities = values[:, count:].clamp_min(0.0)
    return torch.cat([values[:, :count], inequalities], dim=1) if count else inequalities
