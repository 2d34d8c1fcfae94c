"""The Navier-Stokes equation of the paper's appendix: two vorticity fields, their latent, network, and what is known.

w at time 0 and at time 1 on 64 x 64 points of a periodic square, viscosity 1e-3, a diagonal forcing. The latent holds
the Fourier modes |k| <= 8 of both. Of each field 123 points (3 %), its circulation and its enstrophy are known.
"""

from __future__ import annotations

import math
from functools import lru_cache, partial
from typing import ClassVar

import torch
from torch import Tensor

from casal import Affine, Constraint, Fourier, ObservedMassEnergy, PerChain, Product, Sphere
from casal.decoders import Transform
from casal_lab.nets import WienerUNet
from casal_lab.physics.navier_stokes import POINTS, circulation, enstrophy, random_pairs
from casal_lab.reconstruction.models import trained
from casal_lab.reconstruction.prior import Prior, Training, fit_prior
from casal_lab.reconstruction.task import Cases, Task, sensors

RADIUS = 8
SEEN = 123
"""Points that are seen of each field."""

GRID = 20
"""Points of a side of the grid that the network works on."""

FINE = 24
"""Points of a side of the grid on which symmetries are whole shifts."""


FULL = Training(3_000, 1_500, 700)
QUICK = Training(900, 300, 30)


def decoder(scale: Tensor | None, points: int = POINTS) -> Transform:
    """All modes |k| <= 8 of two fields."""
    return Fourier.disc(RADIUS, (points, points), scale=scale, channels=2)


@lru_cache(maxsize=4)
def to_grid(points: int) -> Tensor:
    """Orthonormal columns (2 points^2, d): the same modes on a small grid."""
    series = decoder(None, points)
    return series.matrix((series.latent_size,), torch.empty(0, dtype=torch.float64))


def symmetries(x: Tensor, generator: torch.Generator) -> Tensor:
    """Latents of fields that the same forcing makes of symmetric starts, drawn at random for each pair:

    shifts along (1, -1); the half turn w(1/8 - x, 1/8 - y); and the mirror -w(y + 1/4, x + 1/4).
    """
    lift = to_grid(FINE).to(x)
    w = (x @ lift.T).reshape(len(x), 2, FINE, FINE)
    turned, mirrored = (torch.rand((2, len(x), 1, 1, 1), generator=generator) < 0.5).to(x.device)
    shift = torch.randint(FINE, (len(x),), generator=generator).to(x.device)
    w = torch.where(turned, w.flip(2, 3).roll((FINE // 8 + 1, FINE // 8 + 1), (2, 3)), w)
    w = torch.where(mirrored, -w.transpose(2, 3).roll((-FINE // 4, -FINE // 4), (2, 3)), w)
    i = torch.arange(FINE, device=x.device)
    rows, columns = (i + shift[:, None]) % FINE, (i - shift[:, None]) % FINE
    chain = torch.arange(len(x), device=x.device)[:, None, None, None]
    field = torch.arange(2, device=x.device)[None, :, None, None]
    w = w[chain, field, rows[:, None, :, None], columns[:, None, None, :]]
    return w.reshape(len(x), -1) @ lift


class FlowUNet(WienerUNet):
    """A denoiser that is also shown velocity (times 10) and advection of both filtered fields."""

    extra_channels: ClassVar[int] = 6

    def extra(self, wiener: Tensor) -> Tensor:
        """u, v and u w_x + v w_y, (n, 6, height, width), from vorticities of unit size."""
        points = wiener.shape[-1]
        k = torch.fft.fftfreq(points, 1.0 / points, device=wiener.device, dtype=wiener.dtype) * (2.0 * math.pi)
        kx, ky = k[:, None], k[None, : points // 2 + 1].abs()
        spectrum = torch.fft.rfft2(wiener)
        psi = spectrum / (kx.square() + ky.square()).clamp_min(1.0)
        u, v, along, across = (
            torch.fft.irfft2(1j * part, s=(points, points))
            for part in (ky * psi, -kx * psi, kx * spectrum, ky * spectrum)
        )
        return torch.cat([10.0 * u, 10.0 * v, u * along + v * across], dim=1)


@lru_cache(maxsize=2)
def prior(training: Training) -> Prior:
    """What is known of the fields."""
    return fit_prior(
        "navier_stokes",
        lambda n, generator: random_pairs(n, generator),
        decoder,
        fields=training.fields,
        residuals=training.residuals,
        augment=symmetries,
        copies=8,
    )


def net(training: Training) -> WienerUNet:
    """The trained network."""
    return trained(
        prior(training),
        (2, GRID, GRID),
        to_grid(GRID),
        iterations=training.iterations,
        kind=FlowUNet,
        padding="circular",
        copies=8,
    )


def constraint(index: Tensor, fields: Tensor, values: Tensor) -> Constraint:
    """What is seen, the circulation and the enstrophy, of each of two fields (n, 2, points, points)."""
    size = fields.shape[-1] ** 2
    parts = []
    for k in range(2):
        mine = (index >= k * size) & (index < (k + 1) * size)
        w = fields[:, k]
        mass, energy = PerChain(circulation(w)), PerChain(enstrophy(w))
        parts.append(ObservedMassEnergy(index[mine] - k * size, PerChain(values[:, mine]), mass, energy))
    return Product(*parts, sizes=[size, size])


def inside(known: Prior, index: Tensor, cases: Cases) -> Constraint:
    """All latents that decode into the set of ``constraint``: a sphere in a flat, for each field.

    Waves are orthonormal up to one scale per field, so that |w|^2 = scale^2 |x|^2.
    """
    scale, size, half = known.decoder.scale, cases.fields.shape[-1] ** 2, known.size // 2
    assert scale is not None
    H = known.decoder.matrix((known.size,), torch.empty(0, dtype=torch.float64), index)
    total = known.decoder.vjp(torch.zeros((1, known.size), dtype=torch.float64))(torch.ones_like(cases.fields[:1]))
    parts = []
    for k in range(2):
        mine, own = (index >= k * size) & (index < (k + 1) * size), slice(k * half, (k + 1) * half)
        rows, values = H[mine, own], cases.values[:, mine]
        share = circulation(cases.fields[:, k])[:, None] / size
        rows = torch.cat([rows[:1] + total[:, own] / size, rows])  # the mean alone is zero and has no unit
        values = torch.cat([values[:, :1] + share, values], 1)
        radius = enstrophy(cases.fields[:, k]).sqrt() / scale[k * half]
        parts.append(Affine(rows, PerChain(values)) & Sphere(PerChain(radius)))
    return Product(*parts, sizes=[half, half])


def enstrophies(index: Tensor, fields: Tensor, values: Tensor) -> Constraint:
    """The enstrophies alone; no training field has any circulation, and the models have learned it."""
    size, none = fields.shape[-1] ** 2, torch.zeros((len(fields), 0), dtype=torch.float64)
    parts = [ObservedMassEnergy([], PerChain(none), None, PerChain(enstrophy(fields[:, k]))) for k in range(2)]
    return Product(*parts, sizes=[size, size])


def tasks(known: Prior, seed: int) -> list[Task]:
    """Everything strict; and only the enstrophies strict. Points are drawn from a seed, others in each field."""
    points = known.residuals.shape[-1]
    index = torch.cat([sensors(points**2, SEEN, seed), points**2 + sensors(points**2, SEEN, seed + 500_000)])
    nothing = torch.zeros((0, known.size), dtype=torch.float64)  # fields have no circulation, and the prior knows it
    return [
        Task.of("all strict", known, index, constraint, nothing, inside=partial(inside, known, index)),
        Task.of("enstrophy strict", known, index, enstrophies, nothing, soft=True),
    ]
