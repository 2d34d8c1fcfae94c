"""Things that take minutes to make are made once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from casal.lab.artifacts import points


def test_the_cache_makes_a_thing_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CASAL_CACHE", str(tmp_path / "new"))
    made: list[int] = []

    def make() -> torch.Tensor:
        made.append(1)
        return torch.arange(4.0)

    for _ in range(2):
        torch.testing.assert_close(points("numbers", make), torch.arange(4.0, dtype=torch.float64))
    assert len(made) == 1 and [path.name for path in (tmp_path / "new").iterdir()] == ["numbers.npy"]
