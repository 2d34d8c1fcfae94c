"""How much is run, what the paper has, and what the pictures show: both tasks, the Gaussian score and the network."""

from __future__ import annotations

import torch
from torch import Tensor

from casal_lab.experiment import Origin
from casal_lab.physics.poisson import POINTS, residual
from casal_lab.poisson.setup import FEW, FULL, MODES, NOISE, QUICK, net, prior, tasks
from casal_lab.reconstruction.compare import Scale
from casal_lab.reconstruction.methods import Effort
from casal_lab.reconstruction.origins import shared
from casal_lab.reconstruction.study import Published
from casal_lab.reconstruction.whole_run import Plan, Reconstruction

PAPER = {
    "projected diffusion": Published(15.0, 2e-7, 0.34),
    "penalty": Published(14.0, 25.0, 0.33),
    "CASAL": Published(5.0, 2e-7, 0.32),
}
"""The paper's table."""

SECTION = "section C.5"
SOURCE = f"{SECTION}, table on Poisson"

NOTE = (
    "Violation: the largest of |u_k - seen_k| / (max |u| + max |seen|) over points that are seen and "
    "|sum u - M| / (sqrt N |u| + |M|)."
)

SMALL = (Scale(3, 4, Effort(20, 20), 2, 2, 4, 1), Scale(2, 3, Effort(15, 12), 1, 2, 4, 0))
PLANS = {
    False: Plan(
        [
            (Scale(20, 10, Effort(100, 150), 4, 3, 1, 0, 40), Scale(20, 10, Effort(80, 50), 4, 3, 1, 0)),
            (Scale(20, 10, Effort(100, 100), 4, 3, 1, 2, 40), Scale(20, 10, Effort(50, 40), 3, 3, 1, 1)),
        ],
        (12, 25, 50, 100),
        5,
        FULL,
        curve_samples=5,
    ),
    True: Plan([SMALL, SMALL], (10, 20), 2, QUICK),
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
    beside="Task '10 % seen'. Times are those of the runs.",
)

ORIGINS = (
    Origin("grid", f"{POINTS} x {POINTS}", "paper", SECTION),
    Origin("boundary", "random", "paper", f"{SECTION}; two to six constant pieces and an offset are ours"),
    Origin("source", "one to three random blobs", "ours", "with one fixed source a network learns nothing new"),
    Origin("latent", f"{MODES} x {MODES} cosines", "ours", "the paper says: in Fourier space; fields are not periodic"),
    Origin("points seen", "10 %, without noise", "paper", SECTION),
    Origin("second task", f"{FEW} points, noise {NOISE:g}", "ours", "least squares alone solves the first"),
    Origin("known exactly", "the mass", "paper", SECTION),
    *shared(
        PLANS[False],
        FULL,
        Origin("samples of a case", f"{PLANS[False].scales[0][0].samples}", "ours", "the paper has 50"),
    ),
)
"""Where the constants come from."""
