"""Pairs of sets whose intersection is again a set with a closed form."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from casal.constraints.affine import Affine, HalfSpace
from casal.constraints.affine_round import AffineRound
from casal.constraints.base import Constraint
from casal.constraints.box import Box
from casal.constraints.box_hyperplane import BoxHyperplane
from casal.constraints.mass_energy import MassEnergy
from casal.constraints.mass_energy_box import MassEnergyBox
from casal.constraints.polytope import Polytope
from casal.constraints.sphere import Ball, Sphere
from casal.errors import InfeasibleSet

ROUNDING = 1e-12


def merged(members: Sequence[Constraint]) -> list[Constraint]:
    """Replace pairs by their closed form until none is left to replace. Equations first, so that they meet as one."""
    parts = sorted(members, key=lambda member: not isinstance(member, Affine))
    found = True
    while found:
        found = False
        for i in range(len(parts)):
            for j in range(i + 1, len(parts)):
                both = _pair(parts[i], parts[j]) or _pair(parts[j], parts[i])
                if both is not None:
                    parts = [both, *(part for k, part in enumerate(parts) if k not in (i, j))]
                    found = True
                    break
            if found:
                break
    return parts


def _pair(a: Constraint, b: Constraint) -> Constraint | None:
    if isinstance(a, Affine) and isinstance(b, Affine):
        return Affine(torch.cat([a.A, b.A]), torch.cat([a.b, b.b]))
    if isinstance(a, Affine) and isinstance(b, Sphere | Ball):
        return AffineRound(a, b)
    if isinstance(a, Affine) and isinstance(b, AffineRound):
        return AffineRound(Affine(torch.cat([a.A, b.flat_part.A]), torch.cat([a.b, b.flat_part.b])), b.round_part)
    if isinstance(a, Affine) and isinstance(b, Box) and len(a.A) == 1:
        size = a.A.shape[1]
        if b.low.numel() in (1, size):
            low, high = b.low.reshape(-1).expand(size), b.high.reshape(-1).expand(size)
            return BoxHyperplane(low, high, a.A[0], float(a.b[0]))
    if isinstance(a, Box) and isinstance(b, Box):
        return Box(torch.maximum(a.low, b.low), torch.minimum(a.high, b.high))
    if isinstance(a, MassEnergy) and isinstance(b, Box):
        return MassEnergyBox(a.mass, a.energy, b.low, b.high)
    if isinstance(a, MassEnergyBox) and isinstance(b, Box):
        inner = Box(torch.maximum(a.bounds.low, b.low), torch.minimum(a.bounds.high, b.high))
        return MassEnergyBox(a.conserved.mass, a.conserved.energy, inner.low, inner.high)
    if isinstance(a, Sphere | Ball) and isinstance(b, Sphere | Ball):
        return _round(a, b)
    if isinstance(a, HalfSpace | Polytope) and isinstance(b, HalfSpace | Polytope):
        (g, h), (k, m) = _rows(a), _rows(b)
        return Polytope(torch.cat([g, k]), torch.cat([h, m]))
    return None


def _rows(part: HalfSpace | Polytope) -> tuple[torch.Tensor, torch.Tensor]:
    if isinstance(part, HalfSpace):
        return part.a[None], torch.tensor([part.b], dtype=torch.float64)
    return part.G, part.h


def _round(a: Sphere | Ball, b: Sphere | Ball) -> Constraint | None:
    """Concentric ones merge; balls or spheres too far apart, or one inside the other, have no common point."""
    centers = [part.center for part in (a, b) if part.center is not None]
    if len(centers) == 2 and centers[0].shape != centers[1].shape:
        return None
    offset = sum((c if part is a else -c) for part in (a, b) for c in [part.center] if c is not None)
    gap = float(torch.linalg.vector_norm(torch.as_tensor(offset, dtype=torch.float64)))
    slack = ROUNDING * (a.radius + b.radius + gap)
    if gap > a.radius + b.radius + slack:
        raise InfeasibleSet(f"centres {gap:.6g} apart, but the radii are only {a.radius:.6g} and {b.radius:.6g}")
    for outer, inner in ((a, b), (b, a)):
        if isinstance(outer, Sphere) and gap + inner.radius + slack < outer.radius:
            raise InfeasibleSet(
                f"{inner!r} lies strictly inside the sphere of radius {outer.radius:.6g} and never touches it"
            )
    if gap > 0:
        return None
    if isinstance(a, Sphere) or isinstance(b, Sphere):
        shell, other = (a, b) if isinstance(a, Sphere) else (b, a)
        if isinstance(other, Sphere) and abs(other.radius - shell.radius) > slack:
            raise InfeasibleSet(f"two concentric spheres of radius {a.radius:.6g} and {b.radius:.6g}")
        return shell
    return a if a.radius <= b.radius else b
