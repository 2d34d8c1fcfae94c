"""A run on disk: every batch in a place of its own, with a record that says it is whole."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shutil
import subprocess
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from casal.errors import StoreError, missing_extra
from casal.store.files import (
    StoreLock,
    draft_of,
    is_whole,
    named_errors,
    read_json,
    refuse_file_name,
    remove_drafts_beside,
    remove_drafts_in,
    sealed,
    write_json,
    write_whole,
)

FORMAT = 3
JOURNAL = "provenance/batches"
"""An array that counts the chains of every batch on disk; its folder holds records and lock, where no reader trips."""

CHECKPOINT_SECONDS = 10.0
"""Least time between two checkpoints."""

CHECKPOINT = "checkpoint"
"""Name of the arrays of all chains in the middle of a run."""

GROWING = "growing"
"""Attribute of a store that is being made larger: how many chains it had."""

BEGINNING = ("machine", "began")
"""Attributes that a store keeps when it grows; what only the whole run knew is no longer true."""

LONGEST = 80
"""Characters of a setting that a message shows."""

PLACES = re.compile(r"(posterior|sample_stats|state|snapshots)/\w+")
"""Names of arrays."""

RECORDS = re.compile(r"batch-(\d{6,15})\.json")
"""Names of the records of batches."""

RESTORE = "restore it from a copy, or remove the store to begin again"
"""The way out of damage that cannot be mended by running one batch again."""


class RunStore:
    """The folder of one run, a zarr hierarchy (format 3) that xarray opens as a tree:

        posterior/samples      (chain, draw, *event)   what the run returns
        sample_stats/...       (chain, draw)           violation, steps, log_weight
        state/...              (chain, ...)            the last state of the method
        snapshots/samples      (chain, draw, *event)   samples along the run, where they were asked for
        provenance             attributes: identity, settings, versions, machine, timings

    A batch is written to its own chunks first and to the journal last, in one atomic move of a small file with a
    checksum: a batch that was torn has no record and is run again. Records and attributes have checksums of their own
    (``sealed``), and the shapes and dtypes of all arrays are in the records: what does not fit is a StoreError.

    Only one process may write to a store (``StoreLock``), until ``close``; reading with ``RunStore.reading`` is free.

    Args:
        path: The folder; made if it is not there.
        identity: What must be the same for a run to be continued.
        chains: Chains of the run. If the store holds fewer of the same run, it grows: batches that are full stay, a
            last one that was not is run again.
        batch: Chains in a batch; the last one may have fewer.
        fixed: Why a store of fewer chains cannot grow, in words; None if it can.

    Raises:
        StoreError: The folder cannot be used, is damaged, in use, or belongs to another run.
    """

    def __init__(
        self, path: str | Path, identity: Mapping[str, Any], chains: int, batch: int, fixed: str | None = None
    ) -> None:
        wanted = json.loads(json.dumps({**identity, "n": chains, "batch": batch, "format": FORMAT}))
        self._open(Path(path), chains, batch)
        with named_errors(self.path):
            if not (self.path / "zarr.json").exists():
                self._begin(wanted)
            if not self._about.exists() or not (self.path / JOURNAL).is_dir():
                raise StoreError(
                    f"{self.path} is a zarr store, but not of a casal run: {JOURNAL} is missing; choose another path"
                )
            lock = StoreLock(self.path / JOURNAL / "lock.json", self.path)
        self._release = weakref.finalize(self, lock.release)
        try:
            with named_errors(self.path):
                self.attributes = read_attributes(self.path)
                grows = refuse_other(self.path, self.attributes["identity"], wanted, fixed)
                remove_drafts_in(self.path)
                remove_drafts_beside(self.path)
                self.root = zarr_module().open_group(self.path, mode="r+")
                if grows or GROWING in self.attributes:
                    self._grow(wanted)
                self._check_tree()
        except BaseException:
            self.close()
            raise

    @classmethod
    def reading(cls, path: str | Path) -> RunStore:
        """A store that is there, for reading only; it may be in use.

        Raises:
            StoreError: There is no store, it is damaged, or it was written by another version of the format.
        """
        place, store = Path(path), cls.__new__(cls)
        with named_errors(place):
            if not (place / "zarr.json").exists():
                if place.is_file():
                    raise StoreError(
                        f"{place} is a file; casal.load reads the folders that result.save('run.zarr') writes, "
                        "torch.load reads what torch.save wrote"
                    )
                raise StoreError(f"there is no store at {place}")
            attributes = read_attributes(place)
            if GROWING in attributes:
                raise StoreError(f"{place} is about to take more chains; repeat the call that requested them")
            store._open(place, attributes["identity"]["n"], attributes["identity"]["batch"])
            store.attributes, store.root = attributes, zarr_module().open_group(place, mode="r")
        return store

    _release: weakref.finalize[[], RunStore] | None = None

    def _open(self, path: Path, chains: int, batch: int) -> None:
        self.path, self.chains, self.batch = path, chains, batch
        self._lock, self._began = Lock(), time.perf_counter()
        self._saved = self._began
        self._checked = set[str]()

    def close(self) -> None:
        """Let other processes write to the store; what is there can still be read."""
        if self._release is not None:
            self._release()

    def __enter__(self) -> RunStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self, identity: Mapping[str, Any]) -> None:
        """An empty store, made beside its place and moved there in one go."""
        refuse_file_name(self.path)
        if self.path.exists() and any(self.path.iterdir()):
            raise StoreError(f"{self.path} exists and is not a store; nothing was changed, choose another path")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = draft_of(self.path)
        try:
            root = zarr_module().open_group(draft, mode="w", zarr_format=3)
            for name in ("posterior", "sample_stats", "state"):
                root.create_group(name)
            about = {"identity": dict(identity), "machine": machine(), "began": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
            root.create_group("provenance", attributes=sealed(about)).create_array(
                "batches", shape=(self.count,), chunks=(1,), dtype=np.int64, fill_value=0, dimension_names=["batch"]
            )
            try:
                draft.replace(self.path)
            except OSError:
                if not (self.path / "zarr.json").exists():  # else another process was faster, and holds the lock
                    raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _grow(self, identity: Mapping[str, Any]) -> None:
        """Make room for more chains. If it is cut short, it is done again when the store is next opened to write."""
        old = int(self.attributes.get(GROWING, self.attributes["identity"]["n"]))
        if old % self.batch:  # the last batch was not full: its chains would be others in a full one
            self._record(old // self.batch).unlink(missing_ok=True)
        kept = {name: self.attributes[name] for name in BEGINNING if name in self.attributes}
        self._set_attributes({**kept, "identity": dict(identity), GROWING: old})
        self.root[JOURNAL].resize((self.count,))
        self.root[JOURNAL][old // self.batch :] = 0
        for name, group in self.root.groups():
            if name != JOURNAL.partition("/")[0]:
                for _, array in group.arrays():
                    array.resize((self.chains, *array.shape[1:]))
        self._set_attributes({name: value for name, value in self.attributes.items() if name != GROWING})

    @property
    def count(self) -> int:
        """Tiles of the run."""
        return -(-self.chains // self.batch)

    def _check_tree(self) -> None:
        """Refuse a damaged hierarchy before the run, not when its first batch is written."""
        counted = [self.root[name] for name in ("posterior", "sample_stats", "state", JOURNAL)][-1].shape
        if counted != (self.count,):
            raise StoreError(
                f"{self.path / JOURNAL / 'zarr.json'} is damaged: it counts {counted} batches, the run has "
                f"{self.count}; {RESTORE}"
            )

    def bounds(self, index: int) -> tuple[int, int]:
        """First chain of a batch, and the one after its last."""
        return index * self.batch, min((index + 1) * self.batch, self.chains)

    def done(self) -> list[int]:
        """The batches that are on disk."""
        with named_errors(self.path):
            names = [RECORDS.fullmatch(found.name) for found in (self.path / JOURNAL).iterdir()]
        found = sorted(int(name[1]) for name in names if name)
        if found and found[-1] >= self.count:
            raise StoreError(
                f"{self.path} has a record of batch {found[-1]}, but its {self.chains} chains make {self.count}; "
                f"remove {self._record(found[-1])}"
            )
        return found

    def begun(self) -> bool:
        """Whether there is anything to go on from: a batch, or a checkpoint."""
        with named_errors(self.path):
            return bool(self.done()) or self._file(CHECKPOINT).exists()

    def write(self, index: int, arrays: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
        """Put a finished batch on disk.

        Args:
            index: Which batch.
            arrays: Tensors (chains of the batch, ...) by their place in the hierarchy, such as "state/x".
            record: JSON data beside them.
        """
        start, stop = self.bounds(index)
        parts = {name: packed(part) for name, part in arrays.items()}
        about = {
            "chains": [start, stop],
            "arrays": {name: [str(part.dtype), list(part.shape)] for name, part in arrays.items()},
            "checksum": digest(arrays),
            "seconds": time.perf_counter() - self._began,
        }
        with named_errors(self.path):
            for name, part in arrays.items():
                self._array(name, part)[start:stop] = parts[name]
            write_json(self._record(index), sealed({**record, **about}))
            self.root[JOURNAL][index] = stop - start

    def read(self, index: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The arrays of a batch, checked against the checksum, and its record."""
        start, stop = self.bounds(index)
        way_out = f"remove {self._record(index).name} in {JOURNAL} to run that batch again, or restore it from a copy"
        with named_errors(self.path):
            record = read_json(self._record(index), way_out)
        if not is_whole(record) or not _describes(record, start, stop):
            raise StoreError(
                f"{self._record(index)} is damaged: its checksum or its chains do not fit; nothing was changed. "
                f"To go on, {way_out}"
            )
        arrays, batch = dict[str, Tensor](), f"batch {index} (chains {start} to {stop}) of {self.path}"
        for name, (dtype, shape) in record["arrays"].items():
            array = self._described(name, dtype, [self.chains, *shape[1:]])
            try:
                arrays[name] = unpacked(np.asarray(array[start:stop]), dtype)
            except Exception as error:  # codecs raise many kinds on damaged bytes
                raise StoreError(
                    f"{batch} cannot be read: {name} is damaged ({type(error).__name__}: {error}); nothing was "
                    f"changed. To go on, {way_out}"
                ) from error
        if digest(arrays) != record.get("checksum"):
            raise StoreError(f"{batch} is damaged: its checksum does not fit; nothing was changed. To go on, {way_out}")
        return arrays, record

    def checkpoint_due(self) -> bool:
        """Whether the last checkpoint is CHECKPOINT_SECONDS old."""
        return time.perf_counter() - self._saved >= CHECKPOINT_SECONDS

    def write_arrays(self, name: str, arrays: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Keep some arrays and JSON data of the run in one file of the journal, whole or not at all."""
        kept: dict[str, Any] = {name: packed(part) for name, part in arrays.items()}
        dtypes = {name: str(part.dtype) for name, part in arrays.items()}
        text = json.dumps(sealed({**about, "dtypes": dtypes, "checksum": digest(arrays)}))
        kept["about"] = np.frombuffer(text.encode(), dtype=np.uint8)
        with named_errors(self.path):
            write_whole(self._file(name), lambda file: np.savez(file, **kept))
        if name == CHECKPOINT:
            self._saved = time.perf_counter()

    def read_arrays(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """What ``write_arrays`` wrote last under a name; None if there is nothing."""
        place = self._file(name)
        try:
            if not place.exists():
                return None
            with place.open("rb") as file, np.load(file, allow_pickle=False) as kept:
                about = json.loads(kept["about"].tobytes())
                if not is_whole(about):
                    raise ValueError("the checksum of its record does not fit")
                arrays = {name: unpacked(kept[name], dtype) for name, dtype in about["dtypes"].items()}
            if digest(arrays) != about["checksum"]:
                raise ValueError("its checksum does not fit")
        except Exception as error:  # zip files and arrays raise many kinds
            raise StoreError(
                f"the {name} of {self.path} is damaged ({error}); restore it from a copy, or remove {place.name} in "
                f"{JOURNAL}{' to begin again' if name == CHECKPOINT else ''}"
            ) from error
        return arrays, about

    def finish(self, about: Mapping[str, Any]) -> None:
        """Keep what only the whole run knows, as attributes."""
        with named_errors(self.path):
            self._set_attributes({**self.attributes, **about})
            self._file(CHECKPOINT).unlink(missing_ok=True)

    def _set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Write all attributes, in one go."""
        document = read_json(self._about, RESTORE)
        self.attributes = sealed(dict(attributes))
        write_json(self._about, {**document, "attributes": self.attributes})

    @property
    def _about(self) -> Path:
        return _about_file(self.path)

    def _file(self, name: str) -> Path:
        return self.path / JOURNAL / f"{name}.npz"

    def _record(self, index: int) -> Path:
        return self.path / JOURNAL / f"batch-{index:06d}.json"

    def _array(self, name: str, part: Tensor) -> Any:
        """The array of all chains that takes ``part``; made if it is not there."""
        group, _, short = name.partition("/")
        with self._lock:
            if name not in self._checked:
                if short not in self.root.require_group(group):
                    create(self.root[group], short, part, self.chains, self.batch, dimension_names(group, part.ndim))
                self._described(name, str(part.dtype), [self.chains, *part.shape[1:]])
                self._checked.add(name)
        return self.root[name]

    def _described(self, name: str, dtype: str, shape: list[int]) -> Any:
        """The array, if its description on disk is that of these chains; else StoreError."""
        kind, file = packed(torch.empty(0, dtype=_dtype(dtype))).dtype, self.path / name / "zarr.json"
        try:
            array = self.root[name]
            found = (list(array.shape), list(array.chunks), array.dtype)
        except Exception as error:  # zarr raises many kinds on damaged descriptions
            raise StoreError(
                f"{file} is missing or damaged ({type(error).__name__}: {error}); nothing was changed. "
                f"{RESTORE.capitalize()}"
            ) from error
        if found != (shape, chunks_of(shape, self.batch), kind):
            raise StoreError(
                f"{file} is damaged: it describes {array.dtype} {tuple(array.shape)} in chunks of "
                f"{tuple(array.chunks)}, the run has {kind} {tuple(shape)}; nothing was changed. {RESTORE.capitalize()}"
            )
        return array


def _about_file(path: Path) -> Path:
    return path / "provenance" / "zarr.json"


def read_attributes(path: Path) -> dict[str, Any]:
    """Identity, machine, and what ``finish`` wrote; checked."""
    about = _about_file(path)
    if not about.exists():
        raise StoreError(f"{path} is a zarr store, but not of a casal run: it has no {about.relative_to(path)}")
    attributes = read_json(about, RESTORE).get("attributes")
    identity = attributes.get("identity") if isinstance(attributes, dict) else None
    if not isinstance(attributes, dict) or not isinstance(identity, dict):
        raise StoreError(
            f"{path} is a zarr store, but not of a casal run: {about.relative_to(path)} holds no identity; if it was "
            f"one, {RESTORE}"
        )
    if identity.get("format") != FORMAT:
        raise StoreError(
            f"{path} has format {identity.get('format')}, written by casal {identity.get('casal')}; this version of "
            f"casal reads format {FORMAT}. Read it with the version that wrote it"
        )
    if not is_whole(attributes):
        raise StoreError(f"{about} is damaged: its checksum does not fit; nothing was changed. {RESTORE.capitalize()}")
    chains, batch = identity.get("n"), identity.get("batch")
    if not (_is_count(chains, 1) and _is_count(batch, 1) and int(batch or 0) <= int(chains or 0)):
        raise StoreError(f"{about} is damaged: batches of {batch!r} chains of {chains!r}; {RESTORE}")
    return attributes


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _describes(record: Mapping[str, Any], start: int, stop: int) -> bool:
    """Whether a record is one of these chains, with arrays that have names, dtypes and shapes."""
    arrays = record.get("arrays")
    if record.get("chains") != [start, stop] or not isinstance(arrays, dict):
        return False
    return all(PLACES.fullmatch(name) and _is_described(entry, stop - start) for name, entry in arrays.items())


def _is_described(entry: object, chains: int) -> bool:
    if (
        not isinstance(entry, list)
        or len(entry) != 2
        or not isinstance(entry[0], str)
        or not isinstance(entry[1], list)
    ):
        return False
    dtype, shape = entry
    known = isinstance(getattr(torch, dtype.removeprefix("torch."), None), torch.dtype)
    return known and shape[:1] == [chains] and all(_is_count(size, 0) for size in shape)


def zarr_module() -> Any:
    """zarr, or a StoreError that says how to get it."""
    try:
        import zarr
    except ImportError as error:
        raise StoreError(missing_extra("a result on disk", "store", "zarr")) from error
    return zarr


def packed(tensor: Tensor) -> np.ndarray[Any, Any]:
    """As NumPy, to the same bits; bfloat16, which NumPy lacks, as the float32 that holds it."""
    tensor = tensor.detach().cpu().contiguous()
    return np.asarray((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy())


def unpacked(array: np.ndarray[Any, Any], dtype: str) -> Tensor:
    """The tensor that ``packed`` took, with its dtype."""
    return torch.from_numpy(np.array(array, order="C")).to(_dtype(dtype))


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name.removeprefix("torch."))
    if not isinstance(found, torch.dtype):
        raise StoreError(f"torch has no dtype {name!r}")
    return found


def digest(parts: Mapping[str, Tensor]) -> str:
    """One checksum of some named tensors."""
    total = hashlib.sha256()
    for name in sorted(parts):
        array = packed(parts[name])
        total.update(f"{name} {parts[name].dtype} {array.shape} ".encode())
        total.update(array.tobytes())
    return total.hexdigest()


def dimension_names(group: str, count: int) -> list[str]:
    """Names of the dimensions of an array of so many: chains, draws where the group has them, then the event."""
    first = ["chain"] if group == "state" else ["chain", "draw"]
    return [*first, *(f"event_{k}" for k in range(count))][:count]


def chunks_of(shape: list[int], batch: int) -> list[int]:
    """The chunks of an array (chains, ...): one per batch."""
    return [batch, *(max(1, size) for size in shape[1:])]


def create(group: Any, name: str, like: Tensor, chains: int, batch: int, dims: list[str]) -> None:
    """An array (chains, *like.shape[1:]), a chunk a batch; what was not written reads as not a number."""
    example = packed(like[:1])
    shape = [chains, *example.shape[1:]]
    group.create_array(
        name,
        shape=tuple(shape),
        chunks=tuple(chunks_of(shape, batch)),
        dtype=example.dtype,
        fill_value=np.nan if np.issubdtype(example.dtype, np.floating) else 0,
        dimension_names=dims,
        attributes={"dtype": str(like.dtype)},
    )


def machine() -> dict[str, Any]:
    """Where the run took place."""
    return {
        "platform": platform.platform(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "revision": _revision(),
    }


def stored_batch(path: str | Path, chains: int) -> int | None:
    """The batch of a store that holds fewer than so many chains, so that it can grow; None for any other."""
    place = Path(path)
    if not _about_file(place).exists():
        return None
    with suppress(StoreError, OSError):  # what is wrong is said when the store is opened
        identity = read_attributes(place)["identity"]
        return int(identity["batch"]) if identity["n"] < chains else None
    return None


def refuse_other(path: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any], fixed: str | None = None) -> bool:
    """Raise StoreError if the store belongs to another run, with what differs; whether it has fewer chains of this."""
    names = [name for name in {**stored, **wanted} if stored.get(name) != wanted.get(name)]
    if not names:
        return False
    if names == ["n"] and stored["n"] < wanted["n"]:
        if fixed is None:
            return True
        raise StoreError(
            f"{path} holds {stored['n']} chains of this run, and {wanted['n']} are requested; {fixed}. Nothing was "
            "changed; choose another path"
        )
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


# ------------------------------------------------------------------------------------------------ xarray


def open_tree(path: str | Path) -> Any:
    """The store as an xarray ``DataTree``, read from the disk as it is used; ArviZ takes it too.

    It reads what is there and checks nothing; ``casal.load`` compares all checksums.

    Raises:
        StoreError: The folder is no store, or its hierarchy is damaged.
    """
    xarray = xarray_module("casal.store.open_tree")
    with named_errors(Path(path)):
        return xarray.open_datatree(path, engine="zarr", consolidated=False)


def make_tree(arrays: Mapping[str, Tensor], attributes: Mapping[str, Mapping[str, Any]]) -> Any:
    """A ``DataTree`` in memory.

    Args:
        arrays: Tensors by their place, such as "posterior/samples"; chains first, as in a store.
        attributes: Of groups, by name.
    """
    xarray = xarray_module("an xarray tree")
    groups: dict[str, dict[str, Any]] = {name: {} for name in attributes}
    for place, part in arrays.items():
        group, _, name = place.partition("/")
        groups.setdefault(group, {})[name] = (dimension_names(group, part.ndim), packed(part))
    return xarray.DataTree.from_dict(
        {f"/{name}": xarray.Dataset(found, attrs=dict(attributes.get(name, {}))) for name, found in groups.items()}
    )


def xarray_module(what: str) -> Any:
    """xarray, or a StoreError that says how to get it."""
    try:
        import xarray
    except ImportError as error:
        raise StoreError(missing_extra(what, "store", "xarray")) from error
    return xarray
