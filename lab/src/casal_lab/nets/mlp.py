"""The paper's network: a few dense layers that see x and the time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from casal.checks import event_shape, positive, whole_number
from casal_lab.nets.events import Standardise, arguments, check_event, over_events
from casal_lab.nets.streams import seeded


def cosine_features(t: Tensor, features: int = 32, horizon: float = 1000.0) -> Tensor:
    """phi_k(t) = cos(pi k t / horizon), k = 1 .. features: the cosine basis of [0, horizon], (*t.shape, features).

    >>> cosine_features(torch.tensor([0.0, 500.0]), features=2)
    tensor([[ 1.0000e+00,  1.0000e+00],
            [-4.3711e-08, -1.0000e+00]])
    """
    k = torch.arange(1, features + 1, dtype=t.dtype, device=t.device)
    return torch.cos((t / horizon).unsqueeze(-1) * (math.pi * k))


class MLP(nn.Module):
    """eps(x, t) = W_L h_{L-1} + b_L,  h_0 = [x, phi(t)],  h_l = silu(W_l h_{l-1} + b_l).

    ``depth`` hidden layers of ``width``; the last layer starts at zero, so the untrained network says 0. It computes
    in the dtype of its weights and answers in the dtype of x. ``standardise`` holds statistics of the training data,
    for the caller to use.

    Args:
        event: Shape of one point; treated as one vector.
        width: Neurons of a hidden layer.
        depth: Hidden layers.
        features: Cosine features of the time.
        horizon: Length of the time axis, the T of a DDPM.
        seed: Of the initial weights; the global generator is left alone.

    Reference: "a fully connected network with depth 3 and width 128, using a cosine time embedding", paper, appendix
    on data assimilation, paragraph "Learning architecture".
    """

    def __init__(
        self,
        event: int | Sequence[int],
        *,
        width: int = 128,
        depth: int = 3,
        features: int = 32,
        horizon: float = 1000.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.event = event_shape(event)
        self.width = whole_number(width, "width", 1)
        self.depth = whole_number(depth, "depth", 1)
        self.features = whole_number(features, "features", 1)
        self.horizon = positive(horizon, "horizon (the number of steps of a DDPM)")
        self.seed = whole_number(seed, "seed", 0)
        size = torch.Size(self.event).numel()
        with seeded(self.seed):
            widths = [size + self.features] + [self.width] * self.depth
            hidden: list[nn.Module] = []
            for before, after in itertools.pairwise(widths):
                hidden += [nn.Linear(before, after), nn.SiLU()]
            self.hidden = nn.Sequential(*hidden)
            self.output = nn.Linear(widths[-1], size)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)
        self.standardise = Standardise(self.event)

    @property
    def config(self) -> dict[str, Any]:
        """The arguments that make a network of this shape."""
        return arguments(self, "event", "width", "depth", "features", "horizon", "seed")

    def forward(self, x: Tensor, t: Tensor | float) -> Tensor:
        """eps(x, t) for x (n, *event) and t a number or (n,), whole or floating."""
        check_event(x, self.event)
        vector = x.flatten(1).to(self.output.weight.dtype)
        time = cosine_features(over_events(t, vector), self.features, self.horizon).expand(len(x), -1)
        out: Tensor = self.output(self.hidden(torch.cat([vector, time], dim=1)))
        return out.view(x.shape).to(x.dtype)
