"""One file: tensors, and a JSON header in its metadata (safetensors). Reading it runs no code of the file's.

A file appears whole or not at all: it is written beside its place, forced to disk, and renamed. A process killed
in between leaves a hidden ``.name.pid`` behind, which nobody reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from casal.errors import StoreError
from casal.store import write_whole

FORMAT = "casal.lab.nets"
VERSION = 1


def require_safetensors() -> None:
    """StoreError unless the library that reads and writes the files is there."""
    try:
        import safetensors.torch  # noqa: F401
    except ImportError as missing:
        raise StoreError(
            "checkpoints are safetensors files and safetensors is not installed: pip install 'casal[nets]'"
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
    if header.get("version") != VERSION:
        raise StoreError(
            f"{place} has version {header.get('version')} of the format, this casal reads version {VERSION}; "
            "use the casal that wrote it, or train again"
        )
    return tensors, header
