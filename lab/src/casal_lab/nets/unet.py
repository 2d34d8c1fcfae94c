"""A small convolutional network for fields on a grid, told the noise level by modulation (FiLM)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from casal.checks import one_of, whole_number
from casal.errors import SettingError, ShapeError
from casal_lab.nets.events import arguments, noise_range, over_events
from casal_lab.nets.streams import seeded

Padding = Literal["zeros", "circular"]

GROUPS = 8
"""Of the group normalisation; fewer where the channels do not divide."""

LEVEL_WIDTH = 64
"""Numbers that describe the noise level to every block."""


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(math.gcd(GROUPS, channels), channels)


class Block(nn.Module):
    """h -> h + conv(silu((1 + a) norm(conv(silu(norm(h)))) + b)), with (a, b) linear in the noise level's features.

    The second convolution starts at zero: the block starts as the identity.
    """

    def __init__(self, channels: int, padding: Padding) -> None:
        super().__init__()
        self.norm_in, self.norm_mid = _norm(channels), _norm(channels)
        self.conv_in = nn.Conv2d(channels, channels, 3, padding=1, padding_mode=padding)
        self.conv_out = nn.Conv2d(channels, channels, 3, padding=1, padding_mode=padding)
        self.modulate = nn.Linear(LEVEL_WIDTH, 2 * channels)
        for parameter in (*self.conv_out.parameters(), *self.modulate.parameters()):
            nn.init.zeros_(parameter)

    def forward(self, h: Tensor, level: Tensor) -> Tensor:
        """One residual step for h (n, c, height, width) and level features (1 or n, LEVEL_WIDTH)."""
        a, b = self.modulate(level)[:, :, None, None].chunk(2, dim=1)
        inner = self.norm_mid(self.conv_in(functional.silu(self.norm_in(h))))
        out: Tensor = h + self.conv_out(functional.silu((1 + a) * inner + b))
        return out


class UNet(nn.Module):
    """F(h, sigma): fields (n, inputs, height, width) to fields (n, outputs, height, width), zero at the start.

    One residual block on the way down and one on the way up at each resolution; the grid is halved between
    resolutions by averaging and doubled by repetition; what was seen on the way down is added on the way up.

    Args:
        inputs: Channels in.
        outputs: Channels out.
        grid: (height, width), each divisible by 2^(len(widths) - 1).
        widths: Channels at each resolution, finest first.
        padding: "circular" for periodic fields, "zeros" for the others.
        positions: Learned channels joined to the input, so that the network knows where it is; for fields
            that are not periodic.
        sigmas: Noise levels outside this range are described as its nearer end.
        seed: Of the initial weights; the global generator is left alone.

    Reference: Ronneberger, Fischer, Brox 2015 (U-Net); Perez et al. 2018 (FiLM); Wu, He 2018 (group normalisation).
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        grid: Sequence[int],
        *,
        widths: Sequence[int] = (32, 48, 64),
        padding: Padding = "zeros",
        positions: int = 0,
        sigmas: Sequence[float] = (0.01, 3.0),
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.inputs = whole_number(inputs, "inputs", 1)
        self.outputs = whole_number(outputs, "outputs", 1)
        self.grid = tuple(whole_number(size, "each size of the grid", 1) for size in grid)
        self.widths = tuple(whole_number(width, "each width", 1) for width in widths)
        self.positions = whole_number(positions, "positions", 0)
        self.padding = one_of(padding, "padding", ("zeros", "circular"))
        self.sigmas = noise_range(sigmas)
        self.seed = whole_number(seed, "seed", 0)
        factor = 2 ** (len(self.widths) - 1)
        if not self.widths:
            raise SettingError("widths is empty; give the channels of at least one resolution, as in (32, 48, 64)")
        if len(self.grid) != 2 or any(size % factor for size in self.grid):
            raise ShapeError(
                f"grid {self.grid} with {len(self.widths)} resolutions; give two sizes divisible by {factor}, "
                "or fewer widths"
            )
        with seeded(self.seed):
            self._build(self.widths, self.padding)
        for parameter in self.head.parameters():
            nn.init.zeros_(parameter)

    def _build(self, widths: Sequence[int], padding: Padding) -> None:
        pairs = list(itertools.pairwise(widths))
        self.level = nn.Sequential(nn.Linear(1, LEVEL_WIDTH), nn.SiLU(), nn.Linear(LEVEL_WIDTH, LEVEL_WIDTH), nn.SiLU())
        self.position = nn.Parameter(torch.randn(1, self.positions, *self.grid)) if self.positions else None
        self.stem = nn.Conv2d(self.inputs + self.positions, widths[0], 3, padding=1, padding_mode=padding)
        self.down = nn.ModuleList(Block(width, padding) for width in widths)
        self.narrow = nn.ModuleList(nn.Conv2d(fine, coarse, 1) for fine, coarse in pairs)
        self.up = nn.ModuleList(Block(width, padding) for width in widths)
        self.widen = nn.ModuleList(nn.Conv2d(coarse, fine, 1) for fine, coarse in pairs)
        self.norm = _norm(widths[0])
        self.head = nn.Conv2d(widths[0], self.outputs, 3, padding=1, padding_mode=padding)

    @property
    def config(self) -> dict[str, Any]:
        """The arguments that make a network of this shape."""
        return arguments(self, "inputs", "outputs", "grid", "widths", "padding", "positions", "sigmas", "seed")

    def forward(self, h: Tensor, sigma: Tensor | float) -> Tensor:
        """F(h, sigma) for h (n, inputs, height, width), sigma a number or (n,)."""
        if tuple(h.shape[1:]) != (self.inputs, *self.grid):
            raise ShapeError(f"h has shape {tuple(h.shape)}; this network was made for (n, {self.inputs}, {self.grid})")
        low, high = (math.log(end) for end in self.sigmas)
        log = over_events(sigma, h, "sigma").clamp(*self.sigmas).log()
        level = self.level((2 * (log - low) / (high - low) - 1).unsqueeze(1))  # of log sigma, brought to [-1, 1]
        if self.position is not None:
            h = torch.cat([h, self.position.expand(len(h), -1, -1, -1)], dim=1)
        h = self.stem(h)
        seen: list[Tensor] = []
        for depth, block in enumerate(self.down):
            h = block(h, level)
            if depth < len(self.narrow):
                seen.append(h)
                h = self.narrow[depth](functional.avg_pool2d(h, 2))
        for depth in reversed(range(len(self.widths))):
            h = self.up[depth](h, level)
            if depth:
                h = seen.pop() + functional.interpolate(self.widen[depth - 1](h), scale_factor=2.0)
        out: Tensor = self.head(functional.silu(self.norm(h)))
        return out
