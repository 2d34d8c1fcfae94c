"""The 2-D mixture of the project's tests, with the noise that its exact score predicts."""

from __future__ import annotations

import torch
from torch import Tensor

MEANS = torch.tensor([[1.2, 0.0], [-1.5, 1.0], [0.2, -2.2]], dtype=torch.float64)
SPREADS = torch.tensor([0.35, 0.5, 0.3], dtype=torch.float64)
WEIGHTS = torch.tensor([0.6, 0.2, 0.2], dtype=torch.float64)

BETAS = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
ABAR = torch.cumprod(1 - BETAS, dim=0)


def draw(n: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    k = torch.multinomial(WEIGHTS, n, replacement=True, generator=generator)
    return (MEANS[k] + SPREADS[k, None] * torch.randn(n, 2, generator=generator, dtype=torch.float64)).float()


def exact_eps(x: Tensor, t: Tensor) -> Tensor:
    """-sigma_t grad log p_t: under noise each component stays Gaussian, N(alpha m, alpha^2 s^2 + sigma^2)."""
    alpha, sigma = ABAR[int(t)].sqrt(), (1 - ABAR[int(t)]).sqrt()
    variance = (alpha * SPREADS).square() + sigma.square()
    offset = x.double()[:, None] - alpha * MEANS
    share = (WEIGHTS.log() - offset.square().sum(-1) / (2 * variance) - variance.log()).softmax(1)
    return sigma * (share[:, :, None] * offset / variance[:, None]).sum(1)
