"""Observations of a decoded sample: posterior sampling in the latent space (PSLD, Rout et al. 2023)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from casal.errors import SettingError, ShapeError
from casal.targets.base import Target
from casal.targets.noise import along, noise_level
from casal.targets.observation import Observation, levels_of
from casal.targets.posterior import Denoiser, Pull


def latent_posterior(
    target: Target,
    decode: Pull,
    encode: Pull,
    matrix: Any,
    values: Any,
    *,
    weight: float = 1.0,
    gluing: float = 0.1,
) -> Target:
    """The same latent model given y = H A(x0) + noise, by guidance on the denoised estimate D(x):

        score_y = score - weight grad |y - H z| - gluing grad |D - E(z + H^+ (y - H z))|,   z = A(D(x)).

    The second term glues: it pulls D towards a fixed point of encode and decode in which the observed part is
    replaced. Without it many latents that decode to the right observation are no codes of anything. Both gradients
    are in x and go through A, E and the network. The norms are not squared, as in the authors' code; what they
    subtract from x' itself is weight / b here, b the gain of the row. Both weights must be tuned. The samples are
    near the observation: ``FinalProjection`` onto ``casal.Affine(H, y)``, behind the decoder, makes them strict.

    Args:
        target: A diffusion or flow target on latents.
        decode: A, (n, *latent) -> (n, *event): a casal decoder, or any differentiable function.
        encode: E, (n, *event) -> (n, *latent). Of a linear decoder: ``lambda z: decoder.pinv(z, latent)``.
        matrix: H, (m, d) on flattened decoded events.
        values: y, (m,).
        weight: Strength >= 0 of the observation.
        gluing: Strength >= 0 of the gluing; 0 leaves DPS in the latent space.

    References:
        Rout et al. (2023), Solving linear inverse problems provably via posterior sampling with latent diffusion
        models, Algorithm 2.

    >>> from casal.targets.edm import edm
    >>> prior = edm(lambda x, s: x / (1 + s**2), [4.0, 1.0], shape=(1,), dtype=torch.float64)
    >>> given = latent_posterior(
    ...     prior, lambda x: x.expand(-1, 2), lambda z: z.mean(1, keepdim=True), [[1.0, 0.0]], [1.0]
    ... )
    >>> float(given.denoise(torch.zeros(1, 1, dtype=torch.float64), 1.0)) > 0
    True
    """
    for value, name in ((weight, "weight"), (gluing, "gluing")):
        if not 0.0 <= value < float("inf"):
            raise SettingError(f"{name} must be finite and >= 0, got {value}")
    levels = levels_of(target)
    given = Observation.of(matrix, values, 1.0)  # the noise only scales the weight
    inverse = torch.linalg.pinv(given.matrix)

    def guidance(clean: Pull, x: Tensor) -> tuple[Tensor, Tensor]:
        """D(x), and the gradient in x of both norms."""
        seen = given.to(x)
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            latent = clean(leaf)
            z = decode(latent)
            gap = seen.gap(z)
            glued = encode(z + (gap @ inverse.to(x).T).reshape(z.shape))
            if glued.shape != latent.shape:
                raise ShapeError(f"encode returned {tuple(glued.shape)} for latents {tuple(latent.shape)}")
            apart = (latent - glued).reshape(len(x), -1)
            cost = weight * torch.linalg.vector_norm(gap, dim=1) + gluing * torch.linalg.vector_norm(apart, dim=1)
            (gradient,) = torch.autograd.grad(cost.sum(), leaf)
        return latent.detach(), gradient

    def score(x: Tensor, t: Tensor) -> Tensor:
        scale, size = levels(t)
        alpha, power = along(scale, x), along(size.square(), x)
        latent, gradient = guidance(lambda leaf: (leaf + power * target.score(leaf, t)) / alpha, x)
        return (alpha * latent - x) / power - gradient

    def given_too(prior: Denoiser) -> Denoiser:
        def denoise(y: Tensor, sigma: Tensor) -> Tensor:
            level = noise_level(sigma, y)
            latent, gradient = guidance(lambda leaf: prior(leaf, level), y)
            return latent - along(level.square(), y) * gradient

        return denoise

    return replace(
        target,
        score=score,
        denoise=None if target.denoise is None else given_too(target.denoise),
        name=f"{target.name} given {len(given.matrix)} decoded observations",
    )
