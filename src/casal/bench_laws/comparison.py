"""Run samplers on problems and compare them: error over floor, feasibility, evaluations; as tables, JSON and a page."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

import casal
from casal.bench_laws.answer import F64
from casal.bench_laws.catalogue import PROBLEMS, problem
from casal.bench_laws.interface import Problem
from casal.bench_laws.samplers import SAMPLERS, Sample, Sampler, error_over_floor
from casal.errors import CasalError, SettingError, ShapeError, StoreError
from casal.lab.experiment import Outcome, ResultTable, Tell, mean_and_error
from casal.lab.report.tables import outcome_json, outcome_markdown, show

BUDGET = 2000
"""Evaluations of the model for each sample."""

TOLERANCE = 1e-6
"""A larger violation is not feasible."""

NEAR = 2.0
"""Error over floor up to which a result counts as near the floor: as good as a quarter as many exact draws."""

QUICK = (
    "tail, 1-D",
    "three modes on a circle",
    "simplex, diffusion",
    "two boxes, diffusion",
    "orthant, 64-D",
    "four equations, 64-D, diffusion",
)
QUICK_SAMPLERS = ("exact draws", "auto", "projected", "final projection", "mici", "azula MMPS")
"""Problems and samplers of a quick run."""

QUESTION = "How far are samples from the exact distribution on the set, in units of as many exact draws?"


@dataclass(frozen=True)
class Score:
    """What the samples of one run are worth, from the points and the counted evaluations alone."""

    ratio: float  # error over floor, mean over the distances; about 1 for exact draws
    distances: Mapping[str, float]  # each distance
    floors: Mapping[str, float]  # and what as many exact draws have
    violation: float  # largest, by the definition of the set
    feasible: float  # share of samples with a violation of at most TOLERANCE
    evaluations: float  # for each sample
    seconds: float


@dataclass(frozen=True)
class Entry:
    """Runs of a sampler on a problem; ``note`` says why there are none."""

    problem: str
    sampler: str
    n: int
    scores: Sequence[Score] = ()
    note: str = ""

    @property
    def ratio(self) -> float:
        """Error over floor, mean over seeds; nan without a run."""
        return mean_and_error([score.ratio for score in self.scores])[0] if self.scores else math.nan

    @property
    def error(self) -> float:
        """Its standard error over seeds."""
        return mean_and_error([score.ratio for score in self.scores])[1] if self.scores else math.nan

    @property
    def evaluations(self) -> float:
        """For each sample, the most of all runs."""
        return max((score.evaluations for score in self.scores), default=0.0)

    @property
    def feasible(self) -> bool:
        """Whether every sample of every run is in the set."""
        return all(score.feasible == 1.0 for score in self.scores)


def score(problem: Problem, points: Tensor, *, evaluations: float = 0.0, seconds: float = 0.0) -> Score:
    """Compare points (n, d) with the exact distribution of a problem.

    Nothing but the points counts: their violation is computed from the definition of the set, their error from the
    reference.
    """
    x = torch.as_tensor(points).detach().to(F64).reshape(len(points), -1)
    if x.shape[1:] != (problem.dimension,) or len(x) < 2:
        raise ShapeError(f"{problem.name} needs points (n, {problem.dimension}) with n >= 2, got {tuple(points.shape)}")
    whole = bool(torch.isfinite(x).all())
    off = problem.violation(x) if whole else torch.full((len(x),), math.inf, dtype=F64)
    return Score(
        ratio=error_over_floor(problem, x),
        distances=problem.answer.distances(x) if whole else {},
        floors=problem.answer.floor(len(x)),
        violation=float(off.max()),
        feasible=float((off <= TOLERANCE).double().mean()),
        evaluations=evaluations,
        seconds=seconds,
    )


def measure(sampler: Sampler, problem: Problem, n: int, seeds: Iterable[int], budget: int = BUDGET) -> Entry:
    """Run a sampler on a problem, once for each seed."""
    count = min(n, problem.answer.chains)
    if said := sampler.refuses(problem):
        return Entry(problem.name, sampler.name, count, note=f"does not apply: {said}")
    scores = list[Score]()
    for seed in seeds:
        fresh = problem.fresh(seed)
        torch.manual_seed(seed)
        np.random.seed(seed)
        began = time.perf_counter()
        try:
            points = sampler.draw(fresh, count, budget)
        except Exception as error:
            if sampler.name not in SAMPLERS and not isinstance(error, CasalError):
                raise  # a mistake in a function under test is for its author to see
            said = f"{type(error).__name__}: {str(error).partition('; ')[0][:200]}"
            return Entry(problem.name, sampler.name, count, scores, f"failed: {said}")
        took = time.perf_counter() - began
        if len(points) != count:
            raise ShapeError(f"{sampler.name} was asked for {count} points of {problem.name} and gave {len(points)}")
        scores.append(score(fresh, points, evaluations=fresh.evaluations / count, seconds=took))
    return Entry(problem.name, sampler.name, count, scores)


@dataclass(frozen=True)
class Results:
    """All entries of a comparison, and how it was made."""

    entries: Sequence[Entry]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def of(self, problem: str, sampler: str) -> Entry | None:
        """The entry of a problem and a sampler, if there is one."""
        found = [one for one in self.entries if (one.problem, one.sampler) == (problem, sampler)]
        return found[-1] if found else None

    @property
    def problems(self) -> list[str]:
        """Names, in the order of the catalogue."""
        there = {one.problem for one in self.entries}
        return [name for name in PROBLEMS if name in there] + sorted(there - set(PROBLEMS))

    @property
    def samplers(self) -> list[str]:
        """Names, in the order of the registry, then those of users."""
        there = dict.fromkeys(one.sampler for one in self.entries)
        return [name for name in SAMPLERS if name in there] + [name for name in there if name not in SAMPLERS]

    def with_entries(self, entries: Iterable[Entry]) -> Results:
        """The same with more entries, which take the place of older ones of the same problem and sampler."""
        kept = {(one.problem, one.sampler): one for one in (*self.entries, *entries)}
        return Results(list(kept.values()), self.settings)

    # -------------------------------------------------------------- for readers

    def outcome(self) -> Outcome:
        """Tables of the lab's report."""
        return Outcome("bench_laws", [self._summary(), self._matrix()], settings=self.settings, records=self._records())

    def _cell(self, entry: Entry | None) -> str:
        if entry is None or entry.note.startswith("does not apply"):
            return "–"
        if not entry.scores:
            return "failed"
        text = f"{entry.ratio:.1f}" if entry.ratio < 100 else f"{entry.ratio:.0f}"
        text += f" ± {entry.error:.1f}" if math.isfinite(entry.error) else ""
        text += " infeasible" if not entry.feasible else ""
        return text + (" †" if entry.evaluations > self.settings.get("budget", math.inf) else "")

    def _matrix(self) -> ResultTable:
        rows = []
        for name in self.problems:
            one = problem(name) if name in PROBLEMS else None
            row: dict[str, Any] = {"problem": name}
            if one is not None:
                shape = f"{one.shape}, nonconvex" if one.nonconvex else one.shape
                row |= {"kind": one.kind, "set": shape, "d": one.dimension}
            entries = {sampler: self.of(name, sampler) for sampler in self.samplers}
            row["n"] = max((entry.n for entry in entries.values() if entry is not None), default=0)
            rows.append(row | {sampler: self._cell(entry) for sampler, entry in entries.items()})
        header = " | ".join(["problem", "kind", "set", "d, d", "n, d", *self.samplers])
        note = (
            "Error over floor, mean over seeds ± standard error; as many exact draws have 1. –: does not apply. "
            f"†: more than {self.settings.get('budget', 0)} evaluations of the model a sample. infeasible: a violation "
            f"above {TOLERANCE:g}."
        )
        return ResultTable.of("Error over floor", header, rows, note)

    def _summary(self) -> ResultTable:
        rows = []
        for sampler in self.samplers:
            entries = [one for one in self.entries if one.sampler == sampler]
            ran = [one for one in entries if one.scores]
            if not ran:
                continue
            ratios = [one.ratio for one in ran]
            rows.append(
                {
                    "method": sampler,
                    "ran": len(ran),
                    "failed": sum(one.note.startswith("failed") for one in entries),
                    "mean": math.exp(math.fsum(math.log(max(r, 1e-9)) for r in ratios) / len(ratios)),
                    "near": sum(ratio <= NEAR for ratio in ratios) / len(ratios),
                    "worst": max(ratios),
                    "where": max(ran, key=lambda one: one.ratio).problem,
                    "best": self._wins(sampler),
                    "infeasible": sum(not one.feasible for one in ran),
                    "evaluations": math.exp(math.fsum(math.log(max(one.evaluations, 1.0)) for one in ran) / len(ran)),
                }
            )
        header = (
            "method: sampler | ran: problems, d | failed, d | mean: error / floor (geometric mean), .2f | "
            f"near: within {NEAR:g} floors, .0% | best: best on, d | worst, .1f | where: worst on | "
            "infeasible, d | evaluations: evaluations a sample (geometric mean), .0f"
        )
        note = (
            "A sampler is averaged over the problems on which it runs; these are not the same for all. Best on: "
            "problems on which no other sampler but the exact draws has a smaller mean error; ties count for both."
        )
        return ResultTable.of("Samplers", header, rows, note)

    def _wins(self, sampler: str) -> int:
        count = 0
        for name in self.problems:
            rivals = [self.of(name, other) for other in self.samplers if other != "exact draws"]
            ran = {one.sampler: one.ratio for one in rivals if one is not None and one.scores and one.feasible}
            count += sampler in ran and ran[sampler] <= min(ran.values())
        return count

    def __str__(self) -> str:
        console = Console(width=max(100, 60 + 18 * len(self.samplers)), no_color=True)
        with console.capture() as caught:
            show(console, self.outcome())
        return caught.get()

    # -------------------------------------------------------------- on disk

    def _records(self) -> dict[str, Any]:
        return {"entries": [asdict(one) for one in self.entries]}

    def json(self) -> str:
        """Settings, tables and every score."""
        return outcome_json(self.outcome())

    @classmethod
    def from_json(cls, text: str) -> Results:
        """What ``json`` wrote.

        Raises:
            StoreError: It is not what ``json`` writes.
        """
        try:
            record = json.loads(text)
            entries = [
                Entry(**{**one, "scores": [Score(**score) for score in one["scores"]]})
                for one in record["records"]["entries"]
            ]
            return cls(entries, dict(record["settings"]))
        except (ValueError, TypeError, KeyError) as error:
            raise StoreError(f"this is no result of casal.bench_laws ({type(error).__name__}: {error})") from error

    def write(self, folder: Path) -> None:
        """results.json and results.md."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "results.json").write_text(self.json(), encoding="utf-8")
        (folder / "results.md").write_text(outcome_markdown(self.outcome(), QUESTION), encoding="utf-8")


def run(
    samplers: str | Sample | Sampler | Sequence[str | Sample | Sampler] = tuple(SAMPLERS),
    problems: str | Iterable[str] | None = None,
    *,
    n: int = 1000,
    seeds: int = 3,
    budget: int = BUDGET,
    out: str | Path | None = None,
    tell: Tell = lambda line: None,
    stop: Callable[[], bool] = lambda: False,
) -> Results:
    """Run samplers on problems.

    Args:
        samplers: Names of ``SAMPLERS``, or functions ``sample(problem, n, budget) -> points``, one or several.
        problems: Names of ``PROBLEMS``; all if left out.
        n: Samples of a run; fewer on problems that say so.
        seeds: Runs of each sampler on each problem.
        budget: Evaluations of the model for each sample. A run that takes more is marked.
        out: Folder for results.json and results.md, written after every problem. What is there already, with the same
            n, seeds and budget, is not run again.
        tell: Called with a line of text as each part begins.
        stop: Asked before each problem; True ends the run with what there is.

    Returns:
        The comparison; ``print`` shows its tables.
    """
    several: Sequence[str | Sample | Sampler]
    if isinstance(samplers, str):
        several = [samplers]
    elif isinstance(samplers, Sequence):
        several = samplers
    else:
        several = [samplers]
    chosen = [_sampler(one) for one in several]
    wanted = list(PROBLEMS) if problems is None else [problems] if isinstance(problems, str) else list(problems)
    for name in wanted:
        if name not in PROBLEMS:
            raise SettingError(f"there is no problem {name!r}; there are: {', '.join(PROBLEMS)}")
    if n < 2 or seeds < 1 or budget < 4:
        raise SettingError(f"n must be >= 2, seeds >= 1 and budget >= 4; got {n}, {seeds} and {budget}")
    made = {"date": date.today().isoformat(), "casal": casal.__version__, "torch": str(torch.__version__)}
    results = Results(
        [], {**made, "n": n, "seeds": seeds, "budget": budget, "command": f"casal bench-laws --n {n} --seeds {seeds}"}
    )
    folder = None if out is None else Path(out)
    if folder is not None and (folder / "results.json").exists():
        old = Results.from_json((folder / "results.json").read_text(encoding="utf-8"))
        if all(old.settings.get(key) == results.settings[key] for key in ("casal", "n", "seeds", "budget")):
            results = results.with_entries(old.entries)
    for name in wanted:
        missing = [one for one in chosen if one.name not in SAMPLERS or results.of(name, one.name) is None]
        if not missing:
            continue
        if stop():
            break
        for one in missing:
            tell(f"{name}: {one.name}")
            entry = measure(one, problem(name), n, range(seeds), budget)
            results = results.with_entries([entry])
        if folder is not None:
            results.write(folder)
    return results


def _sampler(one: str | Sample | Sampler) -> Sampler:
    if isinstance(one, Sampler):
        return one
    if isinstance(one, str):
        if one not in SAMPLERS:
            raise SettingError(f"there is no sampler {one!r}; there are: {', '.join(SAMPLERS)}")
        return SAMPLERS[one]
    return Sampler(getattr(one, "__name__", type(one).__name__), one)
