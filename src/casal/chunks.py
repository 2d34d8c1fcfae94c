"""Some chains at a time, so that what is made on the way stays small beside a million chains."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

CHUNK = 1 << 22
"""Numbers that are looked at at once."""


def chain_by_chain(function: Callable[..., Tensor], *parts: Tensor) -> Tensor:
    """``function(*parts)`` for a function that treats chains (dim 0) one by one, in as many calls as it takes."""
    chains = max(1, CHUNK // max(1, *(part.shape[1:].numel() for part in parts)))
    pieces = zip(*(part.split(chains) for part in parts), strict=True)
    return torch.cat([function(*piece) for piece in pieces])
