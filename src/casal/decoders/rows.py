"""Some rows of a decoder: the constraint couples only where it says something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from casal.decoders.base import CHUNK, Decoder, Identity
from casal.decoders.gram import Gram
from casal.decoders.linear import Linear
from casal.decoders.transforms import Transform
from casal.errors import SettingError, ShapeError
from casal.typing import Event

SMALL_MATRIX = 32
"""Rows of a transform become a dense matrix while that has at most so many numbers for each point of the grid."""


class Rows(Decoder):
    """z = (A x)[index]: A_o x with A_o the rows of A that a constraint on few coordinates needs.

    With all rows coupled, the free coordinates of z follow A x and hold x back: each projection moves x by only the
    share of observed rows. With A_o, x is free to move where nothing is known.

    Samples are the constrained rows alone; the whole decoded event of the chains is ``decoder(result.state.x)``. The
    Gram matrix D^(1/2) A_o^T A_o D^(1/2) has at most as many eigenvalues as rows, and costs O(d rows) to solve with.

    Args:
        decoder: A. Of a ``Linear`` only the rows are kept. Few rows of a transform become a small matrix too; with many
            rows it decodes everything, and scatters for its own fast transpose.
        index: Positions in the flattened decoded event, each once. Of a mask: ``mask.flatten().nonzero()``.

    >>> Rows(Linear([[1, 0], [0, 2], [3, 3]]), [2, 0])(torch.ones(1, 2, dtype=torch.float64))
    tensor([[6., 1.]], dtype=torch.float64)
    """

    def __init__(self, decoder: Decoder, index: Any) -> None:
        positions = _positions(index)
        if isinstance(decoder, Rows):
            _check_range(_span(positions), (len(decoder.index),))
            positions = decoder.index[positions.to(decoder.index.device)]
            decoder = decoder.inner
        self.inner: Decoder = decoder
        self.index: Tensor = positions
        self.linear = decoder.linear
        self._span = _span(positions)
        self._small: Linear | None = None
        self._inverted: Linear | None = None
        if isinstance(decoder, Linear | Transform):
            _check_range(self._span, decoder.shape)
        if isinstance(decoder, Linear):
            self._small = Linear(decoder.A[positions.to(decoder.A.device)])
        elif isinstance(decoder, Transform):
            numbers = len(positions) * torch.Size(_latent(decoder)).numel()
            if numbers <= SMALL_MATRIX * torch.Size(decoder.shape).numel():
                self._small = Linear(self._read(_latent(decoder), _double(positions)))

    def __call__(self, x: Tensor) -> Tensor:
        if self._small is not None:
            return self._small(x)
        decoded = self.inner(x)
        _check_range(self._span, tuple(decoded.shape[1:]))
        return decoded.reshape(len(x), -1).index_select(1, self.index)

    def vjp(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        if self._small is not None:
            return self._small.vjp(x)
        pull, event = self.inner.vjp(x), self.inner.event(x)
        return lambda v: pull(self._scattered(v, event))

    def norm(self) -> float:
        """|A_o| where its columns are known, else |A|, which is no less."""
        if self._small is not None:
            return self._small.norm()
        if isinstance(self.inner, Transform):
            return Linear(self._read(_latent(self.inner), _double(self.index))).norm()
        return self.inner.norm()

    def event(self, x: Tensor) -> Event:
        return (len(self.index),)

    def pinv(self, z: Tensor, latent: Event) -> Tensor:
        if not self.linear:
            return super().pinv(z, latent)
        if isinstance(self.inner, Identity):
            return self._scattered(z, latent)
        if self._inverted is None:
            self._inverted = self._small or Linear(self._read(latent, z).to(z))
        return self._inverted.pinv(z, latent)

    def matrix(self, latent: Event, like: Tensor) -> Tensor:
        return self._read(latent, like) if self._small is None else self._small.matrix(latent, like)

    def gram(self, latent: Event, preconditioner: Tensor | None, like: Tensor) -> Gram:
        if not isinstance(self.inner, Identity):
            return super().gram(latent, preconditioner, like)
        whole = self.inner.gram(latent, preconditioner, like)
        seen = self._scattered(torch.ones((1, len(self.index)), dtype=like.dtype, device=like.device), latent)[0]
        return Gram(root=whole.root, eigenvalues=whole.eigenvalues * seen, basis=None)

    def to(self, like: Tensor) -> Decoder:
        other = Rows(self.inner.to(like), self.index.to(like.device))
        if other._small is not None:
            other._small = Linear(other._small.A.to(like))
        return other

    def _scattered(self, v: Tensor, event: Event) -> Tensor:
        """The rows in their places, zeros elsewhere."""
        _check_range(self._span, event)
        full = torch.zeros((len(v), torch.Size(event).numel()), dtype=v.dtype, device=v.device)
        return full.index_copy(1, self.index, v).reshape(len(v), *event)

    def _read(self, latent: Event, like: Tensor) -> Tensor:
        """A_o (rows, d) in float64: as many unit vectors as the shorter side of A_o, never all of A at once."""
        size, rows = torch.Size(latent).numel(), len(self.index)
        origin = torch.zeros((1, *latent), dtype=like.dtype, device=like.device)
        event = self.inner.event(origin)
        units = torch.eye(min(size, rows), dtype=like.dtype, device=like.device)
        parts = units.split(max(1, CHUNK // torch.Size(event).numel()))
        if size <= rows:
            images = [self.inner(part.reshape(len(part), *latent)).reshape(len(part), -1) for part in parts]
            return torch.cat([image.index_select(1, self.index) for image in images]).T.to(torch.float64)
        pulls = [self.inner.vjp(origin.expand(len(part), *latent))(self._scattered(part, event)) for part in parts]
        return torch.cat([pull.reshape(len(pull), size) for pull in pulls]).to(torch.float64)


def _double(positions: Tensor) -> Tensor:
    """An empty float64 tensor where the positions are: transforms are read off in float64 whatever the run is in."""
    return torch.empty(0, dtype=torch.float64, device=positions.device)


def _latent(transform: Transform) -> Event:
    """The flat latent of a transform."""
    return ((transform.channels or 1) * transform.count,)


def _positions(index: Any) -> Tensor:
    positions = torch.as_tensor(index)
    if not positions.numel():
        raise SettingError("Rows needs at least one position")
    if positions.is_floating_point() or positions.dtype == torch.bool:
        raise SettingError(
            f"index holds positions in the flattened event, integers, got {positions.dtype}; "
            "of a mask: mask.flatten().nonzero()"
        )
    positions = positions.to(torch.long).reshape(-1).clone()
    values, counts = positions.unique(return_counts=True)
    if bool((counts > 1).any()):
        raise SettingError(f"position {int(values[counts > 1][0])} is there more than once; keep one row for each")
    return positions


def _span(positions: Tensor) -> tuple[int, int]:
    return int(positions.min()), int(positions.max())


def _check_range(span: tuple[int, int], event: Event) -> None:
    size, (low, high) = torch.Size(event).numel(), span
    if not 0 <= low <= high < size:
        raise ShapeError(f"rows {low} to {high} are asked of decoded events {event}, which have 0 to {size - 1}")
