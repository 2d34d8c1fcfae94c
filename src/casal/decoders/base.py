"""What a decoder is, and the one that does nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from casal.decoders.gram import Gram, gram_of
from casal.errors import SettingError
from casal.typing import Event

CHUNK = 1 << 22
"""Numbers in the unit vectors that are decoded at once when a matrix is read off."""


class Decoder(ABC):
    """A map from latent events to decoded events, with the transpose of its derivative.

    A linear decoder is z = A x without an offset: the implicit coupling solves with A^T A and would lose it. For
    z = A x + c in C, ask for A x in ``constraint.shifted(-c)`` and add c to the samples.

    Attributes:
        linear: Whether the map is z = A x. A linear decoder gets ``matrix`` and ``gram`` for free.
    """

    linear: bool = False
    identity: bool = False

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """Decode (n, *latent) -> (n, *event)."""

    @abstractmethod
    def vjp(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        """The transposed derivative at x: a function v -> J(x)^T v from (n, *event) to (n, *latent)."""

    @abstractmethod
    def norm(self) -> float:
        """Spectral norm |A|, the number in the stability limit tau rho |A|^2 <= 1."""

    def event(self, x: Tensor) -> Event:
        """Shape of the decoded events of x."""
        return tuple(self(x[:1]).shape[1:])

    def pinv(self, z: Tensor, latent: Event) -> Tensor:
        """Least-squares latent of z, as latent projected diffusion needs it."""
        raise SettingError(f"{type(self).__name__} has no pseudo-inverse; use CASAL, which needs none")

    def matrix(self, latent: Event, like: Tensor) -> Tensor:
        """A (k, d) as a dense float64 matrix, read off from the images of unit vectors."""
        units = torch.eye(torch.Size(latent).numel(), dtype=like.dtype, device=like.device)
        some = max(1, CHUNK // torch.Size(self.event(units[:1].reshape(1, *latent))).numel())
        images = [self(part.reshape(len(part), *latent)).reshape(len(part), -1) for part in units.split(some)]
        return torch.cat(images).T.to(torch.float64)

    def gram(self, latent: Event, preconditioner: Tensor | None, like: Tensor) -> Gram:
        """Factorise D^(1/2) A^T A D^(1/2) once, for the implicit coupling and the weighted moves."""
        if not self.linear:
            raise SettingError(
                f"{type(self).__name__} is not linear: use coupling='explicit' of casal.CASAL, or a method without "
                "an implicit step (Penalty, PrimalDual, FinalProjection)"
            )
        return gram_of(self.matrix(latent, like), latent, preconditioner, like)

    def factors(self) -> tuple[Decoder, Decoder] | None:
        """B and S with A = B S and B^T B = I, where S is cheaper than A; None if that is not known."""
        return None

    def to(self, like: Tensor) -> Decoder:
        """The same decoder in the dtype and on the device of ``like``, a few starting points of the run."""
        return self


class Identity(Decoder):
    """A = I: the model lives where the constraint does."""

    linear = True
    identity = True

    def __call__(self, x: Tensor) -> Tensor:
        return x

    def vjp(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda v: v

    def norm(self) -> float:
        return 1.0

    def event(self, x: Tensor) -> Event:
        return tuple(x.shape[1:])

    def pinv(self, z: Tensor, latent: Event) -> Tensor:
        return z

    def gram(self, latent: Event, preconditioner: Tensor | None, like: Tensor) -> Gram:
        diagonal = torch.ones((), dtype=like.dtype, device=like.device) if preconditioner is None else preconditioner
        return Gram(diagonal.sqrt(), diagonal, None, unit=preconditioner is None)
