"""A run on disk: every tile in a place of its own, with a record that says it is whole."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from casal.errors import StoreError
from casal.store.files import named_errors, read_json, write_json, write_whole

FORMAT = 1
JOURNAL = "provenance/tiles"
"""An array that counts the chains of every tile on disk; its folder holds the records too, where no reader trips."""

CHECKPOINT_SECONDS = 10.0
"""Least time between two checkpoints of chains that meet."""

LONGEST = 80
"""Characters of a setting that a message shows."""


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
        bounds: First chain of every tile, and the one after its last.
        mode: "r+", or "r" for reading only.
    """

    def __init__(
        self, path: str | Path, identity: Mapping[str, Any], bounds: Sequence[tuple[int, int]], mode: str = "r+"
    ) -> None:
        self.path, self.bounds = Path(path), bounds
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
            "tiles", shape=(len(self.bounds),), chunks=(1,), dtype=np.int64, fill_value=0, dimension_names=["tile"]
        )
        draft.replace(self.path)

    def done(self) -> list[int]:
        """The tiles that are on disk."""
        return [index for index in range(len(self.bounds)) if self._record(index).exists()]

    def write(self, index: int, arrays: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
        """Put a finished tile on disk.

        Args:
            index: Which tile.
            arrays: Tensors (chains of the tile, ...) by their place in the hierarchy, such as "state/x".
            record: JSON data beside them.
        """
        start, stop = self.bounds[index]
        about = {"chains": [start, stop], "checksum": digest(arrays), "seconds": time.perf_counter() - self._began}
        with named_errors(self.path):
            self._create(arrays)
            for name, part in arrays.items():
                self.root[name][start:stop] = packed(part)
            write_json(self._record(index), {**record, **about})
            self.root[JOURNAL][index] = stop - start

    def read(self, index: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The arrays of a tile, checked against the checksum, and its record."""
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
        return arrays, record

    def checkpoint_due(self) -> bool:
        """Whether the last checkpoint is CHECKPOINT_SECONDS old."""
        return time.perf_counter() - self._saved >= CHECKPOINT_SECONDS

    def write_checkpoint(self, arrays: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Keep all chains of a run in the middle of it, in one file, whole or not at all."""
        kept: dict[str, Any] = {name: packed(part) for name, part in arrays.items()}
        dtypes = {name: str(part.dtype) for name, part in arrays.items()}
        kept["about"] = np.frombuffer(json.dumps({**about, "dtypes": dtypes}).encode(), dtype=np.uint8)
        with named_errors(self.path):
            write_whole(self._checkpoint, lambda file: np.savez(file, **kept))
        self._saved = time.perf_counter()

    def read_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """What ``write_checkpoint`` wrote last; None if there is none."""
        if not self._checkpoint.exists():
            return None
        try:
            with np.load(self._checkpoint, allow_pickle=False) as kept:
                about = json.loads(kept["about"].tobytes())
                return {name: unpacked(kept[name], dtype) for name, dtype in about["dtypes"].items()}, about
        except Exception as error:  # zip files and arrays raise many kinds
            raise StoreError(
                f"the checkpoint of {self.path} is damaged ({error}); remove {self._checkpoint.name} in {JOURNAL} to "
                "begin again"
            ) from error

    def finish(self, about: Mapping[str, Any]) -> None:
        """Keep what only the whole run knows, as attributes."""
        with named_errors(self.path):
            self.root["provenance"].attrs.update(json.loads(json.dumps(about, default=str)))
            self._checkpoint.unlink(missing_ok=True)

    @property
    def attributes(self) -> dict[str, Any]:
        """Identity, machine, and what ``finish`` wrote."""
        return dict(self.root["provenance"].attrs)

    @property
    def _checkpoint(self) -> Path:
        return self.path / JOURNAL / "checkpoint.npz"

    def _record(self, index: int) -> Path:
        return self.path / JOURNAL / f"tile-{index:06d}.json"

    def _create(self, arrays: Mapping[str, Tensor]) -> None:
        with self._lock:
            chains, chunk = self.bounds[-1][1], self.bounds[0][1]
            for name, part in arrays.items():
                group, _, short = name.partition("/")
                if short not in self.root[group]:
                    rest = [f"event_{k}" for k in range(part.ndim)]
                    dims = ["chain", *rest] if group == "state" else ["chain", "draw", *rest]
                    create(self.root[group], short, part, chains, chunk, dims)


def zarr_module() -> Any:
    """zarr, or a StoreError that says how to get it."""
    try:
        import zarr
    except ImportError as error:
        raise StoreError("results on disk need the store extra: pip install 'casal[store]'") from error
    return zarr


def packed(tensor: Tensor) -> np.ndarray[Any, Any]:
    """As NumPy, to the same bits; bfloat16, which NumPy lacks, as the float32 that holds it."""
    tensor = tensor.detach().cpu().contiguous()
    return np.asarray((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy())


def unpacked(array: np.ndarray[Any, Any], dtype: str) -> Tensor:
    """The tensor that ``packed`` took, with its dtype."""
    return torch.from_numpy(np.array(array, order="C")).to(getattr(torch, dtype.removeprefix("torch.")))


def digest(parts: Mapping[str, Tensor]) -> str:
    """One checksum of some named tensors."""
    total = hashlib.sha256()
    for name in sorted(parts):
        array = packed(parts[name])
        total.update(f"{name} {array.dtype} {array.shape} ".encode())
        total.update(array.tobytes())
    return total.hexdigest()


def create(group: Any, name: str, like: Tensor, chains: int, chunk: int, dims: list[str]) -> None:
    """An array (chains, *like.shape[1:]) in chunks of ``chunk`` chains; what was not written reads as not a number."""
    example = packed(like[:1])
    shape = (chains, *example.shape[1:])
    group.create_array(
        name,
        shape=shape,
        chunks=(min(chunk, chains), *(max(1, size) for size in shape[1:])),
        dtype=example.dtype,
        fill_value=np.nan if np.issubdtype(example.dtype, np.floating) else 0,
        dimension_names=dims[: len(shape)],
        attributes={"dtype": str(like.dtype)},
    )


def read(array: Any, start: int, stop: int, path: Path) -> Tensor:
    """Chains start .. stop of an array."""
    try:
        part = np.asarray(array[start:stop])
    except Exception as error:  # codecs raise their own errors on damaged bytes
        raise StoreError(
            f"chains {start} to {stop} of {array.path} in {path} cannot be read ({error}); nothing was changed: "
            "restore the file from a copy, or remove the record of that tile to run it again"
        ) from error
    return unpacked(part, str(array.attrs["dtype"]))


def machine() -> dict[str, Any]:
    """Where the run took place."""
    return {
        "platform": platform.platform(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "revision": _revision(),
    }


def refuse_other(path: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise StoreError if the store belongs to another run, with what differs."""
    names = [name for name in {**stored, **wanted} if stored.get(name) != wanted.get(name)]
    if not names:
        return
    lines = [f"  {name}: {_short(stored.get(name))} in the store, {_short(wanted.get(name))} now" for name in names]
    raise StoreError(
        f"{path} holds another run; nothing was changed. What differs:\n" + "\n".join(lines) + "\nChoose another path, "
        "remove the store, or repeat the call that began it."
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def _revision() -> str | None:
    """The git revision of the folder the process runs in, where there is one."""
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None


def open_tree(path: str | Path) -> Any:
    """The store as an xarray ``DataTree``, read from the disk as it is used; ArviZ takes it too."""
    try:
        import xarray
    except ImportError as error:
        raise StoreError("this needs the store extra: pip install 'casal[store]'") from error
    return xarray.open_datatree(path, engine="zarr", consolidated=False)
