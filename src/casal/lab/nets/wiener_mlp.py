"""A noise predictor that starts as the exact one of a Gaussian and learns only what mean and covariance leave open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from casal.checks import whole_number
from casal.lab.nets.gaussian import Gaussian
from casal.lab.nets.held_out import signal_and_noise
from casal.lab.nets.mlp import MLP
from casal.lab.nets.shapes import all_digits, over_events
from casal.lab.nets.standardise import Standardise


class WienerMLP(nn.Module):
    """eps(x, t) = eps_G(x, t) + V diag(r) F(diag(alpha^2 lam + sigma^2)^(-1/2) V^T (x - alpha m), t),

        eps_G = sigma (alpha^2 C + sigma^2 I)^-1 (x - alpha m),   C = V diag(lam) V^T,
        r = sqrt(g (1 - g)) max(g),   g = alpha^2 lam / (alpha^2 lam + sigma^2)

    for x = alpha_t x0 + sigma_t w, the noise levels of a DDPM. eps_G is E[w | x] if the data are N(m, C). F, the
    paper's ``MLP``, starts at zero: the untrained network is eps_G, and the factor r keeps it from doing worse where
    there is nothing to add. Under the Gaussian sqrt(g) is the standard deviation of w given x, direction by direction,
    and sqrt(1 - g) that of x0 in units of the data: with little noise eps = -sigma score, and a correction of a
    bounded score shrinks with sigma. With much noise the first thing a Gaussian misses are third cumulants, which
    enter with sqrt(g_i g_j g_k): at most sqrt(g) max(g). A plain network must learn eps = x there, and misses it by
    far more than the Gaussian does.

    Attributes:
        wiener: m, V and lam; ``fit`` takes them from data.
        standardise: Statistics of the raw data, for the caller to use; identity until fitted.

    Args:
        event: Shape of one point; treated as one vector.
        rank: Of the covariance; see ``fit``, which finds it.
        steps: T, the number of noise levels; ``fit`` takes it from betas.
        width: Neurons of a hidden layer of F.
        depth: Hidden layers of F.
        features: Cosine features of the time.
        seed: Of the initial weights.

    Reference: the same idea for denoisers of fields is ``WienerUNet``.

    >>> net = WienerMLP.fit(torch.tensor([[-1.0], [1.0], [-1.0], [1.0]]), torch.tensor([0.5]))
    >>> net(torch.tensor([[2.0]]), 0).detach()
    tensor([[1.4142]])
    """

    alpha: Tensor
    sigma: Tensor

    def __init__(
        self,
        event: int | Sequence[int],
        *,
        rank: int | None = None,
        steps: int = 1000,
        width: int = 128,
        depth: int = 3,
        features: int = 32,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.wiener = Gaussian(event, rank)
        self.event = self.wiener.event
        self.steps = whole_number(steps, "steps", 1)
        self.mlp = MLP(
            self.wiener.rank, width=width, depth=depth, features=features, horizon=float(self.steps), seed=seed
        )
        alpha, sigma = signal_and_noise(torch.linspace(0.1 / self.steps, 20 / (20 + self.steps), self.steps))
        self.register_buffer("alpha", alpha.float())
        self.register_buffer("sigma", sigma.float())
        self.standardise = Standardise(self.event)

    @classmethod
    def fit(cls, data: Tensor, betas: Tensor, **settings: Any) -> WienerMLP:
        """A network for ``data`` (n, *event) and these noise levels: eps_G is computed, F is yet to be trained.

        Args:
            data: Training data.
            betas: (T,), those of ``train_ddpm`` and ``ddpm``.
            **settings: ``width``, ``depth``, ``features``, ``seed``.
        """
        gaussian = Gaussian.fit(data)
        alpha, sigma = signal_and_noise(betas)
        net = cls(gaussian.event, rank=gaussian.rank, steps=len(alpha), **settings)
        net.wiener.load_state_dict(gaussian.state_dict())
        net.alpha.copy_(alpha)
        net.sigma.copy_(sigma)
        return net.to(data.device)

    @property
    def config(self) -> dict[str, Any]:
        """The arguments that make a network of this shape."""
        inner = self.mlp.config
        return {
            **self.wiener.config,
            "steps": self.steps,
            **{name: inner[name] for name in ("width", "depth", "features", "seed")},
        }

    def forward(self, x: Tensor, t: Tensor | float) -> Tensor:
        """eps(x, t) for x (n, *event) and t a number or (n,), one of 0 .. T - 1."""
        law, level = self.wiener, over_events(t, x)
        index = level.round().long()
        with all_digits(x):
            alpha, sigma = self.alpha[index].unsqueeze(1), self.sigma[index].unsqueeze(1)
            centred = law.centred(x) + (1 - alpha) * law.mean
            along = centred @ law.basis
            power = alpha.square() * law.variances
            total = power + sigma.square()
            said = along * (sigma / total)
        learned = self.mlp(along / total.sqrt(), level).to(said.dtype)
        with all_digits(x):
            size = (power * sigma.square()).sqrt() / total * (power / total).amax(1, keepdim=True)
            said = said + size * learned
            out = said @ law.basis.T
            if law.rank < len(law.mean):
                out = out + (centred - along @ law.basis.T) / sigma
            return out.view(x.shape).to(x.dtype)
