"""The paper's ablation of the dual on the field problem: its size at the start. That of rho is ``grid``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import casal
from casal import CASAL, Sphere, sample
from casal.errors import DivergedError
from casal_lab.experiment import AnyMethod, Array, ResultTable, Tell
from casal_lab.problems.field import STIFF

PAPER_DUAL = {0.0: "10", 1.0: "200", 5.0: "800", 10.0: "1000", 20.0: "1600", 50.0: "2500", 100.0: "N/A"}
"""Steps to convergence, as printed."""

RHO = STIFF.rho[1]
UPDATES: dict[str, Callable[[float], AnyMethod]] = {
    "released code, dual step 0.001": lambda size: CASAL.released(RHO, 1e-3, dual_init=size),
    "released code, dual step 0.01": lambda size: CASAL.released(RHO, 1e-2, dual_init=size),
    "Algorithm 1": lambda size: CASAL.algorithm1(RHO, dual_init=size),
    "Algorithm 2": lambda size: CASAL.algorithm2(RHO, dual_init=size),
}
"""Every published update with a Gaussian start of mu. The dual steps of Algorithms 1 and 2 are tau / rho and tau."""

OF_LAMBDA = ", sigma of lambda"
FORGETTING: dict[str, Callable[[float], AnyMethod]] = {
    **UPDATES,
    **{f"{label}{OF_LAMBDA}": partial(lambda make, size: make(size / RHO), make) for label, make in UPDATES.items()},
}
"""Both readings of sigma: the size of mu, which the algorithms start, or that of lambda = rho mu, the paper's word."""

PICKED = "released code, dual step 0.01"
"""The row whose dual step was picked with the paper's figures in view."""

CHAINS = 100
RECORD = 10
WITHIN = 1.5
"""A run has converged when the mean size of its dual stays below WITHIN times the largest one reached from zero."""


def dual_ablation(sizes: Sequence[float], steps: int, tell: Tell) -> tuple[ResultTable, dict[str, Any]]:
    """Steps until a Gaussian start of mu is forgotten, every published update, constant rho at its upper end.

    A run that has not settled after ``steps`` counts as not converged.
    """
    rows: list[dict[str, Any]] = [{"size": size, "paper": PAPER_DUAL[size]} for size in sizes]
    traces: dict[str, dict[float, tuple[Array, Array]]] = {}
    bounds: dict[str, float] = {}
    for label, method in FORGETTING.items():
        traces[label] = {}
        for size in sizes:
            tell(f"dual of size {size:g} at the start, {label}")
            trace = _dual_trace(method(size), steps)
            if trace is not None:
                traces[label][size] = trace
        bounds[label] = WITHIN * float(traces[label][0.0][1].max())
        for row in rows:
            known = traces[label].get(row["size"])
            settled = None if known is None else _settled(*known, bounds[label])
            row[label] = "diverged" if known is None else settled or f"> {steps}"
    table = ResultTable.of(
        f"Ablation of the dual's start: steps to convergence, {CHAINS} chains, rho = {RHO:g}",
        ("size: sigma, g", *(f"{label}: {label.replace(', dual', ' dual')}, d" for label in FORGETTING), "paper"),
        rows,
        note=f"Converged: the mean size of mu over the chains stays below {WITHIN:g} times the largest it reaches "
        f"from zero, looked at every {RECORD} steps. The paper states neither its criterion nor its dual step.",
    )
    return table, {"dual": traces, "dual bounds": bounds, "dual rows": rows}


def _dual_trace(method: AnyMethod, steps: int) -> tuple[Array, Array] | None:
    """Recorded steps and the mean size of the dual at each; None if chains diverge."""
    sphere = Sphere(STIFF.energy**0.5)
    try:
        trace = sample(STIFF.plain(steps), sphere, method, CHAINS, seed=0, run=casal.Run(record_every=RECORD)).trace
    except DivergedError:
        return None
    return trace["step"].numpy(), trace["dual_norm"].numpy()


def _settled(steps: Array, norms: Array, bound: float) -> int | None:
    """The first recorded step from which the norm stays below the bound; None if it ends above."""
    above = norms > bound
    if above[-1]:
        return None
    return int(steps[0] if not above.any() else steps[above.nonzero()[0][-1] + 1])
