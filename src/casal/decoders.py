"""Decoders A: from the space where the model lives to the space where the constraint lives (A x = z)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from casal.errors import SettingError, ShapeError
from casal.typing import Event


class Decoder(ABC):
    """A map from latent events to decoded events, with the transpose of its derivative."""

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """Decode (n, *latent) -> (n, *event)."""

    @abstractmethod
    def vjp(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        """The transposed derivative at x: a function v -> J(x)^T v from (n, *event) to (n, *latent)."""

    @abstractmethod
    def norm(self) -> float:
        """Spectral norm |A|, the number in the stability limit tau rho |A|^2 <= 1."""

    def pinv(self, z: Tensor, latent: Event) -> Tensor:
        """Least-squares latent of z, as latent projected diffusion needs it."""
        raise SettingError(f"{type(self).__name__} has no pseudo-inverse; use CASAL, which needs none")

    def gram(self, latent: Event, preconditioner: Tensor | None, like: Tensor) -> Gram:
        """Factorise D^(1/2) A^T A D^(1/2) once, for the implicit coupling and the weighted moves."""
        raise SettingError(f"{type(self).__name__} is not linear: use coupling='explicit'")

    def to(self, like: Tensor) -> Decoder:
        """The same decoder in the dtype and on the device of ``like``."""
        return self


@dataclass(frozen=True)
class Gram:
    """Eigen-decomposition of D^(1/2) A^T A D^(1/2) = U diag(e) U^T, with U left out where it is the identity.

    Attributes:
        root: D^(1/2), a number or of the shape of a latent event.
        eigenvalues: e; flat (d,) if there is a basis, else broadcastable to a latent event.
        basis: U (d, d) or None.
    """

    root: Tensor
    eigenvalues: Tensor
    basis: Tensor | None

    def solve(self, v: Tensor, strength: Tensor) -> Tensor:
        """(I + strength D A^T A)^-1 v."""
        factor = 1.0 / (1.0 + strength * self.eigenvalues)
        if self.basis is None:
            return factor * v
        turned = (v / self.root).reshape(len(v), -1) @ self.basis
        return self.root * ((turned * factor) @ self.basis.T).reshape(v.shape)

    def whiten(self, v: Tensor) -> Tensor:
        """U^T D^(1/2) v: a gradient in the coordinates in which D and A^T A are diagonal; flat if there is a U."""
        scaled = self.root * v
        return scaled if self.basis is None else scaled.reshape(len(v), -1) @ self.basis

    def unwhiten(self, y: Tensor) -> Tensor:
        """D^(1/2) U y: a displacement back in the coordinates of x (flat if there is a U and D is a number)."""
        return self.root * y if self.basis is None else self.root.reshape(-1) * (y @ self.basis.T)


class Identity(Decoder):
    """A = I: the model lives where the constraint does."""

    def __call__(self, x: Tensor) -> Tensor:
        return x

    def vjp(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda v: v

    def norm(self) -> float:
        return 1.0

    def pinv(self, z: Tensor, latent: Event) -> Tensor:
        return z

    def gram(self, latent: Event, preconditioner: Tensor | None, like: Tensor) -> Gram:
        diagonal = torch.ones((), dtype=like.dtype, device=like.device) if preconditioner is None else preconditioner
        return Gram(root=diagonal.sqrt(), eigenvalues=diagonal, basis=None)


class Linear(Decoder):
    """z = A x for a matrix A (k, d), latent events flattened to d numbers.

    Args:
        A: The matrix.
        shape: Shape of a decoded event; (k,) if left out.
    """

    def __init__(self, A: Any, *, shape: Event | None = None) -> None:
        self.A = torch.as_tensor(A)
        if not self.A.is_floating_point():
            self.A = self.A.to(torch.float64)
        if self.A.ndim != 2:
            raise ShapeError(f"Linear needs a matrix (k, d), got shape {tuple(self.A.shape)}")
        self.shape: Event = (self.A.shape[0],) if shape is None else tuple(shape)
        if torch.Size(self.shape).numel() != self.A.shape[0]:
            raise ShapeError(f"A has {self.A.shape[0]} rows, which do not fill decoded events {self.shape}")

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
        return (z.reshape(len(z), -1) @ torch.linalg.pinv(self.A).T).reshape(len(z), *latent)

    def gram(self, latent: Event, preconditioner: Tensor | None, like: Tensor) -> Gram:
        one = torch.ones((), dtype=like.dtype, device=like.device)
        root = one if preconditioner is None else preconditioner.expand(latent).sqrt()
        wide = self.A.to(torch.float64) * root.expand(latent).reshape(-1).to(torch.float64)
        values, basis = torch.linalg.eigh(wide.T @ wide)
        return Gram(root=root, eigenvalues=values.clamp_min(0.0).to(like), basis=basis.to(like))

    def to(self, like: Tensor) -> Decoder:
        return Linear(self.A.to(like), shape=self.shape)
