"""Interleaved repeats: every case once, then every case again, so that a noisy machine disturbs all alike."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

ROOT = Path(__file__).parents[1]

Case = Callable[[], object]
"""Something to time. If it returns a float, that is the time it measured itself."""


@dataclass(frozen=True)
class Table:
    """Rows of numbers for a reader (Markdown) and for a program (JSON)."""

    title: str
    rows: list[dict[str, Any]]
    note: str = ""

    def markdown(self) -> str:
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        lines = [f"### {self.title}", "", f"| {' | '.join(names)} |", f"|---|{'---:|' * (len(names) - 1)}"]
        lines += [f"| {' | '.join(_cell(row.get(name)) for name in names)} |" for row in self.rows]
        return "\n".join([*lines, "", self.note, ""] if self.note else [*lines, ""])

    def data(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Race:
    """Cases timed in turn.

    Attributes:
        title: Of the table.
        unit: Seconds that count as one.
        unit_name: What the unit is called.
        bases: Cases to give ratios to.
        repeats: Rounds after the first, which is not counted.
        note: Below the table.
    """

    title: str
    unit: float
    unit_name: str
    bases: tuple[str, ...]
    repeats: int = 5
    note: str = ""
    cases: dict[str, Case] = field(default_factory=dict)

    def table(self) -> Table:
        seconds = interleaved(self.cases, self.repeats)
        rows = []
        for name, (low, mid) in seconds.items():
            row = {
                "case": name,
                f"min, {self.unit_name}": low / self.unit,
                f"median, {self.unit_name}": mid / self.unit,
            }
            rows.append(row | {f"/ {base}": low / seconds[base][0] for base in self.bases})
        return Table(self.title, rows, self.note)


STEPS = (10, 110)
"""Lengths of the two runs whose difference is the cost of a step."""


def steps_in_turn(
    title: str, runs: Mapping[str, Callable[[int], Case]], base: str, rounds: int, note: str = ""
) -> Table:
    """Processor time of one step of each run, and its ratio to the step of ``base`` in the same round.

    A step is the difference of a long run and a short one, so that what a run does before and after its steps does not
    count.

    Args:
        title: Of the table.
        runs: Name -> number of steps -> a run of so many steps.
        base: The run to give ratios to.
        rounds: How often the runs take turns, after one round that does not count.
        note: Below the table.
    """
    cases = {f"{name} {steps}": make(steps) for name, make in runs.items() for steps in STEPS}
    found = in_turn(cases, rounds)
    return by_round(title, {name: step_seconds(found, name, STEPS) for name in runs}, base, 1e-6, "us a step", note)


def step_seconds(seconds: Mapping[str, list[float]], name: str, lengths: tuple[int, int]) -> list[float]:
    """Seconds of one step in every round: a long run less a short one, over the steps between.

    Args:
        seconds: Of ``in_turn``, for "name steps".
        name: The run.
        lengths: Steps of the short run and of the long one.
    """
    few, many = lengths
    both = zip(seconds[f"{name} {many}"], seconds[f"{name} {few}"], strict=True)
    return [(long - short) / (many - few) for long, short in both]


def by_round(
    title: str, seconds: Mapping[str, list[float]], base: str, unit: float, unit_name: str, note: str = ""
) -> Table:
    """Minima and medians over the rounds, and ratios to ``base``: of the minima, and the median of those of a round."""
    rows = []
    for name, values in seconds.items():
        low, middle, high = quartiles([own / other for own, other in zip(values, seconds[base], strict=True)])
        rows.append(
            {
                "case": name,
                f"min, {unit_name}": min(values) / unit,
                f"median, {unit_name}": median(values) / unit,
                f"/ {base}, minima": min(values) / min(seconds[base]),
                f"/ {base}, median": middle,
                "middle half": f"{low:.3g} to {high:.3g}",
            }
        )
    return Table(title, rows, note)


def interleaved(cases: Mapping[str, Case], repeats: int = 5) -> dict[str, tuple[float, float]]:
    """Seconds (minimum, median) of each case over interleaved repeats, after one warm-up."""
    seconds = in_turn(cases, repeats, clock=time.perf_counter)
    return {name: (min(values), median(values)) for name, values in seconds.items()}


def ratios(title: str, cases: Mapping[str, Case], base: str, rounds: int, *, repeats: int = 1, note: str = "") -> Table:
    """Processor time of each case in turn, and its ratio to ``base``, as ``by_round`` has them.

    Args:
        title: Of the table.
        cases: What is timed, in turn; each once before the first round.
        base: The case to give ratios to.
        rounds: How often every case is timed.
        repeats: Calls of a case in a round.
        note: Below the table.
    """
    return by_round(title, in_turn(cases, rounds, repeats), base, 1e-3, "ms", note)


def in_turn(
    cases: Mapping[str, Case], rounds: int, repeats: int = 1, clock: Callable[[], float] = time.process_time
) -> dict[str, list[float]]:
    """Seconds of each case in every round, after a first call that is not counted; those of the processor by default.

    A case that returns a number has measured itself.
    """
    for case in cases.values():
        case()
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            began = clock()
            own = [case() for _ in range(repeats)]
            measured = [spent for spent in own if isinstance(spent, float)]
            seconds[name].append((sum(measured) if measured else clock() - began) / repeats)
    return seconds


def in_new_process(module: str, *arguments: object) -> Any:
    """What ``python -m module arguments`` prints as JSON in its last line."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    out = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    return json.loads(out.splitlines()[-1])


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """A quarter of the values are below the first, half below the second, three quarters below the third."""
    ordered = sorted(values)
    return ordered[len(ordered) // 4], median(ordered), ordered[-1 - len(ordered) // 4]


def machine() -> dict[str, Any]:
    """What the figures were measured on, and how busy it was."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load average": round(os.getloadavg()[0], 2),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)
