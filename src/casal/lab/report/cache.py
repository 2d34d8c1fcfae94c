"""Outcomes on disk: a folder for each experiment and mode, with what is needed to tell whether it is still current.

    DIR/full/field/record.json  results.json  results.md  field_curves.svg  field_curves.png ...
    DIR/quick/field/...

``record.json`` is written last, so a folder without it holds nothing.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cache
from pathlib import Path

import torch

import casal
from casal.lab.experiment import Experiment, Outcome
from casal.lab.report.tables import outcome_from_json, outcome_json, outcome_markdown

OUTSIDE = ("report", "cli.py")
"""Parts of the package that cannot change a result."""


@dataclass(frozen=True)
class Stamp:
    """Where an outcome comes from.

    Attributes:
        key: Hash of all that decides the outcome.
        quick: Whether fewer chains were run.
        question: What the experiment decides.
        made: Day and time.
        version: Of the library.
        machine: What it ran on.
        pictures: File names, in the order to show them.
    """

    key: str
    quick: bool
    question: str
    made: str
    version: str
    machine: str
    pictures: tuple[str, ...]


@dataclass(frozen=True)
class Record:
    """An outcome as it was found on disk, and whether the installed source would make the same."""

    stamp: Stamp
    outcome: Outcome
    folder: Path
    current: bool


def _code(path: Path) -> str:
    """The program in a file, without comments, layout and docstrings: they do not ask for a new run."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [
                part for part in node.body if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
            ]
    return ast.dump(tree)


@cache
def source_digest(root: Path = Path(casal.__file__).parent) -> str:
    """Hash of every program of the package that can change a result."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root)
        if place.parts[0] not in OUTSIDE:
            digest.update(f"{place.as_posix()}\n{_code(path)}\n".encode())
    return digest.hexdigest()


def key_of(name: str, quick: bool) -> str:
    """Name of the settings of a run: equal keys, equal outcomes."""
    text = json.dumps([name, quick, casal.__version__, torch.__version__, source_digest()])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def machine() -> str:
    """Processor, cores, system, versions."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = [line for line in info.read_text(encoding="utf-8").splitlines() if line.startswith("model name")]
        model = lines[0].partition(":")[2].strip() if lines else model
    cores = f"{os.cpu_count()} cores"
    return f"{model}, {cores}, {platform.system()}, Python {platform.python_version()}, torch {torch.__version__}"


def folder_of(out: Path, name: str, quick: bool) -> Path:
    """Where an experiment of a mode lies."""
    return out / ("quick" if quick else "full") / name


def save(out: Path, experiment: Experiment, quick: bool, outcome: Outcome) -> Record:
    """Draw and write everything; the record comes last and at once."""
    folder = folder_of(out, experiment.name, quick)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if old.is_file():
            old.unlink()
    pictures = tuple(path.name for path in experiment.draw(outcome, folder))
    (folder / "results.json").write_text(outcome_json(outcome), encoding="utf-8")
    (folder / "results.md").write_text(outcome_markdown(outcome, experiment.question), encoding="utf-8")
    stamp = Stamp(
        key_of(experiment.name, quick),
        quick,
        experiment.question,
        datetime.now().astimezone().isoformat(timespec="minutes"),
        casal.__version__,
        machine(),
        pictures,
    )
    half = folder / "record.json.part"
    half.write_text(json.dumps(asdict(stamp), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    half.replace(folder / "record.json")
    return Record(stamp, outcome, folder, current=True)


def load(out: Path, name: str, quick: bool) -> Record | None:
    """What a run left behind, if it came to its end."""
    folder = folder_of(out, name, quick)
    if not (folder / "record.json").exists():
        return None
    found = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    stamp = Stamp(**{**found, "pictures": tuple(found["pictures"])})
    outcome = outcome_from_json((folder / "results.json").read_text(encoding="utf-8"))
    return Record(stamp, outcome, folder, stamp.key == key_of(name, quick))


def best(out: Path, name: str) -> Record | None:
    """The run to show: current before outdated, full before quick."""
    found = [record for quick in (False, True) if (record := load(out, name, quick))]
    return max(found, key=lambda record: record.current, default=None)


def names(out: Path) -> Iterator[str]:
    """Every experiment that left a folder here."""
    seen = {path.parent.name for mode in ("full", "quick") for path in (out / mode).glob("*/record.json")}
    yield from sorted(seen)
