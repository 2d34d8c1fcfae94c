"""Files that are there whole or not at all, records with checksums, one writer at a time, disk errors with a name."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import platform
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock, Thread, current_thread
from typing import IO, Any

from casal.errors import CasalError, StoreError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

CAUSES = {
    errno.ENOSPC: "the disk is full; free some space and run the same call again, which goes on from there",
    errno.EDQUOT: "the disk quota is used up; free some space and run the same call again",
    errno.EROFS: "the folder is read-only; choose another place",
    errno.EACCES: "no permission to write to the folder; choose another place or change its permissions",
    errno.EPERM: "no permission to write to the folder; choose another place or change its permissions",
    errno.ENOTDIR: "a part of its path is a file; choose another place",
}

FILE_NAMES = (".pt", ".pth", ".npy", ".npz", ".csv", ".json", ".pkl", ".h5", ".nc")
"""How the names of files end that are no folders."""

SEAL = "seal"
"""Key of a record under which the checksum of all its other keys is kept."""

DRAFT = re.compile(r"\..+\.(?P<host>[^/]+)-(?P<pid>\d+)-\d+")
"""Names of files and folders that are being written."""

ZARR_DRAFT = ".partial"
"""How the names of files end that zarr is writing."""

_drafts = itertools.count()


def refuse_file_name(path: Path) -> None:
    """StoreError if a path has the name of a file: a store is a folder."""
    if path.suffix.lower() in FILE_NAMES:
        raise StoreError(
            f"a result is stored in a folder of zarr arrays, and {path} is the name of a file; use "
            f"{path.with_suffix('.zarr')}, or torch.save(result.samples, 'samples.pt') for the samples alone"
        )


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
            f"{path} is damaged ({type(error).__name__}: {error}). Restore it from a copy, or remove it to begin again"
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


# ------------------------------------------------------------------------------------------- one writer

NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
"""What file systems say that have no locks."""

_held: dict[Path, StoreLock] = {}
_registry = Lock()


class StoreLock:
    """The lock of a store, held until ``release`` or the end of the process, however it ends.

    It is the ``flock`` of a file that holds pid, host and time of its holder. The file alone means nothing: one left
    behind by a killed process is taken over. Where the system has no ``flock``, nothing keeps other processes away. A
    thread may lock a store again: its earlier run is over.

    Args:
        path: The lock file.
        store: The folder of the store, for messages.

    Raises:
        StoreError: Another process or thread holds it.
    """

    def __init__(self, path: Path, store: Path) -> None:
        self.path, self.pid, self.thread = path.resolve(), os.getpid(), current_thread()
        self._holds = False
        self._opened: int | None = None
        with _registry:
            earlier = _held.get(self.path)
            if earlier is not None and earlier.pid == self.pid:
                if earlier.is_of_another(self.thread):
                    raise _refused(store, path, _about())
                earlier.release()
            self._opened = _take(self.path, store)
            self._holds = True
            _held[self.path] = self

    def is_of_another(self, thread: Thread) -> bool:
        """Whether another thread holds the lock, one that has not ended."""
        return self.thread is not thread and self.thread.is_alive()

    def release(self) -> None:
        """Let others write. A forked copy of the process releases nothing."""
        holds, self._holds = self._holds, False
        if holds and os.getpid() == self.pid:
            if _held.get(self.path) is self:
                del _held[self.path]
            with suppress(OSError):
                self.path.unlink()
        if self._opened is not None:
            os.close(self._opened)
            self._opened = None


def _take(path: Path, store: Path) -> int | None:
    """Make the lock file ours, or raise StoreError; the open file, or None where the system has no locks."""
    while fcntl is not None:
        opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(opened, path):
                os.ftruncate(opened, 0)
                os.write(opened, json.dumps(_about()).encode())
                return opened
        except BlockingIOError:
            os.close(opened)
            raise _refused(store, path, _holder(path)) from None
        except OSError as error:
            os.close(opened)
            if error.errno not in NO_LOCKS:
                raise
            return None
        os.close(opened)  # its holder released it, and removed it, between two of our calls
    return None


def _about() -> dict[str, Any]:
    return {"pid": os.getpid(), "host": host(), "began": time.strftime("%Y-%m-%dT%H:%M:%S%z")}


def _is_at(opened: int, path: Path) -> bool:
    """Whether the open file is still the one at that place."""
    try:
        return os.path.samestat(os.fstat(opened), path.stat())
    except FileNotFoundError:
        return False


def _holder(path: Path) -> dict[str, Any]:
    """What a lock file says of its holder; nothing if it cannot be read."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _pid(holder: dict[str, Any]) -> int:
    pid = holder.get("pid")
    return pid if isinstance(pid, int) else 0


def _refused(store: Path, path: Path, holder: dict[str, Any]) -> StoreError:
    who = f"process {holder.get('pid', '(unknown)')} on {holder.get('host', 'an unknown machine')}"
    gone = holder.get("host") == host() and not is_alive(_pid(holder))
    return StoreError(
        f"{store} is in use by {who} (since {holder.get('began', 'an unknown time')})"
        f"{', or by one that it started, for it has ended itself' if gone else ''}; nothing was changed. Wait until it "
        f"ends, choose another path, or remove {path} if you are sure that nobody writes there"
    )
