"""Write the page that says where every constant of every experiment comes from.

    python -m casal_lab.report.provenance docs/provenance.md

The text above ``<!-- origins -->`` is kept; what follows is made from ``Experiment.origins``.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from casal_lab.experiment import Experiment
from casal_lab.experiments import EXPERIMENTS
from casal_lab.report.docs import below

MARK = "<!-- origins -->\n"

BAR = "\\|"
"""As a cell of a Markdown table has it."""

WORDS = {"paper": "printed in the paper", "script": "from the authors' script", "ours": "ours"}


def tables(registry: Mapping[str, Experiment]) -> str:
    """A table for each experiment, and above them how many constants have which origin."""
    every = {name: experiment.origins for name, experiment in registry.items()}
    counted = {name: Counter[str](row.origin for row in rows) for name, rows in every.items()}
    lines = [f"| experiment | {' | '.join(WORDS.values())} |", "|---|" + "---:|" * len(WORDS)]
    lines += [f"| `{name}` | {' | '.join(str(found[key]) for key in WORDS)} |" for name, found in counted.items()]
    for name, rows in every.items():
        lines += ["", f"## {name}", "", "| constant | value | origin | where, or why |", "|---|---|---|---|"]
        for row in rows:
            cells = (row.constant, row.value, WORDS[row.origin], row.where)
            lines.append(f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |")
    return "\n".join(lines) + "\n"


def renewed(page: str, registry: Mapping[str, Experiment]) -> str:
    """The page with its tables made anew."""
    return below(page, MARK, tables(registry))


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(renewed(path.read_text(encoding="utf-8"), EXPERIMENTS), encoding="utf-8")
