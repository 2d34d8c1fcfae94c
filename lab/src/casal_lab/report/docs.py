"""Put the results of a run into a page of the documentation.

    python -m casal_lab.report.docs out/mixture docs/families.md

The page has a line ``<!-- results of NAME -->`` (of a scene ``<!-- results of NAME, SCENE -->``) and, below it,
``<!-- end of results -->``; what stands between them is replaced by the tables of the run, with its command, the date
and the versions that made them. Its pictures go to ``images`` beside the page.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from itertools import pairwise
from pathlib import Path

END = "<!-- end of results -->"


def results(folder: Path) -> tuple[str, str]:
    """What was run in a folder of ``casal run``, the experiment or its scene, and its results without their title."""
    record = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    chosen = json.loads((folder / "record.json").read_text(encoding="utf-8"))["chosen"]
    text = (folder / "results.md").read_text(encoding="utf-8")
    settings = record["settings"]
    made = [settings["date"]] if "date" in settings else []
    made += [f"{key} {settings[key]}" for key in ("casal", "torch") if key in settings]
    command = settings.get("command", shlex.join(["casal", "run", record["name"], *chosen]))
    took = [f"{record['seconds']:.0f} s"] if record["seconds"] else []
    origin = ", ".join([f"`{command}`", *made, *took]) + "."
    scene = [f", {value}" for option, value in pairwise(chosen) if option == "--scene"]
    return record["name"] + "".join(scene), f"{origin}\n\n{text[text.index('### ') :].strip()}"


def splice(page: str, name: str, block: str) -> str:
    """The page with its block of results replaced."""
    pattern = re.compile(f"(<!-- results of {re.escape(name)} -->\n).*?({END})", re.DOTALL)
    if not pattern.search(page):
        raise ValueError(f"the page has no '<!-- results of {name} -->' followed by '{END}'")
    return pattern.sub(lambda found: f"{found[1]}\n{block}\n\n{found[2]}", page)


def below(page: str, mark: str, text: str) -> str:
    """The page with all that follows a line replaced; for pages that are made from code or from other pages."""
    head, found, _ = page.partition(mark)
    if not found:
        raise ValueError(f"the page has no line {mark.strip()!r}")
    return f"{head}{found}\n{text}"


def main(folder: Path, page: Path) -> None:
    """Rewrite the page and copy the pictures."""
    name, block = results(folder)
    page.write_text(splice(page.read_text(encoding="utf-8"), name, block), encoding="utf-8")
    images = page.parent / "images"
    images.mkdir(exist_ok=True)
    for picture in sorted(folder.glob("*.png")):
        shutil.copyfile(picture, images / picture.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
