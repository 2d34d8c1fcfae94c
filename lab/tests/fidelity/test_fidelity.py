"""The study of the certificate: its exact answers, and a quick run of its parts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from casal.diagnostics.ladder import LEAST_KEPT
from casal_lab.experiment import MET, PARTLY_MET, Outcome
from casal_lab.fidelity import EXPERIMENT
from casal_lab.fidelity.runs import OUTSIDE, Record, _bias, _found_out, _most_missed, ways
from casal_lab.problems.small import FOUR, PAIR, ROWS_3, ROWS_4, SIDE_3, SIDE_4, Case, cases
from casal_lab.study import trust_claim


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
def test_references_lie_in_their_sets(case: Case) -> None:
    points, weights = case.reference()
    some = torch.nonzero(weights).flatten()[:: max(1, len(weights) // 200)]
    assert float(case.constraint.violation(points[some]).max()) < 1e-9
    assert abs(float(weights.sum()) - 1.0) < 1e-9


def test_a_gaussian_on_a_plane_has_its_closed_form() -> None:
    case = next(case for case in cases() if case.name == "plane in 4-D")
    S = FOUR.covariance(0)
    gain = S @ ROWS_4.T / (ROWS_4 @ S @ ROWS_4.T)
    mean = FOUR.means[0] + (gain * (SIDE_4 - ROWS_4 @ FOUR.means[0]))[:, 0]
    torch.testing.assert_close(case.exact[0][:3], mean[:3], atol=0.01, rtol=0.0)


def test_two_modes_on_a_plane_have_their_closed_form() -> None:
    """A round Gaussian given a . x = b keeps its covariance in the plane; its mean moves to its foot."""
    case = next(case for case in cases() if case.name.startswith("two modes on a plane"))
    a, variance = ROWS_3[0], float(PAIR.variances[0, 0])
    short = (SIDE_3 - PAIR.means @ a) / a.square().sum()  # to the plane, in units of a
    weight = PAIR.weights * torch.exp(-0.5 * short.square() * a.square().sum() / variance)
    mean = (weight / weight.sum()) @ (PAIR.means + short[:, None] * a)
    torch.testing.assert_close(case.exact[0][:3], mean, atol=1e-9, rtol=0.0)


def of(error: float, word: str, kind: str = "kind") -> Record:
    return Record(kind, "case", 0, word, abs(error), (error, 0.0), 100.0, 0.0, 0.0, "")


def test_a_setting_is_wrong_by_its_mean_error() -> None:
    """Errors of either sign cancel; a setting is off by what its seeds have in common."""
    assert _bias([of(4.0, "trusted"), of(-4.0, "trusted")]) == 0.0
    assert _bias([of(4.0, "suspect"), of(2.5, "trusted")]) == 3.25
    assert [_most_missed(0.95, total) for total in (16, 20, 40, 64)] == [0, 1, 2, 3]


def test_a_kind_is_found_out_by_both_counts() -> None:
    seen, missed = of(5.0, "suspect"), of(2.0, "trusted")
    assert _found_out("kind", [seen] * 20, [seen] * 20).verdict == MET
    both = _found_out("kind", [seen] * 20, [seen] * 16 + [missed] * 4)
    assert both.verdict == PARTLY_MET and both.flips.startswith("2 wrong runs trusted, or 2 runs")
    assert not both.published


def test_a_correction_that_few_chains_carry_is_found_out() -> None:
    """A ladder that ends at ten times the noise: its samples are right only as far as a few weights are."""
    way, case = ways()["sigma x 10"], next(case for case in cases() if case.name == "three modes on a circle, edm")
    case, kept = replace(case, n=1000), list[float]()
    for seed in range(4):
        found = case.certify(way.run(case, seed))
        kept.append(found.figures.get("correction_kept", 0.0))  # not measured where the correction was not made
        assert (found.verdict == "suspect") or kept[-1] >= LEAST_KEPT
    assert sum(share < LEAST_KEPT for share in kept) >= 3
    right = case.sample(0).fidelity
    assert right.verdict == "trusted" and right.figures["correction_kept"] > 0.7


@pytest.mark.slow
def test_a_quick_run(quick: Outcome) -> None:
    rows = {row["kind"]: row for row in quick.tables[0].rows}
    for kind in ("half the temperature", "one final projection", "atoms above 5 %"):
        assert 0 < rows[kind]["flagged"] >= rows[kind]["wrong"] - 1
    assert set(OUTSIDE) <= set(rows) and rows["lost mode"]["flagged"] == 0 < rows["lost mode"]["wrong"]


def test_the_claim_on_trust() -> None:
    rows = [{"method": "A", "fidelity": "not promised"}, {"method": "B", "fidelity": "trusted"}, {"method": "exact"}]
    assert trust_claim(rows, ["A"], "B")[0].verdict == MET
    rows[0]["fidelity"] = "trusted 1, suspect 4"
    assert trust_claim(rows, ["A"], "B")[0].verdict == PARTLY_MET
    assert not trust_claim(rows[:1], ["A"], "B")
