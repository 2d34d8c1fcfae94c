"""What holds of a quick run of every experiment that reconstructs fields."""

from __future__ import annotations

import json

from casal.lab.experiment import Outcome
from casal.lab.reconstruction.methods import DPS, MATCHED, MOMENT, MOMENT_PROJECTED, PENALTY, UNCONSTRAINED
from casal.lab.report.tables import outcome_from_json, outcome_json

LOOSE = {"kriging", UNCONSTRAINED, PENALTY, DPS, MATCHED, MOMENT}


def check(quick: Outcome, studies: int, limit: float, compared: str) -> None:
    """No verdicts; records of every case that JSON keeps, ``compared`` among them; strict samples within the limit."""
    assert not quick.claims  # verdicts are for full runs
    assert len(quick.records) == studies
    for methods in quick.records.values():
        assert {MOMENT_PROJECTED, "kriging + projection"} <= set(methods)
        for label, numbers in methods.items():
            assert len(numbers["error"]) == len(numbers["violation"]) == len(numbers[compared])
            if label not in LOOSE:
                assert max(numbers["violation"]) < limit
    record = json.loads(outcome_json(quick))
    assert record["records"] == quick.records
    assert outcome_from_json(outcome_json(quick)).records == quick.records
