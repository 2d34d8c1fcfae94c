"""What experiments share: errors of shares, distances to a law, the registry."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from casal.errors import SettingError
from casal.lab.experiment import Experiment, Outcome, share, stamp, verdict
from casal.lab.experiments import EXPERIMENTS, register
from casal.lab.field.setup import quantile_distance, sampling_floor


def test_the_floor_is_what_exact_draws_reach() -> None:
    grid = np.linspace(0, 1, 2001)
    assert sampling_floor(grid, grid, 1000) == pytest.approx(np.sqrt(np.pi / 32 / 1000) * 1.0, rel=0.1)
    assert quantile_distance((np.arange(100) + 0.5) / 100, grid, grid) == pytest.approx(0.0, abs=1e-12)


def test_a_share_of_zero_has_an_error() -> None:
    assert share(0, 1000)[0] == 0.0
    assert 0 < share(0, 1000)[1] < 0.005


def test_verdicts() -> None:
    assert [verdict(True, True), verdict(True, False), verdict(False)] == ["reproduced", "partly", "not reproduced"]


def test_an_experiment_joins_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("casal.lab.experiments.EXPERIMENTS", dict(EXPERIMENTS))
    mine = Experiment("mine", "Does it hold?", ("CASAL",), stamp(lambda quick, labels, tell: Outcome("mine", [])))
    assert register(mine) is mine and register(mine) is mine
    outcome = mine.run(True, None, print)
    assert {"date", "casal", "torch"} <= set(outcome.settings) and outcome.seconds > 0
    assert mine.draw(outcome, tmp_path) == []
    with pytest.raises(SettingError, match="'particle' already"):
        register(Experiment("particle", "Another?", (), mine.run))
