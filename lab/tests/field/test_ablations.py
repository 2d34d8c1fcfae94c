"""The ablations of the field problem in small."""

from __future__ import annotations

import numpy as np
import pytest

from casal_lab.field.ablations import OF_LAMBDA, PICKED, RHO, _settled, dual_ablation


def test_a_large_start_of_the_dual_takes_longer_to_forget() -> None:
    table, data = dual_ablation((0.0, 1.0, 5.0), 1000, lambda line: None)
    steps = [row[PICKED] for row in table.rows]
    assert steps[0] < steps[1] < steps[2]
    assert set(data["dual"][PICKED]) == {0.0, 1.0, 5.0}
    # All begin with mu of size sigma, or sigma / rho where sigma is that of lambda; a dual step of tau / rho forgets
    # nothing.
    for label in ("Algorithm 1", "Algorithm 2"):
        assert data["dual"][label][5.0][1][0] == pytest.approx(5.0 * 50**0.5, rel=0.03)
        assert data["dual"][f"{label}{OF_LAMBDA}"][5.0][1][0] == pytest.approx(5.0 / RHO * 50**0.5, rel=0.1)
    assert table.rows[1]["Algorithm 1"] == "> 1000"


def test_settled() -> None:
    steps, norms = np.array([10.0, 20.0, 30.0, 40.0]), np.array([3.0, 0.5, 2.0, 0.5])
    assert _settled(steps, norms, 1.0) == 40
    assert _settled(steps, norms, 4.0) == 10
    assert _settled(steps, norms, 0.4) is None
