"""Networks on disk: the same bits back, nothing executed, and every file that is not ours refused by name."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from casal.errors import StoreError
from casal_lab.nets import MLP, Gaussian, UNet, WienerMLP, WienerUNet, checkpoint, load, save


def awake(net: Any) -> Any:
    generator = torch.Generator().manual_seed(5)
    for p in net.parameters():
        nn.init.normal_(p, generator=generator)
    return net


def lifted() -> WienerUNet:
    data = torch.randn(100, 10, generator=torch.Generator().manual_seed(0))
    return WienerUNet.fit(data, grid=(1, 4, 8), lift=torch.eye(32, 10), widths=(8, 12), positions=2)


def field_denoiser() -> WienerUNet:
    data = torch.randn(200, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    return WienerUNet.fit(data, widths=(8,), padding="circular", sigmas=(0.1, 2.0), seed=3)


def standardising() -> MLP:
    net = MLP((2, 3), width=7, depth=2, features=5, horizon=10.0, seed=4)
    net.standardise.fit(1 + torch.randn(50, 2, 3, generator=torch.Generator().manual_seed(0)))
    return net


NETS = [
    standardising,
    lambda: MLP(4).double(),
    lambda: UNet(3, 1, (8, 8), widths=(8, 12, 16), positions=1),
    field_denoiser,
    lifted,
    lambda: WienerMLP.fit(
        torch.randn(50, 3, generator=torch.Generator().manual_seed(0)), torch.full((20,), 0.1), seed=2
    ),
    lambda: Gaussian.fit(torch.randn(50, 3, generator=torch.Generator().manual_seed(0)), dtype=torch.float64),
]


@pytest.mark.parametrize("make", NETS)
def test_a_network_comes_back_bit_by_bit(make: Any, tmp_path: Path) -> None:
    net = awake(make())
    save(net, tmp_path / "deep" / "er" / "net.safetensors")
    back = load(tmp_path / "deep" / "er" / "net.safetensors")
    assert type(back) is type(net)
    assert back.config == net.config
    assert not back.training
    ours, theirs = net.state_dict(), back.state_dict()
    assert list(ours) == list(theirs)
    for name, value in ours.items():
        assert value.dtype == theirs[name].dtype and torch.equal(value, theirs[name]), name
    assert [p.requires_grad for p in net.parameters()] == [p.requires_grad for p in back.parameters()]
    event = (3, 8, 8) if isinstance(net, UNet) else net.event
    x = torch.randn(3, *event, generator=torch.Generator().manual_seed(1))
    assert torch.equal(net(x, 0.5), back(x, 0.5))


def test_the_statistics_of_the_data_travel_along(tmp_path: Path) -> None:
    net = standardising()
    save(net, tmp_path / "net")
    back = load(tmp_path / "net")
    assert isinstance(back, MLP)
    assert torch.equal(back.standardise.mean, net.standardise.mean)
    assert torch.equal(back.standardise.scale, net.standardise.scale)
    assert float(back.standardise.mean.abs().min()) > 0


def test_the_file_is_plain_safetensors_with_json(tmp_path: Path) -> None:
    save(MLP(2), tmp_path / "net")
    assert set(load_file(tmp_path / "net")) == set(MLP(2).state_dict())
    raw = (tmp_path / "net").read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    said = json.loads(header["__metadata__"]["casal"])
    assert (said["class"], said["version"], said["config"]["event"]) == ("MLP", 1, [2])


def rewritten(path: Path, **changes: Any) -> Path:
    """A saved MLP whose header says something else."""
    save(MLP(2), path)
    tensors, header = checkpoint.read(path)
    checkpoint.write(path, tensors, {**header, **changes})
    return path


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"class": "Sequential"}, r"class 'Sequential', known are Gaussian, MLP, UNet, WienerMLP, WienerUNet"),
        ({"class": "os.system"}, "class 'os.system'"),
        ({"class": None}, "class None"),
        ({"class": ["MLP"]}, "class"),
        ({"version": 2}, "version 2 of the format, this casal reads version 1"),
        ({"format": "other"}, "not one that casal_lab.nets wrote"),
        ({"config": None}, "without its configuration"),
        ({"config": {"event": [2], "colour": "red"}}, "does not fit the class MLP.*colour"),
        ({"config": {"event": [3]}}, "does not fit the class MLP.*size mismatch"),
        ({"config": {"event": [2], "depth": 2}}, "does not fit the class MLP.*hidden.4"),
        ({"config": {"event": [2], "width": -1}}, "does not fit the class MLP.*width"),
    ],
)
def test_files_that_do_not_fit_are_refused(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    path = rewritten(tmp_path / "net", **changes)
    with pytest.raises(StoreError, match=f"(?s){says}"):
        load(path)


def test_files_that_are_not_ours_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "net"
    with pytest.raises(StoreError, match="does not exist"):
        load(path)
    save_file({"a": torch.zeros(2)}, path)
    with pytest.raises(StoreError, match=r"not one that casal_lab\.nets wrote"):
        load(path)
    save_file({"a": torch.zeros(2)}, path, metadata={"casal": "{"})
    with pytest.raises(StoreError, match="not JSON"):
        load(path)
    save(MLP(2), path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(StoreError, match="damaged"):
        load(path)
    with pytest.raises(StoreError):
        load(tmp_path)


def test_a_flipped_bit_is_seen(tmp_path: Path) -> None:
    """Also in the numbers of a tensor, which are all legal."""
    path = tmp_path / "net"
    save(MLP(2, width=8, depth=1), path)
    raw = path.read_bytes()
    for place in range(8, len(raw), len(raw) // 60):
        path.write_bytes(raw[:place] + bytes([raw[place] ^ 4]) + raw[place + 1 :])
        with pytest.raises(StoreError):
            load(path)
    path.write_bytes(raw)
    load(path)


def test_a_file_of_before_there_were_checksums_is_read(tmp_path: Path) -> None:
    path = tmp_path / "net"
    save(MLP(2), path)
    tensors, header = checkpoint.read(path)
    save_file(tensors, path, metadata={"casal": json.dumps(header)})
    assert isinstance(load(path, name="whatever"), MLP)


def test_a_pickle_is_not_opened(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "sprung"),)

    (tmp_path / "net").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(StoreError, match="not a safetensors file"):
        load(tmp_path / "net")
    assert not (tmp_path / "sprung").exists()


class Mine(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.layer = nn.Linear(size, size)

    @property
    def config(self) -> dict[str, Any]:
        return {"size": self.size}

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.layer(x)


def test_classes_of_ones_own_are_named_by_the_reader(tmp_path: Path) -> None:
    net = Mine(3)
    save(net, tmp_path / "net")
    with pytest.raises(StoreError, match="class 'Mine'"):
        load(tmp_path / "net")
    back = load(tmp_path / "net", classes=[Mine])
    assert isinstance(back, Mine) and torch.equal(back.layer.weight, net.layer.weight)
    with pytest.raises(StoreError, match="property 'config'"):
        save(nn.Linear(2, 2), tmp_path / "other")
    net.size = float("nan")  # type: ignore[assignment]
    with pytest.raises(StoreError, match="not plain JSON"):
        save(net, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(MLP(2, seed=1), tmp_path / "net")
    before = (tmp_path / "net").read_bytes()

    def full(*args: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StoreError, match="no space left"):
        save(MLP(2, seed=2), tmp_path / "net")
    assert (tmp_path / "net").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["net"]
