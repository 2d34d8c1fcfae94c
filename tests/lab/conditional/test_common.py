"""Verdicts of the conditional cases."""

from __future__ import annotations

from casal.lab.conditional.common import at_most, within


def test_verdicts() -> None:
    assert at_most("t", 0.02, 0.03).verdict == "reproduced" == within("t", 0.81, 0.8, 0.02).verdict
    assert at_most("t", 0.04, 0.03).verdict == "not reproduced" == within("t", 0.77, 0.8, 0.02).verdict
