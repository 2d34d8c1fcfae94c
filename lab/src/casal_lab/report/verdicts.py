"""Write the page with the verdicts on everything that the paper claims, from the pages of the experiments.

    python -m casal_lab.report.verdicts docs

Each page of an experiment has a table *Published claims*, written by a full run. This collects their rows in
``verdicts.md``, in the order of the paper. The text above ``<!-- verdicts -->`` is kept, but for the column *now* of
its table of verdicts before and after.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from casal_lab.experiment import FAILS, HOLDS, NOT_APPLICABLE, PARTLY, VARIANTS
from casal_lab.report.docs import below

PAGE, MARK = "verdicts.md", "<!-- verdicts -->\n"
CHANGES = "|---|---|---|---|---|"
"""The line below the head of the table of changes: where, claim, before, now, why."""

HEADS = {
    "claim": "claim",
    "where": "where",
    "variant": "variant",
    "paper": "paper",
    "ours": "ours",
    "exact answer": "exact",
    "verdict": "verdict",
    "in plain words": "plain",
    "what would change the verdict": "flips",
}
"""Columns of a table of published claims, and what they are called here."""

COLOURS = {HOLDS: "🟢", PARTLY: "🟡", FAILS: "🔴", NOT_APPLICABLE: "⚪"}
OTHERS = "not of CASAL"
"""Claims about baselines, problems and statements that no variant of the algorithm enters."""


class Row(NamedTuple):
    """A published claim on the page of an experiment; a dash where the page has nothing."""

    page: str  # file name
    title: str  # of the page
    claim: str
    where: str
    paper: str
    ours: str
    verdict: str
    flips: str
    variant: str = "-"
    exact: str = "-"
    plain: str = "-"


def rows(docs: Path) -> list[Row]:
    """Every published claim of every page, in the order of the paper."""
    found = list[Row]()
    for path in sorted(docs.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        title = text.partition("\n")[0].removeprefix("# ").strip()
        for block in text.split("### Published claims\n")[1:]:
            head, _, *lines = block.strip().split("\n")
            names = [HEADS.get(name) for name in _cells(head)]
            if None in names:
                raise ValueError(f"{path.name}: the table of published claims has another head: {head}")
            for line in lines:
                if not line.startswith("|"):
                    break
                cells = _cells(line)
                if len(cells) != len(names):
                    raise ValueError(f"{path.name}: a claim has {len(cells)} cells instead of {len(names)}: {line}")
                found.append(Row(path.name, title, **dict(zip(names, cells, strict=True))))  # type: ignore[arg-type]
    return sorted(found, key=lambda row: _place(row.where))


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def _place(where: str) -> tuple[str, ...]:
    """Sections in the order of the paper: numbers, then letters; what names no section last."""
    section = re.search(r"section ([\w.]+)", where)
    if section:
        return ("1", section[1], where) if section[1][0].isdigit() else ("3", section[1], where)
    return ("2", where)


def table(found: Sequence[Row]) -> str:
    """How many claims got each verdict, variant by variant, and one line for each claim and variant."""
    words = (HOLDS, PARTLY, FAILS, NOT_APPLICABLE)
    claims = {(row.where, row.claim) for row in found}
    lines = [f"{len(claims)} claims; those about CASAL are judged once for each variant.", ""]
    lines += [
        f"| variant | {' | '.join(f'{COLOURS[word]} {word}' for word in words)} |",
        "|---|" + "---:|" * len(words),
    ]
    for variant in (*VARIANTS, "-"):
        counted = Counter(row.verdict for row in found if row.variant == variant)
        if counted:
            name = OTHERS if variant == "-" else variant
            lines.append(f"| {name} | {' | '.join(str(counted[word]) for word in words)} |")
    lines += ["", "| where | claim | variant | verdict | paper | ours | exact answer | in plain words |"]
    lines.append("|" + "---|" * 8)
    for row in found:
        verdict = f"{COLOURS[row.verdict]} {row.verdict}"
        cells = (
            f"[{row.where}]({row.page})",
            row.claim,
            row.variant,
            verdict,
            row.paper,
            row.ours,
            row.exact,
            row.plain,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def renewed(page: str, found: Sequence[Row]) -> str:
    """The page with its table made anew, and with the verdicts of today in the table of those before and after."""
    head, *lines = below(page, MARK, table(found)).partition(MARK)
    old, title, rest = head.partition(f"{CHANGES}\n")
    told = [_with_now(line, found) if line.startswith("| ") else line for line in rest.split("\n")]
    return "".join([old, title, "\n".join(told), *lines])


def _with_now(line: str, found: Sequence[Row]) -> str:
    """A line of the table of changes with the verdicts of all rows of its place and claim, by variant.

    Raises:
        ValueError: No claim of a page has this place and these words.
    """
    where, claim, before, _, reason = _cells(line)
    here = [row for row in found if (row.where, row.claim) == (where, claim)]
    if not here:
        raise ValueError(f"no page has the claim {claim!r} of {where}")
    now = ", ".join(f"{COLOURS[row.verdict]} {row.verdict if row.variant == '-' else row.variant}" for row in here)
    return f"| {where} | {claim} | {before} | {now} | {reason} |"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    path = folder / PAGE
    path.write_text(renewed(path.read_text(encoding="utf-8"), rows(folder)), encoding="utf-8")
