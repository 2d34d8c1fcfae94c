"""Outcomes on disk: a folder for each experiment and mode, with what is needed to tell whether it is still current.

    DIR/full/field/record.json  results.json  results.md  motions.json  field_curves.svg  field_curves.png ...
    DIR/quick/field/...

``record.json`` is written last, so a folder without it holds nothing. A folder whose files are damaged or not ours
counts as one without an outcome, with a warning.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

import casal
import casal_lab
from casal.errors import CasalWarning
from casal.store import write_whole
from casal_lab.experiment import Experiment, Outcome
from casal_lab.motion import Motion
from casal_lab.report.sources import Sources, file_below, in_packages
from casal_lab.report.tables import outcome_from_json, outcome_json, outcome_markdown

OURS = {"casal", "casal_lab"}
"""Packages whose programs count as those of the library and of the laboratory."""

PNG = b"\x89PNG\r\n\x1a\n"
"""The first bytes of a picture."""


@dataclass(frozen=True)
class Stamp:
    """Where an outcome comes from."""

    key: str  # hash of all that decides the outcome
    quick: bool  # whether fewer chains were run
    question: str  # what the experiment decides
    made: str  # day and time
    version: str  # of the library
    machine: str  # what it ran on
    pictures: Sequence[str]  # file names, in the order to show them
    motions: Sequence[str] = ()  # names in motions.json, which is there if there are any


@dataclass(frozen=True)
class Record:
    """An outcome as it was found on disk, and whether the installed source would make the same."""

    stamp: Stamp
    outcome: Outcome
    folder: Path
    current: bool


def _counts(module: str) -> bool:
    """Whether a module of the package can change a result: the command line, the report and figures cannot."""
    outside = ("casal_lab.cli", "casal_lab.report", "casal_lab.drawing", "casal_lab.motion")
    return not module.startswith(outside) and "figures" not in module.split(".")


@cache
def _library() -> Sources:
    find = in_packages(Path(casal.__file__).parent, Path(casal_lab.__file__).parent)
    return Sources(lambda module: find(module) if _counts(module) else None)


def _outside(start: str, file: Path) -> Sources:
    """The programs an experiment from elsewhere may use: ours, those of its package, and modules beside it."""
    home = file.parents[start.count(".") + (file.name == "__init__.py")]

    def locate(module: str) -> Path | None:
        top = module.split(".")[0]
        if top in OURS:
            return _library().locate(module)
        if top != start.split(".")[0] and home.name == "site-packages":
            return None
        return file if module == start else file_below(home, module)

    return Sources(locate)


@cache
def source_digest(module: str) -> str:
    """Hash of the programs that the module of an experiment uses; always another one if its file is not known."""
    if module.split(".")[0] in OURS:
        return _library().digest(module)
    file = getattr(sys.modules.get(module), "__file__", None)
    return _outside(module, Path(file)).digest(module) if file else uuid4().hex


def key_of(experiment: Experiment, quick: bool) -> str:
    """Name of the settings of a run: equal keys, equal outcomes."""
    parts = [experiment.name, quick, casal.__version__, torch.__version__, source_digest(experiment.module)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


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


def write_outcome(folder: Path, experiment: Experiment, outcome: Outcome) -> list[Path]:
    """Write an outcome: tables as JSON and Markdown, motions as JSON, and its pictures; their PNG files."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = experiment.draw(outcome, folder)
    (folder / "results.json").write_text(outcome_json(outcome), encoding="utf-8")
    (folder / "results.md").write_text(outcome_markdown(outcome, experiment.question), encoding="utf-8")
    if outcome.motions:
        text = json.dumps([motion.record() for motion in outcome.motions], ensure_ascii=False)
        (folder / "motions.json").write_text(text + "\n", encoding="utf-8")
    return pictures


def save(out: Path, experiment: Experiment, quick: bool, outcome: Outcome) -> Record:
    """Draw and write everything; the record comes last and at once."""
    folder = folder_of(out, experiment.name, quick)
    for old in folder.glob("*"):
        if old.is_file():
            old.unlink()
    pictures = [path.name for path in write_outcome(folder, experiment, outcome)]
    key, now = key_of(experiment, quick), datetime.now().astimezone().isoformat(timespec="minutes")
    motions = [motion.name for motion in outcome.motions]
    stamp = Stamp(key, quick, experiment.question, now, casal.__version__, machine(), pictures, motions)
    text = json.dumps(asdict(stamp), indent=1, ensure_ascii=False) + "\n"
    write_whole(folder / "record.json", lambda file: file.write(text.encode()))
    return Record(stamp, outcome, folder, current=True)


def load(out: Path, name: str, quick: bool, experiment: Experiment | None) -> Record | None:
    """What a run left behind, if it came to its end; current only if the experiment that made it is known."""
    folder = folder_of(out, name, quick)
    if not (folder / "record.json").exists():
        return None
    try:
        stamp = _stamp(json.loads((folder / "record.json").read_text(encoding="utf-8")), folder)
        outcome = outcome_from_json((folder / "results.json").read_text(encoding="utf-8"))
        outcome = replace(outcome, motions=_motions(stamp, folder))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        warnings.warn(
            f"the outcome in {folder} cannot be read ({type(error).__name__}: {error}) and is left out; "
            "casal reproduce makes it again",
            CasalWarning,
            stacklevel=2,
        )
        return None
    current = experiment is not None and stamp.key == key_of(experiment, quick)
    return Record(stamp, outcome, folder, current)


def _stamp(record: Any, folder: Path) -> Stamp:
    """The stamp of a record, whose pictures are files of its folder."""
    stamp = Stamp(**record)
    texts = (stamp.key, stamp.question, stamp.made, stamp.version, stamp.machine, *stamp.pictures, *stamp.motions)
    if not isinstance(stamp.quick, bool) or not all(isinstance(text, str) for text in texts):
        raise TypeError("a field of record.json is of another kind than it should be")
    for name in stamp.pictures:
        if Path(name).name != name or (folder / name).read_bytes()[:8] != PNG:
            raise ValueError(f"{name!r} is no picture of this folder")
    return stamp


def _motions(stamp: Stamp, folder: Path) -> list[Motion]:
    """The motions that the stamp names."""
    if not stamp.motions:
        return []
    found = [Motion.of_record(part) for part in json.loads((folder / "motions.json").read_text(encoding="utf-8"))]
    if [motion.name for motion in found] != list(stamp.motions):
        raise ValueError(f"motions.json does not hold the motions {', '.join(stamp.motions)}")
    return found


def best(out: Path, name: str, experiment: Experiment | None) -> Record | None:
    """The run to show: current before outdated, full before quick."""
    found = [record for quick in (False, True) if (record := load(out, name, quick, experiment))]
    return max(found, key=lambda record: record.current, default=None)


def names(out: Path) -> list[str]:
    """Every experiment that left a folder here."""
    return sorted({path.parent.name for mode in ("full", "quick") for path in (out / mode).glob("*/record.json")})
