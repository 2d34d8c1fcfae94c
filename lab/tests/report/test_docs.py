"""Results of a run go into a page of the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from casal_lab.report.docs import main, results


def test_results_go_into_their_page(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "results.md").write_text("# mixture\n\nWhy?\n\n### A table\n\n| a |\n", encoding="utf-8")
    (folder / "results.json").write_text(
        '{"name": "mixture", "seconds": 2.0, "settings": {"date": "2026-01-02", "casal": "0.1", "seed": 7}}',
        encoding="utf-8",
    )
    (folder / "record.json").write_text('{"chosen": ["--seed", "7", "--method", "a b"]}', encoding="utf-8")
    (folder / "seen.png").write_bytes(b"png")
    page = tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    page.write_text("Before\n<!-- results of mixture -->\nold\n<!-- end of results -->\nAfter\n", encoding="utf-8")
    for _ in range(2):
        main(folder, page)
    text = page.read_text(encoding="utf-8")
    assert text == (
        "Before\n<!-- results of mixture -->\n\n"
        "`casal run mixture --seed 7 --method 'a b'`, 2026-01-02, casal 0.1, 2 s.\n\n"
        "### A table\n\n| a |\n\n<!-- end of results -->\nAfter\n"
    )
    assert (page.parent / "images" / "seen.png").read_bytes() == b"png"
    (folder / "record.json").write_text('{"chosen": ["--scene", "hard"]}', encoding="utf-8")
    assert results(folder)[0] == "mixture, hard"  # a scene has a block of its own
    (folder / "record.json").write_text('{"chosen": []}', encoding="utf-8")
    page.write_text("no marks", encoding="utf-8")
    with pytest.raises(ValueError, match="results of mixture"):
        main(folder, page)
