"""Outcomes on disk: a folder for each, with what is needed to tell whether it is still current.

    DIR/full/field/record.json  results.json  results.md  motions.json  field_rho.svg  field_rho.png ...
    DIR/quick/field/...

``casal reproduce`` writes these. ``casal run --out DIR`` writes the same files into DIR itself, and everything here
that looks for outcomes looks there too, and one folder below. ``record.json`` is written last, so a folder without it
holds nothing. A folder whose files are damaged or not ours counts as one without an outcome, with a warning.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

import casal
import casal_lab
from casal.errors import CasalError, CasalWarning
from casal.store import write_whole
from casal_lab.experiment import Experiment, Outcome
from casal_lab.motion import Motion
from casal_lab.report.sources import Sources, file_below, in_packages
from casal_lab.report.stopping import held
from casal_lab.report.tables import outcome_from_json, outcome_json, outcome_markdown

OURS = {"casal", "casal_lab"}
"""Packages whose programs count as those of the library and of the laboratory."""

RECORD, RESULTS, MOTIONS = "record.json", "results.json", "motions.json"
"""Files of an outcome."""

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
    name: str = ""  # of the experiment; that of the folder if empty
    chosen: Sequence[str] = ()  # options of ``casal run`` by which only a part was run, or other cases


@dataclass(frozen=True)
class Record:
    """An outcome as it was found on disk, and whether the installed source would make the same."""

    stamp: Stamp
    outcome: Outcome
    folder: Path
    current: bool

    @property
    def whole(self) -> bool:
        """Whether it is all that the experiment runs, and came to its end."""
        return self.outcome.partial is None and not self.stamp.chosen


class Damaged(CasalError):
    """The files of an outcome cannot be read."""


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


def key_of(experiment: Experiment, quick: bool, chosen: Sequence[str] = ()) -> str:
    """Name of the settings of a run: equal keys, equal outcomes."""
    parts = [experiment.name, quick, casal.__version__, torch.__version__, source_digest(experiment.module), *chosen]
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


def save(out: Path, experiment: Experiment, quick: bool, outcome: Outcome) -> Record:
    """Draw and write everything into the folder of an experiment and mode."""
    return write(folder_of(out, experiment.name, quick), experiment, quick, outcome)


def write(folder: Path, experiment: Experiment, quick: bool, outcome: Outcome, chosen: Sequence[str] = ()) -> Record:
    """Draw and write everything into a folder; the record comes last and at once. A partial outcome has no pictures.

    Files of an earlier outcome are removed first, others in the folder stay. Ctrl-C waits until all is written.
    """
    with held():
        return _write(folder, experiment, quick, outcome, chosen)


def _write(folder: Path, experiment: Experiment, quick: bool, outcome: Outcome, chosen: Sequence[str]) -> Record:
    _remove(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RESULTS).write_text(outcome_json(outcome), encoding="utf-8")
    (folder / "results.md").write_text(outcome_markdown(outcome, experiment.question), encoding="utf-8")
    if outcome.motions:
        text = json.dumps([motion.record() for motion in outcome.motions], ensure_ascii=False)
        (folder / MOTIONS).write_text(text + "\n", encoding="utf-8")
    pictures = [] if outcome.partial else [path.name for path in experiment.draw(outcome, folder)]
    stamp = Stamp(
        key_of(experiment, quick, chosen),
        quick,
        experiment.question,
        datetime.now().astimezone().isoformat(timespec="minutes"),
        casal.__version__,
        machine(),
        pictures,
        [motion.name for motion in outcome.motions],
        experiment.name,
        list(chosen),
    )
    text = json.dumps(asdict(stamp), indent=1, ensure_ascii=False) + "\n"
    write_whole(folder / RECORD, lambda file: file.write(text.encode()))
    return Record(stamp, outcome, folder, current=True)


def _remove(folder: Path) -> None:
    """Remove the files of the outcome in a folder, the record first."""
    pictures: list[Path] = []
    with suppress(Exception):  # a damaged record names nothing
        listed = json.loads((folder / RECORD).read_text(encoding="utf-8"))["pictures"]
        pictures = [folder / name for name in listed if Path(name).name == name and name.endswith(".png")]
    fixed = [folder / name for name in (RECORD, RESULTS, "results.md", MOTIONS)]
    for path in (*fixed, *pictures, *(path.with_suffix(".svg") for path in pictures)):
        path.unlink(missing_ok=True)


def keeps(folder: Path, experiment: Experiment, outcome: Outcome) -> Record | None:
    """The outcome in a folder that a partial one must not replace: it came to its end, or is as current and longer."""
    if outcome.partial is None or not (folder / RECORD).exists():
        return None
    try:
        found = read(folder, experiment)
    except Damaged:
        return None
    longer = found.current and found.outcome.rows > outcome.rows
    return found if found.outcome.partial is None or longer else None


def read(folder: Path, experiment: Experiment | None) -> Record:
    """The outcome in a folder; current only if the experiment that made it is known.

    Raises:
        Damaged: Its files are not what ``write`` writes.
    """
    try:
        stamp = _stamp(json.loads((folder / RECORD).read_text(encoding="utf-8")), folder)
        outcome = outcome_from_json((folder / RESULTS).read_text(encoding="utf-8"))
        outcome = replace(outcome, motions=_motions(stamp, folder))
    except Exception as error:  # whatever a damaged file leads to, it costs no other outcome
        raise Damaged(f"{type(error).__name__}: {_short(error)}") from error
    current = experiment is not None and stamp.key == key_of(experiment, stamp.quick, stamp.chosen)
    return Record(stamp, outcome, folder, current)


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else f"{text[:200]} ..."


def load(out: Path, name: str, quick: bool, experiment: Experiment | None) -> Record | None:
    """What ``casal reproduce`` left behind, if it came to the end of writing; a warning if it cannot be read."""
    folder = folder_of(out, name, quick)
    return _read_or_warn(folder, experiment, []) if (folder / RECORD).exists() else None


def _read_or_warn(folder: Path, experiment: Experiment | None, damages: list[str]) -> Record | None:
    try:
        return read(folder, experiment)
    except Damaged as error:
        damages.append(f"{folder.name}: {error}")
        warnings.warn(
            f"the outcome in {folder} cannot be read ({error}) and is not used; casal reproduce makes it again",
            CasalWarning,
            stacklevel=3,
        )
        return None


def _stamp(record: Any, folder: Path) -> Stamp:
    """The stamp of a record, whose pictures are files of its folder."""
    stamp = Stamp(**record)
    texts = [stamp.key, stamp.question, stamp.made, stamp.version, stamp.machine, stamp.name]
    texts += [*stamp.pictures, *stamp.motions, *stamp.chosen]
    if not isinstance(stamp.quick, bool) or not all(isinstance(text, str) for text in texts):
        raise TypeError("a field of record.json is of another kind than it should be")
    for name in stamp.pictures:
        if Path(name).name != name or not is_picture((folder / name).read_bytes()):
            raise ValueError(f"{name!r} is no picture of this folder")
    return stamp


def is_picture(data: bytes) -> bool:
    """Whether these are the bytes of a PNG file, as far as its size, which the first block has."""
    return data[:8] == PNG and data[12:16] == b"IHDR" and len(data) > 24


def _motions(stamp: Stamp, folder: Path) -> list[Motion]:
    """The motions that the stamp names."""
    if not stamp.motions:
        return []
    found = [Motion.of_record(part) for part in json.loads((folder / MOTIONS).read_text(encoding="utf-8"))]
    if [motion.name for motion in found] != list(stamp.motions):
        raise ValueError(f"motions.json does not hold the motions {', '.join(stamp.motions)}")
    return found


def best(out: Path, name: str, experiment: Experiment | None, damages: list[str] | None = None) -> Record | None:
    """The run to show: whole before parts, current before outdated, full before quick, late before early.

    ``damages`` takes up what is wrong with those that cannot be read.
    """
    noted = [] if damages is None else damages
    found = [_read_or_warn(folder, experiment, noted) for folder in folders(out).get(name, ())]

    def rank(record: Record) -> tuple[Any, ...]:
        return record.whole, record.outcome.partial is None, record.current, not record.stamp.quick, record.stamp.made

    return max((record for record in found if record), key=rank, default=None)


def folders(out: Path) -> dict[str, list[Path]]:
    """Every experiment that left an outcome here, with its folders; those of ``casal reproduce`` come first."""
    found: dict[str, list[Path]] = {}
    for pattern in ("full/*", "quick/*", "*", ""):
        for path in sorted(out.glob(f"{pattern}/{RECORD}" if pattern else RECORD)):
            found.setdefault(_name(path), []).append(path.parent)
    return found


def _name(record: Path) -> str:
    """The experiment that a record names; the folder's own name where it names none."""
    with suppress(Exception):
        name = json.loads(record.read_text(encoding="utf-8"))["name"]
        if name and isinstance(name, str):
            return name
    return record.resolve().parent.name


def names(out: Path) -> list[str]:
    """Every experiment that left an outcome here."""
    return sorted(folders(out))
