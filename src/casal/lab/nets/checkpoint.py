"""Networks on disk: their weights and statistics bit by bit, and the arguments that rebuild them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from casal.errors import CasalError, StoreError
from casal.lab.nets import files
from casal.lab.nets.gaussian import Gaussian
from casal.lab.nets.mlp import MLP
from casal.lab.nets.unet import UNet
from casal.lab.nets.wiener import WienerUNet
from casal.lab.nets.wiener_mlp import WienerMLP

CLASSES: tuple[type[nn.Module], ...] = (MLP, UNet, WienerMLP, WienerUNet, Gaussian)
"""What ``load`` may build; a file can name these and nothing else."""


def describe(net: nn.Module) -> dict[str, Any]:
    """Class name and constructor arguments, as they stand in a file."""
    config = getattr(net, "config", None)
    if not isinstance(config, dict):
        raise StoreError(
            f"{type(net).__name__} cannot be rebuilt from a file: give it a property 'config' that returns its "
            "constructor arguments as a dict of plain JSON"
        )
    return {"class": type(net).__name__, "config": config}


def save(net: nn.Module, path: str | Path) -> None:
    """Write a network to ``path`` (safetensors, configuration in its metadata), replacing what is there.

    Args:
        net: One of CLASSES, or any module with a ``config`` (see ``load`` about its class).
        path: Where to; missing directories are made.
    """
    files.write(path, net.state_dict(), {"kind": "network", **describe(net)})


def load(path: str | Path, *, classes: Iterable[type[nn.Module]] = ()) -> nn.Module:
    """The network in a file, in evaluation mode, on the CPU, in the dtype it was saved in.

    Reads what ``save`` wrote, and also the file of a training run, finished or not: then its averaged weights.

    Args:
        path: The file.
        classes: Network classes of your own that the file may name, besides CLASSES.

    Raises:
        StoreError: The file is damaged, of another version, names an unknown class, or does not fit it.
    """
    tensors, header = files.read(path)
    if header.get("kind") == "training":
        tensors = {
            name.removeprefix("net."): tensors.get("ema." + name.removeprefix("net."), tensor)
            for name, tensor in tensors.items()
            if name.startswith("net.")
        }
    return _rebuild(path, tensors, header, {kind.__name__: kind for kind in (*CLASSES, *classes)})


def _rebuild(
    path: str | Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any], known: Mapping[str, type[nn.Module]]
) -> nn.Module:
    name, config = header.get("class"), header.get("config")
    if not isinstance(name, str) or name not in known:
        raise StoreError(
            f"{path} holds a network of class {name!r}, known are {', '.join(sorted(known))}; "
            "pass load(..., classes=[...]) if the class is yours"
        )
    if not isinstance(config, dict):
        raise StoreError(f"{path}: the network of class {name} was saved without its configuration")
    try:
        net = known[name](**config)
        net.load_state_dict(tensors, assign=True)
    except (CasalError, TypeError, RuntimeError) as error:
        raise StoreError(f"{path} does not fit the class {name} it names: {error}") from error
    return net.eval()
