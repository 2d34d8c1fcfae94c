"""The command line: what a person sees and finds on disk afterwards."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from importlib.metadata import EntryPoint
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from casal.constraints import SETS
from casal.methods import METHODS
from casal.targets import TARGETS
from casal_lab import benchmark, cli
from casal_lab.__main__ import LAB
from casal_lab.cli import app, experiments
from casal_lab.experiment import Claim, Column, Experiment, Outcome, ResultTable
from casal_lab.experiments import EXPERIMENTS
from casal_lab.report.tables import show

run = CliRunner().invoke
ROOT = Path(__file__).parents[2]


def test_list_names_every_experiment_and_its_question() -> None:
    result = run(app, ["list"])
    assert result.exit_code == 0
    for experiment in experiments().values():
        assert experiment.name in result.output
        assert experiment.question[:30] in result.output.replace("\n", " ")


def test_lists_have_one_name_a_line_off_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """However narrow the terminal is said to be: a name with spaces and commas is never broken, nor joined."""
    names = ("CASAL, denoised, with a coupling of its own", "it's", "plain")
    mine = Experiment("narrow", "A question?" * 30, names, lambda quick, labels, tell: Outcome("narrow", []))
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(cli, "experiments", lambda modules=(): {"narrow": mine})
    lines = run(app, ["list"]).output.splitlines()
    assert lines[0] == f"narrow  {mine.question}"
    assert [shlex.split(line) for line in lines[1:]] == [["--method", name] for name in names]
    refused = run(app, ["run", "narrow", "--method", "none"])
    assert "there are: 'CASAL, denoised, with a coupling of its own', it's, plain" in plain(refused.output)


def test_tables_are_as_wide_as_they_need_off_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = [Column("method", "method"), *(Column(f"c{k}", f"a column with a long name {k}") for k in range(9))]
    table = ResultTable("Wide", columns, [{"method": "projected, twice", **{f"c{k}": -2.987654321 for k in range(9)}}])
    mine = Experiment("wide", "?", (), lambda quick, labels, tell: Outcome("wide", [table]))
    monkeypatch.setattr(cli, "experiments", lambda modules=(): {"wide": mine})
    output = run(app, ["run", "wide", "--out", str(tmp_path)]).output
    (row,) = (line for line in output.splitlines() if "projected, twice" in line)
    assert row.count("-2.988") == 9
    assert "…" not in output
    narrow = Console(width=40, file=StringIO())
    show(narrow, Outcome("wide", [table]))
    assert "…" not in narrow.file.getvalue()  # type: ignore[attr-defined]


def test_the_numbers_in_the_help_are_those_of_the_benchmark() -> None:
    said = plain(run(app, ["benchmark", "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output)
    for number in (benchmark.SAMPLES, benchmark.SEEDS, benchmark.BUDGET):
        assert f"[default: ({number})]" in said or f"[default: {number}]" in said, said


INTERRUPTED = """
import signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background starts without

class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Stop())
import runpy
sys.argv = ["casal", "list"]
runpy.run_module("casal_lab", run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
def test_a_list_loads_no_library_that_it_does_not_need() -> None:
    code = "import sys; from casal_lab.cli import app; app(['list'], standalone_mode=False); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"sympy", "scipy.stats", "jinja2", "casal_lab.benchmark"} & set(done.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize("module", ["typer", "torch", "casal_lab.experiments"])
def test_ctrl_c_while_importing_leaves_no_traceback(module: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED.format(module=module)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("what", "names"), [("methods", METHODS), ("sets", SETS), ("models", TARGETS)])
def test_list_names_every_row_of_a_registry(what: str, names: dict[str, object]) -> None:
    result = run(app, ["list", what])
    assert result.exit_code == 0
    assert all(name in result.output for name in names)


def test_run_writes_tables_and_a_picture(tmp_path: Path) -> None:
    arguments = [
        "run",
        "particle",
        "--quick",
        "--method",
        "projected",
        "--method",
        "WeightedCASAL",
        "--out",
        str(tmp_path),
    ]
    result = run(app, arguments)
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    rows = {row["method"]: row for row in record["tables"][0]["rows"]}
    assert set(rows) == {"projected", "WeightedCASAL", "exact (quadrature)"}
    assert rows["projected"]["wrong"] > 0.3
    assert rows["WeightedCASAL"]["wrong"] == 0.0
    assert "| WeightedCASAL | 0 ± 0.001 |" in (tmp_path / "results.md").read_text(encoding="utf-8")
    assert (tmp_path / "particle.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert "</svg>" in (tmp_path / "particle.svg").read_text(encoding="utf-8")


def test_a_seed_reaches_the_experiments_that_take_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def seeded(seed: int, quick: bool, labels: object, tell: object) -> Outcome:
        return Outcome("seeded", [], settings={"seed": seed}, records={"case": {"error": [0.5]}})

    mine = Experiment("seeded", "?", (), lambda quick, labels, tell: seeded(0, quick, labels, tell), run_seed=seeded)
    monkeypatch.setitem(EXPERIMENTS, "seeded", mine)
    for seed in (0, 7):
        folder = tmp_path / str(seed)
        assert run(app, ["run", "seeded", "--seed", str(seed), "--out", str(folder)]).exit_code == 0
        record = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        assert record["settings"]["seed"] == seed and record["records"] == {"case": {"error": [0.5]}}
    refused = run(app, ["run", "particle", "--seed", "7", "--out", str(tmp_path / "no")])
    assert refused.exit_code != 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "nothing"], "particle, field"),
        (["run", "particle", "--method", "magic"], "WeightedCASAL"),
        (["reproduce", "--only", "nothing"], "particle, field"),
        (["bench", "--only", "nothing"], "implicit, inside, dimensions, memory"),
        (["list", "--module", "no_such_module"], "no module 'no_such_module'"),
    ],
)
def test_a_wrong_name_is_answered_with_the_right_ones(arguments: list[str], said: str) -> None:
    result = run(app, arguments)
    assert result.exit_code == 2
    assert said in plain(result.output)


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever starts a run fails the test."""

    def started(*_: object, **__: object) -> None:
        raise AssertionError("a run was started")

    monkeypatch.setattr("casal_lab.report.reproduce.reproduce", started)
    monkeypatch.setattr("casal_lab.report.page.write_page", started)
    monkeypatch.setattr(import_module("benchmarks.__main__"), "main", started)
    experiment = replace(experiments()["particle"], run=started)
    monkeypatch.setattr(cli, "experiments", lambda modules=(): {"particle": experiment})


@pytest.mark.parametrize("command", [["run", "particle"], ["reproduce"], ["bench"]], ids=lambda words: words[0])
@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_file_is_no_folder_for_the_outcome(
    command: list[str], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_runs: None
) -> None:
    (tmp_path / "file").write_text("kept", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    result = run(app, [*command, "--out", place])
    assert result.exit_code == 2, result.output
    assert f"{place} cannot be one: file is a file" in plain(result.output)
    assert (tmp_path / "file").read_text(encoding="utf-8") == "kept"


@pytest.mark.parametrize("command", [["run", "particle"], ["reproduce"], ["bench"]], ids=lambda words: words[0])
def test_a_folder_that_cannot_be_written_to_is_refused(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_runs: None
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)  # permissions say nothing to a superuser
    result = run(app, [*command, "--out", str(tmp_path)])
    assert result.exit_code == 2, result.output
    assert "can be written to" in plain(result.output)


@pytest.mark.parametrize("minutes", ["nan", "inf", "-1", "0", "1e300"])
def test_a_time_that_is_none_is_refused(minutes: str, tmp_path: Path, nothing_runs: None) -> None:
    result = run(app, ["reproduce", "--minutes", minutes, "--out", str(tmp_path / "new")])
    assert result.exit_code == 2, result.output
    assert f"--minutes must be a number > 0 and at most 525600, got {float(minutes):g}" in plain(result.output)
    assert not (tmp_path / "new").exists()


def test_brackets_in_names_and_results_are_printed_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = "[/] [red] text"
    table = ResultTable(odd, [Column("method", odd)], [{"method": odd}], odd)
    outcome = Outcome("odd", [table], [Claim(odd, odd, odd, odd)])
    experiment = Experiment("odd", odd, ("mine",), lambda quick, labels, tell: outcome)
    monkeypatch.setattr(cli, "experiments", lambda modules=(): {"odd": experiment})
    monkeypatch.chdir(tmp_path)
    result = run(app, ["run", "odd", "--out", "[/]"])
    assert result.exit_code == 0, result.output
    assert result.output.count(odd) == 9
    assert f"tables:  {Path('[/]') / 'results.md'}" in result.output


def plain(text: str) -> str:
    """The text without the frame that rich draws around it."""
    return re.sub(r"[\s│]+", " ", text)


def test_version() -> None:
    result = run(app, ["--version"])
    assert result.exit_code == 0
    assert "casal 0.1.0" in result.output


def test_the_version_does_not_wait_for_torch() -> None:
    code = (
        "import runpy, sys\n"
        "sys.argv = ['casal', '--version']\n"
        "try: runpy.run_module('casal_lab', run_name='__main__')\n"
        "except SystemExit: print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0].startswith("casal 0.1.0, torch ") and done.stdout.splitlines()[-1] == "False"


STRANGER = """
from casal_lab.experiment import Column, Experiment, Outcome, ResultTable

def run(quick, labels, tell):
    tell("one part")
    rows = [{"method": label, "value": 1.0} for label in labels or ("mine", "yours")]
    return Outcome(NAME, [ResultTable("Table", [Column("method", "method"), Column("value", "value")], rows)])

EXPERIMENT = Experiment(NAME, "Can a stranger join?", ("mine", "yours"), run)
"""


@pytest.mark.slow
def test_a_module_from_outside_brings_its_experiment(tmp_path: Path) -> None:
    """In a process of its own, from the folder that holds the module, as a stranger would do it."""
    text = f"NAME = 'stranger'\n{STRANGER}\nfrom casal_lab.experiments import register\nregister(EXPERIMENT)\n"
    (tmp_path / "my_module.py").write_text(text, encoding="utf-8")

    def casal(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "casal_lab", *arguments, "--module", "my_module"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    done = casal("run", "stranger", "--method", "yours", "--out", "here")
    assert done.returncode == 0, done.stderr
    assert "Can a stranger join?" in done.stdout
    record = json.loads((tmp_path / "here" / "results.json").read_text(encoding="utf-8"))
    assert record["tables"][0]["rows"] == [{"method": "yours", "value": 1.0}]
    first, again = (casal("reproduce", "--only", "stranger", "--out", "all").stdout for _ in range(2))
    assert "nothing to run" not in first
    assert "nothing to run" in again


def test_installed_packages_bring_experiments_by_entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "installed_one.py").write_text(f"NAME = 'installed'\n{STRANGER}", encoding="utf-8")
    (tmp_path / "broken_one.py").write_text("raise ValueError('no luck')", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    group = "casal.experiments"
    points = [EntryPoint(name, f"{name}:EXPERIMENT", group) for name in ("broken_one", "installed_one")]
    monkeypatch.setattr(cli, "entry_points", lambda group: points if group == "casal.experiments" else [])
    result = run(app, ["list"])
    assert result.exit_code == 0
    assert "installed  Can a stranger join?" in result.output
    assert "particle" in result.output
    assert "broken_one:EXPERIMENT cannot be loaded: ValueError: no luck" in result.output


HIDE = """
import sys

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Hide())
import runpy
sys.argv = ["casal", "list"]
runpy.run_module("casal_lab", run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [["typer", "rich"], ["matplotlib"], ["jinja2", "safetensors", "scipy"]])
def test_without_a_library_one_sentence_says_what_to_install(hidden: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", HIDE.format(hidden=hidden)], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    for said in (*hidden, "pip install casal-lab", "pip install -e lab"):
        assert said in done.stderr


def test_the_sentence_names_what_the_package_needs() -> None:
    text = (ROOT / "lab" / "pyproject.toml").read_text(encoding="utf-8")
    needs = re.search(r"^dependencies = \[(.*?)^\]", text, re.S | re.M)
    assert needs is not None
    assert set(re.findall(r'"([a-z0-9]+)', needs[1])) == {"casal", *LAB}
