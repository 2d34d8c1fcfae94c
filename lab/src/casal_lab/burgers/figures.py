"""Pictures of data assimilation on the Burgers equation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from casal_lab.burgers.comparison import FLOORS, SPECTRUM, analysed, power
from casal_lab.burgers.cycle import WINDOW
from casal_lab.burgers.observed import STRICT
from casal_lab.burgers.setup import MODES, POINTS, SITES
from casal_lab.drawing import EXACT, FAINT, colour, headline, legend_below, panels
from casal_lab.experiment import Outcome

COLOURS = {"3D-Var": "#999999", "3D-Var, constrained": "#CC79A7", "unconstrained": "#56B4E9"}
"""Of methods that only this experiment has, or has beside others of the same colour."""

PROJECTED = "projected, A+ P A"
LEAST = 1e-9
"""Share of the largest power below which a mode counts as empty."""

LAST = 4
"""The window whose states are shown."""

NAMES = {
    "Algorithm 2": "CASAL, printed",
    "released code": "CASAL, released",
    "CASAL": "CASAL (ours)",
    PROJECTED: "projected",
    "penalty, tuned": "penalty",
}
"""Of methods in the look-alikes of the paper's figures."""

KEYS = {"mass": "mass minus the truth's", "energy": "energy / the truth's", "l2": "relative l2 error"}
"""The panels of figure 6."""


def figures(outcome: Outcome) -> dict[str, Figure]:
    """Figures 3 and 6 of the paper; spectra, Hovmoeller pictures, the solver, and the regimes if they were run."""
    data = outcome.data
    paper = data.get("paper", data)
    drawn = {"burgers_figure_3": _figure_3(paper), "burgers_figure_6": _figure_6(paper)}
    if "hovmoeller" in data:
        drawn["burgers_spectra"] = _spectra(data)
        drawn["burgers_hovmoeller"] = _hovmoeller(data)
        drawn["burgers_invariants"] = _invariants(data["invariants"])
    if "regimes" in data:
        drawn["burgers_regimes"] = _regimes({"exact prior": data["regimes"], "learned prior": data["learned"]})
    return drawn


def _ink(label: str) -> str:
    return COLOURS.get(label, colour(label))


def _figure_3(data: Mapping[str, Any]) -> Figure:
    """Figure 3 of the paper, of the first set-up: left sampled states and reanalysis, right violation and error."""
    shown, which = data["shown"], data["example"]
    name, runs = next(iter(data["runs"].items()))
    figure = plt.figure(figsize=(13.0, 5.6))
    columns = -(-len(shown) // 2)
    grid = figure.add_gridspec(2, columns + 2)
    x = np.arange(POINTS) * 2 * np.pi / POINTS
    first: Any = None
    for k, label in enumerate(shown):
        axis = first = figure.add_subplot(grid[k // columns, k % columns], sharex=first, sharey=first)
        scores = runs[label].first
        for member in scores.members[LAST, :, which]:
            axis.plot(x, member, color=_ink(label), linewidth=0.7, alpha=0.5)
        axis.plot(x, scores.mean[LAST, which], color=_ink(label), linewidth=1.8)
        axis.plot(x, scores.truth.fields[WINDOW * LAST, which], color=EXACT, linewidth=0.9)
        seen = scores.truth.observed[WINDOW * LAST, which]
        axis.plot(x[list(SITES)], seen, "x", color=EXACT, markersize=7, markeredgewidth=1.6)
        axis.set_title(NAMES.get(label, label), color=_ink(label), fontsize=9)
        axis.tick_params(labelleft=k % columns == 0, labelbottom=k // columns == 1)
    times = data["times"][name][::WINDOW].numpy()
    violation, error = figure.add_subplot(grid[0, columns:]), figure.add_subplot(grid[1, columns:])
    for label in shown:
        mean, spread = _band(runs[label].curve)
        error.plot(times, mean, "o-", color=_ink(label), markersize=3, label=NAMES.get(label, label))
        error.fill_between(times, mean - spread, mean + spread, color=_ink(label), alpha=0.1, linewidth=0)
        whole, _ = _band(runs[label].violation)
        violation.semilogy(times, np.maximum(whole, 1e-17), "o-", color=_ink(label), markersize=3)
    if FLOORS[1] in runs:  # the exact answer that a field of the latent can give
        mean, _ = _band(runs[FLOORS[1]].curve)
        error.plot(times, mean, "--", color=EXACT, linewidth=1, label="nearest feasible field of the latent")
    violation.set(ylabel="constraint violation", xticklabels=[])
    error.set(ylabel="relative l2 error", xlabel="time")
    figure.legend(*error.get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8.5)
    headline(
        figure, f"As figure 3 of the paper, set-up “{name}”: states of the last window (black: truth), and averages"
    )
    return figure


def _band(curve: Any) -> tuple[Any, Any]:
    """Mean over trajectories of (5, n), and its standard error."""
    return curve.mean(1).numpy(), curve.std(1).numpy() / np.sqrt(curve.shape[1])


def _spectra(data: Mapping[str, Any]) -> Figure:
    """Power spectra of the members in the last window beside the truth's; the modes beyond the latent are shaded."""
    names = list(data["runs"])
    figure, axes = panels(1, len(names), 4.8 * len(names), 4.0, sharey=True)
    modes = np.arange(1, SPECTRUM)
    for axis, (name, runs) in zip(axes[0], data["runs"].items(), strict=True):
        lines = {label: (runs[label].first.spectrum, "-") for label in data["shown"]}
        for label in (PROJECTED, "Algorithm 2") if "observed" in data else ():
            lines[f"{label}, strict observations"] = (data["observed"][name][STRICT, label].spectrum, "--")
        axis.axvspan(MODES - 0.5, SPECTRUM, color=FAINT, alpha=0.25, linewidth=0)
        truth = power(analysed(next(iter(runs.values())).first.truth)[-1]) if runs else None
        if truth is not None:
            lines = {"truth": (truth, "-"), **lines}
        for label, (each, style) in lines.items():
            ink = EXACT if label == "truth" else _ink(label.removesuffix(", strict observations"))
            mean = each.mean(0)[1:].numpy()
            error = each.std(0)[1:].numpy() / np.sqrt(len(each))
            inside = mean > LEAST * mean.max()
            axis.semilogy(modes[inside], mean[inside], style, color=ink, label=label, linewidth=1.2)
            low, high = np.maximum(mean - error, 0.5 * mean)[inside], (mean + error)[inside]
            axis.fill_between(modes[inside], low, high, color=ink, alpha=0.12, linewidth=0)
        axis.set(title=f"set-up {name}", xlabel="mode", xlim=(0.5, SPECTRUM - 1))
    axes[0][0].set_ylabel("power")
    legend_below(figure, axes[0][0], 4)
    figure.suptitle("Power of a member in the last window (band: one standard error; shaded: beyond the latent)")
    return figure


def _figure_6(data: Mapping[str, Any]) -> Figure:
    """Figure 6 of the paper, of the first set-up: mass, energy and error of the analyses along one trajectory."""
    name, labels = next(iter(data["along"].items()))
    figure, axes = panels(1, 3, 11.0, 3.9)
    times = data["times"][name].numpy()
    for axis, (key, title) in zip(axes[0], KEYS.items(), strict=True):
        if key != "l2":
            axis.axhline(0.0 if key == "mass" else 1.0, color=EXACT, linewidth=1, label="truth")
        for label, series in labels.items():
            axis.plot(
                times, series[key], "o-", color=_ink(label), markersize=3, linewidth=1.1, label=NAMES.get(label, label)
            )
        axis.set(title=title, xlabel="time")
    legend_below(figure, axes[0][0], 5)
    headline(figure, f"As figure 6 of the paper, set-up “{name}”: one trajectory, analyses and their forecasts in turn")
    return figure


def _hovmoeller(data: Mapping[str, Any]) -> Figure:
    """u(x, t), the truth first."""
    names = list(data["hovmoeller"])
    columns = ["truth", *data["shown"]]
    figure, axes = panels(len(names), len(columns), 1.7 * len(columns), 3.0 * len(names), sharey="row")
    for line, name in zip(axes, names, strict=True):
        case = data["hovmoeller"][name]
        limit = float(np.abs(case["fields"]["truth"]).max())
        for axis, label in zip(line, columns, strict=True):
            box = (0.0, 2 * np.pi, 0.0, float(case["times"][-1]))
            look: dict[str, Any] = {"origin": "lower", "aspect": "auto", "cmap": "RdBu_r", "extent": box}
            axis.imshow(case["fields"][label], vmin=-limit, vmax=limit, **look)
            axis.set_title(label.replace(", ", ",\n") if name == names[0] else "", fontsize=8)
            axis.set_xlabel("x" if name == names[-1] else "")
        line[0].set_ylabel(f"set-up {name}: time")
    figure.suptitle("One field in space and time")
    return figure


def _invariants(drifts: Mapping[str, Mapping[str, Any]]) -> Figure:
    """What the solver loses of mass and energy."""
    figure, axis = plt.subplots(figsize=(5.0, 3.0))
    for (name, drift), style in zip(drifts.items(), ("-", "--"), strict=False):
        for key, ink in (("mass", colour("projected")), ("energy", colour("CASAL"))):
            axis.semilogy(drift["time"], np.maximum(drift[key], 1e-17), style, color=ink, label=f"{key}, set-up {name}")
    axis.axhline(1e-5, color=FAINT, linewidth=1)
    first = next(iter(drifts.values()))["time"][0]
    axis.annotate("asked for: 1e-5", (first, 1e-5), textcoords="offset points", xytext=(2, -10), fontsize=8)
    axis.set(xlabel="time", ylabel="relative drift", title="Largest drift of the solver over all trajectories")
    axis.legend(fontsize=8, loc="center right", bbox_to_anchor=(1.0, 0.72))
    return figure


def _regimes(parts: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Set-up C: scores of every truth, method by method, for each prior."""
    keys = {"modes": "mode error", "sw1": "SW1", "reconstruction": "reconstruction error"}
    figure, axes = panels(len(parts), len(keys), 3.4 * len(keys), 3.0 * len(parts), sharex="col", sharey="row")
    for line, (name, data) in zip(axes, parts.items(), strict=True):
        scores = data["scores"]
        rows = np.arange(len(scores))[::-1]
        for axis, key in zip(line, keys, strict=True):
            for at, (label, found) in zip(rows, scores.items(), strict=True):
                values = np.asarray(found[key])
                jitter = np.linspace(-0.22, 0.22, len(values))
                axis.plot(values, at + jitter, "o", color=_ink(label), markersize=2.5, alpha=0.5)
                axis.plot([values.mean()], [at], "|", color=EXACT, markersize=14, markeredgewidth=2)
            axis.set_title(f"{name}: {keys[key]}")
        line[0].set_yticks(rows, list(scores))
    figure.suptitle("Three regimes, one sensor: a dot a truth, a bar the mean")
    return figure
