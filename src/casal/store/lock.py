"""One process at a time writes to a store: a lock file that says who, held by the operating system where it can."""

from __future__ import annotations

import errno
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread, current_thread
from typing import Any

from casal.errors import StoreError
from casal.store.files import host, is_alive

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
"""What file systems say that have no locks."""

_held: dict[Path, StoreLock] = {}
_registry = Lock()


class StoreLock:
    """The lock of a store, held until ``release`` or the end of the process, however it ends.

    The file holds pid, host and time of its holder. Where the system has ``flock``, the file alone means nothing: one
    left behind by a killed process is taken over. Elsewhere the file is the lock, and it is taken over if its holder
    was a process of this machine that has ended. A thread may lock a store again: its earlier run is over.

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
    """Make the lock file ours, or raise StoreError; the open file where the system holds the lock."""
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
            if not path.stat().st_size:
                path.unlink(missing_ok=True)
            break
        os.close(opened)  # its holder released it, and removed it, between two of our calls
    while True:
        try:
            opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            holder = _holder(path)
            if holder.get("host") != host() or is_alive(_pid(holder)):
                raise _refused(store, path, holder) from None
            path.unlink(missing_ok=True)
            continue
        os.write(opened, json.dumps(_about()).encode())
        os.close(opened)
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
