"""The conditional experiment: all distances at a glance, angles on circles, paths past obstacles, images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from casal_lab.conditional import quadrotor
from casal_lab.conditional.common import Dot
from casal_lab.conditional.images import mass_and_energy
from casal_lab.drawing import EXACT, FAINT, INK, below, colour, headline, histogram, panels
from casal_lab.experiment import Array, Outcome
from casal_lab.physics.quadrotor import INTERVAL, STEPS
from casal_lab.problems.three_modes import CASES

MARKS = {
    "Matheron": (colour("Matheron"), "*"),
    "SplitGibbs, gibbs": (colour("SplitGibbs"), "o"),
    "SplitGibbs, metropolis": (colour("SplitGibbs"), "s"),
    "Twisted": (colour("Twisted"), "^"),
    "moment matching": ("#B8860B", "P"),
    "DPS": (colour("DPS"), "X"),
    "PCFM": (colour("PCFM"), "<"),
    "ECI": (colour("ECI"), ">"),
    "predict-project-renoise": (colour("predict-project-renoise"), "h"),
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

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#882255", "#999933")
"""One colour a class of paths."""

LIMIT = 5.0
FRAME = 4.5
"""Metres shown above and below the start."""


def figures(outcome: Outcome) -> dict[str, Figure]:
    """One figure for all cases, and one for each case that was run and has samples to show."""
    data = outcome.data
    drawn = {"conditional_all": _dots(data["dots"])}
    if "points" in data:
        drawn["conditional_circles"] = _circles(data["points"])
    if "paths" in data:
        drawn["conditional_quadrotor"] = _paths(data["paths"])
    if "images" in data:
        drawn["conditional_images"] = _images(data["images"])
    return drawn


def _dots(dots: Sequence[Dot]) -> Figure:
    """Distance over the floor of exact draws, on a logarithmic axis; the shaded strip is within twice the floor."""
    cases = list(dict.fromkeys(dot.case for dot in dots))
    figure, axis = plt.subplots(figsize=(9.2, 1.2 + 0.52 * len(cases)))
    axis.axvspan(FLOOR / 2, 2.0, color="#eef3ee", zorder=0, linewidth=0)
    axis.axvline(1.0, color=EXACT, linewidth=0.8, zorder=1)
    for y in range(1, len(cases)):
        axis.axhline(y - 0.5, color=FAINT, linewidth=0.5, zorder=0)
    families = {dot.method: next(name for name in MARKS if dot.method.startswith(name)) for dot in dots}
    for place, (name, (ink, mark)) in enumerate(MARKS.items()):
        mine = [dot for dot in dots if families[dot.method] == name]
        for dot in mine:
            first = next(other.method for other in mine if other.case == dot.case)
            at = cases.index(dot.case) + 0.9 / len(MARKS) * (place - (len(MARKS) - 1) / 2)
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
    axis.set_title("Distance to the exact distribution (shaded: within twice the floor)", loc="left", fontweight="bold")
    figure.legend(loc="outside right upper", fontsize=8, title="hollow: a variant", title_fontsize=8)
    return figure


def _circles(points: Mapping[tuple[str, str], Array]) -> Figure:
    """Angles of the samples against the exact density, one row a circle."""
    circles = {f"2-D mixture, {name}": case for name, case in CASES.items() if name.startswith("circle")}
    figure, axes = panels(2, len(ON_CIRCLES), 10.4, 4.2, sharey="row")
    for line, (name, case) in zip(axes, circles.items(), strict=True):
        edges = np.linspace(case.grid[0], case.grid[-1], BINS + 1)
        top = 1.2 * float(case.density.max())
        for axis, method in zip(line, ON_CIRCLES, strict=True):
            heights, _ = np.histogram(case.coordinate(points[name, method]), edges, density=True)
            histogram(axis, heights, edges, MARKS[method][0], top, case.grid, case.density)
            axis.set(xticks=[-90, 0, 90, 180])
        line[0].set_ylabel(name.removeprefix("2-D mixture, "))
    for axis, method in zip(axes[0], ON_CIRCLES, strict=True):
        axis.set_title(method, color=INK)
    below(axes, "angle (degrees)")
    headline(figure, "Samples on two circles (line: exact density)")
    return figure


def _paths(found: Mapping[tuple[float, str], tuple[Array, Array]]) -> Figure:
    """Rows of methods, columns of obstacle sizes; a path that hits an obstacle is pale."""
    radii = list(dict.fromkeys(r for r, _ in found))
    known = list(dict.fromkeys(label for _, label in found))
    labels = ["exact draws", "CASAL", *(label for label in known if label.endswith("islands"))]
    width, height = 3.3 * len(radii) + 1.0, 2.0 * len(labels) + 1.0
    figure, axes = panels(len(labels), len(radii), width, height, sharex=True, sharey=True)
    time, used = np.arange(1, STEPS + 1) * INTERVAL, set()
    for line, label in zip(axes, labels, strict=True):
        for axis, r in zip(line, radii, strict=True):
            path, z = found[r, label]
            free = _free(path, r)
            kind = quadrotor.classes(torch.from_numpy(z), r).tolist()
            used |= set(kind)
            for y, number, good in zip(path, kind, free, strict=True):
                axis.plot(time, y, color=PALETTE[number], linewidth=0.8, alpha=0.8 if good else 0.18)
            for start, (low, high) in zip(quadrotor.AT, quadrotor.intervals(r), strict=True):
                block = Rectangle(
                    (time[start], low), quadrotor.WIDTH * INTERVAL, high - low, edgecolor="none", zorder=3
                )
                block.set_facecolor("#444444")
                axis.add_patch(block)
            axis.set(xlim=(0, time[-1]), ylim=(-FRAME, FRAME), xticks=[0, 0.5, 1, 1.5, 2])
            axis.set_title(f"{label}, r = {r:g} m: {np.mean(free):.0%} free", fontsize=9)
        line[0].set_ylabel("y (m)")
    below(axes, "time (s)")
    handles = [Line2D([], [], color=PALETTE[k], label=_name(k)) for k in sorted(used)]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8)
    headline(figure, "Paths past three obstacles (pale: deeper than 1 cm in one)")
    return figure


def _free(path: Array, r: float) -> list[bool]:
    z = torch.from_numpy(path[:, quadrotor.ROWS] / quadrotor.UNIT)
    depth = (z - quadrotor.obstacles(r).project(z)).abs().amax(1) * quadrotor.UNIT
    return [bool(d <= quadrotor.SOLVED) for d in depth]


def _name(kind: int) -> str:
    return ", ".join("over" if kind >> (2 - k) & 1 else "under" for k in range(3))


def _images(shown: Mapping[str, Array]) -> Figure:
    """One row of samples a method, all on the same scale of grey."""
    count = max(len(group) for group in shown.values())
    figure, axes = panels(len(shown), count, 1.15 * count + 2.6, 1.2 * len(shown) + 0.5)
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
    headline(figure, "Samples of the image model on the set")
    return figure
