"""Where constants come from: the page says what the code says, and no experiment is left out."""

import re
from pathlib import Path

import pytest

from casal_lab.experiment import Experiment, Origin, Outcome
from casal_lab.experiments import EXPERIMENTS
from casal_lab.report.provenance import WORDS, renewed, tables

PLACE = re.compile(r"section|table|appendix|proposition|Algorithm \d|\b[B-D]\.\d")
"""How a place in the paper is named."""

PAGE = Path(__file__).parents[3] / "docs" / "provenance.md"


def test_the_page_is_what_the_code_says() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == renewed(page, EXPERIMENTS), "run python -m casal_lab.report.provenance docs/provenance.md"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_says_where_its_constants_come_from(name: str) -> None:
    rows = EXPERIMENTS[name].origins
    assert rows and all(all(row) and row.origin in WORDS for row in rows)
    assert all(PLACE.search(row.where) for row in rows if row.origin == "paper")


def test_bars_do_not_break_a_table() -> None:
    row = Origin("|x|", "15", "paper", "section 5.1")
    made = Experiment("mine", "?", (), lambda quick, labels, tell: Outcome("mine", []), origins=(row,))
    assert "| \\|x\\| | 15 | printed in the paper | section 5.1 |" in tables({"mine": made})
