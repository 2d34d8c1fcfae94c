"""A trained network: a DDPM of the 2-D mixture on the circle R = 2, against the model's own conditional distribution.

The reference has no network but this one in it: unconditional samples of the model near the circle. Their shares of the
modes, in a shell of half-width w, err by O(w^2); two widths remove that term.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from casal import CASAL, Sphere, Target, Unconstrained, ddpm, sample
from casal_lab.artifacts import points
from casal_lab.conditional.common import HEALTH, PLAIN, UNTUNED, at_most, dots, figures, weighted
from casal_lab.experiment import Outcome, ResultTable, Tell
from casal_lab.problems.families import BETAS
from casal_lab.problems.networks import REFERENCE_SEED, trained
from casal_lab.problems.three_modes import MIXTURE
from casal_lab.study import runs

RADIUS = 2.0
SHELL = 0.2


class Scale(NamedTuple):
    """Training, steps of the model, unconditional samples, chains, seeds."""

    iterations: int
    steps: int
    reference: int
    n: int
    seeds: int


FULL = Scale(2000, 200, 100_000, 2000, 5)
QUICK = Scale(100, 50, 4000, 200, 2)


def model(net: nn.Module, steps: int) -> Target:
    """Ancestral sampling."""
    return ddpm(net, BETAS, shape=2, steps=steps)


def shell_weights(free: Tensor) -> Tensor:
    """Mode weights on the circle: shares per unit of width, at half-widths w and w / 2, extrapolated to none."""
    away, share = (free.norm(dim=1) - RADIUS).abs(), MIXTURE.responsibilities(free)
    wide, narrow = (share[away < width].sum(0) / width for width in (SHELL, SHELL / 2))
    density = ((4 * narrow - wide) / 3).clamp_min(0.0)
    return density / density.sum()


def halves(free: Tensor) -> float:
    """Total variation between the weights of two halves, over two: about the error of the whole."""
    one, other = (shell_weights(part) for part in (free[::2], free[1::2]))
    return float((one - other).abs().sum()) / 4


def run(quick: bool, tell: Tell) -> Outcome:
    """Total variation of the mode weights to the model's own."""
    scale = QUICK if quick else FULL
    tell("trained network: training")
    net = trained("mixture", scale.iterations)
    tell("trained network: reference")
    target, constraint = model(net, scale.steps), Sphere(RADIUS)
    free = points(
        f"mixture_mlp_{scale.iterations}_{scale.steps}_{scale.reference}",
        lambda: sample(target, constraint, Unconstrained(), scale.reference, seed=REFERENCE_SEED).samples,
    )
    exact = shell_weights(free)
    rows: list[dict[str, Any]] = []
    printed = {"Algorithm 2": CASAL.algorithm2(5.0), "CASAL": CASAL(1.0)}
    methods = {**PLAIN, **UNTUNED, **printed, **weighted(quick)}
    for label, method in methods.items():
        tell(f"trained network: {label}")
        results = runs(target, constraint, method, scale.n, range(scale.seeds))
        rows.append(figures(label, results, tv=[MIXTURE.total_variation(r.samples, exact) for r in results]))
    rng = np.random.default_rng(0)
    drawn = rng.multinomial(scale.n, exact.numpy(), size=400) / scale.n
    floor = float(np.abs(drawn - exact.numpy()).sum(1).mean()) / 2
    true = float((MIXTURE.restricted(constraint).weights - exact).abs().sum()) / 2
    table = ResultTable.of(
        f"Trained network, 2-D mixture, circle R = 2: {scale.n} chains, {scale.seeds} seeds",
        ("method | tv: TV of mode weights, .3f", HEALTH),
        [*rows, {"method": "exact draws", "tv": floor}],
        note=f"To the weights of {scale.reference} unconditional samples of the model near the circle (error about "
        f"{halves(free):.3f}), which are {true:.3f} from those of the mixture it was trained on.",
    )
    claims = [
        at_most(f"Trained network: {row['method']}, TV of mode weights", row["tv"], 0.08)
        for row in rows
        if row["method"].startswith(("SplitGibbs", "Twisted"))
    ]
    return Outcome("network", [table], claims, {"dots": dots("Trained network, circle R = 2", rows, "tv", floor)})
