"""The pictures of the experiment."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from casal_lab.experiment import Array, Outcome
from casal_lab.reconstruction import figures as drawn
from casal_lab.reconstruction.compare import KRIGING_PROJECTED
from casal_lab.reconstruction.methods import DPS_PROJECTED, MATCHED_PROJECTED, MOMENT_PROJECTED, PROJECTED, REPAIRED
from casal_lab.reconstruction.models import GAUSSIAN, NETWORK
from casal_lab.reconstruction.study import Study

SHOWN = (PROJECTED, REPAIRED, DPS_PROJECTED, MATCHED_PROJECTED, MOMENT_PROJECTED)


def start(w: Array) -> Array:
    """The field at time 0."""
    return w[0]


def end(w: Array) -> Array:
    """The field at time 1."""
    return w[1]


def figures(outcome: Outcome) -> Mapping[str, Figure]:
    """Maps of both fields with the network, errors of all cases, error against evaluations."""
    data = outcome.data
    study: Study = data["study"]
    here, made = study.of(NETWORK), dict[str, Figure]()
    if any(name in here for name in SHOWN):
        title = "Navier-Stokes, network, first case: vorticity at time"
        made["navier_stokes_start"] = drawn.maps(f"{title} 0", here, SHOWN, data["truth"], None, start)
        made["navier_stokes_end"] = drawn.maps(
            f"{title} 1", here, SHOWN, data["truth"], data["residual"], end, "flow of w(0) - w(1)"
        )
    made["navier_stokes_errors"] = drawn.errors(
        "Navier-Stokes, everything strict: error of every case", study, 0, (GAUSSIAN, NETWORK)
    )
    if "curves" in data:
        floor = float(study.of(GAUSSIAN)[KRIGING_PROJECTED].error[: data["curve cases"]].mean())
        made["navier_stokes_evaluations"] = drawn.curves(
            "Navier-Stokes, Gaussian score: error against cost", data["curves"], floor
        )
    return made
