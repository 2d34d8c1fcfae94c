"""All methods of the field problem against the exact distribution: every setting, every energy, and the cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch

import casal
from casal_lab.experiment import AnyMethod, Array, Outcome, ResultTable, Tell, stamp
from casal_lab.field.ablations import dual_ablation, rho_ablation
from casal_lab.field.claims import claims
from casal_lab.field.cost import seconds_table, tightening_study
from casal_lab.field.setup import MIXED, NARROW, OURS, SCRIPT, TEXT, WIDE, Means
from casal_lab.first_release import FirstRelease
from casal_lab.problems.field import EXPECTED, STIFF, conditional, quantile_distance, sampling_floor, share_right
from casal_lab.study import Case, best, mean_and_error, mean_entry, penalty_ramps, runs, share, trust

ENERGY = STIFF.energy
ENERGIES = tuple(EXPECTED)
PRECONDITIONED = ", preconditioned"
LARGE = "WeightedCASAL, preconditioned, 4000 chains"
TOP = 400.0
"""rho at the top of the ladder of WeightedCASAL."""


class Scale(NamedTuple):
    """How much is run."""

    n: int  # chains of a run; the paper's number
    weighted: int  # chains of one more row of WeightedCASAL, whose quality depends on it
    seeds: int  # runs
    shorter: int  # by how much all runs are shortened
    tuning: int  # chains on which baselines are tuned
    stride: int  # every how manyth setting of them is tried
    budgets: Sequence[int]  # score evaluations of the curves
    rho: tuple[int, Sequence[int]]  # chains and steps of the ablation of rho
    dual: tuple[Sequence[float], int]  # sizes and steps of the ablation of the dual
    tight: tuple[int, int, int]  # chains, steps and seeds of the study of approximate projections
    rounds: int  # of the comparison of seconds


_SIZES = (0.0, 1.0, 5.0, 10.0, 20.0, 50.0, 100.0)
FULL = Scale(
    n=1000,
    weighted=4000,
    seeds=3,
    shorter=1,
    tuning=250,
    stride=1,
    budgets=(100, 300, 1000, 3000, 10_000),
    rho=(1000, (1000, 5000)),
    dual=(_SIZES, 10_000),
    tight=(300, 300, 3),
    rounds=7,
)
QUICK = Scale(
    n=200,
    weighted=500,
    seeds=2,
    shorter=25,
    tuning=50,
    stride=14,
    budgets=(50, 200),
    rho=(250, (100, 400)),
    dual=((0.0, 1.0), 1000),
    tight=(60, 12, 2),
    rounds=2,
)


def methods(means: Means, tau: float) -> dict[str, AnyMethod]:
    """Every method with the coupling of ``means`` and a dual step equal to the step size, as in the script."""
    ramp, burn = means.rho, means.burn_in
    late = burn if means.delayed else 0
    return {
        "unconstrained": casal.Unconstrained(),
        "final projection": casal.FinalProjection(),
        "projected": casal.Projected(burn_in=burn),
        "penalty": casal.Penalty(0.5 if tau <= STIFF.step_size else 0.05, burn_in=burn),
        "primal-dual": casal.PrimalDual(STIFF.dual_step),
        "decoupled": casal.Decoupled(ramp, dual_step=tau),
        "Algorithm 1": replace(casal.CASAL.algorithm1(ramp), burn_in=late),
        "Algorithm 2": replace(casal.CASAL.algorithm2(ramp), burn_in=late),
        "released code": casal.CASAL.released(ramp, tau, burn_in=burn),
        "CASAL": casal.CASAL(ramp, burn_in=burn),
        "WeightedCASAL": casal.WeightedCASAL(TOP),
    }


def cases(means: Means, steps: int) -> dict[str, Case]:
    """Every method with the step size of the script, then with the preconditioner; at the same number of steps."""
    wide, narrow = (STIFF.plain(steps, spread if means.wide else 0.0) for spread in (WIDE, NARROW))
    scaled = STIFF.preconditioned(steps, means.scaled_step)
    script = methods(means, STIFF.step_size)
    first = {"released code, 330c997": FirstRelease.of(means.rho, STIFF.dual_step, burn_in=means.burn_in)}
    return {
        **{label: (wide, method) for label, method in {**script, **(first if means is SCRIPT else {})}.items()},
        "primal-dual": (narrow, script["primal-dual"]),
        **{f"{label}{PRECONDITIONED}": (scaled, method) for label, method in methods(means, means.scaled_step).items()},
    }


def tuned_settings(steps: int) -> dict[str, list[Case]]:
    """Settings among which methods are tuned, all with the preconditioner: ramps, step sizes, dual steps, burn-in."""
    targets = {tau: STIFF.preconditioned(steps, tau) for tau in (0.03, 0.1, 0.2)}
    ramps = (casal.linear(2.0, 20.0), *(casal.geometric(low, high) for low, high in product((0.01, 0.1), (20.0, 60.0))))
    return {
        "penalty, tuned + projection": penalty_ramps([targets[0.1], targets[0.03]]),
        "projected, tuned": [
            (t, casal.Projected(burn_in=b)) for t, b in product(targets.values(), (0.0, 0.1, 0.3, 0.6))
        ],
        "Algorithm 1, tuned": [(t, casal.CASAL.algorithm1(ramp)) for t, ramp in product(targets.values(), ramps)],
        "Algorithm 2, tuned": [(t, casal.CASAL.algorithm2(ramp)) for t, ramp in product(targets.values(), ramps)],
        "released code, tuned": [
            (t, casal.CASAL.released(ramp, eta, burn_in=0.1))
            for t, ramp, eta in product(targets.values(), ramps, (0.01, 0.1))
        ],
    }


LABELS = (*cases(SCRIPT, 1), *tuned_settings(1), LARGE)


@stamp
def run(quick: bool, labels: Sequence[str] | None, tell: Tell) -> Outcome:
    """All methods with every group of settings and on every level; without ``labels`` also cost and ablations."""
    scale = QUICK if quick else FULL
    chosen = [label for label in LABELS if labels is None or label in labels]
    data: dict[str, Any] = {"groups": {}}
    tables = []
    for means in (SCRIPT, TEXT, MIXED):
        table, data["groups"][means.key] = group(means, ENERGY, scale, chosen, tell)
        tables.append(table)
    level_tables, data["levels"] = levels(scale, chosen, tell)
    curve_table, data["curves"] = curves(scale, chosen, data["groups"], tell)
    tables += [*level_tables, curve_table]
    data["floor"] = sampling_floor(*conditional(STIFF, ENERGY), scale.n)
    if labels is None:
        for table, found in (
            rho_ablation(*scale.rho, tell),
            dual_ablation(*scale.dual, tell),
            tightening_study(*scale.tight, tell),
            seconds_table(scale.n, scale.rounds, tell),
        ):
            tables.append(table)
            data |= found
    settings = {key: value for key, value in scale._asdict().items() if isinstance(value, int)}
    return Outcome("field", tables, claims(data) if labels is None else [], data, settings)


def group(
    means: Means, energy: float, scale: Scale, labels: Sequence[str], tell: Tell, more: Mapping[str, Case] | None = None
) -> tuple[ResultTable, dict[str, Any]]:
    """All methods with one group of settings; data: rows, first coefficients, energies, snapshots of the first seed."""
    steps, sphere = means.steps // scale.shorter, casal.Sphere(energy**0.5)
    data: dict[str, Any] = {"rows": [], "first": {}, "energies": {}, "snapshots": {}, "steps": steps}
    every = {**cases(means, steps), **(more or {})}
    for label in (label for label in labels if label in every):
        tell(f"{means.title}, |x|^2 = {energy:g}, {label}")
        target, method = every[label]
        results = runs(target, sphere, method, scale.weighted if label == LARGE else scale.n, range(scale.seeds))
        data["rows"].append(_row(label, energy, results))
        points = results[0].samples.double()
        data["first"][label] = _first(results[0])
        data["energies"][label] = points.square().sum(1).numpy()
        order = torch.argsort(points[:, 0])
        data["snapshots"][label] = STIFF.decoded(points[order[[len(order) // 4, (3 * len(order)) // 4]]]).numpy()
    return _table(means, energy, steps, data["rows"], scale), data


def levels(scale: Scale, labels: Sequence[str], tell: Tell) -> tuple[list[ResultTable], dict[float, Any]]:
    """Our settings on every level, with the tuned methods and more chains for WeightedCASAL."""
    tables, data, steps = [], {}, OURS.steps // scale.shorter
    for energy in ENERGIES:
        more: dict[str, Case] = {LARGE: cases(OURS, steps)[f"WeightedCASAL{PRECONDITIONED}"]}
        for label, settings in tuned_settings(steps).items():
            if label in labels:
                tell(f"|x|^2 = {energy:g}, tuning: {label}")
                loss = partial(_distance, energy)
                more[label] = best(settings[:: scale.stride], casal.Sphere(energy**0.5), loss, scale.tuning)
        table, data[energy] = group(OURS, energy, scale, labels, tell, more)
        tables.append(table)
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


def _table(means: Means, energy: float, steps: int, rows: Sequence[dict[str, Any]], scale: Scale) -> ResultTable:
    marginal, (plain, scaled) = conditional(STIFF, energy), means.condition()
    exact = [
        {"method": "exact draws", "n": n, "w1": sampling_floor(*marginal, n), "right": share_right(STIFF, energy)}
        for n in sorted({row["n"] for row in rows})
    ]
    start = "5 N(0, I) (primal-dual N(0, I))" if means.wide else "our start"
    tuning = ""
    if means is OURS:
        counts = ", ".join(f"{label} {len(tried)}" for label, tried in tuned_settings(1).items())
        tuning = f" Settings tried on other chains, against the exact distribution: {counts}."
    return ResultTable.of(
        f"Energy {energy:g}, {means.title}: {steps} score evaluations, {scale.seeds} seeds",
        "method | n: chains, d | w1: W1 of the first coefficient, .3f | right: share at x1 > 0, .4f | "
        "energy: mean energy, .2f | energy_sd: sd of it, .2f | violation: largest violation, .1e | ancestors, .0f | "
        "seconds, .2f | fidelity: verdict",
        [*rows, *exact],
        note=f"Without a preconditioner: tau = {STIFF.step_size:g}, {start}; the condition 4 tau (beta + 4 rho) <= 1 "
        f"of the paper's proposition has {plain:.1f}. With it: tau = {means.scaled_step:g}, our start, {scaled:.1f}. "
        f"The last rows are the mean W1 of exact draws (the floor) and the exact share.{tuning}",
    )


def curves(
    scale: Scale, labels: Sequence[str], done: Mapping[str, Any], tell: Tell
) -> tuple[ResultTable, dict[str, Any]]:
    """W1 against score evaluations: rho from 2 to 20, the script's start where there is no preconditioner."""
    n, sphere = scale.n, casal.Sphere(ENERGY**0.5)
    chosen = [label for label in cases(MIXED, 1) if label in labels]
    rows: dict[str, dict[str, Any]] = {label: {"method": label} for label in chosen}
    known = {found["steps"]: found["rows"] for found in (done[TEXT.key], done[MIXED.key])}
    for steps in scale.budgets:
        if steps in known:
            for row in known[steps]:
                rows[row["method"]] |= {str(steps): row["w1"], f"{steps}_se": row["w1_se"]}
            continue
        every = cases(MIXED, steps)
        for label in chosen:
            tell(f"{label}, {steps} evaluations")
            found = [_distance(ENERGY, r) for r in runs(*_swap(every[label], sphere), n, range(scale.seeds))]
            rows[label] |= mean_entry(str(steps), found)
    floor = sampling_floor(*conditional(STIFF, ENERGY), n)
    table = ResultTable.of(
        f"W1 of the first coefficient against score evaluations, energy {ENERGY:g}, rho 2 to 20, {n} chains",
        ("method", *(f"{steps}, .3f" for steps in scale.budgets)),
        [*rows.values(), {"method": "exact draws", **{str(steps): floor for steps in scale.budgets}}],
        note=f"Mean over {scale.seeds} seeds; every run spends its whole schedule of rho on its evaluations. The "
        "columns of 1000 and 10000 evaluations are the tables of the paper's text and of its rho over the script's "
        "steps.",
    )
    return table, {"rows": list(rows.values()), "budgets": list(scale.budgets), "floor": floor}


def _swap(case: Case, constraint: casal.Constraint) -> tuple[casal.Target, casal.Constraint, AnyMethod]:
    return case[0], constraint, case[1]
