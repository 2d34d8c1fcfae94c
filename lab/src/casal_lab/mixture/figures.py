"""The mixture: how far each method is from the right mode weights, and where it puts its samples."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure, SubFigure
from matplotlib.patches import Rectangle

from casal.constraints import geometry
from casal_lab.drawing import INK, below, colour, headline, histogram
from casal_lab.experiment import Array, Outcome
from casal_lab.problems.three_modes import CASES, SetCase

WORST = 0.6
"""Total variation at the dark end of the colour scale, the same in all pictures."""

FAMILY = "ddpm"
"""Whose samples are shown, where the method runs there."""

BINS = 72


def figures(outcome: Outcome) -> dict[str, Figure]:
    """One figure a set: family x method on the left, samples against the exact density on the right."""
    data = outcome.data
    drawn = {}
    for name, case in CASES.items():
        figure = plt.figure(figsize=(16.4, 6.2))
        left, right = np.asarray(figure.subfigures(1, 2))
        _heat_map(left, data["rows"][name], data["floors"][name]["tv"], data["methods"], data["families"])
        _histograms(right, case, {key[1:]: z for key, z in data["points"].items() if key[0] == name}, data["methods"])
        headline(figure, f"Three modes on the {name}")
        drawn["mixture_" + re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")] = figure
    return drawn


def _short(label: str) -> str:
    return label.replace(", tuned + projection", " + projection")


def _heat_map(
    panel: SubFigure, rows: Sequence[Mapping[str, Any]], floor: float, methods: Sequence[str], families: Sequence[str]
) -> None:
    """Numbers on shades; a rule parts the floor from the methods."""
    axis = panel.subplots()
    cells = {(row["method"], row["family"]): row for row in rows}
    shade = plt.get_cmap("Blues")
    for y, method in enumerate([*methods, "exact draws"]):
        for x, family in enumerate(families):
            row: Mapping[str, Any] | None = {"tv": floor} if y == len(methods) else cells.get((method, family))
            value = None if row is None else row.get("tv")
            face: Any = "white" if value is None else shade(0.85 * min(value / WORST, 1.0))
            axis.add_patch(Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, facecolor=face, linewidth=0))
            if value is not None:
                ink = "white" if value > 0.62 * WORST else INK
                axis.text(x, y, f"{value:.3f}", ha="center", va="center", fontsize=8.5, color=ink)
            elif row is not None:
                axis.text(
                    x, y, str(row["verdict"]), ha="center", va="center", fontsize=7.5, color="#8a8f94", style="italic"
                )
    axis.axhline(len(methods) - 0.5, color=INK, linewidth=0.8)
    axis.set(xlim=(-0.5, len(families) - 0.5), ylim=(len(methods) + 0.5, -0.5))
    axis.set_xticks(range(len(families)), [family.replace(" ", "\n", 1) for family in families], fontsize=8.5)
    axis.set_yticks(range(len(methods) + 1), [*map(_short, methods), "exact draws"], fontsize=8.5)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    axis.set_title("Total variation of the mode weights (blank: not made for that family)", fontsize=9)


def _histograms(
    panel: SubFigure, case: SetCase, points: Mapping[tuple[str, str], Array], methods: Sequence[str]
) -> None:
    """Samples of each method along the set, the line being the exact density."""
    shown = {}
    for method in methods:
        families = [family for family, label in points if label == method]
        if families:
            family = FAMILY if FAMILY in families else families[0]
            shown[method] = (family, points[family, method])
    columns, edges = 3, np.linspace(case.grid[0], case.grid[-1], BINS + 1)
    found = {method: np.histogram(case.coordinate(z), edges, density=True)[0] for method, (_, z) in shown.items()}
    peak = float(case.density.max())
    top = min(1.45 * peak, 1.1 * max([peak, *(float(heights.max()) for heights in found.values())]))
    lines = -(-max(len(shown), 1) // columns)
    axes = panel.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for axis, (method, (family, z)) in zip(axes.flat, shown.items(), strict=False):
        histogram(axis, found[method], edges, colour(method), top, case.grid, case.density)
        axis.set_title(_short(method) + ("" if family == FAMILY else f" ({family})"), fontsize=8.5)
        if case.constraint.solid:
            atom = float((geometry.residual(case.constraint, torch.from_numpy(z)).abs() < 1e-9).double().mean())
            text = f"{atom:.0%} on the border"  # where the exact distribution has none
            axis.text(0.03, 0.93, text, transform=axis.transAxes, va="top", fontsize=7.5, color=INK)
    for axis in list(axes.flat)[len(shown) :]:
        axis.set_axis_off()
    below(axes, case.axis)
    panel.suptitle(f"Samples of {FAMILY} along the set (line: exact density)", fontsize=9)
