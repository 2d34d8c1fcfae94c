"""The propositions: one picture a check, where a check has something to show."""

from __future__ import annotations

from collections.abc import Callable

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from casal_lab.drawing import EXACT, FAINT, INK, colour, headline, label, panels
from casal_lab.experiment import Array, Outcome
from casal_lab.problems import gaussian_line
from casal_lab.propositions.setup import Check

COLOURED = frozenset(gaussian_line.VARIANTS)
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")


def figures(outcome: Outcome) -> dict[str, Figure]:
    """A picture for every check that was run and has one."""
    drawn = {}
    for name, check in outcome.data.items():
        if name in DRAWINGS:
            title, drawing = DRAWINGS[name]
            figure = drawing(check)
            headline(figure, f"{check.number}: {title}")
            drawn[f"propositions_{name.replace(' ', '_')}"] = figure
    return drawn


def _panels(count: int, width: float = 4.0) -> tuple[Figure, list[Axes]]:
    figure, axes = panels(1, count, width * count, 3.3)
    return figure, list(axes.flat)


def _information(check: Check) -> Figure:
    figure, (axis,) = _panels(1, 5.4)
    data = check.data
    for (name, values), shade in zip(data["curves"].items(), PALETTE, strict=False):
        axis.plot(data["tilts"], values, color=shade, label=name)
    axis.axhline(data["least"], color=EXACT, linewidth=0.8, linestyle=":")
    axis.text(-8, data["least"] - 0.05, "−log P(C)", fontsize=8.5, va="top")
    axis.axhline(data["share"], color=FAINT, linewidth=0.8, linestyle="--")
    axis.text(-8, data["share"] + 0.05, "P(C), as printed in the proof", fontsize=8.5, color="#8a8f94")
    axis.plot([0], [data["least"]], "o", color=EXACT, markersize=5)
    axis.annotate("p_C", (0, data["least"]), (0, -12), textcoords="offset points", ha="center", fontsize=9)
    axis.set(xlabel="θ: strength of the change q ∝ p_C exp(θ s(x)) on C", ylabel="D(q | p)", ylim=(0, None))
    axis.legend(title="direction s", fontsize=8.5, title_fontsize=8.5, loc="upper center")
    return figure


def _unattained(check: Check) -> Figure:
    figure, (axis,) = _panels(1, 5.4)
    for (name, gap), shade in zip(check.data["gaps"].items(), PALETTE, strict=False):
        kept = gap > 1e-14
        axis.loglog(check.data["weights"][kept], gap[kept], color=shade, label=f"cost: {name}")
    title = "distance of the dual function to its supremum: never zero"
    label(axis, title, "center right", xlabel="multiplier λ", ylabel="log 1/P(C) − g(λ)", ylim=(1e-12, 10))
    return figure


def _penalty(check: Check) -> Figure:
    figure, axes = _panels(2)
    shades = dict(zip(("in C", "within 0.001", "within 0.01", "within 0.1"), (EXACT, *PALETTE), strict=False))
    names = {"in C": "outside C", "within 0.001": "ε = 0.001", "within 0.01": "ε = 0.01", "within 0.1": "ε = 0.1"}
    for axis, (case, curves) in zip(axes, check.data["curves"].items(), strict=True):
        for name, outside in curves.items():
            axis.loglog(check.data["weights"], np.maximum(outside, 1e-9), color=shades[name], label=names[name])
        if "in C" not in curves:
            axis.axhline(1.0, color=EXACT)
        axis.set(xlabel="penalty weight λ, cost d²", ylim=(1e-4, 1.5), title=case)
    label(axes[0], legend="lower left", ylabel="probability outside C widened by ε")
    return figure


def _strong_duality(check: Check) -> Figure:
    figure, (axis,) = _panels(1, 5.4)
    data = check.data
    axis.plot(data["mu"], data["values"], color=PALETTE[0])
    axis.axhline(data["primal"], color=EXACT, linewidth=0.8, linestyle=":")
    axis.plot(*data["best"], "o", color=EXACT, markersize=5)
    axis.text(data["mu"][0], data["primal"] + 0.06, "primal value of (P)", fontsize=8.5)
    axis.text(1.15, -1.0, "dual function", fontsize=8.5, color=PALETTE[0])
    limits = (float(np.min(data["values"])) - 0.1, data["primal"] + 0.5)
    title = "double well on an interval, ρ = 3: the two meet"
    label(axis, title, xlabel="μ = λ/ρ", ylabel="value", ylim=limits)
    return figure


def _recovery(check: Check) -> Figure:
    figure, axes = _panels(3, 3.3)
    for axis, (case, curve) in zip(axes, check.data["curves"].items(), strict=True):
        for key, shade in (("x", PALETTE[0]), ("z", PALETTE[1])):
            axis.loglog(curve["rho"], curve[key], "o-", markersize=3, color=shade, label=f"q^{key}")
        title = f"{case}\nslope of q^z at the end {check.data['slopes'][case]:.2f}"
        label(axis, title, xlabel="ρ", ylim=(1e-4, 2))
    label(axes[0], legend="lower left", ylabel="W1 to p_C")
    return figure


def _relaxation(check: Check) -> Figure:
    figure, axes = _panels(2)
    for (case, curve), shade in zip(check.data["curves"].items(), PALETTE, strict=False):
        axes[0].semilogx(curve["rho"], curve["divergence"], color=shade, label=case)
        axes[1].semilogx(curve["rho"], curve["transport"], color=shade)
    for axis in axes:
        axis.axhline(1.0, color=EXACT, linewidth=0.8, linestyle=":")
        axis.set(xlabel="ρ", ylim=(0, 2.25))
    axes[1].axhline(2.0, color=EXACT, linewidth=0.8, linestyle="--")
    axes[0].text(0.03, 1.04, "bound", fontsize=8.5)
    for height, text in ((1.04, "bound as printed"), (2.04, "bound that the lemma gives")):
        axes[1].text(1e3, height, text, fontsize=8.5, ha="right")
    label(axes[0], "D(q^x | p) / D(p_C | p)", "upper left")
    label(axes[1], "ρ W2²(q^x, q^z) / D(p_C | p)")
    return figure


def _optimum(check: Check) -> Figure:
    figure, axes = _panels(2)
    data = check.data
    x: Array = data["x"]
    width = x[1] - x[0]
    axes[0].axvspan(*data["set"], color=FAINT, alpha=0.4, linewidth=0)
    axes[0].text(float(np.mean(data["set"])), 0.02, "C", ha="center", fontsize=9)
    lines = (("p", "p", INK), ("q", "q^x with μ*", PALETTE[0]), ("bare", "q^x with μ = 0", PALETTE[1]))
    for key, name, shade in lines:
        axes[0].plot(x, data[key] / width, color=shade, label=name, linestyle="--" if key == "bare" else "-")
    title = f"the printed form, μ* = {data['mu']:.3f}"
    label(axes[0], title, "upper left", xlabel="x", ylabel="density", xlim=(-3.5, 2.2), ylim=(0, None))
    pairs = data["pairs"]
    ends = [pairs.min(), pairs.max()]
    axes[1].loglog(pairs[:, 0], pairs[:, 1], ".", color=PALETTE[0], markersize=4)
    axes[1].plot(ends, ends, color=EXACT, linewidth=0.8, linestyle=":")
    title = "every other distribution costs at least its divergence"
    label(axes[1], title, xlabel="D(q | q*) of another distribution q", ylabel="its value − optimal value")
    return figure


def _dash(name: str) -> str:
    return "--" if "common" in name else "-"


def _consistency(check: Check) -> Figure:
    """Mean of z1 with and without the dual; variance of every variant."""
    figure, (left, right) = _panels(2, 4.2)
    data = check.data
    left.axhline(data["exact"], color=EXACT, label="with the dual, every variant = E under p_C")
    left.semilogx(data["rho"], data["without"], color="#E69F00", label="without the dual")
    label(left, "mean", "lower right", xlabel="ρ", ylabel="E z1")
    for name, values in data["variance"].items():
        right.semilogx(data["rho"], values, color=colour(name), linestyle=_dash(name), label=name)
    for level in (0.5, 1.0):
        right.axhline(level, color=EXACT, linewidth=0.8, linestyle=":")
    title = "variance: the printed z-step halves it"
    label(right, title, xlabel="ρ", ylabel="Var z1 / exact", ylim=(0, 3.2))
    right.legend(fontsize=8, loc="upper right")
    return figure


def _decrement(check: Check) -> Figure:
    """Limits of stability against the condition; the constant that the decrement needs, along two runs."""
    figure, axes = _panels(3, 4.0)
    data = check.data
    axes[0].fill_between(data["rho"], 1e-4, data["condition"], color=FAINT, alpha=0.5, linewidth=0)
    axes[0].text(0.9, 0.045, "grey: 4 τ (β + 4ρ) ≤ 1", fontsize=9)
    for name, limit in data["limits"].items():
        axes[0].loglog(data["rho"], np.minimum(limit, 10.0), color=colour(name), label=name)
    label(axes[0], "lines: largest stable step", "lower left", xlabel="ρ", ylabel="τ", ylim=(5e-4, 1.5))
    names = ("printed z-step: no C is enough", "full z-step: C needed stays below 0.1")
    for axis, (runs, title) in zip(axes[1:], zip(data["paths"].values(), names, strict=True), strict=True):
        for (tau, run), shade in zip(runs.items(), PALETTE, strict=False):
            axis.plot(run.time, run.needed, color=shade, label=f"τ = {tau:.4f}")
        axis.axhline(0.0, color=EXACT, linewidth=0.8, linestyle=":")
        label(axis, title, "lower right", xlabel="time τ t", ylim=(-60, 160))
    axes[1].set_ylabel("C that the step needs")
    return figure


def _weighted(check: Check) -> Figure:
    """The constant that the weighted sum needs against the length of the run."""
    figure, (axis,) = _panels(1, 8.0)
    for name, needed in check.data["curves"].items():
        shade = colour(name) if name in COLOURED else INK
        axis.loglog(check.data["T"], np.maximum(needed, 1e-4), color=shade, linestyle=_dash(name), label=name)
    label(axis, "started at the solution, V₀ = 0", xlabel="T", ylabel="C that the sum needs")
    axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _split(check: Check) -> Figure:
    """Dual function of the split problem, and the value of its relaxation (P)."""
    figure, (left, right) = _panels(2)
    data = check.data
    kept = data["gaps"] > 1e-14
    left.loglog(data["multipliers"][kept], data["gaps"][kept], color=PALETTE[0])
    title = "x = z: the dual function misses its supremum"
    label(left, title, xlabel="multiplier of P(x ≠ z)", ylabel="−log P(C) − dual function")
    right.axhline(data["best"], color=EXACT, linewidth=0.8, linestyle=":")
    right.text(data["rho"][0], data["best"] + 0.03, "−log P(C), value of the split problem", fontsize=8.5)
    right.semilogx(data["rho"], data["values"], "o-", markersize=3, color=PALETTE[0])
    label(right, "its relaxation (P)", xlabel="ρ", ylabel="value of (P)", ylim=(0, data["best"] + 0.2))
    return figure


def _thin(check: Check) -> Figure:
    """-log P of a tube around the circle, and the value of (P) on the circle."""
    figure, (left, right) = _panels(2)
    data = check.data
    left.semilogx(data["widths"], data["bounds"], "o-", color=PALETTE[0])
    label(left, "tube around a circle", xlabel="half-width of the tube", ylabel="D(p_C | p) = −log P(C)")
    left.invert_xaxis()
    right.semilogx(data["rho"], data["values"], "o-", color=PALETTE[1])
    label(right, "the circle itself", xlabel="ρ", ylabel="value of (P): finite, like ½ log ρ")
    return figure


def _saddle(check: Check) -> Figure:
    """The gap of the Lagrangian against the divergence."""
    figure, (axis,) = _panels(1, 5.4)
    pairs = check.data["pairs"]
    ends = [pairs.min(), pairs.max()]
    axis.loglog(pairs[:, 0], pairs[:, 1], ".", color=PALETTE[0], markersize=5)
    axis.plot(ends, ends, color=EXACT, linewidth=0.8, linestyle=":")
    title = "every distribution of (x, z) lies above the diagonal"
    label(axis, title, xlabel="D(q^x | q*^x)", ylabel="L(q, λ*) − L(q*, λ)")
    return figure


def _mixing(check: Check) -> Figure:
    """The three readings of the rate."""
    figure, axes = plt.subplots(1, 3, figsize=(11.4, 3.5))
    titles = {
        "law": "D of the distribution at step t",
        "averaged law": "average of D over time (what the proof bounds)",
        "averaged iterate": "D of the distribution of the averaged iterate (as printed)",
    }
    for axis, (key, title) in zip(axes, titles.items(), strict=True):
        for name, curve in check.data["curves"].items():
            axis.semilogx(curve["t"], curve[key], color=colour(name), linestyle=_dash(name), label=name)
        t = curve["t"][curve["t"] > 10]
        if key != "averaged iterate":
            axis.set_yscale("log")
            axis.plot(t, np.log(t) / np.sqrt(t), color=EXACT, linewidth=0.8, linestyle=":")
            axis.text(t[0], 0.22 * np.log(t[0]) / t[0] ** 0.5, "ln t / √t", fontsize=8.5)
        label(axis, title, xlabel="t")
    axes[0].legend(fontsize=8, loc="lower left")
    return figure


DRAWINGS: dict[str, tuple[str, Callable[[Check], Figure]]] = {
    "information projection": ("p_C is the nearest distribution on C", _information),
    "unattained duality": ("no multiplier attains the projection", _unattained),
    "penalty": ("no penalty reaches probability one", _penalty),
    "split": ("a copy z = x changes neither the problem nor its dual function", _split),
    "strong duality": ("the split problem has a saddle point", _strong_duality),
    "recovery": ("as ρ grows, both marginals tend to p_C", _recovery),
    "relaxation": ("one printed bound is too small by a factor of two", _relaxation),
    "consistency": ("Gaussian and a line: the dual makes the mean right", _consistency),
    "mixing": ("only a full z-step with one common multiplier tends to q*", _mixing),
    "thin sets": ("on sets of probability zero the bounds are infinite", _thin),
    "optimum": ("the form of the optimum", _optimum),
    "decrement": ("the step size is safe, the decrement needs the full z-step", _decrement),
    "saddle gap": ("the Lagrangian bounds the divergence", _saddle),
    "weighted sum": ("with the printed z-step the constant keeps growing", _weighted),
}
"""Title and picture of each check; the descent lemmas and the form of the Lagrangian have tables only."""
