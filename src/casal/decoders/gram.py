"""The factorised Gram matrix of a linear decoder: what the implicit coupling and the weighted moves need of A."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from casal.checks import Event


@dataclass(frozen=True)
class Gram:
    """Eigen-decomposition of D^(1/2) A^T A D^(1/2) = U diag(e) U^T, with U left out where it is the identity.

    Attributes:
        root: D^(1/2), a number or of the shape of a latent event.
        eigenvalues: e; flat (d,) if there is a basis, else broadcastable to a latent event.
        basis: U (d, d) or None.
        unit: Whether D is one, so that nothing need be scaled.
    """

    root: Tensor
    eigenvalues: Tensor
    basis: Tensor | None
    unit: bool = field(default=False, kw_only=True)

    def solve(self, v: Tensor, strength: Tensor) -> Tensor:
        """(I + strength D A^T A)^-1 v."""
        factor = 1.0 / (1.0 + strength * self.eigenvalues)
        if self.basis is None:
            return factor * v
        turned = (v / self.root).reshape(len(v), -1) @ self.basis
        return self.root * ((turned * factor) @ self.basis.T).reshape(v.shape)

    def whiten(self, v: Tensor) -> Tensor:
        """U^T D^(1/2) v: a gradient in the coordinates in which D and A^T A are diagonal; flat if there is a U."""
        scaled = v if self.unit else self.root * v
        return scaled if self.basis is None else scaled.reshape(len(v), -1) @ self.basis

    def unwhiten(self, y: Tensor) -> Tensor:
        """D^(1/2) U y: a displacement back in the coordinates of x (flat if there is a U and D is a number)."""
        if self.basis is None:
            return y if self.unit else self.root * y
        return self.root.reshape(-1) * (y @ self.basis.T)


@dataclass(frozen=True)
class ThinGram(Gram):
    """The same for a matrix of few rows r: U = [B, R], of which only B (d, r) is stored, so that a solve costs O(d r).

    The other columns of U are those of a reflection: with Q = I - 2 H H^T, H (d, r), whose first r columns span the
    range of B, R holds the last d - r columns of Q, all with the eigenvalue 0.

    Attributes:
        root: D^(1/2), a number or of the shape of a latent event.
        eigenvalues: e (d,): r numbers, then zeros.
        basis: B (d, r), the eigenvectors of the first r eigenvalues.
        reflector: H (d, r).
    """

    basis: Tensor
    reflector: Tensor

    def solve(self, v: Tensor, strength: Tensor) -> Tensor:
        """v + D^(1/2) B diag(1/(1 + strength e) - 1) B^T D^(-1/2) v (Woodbury)."""
        rank = self.basis.shape[1]
        change = 1.0 / (1.0 + strength * self.eigenvalues[:rank]) - 1.0
        turned = (v / self.root).reshape(len(v), -1) @ self.basis
        return v + self.root * ((turned * change) @ self.basis.T).reshape(v.shape)

    def whiten(self, v: Tensor) -> Tensor:
        rank, scaled = self.basis.shape[1], (self.root * v).reshape(len(v), -1)
        rest = scaled[:, rank:] - 2.0 * (scaled @ self.reflector) @ self.reflector[rank:].T
        return torch.cat([scaled @ self.basis, rest], dim=1)

    def unwhiten(self, y: Tensor) -> Tensor:
        rank = self.basis.shape[1]
        rest = y[:, rank:]
        mirrored = torch.nn.functional.pad(rest, (rank, 0)) - 2.0 * (rest @ self.reflector[rank:]) @ self.reflector.T
        return self.root.reshape(-1) * (y[:, :rank] @ self.basis.T + mirrored)


def gram_of(matrix: Tensor, latent: Event, preconditioner: Tensor | None, like: Tensor) -> Gram:
    """Factorise D^(1/2) A^T A D^(1/2) for a dense A (k, d), in float64 inside.

    Without a basis if A^T A is diagonal to rounding, thin if 3 k <= d, where it is cheaper, else by ``eigh``.
    """
    one = torch.ones((), dtype=like.dtype, device=like.device)
    root = one if preconditioner is None else preconditioner.expand(latent).sqrt()
    wide = matrix.to(torch.float64) * root.expand(latent).reshape(-1).to(torch.float64)
    rows, columns = wide.shape
    if 3 * rows <= columns:
        return _thin(wide, root, like)
    square = wide.T @ wide
    diagonal = square.diagonal()
    rounding = max(rows, columns) * torch.finfo(torch.float64).eps * diagonal.max()
    if bool(((square - torch.diag(diagonal)).abs() <= rounding).all()):
        return Gram(root=root, eigenvalues=diagonal.reshape(latent).to(like), basis=None)
    values, basis = torch.linalg.eigh(square)
    return Gram(root=root, eigenvalues=values.clamp_min(0.0).to(like), basis=basis.to(like))


def _thin(wide: Tensor, root: Tensor, like: Tensor) -> ThinGram:
    """From the singular values of D^(1/2) A^T = B diag(s) V^T, e = s^2.

    If B_1 = L c R^T is the upper square of B, then B G with G = -R L^T has the symmetric upper square -L c L^T, and
    W = E - B G (E: the first r columns of I) has W^T W = 2 L (1 + c) L^T, far from singular. The reflection that
    takes E to B G is I - 2 H H^T with H = W L (2 (1 + c))^(-1/2).
    """
    basis, singular, _ = torch.linalg.svd(wide.T, full_matrices=False)
    rank = basis.shape[1]
    left, cosines, right = torch.linalg.svd(basis[:rank])
    turned = basis @ -(left @ right).T
    turned[:rank].diagonal().sub_(1.0)
    reflector = -(turned @ left) / (2.0 * (1.0 + cosines)).sqrt()
    values = torch.nn.functional.pad(singular.square(), (0, len(basis) - rank))
    return ThinGram(root=root, eigenvalues=values.to(like), basis=basis.to(like), reflector=reflector.to(like))
