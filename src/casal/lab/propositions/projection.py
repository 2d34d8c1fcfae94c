"""Projection of a law onto a set, and why no finite multiplier or penalty reaches it, by quadrature."""

from __future__ import annotations

from typing import Any

import numpy as np

from casal.lab.experiment import HOLDS, PARTLY, Array, ResultTable
from casal.lab.propositions.setup import ANGLES, Case, Check, gaussian_on_circle, kullback, normalised, well_on_interval

WEIGHTS = np.geomspace(0.1, 1e6, 71)
FINE = 80001
"""Points on the line: the largest weight makes a border layer of width 1e-3."""


def information(quick: bool) -> Check:
    """D(q | p) of laws on C: smallest at p_C, where it is -log P(C)."""
    case = well_on_interval()
    x, inside = case.points[:, 0], case.inside > 0
    on_set = case.mass * inside / (case.mass * inside).sum()
    tilts = np.linspace(-8.0, 8.0, 81)
    shapes = {"tilt": x, "spread": 2 * x**2, "wave": np.sin(9 * x)}
    curves, worst = {}, 0.0
    for name, shape in shapes.items():
        values = []
        for tilt in tilts:
            q = np.zeros_like(on_set)
            q[inside] = normalised(np.log(on_set[inside]) + tilt * shape[inside])
            values.append(kullback(q, case.mass))
            worst = max(worst, abs(values[-1] - kullback(q, on_set) - case.divergence))
        curves[name] = np.array(values)
    share = float(np.exp(-case.divergence))
    lowest = min(float(v.min()) for v in curves.values())
    return Check(
        "p_C is the law on C that is nearest to p in D(q | p) (proposition projection).",
        f"D(q | p) = D(q | p_C) - log P(C) for 243 laws on C, to {worst:.0e}; the smallest value is {lowest:.4f} = "
        f"-log P(C), at p_C. The printed proof gives P(C) = {share:.4f} for this value: a logarithm is missing, the "
        "conclusion stands.",
        HOLDS if worst < 1e-10 and abs(lowest - case.divergence) < 1e-12 else PARTLY,
        (),
        {"tilts": tilts, "curves": curves, "least": case.divergence, "share": share},
    )


def _penalised(case: Case, cost: Array, weight: float) -> tuple[Array, float]:
    """p_lambda ~ p exp(-lambda c) and the dual function -log E_p exp(-lambda c)."""
    factor = np.exp(-weight * cost)
    total = float((case.mass * factor).sum())
    return np.asarray(case.mass * factor / total), -float(np.log(total))


def unattained(quick: bool) -> Check:
    """The dual function stays below its supremum for every multiplier."""
    case = well_on_interval(FINE)
    distance = np.linalg.norm(case.points - case.project(case.points), axis=1)
    costs = {"indicator of the outside": 1.0 - case.inside, "squared distance": distance**2}
    gaps = {
        name: np.array([case.divergence - _penalised(case, cost, weight)[1] for weight in WEIGHTS])
        for name, cost in costs.items()
    }
    # The indicator's gap is log(1 + (1/P(C) - 1) e^-lambda): take it from there once the difference rounds to zero.
    odds = np.expm1(case.divergence)
    gaps["indicator of the outside"] = np.log1p(odds * np.exp(-np.minimum(WEIGHTS, 700.0)))
    distant = float(gaps["squared distance"][-1])
    return Check(
        "The supremum of the dual function of the projection problem is not attained (proposition unattained_duality).",
        f"log 1/P(C) - g(lambda) > 0 at all {len(WEIGHTS)} multipliers up to 1e6. With the indicator as cost it "
        "falls like e^-lambda "
        f"(but has no gradient to sample with), with the squared distance like lambda^(-1/2): {distant:.1e} at 1e6.",
        HOLDS if all(bool((gap > 0).all()) for gap in gaps.values()) else PARTLY,
        (),
        {"weights": WEIGHTS, "gaps": gaps},
    )


def penalty(quick: bool) -> Check:
    """P(C) and P(C_eps) under p exp(-lambda d^2)."""
    curves: dict[str, dict[str, Array]] = {}
    rows: list[dict[str, Any]] = []
    for case in (well_on_interval(FINE), gaussian_on_circle(4001, ANGLES[::30])):
        distance = np.linalg.norm(case.points - case.project(case.points), axis=1)
        sets = {f"within {eps:g}": (distance <= eps).astype(np.float64) for eps in (0.1, 0.01, 0.001)}
        if not case.thin:
            sets["in C"] = case.inside
        laws = [_penalised(case, distance**2, weight)[0] for weight in WEIGHTS]
        curves[case.name] = {
            name: np.array([float((q * (1.0 - member)).sum()) for q in laws]) for name, member in sets.items()
        }
        for k in range(0, len(WEIGHTS), 10):
            outside = {name: float(values[k]) for name, values in curves[case.name].items()}
            rows.append(
                {"case": case.name, "weight": float(WEIGHTS[k]), **({"in C": 1.0} if case.thin else {}), **outside}
            )
    least = float(curves[well_on_interval().name]["in C"].min())
    table = ResultTable.of(
        "Penalty c = d^2: probability to be outside",
        "case | weight: lambda, .3g | in C: of C, .5f | within 0.001: of C widened by 0.001, .5f | "
        "within 0.01: by 0.01, .5f | within 0.1: by 0.1, .2e",
        rows,
        note="A circle has no mass under any law with a density, so nothing is ever on it.",
    )
    return Check(
        "Penalty methods cannot enforce P(C) = 1 (corollary penalty).",
        f"Under p exp(-lambda d^2) the mass outside an interval is still {least:.2%} at lambda = 1e6 (it falls like "
        "lambda^(-1/2)); on a circle it is 100 % for every lambda. A step of size tau is stable for lambda up to about "
        "1/tau only, so a run at tau = 1e-3 stops near lambda = 1e3.",
        HOLDS if least > 0 else PARTLY,
        [table],
        {"weights": WEIGHTS, "curves": curves},
    )
