"""The paper claim by claim: the page is what the pages of the experiments say."""

from pathlib import Path

import pytest

from casal_lab.report.verdicts import CHANGES, HEADS, MARK, PAGE, Row, renewed, rows, table

DOCS = Path(__file__).parents[3] / "docs"
HEAD = f"| {' | '.join(HEADS)} |"
ROW = "| it holds for \\|x\\| < 1 | section C.6 | printed | 3 | 3.1 | 3.2 | reproduced | It holds. | a 5 |"


def test_the_page_is_what_the_experiments_say() -> None:
    page = (DOCS / PAGE).read_text(encoding="utf-8")
    assert page == renewed(page, rows(DOCS)), "run python -m casal_lab.report.verdicts docs"


def test_no_claim_stands_twice_and_each_says_what_would_change_it() -> None:
    found = rows(DOCS)
    told = [(row.where, row.claim, row.variant) for row in found]
    assert len(told) == len(set(told)) and all(all(row) for row in found)
    assert all(row.verdict in ("reproduced", "partly", "not reproduced", "not applicable") for row in found)


def test_rows_are_read_and_put_in_the_order_of_the_paper(tmp_path: Path) -> None:
    other = ROW.replace("C.6", "5.1").replace("| reproduced", "| partly").replace("printed", "ours")
    text = f"# A page\n\n### Published claims\n\n{HEAD}\n| --- |\n{ROW}\n{other}\n\n### Our targets\n"
    (tmp_path / "a.md").write_text(text, encoding="utf-8")
    found = rows(tmp_path)
    claim = "it holds for \\|x\\| < 1"
    assert found[1] == Row(
        "a.md", "A page", claim, "section C.6", "3", "3.1", "reproduced", "a 5", "printed", "3.2", "It holds."
    )
    assert [row.where for row in found] == ["section 5.1", "section C.6"]
    made = table(found)
    assert "| printed | 1 | 0 | 0 | 0 |" in made and "| ours | 0 | 1 | 0 | 0 |" in made
    assert f"| [section C.6](a.md) | {claim} | printed | 🟢 reproduced | 3 | 3.1 | 3.2 | It holds. |" in made
    page = f"Before and after\n{CHANGES}\n| section C.6 | {claim} | partly | ? | mended |\n\nMore\n{MARK}"
    assert f"| section C.6 | {claim} | partly | 🟢 printed | mended |\n\nMore\n{MARK}" in renewed(page, found)
    with pytest.raises(ValueError, match="no page has the claim 'other'"):
        renewed(page.replace(claim, "other"), found)
    for wrong, message in (("| 3.1 |", "10 cells"), ("| ours |", "another head")):
        (tmp_path / "a.md").write_text(text.replace(wrong, f"{wrong} 7 |"), encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            rows(tmp_path)
