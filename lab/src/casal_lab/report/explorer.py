"""Numbers of the figure with sliders: the stationary distribution of z for a Gaussian and a line, in closed form."""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any

import numpy as np

from casal_lab.drawing import colour
from casal_lab.experiment import Array
from casal_lab.problems import gaussian_line as line

RHO: Array = np.geomspace(0.1, 1000.0, 41)
TAU = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3)
BARE = "without the dual"

Moments = tuple[float, float]


def moments(name: str, tau: float, rho: float) -> Moments | None:
    """Mean and standard deviation of z1 under a variant; None where it diverges."""
    variant = line.VARIANTS[name]
    F, G, _ = (part[0] for part in line.recursion(variant, np.array([tau]), rho))
    moving, _ = line.spread(variant, F, G)
    if max(float(np.abs(np.linalg.eigvals(matrix)).max()) for matrix in (F, moving)) >= 1.0:
        return None
    mean, covariance = line.stationary(variant, tau, rho)
    return line.first(float(mean[2])), math.sqrt(covariance[2, 2] / 2)


def explorer_data() -> dict[str, Any]:
    """The exact distribution, and for each variant one distribution for every tau and rho."""
    densities = {name: [[moments(name, tau, float(rho)) for rho in RHO] for tau in TAU] for name in line.VARIANTS}
    # If x is only drawn towards the line and then projected: mu = 0, in continuous time.
    bare = [(line.without_dual(float(rho)), math.sqrt(line.optimum(float(rho))[1][1, 1] / 2)) for rho in RHO]
    return {
        "rho": RHO.tolist(),
        "tau": TAU,
        "exact": (line.first(line.TANGENT), math.sqrt(line.VARIANCE / 2)),
        "densities": {**densities, BARE: [bare] * len(TAU)},
        "colours": {name: colour(name) for name in line.VARIANTS} | {BARE: "#E69F00"},
        "dashed": [*(name for name in line.VARIANTS if "common" in name), BARE],
        "shown": ["Algorithm 1", "CASAL", BARE],
    }


@cache
def explorer_numbers() -> dict[str, Any]:
    """The same to six digits, for the page."""
    text = json.dumps(explorer_data())
    rounded: dict[str, Any] = json.loads(text, parse_float=lambda number: float(f"{float(number):.6g}"))
    return rounded
