"""Claims of the assimilation: which are the paper's, and when they flip; the cost table; where constants come from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from casal import PerChain
from casal_lab.burgers import EXPERIMENT, cost
from casal_lab.burgers.claims import published
from casal_lab.burgers.comparison import PRINTED, Runs, Scores, analysed
from casal_lab.burgers.observed import COMPARED, GAUSSIAN, GLUED, STRICT, Observed
from casal_lab.burgers.runs import PAPER
from casal_lab.burgers.setup import POINTS, SETUPS, Conserved, Truth
from casal_lab.experiment import FAILS, HOLDS, PARTLY, Claim

RATIOS = {
    "unconstrained": 1.0,
    "penalty": 1.5,
    "projected, 20 sweeps through the decoder": 14.5,
    "Algorithm 2, sweeps on the grid": 1.4,
    "Algorithm 2, closed form": 1.2,
}


def ensemble(truth: Truth, size: float, seed: int) -> Scores:
    noise = torch.randn((5, 3, len(truth), POINTS), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Scores(analysed(truth)[:, None] + size * noise, truth, 0.2)


def judged(truth: Truth, sizes: dict[str, float], growth: float = 1.0) -> dict[tuple[str, str], Claim]:
    """Claims by text and variant for ensembles with noise of a size for each method, the same in both set-ups."""

    def runs(label: str) -> Runs:
        scores = ensemble(truth, sizes.get(label, 0.1), len(label))
        values: dict[str, Tensor] = {"l2": scores.l2[None]}
        return Runs(scores, values, scores.curve, scores.violation, 1.0, "", dict(scores.figures))

    found = {name: {label: runs(label) for label in PRINTED} for name in SETUPS}
    ways: Observed = {
        (way, label): ensemble(truth, sizes.get(label, 0.1), len(label))
        for way in (GAUSSIAN, GLUED, STRICT)
        for label in COMPARED
    }
    ratios = {label: np.array([value, value]) for label, value in RATIOS.items()}
    rows = [{"sigma": f"{s:g}", "printed": e, "ratio": (e / 0.56) ** growth} for s, e in PAPER.items()]
    return {(claim.text, claim.variant): claim for claim in published(found, dict.fromkeys(SETUPS, ways), ratios, rows)}


def test_published_claims_name_their_source_and_flip(truth: Truth) -> None:
    good = judged(truth, {"Algorithm 2": 0.01, "3D-Var": 0.2, "3D-Var, 5 draws": 0.2})
    assert all(claim.published and claim.flips for claim in good.values()) and len(good) == 23
    lower = {key: claim for key, claim in good.items() if "has a lower error than" in key[0]}
    central = [claim for (_, variant), claim in lower.items() if variant == "printed"]
    assert len(lower) == 12 and len(central) == 4 and all(claim.verdict == HOLDS for claim in central)
    # A variant that fails hides no other: both are not better than the rest, which have the same noise.
    assert all(
        claim.verdict != HOLDS for (text, variant), claim in lower.items() if variant == "ours" and "3D" not in text
    )
    assert all(
        claim.plain for claim in good.values() if "Time of a step" not in claim.text and "overhead" not in claim.text
    )
    bad = judged(truth, {"Algorithm 2": 0.3}, growth=0.0)
    assert all(bad[claim.text, claim.variant].verdict == FAILS for claim in central)
    (starts,) = (key for key in good if "start of lambda" in key[0])
    (times,) = (key for key in good if "Time of a step" in key[0])
    assert good[times].verdict == HOLDS and (good[starts].verdict, bad[starts].verdict) == (PARTLY, FAILS)


def test_alternating_projections_reach_the_closed_form(truth: Truth) -> None:
    values = PerChain(truth.mass), PerChain(truth.energy)
    y = truth.initial + 0.1 * torch.randn(truth.initial.shape, generator=torch.Generator().manual_seed(1)).double()
    exact = Conserved(*values).project(y)
    many, one = (cost.Alternating(*values, tolerance=1e-13, most=most) for most in (10_000, 1))
    torch.testing.assert_close(many.project(y, quick=True), exact, rtol=1e-8, atol=1e-10)
    assert float((one.project(y, quick=True) - exact).abs().max()) > 1e-6


def test_every_constant_says_where_it_comes_from() -> None:
    constants = [origin.constant for origin in EXPERIMENT.origins]
    assert len(constants) == len(set(constants)) > 50
    assert {origin.origin for origin in EXPERIMENT.origins} == {"paper", "script", "ours"}
    assert all(isinstance(part, str) and part for origin in EXPERIMENT.origins for part in origin)


def test_set_ups_differ_in_the_amplitude_alone() -> None:
    assert replace(SETUPS["A"], name="B", amplitude=SETUPS["B"].amplitude) == SETUPS["B"]
