"""Run the tutorials: their code from top to bottom, the output printed under it, and their pictures.

    python -m casal_lab.report.tutorials docs/tutorials             # all pages of a folder
    python -m casal_lab.report.tutorials docs/tutorials/circle.md   # one; README.md is such a page, too

A tutorial is a Markdown page. Its blocks ```` ```python ```` are one program. A block ```` ```text ```` directly under
one of them is what that block prints. Pictures that the program saves go to ``images/tutorials`` beside the folder of
the page; ink in SVG pictures is dark in the light theme and light in the dark one. The command rewrites outputs and
pictures; the test runs the pages and compares the outputs with ``agrees``.
"""

from __future__ import annotations

import io
import math
import os
import re
import sys
import tempfile
import textwrap
import types
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt

from casal_lab.drawing import styled

STYLE: Any = {"font.size": 10, "savefig.transparent": True, "svg.hashsalt": "casal", "axes.titlesize": 10}
INKS = ("#000000", "#333333")
"""Colours of text, axes and exact curves: they follow the theme of the site."""
THEMES = (
    "<style>svg { --ink: #1c2430; } "
    "@media (prefers-color-scheme: dark) { svg { --ink: #e8ebef; } }</style>"
)  # fmt: skip

CLOSE = 0.05
"""Share by which a printed number may differ: other processors round differently, and networks amplify it."""
COLUMNS = 80
"""Width of a code block of the site: longer lines of output are broken."""
ROUNDING = 1e-10
"""Numbers below it are rounding, and equal."""

_BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<printed>.*?)```\n)?", re.DOTALL)
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


class Block(NamedTuple):
    """A piece of the program of a page.

    Attributes:
        code: Python.
        printed: What the page says that it prints; None if the page shows no output.
        line: Line of the page above the code.
    """

    code: str
    printed: str | None
    line: int


def blocks(page: str) -> list[Block]:
    """The program of a page, piece by piece."""
    return [
        Block(found["code"], found["printed"], page.count("\n", 0, found.start()) + 1)
        for found in _BLOCK.finditer(page)
    ]


def run(page: str, folder: Path, name: str = "tutorial") -> list[str]:
    """What each block prints, run in order in one namespace, with ``folder`` as the working directory."""
    printed = []
    with _inside(folder), _module(f"tutorial_{name}") as known, styled(), plt.rc_context(STYLE):
        for block in blocks(page):
            # Empty lines put the code on its line of the page, for tracebacks.
            program = compile("\n" * block.line + block.code, f"{name}.md", "exec")
            with redirect_stdout(io.StringIO()) as out:
                exec(program, known)
            printed.append(out.getvalue())
    return printed


def agrees(told: str, found: str) -> bool:
    """Whether two outputs are the same: equal words, numbers equal up to CLOSE.

    Lines with the seconds of a run do not count, nor where lines are broken.

    >>> agrees("share 0.734, violation 2.2e-16", "share 0.735, violation 4.4e-16")
    True
    >>> agrees("trusted 0.73", "trusted 0.93"), agrees("trusted 0.73", "suspect 0.73")
    (False, False)
    """
    told, found = ("\n".join(_lasting(text)) for text in (told, found))
    return _NUMBER.sub("#", told).split() == _NUMBER.sub("#", found).split() and all(
        math.isclose(a, b, rel_tol=CLOSE, abs_tol=ROUNDING)
        for a, b in zip(map(float, _NUMBER.findall(told)), map(float, _NUMBER.findall(found)), strict=True)
    )


def _lasting(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines() if not line.startswith("seconds")]


def wrapped(line: str) -> str:
    """A line of output in lines of at most COLUMNS, the later ones below its second column or indented by two.

    >>> print(wrapped("constraint  all samples are feasible; " + "the largest violation " * 3 + "is 2e-16"))
    constraint  all samples are feasible; the largest violation the largest
                violation the largest violation is 2e-16
    """
    if len(line) <= COLUMNS:
        return line
    second = re.match(r"\w+(?: \w+)? {2,}(?=\S)", line)
    return textwrap.fill(
        line,
        COLUMNS,
        subsequent_indent=" " * (second.end() if second else 2),
        break_long_words=False,
        break_on_hyphens=False,
    )


def rewritten(page: str, printed: list[str]) -> str:
    """The page with the output of its blocks, where it shows one, without the seconds of a run."""
    found = iter(printed)

    def block(match: re.Match[str]) -> str:
        text = "\n".join(map(wrapped, _lasting(next(found))))
        return match[0] if match["printed"] is None else f"```python\n{match['code']}```\n\n```text\n{text}\n```\n"

    return _BLOCK.sub(block, page)


def themed(svg: str) -> str:
    """An SVG picture whose ink follows the theme of the reader, without the date of its making."""
    svg = re.sub(r" *<metadata>.*?</metadata>\n", "", svg, flags=re.DOTALL)
    for ink in INKS:
        svg = svg.replace(ink, "var(--ink)")
    return re.sub(r"(<svg [^>]*>)", lambda found: f"{found[1]}\n{THEMES}", svg, count=1)


@contextmanager
def _module(name: str) -> Iterator[dict[str, Any]]:
    """The namespace of a new module, which dataclasses look up while it runs."""
    sys.modules[name] = types.ModuleType(name)
    try:
        yield sys.modules[name].__dict__
    finally:
        del sys.modules[name]


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Work in a folder, as a reader who runs the page there."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def main(pages: list[Path]) -> None:
    """Rewrite the outputs and pictures of the pages."""
    for path in pages:
        pictures = path.parent.parent / "images" / "tutorials"
        page = path.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as name:
            printed = run(page, Path(name), path.stem)
            path.write_text(rewritten(page, printed), encoding="utf-8")
            for picture in sorted(Path(name).glob("*.svg")):
                text = themed(picture.read_text(encoding="utf-8"))
                pictures.mkdir(parents=True, exist_ok=True)
                (pictures / picture.name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    given = Path(sys.argv[1])
    main(sorted(given.glob("*.md")) if given.is_dir() else [given])
