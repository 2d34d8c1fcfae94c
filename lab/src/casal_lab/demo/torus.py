"""A posterior on a torus: a density and a surface that are both plain functions."""

from __future__ import annotations

import math
from typing import Any

import torch
from matplotlib.axes import Axes
from torch import Tensor

import casal
from casal_lab.benchmark.answer import Reference
from casal_lab.demo.problem import Problem, weighted
from casal_lab.drawing import EXACT, label

LARGE, SMALL, NOISE = 2.0, 0.7, 0.8  # radii, noise of a measurement
SEEN = torch.tensor(
    [
        [0.9, 0.6, 0.4],
        [-0.4, 1.1, 0.8],
        [0.5, 0.9, 0.2],
    ],
    dtype=torch.float64,
)


def misfit(x: Tensor) -> Tensor:
    """-log posterior up to a constant: (n, 3) -> (n,)."""
    return (x[:, None] - SEEN).square().sum((1, 2)) / (2 * NOISE**2)


def torus(x: Tensor) -> Tensor:
    """Zero on the surface: (n, 3) -> (n, 1)."""
    ring = x[:, :2].norm(dim=1) - LARGE
    return (ring.square() + x[:, 2].square() - SMALL**2)[:, None]


def sample(method: Any, n: int, seed: int) -> casal.SampleResult:
    """Draw n samples by a method, such as "auto"."""
    start = casal.GaussianStart(3, std=2.0, dtype=torch.float64)
    model = casal.energy(misfit, steps=100, step_size="auto", init=start)
    surface = casal.Implicit(torus)
    return casal.sample(model, surface, method, n=n, seed=seed)


# ------------------------------------------------------------------ exact answer, quantities, picture

GRID = 300


def angles(z: Tensor) -> Tensor:
    """Angle around the axis in (-pi, pi), and in the tube in (0, 2 pi), whose pi is nearest to the axis: (n, 2)."""
    ring = torch.hypot(z[:, 0], z[:, 1])
    tube = torch.atan2(z[:, 2], ring - LARGE).remainder(2 * math.pi)
    return torch.stack([torch.atan2(z[:, 1], z[:, 0]), tube], dim=1)


def exact() -> Reference:
    """A grid of both angles; a patch has an area proportional to its distance from the axis."""
    angle = (torch.arange(GRID, dtype=torch.float64) + 0.5) * 2 * math.pi / GRID
    around, tube = (part.flatten() for part in torch.meshgrid(angle - math.pi, angle, indexing="ij"))
    ring = LARGE + SMALL * tube.cos()
    points = torch.stack([ring * around.cos(), ring * around.sin(), SMALL * tube.sin()], dim=1)
    return weighted(points, ring.log() - misfit(points))


def draw(axis: Axes, z: Tensor, exact: Reference, colour: str) -> None:
    """Samples in the plane of both angles, and the regions that hold 50 and 90 % of the exact distribution."""
    axis.plot(*angles(z[:: max(1, len(z) // 800)]).T, ".", color=colour, ms=2.5, alpha=0.6)
    ordered = exact.weights.sort(descending=True).values
    levels = [float(ordered[int((ordered.cumsum(0) < share).sum())]) for share in (0.9, 0.5)]
    u, v = (part.reshape(GRID, GRID) for part in angles(exact.points).T)
    # Weights are densities per angle: the area is in them, as it is in the density of dots.
    axis.contour(u, v, exact.weights.reshape(GRID, GRID), levels, colors=EXACT, linewidths=1.1)
    label(axis, xlabel="angle around the axis", ylabel="angle in the tube", xlim=(-3.15, 3.15), ylim=(0, 6.3))


def quantities(z: Tensor) -> Tensor:
    """Cosines and sines of both angles."""
    both = angles(z)
    return torch.cat([both.cos(), both.sin()], dim=1)


PROBLEM = Problem(
    title="A posterior on a torus",
    about="A point on a torus was measured three times with noise. The density and the surface are plain functions of "
    "tensors.",
    n=2000,
    sample=sample,
    exact=exact,
    source="Exact answer: a grid of both angles",
    quantities=quantities,
    told="the mean cosines and sines of both angles",
    draw=draw,
    picture="Both angles of the samples; lines enclose 50 and 90 % of the exact distribution",
)
