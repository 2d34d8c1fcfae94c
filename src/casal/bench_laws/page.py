"""The results on one page, with a picture: error over floor of every sampler on every problem."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from casal.bench_laws.catalogue import PROBLEMS, problem
from casal.bench_laws.comparison import QUESTION, Results
from casal.bench_laws.samplers import SAMPLERS
from casal.lab.drawing import EXACT, FAINT, INK, colour, panels, writer
from casal.lab.experiment import Outcome
from casal.lab.report.page import environment, picture
from casal.store import write_whole

MARKS: Mapping[str, tuple[str, str]] = {
    "exact draws": (EXACT, "|"),
    "auto": ("#0072B2", "o"),
    "WeightedCASAL": (colour("WeightedCASAL"), "s"),
    "SplitGibbs": (colour("SplitGibbs"), "s"),
    "CASAL": (colour("CASAL"), "D"),
    "Algorithm 2": (colour("Algorithm 2"), "v"),
    "projected": (colour("projected"), "+"),
    "final projection": (colour("final projection"), "x"),
    "DPS + projection": (colour("DPS"), "X"),
    "mici": ("#882255", "P"),
    "azula MMPS": ("#B8860B", "^"),
    "azula DPS": ("#999933", "<"),
}
"""Colour and mark of the samplers; others are drawn as ink stars."""

LEAST, MOST = 0.3, 300.0
"""Range of the axis; what is beyond it is drawn at its end."""


def figures(results: Results) -> dict[str, Any]:
    """Error over floor by problem and sampler, on a logarithmic axis; the strip is within twice the floor."""
    names = results.problems
    figure, axes = panels(1, 1, 9.2, 1.6 + 0.27 * len(names))
    axis = axes[0, 0]
    axis.axvspan(LEAST, 2.0, color="#eef3ee", zorder=0, linewidth=0)
    axis.axvline(1.0, color=EXACT, linewidth=0.8, zorder=1)
    for sampler in results.samplers:
        ink, mark = MARKS.get(sampler, (INK, "*"))
        found = [(y, results.of(name, sampler)) for y, name in enumerate(names)]
        dots = [(min(max(one.ratio, LEAST), MOST), y) for y, one in found if one is not None and one.scores]
        if dots:
            axis.plot(*zip(*dots, strict=True), mark, color=ink, markersize=5, label=sampler, alpha=0.9, linestyle="")
    for y in range(len(names)):
        axis.axhline(y, color=FAINT, linewidth=0.4, zorder=0)
    axis.set_yticks(range(len(names)), names, fontsize=7.5)
    axis.set(xscale="log", xlim=(LEAST, MOST * 1.1), ylim=(len(names) - 0.5, -0.5), xlabel="error / floor")
    figure.legend(loc="outside upper center", ncols=6, fontsize=8)
    return {"bench_laws": figure}


def write_page(results: Results, folder: Path) -> Path:
    """Write results.json, results.md, the picture and index.html into a folder, and return the path of the page."""
    results.write(folder)
    draw = writer(lambda outcome: figures(results))
    outcome: Outcome = results.outcome()
    pictures = [("Error over floor of every sampler on every problem", picture(path)) for path in draw(outcome, folder)]
    facts = {key: value for key, value in results.settings.items() if key != "command"}
    text = (
        environment("casal.bench_laws")
        .get_template("bench_laws.html.jinja")
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
