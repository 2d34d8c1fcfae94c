"""The inviscid Burgers equation with linear advection, u_t + u u_x + c u_x = 0 on a circle, conserving mass and energy.

    du_i/dt = -(u_{i+1}^2 + u_{i+1} u_i - u_i u_{i-1} - u_{i-1}^2) / (6 h) - c (u_{i+1} - u_{i-1}) / (2 h)

Both terms are skew: sum u and sum u^2 stay what they are, whatever the shocks do. In time the implicit midpoint rule,

    u' = u + dt F((u + u') / 2),

keeps sum u to rounding, and sum u^2 up to the error of the fixed-point sweeps that solve it.

With ``modes`` = K the right-hand side is cut to the Fourier modes 0 .. K (Galerkin truncation). For u in these modes
<u, cut F(u)> = <u, F(u)> = 0, so both invariants stay, and so does u in its modes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from casal.checks import positive, whole_number
from casal.errors import DivergedError, SettingError

LENGTH = 2.0 * math.pi
SWEEPS = 12
TOLERANCE = 1e-12
"""Largest change of a sweep, relative to the largest value, at which the sweeps stop."""

OUTSIDE = 1e-9
"""What fields may have beyond their modes, relative to the largest value."""


@dataclass(frozen=True)
class Burgers:
    """The equation on a grid."""

    points: int = 200  # on [0, 2 pi)
    speed: float = 0.5  # c, the linear advection
    step: float = 0.01  # largest time step dt; it is shortened to meet the times that are asked for
    modes: int | None = None  # K: the fields have the Fourier modes 0 .. K; None: all that the grid has

    def __post_init__(self) -> None:
        whole_number(self.points, "points", 3)
        positive(self.step, "step")
        if self.modes is not None and whole_number(self.modes, "modes", 1) > self.points // 2:
            raise SettingError(f"modes = {self.modes}, a grid of {self.points} points has {self.points // 2}")

    @property
    def grid(self) -> Tensor:
        """x_i, (points,)."""
        return torch.arange(self.points, dtype=torch.float64) * (LENGTH / self.points)

    def slope(self, u: Tensor) -> Tensor:
        """F(u) for fields (..., points)."""
        h = LENGTH / self.points
        ahead, behind = u.roll(-1, -1), u.roll(1, -1)
        steepening = (ahead - behind) * (ahead + u + behind)  # = the four products of the equation
        return self.cut(-steepening / (6.0 * h) - (self.speed / (2.0 * h)) * (ahead - behind))

    def cut(self, u: Tensor) -> Tensor:
        """The part of fields (..., points) in the modes 0 .. K."""
        if self.modes is None:
            return u
        spectrum = torch.fft.rfft(u)
        spectrum[..., self.modes + 1 :] = 0
        return torch.fft.irfft(spectrum, n=self.points)

    def advance(self, u: Tensor, time: float) -> Tensor:
        """The fields u (..., points) after ``time``, in float64."""
        if not time >= 0:
            raise SettingError(f"time must be >= 0, got {time}")
        u = u.to(torch.float64)
        if u.shape[-1] != self.points:
            raise SettingError(f"fields have {u.shape[-1]} points, the grid {self.points}")
        outside = float((u - self.cut(u)).abs().max())
        if outside > OUTSIDE * float(u.abs().max()):
            raise SettingError(f"the fields have up to {outside:.3g} beyond mode {self.modes}; cut(u) takes it away")
        steps = max(1, math.ceil(time / self.step - 1e-9)) if time > 0 else 0
        for _ in range(steps):
            u = self._midpoint(u, time / steps)
        return u

    def trajectory(self, u: Tensor, times: Tensor) -> Tensor:
        """Snapshots (times, ..., points) at increasing times; u is the state at time zero."""
        snapshots, now = [], 0.0
        for time in times.tolist():
            u = self.advance(u, time - now)
            snapshots.append(u)
            now = time
        return torch.stack(snapshots)

    def _midpoint(self, u: Tensor, dt: float) -> Tensor:
        new = u + dt * self.slope(u)
        scale = float(u.abs().max()) + 1e-300
        for _ in range(SWEEPS):
            before, new = new, u + dt * self.slope((u + new) / 2)
            if float((new - before).abs().max()) <= TOLERANCE * scale:
                return new
        if not bool(torch.isfinite(new).all()):
            lost = torch.nonzero(~torch.isfinite(new).reshape(-1, self.points).all(1)).flatten().tolist()
            raise DivergedError(
                f"{len(lost)} fields are no longer finite; use a smaller step than {dt:g} "
                f"(largest value {scale:g} on {self.points} points)",
                step=0,
                steps=0,
                chains=lost,
            )
        return new


def mass(u: Tensor) -> Tensor:
    """sum u over the points."""
    return u.sum(-1)


def energy(u: Tensor) -> Tensor:
    """sum u^2 over the points."""
    return u.square().sum(-1)


def random_states(n: int, amplitude: float, generator: torch.Generator, *, points: int = 200) -> Tensor:
    """Smooth random fields (n, points): modes 1 .. 20 with Gaussian coefficients of size k^-1.5.

    The fluctuation of every field is scaled to the root mean square ``amplitude``; its mean is N(0, amplitude^2).
    """
    k = torch.arange(1, 21, dtype=torch.float64)
    real, imaginary = torch.randn((2, n, 20), generator=generator, dtype=torch.float64) * k**-1.5
    spectrum = torch.zeros((n, points // 2 + 1), dtype=torch.complex128)
    spectrum[:, 1:21] = torch.complex(real, imaginary)
    field = torch.fft.irfft(spectrum, n=points)
    field = amplitude * field / field.square().mean(1, keepdim=True).sqrt()
    return field + amplitude * torch.randn((n, 1), generator=generator, dtype=torch.float64)
