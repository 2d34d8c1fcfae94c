"""The folder of a run alone: arrays and records go in and come out to the same bits, or with a named error."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from casal.errors import StoreError
from casal.store import RunStore, open_tree
from casal.store.files import draft_of, sealed
from casal.store.run_store import CHECKPOINT, JOURNAL

zarr = pytest.importorskip("zarr")

IDENTITY = {"seed": 1}
CHAINS, BATCH = 5, 3


def opened(folder: Path) -> RunStore:
    return RunStore(folder / "run", IDENTITY, CHAINS, BATCH)


def arrays(start: int, stop: int, dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    stream = torch.Generator().manual_seed(start)
    samples = torch.randn((stop - start, 1, 2), generator=stream, dtype=torch.float64)
    return {"posterior/samples": samples, "state/x": samples[:, 0].to(dtype)}


def record(folder: Path, index: int = 0) -> Path:
    return folder / "run" / JOURNAL / f"batch-{index:06d}.json"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_batches_come_back_as_they_went_in(tmp_path: Path, dtype: torch.dtype) -> None:
    store = opened(tmp_path)
    assert store.done() == [] and not store.begun() and store.count == 2
    for index in range(store.count):
        store.write(index, arrays(*store.bounds(index), dtype), {"steps": 7})
        assert store.done() == list(range(index + 1)) and store.begun()
    again = RunStore.reading(tmp_path / "run")
    for index in range(store.count):
        found, about = again.read(index)
        expected = arrays(*store.bounds(index), dtype)
        assert about["steps"] == 7 and about["chains"] == list(store.bounds(index))
        assert found.keys() == expected.keys()
        assert all(
            torch.equal(found[name], part) and found[name].dtype == part.dtype for name, part in expected.items()
        )


def test_checkpoints_come_back_and_go_when_the_run_ends(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert store.read_arrays(CHECKPOINT) is None
    parts = {"generator": torch.Generator().manual_seed(3).get_state(), "0/state/x": torch.randn(3, 2)}
    store.write_arrays(CHECKPOINT, parts, {"stage": 4})
    store = opened(tmp_path)
    found = store.read_arrays(CHECKPOINT)
    assert found is not None and found[1]["stage"] == 4 and store.begun()
    assert all(torch.equal(found[0][name], part) for name, part in parts.items())
    store.finish({"cost": [1.0, 2.0, 3.0]})
    assert store.read_arrays(CHECKPOINT) is None and store.attributes["cost"] == [1.0, 2.0, 3.0]
    assert RunStore.reading(tmp_path / "run").attributes == store.attributes


def test_another_run_and_damage_are_named(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.write(0, arrays(0, 3), {"steps": 7})
    with pytest.raises(StoreError, match=r"holds another run.*\n  n: 5 in the store, 4 now"):
        RunStore(tmp_path / "run", IDENTITY, 4, BATCH)
    store.root["state/x"][1] = 9.0
    with pytest.raises(StoreError, match=r"batch 0 \(chains 0 to 3\) .* is damaged"):
        store.read(0)


def _changed(**entries: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda data: sealed({**data, **entries})


MALFORMED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a list": lambda data: [data],
    "no seal": lambda data: {name: value for name, value in data.items() if name != "seal"},
    "another seal": lambda data: {**data, "seal": "0" * 64},
    "changed without a new seal": lambda data: {**data, "steps": 8},
    "no arrays": lambda data: sealed({name: value for name, value in data.items() if name != "arrays"}),
    "no checksum": lambda data: sealed({name: value for name, value in data.items() if name != "checksum"}),
    "other chains": _changed(chains=[0, 4]),
    "chains of text": _changed(chains="0 to 3"),
    "arrays in a list": _changed(arrays=[["posterior/samples", "torch.float64", [3, 1, 2]]]),
    "an array elsewhere": _changed(arrays={"../other": ["torch.float64", [3, 1, 2]]}),
    "an array that is not there": _changed(arrays={"state/lam": ["torch.float64", [3, 2]]}),
    "a dtype that torch has not": _changed(arrays={"posterior/samples": ["torch.nn", [3, 1, 2]]}),
    "another dtype": _changed(arrays={"posterior/samples": ["torch.float32", [3, 1, 2]]}),
    "a shape of text": _changed(arrays={"posterior/samples": ["torch.float64", "3, 1, 2"]}),
    "a huge shape": _changed(arrays={"posterior/samples": ["torch.float64", [3, 1, 10**12]]}),
    "a shape below zero": _changed(arrays={"posterior/samples": ["torch.float64", [3, 1, -2]]}),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_records_are_named(name: str, tmp_path: Path) -> None:
    opened(tmp_path).write(0, arrays(0, 3), {"steps": 7})
    place = record(tmp_path)
    place.write_text(json.dumps(MALFORMED[name](json.loads(place.read_text()))))
    with pytest.raises(StoreError, match=r"damaged.*(remove|[Rr]estore)"):
        RunStore.reading(tmp_path / "run").read(0)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"null", b'{"attributes": []}', b"{}"])
@pytest.mark.parametrize("file", ["zarr.json", "provenance/zarr.json", "state/zarr.json", "state/x/zarr.json"])
def test_garbage_in_place_of_metadata_is_named(file: str, content: bytes, tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.write(0, arrays(0, 3), {"steps": 7})
    (tmp_path / "run" / file).write_bytes(content)
    for way in (lambda: RunStore.reading(tmp_path / "run"), lambda: opened(tmp_path)):
        try:
            found = way().read(0)[0]
        except StoreError:
            continue
        assert file in ("zarr.json", "state/zarr.json")  # which zarr needs not, or not all of it, to read an array
        assert all(torch.equal(found[name], part) for name, part in arrays(0, 3).items())


@pytest.mark.parametrize(
    "file",
    ["zarr.json", "provenance/zarr.json", "provenance/batches/zarr.json", "state/zarr.json", "state/x/zarr.json"],
)
def test_missing_metadata_is_named(file: str, tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.write(0, arrays(0, 3), {"steps": 7})
    (tmp_path / "run" / file).unlink()
    with pytest.raises(StoreError):
        opened(tmp_path).read(0)


@pytest.mark.parametrize("entry", [{"n": 0}, {"n": "5"}, {"n": True}, {"batch": 6}, {"batch": 2.5}, {"batch": None}])
def test_counts_that_cannot_be_are_named(entry: dict[str, Any], tmp_path: Path) -> None:
    opened(tmp_path).close()
    place = tmp_path / "run" / "provenance" / "zarr.json"
    document = json.loads(place.read_text())
    document["attributes"]["identity"].update(entry)
    document["attributes"] = sealed(document["attributes"])
    place.write_text(json.dumps(document))
    with pytest.raises(StoreError, match="is damaged: batches of"):
        RunStore.reading(tmp_path / "run")


def test_only_records_on_disk_are_looked_at_however_many_batches_are_claimed(tmp_path: Path) -> None:
    opened(tmp_path).write(0, arrays(0, 3), {"steps": 7})
    place = tmp_path / "run" / "provenance" / "zarr.json"
    document = json.loads(place.read_text())
    document["attributes"]["identity"].update(n=10**12, batch=1)
    document["attributes"] = sealed(document["attributes"])
    place.write_text(json.dumps(document))
    store = RunStore.reading(tmp_path / "run")
    assert store.count == 10**12 and store.done() == [0]
    with pytest.raises(StoreError):
        store.read(0)


def test_a_record_beyond_the_last_batch_is_named(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.write(0, arrays(0, 3), {"steps": 7})
    record(tmp_path, 2).write_bytes(record(tmp_path).read_bytes())
    with pytest.raises(StoreError, match=r"batch 2, but its 5 chains make 2; remove .*batch-000002.json"):
        store.done()


def test_a_damaged_description_is_found_before_a_batch_is_written_to_it(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.write(0, arrays(0, 3), {"steps": 7})
    place = tmp_path / "run" / "state" / "x" / "zarr.json"
    place.write_text(place.read_text().replace("float64", "float32"))
    with opened(tmp_path) as store, pytest.raises(StoreError, match=r"zarr.json is damaged: it describes float32"):
        store.write(1, arrays(3, 5), {"steps": 7})


@pytest.mark.parametrize("index", [0, 1])
def test_a_batch_whose_record_was_removed_is_written_over_its_damaged_chunks(index: int, tmp_path: Path) -> None:
    """The way out that the message gives."""
    store = opened(tmp_path)
    for k in range(2):
        store.write(k, arrays(*store.bounds(k)), {})
    chunk = tmp_path / "run" / "state" / "x" / "c" / str(index) / "0"
    chunk.write_bytes(b"garbage")
    with pytest.raises(
        StoreError, match=rf"remove batch-00000{index}.json in provenance/batches to run that batch again"
    ):
        store.read(index)
    record(tmp_path, index).unlink()
    store.write(index, arrays(*store.bounds(index)), {})
    assert torch.equal(store.read(index)[0]["state/x"], arrays(*store.bounds(index))["state/x"])


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.write_arrays(CHECKPOINT, {"x": torch.arange(40.0)}, {"stage": 1})
    place = tmp_path / "run" / JOURNAL / "checkpoint.npz"
    content = place.read_bytes()
    for k in range(0, len(content), 7):
        place.write_bytes(content[:k] + bytes([content[k] ^ 1]) + content[k + 1 :])
        try:
            found = store.read_arrays(CHECKPOINT)
        except StoreError as error:
            assert "remove checkpoint.npz in provenance/batches" in str(error)
        else:
            assert found is not None and torch.equal(found[0]["x"], torch.arange(40.0)) and found[1]["stage"] == 1
    np.savez(place, about=np.frombuffer(b"[]", dtype=np.uint8))
    with pytest.raises(StoreError, match="begin again"):
        store.read_arrays(CHECKPOINT)


def test_drafts_of_ended_processes_go_when_the_store_is_opened_for_writing(tmp_path: Path, ended: int) -> None:
    with opened(tmp_path) as store:
        store.write(0, arrays(0, 3), {})
    mine = draft_of(tmp_path / "run")
    name, _, number = mine.name.rpartition(f"-{os.getpid()}-")
    inside = [
        record(tmp_path).with_name(f"{draft_of(record(tmp_path)).name.rpartition('-')[0]}-0"),
        record(tmp_path).with_name(f".batch-000000.json.elsewhere-{ended}-0"),
        tmp_path / "run" / "state" / "x" / "c" / "0" / "0.abc.partial",
    ]
    beside = [mine.with_name(f"{name}-{ended}-{number}"), mine, mine.with_name(f".run.elsewhere-{ended}-0")]
    for place in inside:
        place.write_text("half")
    for place in beside:
        (place / "state").mkdir(parents=True)
    foreign = tmp_path / f".other{name.removeprefix('.run')}-{ended}-0"
    foreign.mkdir()
    RunStore.reading(tmp_path / "run")
    assert all(place.exists() for place in (*inside, *beside))  # reading changes nothing
    opened(tmp_path).close()
    assert [place.exists() for place in inside] == [True, False, False]  # the first is of this process, which lives
    assert [place.exists() for place in beside] == [False, True, True] and foreign.exists()
    assert not list(tmp_path.rglob("lock.json"))


def test_trees_that_cannot_be_opened_are_named(tmp_path: Path) -> None:
    pytest.importorskip("xarray")
    with opened(tmp_path) as store:
        store.write(0, arrays(0, 3), {})
    with open_tree(tmp_path / "run") as tree:
        assert tree["posterior"]["samples"].shape == (CHAINS, 1, 2)
    (tmp_path / "run" / "state" / "x" / "zarr.json").write_text("{")
    for place in (tmp_path / "run", tmp_path / "nothing"):
        with pytest.raises(StoreError, match=str(place)):
            open_tree(place)


def test_a_zarr_store_of_another_program_is_left_alone(tmp_path: Path) -> None:
    zarr.create_group(tmp_path / "run")
    before = sorted(path.name for path in (tmp_path / "run").rglob("*"))
    for way in (lambda: RunStore.reading(tmp_path / "run"), lambda: opened(tmp_path)):
        with pytest.raises(StoreError, match="a zarr store, but not of a casal run"):
            way()
    assert sorted(path.name for path in (tmp_path / "run").rglob("*")) == before
