"""Orthonormal transforms on a grid: Fourier, cosine and sine series, by FFT and never by the matrix of the whole grid.

A transform is a product of bases, one for each axis. An axis is B (size, count) with B^T B = I. ``synthesis`` is
c -> B c and ``analysis`` its transpose z -> B^T z, both along the last dimension and both by one real FFT a line. What
surrounds the FFT is done in real numbers: products of complex ones are rounded differently in different lanes of the
processor, so they would depend on the threads.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from casal.checks import Event, one_of, whole_number
from casal.decoders.base import Decoder, Gram, Identity
from casal.decoders.linear import Diagonal
from casal.errors import DtypeError, SettingError, ShapeError

ALGORITHMS = ("auto", "fft", "product")

HALF = math.sqrt(0.5)

SMALL_MATRIX = 32
"""Rows of a transform become a dense matrix while that has at most so many numbers for each point of the grid."""


class Axis(ABC):
    """An orthonormal basis on one axis of a grid, with its fast transform and its closed form.

    Attributes:
        size: Points on the axis.
        modes: How many frequencies are kept, from the lowest.
        tables: Constants of the fast transform, in float64.
        product_up_to: Coefficients up to which a product with B is faster than the FFT, about (measured on CPU).
    """

    product_up_to: ClassVar[int] = 128

    def __init__(self, size: int, modes: int) -> None:
        self.size, self.modes = size, modes
        self.tables: tuple[Tensor, ...] = ()

    @property
    def count(self) -> int:
        """Coefficients."""
        return self.modes

    @staticmethod
    def most_modes(size: int) -> int:
        """How many frequencies an axis of so many points has."""
        return size

    @property
    def frequencies(self) -> Tensor:
        """Frequency of each coefficient (count,), whole numbers: 1 .. modes if not said otherwise."""
        return torch.arange(1, self.modes + 1)

    @abstractmethod
    def columns(self) -> Tensor:
        """B (size, count) in float64, by its formula."""

    @abstractmethod
    def synthesis(self, c: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        """B c, (..., count) -> (..., size), with the tables in the dtype of c."""

    @abstractmethod
    def analysis(self, z: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        """B^T z, (..., size) -> (..., count), with the tables in the dtype of z."""


def _halves(whole: Tensor) -> Tensor:
    """1 where ``whole``, else sqrt(1/2), in float64."""
    return torch.full(whole.shape, HALF, dtype=torch.float64).masked_fill(whole, 1.0)


class Waves(Axis):
    """Periodic: B = [1, cos(2 pi k i/n) sqrt 2 (k = 1 ..), sin(2 pi k i/n) sqrt 2 (k = 1 ..)] / sqrt n, k < modes.

    For an even n the highest possible frequency, k = n/2, is cos(pi i) / sqrt n and has no sine. The table is 1 for
    waves that are their own conjugate, sqrt(1/2) for the others, whose conjugate carries the other half.
    """

    product_up_to = 32

    def __init__(self, size: int, modes: int) -> None:
        super().__init__(size, modes)
        self.sines = modes - 1 - (2 * (modes - 1) == size)
        self.tables = (_halves((2 * torch.arange(modes)) % size == 0),)

    @staticmethod
    def most_modes(size: int) -> int:
        return size // 2 + 1

    @property
    def count(self) -> int:
        return self.modes + self.sines

    @property
    def frequencies(self) -> Tensor:
        return torch.cat([torch.arange(self.modes), torch.arange(1, 1 + self.sines)])

    def columns(self) -> Tensor:
        k, i = self.frequencies, torch.arange(self.size)[:, None]
        angle = (k * i % self.size).to(torch.float64) * (2.0 * math.pi / self.size)
        table = torch.cat([angle[:, : self.modes].cos(), angle[:, self.modes :].sin()], dim=1)
        return table / (math.sqrt(self.size) * _halves((2 * k) % self.size == 0))

    def synthesis(self, c: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        imaginary = pad(c[..., self.modes :] * -HALF, (1, self.modes - 1 - self.sines))
        spectrum = torch.complex(c[..., : self.modes] * tables[0], imaginary)
        return torch.fft.irfft(spectrum, n=self.size, norm="ortho")

    def analysis(self, z: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        spectrum = torch.fft.rfft(z, norm="ortho")[..., : self.modes]
        sines = spectrum.imag[..., 1 : 1 + self.sines] * (-2.0 * HALF)
        return torch.cat([spectrum.real / tables[0], sines], dim=-1)


class Cosines(Axis):
    """Type II: B = cos(pi k (i + 1/2)/n) sqrt(2/n), k = 0 .. modes - 1, with sqrt(1/n) for k = 0: level at both ends.

    By one real FFT of length n of the even points followed by the odd ones in reverse (Makhoul 1980), whose mode k is
    turned by pi k / 2n. The tables are the weights of the cosines, cos and sin of the turns, that order, the way back.
    """

    product_up_to = 64

    def __init__(self, size: int, modes: int) -> None:
        super().__init__(size, modes)
        turn = torch.arange(size // 2 + 1, dtype=torch.float64) * (math.pi / (2 * size))
        order = torch.cat([torch.arange(0, size, 2), torch.arange(1, size, 2).flip(0)])
        self.tables = (_halves(torch.arange(modes) == 0), turn.cos(), turn.sin(), order, order.argsort())

    @property
    def frequencies(self) -> Tensor:
        return torch.arange(self.modes)

    def columns(self) -> Tensor:
        k, i = torch.arange(self.modes), torch.arange(self.size)[:, None]
        angle = (k * (2 * i + 1) % (4 * self.size)).to(torch.float64) * (math.pi / (2 * self.size))
        return angle.cos() / (math.sqrt(self.size) * _halves(k == 0))

    def synthesis(self, c: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        n, half = self.size, self.size // 2 + 1
        weights, cos, sin, _, back = tables
        a = c * weights
        if self.modes <= n - n // 2:  # V_k = (cos + i sin)_k (a_k - i a_(n-k)), and all a_(n-k) are zero
            spectrum = torch.complex(a * cos[: self.modes], a * sin[: self.modes])
        else:
            b = pad(pad(a, (0, n - self.modes))[..., n - n // 2 :].flip(-1), (1, 0))
            a = a[..., :half]
            spectrum = torch.complex(a * cos + b * sin, a * sin - b * cos)
        return torch.fft.irfft(spectrum, n=n, norm="ortho").index_select(-1, back)

    def analysis(self, z: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        n, half = self.size, self.size // 2 + 1
        weights, cos, sin, order, _ = tables
        low = min(self.modes, half)
        spectrum = torch.fft.rfft(z.index_select(-1, order), norm="ortho")
        a = spectrum.real[..., :low] * cos[:low] + spectrum.imag[..., :low] * sin[:low]
        if self.modes > half:
            mirrored = slice(n - self.modes + 1, n - half + 1)
            b = spectrum.real[..., mirrored] * sin[mirrored] - spectrum.imag[..., mirrored] * cos[mirrored]
            a = torch.cat([a, b.flip(-1)], dim=-1)
        return a / weights


class Sines(Axis):
    """Type I: B = sin(pi k (i + 1)/(n + 1)) sqrt(2/(n + 1)), k = 1 .. modes: zero one point beyond either end.

    The FFT has length 2 (n + 1): an odd signal is the transform of an imaginary spectrum.
    """

    def columns(self) -> Tensor:
        k, i = self.frequencies, torch.arange(1, self.size + 1)[:, None]
        angle = (k * i % (2 * self.size + 2)).to(torch.float64) * (math.pi / (self.size + 1))
        return angle.sin() * math.sqrt(2.0 / (self.size + 1))

    def synthesis(self, c: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        spectrum = torch.complex(torch.zeros_like(c), -c)
        odd = torch.fft.irfft(pad(spectrum, (1, 0)), n=2 * self.size + 2, norm="ortho")
        return odd[..., 1 : self.size + 1]

    def analysis(self, z: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        spectrum = torch.fft.rfft(pad(z, (1, 0)), n=2 * self.size + 2, norm="ortho")
        return spectrum.imag[..., 1 : self.modes + 1] * -2.0


class CellSines(Axis):
    """Type II: B = sin(pi k (i + 1/2)/n) sqrt(2/n), k = 1 .. modes (sqrt(1/n) for k = n): zero half a cell beyond.

    These are cosines of the frequency n - k whose sign alternates from point to point; the last table holds the signs.
    """

    def __init__(self, size: int, modes: int) -> None:
        super().__init__(size, modes)
        self.cosines = Cosines(size, size)
        self.tables = (*self.cosines.tables, 1.0 - 2.0 * (torch.arange(size) % 2).to(torch.float64))

    def columns(self) -> Tensor:
        k, i = self.frequencies, torch.arange(self.size)[:, None]
        angle = (k * (2 * i + 1) % (4 * self.size)).to(torch.float64) * (math.pi / (2 * self.size))
        return angle.sin() / (math.sqrt(self.size) * _halves(k == self.size))

    def synthesis(self, c: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        full = pad(c, (0, self.size - self.modes)).flip(-1)
        return self.cosines.synthesis(full, tables[:-1]) * tables[-1]

    def analysis(self, z: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        return self.cosines.analysis(z * tables[-1], tables[:-1]).flip(-1)[..., : self.modes]


class Transform(Decoder):
    """Decodes by a product of orthonormal bases B, one for each axis of the grid: z = (B_1 x B_2 x ...) diag(scale) x.

    Before the scale A^T A = I, so everything is in closed form: |A| = max |scale|, A^+ = diag(1/scale) A^T, and
    A^T A = diag(scale^2), which needs no factorisation with any preconditioner.

    Args:
        axes: A basis for each axis.
        keep: Which coefficients of the grid (count_1, count_2, ...) are kept, as a mask; all if left out.
        scale: One number, one for each coefficient, or (channels, 1) for one per field.
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
        one_of(algorithm, "algorithm", ALGORITHMS)
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
        self.keep, self.source = _keep_positions(keep)
        self.latent_size: int = (self.channels or 1) * self.count
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
            z = self._transform_axis(z, dim, synthesis=True)
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

    def pinv(self, z: Tensor, latent: Event) -> Tensor:
        c = self._analysis(z)
        if self.scale is not None:
            c = c * torch.where(self.scale == 0.0, 0.0, 1.0 / self.scale).to(c)
        return c.reshape(len(z), *latent)

    def gram(self, latent: Event, preconditioner: Tensor | None, like: Tensor) -> Gram:
        return self._scaling.gram(latent, preconditioner, like)  # B^T B = I

    def _dense_rows(self, index: Tensor) -> Tensor | None:
        if len(index) * self.latent_size > SMALL_MATRIX * torch.Size(self.shape).numel():
            return None
        double = torch.empty(0, dtype=torch.float64, device=index.device)  # whatever the run is in
        return self.matrix((self.latent_size,), double, index)

    def factors(self) -> tuple[Decoder, Decoder] | None:
        basis = copy(self)
        basis.scale = basis.dense = None
        return basis, self._scaling

    def _scaled(self, diagonal: Tensor) -> Decoder | None:
        """A diagonal passes through the basis where it is one number for each field."""
        each = diagonal.reshape(-1, *[1] * len(self.axes)) if diagonal.numel() == 1 else diagonal
        fields = self.channels or 1
        if each.numel() not in (1, fields) or each.shape[-len(self.axes) :].numel() != 1:
            return None
        factor = each.reshape(-1, 1).expand(fields, self.count).reshape(-1)
        other = copy(self)
        other.scale = factor.clone() if self.scale is None else factor.to(self.scale) * self.scale
        other.dense = None
        return other

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
    def _scaling(self) -> Decoder:
        """diag(scale)."""
        return Identity() if self.scale is None else Diagonal(self.scale)

    @property
    def _grid(self) -> Event:
        return tuple(axis.count for axis in self.axes)

    def _flat(self, x: Tensor) -> Tensor:
        if (got := x.shape[1:].numel()) != self.latent_size:
            raise ShapeError(
                f"{type(self).__name__} takes {self.latent_size} latent numbers, events {tuple(x.shape[1:])} have {got}"
            )
        return x.reshape(len(x), self.latent_size)

    def _analysis(self, z: Tensor) -> Tensor:
        """All coefficients (n, channels * count) before the scale."""
        fields = len(z) * (self.channels or 1)
        c = z.reshape(fields, *(axis.size for axis in self.axes))
        for dim in reversed(range(len(self.axes))):
            c = self._transform_axis(c, dim, synthesis=False)
        c = c.reshape(fields, torch.Size(self._grid).numel())
        c = c if self.keep is None else c.index_select(1, self.keep.to(c.device))
        return c.reshape(len(z), self.latent_size)

    def _transform_axis(self, values: Tensor, dim: int, *, synthesis: bool) -> Tensor:
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


class Series(Transform):
    """A series truncated to its lowest frequencies, the same basis on every axis."""

    axis: type[Axis]

    def __init__(
        self,
        modes: int | Sequence[int],
        size: int | Sequence[int],
        *,
        scale: Any = None,
        channels: int | None = None,
        algorithm: str = "auto",
    ) -> None:
        axes = [self.axis(n, k) for n, k in _points_and_modes(modes, size, self.axis.most_modes, type(self).__name__)]
        super().__init__(axes, scale=scale, channels=channels, algorithm=algorithm)


class Fourier(Series):
    """A periodic signal from its lowest Fourier modes, as real numbers: z = F diag(scale) x,

        z_i = x_0 / sqrt n + sum_(0 < k < modes) sqrt(2/n) (x_k cos(2 pi k i/n) + x_(modes - 1 + k) sin(2 pi k i/n))

    Latent events hold 2 modes - 1 numbers: the cosines 0 .. modes - 1, then the sines 1 .. modes - 1 (of an even n the
    mode n/2 has no sine). They are the rfft modes 0 .. modes - 1, scaled so that F^T F = I.

    On a grid the basis is the product of that of each axis, and latent events are the array
    (2 modes_1 - 1, 2 modes_2 - 1), or the same numbers flat: products of standing waves, which span all wave numbers
    |k_1| < modes_1, |k_2| < modes_2. The coefficients of a homogeneous random field are uncorrelated if its
    distribution does not change in a mirror. Otherwise those products are correlated in pairs that make up one
    travelling wave.

    Args:
        modes: How many frequencies, the constant included: a number, or one for each axis.
        size: Points of the signal, or of each axis of the grid.
        scale: One number, one for each coefficient, or (channels, 1) for one per field. 1 if left out.
        channels: Fields side by side: events are (channels, *size).
        algorithm: "fft", "product" or "auto", see ``Transform``.

    >>> import torch
    >>> Fourier(2, 4)(torch.tensor([[2.0, 0.0, 2.0 ** 0.5]])).round(decimals=6)
    tensor([[1., 2., 1., 0.]])
    """

    axis = Waves

    @classmethod
    def disc(
        cls,
        radius: float,
        size: Sequence[int],
        *,
        scale: Any = None,
        channels: int | None = None,
        algorithm: str = "auto",
    ) -> Fourier:
        """All modes with |k| <= radius on a grid; latent events are flat, in the order of ``frequencies``.

        >>> Fourier.disc(1, (8, 8)).frequencies.tolist()
        [[0, 0], [0, 1], [0, 1], [1, 0], [1, 0]]
        """
        if not 0 <= radius <= min(size) / 2:
            raise SettingError(f"radius must lie in [0, {min(size) / 2:g}] on a grid {tuple(size)}, got {radius}")
        whole = cls(int(radius) + 1, size)
        inside = whole.frequencies.square().sum(1) <= radius**2
        chosen = cls.__new__(cls)
        Transform.__init__(chosen, whole.axes, keep=inside, scale=scale, channels=channels, algorithm=algorithm)
        return chosen


class DCT(Series):
    """A cosine series, for fields between walls, of any value there: z = C diag(scale) x.

    C holds the orthonormal cosines cos(pi k (i + 1/2)/n), k = 0 .. modes - 1 (type II), and A^T is the truncated
    DCT-II. On a grid, products: latent events are the array (modes_1, modes_2), or the same numbers flat.

    Args:
        modes: How many frequencies, the constant included: a number, or one for each axis.
        size: Points of the signal, or of each axis of the grid.
        scale: One number, one for each coefficient, or (channels, 1) for one per field. 1 if left out.
        channels: Fields side by side: events are (channels, *size).
        algorithm: "fft", "product" or "auto", see ``Transform``.
    """

    axis = Cosines


class DST(Series):
    """A sine series, for fields that vanish at walls one point beyond the grid: z = S diag(scale) x.

    S holds the orthonormal sines sin(pi k (i + 1)/(n + 1)), k = 1 .. modes (type I). With ``cells`` the points are the
    centres of cells and the walls their outer faces: sin(pi k (i + 1/2)/n) (type II). On a grid, products, as for
    ``DCT``.

    Args:
        modes: How many frequencies: a number, or one for each axis.
        size: Points of the signal, or of each axis of the grid.
        cells: Whether values live at the centres of cells.
        scale: One number, one for each coefficient, or (channels, 1) for one per field. 1 if left out.
        channels: Fields side by side: events are (channels, *size).
        algorithm: "fft", "product" or "auto", see ``Transform``.

    >>> import casal
    >>> import torch
    >>> casal.DST(1, 3)(torch.ones(1, 1, dtype=torch.float64)).numpy().round(3).tolist()
    [[0.5, 0.707, 0.5]]
    """

    def __init__(
        self,
        modes: int | Sequence[int],
        size: int | Sequence[int],
        *,
        cells: bool = False,
        scale: Any = None,
        channels: int | None = None,
        algorithm: str = "auto",
    ) -> None:
        self.axis = CellSines if cells else Sines
        super().__init__(modes, size, scale=scale, channels=channels, algorithm=algorithm)


def _points_and_modes(
    modes: int | Sequence[int], size: int | Sequence[int], most: Callable[[int], int], name: str
) -> list[tuple[int, int]]:
    """(points, modes) of each axis, or the error that says which does not fit."""
    sizes = [size] if isinstance(size, int | float) else list(size)
    counts = [modes] * len(sizes) if isinstance(modes, int | float) else list(modes)
    if not sizes or len(counts) != len(sizes):
        raise ShapeError(f"{name} has {len(counts)} numbers of modes for a grid of {len(sizes)} axes")
    pairs = [(whole_number(n, "size", 1), whole_number(k, "modes", 1)) for n, k in zip(sizes, counts, strict=True)]
    for n, k in pairs:
        if k > most(n):
            raise SettingError(f"{name} has at most {most(n)} modes on {n} points, got modes = {k}")
    return pairs


def _cast(tables: tuple[Tensor, ...], like: Tensor) -> tuple[Tensor, ...]:
    """Constants on the device of ``like``, numbers in its dtype; nothing to do after ``Transform.to``."""
    return tuple(table.to(like) if table.is_floating_point() else table.to(like.device) for table in tables)


def _keep_positions(keep: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
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
