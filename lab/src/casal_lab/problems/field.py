"""The field problem: double wells in two Fourier coefficients, Gaussians in the others, a fixed energy.

Given |x|^2 = E the distribution of the first two coefficients is known by quadrature,

    p(x1, x2) ~ exp(-V(x1) - V(x2)) f(E - x1^2 - x2^2),

with f the density of the sum of squares of the other coefficients. Conditioning on the value of |x|^2 (co-area) and the
surface measure of the sphere agree here, because the gradient of |x|^2 has constant length on the sphere.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import numpy as np
import torch
from torch import Tensor

from casal import Target, langevin
from casal_lab.experiment import Array
from casal_lab.problems import double_well

WELLS = 2
GRID = (100, 100)


TILT = 0.5
"""Exponent of the tilt in units of the largest possible one: near one the tilted density has no end within a grid, at
zero the tail drowns in rounding."""


@dataclass(frozen=True)
class Setup:
    """Variances scale / (1 + |k|)^decay on a lattice of modes x modes wave numbers, two real numbers per mode."""

    name: str  # for tables
    modes: int  # wave numbers on each axis
    scale: float  # variance at |k| = 0
    decay: float  # power at which the variance falls
    step_size: float  # tau of plain Langevin dynamics, stable for the stiffest coefficient
    dual_step: float  # step of mu in the released update
    rho: tuple[float, float]  # smallest and largest coupling
    energy: float  # |x|^2

    def variances(self) -> Array:
        """Prior variances of the coefficients (those of the wells are not used)."""
        k = np.arange(self.modes)
        length = np.hypot(k[:, None], k[None, :]).ravel()
        return np.repeat(self.scale / (1.0 + length) ** self.decay, 2)

    def gradient(self, x: Tensor) -> Tensor:
        """Gradient of f: the double well in the first two coefficients, Gaussian in the others."""
        well = double_well.slope(x[:, :WELLS])
        return torch.cat([well, self.curvatures.to(x) * x[:, WELLS:]], dim=1)

    @cached_property
    def curvatures(self) -> Tensor:
        """Of the Gaussian coefficients."""
        return torch.as_tensor(1.0 / self.variances()[WELLS:])

    def preconditioner(self) -> Tensor:
        """One over the curvature of each coefficient."""
        diagonal = torch.as_tensor(self.variances())
        diagonal[:WELLS] = 1.0 / double_well.CURVATURE
        return diagonal

    def start(self, n: int, generator: torch.Generator) -> Tensor:
        """Independent normal coefficients at the scale of their prior, wide enough to cover both wells."""
        scale = self.preconditioner().sqrt()
        scale[:WELLS] = 1.5
        return scale * torch.randn((n, len(scale)), generator=generator, dtype=torch.float64)

    def round_start(self, spread: float, n: int, generator: torch.Generator) -> Tensor:
        """spread N(0, I), as in the released script."""
        return spread * torch.randn((n, 2 * self.modes**2), generator=generator, dtype=torch.float64)

    def plain(self, steps: int, spread: float = 0.0) -> Target:
        """Langevin dynamics with one step size for all coefficients, from our start or from spread N(0, I)."""
        start = partial(self.round_start, spread) if spread else self.start
        return langevin(self.gradient, steps=steps, step_size=self.step_size, init=start)

    def preconditioned(self, steps: int, step_size: float = 0.1) -> Target:
        """Langevin dynamics in which all coefficients relax at the same pace."""
        diagonal = self.preconditioner()
        return langevin(self.gradient, steps=steps, step_size=step_size, init=self.start, preconditioner=diagonal)

    def decoded(self, x: Tensor) -> Tensor:
        """(n, 2, 100, 100): the two components u + i v = sum_k (x_2k + i x_2k+1) e^(2 pi i k.s) / 100 of a flow.

        |field|^2 = |x|^2 (Parseval).
        """
        waves = torch.view_as_complex(x.reshape(len(x), self.modes, self.modes, 2))
        return torch.view_as_real(torch.fft.ifft2(waves, GRID, norm="ortho")).movedim(-1, 1)


def squares_density(weights: Array, top: float, points: int = 1 << 15) -> tuple[Array, Array]:
    """Density of sum_j weights_j N(0,1)^2 on [0, top), by inverting its characteristic function on a grid.

    phi(t) = prod (1 - 2 i t w_j)^(-1/2) falls off like t^(-24) here, so the fast Fourier transform is exact to rounding
    once ``top`` is far in the tail (aliasing) and the grid is fine (truncation). Rounding is absolute, and in the tail
    the density is smaller: so the transform is taken of f(s) e^(theta s) / M(theta), which is such a density again,
    with weights w / (1 - 2 theta w).
    """
    theta = TILT / (2 * float(weights.max()))
    tilted, log_m = weights / (1 - 2 * theta * weights), -0.5 * np.log(1 - 2 * theta * weights).sum()
    spacing = top / points
    s = np.arange(points, dtype=np.float64) * spacing
    t = 2 * np.pi * np.fft.fftfreq(points, spacing)
    phi = np.exp(-0.5 * np.log(1 - 2j * t[:, None] * tilted[None, :]).sum(1))
    density = np.maximum(np.fft.fft(phi).real / top, 0.0) * np.exp(log_m - theta * s)
    return s, density.astype(np.float64)


@lru_cache
def conditional(setup: Setup, energy: float, points: int = 2001) -> tuple[Array, Array]:
    """Grid and distribution function of the first coefficient given |x|^2 = energy, by quadrature."""
    s, density = squares_density(setup.variances()[WELLS:], top=64.0)
    grid = np.linspace(-np.sqrt(energy), np.sqrt(energy), points)
    x1, x2 = grid[:, None], grid[None, :]
    joint = np.exp(-double_well.potential(x1) - double_well.potential(x2))
    joint = joint * np.interp(energy - x1**2 - x2**2, s, density, left=0.0)
    marginal = joint.sum(1)
    cdf = np.concatenate([[0.0], np.cumsum((marginal[1:] + marginal[:-1]) / 2)])
    return grid, cdf / cdf[-1]


def share_right(setup: Setup, energy: float) -> float:
    """P(x1 > 0) under the exact distribution."""
    grid, cdf = conditional(setup, energy)
    return float(1.0 - np.interp(0.0, grid, cdf))


def quantile_distance(samples: Array, grid: Array, cdf: Array) -> float:
    """W1 between samples (n,) and the distribution with the given distribution function."""
    levels = (np.arange(len(samples)) + 0.5) / len(samples)
    return float(np.abs(np.sort(samples) - np.interp(levels, cdf, grid)).mean())


def sampling_floor(grid: Array, cdf: Array, n: int, repeats: int = 200) -> float:
    """Mean W1 of n independent exact draws to their own distribution: what no sampler can beat on average."""
    rng = np.random.default_rng(0)
    draws = np.interp(rng.random((repeats, n)), cdf, grid)
    return float(np.mean([quantile_distance(row, grid, cdf) for row in draws]))


STIFF = Setup("authors' problem", 5, 0.1, 2.0, step_size=1e-3, dual_step=1e-3, rho=(2.0, 20.0), energy=15.0)
"""The authors' problem: 50 coefficients, curvatures from 1.3 to 443, which allow steps up to 4.5e-3."""

EXPECTED = {30.0: 8.2e-10, 20.0: 2.28e-4, 15.0: 0.01956, 12.0: 0.1068, 10.0: 0.1923, 8.0: 0.2555}
"""P(x1 > 0) in the authors' problem for each |x|^2, found independently of this module."""
