"""A mixture in the plane, every model family, four sets: do the methods give each mode its right weight?

The networks are exact, so all that is wrong in a sample is the sampler's. Each family gets the same number of score
evaluations. Methods with settings are tuned on validation chains against the exact law, which flatters them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Any, NamedTuple

import numpy as np
import torch

from casal import __version__
from casal.errors import DivergedError, SettingError
from casal.lab.problems.base import Claim, Experiment, Outcome, mean_and_error
from casal.lab.problems.mixture_cases import CASES, MIXTURE, SetCase
from casal.lab.problems.mixture_families import FAMILIES
from casal.lab.problems.mixture_tables import PRINTED, claims, detail, matrix, models
from casal.lab.problems.tuning import VALIDATION_SEED
from casal.methods import (
    CASAL,
    DPS,
    FinalProjection,
    Method,
    Penalty,
    Projected,
    SplitGibbs,
    Twisted,
    WeightedCASAL,
)
from casal.sampling import SampleResult, sample
from casal.schedules import Schedule, constant_gain, geometric, inverse_variance, linear
from casal.targets import Table, Target

Setting = tuple[str, Method[Any]]


class Entry(NamedTuple):
    """A method of the comparison: the settings it is tuned over, and the tables it is meant for."""

    settings: Sequence[Setting]
    applies: Callable[[Table], bool] = lambda table: True


class Scale(NamedTuple):
    """How much is run: chains, seeds, chains for tuning, score evaluations, and every how manyth setting."""

    n: int
    seeds: int
    tuning: int
    evaluations: int
    stride: int


FULL = Scale(4000, 5, 1000, 250, 1)
QUICK = Scale(500, 2, 200, 50, 5)


def _couplings(factors: Sequence[float], gains: Sequence[float], others: Mapping[str, Schedule]) -> dict[str, Any]:
    fixed: dict[str, Any] = {f"rho = {rho:g}": rho for rho in factors}
    return {**fixed, **{f"b rho = {gain:g}": constant_gain(gain) for gain in gains}, **others}


_PRINTED = _couplings((1.0, 10.0, 100.0), (0.1, 1.0, 2.0), {"rho = 2 to 20": linear(2.0, 20.0)})
_REPAIRED = _couplings((1.0, 10.0, 100.0), (0.003, 0.01, 0.1, 1.0), {})
_NOISE = {f"rho = {c:g} alpha^2 / sigma^2": inverse_variance(c) for c in (0.01, 0.1)}

_WEIGHTS: dict[str, Any] = {
    **{f"weight {w:g}": w for w in (0.1, 1.0, 10.0, 60.0)},
    **{f"weight {lo:g} to {hi:g}": geometric(lo, hi) for lo, hi in ((0.01, 1.0), (0.1, 10.0), (1.0, 100.0))},
    **{f"b weight = {gain:g}": constant_gain(gain) for gain in (0.003, 0.01, 0.03, 0.1, 0.3)},
}
_GUIDES: dict[str, Any] = {
    **{f"weight {w:g}": w for w in (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)},
    **{f"b weight = {gain:g}": constant_gain(gain) for gain in (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)},
    **{f"weight {c:g} alpha^2 / sigma^2": inverse_variance(c) for c in (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)},
}


def _noisy(table: Table) -> bool:
    return table.alpha is not None


METHODS: dict[str, Entry] = {
    "final projection": Entry([("", FinalProjection())]),
    "projected": Entry([("", Projected())]),
    "penalty, tuned + projection": Entry(
        [
            (f"{name}, off for {burn:.0%}", FinalProjection(Penalty(weight, burn_in=burn)))
            for name, weight in _WEIGHTS.items()
            for burn in (0.0, 0.35, 0.6)
        ]
    ),
    "DPS, tuned + projection": Entry(
        [(name, FinalProjection(DPS(weight))) for name, weight in _GUIDES.items()], _noisy
    ),
    "Algorithm 1": Entry([(name, CASAL.algorithm1(rho)) for name, rho in _PRINTED.items()]),
    "Algorithm 2": Entry([(name, CASAL.algorithm2(rho)) for name, rho in _PRINTED.items()]),
    "CASAL": Entry([(name, CASAL(rho)) for name, rho in _REPAIRED.items()]),
    "CASAL, denoised": Entry(
        [(name, CASAL(rho, couple="denoised")) for name, rho in {**_REPAIRED, **_NOISE}.items()],
        lambda table: _noisy(table) and bool(table.s.any()),  # without noise it is the default
    ),
    "WeightedCASAL": Entry([("top rho = 400", WeightedCASAL(400.0))], lambda table: table.static),
    "SplitGibbs": Entry([("sigma = 0.02, 400 more evaluations", SplitGibbs(0.02))], _noisy),
    "Twisted": Entry(
        [("rho = 2500, 300 more evaluations", Twisted(2500.0))], lambda table: _noisy(table) and bool(table.s.any())
    ),
}
"""A new sampler joins by a line here; what the library refuses is shown as refused."""


class Runs(NamedTuple):
    """One result a seed with the best setting (none if all are out), its name, and why others are out."""

    results: Sequence[SampleResult]
    setting: str
    out: Sequence[tuple[str, str]]

    @property
    def verdict(self) -> str:
        """Why there is no result: refused before the first step, or all settings that were let in diverged."""
        return "diverged" if all(why.startswith("diverged") for _, why in self.out) else "refused"

    def __str__(self) -> str:
        if self.results:
            last = f"{len(self.out)} out, last {': '.join(self.out[-1])}" if self.out else ""
            return "; ".join(part for part in (self.setting, last) if part)
        if len({why for _, why in self.out}) == 1:
            return f"all {len(self.out)} out: {self.out[0][1]}"
        return "all out: " + "; ".join(": ".join(pair) for pair in self.out)


def tuned_runs(entry: Entry, target: Target, case: SetCase, scale: Scale) -> Runs:
    """Run the setting with the smallest loss on validation chains.

    Settings that the library refuses are out, and so are those that lose a chain, on validation or later.
    """
    settings = entry.settings[:: scale.stride]
    scored: list[tuple[float, int]] = []
    out: list[tuple[str, str]] = []
    for k, (name, method) in enumerate(settings):
        try:
            z = sample(target, case.constraint, method, scale.tuning, seed=VALIDATION_SEED).samples
            scored.append((case.loss(z), k))
        except (SettingError, DivergedError) as error:
            out.append((name, _reason(error)))
    for _, k in sorted(scored):
        name, method = settings[k]
        try:
            results = [sample(target, case.constraint, method, scale.n, seed=seed) for seed in range(scale.seeds)]
            return Runs(results, name, out)
        except DivergedError as error:
            out.append((name, _reason(error)))
    return Runs((), "", out)


def _reason(error: SettingError | DivergedError) -> str:
    if isinstance(error, DivergedError):
        return f"diverged at step {error.step}"
    number = re.search(r"tau rho \|A\|\^2 = (\S+) > 1", str(error))
    return f"tau rho = {number[1]} > 1" if number else str(error).partition(",")[0]


def run(quick: bool, labels: Sequence[str] | None, tell: Callable[[str], None]) -> Outcome:
    """Every method on every family and set; total variation of the mode weights over several seeds."""
    began, scale = time.perf_counter(), QUICK if quick else FULL
    targets = {family: make(MIXTURE, scale.evaluations) for family, make in FAMILIES.items()}
    entries = {label: entry for label, entry in METHODS.items() if labels is None or label in labels}
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in CASES}
    points: dict[tuple[str, str, str], Any] = {}
    for name, case in CASES.items():
        for family, target in targets.items():
            plain: Sequence[float] | None = None
            for label, entry in entries.items():
                if entry.applies(target.table):
                    tell(f"{name}, {family}, {label}")
                    runs = tuned_runs(entry, target, case, scale)
                    row = {"family": family, "method": label, "setting": str(runs)}
                    if runs.results:
                        values = [case.total_variation(r.samples) for r in runs.results]
                        plain = values if label == "final projection" else plain
                        row |= _numbers(case, runs.results, values, plain)
                        points[name, family, label] = runs.results[0].samples.numpy()
                    else:
                        row["verdict"] = runs.verdict
                    rows[name].append(row)
    floors = {name: case.floor(scale.n, 20 if quick else 100) for name, case in CASES.items()}
    tables = [
        *(matrix(name, rows[name], floors[name], list(FAMILIES), list(entries)) for name in CASES),
        models(targets, scale.n, scale.seeds),
        *(detail(name, rows[name], floors[name], f"{scale.n} chains, {scale.seeds} seeds") for name in CASES),
    ]
    data = {"rows": rows, "floors": floors, "points": points, "methods": list(entries), "families": list(FAMILIES)}
    verdicts: list[Claim] = claims(rows, floors) if labels is None or set(PRINTED) & set(labels) else []
    made = {"date": date.today().isoformat(), "casal": __version__, "torch": str(torch.__version__)}
    settings = {**made, **scale._asdict(), "settings": {label: len(e.settings) for label, e in entries.items()}}
    return Outcome("mixture", tables, verdicts, data, settings, time.perf_counter() - began)


def _numbers(
    case: SetCase, results: Sequence[SampleResult], values: Sequence[float], plain: Sequence[float] | None
) -> dict[str, Any]:
    tv, tv_se = mean_and_error(values)
    sliced, sliced_se = mean_and_error([case.sliced(r.samples) for r in results])
    numbers: dict[str, Any] = {"tv": tv, "tv_se": tv_se, "sliced": sliced, "sliced_se": sliced_se}
    if plain is not None and plain is not values:
        numbers["gain"], numbers["gain_se"] = mean_and_error(np.subtract(values, plain).tolist())
    return {
        **numbers,
        "feasible": float(np.mean([float(r.certificate.feasible.double().mean()) for r in results])),
        "violation": max(float(r.certificate.violation.max()) for r in results),
        "evaluations": results[0].cost.score_evaluations,
        "seconds": float(np.mean([r.cost.seconds for r in results])),
    }


EXPERIMENT = Experiment(
    "mixture",
    "With an exact model of every family, which methods give the modes of a mixture their right weight on a set?",
    tuple(METHODS),
    run,
)
