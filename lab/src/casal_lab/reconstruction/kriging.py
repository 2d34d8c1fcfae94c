"""The exact answer for a Gaussian: rows made white, the conditional mean (kriging) and covariance, least squares.

A field u = A x + r is seen at some points: y = H x + r_o, with the covariance S of r_o. With S = L L^T the rows
L^-1 H have unit noise. If there are more of them than latents, L^-1 H = Q R, and Q^T L^-1 (y - mean) = R x + noise says
all that y says about x.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from casal_lab.nets import Gaussian


class Rows(NamedTuple):
    """Observations of latents with independent noise.

    Attributes:
        matrix: (k + j, d): first k rows that hold exactly, then those of unit noise.
        noise: (k + j,), 0 or 1.
        mean: Of the residual at the points that are seen, (m,).
        map: (j, m), from y - mean to the values of the rows of unit noise.
        points: H (m, d), from latents to the values that are seen.
    """

    matrix: Tensor
    noise: Tensor
    mean: Tensor
    map: Tensor
    points: Tensor

    def values(self, y: Tensor, known: Tensor) -> Tensor:
        """The values (n, k + j) of all rows from what is seen (n, m) and what is known (n, k)."""
        return torch.cat([known, (y - self.mean) @ self.map.T], dim=1)


def whitened(H: Tensor, mean: Tensor, S: Tensor, known: Tensor) -> Rows:
    """Rows of unit noise that say the same as y = H x + N(mean, S), and those that hold exactly before them."""
    L = torch.linalg.cholesky(S)
    matrix = torch.linalg.solve_triangular(L, H, upper=False)
    pull = torch.linalg.solve_triangular(L, torch.eye(len(L), dtype=L.dtype), upper=False)
    if len(H) > H.shape[1]:
        Q, matrix = torch.linalg.qr(matrix)
        pull = Q.T @ pull
    noise = torch.cat([torch.zeros(len(known)), torch.ones(len(matrix))]).to(H)
    return Rows(torch.cat([known, matrix]), noise, mean, pull, H)


class Conditional(NamedTuple):
    """A Gaussian given rows.

    Attributes:
        mean: (n, d), one row per case.
        covariance: (d, d), the same for all cases.
    """

    mean: Tensor
    covariance: Tensor

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """n draws of every case, those of a case in a row, (cases n, d)."""
        lam, V = torch.linalg.eigh(self.covariance)
        w = torch.randn((n * len(self.mean), len(lam)), generator=generator, dtype=lam.dtype)
        return self.mean.repeat_interleave(n, 0) + (w * lam.clamp_min(0.0).sqrt()) @ V.T


def krige(gaussian: Gaussian, rows: Rows, values: Tensor) -> Conditional:
    """E[x | rows] = m + C F^T (F C F^T + R)^-1 (y - F m), and C - C F^T (F C F^T + R)^-1 F C.

    F are the rows and C = V diag(lam) V^T; all in the coordinates V.
    """
    V, lam, m = (part.double() for part in (gaussian.basis, gaussian.variances, gaussian.mean))
    F = rows.matrix @ V
    root = torch.linalg.cholesky((F * lam) @ F.T + torch.diag(rows.noise.square()))
    gain = torch.cholesky_solve(F * lam, root).T  # (r, rows)
    left = torch.diag(lam) - gain @ (F * lam)
    return Conditional(m + (values - m @ rows.matrix.T) @ gain.T @ V.T, V @ (left + left.T) @ V.T / 2)


def least_squares(rows: Rows, y: Tensor, known: Tensor) -> Tensor | None:
    """argmin |H x - y|^2 with the known rows exact, (n, d); None if it is not determined.

    Nothing of the prior enters: neither mean and covariance nor those of the residual.
    """
    K = rows.matrix[: len(rows.matrix) - len(rows.map)]
    if len(rows.points) + len(K) < rows.points.shape[1]:
        return None
    if not len(K):
        return torch.linalg.lstsq(rows.points, y.T).solution.T
    start = torch.linalg.lstsq(K, known.T).solution.T
    free = torch.linalg.svd(K, full_matrices=True).Vh[len(K) :].T  # K x stays as it is along these
    return start + torch.linalg.lstsq(rows.points @ free, (y - start @ rows.points.T).T).solution.T @ free.T
