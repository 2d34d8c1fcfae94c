"""The nearest field of given mass and energy within bounds.

    P(y) = clip(alpha y + beta, low, high),   alpha > 0 and beta such that sum z = M, |z|^2 = E.

|z - y|^2 plus multipliers of the two equations is convex in z whenever alpha > 0, so such a point is the nearest one.
``MassEnergy & Box`` finds a near point by general Newton steps, four orders of magnitude slower; an ``Intersection``
that knows this pair would make this file needless.
"""

from __future__ import annotations

import torch
from torch import Tensor

from casal.constraints import Box, FromProjection, MassEnergy

ROUNDS = 30
HALVINGS = 60
TOLERANCE = 1e-12


def conserved_in_box(conserved: MassEnergy, bounds: Box) -> FromProjection:
    """{sum z = M, |z|^2 = E, low <= z <= high}, one pair of numeric bounds for all points.

    The residual has the two equations of ``MassEnergy`` first; the bounds are left to the projection.
    """
    mass, energy = conserved.mass, conserved.energy
    low, high = float(bounds.low), float(bounds.high)

    def project(y: Tensor) -> Tensor:
        return clipped(y, mass, energy, low, high)

    def violation(z: Tensor) -> Tensor:
        return torch.maximum(conserved.violation(z), bounds.violation(z))

    def residual(z: Tensor) -> Tensor:
        outside = (z - high).clamp_min(0.0) - (low - z).clamp_min(0.0)
        return torch.cat([conserved.residual(z), outside], dim=1)

    return FromProjection(project, violation, residual=residual)


def clipped(y: Tensor, mass: float, energy: float, low: float, high: float) -> Tensor:
    """P(y) for rows (n, N).

    Which points are clipped is guessed; the others get their own mean and energy in closed form, which makes the next
    guess. Rows whose guesses do not settle are solved by bisection.
    """
    wanted = torch.full_like(y[:, 0], mass), torch.full_like(y[:, 0], energy)
    alpha, beta = _fitted(y, torch.ones_like(y), *wanted)
    for _ in range(ROUNDS):
        line = alpha[:, None] * y + beta[:, None]
        z = line.clamp(low, high)
        if bool(_settled(z, mass, energy).all()):
            return z
        free = ((line > low) & (line < high)).to(y)
        fixed = z * (1.0 - free)
        alpha, beta = _fitted(y, free, mass - fixed.sum(1), energy - fixed.square().sum(1))
    z = (alpha[:, None] * y + beta[:, None]).clamp(low, high)
    late = ~_settled(z, mass, energy)
    if bool(late.any()):
        z[late] = _bisected(y[late], mass, energy, low, high)
    return z


def _fitted(y: Tensor, free: Tensor, mass: Tensor, energy: Tensor) -> tuple[Tensor, Tensor]:
    """alpha and beta that give the free points this sum and this sum of squares."""
    count = free.sum(1).clamp_min(1.0)
    mean = (free * y).sum(1) / count
    spread = (free * (y - mean[:, None]).square()).sum(1).clamp_min(1e-300)
    alpha = ((energy - mass.square() / count).clamp_min(0.0) / spread).sqrt()
    return alpha, mass / count - alpha * mean


def _settled(z: Tensor, mass: float, energy: float) -> Tensor:
    scale = (z.shape[1] * energy) ** 0.5
    return ((z.sum(1) - mass).abs() < TOLERANCE * scale) & ((z.square().sum(1) - energy).abs() < TOLERANCE * energy)


def _bisected(y: Tensor, mass: float, energy: float, low: float, high: float) -> Tensor:
    """The energy grows with alpha if beta keeps the sum; beta by an inner bisection."""
    size = float(y.abs().max()) + 1.0

    def shifted(alpha: Tensor) -> Tensor:
        least = low - alpha * size
        most = high + alpha * size
        for _ in range(HALVINGS):
            beta = (least + most) / 2
            heavy = (alpha[:, None] * y + beta[:, None]).clamp(low, high).sum(1) > mass
            least, most = torch.where(heavy, least, beta), torch.where(heavy, beta, most)
        return (alpha[:, None] * y + ((least + most) / 2)[:, None]).clamp(low, high)

    logs = torch.stack([torch.full_like(y[:, 0], -30.0), torch.full_like(y[:, 0], 30.0)])
    for _ in range(HALVINGS):
        middle = logs.mean(0)
        strong = shifted(middle.exp()).square().sum(1) > energy
        logs = torch.stack([torch.where(strong, logs[0], middle), torch.where(strong, middle, logs[1])])
    return shifted(logs.mean(0).exp())
