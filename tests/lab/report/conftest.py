"""Two fake experiments, and pictures that cost nothing."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from casal import cli
from casal.lab.problems.base import Outcome
from casal.lab.report import cache

from .bench import Bench


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    def draw(outcome: Outcome, folder: Path) -> list[Path]:
        paths = []
        for name, width in (("small", 4.0), ("large", 14.0)):
            figure, axis = plt.subplots(figsize=(width, 2))
            axis.plot([0, 1], [1, 0])
            paths.append(folder / f"{outcome.name}_{name}.png")
            figure.savefig(paths[-1], dpi=40)
            figure.savefig(paths[-1].with_suffix(".svg"))
            plt.close(figure)
        return paths

    made = Bench()
    monkeypatch.setattr(cache, "draw", draw)
    monkeypatch.setattr(cli, "experiments", lambda modules=(): made.registry)
    return made
