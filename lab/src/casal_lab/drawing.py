"""What all figures share: colours that all can tell apart, quiet axes, panels, titles, histograms, and their files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from casal.methods import METHODS
from casal_lab import twisted
from casal_lab.experiment import Array, Outcome

EXACT = "#000000"
INK = "#333333"
FAINT = "#c8ccd0"

_STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "svg.fonttype": "none",
}


def colour(label: str) -> str:
    """The colour of a method in every picture, by the longest name of the registry that its label begins with."""
    every = {name: entry.colour for name, entry in METHODS.items()} | {"Twisted": twisted.COLOUR}
    known = [name for name in every if label.startswith(name)]
    return every[max(known, key=len)] if known else INK


@contextmanager
def styled() -> Iterator[None]:
    """Draw in the project's style, and close every figure afterwards."""
    with plt.rc_context(_STYLE):
        try:
            yield
        finally:
            plt.close("all")


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
                figure.set_layout_engine("none")  # the second file has the layout of the first
                figure.savefig(path.with_suffix(".svg"))
                paths.append(path)
        return paths

    return draw


def panels(rows: int, columns: int, width: float, height: float, **shared: Any) -> tuple[Figure, Any]:
    """A figure of the given size in inches, and its axes as an array (rows, columns)."""
    return plt.subplots(rows, columns, figsize=(width, height), squeeze=False, **shared)


def label(axis: Axes, title: str = "", legend: Any = None, **settings: Any) -> None:
    """Settings of an axis (``xlabel``, ``ylim`` ...), a small title, and a legend at the place named."""
    axis.set(**settings)
    if title:
        axis.set_title(title, fontsize=9)
    if legend:
        axis.legend(fontsize=8.5, loc=legend)


def headline(figure: Figure, text: str) -> None:
    """The title above all panels."""
    figure.suptitle(text, fontsize=11, fontweight="bold")


def legend_below(figure: Figure, axis: Axes, columns: int) -> None:
    """One legend for all panels, that of the given axis."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def below(axes: Any, text: str) -> None:
    """The label of x under the last row of panels."""
    for axis in axes[-1]:
        axis.set_xlabel(text)


def histogram(axis: Axes, heights: Array, edges: Array, shade: str, top: float, grid: Array, density: Array) -> None:
    """Samples as a filled histogram, cut at ``top``, with the exact density as a line."""
    axis.stairs(np.minimum(heights, top), edges, fill=True, color=shade, alpha=0.75)
    axis.plot(grid, density, color=EXACT, linewidth=1)
    axis.set(xlim=(edges[0], edges[-1]), ylim=(0, top), yticks=[])
    axis.spines["left"].set_visible(False)
