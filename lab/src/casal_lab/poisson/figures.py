"""The pictures of the experiment."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from matplotlib.figure import Figure

from casal_lab.experiment import Outcome
from casal_lab.reconstruction import figures as drawn
from casal_lab.reconstruction.compare import KRIGING_PROJECTED
from casal_lab.reconstruction.methods import (
    DPS_PROJECTED,
    FINAL,
    LOOK_AHEAD,
    MATCHED_PROJECTED,
    MOMENT_PROJECTED,
    PROJECTED,
    REPAIRED,
)
from casal_lab.reconstruction.models import GAUSSIAN, NETWORK
from casal_lab.reconstruction.study import Study

SHOWN = (PROJECTED, REPAIRED, DPS_PROJECTED, MATCHED_PROJECTED, MOMENT_PROJECTED)


def figures(outcome: Outcome) -> Mapping[str, Figure]:
    """Maps of both tasks with the network, errors of all cases, error against evaluations."""
    data = outcome.data
    study: Study = data["study"]
    made = {}
    titles = ("one tenth of the points seen", "100 noisy points seen")
    for k, (title, chosen) in enumerate(
        zip(titles, (SHOWN, (FINAL, DPS_PROJECTED, MATCHED_PROJECTED, MOMENT_PROJECTED, LOOK_AHEAD)), strict=True)
    ):
        here = study.of(NETWORK, k)
        if any(name in here for name in chosen):
            made[f"poisson_maps_{k + 1}"] = drawn.maps(
                f"Poisson, {title}: network, first case",
                here,
                chosen,
                data["truth"],
                partial(data["residual"], truth=torch.as_tensor(data["truth"])),
                residual_name="- Laplacian u - f",
            )
        made[f"poisson_errors_{k + 1}"] = drawn.errors(
            f"Poisson, {title}: error of every case", study, k, (GAUSSIAN, NETWORK)
        )
    if "curves" in data:
        floor = float(study.of(GAUSSIAN)[KRIGING_PROJECTED].error[: data["curve cases"]].mean())
        made["poisson_evaluations"] = drawn.curves(
            "Poisson, one tenth seen, Gaussian score: error against cost", data["curves"], floor
        )
    return made
