"""The paper's ablations on the field problem: schedules of rho, and the size of the dual at the start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import casal
from casal import CASAL, Sphere, Target, geometric, linear, sample
from casal.errors import DivergedError
from casal.schedules import Schedule
from casal_lab.experiment import AnyMethod, Array, ResultTable, Tell
from casal_lab.field.setup import OURS, WIDE
from casal_lab.problems.field import SOFT, STIFF, Setup, conditional, quantile_distance, share_right
from casal_lab.study import share, with_error

SCHEDULES = ("constant, small", "constant, large", "linear", "logarithmic")

PAPER_RHO = {
    (steps, name): value
    for steps, shares in {1000: (0.424, 0.22, 0.0004, 0.038), 5000: (0.447, 0.028, 1e-5, 2e-6)}.items()
    for name, value in zip(SCHEDULES, shares, strict=True)
}
"""Share of samples in the wrong mode, as printed."""

PAPER_DUAL = {0.0: "10", 1.0: "200", 5.0: "800", 10.0: "1000", 20.0: "1600", 50.0: "2500", 100.0: "N/A"}
"""Steps to convergence, as printed."""

FORGETTING: dict[str, Callable[[float], AnyMethod]] = {
    "released code, dual step 0.001": lambda size: CASAL.released(STIFF.rho[1], 1e-3, dual_init=size),
    "released code, dual step 0.01": lambda size: CASAL.released(STIFF.rho[1], 1e-2, dual_init=size),
    "Algorithm 1": lambda size: CASAL.algorithm1(STIFF.rho[1], dual_init=size),
    "Algorithm 2": lambda size: CASAL.algorithm2(STIFF.rho[1], dual_init=size),
}
"""Every published update with a Gaussian start of mu. The dual steps of Algorithms 1 and 2 are tau / rho and tau."""

PICKED = "released code, dual step 0.01"
"""The row whose dual step was picked with the paper's figures in view."""

CHAINS = 100
RECORD = 10
WITHIN = 1.5
"""A run has converged when the mean size of its dual stays below WITHIN times the largest one reached from zero."""


def schedules(setup: Setup) -> dict[str, float | Schedule]:
    """The four schedules of the paper between the two ends of rho."""
    low, high = setup.rho
    return dict(zip(SCHEDULES, (low, high, linear(low, high), geometric(low, high)), strict=True))


def variants(setup: Setup, rho: float | Schedule, steps: int) -> dict[str, tuple[Target, AnyMethod]]:
    """The published updates as they are; on the authors' problem also with the preconditioner, on the other ours."""
    plain = setup.plain(steps, WIDE if setup is STIFF else 0.0)
    found: dict[str, tuple[Target, AnyMethod]] = {
        "released code": (plain, CASAL.released(rho, setup.dual_step, burn_in=0.1)),
        "Algorithm 1": (plain, CASAL.algorithm1(rho)),
        "Algorithm 2": (plain, CASAL.algorithm2(rho)),
    }
    if setup is STIFF:
        scaled = setup.preconditioned(steps, OURS.scaled_step)
        found["released code, preconditioned"] = (scaled, CASAL.released(rho, OURS.scaled_step, burn_in=0.1))
    else:
        found["CASAL"] = (plain, CASAL(rho, burn_in=0.1))
    return found


def rho_ablation(n: int, budgets: Sequence[int], tell: Tell) -> tuple[ResultTable, dict[str, Any]]:
    """Share of samples in the wrong mode, with its binomial error, for each schedule and number of steps."""
    rows: list[dict[str, Any]] = []
    for setup in (STIFF, SOFT):
        marginal, sphere = conditional(setup, setup.energy), Sphere(setup.energy**0.5)
        for steps in budgets:
            for label in variants(setup, 1.0, steps):
                row: dict[str, Any] = {"setup": setup.name, "variant": label, "steps": steps}
                for name, rho in schedules(setup).items():
                    tell(f"{setup.name}, {label}, rho {name}, {steps} steps")
                    target, method = variants(setup, rho, steps)[label]
                    result = sample(target, sphere, method, n, seed=0)
                    x: Array = result.samples[:, 0].double().numpy()
                    row |= with_error(name, *share(int((x > 0).sum()), len(x)))
                    row[f"{name} w1"] = quantile_distance(x, *marginal)
                rows.append(row)
    exact = [
        {"setup": s.name, "variant": "exact", **dict.fromkeys(SCHEDULES, share_right(s, s.energy))}
        for s in (STIFF, SOFT)
    ]
    paper = [
        {"setup": "not given", "variant": "as printed", "steps": steps}
        | {name: PAPER_RHO[steps, name] for name in SCHEDULES}
        for steps in (1000, 5000)
    ]
    table = ResultTable.of(
        f"Ablation of rho: share of samples at x1 > 0, {n} chains",
        (
            "setup: set-up | variant | steps, d",
            *(f"{name}, .4f" for name in SCHEDULES),
            *(f"{name} w1: W1, {name}, .2f" for name in SCHEDULES),
        ),
        [*rows, *exact, *paper],
        note=" ".join(
            f"'{s.name}': {2 * s.modes**2} coefficients, energy {s.energy:g}, step size {s.step_size:g}, "
            f"rho from {s.rho[0]:g} to {s.rho[1]:g}."
            for s in (STIFF, SOFT)
        )
        + " The authors' problem starts from 5 N(0, I), with the preconditioner from our start at step size "
        f"{OURS.scaled_step:g}. Errors are binomial. The paper gives neither its problem nor rho_min and rho_max.",
    )
    return table, {"rho": rows, "rho exact": {s.name: share_right(s, s.energy) for s in (STIFF, SOFT)}}


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
        f"Ablation of the dual's start: steps to convergence, {CHAINS} chains, rho = {STIFF.rho[1]:g}",
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
