"""Orthonormal transforms on a grid: Fourier, cosine and sine series, by FFT and never by the matrix of the whole grid.

A transform is a product of bases, one for each axis: B (n, count) with B^T B = I on n points. ``BASES`` is the table of
them. What surrounds the FFT is done in real numbers: products of complex ones are rounded differently in different
lanes of the processor, so they would depend on the threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple, TypeAlias

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

Constants: TypeAlias = tuple[Tensor, ...]


def _halves(ones: Tensor) -> Tensor:
    """1 where ``ones``, else sqrt(1/2), in float64."""
    return torch.full(ones.shape, HALF, dtype=torch.float64).masked_fill(ones, 1.0)


def _angles(k: Tensor, points: Tensor, period: int) -> Tensor:
    """2 pi k p / period (n, count) for whole numbers p, in float64."""
    return (k * points[:, None] % period).to(torch.float64) * (2.0 * math.pi / period)


def _wave_columns(n: int, k: Tensor) -> Tensor:
    modes = int(k.max()) + 1
    angle = _angles(k, torch.arange(n), n)
    table = torch.cat([angle[:, :modes].cos(), angle[:, modes:].sin()], dim=1)
    return table / (math.sqrt(n) * _halves((2 * k) % n == 0))


def _wave_synthesis(c: Tensor, n: int, constants: Constants) -> Tensor:
    modes = len(constants[0])
    imaginary = pad(c[..., modes:] * -HALF, (1, 2 * modes - 1 - c.shape[-1]))
    return torch.fft.irfft(torch.complex(c[..., :modes] * constants[0], imaginary), n=n, norm="ortho")


def _wave_analysis(z: Tensor, count: int, constants: Constants) -> Tensor:
    modes = len(constants[0])
    spectrum = torch.fft.rfft(z, norm="ortho")[..., :modes]
    sines = spectrum.imag[..., 1 : 1 + count - modes] * (-2.0 * HALF)
    return torch.cat([spectrum.real / constants[0], sines], dim=-1)


def _cosine_constants(n: int, modes: int) -> Constants:
    """Weights of the cosines, cos and sin of the turns, the order of the points, and the way back."""
    turn = torch.arange(n // 2 + 1, dtype=torch.float64) * (math.pi / (2 * n))
    order = torch.cat([torch.arange(0, n, 2), torch.arange(1, n, 2).flip(0)])
    return _halves(torch.arange(modes) == 0), turn.cos(), turn.sin(), order, order.argsort()


def _cosine_synthesis(c: Tensor, n: int, constants: Constants) -> Tensor:
    """By the FFT of length n of the even points followed by the odd ones in reverse, mode k turned by pi k / 2n.

    References:
        Makhoul (1980), A fast cosine transform in one and two dimensions.
    """
    modes, half = c.shape[-1], n // 2 + 1
    weights, cos, sin, _, back = constants
    a = c * weights
    if modes <= n - n // 2:  # V_k = (cos + i sin)_k (a_k - i a_(n-k)), and all a_(n-k) are zero
        spectrum = torch.complex(a * cos[:modes], a * sin[:modes])
    else:
        b = pad(pad(a, (0, n - modes))[..., n - n // 2 :].flip(-1), (1, 0))
        a = a[..., :half]
        spectrum = torch.complex(a * cos + b * sin, a * sin - b * cos)
    return torch.fft.irfft(spectrum, n=n, norm="ortho").index_select(-1, back)


def _cosine_analysis(z: Tensor, count: int, constants: Constants) -> Tensor:
    n, half = z.shape[-1], z.shape[-1] // 2 + 1
    weights, cos, sin, order, _ = constants
    low = min(count, half)
    spectrum = torch.fft.rfft(z.index_select(-1, order), norm="ortho")
    a = spectrum.real[..., :low] * cos[:low] + spectrum.imag[..., :low] * sin[:low]
    if count > half:
        mirrored = slice(n - count + 1, n - half + 1)
        b = spectrum.real[..., mirrored] * sin[mirrored] - spectrum.imag[..., mirrored] * cos[mirrored]
        a = torch.cat([a, b.flip(-1)], dim=-1)
    return a / weights


def _sine_synthesis(c: Tensor, n: int, constants: Constants) -> Tensor:
    """By an FFT of length 2 (n + 1): an odd signal is the transform of an imaginary spectrum."""
    spectrum = pad(torch.complex(torch.zeros_like(c), -c), (1, 0))
    return torch.fft.irfft(spectrum, n=2 * n + 2, norm="ortho")[..., 1 : n + 1]


def _sine_analysis(z: Tensor, count: int, constants: Constants) -> Tensor:
    spectrum = torch.fft.rfft(pad(z, (1, 0)), n=2 * z.shape[-1] + 2, norm="ortho")
    return spectrum.imag[..., 1 : count + 1] * -2.0


def _cell_synthesis(c: Tensor, n: int, constants: Constants) -> Tensor:
    """Cosines of the frequency n - k whose sign alternates from point to point; the last constants are the signs."""
    return _cosine_synthesis(pad(c, (0, n - c.shape[-1])).flip(-1), n, constants[:-1]) * constants[-1]


def _cell_analysis(z: Tensor, count: int, constants: Constants) -> Tensor:
    return _cosine_analysis(z * constants[-1], z.shape[-1], constants[:-1]).flip(-1)[..., :count]


class Basis(NamedTuple):
    """One kind of orthonormal basis, by its formula and by one real FFT a line, along the last dimension.

    Attributes:
        columns: (n, frequencies) -> B (n, count) in float64.
        synthesis: (c, n, constants) -> B c, (..., count) -> (..., n).
        analysis: (z, count, constants) -> B^T z, (..., n) -> (..., count).
        constants: (n, modes) -> what the fast transforms multiply by, in float64.
        frequencies: (n, modes) -> the whole number of each column (count,), of the lowest ``modes`` frequencies.
        most_modes: n -> how many frequencies n points have.
        product_up_to: Columns up to which a product with B is faster than the FFT, about (measured on CPU).
    """

    columns: Callable[[int, Tensor], Tensor]
    synthesis: Callable[[Tensor, int, Constants], Tensor]
    analysis: Callable[[Tensor, int, Constants], Tensor]
    constants: Callable[[int, int], Constants] = lambda n, modes: ()
    frequencies: Callable[[int, int], Tensor] = lambda n, modes: torch.arange(1, modes + 1)
    most_modes: Callable[[int], int] = lambda n: n
    product_up_to: int = 128


BASES: Mapping[str, Basis] = {
    # Periodic: [1, cos(2 pi k i/n) sqrt 2 (k = 1 ..), sin(2 pi k i/n) sqrt 2 (k = 1 ..)] / sqrt n, k < modes; for an
    # even n the highest frequency n/2 is cos(pi i) and has no sine. The constants are 1 for waves that are their own
    # conjugate, sqrt(1/2) for the others, whose conjugate carries the other half.
    "waves": Basis(
        _wave_columns,
        _wave_synthesis,
        _wave_analysis,
        constants=lambda n, modes: (_halves((2 * torch.arange(modes)) % n == 0),),
        frequencies=lambda n, modes: torch.cat([torch.arange(modes), torch.arange(1, modes - (2 * (modes - 1) == n))]),
        most_modes=lambda n: n // 2 + 1,
        product_up_to=32,
    ),
    # Type II: cos(pi k (i + 1/2)/n) sqrt(2/n), k = 0 .. modes - 1, with sqrt(1/n) for k = 0: level at both ends.
    "cosines": Basis(
        lambda n, k: _angles(k, 2 * torch.arange(n) + 1, 4 * n).cos() / (math.sqrt(n) * _halves(k == 0)),
        _cosine_synthesis,
        _cosine_analysis,
        constants=_cosine_constants,
        frequencies=lambda n, modes: torch.arange(modes),
        product_up_to=64,
    ),
    # Type I: sin(pi k (i + 1)/(n + 1)) sqrt(2/(n + 1)), k = 1 .. modes: zero one point beyond either end.
    "sines": Basis(
        lambda n, k: _angles(k, torch.arange(1, n + 1), 2 * n + 2).sin() * math.sqrt(2.0 / (n + 1)),
        _sine_synthesis,
        _sine_analysis,
    ),
    # Type II: sin(pi k (i + 1/2)/n) sqrt(2/n), k = 1 .. modes, with sqrt(1/n) for k = n: zero half a cell beyond.
    "cell sines": Basis(
        lambda n, k: _angles(k, 2 * torch.arange(n) + 1, 4 * n).sin() / (math.sqrt(n) * _halves(k == n)),
        _cell_synthesis,
        _cell_analysis,
        constants=lambda n, modes: (*_cosine_constants(n, n), 1.0 - 2.0 * (torch.arange(n) % 2).to(torch.float64)),
    ),
}
"""Every basis by name."""


class Axis:
    """One axis of a grid: a basis of n points, truncated to its lowest frequencies, with its transforms.

    Args:
        basis: One of BASES.
        size: Points, n.
        modes: How many frequencies are kept.
        algorithm: "fft", "product" (with the matrix B), or "auto": the faster of both.
    """

    def __init__(self, basis: str, size: int, modes: int, algorithm: str = "auto") -> None:
        one_of(algorithm, "algorithm", ALGORITHMS)
        kind = BASES[basis]
        self.basis, self.size, self.frequencies = basis, size, kind.frequencies(size, modes)
        self.count = len(self.frequencies)
        self.product = algorithm == "product" or (algorithm == "auto" and self.count <= kind.product_up_to)
        # B column by column in memory, which is the faster layout for B^T.
        columns = kind.columns(size, self.frequencies).T.contiguous().T if self.product else None
        self.constants: Constants = kind.constants(size, modes) if columns is None else (columns,)

    def transform(self, values: Tensor, dim: int, *, synthesis: bool) -> Tensor:
        """B c or B^T z along a dimension."""
        constants, last, kind = _cast(self.constants, values), dim == values.ndim - 1, BASES[self.basis]
        if not self.product:
            lines = values if last else values.movedim(dim, -1)
            done = (
                kind.synthesis(lines, self.size, constants)
                if synthesis
                else kind.analysis(lines, self.count, constants)
            )
            return done if last else done.movedim(-1, dim)
        B = constants[0] if synthesis else constants[0].T
        if last:
            return values @ B.T
        front, back = values.shape[:dim], values.shape[dim + 1 :]
        lines = values.reshape(front.numel(), values.shape[dim], back.numel())
        return (B @ lines).reshape(*front, len(B), *back)

    def to(self, like: Tensor) -> Axis:
        """The same with its numbers in the dtype and on the device of ``like``."""
        other = copy(self)
        other.constants = _cast(self.constants, like)
        return other


class Transform(Decoder):
    """Decodes by a product of orthonormal bases B, one for each axis of the grid: z = (B_1 x B_2 x ...) diag(scale) x.

    Before the scale A^T A = I, so everything is in closed form: |A| = max |scale|, A^+ = diag(1/scale) A^T, and
    A^T A = diag(scale^2), which needs no factorisation with any preconditioner.

    Args:
        axes: A basis for each axis.
        keep: Which coefficients of the grid (count_1, count_2, ...) are kept, as a mask; all if left out.
        scale: One number, one for each coefficient, or (channels, 1) for one per field.
        channels: Fields side by side: events are (channels, *size), latent events channels times as many numbers.
    """

    linear = True

    def __init__(
        self,
        axes: Sequence[Axis],
        *,
        keep: Tensor | None = None,
        scale: Any = None,
        channels: int | None = None,
    ) -> None:
        self.axes = tuple(axes)
        self.grid: Event = tuple(axis.count for axis in self.axes)
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
        return torch.Size(self.grid).numel() if self.keep is None else len(self.keep)

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
        z = c.reshape(len(c), *self.grid)
        for dim in range(len(self.axes)):
            z = self.axes[dim].transform(z, dim + 1, synthesis=True)
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
        other.axes = tuple(axis.to(like) for axis in self.axes)
        other.keep, other.source = (None if part is None else part.to(like.device) for part in (self.keep, self.source))
        if len(self.axes) == 1 and self.axes[0].product and self.keep is None and self.channels is None:
            columns = self.axes[0].constants[0]
            other.dense = (columns if self.scale is None else columns * self.scale).to(like)
        return other

    @property
    def _scaling(self) -> Decoder:
        """diag(scale)."""
        return Identity() if self.scale is None else Diagonal(self.scale)

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
            c = self.axes[dim].transform(c, dim + 1, synthesis=False)
        c = c.reshape(fields, torch.Size(self.grid).numel())
        c = c if self.keep is None else c.index_select(1, self.keep.to(c.device))
        return c.reshape(len(z), self.latent_size)


class Series(Transform):
    """A series truncated to its lowest frequencies, the same basis on every axis."""

    basis: str

    def __init__(
        self,
        modes: int | Sequence[int],
        size: int | Sequence[int],
        *,
        scale: Any = None,
        channels: int | None = None,
        algorithm: str = "auto",
    ) -> None:
        most = BASES[self.basis].most_modes
        pairs = _points_and_modes(modes, size, most, type(self).__name__)
        axes = [Axis(self.basis, n, k, algorithm) for n, k in pairs]
        super().__init__(axes, scale=scale, channels=channels)


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
        algorithm: "fft", "product" or "auto", see ``Axis``.

    >>> import torch
    >>> Fourier(2, 4)(torch.tensor([[2.0, 0.0, 2.0 ** 0.5]])).round(decimals=6)
    tensor([[1., 2., 1., 0.]])
    """

    basis = "waves"

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
        square = cls(int(radius) + 1, size, algorithm=algorithm)
        inside = square.frequencies.square().sum(1) <= radius**2
        chosen = cls.__new__(cls)
        Transform.__init__(chosen, square.axes, keep=inside, scale=scale, channels=channels)
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
        algorithm: "fft", "product" or "auto", see ``Axis``.
    """

    basis = "cosines"


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
        algorithm: "fft", "product" or "auto", see ``Axis``.

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
        self.basis = "cell sines" if cells else "sines"
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


def _cast(constants: Constants, like: Tensor) -> Constants:
    """On the device of ``like``, numbers in its dtype; nothing to do after ``to``."""
    return tuple(value.to(like) if value.is_floating_point() else value.to(like.device) for value in constants)


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
