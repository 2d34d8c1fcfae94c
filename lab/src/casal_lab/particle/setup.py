"""The particle: a double well in x, a narrow Gaussian in y, a circle; its exact distribution by quadrature."""

from __future__ import annotations

import math
from collections.abc import Sized
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from casal import Target, geometric, langevin
from casal.schedules import Schedule
from casal_lab.experiment import Array, Origin
from casal_lab.problems import double_well

RADIUS = 3.0
SIGMA_Y = 0.1


class Settings(NamedTuple):
    """Settings of a run."""

    name: str  # revision of the script, or ours
    step_size: float
    dual_step: float
    steps: int
    rho: Schedule
    burn_in: float = 0.1  # share of the run without coupling
    projected_from: float = 0.1  # share of the run without projection, of projected Langevin
    note: str = ""


@dataclass(frozen=True)
class LateRamp:
    """Equal ratios from ``low`` at the share ``start`` of the run to ``high`` at the share ``end``, then constant.

    >>> LateRamp(0.1, 10.0, 0.2, 0.8)(range(10))
    tensor([ 0.1000,  0.1000,  0.1000,  0.2512,  0.6310,  1.5849,  3.9811, 10.0000,
            10.0000, 10.0000], dtype=torch.float64)
    """

    low: float
    high: float
    start: float = 0.1
    end: float = 1.0

    def __call__(self, table: Sized) -> Tensor:
        total = len(table)
        first, last = round(self.start * total), round(self.end * total)
        climb = torch.logspace(math.log10(self.low), math.log10(self.high), max(last - first, 1), dtype=torch.float64)
        values = torch.full((total,), self.high, dtype=torch.float64)
        values[:first] = self.low
        values[first : first + len(climb)] = climb[: total - first]
        return values


REVISIONS = (
    Settings("330c997", 1e-2, 1e-2, 2000, LateRamp(0.1, 10.0), note="couples by the cube of the distance"),
    Settings("904d4d2", 1e-2, 1e-2, 2000, LateRamp(0.1, 10.0)),
    Settings("2dbe368", 1e-3, 1e-3, 2000, LateRamp(0.1, 100.0), note="runs plain Langevin, CASAL is commented out"),
    Settings("c726ba8", 1e-2, 1e-2, 4000, LateRamp(0.1, 100.0, end=0.75), projected_from=0.0),
)
"""The stored revisions of the authors' script for this problem (example_particle.py, at last example.py)."""

NEWEST = REVISIONS[-1]
DRAWN = REVISIONS[1]
"""The revision of the pictures: the first with the quadratic coupling that plots the last points of all chains."""

OURS = Settings("ours", 1e-2, 1e-2, 2000, geometric(0.1, 100.0))
"""In no revision: the steps of the first ones with the last rho of the newest."""

SCALED_STEP, IMPLICIT_STEP = 0.02, 0.1
"""Step sizes with the preconditioner: explicit coupling needs tau rho D <= 1, implicit coupling does not."""

_SCRIPT = "example_particle.py (330c997, 904d4d2, 2dbe368), example.py (c726ba8)"
ORIGINS = (
    Origin(
        "potential", "double well in x, minima at 0.7 and -2; y ~ N(0, 0.1^2)", "script", f"{_SCRIPT}; a picture in C.1"
    ),
    Origin("circle |x|^2 = E", "E = 9", "script", f"{_SCRIPT}; section C.1 has the equation without the number"),
    Origin("start", "N(0, I)", "script", _SCRIPT),
    Origin("chains", "4000", "ours", "the script has 1000; 4000 halve the error of a share of 0.1 %"),
    Origin("tau = eta", "0.01; 0.001 in 2dbe368", "script", _SCRIPT),
    Origin("steps", "2000; 4000 in c726ba8", "script", _SCRIPT),
    Origin("rho, 330c997 and 904d4d2", "0 for a tenth of the run, then 0.1 to 10, logarithmic", "script", _SCRIPT),
    Origin("rho, 2dbe368", "0 for a tenth of the run, then 0.1 to 100, logarithmic", "script", _SCRIPT),
    Origin("rho, c726ba8", "0 for 400 steps, 0.1 to 100 up to step 3000, then 100", "script", _SCRIPT),
    Origin(
        "rho and steps, ours", "0.1 to 100 over 2000 steps", "ours", "our first reading of the scripts; in none of them"
    ),
    Origin("preconditioner", "1/2 in x, 0.01 in y", "ours", "one over the curvature"),
    Origin(
        "step size with it",
        "0.02; 0.1 for implicit coupling and weights",
        "ours",
        "explicit coupling needs tau rho D <= 1",
    ),
    Origin("weight of the penalty", "0.5", "ours", "the scripts have no penalty; beside it 28 tuned ones"),
    Origin(
        "steps and ladder of WeightedCASAL", "500, rho to 400", "ours", "a quarter of the evaluations of the others"
    ),
)
"""Where every constant comes from."""

EXPECTED = {"wrong": 7.06e-8, "mean_x": -2.99831, "sd_y": 0.10067}
"""The exact answer (surface measure of the circle), by quadrature."""


def gradient(x: Tensor) -> Tensor:
    """Gradient of f(x, y) = V(x) + y^2 / (2 sigma^2)."""
    return torch.stack([double_well.slope(x[:, 0]), x[:, 1] / SIGMA_Y**2], dim=1)


def start(n: int, generator: torch.Generator) -> Tensor:
    """Standard normal, as in the authors' script."""
    return torch.randn((n, 2), generator=generator, dtype=torch.float64)


def plain(settings: Settings) -> Target:
    """Langevin dynamics with one step size for both coordinates."""
    return langevin(gradient, steps=settings.steps, step_size=settings.step_size, init=start)


def preconditioned(steps: int, step_size: float = IMPLICIT_STEP) -> Target:
    """The same with one step size per coordinate, so that both relax at the same pace."""
    diagonal = torch.tensor([1.0 / double_well.CURVATURE, SIGMA_Y**2], dtype=torch.float64)
    return langevin(gradient, steps=steps, step_size=step_size, init=start, preconditioner=diagonal)


def exact_density() -> tuple[Array, Array]:
    """Angles in [-pi, pi) and the density of the distribution on the circle with respect to the angle."""
    angle = np.linspace(-np.pi, np.pi, 20001)[:-1]
    x, y = RADIUS * np.cos(angle), RADIUS * np.sin(angle)
    log_density = -double_well.potential(x) - 0.5 * (y / SIGMA_Y) ** 2
    density = np.exp(log_density - log_density.max())
    return angle, density / (density.sum() * (angle[1] - angle[0]))


def exact_answer() -> dict[str, float]:
    """P(x > 0), E x and the standard deviation of y under the exact distribution."""
    angle, density = exact_density()
    weight = density / density.sum()
    x, y = RADIUS * np.cos(angle), RADIUS * np.sin(angle)
    return {
        "wrong": float(weight[x > 0].sum()),
        "mean_x": float((weight * x).sum()),
        "sd_y": float(np.sqrt((weight * y**2).sum() - (weight * y).sum() ** 2)),
    }
