"""Some rows of a decoder, for constraints on few coordinates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from casal.checks import Event
from casal.decoders.base import Decoder, scatter
from casal.decoders.gram import Gram
from casal.decoders.linear import Linear
from casal.errors import SettingError, ShapeError


class Rows(Decoder):
    """Decodes only the rows of A that a constraint on few coordinates needs: z = (A x)[index] = A_o x.

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
        if decoder.shape is not None:
            _check_range(_span(positions), decoder.shape)
        self.inner, self.index = decoder.source_of_rows(positions)
        self.linear = decoder.linear
        self.shape: Event = (len(self.index),)
        self._span = _span(self.index)
        matrix = self.inner.dense_rows(self.index)
        self._small = None if matrix is None else Linear(matrix)
        self._pinv: Linear | None = None

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
        return lambda v: pull(self._scatter(v, event))

    def norm(self) -> float:
        """|A_o| where the number of its columns is known, else |A|, which is no less."""
        if self._small is not None:
            return self._small.norm()
        if self.inner.latent_size is None:
            return self.inner.norm()
        double = torch.empty(0, dtype=torch.float64, device=self.index.device)
        return Linear(self.inner.matrix_rows(self.index, (self.inner.latent_size,), double)).norm()

    def pinv(self, z: Tensor, latent: Event) -> Tensor:
        if not self.linear:
            if not self.affine:
                return super().pinv(z, latent)
            linear, offset = self.centred(z.new_zeros((1, *latent)))
            return linear.pinv(z if offset is None else z - offset.to(z), latent)
        if self.inner.identity:
            return self._scatter(z, latent)
        if self._pinv is None:
            self._pinv = self._small or Linear(self.matrix(latent, z).to(z))
        return self._pinv.pinv(z, latent)

    def matrix(self, latent: Event, like: Tensor) -> Tensor:
        if self._small is not None:
            return self._small.matrix(latent, like)
        _check_range(self._span, self.inner.event(like.new_zeros((1, *latent))))
        return self.inner.matrix_rows(self.index, latent, like)

    def gram(self, latent: Event, preconditioner: Tensor | None, like: Tensor) -> Gram:
        if not self.inner.identity:
            return super().gram(latent, preconditioner, like)
        whole = self.inner.gram(latent, preconditioner, like)
        mask = self._scatter(torch.ones((1, len(self.index)), dtype=like.dtype, device=like.device), latent)[0]
        return Gram(root=whole.root, eigenvalues=whole.eigenvalues * mask, basis=None)

    def source_of_rows(self, index: Tensor) -> tuple[Decoder, Tensor]:
        return self.inner, self.index[index.to(self.index.device)]

    @property
    def affine(self) -> bool:
        return self.inner.affine

    def centred(self, like: Tensor) -> tuple[Decoder, Tensor | None]:
        inner, offset = self.inner.centred(like)
        if offset is None:
            return self, None
        whole = offset.expand(self.inner.to(like).event(like)).reshape(-1)
        return Rows(inner, self.index), whole[self.index.to(whole.device)]

    def rescaled(self, scale: Tensor) -> Decoder | None:
        if self._small is not None:
            return self._small.rescaled(scale)
        inner = self.inner.rescaled(scale) if scale.numel() == 1 else None
        return None if inner is None else Rows(inner, self.index)

    def to(self, like: Tensor) -> Decoder:
        other = Rows(self.inner.to(like), self.index.to(like.device))
        if other._small is not None:
            other._small = Linear(other._small.A.to(like))
        return other

    def _scatter(self, v: Tensor, event: Event) -> Tensor:
        """The rows in their places, zeros elsewhere."""
        _check_range(self._span, event)
        return scatter(v, self.index, event)


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
