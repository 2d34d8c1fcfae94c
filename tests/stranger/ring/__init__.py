"""An experiment from outside the package: one folder, one row of the registry."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import torch
from annulus import Annulus
from relaxed import Relaxed

import casal
from casal_lab.drawing import colour
from casal_lab.experiment import Experiment, Outcome, ResultTable, Tell
from casal_lab.experiments import register

CASES: dict[str, casal.Method] = {"relaxed": Relaxed(), "projected": casal.Projected()}


def run(quick: bool, labels: Sequence[str] | None, tell: Tell) -> Outcome:
    """Mean radius of a Gaussian on a ring."""
    began, rows = time.perf_counter(), []
    for label in labels or CASES:
        tell(label)
        target = casal.langevin(lambda x: x, steps=50, step_size=0.05, init=lambda n, g: torch.randn(n, 2, generator=g))
        result = casal.sample(target, Annulus(1.0, 2.0), CASES[label], 100 if quick else 1000)
        rows.append({"method": label, "radius": float(result.samples.norm(dim=1).mean())})
    table = ResultTable.of("Radius", "method | radius: mean radius, .3f", rows)
    return Outcome("ring", [table], seconds=time.perf_counter() - began)


def draw(outcome: Outcome, folder: Path) -> list[Path]:
    """One bar for each method."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots()
    for row in outcome.tables[0].rows:
        axes.bar(row["method"], row["radius"], color=colour(row["method"]))
    path = folder / "ring.png"
    figure.savefig(path)
    plt.close(figure)
    return [path]


EXPERIMENT = register(Experiment("ring", "How far out do chains stay on a ring?", tuple(CASES), run, draw))
