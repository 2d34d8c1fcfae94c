"""A tiny run of the Poisson experiment."""

from __future__ import annotations

from pathlib import Path

import pytest

from casal_lab.experiment import Outcome
from casal_lab.pde.poisson import EXPERIMENT, POISSON
from casal_lab.pde.prior import Training

from .quick_run import check, check_plans, tiny_run

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def quick(own_cache: None) -> Outcome:
    return tiny_run(POISSON, Training(600, 200, 1))


def test_plans() -> None:
    check_plans(POISSON)


@pytest.mark.slow
def test_a_tiny_run_is_strict_and_records_every_case(quick: Outcome) -> None:
    check(quick, 2, 1e-12, "minus_dps_projection")


@pytest.mark.slow
def test_pictures_of_a_tiny_run(quick: Outcome, tmp_path: Path) -> None:
    names = {path.stem for path in EXPERIMENT.draw(quick, tmp_path)}
    assert names == {"poisson_maps", "poisson_errors", "poisson_evaluations"}
