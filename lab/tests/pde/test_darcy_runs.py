"""A tiny run of the Darcy experiment."""

from __future__ import annotations

from pathlib import Path

import pytest

from casal_lab.experiment import Outcome
from casal_lab.pde.darcy import DARCY, EXPERIMENT, LIMIT, METHODS
from casal_lab.pde.prior import Training

from .quick_run import check, check_plans, tiny_run

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def quick(own_cache: None) -> Outcome:
    return tiny_run(DARCY, Training(900, 200, 1))


def test_plans() -> None:
    check_plans(DARCY)


@pytest.mark.slow
def test_a_tiny_run_is_strict_and_records_every_case(quick: Outcome) -> None:
    check(quick, 2, LIMIT, "error of a")
    for methods in quick.records.values():
        assert set(METHODS) <= set(methods)
        assert all(len(numbers["error"]) == 2 for numbers in methods.values())


@pytest.mark.slow
def test_pictures_of_a_tiny_run(quick: Outcome, tmp_path: Path) -> None:
    names = {path.stem for path in EXPERIMENT.draw(quick, tmp_path)}
    assert names == {"darcy_coefficient", "darcy_solution", "darcy_errors", "darcy_evaluations"}
