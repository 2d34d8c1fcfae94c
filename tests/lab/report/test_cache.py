"""Outcomes on disk, and which programs make them outdated."""

from __future__ import annotations

from pathlib import Path

from casal.lab.report import cache

from .bench import COLUMNS, ROWS, Bench, outcome_of


def test_an_outcome_survives_its_file(tmp_path: Path, bench: Bench) -> None:
    saved = cache.save(tmp_path, bench.registry["alpha"], True, outcome_of("alpha", True))
    loaded = cache.load(tmp_path, "alpha", True, bench.registry["alpha"])
    assert loaded is not None
    assert loaded.current
    assert loaded.stamp == saved.stamp
    assert list(loaded.outcome.claims) == list(saved.outcome.claims)
    assert loaded.outcome.tables[0].rows == ROWS
    assert list(loaded.outcome.tables[0].columns) == list(COLUMNS)
