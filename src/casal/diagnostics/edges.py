"""The edge of a set, where an inequality holds with equality: samples on it, and a factor that vanishes there.

Right samples lie on the edge with probability zero. A projection at the end of a run puts atoms there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from casal.constraints import Constraint, Parts
from casal.errors import SettingError

STEP = 1e-6
"""Step along the set, in units of the distance to the mean, that a sample inside survives."""

LEAVES = 1e-2
"""Share of the step outside a convex set from which the step has left it."""

FARTHEST = 50.0
BISECTIONS = 45


def parts_of(constraint: Constraint, event: tuple[int, ...]) -> Parts | None:
    """Equations and inequalities of a set; None for a union of pieces that have both."""
    try:
        return constraint.parts(event)
    except SettingError:
        return None


def on_edge(constraint: Constraint, z: Tensor, mean: Tensor) -> Tensor:
    """Which samples lie on the edge, (n,) bool: a small step along the set leaves it.

    The steps go away from the mean and back, and along a fixed random direction and back, on the surface part. In a
    union of pieces that have equations and inequalities each, they stay on the piece of the sample.

    Args:
        constraint: The set, of these samples.
        z: Samples (n, *event), float64.
        mean: Of the samples, (*event).
    """
    event = tuple(z.shape[1:])
    parts = parts_of(constraint, event)
    if parts is None:
        pieces = constraint.pieces(event)
        own = torch.stack([piece.violation(z) for piece in pieces]).argmin(0)
        found = torch.zeros(len(z), dtype=torch.bool, device=z.device)
        for k, piece in enumerate(pieces):
            some = torch.nonzero(own == k).flatten()
            found[some] = on_edge(piece.take(some), z[some], mean)
        return found
    surface, solid = parts
    found = torch.zeros(len(z), dtype=torch.bool, device=z.device)
    away = z - mean
    if solid is None:
        if not constraint.convex:
            return found
        y = z + STEP * (z - _inside(constraint, z, mean))
        outside, length = (torch.linalg.vector_norm(v.flatten(1), dim=1) for v in (constraint.project(y) - y, y - z))
        return outside > LEAVES * length
    stream = torch.Generator(z.device).manual_seed(4244)
    aside = _unit(z, away) * torch.randn(z.shape[1:], generator=stream, dtype=z.dtype, device=z.device)
    for step in (STEP * away, -STEP * away, STEP * aside, -STEP * aside):
        y = z + step
        found |= solid.violation(y if surface is None else surface.project(y, warm=z)) > 0.0
    return found


def _unit(z: Tensor, away: Tensor) -> Tensor:
    """The spread of each coordinate, which may have units of its own; its size, or that of all, where it has none."""
    size, spread = (v.square().mean(0).sqrt() for v in (z, away))
    own = torch.where(spread > STEP * size, spread, size)  # samples that are all equal may all lie on the edge
    return torch.where(own > 0.0, own, float(own.square().mean().sqrt()) or 1.0)


def _inside(constraint: Constraint, z: Tensor, mean: Tensor) -> Tensor:
    """The mean, which lies in a convex set; its foot in the set of every chain, where they have sets of their own."""
    return mean if constraint.chains is None else constraint.project(mean.expand_as(z))


def has_hidden_edge(constraint: Constraint, z: Tensor, mean: Tensor) -> bool:
    """Whether a convex set without an interior ends somewhere although it names no inequalities."""
    parts = parts_of(constraint, tuple(z.shape[1:]))
    if parts is None or parts.solid is not None or not constraint.convex:
        return False
    y = z + FARTHEST * (z - _inside(constraint, z, mean))
    outside = torch.linalg.vector_norm((constraint.project(y) - y).flatten(1), dim=1)
    return bool((outside > LEAVES * torch.linalg.vector_norm((y - z).flatten(1), dim=1)).any())


def edge_factor(solid: Constraint, z: Tensor, weights: Tensor) -> Callable[[Tensor], Tensor] | None:
    """A function g (n, *event) -> (n,) that is positive inside, vanishes on the edge and has bounded slopes.

    With inequalities h_j <= 0, g = min(1, min_j -h_j / sd(h_j)). For other convex sets g = 1 - 1 / s, where s is how
    far the ray from the mean through z may be stretched. None where neither is known.

    Args:
        solid: The inequalities, of these samples.
        z: Samples (n, *event), float64, which set the scale.
        weights: (n,), sum one.
    """
    heights = solid.inequalities(z) if solid.smooth else z.new_zeros(len(z), 0)
    if heights.shape[1]:
        scale = (weights @ (heights - weights @ heights).square()).sqrt()
        varies = scale > 1e-12 * heights.abs().amax(0)
        if not bool(varies.any()):
            return lambda y: y.new_ones(len(y))
        return lambda y: (-solid.inequalities(y)[:, varies] / scale[varies]).amin(1).clamp_max(1.0)
    mean = torch.tensordot(weights, z, dims=1)
    if not solid.convex or bool((solid.violation(mean.expand_as(z)) > 0.0).any()):
        return None
    return lambda y: 1.0 - 1.0 / _stretch(solid, y, mean)


def _stretch(solid: Constraint, z: Tensor, mean: Tensor) -> Tensor:
    """Largest s <= FARTHEST with mean + s (z - mean) in a convex set, by bisection."""
    low, high = (torch.full((len(z),), value, dtype=z.dtype, device=z.device) for value in (0.0, FARTHEST))
    away, shape = z - mean, (-1, *[1] * (z.ndim - 1))
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        inside = solid.violation(mean + middle.reshape(shape) * away) == 0.0
        low, high = torch.where(inside, middle, low), torch.where(inside, high, middle)
    return high
