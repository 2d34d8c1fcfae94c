"""Files that are there whole or not at all, and disk errors with a name."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from casal.errors import StoreError

CAUSES = {
    errno.ENOSPC: "the disk is full; free some space and run the same call again, it continues from the tiles on disk",
    errno.EDQUOT: "the disk quota is used up; free some space and run the same call again",
    errno.EROFS: "the folder is read-only; choose another place",
    errno.EACCES: "no permission to write to the folder; choose another place or change its permissions",
    errno.EPERM: "no permission to write to the folder; choose another place or change its permissions",
    errno.ENOTDIR: "a part of its path is a file; choose another place",
}


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Turn what the operating system says into a StoreError that says what to do."""
    try:
        yield
    except OSError as error:
        cause = CAUSES.get(error.errno or 0, str(error))
        raise StoreError(f"cannot use the store {path}: {cause}") from error


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file beside its place, flush it to the disk, then move it there in one go."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_json(path: Path, record: Any) -> None:
    """One JSON file, whole or not at all. Floats come back to the same bits."""
    write_whole(path, lambda file: file.write(json.dumps(record, indent=1).encode()))


def read_json(path: Path) -> Any:
    """What ``write_json`` wrote."""
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise StoreError(f"{path} is damaged ({error}); remove that file to run its tile again") from error
