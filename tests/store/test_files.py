"""Files are there whole or not at all, and whatever goes wrong with them has a name."""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path
from typing import IO

import pytest

from casal.errors import SettingError, StoreError
from casal.store.files import draft_of, is_alive, is_whole, named_errors, read_json, sealed, write_json, write_whole


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
