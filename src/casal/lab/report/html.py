"""One page of all outcomes, with everything it needs inside: it opens from disk and asks nothing of the network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from pathlib import Path

import casal
from casal.lab.experiment import Experiment
from casal.lab.report.cache import Record, best, machine, names
from casal.lab.report.html_explorer import explorer_json
from casal.lab.report.html_pictures import picture
from casal.lab.report.html_tables import (
    SIGNS,
    VERDICTS,
    claims_html,
    counts,
    methods_html,
    settings_html,
    table_html,
    tally,
    text,
)

OPEN_TABLES = 2
"""Tables that are unfolded at first; the others are a click away."""

WIDE = 700
"""CSS pixels beyond which a picture gets a row of its own."""

QUICK_NOTE = "Quick mode runs fewer chains and seeds: a verdict here may differ from that of the full run."


@dataclass(frozen=True)
class Entry:
    """An experiment on the page: its record, or the reason why there is none."""

    name: str
    question: str
    record: Record | None
    reason: str = ""


def entries_of(registry: Mapping[str, Experiment], out: Path, missing: Mapping[str, str]) -> list[Entry]:
    """All experiments of the registry in its order, then what else was found on disk."""
    found = []
    for name in dict.fromkeys([*registry, *names(out)]):
        record = best(out, name)
        question = registry[name].question if name in registry else record.stamp.question if record else ""
        found.append(Entry(name, question, record, missing.get(name, "" if record else "not run yet")))
    return found


def write_page(registry: Mapping[str, Experiment], out: Path, missing: Mapping[str, str] | None = None) -> Path:
    """Write ``index.html`` from what is on disk; nothing is run.

    Args:
        registry: The experiments there are; those without an outcome are named on the page.
        out: Folder of outcomes.
        missing: Why an experiment has no outcome.

    Returns:
        Where the page is.
    """
    entries = entries_of(registry, out, missing or {})
    page = _asset("page.html")
    parts = {
        "style": _asset("page.css"),
        "script": _asset("page.js") + _asset("explorer.js"),
        "navigation": "".join(_navigation(entry) for entry in entries),
        "overview": _overview(entries),
        "experiments": "".join(_section(entry) for entry in entries),
        "explorer": explorer_json(),
    }
    for name, part in parts.items():
        page = page.replace(f"<!--{name}-->", part).replace(f"/*{name}*/", part)
    path = out / "index.html"
    out.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


def _asset(name: str) -> str:
    return (files("casal.lab.report") / "assets" / name).read_text(encoding="utf-8")


def _navigation(entry: Entry) -> str:
    state = counts(entry.record.outcome.claims) if entry.record else '<span class="quiet">–</span>'
    return f'<li><a href="#{text(entry.name)}">{text(entry.name)}</a> {state}</li>'


def _overview(entries: Sequence[Entry]) -> str:
    records = [entry.record for entry in entries if entry.record]
    total = sum((tally(record.outcome.claims) for record in records), Counter[str]())
    cards = "".join(
        f'<div class="card {kind}"><b><span aria-hidden="true">{SIGNS[kind]}</span> {total[verdict]}</b>'
        f"<span>{verdict}</span></div>"
        for verdict, kind in VERDICTS.items()
    )
    bar = "".join(
        f'<i class="{kind}" style="flex-grow:{total[verdict]}"></i>'
        for verdict, kind in VERDICTS.items()
        if total[verdict]
    )
    seconds = sum(record.outcome.seconds for record in records)
    facts = {
        "page written": datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"),
        "casal": casal.__version__,
        "experiments": f"{len(records)} of {len(entries)}{_modes(records)}",
        "total time": duration(seconds),
        "machine": ", ".join(dict.fromkeys(record.stamp.machine for record in records)) or machine(),
    }
    listed = "".join(f"<div><dt>{key}</dt><dd>{text(value)}</dd></div>" for key, value in facts.items())
    contents = "".join(
        f'<tr><th scope="row"><a href="#{text(e.name)}">{text(e.name)}</a></th><td>{text(e.question)}</td>'
        f"<td>{counts(e.record.outcome.claims) if e.record else text(e.reason)}</td>"
        f'<td class="num">{duration(e.record.outcome.seconds) if e.record else "–"}</td></tr>'
        for e in entries
    )
    quick = any(record.stamp.quick for record in records)
    note = f'<p class="quiet">{QUICK_NOTE}</p>' if quick else ""
    return (
        f'<div class="cards">{cards}</div><div class="bar" aria-hidden="true">{bar}</div>'
        f'<dl class="settings facts">{listed}</dl>{note}'
        '<table class="contents"><thead><tr><th>experiment</th><th>question</th><th>verdicts</th>'
        f'<th class="num">time</th></tr></thead><tbody>{contents}</tbody></table>'
    )


def _modes(records: Sequence[Record]) -> str:
    quick = sum(record.stamp.quick for record in records)
    return f", {quick} of them in quick mode" if quick else ""


def duration(seconds: float) -> str:
    """Seconds in the unit that reads best."""
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _section(entry: Entry) -> str:
    name = text(entry.name)
    head = f'<section class="experiment" id="{name}"><h2>{name}</h2><p class="question">{text(entry.question)}</p>'
    if entry.record is None:
        command = _command(f"casal run {entry.name}")
        return f'{head}<p class="warning">{text(entry.reason)}. Run it: {command}</p></section>'
    outcome, stamp = entry.record.outcome, entry.record.stamp
    warnings = [entry.reason] if entry.reason else []
    if not entry.record.current:
        warnings.append("the source has changed since this was run: call casal reproduce to renew it")
    claims = f"<h3>Claims</h3>{claims_html(outcome.claims)}" if outcome.claims else ""
    pictures = "".join(_figure(entry.record.folder / file, entry.name) for file in stamp.pictures)
    tables = "".join(table_html(table, opened=k < OPEN_TABLES) for k, table in enumerate(outcome.tables))
    quick = '<span class="badge" title="fewer chains and seeds">quick run</span>' if stamp.quick else ""
    origin = f"{quick} {duration(outcome.seconds)}, {stamp.made[:16].replace('T', ' ')}, casal {text(stamp.version)}"
    return "".join(
        [
            head,
            *(f'<p class="warning">{text(warning)}</p>' for warning in warnings),
            f'<p class="origin">{counts(outcome.claims)} <span class="quiet">{origin}</span> ',
            f"{_command(f'casal run {entry.name}' + (' --quick' if stamp.quick else ''))}</p>",
            f'<details class="setup" open><summary>Set-up</summary>{settings_html(outcome)}</details>',
            claims,
            f'<h3>Pictures</h3><div class="pictures">{pictures}</div>' if pictures else "",
            f"<h3>Tables</h3>{methods_html(outcome.tables)}{tables}" if tables else "",
            "</section>",
        ]
    )


def _command(command: str) -> str:
    return f'<code class="command">{text(command)}<button type="button" class="copy" title="copy">copy</button></code>'


def _figure(path: Path, name: str) -> str:
    drawn = picture(path)
    kind = "wide" if drawn.width > WIDE else "narrow"
    title = text(f"{name}: {path.stem.replace('_', ' ')}")
    size = f'width="{drawn.width}" height="{drawn.height}" style="max-width:{drawn.width}px"'
    image = f'<img src="{drawn.source}" {size} alt="{title}">'
    button = f'<button type="button" class="zoom" aria-label="Enlarge {title}">{image}</button>'
    return f'<figure class="{kind}">{button}</figure>'
