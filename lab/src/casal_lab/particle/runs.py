"""All methods on the particle, beside quadrature: with every stored revision of the authors' script, and ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import casal
from casal_lab.authors import FirstRelease, ScriptPrimalDual
from casal_lab.experiment import AnyMethod, Claim, Outcome, ResultTable, Tell, reached, stamp, verdict
from casal_lab.particle.motions import onto_the_circle
from casal_lab.particle.setup import (
    DRAWN,
    IMPLICIT_STEP,
    OURS,
    RADIUS,
    REVISIONS,
    SCALED_STEP,
    SIGMA_Y,
    Settings,
    exact_answer,
    plain,
    preconditioned,
)
from casal_lab.study import Case, best, penalty_ramps, runs, share, trust, trust_claim, with_error

PUBLISHED = ("Algorithm 1", "Algorithm 2", "released code")
TUNED = "penalty, tuned + projection"
PRECONDITIONED = ", preconditioned"


def script_methods(settings: Settings) -> dict[str, AnyMethod]:
    """What a revision of the script runs, or would run, and the printed algorithms with its coupling."""
    rho, eta, burn = settings.rho, settings.dual_step, settings.burn_in
    released: AnyMethod = casal.CASAL.released(rho, eta, burn_in=burn)
    if settings.name == "330c997":
        released = FirstRelease.of(rho, eta, burn_in=burn)
    return {
        "unconstrained": casal.Unconstrained(),
        "final projection": casal.FinalProjection(),
        "projected": casal.Projected(burn_in=settings.projected_from),
        "primal-dual, a multiplier a chain": ScriptPrimalDual(eta),
        "Algorithm 1": casal.CASAL.algorithm1(rho, burn_in=burn),
        "Algorithm 2": casal.CASAL.algorithm2(rho, burn_in=burn),
        "released code": released,
        "CASAL": casal.CASAL(rho, burn_in=burn),
        "WeightedCASAL": casal.WeightedCASAL(400.0),
    }


def cases() -> dict[str, Case]:
    """Every method with our settings, without and with the preconditioner; one short run for the weights."""
    rho, eta, burn = OURS.rho, OURS.dual_step, OURS.burn_in
    ours, scaled = plain(OURS), preconditioned(OURS.steps, SCALED_STEP)
    soft: dict[str, AnyMethod] = {
        "penalty": casal.Penalty(0.5, burn_in=burn),
        "decoupled": casal.Decoupled(rho, dual_step=eta),
    }
    return {
        **{label: (ours, method) for label, method in {**script_methods(OURS), **soft}.items()},
        f"projected{PRECONDITIONED}": (preconditioned(OURS.steps), casal.Projected(burn_in=burn)),
        f"Algorithm 1{PRECONDITIONED}": (scaled, casal.CASAL.algorithm1(rho)),
        f"Algorithm 2{PRECONDITIONED}": (scaled, casal.CASAL.algorithm2(rho)),
        f"released code{PRECONDITIONED}": (scaled, casal.CASAL.released(rho, SCALED_STEP, burn_in=burn)),
        f"CASAL{PRECONDITIONED}": (preconditioned(OURS.steps), casal.CASAL(rho, burn_in=burn)),
        f"WeightedCASAL{PRECONDITIONED}": (preconditioned(500), casal.WeightedCASAL(400.0)),
    }


def penalties() -> list[Case]:
    """Settings among which the penalty baseline is tuned: plain and preconditioned, slow and fast ramps."""
    return penalty_ramps([plain(OURS), preconditioned(OURS.steps)])


def _loss(result: casal.SampleResult) -> float:
    z, exact = result.samples, exact_answer()
    return float((z[:, 0] > 0).double().mean()) + abs(float(z[:, 1].std()) / exact["sd_y"] - 1.0)


@stamp
def run(quick: bool, labels: Sequence[str] | None, tell: Tell) -> Outcome:
    """Run all methods (or those named) with each revision's settings and with ours, and compare with quadrature."""
    n = 1000 if quick else 4000
    circle, exact = casal.Sphere(RADIUS), {"method": "exact (quadrature)", **exact_answer()}
    points: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    for settings in (DRAWN,) if quick else REVISIONS:
        for label, method in script_methods(settings).items():
            if labels is None or label in labels:
                tell(f"{settings.name}: {label}")
                (result,) = runs(plain(settings), circle, method, n, [1])
                rows.append({"revision": settings.name, **_row(label, result)})
                if settings is DRAWN:
                    points[label] = result.samples.double().numpy()
    every, tried = cases(), penalties()[:: 7 if quick else 1]
    if labels is None or TUNED in labels:
        tell(f"tuning the penalty over {len(tried)} settings")
        every[TUNED] = best(tried, circle, _loss, 250 if quick else 500)
    ours = []
    for label, (target, method) in every.items():
        if labels is None or label in labels:
            tell(f"ours: {label}")
            (result,) = runs(target, circle, method, n, [1])
            ours.append(_row(label, result))
    columns = (
        "wrong: share at x > 0, .3g | mean_x: E x, .4f | sd_y: sd y, .4f | sd_left: sd y at x < 0, .4f | "
        "violation: largest violation, .1e | evaluations, .0f | seconds, .2f | fidelity: verdict"
    )
    widened = SIGMA_Y / (1 - OURS.step_size / (2 * SIGMA_Y**2)) ** 0.5
    notes = "; ".join(f"{s.name} {s.note}" for s in REVISIONS if s.note)
    tables = [
        ResultTable.of(
            f"Settings of the authors' script, revision by revision, {n} chains",
            f"revision | method | {columns}",
            [*rows, exact],
            note=f"{notes}; c726ba8 projects from the first step, the others after a tenth of the run. The printed "
            "algorithms have the coupling of the revision. All give z; the scripts plot x up to 904d4d2, and in "
            "c726ba8 the path of one chain.",
        ),
        ResultTable.of(
            f"Our settings, {n} chains",
            f"method | {columns}",
            [*ours, exact],
            note="Errors are those of independent chains. Mean and spread are over all samples of a method; violation "
            "is | |z| - R | / R. The script's step "
            f"size alone widens sd y to sigma / sqrt(1 - tau / (2 sigma^2)) = {widened:.3f}. With the "
            f"preconditioner the step size is {SCALED_STEP:g} with explicit coupling, else {IMPLICIT_STEP:g}. The "
            f"tuned penalty is the best of {len(tried)} ramps and step sizes, chosen on other chains.",
        ),
    ]
    motions = [onto_the_circle(every, n // 2)] if labels is None else []
    data = {"points": points, "rows": rows}
    return Outcome("particle", tables, _claims(rows, ours), data, {"n": n}, motions=motions)


def _row(label: str, result: casal.SampleResult) -> dict[str, Any]:
    z, n = result.samples.double().numpy(), len(result.samples)
    left, sd = z[z[:, 0] < 0, 1], float(z[:, 1].std())
    return {
        "method": label,
        **with_error("wrong", *share(int((z[:, 0] > 0).sum()), n)),
        **with_error("mean_x", float(z[:, 0].mean()), float(z[:, 0].std()) / n**0.5),
        **with_error("sd_y", sd, sd / (2 * n) ** 0.5),
        "sd_left": float(left.std()) if len(left) > 10 else float("nan"),
        "violation": float(result.certificate.violation.max()),
        "evaluations": result.cost.score_evaluations,
        "seconds": result.cost.seconds,
        "fidelity": trust([result]),
    }


def _claims(rows: Sequence[Mapping[str, Any]], ours: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """What section C.1 says, with the constants of the revisions that run CASAL; then what we ask of ourselves."""
    by: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        if row["revision"] != "2dbe368":
            by.setdefault(row["method"], {})[row["revision"]] = row
    exact, claims = exact_answer(), []
    answer = f"{exact['wrong']:.0e}"
    claims.append(
        Claim(
            "the only likely zone on the circle is on the other side",
            "density (figure)",
            f"P(x > 0) = {exact['wrong']:.1e} by quadrature",
            verdict(exact["wrong"] < 1e-3),
            "section C.1",
            "an exact share at x > 0 above 0.1 %",
            exact=answer,
            plain="Practically all of the distribution on the circle is on the left.",
        )
    )
    if "projected" in by:
        stuck = by["projected"]
        claims.append(
            Claim(
                "projected Langevin stays on the unlikely side",
                "many chains (figure)",
                ", ".join(f"{row['wrong']:.1%} ({name})" for name, row in stuck.items()),
                verdict(*(row["wrong"] > 0.1 for row in stuck.values())),
                "section C.1",
                "a share at x > 0 below 10 % with a revision's constants",
                exact=answer,
                plain="Half of the projected chains never leave the side where they start.",
            )
        )
    for variant, labels in {
        "printed": PUBLISHED[:2],
        "released": PUBLISHED[2:],
        "ours": ("CASAL", "WeightedCASAL"),
    }.items():
        if all(label in by for label in labels):
            held = [row["wrong"] < 0.01 for label in labels for row in by[label].values()]
            claims.append(
                Claim(
                    "CASAL solves this exploration issue",
                    "all chains on the likely side (figure)",
                    "at x > 0: "
                    + "; ".join(
                        f"{label} " + ", ".join(f"{row['wrong']:.2%} ({name})" for name, row in by[label].items())
                        for label in labels
                    ),
                    verdict(*held),
                    "section C.1",
                    "a share at x > 0 on the other side of 1 % with a revision's constants",
                    variant,
                    answer,
                    "Less than one chain in a hundred is on the wrong side, with every revision's constants."
                    if all(held)
                    else "More than one chain in a hundred stays on the wrong side with some of the constants.",
                )
            )
    found = {row["method"]: row for row in ours}
    sound = f"WeightedCASAL{PRECONDITIONED}"
    if sound in found:
        row = found[sound]
        claims.append(
            Claim(
                "WeightedCASAL has no chain on the wrong side and the right spread",
                f"0; sd y {exact['sd_y']:.4f} within 3 %",
                f"{row['wrong']:.2%}; {row['sd_y']:.4f} ± {row['sd_y_se']:.4f}",
                reached(row["wrong"] == 0, abs(row["sd_y"] / exact["sd_y"] - 1) < 0.03),
                flips="a chain at x > 0, or a spread that is off by more",
            )
        )
    return claims + trust_claim(ours, PUBLISHED, sound)
