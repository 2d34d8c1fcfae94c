"""The page of equations has every label of the paper, with its number, files that exist and a verdict that is known."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from casal_lab.experiment import FAILS, HOLDS, NOT_APPLICABLE, PARTLY
from casal_lab.propositions import CHECKS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")
PROPOSITIONS = (ROOT / "docs" / "propositions.md").read_text(encoding="utf-8")
WORDS = {HOLDS, PARTLY, FAILS, NOT_APPLICABLE, "definition"}

LABELS = {
    "2": {
        "eq:langevin_gradient-step": "(2.1)",
        "eq:constrained_distribution": "(2.2)",
        "example:equality-constraints": "Example 2.1",
        "example:projected": "Example 2.2",
        "example:penalty": "Example 2.3",
        "eq:penalty": "(2.6)",
    },
    "3": {
        "proposition:projection": "Proposition 3.1",
        "problem:projection_conditional": "(3.3)",
        "proposition:unattained_duality": "Proposition 3.2",
        "corollary:penalty": "Corollary",
        "proposition:split": "Proposition 3.3",
        "problem:variable_split": "(3.4)",
        "problem:split": "(P)",
        "eq:lagrangian": "(3.5)",
        "proposition:strong_duality": "Proposition 3.4",
        "eq:split_updates": "(3.6)",
        "algorithm:split": "Algorithm 1",
        "eq:constrained_latent_distribution": "(3.7)",
    },
    "4": {
        "proposition:problem_approximation": "Proposition 4.1",
        "proposition:relaxation_error": "Proposition 4.2",
        "proposition:Gaussian_consistency": "Proposition 4.3",
        "proposition:average_rate": "Proposition 4.4",
    },
    "5": {
        "figure:field": "Figure 1",
        "fig:histograms": "Figure 2",
        "fig:sequential-assimilation": "Figure 3",
        "fig:feasibility": "Figure 4",
    },
    "A": {"eq:divergence_functional": "(A.1)"},
    "B": {
        "eq:time-varying_langevin": "(B.1)",
        "algorithm:sal-diffusion": "Algorithm 2",
        "eq:ALD": "(B.3)",
        "eq:ddpm-forward": "(B.4)",
        "eq:ddpm-schedule": "(B.5)",
        "eq:ddpm-sample": "(B.6)",
        "eq:noise-score": "(B.7)",
        "eq:forward-sde": "(B.8)",
        "eq:vp-choice": "(B.9)",
        "ea:reverse-sde": "(B.10)",
        "eq:predictor": "(B.11)",
        "eq:corrector": "(B.12)",
    },
    "C": {
        "fig:projected": "Figure 5",
        "eq:DAposterior": "(C.3)",
        "fig:assimilation_trajectory_metrics": "Figure 6",
        "tab:darcy_results": "Table 1",
        "tab:ns_results": "Table 2",
        "tab:poisson_results": "Table 3",
    },
    "D": {
        "eq:penality_dual": "(D.7)",
        "eq:normalization": "(D.10)",
        "lemma:Lagrangian": "Lemma 1",
        "proposition:optimum_characterization": "Proposition D.1",
        "eq:relaxed_Gaussian_expectation": "(D.41)",
        "lemma:alternated_decrement": "Lemma 5",
        "lemma:alternated_proximal_decrement": "Lemma 6",
        "lemma:primal_dual-euclidean-decrement": "Lemma 7",
        "proposition:primal_dual-decrement": "Proposition D.2",
        "lemma:saddle-gap": "Lemma 8",
        "proposition:convergence_rate": "Proposition D.3",
    },
}
"""The labels of the paper by section, in its order, and their numbers; the paper itself is not in the repository."""

SECTIONS = {
    "2": ["section:problem"],
    "3": ["section:split", "section:variational-projection", "subsection:applicability"],
    "5": ["section:field", "section:assimilation", "section:trajectories"],
    "A": ["appendix:variational"],
    "B": ["appendix:algorithms"],
    "C": [
        "appendix:experiments",
        "appendix:particle",
        "appendix:field_generation",
        "appendix:data-assimilation",
        "appendix:feasibility",
        "appendix:experiment_pdes",
        "appendix:cost",
    ],
    "D": ["appendix:proofs"],
}

UNLABELLED = {"Table 4", "Table 5", "Table 6", "Lemma 2", "Lemmas 3, 4", "Definition 2"} | {
    f"({number})" for number in ("2.3", "3.1", "3.2", "A.2", "A.3", "A.4", "C.1", "C.2", "C.4", "C.5", "C.6", "C.7")
}
"""What the paper numbers but does not label."""


class Row(NamedTuple):
    """One row of the page."""

    section: str
    number: str
    label: str
    where: str
    test: str
    verdict: str


def rows() -> list[Row]:
    """All rows of the tables, each with the first word of the heading above it."""
    found = []
    for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        for line in re.findall(r"^\|(.*)\|$", part, re.MULTILINE)[2:]:
            number, label, _, where, test, verdict = (cell.strip() for cell in line.split("|"))
            found.append(Row(part.split()[0], number, label.strip("`"), where, test, verdict))
    return found


ROWS = rows()


@pytest.mark.parametrize("section", LABELS)
def test_every_label_has_one_row_in_its_section_with_its_number(section: str) -> None:
    told = [(row.label, row.number) for row in ROWS if row.section == section and row.label]
    assert told == list(LABELS[section].items())


@pytest.mark.parametrize("section", SECTIONS)
def test_every_section_names_its_labels(section: str) -> None:
    (part,) = (part for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:] if part.split()[0] == section)
    (line,) = re.findall(r"^Labels of the section: (.*)\.$", part, re.MULTILINE)
    assert re.findall(r"`([^`]+)`", line) == SECTIONS[section]


def test_what_has_no_label_has_a_row_too() -> None:
    assert {row.number for row in ROWS if not row.label} >= UNLABELLED


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label or row.number)
def test_every_row_has_a_file_a_test_and_a_verdict(row: Row) -> None:
    files, tests = (re.findall(r"`([^`]+)`", cell) for cell in (row.where, row.test))
    assert files
    assert tests
    for name in files:
        assert any((place / name).is_file() for place in (ROOT / "src" / "casal", ROOT)), name
    for name in tests:
        assert name.startswith(("tests/", "lab/tests/"))
        assert (ROOT / name).is_file(), name
    assert row.verdict in WORDS


def test_the_verdicts_on_propositions_are_those_of_the_last_run() -> None:
    """The page of propositions is written by a run; this page must not say otherwise."""
    claims = re.findall(
        r"^\| ([\w ]+) \| [\w ,.]+ \(`([\w:-]+)`\) \|.*?\| ([a-z ]+) \| [^|]*\| [^|]*\|$", PROPOSITIONS, re.MULTILINE
    )
    assert {name for name, _, _ in claims} == set(CHECKS) - {"thin sets", "descent", "latent sampling", "optimal value"}
    told = {row.label: row.verdict for row in ROWS if row.label}
    assert {label: told[label] for _, label, _ in claims} == {label: verdict for _, label, verdict in claims}
