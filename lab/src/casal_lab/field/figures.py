"""The field problem: snapshots, the first coefficient and the energy of every method, cost curves, ablations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from casal_lab.drawing import EXACT, FAINT, INK, colour, headline, histogram, panels
from casal_lab.experiment import Array, Outcome
from casal_lab.field.ablations import PAPER_RHO, SCHEDULES
from casal_lab.field.setup import MIXED, OURS, SCRIPT, TEXT, Means
from casal_lab.problems.field import STIFF, conditional

SHOWN = ("unconstrained", "projected", "Algorithm 1", "released code", "WeightedCASAL")
COLUMNS = 6


def figures(outcome: Outcome) -> dict[str, Figure]:
    """All pictures for which there is data."""
    data = outcome.data
    drawn = {f"field_first_{m.key}": _first(data["groups"][m.key], m, STIFF.energy) for m in (SCRIPT, TEXT, MIXED)}
    drawn |= {f"field_first_{energy:g}": _first(found, OURS, energy) for energy, found in data["levels"].items()}
    script = data["groups"][SCRIPT.key]
    drawn |= {"field_snapshots": _snapshots(script["snapshots"]), "field_energy": _energy(script["energies"])}
    drawn["field_curves"] = _curves(data["curves"])
    if "rho" in data:
        drawn["field_rho"] = _rho_ablation(data["rho"], data["rho exact"])
        drawn["field_dual"] = _dual_ablation(data)
        drawn["field_tightening"] = _tightening(data["tight"], data["tight floor"])
    return drawn


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


def _curves(curves: Mapping[str, Any]) -> Figure:
    """W1 against score evaluations, without and with the preconditioner; labels at the right ends of the lines."""
    rows, budgets, floor = curves["rows"], curves["budgets"], curves["floor"]
    figure, axes = panels(1, 2, 11.5, 5.2, sharey=True)
    for axis, scaled in zip(axes.flat, (False, True), strict=True):
        ends = []
        for row in (row for row in rows if row["method"].endswith(", preconditioned") is scaled):
            label = row["method"].removesuffix(", preconditioned")
            values = [row[str(steps)] for steps in budgets]
            strong = label == "WeightedCASAL"
            axis.loglog(budgets, values, "o-", color=colour(label), linewidth=2.2 if strong else 1.3, markersize=3.5)
            ends.append((values[-1], label))
        _spread_labels(axis, budgets[-1], ends)
        axis.axhline(floor, color=EXACT, linewidth=0.8, linestyle=":")
        axis.text(budgets[0], floor * 1.06, "exact draws", fontsize=8.5)
        axis.set_xticks(budgets, [str(steps) for steps in budgets])
        axis.minorticks_off()
        axis.set(xlabel="score evaluations per chain", xlim=(budgets[0] * 0.9, None))
        axis.set_title("with the preconditioner" if scaled else "step size of the script", fontsize=9)
    axes[0, 0].set_ylabel("W1 of the first coefficient")
    headline(figure, "Which method for which budget: |x|² = 15, ρ from 2 to 20")
    return figure


def _spread_labels(axis: Axes, x: float, ends: Sequence[tuple[float, str]]) -> None:
    """Labels beside the ends of their lines, pushed apart where they would touch."""
    place, arrow = np.inf, {"arrowstyle": "-", "linewidth": 0.8, "shrinkA": 1, "shrinkB": 4, "relpos": (0, 0.5)}
    for value, label in sorted(ends, reverse=True):
        place = min(value, place / 1.17)
        look: dict[str, Any] = {"fontsize": 8.5, "va": "center", "arrowprops": arrow | {"color": colour(label)}}
        axis.annotate(label, (x, value), (1.05, place), textcoords=axis.get_yaxis_transform(), **look)


def _rho_ablation(rows: Sequence[Mapping[str, Any]], exact: Mapping[str, float]) -> Figure:
    """Share in the wrong mode: a panel for each set-up and number of steps, a group of dots for each schedule."""
    parts = list(dict.fromkeys((row["setup"], row["steps"]) for row in rows))
    figure, axes = panels(1, len(parts), 2.75 * len(parts), 3.4, sharey=True)
    for axis, (setup, steps) in zip(axes.flat, parts, strict=True):
        shown = [row for row in rows if (row["setup"], row["steps"]) == (setup, steps)]
        for k, row in enumerate(shown):
            place = np.arange(len(SCHEDULES)) + 0.16 * (k - (len(shown) - 1) / 2)
            look: dict[str, Any] = {"fmt": "o", "markersize": 4.5, "color": colour(row["variant"])}
            if row["variant"].endswith(", preconditioned"):
                look["markerfacecolor"] = "white"
            shares, errors = ([100 * row[name] for name in SCHEDULES], [200 * row[f"{name}_se"] for name in SCHEDULES])
            axis.errorbar(place, shares, errors, label=row["variant"], **look)
        printed = [100 * PAPER_RHO.get((steps, name), np.nan) for name in SCHEDULES]
        axis.plot(np.arange(len(SCHEDULES)) + 0.33, printed, "_", markersize=11, color=INK, label="as printed")
        axis.axhline(100 * exact[setup], color=EXACT, linewidth=0.8, linestyle=":")
        axis.set_xticks(range(len(SCHEDULES)), [name.replace(", ", "\n") for name in SCHEDULES], fontsize=8)
        axis.set_title(f"{setup}, {steps} steps", fontsize=9)
        axis.set(xlim=(-0.5, len(SCHEDULES) - 0.3), ylim=(-2, 62))
        axis.grid(axis="y", color=FAINT, linewidth=0.4)
    axes[0, 0].set_ylabel("samples at x1 > 0, %")
    axes[0, -1].legend(fontsize=8, loc="upper right")
    title = "Schedules of ρ (dotted: exact share; bars: two binomial errors; open: with the preconditioner)"
    headline(figure, title)
    return figure


def _dual_ablation(data: Mapping[str, Any]) -> Figure:
    """The mean size of the dual along the run: a panel for each update, a line for each size at the start."""
    traces: Mapping[str, Mapping[float, tuple[Array, Array]]] = data["dual"]
    figure, axes = panels(1, len(traces), 3.2 * len(traces), 3.6, sharey=False)
    for axis, (label, lines) in zip(axes.flat, traces.items(), strict=True):
        shades = plt.get_cmap("viridis")(np.linspace(0.0, 0.88, len(lines)))
        for (size, (steps, norms)), shade in zip(lines.items(), shades, strict=True):
            axis.loglog(steps, norms, color=shade, label=f"σ = {size:g}")
        axis.axhline(data["dual bounds"][label], color=EXACT, linewidth=0.8, linestyle=":")
        axis.set(xlabel="step")
        axis.set_title(label, fontsize=9)
    axes[0, 0].set_ylabel("mean size of the dual")
    axes[0, -1].legend(fontsize=8, ncols=2, loc="best")
    headline(figure, "Forgetting the start of the dual (dotted: converged below; λ = ρ μ for Algorithms 1 and 2)")
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
