"""Pictures, one file an experiment: a function from the outcome to figures by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from matplotlib.figure import Figure

from casal.lab.problems.base import Outcome
from casal.lab.report.style import styled

DRAWN = ("particle", "field", "mixture", "propositions", "conditional", "burgers")
"""Experiments with a module of their name in this package."""


def draw(outcome: Outcome, folder: Path) -> list[Path]:
    """Write every picture of an outcome as PNG and SVG; the PNG paths."""
    if outcome.name not in DRAWN:
        return []
    figures: Callable[[Outcome], dict[str, Figure]] = import_module(f"{__name__}.{outcome.name}").figures
    paths = []
    with styled():
        for name, figure in figures(outcome).items():
            path = folder / f"{name}.png"
            figure.savefig(path, dpi=160)
            figure.savefig(path.with_suffix(".svg"))
            paths.append(path)
    return paths
