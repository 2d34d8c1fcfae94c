"""Verdicts of the mixture experiment, on rows that were made up."""

from __future__ import annotations

from typing import Any

from casal_lab.mixture.runs import METHODS, claims
from casal_lab.mixture.trained import TRAINED
from casal_lab.problems.families import FAMILIES
from casal_lab.problems.three_modes import CASES
from casal_lab.study import PEERS

FIGURES = {"tv_se": 0.01, "gain": -0.1, "gain_se": 0.01, "feasible": 1.0, "violation": 1e-9, "alone": 0.1}
FLOORS = {name: {"tv": 0.005} for name in CASES}


def rows(*refused: tuple[str, str], **tv: float) -> dict[str, list[dict[str, Any]]]:
    """All pairs with a TV of 0.1, or that given for a method; some (method, family) pairs are refused."""
    out: dict[str, list[dict[str, Any]]] = {}
    for name in CASES:
        out[name] = []
        for family in (*FAMILIES, *TRAINED):
            for method in METHODS:
                row: dict[str, Any] = {"family": family, "method": method, "setting": "rho = 10"}
                if (method, family) not in refused:
                    row |= {"tv": tv.get(method, 0.1), **FIGURES}
                out[name].append(row)
    return out


def verdicts(found: dict[str, list[dict[str, Any]]]) -> dict[str, str]:
    return {claim.source or claim.text: claim.verdict for claim in claims(found, FLOORS)}


def test_the_paper_is_judged_by_the_algorithm_it_prints_for_a_family() -> None:
    where = "section 3.3; appendix B, summary"
    assert verdicts(rows())[where] == "reproduced"
    assert verdicts(rows(("Algorithm 1", "annealed")))[where] == "reproduced"  # printed for fixed densities
    assert verdicts(rows(("Algorithm 2", "flow")))[where] == "reproduced"  # our extension
    assert verdicts(rows(("Algorithm 2", "annealed")))[where] == "partly"
    every = [(label, family) for label in ("Algorithm 1", "Algorithm 2") for family in (*FAMILIES, *TRAINED)]
    assert verdicts(rows(*every))[where] == "not reproduced"


def test_feasibility_and_enforcement() -> None:
    found = rows()
    assert verdicts(found)["section 3.3, constraint satisfaction"] == "reproduced" == verdicts(found)["appendix B.1"]
    for row in found["circle R = 2"]:
        row["feasible"] = 0.05
    assert verdicts(found)["section 3.3, constraint satisfaction"] == "partly"
    assert verdicts(found)["appendix B.1"] == "not reproduced"


def test_peers_and_exact_draws_are_targets() -> None:
    found = verdicts(rows(Twisted=0.006, ECI=0.05))
    assert found["Twisted: mode weights as good as exact draws, within two standard errors"] == "met"
    assert found["SplitGibbs: mode weights as good as exact draws, within two standard errors"] == "missed"
    against = [verdict for text, verdict in found.items() if "three peers" in text]
    assert len(against) == len(CASES) and set(against) == {"missed"} and "ECI" in PEERS
