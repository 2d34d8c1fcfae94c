"""The pictures of the experiment."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from casal_lab.darcy.setup import UNIT
from casal_lab.experiment import Array, Outcome
from casal_lab.reconstruction import figures as drawn
from casal_lab.reconstruction.compare import KRIGING_PROJECTED
from casal_lab.reconstruction.methods import DPS_PROJECTED, MOMENT_PROJECTED, PROJECTED, REPAIRED
from casal_lab.reconstruction.models import GAUSSIAN, NETWORK
from casal_lab.reconstruction.study import Study

SHOWN = (PROJECTED, REPAIRED, DPS_PROJECTED, MOMENT_PROJECTED)


def logarithm(z: Array) -> Array:
    """s = log2(a / 6)."""
    return z[0]


def about_the_mean(z: Array) -> Array:
    """1000 (u - mean of u)."""
    shown: Array = 1000.0 * UNIT * z[1]
    return shown


def figures(outcome: Outcome) -> Mapping[str, Figure]:
    """Maps of both fields with the network, errors of all cases, error against evaluations."""
    data = outcome.data
    study: Study = data["study"]
    here, made = study.of(NETWORK), dict[str, Figure]()
    if any(name in here for name in SHOWN):
        title = "Darcy flow, network, first case (per cent: error of u)"
        made["darcy_coefficient"] = drawn.maps(f"{title}: log2(a / 6)", here, SHOWN, data["truth"], None, logarithm)
        made["darcy_solution"] = drawn.maps(
            f"{title}: 1000 (u - mean of u)",
            here,
            SHOWN,
            data["truth"],
            data["residual"],
            about_the_mean,
            "residual / source",
        )
    made["darcy_errors"] = drawn.errors("Darcy flow: error of u in every case", study, 0, (GAUSSIAN, NETWORK))
    if "curves" in data:
        floor = float(study.of(GAUSSIAN)[KRIGING_PROJECTED].error[: data["curve cases"]].mean())
        made["darcy_evaluations"] = drawn.curves(
            "Darcy flow, Gaussian score: error of u against cost", data["curves"], floor
        )
    return made
