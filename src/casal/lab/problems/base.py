"""What an experiment is: a question, a set-up, a table against the exact answer, and the data of its pictures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        key: Name in the rows.
        label: What a reader sees.
        style: Format of a number.
    """

    key: str
    label: str
    style: str = ".4g"


@dataclass(frozen=True)
class ResultTable:
    """Rows of numbers; a row may carry ``<key>_se``, the standard error of ``<key>``."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]
    note: str = ""


@dataclass(frozen=True)
class Claim:
    """A published or intended figure beside ours, and the verdict: reproduced, partly, or not."""

    text: str
    expected: str
    ours: str
    verdict: str


@dataclass(frozen=True)
class Outcome:
    """What a run of an experiment leaves behind.

    Attributes:
        name: Name of the experiment; its pictures are looked up by it.
        tables: For the reader.
        claims: For the verdict.
        data: Arrays for the pictures.
        settings: What was run.
        seconds: How long it took.
    """

    name: str
    tables: Sequence[ResultTable]
    claims: Sequence[Claim] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class Experiment:
    """An entry of the registry.

    Attributes:
        name: As in ``casal run NAME``.
        question: What the experiment decides.
        methods: Labels that ``--method`` accepts.
        run: (quick, labels, tell) -> Outcome; ``tell`` is called with a line of text as each part begins.
    """

    name: str
    question: str
    methods: Sequence[str]
    run: Callable[[bool, Sequence[str] | None, Callable[[str], None]], Outcome]


def share(count: int, n: int) -> tuple[float, float]:
    """A proportion and its standard error (Agresti-Coull, so that 0 of n has an error too)."""
    adjusted = (count + 2) / (n + 4)
    return count / n, math.sqrt(adjusted * (1 - adjusted) / (n + 4))


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean over seeds and its standard error."""
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")
    return float(np.mean(values)), spread / math.sqrt(len(values))


def quantile_distance(samples: Array, grid: Array, cdf: Array) -> float:
    """W1 between samples (n,) and the law with the given distribution function."""
    levels = (np.arange(len(samples)) + 0.5) / len(samples)
    return float(np.abs(np.sort(samples) - np.interp(levels, cdf, grid)).mean())


def sampling_floor(grid: Array, cdf: Array, n: int, repeats: int = 200) -> float:
    """Mean W1 of n independent exact draws to their own law: what no sampler can beat on average."""
    rng = np.random.default_rng(0)
    draws = np.interp(rng.random((repeats, n)), cdf, grid)
    return float(np.mean([quantile_distance(row, grid, cdf) for row in draws]))
