"""Networks and training runs on disk: one file with tensors and a JSON header in its metadata (safetensors).

Reading a file runs no code of the file's. A checksum of tensors and header is kept beside the header; files of before
there was one are read without. A file appears whole or not at all: it is written beside its place, forced to
disk, and renamed. A process killed in between leaves a hidden ``.name.pid`` behind, which nobody reads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from casal.errors import CasalError, StoreError
from casal.store import write_whole
from casal_lab.nets.gaussian import Gaussian
from casal_lab.nets.mlp import MLP
from casal_lab.nets.unet import UNet
from casal_lab.nets.wiener import WienerMLP, WienerUNet

FORMAT = "casal.nets"
VERSION = 1

CLASSES: tuple[type[nn.Module], ...] = (MLP, UNet, WienerMLP, WienerUNet, Gaussian)
"""What ``load`` may build; a file can name these and nothing else."""


def write(path: str | Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Put tensors and header into the file at ``path``, which is replaced in one piece."""
    place = Path(path)
    try:
        text = json.dumps({"format": FORMAT, "version": VERSION, **header}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise StoreError(f"{place}: the configuration is not plain JSON ({error})") from error
    kept = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    try:
        metadata = {"casal": text, "sha256": _checksum(text, kept)}
        write_whole(place, lambda file: file.write(to_bytes(kept, metadata=metadata)))
    except (OSError, SafetensorError) as error:
        raise StoreError(f"{place} cannot be written: {error}") from error


def read(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and header of the file at ``path``; StoreError if it is not one of ours."""
    place = Path(path)
    try:
        with safe_open(place, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            text = metadata.get("casal")
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()} if text else {}  # noqa: SIM118
    except FileNotFoundError as error:
        raise StoreError(f"{place} does not exist") from error
    except (OSError, SafetensorError) as error:
        raise StoreError(f"{place} is not a safetensors file, or is damaged: {error}") from error
    if text and metadata.get("sha256", _checksum(text, tensors)) != _checksum(text, tensors):
        raise StoreError(f"{place} is damaged: its checksum is not that of what it holds; make it again")
    try:
        header = json.loads(text or "null")
    except ValueError as error:
        raise StoreError(f"{place}: its header is not JSON ({error})") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise StoreError(f"{place} is a safetensors file, but not one that casal_lab.nets wrote")
    if (version := header.get("version")) != VERSION:
        known = f"this casal reads version {VERSION}; use the casal that wrote it, or train again"
        raise StoreError(f"{place} has version {version} of the format, {known}")
    return tensors, header


def _checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    """Of the header and of all tensors: names, dtypes, shapes and bytes."""
    total = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        part = tensors[name]
        total.update(f"{name} {part.dtype} {tuple(part.shape)}".encode())
        total.update(part.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def save(net: nn.Module, path: str | Path, *, name: str | None = None) -> None:
    """Write a network to ``path`` (safetensors, configuration in its metadata), replacing what is there.

    ``net`` is one of CLASSES, or any module with a ``config`` (see ``load`` about its class). ``name`` may say what it
    is, for a reader who asks.
    """
    kind, config = type(net).__name__, getattr(net, "config", None)
    if not isinstance(config, dict):
        raise StoreError(
            f"{kind} cannot be rebuilt from a file: give it a property 'config' that returns its "
            "constructor arguments as a dict of plain JSON"
        )
    header = {"kind": "network", "class": kind, "config": config}
    write(path, net.state_dict(), header if name is None else {**header, "name": name})


def load(path: str | Path, *, classes: Iterable[type[nn.Module]] = (), name: str | None = None) -> nn.Module:
    """The network in a file, in evaluation mode, on the CPU, in the dtype it was saved in.

    Reads what ``save`` wrote, and also the file of a training run, finished or not: then its averaged weights. The
    file may name CLASSES and ``classes`` of your own. StoreError if it is damaged, of another version, or was saved
    under another ``name`` than the one asked for.
    """
    tensors, header = read(path)
    if name is not None and (said := header.get("name", name)) != name:
        raise StoreError(f"{path} holds the network {said!r}, not {name!r}")
    if header.get("kind") == "training":
        weights = {key.removeprefix("net."): value for key, value in tensors.items() if key.startswith("net.")}
        tensors = {key: tensors.get(f"ema.{key}", value) for key, value in weights.items()}
    known = {one.__name__: one for one in (*CLASSES, *classes)}
    kind, config = header.get("class"), header.get("config")
    if not isinstance(kind, str) or kind not in known:
        raise StoreError(
            f"{path} holds a network of class {kind!r}, known are {', '.join(sorted(known))}; "
            "pass load(..., classes=[...]) if the class is yours"
        )
    if not isinstance(config, dict):
        raise StoreError(f"{path}: the network of class {kind} was saved without its configuration")
    try:
        net = known[kind](**config)
        net.load_state_dict(tensors, assign=True)
    except (CasalError, TypeError, RuntimeError) as error:
        raise StoreError(f"{path} does not fit the class {kind} it names: {error}") from error
    return net.eval()
