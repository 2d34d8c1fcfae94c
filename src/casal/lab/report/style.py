"""One visual language for all pictures: colour-blind safe, quiet axes, direct labels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

EXACT = "#000000"
INK = "#333333"
FAINT = "#c8ccd0"

COLOURS = {
    "unconstrained": "#999999",
    "final projection": "#56B4E9",
    "projected": "#0072B2",
    "penalty": "#E69F00",
    "primal-dual": "#F0E442",
    "decoupled": "#B8860B",
    "Algorithm 1": "#CC79A7",
    "Algorithm 2": "#882255",
    "released code": "#D55E00",
    "CASAL": "#44AA99",
    "DPS": "#6699CC",
    "WeightedCASAL": "#009E73",
    "SplitGibbs": "#117733",
    "Twisted": "#332288",
}
"""Okabe and Ito's palette, widened by colours of Tol's; a method keeps its colour in every picture."""

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
    """The colour of a method, by the longest known name its label begins with."""
    known = [name for name in COLOURS if label.startswith(name)]
    return COLOURS[max(known, key=len)] if known else INK


@contextmanager
def styled() -> Iterator[None]:
    """Draw in the project's style, and close every figure afterwards."""
    with plt.rc_context(_STYLE):
        try:
            yield
        finally:
            plt.close("all")
