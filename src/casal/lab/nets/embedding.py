"""The time as a network sees it."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def cosine_features(t: Tensor, features: int = 32, horizon: float = 1000.0) -> Tensor:
    """phi_k(t) = cos(pi k t / horizon), k = 1 .. features: the cosine basis of [0, horizon].

    Args:
        t: Times, any shape, floating.
        features: How many.
        horizon: Length of the time axis: the number of steps of a DDPM, 1 for a model in continuous time.

    Returns:
        (*t.shape, features) of the dtype of ``t``.

    >>> cosine_features(torch.tensor([0.0, 500.0]), features=2)
    tensor([[ 1.0000e+00,  1.0000e+00],
            [-4.3711e-08, -1.0000e+00]])
    """
    k = torch.arange(1, features + 1, dtype=t.dtype, device=t.device)
    return torch.cos((t / horizon).unsqueeze(-1) * (math.pi * k))
