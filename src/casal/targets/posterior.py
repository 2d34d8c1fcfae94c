"""Observations of the clean sample, with or without noise, added to the score of a diffusion or flow model.

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

R = 0 is the limit of an exact observation H x0 = y: with "moment" and a Gaussian prior its law is kriging's. H D_y = y
then holds up to the accuracy of the solve; ``FinalProjection`` onto ``casal.Affine(H, y)`` makes it hold to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from casal.checks import whole_number
from casal.errors import SettingError
from casal.targets.base import Target
from casal.targets.noise import along, noise_level, one_of
from casal.targets.observation import Observation, levels_of

WAYS = ("moment", "pigdm", "dps", "flat")
Pull = Callable[[Tensor], Tensor]
Denoiser = Callable[[Tensor, Tensor], Tensor]

LEAST = 1e-12
"""Noise levels below this count as this much, so that sigma = 0 is its own limit."""


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

    One evaluation of the score is one of the network and, except for "flat", one or (for "moment") iterations + 1
    backward passes through it; the cost of a run counts the former. The network must be differentiable in x: one that
    is called under ``no_grad`` or detaches what it returns passes for a constant, and its V is wrong.

    Args:
        target: A diffusion or flow target. (The first step of a flow, taken by its ``init``, sees no observation.)
        matrix: H, (m, d).
        values: y, (m,).
        noise: Standard deviation of the observation noise, a number or (m,); 0 where an observation is exact.
        way: "moment", "pigdm", "dps" or "flat".
        iterations: Conjugate gradient steps of "moment"; m of them are exact.
        weight: Size of the step of "dps".

    >>> from casal.targets.edm import edm
    >>> prior = edm(lambda x, s: x / (1 + s**2), [4.0, 1.0], shape=(2,), dtype=torch.float64)
    >>> given = posterior(prior, [[1.0, 1.0]], [1.0], 0.0)
    >>> given.denoise(torch.zeros(1, 2, dtype=torch.float64), 1.0)
    tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """
    one_of(way, "way", WAYS)
    iterations = whole_number(iterations, "iterations", 1)
    levels = levels_of(target)
    given = Observation.of(matrix, values, noise)

    def moved(clean: Pull, x: Tensor, scale: Tensor, level: Tensor) -> Tensor:
        """D_y from x -> D, where u = x / scale."""
        seen, variance = given.to(x), level.clamp_min(LEAST).square()
        if way == "flat":
            mean, solved = clean(x), _bracket(seen, variance, torch.ones_like(variance))
            return mean + (solved(seen.gap(mean)) @ seen.matrix).reshape(mean.shape)
        whole = torch.is_grad_enabled() and x.requires_grad  # somebody differentiates the posterior itself, as DPS does
        with torch.enable_grad():
            leaf = x if whole else x.detach().requires_grad_()
            mean = clean(leaf)
            if not mean.requires_grad:
                raise SettingError(f"autograd cannot see through {target.name}; call it without no_grad, or way='flat'")

            def slope(v: Tensor) -> Tensor:
                """(dD/du)^T v = V v / s^2."""
                right = v.reshape(mean.shape)
                (pulled,) = torch.autograd.grad(mean, leaf, right, retain_graph=True, create_graph=whole)
                return (along(scale, x) * pulled).reshape(len(x), -1)

            known = mean if whole else mean.detach()
            shift = _shift(way, seen.gap(known), seen, slope, variance, iterations, weight)
        return known + shift.reshape(mean.shape)

    def score(x: Tensor, t: Tensor) -> Tensor:
        scale, size = levels(t)
        alpha, power = along(scale, x), along(size.square(), x)
        clean = moved(lambda leaf: (leaf + power * target.score(leaf, t)) / alpha, x, scale, size / scale)
        return (alpha * clean - x) / power

    def given_too(prior: Denoiser) -> Denoiser:
        def denoise(y: Tensor, sigma: Tensor) -> Tensor:
            level = noise_level(sigma, y)
            return moved(lambda leaf: prior(leaf, level), y, torch.ones_like(level), level)

        return denoise

    return replace(
        target,
        score=score,
        denoise=None if target.denoise is None else given_too(target.denoise),
        name=f"{target.name} given {len(given.matrix)} observations",
    )


def _bracket(seen: Observation, variance: Tensor, share: Tensor) -> Pull:
    """g -> (share H H^T + R / s^2)^-1 g, in float64 inside; for one s, or one a chain."""
    H = seen.matrix.to(torch.float64)
    share, at = (value.to(H)[..., None, None] for value in (share, variance))
    root = torch.linalg.cholesky(share * (H @ H.T) + torch.diag(seen.noise.to(H).square()) / at)
    if variance.ndim == 0:
        return lambda g: torch.cholesky_solve(g.to(H).T, root).T.to(g.dtype)
    return lambda g: torch.cholesky_solve(g.to(H)[..., None], root)[..., 0].to(g.dtype)


def _shift(
    way: str, gap: Tensor, seen: Observation, slope: Pull, variance: Tensor, iterations: int, weight: float
) -> Tensor:
    """V H^T times what stands for (H V H^T + R)^-1 (y - H D), all in units of s^2."""
    if way == "dps":
        length = torch.linalg.vector_norm(gap, dim=1, keepdim=True).clamp_min(1e-12)
        return weight * along(variance, gap) * slope(gap / length @ seen.matrix)
    solved = _bracket(seen, variance, 1.0 / (1.0 + variance))
    if way == "pigdm":
        return slope(solved(gap) @ seen.matrix)
    ratio = seen.noise.square() / along(variance, gap)
    if len(seen.matrix) == 1:  # the system is a number: one backward pass instead of two
        pulled = slope(seen.matrix.expand(len(gap), -1))
        return pulled * (gap / ((pulled @ seen.matrix.T).clamp_min(LEAST) + ratio))

    def system(v: Tensor) -> Tensor:
        return slope(v @ seen.matrix) @ seen.matrix.T + ratio * v

    return slope(_conjugate_gradients(gap, system, solved, iterations) @ seen.matrix)


def _conjugate_gradients(right: Tensor, apply: Pull, precondition: Pull, iterations: int) -> Tensor:
    """Solve apply(v) = right chain by chain; a chain that is done no longer moves."""
    tiny = torch.finfo(right.dtype).tiny
    v, residual = torch.zeros_like(right), right
    direction = precondition(residual)
    size = (residual * direction).sum(1, keepdim=True)
    floor = (32 * torch.finfo(right.dtype).eps) ** 2 * size + tiny
    for _ in range(iterations):
        image = apply(direction)
        curvature = (direction * image).sum(1, keepdim=True)
        going = (size > floor) & (curvature > 0)
        step = torch.where(going, size / curvature.clamp_min(tiny), 0.0)
        v, residual = v + step * direction, residual - step * image
        eased = precondition(residual)
        new = (residual * eased).sum(1, keepdim=True)
        direction = eased + torch.where(going, new / size.clamp_min(tiny), 0.0) * direction
        size = new
    return v
