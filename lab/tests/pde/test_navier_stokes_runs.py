"""A tiny run of the Navier-Stokes experiment."""

from __future__ import annotations

from pathlib import Path

import pytest

from casal_lab.experiment import Outcome
from casal_lab.pde.navier_stokes import EXPERIMENT, NAVIER_STOKES
from casal_lab.pde.prior import Training

from .quick_run import check, check_plans, tiny_run

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def quick(own_cache: None) -> Outcome:
    return tiny_run(NAVIER_STOKES, Training(900, 300, 1))


def test_plans() -> None:
    check_plans(NAVIER_STOKES)


@pytest.mark.slow
def test_a_tiny_run_is_strict_and_records_every_case(quick: Outcome) -> None:
    check(quick, 4, 1e-12, "minus_dps_projection")


@pytest.mark.slow
def test_pictures_of_a_tiny_run(quick: Outcome, tmp_path: Path) -> None:
    names = {path.stem for path in EXPERIMENT.draw(quick, tmp_path)}
    assert names == {f"navier_stokes_{part}" for part in ("start", "end", "errors", "evaluations", "guided")}
