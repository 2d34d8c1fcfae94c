"""Every proposition of the paper as a numbered check, by quadrature or in closed form."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import date

import torch

from casal import __version__
from casal.lab.problems.base import Claim, Column, Experiment, Outcome, ResultTable
from casal.lab.problems.propositions_base import Check
from casal.lab.problems.propositions_bounds import recovery, relaxation
from casal.lab.problems.propositions_gaussian import consistency
from casal.lab.problems.propositions_penalty import information, penalty, unattained
from casal.lab.problems.propositions_rate import mixing, step_size
from casal.lab.problems.propositions_relaxed import optimum, strong_duality

CHECKS: dict[str, Callable[[bool], Check]] = {
    "information projection": information,
    "unattained duality": unattained,
    "penalty": penalty,
    "strong duality": strong_duality,
    "recovery": recovery,
    "relaxation": relaxation,
    "consistency": consistency,
    "optimum": optimum,
    "step size": step_size,
    "mixing": mixing,
}
"""In the order of the paper's numbers; a check joins by a line here and a picture of its name."""


def run(quick: bool, labels: Sequence[str] | None, tell: Callable[[str], None]) -> Outcome:
    """All checks, or those named."""
    began = time.perf_counter()
    checks = []
    for name, check in CHECKS.items():
        if labels is None or name in labels:
            tell(name)
            checks.append(check(quick))
    summary = ResultTable(
        "The propositions",
        (Column("number", "no.", "d"), Column("name", "check"), Column("verdict", "verdict")),
        [{"number": c.number, "name": c.name, "verdict": c.verdict} for c in checks],
    )
    return Outcome(
        "propositions",
        [summary, *(table for check in checks for table in check.tables)],
        [Claim(f"{c.number}. {c.name}", _bars(c.statement), _bars(c.computed), c.verdict) for c in checks],
        {check.name: check for check in checks},
        {
            "date": date.today().isoformat(),
            "casal": __version__,
            "torch": str(torch.__version__),
            "quick": quick,
        },
        time.perf_counter() - began,
    )


def _bars(text: str) -> str:
    """D(q | p) with a bar that does not end a cell of a table."""
    return text.replace(" | ", "‖")


EXPERIMENT = Experiment(
    "propositions",
    "Do the paper's propositions hold numerically, and in which sense does the printed algorithm depart from them?",
    tuple(CHECKS),
    run,
)
