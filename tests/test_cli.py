"""The command line: what a person sees and finds on disk afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from casal.cli import app
from casal.lab.experiments import EXPERIMENTS

run = CliRunner().invoke


def test_list_names_every_experiment_and_its_question() -> None:
    result = run(app, ["list"])
    assert result.exit_code == 0
    for experiment in EXPERIMENTS.values():
        assert experiment.name in result.output
        assert experiment.question[:30] in result.output.replace("\n", " ")


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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["run", "nothing"], "particle"), (["run", "particle", "--method", "magic"], "WeightedCASAL")],
)
def test_a_wrong_name_is_answered_with_the_right_ones(arguments: list[str], said: str) -> None:
    result = run(app, arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_version() -> None:
    result = run(app, ["--version"])
    assert result.exit_code == 0
    assert "casal 0.1.0" in result.output
