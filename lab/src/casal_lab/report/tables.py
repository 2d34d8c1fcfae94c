"""The same table for a terminal, a Markdown file and JSON; and back from JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from casal_lab.experiment import (
    FAILS,
    HOLDS,
    MET,
    MISSED,
    NOT_APPLICABLE,
    PARTLY,
    PARTLY_MET,
    Claim,
    Column,
    Outcome,
    Partial,
    ResultTable,
)


def cell(row: Mapping[str, Any], column: Column) -> str:
    """One entry, with its standard error where there is one; a dash where nothing was measured."""
    value = row.get(column.key)
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    text = format(value, column.style)
    error = row.get(f"{column.key}_se")
    return text if error is None or not math.isfinite(error) else f"{text} ± {error:.1g}"


def duration(seconds: float) -> str:
    """Seconds in the unit that reads best."""
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def markdown(table: ResultTable) -> str:
    """A GitHub table."""
    lines = [
        f"### {table.title}",
        "",
        "| " + " | ".join(column.label for column in table.columns) + " |",
        "|" + "|".join("---" if k == 0 else "---:" for k in range(len(table.columns))) + "|",
        *("| " + " | ".join(cell(row, column) for column in table.columns) + " |" for row in table.rows),
    ]
    return "\n".join([*lines, "", table.note, ""] if table.note else [*lines, ""])


def outcome_markdown(outcome: Outcome, question: str) -> str:
    """The whole outcome of an experiment as a Markdown page."""
    parts = [f"# {outcome.name}", "", question, ""]
    if outcome.partial:
        parts += [f"**{outcome.partial}**", ""]
    parts += [markdown(table) for table in outcome.tables]
    parts += [line for group in claim_groups(outcome.claims) for line in _claims_markdown(group)]
    return "\n".join([*parts, ""])


class ClaimGroup(NamedTuple):
    """Claims of one kind, and how their table is headed."""

    title: str
    who: str  # says what is expected
    verdicts: Sequence[str]  # best first
    claims: Sequence[Claim]


def claim_groups(claims: Iterable[Claim]) -> list[ClaimGroup]:
    """What the paper says and what we ask of ourselves, apart; a kind without a claim has no group."""
    every = list(claims)
    groups = [
        ClaimGroup(
            "Published claims", "paper", (HOLDS, PARTLY, FAILS, NOT_APPLICABLE), [c for c in every if c.published]
        ),
        ClaimGroup("Our targets", "target", (MET, PARTLY_MET, MISSED), [c for c in every if not c.published]),
    ]
    return [group for group in groups if group.claims]


def _claims_markdown(group: ClaimGroup) -> list[str]:
    """A line for each claim; columns that no claim fills are left out."""
    columns = {
        "claim": "text",
        "where": "source",
        "variant": "variant",
        group.who: "expected",
        "ours": "ours",
        "exact answer": "exact",
        "verdict": "verdict",
        "in plain words": "plain",
        "what would change the verdict": "flips",
    }
    optional = ("source", "variant", "exact", "plain")
    kept = {k: v for k, v in columns.items() if v not in optional or any(getattr(c, v) for c in group.claims)}
    rows = [[getattr(claim, key) or "-" for key in kept.values()] for claim in group.claims]
    lines = [f"| {' | '.join(row)} |" for row in (list(kept), ["---"] * len(kept), *rows)]
    return [f"### {group.title}", "", *lines, ""]


def outcome_json(outcome: Outcome) -> str:
    """Settings, rows, claims and records, without the arrays of the pictures."""
    record: dict[str, Any] = {
        "name": outcome.name,
        "settings": dict(outcome.settings),
        "seconds": round(outcome.seconds, 2),
        "tables": [asdict(table) for table in outcome.tables],
        "claims": [asdict(claim) for claim in outcome.claims],
    }
    if outcome.records:
        record["records"] = dict(outcome.records)
    if outcome.partial:
        record["partial"] = outcome.partial._asdict()
    return json.dumps(record, indent=1, ensure_ascii=False) + "\n"


def outcome_from_json(text: str) -> Outcome:
    """What ``outcome_json`` wrote; the arrays of the pictures are gone.

    Raises:
        Exception: Of whatever kind, it is not what ``outcome_json`` writes.
    """
    record = json.loads(text)
    tables = [ResultTable(**{**t, "columns": [Column(**column) for column in t["columns"]]}) for t in record["tables"]]
    claims = [Claim(**claim) for claim in record["claims"]]
    seconds = float(record["seconds"])
    outcome = Outcome(record["name"], tables, claims, settings=dict(record["settings"]), seconds=seconds)
    partial = Partial(**record["partial"]) if "partial" in record else None
    outcome = replace(outcome, records=dict(record.get("records", {})), partial=partial)
    texts = [outcome.name, *(text for claim in claims for text in vars(claim).values()), *(partial or ())]
    if not all(isinstance(text, str) for text in texts) or not math.isfinite(seconds):
        raise TypeError("a field is of another kind than it should be")
    outcome_markdown(outcome, "")  # every cell can be shown
    return outcome


def show(console: Console, outcome: Outcome) -> None:
    """Print the tables and the verdicts. Where a line is too narrow for a table, its cells are folded, not cut."""
    partial = " (partial)" if outcome.partial else ""
    for table in outcome.tables:
        title, note = escape(table.title + partial), escape(table.note) or None
        shown = Table(title=title, title_justify="left", header_style="bold", caption=note)
        for k, column in enumerate(table.columns):
            shown.add_column(escape(column.label), justify="left" if k == 0 else "right", overflow="fold")
        for row in table.rows:
            shown.add_row(*(escape(cell(row, column)) for column in table.columns))
        console.print(shown)
    for group in claim_groups(outcome.claims):
        console.print(f"[bold]{group.title}[/]")
        for claim in group.claims:
            where = f"{claim.source}: " if claim.source else ""
            variant = f", {claim.variant}" if claim.variant else ""
            text = f"{claim.text}{variant} ({where}{claim.expected}; ours: {claim.ours})"
            console.print(f"[bold]{escape(claim.verdict)}[/]: {escape(text)}")
    if outcome.partial:
        console.print(str(outcome.partial), markup=False, style="yellow")
