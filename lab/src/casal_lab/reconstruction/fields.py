"""Fields side by side, each with a series of its own: A = diag(A_1, A_2, ...) diag(scale)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy

import torch
from torch import Tensor

from casal.checks import Event
from casal.decoders import Decoder, Diagonal, Gram, Identity, Transform


class SideBySide(Decoder):
    """Decodes the first numbers of a latent by the first series, the next by the second; events are (fields, *grid).

    Args:
        parts: A series without a scale for each field, all on the same grid.
        scale: A number per field, (fields, 1); one if left out.
    """

    linear = True

    def __init__(self, parts: Sequence[Transform], scale: Tensor | None = None) -> None:
        self.parts: tuple[Decoder, ...] = tuple(parts)
        self.sizes = [part.latent_size for part in parts]
        self.latent_size: int = sum(self.sizes)
        self.shape: Event = (len(parts), *parts[0].shape)
        self.scale = None if scale is None else torch.repeat_interleave(scale.flatten(), torch.tensor(self.sizes))

    def __call__(self, x: Tensor) -> Tensor:
        c = x.reshape(len(x), self.latent_size)
        c = c if self.scale is None else c * self.scale.to(c)
        return torch.stack([part(block) for part, block in zip(self.parts, c.split(self.sizes, 1), strict=True)], 1)

    def vjp(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        def pull(v: Tensor) -> Tensor:
            c = self._analysis(v)
            return (c if self.scale is None else c * self.scale.to(c)).reshape(len(v), *x.shape[1:])

        return pull

    def norm(self) -> float:
        return 1.0 if self.scale is None else float(self.scale.abs().max())

    def pinv(self, z: Tensor, latent: Event) -> Tensor:
        c = self._analysis(z)
        return (c if self.scale is None else c / self.scale.to(c)).reshape(len(z), *latent)

    def gram(self, latent: Event, preconditioner: Tensor | None, like: Tensor) -> Gram:
        return self._scaling.gram(latent, preconditioner, like)  # A_k^T A_k = I

    def factors(self) -> tuple[Decoder, Decoder] | None:
        basis = copy(self)
        basis.scale = None
        return basis, self._scaling

    def to(self, like: Tensor) -> Decoder:
        other = copy(self)
        other.parts = tuple(part.to(like) for part in self.parts)
        other.scale = None if self.scale is None else self.scale.to(like)
        return other

    @property
    def _scaling(self) -> Decoder:
        return Identity() if self.scale is None else Diagonal(self.scale)

    def _analysis(self, z: Tensor) -> Tensor:
        """All coefficients (n, d) before the scale."""
        fields = z.reshape(len(z), *self.shape).unbind(1)
        blocks = zip(self.parts, fields, self.sizes, strict=True)
        return torch.cat([part.pinv(field, (size,)) for part, field, size in blocks], 1)
