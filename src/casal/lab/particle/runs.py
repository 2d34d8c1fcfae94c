"""All methods on the particle, beside quadrature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import casal
from casal.lab.experiment import (
    Claim,
    Outcome,
    ResultTable,
    Tell,
    share,
    stamp,
    trust,
    trust_claim,
    verdict,
    with_error,
)
from casal.lab.particle.motions import onto_the_circle
from casal.lab.particle.setup import PAPER, RADIUS, exact_answer, plain, preconditioned
from casal.lab.tuning import Case, best, penalty_ramps

PUBLISHED = ("Algorithm 1", "Algorithm 2", "released code")
TUNED = "penalty, tuned + projection"


def cases() -> dict[str, Case]:
    """Every method with its target: the authors' settings for what was published, one short run for the weights."""
    ladder, eta, burn = casal.geometric(*PAPER.rho), PAPER.dual_step, PAPER.burn_in
    paper = plain(PAPER.steps)
    return {
        "unconstrained": (paper, casal.Unconstrained()),
        "final projection": (paper, casal.FinalProjection()),
        "projected": (paper, casal.Projected(burn_in=burn)),
        "penalty": (paper, casal.Penalty(0.5, burn_in=burn)),
        "primal-dual": (paper, casal.PrimalDual(1e-3)),
        "decoupled": (paper, casal.Decoupled(ladder, dual_step=eta)),
        "Algorithm 1": (paper, casal.CASAL.algorithm1(ladder)),
        "Algorithm 2": (paper, casal.CASAL.algorithm2(ladder)),
        "released code": (paper, casal.CASAL.released(ladder, eta, burn_in=burn)),
        "CASAL": (preconditioned(PAPER.steps), casal.CASAL(ladder, burn_in=burn)),
        "WeightedCASAL": (preconditioned(500), casal.WeightedCASAL(400.0)),
    }


def penalties() -> list[Case]:
    """Settings among which the penalty baseline is tuned: plain and preconditioned, slow and fast ramps."""
    return penalty_ramps([plain(PAPER.steps), preconditioned(PAPER.steps)])


def _loss(result: casal.SampleResult) -> float:
    z, exact = result.samples, exact_answer()
    return float((z[:, 0] > 0).double().mean()) + abs(float(z[:, 1].std()) / exact["sd_y"] - 1.0)


@stamp
def run(quick: bool, labels: Sequence[str] | None, tell: Tell) -> Outcome:
    """Run all methods (or those named) on the same chains and compare with quadrature."""
    n = 1000 if quick else 4000
    rows, points, every = [], {}, cases()
    if labels is None or TUNED in labels:
        tell(f"tuning the penalty over {len(penalties())} settings")
        every[TUNED] = best(penalties(), casal.Sphere(RADIUS), _loss, 250 if quick else 500)
    for label, (target, method) in every.items():
        if labels is None or label in labels:
            tell(label)
            result = casal.sample(target, casal.Sphere(RADIUS), method, n, seed=1)
            rows.append(_row(label, result))
            points[label] = result.samples.double().numpy()
    rows.append({"method": "exact (quadrature)", **exact_answer()})
    table = ResultTable.of(
        f"Particle on a circle, {n} chains",
        "method | wrong: share at x > 0, .3g | mean_x: E x, .4f | sd_y: sd y, .4f | "
        "violation: largest violation, .1e | evaluations, .0f | seconds, .2f | fidelity: verdict",
        rows,
        note="Mean and spread are over all samples of a method; violation is | |z| - R | / R. The authors' step size "
        "(0.01, as large as y allows) alone widens sd y to 0.144, as the unconstrained row shows. The tuned penalty is "
        f"the best of {len(penalties())} ramps and step sizes, chosen on other chains.",
    )
    motions = [onto_the_circle(every, n // 2)] if labels is None else []
    return Outcome("particle", [table], _claims(rows), {"points": points}, {"n": n, **PAPER._asdict()}, motions=motions)


def _row(label: str, result: casal.SampleResult) -> dict[str, Any]:
    z, n = result.samples.double(), len(result.samples)
    sd = float(z[:, 1].std())
    return {
        "method": label,
        **with_error("wrong", *share(int((z[:, 0] > 0).sum()), n)),
        **with_error("mean_x", float(z[:, 0].mean()), float(z[:, 0].std()) / n**0.5),
        **with_error("sd_y", sd, sd / (2 * n) ** 0.5),
        "violation": float(result.certificate.violation.max()),
        "evaluations": result.cost.score_evaluations,
        "seconds": result.cost.seconds,
        "fidelity": trust([result]),
    }


def _claims(rows: Sequence[dict[str, Any]]) -> list[Claim]:
    """The appendix shows, in a picture, that projection is stuck on the right and CASAL is not."""
    wrong = {row["method"]: row["wrong"] for row in rows}
    claims = []
    if "projected" in wrong:
        stuck = wrong["projected"]
        text = "projected Langevin stays on the unlikely side"
        claims.append(Claim(text, "most chains (figure)", f"{stuck:.1%} of chains", verdict(stuck > 0.1)))
    for label in PUBLISHED:
        if label in wrong:
            text, lost = f"CASAL finds the likely side: {label}", wrong[label]
            claims.append(Claim(text, "all chains (figure)", f"{1 - lost:.1%}", verdict(lost < 0.01, lost < 0.1)))
    return claims + trust_claim(rows, PUBLISHED, "WeightedCASAL")
