"""The study of the certificate: its exact answers, and a quick run of its parts."""

from __future__ import annotations

import pytest
import torch

from casal.lab.experiment import Outcome, trust_claim
from casal.lab.fidelity import EXPERIMENT
from casal.lab.fidelity.runs import OUTSIDE
from casal.lab.fidelity.setup import FOUR, ROWS_4, SIDE_4, cases


@pytest.fixture(scope="module")
def quick() -> Outcome:
    return EXPERIMENT.run(True, ["broken"], lambda line: None)


def test_the_cases_are_as_wide_as_they_should_be() -> None:
    every = cases()
    assert len(every) >= 12 and len({case.name for case in every}) == len(every)
    assert sum(case.model.diffusion for case in every) >= 4
    assert sum(case.edge for case in every) >= 2 and sum(case.implicit for case in every) >= 2
    assert sum(case.held for case in every) >= 3
    assert sum("64-D" in case.name for case in every) >= 2


@pytest.mark.parametrize("case", [case for case in cases() if "64-D" not in case.name], ids=lambda case: case.name)
def test_references_lie_in_their_sets(case: object) -> None:
    points, weights = case.reference()  # type: ignore[attr-defined]
    some = torch.nonzero(weights).flatten()[:: max(1, len(weights) // 200)]
    assert float(case.constraint.violation(points[some]).max()) < 1e-9  # type: ignore[attr-defined]
    assert abs(float(weights.sum()) - 1.0) < 1e-9


def test_a_gaussian_on_a_plane_has_its_closed_form() -> None:
    case = next(case for case in cases() if case.name == "plane in 4-D")
    S = FOUR.covariance(0)
    gain = S @ ROWS_4.T / (ROWS_4 @ S @ ROWS_4.T)
    mean = FOUR.means[0] + (gain * (SIDE_4 - ROWS_4 @ FOUR.means[0]))[:, 0]
    torch.testing.assert_close(case.exact[0][:3], mean[:3], atol=0.01, rtol=0.0)


@pytest.mark.slow
def test_a_quick_run(quick: Outcome) -> None:
    rows = {row["kind"]: row for row in quick.tables[0].rows}
    for kind in ("half the temperature", "one final projection", "atoms above 5 %"):
        assert 0 < rows[kind]["flagged"] >= rows[kind]["wrong"] - 1
    assert set(OUTSIDE) <= set(rows) and rows["lost mode"]["flagged"] == 0 < rows["lost mode"]["wrong"]


def test_the_claim_on_trust() -> None:
    rows = [{"method": "A", "fidelity": "not promised"}, {"method": "B", "fidelity": "trusted"}, {"method": "exact"}]
    assert trust_claim(rows, ["A"], "B")[0].verdict == "reproduced"
    rows[0]["fidelity"] = "trusted 1, suspect 4"
    assert trust_claim(rows, ["A"], "B")[0].verdict == "partly"
    assert not trust_claim(rows[:1], ["A"], "B")
