"""Orthonormal bases on one axis of a grid: waves, cosines, sines, each with its fast transform and its closed form.

An axis is B (size, count) with B^T B = I. ``synthesis`` is c -> B c and ``analysis`` its transpose z -> B^T z, both
along the last dimension and both by one real FFT a line. What surrounds the FFT is done in real numbers: products of
complex ones are rounded differently in different lanes of the processor, so they would depend on the threads.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

HALF = math.sqrt(0.5)


class Axis(ABC):
    """One axis.

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

    @property
    @abstractmethod
    def frequencies(self) -> Tensor:
        """Frequency of each coefficient (count,), whole numbers."""

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

    @property
    def frequencies(self) -> Tensor:
        return torch.arange(1, self.modes + 1)

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

    @property
    def frequencies(self) -> Tensor:
        return torch.arange(1, self.modes + 1)

    def columns(self) -> Tensor:
        k, i = self.frequencies, torch.arange(self.size)[:, None]
        angle = (k * (2 * i + 1) % (4 * self.size)).to(torch.float64) * (math.pi / (2 * self.size))
        return angle.sin() / (math.sqrt(self.size) * _halves(k == self.size))

    def synthesis(self, c: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        full = pad(c, (0, self.size - self.modes)).flip(-1)
        return self.cosines.synthesis(full, tables[:-1]) * tables[-1]

    def analysis(self, z: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        return self.cosines.analysis(z * tables[-1], tables[:-1]).flip(-1)[..., : self.modes]
