"""A UNet of diffusers that is trained in seconds, and the fields that it learns."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Generator, Tensor

import casal

SIZE = 8
"""Pixels of a side."""

UPDATES, DATA, BATCH, LEVELS = 500, 8000, 64, 100
"""Of the training: updates, fields, fields of an update, noise levels."""


def fields(n: int, seed: int) -> Tensor:
    """Smooth positive fields with some texture: (n, 1, 8, 8)."""
    white = torch.randn(2, n, SIZE, SIZE, generator=Generator().manual_seed(seed))
    k = torch.fft.fftfreq(SIZE, 1 / SIZE)
    gain = torch.exp(-(k[:, None] ** 2 + k**2) / 2.88)
    smooth = torch.fft.ifft2(gain * torch.fft.fft2(white[0])).real
    smooth = smooth / gain.square().mean().sqrt()
    return torch.exp(0.45 * smooth + 0.22 * white[1])[:, None]


@cache
def trained() -> tuple[Any, Any, casal.Standardise]:
    """The network, its scheduler, and the units of the fields."""
    diffusers: Any = import_module("diffusers")  # takes seconds to import, and only this problem needs it
    data = fields(DATA, seed=0)
    mean, std = data.mean(), data.std()
    torch.manual_seed(0)
    unet = diffusers.UNet2DModel(
        SIZE,
        in_channels=1,
        out_channels=1,
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=4,
        down_block_types=["DownBlock2D"] * 2,
        up_block_types=["UpBlock2D"] * 2,
        add_attention=False,
    )
    scheduler = diffusers.DDPMScheduler(LEVELS, beta_start=0.01, beta_end=0.2, clip_sample=False)
    optimizer = torch.optim.Adam(unet.parameters(), lr=4e-3)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, UPDATES)
    for _ in range(UPDATES):
        x = (data[torch.randint(DATA, (BATCH,))] - mean) / std
        noise, t = torch.randn_like(x), torch.randint(LEVELS, (BATCH,))
        found = unet(scheduler.add_noise(x, noise, t), t).sample
        optimizer.zero_grad()
        (found - noise).square().mean().backward()
        optimizer.step()
        decay.step()
    units = casal.Standardise(mean, std)
    return unet.requires_grad_(False).eval(), scheduler, units
