"""Portfolios: weights that sum to one, none above a quarter, preferred by a Gaussian utility."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.axes import Axes
from torch import Generator, Tensor

import casal
from casal_lab.benchmark.answer import Reference
from casal_lab.demo.problem import Problem, weighted
from casal_lab.drawing import EXACT, FAINT, label

ASSETS, CAP = 8, 0.25
RETURN = torch.linspace(0.03, 0.10, ASSETS, dtype=torch.float64)
RISK = torch.linspace(0.08, 0.28, ASSETS, dtype=torch.float64)
COVARIANCE = torch.outer(RISK, RISK) * (0.3 + 0.7 * torch.eye(ASSETS))


def regret(w: Tensor) -> Tensor:
    """-log density: risk is bad, return is good. (n, 8) -> (n,)."""
    utility = w @ RETURN - 2.0 * ((w @ COVARIANCE) * w).sum(1)
    return -1500 * utility


def sample(method: Any, n: int, seed: int) -> casal.SampleResult:
    """Draw n samples by a method, such as "auto"."""
    start = casal.GaussianStart(ASSETS, 0.3, 1 / ASSETS, torch.float64)
    model = casal.energy(regret, steps=300, step_size="auto", init=start)
    budget = casal.Affine(torch.ones(1, ASSETS), [1.0])
    allowed = casal.Box(0.0, CAP) & budget
    return casal.sample(model, allowed, method, n=n, seed=seed)


# ------------------------------------------------------------------ exact answer, quantities, picture

DRAWS = 2_000_000


def exact() -> Reference:
    """Uniform draws of the simplex, those within the cap, weighted by the density."""
    spacings = torch.rand(DRAWS, ASSETS, generator=Generator().manual_seed(1), dtype=torch.float64).log()
    w = spacings / spacings.sum(1, keepdim=True)
    w = w[(w <= CAP).all(1)]
    return weighted(w, -regret(w))


def draw(axis: Axes, z: Tensor, exact: Reference, colour: str) -> None:
    """Bars from the tenth to the ninetieth percentile of each weight, and lines at the exact ones."""
    level = torch.tensor([0.1, 0.5, 0.9], dtype=z.dtype)
    chosen = torch.multinomial(exact.weights, 20_000, replacement=True, generator=Generator().manual_seed(3))
    place = torch.arange(1, ASSETS + 1)
    low, middle, high = z.quantile(level, dim=0)
    axis.bar(place, high - low, bottom=low, width=0.55, color=colour, alpha=0.55, lw=0)
    axis.plot(place, middle, "o", color=colour, ms=4)
    for edge in exact.points[chosen].quantile(level, dim=0):
        axis.plot(place, edge, "_", color=EXACT, ms=11, mew=1.3)
    for bound in (0.0, CAP):
        axis.axhline(bound, color=FAINT, lw=1, zorder=0)
    label(axis, xlabel="asset, by rising return and risk", ylabel="weight", ylim=(-0.03, 0.5))


PROBLEM = Problem(
    title="A portfolio on a capped simplex",
    about="Weights of eight assets that sum to one, none negative and none above a quarter. The density prefers return "
    "and shuns risk.",
    n=2000,
    sample=sample,
    exact=exact,
    source="Exact answer: 295,000 weighted draws",
    quantities=lambda z: torch.cat([z, z.square()], dim=1),
    told="the means of the eight weights and of their squares",
    draw=draw,
    picture="From the 10th to the 90th percentile of each weight; short lines are the exact 10th, 50th and 90th",
)
