"""A factor for each number."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from casal.decoders.base import Decoder
from casal.decoders.gram import Gram
from casal.typing import Event


class Diagonal(Decoder):
    """z = diag(scale) x.

    Args:
        scale: A number for each coordinate of an event, flat.
    """

    linear = True

    def __init__(self, scale: Tensor) -> None:
        self.scale = scale.reshape(-1)
        self._inverse = torch.where(self.scale == 0.0, 0.0, 1.0 / self.scale)

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.scale.to(x).reshape(x.shape[1:])

    def vjp(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        return self.__call__

    def norm(self) -> float:
        return float(self.scale.abs().max())

    def event(self, x: Tensor) -> Event:
        return tuple(x.shape[1:])

    def pinv(self, z: Tensor, latent: Event) -> Tensor:
        return z * self._inverse.to(z).reshape(latent)

    def gram(self, latent: Event, preconditioner: Tensor | None, like: Tensor) -> Gram:
        diagonal = torch.ones((), dtype=like.dtype, device=like.device) if preconditioner is None else preconditioner
        return Gram(diagonal.sqrt(), diagonal * self.scale.to(like).square().reshape(latent), None)

    def to(self, like: Tensor) -> Decoder:
        return Diagonal(self.scale.to(like))
