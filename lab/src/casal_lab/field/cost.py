"""What a run costs (section C.6): seconds of the methods side by side, and projections that are loose at first."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

import casal
from casal_lab.experiment import AnyMethod, Array, ResultTable, Tell
from casal_lab.problems import double_well
from casal_lab.problems.field import STIFF, WELLS, quantile_distance, sampling_floor, squares_density
from casal_lab.study import mean_entry, runs

PRINTED = {"unconstrained": 0.37, "penalty": 0.41, "projected": 0.43, "CASAL": 0.45}
"""Seconds of the row "Fluid generation", as printed; their ratios are what other machines can repeat."""

FLOW = -3.0
"""x1 + x2, the sum of the mean velocities, in the study of approximate projections."""

Loop = casal.Budget | Callable[[float], casal.Budget]


def seconds_table(n: int, rounds: int, tell: Tell, steps: int = 1000) -> tuple[ResultTable, dict[str, Any]]:
    """Processor time of a run, all methods in turn, several rounds; ratios to the unconstrained run of the round."""
    ramp, eta, sphere = casal.linear(*STIFF.rho), STIFF.dual_step, casal.Sphere(STIFF.energy**0.5)
    timed: dict[str, AnyMethod] = {
        "unconstrained": casal.Unconstrained(),
        "penalty": casal.Penalty(0.5),
        "projected": casal.Projected(),
        "Algorithm 1": casal.CASAL.algorithm1(ramp),
        "released code": casal.CASAL.released(ramp, eta),
        "CASAL": casal.CASAL(ramp),
    }
    spent: dict[str, list[float]] = {label: [] for label in timed}
    for k in range(rounds):
        tell(f"seconds of every method, round {k + 1} of {rounds}")
        for label, method in timed.items():
            began = time.process_time()
            runs(STIFF.plain(steps), sphere, method, n, [k])
            spent[label].append(time.process_time() - began)
    base = np.array(spent["unconstrained"])
    rows = [
        {"method": label, "seconds": float(np.median(values)), "ratio": float(np.median(np.array(values) / base))}
        | ({"printed": PRINTED[label] / PRINTED["unconstrained"]} if label in PRINTED else {})
        for label, values in spent.items()
    ]
    table = ResultTable.of(
        f"Seconds of {steps} steps, {n} chains, without a preconditioner",
        "method | seconds: processor time, .3f | ratio: ratio to unconstrained, .2f | printed: as printed, .2f",
        rows,
        note=f"Median of {rounds} rounds, in each of which the methods run one after the other. The paper does not say "
        "which variant its CASAL is; its figure is next to ours.",
    )
    return table, {"seconds": rows}


def budgets() -> dict[str, Loop]:
    """How hard projections try inside the loop. The samples that are returned are strict in any case."""
    tight, few = casal.Budget(1e-10), casal.Budget(1e-10, 2)
    return {
        "1e-10 throughout": tight,
        "1e-2 to 1e-10": casal.tightening(1e-2, 1e-10),
        "0.1 to 1e-4": casal.tightening(1e-1, 1e-4),
        "2 sweeps for half of the run, then 1e-10": lambda progress: few if progress < 0.5 else tight,
        "2 sweeps except in the last tenth, then 1e-10": lambda progress: few if progress < 0.9 else tight,
        "2 sweeps throughout": few,
    }


class Counted:
    """A set known by its projection alone, so that nothing merges it; counts the points it projects."""

    def __init__(self, constraint: casal.Constraint) -> None:
        self.constraint, self.count = constraint, 0

    def project(self, z: Tensor) -> Tensor:
        """The projection, counted."""
        self.count += len(z)
        return self.constraint.project(z)

    def opaque(self) -> casal.Constraint:
        """The set as ``FromProjection``."""
        return casal.FromProjection(self.project, self.constraint.violation)


def members() -> tuple[casal.Constraint, casal.Constraint]:
    """x1 + x2 = FLOW, and |x|^2 = 15."""
    row = torch.zeros((1, 2 * STIFF.modes**2), dtype=torch.float64)
    row[0, :WELLS] = 1.0
    return casal.Affine(row, torch.tensor([FLOW], dtype=torch.float64)), casal.Sphere(STIFF.energy**0.5)


@lru_cache
def marginal_with_flow(energy: float = STIFF.energy, points: int = 4001) -> tuple[Array, Array]:
    """Grid and distribution function of x1 given |x|^2 = E and x1 + x2 = FLOW, by quadrature on a line:

        p(x1) ~ exp(-V(x1) - V(FLOW - x1)) f(E - x1^2 - (FLOW - x1)^2).

    Both gradients have constant length and a constant angle on the set, so the surface measure gives the same.
    """
    s, density = squares_density(STIFF.variances()[WELLS:], top=64.0)
    x1 = np.linspace(-(energy**0.5), energy**0.5, points)
    x2 = FLOW - x1
    joint = np.exp(-double_well.potential(x1) - double_well.potential(x2))
    joint = joint * np.interp(energy - x1**2 - x2**2, s, density, left=0.0)
    cdf = np.concatenate([[0.0], np.cumsum((joint[1:] + joint[:-1]) / 2)])
    return x1, cdf / cdf[-1]


def tightening_study(n: int, steps: int, seeds: int, tell: Tell) -> tuple[ResultTable, dict[str, Any]]:
    """Alternating projections inside the loop, loose at first or tight throughout: cost, distribution, feasibility."""
    plane, sphere = members()
    target, marginal = STIFF.preconditioned(steps), marginal_with_flow()
    rows: list[dict[str, Any]] = []
    methods: Mapping[str, AnyMethod] = {
        "CASAL": casal.CASAL(casal.linear(*STIFF.rho), burn_in=0.1),
        "released code": casal.CASAL.released(casal.linear(*STIFF.rho), 0.1, burn_in=0.1),
        "projected": casal.Projected(burn_in=0.1),
    }
    for label, method in methods.items():
        for name, budget in budgets().items():
            tell(f"approximate projections: {label}, {name}")
            flat, round_ = Counted(plane), Counted(sphere)
            both = casal.Intersection(flat.opaque(), round_.opaque(), way="alternating")
            began = time.process_time()
            results = runs(
                target, both, method, n, range(seeds), check=False, run=casal.Run(budget=budget, record_every=steps)
            )
            spent = time.process_time() - began
            rows.append(
                {"method": label, "budget": name}
                | _judged(results, marginal)
                | {"projections": (flat.count + round_.count) / (n * seeds * steps), "seconds": spent / seeds}
            )
        began = time.process_time()
        results = runs(target, plane & sphere, method, n, range(seeds), check=False)
        spent = (time.process_time() - began) / seeds
        rows.append({"method": label, "budget": "closed form"} | _judged(results, marginal) | {"seconds": spent})
    exact = {"method": "exact draws", "w1": sampling_floor(*marginal, n)}
    table = ResultTable.of(
        f"Approximate projections: energy 15 and x1 + x2 = {FLOW:g}, {n} chains, {steps} steps, {seeds} seeds",
        "method | budget: tolerance inside the loop | w1: W1 of the first coefficient, .3f | "
        "violation: largest violation of the samples, .1e | feasible: share feasible, .3f | "
        "projections: projections per step, .1f | seconds: processor time, .2f",
        [*rows, exact],
        note="Alternating projections, with the preconditioner. Projections are those onto the plane and onto the "
        "sphere, per chain and step, the last strict ones included. The closed form is not counted in them.",
    )
    return table, {"tight": rows, "tight floor": exact["w1"]}


def _judged(results: list[casal.SampleResult], marginal: tuple[Array, Array]) -> dict[str, float]:
    firsts = [r.samples[:, 0].double().numpy() for r in results]
    return {
        **mean_entry("w1", [quantile_distance(x, *marginal) for x in firsts]),
        "violation": max(float(r.certificate.violation.max()) for r in results),
        "feasible": float(np.mean([float(r.certificate.feasible.double().mean()) for r in results])),
    }
