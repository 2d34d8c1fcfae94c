"""Outcomes on disk, and which programs make them outdated."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from casal.errors import CasalWarning
from casal_lab.report import cache
from casal_lab.report.page import write_page
from casal_lab.report.reproduce import reproduce

from .bench import COLUMNS, ROWS, Bench, call, motion_of, outcome_of


def records(out: Path) -> Path:
    return out / "quick" / "alpha" / "record.json"


def changed(path: Path, **fields: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **fields}), encoding="utf-8")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "record truncated": lambda path: path.write_bytes(path.read_bytes()[:-20]),
    "record of bytes": lambda path: path.write_bytes(b"\xff\x00"),
    "record of another kind": lambda path: path.write_text("[1, 2]", encoding="utf-8"),
    "field missing": lambda path: path.write_text('{"key": "a"}', encoding="utf-8"),
    "made is nothing": lambda path: changed(path, made=None),
    "quick is a word": lambda path: changed(path, quick="no"),
    "pictures of numbers": lambda path: changed(path, pictures=[3]),
    "picture elsewhere": lambda path: changed(path, pictures=["../../../secret.png"]),
    "picture missing": lambda path: (path.parent / "alpha_small.png").unlink(),
    "picture damaged": lambda path: (path.parent / "alpha_small.png").write_bytes(b"no picture"),
    "results missing": lambda path: (path.parent / "results.json").unlink(),
    "results truncated": lambda path: (path.parent / "results.json").write_text("{", encoding="utf-8"),
    "results of another kind": lambda path: (path.parent / "results.json").write_text("3", encoding="utf-8"),
    "claims of another kind": lambda path: changed(path.parent / "results.json", claims=[{"text": []}]),
    "cells of another kind": lambda path: changed(
        path.parent / "results.json",
        tables=[{"title": "a", "columns": [{"key": "b", "label": "b", "style": "no"}], "rows": [{"b": 1.0}]}],
    ),
    "motions missing": lambda path: (path.parent / "motions.json").unlink(),
    "motions truncated": lambda path: (path.parent / "motions.json").write_text("[{", encoding="utf-8"),
    "motions of another kind": lambda path: (path.parent / "motions.json").write_text("[3]", encoding="utf-8"),
    "motions of others": lambda path: (path.parent / "motions.json").write_text("[]", encoding="utf-8"),
    "seconds of nothing": lambda path: changed(path.parent / "results.json", seconds=math.nan),
    "a number without end": lambda path: changed(
        path.parent / "results.json",
        tables=[{"title": "a", "columns": [{"key": "b", "label": "b", "style": ".4g"}], "rows": [{"b": 10**400}]}],
    ),
    "seconds without end": lambda path: changed(path.parent / "results.json", seconds=10**400),
    "records without end": lambda path: (path.parent / "results.json").write_text("[" * 10**5 + "]" * 10**5),
    "motions without end": lambda path: (path.parent / "motions.json").write_text('{"a":' * 10**5),
    "settings deep": lambda path: changed(path.parent / "results.json", settings={"a": nested(900)}),
    "a picture of eight bytes": lambda path: (path.parent / "alpha_small.png").write_bytes(cache.PNG),
    "record empty": lambda path: path.write_bytes(b""),
    "results empty": lambda path: (path.parent / "results.json").write_bytes(b""),
    "partial of another kind": lambda path: changed(path.parent / "results.json", partial={"reason": 3, "part": ""}),
    "drawing of bytes": lambda path: (path.parent / "alpha_small.svg").write_bytes(b"\xff\xfe<svg"),
}


def nested(depth: int) -> object:
    return 0 if depth == 0 else [nested(depth - 1)]


SHOWN = ("settings deep", "drawing of bytes")
"""Damages that only show when the page is made."""


@pytest.mark.parametrize("damage", [name for name in DAMAGES if name not in SHOWN])
def test_a_damaged_outcome_is_left_out_and_made_again(damage: str, tmp_path: Path, bench: Bench) -> None:
    (tmp_path / "secret.png").write_bytes(cache.PNG)
    reproduce(bench.registry, tmp_path, quick=True, only=["alpha"])
    DAMAGES[damage](records(tmp_path))
    with pytest.warns(CasalWarning, match=r"alpha cannot be read .* and is not used; casal reproduce makes it again"):
        page = write_page(bench.registry, tmp_path)
    assert "the files of its outcome are damaged" in page.read_text(encoding="utf-8")
    with pytest.warns(CasalWarning, match="cannot be read"):
        reproduce(bench.registry, tmp_path, quick=True, only=["alpha"])
    assert bench.calls == [("alpha", True)] * 2
    assert cache.load(tmp_path, "alpha", True, bench.registry["alpha"]) is not None


@pytest.mark.filterwarnings("ignore::casal.errors.CasalWarning")
@pytest.mark.parametrize("damage", DAMAGES)
def test_one_damaged_outcome_costs_its_own_card_alone(damage: str, tmp_path: Path, bench: Bench) -> None:
    reproduce(bench.registry, tmp_path, quick=True)
    DAMAGES[damage](records(tmp_path))
    result = call("report", str(tmp_path))
    assert result.exit_code == 0, result.output
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    own = re.search(r'<section class="experiment" id="alpha">.*?</section>', text, re.DOTALL)
    assert own is not None
    assert re.search(r"the files of its outcome are damaged \(.+\)", own[0])
    assert text.count("the files of its outcome are damaged") == 2  # in the table of contents, and on the card
    assert "1 of 2" in text
    assert text.count("± 0.5") == 2  # both rows of beta


def test_an_outcome_survives_its_file(tmp_path: Path, bench: Bench) -> None:
    saved = cache.save(tmp_path, bench.registry["alpha"], True, outcome_of("alpha", True))
    loaded = cache.load(tmp_path, "alpha", True, bench.registry["alpha"])
    assert loaded is not None
    assert loaded.current
    assert loaded.stamp == saved.stamp
    assert list(loaded.outcome.claims) == list(saved.outcome.claims)
    assert loaded.outcome.tables[0].rows == ROWS
    assert list(loaded.outcome.tables[0].columns) == list(COLUMNS)
    assert [motion.record() for motion in loaded.outcome.motions] == [motion_of("alpha").record()]


def test_a_record_from_before_there_were_motions_is_read(tmp_path: Path, bench: Bench) -> None:
    cache.save(tmp_path, bench.registry["alpha"], True, replace(outcome_of("alpha", True), motions=()))
    assert not (tmp_path / "quick" / "alpha" / "motions.json").exists()
    old = json.loads(records(tmp_path).read_text(encoding="utf-8"))
    del old["motions"]
    records(tmp_path).write_text(json.dumps(old), encoding="utf-8")
    loaded = cache.load(tmp_path, "alpha", True, bench.registry["alpha"])
    assert loaded is not None
    assert list(loaded.outcome.motions) == []
