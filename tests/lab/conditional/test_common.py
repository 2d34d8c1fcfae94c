"""Tuning and verdicts of the conditional cases."""

from __future__ import annotations

import pytest

import casal
from casal.lab.conditional.common import Setup, at_most, within
from casal.lab.laws.families import FAMILIES
from casal.lab.laws.three_modes import MIXTURE


def test_tuning_passes_over_settings_that_diverge() -> None:
    target = FAMILIES["ddpm"](MIXTURE, 20)
    setup = Setup(target, casal.Sphere(2.0), 50, range(1))
    wild = casal.FinalProjection(casal.DPS(1e6))
    name, results = setup.tuned([("wild", wild), ("tame", casal.FinalProjection())], lambda r: 0.0, 20)
    assert name == "tame" and len(results) == 1
    with pytest.raises(casal.errors.SettingError, match="all 1 settings"):
        setup.tuned([("wild", wild)], lambda r: 0.0, 20)


def test_verdicts() -> None:
    assert at_most("t", 0.02, 0.03).verdict == "reproduced" == within("t", 0.81, 0.8, 0.02).verdict
    assert at_most("t", 0.04, 0.03).verdict == "not reproduced" == within("t", 0.77, 0.8, 0.02).verdict
