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
from casal_lab.experiment import (
    FAILS,
    HOLDS,
    NOT_APPLICABLE,
    PARTLY,
    Experiment,
    Outcome,
    ResultTable,
    Tell,
    stamp,
)
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


PLAIN: dict[str, tuple[str, str]] = {
    "information projection": (HOLDS, "p_C is the nearest distribution to p on the set."),
    "unattained duality": (HOLDS, "No finite multiplier reaches the optimum."),
    "penalty": (HOLDS, "No finite penalty puts all samples on the set."),
    "split": (HOLDS, "Splitting x = z changes nothing; by itself it does not help either."),
    "strong duality": (HOLDS, "The relaxed problem and its dual have the same value."),
    "latent sampling": (
        PARTLY,
        "z is strict and no decoder is inverted, linear or not; but z leaves the range of the decoder unless rho is "
        "large.",
    ),
    "recovery": (HOLDS, "Both x and z tend to p_C as rho grows."),
    "relaxation": (PARTLY, "The printed bound on the distance of x and z is too small by a factor of two."),
    "consistency": (HOLDS, "With the multiplier the mean is right at every rho; of the mean only."),
    "mixing": (NOT_APPLICABLE, "Its condition is met by no run, because the noise is unbounded."),
    "thin sets": (NOT_APPLICABLE, "The statements leave out sets of probability zero, such as spheres."),
    "Lagrangian": (HOLDS, "The integral form is right."),
    "optimum": (HOLDS, "The optimum has the printed form."),
    "optimal value": (HOLDS, "The relaxed problem never has a larger value than the strict one."),
    "descent": (PARTLY, "The gradient step is right; the projection inequality needs w in C."),
    "alternated step": (PARTLY, "Right for A = I; with a matrix a transpose is missing."),
    "proximal step": (FAILS, "Two terms are wrong; with them corrected it holds."),
    "dual step": (FAILS, "Constants are wrong; with those of the proof it holds."),
    "decrement": (NOT_APPLICABLE, "Its condition is met by no run, because the noise is unbounded."),
    "saddle gap": (HOLDS, "The gap of the Lagrangian bounds the divergence."),
    "weighted sum": (NOT_APPLICABLE, "Its condition is met by no run, because the noise is unbounded."),
}
"""A sentence for each check, and the verdict that it belongs to; with another verdict it is left out."""


@stamp
def run(quick: bool, labels: Sequence[str] | None, tell: Tell) -> Outcome:
    """All checks, or those named."""
    checks = []
    for name, check in CHECKS.items():
        if labels is None or name in labels:
            tell(name)
            found, (word, sentence) = check(quick), PLAIN[name]
            checks.append(replace(found, name=name, plain=sentence if found.verdict == word else ""))
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
