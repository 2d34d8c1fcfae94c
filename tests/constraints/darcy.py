"""Darcy flow on a grid, -div(a grad u) = 1, as a residual with a sparse Jacobian: 2 N^2 unknowns, N^2 equations."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from casal.constraints import Implicit, SparseJacobian


class Darcy:
    """Cell-centred finite volumes on the unit square, u = 0 on the walls; events (2, N, N), s and u, a = 6 * 2^s.

    A face between two cells has the mean of their a; a wall is half a cell away, so its coefficient is 2 a. In units of
    the source times the area of a cell,

        h_P = sum over faces a_f (u_P - u_Q) + sum over walls 2 a_P u_P - 1 / N^2.

    Args:
        side: N.
    """

    def __init__(self, side: int) -> None:
        self.side = side
        cell = torch.arange(side * side).reshape(side, side)
        pairs = [(cell[:, :-1], cell[:, 1:]), (cell[:-1], cell[1:])]
        left = torch.cat([one.reshape(-1) for one, _ in pairs])
        right = torch.cat([other.reshape(-1) for _, other in pairs])
        self.one, self.other = torch.cat([left, right]), torch.cat([right, left])  # every face, seen from both sides
        self.walls = torch.zeros(side, side, dtype=torch.float64)
        for edge in (self.walls[0], self.walls[-1], self.walls[:, 0], self.walls[:, -1]):
            edge += 2.0
        self.walls = self.walls.reshape(-1)
        count, own = side * side, cell.reshape(-1)
        rows = torch.cat([own, self.one, own, self.one])
        columns = torch.cat([own, self.other, count + own, count + self.other])
        self.indices = torch.stack([rows, columns])

    def fields(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """a and u, (n, N^2)."""
        flat = z.reshape(len(z), 2, -1)
        return 6.0 * torch.exp2(flat[:, 0]), flat[:, 1]

    def residual(self, z: Tensor) -> Tensor:
        """h, (n, N^2)."""
        a, u = self.fields(z)
        flux = 0.5 * (a[:, self.one] + a[:, self.other]) * (u[:, self.one] - u[:, self.other])
        out = self.walls * a * u - 1.0 / self.side**2
        return out.index_add(1, self.one, flux)

    def derivatives(self, z: Tensor) -> Tensor:
        """d h_P / d s_P, d s_Q, d u_P, d u_Q, in the order of ``indices``."""
        a, u = self.fields(z)
        face, drop = 0.5 * (a[:, self.one] + a[:, self.other]), u[:, self.one] - u[:, self.other]
        slope = math.log(2.0) * a
        by_own = (self.walls * u).index_add(1, self.one, 0.5 * drop) * slope
        by_field = (self.walls * a).index_add(1, self.one, face)
        return torch.cat([by_own, 0.5 * drop * slope[:, self.other], by_field, -face], dim=1)

    def solution(self, s: Tensor) -> Tensor:
        """(n, 2, N, N): s (n, N, N) and the u that belongs to it."""
        count = self.side**2
        z = torch.stack([s, torch.zeros_like(s)], dim=1)
        matrix = torch.zeros(len(s), count, count, dtype=torch.float64)
        inside = self.indices[1] >= count
        matrix[:, self.indices[0, inside], self.indices[1, inside] - count] = self.derivatives(z)[:, inside]
        u = torch.linalg.solve(matrix, torch.full((len(s), count), 1.0 / count, dtype=torch.float64))
        return torch.stack([s, u.reshape(s.shape)], dim=1)

    def sparse(self) -> Implicit:
        """The set, with its sparse Jacobian."""
        return Implicit(self.residual, jacobian=SparseJacobian(self.indices, self.derivatives))

    def dense(self) -> Implicit:
        """The same set without it."""
        return Implicit(self.residual)


def smooth_fields(chains: int, side: int, seed: int = 0) -> Tensor:
    """s (n, N, N), a few waves of random size: a between 3 and 12, about."""
    generator = torch.Generator().manual_seed(seed)
    x = (torch.arange(side, dtype=torch.float64) + 0.5) / side
    waves = torch.stack([torch.cos(math.pi * k * x) / (1.0 + k) for k in range(5)])
    sizes = torch.randn(chains, 5, 5, generator=generator, dtype=torch.float64)
    return torch.einsum("nkl,kx,ly->nxy", sizes, waves, waves)
