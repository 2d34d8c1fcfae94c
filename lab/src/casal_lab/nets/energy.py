"""A small energy-based model: a network that is an energy, trained by noise-contrastive estimation."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from casal.checks import event_shape, positive, whole_number
from casal_lab.nets.events import arguments, check_event
from casal_lab.nets.streams import seeded


class EnergyMLP(nn.Module):
    """f(x) = |x|^2 / (2 spread^2) - g(x), g a few dense layers: the energy of p(x) = exp(-f(x)) / Z.

    The first term is the energy of the reference N(0, spread^2 I), so that p has its tails and g = log p / reference.

    Args:
        event: Shape of one point; treated as one vector.
        spread: Standard deviation of the reference, larger than that of the data.
        width: Neurons of a hidden layer.
        depth: Hidden layers.
        seed: Of the initial weights.
    """

    def __init__(
        self, event: int | Sequence[int], *, spread: float = 2.0, width: int = 32, depth: int = 3, seed: int = 0
    ) -> None:
        super().__init__()
        self.event, self.spread = event_shape(event), positive(spread, "spread")
        self.width, self.depth = whole_number(width, "width", 1), whole_number(depth, "depth", 1)
        self.seed = whole_number(seed, "seed", 0)
        layers: list[nn.Module] = []
        with seeded(self.seed):
            for before, after in itertools.pairwise([torch.Size(self.event).numel()] + [self.width] * self.depth):
                layers += [nn.Linear(before, after), nn.SiLU()]
            self.log_ratio = nn.Sequential(*layers, nn.Linear(self.width, 1))

    @property
    def config(self) -> dict[str, Any]:
        """The arguments that make a network of this shape."""
        return arguments(self, "event", "spread", "width", "depth", "seed")

    def ratio(self, x: Tensor) -> Tensor:
        """g(x) = log p(x) - log reference(x) + constant, (n,)."""
        check_event(x, self.event)
        weights = next(self.parameters())
        out: Tensor = self.log_ratio(x.flatten(1).to(weights.dtype)).squeeze(1)
        return out.to(x.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """f(x), (n,)."""
        return x.flatten(1).square().sum(1) / (2 * self.spread**2) - self.ratio(x)


def train_energy(
    net: EnergyMLP,
    data: Tensor,
    *,
    iterations: int,
    batch_size: int = 1024,
    learning_rate: float = 3e-3,
    seed: int = 0,
) -> list[float]:
    """min over g of  E_data log(1 + exp(-g(x))) + E_reference log(1 + exp(g(y))): tell data from the reference.

    The minimum is g = log p / reference, with its constant. Unlike score matching at a small noise it sees how much
    weight each of several separate modes has. Returns the loss of every iteration; the learning rate falls as a cosine.

    Reference: Gutmann and Hyvarinen (2010), Noise-contrastive estimation.
    """
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(net.parameters(), lr=learning_rate)
    pace = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, iterations)
    history = []
    net.train()
    for _ in range(whole_number(iterations, "iterations", 1)):
        x = data[torch.randint(len(data), (batch_size,), generator=generator)]
        y = net.spread * torch.randn((batch_size, *net.event), generator=generator)
        loss = softplus(-net.ratio(x)).mean() + softplus(net.ratio(y)).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        pace.step()
        history.append(float(loss.detach()))
    net.eval()
    return history
