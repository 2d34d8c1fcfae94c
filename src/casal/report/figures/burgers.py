"""Assimilation: errors of all methods, error curves, spectra, networks, invariants, and set-up C."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from casal.nets import LevelLosses
from casal.problems.base import Array, Outcome
from casal.problems.burgers_cycle import CYCLES
from casal.problems.burgers_runs import Runs
from casal.problems.burgers_scores import SPECTRUM, analysed, power
from casal.problems.burgers_sets import errors
from casal.problems.burgers_setup import MODES
from casal.report.figures.burgers_fields import hovmoellers, ink, short, states, trajectories
from casal.report.style import EXACT, FAINT, INK

Found = Mapping[str, Mapping[str, Runs]]


def figures(outcome: Outcome) -> dict[str, Figure]:
    """Everything that was run."""
    data = outcome.data
    found, shown = data["runs"], data["shown"]
    drawn = {"burgers_errors": _errors(found), "burgers_invariants": _invariants(data["invariants"])}
    drawn["burgers_networks"] = _networks(data["losses"])
    if shown:
        chosen = {name: {label: runs[label] for label in shown} for name, runs in found.items()}
        drawn |= {
            "burgers_states": states(chosen, data["example"]),
            "burgers_curves": _curves(chosen),
            "burgers_trajectory": trajectories(data["along"]),
            "burgers_hovmoeller": hovmoellers(data["hovmoeller"]),
            "burgers_spectrum": _spectra(chosen),
        }
    if "regimes" in data:
        drawn["burgers_regimes"] = _regimes(data["regimes"])
    return drawn


def _errors(found: Found) -> Figure:
    """Relative error of every method, one panel a set-up, with two standard errors."""
    labels = list(next(iter(found.values())))
    figure, axes = plt.subplots(1, len(found), figsize=(9.6, 1.0 + 0.27 * len(labels)), sharey=True, squeeze=False)
    for axis, (name, runs) in zip(axes[0], found.items(), strict=True):
        if "3D-Var, constrained" in runs:
            axis.axvline(_mean(runs["3D-Var, constrained"])[0], color=FAINT, linewidth=1, zorder=0)
        for y, label in enumerate(labels):
            value, error = _mean(runs[label])
            axis.errorbar([value], [y], xerr=[2 * error], fmt="o", color=ink(label), markersize=5, linewidth=1.2)
            axis.annotate(
                f"{value:.3f}", (value, y), (0, 5), textcoords="offset points", ha="center", fontsize=7, color=INK
            )
        axis.set_title(f"set-up {name}")
        axis.set_xlabel("relative error of the mean (bars: two standard errors)")
    axes[0, 0].set_yticks(range(len(labels)), labels)
    axes[0, 0].set_ylim(len(labels) - 0.4, -0.8)
    figure.suptitle("Analysis errors (grey line: constrained 3D-Var)", fontsize=11, fontweight="bold")
    return figure


def _mean(runs: Runs) -> tuple[float, float]:
    each = runs.values["l2"].mean(0)
    return float(each.mean()), float(each.std() / len(each) ** 0.5)


def _curves(found: Found) -> Figure:
    """Error of the mean, and relative energy error of a member, window by window."""
    figure, axes = plt.subplots(len(found), 2, figsize=(9.2, 2.6 * len(found)), sharex=True, squeeze=False)
    windows = np.arange(1, CYCLES + 1)
    for line, (name, runs) in zip(axes, found.items(), strict=True):
        for label, each in runs.items():
            line[0].plot(windows, each.curve.mean(1).numpy(), "o-", color=ink(label), markersize=3.5, label=label)
            _, energy = errors(each.first.members, each.first.truth.mass, each.first.truth.energy)
            drift = energy.mean((1, 2)).numpy()
            if float(drift.max()) > 1e-9:
                line[1].plot(windows, drift, "o-", color=ink(label), markersize=3.5)
        line[0].set_ylabel(f"set-up {name}\nrelative error")
        line[1].set_ylabel("energy error of a member")
        line[1].set_ylim(bottom=0.0)
        line[1].text(
            0.98, 0.04, "all others: below 1e-12", transform=line[1].transAxes, ha="right", fontsize=8, color=INK
        )
    for axis in axes[-1]:
        axis.set(xlabel="window", xticks=windows)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    figure.suptitle("Errors over the cycle", fontsize=11, fontweight="bold")
    return figure


def _spectra(found: Found) -> Figure:
    """Power of the members in the last window; the latent ends at mode 9."""
    figure, axes = plt.subplots(1, len(found), figsize=(9.2, 3.2), squeeze=False)
    modes = np.arange(1, SPECTRUM)
    for axis, (name, runs) in zip(axes[0], found.items(), strict=True):
        truth = next(iter(runs.values())).first.truth
        exact = power(analysed(truth)[-1]).numpy()[1:]
        for label, each in runs.items():
            inside = each.first.spectrum.numpy()[1:MODES]
            axis.plot(modes[: MODES - 1], inside, "o-", color=ink(label), markersize=3, linewidth=1.2, label=label)
        axis.plot(modes, exact, color=EXACT, linewidth=1.6, label="truth")
        axis.axvline(MODES - 0.5, color=FAINT, linewidth=0.8)
        axis.set(yscale="log", xlabel="Fourier mode", title=f"set-up {name}")
    axes[0, 0].set_ylabel("power in the last window")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    figure.suptitle("Spectra (the latent ends at the grey line)", fontsize=11, fontweight="bold")
    return figure


def _networks(losses: Mapping[str, LevelLosses]) -> Figure:
    """Held-out loss over that of the Gaussian score, per noise level."""
    figure, axis = plt.subplots(figsize=(5.6, 2.9))
    axis.axhline(1.0, color=EXACT, linewidth=0.8)
    top = 1.35
    for (name, each), colour_, mark in zip(losses.items(), ("#44AA99", "#882255"), "os", strict=True):
        ratio = each.ratio.numpy()
        axis.errorbar(
            each.levels.numpy(),
            np.minimum(ratio, top),
            yerr=2 * np.where(ratio < top, each.ratio_error.numpy(), 0.0),
            fmt=f"{mark}-",
            color=colour_,
            markersize=4,
            linewidth=1.2,
            label=f"set-up {name}",
        )
    axis.set(xlabel="noise level t", ylabel="network / Gaussian", ylim=(None, 1.02 * top))
    axis.text(0.98, 0.05, f"larger ratios are drawn at {top:g}", transform=axis.transAxes, ha="right", fontsize=7.5)
    axis.legend(loc="upper left", fontsize=8)
    axis.set_title("Held-out loss: below 1, the network knows more than a Gaussian", fontsize=9)
    return figure


def _invariants(drifts: Mapping[str, Mapping[str, Array]]) -> Figure:
    """Drift of the solver over the horizon, beside what is asked for."""
    figure, axes = plt.subplots(1, len(drifts), figsize=(8.4, 2.8), sharey=True, squeeze=False)
    for axis, (name, drift) in zip(axes[0], drifts.items(), strict=True):
        axis.axhline(1e-5, color=FAINT, linewidth=1)
        axis.text(0.0, 1.3e-5, "asked for", fontsize=7.5, color=INK)
        for key, colour_ in (("energy", "#D55E00"), ("mass", "#0072B2")):
            axis.plot(drift["time"], np.maximum(drift[key], 1e-18), color=colour_, linewidth=1.4, label=key)
        axis.set(yscale="log", ylim=(1e-18, 1e-3), xlabel="time", title=f"set-up {name}")
    axes[0, 0].set_ylabel("largest relative drift")
    axes[0, -1].legend(loc="center right", fontsize=8)
    figure.suptitle("Invariants of the solver", fontsize=11, fontweight="bold")
    return figure


def _regimes(data: Mapping[str, Any]) -> Figure:
    """Mode error against SW1, and reconstruction; then how far the constraint moves the likeliest regime."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11.6, 3.4), width_ratios=(1.1, 1.1, 0.9))
    scores = data["scores"]
    for label, each in scores.items():
        x, y = each["modes"], each["sw1"]
        left.errorbar([x.mean()], [y.mean()], xerr=_error(x), yerr=_error(y), fmt="o", color=ink(label), markersize=5)
    left.set(xlabel="mode error", ylabel="SW1 / spread", xlim=(0, None), ylim=(0, None), title="Distance to the law")
    labels = list(scores)
    for y, label in enumerate(labels):
        each = scores[label]["reconstruction"]
        middle.errorbar([each.mean()], [y], xerr=_error(each), fmt="o", color=ink(label), markersize=5)
    middle.axvline(float(data["exact"].mean()), color=EXACT, linewidth=0.9)
    middle.set_yticks(range(len(labels)), [short(label) for label in labels])
    middle.set(xlabel="relative error of the mean field", ylim=(len(labels) - 0.5, -0.5), title="Reconstruction")
    _moved(right, data["before"], data["after"])
    figure.suptitle("Set-up C: three regimes (black: exact law)", fontsize=11, fontweight="bold")
    return figure


def _moved(axis: Axes, before: Array, after: Array) -> None:
    """Probability of the regime that is likeliest after the constraint, before and after."""
    best = after.argmax(1)
    rows = np.arange(len(best))
    axis.plot(before[rows, best], after[rows, best], "o", color="#44AA99", markersize=4, alpha=0.8)
    axis.plot([0, 1], [0, 1], color=FAINT, linewidth=0.8, zorder=0)
    axis.set(xlabel="given the sensor", ylabel="given the constraint too", xlim=(0, 1.02), ylim=(0, 1.05))
    axis.set_title("P(likeliest regime), each truth")


def _error(values: Array) -> float:
    """Two standard errors."""
    return float(2 * values.std() / max(len(values) - 1, 1) ** 0.5)
