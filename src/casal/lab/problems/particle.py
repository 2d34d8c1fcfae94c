"""A particle on a circle (paper, appendix particle): which methods find the side of the circle that is likely?

V(x) is a double well whose right well cannot reach the circle; y ~ N(0, 0.1^2); the circle has radius 3. Almost all
of the law on the circle sits at x = -3. A chain that starts on the right and is projected at once stays there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from casal.constraints import Sphere
from casal.lab.problems import double_well
from casal.lab.problems.base import Array, Claim, Column, Experiment, Outcome, ResultTable, share
from casal.lab.problems.tuning import Case, best, penalty_ramps
from casal.methods import (
    CASAL,
    Decoupled,
    FinalProjection,
    Method,
    Penalty,
    PrimalDual,
    Projected,
    Unconstrained,
    WeightedCASAL,
)
from casal.sampling import SampleResult, sample
from casal.schedules import geometric
from casal.targets import Target, langevin

RADIUS = 3.0
SIGMA_Y = 0.1


class Settings(NamedTuple):
    """Settings of a run."""

    step_size: float
    dual_step: float
    steps: int
    burn_in: float
    rho: tuple[float, float]


PAPER = Settings(step_size=1e-2, dual_step=1e-2, steps=2000, burn_in=0.1, rho=(0.1, 100.0))
"""As in the authors' script for this problem."""

TUNED = "penalty, tuned + projection"

EXPECTED = {"wrong": 7.06e-8, "mean_x": -2.99831, "sd_y": 0.10067}
"""The exact answer (surface measure of the circle), by quadrature."""


def gradient(x: Tensor) -> Tensor:
    """Gradient of f(x, y) = V(x) + y^2 / (2 sigma^2)."""
    return torch.stack([double_well.slope(x[:, 0]), x[:, 1] / SIGMA_Y**2], dim=1)


def start(n: int, generator: torch.Generator) -> Tensor:
    """Standard normal, as in the authors' script."""
    return torch.randn((n, 2), generator=generator, dtype=torch.float64)


def plain(steps: int, step_size: float = PAPER.step_size) -> Target:
    """Langevin dynamics with the authors' step size."""
    return langevin(gradient, steps=steps, step_size=step_size, init=start)


def preconditioned(steps: int, step_size: float = 0.1) -> Target:
    """The same with one step size per coordinate, so that both relax at the same pace."""
    diagonal = torch.tensor([1.0 / double_well.CURVATURE, SIGMA_Y**2], dtype=torch.float64)
    return langevin(gradient, steps=steps, step_size=step_size, init=start, preconditioner=diagonal)


def exact_density(points: int = 20001) -> tuple[Array, Array]:
    """Angles in [-pi, pi) and the density of the law on the circle with respect to the angle."""
    angle = np.linspace(-np.pi, np.pi, points)[:-1]
    x, y = RADIUS * np.cos(angle), RADIUS * np.sin(angle)
    log_density = -double_well.potential(x) - 0.5 * (y / SIGMA_Y) ** 2
    density = np.exp(log_density - log_density.max())
    return angle, density / (density.sum() * (angle[1] - angle[0]))


def exact_answer() -> dict[str, float]:
    """P(x > 0), E x and the standard deviation of y under the exact law."""
    angle, density = exact_density()
    weight = density / density.sum()
    x, y = RADIUS * np.cos(angle), RADIUS * np.sin(angle)
    return {
        "wrong": float(weight[x > 0].sum()),
        "mean_x": float((weight * x).sum()),
        "sd_y": float(np.sqrt((weight * y**2).sum() - (weight * y).sum() ** 2)),
    }


def cases() -> dict[str, tuple[Target, Method[Any]]]:
    """Every method with its target: the authors' settings for what was published, one short run for the weights."""
    ladder, eta, burn = geometric(*PAPER.rho), PAPER.dual_step, PAPER.burn_in
    paper = plain(PAPER.steps)
    return {
        "unconstrained": (paper, Unconstrained()),
        "final projection": (paper, FinalProjection()),
        "projected": (paper, Projected(burn_in=burn)),
        "penalty": (paper, Penalty(0.5, burn_in=burn)),
        "primal-dual": (paper, PrimalDual(1e-3)),
        "decoupled": (paper, Decoupled(ladder, dual_step=eta)),
        "Algorithm 1": (paper, CASAL.algorithm1(ladder)),
        "Algorithm 2": (paper, CASAL.algorithm2(ladder)),
        "released code": (paper, CASAL.released(ladder, eta, burn_in=burn)),
        "CASAL": (preconditioned(PAPER.steps), CASAL(ladder, burn_in=burn)),
        "WeightedCASAL": (preconditioned(500), WeightedCASAL(400.0)),
    }


def penalties() -> list[Case]:
    """Settings among which the penalty baseline is tuned: plain and preconditioned, slow and fast ramps."""
    targets = (plain(PAPER.steps), preconditioned(PAPER.steps))
    return penalty_ramps(targets, (1e-4, 1e-3, 1e-2, 1e-1), (0.03, 0.1, 0.3, 1.0))


def _loss(result: SampleResult) -> float:
    z, exact = result.samples, exact_answer()
    return float((z[:, 0] > 0).double().mean()) + abs(float(z[:, 1].std()) / exact["sd_y"] - 1.0)


def run(quick: bool, labels: Sequence[str] | None, tell: Callable[[str], None]) -> Outcome:
    """Run all methods (or those named) on the same chains and compare with quadrature."""
    began, n = time.perf_counter(), 1000 if quick else 4000
    rows, points, every = [], {}, cases()
    if labels is None or TUNED in labels:
        tell(f"tuning the penalty over {len(penalties())} settings")
        every[TUNED] = best(penalties(), Sphere(RADIUS), _loss, 250 if quick else 500)
    for label, (target, method) in every.items():
        if labels is None or label in labels:
            tell(label)
            result = sample(target, Sphere(RADIUS), method, n, seed=1)
            rows.append(_row(label, result))
            points[label] = result.samples.double().numpy()
    exact = exact_answer()
    rows.append(
        {
            "method": "exact (quadrature)",
            "wrong": exact["wrong"],
            "mean_x": exact["mean_x"],
            "sd_y": exact["sd_y"],
        }
    )
    table = ResultTable(
        f"Particle on a circle, {n} chains",
        (
            Column("method", "method"),
            Column("wrong", "share at x > 0", ".3g"),
            Column("mean_x", "E x", ".4f"),
            Column("sd_y", "sd y", ".4f"),
            Column("violation", "largest violation", ".1e"),
            Column("evaluations", "evaluations", ".0f"),
            Column("seconds", "seconds", ".2f"),
        ),
        rows,
        note="Mean and spread are over all samples of a method; violation is | |z| - R | / R. The authors' step size "
        "(0.01, as large as y allows) alone widens sd y to 0.144, as the unconstrained row shows. The tuned penalty is "
        f"the best of {len(penalties())} ramps and step sizes, chosen on other chains.",
    )
    return Outcome(
        "particle",
        [table],
        _claims(rows),
        {"points": points},
        {"n": n, **PAPER._asdict()},
        time.perf_counter() - began,
    )


def _row(label: str, result: SampleResult) -> dict[str, Any]:
    z, n = result.samples.double(), len(result.samples)
    wrong, wrong_se = share(int((z[:, 0] > 0).sum()), n)
    sd = float(z[:, 1].std())
    return {
        "method": label,
        "wrong": wrong,
        "wrong_se": wrong_se,
        "mean_x": float(z[:, 0].mean()),
        "mean_x_se": float(z[:, 0].std()) / n**0.5,
        "sd_y": sd,
        "sd_y_se": sd / (2 * n) ** 0.5,
        "violation": float(result.certificate.violation.max()),
        "evaluations": result.cost.score_evaluations,
        "seconds": result.cost.seconds,
    }


def _claims(rows: Sequence[dict[str, Any]]) -> list[Claim]:
    """The appendix shows, in a picture, that projection is stuck on the right and CASAL is not."""
    wrong = {row["method"]: row["wrong"] for row in rows}
    claims = []
    if "projected" in wrong:
        stuck = wrong["projected"]
        claims.append(
            Claim(
                "projected Langevin stays on the unlikely side",
                "most chains (figure)",
                f"{stuck:.1%} of chains",
                "reproduced" if stuck > 0.1 else "not reproduced",
            )
        )
    for label in ("Algorithm 1", "Algorithm 2", "released code"):
        if label in wrong:
            lost = wrong[label]
            verdict = "reproduced" if lost < 0.01 else "partly" if lost < 0.1 else "not reproduced"
            claims.append(
                Claim(f"CASAL finds the likely side: {label}", "all chains (figure)", f"{1 - lost:.1%}", verdict)
            )
    return claims


EXPERIMENT = Experiment(
    "particle",
    "On a circle whose likely side is far from the start, which methods get there, and with the right spread?",
    (*cases(), TUNED),
    run,
)
