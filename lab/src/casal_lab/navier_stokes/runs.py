"""How much is run, what the paper has, what the pictures show, and the cost on a finer grid."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from casal_lab.experiment import Origin, ResultTable, Tell
from casal_lab.navier_stokes.setup import FULL, QUICK, RADIUS, SEEN, decoder, net, prior, tasks
from casal_lab.physics.navier_stokes import HORIZON, POINTS, VISCOSITY, advance, diagonal_forcing
from casal_lab.reconstruction.compare import Scale, run
from casal_lab.reconstruction.methods import (
    DPS_PROJECTED,
    FINAL,
    MOMENT_PROJECTED,
    PROJECTED,
    REPAIRED,
    Effort,
    entries,
)
from casal_lab.reconstruction.models import Model
from casal_lab.reconstruction.origins import shared
from casal_lab.reconstruction.prior import Prior
from casal_lab.reconstruction.study import Published
from casal_lab.reconstruction.whole_run import Plan, Reconstruction

PAPER = {
    "projected diffusion": Published(10.0, 1e-5, 1.07),
    "penalty": Published(11.0, 20.0, 1.00),
    "CASAL": Published(8.0, 1e-5, 1.05),
}
"""The paper's table; it does not say how many points are seen."""

SECTION = "section C.5"
SOURCE = f"{SECTION}, table on Navier-Stokes"

NOTE = (
    "The error is that of both fields together. Violation: the largest over both fields of |w_k - seen_k| / (max |w| + "
    "max |seen|), |sum w - circulation| / sqrt(N enstrophy), and | |w|^2 - enstrophy | / enstrophy."
)
COMPARED = (FINAL, PROJECTED, REPAIRED, DPS_PROJECTED, MOMENT_PROJECTED)
"""Methods whose cost is shown on two grids."""

SMALL = (Scale(3, 4, Effort(20, 20), 2, 2, 4, 1), Scale(2, 3, Effort(15, 12), 1, 2, 4, 0))
PLANS = {
    False: Plan(
        [
            (Scale(20, 10, Effort(100, 100), 4, 3, 1, 0, 40), Scale(20, 10, Effort(60, 40), 3, 3, 1, 0)),
            (Scale(20, 10, Effort(60, 60), 4, 3, 1, 1, 40), Scale(20, 6, Effort(30, 30), 3, 2, 1, 0)),
        ],
        (12, 25, 50),
        5,
        FULL,
        curve_samples=5,
    ),
    True: Plan([SMALL, SMALL], (10, 20), 2, QUICK),
}
"""Full and quick."""


def mismatch(w: Tensor) -> Tensor:
    """How far the second field is from what the flow makes of the first, (points, points), for an event (2, ...)."""
    return advance(w[:1].double(), HORIZON, diagonal_forcing(w.shape[-1]))[0] - w[1]


def finer(known: Prior, points: int) -> Prior:
    """The same latents on another grid, for timing: its residuals are noise of one per cent, its fields decoded."""
    scale = known.decoder.scale
    assert scale is not None
    series = decoder(scale * (points / POINTS), points)  # orthonormal waves on more points are smaller

    def draw(n: int, generator: torch.Generator) -> Tensor:
        return series(known.encode(known.draw(n, generator)))

    noise = torch.randn((500, *series.shape), generator=torch.Generator().manual_seed(0))
    return replace(known, draw=draw, decoder=series, residuals=0.01 * noise)


def costs(known: Prior, model: Model, scale: Scale, seed: int, tell: Tell) -> list[ResultTable]:
    """Time of some methods on 64 x 64 and on 128 x 128 points, first settings, Gaussian score."""
    scale = scale._replace(cases=2, effort=Effort(25, 25))
    rows = [dict[str, Any](method=label) for label in COMPARED]
    for points in (POINTS, 2 * POINTS):
        task = tasks(finer(known, points), seed)[0]
        cases = task.cases(scale.cases, seed)
        for row in rows:
            tell(f"{points} x {points}: {row['method']}")
            entry = entries(task, model)[row["method"]]
            scores = run(task, model, entry, entry.options[0], cases, scale.samples, scale.effort)[entry.label]
            row[f"{points}"] = 1000 * scores.seconds
            row["growth"] = row[f"{points}"] / row[f"{POINTS}"]
            row[f"violation {points}"] = 100 * float(scores.violation.max())
    table = ResultTable.of(
        f"Cost on a finer grid: {scale.cases * scale.samples} chains, {scale.effort.steps} steps, Gaussian score",
        f"method | {POINTS}: ms a sample on {POINTS} x {POINTS}, .1f | "
        f"{2 * POINTS}: on {2 * POINTS} x {2 * POINTS}, .1f | "
        f"growth: ratio, .1f | violation {2 * POINTS}: violation on {2 * POINTS} x {2 * POINTS} (%), .0e",
        rows,
        note="The latent is the same; four times as many points are decoded and projected. Fields of the finer grid "
        "are decoded latents: a measure of time, not of error.",
    )
    return [table]


NAVIER_STOKES = Reconstruction(
    "navier_stokes",
    PLANS,
    prior,
    net,
    tasks,
    mismatch,
    PAPER,
    SOURCE,
    NOTE,
    beside="Task 'all strict'. The paper does not say how much is seen.",
    counted="training pairs",
    more=costs,
)

ORIGINS = (
    Origin("grid", f"{POINTS} x {POINTS}", "ours", "the paper refers to DiffusionPDE, which has 128 x 128"),
    Origin("viscosity", f"{VISCOSITY:g}", "ours", "that of DiffusionPDE; the paper gives none"),
    Origin("times", f"0 and {HORIZON:g}", "paper", f"{SECTION}: initial and terminal state; the unit is ours"),
    Origin("latent", f"Fourier modes up to |k| = {RADIUS}", "ours", "the paper does not say"),
    Origin("points seen", f"{SEEN} of each field", "ours", "the paper says: sparse"),
    Origin("known exactly", "enstrophy and circulation", "paper", SECTION),
    *shared(
        PLANS[False],
        FULL,
        Origin("samples of a case", f"{PLANS[False].scales[0][0].samples}", "ours", "the paper gives none"),
    ),
)
"""Where the constants come from."""
