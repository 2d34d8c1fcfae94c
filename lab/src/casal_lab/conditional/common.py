"""What the cases of the conditional experiment share: runs over seeds, rows of figures, verdicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from casal import (
    ECI,
    PCFM,
    Constraint,
    FinalProjection,
    Projected,
    ProjectRenoise,
    SampleResult,
    SplitGibbs,
    Target,
)
from casal.methods import systematic
from casal_lab.experiment import AnyMethod, Claim, Tell, reached
from casal_lab.study import SETTINGS, Scale, mean_entry, require, runs, trust, tuned
from casal_lab.twisted import Twisted

SIGMA = 0.02
"""The last noise level of the weighted methods; rho = 1 / SIGMA^2."""

LADDER = {False: (40, 30), True: (12, 8)}
"""Rungs of SplitGibbs and of Twisted, in a full and in a quick run."""

COST = "feasible, .1% | violation: largest violation, .0e | evaluations: score evaluations, .0f | fidelity: verdict"
HEALTH = f"ess: least ESS, .0f | ancestors, .0f | {COST}"
"""The columns that the tables of all cases have."""

PLAIN: dict[str, AnyMethod] = {"final projection": FinalProjection(), "projected": Projected()}
"""The baselines of every case."""

UNTUNED: dict[str, AnyMethod] = {
    "PCFM": PCFM(),
    "ECI": ECI(mixing=5, resample=5),
    "predict-project-renoise": ProjectRenoise(),
}
"""The peers where they are not tuned."""

FULL = Scale(4000, 5, 500, 200, 1)
QUICK = Scale(400, 2, 100, 50, 10)
"""For networks that are exact and cheap: mixtures and Gaussians."""


class Dot(NamedTuple):
    """One mark of the picture of all cases: a distance in units of its floor."""

    case: str
    method: str
    ratio: float


def compare(
    name: str,
    target: Target,
    constraint: Constraint,
    methods: Mapping[str, AnyMethod],
    labels: Sequence[str],  # of ``tuning.SETTINGS``
    loss: Callable[[SampleResult], float],
    scale: Scale,
    tell: Tell,
) -> dict[str, tuple[str, list[SampleResult]]]:
    """Runs of each method, and of each of the labels with its best setting: (setting, runs)."""
    found: dict[str, tuple[str, list[SampleResult]]] = {}
    for label, method in methods.items():
        tell(f"{name}: {label}")
        found[label] = "", runs(target, constraint, method, scale.n, range(scale.seeds))
    for label in labels:
        tell(f"{name}: {label}")
        (setting, _), results = require(tuned(SETTINGS[label], target, constraint, loss, scale))
        found[label] = setting, results
    return found


def weighted(quick: bool) -> dict[str, AnyMethod]:
    """The two engines for distributions with exact or small networks, as they come; with fewer rungs if ``quick``."""
    levels, moves = LADDER[quick]
    return {
        "SplitGibbs, gibbs": SplitGibbs(SIGMA, levels=levels, moves="gibbs"),
        "SplitGibbs, metropolis": SplitGibbs(SIGMA, levels=levels, moves="metropolis", inner_steps=20),
        "Twisted": Twisted(SIGMA**-2, moves=moves),
    }


def figures(label: str, results: Sequence[SampleResult], **distances: Sequence[float]) -> dict[str, Any]:
    """A row: each distance with its standard error over seeds, then the columns of HEALTH."""
    row: dict[str, Any] = {"method": label}
    for key, values in distances.items():
        row |= mean_entry(key, values)
    if "ess" in results[0].trace:
        row["ess"] = float(np.mean([float(r.trace["ess"].min()) for r in results]))
        row["ancestors"] = float(np.mean([len(torch.unique(r.ancestors)) for r in results]))
    row["feasible"] = float(np.mean([float(r.certificate.feasible.double().mean()) for r in results]))
    row["violation"] = max(float(r.certificate.violation.max()) for r in results)
    row["evaluations"] = results[0].cost.score_evaluations
    row["fidelity"] = trust(results)
    return row


def equally_weighted(result: SampleResult, values: Tensor) -> Tensor:
    """Values of the chains (n, ...), drawn anew by their weights."""
    return values[systematic(result.weights, torch.Generator().manual_seed(0))]


def at_most(text: str, value: float, limit: float, style: str = ".3f") -> Claim:
    """A target from above, and whether it is met."""
    flips = f"a figure {'above' if value <= limit else 'of at most'} {limit:g} in a full run"
    return Claim(text, f"at most {limit:g}", format(value, style), reached(value <= limit), flips=flips)


def at_least(text: str, value: float, limit: float, style: str = ".0f") -> Claim:
    """A target from below."""
    flips = f"a figure {'below' if value >= limit else 'of at least'} {limit:g} in a full run"
    return Claim(text, f"at least {limit:g}", format(value, style), reached(value >= limit), flips=flips)


def between(text: str, value: float, low: float, high: float) -> Claim:
    """A target from both sides."""
    inside = low <= value <= high
    flips = f"a figure {'outside of' if inside else 'within'} {low:g} to {high:g} in a full run"
    return Claim(text, f"{low:g} to {high:g}", f"{value:.3f}", reached(inside), flips=flips)


def within(text: str, value: float, centre: float, slack: float) -> Claim:
    """A target with a tolerance."""
    close = abs(value - centre) <= slack
    flips = f"a figure {'farther than' if close else 'within'} {slack:g} from {centre:g} in a full run"
    return Claim(text, f"{centre:.2f} ± {slack:.2f}", f"{value:.3f}", reached(close), flips=flips)


def dots(case: str, rows: Sequence[Mapping[str, Any]], key: str, floor: float) -> list[Dot]:
    """Distances of the rows that have one, over their floor."""
    return [Dot(case, row["method"], row[key] / floor) for row in rows if key in row]
