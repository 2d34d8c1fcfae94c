"""The ablations of the field problem in small."""

from __future__ import annotations

import numpy as np
import pytest

from casal import Sphere, sample
from casal_lab.field.ablations import PICKED, _settled, dual_ablation, schedules, variants
from casal_lab.problems.field import SOFT, STIFF


def test_on_the_less_stiff_set_up_annealing_is_enough_and_a_small_constant_is_not() -> None:
    shares = {}
    for name in ("constant, small", "linear"):
        target, method = variants(SOFT, schedules(SOFT)[name], 1000)["released code"]
        result = sample(target, Sphere(SOFT.energy**0.5), method, 400, seed=0)
        shares[name] = float((result.samples[:, 0] > 0).double().mean())
    assert shares["constant, small"] > 0.3
    assert shares["linear"] < 0.1


def test_a_large_start_of_the_dual_takes_longer_to_forget() -> None:
    table, data = dual_ablation((0.0, 1.0, 5.0), 1200, lambda line: None)
    steps = [row[PICKED] for row in table.rows]
    assert steps[0] < steps[1] < steps[2]
    assert set(data["dual"][PICKED]) == {0.0, 1.0, 5.0}
    # Algorithms 1 and 2 begin with the same dual, lambda = rho mu; a dual step of tau / rho forgets nothing.
    start = [data["dual"][label][5.0][1][0] for label in (PICKED, "Algorithm 1", "Algorithm 2")]
    assert start[1] == pytest.approx(STIFF.rho[1] * 5.0 * 50**0.5, rel=0.03)
    assert start[2] == pytest.approx(start[1], rel=0.02)
    assert start[0] < start[1] / STIFF.rho[1]
    assert table.rows[1]["Algorithm 1"] == "> 1200"


def test_settled() -> None:
    steps, norms = np.array([10.0, 20.0, 30.0, 40.0]), np.array([3.0, 0.5, 2.0, 0.5])
    assert _settled(steps, norms, 1.0) == 40
    assert _settled(steps, norms, 4.0) == 10
    assert _settled(steps, norms, 0.4) is None
