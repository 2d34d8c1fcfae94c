"""All methods of the field problem against the exact distribution: every setting, every energy, and the cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

import casal
from casal_lab.authors import FirstRelease, ScriptPrimalDual
from casal_lab.experiment import AnyMethod, Array, Outcome, ResultTable, Tell, stamp
from casal_lab.field.ablations import dual_ablation
from casal_lab.field.claims import claims
from casal_lab.field.cost import seconds_table, tightening_study
from casal_lab.field.grid import PAPER_ENERGY, PRIMAL_DUAL, SPLIT, TOP, Effort, run_grid
from casal_lab.field.setup import NARROW, OURS, SCRIPT, WIDE, Means
from casal_lab.problems.field import STIFF, conditional, quantile_distance, sampling_floor, share_right
from casal_lab.study import Case, mean_entry, runs, share, trust

ENERGY = STIFF.energy
LEVELS = (PAPER_ENERGY, ENERGY)
"""|x|^2 of the runs with our settings."""

PRECONDITIONED = ", preconditioned"
LARGE = "WeightedCASAL, preconditioned, 4000 chains"


class Scale(NamedTuple):
    """How much is run."""

    n: int  # chains of a run; the paper's number
    weighted: int  # chains of one more row of WeightedCASAL, whose quality depends on it
    seeds: int  # runs
    shorter: int  # by how much all runs are shortened
    grid: Effort  # of the settings that the paper leaves open
    dual: tuple[Sequence[float], int]  # sizes and steps of the ablation of the dual
    tight: tuple[int, int, int]  # chains, steps and seeds of the study of approximate projections
    rounds: int  # of the comparison of seconds


_SIZES = (0.0, 1.0, 5.0, 10.0, 20.0, 50.0, 100.0)
FULL = Scale(
    n=1000,
    weighted=4000,
    seeds=1,
    shorter=1,
    grid=Effort(200, 3),
    dual=(_SIZES, 10_000),
    tight=(300, 300, 3),
    rounds=7,
)
QUICK = Scale(
    n=200,
    weighted=500,
    seeds=2,
    shorter=25,
    grid=Effort(40, 2, 50),
    dual=((0.0, 1.0), 1000),
    tight=(60, 12, 2),
    rounds=2,
)


def script_cases(steps: int) -> dict[str, Case]:
    """Every method with the constants of the released script: what it runs, what section 5.1 names, and ours."""
    wide, narrow = STIFF.plain(steps, WIDE), STIFF.plain(steps, NARROW)
    ramp, burn, tau = SCRIPT.rho, SCRIPT.burn_in, STIFF.step_size
    methods: dict[str, AnyMethod] = {
        "unconstrained": casal.Unconstrained(),
        "final projection": casal.FinalProjection(),
        "projected": casal.Projected(burn_in=burn),
        "penalty": casal.Penalty(0.5, burn_in=burn),
        SPLIT: casal.Decoupled(ramp, dual_step=tau, weight_step=tau),
        "Algorithm 1": casal.CASAL.algorithm1(ramp, burn_in=burn),
        "Algorithm 2": casal.CASAL.algorithm2(ramp, burn_in=burn),
        "released code": casal.CASAL.released(ramp, tau, burn_in=burn),
        "released code, 330c997": FirstRelease.of(ramp, tau, burn_in=burn),
        "CASAL": casal.CASAL(ramp, burn_in=burn),
        "WeightedCASAL": casal.WeightedCASAL(TOP),
    }
    return {
        **{label: (wide, method) for label, method in methods.items()},
        PRIMAL_DUAL: (narrow, ScriptPrimalDual(tau)),
        "primal-dual, averaged": (narrow, casal.PrimalDual(tau)),
    }


def our_cases(steps: int) -> dict[str, Case]:
    """Every strict method with the preconditioner and our start; nothing of this is the paper's."""
    scaled, tau = STIFF.preconditioned(steps, OURS.scaled_step), OURS.scaled_step
    ramp, burn = OURS.rho, OURS.burn_in
    methods: dict[str, AnyMethod] = {
        "projected": casal.Projected(burn_in=burn),
        "Algorithm 1": casal.CASAL.algorithm1(ramp),
        "Algorithm 2": casal.CASAL.algorithm2(ramp),
        "released code": casal.CASAL.released(ramp, tau, burn_in=burn),
        "CASAL": casal.CASAL(ramp, burn_in=burn),
        "WeightedCASAL": casal.WeightedCASAL(TOP),
    }
    return {f"{label}{PRECONDITIONED}": (scaled, method) for label, method in methods.items()}


LABELS = (*script_cases(1), *our_cases(1), LARGE)


@stamp
def run(quick: bool, labels: Sequence[str] | None, tell: Tell) -> Outcome:
    """The script as it is and our settings on every level; without labels also the grid, cost and ablations."""
    scale = QUICK if quick else FULL
    chosen = [label for label in LABELS if labels is None or label in labels]
    steps = SCRIPT.steps // scale.shorter
    table, script = group(SCRIPT, ENERGY, script_cases(steps), steps, scale, chosen, tell)
    level_tables, by_level = levels(scale, chosen, tell)
    tables, data = [table, *level_tables], {"script": script, "levels": by_level}
    data["floor"] = sampling_floor(*conditional(STIFF, ENERGY), scale.n)
    if labels is None:
        grid_tables, found = run_grid(scale.grid, tell)
        tables = [tables[0], *grid_tables, *tables[1:]]
        data |= found
        for table, found in (
            dual_ablation(*scale.dual, tell),
            tightening_study(*scale.tight, tell),
            seconds_table(scale.n, scale.rounds, tell),
        ):
            tables.append(table)
            data |= found
    settings = {key: value for key, value in scale._asdict().items() if isinstance(value, int)}
    return Outcome("field", tables, claims(data) if labels is None else [], data, settings)


def group(
    means: Means,
    energy: float,
    every: Mapping[str, Case],
    steps: int,
    scale: Scale,
    labels: Sequence[str],
    tell: Tell,
) -> tuple[ResultTable, dict[str, Any]]:
    """Methods with one group of settings; data: rows, first coefficients, energies, snapshots of the first seed."""
    sphere = casal.Sphere(energy**0.5)
    data: dict[str, Any] = {"rows": [], "first": {}, "energies": {}, "snapshots": {}}
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
    """Our settings on both levels, and more chains for WeightedCASAL."""
    tables, data, steps = [], {}, OURS.steps // scale.shorter
    for energy in LEVELS:
        every = our_cases(steps)
        every[LARGE] = every[f"WeightedCASAL{PRECONDITIONED}"]
        table, data[energy] = group(OURS, energy, every, steps, scale, labels, tell)
        tables.append(table)
    return tables, data


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
        **_over_seeds("w1", [quantile_distance(x, grid, cdf) for x in firsts]),
        "right": right,
        "right_se": max(binomial, _over_seeds("", [float((x > 0).mean()) for x in firsts]).get("_se", 0.0)),
        "energy": float(squares.mean()),
        "energy_sd": float(squares.std()),
        "violation": max(float(r.certificate.violation.max()) for r in results),
        "ancestors": float(np.mean([len(torch.unique(r.ancestors)) for r in results])),
        "seconds": float(np.mean([r.cost.seconds for r in results])),
        "fidelity": trust(results),
    }


def _over_seeds(key: str, values: Sequence[float]) -> dict[str, float]:
    """The mean, and its standard error if there are several seeds."""
    return mean_entry(key, values) if len(values) > 1 else {key: values[0]}


def _table(means: Means, energy: float, steps: int, rows: Sequence[dict[str, Any]], scale: Scale) -> ResultTable:
    marginal, (plain, scaled) = conditional(STIFF, energy), means.condition()
    exact = [
        {"method": "exact draws", "n": n, "w1": sampling_floor(*marginal, n), "right": share_right(STIFF, energy)}
        for n in sorted({row["n"] for row in rows})
    ]
    return ResultTable.of(
        f"Energy {energy:g}, {means.title}: {steps} score evaluations, seeds: {scale.seeds}",
        "method | n: chains, d | w1: W1 of the first coefficient, .3f | right: share at x1 > 0, .4f | "
        "energy: mean energy, .2f | energy_sd: sd of it, .2f | violation: largest violation, .1e | ancestors, .0f | "
        "seconds, .2f | fidelity: verdict",
        [*rows, *exact],
        note=(
            f"With a preconditioner, tau = {means.scaled_step:g}, our start. The condition 4 tau (beta + 4 rho) <= 1 "
            f"of the paper's proposition has {scaled:.1f}."
            if means is OURS
            else f"tau = eta = {STIFF.step_size:g}, start 5 N(0, I) (primal-dual N(0, I)). The condition 4 tau (beta + "
            f"4 rho) <= 1 of the paper's proposition has {plain:.1f}."
        )
        + " The last rows are the mean W1 of exact draws (the floor) and the exact share.",
    )
