"""Write the page with the verdicts on everything that the paper claims, from the pages of the experiments.

    python -m casal_lab.report.verdicts docs

Each page of an experiment has a table *Published claims*, written by a full run. This collects their rows in
``verdicts.md``, in the order of the paper. The text above ``<!-- verdicts -->`` is kept.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from casal_lab.experiment import FAILS, HOLDS, NOT_APPLICABLE, PARTLY
from casal_lab.report.docs import below

PAGE, MARK = "verdicts.md", "<!-- verdicts -->\n"
HEAD = "| claim | where | paper | ours | verdict | what would change the verdict |"


class Row(NamedTuple):
    """A published claim on the page of an experiment."""

    page: str  # file name
    title: str  # of the page
    claim: str
    where: str
    paper: str
    ours: str
    verdict: str
    flips: str


def rows(docs: Path) -> list[Row]:
    """Every published claim of every page, in the order of the paper."""
    found = list[Row]()
    for path in sorted(docs.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        title = text.partition("\n")[0].removeprefix("# ").strip()
        for block in text.split("### Published claims\n")[1:]:
            lines = block.strip().split("\n")
            if lines[0] != HEAD:
                raise ValueError(f"{path.name}: the table of published claims has another head: {lines[0]}")
            for line in lines[2:]:
                if not line.startswith("|"):
                    break
                cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
                if len(cells) != 6:
                    raise ValueError(f"{path.name}: a claim has {len(cells)} cells instead of 6: {line}")
                found.append(Row(path.name, title, *cells))
    return sorted(found, key=lambda row: _place(row.where))


def _place(where: str) -> tuple[str, ...]:
    """Sections in the order of the paper: numbers, then letters; what names no section last."""
    section = re.search(r"section ([\w.]+)", where)
    if section:
        return ("1", section[1], where) if section[1][0].isdigit() else ("3", section[1], where)
    return ("2", where)


def table(found: Sequence[Row]) -> str:
    """How many claims got each verdict, and one line for each."""
    counted = Counter(row.verdict for row in found)
    told = ", ".join(f"{counted[word]} {word}" for word in (HOLDS, PARTLY, FAILS, NOT_APPLICABLE) if counted[word])
    lines = [f"{len(found)} claims: {told}.", "", "| where | claim | verdict | page |", "|---|---|---|---|"]
    lines += [f"| {row.where} | {row.claim} | {row.verdict} | [{row.title}]({row.page}) |" for row in found]
    return "\n".join(lines) + "\n"


def renewed(page: str, found: Sequence[Row]) -> str:
    """The page with its table made anew."""
    return below(page, MARK, table(found))


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    path = folder / PAGE
    path.write_text(renewed(path.read_text(encoding="utf-8"), rows(folder)), encoding="utf-8")
