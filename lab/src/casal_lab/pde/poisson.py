"""The Poisson equation (paper, appendix): a field from few of its points, its mass known.

Question: which sampler of a diffusion model reconstructs a field best if its mass must hold exactly?

Set-up: solutions on 100 x 100 points with random boundaries and sources, a latent of 16 x 16 cosines; one tenth of the
points seen without noise. As printed, only the mass is strict, and what is seen guides the samples.

The exact answer: with the Gaussian score, kriging (``reconstruction.kriging``). The paper claims that CASAL has
an error of 5 %, projection 15 % and a penalty 14 %, at equal cost.

The Poisson equation of the paper's appendix: fields, latent, network, and what is known of a field.

-Laplacian u = f on a grid of 100 x 100 points. The boundary is two to six constant pieces and an offset; f is one to
three blobs of random place and strength. (With one fixed blob, latents fill only 60 of 256 dimensions, and a network of
this size learns nothing beyond the Gaussian in a minute.) The latent holds the 16 x 16 lowest cosines.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from casal import DCT, Constraint, ObservedMassEnergy, PerChain
from casal.decoders import Transform
from casal_lab.drawing import writer
from casal_lab.experiment import Experiment, Origin
from casal_lab.nets import WienerUNet
from casal_lab.pde.compare import Scale
from casal_lab.pde.figures import Map, pictures
from casal_lab.pde.methods import (
    EXACT_PROJECTED,
    LABELS,
    MATCHED_PROJECTED,
    PENALTY,
    PRINTED,
    PROJECTED,
    RELEASED,
    REPAIRED,
    Effort,
)
from casal_lab.pde.models import trained
from casal_lab.pde.prior import Prior, Training, fit_prior
from casal_lab.pde.study import Plan, Published, Reconstruction, shared
from casal_lab.pde.task import Task, sensors
from casal_lab.physics.poisson import POINTS, mass, random_solutions, residual

MODES = 16
SEEN = POINTS**2 // 10
SAMPLES = 50
"""Of a case, as in the paper."""


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
    """As printed; points are drawn from a seed."""
    index = sensors(POINTS**2, SEEN, seed)
    return [Task.of("as printed", known, index, mass_only, mass_row(known), guided=True, pixels=True)]


# ------------------------------------------------------------------ how much is run, and what the paper has

PAPER = {
    "projected diffusion": Published(15.0, 2e-7, 0.34),
    "penalty": Published(14.0, 25.0, 0.33),
    "CASAL": Published(5.0, 2e-7, 0.32),
}
"""The paper's table."""

SECTION = "section C.5"
SOURCE = f"{SECTION}, table on Poisson"

NOTE = "Violation: |sum u - M| / (sqrt N |u| + |M|)."

SMALL = (Scale(3, 4, Effort(20, 20), 2, 2, 6), Scale(2, 3, Effort(15, 12), 1, 2, 6))
PLANS = {
    False: Plan(
        [(Scale(20, SAMPLES, Effort(100, 100), 3, 3, 1), Scale(10, SAMPLES, Effort(40, 30), 2, 3, 1))],
        (12, 25, 50, 100),
        5,
        FULL,
        curve_samples=5,
    ),
    True: Plan([SMALL], (10, 20), 2, QUICK, constant=(10, 20)),
}
"""Full and quick."""


def residual_map(u: Tensor, truth: Tensor) -> Tensor:
    """-Laplacian u - f at the inner points, with the f of the true field; a zero frame around them."""
    none = torch.zeros_like(truth)
    return torch.nn.functional.pad(residual(u[None], none) - residual(truth[None], none), (1, 1, 1, 1))[0]


POISSON = Reconstruction(
    "poisson",
    PLANS,
    prior,
    net,
    tasks,
    residual_map,
    PAPER,
    SOURCE,
    NOTE,
    beside="Task 'as printed': one tenth seen, by guidance; only the mass strict.",
)

ORIGINS = (
    Origin("grid", f"{POINTS} x {POINTS}", "paper", SECTION),
    Origin("boundary", "random", "paper", f"{SECTION}; two to six constant pieces and an offset are ours"),
    Origin("source", "one to three random blobs", "ours", "with one fixed source a network learns nothing new"),
    Origin("latent", f"{MODES} x {MODES} cosines", "ours", "the paper says: in Fourier space; fields are not periodic"),
    Origin("points seen", "10 %, without noise", "paper", SECTION),
    Origin("how they enter", "guidance by DPS, one weight for all methods", "ours", f"{SECTION} names no method"),
    Origin("known exactly", "the mass", "paper", SECTION),
    *shared(
        PLANS[False],
        FULL,
        Origin("samples of a case", f"{SAMPLES}", "paper", SECTION),
    ),
)
"""Where the constants come from."""


SHOWN = (PENALTY, PROJECTED, PRINTED, RELEASED, REPAIRED, MATCHED_PROJECTED)
FIGURES = pictures(
    "poisson",
    [Map("maps", "Poisson as printed, network, first case", SHOWN, residual="- Laplacian u - f")],
    {"errors": "Poisson as printed: error of every case"},
    "Poisson as printed, Gaussian score: error against cost",
    of_truth=True,
)


METHODS = tuple(label for label in LABELS if label != EXACT_PROJECTED)
"""Methods with a model; the answers in closed form are always there."""

EXPERIMENT = Experiment(
    "poisson",
    "Which sampler reconstructs a solution of the Poisson equation best, if its mass must hold?",
    METHODS,
    POISSON.run,
    writer(FIGURES),
    run_seed=POISSON.run_seed,
    module="casal_lab.pde.poisson",
    origins=ORIGINS,
)
