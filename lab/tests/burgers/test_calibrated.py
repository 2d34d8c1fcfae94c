"""Set-ups on which Algorithm 2 has the paper's error: how amplitude and noise are found."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from casal_lab.burgers import calibrated
from casal_lab.burgers.comparison import Scale
from casal_lab.burgers.setup import SETUPS, Setup, Training, truths
from casal_lab.cli import app

SCALE = Scale(2, 1, 1, 10, 1, 1)


def silent(line: str) -> None:
    """Tells nobody."""


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> list[Setup]:
    """An error that grows with amplitude and noise in the place of a run, and the set-ups that were tried."""
    tried: list[Setup] = []

    def error(setup: Setup, *rest: Any) -> float:
        tried.append(setup)
        return 2.0 * setup.amplitude + 0.3 * setup.noise

    monkeypatch.setattr(calibrated, "error", error)
    return tried


def test_both_set_ups_have_the_error_of_the_paper(made_up: list[Setup]) -> None:
    (noise, first), (steep, second) = calibrated.calibrate(Training(), SCALE, silent)
    assert noise.name == "noise" and noise.amplitude == SETUPS["B"].amplitude
    assert noise.noise == pytest.approx((calibrated.ERROR - 0.2) / 0.3, rel=0.05)
    assert steep.name == "steep" and steep.amplitude == 0.2  # at 0.3 the error is above that of the paper already
    assert steep.noise == pytest.approx((calibrated.ERROR - 0.4) / 0.3, rel=0.05)
    assert first == pytest.approx(calibrated.ERROR, abs=0.02) and second == pytest.approx(calibrated.ERROR, abs=0.02)
    assert all(setup.horizon == SETUPS["B"].horizon for setup in made_up)


def test_noise_of_a_set_up_is_that_of_its_observations() -> None:
    quiet, loud = (Setup("x", 0.1, noise=noise) for noise in (0.1, 1.0))
    one, other = truths(quiet, 2, 3), truths(loud, 2, 3)
    assert bool((one.fields == other.fields).all())
    seen = one.fields[:, :, [0, 50, 100, 150]]
    assert float((other.observed - seen).norm() / (one.observed - seen).norm()) == pytest.approx(10.0)


def test_other_scenes_are_refused(tmp_path: Any) -> None:
    found = CliRunner().invoke(app, ["run", "burgers", "--scene", "hard", "--out", str(tmp_path)])
    assert found.exit_code == 2 and "calibrated" in found.output
