"""Verdicts of the conditional cases: all are targets of ours."""

from __future__ import annotations

from casal_lab.conditional.common import at_least, at_most, between, within


def test_targets_that_are_met() -> None:
    claims = [
        at_most("t", 0.02, 0.03),
        within("t", 0.81, 0.8, 0.02),
        at_least("t", 5.0, 5.0),
        between("t", 1.0, 0.9, 1.1),
    ]
    assert {claim.verdict for claim in claims} == {"met"} and not any(claim.published for claim in claims)
    assert [claim.flips for claim in claims] == [
        "a figure above 0.03 in a full run",
        "a figure farther than 0.02 from 0.8 in a full run",
        "a figure below 5 in a full run",
        "a figure outside of 0.9 to 1.1 in a full run",
    ]


def test_targets_that_are_missed() -> None:
    claims = [
        at_most("t", 0.04, 0.03),
        within("t", 0.77, 0.8, 0.02),
        at_least("t", 4.0, 5.0),
        between("t", 1.2, 0.9, 1.1),
    ]
    assert {claim.verdict for claim in claims} == {"missed"}
    assert all("of at" in claim.flips or "within" in claim.flips for claim in claims)
