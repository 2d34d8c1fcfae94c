"""Orthonormal bases on one axis of a grid: waves, cosines, sines, each with its fast transform and its closed form.

An axis is B (size, count) with B^T B = I. ``synthesis`` is c -> B c and ``analysis`` its transpose z -> B^T z, both
along the last dimension and both by one real FFT a line.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

HALF = math.sqrt(0.5)


@dataclass(frozen=True)
class Axis(ABC):
    """One axis.

    Attributes:
        size: Points on the axis.
        modes: How many frequencies are kept, from the lowest.
        product_up_to: Coefficients up to which a product with B is faster than the FFT, about (measured on CPU).
    """

    size: int
    modes: int
    product_up_to: ClassVar[int] = 64

    @property
    @abstractmethod
    def count(self) -> int:
        """Coefficients."""

    @property
    @abstractmethod
    def frequencies(self) -> Tensor:
        """Frequency of each coefficient (count,), whole numbers."""

    @abstractmethod
    def columns(self) -> Tensor:
        """B (size, count) in float64, by its formula."""

    @abstractmethod
    def synthesis(self, c: Tensor) -> Tensor:
        """B c, (..., count) -> (..., size)."""

    @abstractmethod
    def analysis(self, z: Tensor) -> Tensor:
        """B^T z, (..., size) -> (..., count)."""


def _halves(whole: Tensor) -> Tensor:
    """1 where ``whole``, else sqrt(1/2), in float64."""
    return torch.full(whole.shape, HALF, dtype=torch.float64).masked_fill(whole, 1.0)


@lru_cache(maxsize=64)
def columns(axis: Axis, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The matrix of an axis in a dtype and on a device, column by column in memory, kept for the next call."""
    return axis.columns().to(device=device, dtype=dtype).T.contiguous().T


class Waves(Axis):
    """Periodic: B = [1, cos(2 pi k i/n) sqrt 2 (k = 1 ..), sin(2 pi k i/n) sqrt 2 (k = 1 ..)] / sqrt n, k < modes.

    For an even n the highest possible frequency, k = n/2, is cos(pi i) / sqrt n and has no sine.
    """

    product_up_to = 32

    @property
    def count(self) -> int:
        return self.modes + self._sines

    @property
    def frequencies(self) -> Tensor:
        return torch.cat([torch.arange(self.modes), torch.arange(1, 1 + self._sines)])

    def columns(self) -> Tensor:
        k, i = self.frequencies, torch.arange(self.size)[:, None]
        angle = (k * i % self.size).to(torch.float64) * (2.0 * math.pi / self.size)
        table = torch.cat([angle[:, : self.modes].cos(), angle[:, self.modes :].sin()], dim=1)
        return table / (math.sqrt(self.size) * _halves((2 * k) % self.size == 0))

    def synthesis(self, c: Tensor) -> Tensor:
        real = c[..., : self.modes] * _shares(self, c.dtype, c.device)
        imaginary = pad(c[..., self.modes :] * -HALF, (1, self.modes - 1 - self._sines))
        return torch.fft.irfft(torch.complex(real, imaginary), n=self.size, norm="ortho")

    def analysis(self, z: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(z, norm="ortho")[..., : self.modes]
        cosines = spectrum.real / _shares(self, z.dtype, z.device)
        return torch.cat([cosines, spectrum.imag[..., 1 : 1 + self._sines] * (-2.0 * HALF)], dim=-1)

    @property
    def _sines(self) -> int:
        return self.modes - 1 - (2 * (self.modes - 1) == self.size)


@lru_cache(maxsize=64)
def _shares(axis: Waves, dtype: torch.dtype, device: torch.device) -> Tensor:
    """1 for waves that are their own conjugate, sqrt(1/2) for the others, whose conjugate carries the other half."""
    alone = (2 * torch.arange(axis.modes)) % axis.size == 0
    return _halves(alone).to(device=device, dtype=dtype)


class Cosines(Axis):
    """Type II: B = cos(pi k (i + 1/2)/n) sqrt(2/n), k = 0 .. modes - 1, with sqrt(1/n) for k = 0: level at both ends.

    By one real FFT of length n of the even points followed by the odd ones in reverse (Makhoul 1980).
    """

    @property
    def count(self) -> int:
        return self.modes

    @property
    def frequencies(self) -> Tensor:
        return torch.arange(self.modes)

    def columns(self) -> Tensor:
        k, i = torch.arange(self.modes), torch.arange(self.size)[:, None]
        angle = (k * (2 * i + 1) % (4 * self.size)).to(torch.float64) * (math.pi / (2 * self.size))
        return angle.cos() / (math.sqrt(self.size) * _halves(k == 0))

    def synthesis(self, c: Tensor) -> Tensor:
        n, half = self.size, self.size // 2 + 1
        turn, _, back = _makhoul(n, c.dtype, c.device)
        a = c * _weights(self.modes, c.dtype, c.device)
        if self.modes <= n - n // 2:  # V_k = turn_k (a_k - i a_(n-k)), and all a_(n-k) are zero
            spectrum = a * turn[: self.modes]
        else:
            mirrored = pad(a, (0, n - self.modes))[..., n - n // 2 :].flip(-1)
            spectrum = torch.complex(a[..., :half], pad(-mirrored, (1, 0))) * turn
        return torch.fft.irfft(spectrum, n=n, norm="ortho").index_select(-1, back)

    def analysis(self, z: Tensor) -> Tensor:
        n, half = self.size, self.size // 2 + 1
        turn, order, _ = _makhoul(n, z.dtype, z.device)
        kept = min(self.modes, half)
        spectrum = torch.fft.rfft(z.index_select(-1, order), norm="ortho")[..., :kept] * turn[:kept].conj()
        a = spectrum.real
        if self.modes > half:
            a = torch.cat([a, -spectrum.imag[..., n - self.modes + 1 : n - half + 1].flip(-1)], dim=-1)
        return a / _weights(self.modes, z.dtype, z.device)


@lru_cache(maxsize=64)
def _makhoul(n: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """exp(i pi k / 2n) for k <= n/2; the order even points, odd points in reverse; and the way back."""
    angle = torch.arange(n // 2 + 1, dtype=torch.float64) * (math.pi / (2 * n))
    turn = torch.polar(torch.ones_like(angle), angle).to(device=device, dtype=dtype.to_complex())
    order = torch.cat([torch.arange(0, n, 2), torch.arange(1, n, 2).flip(0)])
    return turn, order.to(device), order.argsort().to(device)


@lru_cache(maxsize=64)
def _weights(modes: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """1 for the constant, sqrt(1/2) for every other cosine."""
    return _halves(torch.arange(modes) == 0).to(device=device, dtype=dtype)


class Sines(Axis):
    """Type I: B = sin(pi k (i + 1)/(n + 1)) sqrt(2/(n + 1)), k = 1 .. modes: zero one point beyond either end.

    The FFT has length 2 (n + 1): an odd signal is the transform of an imaginary spectrum.
    """

    product_up_to = 128

    @property
    def count(self) -> int:
        return self.modes

    @property
    def frequencies(self) -> Tensor:
        return torch.arange(1, self.modes + 1)

    def columns(self) -> Tensor:
        k, i = self.frequencies, torch.arange(1, self.size + 1)[:, None]
        angle = (k * i % (2 * self.size + 2)).to(torch.float64) * (math.pi / (self.size + 1))
        return angle.sin() * math.sqrt(2.0 / (self.size + 1))

    def synthesis(self, c: Tensor) -> Tensor:
        spectrum = torch.complex(torch.zeros_like(c), -c)
        odd = torch.fft.irfft(pad(spectrum, (1, 0)), n=2 * self.size + 2, norm="ortho")
        return odd[..., 1 : self.size + 1]

    def analysis(self, z: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(pad(z, (1, 0)), n=2 * self.size + 2, norm="ortho")
        return spectrum.imag[..., 1 : self.modes + 1] * -2.0


class CellSines(Axis):
    """Type II: B = sin(pi k (i + 1/2)/n) sqrt(2/n), k = 1 .. modes (sqrt(1/n) for k = n): zero half a cell beyond.

    These are cosines of the frequency n - k whose sign alternates from point to point.
    """

    product_up_to = 128

    @property
    def count(self) -> int:
        return self.modes

    @property
    def frequencies(self) -> Tensor:
        return torch.arange(1, self.modes + 1)

    def columns(self) -> Tensor:
        k, i = self.frequencies, torch.arange(self.size)[:, None]
        angle = (k * (2 * i + 1) % (4 * self.size)).to(torch.float64) * (math.pi / (2 * self.size))
        return angle.sin() / (math.sqrt(self.size) * _halves(k == self.size))

    def synthesis(self, c: Tensor) -> Tensor:
        cosines = Cosines(self.size, self.size).synthesis(pad(c, (0, self.size - self.modes)).flip(-1))
        return cosines * _alternating(self.size, c.dtype, c.device)

    def analysis(self, z: Tensor) -> Tensor:
        signed = z * _alternating(self.size, z.dtype, z.device)
        return Cosines(self.size, self.size).analysis(signed).flip(-1)[..., : self.modes]


@lru_cache(maxsize=64)
def _alternating(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """1, -1, 1, -1 ..."""
    return (1 - 2 * (torch.arange(n) % 2)).to(device=device, dtype=dtype)
