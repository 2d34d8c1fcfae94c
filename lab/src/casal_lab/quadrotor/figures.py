"""Pictures of flights past obstacles: success rates, trajectories, the ablation, random scenes, and paths in a plane.

A method has its colour of ``casal_lab.drawing`` in all pictures; a failure is pink and has a cross where it hits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Rectangle

from casal_lab.drawing import EXACT, FAINT, INK, below, colour, headline, panels
from casal_lab.experiment import Array, Outcome
from casal_lab.physics.quadrotor import INTERVAL
from casal_lab.quadrotor.setup import ALLOWED, FAR

COLOURS = {"zero": "#999933", "noise": "#AA4499"}
"""Of starts without a model, which only this experiment has."""

NAMES = {"Algorithm 2": "CASAL, printed", "released code": "CASAL, released", "CASAL": "CASAL (ours)"}
"""Of the variants of CASAL in pictures."""

IN_PAPER = ("penalty", "projected", *NAMES)
"""Methods of the paper's figure; there is one CASAL in it."""

FAILED = "#E7298A"
OBSTACLE = "#b9c0c8"
SHOWN = 40
"""Paths in one panel at most."""

Curves = Mapping[str, Mapping[str, Sequence[float]]]
Flights = tuple[Any, Any, Any]
"""Starts, positions, and success."""


def figures(outcome: Outcome) -> dict[str, Figure]:
    """A picture of each part of the data that was run."""
    data, drawn = outcome.data, {}
    if data.get("curves"):
        drawn["quadrotor_figure_4"] = _figure_4(data)
    if data.get("flights"):
        drawn["quadrotor_flights"] = _flights(data["flights"], data.get("walls", {}))
    if data.get("ablation"):
        drawn["quadrotor_ablation"] = _ablation(data["ablation"])
    if data.get("random"):
        drawn["quadrotor_random"] = _random(data["random"])
    if data.get("planar"):
        drawn["quadrotor_planar"] = _planar(data["planar"], data.get("discs", ()))
    return drawn


def _ink(label: str) -> str:
    return COLOURS.get(label, colour(label))


def _figure_4(data: Mapping[str, Any]) -> Figure:
    """Figure 4 of the paper: left a flight of each method, dashed as sampled and solid as repaired; right success.

    The exact answer is a line at one: for every r the linear programme has a class of flights with room.
    """
    curves, flights = data["curves"], data.get("flights", {})
    figure, axes = panels(1, 2, 12.5, 4.6, width_ratios=(1.0, 1.15))
    left, right = axes[0]
    size = min((r for r, _ in flights), default=0.0)
    _stand(left, data.get("walls", {}).get(size, ()))
    for label in (label for r, label in flights if r == size and label in IN_PAPER):
        starts, positions, _ = (np.asarray(part) for part in flights[size, label])
        times = (np.arange(positions.shape[1]) + 1) * INTERVAL
        left.plot(times, starts[0], color=_ink(label), linewidth=1.1, linestyle=(0, (4, 2)))
        left.plot(times, positions[0], color=_ink(label), linewidth=1.8, label=NAMES.get(label, label))
        low, high = left.get_ylim()
        path = np.concatenate([starts[0], positions[0]])
        left.set_ylim(min(low, path.min() - 0.1), max(high, path.max() + 0.1))
    left.set(
        xlim=(0, None),
        xlabel="time (s)",
        ylabel="y (m)",
        title=f"samples (dashed) and repaired (solid), r = {size:g} m",
    )
    shown = {NAMES.get(label, label): curve for label, curve in curves.items() if label not in COLOURS}
    ink = {NAMES.get(label, label): (_ink(label), "--" if "," in label else "-") for label in curves}
    right.axhline(1.0, color=EXACT, linewidth=1, linestyle=":")
    right.annotate(
        "exact: a feasible flight exists",
        (0.02, 1.0),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        fontsize=8,
    )
    _rates(right, shown, ink, data.get("impossible"))
    headline(figure, "As figure 4 of the paper: flights and success rates, scene “hard”")
    return figure


def _stand(axis: Axes, walls: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    """Draw the walls of a scene; they as numbers."""
    stand = [tuple(map(float, wall)) for wall in walls]
    for start, stop, low, high in stand:
        corner = ((start + 0.5) * INTERVAL, low)
        axis.add_patch(Rectangle(corner, (stop - start) * INTERVAL, high - low, color=OBSTACLE, linewidth=0))
    ends = [end for _, _, low, high in stand for end in (low, high) if abs(end) < FAR]
    if ends:
        axis.set_ylim(min(ends) - 1.0, max(ends) + 1.0)
    return stand


def _ablation(curves: Curves) -> Figure:
    """A row for each variant, in the order of its success; a dot for each r, darker for a taller wall."""
    order = sorted(curves, key=lambda label: float(np.mean(curves[label]["success"])) if curves[label]["r"] else 0.0)
    sizes = sorted({r for curve in curves.values() for r in curve["r"]})
    ramp = LinearSegmentedColormap.from_list("casal", ["#8fd3c7", colour("CASAL"), "#0b3d36"])
    shades = {r: to_hex(ramp(k / max(len(sizes) - 1, 1))) for k, r in enumerate(sizes)}
    figure, axes = panels(1, 1, 7.2, 0.24 * len(order) + 1.5)
    axis = axes[0][0]
    for row, label in enumerate(order):
        axis.axhline(row, color=FAINT, linewidth=0.5, zorder=0)
        for r, rate, error in zip(*(curves[label][key] for key in ("r", "success", "se")), strict=True):
            axis.errorbar(rate, row, xerr=error, color=shades[r], marker="o", markersize=6, elinewidth=1)
    handles = [Line2D([], [], color=shades[r], marker="o", linestyle="", label=f"r = {r:g} m") for r in sizes]
    axis.set(xlim=(-0.03, 1.03), xlabel="success rate", ylim=(-0.7, len(order) - 0.3))
    axis.set_yticks(range(len(order)), order)
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)
    figure.legend(handles=handles, loc="outside lower center", ncols=len(sizes) or 1)
    headline(figure, "CASAL with other dual steps, z-steps and couplings")
    return figure


def _rates(axis: Axes, curves: Curves, styles: Mapping[str, tuple[str, str]], impossible: float | None) -> None:
    """Lines with error bars of one standard error, each with its name at its right end."""
    ends: list[tuple[float, float, str, str]] = []
    for label, curve in curves.items():
        r, rate, error = (np.asarray(curve[key], dtype=float) for key in ("r", "success", "se"))
        if not len(r):
            continue
        ink, style = styles[label]
        axis.errorbar(r, rate, error, color=ink, linestyle=style, marker="o", markersize=4, linewidth=1.8, elinewidth=1)
        ends.append((float(rate[-1]), float(r[-1]), label, ink))
    axis.set(ylim=(-0.03, 1.03), xlabel="r: half the height of the last wall (m)", ylabel="success rate")
    axis.grid(axis="y", color=FAINT, linewidth=0.5, alpha=0.6)
    axis.set_axisbelow(True)
    if impossible is not None and any(x >= impossible for _, x, _, _ in ends):
        axis.axvline(impossible, color=INK, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
        axis.annotate(
            f"above, above, below\nimpossible for r > {impossible:.2f} m",
            (impossible, 1.0),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            xytext=(4, 2),
            fontsize=8,
            va="bottom",
        )
    _names(axis, ends)


def _names(axis: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Names of lines to the right of the axes, kept apart, with a thin line from each to its end."""
    if not ends:
        return
    gap, right = 0.055, max(x for _, x, _, _ in ends)
    ordered = sorted(ends)
    heights = np.array([y for y, _, _, _ in ordered])
    for k in range(1, len(heights)):
        heights[k] = max(heights[k], heights[k - 1] + gap)
    heights -= max(0.0, heights[-1] - 1.0)
    for k in range(len(heights) - 2, -1, -1):
        heights[k] = min(heights[k], heights[k + 1] - gap)
    left, _ = axis.get_xlim()
    axis.set_xlim(left, right + 0.04 * (right - left))
    edge = axis.get_xlim()[1]
    for (y, x, label, ink), height in zip(ordered, heights, strict=True):
        text = edge + 0.04 * (edge - left)
        axis.plot([x, edge, text], [y, y, height], color=ink, linewidth=0.6, alpha=0.7, clip_on=False)
        axis.annotate(
            label, (text, height), xytext=(3, 0), textcoords="offset points", color=ink, va="center", fontweight="bold",
            fontsize=8.5, annotation_clip=False,
        )  # fmt: skip
    axis.set_xlim(left, edge)


def _flights(flights: Mapping[tuple[float, str], Flights], walls: Mapping[float, Sequence[Sequence[float]]]) -> Figure:
    """Height over time: a row for each r, a column for each method."""
    rows, columns = list(dict.fromkeys(r for r, _ in flights)), list(dict.fromkeys(label for _, label in flights))
    figure, axes = panels(
        len(rows), len(columns), max(2.2 * len(columns), 4.4), 2.1 * len(rows) + 0.7, sharex=True, sharey="row"
    )
    for line, r in zip(axes, rows, strict=True):
        for axis, label in zip(line, columns, strict=True):
            stand = _stand(axis, walls.get(r, ()))
            if (r, label) in flights:
                starts, positions, success = (np.asarray(part) for part in flights[r, label])
                times = (np.arange(positions.shape[1]) + 1) * INTERVAL
                before, after = (
                    np.stack(np.broadcast_arrays(times, y), axis=2) for y in (starts[:SHOWN], positions[:SHOWN])
                )
                _paths(axis, label, before, after, success, partial(_wall_hit, walls=stand))
            else:
                axis.annotate("not run", (0.5, 0.5), xycoords="axes fraction", ha="center", color=INK, fontsize=8)
        line[0].set(xlim=(0, None))
        line[0].set_ylabel(f"r = {r:g} m\ny (m)")
    for axis, label in zip(axes[0], columns, strict=True):
        axis.set_title(NAMES.get(label, label), color=_ink(label), fontweight="bold", pad=14)
    below(axes, "time (s)")
    _key(figure)
    headline(figure, "Flights before and after repair")
    return figure


def _planar(planar: Mapping[str, Flights], discs: Sequence[Sequence[float]]) -> Figure:
    """Paths in the plane among discs."""
    stand = [tuple(map(float, disc)) for disc in discs]
    places = np.array(stand or [(0.0, 0.0, 2.0)])
    low, high = (places[:, :2] - places[:, 2:]).min(0) - 0.4, (places[:, :2] + places[:, 2:]).max(0) + 0.4
    height = 2.7 * (high[1] - low[1]) / (high[0] - low[0]) + 1.4
    figure, axes = panels(1, len(planar), max(3.0 * len(planar), 4.4), height, sharex=True, sharey=True)
    for axis, (label, (starts, positions, success)) in zip(axes[0], planar.items(), strict=True):
        for x, z, radius in stand:
            axis.add_patch(Circle((x, z), radius, color=OBSTACLE, linewidth=0))
        before, after = (np.asarray(part)[:SHOWN] for part in (starts, positions))
        _paths(axis, label, before, after, np.asarray(success), partial(_disc_hit, discs=stand))
        axis.plot([0], [0], "o", color=EXACT, markersize=4, zorder=5)
        axis.set_title(label, color=_ink(label), fontweight="bold", pad=14)
        axis.set_aspect("equal")
    axes[0][0].set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), ylabel="z (m)")
    below(axes, "x (m)")
    _key(figure)
    headline(figure, "Paths of the planar vehicle among discs")
    return figure


def _paths(
    axis: Axes, label: str, before: Array, after: Array, success: Array, hit: Callable[[Array], Array | None]
) -> None:
    """Paths (m, S, 2), dashed as sampled and solid as repaired; failures on top, with a cross where they hit."""
    count = int(success.sum())
    for path in before:
        axis.plot(*path.T, color=INK, linewidth=0.6, linestyle=(0, (3, 3)), alpha=0.45)
    for path, passed in sorted(zip(after, success, strict=False), key=lambda pair: not pair[1]):
        ink, width = (_ink(label), 1.2) if passed else (FAILED, 0.8)
        axis.plot(*path.T, color=ink, linewidth=width, alpha=0.9)
        if not passed:
            place = hit(path)
            axis.plot(*(path[-1] if place is None else place), "x", color=FAILED, markersize=5, markeredgewidth=1.4)
    axis.annotate(
        f"{count} of {len(success)} pass", (0.5, 1.0), xytext=(0, 2), xycoords="axes fraction",
        textcoords="offset points", ha="center", va="bottom", fontsize=8,
    )  # fmt: skip


def _wall_hit(path: Array, walls: Sequence[tuple[float, ...]]) -> Array | None:
    """The first point (time, y) of a path that is in a wall."""
    for start, stop, low, high in walls:
        part = path[int(start) : int(stop)]
        inside = np.minimum(part[:, 1] - low, high - part[:, 1]) > ALLOWED
        if inside.any():
            return np.asarray(part[inside.argmax()])
    return None


def _disc_hit(path: Array, discs: Sequence[tuple[float, ...]]) -> Array | None:
    """The first point (x, z) of a path that is in a disc."""
    inside = np.zeros(len(path), dtype=bool)
    for x, z, radius in discs:
        inside |= np.hypot(path[:, 0] - x, path[:, 1] - z) < radius - ALLOWED
    return np.asarray(path[inside.argmax()]) if inside.any() else None


def _key(figure: Figure) -> None:
    """What the lines are, below all panels."""
    handles = [
        Line2D([], [], color=INK, linewidth=0.8, linestyle=(0, (3, 3)), label="sample"),
        Line2D([], [], color=INK, linewidth=1.4, label="repaired, in the colour of its method"),
        Line2D(
            [], [], color=FAILED, linewidth=1, marker="x", markersize=5, markeredgewidth=1.4, label="fails, and where"
        ),
        Rectangle((0, 0), 1, 1, color=OBSTACLE, label="obstacle"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=8.5)


def _random(rates: Mapping[str, Sequence[float]]) -> Figure:
    """Success rates on random scenes, the best mean on top: a dot a scene, a bar the mean."""
    found = {label: np.asarray(values, dtype=float) for label, values in rates.items() if len(values)}
    order = sorted(found, key=lambda label: float(found[label].mean()))
    figure, axes = panels(1, 1, 7.2, 0.42 * len(order) + 1.3)
    axis = axes[0][0]
    for at, label in enumerate(order):
        values = np.sort(found[label])
        spread = np.linspace(-0.22, 0.22, 5)[np.arange(len(values)) % 5]
        axis.plot(
            values, at + spread, "o", color=_ink(label), markersize=4, alpha=0.6, markeredgewidth=0, clip_on=False
        )
        axis.plot([values.mean()] * 2, [at - 0.34, at + 0.34], color=EXACT, linewidth=1.5, zorder=1)
        text = f"mean {values.mean():.3f}, least {values.min():.3f}"
        axis.annotate(text, (1.0, at), xytext=(10, 0), textcoords="offset points", va="center", fontsize=8)
    axis.set_yticks(range(len(order)), order, fontweight="bold")
    for tick, label in zip(axis.get_yticklabels(), order, strict=True):
        tick.set_color(_ink(label))
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)
    axis.grid(axis="x", color=FAINT, linewidth=0.5)
    axis.set_axisbelow(True)
    axis.set(xlim=(0.0, 1.0), ylim=(-0.6, len(order) - 0.4))
    scenes = max(map(len, found.values()))
    axis.set_xlabel(f"success rate on each of {scenes} random scenes (bar: mean)" if scenes > 1 else "success rate")
    headline(figure, "One setting of each method on random scenes")
    return figure
