"""Every method on every family and set: the settings it is tuned over, its runs, its distances to the exact law."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from casal import FinalProjection, Projected, SampleResult, SplitGibbs, Table, Target, Twisted, WeightedCASAL, sample
from casal.errors import DivergedError, SettingError
from casal.lab.experiment import AnyMethod, Outcome, Tell, mean_and_error, runs, stamp, with_error
from casal.lab.laws.families import FAMILIES
from casal.lab.laws.three_modes import CASES, MIXTURE, SetCase
from casal.lab.mixture.tables import PRINTED, claims, detail, matrix, models
from casal.lab.tuning import SETTINGS, VALIDATION_SEED, tuned


class Entry(NamedTuple):
    """A method of the comparison: the settings it is tuned over, and the tables it is meant for."""

    settings: Sequence[tuple[str, AnyMethod]]
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


def _noisy(table: Table) -> bool:
    return table.alpha is not None


def _random(table: Table) -> bool:
    return _noisy(table) and bool(table.s.any())


METHODS: dict[str, Entry] = {
    "final projection": Entry([("", FinalProjection())]),
    "projected": Entry([("", Projected())]),
    "penalty, tuned + projection": Entry(SETTINGS["penalty, tuned + projection"]),
    "DPS, tuned + projection": Entry(SETTINGS["DPS, tuned + projection"], _noisy),
    "Algorithm 1": Entry(SETTINGS["Algorithm 1"]),
    "Algorithm 2": Entry(SETTINGS["Algorithm 2"]),
    "CASAL": Entry(SETTINGS["CASAL"]),
    "CASAL, denoised": Entry(SETTINGS["CASAL, denoised"], _random),  # without noise it is the default
    "WeightedCASAL": Entry([("top rho = 400", WeightedCASAL(400.0))], lambda table: table.static),
    "SplitGibbs": Entry([("sigma = 0.02, 400 more evaluations", SplitGibbs(0.02))], _noisy),
    "Twisted": Entry([("rho = 2500, 300 more evaluations", Twisted(2500.0))], _random),
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
    """Run the setting with the smallest loss on validation chains."""

    def loss(setting: tuple[str, AnyMethod]) -> float:
        return case.loss(sample(target, case.constraint, setting[1], scale.tuning, seed=VALIDATION_SEED).samples)

    def run(setting: tuple[str, AnyMethod]) -> list[SampleResult]:
        return runs(target, case.constraint, setting[1], scale.n, range(scale.seeds))

    found, out = tuned(entry.settings[:: scale.stride], loss, run)
    (name, _), results = found or (("", None), ())
    return Runs(results, name, [(left, _reason(error)) for (left, _), error in out])


def _reason(error: SettingError | DivergedError) -> str:
    if isinstance(error, DivergedError):
        return f"diverged at step {error.step}"
    number = re.search(r"tau rho \|A\|\^2 = (\S+) > 1", str(error))
    return f"tau rho = {number[1]} > 1" if number else str(error).partition(",")[0]


@stamp
def run(quick: bool, labels: Sequence[str] | None, tell: Tell) -> Outcome:
    """Every method on every family and set; total variation of the mode weights over several seeds."""
    scale = QUICK if quick else FULL
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
    verdicts = claims(rows, floors) if labels is None or set(PRINTED) & set(labels) else []
    settings = {**scale._asdict(), "settings": {label: len(e.settings) for label, e in entries.items()}}
    return Outcome("mixture", tables, verdicts, data, settings)


def _numbers(
    case: SetCase, results: Sequence[SampleResult], values: Sequence[float], plain: Sequence[float] | None
) -> dict[str, Any]:
    numbers = with_error("tv", *mean_and_error(values))
    numbers |= with_error("sliced", *mean_and_error([case.sliced(r.samples) for r in results]))
    if plain is not None and plain is not values:
        numbers |= with_error("gain", *mean_and_error(np.subtract(values, plain)))
    return {
        **numbers,
        "feasible": float(np.mean([float(r.certificate.feasible.double().mean()) for r in results])),
        "violation": max(float(r.certificate.violation.max()) for r in results),
        "evaluations": results[0].cost.score_evaluations,
        "seconds": float(np.mean([r.cost.seconds for r in results])),
    }
