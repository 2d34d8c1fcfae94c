"""Tuning: the best setting that does not lose a chain."""

from __future__ import annotations

import pytest
import torch

import casal
from casal.errors import DivergedError, SettingError
from casal_lab.problems.families import FAMILIES
from casal_lab.problems.three_modes import MIXTURE
from casal_lab.study import best, require, tune, with_peak


def test_tuning_passes_over_settings_that_diverge() -> None:
    target, circle = FAMILIES["ddpm"](MIXTURE, 20), casal.Sphere(2.0)
    wild, tame = casal.FinalProjection(casal.DPS(1e6)), casal.FinalProjection()
    assert best([(target, wild), (target, tame)], circle, lambda result: 0.0, 20)[1] is tame
    with pytest.raises(SettingError, match="all 1 settings"):
        best([(target, wild)], circle, lambda result: 0.0, 20)


def test_the_next_best_runs_where_the_best_loses_a_chain() -> None:
    def run(setting: float) -> str:
        if setting == 2.0:
            raise DivergedError("lost", step=1, steps=2, chains=[0])
        return f"ran {setting:g}"

    found, out = tune([3.0, 2.0, 4.0], lambda setting: setting, run)
    assert found == (3.0, "ran 3") and [setting for setting, _ in out] == [2.0]
    assert require((found, out)) == (3.0, "ran 3")


MEGABYTES = 64


def filled() -> int:
    """Fills 64 MB, and frees them."""
    return torch.ones(MEGABYTES * 2**20, dtype=torch.uint8).numel()


def test_a_peak_is_seen_although_its_memory_is_freed_and_forgotten_afterwards() -> None:
    count, peak = with_peak(filled)
    assert count == MEGABYTES * 2**20
    if peak is None:
        pytest.skip("this system does not tell")
    assert peak + 1 >= MEGABYTES and peak < 2 * MEGABYTES
    assert (with_peak(lambda: None)[1] or 0.0) < MEGABYTES / 2
