"""Linear maps of coordinates, y = L u, in which a density is about round: L L^T is about its covariance.

L is a matrix (r, r); a diagonal (r,); or, in many dimensions, a diagonal and a few wide directions (r, 1 + k),

    L = diag(s) (I + V V^T),   kept as (s | V), V^T V = diag(m),   L^-1 = (I - V diag(1 / (1 + m)) V^T) diag(1 / s).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

DIRECTIONS = 16
"""Wide directions that are kept, at most. More cost as much as a dense metric of some hundred dimensions."""

CLEAR = 1.5
"""Variance of a direction, in units of the largest that independent coordinates show by chance, from which on it is
wide: the edge of Marchenko and Pastur is passed by chance by a few hundredths."""

FEWEST_CHAINS = 16
"""Chains below which means over chains say nothing."""

MAIN, ITERATIONS = 2, 12
"""Main directions of points, along which chains are compared, and the steps that find them."""


def times(scale: Tensor, u: Tensor) -> Tensor:
    """L u for rows (..., r)."""
    if scale.ndim == 1:
        return u * scale
    if scale.shape[0] == scale.shape[1]:
        return u @ scale.T
    V = scale[:, 1:]
    return (u + (u @ V) @ V.T) * scale[:, 0]


def transposed(scale: Tensor, g: Tensor) -> Tensor:
    """L^T g for rows (..., r)."""
    if scale.ndim == 1:
        return g * scale
    if scale.shape[0] == scale.shape[1]:
        return g @ scale
    V, g = scale[:, 1:], g * scale[:, 0]
    return g + (g @ V) @ V.T


def solve(scale: Tensor, y: Tensor) -> Tensor:
    """L^-1 y for rows (n, r)."""
    if scale.ndim == 1:
        return y / scale
    if scale.shape[0] == scale.shape[1]:
        return torch.linalg.solve(scale, y.T).T
    V, y = scale[:, 1:], y / scale[:, 0]
    return y - ((y @ V) / (1.0 + V.square().sum(0))) @ V.T


def shrunk(covariance: Tensor, n: int, most: float = 0.5) -> Tensor:
    """A covariance (r, r) of n points, the fewer of them the nearer to its diagonal: by r / n, and at most ``most``."""
    kept = min(most, len(covariance) / n)
    return (1.0 - kept) * covariance + kept * torch.diag(covariance.diagonal())


def shrinkage(old: Tensor, new: Tensor) -> float:
    """How much shorter a unit is in one metric than in another, as a mean over the directions; 1 where one has none."""
    if not old.numel() or not new.numel():
        return 1.0
    return math.exp(float(_log_volume(old) - _log_volume(new)) / len(old))


def _log_volume(scale: Tensor) -> Tensor:
    """log |det L|."""
    if scale.ndim == 1:
        return scale.log().sum()
    if scale.shape[0] == scale.shape[1]:
        return torch.linalg.slogdet(scale)[1]
    return scale[:, 0].log().sum() + scale[:, 1:].square().sum(0).log1p().sum()


def wide_directions(y: Tensor, least: float = 0.0) -> Tensor:
    """L from centred points (n, r): (r, 1 + k), or (r,) where no direction is clearly wide.

    Directions are those of the correlations. Noise widens them: a variance l shows as l (1 + g / (l - 1)), g = r / n,
    which is taken back.

    Args:
        y: The points.
        least: Smallest spread of a coordinate that is kept, as a share of the largest.
    """
    n, r = y.shape
    s = y.square().mean(0).sqrt()
    s = torch.where(s > 0, s, 1.0).clamp_min(least * float(s.max()))
    _, value, axes = torch.linalg.svd(y / s / math.sqrt(n), full_matrices=False)
    seen, g = value[:DIRECTIONS].square(), r / n
    wide = seen > CLEAR * (1.0 + math.sqrt(g)) ** 2
    if not bool(wide.any()):
        return s
    b = seen[wide] + 1.0 - g
    variance = 0.5 * (b + (b.square() - 4.0 * seen[wide]).clamp_min(0.0).sqrt())
    return torch.cat([s[:, None], axes[:DIRECTIONS][wide].T * (variance.sqrt() - 1.0).clamp_min(0.0).sqrt()], 1)


def main_directions(points: Tensor, generator: torch.Generator) -> Tensor:
    """Coordinates (n, MAIN) of points (n, k) along the directions in which they spread most.

    By subspace iteration: where several directions are equally wide, any of them will do.
    """
    points = points - points.mean(0)
    shape = (points.shape[1], min(MAIN, points.shape[1]))
    basis = torch.randn(shape, generator=generator, dtype=points.dtype, device=points.device)
    for _ in range(ITERATIONS):
        basis = torch.linalg.qr(points.T @ (points @ basis)).Q
    return points @ basis
