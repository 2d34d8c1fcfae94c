"""How much is run, what the paper has, and what the pictures show: both tasks, the Gaussian score and the network."""

from __future__ import annotations

import torch
from torch import Tensor

from casal.lab.physics.poisson import residual
from casal.lab.poisson.setup import FULL, QUICK, net, prior, tasks
from casal.lab.reconstruction.compare import Scale
from casal.lab.reconstruction.methods import Effort
from casal.lab.reconstruction.study import Published
from casal.lab.reconstruction.whole_run import Plan, Reconstruction

PAPER = {
    "projected diffusion": Published(15.0, 2e-7, 0.34),
    "penalty": Published(14.0, 25.0, 0.33),
    "CASAL": Published(5.0, 2e-7, 0.32),
}
"""The paper's table."""

SOURCE = "section C.5, table on Poisson"

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
