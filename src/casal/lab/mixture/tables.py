"""The tables of the mixture experiment, and the verdicts read off them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from casal import Sphere, Target, Unconstrained
from casal.lab.experiment import FAILS, HOLDS, PARTLY, Claim, ResultTable, columns, mean_and_error, runs, with_error
from casal.lab.laws.three_modes import MIXTURE

Rows = Sequence[Mapping[str, Any]]

PRINTED = ("Algorithm 1", "Algorithm 2")
"""What the paper prints."""


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
    return ResultTable(
        f"Mode weights on the {name}: total variation",
        columns("method", *(f"{family}, .3f" for family in families)),
        lines,
        note=f"Exact draws: {floor['tv']:.3f}. A dash: the method is not made for that family, or is its default.",
    )


def detail(name: str, rows: Rows, floor: Mapping[str, float], size: str) -> ResultTable:
    """One row for each family and method."""
    exact = {"family": "exact draws", "method": "", "tv": floor["tv"], "sliced": floor["sliced"]}
    return ResultTable(
        f"All figures on the {name}: {size}",
        columns(
            "family | method | tv: TV of mode weights, .3f | gain: TV minus that of one final projection, +.3f | "
            "sliced: sliced W1, .3f | feasible, .1% | violation: largest violation, .0e | "
            "evaluations: score evaluations, .0f | setting"
        ),
        [*rows, exact],
        note="± is one standard error over seeds; differences are between runs with the same seed. Feasible: violation "
        "at most 1e-8. Settings are the best by TV + sliced W1 on validation chains; those that the library refuses or "
        "that lose a chain are out.",
    )


def models(targets: Mapping[str, Target], n: int, seeds: int) -> ResultTable:
    """What each family gives without a constraint: its own error, before any method adds one."""
    rows = []
    for family, target in targets.items():
        results = runs(target, Sphere(1.0), Unconstrained(), n, range(seeds))
        tv = mean_and_error([MIXTURE.total_variation(r.samples, MIXTURE.weights) for r in results])
        evaluations = results[0].cost.score_evaluations
        rows.append({"family": family, **with_error("tv", *tv), "evaluations": evaluations})
    return ResultTable(
        "Without a constraint: total variation to the weights of the mixture itself",
        columns("family | tv: TV of mode weights, .3f | evaluations: score evaluations, .0f"),
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
