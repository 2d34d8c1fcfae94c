"""Gaussian random fields on the unit square, of covariance scale (-Laplacian + tau^2)^(-alpha), without the constant.

    u(x) = sum_(k != 0) sqrt(lam_k) xi_k phi_k(x),     xi_k ~ N(0, 1)

Periodic: phi_k are the waves of k in Z^2 and lam_k = scale (4 pi^2 |k|^2 + tau^2)^(-alpha); points lie at i / points.
Level at the walls (Neumann): phi_k are products of sqrt 2 cos(pi k_1 x) and 1, k in N^2, and
lam_k = scale (pi^2 |k|^2 + tau^2)^(-alpha); points are the centres of cells, (i + 1/2) / points.

If no scale is given it is 2 tau^(2 alpha - 2) on the periodic square and tau^(2 alpha - 2) between walls: these are the
fields that the programs of Li et al. ("Fourier neural operator for parametric partial differential equations", 2021)
and Huang et al. ("DiffusionPDE", 2024) draw, and call GRF(alpha, tau).
"""

from __future__ import annotations

import math

import torch
from scipy import fft
from torch import Tensor

from casal.checks import positive, whole_number


def periodic_spectrum(points: int, alpha: float, tau: float, scale: float | None = None) -> Tensor:
    """lam_k (points, points), in the order of ``torch.fft.fft2``; zero for the constant."""
    k = torch.fft.fftfreq(whole_number(points, "points", 2), 1.0 / points, dtype=torch.float64)
    return _spectrum((2.0 * math.pi * k).square(), alpha, tau, 2.0 * _unit(alpha, tau) if scale is None else scale)


def neumann_spectrum(points: int, alpha: float, tau: float, scale: float | None = None) -> Tensor:
    """lam_k (points, points), k_1 and k_2 from 0; zero for the constant."""
    k = torch.arange(whole_number(points, "points", 2), dtype=torch.float64)
    return _spectrum((math.pi * k).square(), alpha, tau, _unit(alpha, tau) if scale is None else scale)


def periodic_fields(
    n: int, points: int, generator: torch.Generator, *, alpha: float, tau: float, scale: float | None = None
) -> Tensor:
    """Fields (n, points, points) whose covariance is sum_k lam_k cos(2 pi k.(x - y)), of zero mean each.

    White noise on the grid, filtered: its covariance is exact for the waves of the grid, and homogeneous.
    """
    noise = torch.randn((n, points, points), generator=generator, dtype=torch.float64)
    root = periodic_spectrum(points, alpha, tau, scale).sqrt()[:, : points // 2 + 1]
    filtered = root * torch.fft.rfft2(noise, norm="ortho")
    return torch.fft.irfft2(filtered, s=(points, points), norm="forward")


def neumann_fields(
    n: int, points: int, generator: torch.Generator, *, alpha: float, tau: float, scale: float | None = None
) -> Tensor:
    """Fields (n, points, points) whose covariance is sum_k lam_k phi_k(x) phi_k(y), of zero mean each."""
    noise = torch.randn((n, points, points), generator=generator, dtype=torch.float64)
    coefficients = points * neumann_spectrum(points, alpha, tau, scale).sqrt() * noise
    return torch.from_numpy(fft.idctn(coefficients.numpy(), axes=(-2, -1), norm="ortho"))


def _unit(alpha: float, tau: float) -> float:
    """tau^(2 alpha - 2): the variance then hardly depends on tau."""
    return tau ** (2.0 * alpha - 2.0)


def _spectrum(square: Tensor, alpha: float, tau: float, scale: float) -> Tensor:
    """scale (|q|^2 + tau^2)^(-alpha) of the squares of the frequencies on either axis."""
    positive(alpha, "alpha"), positive(tau, "tau"), positive(scale, "scale")
    lam = scale * (square[:, None] + square[None, :] + tau**2).pow(-alpha)
    lam[0, 0] = 0.0
    return lam
