"""All methods of the field problem against the exact law: on every energy level, and against their cost."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

import casal
from casal.lab.experiment import (
    Array,
    Outcome,
    ResultTable,
    Tell,
    mean_and_error,
    mean_entry,
    runs,
    share,
    stamp,
    trust,
)
from casal.lab.field.ablations import dual_ablation, rho_ablation
from casal.lab.field.claims import claims
from casal.lab.field.setup import EXPECTED, STIFF, conditional, quantile_distance, sampling_floor, share_right
from casal.lab.tuning import Case, best, penalty_ramps

ENERGY = STIFF.energy
ENERGIES = tuple(EXPECTED)
TUNED = "penalty, tuned + projection"
STEPS = 1000
"""Score evaluations of the paper's run."""


class Scale(NamedTuple):
    """How much is run."""

    n: int  # chains of a run; the paper's number
    weighted: int  # chains of WeightedCASAL, whose quality depends on it
    seeds: int  # runs
    steps: int  # score evaluations
    tuning: int  # chains on which the penalty is tuned
    stride: int  # every how manyth setting of it is tried
    repeats: int  # seeds of the curves
    budgets: Sequence[int]  # score evaluations of the curves
    rho: tuple[int, Sequence[int]]  # chains and steps of the ablation of rho
    dual: tuple[Sequence[float], int]  # sizes and steps of the ablation of the dual


_SIZES = (0.0, 1.0, 5.0, 10.0, 20.0, 50.0, 100.0)
FULL = Scale(1000, 4000, 5, STEPS, 250, 1, 2, (100, 300, 1000, 3000), (4000, (1000, 5000)), (_SIZES, 10_000))
QUICK = Scale(200, 500, 2, 200, 50, 8, 1, (50, 200), (250, (100, 400)), ((0.0, 1.0), 2000))


def cases(steps: int) -> dict[str, Case]:
    """Every method at the same number of score evaluations; the settings do not depend on the energy."""
    ramp, eta, burn = casal.linear(*STIFF.rho), STIFF.dual_step, 0.1
    paper, scaled = STIFF.plain(steps), STIFF.preconditioned(steps)
    return {
        "unconstrained": (paper, casal.Unconstrained()),
        "final projection": (scaled, casal.FinalProjection()),
        "projected": (paper, casal.Projected(burn_in=burn)),
        "projected, preconditioned": (scaled, casal.Projected(burn_in=burn)),
        "penalty": (paper, casal.Penalty(0.5, burn_in=burn)),
        "primal-dual": (paper, casal.PrimalDual(eta)),
        "decoupled": (paper, casal.Decoupled(ramp, dual_step=eta)),
        "Algorithm 1": (paper, casal.CASAL.algorithm1(ramp)),
        "Algorithm 2": (paper, casal.CASAL.algorithm2(ramp)),
        "released code": (paper, casal.CASAL.released(ramp, eta, burn_in=burn)),
        "CASAL": (scaled, casal.CASAL(ramp, burn_in=burn)),
        "WeightedCASAL": (STIFF.preconditioned(steps, 0.2), casal.WeightedCASAL(400.0)),
    }


def penalties(steps: int) -> list[Case]:
    """Settings among which the penalty baseline is tuned: slow and fast ramps, small and large steps."""
    return penalty_ramps([STIFF.preconditioned(steps), STIFF.preconditioned(steps, 0.03)])


@stamp
def run(quick: bool, labels: Sequence[str] | None, tell: Tell) -> Outcome:
    """All methods on all levels, their cost curves and, unless single methods are asked for, both ablations."""
    scale = QUICK if quick else FULL
    chosen = [label for label in (*cases(scale.steps), TUNED) if labels is None or label in labels]
    tables, data = levels(scale, chosen, tell)
    curve_table, data["curves"] = curves(scale, chosen, tell)
    tables.append(curve_table)
    if labels is None:
        for table, found in (rho_ablation(*scale.rho, tell), dual_ablation(*scale.dual, tell)):
            tables.append(table)
            data |= found
    settings = {key: value for key, value in scale._asdict().items() if isinstance(value, int)}
    return Outcome("field", tables, claims(data) if labels is None else [], data, settings)


def levels(scale: Scale, labels: Sequence[str], tell: Tell) -> tuple[list[ResultTable], dict[str, Any]]:
    """A table for each level; data: rows, first coefficients, energies and decoded snapshots of the first seed."""
    tables = []
    data: dict[str, dict[Any, Any]] = {key: {} for key in ("rows", "first", "energies", "snapshots", "floors")}
    for energy in ENERGIES:
        every, sphere = cases(scale.steps), casal.Sphere(energy**0.5)
        tried = penalties(scale.steps)[:: scale.stride]
        if TUNED in labels:
            tell(f"|x|^2 = {energy:g}, tuning the penalty")
            every[TUNED] = best(tried, sphere, partial(_distance, energy), scale.tuning)
        rows = []
        for label in labels:
            tell(f"|x|^2 = {energy:g}, {label}")
            n = scale.weighted if label == "WeightedCASAL" else scale.n
            results = runs(every[label][0], sphere, every[label][1], n, range(scale.seeds))
            rows.append(_row(label, energy, results))
            data["first"][energy, label] = _first(results[0])
            if energy == ENERGY:
                data["energies"][label] = results[0].samples.double().square().sum(1).numpy()
                quartiles = results[0].samples[torch.argsort(results[0].samples[:, 0])[[n // 4, (3 * n) // 4]]]
                data["snapshots"][label] = STIFF.decoded(quartiles.double()).numpy()
        tables.append(_table(energy, rows, scale, len(tried)))
        data["rows"][energy] = rows
        data["floors"][energy] = sampling_floor(*conditional(STIFF, energy), scale.n)
    return tables, data


def _distance(energy: float, result: casal.SampleResult) -> float:
    return quantile_distance(_first(result), *conditional(STIFF, energy))


def _first(result: casal.SampleResult) -> Array:
    values: Array = result.samples[:, 0].double().numpy()
    return values


def _row(label: str, energy: float, results: Sequence[casal.SampleResult]) -> dict[str, Any]:
    grid, cdf = conditional(STIFF, energy)
    firsts = [_first(r) for r in results]
    pooled = np.concatenate(firsts)
    right, binomial = share(int((pooled > 0).sum()), len(pooled))
    squares = torch.cat([r.samples.double().square().sum(1) for r in results])
    return {
        "method": label,
        "n": len(firsts[0]),
        **mean_entry("w1", [quantile_distance(x, grid, cdf) for x in firsts]),
        "right": right,
        "right_se": max(binomial, mean_and_error([float((x > 0).mean()) for x in firsts])[1]),
        "energy": float(squares.mean()),
        "energy_sd": float(squares.std()),
        "violation": max(float(r.certificate.violation.max()) for r in results),
        "ancestors": float(np.mean([len(torch.unique(r.ancestors)) for r in results])),
        "seconds": float(np.mean([r.cost.seconds for r in results])),
        "fidelity": trust(results),
    }


def _table(energy: float, rows: Sequence[dict[str, Any]], scale: Scale, tried: int) -> ResultTable:
    law = conditional(STIFF, energy)
    exact = [
        {"method": "exact draws", "n": n, "w1": sampling_floor(*law, n), "right": share_right(STIFF, energy)}
        for n in sorted({row["n"] for row in rows})
    ]
    return ResultTable.of(
        f"Fields of energy {energy:g}: {scale.steps} score evaluations, {scale.seeds} seeds",
        "method | n: chains, d | w1: W1 of the first coefficient, .3f | right: share at x1 > 0, .4f | "
        "energy: mean energy, .2f | energy_sd: sd of it, .2f | violation: largest violation, .1e | ancestors, .0f | "
        "seconds, .2f | fidelity: verdict",
        [*rows, *exact],
        note="The last rows give the mean W1 of as many exact draws (the floor) and the exact share. The tuned "
        f"penalty is the best of {tried} ramps and step sizes, chosen on other chains against the exact law.",
    )


def curves(scale: Scale, labels: Sequence[str], tell: Tell) -> tuple[ResultTable, dict[str, Any]]:
    """W1 against score evaluations, every method with the same number of chains."""
    n, sphere = scale.n, casal.Sphere(ENERGY**0.5)
    rows: dict[str, dict[str, Any]] = {}
    for steps in scale.budgets:
        for label, (target, method) in cases(steps).items():
            if label in labels:
                tell(f"{label}, {steps} evaluations")
                found = [_distance(ENERGY, r) for r in runs(target, sphere, method, n, range(scale.repeats))]
                rows.setdefault(label, {"method": label}).update(mean_entry(str(steps), found))
    floor = sampling_floor(*conditional(STIFF, ENERGY), n)
    table = ResultTable.of(
        f"W1 of the first coefficient against score evaluations, energy {ENERGY:g}, {n} chains",
        ("method", *(f"{steps}, .3f" for steps in scale.budgets)),
        [*rows.values(), {"method": "exact draws", **{str(steps): floor for steps in scale.budgets}}],
        note=f"Mean over {scale.repeats} seeds; every run spends its whole schedule of rho on its evaluations.",
    )
    return table, {"rows": list(rows.values()), "budgets": list(scale.budgets), "floor": floor}
