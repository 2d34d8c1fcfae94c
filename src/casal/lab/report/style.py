"""One visual language for all pictures: colour-blind safe, quiet axes, direct labels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from casal.methods import METHODS

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
    known = [name for name in METHODS if label.startswith(name)]
    return METHODS[max(known, key=len)].colour if known else INK


@contextmanager
def styled() -> Iterator[None]:
    """Draw in the project's style, and close every figure afterwards."""
    with plt.rc_context(_STYLE):
        try:
            yield
        finally:
            plt.close("all")
