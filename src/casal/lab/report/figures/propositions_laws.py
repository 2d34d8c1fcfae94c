"""Pictures of the checks in closed form: a Gaussian and a line."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from casal.lab.problems.propositions_base import Check
from casal.lab.report.style import EXACT, FAINT, colour


def _dash(name: str) -> str:
    return "--" if "common" in name else "-"


def consistency(check: Check) -> Figure:
    """Mean of z1 with and without the dual; variance of every variant."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.3))
    data = check.data
    left.axhline(data["exact"], color=EXACT, label="with the dual, every variant = E under p_C")
    left.semilogx(data["rho"], data["without"], color="#E69F00", label="without the dual")
    left.set(xlabel="ρ", ylabel="E z1")
    left.legend(fontsize=8.5, loc="lower right")
    left.set_title("mean", fontsize=9)
    for name, values in data["variance"].items():
        right.semilogx(data["rho"], values, color=colour(name), linestyle=_dash(name), label=name)
    for level in (0.5, 1.0):
        right.axhline(level, color=EXACT, linewidth=0.8, linestyle=":")
    right.set(xlabel="ρ", ylabel="Var z1 / exact", ylim=(0, 3.2))
    right.legend(fontsize=8, loc="upper right")
    right.set_title("variance: the printed z-step halves it", fontsize=9)
    return figure


def step_size(check: Check) -> Figure:
    """Limits of stability against the condition; the Lagrangian at rest against the step size."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.3))
    data = check.data
    left.fill_between(data["rho"], 1e-4, data["condition"], color=FAINT, alpha=0.5, linewidth=0)
    left.text(0.9, 0.045, "grey: 4 τ (β + 4ρ) ≤ 1", fontsize=9)
    for name, limit in data["limits"].items():
        left.loglog(data["rho"], np.minimum(limit, 10.0), color=colour(name), label=name)
    left.set(xlabel="ρ", ylabel="τ", ylim=(5e-4, 1.5))
    left.legend(fontsize=8.5, loc="lower left")
    left.set_title("lines: largest stable step", fontsize=9)
    for name, values in data["rests"].items():
        right.loglog(data["tau"], np.maximum(values, 1e-13), "o-", markersize=3, color=colour(name), label=name)
    right.loglog(data["tau"], data["tau"], color=EXACT, linewidth=0.8, linestyle=":")
    right.text(data["tau"][-3], data["tau"][-3] * 1.6, "slope 1", fontsize=8.5, ha="right")
    right.set(xlabel="τ", ylabel="L(q) − L(q*) at rest")
    right.legend(fontsize=8.5, loc="lower right")
    right.set_title(f"ρ = {data['coupling']:g}: must be ≤ C τ", fontsize=9)
    return figure


def mixing(check: Check) -> Figure:
    """The three readings of the rate."""
    figure, axes = plt.subplots(1, 3, figsize=(11.4, 3.5))
    titles = {
        "law": "D of the law at step t",
        "averaged law": "average of D over time (what the proof bounds)",
        "averaged iterate": "D of the law of the averaged iterate (as printed)",
    }
    for axis, (key, title) in zip(axes, titles.items(), strict=True):
        for name, curve in check.data["curves"].items():
            axis.semilogx(curve["t"], curve[key], color=colour(name), linestyle=_dash(name), label=name)
        t = curve["t"][curve["t"] > 10]
        if key != "averaged iterate":
            axis.set_yscale("log")
            axis.plot(t, np.log(t) / np.sqrt(t), color=EXACT, linewidth=0.8, linestyle=":")
            axis.text(t[0], 0.22 * np.log(t[0]) / t[0] ** 0.5, "ln t / √t", fontsize=8.5)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("t")
    axes[0].legend(fontsize=8, loc="lower left")
    return figure
