"""The field problem: the first coefficient of every method against its exact density."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from casal.problems.base import Outcome
from casal.report.style import EXACT, colour


def figures(outcome: Outcome) -> dict[str, Figure]:
    """A small histogram for each method, all on the same axes."""
    first, grid, cdf = outcome.data["first"], outcome.data["grid"], outcome.data["cdf"]
    density = np.gradient(cdf, grid)
    distances = {row["method"]: row["w1"] for row in outcome.tables[0].rows}
    columns = 5
    lines = -(-len(first) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(2.3 * columns, 1.9 * lines), sharex=True, sharey=True, squeeze=False
    )
    for axis, (label, values) in zip(axes.flat, first.items(), strict=False):
        axis.hist(values, bins=np.linspace(-4, 4, 65).tolist(), density=True, color=colour(label), alpha=0.75)
        axis.plot(grid, density, color=EXACT, linewidth=1)
        axis.set_title(f"{label}\nW1 = {distances[label]:.3f}", fontsize=9)
        axis.set(xlim=(-4, 4), yticks=[])
    for axis in list(axes.flat)[len(first) :]:
        axis.set_axis_off()
    for axis in axes[-1]:
        axis.set_xlabel("first coefficient")
    figure.suptitle("Energy-constrained fields: first coefficient of each method (line: exact conditional law)")
    return {"field": figure}
