"""Energy-constrained fields (paper, section 5.1): 50 Fourier coefficients, a double well, a fixed energy.

The first two coefficients sit in the double well V, the other 48 are Gaussian with variances 0.1 / (1 + |k|)^2, k on a
5 x 5 lattice, two real numbers a mode. On the sphere |x|^2 = 15 the right well is nearly out of reach; the levels
12, 10 and 8 are easier. The exact law is known by quadrature (``field_setup``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import date
from typing import Any, NamedTuple

import torch
from torch import Tensor

from casal import __version__
from casal.lab.problems.base import Array, Experiment, Outcome
from casal.lab.problems.field_ablations import DualScale, RhoScale, dual_ablation, rho_ablation
from casal.lab.problems.field_claims import claims
from casal.lab.problems.field_runs import Levels, curves, levels
from casal.lab.problems.field_setup import EXPECTED, STIFF, conditional, share_right, squares_density
from casal.lab.problems.tuning import Case, penalty_ramps
from casal.methods import (
    CASAL,
    Decoupled,
    FinalProjection,
    Method,
    Penalty,
    PrimalDual,
    Projected,
    Unconstrained,
    WeightedCASAL,
)
from casal.schedules import linear
from casal.targets import Target

__all__ = ["EXPECTED", "EXPERIMENT", "cases", "exact_law", "exact_right", "preconditioned", "squares_density"]

ENERGY = STIFF.energy
ENERGIES = tuple(EXPECTED)

TUNED = "penalty, tuned + projection"
BURN_IN = 0.1
STEPS = 1000
"""Score evaluations of the paper's run."""


class Scale(NamedTuple):
    """How much is run.

    Attributes:
        n: Chains of a run; the paper's number.
        weighted: Chains of WeightedCASAL, whose quality depends on it.
        seeds: Runs.
        steps: Score evaluations.
        tuning: Chains on which the penalty is tuned.
        stride: Every how manyth setting of it is tried.
        repeats: Seeds of the curves.
        budgets: Score evaluations of the curves.
        rho: Of the ablation of rho.
        dual: Of the ablation of the dual.
    """

    n: int
    weighted: int
    seeds: int
    steps: int
    tuning: int
    stride: int
    repeats: int
    budgets: Sequence[int]
    rho: RhoScale
    dual: DualScale


FULL = Scale(
    1000,
    4000,
    5,
    STEPS,
    250,
    1,
    2,
    (100, 300, 1000, 3000),
    RhoScale(4000, (1000, 5000)),
    DualScale((0.0, 1.0, 5.0, 10.0, 20.0, 50.0, 100.0), 10_000),
)
QUICK = Scale(200, 500, 2, 200, 50, 8, 1, (50, 200), RhoScale(250, (100, 400)), DualScale((0.0, 1.0), 2000))


def gradient(x: Tensor) -> Tensor:
    """Gradient of f."""
    return STIFF.gradient(x)


def start(n: int, generator: torch.Generator) -> Tensor:
    """Starting points, wide enough to cover both wells."""
    return STIFF.start(n, generator)


def preconditioned(steps: int, step_size: float = 0.1) -> Target:
    """Langevin dynamics in which all coefficients relax at the same pace."""
    return STIFF.preconditioned(steps, step_size)


def exact_law(energy: float = ENERGY) -> tuple[Array, Array]:
    """Grid and distribution function of the first coefficient given |x|^2 = energy."""
    return conditional(STIFF, energy)


def exact_right(energy: float = ENERGY) -> float:
    """P(x1 > 0) under the exact law."""
    return share_right(STIFF, energy)


def cases(energy: float, steps: int) -> dict[str, tuple[Target, Method[Any]]]:
    """Every method at the same number of score evaluations; the settings do not depend on the energy."""
    ramp, eta, burn = linear(*STIFF.rho), STIFF.dual_step, BURN_IN
    paper, scaled = STIFF.plain(steps), STIFF.preconditioned(steps)
    return {
        "unconstrained": (paper, Unconstrained()),
        "final projection": (scaled, FinalProjection()),
        "projected": (paper, Projected(burn_in=burn)),
        "projected, preconditioned": (scaled, Projected(burn_in=burn)),
        "penalty": (paper, Penalty(0.5, burn_in=burn)),
        "primal-dual": (paper, PrimalDual(eta)),
        "decoupled": (paper, Decoupled(ramp, dual_step=eta)),
        "Algorithm 1": (paper, CASAL.algorithm1(ramp)),
        "Algorithm 2": (paper, CASAL.algorithm2(ramp)),
        "released code": (paper, CASAL.released(ramp, eta, burn_in=burn)),
        "CASAL": (scaled, CASAL(ramp, burn_in=burn)),
        "WeightedCASAL": (STIFF.preconditioned(steps, 0.2), WeightedCASAL(400.0)),
    }


def penalties(steps: int) -> list[Case]:
    """Settings among which the penalty baseline is tuned: slow and fast ramps, small and large steps."""
    targets = (preconditioned(steps), preconditioned(steps, 0.03))
    return penalty_ramps(targets, (1e-4, 1e-3, 1e-2, 1e-1), (0.03, 0.1, 0.3, 1.0))


def run(quick: bool, labels: Sequence[str] | None, tell: Callable[[str], None]) -> Outcome:
    """All methods on all levels, their cost curves and, unless single methods are asked for, both ablations."""
    began, scale = time.perf_counter(), QUICK if quick else FULL
    chosen = [label for label in (*cases(ENERGY, scale.steps), TUNED) if labels is None or label in labels]
    amounts = (scale.n, scale.weighted, scale.seeds, scale.steps, scale.tuning, scale.stride)
    setting = Levels(cases, penalties, TUNED, ENERGIES, *amounts)
    tables, data = levels(setting, chosen, tell)
    curve_table, data["curves"] = curves(cases, chosen, ENERGY, scale.n, scale.repeats, scale.budgets, tell)
    tables.append(curve_table)
    if labels is None:
        for table, found in (rho_ablation(scale.rho, tell), dual_ablation(scale.dual, tell)):
            tables.append(table)
            data |= found
    settings = {
        "date": date.today().isoformat(),
        "casal": __version__,
        "torch": str(torch.__version__),
        **{key: value for key, value in scale._asdict().items() if isinstance(value, int)},
    }
    verdicts = claims(data) if labels is None else []
    return Outcome("field", tables, verdicts, data, settings, time.perf_counter() - began)


EXPERIMENT = Experiment(
    "field",
    "Given the energy of a field, which methods sample its first mode from the exact conditional law?",
    (*cases(ENERGY, STEPS), TUNED),
    run,
)
