"""Do samples of a diffusion model follow its conditional law on a set? Six cases with a reference, all methods."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import date

import torch

from casal import __version__
from casal.lab.problems import (
    conditional_gaussian,
    conditional_images,
    conditional_inverse,
    conditional_mixture,
    conditional_network,
    conditional_quadrotor,
)
from casal.lab.problems.base import Experiment, Outcome
from casal.lab.problems.conditional_base import Part, Tell

CASES: dict[str, Callable[[bool, Tell], Part]] = {
    "mixtures": conditional_mixture.run,
    "quadrotor": conditional_quadrotor.run,
    "gaussian": conditional_gaussian.run,
    "network": conditional_network.run,
    "inverse": conditional_inverse.run,
    "images": conditional_images.run,
}
"""A case joins by a file and a line here."""


def run(quick: bool, labels: Sequence[str] | None, tell: Tell) -> Outcome:
    """All cases, or those named. The targets are for full runs; a quick one has no verdicts."""
    began = time.perf_counter()
    parts, seconds = {}, {}
    for name, case in CASES.items():
        if labels is None or name in labels:
            start = time.perf_counter()
            parts[name] = case(quick, tell)
            seconds[name] = round(time.perf_counter() - start, 1)
    return Outcome(
        "conditional",
        [table for part in parts.values() for table in part.tables],
        [] if quick else [claim for part in parts.values() for claim in part.claims],
        {
            "dots": [dot for part in parts.values() for dot in part.dots],
            **{key: value for part in parts.values() for key, value in part.data.items()},
        },
        {
            "date": date.today().isoformat(),
            "casal": __version__,
            "torch": str(torch.__version__),
            "quick": quick,
            "seconds": seconds,
        },
        time.perf_counter() - began,
    )


EXPERIMENT = Experiment(
    "conditional",
    "Do samples of a diffusion model follow its conditional law on a set?",
    tuple(CASES),
    run,
)
