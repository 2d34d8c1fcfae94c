"""What an experiment is: a question, a run that answers it with tables and claims, and pictures of the outcome.

    EXPERIMENT = Experiment("mine", "Does it hold?", ("CASAL", "projected"), run, draw)

``run(quick, labels, tell)`` returns an ``Outcome``; ``draw(outcome, folder)`` writes its pictures. An experiment joins
by ``casal_lab.experiments.register``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial, wraps
from pathlib import Path
from typing import Any, Literal, NamedTuple, ParamSpec

import numpy as np
import numpy.typing as npt
import torch

from casal import Method, __version__
from casal_lab.motion import Motion

Array = npt.NDArray[np.float64]
AnyMethod = Method[Any]
Tell = Callable[[str], None]
"""Called with a line of text as each part of a run begins."""

HOLDS, PARTLY, FAILS = "reproduced", "partly", "not reproduced"
"""The verdicts on what the paper says."""

MET, PARTLY_MET, MISSED = "met", "partly met", "missed"
"""The verdicts on what we ask of ourselves: other words, so that nobody adds the two up."""

NOT_APPLICABLE = "not applicable"
"""A statement whose condition is never met, or that leaves out the case at hand: neither true nor false here."""


VARIANTS = ("printed", "released", "ours")
"""Of CASAL: the algorithms as printed, the update of the authors' released code, our repaired method."""


def verdict(*holds: bool) -> str:
    """HOLDS if every part holds, PARTLY if some do, else FAILS."""
    return HOLDS if all(holds) else PARTLY if any(holds) else FAILS


def reached(*holds: bool) -> str:
    """MET if every part holds, PARTLY_MET if some do, else MISSED."""
    return MET if all(holds) else PARTLY_MET if any(holds) else MISSED


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    key: str  # name in the rows
    label: str  # what a reader sees
    style: str = ".4g"  # format of a number


@dataclass(frozen=True)
class ResultTable:
    """Rows of numbers; a row may carry ``<key>_se``, the standard error of ``<key>``."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]
    note: str = ""

    @classmethod
    def of(
        cls, title: str, header: str | Sequence[str], rows: Sequence[Mapping[str, Any]], note: str = ""
    ) -> ResultTable:
        """A table from a header of columns ``key: label, style`` with `` | `` between; label and style may be left out.

        >>> ResultTable.of("Distances", "method | w1: distance to the distribution, .3f | n: chains, d", []).columns[1]
        Column(key='w1', label='distance to the distribution', style='.3f')
        """
        columns = []
        for part in (header if isinstance(header, str) else " | ".join(header)).split(" | "):
            found = re.fullmatch(r"(.*), ([+.\d]*[defg%])", part)
            name, style = found.groups() if found else (part, ".4g")
            key, _, label = name.partition(": ")
            columns.append(Column(key, label or key, style))
        return cls(title, columns, rows, note)


@dataclass(frozen=True)
class Claim:
    """A statement with a figure, ours beside it, and the verdict.

    A *published* claim names where the paper makes it (``source``) and is judged by ``verdict``. A *target* is what we
    ask of ourselves: it has no source and is judged by ``reached``. ``flips`` says in one sentence which measurement
    would change the verdict. What the paper says of CASAL is judged once for each variant (``VARIANTS``), a claim each
    with the same text, so that the failure of one does not hide the success of another.
    """

    text: str  # what is claimed
    expected: str  # the figure of the paper, or what we ask for
    ours: str  # what was measured
    verdict: str  # HOLDS, PARTLY, FAILS or NOT_APPLICABLE; of a target MET, PARTLY_MET or MISSED
    source: str = ""  # section, table or figure of the paper; empty for a target
    flips: str = ""  # what would have to be measured for another verdict
    variant: str = ""  # of CASAL, one of VARIANTS; empty if the claim is of something else
    exact: str = ""  # the exact answer to the same question, where there is one
    plain: str = ""  # what was found, in one sentence

    @property
    def published(self) -> bool:
        """Whether the paper says so; else it is a target of ours."""
        return bool(self.source)


class Partial(NamedTuple):
    """Why a run was stopped before its end, and what it was doing; rows finished before are kept, and no others."""

    reason: str
    part: str  # that was cut, as it was told

    def __str__(self) -> str:
        return f"partial: stopped ({self.reason}) during {self.part!r}; only the rows finished before are here"


@dataclass(frozen=True)
class Outcome:
    """What a run of an experiment leaves behind."""

    name: str  # of the experiment
    tables: Sequence[ResultTable]  # for the reader
    claims: Sequence[Claim] = ()  # for the verdict
    data: Mapping[str, Any] = field(default_factory=dict)  # arrays for the pictures
    settings: Mapping[str, Any] = field(default_factory=dict)  # what was run
    seconds: float = 0.0  # how long it took
    motions: Sequence[Motion] = ()  # moving pictures of the page
    records: Mapping[str, Any] = field(default_factory=dict)  # numbers case by case, for results.json alone
    partial: Partial | None = None  # if the run was stopped

    @property
    def rows(self) -> int:
        """How many rows all tables have."""
        return sum(len(table.rows) for table in self.tables)


class Origin(NamedTuple):
    """Where one constant of an experiment comes from; docs/provenance.md has a row for each.

    ``paper``: printed in the text. ``script``: from the authors' released code. ``ours``: in neither.
    """

    constant: str  # what it is, as a reader would call it
    value: str
    origin: Literal["paper", "script", "ours"]
    where: str  # section of the paper; file and revision of the script; of ours, why it was chosen


Run = Callable[[bool, Sequence[str] | None, Tell], Outcome]
RunSeed = Callable[[int, bool, Sequence[str] | None, Tell], Outcome]
RunScene = Callable[[str, int, bool, Sequence[str] | None, Tell], Outcome]


@dataclass(frozen=True)
class Experiment:
    """An entry of the registry.

    ``run(quick, labels, tell)`` returns an outcome (labels None means all); ``draw(outcome, folder)`` the paths of the
    pictures it wrote, see ``casal_lab.drawing``. An experiment with ``scenes`` can also run all methods in one of them,
    drawn from a seed: ``run_scene(scene, seed, quick, labels, tell)``. One with ``run_seed(seed, quick, labels, tell)``
    draws its test cases anew from a seed; ``run`` is then the seed 0. A stored outcome is current while the source of
    ``module`` and of all it imports stays the same: name it where ``run`` is a method of a shared class.
    """

    name: str  # as in ``casal run NAME``
    question: str  # what the experiment decides
    methods: Sequence[str]  # labels that ``--method`` accepts
    run: Run
    draw: Callable[[Outcome, Path], list[Path]] = lambda outcome, folder: []
    scenes: Sequence[str] = ()  # what ``--scene`` accepts
    run_scene: RunScene | None = None
    run_seed: RunSeed | None = None
    module: str = ""  # whose source decides the outcome; that of ``run`` if empty
    origins: Sequence[Origin] = ()  # where its constants come from
    moving: Callable[[], Sequence[Motion]] | None = None  # its motions alone, for the gallery

    def __post_init__(self) -> None:
        if not self.module:
            run: Any = self.run
            while isinstance(run, partial):
                run = run.func
            object.__setattr__(self, "module", run.__module__)


def made_now() -> dict[str, str]:
    """Date and versions, the first settings of every outcome."""
    return {"date": date.today().isoformat(), "casal": __version__, "torch": str(torch.__version__)}


Given = ParamSpec("Given")


def stamp(run: Callable[Given, Outcome]) -> Callable[Given, Outcome]:
    """Add the date, the versions and the duration to what a run returns."""

    @wraps(run)
    def timed(*args: Given.args, **options: Given.kwargs) -> Outcome:
        began = time.perf_counter()
        outcome = run(*args, **options)
        return replace(outcome, settings={**made_now(), **outcome.settings}, seconds=time.perf_counter() - began)

    return timed
