"""Conditions of a model: keyword tensors with one row per chain, such as class labels and text embeddings.

A conditional network is called as ``eps(x, t, **condition)``, where every tensor of the condition has one row for each
row of x. A run cuts them with its tiles, and every call gets the rows of its own chains.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from casal.errors import SettingError, ShapeError


def checked(condition: Any) -> dict[str, Tensor]:
    """Names to tensors (n, ...), all of one n; lists and arrays become tensors. None is no condition."""
    if condition is None:
        return {}
    if not isinstance(condition, Mapping) or not all(isinstance(name, str) for name in condition):
        kind = type(condition).__name__
        raise SettingError(f"condition is a mapping of names to tensors with one row per chain, got {kind}")
    found = {name: _tensor(name, value) for name, value in condition.items()}
    if len({len(value) for value in found.values()}) > 1:
        each = ", ".join(f"{len(value)} in {name}" for name, value in found.items())
        raise ShapeError(f"the condition has different numbers of rows: {each}; give one row a chain to each")
    return found


def _tensor(name: str, value: Any) -> Tensor:
    try:
        found = torch.as_tensor(value).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise SettingError(f"condition[{name!r}] is not a tensor: {type(value).__name__} ({error})") from error
    if found.ndim < 1 or not len(found):
        raise ShapeError(
            f"condition[{name!r}] has shape {tuple(found.shape)}; give one row per chain, (n, ...): expand one row by "
            "value.expand(n, *value.shape)"
        )
    return found


def rows_of(condition: Mapping[str, Tensor]) -> int | None:
    """For how many chains it is; None if there is none."""
    return next((len(value) for value in condition.values()), None)


def take_rows(condition: Mapping[str, Tensor], index: slice | Tensor) -> dict[str, Tensor]:
    """The rows of some chains: a slice, or their numbers (k,)."""
    if isinstance(index, slice):
        return {name: value[index] for name, value in condition.items()}
    return {name: value[index.to(value.device)] for name, value in condition.items()}


def fitted(condition: Mapping[str, Tensor], x: Tensor) -> dict[str, Tensor]:
    """On the device of x, floating-point numbers in its dtype; labels stay whole numbers."""
    return {name: value.to(x) if value.is_floating_point() else value.to(x.device) for name, value in condition.items()}


def labels(condition: Mapping[str, Tensor]) -> Tensor | None:
    """(n,) numbers that are equal where all rows are equal to the bit; None if there is no condition."""
    if not condition:
        return None
    columns = torch.stack([_labels(value.cpu()) for value in condition.values()], 1)
    return columns[:, 0] if columns.shape[1] == 1 else torch.unique(columns, dim=0, return_inverse=True)[1]


def _labels(value: Tensor) -> Tensor:
    rows = value.reshape(len(value), -1).contiguous()
    if rows.shape[1] == 1 and not rows.is_complex() and rows.dtype != torch.bool:
        return torch.unique(rows[:, 0], return_inverse=True)[1]
    seen = dict[bytes, int]()
    bits = rows.view(torch.uint8).numpy()
    return torch.tensor([seen.setdefault(hashlib.blake2b(row).digest(), len(seen)) for row in bits])


class Given:
    """A function of points and a condition, which gets the condition on the device and in the dtype of the points."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.function = function

    def __call__(self, x: Tensor, /, **condition: Tensor) -> Tensor:
        return self.function(x, **fitted(condition, x))
