"""Noisy observations of the clean sample, added to the score of a diffusion or flow model.

Observed is y = H x0 + noise of covariance R. Given the noisy state x = alpha x0 + sigma noise, with u = x / alpha and
s = sigma / alpha, the model knows the mean D(u) of x0 and, through the derivative of D, its covariance V = s^2 dD/du.
If x0 were Gaussian given x, its mean given y too would be

    D_y = D + V H^T (H V H^T + R)^-1 (y - H D),

and the score of the posterior is (alpha D_y - x) / sigma^2. The ways differ in what stands for V:

- "moment": V itself, by vector-Jacobian products and conjugate gradients (MMPS, Rozet et al. 2024). Exact for a
  Gaussian prior.
- "pigdm": V = r^2 I inside the bracket, r^2 = s^2 / (1 + s^2) for data of unit variance, V itself outside (Song et
  al. 2023).
- "dps": the bracket is |y - H D| / weight (Chung et al. 2023); the weight must be tuned.
- "flat": V = s^2 I everywhere, without derivatives of the network: cheap, too sure of itself early on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from casal.errors import SettingError, ShapeError, whole_number
from casal.targets.base import Target

WAYS = ("moment", "pigdm", "dps", "flat")
Pull = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Observation:
    """y = H x0 + N(0, R).

    Attributes:
        matrix: H, (m, d) on flattened events.
        values: y, (m,), or (n, m) with one row a chain.
        noise: Standard deviation of the noise: a number, or (m,).
    """

    matrix: Tensor
    values: Tensor
    noise: Tensor

    @classmethod
    def of(cls, matrix: Any, values: Any, noise: Any) -> Observation:
        """Check and convert."""
        H = torch.as_tensor(matrix, dtype=torch.float64)
        y, r = torch.as_tensor(values, dtype=torch.float64), torch.as_tensor(noise, dtype=torch.float64)
        if H.ndim != 2 or y.shape[-1:] != H.shape[:1] or r.shape not in ((), H.shape[:1]):
            raise ShapeError(f"H {tuple(H.shape)}, y {tuple(y.shape)} and noise {tuple(r.shape)} do not fit together")
        if not bool((r > 0).all()):
            raise SettingError("noise must be > 0; an exact observation is a constraint: casal.Affine(H, y)")
        return cls(H, y, r.expand(len(H)))

    def to(self, like: Tensor) -> Observation:
        """The same in the dtype and on the device of ``like``."""
        return Observation(self.matrix.to(like), self.values.to(like), self.noise.to(like))


def posterior(
    target: Target,
    matrix: Any,
    values: Any,
    noise: Any,
    *,
    way: str = "moment",
    iterations: int = 5,
    weight: float = 1.0,
) -> Target:
    """The same model given y = H x0 + N(0, noise^2); see the top of this file.

    Args:
        target: A diffusion or flow target.
        matrix: H, (m, d).
        values: y, (m,).
        noise: Standard deviation of the observation noise.
        way: "moment", "pigdm", "dps" or "flat".
        iterations: Conjugate gradient steps of "moment"; m of them are exact.
        weight: Size of the step of "dps".
    """
    if way not in WAYS:
        raise SettingError(f"way must be one of {WAYS}, got {way!r}")
    iterations = whole_number(iterations, "iterations", 1)
    table = target.table
    if table.alpha is None or table.sigma is None:
        raise SettingError(
            f"{target.name} has no noise levels; add the gradient of the likelihood to its score instead"
        )
    alphas, sigmas, times = table.alpha, table.sigma, table.t
    given = Observation.of(matrix, values, noise)

    def score(x: Tensor, t: Tensor) -> Tensor:
        row = int((times - t.to(times)).abs().argmin())
        alpha, sigma = float(alphas[row]), float(sigmas[row])
        seen = given.to(x)
        if way == "flat":
            mean = (x + sigma**2 * target.score(x, t)) / alpha
            return (alpha * (mean + _shift_flat(mean, seen, (sigma / alpha) ** 2)) - x) / sigma**2
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            mean = (leaf + sigma**2 * target.score(leaf, t)) / alpha

            def spread(v: Tensor) -> Tensor:
                """V v = s^2 (dD/du)^T v = sigma^2 / alpha (dD/dx)^T v."""
                (pulled,) = torch.autograd.grad(mean, leaf, v.reshape(mean.shape), retain_graph=True)
                return (sigma**2 / alpha) * pulled.reshape(len(x), -1)

            shift = _shift(way, mean.detach(), seen, spread, (sigma / alpha) ** 2, iterations, weight)
        return (alpha * (mean.detach() + shift) - x) / sigma**2

    return replace(target, score=score, denoise=None, name=f"{target.name} given {len(given.matrix)} observations")


def _gap(mean: Tensor, seen: Observation) -> Tensor:
    return seen.values - mean.reshape(len(mean), -1) @ seen.matrix.T


def _shift_flat(mean: Tensor, seen: Observation, variance: float) -> Tensor:
    """s^2 H^T (s^2 H H^T + R)^-1 (y - H D)."""
    return (variance * _solved(_gap(mean, seen), seen, variance) @ seen.matrix).reshape(mean.shape)


def _solved(gap: Tensor, seen: Observation, variance: float) -> Tensor:
    system = variance * seen.matrix @ seen.matrix.T + torch.diag(seen.noise.square())
    return torch.linalg.solve(system, gap.T).T


def _shift(
    way: str, mean: Tensor, seen: Observation, spread: Pull, variance: float, iterations: int, weight: float
) -> Tensor:
    """V H^T times what stands for (H V H^T + R)^-1 (y - H D)."""
    gap = _gap(mean, seen)
    if way == "moment":
        solved = _conjugate_gradients(
            gap, lambda v: spread(v @ seen.matrix) @ seen.matrix.T + seen.noise.square() * v, iterations
        )
    elif way == "pigdm":
        solved = _solved(gap, seen, variance / (1.0 + variance))
    else:
        solved = weight * gap / torch.linalg.vector_norm(gap, dim=1, keepdim=True).clamp_min(1e-12)
    return spread(solved @ seen.matrix).reshape(mean.shape)


def _conjugate_gradients(right: Tensor, apply: Pull, iterations: int) -> Tensor:
    """Solve apply(v) = right chain by chain; a chain that is done no longer moves."""
    v, residual = torch.zeros_like(right), right
    direction, size = residual, residual.square().sum(1, keepdim=True)
    floor = 1e-28 * size + torch.finfo(right.dtype).tiny
    for _ in range(iterations):
        image = apply(direction)
        curvature = (direction * image).sum(1, keepdim=True)
        step = torch.where(
            (size > floor) & (curvature > 0), size / curvature.clamp_min(torch.finfo(right.dtype).tiny), 0.0
        )
        v, residual = v + step * direction, residual - step * image
        new = residual.square().sum(1, keepdim=True)
        direction = (
            residual + torch.where(size > floor, new / size.clamp_min(torch.finfo(right.dtype).tiny), 0.0) * direction
        )
        size = new
    return v
