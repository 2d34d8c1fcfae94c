"""Two fake experiments instead of the real ones."""

from __future__ import annotations

import pytest

from casal_lab import cli

from .bench import Bench


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench()
    monkeypatch.setattr(cli, "experiments", lambda modules=(): made.registry)
    return made
