"""The exact answer of the particle, against figures found independently."""

from __future__ import annotations

import pytest

from casal.lab.particle.setup import exact_answer


def test_the_exact_answer() -> None:
    exact = exact_answer()
    assert exact["wrong"] == pytest.approx(7.06e-8, rel=2e-3)
    assert exact["mean_x"] == pytest.approx(-2.99831, abs=1e-5)
    assert exact["sd_y"] == pytest.approx(0.10067, abs=1e-5)
