"""All methods of the field problem against the exact law: on every energy level, and against their cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from casal.constraints import Sphere
from casal.lab.problems.base import (
    Array,
    Column,
    ResultTable,
    mean_and_error,
    quantile_distance,
    sampling_floor,
    share,
)
from casal.lab.problems.field_setup import STIFF, conditional, share_right
from casal.lab.problems.tuning import Case, best
from casal.methods import Method, WeightedCASAL
from casal.sampling import SampleResult, sample
from casal.targets import Target

Cases = Callable[[float, int], dict[str, tuple[Target, Method[Any]]]]


class Levels(NamedTuple):
    """What the comparison on all levels needs: makers of cases, labels, and how much is run."""

    cases: Cases
    penalties: Callable[[int], list[Case]]
    tuned: str
    energies: Sequence[float]
    n: int
    weighted: int
    seeds: int
    steps: int
    tuning: int
    stride: int


def levels(
    setting: Levels, labels: Sequence[str], tell: Callable[[str], None]
) -> tuple[list[ResultTable], dict[str, Any]]:
    """A table for each level; data: rows, first coefficients, energies and decoded snapshots of the first seed."""
    tables = []
    rows: dict[float, list[dict[str, Any]]] = {}
    first: dict[tuple[float, str], Array] = {}
    energies: dict[str, Array] = {}
    snapshots: dict[str, Array] = {}
    floors: dict[float, float] = {}
    for energy in setting.energies:
        every = setting.cases(energy, setting.steps)
        if setting.tuned in labels:
            tell(f"|x|^2 = {energy:g}, tuning the penalty")
            every[setting.tuned] = best(
                setting.penalties(setting.steps)[:: setting.stride],
                Sphere(energy**0.5),
                partial(_distance, energy),
                setting.tuning,
            )
        rows[energy] = []
        for label in labels:
            tell(f"|x|^2 = {energy:g}, {label}")
            target, method = every[label]
            n = setting.weighted if isinstance(method, WeightedCASAL) else setting.n
            results = [sample(target, Sphere(energy**0.5), method, n, seed=seed) for seed in range(setting.seeds)]
            rows[energy].append(_row(label, energy, results))
            first[energy, label] = _first(results[0])
            if energy == setting.energies[0]:
                energies[label] = results[0].samples.double().square().sum(1).numpy()
                snapshots[label] = _quartiles(results[0])
        tables.append(_table(energy, rows[energy], setting))
        floors[energy] = sampling_floor(*conditional(STIFF, energy), setting.n)
    data = {"rows": rows, "first": first, "energies": energies, "snapshots": snapshots, "floors": floors}
    return tables, data


def _distance(energy: float, result: SampleResult) -> float:
    return quantile_distance(_first(result), *conditional(STIFF, energy))


def _quartiles(result: SampleResult) -> Array:
    """The decoded samples at the lower and the upper quartile of the first coefficient."""
    order, n = torch.argsort(result.samples[:, 0]), len(result.samples)
    fields: Array = STIFF.decoded(result.samples[order[[n // 4, (3 * n) // 4]]].double()).numpy()
    return fields


def _first(result: SampleResult) -> Array:
    values: Array = result.samples[:, 0].double().numpy()
    return values


def _row(label: str, energy: float, results: Sequence[SampleResult]) -> dict[str, Any]:
    grid, cdf = conditional(STIFF, energy)
    firsts = [_first(r) for r in results]
    w1, w1_se = mean_and_error([quantile_distance(x, grid, cdf) for x in firsts])
    pooled = np.concatenate(firsts)
    right, binomial = share(int((pooled > 0).sum()), len(pooled))
    right_se = max(binomial, mean_and_error([float((x > 0).mean()) for x in firsts])[1])
    squares = torch.cat([r.samples.double().square().sum(1) for r in results])
    return {
        "method": label,
        "n": len(firsts[0]),
        "w1": w1,
        "w1_se": w1_se,
        "right": right,
        "right_se": right_se,
        "energy": float(squares.mean()),
        "energy_sd": float(squares.std()),
        "violation": max(float(r.certificate.violation.max()) for r in results),
        "ancestors": float(np.mean([len(torch.unique(r.ancestors)) for r in results])),
        "seconds": float(np.mean([r.cost.seconds for r in results])),
    }


def _table(energy: float, rows: Sequence[dict[str, Any]], setting: Levels) -> ResultTable:
    law = conditional(STIFF, energy)
    exact = [
        {"method": "exact draws", "n": n, "w1": sampling_floor(*law, n), "right": share_right(STIFF, energy)}
        for n in sorted({row["n"] for row in rows})
    ]
    tried = len(setting.penalties(setting.steps)[:: setting.stride])
    return ResultTable(
        f"Fields of energy {energy:g}: {setting.steps} score evaluations, {setting.seeds} seeds",
        (
            Column("method", "method"),
            Column("n", "chains", "d"),
            Column("w1", "W1 of the first coefficient", ".3f"),
            Column("right", "share at x1 > 0", ".4f"),
            Column("energy", "mean energy", ".2f"),
            Column("energy_sd", "sd of it", ".2f"),
            Column("violation", "largest violation", ".1e"),
            Column("ancestors", "ancestors", ".0f"),
            Column("seconds", "seconds", ".2f"),
        ),
        [*rows, *exact],
        note="The last rows give the mean W1 of as many exact draws (the floor) and the exact share. The tuned "
        "penalty is "
        f"the best of {tried} ramps and step sizes, chosen on other chains against the exact law.",
    )


def curves(
    cases: Cases,
    labels: Sequence[str],
    energy: float,
    n: int,
    seeds: int,
    budgets: Sequence[int],
    tell: Callable[[str], None],
) -> tuple[ResultTable, dict[str, Any]]:
    """W1 against score evaluations, every method with the same number of chains."""
    law, sphere = conditional(STIFF, energy), Sphere(energy**0.5)
    rows: dict[str, dict[str, Any]] = {}
    for steps in budgets:
        for label, (target, method) in cases(energy, steps).items():
            if label in labels:
                tell(f"{label}, {steps} evaluations")
                results = [sample(target, sphere, method, n, seed=seed) for seed in range(seeds)]
                w1, error = mean_and_error([_distance(energy, result) for result in results])
                rows.setdefault(label, {"method": label}).update({str(steps): w1, f"{steps}_se": error})
    floor = sampling_floor(*law, n)
    table = ResultTable(
        f"W1 of the first coefficient against score evaluations, energy {energy:g}, {n} chains",
        (Column("method", "method"), *(Column(str(steps), f"{steps}", ".3f") for steps in budgets)),
        [*rows.values(), {"method": "exact draws", **{str(steps): floor for steps in budgets}}],
        note=f"Mean over {seeds} seeds; every run spends its whole schedule of rho on its evaluations.",
    )
    return table, {"rows": list(rows.values()), "budgets": list(budgets), "floor": floor}
