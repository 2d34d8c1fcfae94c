"""Experiments that run at once and count their runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from typer.testing import CliRunner

from casal import cli
from casal.lab.experiment import Claim, Column, Experiment, Outcome, ResultTable

LONG = "A very long heading of a column that no phone can show " * 2
ROWS: list[dict[str, Any]] = [
    {"method": "CASAL", "error": 10.0, "error_se": 0.5, "note": "12 of 28"},
    {"method": "projected", "error": 9.0, "error_se": 0.5, "note": "diverged"},
    {"method": "WeightedCASAL", "error": -1e-3, "note": "3 of 28"},
    {"method": "exact draws", "error": None, "note": "2"},
]
COLUMNS = (
    Column("method", "method"),
    Column("error", "error", ".3g"),
    Column("note", "note"),
    *(Column(f"extra{k}", LONG) for k in range(6)),
)


def outcome_of(name: str, quick: bool) -> Outcome:
    claims = [
        Claim("it <works> \\| well", "1", "0.99", "reproduced"),
        Claim("fast", "2 s", "3 s", "partly"),
        Claim("free", "0", "1", "not reproduced"),
    ]
    return Outcome(name, [ResultTable("Errors", COLUMNS, ROWS, "A note.")], claims, {}, {"n": 5, "quick": quick}, 0.5)


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


class Bench:
    """Two fake experiments that count their runs."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, bool]] = []
        self.act: dict[str, Callable[[], object]] = {}
        self.registry = {
            name: Experiment(name, f"Does {name} hold?", ("CASAL",), partial(self._run, name), draw)
            for name in ("alpha", "beta")
        }

    def _run(self, name: str, quick: bool, labels: Sequence[str] | None, tell: Callable[[str], None]) -> Outcome:
        tell("first part")
        self.calls.append((name, quick))
        self.act.get(name, lambda: None)()
        return outcome_of(name, quick)


def call(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, list(arguments))
