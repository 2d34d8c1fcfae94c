"""An inverse problem in 256 dimensions: a smooth Gaussian field, eight of its values observed exactly, its norm known.

With a Gaussian prior the answer without the norm is kriging: E[x | H x = y] = S H^T (H S H^T)^-1 y. The error of a
method is that of its posterior mean, over kriging's, so one is the floor; the norm may only help.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from casal import CASAL, Affine, Constraint, Sphere, Target, edm, karras_sigmas, posterior
from casal_lab.conditional.common import COST, PLAIN, UNTUNED, at_most, dots, figures
from casal_lab.experiment import AnyMethod, Outcome, ResultTable, Tell
from casal_lab.study import require, runs, tune

SIDE = 16
SEEN = 8
ITERATIONS = 5
"""Conjugate gradient steps of one guided score, each a backward pass; one more pass applies the result."""


class Scale(NamedTuple):
    """Chains, truths, noise levels of the model, every how manyth weight of DPS is tried."""

    n: int
    truths: int
    steps: int
    stride: int


FULL = Scale(64, 8, 60, 1)
QUICK = Scale(16, 2, 20, 7)

PROJECTION = PLAIN["final projection"]
WEIGHTS = [0.01 * 10 ** (k / 5) for k in range(21)]
"""Of DPS: from 0.01 to 100."""


class Truth(NamedTuple):
    """A field, what is seen of it, and kriging's error."""

    field: Tensor
    matrix: Tensor
    values: Tensor
    kriging: float

    @property
    def constraint(self) -> Constraint:
        """The observations and the norm."""
        return Affine(self.matrix, self.values) & Sphere(float(self.field.norm()))


def spectrum() -> tuple[Tensor, Tensor]:
    """Variances (256,) and directions (256, 256) of the prior: cosines, (1 + |k|^2 / 4)^-2, of unit mean variance."""
    k = torch.arange(SIDE, dtype=torch.float64)
    variance = (1 + (k[:, None].square() + k.square()) / 4).pow(-2).reshape(-1)
    cosines = torch.cos(torch.pi * (k + 0.5) * k[:, None] / SIDE) * (2 / SIDE) ** 0.5
    cosines[0] /= 2**0.5
    return variance / variance.mean(), torch.kron(cosines, cosines).T.contiguous()


def model(steps: int, churn: float) -> Target:
    """The exact denoiser of the prior; ancestral (churn 1) or an ODE (0)."""
    variance, axes = spectrum()

    def denoiser(x: Tensor, sigma: Tensor) -> Tensor:
        kept = variance.to(x) / (variance.to(x) + sigma.to(x).reshape(-1, 1).square())
        return ((x @ axes.to(x)) * kept) @ axes.T.to(x)

    return edm(denoiser, karras_sigmas(steps, 0.02, 20.0), shape=SIDE**2, churn=churn, dtype=torch.float32)


def truth(seed: int) -> Truth:
    """A draw of the prior, eight random places, and kriging from them."""
    generator, (variance, axes) = torch.Generator().manual_seed(seed), spectrum()
    field = (axes * variance.sqrt()) @ torch.randn(SIDE**2, generator=generator, dtype=torch.float64)
    seen = torch.randperm(SIDE**2, generator=generator)[:SEEN]
    covariance = (axes * variance) @ axes.T
    guess = covariance[:, seen] @ torch.linalg.solve(covariance[seen][:, seen], field[seen])
    matrix = torch.eye(SIDE**2, dtype=torch.float64)[seen]
    return Truth(field, matrix, field[seen], float((guess - field).norm()))


class Entry(NamedTuple):
    """A method: the model given a truth, what is run on it, backward passes an evaluation, and the setting."""

    label: str
    target: Callable[[Truth], Target]
    method: AnyMethod
    passes: int = 0
    setting: str = ""


def _guided(target: Target, way: str, weight: float = 1.0) -> Callable[[Truth], Target]:
    return lambda case: posterior(target, case.matrix, case.values, 0.0, way=way, iterations=ITERATIONS, weight=weight)


def run(quick: bool, tell: Tell) -> Outcome:
    """Error of the mean over kriging's, for several truths."""
    scale = QUICK if quick else FULL
    noisy, quiet = model(scale.steps, 1.0), model(scale.steps, 0.0)
    tell("inverse problem: tuning DPS")
    trial = [truth(1000)]  # the weight of DPS with the smallest error on a truth of its own

    def loss(weight: float) -> float:
        return float(_row(Entry("DPS", _guided(noisy, "dps", weight), PROJECTION), trial, scale.n)["ratio"])

    weight, _ = require(tune(WEIGHTS[:: scale.stride], loss, lambda weight: None))
    entries = [
        Entry("final projection", lambda case: noisy, PROJECTION),
        Entry("projected", lambda case: noisy, PLAIN["projected"]),
        Entry("Algorithm 2", lambda case: noisy, CASAL.algorithm2(0.01), 0, "rho = 0.01"),
        Entry("CASAL", lambda case: noisy, CASAL(10.0), 0, "rho = 10"),
        *(Entry(label, lambda case: noisy, method) for label, method in UNTUNED.items()),
        Entry("DPS, tuned + projection", _guided(noisy, "dps", weight), PROJECTION, 1, f"weight {weight:.2g}"),
        Entry("moment matching + projection", _guided(noisy, "moment"), PROJECTION, ITERATIONS + 1),
        Entry("moment matching (ODE) + projection", _guided(quiet, "moment"), PROJECTION, ITERATIONS + 1),
    ]
    truths, rows = [truth(seed) for seed in range(scale.truths)], []
    for entry in entries:
        tell(f"inverse problem: {entry.label}")
        rows.append(_row(entry, truths, scale.n))
    table = ResultTable.of(
        f"Inverse problem in {SIDE**2} dimensions, {SEEN} values and the norm known: {scale.n} chains, "
        f"{scale.truths} truths",
        (
            "method | ratio: error of the mean / kriging's, .3f | single: error of one sample / kriging's, .3f",
            COST,
            "passes: with backward passes, .0f | setting",
        ),
        [*rows, {"method": "kriging", "ratio": 1.0}],
        note="± is one standard error over truths. DPS and moment matching see the observations; all end on the whole "
        "set. The last count takes a backward pass through the network for one evaluation.",
    )
    claims = []
    for row in rows:
        if row["method"].startswith("moment"):
            text = f"Inverse problem: {row['method']}"
            claims.append(at_most(f"{text}, error of the mean / kriging's", row["ratio"], 1.05))
            claims.append(at_most(f"{text}, evaluations with backward passes", row["passes"], 600, ".0f"))
    return Outcome("inverse", [table], claims, {"dots": dots("Inverse problem, 256-D", rows, "ratio", 1.0)})


def _row(entry: Entry, truths: Sequence[Truth], n: int) -> dict[str, Any]:
    results, ratios, singles = [], [], []
    for seed, case in enumerate(truths):
        results += runs(entry.target(case), case.constraint, entry.method, n, [seed])
        off = results[-1].samples - case.field
        ratios.append(float(off.mean(0).norm()) / case.kriging)
        singles.append(float(off.norm(dim=1).mean()) / case.kriging)
    row = figures(entry.label, results, ratio=ratios, single=singles)
    return {**row, "passes": row["evaluations"] * (1 + entry.passes), "setting": entry.setting}
