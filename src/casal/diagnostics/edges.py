"""The edge of a set, where an inequality holds with equality: samples on it, and a factor that vanishes there.

Right samples lie on the edge with probability zero. A projection at the end of a run puts atoms there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from casal.constraints import Constraint, Parts, geometry
from casal.errors import CasalError, SettingError
from casal.linalg import jacobian
from casal.methods.surface import Surface

LEAVES = 1e-2
"""Share of the step outside a convex set from which the step has left it."""

FARTHEST = 50.0
BISECTIONS = 45

BEYOND = 1e-4
"""Share of a ray beyond its end from which the way back is the normal there."""

ON_THE_SET = 1e-9
"""Violation up to which a point is in a set, or in a piece of it."""

Map = Callable[[Tensor], Tensor]


def parts_of(constraint: Constraint, event: tuple[int, ...]) -> Parts | None:
    """Equations and inequalities of a set; None for a union of pieces that have both."""
    try:
        return geometry.parts(constraint, event)
    except SettingError:
        return None


def _inside(constraint: Constraint, z: Tensor, mean: Tensor) -> Tensor:
    """The mean, which lies in a convex set; its projection where chains have sets of their own."""
    return mean if constraint.chains is None else constraint.project(mean.expand_as(z))


def has_hidden_edge(constraint: Constraint, z: Tensor, mean: Tensor) -> bool:
    """Whether a convex set without an interior ends somewhere although it names no inequalities."""
    parts = parts_of(constraint, tuple(z.shape[1:]))
    if parts is None or parts.solid is not None or not constraint.convex:
        return False
    y = z + FARTHEST * (z - _inside(constraint, z, mean))
    outside = torch.linalg.vector_norm((constraint.project(y) - y).flatten(1), dim=1)
    return bool((outside > LEAVES * torch.linalg.vector_norm((y - z).flatten(1), dim=1)).any())


class Shape(NamedTuple):
    """A set near samples, as functions of one point for each sample, (n, *event).

    Attributes:
        project: Nearest point on the surface part; None for a set with an interior.
        factor: g of ``edge_factor``; None where there is no edge.
        nearest: Nearest points on the surface part, of any number of points.
    """

    project: Map | None
    factor: Map | None
    nearest: Map


def shape_near(constraint: Constraint, z: Tensor, weights: Tensor) -> Shape:
    """Surface part and edge of a set near its samples; piece by piece in a union of pieces that have both.

    Args:
        constraint: The set, of these samples.
        z: Samples (n, *event), float64.
        weights: (n,), sum one.

    Raises:
        SettingError: The edge is not known, or pieces overlap.
    """
    parts = parts_of(constraint, tuple(z.shape[1:]))
    if parts is None:
        return _shape_of_pieces(constraint, z, weights)
    surface, solid = parts
    factor = None if solid is None else edge_factor(solid, z, weights)
    if solid is not None and factor is None:
        raise SettingError("the set is not convex and has no smooth inequalities")
    if surface is None:
        return Shape(None, factor, lambda y: y)
    return Shape(_onto(surface, z), factor, surface.project)


def _onto(surface: Constraint, z: Tensor) -> Map:
    """Points next to samples z, one for each, moved onto the surface.

    Where its equations are smooth, along its normals at z: z + s - J(z)^T m, which is the nearest point of z + s to
    first order, and to second order for tangent s. That is what differences need, for a tenth of the work.
    """

    def nearest(y: Tensor) -> Tensor:
        return surface.project(y, warm=z)

    flat, event = z.flatten(1), tuple(z.shape[1:])
    there = Surface(surface, event)
    try:
        at = there.frame(flat) if surface.smooth else None
    except (CasalError, RuntimeError, NotImplementedError):
        return nearest
    if at is None or not at.J.shape[1] or not bool(torch.isfinite(at.inverse).all()):
        return nearest

    def along_normals(y: Tensor) -> Tensor:
        found, ok = there.solve(at, y.flatten(1) - flat)
        return found.reshape(y.shape) if bool(ok.all()) else nearest(y)

    return along_normals


def _shape_of_pieces(constraint: Constraint, z: Tensor, weights: Tensor) -> Shape:
    pieces = constraint.pieces(tuple(z.shape[1:]))
    violation = torch.stack([piece.violation(z) for piece in pieces])
    if bool(((violation <= ON_THE_SET).sum(0) > 1).any()):
        raise SettingError("pieces of the union overlap where there are samples")
    own, found = violation.argmin(0), list[tuple[Tensor, Shape]]()
    for k, piece in enumerate(pieces):
        some = torch.nonzero(own == k).flatten()
        if len(some):
            found.append((some, shape_near(piece.take(some), z[some], weights[some] / weights[some].sum())))

    def project(y: Tensor) -> Tensor:
        out = y.clone()
        for some, shape in found:
            if shape.project is not None:
                out[some] = shape.project(y[some])
        return out

    def factor(y: Tensor) -> Tensor:
        out = y.new_ones(len(y))
        for some, shape in found:
            if shape.factor is not None:
                out[some] = shape.factor(y[some])
        return out

    return Shape(project, factor, constraint.project)


def edge_factor(solid: Constraint, z: Tensor, weights: Tensor) -> Map | None:
    """A function g (n, *event) -> (n,) that is positive inside, vanishes on the edge and has bounded slopes.

    With inequalities h_j <= 0, g = min(1, min_j -h_j / sd(h_j)). For other convex sets g = 1 - 1 / s, where s is how
    far the ray from the mean through z may be stretched. For a union it is the largest of those of its pieces, which
    may overlap. None where neither is known.

    Args:
        solid: The inequalities, of these samples.
        z: Samples (n, *event), float64, which set the scale.
        weights: (n,), sum one.
    """
    pieces = solid.pieces(tuple(z.shape[1:]))
    if len(pieces) > 1:
        return _largest_factor(pieces, z, weights)
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
    return lambda y: _ray_factor(solid, y, mean)


def slopes(factor: Map, z: Tensor) -> Tensor:
    """The gradients of a factor at points (n, *event), (n, d)."""
    return jacobian(lambda y: factor(y)[:, None], z)[0].flatten(1)


def _largest_factor(pieces: Sequence[Constraint], z: Tensor, weights: Tensor) -> Map | None:
    """That of a union of solid pieces; pieces without samples do not count."""
    factors = list[Map]()
    for piece in pieces:
        inside = torch.nonzero(piece.violation(z) == 0.0).flatten()
        if len(inside) < 2:
            continue
        factor = (
            None if piece.chains is not None else edge_factor(piece, z[inside], weights[inside] / weights[inside].sum())
        )
        if factor is None:
            return None
        factors.append(factor)
    return (lambda y: torch.stack([factor(y) for factor in factors]).amax(0).clamp_min(0.0)) if factors else None


def _ray_factor(solid: Constraint, y: Tensor, mean: Tensor) -> Tensor:
    """g = 1 - 1 / s of points of a convex set, with its gradient: dg = -n . dy / n . (b - mean), b the end of the ray.

    The outward normal n at b is the way back of a point just beyond b.
    """
    z = y.detach()
    s = _stretch(solid, z, mean)
    if not y.requires_grad:
        return 1.0 - 1.0 / s
    ray = s.reshape(-1, *[1] * (z.ndim - 1)) * (z - mean)
    out = mean + (1.0 + BEYOND) * ray
    normal = out - solid.project(out)
    height, rise = ((normal * v).flatten(1).sum(1) for v in (ray, y - z))
    return 1.0 - 1.0 / s - rise / height.clamp_min(torch.finfo(z.dtype).tiny)


def _stretch(solid: Constraint, z: Tensor, mean: Tensor) -> Tensor:
    """Largest s <= FARTHEST with mean + s (z - mean) in a convex set, by bisection."""
    low, high = (torch.full((len(z),), value, dtype=z.dtype, device=z.device) for value in (0.0, FARTHEST))
    away, shape = z - mean, (-1, *[1] * (z.ndim - 1))
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        inside = solid.violation(mean + middle.reshape(shape) * away) == 0.0
        low, high = torch.where(inside, middle, low), torch.where(inside, high, middle)
    return high
