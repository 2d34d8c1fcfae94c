"""A run of an experiment that reconstructs fields, on hardly anything, and what holds of it."""

from __future__ import annotations

import json
from dataclasses import replace

from casal_lab.experiment import Outcome
from casal_lab.pde.compare import Scale
from casal_lab.pde.methods import DPS, MATCHED, MATCHED_PROJECTED, MOMENT, PENALTY, UNCONSTRAINED, Effort
from casal_lab.pde.prior import Training
from casal_lab.pde.study import Reconstruction
from casal_lab.report.tables import outcome_from_json, outcome_json

LOOSE = {"kriging", UNCONSTRAINED, PENALTY, DPS, MATCHED, MOMENT}

CASES = 2


def tiny_run(experiment: Reconstruction, training: Training) -> Outcome:
    """All tasks, models, methods and curves, with two cases of two samples, six steps and one setting."""
    plan = experiment.plans[True]
    scale = Scale(CASES, 2, Effort(6, 6), 1, 2, 12)
    scales = [(scale, scale)] * len(plan.scales)
    tiny = plan._replace(
        scales=scales, steps=(4, 6), curve_cases=1, curve_samples=2, training=training, constant=(4, 6)
    )
    return replace(experiment, plans={True: tiny}).run(True, None, lambda line: None)


def check(quick: Outcome, studies: int, limit: float, compared: str) -> None:
    """No verdicts; records of every case that JSON keeps, ``compared`` among them; strict samples within the limit."""
    assert not quick.claims  # verdicts are for full runs
    assert len(quick.records) == studies
    for methods in quick.records.values():
        assert {MATCHED_PROJECTED, "kriging + projection"} <= set(methods)
        for label, numbers in methods.items():
            assert len(numbers["error"]) == len(numbers["violation"]) == len(numbers[compared])
            if label not in LOOSE:
                assert max(numbers["violation"]) < limit
    record = json.loads(outcome_json(quick))
    assert record["records"] == quick.records
    assert outcome_from_json(outcome_json(quick)).records == quick.records


def check_plans(experiment: Reconstruction) -> None:
    """The full plan has at least ten cases and all settings; both plans have a pair of scales for every task."""
    full, quick = experiment.plans[False], experiment.plans[True]
    assert len(full.scales) == len(quick.scales)
    for scale in (scale for pair in full.scales for scale in pair):
        assert scale.cases >= 10 and scale.stride == 1
