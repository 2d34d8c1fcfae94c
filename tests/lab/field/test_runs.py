"""The methods on the field problem in small, and their pictures."""

from __future__ import annotations

from pathlib import Path

import pytest

from casal import Sphere, sample
from casal.lab.experiment import Outcome
from casal.lab.field import EXPERIMENT, runs
from casal.lab.field.setup import EXPECTED, STIFF, conditional, quantile_distance


@pytest.mark.parametrize("energy", EXPECTED)
def test_weighted_casal_follows_the_exact_law_on_every_level(energy: float) -> None:
    target, method = runs.cases(500)["WeightedCASAL"]
    result = sample(target, Sphere(energy**0.5), method, 1500, seed=0)
    x = result.samples[:, 0].numpy()
    assert quantile_distance(x, *conditional(STIFF, energy)) < 0.12
    exact = EXPECTED[energy]
    assert abs(float((x > 0).mean()) - exact) < 6 * (exact * (1 - exact) / 1500) ** 0.5
    assert bool(result.certificate.feasible.all())


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return EXPERIMENT.run(True, ["projected", "WeightedCASAL"], lambda line: None)


def test_a_run_of_two_methods(outcome: Outcome) -> None:
    assert len(outcome.tables) == len(runs.ENERGIES) + 1
    for table in outcome.tables[:-1]:
        rows = {row["method"]: row for row in table.rows}
        assert rows["WeightedCASAL"]["w1"] < rows["projected"]["w1"]
        assert rows["projected"]["violation"] < 1e-8
    assert outcome.claims == []


def test_its_pictures(outcome: Outcome, tmp_path: Path) -> None:
    names = {path.stem for path in EXPERIMENT.draw(outcome, tmp_path)}
    assert {"field_snapshots", "field_energy", "field_curves", "field_first_15", "field_first_8"} <= names
