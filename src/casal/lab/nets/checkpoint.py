"""Networks and training runs on disk: one file with tensors and a JSON header in its metadata (safetensors).

Reading a file runs no code of the file's. A file appears whole or not at all: it is written beside its place, forced to
disk, and renamed. A process killed in between leaves a hidden ``.name.pid`` behind, which nobody reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from casal.errors import CasalError, StoreError
from casal.lab.nets.gaussian import Gaussian
from casal.lab.nets.mlp import MLP
from casal.lab.nets.unet import UNet
from casal.lab.nets.wiener import WienerMLP, WienerUNet
from casal.store import write_whole

FORMAT = "casal.nets"
VERSION = 1

CLASSES: tuple[type[nn.Module], ...] = (MLP, UNet, WienerMLP, WienerUNet, Gaussian)
"""What ``load`` may build; a file can name these and nothing else."""


def require_safetensors() -> None:
    """StoreError unless the library that reads and writes the files is there."""
    try:
        import safetensors.torch  # noqa: F401
    except ImportError as missing:
        raise StoreError(
            "checkpoints are safetensors files and safetensors is not installed: pip install 'casal[lab]'"
        ) from missing


def write(path: str | Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Put tensors and header into the file at ``path``, which is replaced in one piece."""
    require_safetensors()
    from safetensors import SafetensorError
    from safetensors.torch import save

    place = Path(path)
    try:
        text = json.dumps({"format": FORMAT, "version": VERSION, **header}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise StoreError(f"{place}: the configuration is not plain JSON ({error})") from error
    kept = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    try:
        write_whole(place, lambda file: file.write(save(kept, metadata={"casal": text})))
    except (OSError, SafetensorError) as error:
        raise StoreError(f"{place} cannot be written: {error}") from error


def read(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and header of the file at ``path``; StoreError if it is not one of ours."""
    require_safetensors()
    from safetensors import SafetensorError, safe_open

    place = Path(path)
    try:
        with safe_open(place, framework="pt", device="cpu") as file:
            text = (file.metadata() or {}).get("casal")
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()} if text else {}  # noqa: SIM118
    except FileNotFoundError as error:
        raise StoreError(f"{place} does not exist") from error
    except (OSError, SafetensorError) as error:
        raise StoreError(f"{place} is not a safetensors file, or is damaged: {error}") from error
    try:
        header = json.loads(text or "null")
    except ValueError as error:
        raise StoreError(f"{place}: its header is not JSON ({error})") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise StoreError(f"{place} is a safetensors file, but not one that casal.lab.nets wrote")
    if (version := header.get("version")) != VERSION:
        known = f"this casal reads version {VERSION}; use the casal that wrote it, or train again"
        raise StoreError(f"{place} has version {version} of the format, {known}")
    return tensors, header


def save(net: nn.Module, path: str | Path) -> None:
    """Write a network to ``path`` (safetensors, configuration in its metadata), replacing what is there.

    ``net`` is one of CLASSES, or any module with a ``config`` (see ``load`` about its class).
    """
    name, config = type(net).__name__, getattr(net, "config", None)
    if not isinstance(config, dict):
        raise StoreError(
            f"{name} cannot be rebuilt from a file: give it a property 'config' that returns its "
            "constructor arguments as a dict of plain JSON"
        )
    write(path, net.state_dict(), {"kind": "network", "class": name, "config": config})


def load(path: str | Path, *, classes: Iterable[type[nn.Module]] = ()) -> nn.Module:
    """The network in a file, in evaluation mode, on the CPU, in the dtype it was saved in.

    Reads what ``save`` wrote, and also the file of a training run, finished or not: then its averaged weights. The
    file may name CLASSES and ``classes`` of your own. StoreError if it is damaged, or of another version.
    """
    tensors, header = read(path)
    if header.get("kind") == "training":
        weights = {key.removeprefix("net."): value for key, value in tensors.items() if key.startswith("net.")}
        tensors = {key: tensors.get(f"ema.{key}", value) for key, value in weights.items()}
    known = {kind.__name__: kind for kind in (*CLASSES, *classes)}
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
