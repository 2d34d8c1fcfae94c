"""Write the figures of an outcome to files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from matplotlib.figure import Figure

from casal.lab.experiment import Outcome
from casal.lab.report.style import styled


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
