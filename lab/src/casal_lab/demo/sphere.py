"""Smooth fields whose energy is given: a Gaussian density on a sphere in 16 dimensions."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.axes import Axes
from torch import Generator, Tensor

import casal
from casal_lab.benchmark.answer import Reference
from casal_lab.demo.problem import Problem, weighted
from casal_lab.drawing import EXACT, label

POINTS, ENERGY = 16, 7.0
WAVE = torch.fft.fftfreq(POINTS, 1 / POINTS, dtype=torch.float64)
VARIANCE = 1 / (1 + WAVE**2)  # long waves are larger than short ones


def filtered(x: Tensor, gain: Tensor) -> Tensor:
    """Multiply every wave of a field by its gain."""
    return torch.fft.ifft(gain * torch.fft.fft(x)).real


def start(n: int, generator: Generator) -> Tensor:
    """Draws of the model, whose energy is 2.9 on average."""
    x = torch.randn(n, POINTS, generator=generator, dtype=torch.float64)
    return filtered(x, VARIANCE.sqrt())


def sample(method: Any, n: int, seed: int) -> casal.SampleResult:
    """Draw n samples by a method, such as "auto"."""
    model = casal.langevin(
        lambda x: filtered(x, 1 / VARIANCE),  # gradient of -log p
        steps=300,
        step_size=0.02,
        init=start,
    )
    constraint = casal.Sphere(radius=ENERGY**0.5)
    return casal.sample(model, constraint, method, n=n, seed=seed)


# ------------------------------------------------------------------ exact answer, quantities, picture

DRAWS = 400_000


def spectrum(z: Tensor) -> Tensor:
    """Mean square of every wave, (n, 16); the sum is the energy."""
    return torch.fft.fft(z, norm="ortho").abs().square()


def exact() -> Reference:
    """Directions u of Gaussian draws, whose density is q(u)^(-d/2), q = u^T P u, weighted by exp(-E q / 2) q^(d/2)."""
    u = start(DRAWS, Generator().manual_seed(1))
    u = u / u.norm(dim=1, keepdim=True)
    q = (u * filtered(u, 1 / VARIANCE)).sum(1)
    return weighted(ENERGY**0.5 * u, POINTS / 2 * q.log() - ENERGY * q / 2)


def draw(axis: Axes, z: Tensor, exact: Reference, colour: str) -> None:
    """The spectrum of the samples on that of the exact distribution."""
    waves = range(POINTS // 2 + 1)
    axis.semilogy(waves, (exact.weights @ spectrum(exact.points))[: len(waves)], color=EXACT, lw=1.2)
    axis.semilogy(waves, spectrum(z).mean(0)[: len(waves)], "o", color=colour, ms=5)
    label(axis, xlabel="wave number", ylabel="mean square", ylim=(0.01, 6.0))


PROBLEM = Problem(
    title="A density on an energy sphere",
    about="Smooth random fields on a ring of 16 points. Their energy, the sum of squares, must be 7; "
    "the model alone has about 3.",
    n=2000,
    sample=sample,
    exact=exact,
    source="Exact answer: 400,000 weighted draws",
    quantities=lambda z: spectrum(z)[:, :5],
    told="the mean squares of the five longest waves",
    draw=draw,
    picture="Mean square of each wave, samples as dots and the exact answer as a line",
)
