"""The Poisson equation, -Laplacian u = f on the unit square, u = g on its boundary.

    (4 u_ij - u_(i-1)j - u_(i+1)j - u_i(j-1) - u_i(j+1)) / h^2 = f_ij,     h = 1 / (points - 1)

Fields (n, points, points) include the boundary: the first and last row and column. The sine transform (type I) of the
inner points diagonalises the left side, with eigenvalues (4 / h^2) (sin^2(pi k h/2) + sin^2(pi l h/2)), so solutions
are exact up to rounding.

A boundary is a list of values (n, 4 (points - 1)) on the way round the square: along the first row, down the last
column, back along the last row, up the first column. Each side has its first corner and not its last.
"""

from __future__ import annotations

import math

import torch
from scipy import fft
from torch import Tensor

from casal.checks import whole_number
from casal.errors import ShapeError

POINTS = 100
STRENGTH, SPREAD = 10.0, 0.02
"""f = STRENGTH exp(-r^2 / SPREAD) about the centre."""

OFFSET = 0.5
"""Standard deviation of the constant that is added to a boundary."""

STRONGEST, MARGIN = 100.0, 0.15
"""Random sources: largest strength of a blob, and how far its centre stays from the walls. Both are our choice: the
solutions then have a standard deviation of 0.4 without a boundary value, and of 0.7 without a source."""

BATCH = 16
"""Fields that are solved together: more of them leave the cache of the processor."""


def solve(boundary: Tensor, source: Tensor) -> Tensor:
    """u (n, points, points) in float64 for boundaries (n, 4 (points - 1)) and a source ([n,] points, points).

    Only the inner points of the source count.
    """
    u = on_the_frame(boundary)
    if source.shape not in (u.shape, u.shape[1:]):
        raise ShapeError(f"the source is {tuple(source.shape)}, the boundaries are those of fields {tuple(u.shape)}")
    for part, given in zip(u.split(BATCH), source.to(u).expand(u.shape).split(BATCH), strict=True):
        loads = -residual(part, given)  # what the boundary puts on the inner points counts as a source
        part[:, 1:-1, 1:-1] = _with_zero_boundary(loads)
    return u


def residual(u: Tensor, source: Tensor) -> Tensor:
    """-Laplacian u - f at the inner points, (n, points - 2, points - 2)."""
    inner = u[..., 1:-1, 1:-1]
    neighbours = u[..., :-2, 1:-1] + u[..., 2:, 1:-1] + u[..., 1:-1, :-2] + u[..., 1:-1, 2:]
    return (4.0 * inner - neighbours) * (u.shape[-1] - 1) ** 2 - source[..., 1:-1, 1:-1]


def mass(u: Tensor) -> Tensor:
    """sum u over the points of the grid, (n,)."""
    return u.sum((-2, -1))


def on_the_frame(boundary: Tensor) -> Tensor:
    """Fields (n, points, points) in float64, zero inside, from boundaries (n, 4 (points - 1))."""
    side, rest = divmod(boundary.shape[-1], 4)
    if rest or side < 2:
        raise ShapeError(f"a boundary has 4 (points - 1) values, points >= 3, got {boundary.shape[-1]}")
    u = torch.zeros((len(boundary), side + 1, side + 1), dtype=torch.float64)
    first, last, back, up = boundary.to(torch.float64).reshape(len(boundary), 4, side).unbind(1)
    u[:, 0, :-1], u[:, :-1, -1] = first, last
    u[:, -1, 1:], u[:, 1:, 0] = back.flip(1), up.flip(1)
    return u


def boundary_of(u: Tensor) -> Tensor:
    """The boundary (n, 4 (points - 1)) of fields: the inverse of ``on_the_frame``."""
    return torch.cat([u[:, 0, :-1], u[:, :-1, -1], u[:, -1, 1:].flip(1), u[:, 1:, 0].flip(1)], dim=1)


def grid(points: int = POINTS) -> tuple[Tensor, Tensor]:
    """Coordinates x (of rows) and y (of columns), (points, points) each, from 0 to 1."""
    line = torch.linspace(0.0, 1.0, whole_number(points, "points", 3), dtype=torch.float64)
    x, y = torch.meshgrid(line, line, indexing="ij")
    return x, y


def central_source(points: int = POINTS) -> Tensor:
    """10 exp(-r^2 / 0.02), r the distance from the centre, (points, points)."""
    x, y = grid(points)
    return STRENGTH * torch.exp(-((x - 0.5).square() + (y - 0.5).square()) / SPREAD)


def random_sources(n: int, generator: torch.Generator, points: int = POINTS) -> Tensor:
    """One to three blobs s exp(-r^2 / 0.02), s ~ U(-100, 100), centred away from the walls: (n, points, points)."""
    count = torch.randint(1, 4, (n, 1), generator=generator)
    uniform = torch.rand((3, n, 3), generator=generator, dtype=torch.float64)
    strength = STRONGEST * (2.0 * uniform[0] - 1.0) * (torch.arange(3) < count)
    x0, y0 = (MARGIN + (1.0 - 2.0 * MARGIN) * uniform[1:])[..., None]
    line = torch.linspace(0.0, 1.0, points, dtype=torch.float64)
    rows, columns = (torch.exp(-(line - centre).square() / SPREAD) for centre in (x0, y0))  # a blob is their product
    return torch.einsum("nb,nbi,nbj->nij", strength, rows, columns)


def random_boundaries(n: int, generator: torch.Generator, points: int = POINTS) -> Tensor:
    """Two to six constant pieces, U(-1, 1) each, and an offset 0.5 N(0, 1) for all: (n, 4 (points - 1)).

    The ends of the pieces are uniform along the way round, so a side may have several or none.
    """
    way = 4 * (whole_number(points, "points", 3) - 1)
    count = torch.randint(2, 7, (n, 1), generator=generator)
    ends, values = torch.rand((2, n, 6), generator=generator, dtype=torch.float64)
    ends = ends.masked_fill(torch.arange(6) >= count, 2.0).sort(1).values  # 2 is never reached
    place = (torch.arange(way, dtype=torch.float64) / way).expand(n, way).contiguous()
    piece = torch.searchsorted(ends, place, right=True) % count  # after the last end the first piece goes on
    offset = OFFSET * torch.randn((n, 1), generator=generator, dtype=torch.float64)
    return (2.0 * values - 1.0).gather(1, piece) + offset


def random_solutions(n: int, generator: torch.Generator, points: int = POINTS, *, blobs: bool = False) -> Tensor:
    """Solutions (n, points, points) with random boundaries; the source is the central one, or random blobs."""
    boundary = random_boundaries(n, generator, points)
    return solve(boundary, random_sources(n, generator, points) if blobs else central_source(points))


def _with_zero_boundary(loads: Tensor) -> Tensor:
    """The inner points of -Laplacian u = loads, u = 0 on the boundary."""
    inner = loads.shape[-1]
    k = torch.arange(1, inner + 1, dtype=torch.float64)
    one = (2.0 * (inner + 1) * torch.sin(0.5 * math.pi * k / (inner + 1))).square()
    spectrum = fft.dstn(loads.numpy(), type=1, axes=(-2, -1), norm="ortho") / (one[:, None] + one[None, :]).numpy()
    return torch.from_numpy(fft.idstn(spectrum, type=1, axes=(-2, -1), norm="ortho"))
