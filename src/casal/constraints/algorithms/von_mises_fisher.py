"""Exact draws of directions around a mean direction."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from casal.constraints.algorithms.bessel import log_bessel_mean, log_sphere_area

LARGEST_KAPPA = 1e300


def von_mises_fisher(
    mean: Tensor,
    kappa: Tensor,
    dimension: int,
    normal: Callable[[int], Tensor],
    generator: torch.Generator,
) -> Tensor:
    """u ~ exp(kappa mean . u) on the unit sphere of a space with ``dimension`` dimensions, one draw a row.

    Wood's rejection in the variable delta = 1 - mean . u, so that no digits are lost when kappa is large. With
    b = (d - 1) / (2 kappa + sqrt(4 kappa^2 + (d - 1)^2)) and delta_0 = 2 b / (1 + b),

        delta = 2 b Z / (1 - Z + b Z),      Z ~ Beta((d - 1) / 2, (d - 1) / 2),
        accept with probability  exp(kappa (delta_0 - delta)) (s / s_0)^(d-1),
        s = delta_0 + delta - delta_0 delta,   s_0 = delta_0 (2 - delta_0).

    Z = (1 + t) / 2 comes from the cosine t of a uniform direction with the mean (Ulrich); the part of that direction
    across the mean is uniform and independent of t, so one Gaussian vector gives both. About two thirds of the
    proposals or more are accepted, whatever kappa and d (0.65 in the plane). Rows are drawn in order from one
    generator until all are accepted.

    Reference: A. T. A. Wood, Simulation of the von Mises-Fisher distribution, 1994; G. Ulrich, 1984.

    Args:
        mean: Unit vectors (n, D), inside the space.
        kappa: Concentrations (n,) >= 0; zero is the uniform law.
        dimension: d, the dimension of the space; D or less.
        normal: Draws that many standard Gaussian vectors (rows, D) of the space.
        generator: For the uniform numbers.
    """
    kappa = kappa.clamp_max(LARGEST_KAPPA)
    if dimension == 1:
        ahead = _uniform(len(mean), mean, generator) <= torch.sigmoid(2.0 * kappa)
        return torch.where(ahead[:, None], mean, -mean)
    wide = float(dimension - 1)
    b = wide / (2.0 * kappa + torch.hypot(2.0 * kappa, torch.full_like(kappa, wide)))
    least = 2.0 * b / (1.0 + b)
    drawn, waiting = torch.empty_like(mean), torch.arange(len(mean), device=mean.device)
    while len(waiting):
        axis, here, start = mean[waiting], b[waiting], least[waiting]
        lower, upper, across = _split(normal(len(waiting)), axis)
        delta = 2.0 * here * lower / (upper + here * lower)
        log_ratio = torch.log((start + delta - start * delta) / (start * (2.0 - start)))
        log_accept = kappa[waiting] * (start - delta) + wide * log_ratio
        accepted = torch.log(_uniform(len(waiting), mean, generator)) <= log_accept
        delta = delta[:, None]
        drawn[waiting[accepted]] = ((1.0 - delta) * axis + torch.sqrt(delta * (2.0 - delta)) * across)[accepted]
        waiting = waiting[~accepted]
    return drawn


def near_sphere(
    direction: Tensor,
    distance: Tensor,
    radius: float,
    sigma: float,
    dimension: int,
    normal: Callable[[int], Tensor],
    generator: torch.Generator,
) -> Tensor:
    """Direction of z ~ N(y, sigma^2 I) on the sphere of that radius, from the direction and the distance of y."""
    kappa = (radius / sigma) * (distance / sigma)
    return von_mises_fisher(direction, kappa, dimension, normal, generator)


def log_sphere_mass(distance: Tensor, radius: float, sigma: float, dimension: int) -> Tensor:
    """log of the integral of N(z; y, sigma^2 I) over the sphere |z| = R of R^d, from r = |y|.

    -(r - R)^2 / (2 sigma^2) - d/2 log(2 pi sigma^2) + (d - 1) log R + log |S^(d-1)| + log mean exp(kappa (cos - 1)),
    kappa = R r / sigma^2. A sphere of radius zero is a point, of mass one.
    """
    value = -0.5 * ((distance - radius) / sigma).square() - dimension * math.log(math.sqrt(2.0 * math.pi) * sigma)
    if radius == 0.0:
        return value
    kappa = ((radius / sigma) * (distance / sigma)).clamp_max(LARGEST_KAPPA)
    constant = (dimension - 1) * math.log(radius) + log_sphere_area(dimension)
    return value + constant + log_bessel_mean(0.5 * dimension - 1.0, kappa)


def _split(vector: Tensor, axis: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(1 + t) / 2 and (1 - t) / 2 of the cosine t with the axis, both to full precision, and the direction across."""
    along = (vector * axis).sum(1)
    across = vector - along[:, None] * axis
    across = across - (across * axis).sum(1, keepdim=True) * axis  # once more, for what rounding left
    width = torch.linalg.vector_norm(across, dim=1)
    length = torch.hypot(along, width)
    far = 0.5 * (1.0 + along.abs() / length)
    near = 0.5 * (width / length) * (width / (length + along.abs()))
    ahead = along > 0
    return torch.where(ahead, far, near), torch.where(ahead, near, far), across / width[:, None]


def _uniform(rows: int, like: Tensor, generator: torch.Generator) -> Tensor:
    """Uniform on (0, 1]."""
    return 1.0 - torch.rand(rows, generator=generator, dtype=like.dtype, device=like.device)
