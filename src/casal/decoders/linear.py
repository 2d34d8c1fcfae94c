"""Maps that are stored as numbers: a dense matrix, a diagonal, some rows of a decoder, and physical units."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from casal.checks import Event
from casal.decoders.base import Decoder, Gram, affine_pinv, diagonal_gram, scatter
from casal.errors import SettingError, ShapeError


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

    def matrix(self, latent: Event, like: Tensor, rows: Tensor | None = None) -> Tensor:
        A = self.A if rows is None else self._dense_rows(rows)
        return A.to(device=like.device, dtype=torch.float64)

    def _dense_rows(self, index: Tensor) -> Tensor:
        return self.A[index.to(self.A.device)]

    def _scaled(self, diagonal: Tensor) -> Decoder:
        rows = diagonal.expand(self.shape).reshape(-1, 1).to(self.A.device)
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
        return diagonal_gram(self.scale.to(like).square().reshape(latent), latent, preconditioner, like)

    def to(self, like: Tensor) -> Decoder:
        return Diagonal(self.scale.to(like))


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
        self.inner: Decoder = decoder
        self.index: Tensor = positions
        if isinstance(decoder, Rows):  # rows of rows are rows of the first
            self.inner, self.index = decoder.inner, decoder.index[positions.to(decoder.index.device)]
        self.linear = decoder.linear
        self.shape: Event = (len(self.index),)
        self._span = _span(self.index)
        matrix = self.inner._dense_rows(self.index)
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
        return Linear(self.inner.matrix((self.inner.latent_size,), double, self.index)).norm()

    def pinv(self, z: Tensor, latent: Event) -> Tensor:
        if not self.linear:
            return affine_pinv(self, z, latent)
        if self.inner.identity:
            return self._scatter(z, latent)
        if self._pinv is None:
            self._pinv = self._small or Linear(self.matrix(latent, z).to(z))
        return self._pinv.pinv(z, latent)

    def matrix(self, latent: Event, like: Tensor, rows: Tensor | None = None) -> Tensor:
        if self._small is not None:
            return self._small.matrix(latent, like, rows)
        _check_range(self._span, self.inner.event(like.new_zeros((1, *latent))))
        return self.inner.matrix(latent, like, self.index if rows is None else self.index[rows])

    def gram(self, latent: Event, preconditioner: Tensor | None, like: Tensor) -> Gram:
        if not self.inner.identity:
            return super().gram(latent, preconditioner, like)
        full = self.inner.gram(latent, preconditioner, like)
        mask = self._scatter(torch.ones((1, len(self.index)), dtype=like.dtype, device=like.device), latent)[0]
        return Gram(root=full.root, eigenvalues=full.eigenvalues * mask, basis=None)

    def centred(self, like: Tensor) -> tuple[Decoder, Tensor | None]:
        inner, offset = self.inner.centred(like)
        if offset is None:
            return self, None
        full = offset.expand(self.inner.to(like).event(like)).reshape(-1)
        return Rows(inner, self.index), full[self.index.to(full.device)]

    def _scaled(self, diagonal: Tensor) -> Decoder | None:
        if self._small is not None:
            return self._small._scaled(diagonal)
        inner = self.inner._scaled(diagonal) if diagonal.numel() == 1 else None
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


class Standardise(Decoder):
    """Decodes from standardised to physical units: z = mean + std x.

    For a model that was trained on (z - mean) / std and a set that is stated for z, in the units of the data. Combine
    it with other decoders: ``Standardise(mean, std) @ Fourier(...)`` applies the series first.

    ``rho``, slacks and distances are those of decoded space: rho = 10 in standardised units is rho = 10 / std^2 here.
    On a curved set the reference measure is the surface measure of decoded space. With one std for all coordinates it
    is that of the standardised set, up to a constant; with several, the distributions differ.

    Args:
        mean: A number, or a tensor with as many dimensions as an event, such as (c, 1, 1) for one per channel or
            (c, h, w) for one a pixel.
        std: Positive, likewise.

    >>> Standardise(300.0, [10.0, 20.0])(torch.tensor([[1.0, -1.0]]))
    tensor([[310., 280.]])
    """

    def __init__(self, mean: Any = 0.0, std: Any = 1.0) -> None:
        self.mean, self.std = (torch.as_tensor(v, dtype=torch.float64).detach().clone() for v in (mean, std))
        for name, value in (("mean", self.mean), ("std", self.std)):
            if not bool(torch.isfinite(value).all()):
                raise SettingError(f"{name} must be finite, got {float(value[~torch.isfinite(value)][0])} in it")
        if not bool((self.std > 0).all()):
            raise SettingError(f"std must be > 0, got {float(self.std.min()):g} in it; leave such coordinates out")
        if self.mean.numel() == 1 or not bool(self.mean.any()):
            self.mean = self.mean.flatten()[0]
        if self.std.numel() == 1:
            self.std = self.std.reshape(())
        self.linear, self.diagonal = not bool(self.mean.any()), self.std

    def __call__(self, x: Tensor) -> Tensor:
        self._fits(tuple(x.shape[1:]))
        scaled = x * self.std.to(x)
        return scaled if self.linear else scaled + self.mean.to(x)

    def vjp(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda v: v * self.std.to(v)

    def norm(self) -> float:
        return float(self.std.max())

    def event(self, x: Tensor) -> Event:
        event = tuple(x.shape[1:])
        self._fits(event)
        return event

    def pinv(self, z: Tensor, latent: Event) -> Tensor:
        return ((z - self.mean.to(z)) / self.std.to(z)).reshape(len(z), *latent)

    def gram(self, latent: Event, preconditioner: Tensor | None, like: Tensor) -> Gram:
        if not self.linear:
            return super().gram(latent, preconditioner, like)
        return diagonal_gram(self.std.to(like).square(), latent, preconditioner, like)

    def centred(self, like: Tensor) -> tuple[Decoder, Tensor | None]:
        self._fits(tuple(like.shape[1:]))
        return (self, None) if self.linear else (Standardise(0.0, self.std), self.mean)

    def _scaled(self, diagonal: Tensor) -> Decoder:
        return Standardise(0.0, diagonal.to(self.std) * self.std)

    def to(self, like: Tensor) -> Decoder:
        other = copy(self)
        other.mean, other.std = self.mean.to(like.device), self.std.to(like.device)
        other.diagonal = other.std
        return other

    def _fits(self, event: Event) -> None:
        """ShapeError unless mean and std are numbers or have the dimensions of an event."""
        for name, value in (("mean", self.mean), ("std", self.std)):
            shape = tuple(value.shape)
            same = len(shape) == len(event) and all(k in (1, m) for k, m in zip(shape, event, strict=True))
            if shape and not same:
                raise ShapeError(
                    f"{name} {shape} does not fit events {tuple(event)}; give a number, or as many dimensions as an "
                    "event has, such as (c, 1, 1) for one number per channel"
                )


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
        raise SettingError(f"position {int(values[counts > 1][0])} is there more than once; keep one of them")
    return positions


def _span(positions: Tensor) -> tuple[int, int]:
    return int(positions.min()), int(positions.max())


def _check_range(span: tuple[int, int], event: Event) -> None:
    size, (low, high) = torch.Size(event).numel(), span
    if not 0 <= low <= high < size:
        raise ShapeError(f"positions {low} to {high} are requested; decoded events {event} have 0 to {size - 1}")
