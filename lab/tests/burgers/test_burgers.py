"""A quick run of the assimilation on the Burgers equation."""

from __future__ import annotations

from pathlib import Path

import pytest

from casal_lab.burgers import EXPERIMENT, METHODS
from casal_lab.burgers.comparison import FLOORS, PRINTED
from casal_lab.burgers.setup import PLAIN, SETUPS, WIENER
from casal_lab.experiment import Outcome


@pytest.fixture(scope="module")
def quick() -> Outcome:
    return EXPERIMENT.run(True, None, lambda line: None)


@pytest.mark.slow
def test_a_quick_run_has_every_method_and_keeps_mass_and_energy(quick: Outcome) -> None:
    free = {FLOORS[0], "3D-Var", "3D-Var, 5 draws", "EnKF", "unconstrained", "penalty, tuned"}
    cases = [(kind, name) for kind in (PLAIN, WIENER) for name in SETUPS]
    for (kind, name), table in zip(cases, quick.tables, strict=False):
        methods = METHODS if kind == WIENER else PRINTED
        assert f"{name}, {kind}" in table.title and [row["method"] for row in table.rows] == list(methods)
        for row in table.rows:
            assert 0.0 < row["l2"] < 1.5 and row["worst_projected"] < 1e-12
            if row["method"] not in free:
                assert row["member_mass"] < 1e-12 and row["member_energy"] < 1e-12
    for part in ("regimes", "learned"):
        regimes = quick.data[part]["scores"]
        assert all(float(found["violation"].max()) < 1e-8 for found in regimes.values())
        assert float(regimes["SplitGibbs"]["modes"].mean()) < float(regimes["final projection"]["modes"].mean())


@pytest.mark.slow
def test_pictures_of_a_quick_run(quick: Outcome, tmp_path: Path) -> None:
    names = {path.name for path in EXPERIMENT.draw(quick, tmp_path)}
    parts = ("figure_3", "figure_6", "spectra", "hovmoeller", "invariants", "regimes")
    assert names == {f"burgers_{part}.png" for part in parts}
