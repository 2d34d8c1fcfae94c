"""Tables, claims and settings of an experiment as HTML."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from casal.lab.experiment import Claim, Column, Outcome, ResultTable
from casal.lab.report.style import INK, colour
from casal.lab.report.tables import cell

VERDICTS = {"reproduced": "yes", "partly": "partly", "not reproduced": "no"}
"""Verdict -> its class in the style sheet."""

SIGNS = {"yes": "✓", "partly": "~", "no": "✗"}
"""A verdict is told by its sign and its word, never by colour alone."""

METHOD = "method"
LONG = ' class="long"'
ELSEWHERE = {"date", "casal", "quick"}
"""Settings that the page tells beside the title of the experiment."""

REFERENCE = re.compile(r"exact|floor|p_C$")
"""Rows that are no method but what methods are measured by."""


def text(value: object) -> str:
    """Safe text; the bars that Markdown tables need escaped are plain again."""
    return escape(str(value).replace("\\|", "|"))


def badge(verdict: str) -> str:
    """A verdict as a sign and a word."""
    kind = VERDICTS.get(verdict)
    if kind is None:
        return f'<span class="badge">{text(verdict)}</span>'
    return f'<span class="badge {kind}"><b aria-hidden="true">{SIGNS[kind]}</b> {text(verdict)}</span>'


def tally(claims: Iterable[Claim]) -> Counter[str]:
    """How many claims got each verdict."""
    return Counter(claim.verdict for claim in claims)


def counts(claims: Sequence[Claim]) -> str:
    """The verdicts of an experiment in the least room."""
    found = tally(claims)
    shown = [
        f'<span class="count {kind}" title="{found[verdict]} {verdict}"><b aria-hidden="true">{SIGNS[kind]}</b>'
        f'{found[verdict]}<span class="unseen"> {verdict}</span></span>'
        for verdict, kind in VERDICTS.items()
        if found[verdict]
    ]
    return f'<span class="counts">{" ".join(shown)}</span>' if shown else '<span class="quiet">no verdicts</span>'


def claims_html(claims: Sequence[Claim]) -> str:
    """Paper beside ours; on a phone each row becomes a card."""
    rows = "".join(
        f'<tr><th scope="row">{text(c.text)}</th><td data-label="paper">{text(c.expected)}</td>'
        f'<td data-label="ours">{text(c.ours)}</td><td>{badge(c.verdict)}</td></tr>'
        for c in claims
    )
    head = "<thead><tr><th>claim</th><th>paper</th><th>ours</th><th>verdict</th></tr></thead>"
    return f'<table class="claims">{head}<tbody>{rows}</tbody></table>'


def _sort_value(value: Any) -> str:
    """What a cell is sorted by: a number where it begins with one."""
    if isinstance(value, str):
        found = re.match(r"[-+−]?\d*\.?\d+(?:e[-+]?\d+)?", value.strip())
        value = float(found[0].replace("−", "-")) if found else None
    return repr(float(value)) if value is not None and math.isfinite(value) else ""


def _words(table: ResultTable, column: Column) -> bool:
    """Whether a column holds no number at all, and so is set like text."""
    values = [row[column.key] for row in table.rows if row.get(column.key) is not None]
    return bool(values) and not any(_sort_value(value) for value in values)


def _cell(row: Mapping[str, Any], column: Column, kind: str) -> str:
    """``kind``: head, txt or num."""
    value, shown = row.get(column.key), cell(row, column)
    if kind == "head":
        return f'<th scope="row" data-v="{_sort_value(value)}">{text(shown)}</th>'
    number, sign, error = shown.partition(" ± ")
    inner = f'{text(number)}<span class="se"> ± {text(error)}</span>' if sign else text(number)
    if isinstance(value, str) and not _sort_value(value):
        inner = badge(value) if value in VERDICTS else text(value) if kind == "txt" else f"<i>{text(value)}</i>"
    return f'<td class="{kind}" data-v="{_sort_value(value)}">{inner}</td>'


def _method(row: Mapping[str, Any]) -> str:
    return str(row.get(METHOD, ""))


def table_html(table: ResultTable, *, opened: bool) -> str:
    """A table that folds, sorts by a click on a head, and knows the method of each row."""
    kinds = ["head", *("txt" if _words(table, column) else "num" for column in table.columns[1:])]
    heads = "".join(
        f'<th scope="col" class="{kind}"><button type="button">{text(column.label)}</button></th>'
        for column, kind in zip(table.columns, kinds, strict=True)
    )
    body = "".join(
        f'<tr data-method="{text(_method(row))}"{_reference(row, table.columns[0])}>'
        + "".join(_cell(row, column, kind) for column, kind in zip(table.columns, kinds, strict=True))
        + "</tr>"
        for row in table.rows
    )
    note = f'<p class="note">{text(table.note)}</p>' if table.note else ""
    return (
        f'<details class="table"{" open" if opened else ""}><summary>{text(table.title)}</summary>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(table.title)}"><table class="sortable">'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>{note}</details>"
    )


def _reference(row: Mapping[str, Any], first: Column) -> str:
    return ' class="reference"' if REFERENCE.match(str(row.get(first.key, ""))) else ""


def methods_html(tables: Sequence[ResultTable]) -> str:
    """One button a method, which hides its rows in all tables of the experiment."""
    labels = dict.fromkeys(_method(row) for table in tables for row in table.rows if _method(row))
    shown = [label for label in labels if not REFERENCE.match(label)]
    if len(shown) < 2:
        return ""
    chips = "".join(
        f'<button type="button" class="chip" aria-pressed="true" data-method="{text(label)}">'
        f'<i style="background:{_shade(label)}"></i>{text(label)}</button>'
        for label in shown
    )
    return (
        f'<div class="methods" role="group" aria-label="Show or hide methods"><span class="quiet">Methods</span>{chips}'
        '<button type="button" class="link" data-all="true">all</button>'
        '<button type="button" class="link" data-all="false">none</button></div>'
    )


def _shade(label: str) -> str:
    shade = colour(label)
    return "currentColor" if shade == INK else shade


def settings_html(outcome: Outcome) -> str:
    """What was run, one entry a setting."""
    shown = {key: _setting(value) for key, value in outcome.settings.items() if key not in ELSEWHERE}
    entries = "".join(
        f"<div{LONG if len(value) > 40 else ''}><dt>{text(key)}</dt><dd>{text(value)}</dd></div>"
        for key, value in shown.items()
    )
    return f'<dl class="settings">{entries}</dl>' if entries else '<p class="quiet">No settings were recorded.</p>'


def _setting(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_setting(part)}" for key, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_setting(part) for part in value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)
