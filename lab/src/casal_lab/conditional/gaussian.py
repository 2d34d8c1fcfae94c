"""A correlated Gaussian on x1 = 1, through a diffusion with the exact score: x2 is N(0.8, 0.6^2)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy import special
from torch import Tensor

from casal import CASAL, Affine, FinalProjection, SampleResult, Target, ddpm, posterior
from casal_lab.conditional.common import FULL, HEALTH, PLAIN, QUICK, compare, dots, figures, weighted, within
from casal_lab.experiment import Array, Outcome, ResultTable, Tell
from casal_lab.problems.families import BETAS
from casal_lab.study import PEERS, runs

CORRELATION = 0.8
MEAN, SPREAD = CORRELATION, math.sqrt(1 - CORRELATION**2)
GUIDED = "DPS, tuned + projection"


def eps_network(covariance: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """eps(x, t) = E[noise | x] for N(0, covariance) on the chain of BETAS."""
    values, axes = torch.linalg.eigh(covariance)
    kept = torch.exp(torch.cumsum(torch.log1p(-BETAS), 0))

    def eps(x: Tensor, t: Tensor) -> Tensor:
        share = kept[t].reshape(-1, 1)
        gain = (1 - share).sqrt() / (share * values + 1 - share)
        return ((x @ axes.to(x)) * gain.to(x)) @ axes.T.to(x)

    return eps


def model(steps: int) -> Target:
    """Unit variances, correlation 0.8."""
    covariance = torch.tensor([[1.0, CORRELATION], [CORRELATION, 1.0]], dtype=torch.float64)
    return ddpm(eps_network(covariance), BETAS, steps=steps, shape=2)


def transport(values: Array) -> float:
    """W1 of samples of x2 to the exact distribution."""
    exact = MEAN + SPREAD * special.ndtri((np.arange(len(values)) + 0.5) / len(values))
    return float(np.abs(np.sort(values) - exact).mean())


def _second(result: SampleResult) -> Array:
    return result.samples[:, 1].to(torch.float64).numpy()


def run(quick: bool, tell: Tell) -> Outcome:
    """Mean, standard deviation and W1 of x2."""
    scale = QUICK if quick else FULL
    H, y = torch.tensor([[1.0, 0.0]]), torch.tensor([1.0])
    target, constraint = model(scale.evaluations), Affine(H, y)
    given, seeds = posterior(target, H, y, 0.0), range(scale.seeds)
    methods = {**PLAIN, "Algorithm 2": CASAL.algorithm2(5.0), "CASAL": CASAL(10.0), **weighted(quick)}
    name, distance = "correlated Gaussian", lambda result: transport(_second(result))
    found = compare(name, target, constraint, methods, [GUIDED, *PEERS], distance, scale, tell)
    tell("correlated Gaussian: moment matching")
    found["moment matching + projection"] = "", runs(given, constraint, FinalProjection(), scale.n, seeds)
    rows: list[dict[str, Any]] = []
    for label, (setting, results) in found.items():
        second = [_second(r) for r in results]
        distances = {
            "mean": [float(v.mean()) for v in second],
            "sd": [float(v.std()) for v in second],
            "w1": [transport(v) for v in second],
        }
        rows.append({**figures(label, results, **distances), "setting": setting})
    rng = np.random.default_rng(0)
    floor = float(np.mean([transport(MEAN + SPREAD * rng.standard_normal(scale.n)) for _ in range(40)]))
    table = ResultTable.of(
        f"Correlated Gaussian on x1 = 1: {scale.n} chains, {scale.seeds} seeds",
        ("method | mean: mean of x2, .3f | sd: sd of x2, .3f | w1: W1, .3f", HEALTH, "setting"),
        [*rows, {"method": "exact draws", "mean": MEAN, "sd": SPREAD, "w1": floor}],
        note="Algorithm 2 with rho = 5, CASAL with rho = 10. One evaluation of moment matching is one of the network "
        "and six backward passes.",
    )
    right = ("SplitGibbs", "Twisted", "moment")
    claims = [
        within(f"Correlated Gaussian: {row['method']}, {name} of x2", row[key], centre, slack)
        for row in rows
        if row["method"].startswith(right)
        for key, name, centre, slack in (("mean", "mean", MEAN, 0.02), ("sd", "standard deviation", SPREAD, 0.03))
    ]
    return Outcome("gaussian", [table], claims, {"dots": dots("Correlated Gaussian", rows, "w1", floor)})
