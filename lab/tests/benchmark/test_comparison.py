"""Scores tell exact draws from others, see what samplers do, and survive the way to disk and back."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from casal.errors import SettingError, ShapeError, StoreError
from casal_lab import benchmark
from casal_lab.benchmark import comparison, samplers
from casal_lab.benchmark.answer import stream
from casal_lab.benchmark.page import write_page
from casal_lab.cli import app

CIRCLE, BOXES = "three modes on a circle", "two boxes"


def cold(problem: benchmark.Problem, n: int, budget: int) -> Tensor:
    """A cheat: half the temperature on the nodes of the quadrature, which have equal volumes."""
    points, weights, _ = problem.answer.reference
    return points[torch.multinomial(weights.square(), n, replacement=True, generator=stream(problem.seed))]


@pytest.mark.statistical
@pytest.mark.parametrize("name", [CIRCLE, BOXES, "increasing, 16-D"])
def test_exact_draws_are_at_the_floor(name: str) -> None:
    found = benchmark.run("exact draws", name, n=200, seeds=20).of(name, "exact draws")
    assert found is not None and found.feasible
    assert found.ratio == pytest.approx(1.0, abs=4.5 * found.error)
    assert found.error < 0.15


@pytest.mark.statistical
@pytest.mark.parametrize("name", [CIRCLE, BOXES, "Gaussian on a sphere"])
def test_half_the_temperature_is_found_out(name: str) -> None:
    found = benchmark.run(cold, name, n=1000, seeds=2).of(name, "cold")
    assert found is not None and found.feasible
    assert found.ratio > 3.0


def test_points_outside_the_set_are_seen() -> None:
    one = benchmark.problem(CIRCLE)
    points = one.answer.draws(50, 0)
    assert benchmark.score(one, points).feasible == 1.0
    points[0] *= 1.01
    found = benchmark.score(one, points)
    assert found.feasible == pytest.approx(0.98) and found.violation > 1e-3
    points[0] = float("nan")
    lost = benchmark.score(one, points)
    assert lost.ratio == lost.violation == float("inf")


def test_modes_left_out_are_seen() -> None:
    one = benchmark.problem(BOXES)
    points = one.answer.draws(400, 0)
    left = points[points[:, 0] < 0]
    assert benchmark.score(one, left).ratio > 5.0


def test_shapes_and_names_are_checked() -> None:
    one = benchmark.problem(CIRCLE)
    with pytest.raises(ShapeError, match=r"needs points \(n, 2\)"):
        benchmark.score(one, torch.zeros(5, 3))
    with pytest.raises(ShapeError, match="asked for 20 points"):
        benchmark.run(lambda problem, n, budget: torch.zeros(3, 2), CIRCLE, n=20, seeds=1)
    with pytest.raises(SettingError, match="no problem 'x'"):
        benchmark.run("auto", "x")
    with pytest.raises(SettingError, match="no sampler 'x'"):
        benchmark.run("x", CIRCLE)
    with pytest.raises(SettingError, match="seeds >= 1"):
        benchmark.run("auto", CIRCLE, seeds=0)


def test_mistakes_of_a_function_under_test_are_its_own() -> None:
    def broken(problem: benchmark.Problem, n: int, budget: int) -> Tensor:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        benchmark.run(broken, CIRCLE, n=20, seeds=1)


def test_a_sampler_that_refuses_is_a_dash_and_one_over_budget_is_marked() -> None:
    results = benchmark.run(["SplitGibbs", "final projection"], CIRCLE, n=20, seeds=2, budget=4)
    assert results.of(CIRCLE, "SplitGibbs").note == "does not apply: for diffusion models"  # type: ignore[union-attr]

    def greedy(problem: benchmark.Problem, n: int, budget: int) -> Tensor:
        x = problem.project(problem.start(n))
        for _ in range(budget + 1):
            problem.score(x)
        return x

    results = benchmark.run([greedy, "SplitGibbs"], CIRCLE, n=20, seeds=2, budget=4)
    (row,) = results.outcome().tables[1].rows
    assert row["SplitGibbs"] == "–"
    assert row["greedy"].endswith(" †")
    assert results.of(CIRCLE, "greedy").evaluations == 5.0  # type: ignore[union-attr]


def test_results_come_back_from_json() -> None:
    results = benchmark.run(["exact draws", "projected", "SplitGibbs"], [CIRCLE, BOXES], n=30, seeds=2)
    back = benchmark.Results.from_json(results.json())
    assert back.json() == results.json()
    assert str(back) == str(results)
    assert json.loads(results.json())["settings"]["budget"] == benchmark.BUDGET
    with pytest.raises(StoreError, match="no result of"):
        benchmark.Results.from_json("{}")


def test_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    said: list[str] = []
    benchmark.run("exact draws", CIRCLE, n=20, seeds=1, out=tmp_path, tell=said.append)
    benchmark.run("exact draws", [CIRCLE, BOXES], n=20, seeds=1, out=tmp_path, tell=said.append)
    assert said == [f"1/1 {CIRCLE}: exact draws", f"2/2 {BOXES}: exact draws"]
    benchmark.run("exact draws", CIRCLE, n=30, seeds=1, out=tmp_path, tell=said.append)
    assert "have n = 20, not 30: begun anew" in said[2] and len(said) == 4
    stopped = benchmark.run("exact draws", BOXES, n=30, seeds=1, stop=lambda: True)
    assert not stopped.entries


def test_a_run_that_is_stopped_in_a_problem_keeps_its_samplers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "PATIENCE", 0.0)
    said: list[str] = []

    def stopped(line: str) -> None:
        said.append(line)
        if line.endswith("final projection"):
            raise KeyboardInterrupt

    several = ["exact draws", "projected", "final projection"]
    with pytest.raises(KeyboardInterrupt):
        benchmark.run(several, CIRCLE, n=20, seeds=1, out=tmp_path, tell=stopped)
    del said[:]
    whole = benchmark.run(several, CIRCLE, n=20, seeds=1, out=tmp_path, tell=said.append)
    assert said == [f"1/1 {CIRCLE}: final projection"]
    assert [one.sampler for one in whole.entries] == several
    assert not list(tmp_path.glob("*.tmp*"))


def test_what_goes_wrong_in_a_sampler_of_the_benchmark_is_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(problem: benchmark.Problem, n: int, budget: int) -> Tensor:
        if problem.seed == 1:
            raise RuntimeError("7 chains were lost; more words")
        return problem.answer.draws(n, problem.seed)

    def short(problem: benchmark.Problem, n: int, budget: int) -> Tensor:
        return problem.answer.draws(n - 1, problem.seed)

    every = {
        **benchmark.SAMPLERS,
        "mici": benchmark.Sampler("mici", broken),
        "azula DPS": benchmark.Sampler("azula DPS", short),
    }
    monkeypatch.setattr(comparison, "SAMPLERS", every)
    results = benchmark.run(["mici", "azula DPS"], CIRCLE, n=20, seeds=3, out=tmp_path)
    one = results.of(CIRCLE, "mici")
    assert one is not None and one.failed and len(one.scores) == 1
    assert one.note == "failed at seed 1: RuntimeError: 7 chains were lost"
    (row,) = results.outcome().tables[1].rows
    assert row["mici"].endswith(" failed") and row["azula DPS"] == "failed"
    failures = next(table for table in results.outcome().tables if table.title == "Runs that failed")
    assert "asked for 20 points" in failures.rows[1]["why"]
    monkeypatch.setattr(comparison, "SAMPLERS", benchmark.SAMPLERS)
    said: list[str] = []
    benchmark.run("azula DPS", CIRCLE, n=20, seeds=3, out=tmp_path, tell=said.append)
    assert said == [f"1/1 {CIRCLE}: azula DPS"]  # what failed is tried again


def test_a_reference_that_cannot_be_made_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(count: int, generator: torch.Generator) -> benchmark.Reference:
        raise StoreError("cannot use the cache /x: read-only; set CASAL_CACHE")

    good = benchmark.problem(CIRCLE)
    bad = replace(good, name="lost", answer=benchmark.Answer(lost, good.answer.features))
    monkeypatch.setitem(benchmark.PROBLEMS, "lost", lambda: bad)
    results = benchmark.run(["exact draws", "auto"], ["lost", CIRCLE], n=20, seeds=1)
    assert [one.failed for one in results.entries] == [True, True, False, False]
    assert results.entries[1].note == "failed: its reference, StoreError: cannot use the cache /x: read-only"


def test_what_a_sampler_says_of_itself_stands_beside_its_error() -> None:
    def liar(problem: benchmark.Problem, n: int, budget: int) -> Tensor:
        problem.claim("trusted", "by its author")
        return cold(problem, n, budget)

    results = benchmark.run([liar, "exact draws"], CIRCLE, n=1000, seeds=2)
    (row,) = next(table for table in results.outcome().tables if table.title == "Own verdicts").rows
    assert (row["method"], row["verdict"], row["runs"], row["beyond_2"]) == ("liar", "trusted", 2, 2)
    assert benchmark.Results.from_json(results.json()).entries[0].scores[0].reason == "by its author"


def test_references_bound_their_own_error() -> None:
    """Of a quadrature with too few nodes the bound is large; of draws it is sqrt(n / m)."""
    good = benchmark.problem(CIRCLE).answer
    assert good.own_error(256) < 0.02

    def coarse(count: int, generator: torch.Generator) -> benchmark.Reference:
        points, weights, _ = good.reference
        return benchmark.Reference.nodes(points[::80], weights[::80] / weights[::80].sum())

    assert benchmark.Answer(coarse, good.features).own_error(256) > 1.0
    assert benchmark.problem("plane in 4-D").answer.own_error(400) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("sampler", "name"),
    [
        ("mici", CIRCLE),
        ("azula MMPS", "plane in 4-D, diffusion"),
        ("azula DPS", "plane in 4-D, diffusion"),
        ("WeightedCASAL", CIRCLE),
        ("SplitGibbs", "two boxes, diffusion"),
        ("CASAL", "two boxes, diffusion"),
        ("DPS + projection", "plane in 4-D, diffusion"),
    ],
)
def test_samplers_return_points_of_the_set(sampler: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samplers, "WARM_UP", 3)
    monkeypatch.setattr(samplers, "CHAINS", 4)
    if sampler.startswith(("mici", "azula")):
        pytest.importorskip(sampler.split()[0])
    found = benchmark.run(sampler, name, n=20, seeds=1, budget=60).of(name, sampler)
    assert found is not None and found.scores and found.feasible, found
    assert found.evaluations > 0


def test_the_example_of_the_docs_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "benchmark.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(block, {})
    printed = capsys.readouterr().out
    assert "mine" in printed and "exact draws" in printed


def test_the_docs_name_every_sampler() -> None:
    page = (Path(__file__).parents[3] / "docs" / "benchmark.md").read_text(encoding="utf-8")
    table = page[page.index("| sampler |") : page.index("Tuned samplers")]
    assert re.findall(r"(?:^\| |, )`([^`]+)`(?=[ ,])", table, re.MULTILINE) == list(benchmark.SAMPLERS)


def test_the_page_is_one_file(tmp_path: Path) -> None:
    results = benchmark.run(["exact draws", "projected"], ["tail, 1-D", CIRCLE], n=20, seeds=2)
    text = write_page(results, tmp_path).read_text(encoding="utf-8")
    assert "<title>casal_lab.benchmark" in text and "data:image/" in text
    assert CIRCLE in text and "prefers-color-scheme: dark" in text
    assert not any(part in text for part in ('src="http', 'href="http', "@import"))
    assert {path.name for path in tmp_path.iterdir()} >= {
        "results.json",
        "results.md",
        "benchmark.png",
        "benchmark_problems.png",
        "index.html",
    }


def test_a_module_brings_a_sampler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
from casal_lab import benchmark

def nearest(problem, n, budget):
    return problem.project(problem.start(n))

reason = lambda problem: "" if problem.init else "for densities"
benchmark.SAMPLERS["nearest"] = benchmark.Sampler("nearest", nearest, reason)
"""
    (tmp_path / "their_samplers.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    command = ["benchmark", "--module", "their_samplers", "--sampler", "nearest", "--only", "tail, 1-D", "--n", "20"]
    try:
        ran = CliRunner().invoke(app, [*command, "--out", "out"])
    finally:
        benchmark.SAMPLERS.pop("nearest", None)
    assert ran.exit_code == 0, ran.output
    back = benchmark.Results.from_json((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    assert [one.applies for one in back.entries] == [True, False]


def test_the_command_line(tmp_path: Path) -> None:
    command = ["benchmark", "--only", "tail, 1-D", "--sampler", "exact draws, final projection", "--n", "20"]
    ran = CliRunner().invoke(app, [*command, "--seeds", "2", "--out", str(tmp_path)])
    assert ran.exit_code == 0, ran.output
    assert "Error over floor" in ran.output
    back = benchmark.Results.from_json((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert back.problems == ["tail, 1-D", "tail, 1-D, diffusion"]
    again = CliRunner().invoke(app, [*command, "--seeds", "2", "--out", str(tmp_path)])
    assert again.exit_code == 0 and ": exact draws" in ran.output and ": exact draws" not in again.output
    assert CliRunner().invoke(app, ["benchmark", "--only", "nothing such"]).exit_code == 2
    assert CliRunner().invoke(app, ["benchmark", "--sampler", "nobody"]).exit_code == 2
