"""A small noise-conditional score network for vectors (NCSN): one network for all noise levels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from casal.checks import event_shape, positive
from casal_lab.nets.events import arguments, beside, noise_range, over_events
from casal_lab.nets.mlp import MLP


class NoiseConditionalMLP(nn.Module):
    """D(y, sigma) = (size^2 y + sigma size sqrt(size^2 + sigma^2) F) / (size^2 + sigma^2), F an ``MLP``:

        F = F(y / sqrt(size^2 + sigma^2), time),   time = log(sigma / low) / log(high / low)

    the mean of x given y = x + sigma noise, and with it the score of y (Tweedie), which ``score`` returns:

        score(y, sigma) = (D(y, sigma) - y) / sigma^2.

    ``train_denoiser`` trains it, which is denoising score matching with a weight for each noise level.

    Args:
        event: Shape of one point; treated as one vector.
        sigmas: The range of noise levels, low and high.
        size: Root mean square of the data.
        width: Neurons of a hidden layer.
        depth: Hidden layers.
        features: Cosine features of the time.
        seed: Of the initial weights.

    References:
        Song and Ermon (2019), Generative modeling by estimating gradients of the data distribution; the scaling of
        input and output is that of Karras et al. (2022).
    """

    def __init__(
        self,
        event: int | Sequence[int],
        *,
        sigmas: Sequence[float] = (0.05, 10.0),
        size: float = 1.0,
        width: int = 32,
        depth: int = 3,
        features: int = 8,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.event, self.size = event_shape(event), positive(size, "size")
        self.sigmas = noise_range(sigmas)
        self.width, self.depth, self.features, self.seed = width, depth, features, seed
        self.inner = MLP(self.event, width=width, depth=depth, features=features, horizon=1.0, seed=seed)

    @property
    def config(self) -> dict[str, Any]:
        """The arguments that make a network of this shape."""
        return arguments(self, "event", "sigmas", "size", "width", "depth", "features", "seed")

    def forward(self, y: Tensor, sigma: Tensor | float) -> Tensor:
        """D(y, sigma) for y (n, *event), sigma a number or (n,)."""
        level, (low, high) = over_events(sigma, y, "sigma"), self.sigmas
        time = (level / low).log() / math.log(high / low)
        at = beside(level, y)
        total = self.size**2 + at.square()
        says: Tensor = self.inner(y / total.sqrt(), time)
        return (self.size**2 * y + at * self.size * total.sqrt() * says) / total

    def score(self, y: Tensor, sigma: Tensor | float) -> Tensor:
        """The gradient of log p(y; sigma)."""
        at = beside(over_events(sigma, y, "sigma"), y)
        return (self(y, sigma) - y) / at.square()
