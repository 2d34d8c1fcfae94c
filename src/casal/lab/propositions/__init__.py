"""Every proposition of the paper as a numbered check: does it hold, and where does the print depart from it?

Set-up: densities in one and two dimensions with an interval, a disc or a circle (``setup``), and a Gaussian with a line
(``casal.lab.laws.gaussian_line``). Nothing is sampled.

The paper claims ten propositions: what the projection of a law onto a set is, that no penalty reaches it, duality,
limit and bounds of the relaxed problem (P), and the step size and rate of the algorithm.

The exact answers are sums over quadrature points, or in closed form: on the line every variant is a linear recursion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from casal.lab.drawing import writer
from casal.lab.experiment import Claim, Experiment, Outcome, ResultTable, Tell, stamp
from casal.lab.propositions import line, quadrature
from casal.lab.propositions.figures import figures
from casal.lab.propositions.setup import Check

CHECKS: dict[str, Callable[[bool], Check]] = {
    "information projection": quadrature.information,
    "unattained duality": quadrature.unattained,
    "penalty": quadrature.penalty,
    "strong duality": quadrature.strong_duality,
    "recovery": quadrature.recovery,
    "relaxation": quadrature.relaxation,
    "consistency": line.consistency,
    "optimum": quadrature.optimum,
    "step size": line.step_size,
    "mixing": line.mixing,
}
"""In the order of the paper's numbers; a check joins by a line here and a picture of its name."""


@stamp
def run(quick: bool, labels: Sequence[str] | None, tell: Tell) -> Outcome:
    """All checks, or those named."""
    checks = []
    for number, (name, check) in enumerate(CHECKS.items(), start=1):
        if labels is None or name in labels:
            tell(name)
            checks.append(replace(check(quick), number=number, name=name))
    summary = ResultTable.of(
        "The propositions",
        "number: no., d | name: check | verdict",
        [{"number": c.number, "name": c.name, "verdict": c.verdict} for c in checks],
    )
    return Outcome(
        "propositions",
        [summary, *(table for check in checks for table in check.tables)],
        [Claim(f"{c.number}. {c.name}", _bars(c.statement), _bars(c.computed), c.verdict) for c in checks],
        {check.name: check for check in checks},
        {"quick": quick},
    )


def _bars(text: str) -> str:
    """D(q | p) with a bar that does not end a cell of a table."""
    return text.replace(" | ", "‖")


EXPERIMENT = Experiment(
    "propositions",
    "Do the paper's propositions hold numerically, and in which sense does the printed algorithm depart from them?",
    tuple(CHECKS),
    run,
    writer(figures),
)
