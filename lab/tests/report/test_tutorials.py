"""Every tutorial runs from top to bottom and prints what it shows; its pictures are there and follow the theme."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from casal_lab.report import tutorials

DOCS = Path(__file__).parents[3] / "docs"
PAGES = sorted((DOCS / "tutorials").glob("*.md"))
NEEDS = {"unet": "diffusers", "large_run": "zarr"}
LONGEST = 2000
"""Words of a page, code included: ten minutes at 200 words a minute."""
LARGEST = 150_000
"""Bytes of a picture."""


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_tutorial_prints_what_it_shows(path: Path, tmp_path: Path) -> None:
    if path.stem in NEEDS:
        pytest.importorskip(NEEDS[path.stem])
    page = path.read_text(encoding="utf-8")
    told, found = tutorials.blocks(page), tutorials.run(page, tmp_path, path.stem)
    for block, printed in zip(told, found, strict=True):
        assert tutorials.agrees(block.printed or "", printed), f"{path.name}, line {block.line}:\n{printed}"
    assert (tmp_path / f"{path.stem}.svg").exists()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_tutorial_is_short_and_ends_in_a_picture(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    assert len(page.split()) < LONGEST
    assert f"../images/tutorials/{path.stem}.svg" in page
    picture = (DOCS / "images" / "tutorials" / f"{path.stem}.svg").read_text(encoding="utf-8")
    assert len(picture) < LARGEST
    assert "prefers-color-scheme: dark" in picture and not re.search("#000000|#333333", picture)
    for word in ("**You want**", "exact", "What goes wrong", "## Read on"):
        assert word in page, word


def test_there_are_ten() -> None:
    assert len(PAGES) == 10


def test_output_is_compared_word_by_word_and_number_by_number() -> None:
    told = "distribution  trusted (923 ancestors)\nseconds       1.23\nmean 0.734 ± 0.013"
    assert tutorials.agrees(told, told.replace("1.23", "9.87").replace("0.734", "0.735"))
    for wrong in ("suspect", "trusted,"):
        assert not tutorials.agrees(told, told.replace("trusted", wrong))
    assert not tutorials.agrees(told, told.replace("0.734", "0.634"))
    assert not tutorials.agrees(told, told.replace("923", "-923"))
    assert not tutorials.agrees(told, told + "\none more line")
    assert not tutorials.agrees("", "printed, but not shown")


def test_a_page_is_rewritten_with_what_it_prints(tmp_path: Path) -> None:
    page = "A\n\n```python\nx = 2\nprint(x)\n```\n\n```text\n7\n```\n\nB\n\n```python\nprint(x + 1)\n```\n\nC\n"
    printed = tutorials.run(page, tmp_path)
    assert printed == ["2\n", "3\n"]
    assert tutorials.rewritten(page, printed) == page.replace("7", "2")
    assert [block.line for block in tutorials.blocks(page)] == [3, 14]


def test_a_long_line_of_output_is_broken_and_still_the_same() -> None:
    page = "```python\nprint(7)\n```\n\n```text\n7\n```\n"
    printed = "  settings: " + "word " * 30
    shown = tutorials.rewritten(page, [printed])
    assert max(map(len, shown.splitlines())) <= tutorials.COLUMNS
    (block,) = tutorials.blocks(shown)
    assert tutorials.agrees(block.printed or "", printed)


def test_ink_follows_the_theme() -> None:
    svg = '<svg width="1">\n<path style="stroke: #000000"/><text style="fill: #333333"/></svg>'
    themed = tutorials.themed(svg)
    assert themed.count("var(--ink)") == 2 and "#333333" not in themed
    assert themed.index("<style>") > themed.index("<svg")
