"""How often broken runs are detected, by kind; and errors of right and broken runs by verdict."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from casal_lab.drawing import FAINT, INK
from casal_lab.experiment import Outcome

COLOURS = {"trusted": "#009E73", "suspect": "#D55E00", "too few": "#999999", "unchecked": "#56B4E9"}


def figures(outcome: Outcome) -> dict[str, Figure]:
    """One figure, a row of dots for each kind of run: its error, coloured by the verdict."""
    found = [one for one in outcome.data["runs"] if not one.kind.endswith("chains")]
    if not found:
        return {}
    kinds = list(dict.fromkeys(one.kind for one in found))
    figure, axis = plt.subplots(figsize=(8.0, 0.34 * len(kinds) + 1.2))
    jitter = np.random.default_rng(0)
    for row, kind in enumerate(reversed(kinds)):
        for word, shade in COLOURS.items():
            errors = np.array([one.error for one in found if one.kind == kind and one.verdict == word])
            height = row + jitter.uniform(-0.3, 0.3, len(errors))
            axis.scatter(np.clip(errors, 0.1, 300.0), height, s=9, color=shade, linewidths=0, alpha=0.8)
    for limit in (3.0, 6.0):
        axis.axvline(limit, color=FAINT, linewidth=1, zorder=0)
    axis.set_xscale("log")
    axis.set_yticks(range(len(kinds)), reversed(kinds))
    axis.set_xlabel("largest error of a statistic, in standard errors")
    for word, shade in COLOURS.items():
        axis.scatter([], [], s=20, color=shade, label=word)
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, 1.1), ncols=3)
    axis.tick_params(colors=INK)
    return {"fidelity": figure}
