"""Tensors as zarr arrays with named dimensions, one chunk a tile."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from casal.errors import StoreError


def zarr_module() -> Any:
    """zarr, or a StoreError that says how to get it."""
    try:
        import zarr
    except ImportError as error:
        raise StoreError("results on disk need the store extra: pip install 'casal[store]'") from error
    return zarr


def packed(tensor: Tensor) -> np.ndarray[Any, Any]:
    """As NumPy, to the same bits; bfloat16, which NumPy has not, as the float32 that holds it."""
    tensor = tensor.detach().cpu().contiguous()
    return np.asarray((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy())


def unpacked(array: np.ndarray[Any, Any], dtype: str) -> Tensor:
    """The tensor that ``packed`` took, with its dtype."""
    return torch.from_numpy(np.array(array, order="C")).to(getattr(torch, dtype.removeprefix("torch.")))


def digest(parts: Mapping[str, Tensor]) -> str:
    """One checksum of some named tensors."""
    total = hashlib.sha256()
    for name in sorted(parts):
        array = packed(parts[name])
        total.update(f"{name} {array.dtype} {array.shape} ".encode())
        total.update(array.tobytes())
    return total.hexdigest()


def create(group: Any, name: str, like: Tensor, chains: int, chunk: int, dims: list[str]) -> None:
    """An array (chains, *like.shape[1:]) in chunks of ``chunk`` chains; what was not written reads as not a number."""
    example = packed(like[:1])
    shape = (chains, *example.shape[1:])
    group.create_array(
        name,
        shape=shape,
        chunks=(min(chunk, chains), *(max(1, size) for size in shape[1:])),
        dtype=example.dtype,
        fill_value=np.nan if np.issubdtype(example.dtype, np.floating) else 0,
        dimension_names=dims[: len(shape)],
        attributes={"dtype": str(like.dtype)},
    )


def read(array: Any, start: int, stop: int, path: Path) -> Tensor:
    """Chains start .. stop of an array."""
    try:
        part = np.asarray(array[start:stop])
    except Exception as error:  # codecs raise their own errors on damaged bytes
        raise StoreError(
            f"chains {start} to {stop} of {array.path} in {path} cannot be read ({error}); nothing was changed: "
            "restore the file from a copy, or remove the record of that tile to run it again"
        ) from error
    return unpacked(part, str(array.attrs["dtype"]))
