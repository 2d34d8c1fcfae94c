"""Points and networks that several tests share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

N = 20_000
SMALL = (8, 12, 16)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def correlated(n: int = N, d: int = 6, rank: int = 6, seed: int = 0) -> Tensor:
    """Gaussian points with a spectrum that falls from 4, in a subspace if rank < d."""
    generator = torch.Generator().manual_seed(seed)
    directions, _ = torch.linalg.qr(torch.randn(d, d, generator=torch.Generator().manual_seed(99), dtype=torch.float64))
    z = torch.randn(n, rank, generator=generator, dtype=torch.float64) * 2.0 ** (1 - torch.arange(rank))
    return z @ directions[:, :rank].T + torch.arange(d)


def fields(n: int = 400, shape: tuple[int, ...] = (8, 8), seed: int = 0) -> Tensor:
    """Smooth random fields of unit size."""
    x = torch.randn(n, *shape, generator=torch.Generator().manual_seed(seed))
    x = x + x.roll(1, -1) + x.roll(1, -2)
    return x / x.square().mean().sqrt()


def awake(net: nn.Module) -> nn.Module:
    """All weights drawn anew, zeros included."""
    generator = torch.Generator().manual_seed(5)
    for p in net.parameters():
        nn.init.normal_(p, std=0.3, generator=generator)
    return net
