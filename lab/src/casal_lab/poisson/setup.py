"""The Poisson equation of the paper's appendix: fields, latent, network, and what is known of a field.

-Laplacian u = f on a grid of 100 x 100 points. The boundary is two to six constant pieces and an offset; f is one to
three blobs of random place and strength. (With one fixed blob, latents fill only 60 of 256 dimensions, and a network of
this size learns nothing beyond the Gaussian in a minute.) The latent holds the 16 x 16 lowest cosines. Two tasks: one
tenth of the points seen without noise and the mass known, as in the paper; and 100 points seen with noise, where only
the mass is strict.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from casal import DCT, Constraint, ObservedMassEnergy, PerChain
from casal.decoders import Transform
from casal_lab.nets import WienerUNet
from casal_lab.physics.poisson import POINTS, mass, random_solutions
from casal_lab.reconstruction.models import trained
from casal_lab.reconstruction.prior import Prior, Training, fit_prior
from casal_lab.reconstruction.task import Task, Weight, sensors

MODES = 16
SEEN = POINTS**2 // 10
FEW, NOISE = 100, 0.05
"""Points of the second task, and the noise of what is seen there; the fields have a standard deviation of 0.7."""

WEIGHTS = (Weight(30.0), Weight(60.0), Weight(100.0), Weight(200.0))
"""Of DPS on the second task, where larger ones diverge."""


FULL = Training(12_000, 3_000, 1_000)
QUICK = Training(2_000, 1_000, 60)


def decoder(scale: Tensor | None) -> Transform:
    """16 x 16 cosines on the grid."""
    return DCT(MODES, (POINTS, POINTS), scale=scale)


def symmetries(x: Tensor, generator: torch.Generator) -> Tensor:
    """Each latent mirrored along either axis, and transposed, with probability one half each.

    The mirror of cos(pi k (i + 1/2) / n) is (-1)^k of it.
    """
    signs = 1.0 - 2.0 * (torch.arange(MODES) % 2).to(x)
    grid = x.reshape(len(x), MODES, MODES)
    rows, columns, turned = (torch.rand((3, len(x), 1, 1), generator=generator) < 0.5).to(x.device)
    grid = torch.where(rows, grid * signs[:, None], grid)
    grid = torch.where(columns, grid * signs, grid)
    return torch.where(turned, grid.transpose(1, 2), grid).reshape(x.shape)


@lru_cache(maxsize=2)
def prior(training: Training) -> Prior:
    """What is known of the fields."""
    return fit_prior(
        "poisson_blobs",
        lambda n, generator: random_solutions(n, generator, blobs=True),
        decoder,
        fields=training.fields,
        residuals=training.residuals,
        augment=symmetries,
        copies=4,
    )


def net(training: Training) -> WienerUNet:
    """The trained network."""
    lift = DCT(MODES, (MODES, MODES)).matrix((MODES**2,), torch.empty(0, dtype=torch.float64))
    return trained(prior(training), (1, MODES, MODES), lift, iterations=training.iterations, positions=4, copies=4)


def seen_and_mass(index: Tensor, fields: Tensor, values: Tensor) -> Constraint:
    """What is seen, and the mass."""
    return ObservedMassEnergy(index, PerChain(values), mass=PerChain(mass(fields)))


def mass_only(index: Tensor, fields: Tensor, values: Tensor) -> Constraint:
    """The mass."""
    return ObservedMassEnergy([], PerChain(torch.zeros((len(fields), 0))), mass=PerChain(mass(fields)))


def mass_row(known: Prior) -> Tensor:
    """The row (1, d) that gives the mass of a latent, divided by sqrt N: the first cosine is the constant."""
    scale = known.decoder.scale
    row = torch.zeros((1, known.size), dtype=torch.float64)
    row[0, 0] = 1.0 if scale is None else float(scale[0])
    return row


def tasks(known: Prior, seed: int) -> list[Task]:
    """Both tasks, with points drawn from a seed."""
    row = mass_row(known)
    return [
        Task.of("10 % seen", known, sensors(POINTS**2, SEEN, seed), seen_and_mass, row, pixels=True),
        Task.of(
            "100 noisy",
            known,
            sensors(POINTS**2, FEW, seed + 500_000),
            mass_only,
            row,
            noise=NOISE,
            soft=True,
            pixels=True,
            weights=WEIGHTS,
        ),
    ]
