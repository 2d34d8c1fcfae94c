"""What takes minutes to make, kept in a folder: trained networks and their unconditional samples.

The folder is ``CASAL_CACHE`` in the environment, else ``~/.cache/casal``. A file is named after all that went into it;
delete it to have it made anew. Files carry checksums. One that is damaged, holds numbers that are not finite, or is not
the file its name says is made again, with a warning. Processes that want the same file at once wait for the one that
makes it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from casal.errors import CasalError, CasalWarning, StoreError
from casal.store import write_whole
from casal_lab.nets import load, save

try:
    import fcntl
except ImportError:  # Windows: several processes may make the same file, and the last one is kept
    fcntl = None  # type: ignore[assignment]

Thing = TypeVar("Thing")

ELSEWHERE = "set CASAL_CACHE to a folder that you can write to"


def folder() -> Path:
    """Where the files are; made if it is not there."""
    path = Path(os.environ.get("CASAL_CACHE") or Path.home() / ".cache" / "casal")
    with _named_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


def network(name: str, make: Callable[[], nn.Module], classes: Iterable[type[nn.Module]] = ()) -> nn.Module:
    """The trained network of this name, trained now if there is none; ``classes`` of your own are known by ``load``."""

    def read(path: Path) -> nn.Module:
        net = load(path, name=name, classes=classes)
        _refuse_lost(net.state_dict())
        return net

    def write(path: Path, net: nn.Module) -> None:
        _refuse_lost(net.state_dict())
        save(net, path, name=name)

    return _kept(folder() / f"{name}.safetensors", read, make, write)


def points(name: str, make: Callable[[], Tensor]) -> Tensor:
    """The samples of this name, float64, drawn now if there are none."""

    def read(path: Path) -> Tensor:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:  # zip: every part has its checksum
            if str(file["name"]) != name:
                raise StoreError(f"it holds {file['name']}")
            found = torch.from_numpy(file["points"])
        _refuse_lost({"points": found})
        return found.to(torch.float64)

    def write(path: Path, drawn: Tensor) -> None:
        kept = drawn.to(torch.float32)
        _refuse_lost({"points": kept})
        write_whole(path, lambda file: np.savez(file, name=np.array(name), points=kept.numpy()))

    return _kept(folder() / f"{name}.npz", read, make, write)


def _kept(
    path: Path, read: Callable[[Path], Thing], make: Callable[[], Thing], write: Callable[[Path, Thing], None]
) -> Thing:
    """What ``read`` finds in a file, which is made and written first if it is not there or not good."""
    found, _ = _found(path, read)
    if found is not None:
        return found
    with _only_one(path):
        found, fault = _found(path, read)  # another process may have made it meanwhile
        if found is not None:
            return found
        if fault is not None:
            warnings.warn(f"{path} cannot be used and is made again: {fault}", CasalWarning, stacklevel=4)
        made = make()
        try:
            with _named_errors(path.parent):
                write(path, made)
        except _NotFinite as error:
            raise CasalError(f"{path.stem} is not kept: what was made for it has {error}") from error
    return read(path)


def _found(path: Path, read: Callable[[Path], Thing]) -> tuple[Thing | None, str | None]:
    """What a file holds, or what is wrong with it; neither if there is no file."""
    with _named_errors(path.parent):
        if not path.exists():
            return None, None
    if path.is_dir():
        raise StoreError(f"{path} is a folder, a file is to be kept there; remove it, or {ELSEWHERE}")
    try:
        return read(path), None
    except Exception as error:  # whatever a damaged file leads to, it is made again
        return None, f"{type(error).__name__}: {error}"


class _NotFinite(CasalError):
    """Numbers that are no data."""


def _refuse_lost(tensors: dict[str, Tensor]) -> None:
    lost = {name: int((~torch.isfinite(part)).sum()) for name, part in tensors.items() if part.is_floating_point()}
    bad = [f"{count} in {name}" for name, count in lost.items() if count]
    if bad:
        raise _NotFinite(f"numbers that are not finite: {', '.join(bad[:3])}")


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    """StoreError for what the operating system says."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot use the cache {path}: {error.strerror or error}; {ELSEWHERE}") from error


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Wait until nobody else makes this file; a folder that cannot be written to is refused before any work."""
    lock = path.with_name(f".{path.name}.lock")
    while True:
        with _named_errors(path.parent):
            file = lock.open("ab")
        with file:
            if fcntl is not None and not _locked(file.fileno(), lock):
                continue
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
            return


def _locked(number: int, lock: Path) -> bool:
    """Lock an open file; False if the one who held the lock has removed it from its place meanwhile."""
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
    except OSError:  # a file system without locks: the last one who makes the file is kept
        return True
    try:
        return os.path.samestat(os.fstat(number), lock.stat())
    except FileNotFoundError:
        return False
