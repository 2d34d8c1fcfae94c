"""The density that a noise predictor stands for: the probability-flow ODE, with the exact divergence."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from casal.checks import whole_number
from casal.errors import SettingError
from casal.lab.nets.held_out import signal_and_noise

Eps = Callable[[Tensor, Tensor], Tensor]


class ProbabilityFlow:
    """dx/dphi = v(x, phi) = (eps(x, t) - sigma x) / alpha,   alpha = cos phi, sigma = sin phi,

    whose solutions have the law of alpha x0 + sigma w at every phi, if eps is right. Standard normal data do not move
    at all. Along a solution d log p / dphi = -div v, so with x_T the end of the solution that starts at x

        log p(x) = log N(x_T; 0, I) + integral of div v dphi.

    Heun's method on a grid of the noise levels of the network, equally spaced in sqrt(phi): finest where there is
    little noise. Everything is at the least noise level t = 0: x = alpha_0 x0 + sigma_0 w.

    Args:
        eps: The network ``eps(x, t)`` on x (n, d), t a whole number; differentiable in x for ``log_density``.
        betas: (T,), its noise levels.
        dimension: d.
        steps: Of the ODE, at most T - 1; two evaluations each. ``log_density`` takes d backward passes for each.

    Reference: Song et al. 2021, Score-based generative modeling through stochastic differential equations, appendix D.
    """

    def __init__(self, eps: Eps, betas: Tensor, dimension: int, steps: int = 100) -> None:
        alpha, sigma = signal_and_noise(betas)
        steps = whole_number(steps, "steps", 1)
        if steps > len(alpha) - 1:
            raise SettingError(f"{steps} steps between {len(alpha)} noise levels; take at most {len(alpha) - 1}")
        self.eps, self.dimension = eps, dimension
        phi = torch.atan2(sigma, alpha)
        wanted = torch.linspace(float(phi[0].sqrt()), float(phi[-1].sqrt()), steps + 1, dtype=torch.float64).square()
        index = torch.unique((phi - wanted[:, None]).abs().argmin(1))
        self.times, self.angles = index.tolist(), phi[index].tolist()

    def sample(self, n: int, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
        """n draws (n, d) of the law at t = 0: the ODE from noise back."""
        x = torch.randn((n, self.dimension), generator=generator, dtype=dtype)
        with torch.no_grad():
            for here, there in self._pairs(reverse=True):
                step = self.angles[there] - self.angles[here]
                slope = self._velocity(x, here)
                x = x + step / 2 * (slope + self._velocity(x + step * slope, there))
        return x

    def log_density(self, x: Tensor) -> Tensor:
        """log p (n,) float64 of points x (n, d) at t = 0."""
        total = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        x = x.detach()
        for here, there in self._pairs():
            step = self.angles[there] - self.angles[here]
            slope, first = self._velocity_and_divergence(x, here)
            ahead, second = self._velocity_and_divergence(x + step * slope, there)
            x, total = x + step / 2 * (slope + ahead), total + step / 2 * (first + second)
        return total - (x.double().square().sum(1) + self.dimension * math.log(2 * math.pi)) / 2

    def _pairs(self, reverse: bool = False) -> Iterator[tuple[int, int]]:
        order = range(len(self.times))
        return itertools.pairwise(reversed(order) if reverse else order)

    def _velocity(self, x: Tensor, k: int) -> Tensor:
        angle = self.angles[k]
        return (self.eps(x, torch.tensor(self.times[k])) - math.sin(angle) * x) / math.cos(angle)

    def _velocity_and_divergence(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            out = self._velocity(leaf, k)
            trace = torch.zeros(len(x), dtype=torch.float64, device=x.device)
            for j in range(self.dimension):
                (row,) = torch.autograd.grad(out[:, j].sum(), leaf, retain_graph=True)
                trace += row[:, j]
        return out.detach(), trace
