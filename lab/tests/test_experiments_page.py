"""docs/reproduce.md lists every experiment of the registry, in its order."""

from __future__ import annotations

import re
from pathlib import Path

from casal_lab.experiments import EXPERIMENTS

PAGE = Path(__file__).parents[2] / "docs" / "reproduce.md"


def test_the_page_lists_every_experiment() -> None:
    told = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert told == list(EXPERIMENTS)[: len(told)]
    assert set(told) == {name for name, entry in EXPERIMENTS.items() if entry.module.startswith("casal_lab.")}
