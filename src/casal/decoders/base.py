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
        identity: Whether the map is z = x.
        shape: Shape of a decoded event, where the decoder fixes it.
        latent_size: Numbers in a latent event, where the decoder fixes it.
    """

    linear: bool = False
    identity: bool = False
    shape: Event | None = None
    latent_size: int | None = None

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
        return tuple(self(x[:1]).shape[1:]) if self.shape is None else self.shape

    def pinv(self, z: Tensor, latent: Event) -> Tensor:
        """Least-squares latent of z, as latent projected diffusion needs it."""
        raise SettingError(f"{type(self).__name__} has no pseudo-inverse; use CASAL, which needs none")

    def matrix(self, latent: Event, like: Tensor) -> Tensor:
        """A (k, d) as a dense float64 matrix, read off from the images of unit vectors."""
        units = torch.eye(torch.Size(latent).numel(), dtype=like.dtype, device=like.device)
        some = max(1, CHUNK // torch.Size(self.event(units[:1].reshape(1, *latent))).numel())
        images = [self(part.reshape(len(part), *latent)).reshape(len(part), -1) for part in units.split(some)]
        return torch.cat(images).T.to(torch.float64)

    def matrix_rows(self, index: Tensor, latent: Event, like: Tensor) -> Tensor:
        """Some rows of A (rows, d) in float64: as many unit vectors as its shorter side, never all of A at once."""
        size, rows = torch.Size(latent).numel(), len(index)
        origin = torch.zeros((1, *latent), dtype=like.dtype, device=like.device)
        event = self.event(origin)
        units = torch.eye(min(size, rows), dtype=like.dtype, device=like.device)
        parts = units.split(max(1, CHUNK // torch.Size(event).numel()))
        if size <= rows:
            images = [self(part.reshape(len(part), *latent)).reshape(len(part), -1) for part in parts]
            return torch.cat([image.index_select(1, index) for image in images]).T.to(torch.float64)
        pulls = [self.vjp(origin.expand(len(part), *latent))(scatter(part, index, event)) for part in parts]
        return torch.cat([pull.reshape(len(pull), size) for pull in pulls]).to(torch.float64)

    def dense_rows(self, index: Tensor) -> Tensor | None:
        """Some rows of A as a matrix, where a product with it is cheaper than decoding everything; else None."""
        return None

    def source_of_rows(self, index: Tensor) -> tuple[Decoder, Tensor]:
        """The decoder and the positions there that hold these rows: those of rows of a decoder are rows of it."""
        return self, index

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

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'' if self.shape is None else f'to events {self.shape}'})"

    def to(self, like: Tensor) -> Decoder:
        """The same decoder in the dtype and on the device of ``like``, a few starting points of the run."""
        return self


class Identity(Decoder):
    """A = I: the model lives where the constraint does."""

    linear = identity = True

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


def scatter(v: Tensor, index: Tensor, event: Event) -> Tensor:
    """Put the columns of v (n, rows) at their positions in events of zeros."""
    full = torch.zeros((len(v), torch.Size(event).numel()), dtype=v.dtype, device=v.device)
    return full.index_copy(1, index, v).reshape(len(v), *event)
