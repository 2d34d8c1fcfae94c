"""Random fields, their latents, the Gaussian of the latents, and what the latents leave out.

    u = A x + r,     A^T A = diag(scale^2),     x of unit size (root mean square) in every field

x are the lowest modes of u, r is the truncation residual. To whoever sees u at some points, r acts as noise.

Several fields lie side by side, each with a series of its own (``SideBySide``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from casal.checks import Event
from casal.decoders import Decoder, Diagonal, Gram, Identity, Transform
from casal_lab.nets import Gaussian
from casal_lab.nets.training import Augment


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


# ------------------------------------------------------------------ the data, their latents and their Gaussian

TRAINING_SEED = 20_000_003
"""Of the fields that priors are fitted to; seeds of cases are other ones."""

Series = Transform | SideBySide
"""The decoders of latents: the same series for all fields, or one for each."""

Draw = Callable[[int, torch.Generator], Tensor]
"""(n, generator) -> fields (n, *event) in float64."""


@dataclass(frozen=True, eq=False)
class Prior:
    """What is known of the fields before any of them is seen.

    Attributes:
        name: Of the experiment.
        draw: Draws fields.
        decoder: A, from latents (n, d) to fields.
        latents: Training latents (n, d), float64.
        gaussian: Their mean and covariance, in float64.
        residuals: r of some training fields, (k, *event), float32.
        augment: A symmetry of the distribution, drawn at random for each latent; None if there is none.
    """

    name: str
    draw: Draw
    decoder: Series
    latents: Tensor
    gaussian: Gaussian
    residuals: Tensor
    augment: Augment | None

    @property
    def size(self) -> int:
        """d, the numbers in a latent."""
        return self.latents.shape[1]

    def encode(self, fields: Tensor) -> Tensor:
        """The latents (n, d) of fields: x = A^+ u."""
        return self.decoder.pinv(fields.to(torch.float64), (self.size,))

    def decode(self, x: Tensor) -> Tensor:
        """A x in float64."""
        return self.decoder(x.to(torch.float64))

    @property
    def covariance(self) -> Tensor:
        """C (d, d) of the latents."""
        return (self.gaussian.basis * self.gaussian.variances) @ self.gaussian.basis.T


class Training(NamedTuple):
    """Fields (or pairs of them) that are drawn, how many of them keep their residual, updates of the network."""

    fields: int
    residuals: int
    iterations: int


def fit_prior(
    name: str,
    draw: Draw,
    decoder: Callable[[Tensor | None], Series],
    *,
    fields: int,
    residuals: int,
    augment: Augment | None = None,
    copies: int = 1,
    batch: int = 500,
) -> Prior:
    """Draw training fields and learn scales, mean, covariance and residuals from them.

    Args:
        name: Of the experiment.
        draw: Draws fields.
        decoder: The series with a given scale (fields, 1), or without one.
        fields: How many are drawn.
        residuals: Of how many the truncation residual is kept.
        augment: A symmetry, see ``Prior``.
        copies: Symmetric copies of every latent that mean and covariance are computed from.
        batch: Fields drawn at once; only their latents are kept.
    """
    generator, plain = torch.Generator().manual_seed(TRAINING_SEED), decoder(None)
    parts, left = list[Tensor](), list[Tensor]()
    for first in range(0, fields, batch):
        u = draw(min(batch, fields - first), generator)
        x = plain.pinv(u, (plain.latent_size,))
        parts.append(x)
        if first < residuals:
            left.append((u - plain(x)).float()[: residuals - first])
    raw = torch.cat(parts)
    sizes = plain.sizes if isinstance(plain, SideBySide) else [plain.count] * (plain.channels or 1)
    scale = torch.stack([block.square().mean().sqrt() for block in raw.split(sizes, 1)])[:, None]  # (fields, 1)
    scaled = decoder(scale)
    latents = torch.cat([block / size for block, size in zip(raw.split(sizes, 1), scale, strict=True)], 1)
    every = latents
    if augment is not None and copies > 1:
        every = torch.cat([latents, *(augment(latents, generator) for _ in range(copies - 1))])
    gaussian = Gaussian.fit(every, dtype=torch.float64)
    return Prior(name, draw, scaled, latents, gaussian, torch.cat(left), augment)
