"""Samples and weights with fixed seeds."""

from __future__ import annotations

import torch
from torch import Tensor


def normal(n: int, *event: int, seed: int = 0, shift: float = 0.0) -> Tensor:
    drawn = torch.randn((n, *event), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn + shift


def weights(n: int, seed: int = 9) -> Tensor:
    return torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
