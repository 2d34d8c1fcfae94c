"""Files are there whole or not at all, whatever goes wrong with them has a name, and there is one writer at a time."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import pytest

import casal.store.files as module
from casal.errors import SettingError, StoreError
from casal.store.files import (
    StoreLock,
    draft_of,
    host,
    is_alive,
    is_whole,
    named_errors,
    read_json,
    refuse_file_name,
    sealed,
    write_json,
    write_whole,
)


def test_a_file_that_could_not_be_written_leaves_nothing_and_keeps_the_old_one(tmp_path: Path) -> None:
    def fails(file: IO[bytes]) -> None:
        file.write(b"half")
        raise RuntimeError

    write_whole(tmp_path / "a", lambda file: file.write(b"old"))
    with pytest.raises(RuntimeError):
        write_whole(tmp_path / "a", fails)
    assert [path.name for path in tmp_path.iterdir()] == ["a"] and (tmp_path / "a").read_bytes() == b"old"


def test_two_drafts_of_one_file_have_two_places(tmp_path: Path) -> None:
    assert draft_of(tmp_path / "a") != draft_of(tmp_path / "a")


def test_a_seal_tells_every_change(tmp_path: Path) -> None:
    record = sealed({"a": 0.1, "b": [1, {"c": math.inf}], "d": Path("x")})
    write_json(tmp_path / "r.json", record)
    again = read_json(tmp_path / "r.json", "")
    assert is_whole(again) and again["a"] == 0.1 and again["d"] == "x"
    assert not is_whole({**again, "a": 0.1 + 2**-56}) and not is_whole({**again, "e": None})
    assert not is_whole({"a": 0.1}) and not is_whole([again]) and not is_whole(None)


@pytest.mark.parametrize("content", [b"", b"\x00", b"[1]", b"3", b"[" * 100_000, b'{"a": \xff}'])
def test_what_is_no_record_is_named_with_the_way_out(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_bytes(content)
    with pytest.raises(StoreError, match=r"is damaged .*; take another"):
        read_json(tmp_path / "r.json", "take another")


@pytest.mark.parametrize(
    "error", [KeyError("x"), TypeError("x"), MemoryError(), ZeroDivisionError(), OSError(5, "bad")]
)
def test_errors_of_any_kind_get_a_name(error: Exception, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=str(tmp_path)), named_errors(tmp_path):
        raise error


def test_errors_that_have_a_name_keep_it(tmp_path: Path) -> None:
    with pytest.raises(SettingError), named_errors(tmp_path):
        raise SettingError("mine")
    with pytest.raises(StoreError, match="the disk is full"), named_errors(tmp_path):
        raise OSError(errno.ENOSPC, "no space")
    with pytest.raises(KeyboardInterrupt), named_errors(tmp_path):
        raise KeyboardInterrupt


def test_processes_are_known_to_live_or_not(ended: int) -> None:
    assert is_alive(os.getpid()) and is_alive(1) and not is_alive(ended)


# ------------------------------------------------------------------------------------------- one writer

HOLD = """
import sys
from pathlib import Path
from casal.store.files import StoreLock
lock = StoreLock(Path(sys.argv[1]), Path("run.zarr"))
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
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock."""
    if module.fcntl is None:
        pytest.skip("there is no flock here")
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "lock.json")],
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


def in_a_thread(call: Callable[[], Any]) -> Any:
    """What a call returns, or raises, in another thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


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
    place = tmp_path / "lock.json"
    first, second = StoreLock(place, tmp_path), StoreLock(place, tmp_path)  # the earlier run of this thread is over
    with pytest.raises(StoreError, match=f"process {os.getpid()}"):
        in_a_thread(lambda: StoreLock(place, tmp_path))
    first.release()  # holds nothing any more
    with pytest.raises(StoreError, match=f"process {os.getpid()}"):
        in_a_thread(lambda: StoreLock(place, tmp_path))
    second.release()
    in_a_thread(lambda: StoreLock(place, tmp_path))
    StoreLock(place, tmp_path).release()  # that thread has ended
    assert not place.exists()


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoLocks:
        LOCK_EX = LOCK_NB = 0

        @staticmethod
        def flock(opened: int, how: int) -> None:
            raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(module, "fcntl", NoLocks)
    lock = StoreLock(tmp_path / "lock.json", tmp_path)
    with pytest.raises(StoreError, match=f"process {os.getpid()}"):  # threads of this process still keep apart
        in_a_thread(lambda: StoreLock(tmp_path / "lock.json", tmp_path))
    lock.release()
    assert not (tmp_path / "lock.json").exists()


def test_a_forked_copy_of_the_process_releases_nothing(tmp_path: Path) -> None:
    lock = StoreLock(tmp_path / "lock.json", tmp_path)
    lock.pid += 1  # as a copy sees it
    lock.release()
    assert (tmp_path / "lock.json").exists()


@pytest.mark.parametrize("ending", [".pt", ".pth", ".npy", ".npz", ".csv", ".json", ".pkl", ".h5", ".nc", ".PT"])
def test_names_of_files_are_no_names_of_stores(ending: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"folder of zarr arrays.*res.zarr.*torch.save"):
        refuse_file_name(tmp_path / f"res{ending}")
    for name in ("res", "res.zarr", "run.v2"):
        refuse_file_name(tmp_path / name)
