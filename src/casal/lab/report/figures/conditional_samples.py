"""Samples to look at: paths past obstacles, and images of given mass and energy."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from casal.lab.problems.base import Array
from casal.lab.problems.conditional_images import mass_and_energy
from casal.lab.problems.conditional_quadrotor import (
    AT,
    INTERVAL,
    SOLVED,
    STEPS,
    UNIT,
    WIDTH,
    classes,
    intervals,
    obstacles,
)
from casal.lab.problems.conditional_quadrotor import ROWS as CONSTRAINED
from casal.lab.report.style import FAINT

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#882255", "#999933")
"""One colour a class."""

LIMIT = 5.0
FRAME = 4.5
"""Metres shown above and below the start."""


def paths(found: Mapping[tuple[float, str], tuple[Array, Array]]) -> Figure:
    """Rows of methods, columns of obstacle sizes; a path that hits an obstacle is pale."""
    radii = list(dict.fromkeys(r for r, _ in found))
    known = list(dict.fromkeys(label for _, label in found))
    labels = ["exact draws", "CASAL", *(label for label in known if label.endswith("islands"))]
    figure, axes = plt.subplots(
        len(labels),
        len(radii),
        figsize=(3.3 * len(radii) + 1.0, 2.0 * len(labels) + 1.0),
        sharex=True,
        sharey=True,
        squeeze=False,
    )
    time, used = np.arange(1, STEPS + 1) * INTERVAL, set()
    for line, label in zip(axes, labels, strict=True):
        for axis, r in zip(line, radii, strict=True):
            path, z = found[r, label]
            free = _free(path, r)
            kind = classes(torch.from_numpy(z), r).tolist()
            used |= set(kind)
            for y, number, good in zip(path, kind, free, strict=True):
                axis.plot(time, y, color=PALETTE[number], linewidth=0.8, alpha=0.8 if good else 0.18)
            for start, (low, high) in zip(AT, intervals(r), strict=True):
                axis.add_patch(
                    Rectangle(
                        (time[start], low),
                        WIDTH * INTERVAL,
                        high - low,
                        facecolor="#444444",
                        edgecolor="none",
                        zorder=3,
                    )
                )
            axis.set(xlim=(0, time[-1]), ylim=(-FRAME, FRAME), xticks=[0, 0.5, 1, 1.5, 2])
            axis.set_title(f"{label}, r = {r:g} m: {np.mean(free):.0%} free", fontsize=9)
        line[0].set_ylabel("y (m)")
    for axis in axes[-1]:
        axis.set_xlabel("time (s)")
    handles = [Line2D([], [], color=PALETTE[k], label=_name(k)) for k in sorted(used)]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8)
    figure.suptitle("Paths past three obstacles (pale: deeper than 1 cm in one)", fontsize=11, fontweight="bold")
    return figure


def _free(path: Array, r: float) -> list[bool]:
    z = torch.from_numpy(path[:, CONSTRAINED] / UNIT)
    depth = (z - obstacles(r).project(z)).abs().amax(1) * UNIT
    return [bool(d <= SOLVED) for d in depth]


def _name(kind: int) -> str:
    return ", ".join("over" if kind >> (2 - k) & 1 else "under" for k in range(3))


def images(shown: Mapping[str, Array]) -> Figure:
    """One row of samples a method, all on the same scale of grey."""
    count = max(len(group) for group in shown.values())
    figure, axes = plt.subplots(len(shown), count, figsize=(1.15 * count + 2.6, 1.2 * len(shown) + 0.5), squeeze=False)
    for line, (label, group) in zip(axes, shown.items(), strict=True):
        for axis in line:
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_color(FAINT)
            axis.spines[:].set_visible(True)
        for axis, image in zip(line, group, strict=False):
            axis.imshow(image, cmap="RdBu_r", vmin=-LIMIT, vmax=LIMIT)
        mass, energy = (float(value.mean()) for value in mass_and_energy(torch.from_numpy(group)))
        text = f"{label}\nmass {mass:.1f}\nenergy {energy:.1f}"
        line[0].set_ylabel(text, rotation=0, ha="right", va="center", fontsize=8.5)
    figure.suptitle("Samples of the image model on the set", fontsize=11, fontweight="bold")
    return figure
