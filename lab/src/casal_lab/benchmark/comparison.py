"""Run samplers on problems and compare them: error over floor, feasibility, evaluations; as tables, JSON and a page."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from functools import cache, cached_property
from importlib.metadata import version
from importlib.util import find_spec
from operator import methodcaller
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

import casal
from casal.errors import CasalError, SettingError, ShapeError, StoreError
from casal.store import write_whole
from casal_lab.benchmark.answer import F64
from casal_lab.benchmark.catalogue import PROBLEMS, problem
from casal_lab.benchmark.interface import Problem
from casal_lab.benchmark.samplers import SAMPLERS, Sample, Sampler, error_over_floor
from casal_lab.experiment import Outcome, ResultTable, Tell
from casal_lab.report.tables import outcome_json, outcome_markdown, show
from casal_lab.study import mean_and_error

BUDGET = 2000
"""Evaluations of the model for each sample."""

SAMPLES, SEEDS = 256, 3
"""Samples of a run, and runs of each sampler on each problem."""

TOLERANCE = 1e-6
"""A larger violation is not feasible."""

NEAR = 2.0
"""Error over floor up to which a result counts as near the floor: as good as a quarter as many exact draws."""

FAR = 4.0
"""Error over floor beyond which a result is wrong whatever its number of effective samples: a sixteenth of n."""

VERDICTS = ("trusted", "suspect", "too few", "unchecked", "not promised")
"""Of the library, in the order of the tables; samplers of others say the first two."""

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


REFUSED, FAILED = "does not apply", "failed"
"""How the note of an entry without scores begins."""


@dataclass(frozen=True)
class Score:
    """What the samples of one run are worth, from the points and the counted evaluations alone."""

    ratio: float  # error over floor, mean over the distances; about 1 for exact draws
    distances: Mapping[str, float]  # each distance
    floors: Mapping[str, float]  # and what as many exact draws have
    violation: float  # largest, by the definition of the set
    feasible: float  # share of samples with a violation of at most TOLERANCE
    evaluations: float  # for each sample
    seconds: float  # of the processor, for the whole run; the first run of a tuned sampler includes its tuning
    verdict: str = ""  # what the sampler itself says of its samples: "trusted", "suspect" ...; nothing if empty
    reason: str = ""  # and why


@dataclass(frozen=True)
class Entry:
    """Runs of a sampler on a problem; ``note`` says why there are none."""

    problem: str
    sampler: str
    n: int
    scores: Sequence[Score] = ()
    note: str = ""
    seconds: float = 0.0  # of the processor, for all runs and their scores
    reference: Mapping[str, Any] = field(default_factory=dict)  # of the exact answer: source, points, own error

    @property
    def ratio(self) -> float:
        """Error over floor, mean over seeds; nan without a run."""
        return mean_and_error([score.ratio for score in self.scores])[0] if self.scores else math.nan

    @property
    def error(self) -> float:
        """Its standard error over seeds."""
        return mean_and_error([score.ratio for score in self.scores])[1] if self.scores else math.nan

    @property
    def applies(self) -> bool:
        """Whether the sampler is made for the problem."""
        return not self.note.startswith(REFUSED)

    @property
    def failed(self) -> bool:
        """Whether a run broke off; ``note`` says why."""
        return self.note.startswith(FAILED)

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
    """Run a sampler on a problem, once for each seed.

    An error in a sampler of the benchmark becomes the note of its entry. An error in a function under test is raised.
    """
    count, began = min(n, problem.answer.chains), time.process_time()
    if said := sampler.refuses(problem):
        return Entry(problem.name, sampler.name, count, note=f"{REFUSED}: {said}")
    scores, note = list[Score](), ""
    for seed in seeds:
        try:
            scores.append(_one_run(sampler, problem.fresh(seed), count, budget))
        except Exception as error:
            if sampler.name not in SAMPLERS and (isinstance(error, ShapeError) or not isinstance(error, CasalError)):
                raise  # for its author to see
            note = f"{FAILED} at seed {seed}: {_reason(error)}"
            break
    answer = problem.answer
    facts = {"source": answer.source, "points": len(answer.reference.points), "own_error": answer.own_error(count)}
    return Entry(problem.name, sampler.name, count, scores, note, time.process_time() - began, facts)


def _one_run(sampler: Sampler, problem: Problem, count: int, budget: int) -> Score:
    torch.manual_seed(problem.seed)
    np.random.seed(problem.seed)
    began = time.process_time()
    points = sampler.draw(problem, count, budget)
    took = time.process_time() - began
    if len(points) != count:
        raise ShapeError(f"{sampler.name} was asked for {count} points of {problem.name} and gave {len(points)}")
    found = score(problem, points, evaluations=problem.evaluations / count, seconds=took)
    return replace(found, verdict=problem.count.verdict, reason=problem.count.reason[:200])


def _reason(error: Exception) -> str:
    """What went wrong, in a line: the first part of the message, which carries the number."""
    return f"{type(error).__name__}: {str(error).partition('; ')[0][:200]}"


@dataclass(frozen=True)
class Results:
    """All entries of a comparison, and how it was made."""

    entries: Sequence[Entry]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def of(self, problem: str, sampler: str) -> Entry | None:
        """The entry of a problem and a sampler, if there is one."""
        return self._by_name.get((problem, sampler))

    @cached_property
    def _by_name(self) -> Mapping[tuple[str, str], Entry]:
        return {(one.problem, one.sampler): one for one in self.entries}

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
        return Outcome(
            "benchmark",
            [self._summary(), self._matrix(), *self._verdicts(), *self._failures(), self._references()],
            settings=self.settings,
            seconds=math.fsum(one.seconds for one in self.entries),
            records=self._records(),
        )

    def _cell(self, entry: Entry | None) -> str:
        if entry is None or not entry.applies:
            return "–"
        if not entry.scores:
            return "failed"
        text = f"{entry.ratio:.1f}" if entry.ratio < 100 else f"{entry.ratio:.0f}"
        if math.isfinite(entry.error):
            text += f" ± {entry.error:.1f}" if entry.ratio < 100 else f" ± {entry.error:.0f}"
        text += " infeasible" if not entry.feasible else ""
        text += " failed" if entry.failed else ""
        return text + (" †" if entry.evaluations > self.settings.get("budget", math.inf) else "")

    def _matrix(self) -> ResultTable:
        rows = []
        for name in self.problems:
            entries = {sampler: self.of(name, sampler) for sampler in self.samplers}
            rows.append({"problem": name, **{sampler: self._cell(entry) for sampler, entry in entries.items()}})
        header = " | ".join(["problem", *self.samplers])
        note = (
            "Error over floor, mean over seeds ± standard error; as many exact draws have 1 on average, and their "
            "column shows the part of chance. –: does not apply. failed: the next table says why. "
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
                    "failed": sum(one.failed for one in entries),
                    "mean": _geometric(ratios),
                    "near": sum(ratio <= NEAR for ratio in ratios) / len(ratios),
                    "worst": max(ratios),
                    "where": max(ran, key=lambda one: one.ratio).problem,
                    "best": self._wins(sampler),
                    "infeasible": sum(not one.feasible for one in ran),
                    "evaluations": _geometric([max(one.evaluations, 1.0) for one in ran]),
                    "seconds": _geometric([max(median(run.seconds for run in one.scores), 1e-3) for one in ran]),
                }
            )
        header = (
            "method: sampler | ran: problems, d | failed, d | mean: error / floor (geometric mean), .2f | "
            f"near: within {NEAR:g} floors, .0% | best: best on, d | worst, .1f | where: worst on | "
            "infeasible, d | evaluations: evaluations a sample (geometric mean), .0f | "
            "seconds: seconds a run (geometric mean), .2g"
        )
        note = (
            "A sampler is averaged over the problems on which it runs; these are not the same for all. Best on: "
            "problems on which no other sampler but the exact draws has a smaller mean error; ties count for both. "
            "Seconds are of the processor, without the tuning."
        )
        return ResultTable.of("Samplers", header, rows, note)

    def _wins(self, sampler: str) -> int:
        count = 0
        for name in self.problems:
            rivals = [self.of(name, other) for other in self.samplers if other != "exact draws"]
            ran = {one.sampler: one.ratio for one in rivals if one is not None and one.scores and one.feasible}
            count += sampler in ran and ran[sampler] <= min(ran.values())
        return count

    def _verdicts(self) -> list[ResultTable]:
        rows = []
        for sampler in self.samplers:
            runs = [run for one in self.entries if one.sampler == sampler for run in one.scores]
            said = Counter(run.verdict for run in runs if run.verdict)
            if set(said) == {VERDICTS[-1]}:
                continue
            for verdict, count in sorted(said.items(), key=_place):
                ratios = [run.ratio for run in runs if run.verdict == verdict]
                beyond = {f"beyond_{k:g}": sum(ratio > k for ratio in ratios) for k in (NEAR, FAR)}
                found = {
                    "method": sampler,
                    "verdict": verdict,
                    "runs": count,
                    "middle": median(ratios),
                    "worst": max(ratios),
                }
                rows.append({**found, **beyond})
        header = (
            "method: sampler | verdict | runs, d | middle: median error / floor, .1f | worst, .1f | "
            f"beyond_{NEAR:g}: beyond {NEAR:g} floors, d | beyond_{FAR:g}: beyond {FAR:g} floors, d"
        )
        note = (
            "What samplers say of their own samples (result.fidelity of ours), beside the error that the benchmark "
            "finds: a row for each verdict, over all runs. A trusted run far from the floor is a miss of the check. "
            "Methods that never promise the distribution are left out."
        )
        return [ResultTable.of("Own verdicts", header, rows, note)] if rows else []

    def _failures(self) -> list[ResultTable]:
        rows = [{"problem": one.problem, "sampler": one.sampler, "why": one.note} for one in self.entries if one.failed]
        note = "The library refuses, or the run broke off; the other seeds of that row are not run."
        return [ResultTable.of("Runs that failed", "problem | sampler | why", rows, note)] if rows else []

    def _references(self) -> ResultTable:
        rows = list[dict[str, Any]]()
        for name in self.problems:
            ran = [one for one in self.entries if one.problem == name and one.scores and one.reference]
            if ran:
                rows.append(
                    {"problem": name, "n": ran[0].n, **_facts(name), **ran[0].reference, **ran[0].scores[0].floors}
                )
        header = (
            "problem | kind | set | d, d | source: reference | points: its points, d | n, d | "
            "own_error: own error / floor, .2f | statistics: floor of statistics, .3f | "
            "marginals: floor of marginals, .3f | modes: floor of modes, .3f"
        )
        note = (
            "Where the exact answer comes from, its own error beside that of n exact draws, and the floors: the "
            "distances of n exact draws, on average. Own error of m draws: sqrt(n / m); it is part of the floors. Of a "
            "quadrature: how far a seventh of its nodes is from all of them, which is more than the error of all."
        )
        return ResultTable.of("Problems, references and floors", header, rows, note)

    @property
    def width(self) -> int:
        """Characters of a line of the tables."""
        return max(100, 60 + 18 * len(self.samplers))

    def __str__(self) -> str:
        console = Console(width=self.width, no_color=True)
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
            raise StoreError(f"this is no result of casal_lab.benchmark ({type(error).__name__}: {error})") from error

    def write(self, folder: Path) -> None:
        """results.json and results.md."""
        folder.mkdir(parents=True, exist_ok=True)
        made = self.outcome()
        for name, text in (("json", outcome_json(made)), ("md", outcome_markdown(made, QUESTION))):
            write_whole(folder / f"results.{name}", methodcaller("write", text.encode()))


def _place(said: tuple[str, int]) -> int:
    return VERDICTS.index(said[0]) if said[0] in VERDICTS else len(VERDICTS)


def _geometric(values: Sequence[float]) -> float:
    return math.exp(math.fsum(math.log(max(value, 1e-9)) for value in values) / len(values))


def _facts(name: str) -> dict[str, Any]:
    """What a problem is; nothing if it cannot be made here."""
    try:
        one = problem(name)
    except CasalError:
        return {}
    return {"kind": one.kind, "set": f"{one.shape}, nonconvex" if one.nonconvex else one.shape, "d": one.dimension}


@cache
def _unusable(name: str) -> str:
    """Why a problem has no exact answer here; empty if it has one."""
    try:
        points = problem(name).answer.reference.points
    except Exception as error:  # a network that cannot be trained here, a folder that cannot be written
        return f"its reference, {_reason(error)}"
    lost = int((~torch.isfinite(points)).sum())
    return f"its reference has {len(points)} points and {lost} numbers that are not finite" if lost else ""


def run(
    samplers: str | Sample | Sampler | Sequence[str | Sample | Sampler] = tuple(SAMPLERS),
    problems: str | Iterable[str] | None = None,
    *,
    n: int = SAMPLES,
    seeds: int = SEEDS,
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
        out: Folder for results.json and results.md, written after every sampler that took long and after every
            problem. What is there already, with the same n, seeds and budget, is not run again; what failed or did not
            apply is tried again.
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
    results = Results([], _settings(n, seeds, budget))
    folder = None if out is None else Path(out)
    if folder is not None:
        results = results.with_entries(_kept(folder, results.settings, tell))
    written = time.monotonic()
    for k, name in enumerate(wanted):
        missing = [one for one in chosen if one.name not in SAMPLERS or results.of(name, one.name) is None]
        if not missing:
            continue
        if stop():
            break
        for one in missing:
            tell(f"{k + 1}/{len(wanted)} {name}: {one.name}")
            if why := _unusable(name):
                entry = Entry(name, one.name, n, note=f"{FAILED}: {why}")
            else:
                entry = measure(one, problem(name), n, range(seeds), budget)
            results = results.with_entries([entry])
            if folder is not None and (one is missing[-1] or time.monotonic() - written > PATIENCE):
                results.write(folder)
                written = time.monotonic()
    return results


PATIENCE = 10.0
"""Seconds after which results are written though their problem is not at its end."""


def _settings(n: int, seeds: int, budget: int) -> dict[str, Any]:
    """How a comparison was made, with the command that makes it again."""
    options = {"n": (n, SAMPLES), "seeds": (seeds, SEEDS), "budget": (budget, BUDGET)}
    changed = [f" --{key} {value}" for key, (value, usual) in options.items() if value != usual]
    made = {"date": date.today().isoformat(), "casal": casal.__version__, "torch": str(torch.__version__)}
    others = {key: version(key) for key in ("mici", "azula") if find_spec(key)}
    return {
        **made,
        **others,
        "n": n,
        "seeds": seeds,
        "budget": budget,
        "command": f"casal benchmark{''.join(changed)}",
    }


def _kept(folder: Path, settings: Mapping[str, Any], tell: Tell) -> list[Entry]:
    """Entries of an earlier run with the same settings that need not be run again."""
    path = folder / "results.json"
    if not path.exists():
        return []
    old = Results.from_json(path.read_text(encoding="utf-8"))
    for key in ("casal", "n", "seeds", "budget"):
        if old.settings.get(key) != settings[key]:
            tell(f"the results in {folder} have {key} = {old.settings.get(key)}, not {settings[key]}: begun anew")
            return []
    return [one for one in old.entries if one.applies and not one.failed]


def _sampler(one: str | Sample | Sampler) -> Sampler:
    if isinstance(one, Sampler):
        return one
    if isinstance(one, str):
        if one not in SAMPLERS:
            raise SettingError(f"there is no sampler {one!r}; there are: {', '.join(SAMPLERS)}")
        return SAMPLERS[one]
    return Sampler(getattr(one, "__name__", type(one).__name__), one)
