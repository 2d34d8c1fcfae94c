"""What is observed of the clean sample, and the noise levels at which a model can be told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from casal.errors import InfeasibleSet, SettingError, ShapeError
from casal.targets.base import Target

DEPENDENT = 1e-12
"""Share of the largest singular value below which exact rows count as dependent, times their number."""


@dataclass(frozen=True)
class Observation:
    """y = H x0 + N(0, R).

    Attributes:
        matrix: H, (m, d) on flattened events.
        values: y, (m,), or (n, m) with one row a chain.
        noise: Standard deviation of the noise (m,); 0 for rows that hold exactly.
    """

    matrix: Tensor
    values: Tensor
    noise: Tensor

    @classmethod
    def of(cls, matrix: Any, values: Any, noise: Any) -> Observation:
        """Check and convert; exact rows become orthonormal ones that say the same."""
        H = torch.as_tensor(matrix, dtype=torch.float64)
        y, r = torch.as_tensor(values, dtype=torch.float64), torch.as_tensor(noise, dtype=torch.float64)
        if H.ndim != 2 or y.shape[-1:] != H.shape[:1] or y.ndim > 2 or r.shape not in ((), H.shape[:1]):
            raise ShapeError(f"H {tuple(H.shape)}, y {tuple(y.shape)} and noise {tuple(r.shape)} do not fit together")
        if not bool((r >= 0).all()) or not bool(torch.isfinite(r).all()):
            raise SettingError(f"noise must be finite and >= 0 (0 for exact observations), got {r.tolist()}")
        r = r.expand(len(H))
        if bool((r > 0).all()):
            return cls(H, y, r)
        rows, level = _independent(H[r == 0], y[..., r == 0])
        noisy = r > 0
        return cls(
            torch.cat([rows, H[noisy]]),
            torch.cat([level, y[..., noisy]], -1),
            torch.cat([r.new_zeros(len(rows)), r[noisy]]),
        )

    def to(self, like: Tensor) -> Observation:
        """The same in the dtype and on the device of ``like``."""
        return Observation(self.matrix.to(like), self.values.to(like), self.noise.to(like))

    def gap(self, clean: Tensor) -> Tensor:
        """y - H x, (n, m)."""
        flat = clean.reshape(len(clean), -1)
        if flat.shape[1] != self.matrix.shape[1]:
            raise ShapeError(
                f"H has {self.matrix.shape[1]} columns, events {tuple(clean.shape[1:])} have {flat.shape[1]}"
            )
        return self.values - flat @ self.matrix.T


def levels_of(target: Target) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """t -> (alpha, sigma) of the nearest row, for a time or one time a chain."""
    table = target.table
    if table.alpha is None or table.sigma is None:
        raise SettingError(
            f"{target.name} has no noise levels; add the gradient of the likelihood to its score instead"
        )
    alphas, sigmas, times = table.alpha, table.sigma, table.t

    def levels(t: Tensor) -> tuple[Tensor, Tensor]:
        row = (times - t.to(times)[..., None]).abs().argmin(-1)
        return alphas[row], sigmas[row]

    return levels


def _independent(H: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Orthonormal rows and their values that say the same as H x = y."""
    lengths = torch.linalg.vector_norm(H, dim=1)
    lengths = torch.where(lengths > 0, lengths, 1.0)
    H, y = H / lengths[:, None], y / lengths
    u, s, vh = torch.linalg.svd(H, full_matrices=False)
    kept = s > DEPENDENT * max(H.shape) * s.max()
    level = (y @ u[:, kept]) / s[kept]
    worst = float((y - (level * s[kept]) @ u[:, kept].T).abs().max())
    if worst > 1e-9 * (1.0 + float(y.abs().max())):
        raise InfeasibleSet(
            f"the exact observations contradict each other: least-squares residual {worst:.3g} (rows of length one); "
            "give some of them noise > 0"
        )
    return vh[kept], level
