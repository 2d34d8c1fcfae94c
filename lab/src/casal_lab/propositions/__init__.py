"""Every proposition and lemma of the paper as a check: does it hold, and where does the print depart from it?

Set-up: densities in one and two dimensions with an interval, a disc or a circle (``setup``), a Gaussian with a line
(``casal_lab.problems.gaussian_line``), and for the descent lemmas single points. Nothing is sampled.

The paper claims eleven propositions, a corollary and eight lemmas: what the projection of a distribution onto a set is,
that no penalty reaches it, duality, limit and bounds of the relaxed problem (P), and the step size and rate of the
algorithm.

The exact answers are sums over quadrature points, or in closed form: on the line every variant is a linear recursion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from casal_lab.drawing import writer
from casal_lab.experiment import Experiment, Outcome, ResultTable, Tell, stamp
from casal_lab.propositions import lemmas, line, lyapunov, quadrature
from casal_lab.propositions.figures import figures
from casal_lab.propositions.setup import ORIGINS, Check

CHECKS: dict[str, Callable[[bool], Check]] = {
    "information projection": quadrature.information,
    "unattained duality": quadrature.unattained,
    "penalty": quadrature.penalty,
    "split": quadrature.split,
    "strong duality": quadrature.strong_duality,
    "latent sampling": quadrature.latent,
    "recovery": quadrature.recovery,
    "relaxation": quadrature.relaxation,
    "consistency": line.consistency,
    "mixing": line.mixing,
    "thin sets": quadrature.thin_sets,
    "Lagrangian": quadrature.lagrangian,
    "optimum": quadrature.optimum,
    "optimal value": quadrature.optimal_value,
    "descent": lemmas.descent,
    "alternated step": lemmas.alternated,
    "proximal step": lemmas.proximal,
    "dual step": lemmas.dual,
    "decrement": lyapunov.decrement,
    "saddle gap": quadrature.saddle_gap,
    "weighted sum": lyapunov.weighted_sum,
}
"""In the order of the paper; a check joins by a line here and, if it has one, a picture of its name."""


@stamp
def run(quick: bool, labels: Sequence[str] | None, tell: Tell) -> Outcome:
    """All checks, or those named."""
    checks = []
    for name, check in CHECKS.items():
        if labels is None or name in labels:
            tell(name)
            checks.append(replace(check(quick), name=name))
    summary = ResultTable.of(
        "The propositions",
        "number: no. in the paper | name: check | verdict",
        [{"number": c.number, "name": c.name, "verdict": c.verdict} for c in checks],
    )
    claims = [claim for check in checks for claim in check.claims]
    return Outcome(
        "propositions",
        [summary, *(table for check in checks for table in check.tables)],
        [
            replace(c, text=_bars(c.text), expected=_bars(c.expected), ours=_bars(c.ours), flips=_bars(c.flips))
            for c in claims
        ],
        {check.name: check for check in checks},
        {"quick": quick},
    )


def _bars(text: str) -> str:
    """D(q | p) and |x| with bars that do not end a cell of a table."""
    return text.replace(" | ", "‖").replace("|", "‖")


EXPERIMENT = Experiment(
    "propositions",
    "Do the paper's propositions hold numerically, and in which sense does the printed algorithm depart from them?",
    tuple(CHECKS),
    run,
    writer(figures),
    origins=ORIGINS,
)
