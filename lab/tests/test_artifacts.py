"""Things that take minutes to make are made once, and a file that is not good is never taken for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from casal.errors import CasalError, CasalWarning, StoreError
from casal_lab import artifacts
from casal_lab.artifacts import network, points
from casal_lab.nets import MLP, save

NUMBERS = torch.arange(40.0).reshape(20, 2)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "new"
    monkeypatch.setenv("CASAL_CACHE", str(folder))
    return folder


class Numbers:
    """Makes the points, and counts how often."""

    def __init__(self, value: Tensor = NUMBERS) -> None:
        self.value, self.calls = value, 0

    def __call__(self) -> Tensor:
        self.calls += 1
        return self.value


class Net(Numbers):
    """Makes a network, and counts how often."""

    def __call__(self) -> MLP:  # type: ignore[override]
        self.calls += 1
        return MLP(2, width=8, depth=1, seed=3)


def same(one: nn.Module, other: nn.Module) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_cache_makes_a_thing_once(cache: Path) -> None:
    make, train = Numbers(), Net()
    for _ in range(2):
        assert torch.equal(points("numbers", make), NUMBERS.to(torch.float64))
        assert same(network("net", train), Net()())
    assert (make.calls, train.calls) == (1, 1)
    assert sorted(path.name for path in cache.iterdir()) == ["net.safetensors", "numbers.npz"]


def flipped(raw: bytes) -> bytes:
    middle = len(raw) // 2
    return raw[:middle] + bytes([raw[middle] ^ 1]) + raw[middle + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda raw: raw[:-40],
    "empty": lambda raw: b"",
    "foreign": lambda raw: b"\x80\x04 a pickle, or whatever",
    "flipped": flipped,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_made_again(damage: str, cache: Path) -> None:
    make, train = Numbers(), Net()
    points("numbers", make), network("net", train)
    for name in ("numbers.npz", "net.safetensors"):
        (cache / name).write_bytes(DAMAGES[damage]((cache / name).read_bytes()))
    with pytest.warns(CasalWarning, match=r"numbers\.npz cannot be used and is made again"):
        assert torch.equal(points("numbers", make), NUMBERS.to(torch.float64))
    with pytest.warns(CasalWarning, match=r"net\.safetensors cannot be used and is made again"):
        assert same(network("net", train), Net()())
    assert (make.calls, train.calls) == (2, 2)
    points("numbers", make), network("net", train)
    assert (make.calls, train.calls) == (2, 2)


def test_the_file_of_another_thing_is_not_taken_for_it(cache: Path) -> None:
    points("ones", Numbers(torch.ones(20, 2))), network("other", lambda: MLP(2, width=8, depth=1, seed=4))
    (cache / "ones.npz").rename(cache / "numbers.npz")
    (cache / "other.safetensors").rename(cache / "net.safetensors")
    with pytest.warns(CasalWarning, match="it holds ones"):
        assert torch.equal(points("numbers", Numbers()), NUMBERS.to(torch.float64))
    with pytest.warns(CasalWarning, match="holds the network 'other', not 'net'"):
        assert same(network("net", Net()), Net()())


def test_numbers_that_are_not_finite_are_no_data(cache: Path) -> None:
    spoiled = torch.where(NUMBERS == 7.0, torch.nan, NUMBERS)
    cache.mkdir()
    np.savez(cache / "numbers.npz", name=np.array("numbers"), points=spoiled.numpy())
    net = Net()()
    with torch.no_grad():
        next(net.parameters())[0] = torch.inf
    save(net, cache / "net.safetensors", name="net")
    with pytest.warns(CasalWarning, match="not finite: 1 in points"):
        assert torch.equal(points("numbers", Numbers()), NUMBERS.to(torch.float64))
    with pytest.warns(CasalWarning, match="not finite"):
        assert same(network("net", Net()), Net()())
    with pytest.raises(CasalError, match="spoiled is not kept: what was made for it has numbers that are not finite"):
        points("spoiled", Numbers(spoiled))
    with pytest.raises(CasalError, match="spoiled is not kept"):
        network("spoiled", lambda: net)
    assert sorted(path.name for path in cache.iterdir()) == ["net.safetensors", "numbers.npz"]


def test_a_place_that_cannot_be_written_to_is_refused_before_any_work(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Numbers()
    (cache / "numbers.npz").mkdir(parents=True)
    with pytest.raises(StoreError, match=r"is a folder.*CASAL_CACHE"):
        points("numbers", make)
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        monkeypatch.setenv("CASAL_CACHE", str(place))
        with pytest.raises(StoreError, match=r"cannot use the cache.*set CASAL_CACHE"):
            points("numbers", make)
    monkeypatch.setenv("CASAL_CACHE", str(cache))

    ordinary = Path.open

    def read_only(path: Path, mode: str) -> object:
        if mode != "rb":
            raise OSError(30, "Read-only file system")
        return ordinary(path, mode)

    points("there", make)
    monkeypatch.setattr(Path, "open", read_only)
    with pytest.raises(StoreError, match="Read-only file system; set CASAL_CACHE"):
        points("missing", make)
    assert make.calls == 1
    points("there", make)  # reading needs no permission to write


def test_a_disk_that_fills_up_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(artifacts, "write_whole", full)
    with pytest.raises(StoreError, match="No space left on device; set CASAL_CACHE"):
        points("numbers", Numbers())
    assert not list(cache.iterdir())


def test_those_who_want_the_same_file_at_once_wait_for_the_one_who_makes_it(cache: Path) -> None:
    """Threads stand for processes: a lock belongs to the open file, and each opens its own."""
    begun, calls, found = threading.Event(), [], []

    def make() -> Tensor:
        calls.append(1)
        begun.set()
        others[0].join(0.3)  # they come while it is made, and do not get past the lock
        return NUMBERS

    def want() -> None:
        begun.wait(5)
        found.append(points("numbers", make))

    others = [threading.Thread(target=want) for _ in range(3)]
    for other in others:
        other.start()
    found.append(points("numbers", make))
    for other in others:
        other.join(10)
    assert len(calls) == 1 and len(found) == 4
    assert all(torch.equal(one, NUMBERS.to(torch.float64)) for one in found)
    assert [path.name for path in cache.iterdir()] == ["numbers.npz"]
