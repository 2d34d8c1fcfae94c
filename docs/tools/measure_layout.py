"""Measure the layout of the built site in Chromium, and fail if something is cut off.

    python docs/tools/measure_layout.py site

Every page but the reference is opened on a wide and on a narrow screen. On both, no page may be wider than the
screen, what is wider than the text must scroll in a box of its own that shows so, the first column of a table stays
while the others scroll, and no name in a table may be broken over lines. On the wide screen the article has at least
900 pixels and no code scrolls.
"""

from __future__ import annotations

import functools
import http.server
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WIDE, NARROW = 1400, 390
ARTICLE = 900
COUNTS = {
    "code": "blocks of code",
    "scrolling_code": "that scroll",
    "cut_code": "cut off",
    "tables": "tables",
    "scrolling_tables": "that scroll",
    "cut_tables": "cut off",
    "loose": "whose first column scrolls away",
    "broken": "names broken in cells",
    "overflow": "pages wider than the screen",
}
SCRIPT = """() => {
  const article = document.querySelector("article");
  const wide = (box) => box.scrollWidth > box.clientWidth + 1;
  const marked = (box) => {
    const style = getComputedStyle(box);
    return /auto|scroll/.test(style.overflowX) && style.backgroundImage.includes("gradient");
  };
  const code = [...article.querySelectorAll("pre > code")];
  const tables = [...article.querySelectorAll("table:not([class])")];
  const boxes = tables.map((table) => table.closest(".md-typeset__scrollwrap") || table);
  const loose = boxes.filter((box, i) => {
    box.scrollLeft = 60;
    const gone = tables[i].rows[0].cells[0].getBoundingClientRect().left < box.getBoundingClientRect().left - 1;
    box.scrollLeft = 0;
    return gone;
  });
  const broken = [...article.querySelectorAll("td code, th code")].filter((name) => name.getClientRects().length > 1);
  return {
    article: article.clientWidth,
    code: code.length,
    scrolling_code: code.filter(wide).length,
    cut_code: code.filter((box) => wide(box) && !marked(box)).length,
    tables: tables.length,
    scrolling_tables: boxes.filter(wide).length,
    cut_tables: boxes.filter((box) => wide(box) && !marked(box)).length,
    loose: loose.length,
    broken: broken.length,
    overflow: document.documentElement.scrollWidth > innerWidth ? 1 : 0,
  };
}"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A server without a log."""

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def served(site: Path) -> Iterator[str]:
    """The address of the site while it is served on this machine."""
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def measured(site: Path, width: int) -> dict[str, dict[str, int]]:
    """The counts of every page on a screen of this width."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        raise SystemExit("there is no Chromium: apt-get install chromium")
    paths = sorted(path.parent.relative_to(site).as_posix() for path in site.rglob("index.html"))
    found = {}
    with served(site) as address, sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 1000})
        for path in paths:
            if path != "api":
                page.goto(f"{address}/{path}/")
                page.wait_for_timeout(100)  # the theme puts tables into their boxes
                found[path] = page.evaluate(SCRIPT)
        browser.close()
    return found


def wrong(counts: dict[str, int], width: int) -> list[str]:
    """What is not as it should be on a page."""
    names = ["cut_code", "cut_tables", "loose", "broken", "overflow", *(["scrolling_code"] if width == WIDE else [])]
    told = [f"{counts[name]} {name}" for name in names if counts[name]]
    return told + ([f"article {counts['article']} px"] if width == WIDE and counts["article"] < ARTICLE else [])


def main(site: Path) -> int:
    """Print the counts at both widths and name the pages that fail."""
    failed = 0
    for width in (WIDE, NARROW):
        pages = measured(site, width)
        narrowest = min(counts["article"] for counts in pages.values())
        print(f"{width} px: {len(pages)} pages, article {narrowest} px")
        for name, words in COUNTS.items():
            print(f"  {sum(counts[name] for counts in pages.values()):5} {words}")
        for path, counts in pages.items():
            if told := wrong(counts, width):
                failed += 1
                print(f"  {path}: {', '.join(told)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
