"""Files that are there whole or not at all, records that know whether they are whole, and disk errors with a name."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from casal.errors import CasalError, StoreError

CAUSES = {
    errno.ENOSPC: "the disk is full; free some space and run the same call again, it continues from the tiles on disk",
    errno.EDQUOT: "the disk quota is used up; free some space and run the same call again",
    errno.EROFS: "the folder is read-only; choose another place",
    errno.EACCES: "no permission to write to the folder; choose another place or change its permissions",
    errno.EPERM: "no permission to write to the folder; choose another place or change its permissions",
    errno.ENOTDIR: "a part of its path is a file; choose another place",
}

SEAL = "seal"
"""Key of a record under which the checksum of all its other keys is kept."""

DRAFT = re.compile(r"\..+\.(?P<host>[^/]+)-(?P<pid>\d+)-\d+")
"""Names of files and folders that are being written."""

ZARR_DRAFT = ".partial"
"""How the names of files end that zarr is writing."""

_drafts = itertools.count()


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Turn whatever goes wrong while a store is read or written into a StoreError that says what to do."""
    try:
        yield
    except CasalError:
        raise
    except OSError as error:
        cause = CAUSES.get(error.errno or 0, str(error))
        raise StoreError(f"cannot use the store {path}: {cause}") from error
    except Exception as error:  # zarr, its codecs, NumPy and JSON raise many kinds on damaged files
        raise StoreError(
            f"{path} is damaged ({type(error).__name__}: {error}); nothing was changed. Restore it from a copy, or "
            "remove it to begin again"
        ) from error


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file beside its place, flush it to the disk, then move it there in one go."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = draft_of(path)
    try:
        with draft.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


# ------------------------------------------------------------------------------------------- records


def seal_of(record: Mapping[str, Any]) -> str:
    """The checksum of a record of JSON data, without the checksum in it."""
    text = json.dumps({name: value for name, value in record.items() if name != SEAL}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record of JSON data with its checksum; what is no JSON data becomes text."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(record), default=str))
    return {**plain, SEAL: seal_of(plain)}


def is_whole(record: object) -> bool:
    """Whether a record is as ``sealed`` made it."""
    return isinstance(record, dict) and record.get(SEAL) == seal_of(record)


def write_json(path: Path, data: Any) -> None:
    """One JSON file, whole or not at all. Floats come back to the same bits."""
    write_whole(path, lambda file: file.write(json.dumps(data, indent=1).encode()))


def read_json(path: Path, way_out: str) -> dict[str, Any]:
    """The mapping that ``write_json`` wrote; a StoreError with the way out if it is none."""
    try:
        data = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is damaged ({error}); {way_out}") from error
    if not isinstance(data, dict):
        raise StoreError(f"{path} is damaged (it holds a {type(data).__name__}, not a record); {way_out}")
    return data


# ------------------------------------------------------------------------------------------- drafts


def host() -> str:
    """The name of this machine."""
    return platform.node() or "unknown"


def is_alive(pid: int) -> bool:
    """Whether a process of this machine may still be there; true where that cannot be found out."""
    if os.name != "posix" or pid <= 0:
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def draft_of(path: Path) -> Path:
    """A place beside ``path`` that no other process and no other call uses."""
    return path.with_name(f".{path.name}.{host()}-{os.getpid()}-{next(_drafts)}")


def remove_drafts_beside(path: Path) -> None:
    """Remove drafts of ``path`` that processes of this machine left behind when they were killed."""
    prefix = f".{path.name}.{host()}-"
    with suppress(OSError):  # the folder may not be readable; a draft in it harms nobody
        for found in path.parent.iterdir():
            name = DRAFT.fullmatch(found.name)
            if name and found.name.startswith(prefix) and not is_alive(int(name["pid"])):
                _remove(found)


def remove_drafts_in(folder: Path) -> None:
    """Remove what killed processes left half-written in a store. The caller holds its lock, so nobody writes there."""
    for place, _, names in os.walk(folder):
        for name in names:
            draft = DRAFT.fullmatch(name)
            of_living = draft is not None and draft["host"] == host() and is_alive(int(draft["pid"]))
            if (draft is not None and not of_living) or name.endswith(ZARR_DRAFT):
                _remove(Path(place, name))


def _remove(found: Path) -> None:
    if found.is_dir() and not found.is_symlink():
        shutil.rmtree(found, ignore_errors=True)
    else:
        with suppress(OSError):
            found.unlink()
