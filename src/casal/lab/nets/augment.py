"""Symmetries of the data, for training."""

from __future__ import annotations

import torch
from torch import Tensor

from casal.lab.nets.loop import Augment


def random_flips(*dims: int) -> Augment:
    """x -> x mirrored along each of ``dims`` with probability 1/2, for every point by itself.

    Args:
        *dims: Dimensions of a batch (n, *event), as in ``random_flips(-1, -2)`` for the two axes of a field.
    """

    def flips(x: Tensor, generator: torch.Generator) -> Tensor:
        for dim in dims:
            chosen = (torch.rand(len(x), generator=generator) < 0.5).to(x.device)
            x = torch.where(chosen.view(-1, *(1,) * (x.ndim - 1)), x.flip(dim), x)
        return x

    flips.__qualname__ = f"random_flips{dims}"
    return flips
