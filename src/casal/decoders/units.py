"""Physical units: a mean and a standard deviation for each coordinate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from casal.checks import Event
from casal.decoders.base import Decoder
from casal.decoders.gram import Gram
from casal.errors import SettingError, ShapeError


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

    invertible = True

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
        self.linear = not bool(self.mean.any())

    def __call__(self, x: Tensor) -> Tensor:
        self._fits(tuple(x.shape[1:]))
        scaled = x * self.std.to(x)
        return scaled if self.linear else scaled + self.mean.to(x)

    @property
    def affine(self) -> bool:
        return True

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

    def gradient_of_decoded(self, v: Tensor) -> Tensor:
        return v / self.std.to(v)

    def gram(self, latent: Event, preconditioner: Tensor | None, like: Tensor) -> Gram:
        if not self.linear:
            return super().gram(latent, preconditioner, like)
        diagonal = torch.ones((), dtype=like.dtype, device=like.device) if preconditioner is None else preconditioner
        eigenvalues = diagonal * self.std.to(like).square()
        whole = eigenvalues if eigenvalues.ndim == 0 else eigenvalues.expand(latent)
        return Gram(diagonal.sqrt(), whole, None, unit=preconditioner is None)

    def centred(self, like: Tensor) -> tuple[Decoder, Tensor | None]:
        self._fits(tuple(like.shape[1:]))
        return (self, None) if self.linear else (Standardise(0.0, self.std), self.mean)

    def rescaled(self, scale: Tensor) -> Decoder:
        return Standardise(0.0, scale.to(self.std) * self.std)

    def after(self, inner: Decoder) -> Decoder:
        """diag(std) A, of the kind of A where it can be."""
        product = inner.rescaled(self.std) if self.linear and inner.linear and not inner.identity else None
        return self @ inner if product is None else product

    def to(self, like: Tensor) -> Decoder:
        other = Standardise.__new__(Standardise)
        other.linear, other.mean, other.std = self.linear, self.mean.to(like.device), self.std.to(like.device)
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
