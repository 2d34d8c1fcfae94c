"""The Navier-Stokes equation of the vorticity on the periodic unit square,

    w_t + u w_x + v w_y = nu Laplacian w + f,     (u, v) = (psi_y, -psi_x),     -Laplacian psi = w.

Pseudo-spectral: products are taken on the grid, and of factors and products the modes with |k_i| < points / 3 are kept
(the 2/3 rule), so nothing is aliased, and without f and nu the mean of w, the energy and the enstrophy do not change
in continuous time. The advection is written with two products,

    u w_x + v w_y = (d_xx - d_yy)(u v) + d_xy (v^2 - u^2),

which the divergence of (u, v) being zero allows. In time Heun's rule with the viscosity integrated exactly: with
E = exp(dt nu Laplacian) and N = f - advection,

    w* = E (w + dt N(w)),     w' = E w + dt/2 (E N(w) + N(w*)).

Fields are (n, points, points); x = i / points counts rows, y columns.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from casal.checks import positive, whole_number
from casal.errors import DivergedError, SettingError, ShapeError
from casal_lab.physics.random_fields import periodic_fields

POINTS = 64
VISCOSITY = 1e-3
STEP = 0.025
HORIZON = 1.0
AMPLITUDE, ALPHA, TAU = 4.0, 2.5, 7.0
"""w at time zero is AMPLITUDE GRF(ALPHA, TAU)."""

BATCH = 8
"""Fields that are advanced together: more of them leave the cache of the processor."""


class Symbols(NamedTuple):
    """Derivatives in Fourier space, (points, points // 2 + 1) each."""

    laplacian: Tensor
    to_u: Tensor  # w -> u = psi_y and v = -psi_x without the factor i, of the modes that are kept
    to_v: Tensor
    shear: Tensor  # d_xx - d_yy and d_xy, of the modes that are kept
    mixed: Tensor


def symbols(points: int) -> Symbols:
    """The derivatives of a grid."""
    whole_number(points, "points", 4)
    kx = torch.fft.fftfreq(points, 1.0 / points, dtype=torch.float64)[:, None]
    ky = torch.fft.rfftfreq(points, 1.0 / points, dtype=torch.float64)[None, :]
    kept = (3.0 * kx.abs() < points) & (3.0 * ky.abs() < points)
    x, y = 2.0 * math.pi * kx, 2.0 * math.pi * ky
    square = x.square() + y.square()
    inverse = kept / square.clamp_min(1.0)  # of the constant nothing remains: x and y are zero
    return Symbols(-square, y * inverse, -x * inverse, kept * (y.square() - x.square()), kept * (-x * y))


def advance(
    w: Tensor, time: float, forcing: Tensor | None = None, *, viscosity: float = VISCOSITY, step: float = STEP
) -> Tensor:
    """The fields w (n, points, points) after ``time``, in float64.

    Args:
        w: Vorticity at the start.
        time: How far to go.
        forcing: f, (points, points); none if left out.
        viscosity: nu.
        step: Largest time step dt; it is shortened to divide ``time``.
    """
    if not time >= 0 or not viscosity >= 0:
        raise SettingError(f"time and viscosity must be >= 0, got {time} and {viscosity}")
    if w.ndim != 3 or w.shape[1] != w.shape[2] or (forcing is not None and forcing.shape != w.shape[1:]):
        told = "" if forcing is None else f" and a forcing {tuple(forcing.shape)}"
        raise ShapeError(f"fields are (n, points, points), a forcing (points, points), got {tuple(w.shape)}{told}")
    steps = math.ceil(time / positive(step, "step") - 1e-9)
    if steps == 0 or len(w) == 0:
        return w.to(torch.float64)
    table = symbols(w.shape[-1])
    push = None if forcing is None else torch.fft.rfft2(forcing.to(torch.float64))
    parts = [_march(part.to(torch.float64), time / steps, steps, push, viscosity, table) for part in w.split(BATCH)]
    return _finite(torch.cat(parts), time / steps, steps)


def velocity(w: Tensor) -> tuple[Tensor, Tensor]:
    """u and v of fields w, of the modes that are kept; their means are zero."""
    points = w.shape[-1]
    return _velocity(torch.fft.rfft2(w.to(torch.float64)), symbols(points), points)


def advection(w: Tensor) -> Tensor:
    """u w_x + v w_y of fields w, of the modes that are kept."""
    points = w.shape[-1]
    return -torch.fft.irfft2(_push(torch.fft.rfft2(w.to(torch.float64)), None, symbols(points)), s=(points, points))


def circulation(w: Tensor) -> Tensor:
    """sum w over the points, (n,)."""
    return w.sum((-2, -1))


def enstrophy(w: Tensor) -> Tensor:
    """sum w^2 over the points, (n,)."""
    return w.square().sum((-2, -1))


def energy(w: Tensor) -> Tensor:
    """sum u^2 + v^2 over the points, (n,)."""
    u, v = velocity(w)
    return (u.square() + v.square()).sum((-2, -1))


def diagonal_forcing(points: int = POINTS) -> Tensor:
    """f = 0.1 (sin(2 pi (x + y)) + cos(2 pi (x + y))), (points, points), as in Li et al. and Huang et al."""
    i = torch.arange(points)
    angle = ((i[:, None] + i[None, :]) % points).to(torch.float64) * (2.0 * math.pi / points)
    return 0.1 * (torch.sin(angle) + torch.cos(angle))


def random_starts(n: int, generator: torch.Generator, points: int = POINTS) -> Tensor:
    """4 GRF(2.5, 7), (n, points, points), of zero circulation."""
    return AMPLITUDE * periodic_fields(n, points, generator, alpha=ALPHA, tau=TAU)


def random_pairs(n: int, generator: torch.Generator, points: int = POINTS) -> Tensor:
    """Random starts and what the forced flow makes of them at time 1, (n, 2, points, points)."""
    start = random_starts(n, generator, points)
    return torch.stack([start, advance(start, HORIZON, diagonal_forcing(points))], dim=1)


def _march(w: Tensor, dt: float, steps: int, push: Tensor | None, viscosity: float, table: Symbols) -> Tensor:
    """``steps`` steps of Heun's rule."""
    decay = torch.exp(dt * viscosity * table.laplacian)
    now = torch.fft.rfft2(w)
    for _ in range(steps):
        slope = _push(now, push, table)
        kept = decay * now
        slope = decay * slope
        now = kept + 0.5 * dt * (slope + _push(kept + dt * slope, push, table))
    return torch.fft.irfft2(now, s=w.shape[-2:])


def _push(spectrum: Tensor, push: Tensor | None, table: Symbols) -> Tensor:
    """N: the forcing less the advection, in Fourier space."""
    u, v = _velocity(spectrum, table, spectrum.shape[-2])
    slope = -table.shear * torch.fft.rfft2(u * v) - table.mixed * torch.fft.rfft2(v.square() - u.square())
    return slope if push is None else slope + push


def _velocity(spectrum: Tensor, table: Symbols, points: int) -> tuple[Tensor, Tensor]:
    turned = torch.complex(-spectrum.imag, spectrum.real)  # i w
    return (
        torch.fft.irfft2(table.to_u * turned, s=(points, points)),
        torch.fft.irfft2(table.to_v * turned, s=(points, points)),
    )


def _finite(w: Tensor, dt: float, steps: int) -> Tensor:
    lost = torch.nonzero(~torch.isfinite(w).flatten(1).all(1)).flatten().tolist()
    if lost:
        raise DivergedError(
            f"{len(lost)} fields are no longer finite; use a smaller step than {dt:g} ({w.shape[-1]} points)",
            step=0,
            steps=steps,
            chains=lost,
        )
    return w
