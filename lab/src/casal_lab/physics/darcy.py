"""Darcy flow, -div(a grad u) = f on the unit square, u = 0 on its walls.

Finite volumes on cells x cells squares of side h = 1 / cells, with a and u at their centres. The flux through the face
between two cells has the arithmetic mean of a, that through a wall the distance h / 2:

    sum_(neighbours d of c) (a_c + a_d)/2 (u_c - u_d) / h^2 + (walls of c) 2 a_c u_c / h^2 = f_c

The residual, left minus right, is bilinear in a and u but for f, and each of its rows has five numbers a and five u.
With a = 6 * 2^s every s gives an a > 0, and the two materials of the data, 3 and 12, are s = -1 and s = 1.
"""

from __future__ import annotations

import math

import torch
from scipy import sparse
from scipy.sparse.linalg import splu
from torch import Tensor

from casal.checks import whole_number
from casal.errors import SettingError, ShapeError
from casal_lab.physics.random_fields import neumann_fields

CELLS = 32
SOURCE = 1.0
LOW, HIGH = 3.0, 12.0
"""The two values of a; between them, on the scale of s, lies MIDDLE."""

MIDDLE = 6.0
ALPHA, TAU = 2.0, 3.0
"""The random field whose sign chooses between LOW and HIGH is GRF(ALPHA, TAU)."""


def residual(a: Tensor, u: Tensor, source: Tensor | float = SOURCE) -> Tensor:
    """-div(a grad u) - f in every cell, (n, cells, cells) like a and u. Differentiable."""
    _same_grid(a, u)
    flow = 2.0 * _walls(u.shape[-1], like=u) * a * u
    for dim in (-2, -1):
        flow = flow + _net(_mean(a, dim) * _drop(u, dim), dim)
    return flow * u.shape[-1] ** 2 - source


def solve(a: Tensor, source: Tensor | float = SOURCE) -> Tensor:
    """u (n, cells, cells) in float64 of coefficients a > 0, by one sparse factorisation a field."""
    if not bool((a > 0).all()):
        raise SettingError(f"a must be > 0 in every cell, its smallest value is {float(a.min()):g}")
    a = a.detach().to(torch.float64)
    count = a.shape[-1] ** 2
    rows, columns = _neighbours(a.shape[-1]).numpy()
    loads = torch.as_tensor(source, dtype=torch.float64).expand(a.shape).reshape(-1, count).numpy()
    u = torch.empty((len(a), count), dtype=torch.float64)
    for i, load in enumerate(loads):
        matrix = sparse.csc_array((_matrix(a[i : i + 1])[0].numpy(), (rows, columns)), shape=(count, count))
        factors = splu(matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
        u[i] = torch.from_numpy(factors.solve(load))
    return u.reshape(a.shape)


def jacobian_pattern(cells: int = CELLS) -> Tensor:
    """Rows and columns (2, count) of the numbers of ``jacobian``, in its order, the same for all fields.

    Rows are the cells. Columns are those of a, from 0, then those of u, from cells^2. No pair comes twice.
    """
    pattern = _neighbours(cells)
    return torch.cat([pattern, pattern + torch.tensor([[0], [cells**2]])], dim=1)


def jacobian(a: Tensor, u: Tensor) -> Tensor:
    """Derivatives (n, count) of the residual by a and u, in the places of ``jacobian_pattern``."""
    _same_grid(a, u)
    return torch.cat([_slopes(u), _matrix(a)], dim=1)


def log_jacobian(a: Tensor, u: Tensor) -> Tensor:
    """The same by s and u, where a = 6 * 2^s: da/ds = a log 2."""
    _same_grid(a, u)
    columns = _neighbours(a.shape[-1])[1].to(a.device)
    return torch.cat([_slopes(u) * (math.log(2.0) * a.flatten(1))[:, columns], _matrix(a)], dim=1)


def to_log(a: Tensor) -> Tensor:
    """s = log2(a / 6)."""
    return torch.log2(a / MIDDLE)


def from_log(s: Tensor) -> Tensor:
    """a = 6 * 2^s."""
    return MIDDLE * torch.exp2(s)


def random_coefficients(n: int, generator: torch.Generator, cells: int = CELLS) -> Tensor:
    """Fields (n, cells, cells) of two materials, 12 where GRF(2, 3) is >= 0 and 3 elsewhere."""
    field = neumann_fields(n, cells, generator, alpha=ALPHA, tau=TAU)
    return torch.where(field >= 0, HIGH, LOW).to(torch.float64)


def random_pairs(n: int, generator: torch.Generator, cells: int = CELLS) -> tuple[Tensor, Tensor]:
    """Random coefficients and their solutions for f = 1: a and u, (n, cells, cells) each."""
    a = random_coefficients(n, generator, cells)
    return a, solve(a)


def _same_grid(a: Tensor, u: Tensor) -> None:
    if a.shape != u.shape or a.ndim != 3 or a.shape[-1] != a.shape[-2]:
        raise ShapeError(f"a and u are (n, cells, cells) both, got {tuple(a.shape)} and {tuple(u.shape)}")


def _walls(cells: int, like: Tensor) -> Tensor:
    """How many of its four faces are walls, for each cell: 2 in the corners, 1 at the sides, else 0."""
    end = torch.zeros(cells, dtype=like.dtype, device=like.device)
    end[0] += 1.0
    end[-1] += 1.0
    return end[:, None] + end[None, :]


def _drop(u: Tensor, dim: int) -> Tensor:
    """u_c - u_d for the faces across ``dim``, c before d."""
    count = u.shape[dim] - 1
    return u.narrow(dim, 0, count) - u.narrow(dim, 1, count)


def _mean(a: Tensor, dim: int) -> Tensor:
    """(a_c + a_d) / 2 for the same faces."""
    count = a.shape[dim] - 1
    return 0.5 * (a.narrow(dim, 0, count) + a.narrow(dim, 1, count))


def _net(faces: Tensor, dim: int) -> Tensor:
    """What leaves each cell across ``dim``: out through the face after it, less in through the face before it."""
    ahead, behind = _both_sides(faces, dim)
    return ahead - behind


def _both_sides(faces: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The number of the next face, and of the face before, for each cell; zero at the walls."""
    wall = torch.zeros_like(faces.narrow(dim, 0, 1))
    return torch.cat([faces, wall], dim), torch.cat([wall, faces], dim)


def _neighbours(cells: int) -> Tensor:
    """Pairs (2, count) of cells that share a row: each with itself, then both ways across the faces of each axis."""
    number = torch.arange(whole_number(cells, "cells", 2) ** 2).reshape(cells, cells)
    down, right = number[:-1].flatten(), number[:, :-1].flatten()
    rows = [number.flatten(), down, down + cells, right, right + 1]
    columns = [number.flatten(), down + cells, down, right + 1, right]
    return torch.stack([torch.cat(rows), torch.cat(columns)])


def _matrix(a: Tensor) -> Tensor:
    """Derivatives by u, (n, count) in the order of ``_neighbours``: the matrix that ``solve`` inverts."""
    diagonal = 2.0 * _walls(a.shape[-1], like=a) * a
    others = []
    for dim in (-2, -1):
        face = _mean(a, dim)
        ahead, behind = _both_sides(face, dim)
        diagonal = diagonal + ahead + behind
        others += [-face.flatten(1), -face.flatten(1)]
    return torch.cat([diagonal.flatten(1), *others], dim=1) * a.shape[-1] ** 2


def _slopes(u: Tensor) -> Tensor:
    """Derivatives by a, (n, count) in the order of ``_neighbours``."""
    diagonal = 2.0 * _walls(u.shape[-1], like=u) * u
    others = []
    for dim in (-2, -1):
        half = 0.5 * _drop(u, dim)
        diagonal = diagonal + _net(half, dim)
        others += [half.flatten(1), -half.flatten(1)]
    return torch.cat([diagonal.flatten(1), *others], dim=1) * u.shape[-1] ** 2
