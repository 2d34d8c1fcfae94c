"""A Burgers state from four observations, with its mass and energy known, behind a Fourier decoder."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from matplotlib.axes import Axes
from torch import Generator, Tensor

import casal
from casal_lab.benchmark.answer import Reference
from casal_lab.demo.problem import Problem, weighted
from casal_lab.drawing import EXACT, label
from casal_lab.physics.burgers import Burgers

MODES, POINTS, NOISE = 8, 48, 0.3
SEEN = [4, 16, 28, 40]  # where the state is observed
DECODER = casal.Fourier(MODES, POINTS)  # 15 numbers -> 48 points


@cache
def known() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The truth (48,), what four points of it show, and the forecast."""
    wave = torch.arange(1, MODES, dtype=torch.float64).repeat(2)
    size = torch.cat([torch.tensor([1.5]), 4.0 / wave**1.5])
    generator = Generator().manual_seed(4)
    x = size * torch.randn(1001, len(size), generator=generator)
    place = torch.arange(POINTS, dtype=torch.float64) / POINTS
    sine = 1 + torch.sin(2 * torch.pi * place)
    equation = Burgers(POINTS, modes=MODES - 1)
    truth, *ensemble = equation.advance(sine + DECODER(x), time=0.3)
    noise = torch.randn(len(SEEN), generator=generator)
    x = DECODER.pinv(torch.stack(ensemble), x.shape[1:])
    return truth, truth[SEEN] + NOISE * noise, x.mean(0), x.T.cov()


def sample(method: Any, n: int, seed: int) -> casal.SampleResult:
    """Draw n samples by a method, such as "auto"."""
    truth, observed, mean, covariance = known()
    precision = torch.linalg.inv(covariance)

    def potential(x: Tensor) -> Tensor:  # -log (forecast x likelihood)
        misfit = (DECODER(x)[:, SEEN] - observed) / NOISE
        off = x - mean
        return ((off @ precision) * off).sum(1) / 2 + misfit.square().sum(1) / 2

    std = covariance.diagonal().sqrt()
    start = casal.GaussianStart(len(mean), std, mean, torch.float64)
    model = casal.energy(potential, steps=800, step_size="auto", init=start)
    goal = casal.MassEnergy(truth.sum(), truth.square().sum())
    return casal.sample(model, goal, method, n=n, decoder=DECODER, seed=seed)


# ------------------------------------------------------------------ exact answer, quantities, picture

DRAWS, RADII = 100_000, 300


def exact() -> Reference:
    """Gaussian draws given observations and mass, moved along rays to the sphere of the energy.

    The first coefficient is the mass, the others have a given norm r. The direction u of a draw has the density
    integral p(s u) s^(d - 1) ds, so the point r u has the weight p(r u) over it.
    """
    truth, observed, mean, covariance = known()
    rows = DECODER(torch.eye(len(mean), dtype=torch.float64)).T[SEEN]  # (4, 15)
    precision = torch.linalg.inv(covariance)
    pull = precision @ mean + rows.T @ observed / NOISE**2
    precision = precision + rows.T @ rows / NOISE**2
    first = truth.sum() / POINTS**0.5
    pull, precision = pull[1:] - precision[1:, 0] * first, precision[1:, 1:]

    covariance = torch.linalg.inv(precision)
    white = torch.randn(DRAWS, len(pull), generator=Generator().manual_seed(2), dtype=torch.float64)
    x = covariance @ pull + white @ torch.linalg.cholesky(covariance).T
    length, r = x.norm(dim=1), (truth.square().sum() - first**2).sqrt()
    u = x / length[:, None]
    bend, slope = (u @ precision * u).sum(1), u @ pull  # log p(s u) = slope s - bend s^2 / 2
    s = torch.linspace(0.0, float(2 * length.max()), RADII + 1, dtype=torch.float64)[1:, None]
    log_rays = torch.logsumexp(slope * s - bend * s**2 / 2 + (len(pull) - 1) * s.log(), dim=0)
    points = DECODER(torch.cat([first.expand(DRAWS, 1), r * u], dim=1))
    return weighted(points, slope * r - bend * r**2 / 2 - log_rays)


def draw(axis: Axes, z: Tensor, exact: Reference, colour: str) -> None:
    """Nine of ten samples lie in the band at each point; lines bound the exact band."""
    place = torch.arange(POINTS) / POINTS
    low, high = torch.quantile(z, torch.tensor([0.05, 0.95], dtype=z.dtype), dim=0)
    axis.fill_between(place, low, high, color=colour, alpha=0.45, lw=0)
    chosen = torch.multinomial(exact.weights, 20_000, replacement=True, generator=Generator().manual_seed(3))
    for edge in torch.quantile(exact.points[chosen], torch.tensor([0.05, 0.95], dtype=z.dtype), dim=0):
        axis.plot(place, edge, color=EXACT, lw=1.0)
    axis.plot(place[SEEN], known()[1], "x", color=EXACT, ms=6)
    label(axis, xlabel="place", ylabel="state", xlim=(0, 1), ylim=(-1.7, 2.9))


PROBLEM = Problem(
    title="A Burgers state with mass and energy",
    about="A forecast by the Burgers equation and four noisy observations. The equation conserves mass and energy, so "
    "the analysis must have those of the truth. The model has 15 Fourier coefficients, the state 48 points.",
    n=2000,
    sample=sample,
    exact=exact,
    source="Exact answer: 100,000 weighted draws",
    quantities=lambda z: z[:, ::3],
    told="the means of the state at 16 points",
    draw=draw,
    picture="Band of 90 % of the samples, exact band as lines, observations as crosses",
)
