"""A run on disk: every tile in a place of its own, with a record that says it is whole."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from casal.errors import CasalWarning, StoreError
from casal.methods import Usage
from casal.result import SampleResult
from casal.store.arrays import create, digest, packed, read, unpacked, zarr_module
from casal.store.files import named_errors, read_json, write_json, write_whole
from casal.store.identity import machine, refuse_other
from casal.tiles import Tile
from casal.trace import Trace

FORMAT = 1
JOURNAL = "provenance/tiles"
"""An array that counts the chains of every tile on disk; its folder holds the records too, where no reader trips."""

CHECKPOINT_SECONDS = 10.0
"""Least time between two checkpoints of chains that meet."""


class RunStore:
    """The folder of one run, a zarr hierarchy (format 3) that xarray opens as a tree:

        posterior/samples      (chain, draw, *event)   what the run returns
        sample_stats/...       (chain, draw)           violation, steps, log_weight
        state/...              (chain, ...)            the last state of the method
        provenance             attributes: identity, settings, versions, machine, timings

    A tile is written to its own chunks first and to the journal last, in one atomic move of a small file with a
    checksum: a tile that was torn has no record and is run again.

    Args:
        path: The folder.
        identity: What must be the same for a run to be continued.
        tiles: The tiles of the run.
        mode: "r+", or "r" for reading only.
    """

    def __init__(self, path: str | Path, identity: Mapping[str, Any], tiles: Sequence[Tile], mode: str = "r+") -> None:
        self.path, self.tiles = Path(path), tiles
        self._lock, self._began = Lock(), time.perf_counter()
        self._saved = self._began
        zarr = zarr_module()
        wanted = json.loads(json.dumps({**identity, "format": FORMAT}))
        with named_errors(self.path):
            if not (self.path / "zarr.json").exists():
                self._begin(wanted)
            self.root = zarr.open_group(self.path, mode=mode)
            if "provenance" not in self.root or "identity" not in self.root["provenance"].attrs:
                raise StoreError(f"{self.path} is a zarr store, but not of a casal run; choose another path")
            refuse_other(self.path, dict(self.root["provenance"].attrs["identity"]), wanted)

    def _begin(self, identity: Mapping[str, Any]) -> None:
        """An empty store, made beside its place and moved there in one go."""
        if self.path.exists() and any(self.path.iterdir()):
            raise StoreError(f"{self.path} exists and is not a store; nothing was changed, choose another path")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        root = zarr_module().open_group(draft, mode="w", zarr_format=3)
        for name in ("posterior", "sample_stats", "state"):
            root.create_group(name)
        about = {"identity": dict(identity), "machine": machine(), "began": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        root.create_group("provenance", attributes=about).create_array(
            "tiles", shape=(len(self.tiles),), chunks=(1,), dtype=np.int64, fill_value=0, dimension_names=["tile"]
        )
        draft.replace(self.path)

    def done(self) -> list[int]:
        """The tiles that are on disk."""
        return [tile.index for tile in self.tiles if self._record(tile.index).exists()]

    def write(self, tile: Tile, samples: Tensor, violation: Tensor) -> None:
        """Put a finished tile on disk."""
        state = _parts(tile.state)
        chains = {name: part for name, part in state.items() if part.ndim}
        arrays = {f"state/{name}": part for name, part in chains.items()}
        arrays["posterior/samples"] = samples[:, None]
        arrays["sample_stats/violation"] = violation[:, None]
        arrays["sample_stats/steps"] = torch.full((len(tile), 1), tile.steps)
        if "log_weight" in chains:
            arrays["sample_stats/log_weight"] = chains["log_weight"][:, None]
        record = {
            "chains": [tile.start, tile.stop],
            "steps": tile.steps,
            "usage": [tile.usage.scores, tile.usage.projections],
            "trace": tile.trace.plain(),
            "common": {name: [str(part.dtype), part.item()] for name, part in state.items() if not part.ndim},
            "fields": list(state),
            "checksum": digest(arrays),
            "seconds": time.perf_counter() - self._began,
        }
        with named_errors(self.path):
            self._create(arrays)
            for name, part in arrays.items():
                self.root[name][tile.start : tile.stop] = packed(part)
            write_json(self._record(tile.index), record)
            self.root[JOURNAL][tile.index] = len(tile)

    def restore(self, tile: Tile, kind: Any) -> None:
        """Bring a tile back as it was when it was written; ``kind`` is the class of the state."""
        record, arrays = self.read(tile.index)
        parts = {name: arrays[f"state/{name}"] for name in record["fields"] if f"state/{name}" in arrays}
        for name, (dtype, value) in record["common"].items():
            parts[name] = torch.tensor(value, dtype=getattr(torch, dtype.removeprefix("torch.")))
        device = tile.generator.device
        tile.state = kind(*(parts[name].to(device) for name in record["fields"]))
        tile.steps, tile.usage = record["steps"], Usage(*record["usage"])
        tile.trace = Trace.from_plain(record["trace"])

    def read(self, index: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The record of a tile and its arrays, checked against the checksum."""
        record = read_json(self._record(index))
        start, stop = record["chains"]
        arrays = {
            f"{group}/{name}": read(array, start, stop, self.path)
            for group in ("posterior", "sample_stats", "state")
            for name, array in self.root[group].arrays()
        }
        if digest(arrays) != record["checksum"]:
            raise StoreError(
                f"tile {index} (chains {start} to {stop}) of {self.path} is damaged: its checksum does not fit; "
                f"nothing was changed. Restore it from a copy, or remove {self._record(index).name} in {JOURNAL} "
                "to run it again"
            )
        return record, arrays

    def checkpoint(self, segment: int, trace: Trace, usage: Usage, common: torch.Generator) -> None:
        """Keep the states of chains that meet, at most every CHECKPOINT_SECONDS."""
        if time.perf_counter() - self._saved < CHECKPOINT_SECONDS:
            return
        about = {
            "segment": segment,
            "trace": trace.plain(),
            "usage": [usage.scores, usage.projections],
            "tiles": [[t.steps, t.usage.scores, t.usage.projections, t.trace.plain()] for t in self.tiles],
            "dtypes": {name: str(part.dtype) for name, part in _parts(self.tiles[0].state).items()},
        }
        arrays: dict[str, Any] = {"about": np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)}
        arrays["common"] = common.get_state().numpy()
        for tile in self.tiles:
            arrays[f"{tile.index}/generator"] = tile.generator.get_state().numpy()
            for name, part in _parts(tile.state).items():
                arrays[f"{tile.index}/state/{name}"] = packed(part)
        with named_errors(self.path):
            write_whole(self._checkpoint, lambda file: np.savez(file, **arrays))
        self._saved = time.perf_counter()

    def resume(self, kind_of: Callable[[], Any], trace: Trace, usage: Usage, common: torch.Generator) -> int:
        """Bring all tiles back to the last checkpoint; the segment to go on with (0: there is none)."""
        if not self._checkpoint.exists():
            return 0
        kind = kind_of()
        try:
            with np.load(self._checkpoint, allow_pickle=False) as kept:
                arrays = {name: kept[name] for name in kept.files}
                about = json.loads(arrays["about"].tobytes())
        except Exception as error:  # zip files and arrays raise many kinds
            raise StoreError(
                f"the checkpoint of {self.path} is damaged ({error}); remove {self._checkpoint.name} in {JOURNAL} to "
                "begin again"
            ) from error
        for tile, (steps, scores, projections, records) in zip(self.tiles, about["tiles"], strict=True):
            device, mine = tile.generator.device, f"{tile.index}/state/"
            parts = [unpacked(arrays[mine + name], dtype).to(device) for name, dtype in about["dtypes"].items()]
            tile.state, tile.steps, tile.usage = kind(*parts), steps, Usage(scores, projections)
            tile.trace = Trace.from_plain(records)
            tile.generator.set_state(torch.from_numpy(arrays[f"{tile.index}/generator"]))
        common.set_state(torch.from_numpy(arrays["common"]))
        trace.absorb(Trace.from_plain(about["trace"]))
        usage.absorb(Usage(*about["usage"]))
        return int(about["segment"])

    def finish(self, result: SampleResult, trace: Trace, usage: Usage) -> None:
        """Keep what only the whole run knows, or say how to go on if it was interrupted."""
        if result.partial:
            warnings.warn(
                f"interrupted: {len(self.done())} of {len(self.tiles)} tiles are in {self.path}; repeat the same call "
                "to go on from there",
                CasalWarning,
                stacklevel=4,
            )
            return
        with named_errors(self.path):
            attributes = self.root["provenance"].attrs
            cost = [result.cost.score_evaluations, result.cost.projections, result.cost.seconds]
            meetings = {"trace": trace.plain(), "usage": [usage.scores, usage.projections]}
            about = {"run": dict(result.provenance), "cost": cost, "exchanges": meetings}
            attributes.update(json.loads(json.dumps(about, default=str)))
            self._checkpoint.unlink(missing_ok=True)

    def exchanges(self) -> tuple[Trace, Usage]:
        """Records and use of the exchanges of a finished run."""
        stored = dict(self.root["provenance"].attrs).get("exchanges")
        return (Trace(), Usage()) if stored is None else (Trace.from_plain(stored["trace"]), Usage(*stored["usage"]))

    @property
    def _checkpoint(self) -> Path:
        return self.path / JOURNAL / "checkpoint.npz"

    def _record(self, index: int) -> Path:
        return self.path / JOURNAL / f"tile-{index:06d}.json"

    def _create(self, arrays: Mapping[str, Tensor]) -> None:
        with self._lock:
            chains, chunk = self.tiles[-1].stop, len(self.tiles[0])
            for name, part in arrays.items():
                group, _, short = name.partition("/")
                if short not in self.root[group]:
                    rest = [f"event_{k}" for k in range(part.ndim)]
                    dims = ["chain", *rest] if group == "state" else ["chain", "draw", *rest]
                    create(self.root[group], short, part, chains, chunk, dims)


def _parts(state: Any) -> dict[str, Tensor]:
    return dict(zip(state._fields, state, strict=True))
