"""Do samples of a diffusion model follow its conditional distribution on a set? Seven cases, all methods.

Set-up: a model whose network is exact (mixtures on spheres, a correlated Gaussian, a quadrotor past obstacles, an
inverse problem, mixtures and fields in 64 and 256 dimensions) or trained (a mixture on a circle, images of given mass
and energy), and a set.

Nothing here is in the paper. All claims are targets of ours: distances to the reference that the weighted methods must
reach in a full run.

The exact answer is in closed form for mixtures and Gaussians, draws of the prior that avoid the obstacles for the
quadrotor, kriging for the inverse problem; for trained networks it is the model's own: its unconditional samples that
fall near the set.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from casal_lab.conditional import gaussian, images, inverse, many_dimensions, network, quadrotor, spheres
from casal_lab.conditional.figures import figures
from casal_lab.conditional.origins import ORIGINS
from casal_lab.drawing import writer
from casal_lab.experiment import Experiment, Outcome, Tell, stamp

CASES: dict[str, Callable[[bool, Tell], Outcome]] = {
    "mixtures": spheres.run,
    "quadrotor": quadrotor.run,
    "gaussian": gaussian.run,
    "network": network.run,
    "inverse": inverse.run,
    "dimensions": many_dimensions.run,
    "images": images.run,
}
"""A case joins by a file and a line here."""


@stamp
def run(quick: bool, labels: Sequence[str] | None, tell: Tell) -> Outcome:
    """All cases, or those named. The targets are for full runs; a quick one has no verdicts."""
    parts, seconds = {}, {}
    for name, case in CASES.items():
        if labels is None or name in labels:
            start = time.perf_counter()
            parts[name] = case(quick, tell)
            seconds[name] = round(time.perf_counter() - start, 1)
    data = {key: value for part in parts.values() for key, value in part.data.items()}
    return Outcome(
        "conditional",
        [table for part in parts.values() for table in part.tables],
        [] if quick else [claim for part in parts.values() for claim in part.claims],
        {**data, "dots": [dot for part in parts.values() for dot in part.data["dots"]]},
        {"quick": quick, "seconds": seconds},
    )


EXPERIMENT = Experiment(
    "conditional",
    "Do samples of a diffusion model follow its conditional distribution on a set?",
    tuple(CASES),
    run,
    writer(figures),
    origins=ORIGINS,
)
