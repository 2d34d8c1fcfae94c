"""Linear equations that are taken into the model: the model of x0 given A x0 = y.

For a Gaussian model the derivative J of the denoiser D is the same everywhere, and so is C = s^2 J, the covariance of
x0 given the noisy point. Then the denoiser of the model given A x0 = y is known exactly,

    D_y = D + K^T (y - A D),    K = (A J A^T)^-1 A J,

for all particles with the same K. Whatever else is looked at is looked at through D_y, and the linear rows need no look
and no weight of their own. The products A J are taken at one particle per row: two evaluations for every row and level,
whatever the number of particles.

A model that is not Gaussian is refused. Its rows of A J, each from another particle, make a matrix A J A^T that is not
symmetric, or its A D is not linear in x.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from casal.errors import SettingError
from casal.methods.problem import Problem

DEPENDENT = 1e-10
"""Share of the largest variance of A x0 below which a direction counts as known."""

ROUNDING = 0.4
"""A denoiser is linear up to eps^ROUNDING of its size: 5e-7 in float64, 2e-3 in float32."""


def straight(miss: float, dtype: torch.dtype) -> bool:
    """Whether a denoiser that misses a linear one by a share ``miss`` of its size is linear, up to rounding."""
    return miss <= torch.finfo(dtype).eps ** ROUNDING


@dataclass(frozen=True)
class Given:
    """A x0 = y.

    Attributes:
        matrix: A (k, d), float64.
        level: y (k,), or one row per chain (n, k).
    """

    matrix: Tensor
    level: Tensor

    @property
    def count(self) -> int:
        """Number of equations."""
        return len(self.matrix)

    def shift(self, problem: Problem, x: Tensor, clean: Tensor, s: float) -> Tensor:
        """K^T (y - A D), (n, *latent), for the estimates D of points x (n, *latent); differentiable in D."""
        return self._shift(self._gain(problem, x, clean.detach(), s), clean)

    def start(self, problem: Problem, x: Tensor, s: float) -> Tensor:
        """The same for the estimate of a point at zero, at the level s of starting points x: E[x0 | y] - E[x0]."""
        clean, zero = problem.denoise(x, s), problem.denoise(torch.zeros_like(x), s)
        return self._shift(self._gain(problem, x, clean, s), zero)

    def _shift(self, gain: Tensor, clean: Tensor) -> Tensor:
        seen = clean.flatten(1).to(torch.float64) @ self.matrix.T
        return ((self.level.to(seen) - seen) @ gain).reshape(clean.shape).to(clean.dtype)

    def _gain(self, problem: Problem, x: Tensor, clean: Tensor, s: float) -> Tensor:
        """K, (k, d); x and their estimates say whether D is linear."""
        some = torch.arange(self.count, device=x.device) % len(x)
        with torch.enable_grad():
            leaf = x.detach()[some].requires_grad_()
            out = problem.denoise(leaf, s)
            right = self.matrix.reshape(out.shape).to(out.dtype)
            (pulled,) = torch.autograd.grad(out, leaf, right)
        problem.usage.add_scores(self.count)
        rows = pulled.flatten(1).to(torch.float64)  # A J
        spread = rows @ self.matrix.T
        size = torch.linalg.matrix_norm(spread)
        points, seen = (v.detach().flatten(1).to(torch.float64) for v in (x, clean))
        moved, seen = (points - points.mean(0)) @ rows.T, (seen - seen.mean(0)) @ self.matrix.T
        tiny = torch.finfo(moved.dtype).tiny
        bent = torch.linalg.matrix_norm(seen - moved) / torch.linalg.matrix_norm(moved).clamp_min(tiny)
        off = max(float(torch.linalg.matrix_norm(spread - spread.T) / (2.0 * size)), float(bent))
        if not straight(off, x.dtype):
            raise SettingError(
                f"{problem.target.name} is not Gaussian: at the noise level {s:.3g} its denoiser differs from "
                f"a linear one by {off:.2g} of its size in the directions of the equations, and "
                "LookAhead(gaussian=True) is "
                "exact for Gaussian models only; use gaussian=False"
            )
        return torch.linalg.pinv((spread + spread.T) / 2, rtol=DEPENDENT, hermitian=True) @ rows
