"""One writer at a time: others are told who it is, and no lock outlives its holder."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import casal.store.lock as module
from casal.errors import StoreError
from casal.store.files import host
from casal.store.lock import StoreLock

HOLD = """
import sys
from pathlib import Path
import casal.store.lock as module
if sys.argv[2] == "without":
    module.fcntl = None
lock = module.StoreLock(Path(sys.argv[1]), Path("run.zarr"))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["with", "without"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With and without locks of the operating system."""
    if request.param == "without":
        monkeypatch.setattr(module, "fcntl", None)
    elif module.fcntl is None:
        pytest.skip("there is no flock here")
    return str(request.param)


@pytest.fixture
def holder(kind: str, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "lock.json"), kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def test_another_process_is_refused_with_the_pid_of_the_holder(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    place = tmp_path / "lock.json"
    with pytest.raises(StoreError, match=rf"run.zarr is in use by process {holder.pid} on {host()} \(since 20"):
        StoreLock(place, Path("run.zarr"))
    assert json.loads(place.read_text())["pid"] == holder.pid  # the attempt changed nothing
    holder.kill()
    holder.wait()
    assert place.exists()
    lock = StoreLock(place, Path("run.zarr"))  # what a killed process left is taken over
    assert json.loads(place.read_text())["pid"] == os.getpid()
    lock.release()
    assert not place.exists()


def test_a_thread_may_lock_again_and_another_may_not(kind: str, tmp_path: Path) -> None:
    place, found = tmp_path / "lock.json", list[Any]()
    first = StoreLock(place, tmp_path)

    def attempt() -> None:
        try:
            found.append(StoreLock(place, tmp_path))
        except StoreError as error:
            found.append(error)

    second = StoreLock(place, tmp_path)  # the earlier run of this thread is over
    for _ in range(2):
        thread = Thread(target=attempt)
        thread.start()
        thread.join()
        first.release()  # holds nothing any more
        second.release()
    refused, other = found
    assert isinstance(refused, StoreError) and f"process {os.getpid()}" in str(refused)
    assert isinstance(other, StoreLock)
    StoreLock(place, tmp_path).release()  # that thread has ended
    assert not place.exists()


def test_a_lock_of_another_machine_is_not_taken_over_where_the_file_is_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: int
) -> None:
    monkeypatch.setattr(module, "fcntl", None)
    place = tmp_path / "lock.json"
    for content in (json.dumps({"pid": ended, "host": "elsewhere"}), "{", "", "[]", json.dumps({"host": host()})):
        place.write_text(content)
        with pytest.raises(StoreError, match=r"remove .*lock\.json if you are sure"):
            StoreLock(place, tmp_path)
    place.write_text(json.dumps({"pid": ended, "host": host()}))
    StoreLock(place, tmp_path).release()


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoLocks:
        LOCK_EX = LOCK_NB = 0

        @staticmethod
        def flock(opened: int, how: int) -> None:
            raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(module, "fcntl", NoLocks)
    lock = StoreLock(tmp_path / "lock.json", tmp_path)
    assert json.loads((tmp_path / "lock.json").read_text())["pid"] == os.getpid()
    lock.release()
    assert not (tmp_path / "lock.json").exists()


def test_a_forked_copy_of_the_process_releases_nothing(kind: str, tmp_path: Path) -> None:
    lock = StoreLock(tmp_path / "lock.json", tmp_path)
    lock.pid += 1  # as a copy sees it
    lock.release()
    assert (tmp_path / "lock.json").exists()
