"""Fields of the Burgers experiment: states with observations, one trajectory in figures, Hovmoeller pictures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from casal.physics.burgers import Burgers
from casal.problems.base import Array
from casal.problems.burgers_cycle import WINDOW
from casal.problems.burgers_runs import Runs
from casal.problems.burgers_scores import analysed
from casal.problems.burgers_setup import POINTS, SITES
from casal.report.style import EXACT, FAINT, colour

CLASSICAL = {"3D-Var, constrained": "#332288", "3D-Var": "#CC6677", "EnKF": "#999933", "SplitGibbs": "#D55E00"}
STATES = ("3D-Var", "unconstrained", "projected, A+ P A", "CASAL")
SEEN = (0, 2, 4)
"""Windows whose states are shown."""


def ink(label: str) -> str:
    """The colour of a method."""
    if label.startswith("DPS"):
        return "#999933"
    return next((tone for name, tone in CLASSICAL.items() if label.startswith(name)), colour(label))


def short(label: str) -> str:
    """A label for a narrow place."""
    return label.replace(", tuned + projection", " + projection")


def states(found: Mapping[str, Mapping[str, Runs]], which: int) -> Figure:
    """Analyses (mean of the members) of one trajectory at the first time of three windows."""
    figure, axes = plt.subplots(len(found), len(SEEN), figsize=(10.6, 2.5 * len(found)), sharex=True, squeeze=False)
    grid = Burgers(POINTS).grid.numpy()
    for line, (name, runs) in zip(axes, found.items(), strict=True):
        truth = next(iter(runs.values())).first.truth
        for axis, window in zip(line, SEEN, strict=True):
            for label in (label for label in STATES if label in runs):
                axis.plot(grid, runs[label].first.mean[window, which].numpy(), color=ink(label), linewidth=1.3)
            axis.plot(grid, analysed(truth)[window, which].numpy(), color=EXACT, linewidth=1.3, zorder=1)
            axis.plot(
                grid[list(SITES)],
                truth.observed[WINDOW * window, which].numpy(),
                "x",
                color=EXACT,
                markersize=6,
                markeredgewidth=1.6,
                zorder=5,
            )
            axis.set_title(f"set-up {name}, window {window + 1}", fontsize=9)
            axis.set_xlim(0, 2 * np.pi)
            axis.set_xticks([0, np.pi, 2 * np.pi], ["0", "π", "2π"])
        line[0].set_ylabel("u")
    for label in STATES:
        axes[0, 0].plot([], [], color=ink(label), label=label)
    axes[0, 0].plot([], [], color=EXACT, label="truth")
    axes[0, 0].plot([], [], "x", color=EXACT, label="observed")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=8)
    figure.suptitle("Analyses of one trajectory", fontsize=11, fontweight="bold")
    return figure


def trajectories(along: Mapping[str, Mapping[str, Mapping[str, Array]]]) -> Figure:
    """Mass, energy and error of the analysis at the ten observation times."""
    figure, axes = plt.subplots(len(along), 3, figsize=(10.8, 2.5 * len(along)), sharex=True, squeeze=False)
    heads = {"mass": "(mass - M) / sqrt(N E)", "energy": "energy / E", "l2": "relative error"}
    for line, (name, methods) in zip(axes, along.items(), strict=True):
        for axis, (key, head) in zip(line, heads.items(), strict=True):
            if key != "l2":
                axis.axhline(0.0 if key == "mass" else 1.0, color=EXACT, linewidth=0.8, zorder=0)
            for label, figures in methods.items():
                times = np.arange(1, len(figures[key]) + 1)
                axis.plot(times, figures[key], "o-", color=ink(label), markersize=3, linewidth=1.2, label=label)
            axis.set_ylabel(head)
            axis.set_xticks(range(1, 11, WINDOW))
        line[0].set_title(f"set-up {name}", loc="left", fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("observation time (odd: analysis, even: its forecast)", fontsize=8)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=8)
    figure.suptitle("One trajectory: mass, energy and error of the mean", fontsize=11, fontweight="bold")
    return figure


def hovmoellers(data: Mapping[str, Mapping[str, Any]]) -> Figure:
    """u(x, t): the truth, and analyses carried on by the forecast; ticks at the analysis times."""
    labels = [
        label
        for label in ("truth", "3D-Var", "3D-Var, constrained", "unconstrained", "CASAL")
        if label in next(iter(data.values()))["fields"]
    ]
    figure, axes = plt.subplots(
        len(data), len(labels), figsize=(2.1 * len(labels) + 0.6, 2.8 * len(data)), squeeze=False
    )
    for line, (name, each) in zip(axes, data.items(), strict=True):
        fields, times, spacing = each["fields"], each["times"], each["spacing"]
        middle, size = float(fields["truth"].mean()), float(np.abs(fields["truth"] - fields["truth"].mean()).max())
        extent = (0.0, 2 * np.pi, 0.0, float(times[-1]))
        for axis, label in zip(line, labels, strict=True):
            image = axis.imshow(
                fields[label],
                origin="lower",
                aspect="auto",
                extent=extent,
                cmap="RdBu_r",
                vmin=middle - size,
                vmax=middle + size,
                interpolation="bilinear",
            )
            axis.set_xticks([0, np.pi, 2 * np.pi], ["0", "π", "2π"])
            axis.set_yticks(np.round(np.arange(1, 10, WINDOW) * spacing, 2))
            if label != "truth":
                axis.hlines(np.arange(1, 10, WINDOW) * spacing, *extent[:2], color=FAINT, linewidth=0.5)
            if axis is not line[0]:
                axis.set_yticklabels([])
            axis.set_title(label, fontsize=9)
        line[0].set_ylabel(f"set-up {name}\ntime")
        figure.colorbar(image, ax=line[-1], shrink=0.85)
    figure.suptitle("u(x, t): analyses and their forecasts", fontsize=11, fontweight="bold")
    return figure
