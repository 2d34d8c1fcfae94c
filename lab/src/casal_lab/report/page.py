"""One page of all outcomes, with everything it needs inside: it opens from disk and asks nothing of the network.

``templates/`` says how the page looks; this file says what is on it.
"""

from __future__ import annotations

import base64
import math
import re
import shlex
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import casal
from casal.store import write_whole
from casal_lab.drawing import INK, colour
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
    Experiment,
    ResultTable,
)
from casal_lab.report.cache import Record, best, is_picture, machine, names
from casal_lab.report.explorer import explorer_numbers
from casal_lab.report.tables import cell, claim_groups, duration

VERDICTS = {
    HOLDS: ("yes", "✓"),
    PARTLY: ("partly", "~"),
    FAILS: ("no", "✗"),
    NOT_APPLICABLE: ("void", "∅"),
    MET: ("yes", "✓"),
    PARTLY_MET: ("partly", "~"),
    MISSED: ("no", "✗"),
}
"""Verdict -> its class in the style sheet and its sign: it is told by sign and word, never by colour alone."""

REFERENCE = re.compile(r"exact|floor|p_C$")
"""Rows that are no method but what methods are measured by."""

NOT_RUN = "not run yet"
DAMAGED = "the files of its outcome are damaged"
OUTDATED = "the source has changed since this was run: call casal reproduce to renew it"
CHOSEN = "only a part was run"
UNKNOWN = "no experiment of this name is known here, so whether this is current cannot be told; --module brings it in"

LARGEST = 600_000
"""Bytes above which a drawing (tens of thousands of points) goes in as PNG."""

POINT = 4 / 3
"""CSS pixels of a point."""

DPI_SCALE = 96 / 160
"""CSS pixels of a pixel of the PNG files, which are drawn at 160 dots per inch."""


class Picture(NamedTuple):
    """Data URI and size in CSS pixels."""

    source: str
    width: int
    height: int


def slim(svg: str) -> str:
    """A drawing without its metadata and with coordinates to a hundredth of a point."""
    svg = re.sub(r"^.*?(?=<svg)", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(?<= d=")[^"]*', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), svg)
    return re.sub(r"\n\s*", "\n", svg)


def picture(png: Path) -> Picture:
    """The picture whose PNG this is, from the SVG beside it where that is small enough."""
    drawing = png.with_suffix(".svg")
    if drawing.exists():
        svg = slim(drawing.read_text(encoding="utf-8"))
        size = re.search(r'width="([\d.]+)pt" height="([\d.]+)pt"', svg)
        if size and len(svg.encode()) <= LARGEST:
            width, height = (round(POINT * float(part)) for part in size.groups())
            return Picture(_uri("image/svg+xml", svg.encode()), width, height)
    data = png.read_bytes()
    if not is_picture(data):
        raise ValueError(f"{png.name} is no picture")
    width, height = (round(DPI_SCALE * part) for part in struct.unpack(">II", data[16:24]))
    return Picture(_uri("image/png", data), width, height)


def _uri(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


@dataclass(frozen=True)
class Entry:
    """An experiment on the page: its record, or the reason why there is none."""

    name: str
    question: str
    record: Record | None
    reason: str = ""
    known: bool = True

    @property
    def warnings(self) -> list[str]:
        """What a reader must know before the numbers."""
        told = [self.reason]
        if self.record is not None:
            stamp, partial = self.record.stamp, self.record.outcome.partial
            told += [str(partial or ""), f"{CHOSEN}: {' '.join(stamp.chosen)}" if stamp.chosen else ""]
            told += ["" if self.record.current else OUTDATED if self.known else UNKNOWN]
        return [text for text in told if text]

    @property
    def command(self) -> str:
        """What runs it as it was run; the whole of it, if it was stopped or not run."""
        stamp = self.record.stamp if self.record else None
        options = [*(["--quick"] if stamp.quick else []), *stamp.chosen] if stamp else []
        return shlex.join(["casal", "run", self.name, *options])

    @property
    def pictures(self) -> list[tuple[str, Picture]]:
        """Titles and pictures, in the order to show them."""
        files = [self.record.folder / file for file in self.record.stamp.pictures] if self.record else []
        return [(f"{self.name}: {file.stem.replace('_', ' ')}", picture(file)) for file in files]


def entries_of(registry: Mapping[str, Experiment], out: Path, missing: Mapping[str, str]) -> list[Entry]:
    """All experiments of the registry in its order, then what else was found on disk."""
    found, here = [], names(out)
    for name in dict.fromkeys([*registry, *here]):
        experiment, damages = registry.get(name), list[str]()
        record = best(out, name, experiment, damages)
        question = experiment.question if experiment else record.stamp.question if record else ""
        fault = "" if record else NOT_RUN if name not in here else f"{DAMAGED} ({'; '.join(damages)})"
        found.append(Entry(name, question, record, missing.get(name, fault), experiment is not None))
    return found


def write_page(
    registry: Mapping[str, Experiment], out: Path, missing: Mapping[str, str] | None = None, more: str = ""
) -> Path:
    """Write ``index.html`` into the folder of outcomes from what is on disk, and return its path; nothing is run.

    Experiments of the registry without an outcome are named on the page, with the reason in ``missing``. One whose
    files are damaged costs its own section alone. ``more`` says what a longer run would add.
    """
    made = environment()
    shown = [_section(made, entry) for entry in entries_of(registry, out, missing or {})]
    entries = [entry for entry, _ in shown]
    records = [entry.record for entry in entries if entry.record]
    quick, cut = sum(record.stamp.quick for record in records), sum(bool(r.outcome.partial) for r in records)
    counted = {"in quick mode": quick, "partial": cut}
    facts = {
        "page written": datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"),
        "casal": casal.__version__,
        "experiments": ", ".join(
            [f"{len(records)} of {len(entries)}", *(f"{n} of them {what}" for what, n in counted.items() if n)]
        ),
        "total time": duration(sum(record.outcome.seconds for record in records)),
        "machine": ", ".join(dict.fromkeys(record.stamp.machine for record in records)) or machine(),
    }
    text = made.get_template("page.html.jinja").render(
        entries=entries,
        sections=[section for _, section in shown],
        groups=claim_groups(claim for record in records for claim in record.outcome.claims),
        facts=facts,
        more=more,
        any_quick=bool(quick),
        explorer=explorer_numbers(),
    )
    path = out / "index.html"
    write_whole(path, lambda file: file.write(text.encode()))
    return path


def _section(made: Environment, entry: Entry) -> tuple[Entry, Markup]:
    """The section of an experiment; one that cannot be shown becomes one that says so."""
    section = made.get_template("experiment.html.jinja")
    try:
        return entry, Markup(section.render(entry=entry))
    except Exception as error:  # files that can be read, with values that nobody can show
        broken = replace(entry, record=None, reason=f"{DAMAGED} ({type(error).__name__}: {error})")
        return broken, Markup(section.render(entry=broken))


def environment(*packages: str) -> Environment:
    """Templates of the report, after those of other packages; filters and globals that its parts need."""
    made = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in (*packages, "casal_lab.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_plain,
    )
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    made.globals.update(verdicts=VERDICTS, cell=cell)
    for function in (claim_groups, duration, kinds, methods, own, percent, setting, shade, sort_value, tally):
        made.filters[function.__name__] = function
    made.tests["reference"] = lambda label: bool(REFERENCE.match(str(label)))
    return made


def _plain(value: object) -> object:
    """The bars that Markdown tables need escaped are plain again."""
    return value.replace("\\|", "|") if type(value) is str else value


def tally(claims: Iterable[Claim]) -> Counter[str]:
    """How many claims got each verdict."""
    return Counter(claim.verdict for claim in claims if claim.verdict in VERDICTS)


def percent(share: float) -> str:
    """A share as a reader wants it: small ones with a decimal, tiny ones as a bound."""
    if 0.0 < share < 5e-4:
        return "< 0.1 %"
    return f"{100 * share:.{1 if 0.0 < share < 0.095 else 0}f} %"


def setting(value: Any) -> str:
    """The value of a setting as a reader wants it."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {setting(part)}" for key, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(setting, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def sort_value(value: Any) -> str:
    """What a cell is sorted by: a number where it begins with one."""
    if isinstance(value, str):
        found = re.match(r"[-+−]?\d*\.?\d+(?:e[-+]?\d+)?", value.strip())
        value = float(found[0].replace("−", "-")) if found else None
    return repr(float(value)) if value is not None and math.isfinite(value) else ""


def kinds(table: ResultTable) -> list[str]:
    """How each column is set: the head of the row, numbers, or text where there is no number at all."""

    def words(column: Column) -> bool:
        values = [row[column.key] for row in table.rows if row.get(column.key) is not None]
        return bool(values) and not any(map(sort_value, values))

    return ["head", *("txt" if words(column) else "num" for column in table.columns[1:])]


def methods(tables: Sequence[ResultTable]) -> list[str]:
    """The methods of an experiment, whose rows can be hidden."""
    labels = dict.fromkeys(str(row.get("method", "")) for table in tables for row in table.rows)
    return [label for label in labels if label and not REFERENCE.match(label)]


def shade(method: str) -> str:
    """The colour of a method's button."""
    return own(colour(method))


def own(colour: str) -> str:
    """A colour in the style sheet: ink is that of the text, in light and dark."""
    return "currentColor" if colour == INK else colour
