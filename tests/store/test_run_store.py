"""The folder of a run alone: arrays and records go in and come out to the same bits, or with a named error."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from casal.errors import StoreError
from casal.store import RunStore

pytest.importorskip("zarr")

IDENTITY = {"n": 5, "tile": 3}
BOUNDS = [(0, 3), (3, 5)]


def arrays(start: int, stop: int, dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    stream = torch.Generator().manual_seed(start)
    samples = torch.randn((stop - start, 1, 2), generator=stream, dtype=torch.float64)
    return {"posterior/samples": samples, "state/x": samples[:, 0].to(dtype)}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_tiles_come_back_as_they_went_in(tmp_path: Path, dtype: torch.dtype) -> None:
    store = RunStore(tmp_path / "run", IDENTITY, BOUNDS)
    assert store.done() == []
    for index, (start, stop) in enumerate(BOUNDS):
        store.write(index, arrays(start, stop, dtype), {"steps": 7})
        assert store.done() == list(range(index + 1))
    again = RunStore(tmp_path / "run", IDENTITY, BOUNDS, mode="r")
    for index, (start, stop) in enumerate(BOUNDS):
        found, record = again.read(index)
        expected = arrays(start, stop, dtype)
        assert record["steps"] == 7 and record["chains"] == [start, stop]
        assert found.keys() == expected.keys()
        assert all(
            torch.equal(found[name], part) and found[name].dtype == part.dtype for name, part in expected.items()
        )


def test_checkpoints_come_back_and_go_when_the_run_ends(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "run", IDENTITY, BOUNDS)
    assert store.read_checkpoint() is None
    parts = {"generator": torch.Generator().manual_seed(3).get_state(), "0/state/x": torch.randn(3, 2)}
    store.write_checkpoint(parts, {"leg": 4})
    found = RunStore(tmp_path / "run", IDENTITY, BOUNDS).read_checkpoint()
    assert found is not None and found[1]["leg"] == 4
    assert all(torch.equal(found[0][name], part) for name, part in parts.items())
    store.finish({"cost": [1.0, 2.0, 3.0]})
    assert store.read_checkpoint() is None and store.attributes["cost"] == [1.0, 2.0, 3.0]


def test_another_run_and_damage_are_named(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "run", IDENTITY, BOUNDS)
    store.write(0, arrays(0, 3), {"steps": 7})
    with pytest.raises(StoreError, match=r"holds another run.*\n  n: 5 in the store, 6 now"):
        RunStore(tmp_path / "run", {"n": 6, "tile": 3}, BOUNDS)
    store.root["state/x"][1] = 9.0
    with pytest.raises(StoreError, match=r"tile 0 \(chains 0 to 3\) .* is damaged"):
        store.read(0)
