"""Pictures of the two ablations of the field problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from casal.lab.problems.base import Array
from casal.lab.problems.field_ablations import PAPER_RHO, schedules
from casal.lab.problems.field_setup import STIFF
from casal.lab.report.style import EXACT, FAINT, INK, colour


def rho_ablation(rows: Sequence[Mapping[str, Any]], exact: Mapping[str, float]) -> Figure:
    """Share in the wrong mode: a panel for each set-up and number of steps, a group of dots for each schedule."""
    names = list(schedules(STIFF))
    panels = list(dict.fromkeys((row["setup"], row["steps"]) for row in rows))
    figure, axes = plt.subplots(1, len(panels), figsize=(2.75 * len(panels), 3.4), sharey=True, squeeze=False)
    for axis, (setup, steps) in zip(axes.flat, panels, strict=True):
        shown = [row for row in rows if (row["setup"], row["steps"]) == (setup, steps)]
        for k, row in enumerate(shown):
            place = np.arange(len(names)) + 0.16 * (k - (len(shown) - 1) / 2)
            axis.errorbar(
                place,
                [100 * row[name] for name in names],
                [200 * row[f"{name}_se"] for name in names],
                fmt="o",
                markersize=4.5,
                color=colour(row["variant"]),
                label=row["variant"],
            )
        printed = [100 * PAPER_RHO.get((steps, name), np.nan) for name in names]
        axis.plot(np.arange(len(names)) + 0.33, printed, "_", markersize=11, color=INK, label="as printed")
        axis.axhline(100 * exact[setup], color=EXACT, linewidth=0.8, linestyle=":")
        axis.set_xticks(range(len(names)), [name.replace(", ", "\n") for name in names], fontsize=8)
        axis.set_title(f"{'paper set-up' if setup == STIFF.name else setup}, {steps} steps", fontsize=9)
        axis.set(xlim=(-0.5, len(names) - 0.3), ylim=(-2, 62))
        axis.grid(axis="y", color=FAINT, linewidth=0.4)
    axes[0, 0].set_ylabel("samples at x1 > 0, %")
    axes[0, -1].legend(fontsize=8, loc="upper right")
    figure.suptitle("Schedules of ρ (dotted: exact share; bars: two binomial errors)", fontsize=11, fontweight="bold")
    return figure


def dual_ablation(traces: Mapping[float, Mapping[float, tuple[Array, Array]]], bounds: Mapping[float, float]) -> Figure:
    """The mean size of the dual along the run: a panel for each dual step, a line for each size at the start."""
    figure, axes = plt.subplots(1, len(traces), figsize=(4.6 * len(traces), 3.6), sharey=True, squeeze=False)
    for axis, (eta, lines) in zip(axes.flat, traces.items(), strict=True):
        shades = plt.get_cmap("viridis")(np.linspace(0.0, 0.88, len(lines)))
        for (size, (steps, norms)), shade in zip(lines.items(), shades, strict=True):
            axis.loglog(steps, norms, color=shade, label=f"σ = {size:g}")
        axis.axhline(bounds[eta], color=EXACT, linewidth=0.8, linestyle=":")
        axis.set(xlabel="step", ylim=(0.03, 9000))
        axis.set_title(f"dual step {eta:g} (dotted: converged below)", fontsize=9)
    axes[0, 0].set_ylabel("mean size of μ")
    axes[0, -1].legend(fontsize=8.5, ncols=3, loc="upper right")
    figure.suptitle("Forgetting the start of the dual", fontsize=11, fontweight="bold")
    return figure
