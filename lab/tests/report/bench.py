"""Experiments that run at once and count their runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from typer.testing import CliRunner

from casal_lab import cli
from casal_lab.experiment import Claim, Column, Experiment, Outcome, ResultTable
from casal_lab.motion import Backdrop, Group, Motion, Panel, Profile

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
        Claim("it <works> \\| well", "1", "0.99", "reproduced", "section 5.1", "a figure below 0.9"),
        Claim("fast", "2 s", "3 s", "partly", "table 2", "2 s"),
        Claim(
            "free",
            "0",
            "1",
            "not reproduced",
            "appendix C (`proposition:a_name_that_is_longer_than_a_phone_is_wide`)",
            "0",
        ),
        Claim("exact", "0.01", "0.002", "met", flips="a figure above 0.01"),
    ]
    tables = [ResultTable("Errors", COLUMNS, ROWS, "A note.")]
    return Outcome(name, tables, claims, {}, {"n": 5, "quick": quick}, 0.5, [motion_of(name)])


def motion_of(name: str) -> Motion:
    """Three lines that rise, one of them a failure until the last of four frames; and points that stand still."""
    x, heights = np.linspace(0.0, 1.0, 5), np.array([0.0, 0.2, 0.4])
    rising = heights[None, :, None] + 0.15 * np.arange(4)[:, None, None] * x
    lines = np.stack(np.broadcast_arrays(x, rising), axis=3)
    marks = np.array([[1, 1, 2], [1, 0, 2], [1, 1, 2], [1, 1, 1]])
    points = np.stack(np.broadcast_arrays(0.5, np.broadcast_to(heights, (4, 3))), axis=2)
    shares = np.array([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7], [0.25, 0.75]])
    heights = np.linspace(0.0, 1.0, 4)[:, None] * np.ones(5)
    panels = [
        Panel("CASAL", lines, marks, "#44AA99", lines[0]),
        Panel("points", points, shares=shares, heights=heights, jumps=True),
    ]
    shapes = [(0.2, 0.8, 0.4, 2.0), (0.7, 0.9, 0.1)]
    labels = ["start", "one step", "two steps", "the end"]
    groups = [Group("low", 0.25, (0.1, 0.1)), Group("high", 0.75)]
    corner = np.array([[0.8, 0.0], [1.0, 0.0], [1.0, 0.2]])
    image = np.zeros((10, 10), dtype=np.uint8)
    image[0] = 255  # the highest tenth of the axes
    backdrop = Backdrop(image, corner[:2], corner, "dense above", "the floor", "the corner")
    axes = ((0, 1), (0, 1), "x", "y")
    profile = Profile("height", (0.0, 1.0), np.array([0.5, 0.5]), 1.0)
    return Motion(
        f"{name}_rise", "Lines rise", "What rises.", panels, *axes, shapes, labels, False, groups, backdrop, profile
    )


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
