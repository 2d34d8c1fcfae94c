"""Products of orthonormal bases on a grid, as fast transforms: never the dense matrix of the whole grid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from casal.checks import whole_number
from casal.decoders.axes import Axis
from casal.decoders.base import Decoder, Identity
from casal.decoders.diagonal import Diagonal
from casal.decoders.gram import Gram
from casal.errors import DtypeError, SettingError, ShapeError
from casal.typing import Event

ALGORITHMS = ("auto", "fft", "product")


class Transform(Decoder):
    """z = (B_1 x B_2 x ...) diag(scale) x, a product of orthonormal bases B, one for each axis of the grid.

    Before the scale A^T A = I, so everything is in closed form: |A| = max |scale|, A^+ = diag(1/scale) A^T, and
    A^T A = diag(scale^2), which needs no factorisation with any preconditioner.

    Args:
        axes: A basis for each axis.
        keep: Which coefficients of the grid (count_1, count_2, ...) are kept, as a mask; all if left out.
        scale: One number, one for each coefficient, or (channels, 1) for one a field.
        channels: Fields side by side: events are (channels, *size), latent events channels times as many numbers.
        algorithm: "fft", "product" (a small matrix for each axis), or "auto": the faster of both on each axis.
    """

    linear = True

    def __init__(
        self,
        axes: Sequence[Axis],
        *,
        keep: Tensor | None = None,
        scale: Any = None,
        channels: int | None = None,
        algorithm: str = "auto",
    ) -> None:
        if algorithm not in ALGORITHMS:
            raise SettingError(f"algorithm must be one of {ALGORITHMS}, got {algorithm!r}")
        self.axes = tuple(axes)
        self.products = tuple(
            algorithm == "product" or (algorithm == "auto" and axis.count <= axis.product_up_to) for axis in self.axes
        )
        # Column by column in memory, which is the faster layout for B^T.
        self.tables: tuple[tuple[Tensor, ...], ...] = tuple(
            (axis.columns().T.contiguous().T,) if product else axis.tables
            for axis, product in zip(self.axes, self.products, strict=True)
        )
        self.channels = None if channels is None else whole_number(channels, "channels", 1)
        size = tuple(axis.size for axis in self.axes)
        self.shape: Event = size if self.channels is None else (self.channels, *size)
        self.keep, self.source = _kept(keep)
        self.scale = None if scale is None else _scales(scale, self.channels or 1, self.count)
        self.dense: Tensor | None = None

    @property
    def count(self) -> int:
        """Coefficients of one field."""
        return torch.Size(self._grid).numel() if self.keep is None else len(self.keep)

    @property
    def frequencies(self) -> Tensor:
        """Frequencies of the coefficients, whole numbers (count, axes): what a scale by wave number is made of."""
        every = torch.cartesian_prod(*(axis.frequencies for axis in self.axes)).reshape(-1, len(self.axes))
        return every if self.keep is None else every[self.keep.cpu()]

    def __call__(self, x: Tensor) -> Tensor:
        c = self._flat(x)
        if self.dense is not None and self.dense.dtype == x.dtype:
            return c @ self.dense.T
        c = c if self.scale is None else c * self.scale.to(c)
        c = c.reshape(len(x) * (self.channels or 1), self.count)
        if self.source is not None:
            c = pad(c, (0, 1)).index_select(1, self.source.to(c.device))
        z = c.reshape(len(c), *self._grid)
        for dim in range(len(self.axes)):
            z = self._along(z, dim, synthesis=True)
        return z.reshape(len(x), *self.shape)

    def vjp(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        def pull(v: Tensor) -> Tensor:
            if self.dense is not None and self.dense.dtype == v.dtype:
                return (v @ self.dense).reshape(len(v), *x.shape[1:])
            c = self._analysis(v)
            return (c if self.scale is None else c * self.scale.to(c)).reshape(len(v), *x.shape[1:])

        return pull

    def norm(self) -> float:
        return 1.0 if self.scale is None else float(self.scale.abs().max())

    def event(self, x: Tensor) -> Event:
        return self.shape

    def pinv(self, z: Tensor, latent: Event) -> Tensor:
        c = self._analysis(z)
        if self.scale is not None:
            c = c * torch.where(self.scale == 0.0, 0.0, 1.0 / self.scale).to(c)
        return c.reshape(len(z), *latent)

    def gram(self, latent: Event, preconditioner: Tensor | None, like: Tensor) -> Gram:
        return self._stretch.gram(latent, preconditioner, like)  # B^T B = I

    def factors(self) -> tuple[Decoder, Decoder] | None:
        basis = copy(self)
        basis.scale = basis.dense = None
        return basis, self._stretch

    def to(self, like: Tensor) -> Decoder:
        if like.dtype not in (torch.float32, torch.float64):
            raise DtypeError(f"{type(self).__name__} needs float32 or float64, got {like.dtype}; pass dtype= to sample")
        other = copy(self)
        other.scale = None if self.scale is None else self.scale.to(like)
        other.tables = tuple(_cast(tables, like) for tables in self.tables)
        other.keep, other.source = (None if part is None else part.to(like.device) for part in (self.keep, self.source))
        if self.products == (True,) and self.keep is None and self.channels is None:
            columns = self.tables[0][0] if self.scale is None else self.tables[0][0] * self.scale
            other.dense = columns.to(like)
        return other

    @property
    def _stretch(self) -> Decoder:
        """diag(scale)."""
        return Identity() if self.scale is None else Diagonal(self.scale)

    @property
    def _grid(self) -> Event:
        return tuple(axis.count for axis in self.axes)

    def _flat(self, x: Tensor) -> Tensor:
        wanted, got = (self.channels or 1) * self.count, x.shape[1:].numel()
        if got != wanted:
            raise ShapeError(
                f"{type(self).__name__} takes {wanted} latent numbers, events {tuple(x.shape[1:])} have {got}"
            )
        return x.reshape(len(x), wanted)

    def _analysis(self, z: Tensor) -> Tensor:
        """All coefficients (n, channels * count) before the scale."""
        fields = len(z) * (self.channels or 1)
        c = z.reshape(fields, *(axis.size for axis in self.axes))
        for dim in reversed(range(len(self.axes))):
            c = self._along(c, dim, synthesis=False)
        c = c.reshape(fields, torch.Size(self._grid).numel())
        c = c if self.keep is None else c.index_select(1, self.keep.to(c.device))
        return c.reshape(len(z), (self.channels or 1) * self.count)

    def _along(self, values: Tensor, dim: int, *, synthesis: bool) -> Tensor:
        """One axis, by its matrix or by its FFT."""
        axis, last = self.axes[dim], dim == len(self.axes) - 1
        tables = _cast(self.tables[dim], values)
        if not self.products[dim]:
            lines = values if last else values.movedim(dim + 1, -1)
            lines = axis.synthesis(lines, tables) if synthesis else axis.analysis(lines, tables)
            return lines if last else lines.movedim(-1, dim + 1)
        B = tables[0] if synthesis else tables[0].T
        if last:
            return values @ B.T
        front, back = values.shape[: dim + 1], values.shape[dim + 2 :]
        lines = values.reshape(front.numel(), values.shape[dim + 1], back.numel())
        return (B @ lines).reshape(*front, len(B), *back)


def _cast(tables: tuple[Tensor, ...], like: Tensor) -> tuple[Tensor, ...]:
    """Constants on the device of ``like``, numbers in its dtype; nothing to do after ``Transform.to``."""
    return tuple(table.to(like) if table.is_floating_point() else table.to(like.device) for table in tables)


def _kept(keep: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Positions of the kept coefficients in the grid, and for each place of the grid its coefficient (or a zero)."""
    if keep is None or bool(keep.all()):
        return None, None
    mask = keep.reshape(-1)
    source = torch.full((mask.numel(),), int(mask.sum()))
    source[mask] = torch.arange(int(mask.sum()))
    return torch.nonzero(mask).flatten(), source


def _scales(scale: Any, fields: int, count: int) -> Tensor:
    """A number for each coefficient of each field, flat."""
    given = torch.as_tensor(scale, dtype=torch.float64)
    if not bool(torch.isfinite(given).all()):
        raise SettingError("scale must be finite")
    if given.numel() == fields * count:
        return given.reshape(-1).clone()
    if given.numel() == count:
        return given.reshape(-1).repeat(fields)
    try:
        return given.broadcast_to(fields, count).reshape(-1).clone()
    except RuntimeError:
        raise ShapeError(
            f"scale {tuple(given.shape)} does not fit {fields} x {count} coefficients; give one number, {count}, or "
            f"({fields}, 1)"
        ) from None
