"""A quick run of the experiment, one scene from the command line, and verdicts that can fail."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from casal_lab.cli import app
from casal_lab.experiment import FAILS, HOLDS, MET, MISSED, PARTLY, PARTLY_MET, Outcome
from casal_lab.quadrotor import EXPERIMENT, METHODS
from casal_lab.quadrotor.claims import ROOM, claims
from casal_lab.quadrotor.paths import GRIDS
from casal_lab.quadrotor.runs import CLASSES, _at_edge


@pytest.fixture(scope="module")
def quick() -> Outcome:
    return EXPERIMENT.run(True, None, lambda line: None)


@pytest.mark.slow
def test_a_quick_run_has_every_study(quick: Outcome) -> None:
    assert [row["method"] for row in quick.tables[0].rows] == list(METHODS)
    rows = quick.data["rows"]
    assert rows["Twisted"][0.8]["success"] > rows["unconstrained"][0.8]["success"] + 0.5
    assert rows["zero"][0.8]["success"] == rows["noise"][0.8]["success"] == 0.0
    assert quick.data["margins"][0] == 0
    assert 1.3 < quick.data["impossible"] < 1.8
    assert {"curves", "flights", "ablation", "random", "planar", "weights", "weak", "solvers"} <= set(quick.data)
    assert not quick.claims and len(quick.motions) == 1


@pytest.mark.slow
def test_pictures_of_a_quick_run(quick: Outcome, tmp_path: Path) -> None:
    names = {path.stem for path in EXPERIMENT.draw(quick, tmp_path)}
    assert names == {f"quadrotor_{part}" for part in ("figure_4", "flights", "ablation", "random", "planar")}


@pytest.mark.slow
def test_one_scene_from_the_command_line(tmp_path: Path) -> None:
    base = ["run", "quadrotor", "--quick", "--out", str(tmp_path)]
    found = CliRunner().invoke(app, [*base, "--scene", "random", "--seed", "7", "--method", "CASAL"])
    assert found.exit_code == 0, found.output
    assert "random, seed 7" in (tmp_path / "results.md").read_text(encoding="utf-8")
    for wrong in (["--scene", "easy"], ["--seed", "3"]):
        assert CliRunner().invoke(app, [*base, *wrong]).exit_code == 2
    assert CliRunner().invoke(app, ["run", "field", "--scene", "hard", "--out", str(tmp_path)]).exit_code == 2


def test_a_best_setting_at_the_end_of_its_grid_is_known() -> None:
    for grid in GRIDS.values():
        names = list(grid)
        assert _at_edge(names[0], names) and _at_edge(names[-1], names)
    names = list(GRIDS["released code"])
    assert not _at_edge("rho 30, eta 0.01, whole flight", names)


def test_classes_have_names() -> None:
    assert CLASSES[0] == "bbb" and CLASSES[6] == "aab" and CLASSES[7] == "aaa"


def figures() -> dict[str, Any]:
    """Data of a run in which every claim and target holds."""

    def rows(success: float, free: float, seconds: float) -> dict[float, Any]:
        row = {"success": success, "success_se": 0.01, "worst": success, "free": free, "seconds": seconds, "flights": 9}
        return {r: {**row, "setting": "weight 1"} for r in (*ROOM, 1.8)}

    names = [f"dual {name}, damped z, implicit" for name in ("tau/rho", "tau", "0.1", "0.3", "1")]
    weak = [{"method": label, "success": rate} for label, rate in (("CASAL", 0.9), ("penalty", 0.5))]
    return {
        "rows": {
            "unconstrained": rows(0.03, 0.01, 1.0),
            "penalty": rows(0.5, 0.4, 6.0),
            "projected": rows(0.4, 0.2, 2.0),
            "Algorithm 2": rows(0.7, 0.2, 2.0),
            "released code": rows(0.7, 0.2, 2.0),
            "CASAL": rows(0.9, 0.8, 2.0),
        },
        "ablation": {
            name: {"r": [0.8], "success": [rate]} for name, rate in zip(names, (0.1, 0.4, 0.5, 0.6, 0.9), strict=True)
        },
        "weights": [
            {"r": 0.8, "method": "Twisted", "success": 1.0, "least": 0.99, "pooled": 0.01, "distinct": 80},
            {"r": 0.8, "method": "SplitGibbs", "success": 1.0, "least": 0.99, "pooled": 0.01, "distinct": 80},
            {"r": 0.8, "method": "exact draws (9)", "distinct": 82},
        ],
        "random": {"Twisted": [1.0, 0.99], "SplitGibbs": [1.0, 0.99]},
        "margins": (0, 100),
        "weak": weak,
    }


def test_claims_hold_and_fail_with_the_figures() -> None:
    data = figures()
    assert all(claim.verdict == (HOLDS if claim.published else MET) and claim.flips for claim in claims(data))
    alone = claims({"rows": data["rows"]})  # the curves alone: what the paper says, and no targets
    assert alone and all(claim.published for claim in alone) and not claims({"rows": {"CASAL": {}}})
    worse = deepcopy(data)
    worse["rows"]["CASAL"][1.8] |= {"success": 0.2, "worst": 0.2}
    (ours,) = [claim for claim in claims(worse) if "significantly higher" in claim.text and claim.variant == "ours"]
    assert ours.verdict == PARTLY
    worse["rows"]["Algorithm 2"] = worse["rows"]["unconstrained"]
    worse["weights"][0] |= {"pooled": 0.2, "distinct": 40, "success": 0.9, "least": 0.1}
    worse["margins"] = (3, 100)
    by_variant = {claim.variant: claim.verdict for claim in claims(worse) if "significantly higher" in claim.text}
    assert by_variant["printed"] == FAILS and by_variant["released"] == HOLDS  # one does not hide the other
    verdicts = [claim.verdict for claim in claims(worse)]
    assert verdicts.count(FAILS) >= 1 and verdicts.count(MISSED) + verdicts.count(PARTLY_MET) >= 5
