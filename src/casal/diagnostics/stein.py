"""Stein's identity on a set: functions whose mean is zero if, and in practice only if, samples follow p on the set.

For a smooth f on a surface M without an edge, and z distributed as p (density with respect to the surface measure),

    E[L f(z)] = 0,      L f = Laplacian_M f + s . grad_M f,      s = grad log p.

If M has an edge, where inequalities end it, a factor g that vanishes there takes its place:

    E[g L f + grad_M g . grad_M f] = 0.

Everything about M is read off its projection P by differences. With T = dP(z), which projects vectors onto the tangent
space at z, and H = sum_j d^2P(z)[t_j, t_j] over an orthonormal basis t_j of it (the mean curvature vector),

    L f = u . grad f + tr(T^T (Hessian f) T),      u = H + T s.

f is a coordinate c . z, its square (c . (z - m))^2 / 2, or |z - m|^2 / 2, m the mean of the samples. A set with an
interior has T = I and H = 0. The score is evaluated once at each sample; the rest are projections.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Map = Callable[[Tensor], Tensor]
"""(n, d) -> (n, d) for a projection, (n, d) -> (n,) for a factor."""

EXACT_DIMENSION = 16
"""Coordinates up to which all directions are taken; above, the sums over them are estimated without bias."""

PROBES = 16
"""Random directions a sample for these estimates."""

FUNCTIONS = 8
"""Directions c above EXACT_DIMENSION. They are fixed: directions chosen by the samples would raise false alarms."""

STEP = 3e-3
"""Step of a difference, in units of the spread of a coordinate."""

FLAT = 1e-6
"""Spread of a function, in units of the largest, below which it is constant on the set."""


class SteinTerms(NamedTuple):
    """What Stein's identity says of each sample.

    Attributes:
        values: L f (or its form with g), (n, m): mean zero for right samples.
        functions: f itself, (n, m).
        energy: g |grad_M f|^2, (n, m): its mean is how fast the dynamics of L forgets f.
    """

    values: Tensor
    functions: Tensor
    energy: Tensor


class Tangents(NamedTuple):
    """The surface at each sample.

    Attributes:
        bend: H, (n, d).
        push: v -> T v, (n, d) -> (n, d).
        dimension: tr(T^T T), (n,); estimated above EXACT_DIMENSION.
    """

    bend: Tensor
    push: Map
    dimension: Tensor


def projections_needed(size: int) -> int:
    """Projections of a sample that ``stein_terms`` takes on a surface in so many coordinates."""
    if size <= EXACT_DIMENSION:
        return 4 * size + 1
    return 4 * PROBES + 1 + 2 * (FUNCTIONS + 2)


def stein_terms(
    z: Tensor, score: Tensor, weights: Tensor, project: Map | None = None, factor: Map | None = None
) -> SteinTerms:
    """L f of the coordinates, their squares and the squared distance to the mean.

    Args:
        z: Samples (n, d), float64.
        score: grad log p at the samples, (n, d).
        weights: (n,), sum one.
        project: Onto the surface; None for a set with an interior.
        factor: g; None for a surface without an edge.
    """
    mean = weights @ z
    y = z - mean
    spread = float((weights @ y.square()).mean().sqrt())
    if spread == 0.0:
        return SteinTerms(*(z.new_zeros((len(z), 0)) for _ in range(3)))
    step = STEP * spread
    at = tangents(z, step, project)
    drift = at.bend + at.push(score)
    slope = _no_slope if factor is None else _slope(factor, z, step)
    g = z.new_ones(len(z)) if factor is None else factor(z)
    values, functions, energy = [], [], []
    for c in fixed_directions(z):
        tangent = at.push(c.expand_as(z))
        height, square = y @ c, tangent.square().sum(1)
        first = g * (drift @ c) + slope(tangent)
        values += [first, height * first + g * square]
        functions += [height, height.square() / 2]
        energy += [g * square, g * height.square() * square]
    outward = at.push(y)
    values.append(g * ((y * drift).sum(1) + at.dimension) + slope(outward))
    functions.append(y.square().sum(1) / 2)
    energy.append(g * outward.square().sum(1))
    terms = SteinTerms(*(torch.stack(columns, dim=1) for columns in (values, functions, energy)))
    return _those_that_vary(terms, weights, spread)


def fixed_directions(z: Tensor) -> Tensor:
    """Unit vectors (m, d): the axes, or a few fixed random directions where there are many."""
    size = z.shape[1]
    if size <= EXACT_DIMENSION:
        return torch.eye(size, dtype=z.dtype, device=z.device)
    drawn = torch.randn((size, FUNCTIONS), generator=torch.Generator().manual_seed(4242), dtype=torch.float64)
    return torch.linalg.qr(drawn)[0].T.contiguous().to(z)


def tangents(z: Tensor, step: float, project: Map | None) -> Tangents:
    """The tangent projector and the mean curvature vector at points z of a surface, from its projection.

    T w comes first, for any w, and second differences go along T w alone: along a tangent every projection that is
    right to first order is right to second order, so one that is only nearly the nearest point will do.
    """
    size = z.shape[1]
    if project is None:
        return Tangents(torch.zeros_like(z), lambda v: v, z.new_full((len(z),), float(size)))
    foot = project(z)

    def push(v: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(v, dim=1, keepdim=True).clamp_min(torch.finfo(v.dtype).tiny)
        ahead = step * v / length
        return (project(z + ahead) - project(z - ahead)) * (length / (2 * step))

    def second(v: Tensor) -> Tensor:
        return (project(z + step * v) + project(z - step * v) - 2 * foot) / step**2

    bend, dimension = torch.zeros_like(z), z.new_zeros(len(z))
    if size <= EXACT_DIMENSION:
        axes = torch.eye(size, dtype=z.dtype, device=z.device)
        columns = torch.stack([push(axis.expand_as(z)) for axis in axes], dim=1)
        for column in columns.unbind(1):
            bend += second(column)
        return Tangents(bend, lambda v: torch.einsum("nj,njk->nk", v, columns), columns.square().sum((1, 2)))
    stream = torch.Generator(z.device).manual_seed(4243)
    for _ in range(PROBES):
        sign = torch.randint(2, z.shape, generator=stream, device=z.device, dtype=torch.int8)
        tangent = push((2.0 * sign.to(z) - 1.0) / math.sqrt(size))
        bend += second(tangent) * (size / PROBES)
        dimension += tangent.square().sum(1) * (size / PROBES)
    return Tangents(bend, push, dimension)


def _slope(factor: Map, z: Tensor, step: float) -> Map:
    """v -> grad g . v at z."""

    def along(v: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(v, dim=1, keepdim=True).clamp_min(torch.finfo(v.dtype).tiny)
        ahead = step * v / length
        return (factor(z + ahead) - factor(z - ahead)) * (length[:, 0] / (2 * step))

    return along


def _no_slope(v: Tensor) -> Tensor:
    return v.new_zeros(len(v))


def _those_that_vary(terms: SteinTerms, weights: Tensor, spread: float) -> SteinTerms:
    """Without functions that the set holds constant, such as a coordinate that an equation fixes."""
    f = terms.functions
    unit = torch.tensor([spread, spread**2 / 2], dtype=f.dtype, device=f.device)
    unit = torch.cat([unit.repeat((f.shape[1] - 1) // 2), unit[1:]])
    varies = (weights @ (f - weights @ f).square()).sqrt() > FLAT * unit
    return SteinTerms(*(part[:, varies] for part in terms))
