"""Every method on every family and set: the settings it is tuned over, its runs, tables and verdicts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import casal
from casal.errors import DivergedError, SettingError
from casal.lab.experiment import FAILS, HOLDS, PARTLY, Claim, Outcome, ResultTable, Tell, mean_entry, runs, stamp, trust
from casal.lab.laws.families import FAMILIES
from casal.lab.laws.three_modes import CASES, MIXTURE, SetCase
from casal.lab.mixture.motions import onto_the_circle
from casal.lab.tuning import SETTINGS, Named, Scale, tuned

Rows = Sequence[Mapping[str, Any]]

PRINTED = ("Algorithm 1", "Algorithm 2")
"""What the paper prints."""


class Entry(NamedTuple):
    """A method of the comparison: the settings it is tuned over, and the tables it is meant for."""

    settings: Sequence[Named]
    applies: Callable[[casal.Table], bool] = lambda table: True


FULL = Scale(4000, 5, 1000, 250, 1)
QUICK = Scale(500, 2, 200, 50, 5)


def _noisy(table: casal.Table) -> bool:
    return table.alpha is not None


def _random(table: casal.Table) -> bool:
    return _noisy(table) and bool(table.s.any())


METHODS: dict[str, Entry] = {
    "final projection": Entry([("", casal.FinalProjection())]),
    "projected": Entry([("", casal.Projected())]),
    "penalty, tuned + projection": Entry(SETTINGS["penalty, tuned + projection"]),
    "DPS, tuned + projection": Entry(SETTINGS["DPS, tuned + projection"], _noisy),
    "Algorithm 1": Entry(SETTINGS["Algorithm 1"]),
    "Algorithm 2": Entry(SETTINGS["Algorithm 2"]),
    "CASAL": Entry(SETTINGS["CASAL"]),
    "CASAL, denoised": Entry(SETTINGS["CASAL, denoised"], _random),  # without noise it is the default
    "WeightedCASAL": Entry([("top rho = 400", casal.WeightedCASAL(400.0))], lambda table: table.static),
    "SplitGibbs": Entry([("sigma = 0.02", casal.SplitGibbs(0.02))], _noisy),
    "Twisted": Entry([("rho = 2500", casal.Twisted(2500.0))], _random),
}
"""A new sampler joins by a line here; what the library refuses is shown as refused."""


def run_best(
    entry: Entry, target: casal.Target, case: SetCase, scale: Scale
) -> tuple[Sequence[casal.SampleResult], dict[str, Any]]:
    """A result a seed with the best setting on validation chains, and its name with why others are out.

    If all are out there is no result but a verdict: refused before the first step, or all that were let in diverged.
    """
    found, left = tuned(entry.settings, target, case.constraint, lambda result: case.loss(result.samples), scale)
    out = [(name, _reason(error)) for (name, _), error in left]
    if found:
        last = f"{len(out)} out, last {': '.join(out[-1])}" if out else ""
        return found[1], {"setting": "; ".join(part for part in (found[0][0], last) if part)}
    reasons = {why for _, why in out}
    told = f"all {len(out)} out: {out[0][1]}" if len(reasons) == 1 else "all out: " + "; ".join(map(": ".join, out))
    verdict = "diverged" if all(why.startswith("diverged") for why in reasons) else "refused"
    return (), {"setting": told, "verdict": verdict}


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
                    results, told = run_best(entry, target, case, scale)
                    row = {"family": family, "method": label, **told}
                    if results:
                        values = [case.total_variation(r.samples) for r in results]
                        plain = values if label == "final projection" else plain
                        row |= _numbers(case, results, values, plain)
                        points[name, family, label] = results[0].samples.numpy()
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
    motions = [onto_the_circle(scale.n // 2)] if labels is None else []
    return Outcome("mixture", tables, verdicts, data, settings, motions=motions)


def _numbers(
    case: SetCase, results: Sequence[casal.SampleResult], values: Sequence[float], plain: Sequence[float] | None
) -> dict[str, Any]:
    numbers = mean_entry("tv", values)
    numbers |= mean_entry("sliced", [case.sliced(r.samples) for r in results])
    if plain is not None and plain is not values:
        numbers |= mean_entry("gain", np.subtract(values, plain))
    return {
        **numbers,
        "feasible": float(np.mean([float(r.certificate.feasible.double().mean()) for r in results])),
        "violation": max(float(r.certificate.violation.max()) for r in results),
        "evaluations": results[0].cost.score_evaluations,
        "seconds": float(np.mean([r.cost.seconds for r in results])),
        "fidelity": trust(results),
    }


def matrix(
    name: str, rows: Rows, floor: Mapping[str, float], families: Sequence[str], methods: Sequence[str]
) -> ResultTable:
    """Family x method: total variation of the mode weights."""
    cells = {(row["family"], row["method"]): row for row in rows}
    lines = []
    for method in methods:
        line: dict[str, Any] = {"method": method}
        for family in families:
            row = cells.get((family, method))
            if row is not None:
                line[family] = row.get("tv", row.get("verdict"))
                line[f"{family}_se"] = row.get("tv_se")
        lines.append(line)
    return ResultTable.of(
        f"Mode weights on the {name}: total variation",
        ("method", *(f"{family}, .3f" for family in families)),
        lines,
        note=f"Exact draws: {floor['tv']:.3f}. A dash: the method is not made for that family, or is its default.",
    )


def detail(name: str, rows: Rows, floor: Mapping[str, float], size: str) -> ResultTable:
    """One row for each family and method."""
    exact = {"family": "exact draws", "method": "", "tv": floor["tv"], "sliced": floor["sliced"]}
    return ResultTable.of(
        f"All figures on the {name}: {size}",
        "family | method | tv: TV of mode weights, .3f | gain: TV minus that of one final projection, +.3f | "
        "sliced: sliced W1, .3f | feasible, .1% | violation: largest violation, .0e | "
        "evaluations: score evaluations, .0f | fidelity: verdict | setting",
        [*rows, exact],
        note="± is one standard error over seeds; differences are between runs with the same seed. Feasible: violation "
        "at most 1e-8. Settings are the best by TV + sliced W1 on validation chains; those that the library refuses or "
        "that lose a chain are out.",
    )


def models(targets: Mapping[str, casal.Target], n: int, seeds: int) -> ResultTable:
    """What each family gives without a constraint: its own error, before any method adds one."""
    rows = []
    for family, target in targets.items():
        results = runs(target, casal.Sphere(1.0), casal.Unconstrained(), n, range(seeds))
        tv = [MIXTURE.total_variation(r.samples, MIXTURE.weights) for r in results]
        evaluations = results[0].cost.score_evaluations
        rows.append({"family": family, **mean_entry("tv", tv), "evaluations": evaluations})
    return ResultTable.of(
        "Without a constraint: total variation to the weights of the mixture itself",
        "family | tv: TV of mode weights, .3f | evaluations: score evaluations, .0f",
        rows,
        note="Langevin chains start as draws of the mixture; all others start as noise.",
    )


def claims(rows: Mapping[str, Rows], floors: Mapping[str, Mapping[str, float]]) -> list[Claim]:
    """What the printed algorithms promise, counted over all families and sets."""
    out = []
    for label in PRINTED:
        every = [(name, row) for name, found in rows.items() for row in found if row["method"] == label]
        ran = [(name, row) for name, row in every if "tv" in row]
        feasible = sum(row["feasible"] == 1.0 for _, row in ran)
        better = sum(row["gain"] < -2 * row["gain_se"] for _, row in ran if "gain" in row)
        exact = sum(row["tv"] < floors[name]["tv"] + 2 * row["tv_se"] for name, row in ran)
        counts = (
            ("gives samples on every family", len(ran), len(every)),
            ("every sample is feasible", feasible, len(ran)),
            ("nearer to the right mode weights than one final projection", better, len(ran)),
            ("samples the constrained law: mode weights as good as exact draws", exact, len(ran)),
        )
        for text, count, of in counts:
            holds = HOLDS if count == of else PARTLY if count > 0 else FAILS
            out.append(Claim(f"{label}: {text}", f"{of} of {of} (family, set) pairs", f"{count} of {of}", holds))
    return out
