"""The statistics of the data, kept with the network that was trained on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from casal.errors import SettingError, ShapeError

Per = Literal["coordinate", "channel", "all"]


class Standardise(nn.Module):
    """x = (raw - mean) / scale.

    A network works on standardised x and never calls this itself: it carries the two numbers so that they travel in
    its checkpoint. Identity until ``fit`` is called.

    Attributes:
        mean: (*event).
        scale: (*event), positive.

    Args:
        event: Shape of one point.

    >>> standardise = Standardise((1,))
    >>> standardise.fit(torch.tensor([[1.0], [3.0]])).flatten()
    tensor([-1.,  1.])
    >>> standardise.restore(torch.zeros(1, 1))
    tensor([[2.]])
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, event: Sequence[int]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(tuple(event)))
        self.register_buffer("scale", torch.ones(tuple(event)))

    def fit(self, raw: Tensor, per: Per = "coordinate") -> Tensor:
        """Take mean and standard deviation from ``raw`` (n, *event), and return it standardised.

        Args:
            raw: The data.
            per: One pair of numbers per "coordinate", per "channel" (first event dimension), or one for "all".
        """
        if raw.ndim < 2 or tuple(raw.shape[1:]) != tuple(self.mean.shape):
            raise ShapeError(
                f"data of shape {tuple(raw.shape)} for events {tuple(self.mean.shape)}; expected (n, *event)"
            )
        if per not in ("coordinate", "channel", "all"):
            raise SettingError(f"per must be 'coordinate', 'channel' or 'all', got {per!r}")
        first = {"coordinate": raw.ndim, "channel": 2, "all": 1}[per]
        over = (0, *range(first, raw.ndim))
        mean = raw.double().mean(over, keepdim=True)
        scale = raw.double().sub(mean).square().mean(over, keepdim=True).sqrt()
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        self.mean.copy_(mean[0].expand_as(self.mean))
        self.scale.copy_(scale[0].expand_as(self.scale))
        return self(raw)

    def forward(self, raw: Tensor) -> Tensor:
        """(raw - mean) / scale."""
        return (raw - self.mean) / self.scale

    def restore(self, x: Tensor) -> Tensor:
        """raw = mean + scale x."""
        return self.mean + self.scale * x
