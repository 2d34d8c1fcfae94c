"""How much is run, what the paper has, and what the pictures show: the Gaussian score and the network."""

from __future__ import annotations

from torch import Tensor

from casal_lab.darcy.setup import COSINES, FULL, QUICK, SEEN, SINES, equation, net, prior, task
from casal_lab.experiment import Origin
from casal_lab.physics.darcy import CELLS, HIGH, LOW
from casal_lab.reconstruction.compare import Scale
from casal_lab.reconstruction.methods import Effort
from casal_lab.reconstruction.origins import shared
from casal_lab.reconstruction.study import Published
from casal_lab.reconstruction.whole_run import Plan, Reconstruction

PAPER = {
    "projected diffusion": Published(22.0, 1e-5),
    "penalty": Published(23.0, 25.0),
    "CASAL": Published(10.0, 2e-5),
}
"""The paper's table; it does not say of which field the error is, nor what the violation is relative to."""

LIMIT = 1e-10
"""Largest violation of a strict sample: 1e-8 %."""

SECTION = "section C.5"
SOURCE = f"{SECTION}, table on Darcy"

NOTE = (
    "The error is that of u, |mean of u - u| / |u|; that of a is next to it. Violation: the largest of "
    "|residual| / source over cells and |z_k - seen_k| / (|z_k| + |seen_k|) over what is seen. Projections inside a "
    "run take one Gauss-Newton step from the last point, those of samples as many as it takes."
)

PLANS = {
    False: Plan(
        [(Scale(20, 10, Effort(40, 100), 3, 2, 1, 0, 40), Scale(20, 10, Effort(40, 40), 3, 2, 1, 0))],
        (10, 20, 40),
        2,
        FULL,
        curve_samples=5,
    ),
    True: Plan(
        [(Scale(2, 3, Effort(10, 15), 1, 2, 4, 0), Scale(2, 2, Effort(8, 8), 1, 2, 4, 0))],
        (5, 10),
        1,
        QUICK,
        curve_samples=2,
    ),
}
"""Full and quick. A projection takes milliseconds a chain and step."""


def residual_map(z: Tensor) -> Tensor:
    """The residual of an event (2, cells, cells), relative to the source 1."""
    return equation(z[None].double()).reshape(z.shape[1:])


DARCY = Reconstruction(
    "darcy",
    PLANS,
    prior,
    net,
    lambda known, seed: [task(known, seed)],
    residual_map,
    PAPER,
    SOURCE,
    NOTE,
    beside="Errors are those of u; the paper does not say of which field, nor what its violation is relative to.",
    limit=LIMIT,
    counted="training pairs",
)

ORIGINS = (
    Origin("grid", f"{CELLS} x {CELLS}", "paper", SECTION),
    Origin("coefficient", f"two materials, {LOW:g} and {HIGH:g}", "ours", "those of DiffusionPDE"),
    Origin("latent", f"{COSINES} x {COSINES} cosines, {SINES} x {SINES} sines", "ours", "the paper: Fourier space"),
    Origin("cells seen", f"{SEEN} of each field", "paper", f"{SECTION}: 25, of which field it does not say"),
    Origin("known exactly", "the equation in every cell", "paper", SECTION),
    Origin("field whose error counts", "u", "ours", "the paper does not say"),
    *shared(
        PLANS[False],
        FULL,
        Origin("samples of a case", f"{PLANS[False].scales[0][0].samples}", "paper", SECTION),
    ),
)
"""Where the constants come from."""
