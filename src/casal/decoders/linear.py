"""Linear maps that are stored as numbers: a dense matrix, and a diagonal one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from casal.checks import Event
from casal.decoders.base import Decoder
from casal.decoders.gram import Gram
from casal.errors import ShapeError


class Linear(Decoder):
    """Decodes by a dense matrix A (k, d), latent events flattened to d numbers: z = A x.

    Args:
        A: The matrix.
        shape: Shape of a decoded event; (k,) if left out.

    >>> Linear([[1, 2], [3, 4]])(torch.ones(1, 2, dtype=torch.float64))
    tensor([[3., 7.]], dtype=torch.float64)
    """

    linear = True

    def __init__(self, A: Any, *, shape: Event | None = None) -> None:
        self.A = torch.as_tensor(A, dtype=None if hasattr(A, "dtype") else torch.float64)
        if not self.A.is_floating_point():
            self.A = self.A.to(torch.float64)
        if self.A.ndim != 2:
            raise ShapeError(f"Linear needs a matrix (k, d), got shape {tuple(self.A.shape)}")
        self.latent_size: int = self.A.shape[1]
        self.shape: Event = (self.A.shape[0],) if shape is None else tuple(shape)
        if torch.Size(self.shape).numel() != self.A.shape[0]:
            raise ShapeError(f"A has {self.A.shape[0]} rows, which do not fill decoded events {self.shape}")

    def __repr__(self) -> str:
        return f"Linear(A={tuple(self.A.shape)})"

    def __call__(self, x: Tensor) -> Tensor:
        flat = x.reshape(len(x), -1)
        if flat.shape[1] != self.A.shape[1]:
            raise ShapeError(
                f"A takes {self.A.shape[1]} latent numbers, events {tuple(x.shape[1:])} have {flat.shape[1]}"
            )
        return (flat @ self.A.T).reshape(len(x), *self.shape)

    def vjp(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda v: (v.reshape(len(v), -1) @ self.A).reshape(len(v), *x.shape[1:])

    def norm(self) -> float:
        return float(torch.linalg.matrix_norm(self.A.to(torch.float64), ord=2))

    def pinv(self, z: Tensor, latent: Event) -> Tensor:
        return (z.reshape(len(z), -1) @ self._inverse.T).reshape(len(z), *latent)

    def matrix(self, latent: Event, like: Tensor) -> Tensor:
        return self.A.to(device=like.device, dtype=torch.float64)

    def dense_rows(self, index: Tensor) -> Tensor:
        return self.A[index.to(self.A.device)]

    def rescaled(self, scale: Tensor) -> Decoder:
        rows = scale.expand(self.shape).reshape(-1, 1).to(self.A.device)
        return Linear(rows * self.A.to(torch.float64), shape=self.shape)

    def to(self, like: Tensor) -> Decoder:
        return Linear(self.A.to(like), shape=self.shape)

    @cached_property
    def _inverse(self) -> Tensor:
        """A^+ (d, k), once: projected methods ask for it at every step."""
        cutoff = max(self.A.shape) * torch.finfo(self.A.dtype).eps
        return torch.linalg.pinv(self.A.to(torch.float64), rtol=cutoff).to(self.A.dtype)


class Diagonal(Decoder):
    """Multiplies each number by its own factor: z = diag(scale) x.

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
