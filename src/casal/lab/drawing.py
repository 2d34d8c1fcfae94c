"""What the figures of all experiments share: panels, titles, histograms, and writing them to files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from casal.lab.experiment import Array, Outcome
from casal.lab.report.style import EXACT, styled


def writer(figures: Callable[[Outcome], Mapping[str, Figure]]) -> Callable[[Outcome, Path], list[Path]]:
    """The ``draw`` of an experiment, from a function that makes its figures by name.

    Each figure becomes ``NAME.png`` and ``NAME.svg`` in the project's style; ``draw`` returns the PNG paths.
    """

    def draw(outcome: Outcome, folder: Path) -> list[Path]:
        paths = []
        with styled():
            for name, figure in figures(outcome).items():
                path = folder / f"{name}.png"
                figure.savefig(path, dpi=160)
                figure.savefig(path.with_suffix(".svg"))
                paths.append(path)
        return paths

    return draw


def panels(rows: int, columns: int, width: float, height: float, **shared: Any) -> tuple[Figure, Any]:
    """A figure of the given size in inches, and its axes as an array (rows, columns)."""
    return plt.subplots(rows, columns, figsize=(width, height), squeeze=False, **shared)


def headline(figure: Figure, text: str) -> None:
    """The title above all panels."""
    figure.suptitle(text, fontsize=11, fontweight="bold")


def legend_below(figure: Figure, axis: Axes, columns: int) -> None:
    """One legend for all panels, that of the given axis."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def histogram(axis: Axes, heights: Array, edges: Array, shade: str, top: float, grid: Array, density: Array) -> None:
    """Samples as a filled histogram, cut at ``top``, with the exact density as a line."""
    axis.stairs(np.minimum(heights, top), edges, fill=True, color=shade, alpha=0.75)
    axis.plot(grid, density, color=EXACT, linewidth=1)
    axis.set(xlim=(edges[0], edges[-1]), ylim=(0, top), yticks=[])
    axis.spines["left"].set_visible(False)
