"""Runs that Ctrl-C or the clock stops: whole rows are kept and marked, what was cut is not, and the way on is said."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import casal
from casal_lab import cli
from casal_lab.experiment import Experiment, Outcome, ResultTable, Tell
from casal_lab.report import cache
from casal_lab.report.reproduce import reproduce
from casal_lab.report.stopping import CTRL_C, TIME_UP, perform

from .bench import call

METHODS = ("first", "second, with a comma", "third")


@pytest.fixture(autouse=True)
def ctrl_c_counts() -> Iterator[None]:
    """A process that was started in the background ignores Ctrl-C, and so would its tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def time_up() -> None:
    signal.raise_signal(signal.SIGALRM)


class Chains:
    """An experiment as others are: rows of ``casal.sample``, appended one by one, and a table at the end."""

    def __init__(self) -> None:
        self.act: Callable[[], object] = ctrl_c
        self.at = "third"
        self.finished: list[str] = []

    def score(self, label: str, x: torch.Tensor) -> torch.Tensor:
        if label == self.at:
            self.act()
        return x

    def run(self, quick: bool, labels: Sequence[str] | None, tell: Tell) -> Outcome:
        tables = [ResultTable.of("Before", "method | w1", [{"method": "exact", "w1": 0.5}])]
        rows: list[dict[str, Any]] = []
        filled = [{"size": float(k)} for k in range(2)]
        for row in filled:
            row["error"] = 0.25
            for label in labels or METHODS:
                tell(f"running {label}")
                rows.append({"method": label, "mean": self._mean(label), "mean_se": 0.01})
        tables += [ResultTable.of("Means", "method | mean", rows), ResultTable.of("Filled", "size | error", filled)]
        return Outcome("chains", tables)

    def _mean(self, label: str) -> float:
        start = lambda n, generator: torch.randn(n, 2, generator=generator)  # noqa: E731
        target = casal.langevin(lambda x: self.score(label, x), steps=40, step_size=0.1, init=start)
        result = casal.sample(target, casal.Sphere(1.0), casal.Unconstrained(), 8)
        self.finished.append(label)
        return float(result.samples.mean())


@pytest.fixture
def chains(monkeypatch: pytest.MonkeyPatch) -> Chains:
    made = Chains()
    known = {
        name: Experiment(name, "Does it stop?", METHODS, made.run, module=__name__) for name in ("chains", "others")
    }
    monkeypatch.setattr(cli, "experiments", lambda modules=(): known)
    return made


def methods(folder: Path) -> list[list[Any]]:
    record = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return [[row.get("method", row.get("size")) for row in table["rows"]] for table in record["tables"]]


KEPT = [["exact"], ["first", "second, with a comma"], [0.0]]
"""The table that was there, the rows that were appended, and the row that was whole of those being filled."""


def test_ctrl_c_ends_a_run_and_keeps_its_whole_rows(chains: Chains, tmp_path: Path) -> None:
    result = call("run", "chains", "--quick", "--out", str(tmp_path))
    assert result.exit_code == 130
    assert chains.finished == ["first", "second, with a comma"]  # nothing ran after it
    assert methods(tmp_path) == KEPT
    record = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert record["partial"] == {"reason": CTRL_C, "part": "running third"}
    assert "**partial: stopped (Ctrl-C) during 'running third'" in (tmp_path / "results.md").read_text(encoding="utf-8")
    assert "Finished rows: rows (partial)" in result.output
    assert "partial: stopped (Ctrl-C) during 'running third'" in result.output
    assert f"from the start: casal run chains --quick --out {tmp_path}" in result.output
    assert "methods without a row:\n  --method third\n" in result.output
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_partial_outcome_replaces_no_whole_one(chains: Chains, tmp_path: Path) -> None:
    chains.act = lambda: None
    assert call("run", "chains", "--out", str(tmp_path)).exit_code == 0
    whole = (tmp_path / "results.json").read_bytes()
    chains.act = ctrl_c
    result = call("run", "chains", "--out", str(tmp_path))
    assert result.exit_code == 130
    assert "not written" in result.output
    assert (tmp_path / "results.json").read_bytes() == whole


def test_a_run_that_is_stopped_before_its_first_row_writes_nothing(chains: Chains, tmp_path: Path) -> None:
    experiment = Experiment("empty", "?", (), lambda quick, labels, tell: ctrl_c())  # type: ignore[arg-type, return-value]
    outcome = perform(experiment, lambda tell: experiment.run(True, None, tell))
    assert outcome.rows == 0
    assert outcome.partial is not None
    chains.at = "first"
    result = call("run", "chains", "--method", "first", "--out", str(tmp_path))
    assert result.exit_code == 130
    assert methods(tmp_path) == [["exact"], [0.0]]


def test_report_reads_what_run_wrote(chains: Chains, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("kept", encoding="utf-8")
    assert call("run", "chains", "--out", str(tmp_path)).exit_code == 130
    assert call("report", str(tmp_path)).exit_code == 0
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "partial: stopped (Ctrl-C) during &#39;running third&#39;" in page
    assert "1 of 2, 1 of them partial" in page
    chains.act = lambda: None
    assert call("run", "chains", "--method", "third", "--out", str(tmp_path)).exit_code == 0
    below = tmp_path / "below"
    assert call("run", "others", "--quick", "--out", str(below)).exit_code == 0
    assert call("report", str(tmp_path)).exit_code == 0
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "only a part was run: --method third" in page
    assert "casal run chains --method third" in page
    assert "casal run others --quick" in page
    assert "the source has changed" not in page
    assert "2 of 2, 1 of them in quick mode" in page
    assert (tmp_path / "mine.txt").read_text(encoding="utf-8") == "kept"


def test_a_part_that_was_run_alone_does_not_count_as_the_experiment(chains: Chains, tmp_path: Path) -> None:
    chains.act = lambda: None
    folder = cache.folder_of(tmp_path, "chains", True)
    assert call("run", "chains", "--quick", "--method", "third", "--out", str(folder)).exit_code == 0
    assert reproduce(cli.experiments(), tmp_path, quick=True, only=["chains"]).done.keys() == {"chains"}
    assert reproduce(cli.experiments(), tmp_path, quick=True, only=["chains"]).kept == ["chains"]


def test_the_time_given_keeps_finished_rows_and_says_what_more_would_add(chains: Chains, tmp_path: Path) -> None:
    chains.act = time_up
    result = call("reproduce", "--quick", "--minutes", "60", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    folder = cache.folder_of(tmp_path, "chains", True)
    assert methods(folder) == KEPT
    record = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert record["partial"] == {"reason": TIME_UP, "part": "running third"}
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    said = "A longer time would add: the rest of chains, the rest of others. Time: not known for 2"
    assert said in page
    assert said in result.output
    assert "stopped (time limit); no earlier run says how long it takes" in page
    chains.act = lambda: None  # a partial outcome is not current: it is run again
    assert call("reproduce", "--quick", "--out", str(tmp_path)).exit_code == 0
    assert methods(folder)[1] == [*METHODS] * 2


def test_the_minutes_of_earlier_runs_are_told(chains: Chains, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chains.act = lambda: None
    experiment = cli.experiments()["chains"]
    cache.save(tmp_path, experiment, True, Outcome("chains", [], seconds=200.0))
    monkeypatch.setattr(cache, "source_digest", lambda module: "another source")
    chains.act = time_up
    ran = reproduce({"chains": experiment}, tmp_path, quick=True, minutes=60)
    assert ran.known == {"chains": 200.0}
    assert "chains (3 min in an earlier run). Time: 3 min by earlier runs." in ran.more
    kept = cache.load(tmp_path, "chains", True, experiment)
    assert kept is not None
    assert kept.whole  # the earlier one, outdated, has more than the rows of this run


def test_time_without_a_single_row_is_no_success(chains: Chains, tmp_path: Path) -> None:
    assert call("reproduce", "--minutes", "1e-9", "--out", str(tmp_path)).exit_code == 1


def test_ctrl_c_waits_until_an_outcome_is_written(
    chains: Chains, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chains.act = lambda: None

    def draw(outcome: Outcome, folder: Path) -> list[Path]:
        ctrl_c()
        return []

    drawn = replace(cli.experiments()["chains"], draw=draw)
    monkeypatch.setattr(cli, "experiments", lambda modules=(): {"chains": drawn})
    result = call("run", "chains", "--out", str(tmp_path))
    assert result.exit_code == 130
    assert cache.read(tmp_path, drawn).whole
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
