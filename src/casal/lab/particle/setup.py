"""The particle: a double well in x, a narrow Gaussian in y, a circle; its exact law by quadrature over the angle."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from casal import Target, langevin
from casal.lab.experiment import Array
from casal.lab.laws import double_well

RADIUS = 3.0
SIGMA_Y = 0.1


class Settings(NamedTuple):
    """Settings of a run."""

    step_size: float
    dual_step: float
    steps: int
    burn_in: float
    rho: tuple[float, float]


PAPER = Settings(step_size=1e-2, dual_step=1e-2, steps=2000, burn_in=0.1, rho=(0.1, 100.0))
"""As in the authors' script for this problem."""

EXPECTED = {"wrong": 7.06e-8, "mean_x": -2.99831, "sd_y": 0.10067}
"""The exact answer (surface measure of the circle), by quadrature."""


def gradient(x: Tensor) -> Tensor:
    """Gradient of f(x, y) = V(x) + y^2 / (2 sigma^2)."""
    return torch.stack([double_well.slope(x[:, 0]), x[:, 1] / SIGMA_Y**2], dim=1)


def start(n: int, generator: torch.Generator) -> Tensor:
    """Standard normal, as in the authors' script."""
    return torch.randn((n, 2), generator=generator, dtype=torch.float64)


def plain(steps: int) -> Target:
    """Langevin dynamics with the authors' step size."""
    return langevin(gradient, steps=steps, step_size=PAPER.step_size, init=start)


def preconditioned(steps: int) -> Target:
    """The same with one step size per coordinate, so that both relax at the same pace."""
    diagonal = torch.tensor([1.0 / double_well.CURVATURE, SIGMA_Y**2], dtype=torch.float64)
    return langevin(gradient, steps=steps, step_size=0.1, init=start, preconditioner=diagonal)


def exact_density() -> tuple[Array, Array]:
    """Angles in [-pi, pi) and the density of the law on the circle with respect to the angle."""
    angle = np.linspace(-np.pi, np.pi, 20001)[:-1]
    x, y = RADIUS * np.cos(angle), RADIUS * np.sin(angle)
    log_density = -double_well.potential(x) - 0.5 * (y / SIGMA_Y) ** 2
    density = np.exp(log_density - log_density.max())
    return angle, density / (density.sum() * (angle[1] - angle[0]))


def exact_answer() -> dict[str, float]:
    """P(x > 0), E x and the standard deviation of y under the exact law."""
    angle, density = exact_density()
    weight = density / density.sum()
    x, y = RADIUS * np.cos(angle), RADIUS * np.sin(angle)
    return {
        "wrong": float(weight[x > 0].sum()),
        "mean_x": float((weight * x).sum()),
        "sd_y": float(np.sqrt((weight * y**2).sum() - (weight * y).sum() ** 2)),
    }
