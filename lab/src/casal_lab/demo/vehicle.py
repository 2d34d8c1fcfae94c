"""Drives of a vehicle in the plane past three discs."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.patches import Circle
from torch import Generator, Tensor

import casal
from casal_lab.benchmark.answer import Reference
from casal_lab.demo.problem import Problem
from casal_lab.drawing import INK, label

STEPS = 30
DISCS = [((1.0, 0.1), 0.3), ((2.0, -0.6), 0.35), ((2.1, 0.7), 0.35)]
TIME = torch.linspace(0, 1, STEPS, dtype=torch.float64)


def paths() -> Tensor:
    """From (speed, four waves of steering) to 30 points of the plane."""
    A = torch.zeros(STEPS, 2, 5, dtype=torch.float64)
    A[:, 0, 0] = 3 * TIME  # speed 1 covers three metres
    for k, size in enumerate([0.9, 0.5, 0.25, 0.15]):
        A[:, 1, k + 1] = size * torch.sin((k + 0.5) * torch.pi * TIME)
    return A.reshape(2 * STEPS, 5)


def sample(method: Any, n: int, seed: int) -> casal.SampleResult:
    """Draw n samples by a method, such as "auto"."""
    mean, std = torch.eye(5)[0], torch.tensor([0.1, 1.0, 1.0, 1.0, 1.0])
    start = casal.GaussianStart(5, std, mean, torch.float64)
    model = casal.energy(
        lambda x: ((x - mean) / std).square().sum(1) / 2,
        steps=800,
        step_size="auto",
        init=start,
    )
    decoder = casal.Linear(paths(), shape=(STEPS, 2))
    free = casal.Obstacles(discs=DISCS)
    return casal.sample(model, free, method, n=n, decoder=decoder, seed=seed)


# ------------------------------------------------------------------ exact answer, quantities, picture

DRAWS = 300_000


def exact() -> Reference:
    """All draws of the model that hit nothing."""
    x = torch.randn(DRAWS, 5, generator=Generator().manual_seed(1), dtype=torch.float64)
    x[:, 0] = 1 + 0.1 * x[:, 0]
    z = (x @ paths().T).reshape(DRAWS, STEPS, 2)
    hit = torch.stack([((z - torch.tensor(c)).norm(dim=2) < r).any(1) for c, r in DISCS]).any(0)
    return Reference.draws(z[~hit])


def routes(z: Tensor) -> Tensor:
    """Whether a drive passes above the first disc; below both others; between them: (n, 3)."""
    every = torch.arange(len(z))
    first, second = (z[every, (z[:, :, 0] - x).abs().argmin(1), 1] for x in (1.0, 2.05))
    return torch.stack([first > 0.1, second < -0.6, (second > -0.6) & (second < 0.7)], dim=1).to(z.dtype)


def draw(axis: Axes, z: Tensor, exact: Reference, colour: str) -> None:
    """Sixty drives and the discs."""
    for drive in z[:: max(1, len(z) // 60)]:
        axis.plot(*drive.T, color=colour, lw=0.7, alpha=0.55)
    for centre, radius in DISCS:
        axis.add_patch(Circle(centre, radius, color=INK, lw=0, zorder=3))
    label(axis, xlabel="metres ahead", ylabel="metres aside", xlim=(0, 3.3), ylim=(-1.35, 1.35), aspect="equal")


PROBLEM = Problem(
    title="A vehicle past obstacles",
    about="Drives in the plane with a random speed and four random waves of steering. Every one of 30 points must lie "
    "outside three discs; the points are a linear map of the five numbers.",
    n=3000,
    sample=sample,
    exact=exact,
    source="Exact answer: rejection",
    quantities=routes,
    told="the shares of drives above the first disc, below the other two, and between these",
    draw=draw,
    picture="Sixty drives and the three discs",
)
