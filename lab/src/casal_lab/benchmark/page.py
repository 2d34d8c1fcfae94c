"""The results on one page, with two pictures: error over floor by sampler, and by problem and sampler."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from casal.store import write_whole
from casal_lab.benchmark.catalogue import PROBLEMS, problem
from casal_lab.benchmark.comparison import NEAR, QUESTION, Entry, Results
from casal_lab.benchmark.samplers import SAMPLERS
from casal_lab.drawing import EXACT, INK, colour, panels, writer
from casal_lab.experiment import Outcome
from casal_lab.report.page import environment, picture

COLOURS: Mapping[str, str] = {
    "exact draws": EXACT,
    "auto": "#0072B2",
    "DPS + projection": colour("DPS"),
    "mici": "#882255",
    "azula MMPS": "#B8860B",
    "azula DPS": "#999933",
}
"""Of samplers that are no method of the library; the others have their own, and those of users are ink."""

LEAST, MOST = 0.3, 300.0
"""Range of the axis; what is beyond it is drawn at its end."""

PALE = 100.0
"""Error over floor from which a cell has the full colour."""


def figures(results: Results) -> dict[str, Any]:
    """Error over floor: a row of dots for each sampler, and a cell for each problem and sampler."""
    return {"benchmark": _by_sampler(results), "benchmark_problems": _by_problem(results)}


def _by_sampler(results: Results) -> Any:
    """A dot for each problem, the geometric mean as a line; the strip is within NEAR floors."""
    names = results.samplers
    figure, axes = panels(1, 1, 8.0, 1.0 + 0.34 * len(names))
    axis = axes[0, 0]
    axis.axvspan(LEAST, NEAR, color="#eef3ee", zorder=0, linewidth=0)
    axis.axvline(1.0, color=EXACT, linewidth=0.8, zorder=1)
    ticks = []
    for y, sampler in enumerate(names):
        ran = [one for one in results.entries if one.sampler == sampler and one.scores]
        ratios = np.array([one.ratio for one in ran])
        ink = COLOURS.get(sampler, colour(sampler))
        shift = 0.22 * ((np.arange(len(ratios)) * 0.618034) % 1.0 - 0.5) * 2
        axis.plot(ratios.clip(LEAST, MOST), y + shift, "o", color=ink, markersize=4, alpha=0.75, markeredgewidth=0)
        if len(ratios):
            middle = float(np.exp(np.log(ratios.clip(1e-9)).mean()).clip(LEAST, MOST))
            axis.plot([middle, middle], [y - 0.36, y + 0.36], color=ink, linewidth=2.2)
        ticks.append(f"{sampler} ({len(ran)})")
    axis.set_yticks(range(len(names)), ticks, fontsize=8.5)
    axis.set(xscale="log", xlim=(LEAST, MOST * 1.1), ylim=(len(names) - 0.4, -0.6))
    axis.set_xticks([0.3, 1, 3, 10, 30, 100, 300], ["0.3", "1", "3", "10", "30", "100", "≥ 300"])
    axis.set_xlabel(
        "error / floor: a dot for each problem, a line for the geometric mean; number of problems in brackets"
    )
    return figure


def _by_problem(results: Results) -> Any:
    """Numbers in coloured cells: white up to the floor, the darker the farther from it; grey where nothing was run."""
    names, samplers = results.problems, results.samplers
    table = [[results.of(name, sampler) for sampler in samplers] for name in names]
    shade = np.array([[_ratio(one) for one in row] for row in table])
    figure, axes = panels(1, 1, 3.2 + 0.55 * len(samplers), 1.1 + 0.2 * len(names))
    axis = axes[0, 0]
    axis.set_facecolor("#eceef0")
    scale = np.log(np.clip(shade, 1.0, PALE)) / math.log(PALE)
    axis.pcolormesh(
        np.ma.masked_invalid(0.75 * scale), cmap="YlOrBr", vmin=0.0, vmax=1.0, edgecolors="white", linewidth=0.6
    )
    for y, row in enumerate(table):
        for x, one in enumerate(row):
            if one is None or not one.applies:
                continue
            text = f"{one.ratio:.1f}" if one.ratio < 10 else f"{one.ratio:.0f}" if one.ratio < 1000 else "> 999"
            dark = one.scores and scale[y, x] > 0.75
            weight = "bold" if one.scores and one.ratio <= NEAR else "normal"
            axis.text(
                x + 0.5,
                y + 0.5,
                text if one.scores else "failed",
                ha="center",
                va="center",
                fontsize=6.5,
                color="white" if dark else INK,
                fontweight=weight,
            )
    axis.set_yticks(np.arange(len(names)) + 0.5, names, fontsize=7)
    axis.set_xticks(np.arange(len(samplers)) + 0.5, samplers, fontsize=7, rotation=40, ha="left")
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    axis.set_ylim(len(names), 0)
    for spine in axis.spines.values():
        spine.set_visible(False)
    return figure


def _ratio(entry: Entry | None) -> float:
    return entry.ratio if entry is not None and entry.scores else math.nan


CAPTIONS = {
    "benchmark": "Error over floor of every sampler: a dot for each problem",
    "benchmark_problems": f"Error over floor of every sampler on every problem; bold within {NEAR:g} floors",
}


def write_page(results: Results, folder: Path) -> Path:
    """Write results.json, results.md, the picture and index.html into a folder, and return the path of the page."""
    results.write(folder)
    draw = writer(lambda outcome: figures(results))
    outcome: Outcome = results.outcome()
    pictures = [(CAPTIONS[path.stem], picture(path)) for path in draw(outcome, folder)]
    facts = {key: value for key, value in results.settings.items() if key != "command"}
    text = (
        environment("casal_lab.benchmark")
        .get_template("benchmark.html.jinja")
        .render(
            question=QUESTION,
            facts={**facts, "problems": len(results.problems), "samplers": len(results.samplers)},
            pictures=pictures,
            tables=outcome.tables,
            samplers={name: SAMPLERS[name].about if name in SAMPLERS else "" for name in results.samplers},
            problems=[problem(name) for name in results.problems if name in PROBLEMS],
        )
    )
    path = folder / "index.html"
    write_whole(path, lambda file: file.write(text.encode()))
    return path
