"""Errors of every method on every network, and means and standard deviations of one condition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from casal_lab.drawing import EXACT, FAINT, colour, headline, legend_below, panels
from casal_lab.experiment import Outcome

CUT = 300.0
"""Errors above so many times those of exact draws are drawn at this ratio, at the edge of the picture."""


def figures(outcome: Outcome) -> Mapping[str, Figure]:
    """Both pictures, of a run with the comparison."""
    if "comparison" not in outcome.data:
        return {}
    return {"networks_errors": errors(outcome), "networks_fields": fields(outcome)}


def errors(outcome: Outcome) -> Figure:
    """MMSE and SMSE over those of exact draws, a row of dots for each network."""
    rows = outcome.data["comparison"]
    titles = list(dict.fromkeys(row["network"] for row in rows))
    figure, axes = panels(1, 2, 10.5, 0.55 * len(titles) + 1.7, sharey=True)
    names = [name for name in dict.fromkeys(row["method"] for row in rows) if name != "exact draws"]
    for axis, key in zip(axes[0], ("mmse", "smse"), strict=True):
        for at, title in enumerate(reversed(titles)):
            own = {row["method"]: row for row in rows if row["network"] == title and key in row}
            for k, name in enumerate(names):
                if name not in own:
                    continue
                ratio = own[name][key] / own["exact draws"][key]
                axis.plot(
                    min(ratio, CUT),
                    at + 0.3 - 0.6 * k / (len(names) - 1),
                    marker="o" if ratio <= CUT else ">",
                    markersize=6,
                    color=colour(name),
                    linestyle="",
                )
            axis.axhline(at - 0.5, color=FAINT, linewidth=0.6)
        axis.axvline(1.0, color=EXACT, linewidth=1)
        axis.set_xscale("log")
        axis.set(xlim=(0.7, 1.3 * CUT), ylim=(-0.5, len(titles) - 0.5))
        axis.set_xlabel(f"{key.upper()} / that of exact draws")
        axis.set_yticks(range(len(titles)), [_two_lines(title) for title in reversed(titles)])
    for name in names:
        axes[0][0].plot([], [], "o", markersize=6, color=colour(name), label=name)
    headline(figure, "Trained networks: error of the mean and of the spread, equal evaluations")
    legend_below(figure, axes[0][0], 3)
    return figure


def _two_lines(title: str) -> str:
    """The network above, what is known below."""
    network, _, known = title.partition(": ")
    return f"{network}\n{known}"


def fields(outcome: Outcome) -> Figure:
    """Mean and standard deviation of the first condition: a column a method, two rows a network."""
    every: Mapping[str, Mapping[str, Any]] = outcome.data["pictures"]
    found = {title: maps for title, maps in every.items() if "UNet" in title} or every
    columns = list(dict.fromkeys(label for maps in found.values() for label in maps))
    figure, axes = panels(2 * len(found), len(columns), 2.3 * len(columns) + 0.8, 2.8 * len(found) + 0.6)
    for i, (title, maps) in enumerate(found.items()):
        for part in range(2):
            exact = maps["exact draws"][part]
            low, high = (float(exact.min()), float(exact.max())) if part == 0 else (0.0, 1.5 * float(exact.max()))
            for j, name in enumerate(columns):
                axis = axes[2 * i + part][j]
                axis.set(xticks=[], yticks=[])
                if name in maps:
                    shown = np.clip(maps[name][part], low, high)
                    axis.imshow(shown, vmin=low, vmax=high, cmap="RdBu_r" if part == 0 else "viridis", aspect="auto")
                if i == 0 and part == 0:
                    axis.set_title(name, fontsize=9)
                if j == 0:
                    axis.set_ylabel(f"{title}\n{'mean' if part == 0 else 'standard deviation'}", fontsize=7.5)
    headline(figure, "One condition of each network: mean and standard deviation")
    return figure
