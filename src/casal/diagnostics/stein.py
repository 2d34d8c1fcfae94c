"""Stein's identity on a set: functions whose mean is zero if, and in practice only if, samples follow p on the set.

For a smooth f on a surface M without an edge, and z distributed as p (density with respect to the surface measure),

    E[L f(z)] = 0,      L f = Laplacian_M f + s . grad_M f,      s = grad log p.

If M has an edge, where inequalities end it, a factor g that vanishes there takes its place:

    E[g L f + grad_M g . grad_M f] = 0.

Everything about M is read off its projection P by differences. With T = dP(z), which projects vectors onto the tangent
space at z, and H = sum_j d^2P(z)[t_j, t_j] over an orthonormal basis t_j of it (the mean curvature vector),

    L f = u . grad f + tr(T^T (Hessian f) T),      u = H + T s.

f is a coordinate c . z, its square (c . (z - m))^2 / 2, or |z - m|^2 / 2, with m the mean of the samples of other
ancestors, since a mean that holds the sample itself shifts E[L f] by about dimension / n. If the samples have several
modes, a bump exp(-|z - c|^2 / (2 r^2)) looks at each of them alone. A set with an interior has T = I and H = 0. The
score is evaluated once at each sample; the rest are projections.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from casal.diagnostics.modes import MOST_MODES, Modes
from casal.methods.population import Lineage

Map = Callable[[Tensor], Tensor]
"""(n, d) -> (n, d) for a projection, (n, d) -> (n,) for a factor."""

EXACT_DIMENSION = 16
"""Coordinates up to which all directions are taken; above, the sums over them are estimated without bias."""

PROBES = 8
"""Random directions a sample for these estimates."""

FUNCTIONS, FITTED = 6, 2
"""Directions c above EXACT_DIMENSION: fixed ones, and those in which the samples are widest. The latter are fitted to
one half of the samples and used on the other: directions chosen by the samples themselves would raise false alarms."""

ROUNDS = 12
"""Steps of the power iteration for a widest direction."""

STEP = 3e-3
"""Step of a difference, in units of the spread of a coordinate."""

FLAT = 1e-6
"""Squared slope along the set below which a function of slope one is constant on it, such as a fixed coordinate."""


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
    return 4 * PROBES + 1 + 2 * (FUNCTIONS + FITTED + 2 + MOST_MODES)


def stein_terms(
    z: Tensor,
    score: Tensor,
    lineage: Lineage,
    project: Map | None = None,
    factor: Map | None = None,
    modes: Modes | None = None,
) -> SteinTerms:
    """L f of the coordinates, their squares, the squared distance to the mean, and bumps at the modes.

    Args:
        z: Samples (n, d), float64.
        score: grad log p at the samples, (n, d).
        lineage: Their weights and ancestors.
        project: Onto the surface; None for a set with an interior.
        factor: g; None for a surface without an edge.
        modes: Of the samples; one mode needs no bump.
    """
    weights, y = lineage.weights, z - lineage.mean_of_others(z)
    spread = float((weights @ y.square()).mean().sqrt())
    step = STEP * spread
    at = tangents(z, step, project)
    drift = at.bend + at.push(score)
    slope = _no_slope if factor is None else _slope(factor, z, step)
    g = z.new_ones(len(z)) if factor is None else factor(z)
    values, functions, energy = [], [], []
    for direction in (*fixed_directions(z), *widest_directions(y)):
        c = direction.expand_as(z)
        tangent = at.push(c)
        height, square = (y * c).sum(1), tangent.square().sum(1)
        if not float(weights @ square) > FLAT:
            continue
        first = g * (drift * c).sum(1) + slope(tangent)
        values += [first, height * first + g * square]
        functions += [height, height.square() / 2]
        energy += [g * square, g * height.square() * square]
    outward = at.push(y)
    square = outward.square().sum(1)
    if float(weights @ square) > FLAT * spread**2:
        values.append(g * ((y * drift).sum(1) + at.dimension) + slope(outward))
        functions.append(y.square().sum(1) / 2)
        energy.append(g * square)
    if modes is not None and modes.number > 1:
        for centre, width in zip(modes.centres, modes.radius, strict=True):
            away = (z - centre) / width
            outward, bump = at.push(away), torch.exp(-away.square().sum(1) / 2)
            square = outward.square().sum(1)
            first = g * (away * drift).sum(1) + slope(outward)
            values.append(bump * (g * (square - at.dimension) / width - first) / width)
            functions.append(bump)
            energy.append(g * (bump / width).square() * square)
    none = z.new_zeros((len(z), 0))
    return SteinTerms(*(torch.stack(c, dim=1) if c else none for c in (values, functions, energy)))


def fixed_directions(z: Tensor) -> Tensor:
    """Unit vectors (m, d): the axes, or a few fixed random directions where there are many."""
    size = z.shape[1]
    if size <= EXACT_DIMENSION:
        return torch.eye(size, dtype=z.dtype, device=z.device)
    drawn = torch.randn((size, FUNCTIONS), generator=torch.Generator().manual_seed(4242), dtype=torch.float64)
    return torch.linalg.qr(drawn)[0].T.contiguous().to(z)


def widest_directions(y: Tensor) -> list[Tensor]:
    """FITTED principal directions above EXACT_DIMENSION, each (n, d): every half of the samples has the other's."""
    if y.shape[1] <= EXACT_DIMENSION:
        return []
    half = len(y) // 2
    start = fixed_directions(y)[:FITTED].T
    first, second = (_principal(part, start) for part in (y[:half], y[half:]))
    second = second * torch.where((first * second).sum(0) < 0.0, -1.0, 1.0)
    both = torch.cat([second.T[:, None].expand(-1, half, -1), first.T[:, None].expand(-1, len(y) - half, -1)], dim=1)
    return list(both.unbind(0))


def _principal(y: Tensor, start: Tensor) -> Tensor:
    """The directions (d, k) in which (n, d) is widest, by power iteration."""
    found = start
    for _ in range(ROUNDS):
        found = torch.linalg.qr(y.T @ (y @ found))[0]
    return found


def tangents(z: Tensor, step: float, project: Map | None) -> Tangents:
    """The tangent projector and the mean curvature vector at points z of a surface, from its projection.

    T w comes first, for any w, and second differences go along T w alone: along a tangent every projection that is
    right to first order is right to second order, so one that is only nearly the nearest point will do.
    """
    size = z.shape[1]
    if project is None:
        return Tangents(torch.zeros_like(z), lambda v: v, z.new_full((len(z),), float(size)))
    nearest = project(z)

    def push(v: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(v, dim=1, keepdim=True).clamp_min(torch.finfo(v.dtype).tiny)
        ahead = step * v / length
        return (project(z + ahead) - project(z - ahead)) * (length / (2 * step))

    def second(v: Tensor) -> Tensor:
        return (project(z + step * v) + project(z - step * v) - 2 * nearest) / step**2

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
