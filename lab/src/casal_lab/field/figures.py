"""The field problem: snapshots, the first coefficient and the energy of every method, cost curves, ablations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from casal_lab.drawing import EXACT, FAINT, INK, colour, headline, histogram, legend_below, panels
from casal_lab.experiment import Array, Outcome
from casal_lab.field.grid import (
    PAPER_ENERGY,
    PAPER_RHO,
    PRIMAL_DUAL,
    SCHEDULES,
    SPLIT,
    STEPS,
    TAUS,
    Cell,
    Grid,
)
from casal_lab.field.setup import SCRIPT, Means
from casal_lab.problems.field import STIFF, conditional

SHOWN = ("unconstrained", "projected", "Algorithm 2", "released code", "WeightedCASAL")
COLUMNS = 6
TITLES = {
    "unconstrained": "unconstrained",
    "projected": "projected",
    SPLIT: "penalty (split)",
    PRIMAL_DUAL: "primal-dual",
    "Algorithm 2": "CASAL, printed\n(Algorithm 2)",
    "released code": "CASAL, released",
}
"""Panels of figure 2, in the order of the paper's text."""

SHOWN_TAU = 2e-3
"""Step size of figure 2: the middle one, whose stiffest variance is 1.8 times too large."""


def figures(outcome: Outcome) -> dict[str, Figure]:
    """All pictures for which there is data."""
    data = outcome.data
    script = data["script"]
    drawn = {"field_first_script": _first(script, SCRIPT, STIFF.energy)}
    drawn |= {"field_snapshots": _snapshots(script["snapshots"]), "field_energy": _energy(script["energies"])}
    if "released code" in script["snapshots"]:
        drawn["field_figure_1"] = _figure_1(script["snapshots"]["released code"][0])
    if "grid" in data:
        drawn["field_figure_2"] = _figure_2(data)
        drawn["field_rho"] = _rho_ablation(data["grid"], data["grid exact"])
        drawn["field_dual"] = _dual_ablation(data)
        drawn["field_tightening"] = _tightening(data["tight"], data["tight floor"])
    return drawn


def _figure_1(field: Array) -> Figure:
    """Look-alike of figure 1: a sampled field, its speed."""
    figure, axes = panels(1, 1, 3.2, 3.0)
    axis = axes[0, 0]
    axis.imshow(np.hypot(*field).T, origin="lower", cmap="viridis")
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_visible(False)
    figure.suptitle("A sampled field (speed), released update", fontsize=9)
    return figure


def _figure_2(data: Mapping[str, Any]) -> Figure:
    """Look-alike of figure 2: histograms of the first mode, the paper's methods; a row for each number of steps."""
    first, grid_of = data["grid first"], data["grid"]
    points, cdf = conditional(STIFF, PAPER_ENERGY)
    density = np.gradient(cdf, points)
    figure, axes = panels(len(STEPS), len(TITLES), 2.2 * len(TITLES), 1.9 * len(STEPS) + 0.8, sharex=True, sharey=True)
    edges, top = np.linspace(-5.5, 5.5, 67), 1.25 * float(density.max())
    for row, steps in enumerate(STEPS):
        for column, (label, title) in enumerate(TITLES.items()):
            axis = axes[row, column]
            schedule = "linear" if label in (SPLIT, "Algorithm 2", "released code") else ""
            samples = first.get((label, SHOWN_TAU, steps, schedule))
            if samples is not None:
                heights, _ = np.histogram(samples, edges, density=True)
                histogram(axis, heights, edges, colour(label), top, points, density)
                found = grid_of[Cell(label, PAPER_ENERGY, SHOWN_TAU, steps, schedule)]
                axis.text(
                    0.97, 0.93, f"{found.right:.1%} wrong", transform=axis.transAxes, ha="right", va="top", fontsize=9
                )
            if row == 0:
                axis.set_title(title, fontsize=10)
            axis.set(xticks=[-4, -2, 0, 2, 4], xlim=(-5.6, 5.6))
        axes[row, 0].set_ylabel(f"{steps} steps", fontsize=10)
    headline(figure, f"Histograms of the first mode, ½|x|² = 15, τ = {SHOWN_TAU:g}, ρ from 2 to 20 (line: exact)")
    figure.supxlabel("first mode", fontsize=9)
    return figure


def _short(label: str) -> str:
    return label.replace(" + projection", "").replace(", preconditioned", "\npreconditioned")


def _first(found: Mapping[str, Any], means: Means, energy: float) -> Figure:
    """A small histogram for each method, all on the same axes."""
    rows, first = found["rows"], found["first"]
    grid, cdf = conditional(STIFF, energy)
    density = np.gradient(cdf, grid)
    figure, axes = _grid(len(rows), sharey=True)
    top = 1.35 * float(density.max())
    edges = np.linspace(-4.2, 4.2, 61)
    for axis, row in zip(axes, rows, strict=False):
        heights, _ = np.histogram(first[row["method"]], edges, density=True)
        histogram(axis, heights, edges, colour(row["method"]), top, grid, density)
        axis.set_title(f"{_short(row['method'])}\nW1 = {row['w1']:.3f}", fontsize=8)
        axis.set(xticks=[-3, 0, 3])
    headline(figure, f"First coefficient, |x|² = {energy:g}, {means.title} (line: exact)")
    figure.supxlabel("first coefficient", fontsize=9)
    return figure


def _grid(count: int, *, sharey: bool = False) -> tuple[Figure, list[Axes]]:
    lines = -(-count // COLUMNS)
    figure, axes = panels(lines, COLUMNS, 1.95 * COLUMNS, 1.85 * lines + 0.6, sharex=True, sharey=sharey)
    every = list(axes.flat)
    for axis in every[count:]:
        axis.set_axis_off()
    return figure, every[:count]


def _energy(energies: Mapping[str, Array]) -> Figure:
    """The energy of every sample; strict methods put all of them on one value."""
    figure, axes = _grid(len(energies))
    edges = np.linspace(0, 30, 61)
    for axis, (label, values) in zip(axes, energies.items(), strict=True):
        heights, _ = np.histogram(np.clip(values, 0, 29.9), edges)
        axis.stairs(heights / len(values), edges, fill=True, color=colour(label), alpha=0.75)
        axis.axvline(STIFF.energy, color=EXACT, linewidth=0.8, linestyle=":")
        strict = float(np.abs(values - STIFF.energy).max()) < 1e-6
        axis.set_title(_short(label), fontsize=8)
        text = "all on it" if strict else f"mean {values.mean():.1f}\nsd {values.std():.1f}"
        axis.text(0.97, 0.9, text, transform=axis.transAxes, ha="right", va="top", fontsize=8, color=INK)
        axis.set(xlim=(0, 30), yticks=[], ylim=(0, None))
        axis.spines["left"].set_visible(False)
    headline(figure, "Energy |x|² of the samples, the released script's settings (dotted: 15, as asked)")
    figure.supxlabel("energy", fontsize=9)
    return figure


def _snapshots(snapshots: Mapping[str, Array]) -> Figure:
    """Colour: the component u, whose mean is the first coefficient; arrows: the flow (u, v)."""
    labels = [label for label in SHOWN if label in snapshots] or list(snapshots)
    figure, axes = panels(2, len(labels), 2.3 * len(labels), 5.0, layout="constrained")
    size = max(float(np.abs(snapshots[label][:, 0]).max()) for label in labels)
    points = np.arange(5, 100, 10)
    pick = np.ix_(points, points)
    for column, label in enumerate(labels):
        for row, (u, v) in enumerate(snapshots[label]):
            axis = axes[row, column]
            image = axis.imshow(u.T, origin="lower", cmap="RdBu_r", vmin=-size, vmax=size)
            axis.quiver(points, points, u[pick].T, v[pick].T, color=INK, scale=18 * size, width=0.006)
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
            axis.set_xlabel(f"energy {float((u**2 + v**2).sum()):.2f}", fontsize=8)
        axes[0, column].set_title(label, fontsize=9)
    figure.colorbar(image, ax=axes, shrink=0.7, pad=0.01, label="u")
    headline(figure, "Released script: lower (above) and upper quartile of the first coefficient (blue: likely mode)")
    return figure


def _rho_ablation(grid: Grid, exact: Mapping[float, float]) -> Figure:
    """Share in the wrong mode at the paper's energy: a panel for each step size and number of steps."""
    variants = ("Algorithm 1", "Algorithm 2", "released code", "CASAL")
    figure, axes = panels(len(STEPS), len(TAUS), 3.6 * len(TAUS), 2.5 * len(STEPS) + 0.9, sharex=True, sharey=True)
    for (row, steps), (column, tau) in product(enumerate(STEPS), enumerate(TAUS)):
        axis = axes[row, column]
        for k, label in enumerate(variants):
            found = [grid[Cell(label, PAPER_ENERGY, tau, steps, name)] for name in SCHEDULES]
            place = np.arange(len(SCHEDULES)) + 0.16 * (k - (len(variants) - 1) / 2)
            look: dict[str, Any] = {"fmt": "o", "markersize": 4.5, "color": colour(label), "label": label}
            axis.errorbar(place, [100 * one.right for one in found], [200 * one.error for one in found], **look)
        printed = [100 * PAPER_RHO.get((steps, name), np.nan) for name in SCHEDULES]
        axis.plot(np.arange(len(SCHEDULES)) + 0.36, printed, "_", markersize=12, color=INK, label="as printed")
        axis.axhline(100 * exact[PAPER_ENERGY], color=EXACT, linewidth=0.8, linestyle=":")
        axis.set_xticks(range(len(SCHEDULES)), [name.replace(", ", "\n") for name in SCHEDULES], fontsize=8)
        axis.set_title(f"τ = {tau:g}, {steps} steps", fontsize=9)
        axis.set(xlim=(-0.5, len(SCHEDULES) - 0.4), ylim=(-3, 62))
        axis.grid(axis="y", color=FAINT, linewidth=0.4)
    for axis in axes[:, 0]:
        axis.set_ylabel("samples at x1 > 0, %")
    legend_below(figure, axes[0, 0], len(variants) + 1)
    headline(figure, "Schedules of ρ, ½|x|² = 15 (dotted: exact share; bars: two standard errors)")
    return figure


def _dual_ablation(data: Mapping[str, Any]) -> Figure:
    """The mean size of the dual along the run: a panel for each update, a line for each size at the start."""
    traces: Mapping[str, Mapping[float, tuple[Array, Array]]] = data["dual"]
    figure, axes = panels(2, len(traces) // 2, 1.7 * len(traces), 6.4, sharey=False)
    for axis, (label, lines) in zip(axes.flat, traces.items(), strict=True):
        shades = plt.get_cmap("viridis")(np.linspace(0.0, 0.88, len(lines)))
        for (size, (steps, norms)), shade in zip(lines.items(), shades, strict=True):
            axis.loglog(steps, norms, color=shade, label=f"σ = {size:g}")
        axis.axhline(data["dual bounds"][label], color=EXACT, linewidth=0.8, linestyle=":")
        axis.set(xlabel="step")
        axis.set_title(label, fontsize=9)
    axes[0, 0].set_ylabel("mean size of the dual")
    axes[0, -1].legend(fontsize=8, ncols=2, loc="best")
    headline(figure, "Forgetting the start of the dual (size of μ; dotted: converged below)")
    return figure


def _tightening(rows: Sequence[Mapping[str, Any]], floor: float) -> Figure:
    """W1 against projections per step: a panel for each method, a dot for each way to limit projections."""
    labels = list(dict.fromkeys(row["method"] for row in rows))
    figure, axes = panels(1, len(labels), 3.6 * len(labels), 4.2, sharey=True)
    for axis, label in zip(axes.flat, labels, strict=True):
        shown = [row for row in rows if row["method"] == label and "projections" in row]
        for row, mark in zip(shown, "os^vDX", strict=True):
            look: dict[str, Any] = {"fmt": mark, "color": colour(label), "markersize": 7, "label": row["budget"]}
            axis.errorbar(row["projections"], row["w1"], row["w1_se"], **look)
        axis.axhline(floor, color=EXACT, linewidth=0.8, linestyle=":")
        axis.set(xscale="log", yscale="log", xlabel="projections per chain and step")
        axis.set_title(label, fontsize=9)
    axes[0, 0].set_ylabel("W1 of the first coefficient")
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, fontsize=8, ncols=3, loc="outside lower center")
    headline(figure, "Projections that are loose at first (dotted: exact draws)")
    return figure
