"""The conditional experiment: all distances at a glance, angles on circles, paths past obstacles, images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from casal.lab.problems.base import Array, Outcome
from casal.lab.problems.conditional_base import Dot
from casal.lab.problems.mixture_cases import CASES
from casal.lab.report.figures.conditional_samples import images, paths
from casal.lab.report.style import EXACT, FAINT, INK, colour

MARKS = {
    "SplitGibbs, gibbs": (colour("SplitGibbs"), "o"),
    "SplitGibbs, metropolis": (colour("SplitGibbs"), "s"),
    "Twisted": (colour("Twisted"), "^"),
    "moment matching": ("#B8860B", "P"),
    "DPS": (colour("DPS"), "X"),
    "CASAL": (colour("CASAL"), "D"),
    "Algorithm 2": (colour("Algorithm 2"), "v"),
    "projected": (colour("projected"), "|"),
    "final projection": (colour("final projection"), "x"),
}
"""Colour and mark of the methods whose labels begin so; in the order of the legend."""

ON_CIRCLES = ("SplitGibbs, gibbs", "Twisted", "CASAL", "final projection")
BINS = 72
FLOOR = 0.5
"""Ratios below are luck; they are drawn here."""


def figures(outcome: Outcome) -> dict[str, Figure]:
    """One figure for all cases, and one for each case that was run and has samples to show."""
    data = outcome.data
    drawn = {"conditional_all": _dots(data["dots"])}
    if "points" in data:
        drawn["conditional_circles"] = _circles(data["points"])
    if "paths" in data:
        drawn["conditional_quadrotor"] = paths(data["paths"])
    if "images" in data:
        drawn["conditional_images"] = images(data["images"])
    return drawn


def _family(method: str) -> str:
    return next(name for name in MARKS if method.startswith(name))


def _dots(dots: Sequence[Dot]) -> Figure:
    """Distance over the floor of exact draws, on a logarithmic axis; the shaded strip is within twice the floor."""
    cases = list(dict.fromkeys(dot.case for dot in dots))
    figure, axis = plt.subplots(figsize=(9.2, 1.2 + 0.52 * len(cases)))
    axis.axvspan(FLOOR / 2, 2.0, color="#eef3ee", zorder=0, linewidth=0)
    axis.axvline(1.0, color=EXACT, linewidth=0.8, zorder=1)
    for y in range(1, len(cases)):
        axis.axhline(y - 0.5, color=FAINT, linewidth=0.5, zorder=0)
    for place, (name, (ink, mark)) in enumerate(MARKS.items()):
        mine = [dot for dot in dots if _family(dot.method) == name]
        for dot in mine:
            first = next(other.method for other in mine if other.case == dot.case)
            at = cases.index(dot.case) + 0.085 * (place - (len(MARKS) - 1) / 2)
            face = ink if dot.method == first else "white"
            axis.plot([max(dot.ratio, FLOOR)], [at], mark, color=ink, markerfacecolor=face, markersize=5.5)
        if mine:
            axis.plot([], [], mark, color=ink, markersize=5.5, label=name)
    axis.set(xscale="log", xlim=(FLOOR / 1.1, None), ylim=(len(cases) - 0.5, -0.5))
    axis.set_xlabel("distance / that of exact draws")
    axis.set_yticks(range(len(cases)), cases)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)
    axis.set_title("Distance to the conditional law (shaded: within twice the floor)", loc="left", fontweight="bold")
    figure.legend(loc="outside right upper", fontsize=8, title="hollow: a variant", title_fontsize=8)
    return figure


def _circles(points: Mapping[tuple[str, str], Array]) -> Figure:
    """Angles of the samples against the exact density, one row a circle."""
    circles = {f"2-D mixture, {name}": case for name, case in CASES.items() if name.startswith("circle")}
    figure, axes = plt.subplots(2, len(ON_CIRCLES), figsize=(10.4, 4.2), sharey="row", squeeze=False)
    for line, (name, case) in zip(axes, circles.items(), strict=True):
        edges = np.linspace(case.grid[0], case.grid[-1], BINS + 1)
        top = 1.2 * float(case.density.max())
        for axis, method in zip(line, ON_CIRCLES, strict=True):
            heights, _ = np.histogram(case.coordinate(points[name, method]), edges, density=True)
            axis.stairs(np.minimum(heights, top), edges, fill=True, color=MARKS[method][0], alpha=0.75)
            axis.plot(case.grid, case.density, color=EXACT, linewidth=1)
            axis.set(xlim=(edges[0], edges[-1]), ylim=(0, top), yticks=[], xticks=[-90, 0, 90, 180])
            axis.spines["left"].set_visible(False)
        line[0].set_ylabel(name.removeprefix("2-D mixture, "))
    for axis, method in zip(axes[0], ON_CIRCLES, strict=True):
        axis.set_title(method, color=INK)
    for axis in axes[-1]:
        axis.set_xlabel("angle (degrees)")
    figure.suptitle("Samples on two circles (line: exact density)", fontsize=11, fontweight="bold")
    return figure
