"""``casal reproduce`` and ``casal report``: what is run, what is kept, what is not run."""

from __future__ import annotations

import re
import time
from functools import partial
from pathlib import Path

import pytest

from casal_lab.report import cache
from casal_lab.report.page import write_page
from casal_lab.report.reproduce import reproduce

from .bench import Bench, call


def test_every_experiment_runs_once_and_the_second_call_runs_nothing(bench: Bench, tmp_path: Path) -> None:
    first = call("reproduce", "--quick", "--out", str(tmp_path))
    assert first.exit_code == 0, first.output
    assert str(tmp_path / "index.html") in first.output
    assert bench.calls == [("alpha", True), ("beta", True)]
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    second = call("reproduce", "--quick", "--out", str(tmp_path))
    assert second.exit_code == 0
    assert len(bench.calls) == 2
    without_time = partial(re.sub, r"page written.*?</dd>", "")
    assert without_time((tmp_path / "index.html").read_text(encoding="utf-8")) == without_time(page)


def test_other_settings_run_again_and_keep_what_there_was(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reproduce(bench.registry, tmp_path, quick=True)
    reproduce(bench.registry, tmp_path, quick=False, only=["alpha"])
    assert bench.calls[2:] == [("alpha", False)]
    found = {name: cache.best(tmp_path, name, bench.registry[name]) for name in bench.registry}
    assert [record.stamp.quick for record in found.values() if record] == [False, True]
    monkeypatch.setattr(cache, "source_digest", lambda module: "another source")
    page = write_page(bench.registry, tmp_path).read_text(encoding="utf-8")
    assert page.count("the source has changed since this was run") == 2
    assert reproduce(bench.registry, tmp_path, quick=True).kept == []
    assert bench.calls[3:] == [("alpha", True), ("beta", True)]
    assert [
        record.stamp.quick for name in bench.registry if (record := cache.best(tmp_path, name, bench.registry[name]))
    ] == [True, True]


def test_an_interrupted_run_keeps_what_is_done_and_goes_on_with_the_rest(bench: Bench, tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    bench.act["beta"] = interrupt
    stopped = call("reproduce", "--quick", "--out", str(tmp_path))
    assert stopped.exit_code == 130
    assert f"casal reproduce --quick --out {tmp_path}" in stopped.output
    assert "not run yet" in (tmp_path / "index.html").read_text(encoding="utf-8")
    del bench.act["beta"]
    assert call("reproduce", "--quick", "--out", str(tmp_path)).exit_code == 0
    assert [name for name, _ in bench.calls] == ["alpha", "beta", "beta"]
    assert "not run yet" not in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_a_run_that_was_cut_while_writing_counts_as_not_run(bench: Bench, tmp_path: Path) -> None:
    reproduce(bench.registry, tmp_path, only=["alpha"])
    (cache.folder_of(tmp_path, "alpha", False) / "record.json").unlink()
    assert reproduce(bench.registry, tmp_path, only=["alpha"]).done.keys() == {"alpha"}


def test_when_time_is_up_the_rest_is_named(bench: Bench, tmp_path: Path) -> None:
    bench.act["alpha"] = lambda: time.sleep(30)  # one long part: only a timer can end it
    began = time.monotonic()
    ran = reproduce(bench.registry, tmp_path, minutes=0.5 / 60)
    assert time.monotonic() - began < 10
    assert ran.late == ["alpha", "beta"]
    page = write_page(bench.registry, tmp_path, ran.missing).read_text(encoding="utf-8")
    assert "not run (time limit)" in page


def test_one_failure_does_not_cost_the_others(bench: Bench, tmp_path: Path) -> None:
    def fail() -> None:
        raise ValueError("no <luck>")

    bench.act["alpha"] = fail
    result = call("reproduce", "--out", str(tmp_path))
    assert result.exit_code == 1
    assert "ValueError: no <luck>" in result.output
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "no &lt;luck&gt;" in page
    assert "Does beta hold?" in page


def test_report_rebuilds_the_page_and_runs_nothing(bench: Bench, tmp_path: Path) -> None:
    reproduce(bench.registry, tmp_path, quick=True)
    assert call("report", str(tmp_path)).exit_code == 0
    assert len(bench.calls) == 2
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    for wanted in ("Does alpha hold?", "casal run alpha --quick", "it &lt;works&gt; | well", "± 0.5", "A note."):
        assert wanted in page
    assert call("report", str(tmp_path / "nothing")).exit_code == 2


@pytest.mark.parametrize("arguments", [["reproduce", "--only", "gamma"]])
def test_an_unknown_name_is_answered_with_the_right_ones(bench: Bench, arguments: list[str]) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert "alpha, beta" in re.sub(r"\s*│\s*", " ", result.output)
