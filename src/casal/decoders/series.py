"""Truncated series: Fourier, cosine, sine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from casal.checks import whole_number
from casal.decoders.axes import CellSines, Cosines, Sines, Waves
from casal.decoders.transforms import Transform
from casal.errors import SettingError, ShapeError


class Fourier(Transform):
    """z = F diag(scale) x: a periodic signal from its lowest Fourier modes, as real numbers.

        z_i = x_0 / sqrt n + sum_(0 < k < modes) sqrt(2/n) (x_k cos(2 pi k i/n) + x_(modes - 1 + k) sin(2 pi k i/n))

    Latent events hold 2 modes - 1 numbers: the cosines 0 .. modes - 1, then the sines 1 .. modes - 1 (of an even n the
    mode n/2 has no sine). They are the rfft modes 0 .. modes - 1, scaled so that F^T F = I.

    On a grid the basis is the product of that of each axis, and latent events are the array
    (2 modes_1 - 1, 2 modes_2 - 1), or the same numbers flat: products of standing waves, which span all wave numbers
    |k_1| < modes_1, |k_2| < modes_2. The coefficients of a homogeneous random field are uncorrelated if its law does
    not change in a mirror; else those products are correlated in pairs that make up one travelling wave.

    Args:
        modes: How many frequencies, the constant included: a number, or one for each axis.
        size: Points of the signal, or of each axis of the grid.
        scale: One number, one for each coefficient, or (channels, 1) for one a field. 1 if left out.
        channels: Fields side by side: events are (channels, *size).
        algorithm: "fft", "product" or "auto", see ``Transform``.

    >>> import torch
    >>> Fourier(2, 4)(torch.tensor([[2.0, 0.0, 2.0 ** 0.5]])).round(decimals=6)
    tensor([[1., 2., 1., 0.]])
    """

    def __init__(
        self,
        modes: int | Sequence[int],
        size: int | Sequence[int],
        *,
        scale: Any = None,
        channels: int | None = None,
        algorithm: str = "auto",
    ) -> None:
        axes = [Waves(n, k) for n, k in _pairs(modes, size, lambda n: n // 2 + 1, "Fourier")]
        super().__init__(axes, scale=scale, channels=channels, algorithm=algorithm)

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


class DCT(Transform):
    """z = C diag(scale) x, C the orthonormal cosines cos(pi k (i + 1/2)/n), k = 0 .. modes - 1 (type II).

    For fields between walls, of any value there. A^T is the truncated DCT-II. On a grid, products: latent events are
    the array (modes_1, modes_2), or the same numbers flat.

    Args:
        modes: How many frequencies, the constant included: a number, or one for each axis.
        size: Points of the signal, or of each axis of the grid.
        scale: One number, one for each coefficient, or (channels, 1) for one a field. 1 if left out.
        channels: Fields side by side: events are (channels, *size).
        algorithm: "fft", "product" or "auto", see ``Transform``.
    """

    def __init__(
        self,
        modes: int | Sequence[int],
        size: int | Sequence[int],
        *,
        scale: Any = None,
        channels: int | None = None,
        algorithm: str = "auto",
    ) -> None:
        axes = [Cosines(n, k) for n, k in _pairs(modes, size, lambda n: n, "DCT")]
        super().__init__(axes, scale=scale, channels=channels, algorithm=algorithm)


class DST(Transform):
    """z = S diag(scale) x, S the orthonormal sines sin(pi k (i + 1)/(n + 1)), k = 1 .. modes (type I).

    For fields that vanish at walls one point beyond the grid. With ``cells`` the points are the centres of cells
    and the walls their outer faces: sin(pi k (i + 1/2)/n) (type II). On a grid, products, as for ``DCT``.

    Args:
        modes: How many frequencies: a number, or one for each axis.
        size: Points of the signal, or of each axis of the grid.
        cells: Whether values live at the centres of cells.
        scale: One number, one for each coefficient, or (channels, 1) for one a field. 1 if left out.
        channels: Fields side by side: events are (channels, *size).
        algorithm: "fft", "product" or "auto", see ``Transform``.
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
        kind = CellSines if cells else Sines
        axes = [kind(n, k) for n, k in _pairs(modes, size, lambda n: n, "DST")]
        super().__init__(axes, scale=scale, channels=channels, algorithm=algorithm)


def _pairs(
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
