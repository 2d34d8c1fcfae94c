"""A small problem with everything the experiments have: Gaussian fields on 12 points, of which a latent of 5 modes."""

from __future__ import annotations

import torch
from torch import Tensor

from casal import DCT, Constraint, ObservedMassEnergy, PerChain
from casal.decoders import Transform
from casal_lab.pde.prior import Prior, fit_prior
from casal_lab.pde.task import Task, sensors

POINTS, MODES = 12, 5
F64 = torch.float64


def draw(n: int, generator: torch.Generator) -> Tensor:
    """Cosines of falling size, all 12 of them, about 0.3."""
    size = 2.0 / (1 + torch.arange(POINTS, dtype=F64)) ** 1.5
    return 0.3 + DCT(POINTS, POINTS)(size * torch.randn((n, POINTS), generator=generator, dtype=F64))


def decoder(scale: Tensor | None) -> Transform:
    return DCT(MODES, POINTS, scale=scale)


def prior() -> Prior:
    return fit_prior("small", draw, decoder, fields=4000, residuals=2000)


def seen_and_mass(index: Tensor, fields: Tensor, values: Tensor) -> Constraint:
    return ObservedMassEnergy(index, PerChain(values), mass=PerChain(fields.sum(1)))


def task(known: Prior, count: int = 4, noise: float = 0.0, seed: int = 0) -> Task:
    row = torch.zeros((1, MODES), dtype=F64)
    row[0, 0] = 1.0
    return Task.of(
        "small", known, sensors(POINTS, count, seed), seen_and_mass, row, noise=noise, guided=noise > 0, pixels=True
    )
