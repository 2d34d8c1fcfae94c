"""A quick run of the conditional experiment."""

from __future__ import annotations

from pathlib import Path

import pytest

from casal_lab.conditional import CASES, EXPERIMENT, spheres
from casal_lab.experiment import Outcome


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CASAL_CACHE", str(tmp_path_factory.mktemp("cache")))
        return EXPERIMENT.run(True, None, lambda line: None)


@pytest.mark.slow
def test_a_quick_run_has_every_row_and_all_samples_are_feasible(quick: Outcome) -> None:
    assert len(quick.tables) == len(spheres.CASES) + len(CASES)  # images have two
    for table in quick.tables:
        rows = {row["method"]: row for row in table.rows}
        assert {"final projection", "SplitGibbs, metropolis"} <= set(rows) or "moment matching + projection" in rows
        for row in rows.values():
            if "evaluations" in row:
                assert row["feasible"] == 1.0 and row["violation"] < 1e-8, (table.title, row)
        floors = [row for row in table.rows if row["method"].startswith(("exact draws", "kriging"))]
        assert floors and all("evaluations" not in row for row in floors)
    assert not quick.claims


@pytest.mark.slow
def test_weights_bring_the_modes_into_proportion(quick: Outcome) -> None:
    for table in quick.tables[: len(spheres.CASES)]:
        tv = {row["method"]: row["tv"] for row in table.rows}
        for label in ("SplitGibbs, gibbs", "SplitGibbs, metropolis", "Twisted"):
            assert tv[label] < tv["final projection"] / 2, (table.title, label)


@pytest.mark.slow
def test_pictures_of_a_quick_run(quick: Outcome, tmp_path: Path) -> None:
    paths = EXPERIMENT.draw(quick, tmp_path)
    assert {path.stem for path in paths} == {f"conditional_{k}" for k in ("all", "circles", "quadrotor", "images")}
    assert all(path.stat().st_size > 20_000 for path in paths)


def test_only_the_named_cases_run() -> None:
    outcome = EXPERIMENT.run(True, ["inverse"], lambda line: None)
    assert len(outcome.tables) == 1 and {dot.case for dot in outcome.data["dots"]} == {"Inverse problem, 256-D"}
