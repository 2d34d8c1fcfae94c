"""What a network knows: its loss on held-out points beside the best Gaussian's, and the density it stands for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from casal.checks import ScoreFunction, whole_number
from casal.errors import SettingError
from casal_lab.nets.events import noise_range, signal_and_noise
from casal_lab.nets.gaussian import Gaussian
from casal_lab.nets.streams import HELD_OUT, normal_like, stream

BATCH = 128
"""Points evaluated at once."""

Pair = Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]
"""(x, w, level) -> errors of the network and of the Gaussian, shaped as x."""


@dataclass(frozen=True)
class LevelLosses:
    """Held-out losses of a network and of the Gaussian model of its training data, on the same points and noise."""

    name: str  # what a level is: "t", the step of a DDPM, or "sigma", the size of the noise
    levels: Tensor  # (L,) float64
    network: Tensor  # (L,) mean squared error per number: of the noise (DDPM) or of the clean point (denoiser)
    gaussian: Tensor  # (L,) the same for the Gaussian
    ratio_error: Tensor  # (L,) standard error of ``ratio``

    @property
    def ratio(self) -> Tensor:
        """(L,) network / Gaussian: 1 or more is a network that learned nothing at this level.

        Where noise is all there is (the last steps of a DDPM) the Gaussian is nearly exact and both errors
        are nearly zero; a ratio above 1 is common there and says little.
        """
        return self.network / self.gaussian

    @property
    def best(self) -> float:
        """The smallest ratio."""
        return float(self.ratio.min())

    @property
    def learned(self) -> bool:
        """Whether the network beats the Gaussian at some level by more than four standard errors."""
        return bool((self.ratio + 4 * self.ratio_error < 1).any())

    def __str__(self) -> str:
        rows = zip(self.levels, self.network, self.gaussian, self.ratio, self.ratio_error, strict=True)
        head = f"{self.name:>10} {'network':>10} {'Gaussian':>10} {'ratio':>7}"
        lines = [f"{t:>10.4g} {a:>10.4g} {b:>10.4g} {r:>7.3f} +- {e:.3f}" for t, a, b, r, e in rows]
        verdict = f"the network beats the Gaussian: best ratio {self.best:.3f}"
        if not self.learned:
            verdict = (
                f"the network does not beat the Gaussian (best ratio {self.best:.3f}): it knows nothing more than "
                "mean and covariance; train longer, with another network, or with more data"
            )
        return "\n".join([head, *lines, verdict])


def compare_ddpm(
    eps: ScoreFunction,
    gaussian: Gaussian,
    points: Tensor,
    betas: Tensor,
    *,
    levels: int | Sequence[float] = 10,
    seed: int = 0,
) -> LevelLosses:
    """mean of |eps(alpha_t x + sigma_t w, t) - w|^2 per number, for a network and for the Gaussian of its data.

    ``points`` are held-out data (n, *event), ``levels`` the steps t to look at, or how many: then they lie closer where
    there is little noise.
    """
    alpha, sigma = signal_and_noise(betas)
    last = len(alpha) - 1
    if isinstance(levels, int):
        steps = (torch.linspace(0, 1, whole_number(levels, "levels", 1), dtype=torch.float64).square() * last).round()
    else:
        steps = torch.as_tensor(levels, dtype=torch.float64)
    if not len(steps) or not bool(((steps >= 0) & (steps <= last) & (steps == steps.round())).all()):
        raise SettingError(f"levels of a DDPM are steps between 0 and {last}, got {steps.tolist()}")

    def errors(x: Tensor, w: Tensor, t: float) -> tuple[Tensor, Tensor]:
        a, s = float(alpha[int(t)]), float(sigma[int(t)])
        noisy = a * x + s * w
        return eps(noisy, torch.tensor(int(t), device=x.device)) - w, gaussian.eps(noisy, a, s) - w

    return _compare(errors, points, steps, "t", seed)


def compare_denoiser(
    denoiser: ScoreFunction,
    gaussian: Gaussian,
    points: Tensor,
    *,
    levels: int | Sequence[float] = 8,
    sigmas: Sequence[float] = (0.01, 3.0),
    seed: int = 0,
) -> LevelLosses:
    """mean of |D(x + sigma w, sigma) - x|^2 per number, for a network and for the Gaussian.

    ``levels`` are the sigmas to look at, or how many, in equal ratios over the range ``sigmas``.
    """
    if isinstance(levels, int):
        low, high = torch.tensor(noise_range(sigmas), dtype=torch.float64).log().tolist()
        values = torch.linspace(low, high, whole_number(levels, "levels", 1), dtype=torch.float64).exp()
    else:
        values = torch.as_tensor(levels, dtype=torch.float64)
    if not len(values) or not bool((values > 0).all()):
        raise SettingError(f"levels of a denoiser are noise sizes > 0, got {values.tolist()}")

    def errors(x: Tensor, w: Tensor, level: float) -> tuple[Tensor, Tensor]:
        y, sigma = x + level * w, torch.tensor(level, dtype=x.dtype, device=x.device)
        return denoiser(y, sigma) - x, gaussian(y, sigma) - x

    return _compare(errors, points, values, "sigma", seed)


@torch.no_grad()
def _compare(errors: Pair, points: Tensor, levels: Tensor, name: str, seed: int) -> LevelLosses:
    if not len(points):
        raise SettingError("there are no held-out points; hold out at least one")
    rows = []
    for k, level in enumerate(levels.tolist()):
        generator = stream(seed, HELD_OUT, k)
        losses = [
            torch.stack([e.flatten(1).double().square().mean(1) for e in errors(x, normal_like(x, generator), level)])
            for x in points.split(BATCH)
        ]
        rows.append(torch.cat(losses, dim=1).cpu())
    per_point = torch.stack(rows)  # (L, 2, n)
    network, gaussian = per_point.mean(-1).unbind(1)
    ratio = network / gaussian
    spread = (per_point[:, 0] - ratio[:, None] * per_point[:, 1]).square().mean(-1).sqrt()
    return LevelLosses(name, levels, network, gaussian, spread / gaussian / len(points) ** 0.5)


class ProbabilityFlow:
    """dx/dphi = v(x, phi) = (eps(x, t) - sigma x) / alpha,   alpha = cos phi, sigma = sin phi,

    whose solutions have the distribution of alpha x0 + sigma w at every phi, if eps is right. Standard normal data do
    not move at all. Along a solution d log p / dphi = -div v, so with x_T the end of the solution that starts at x

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

    def __init__(self, eps: ScoreFunction, betas: Tensor, dimension: int, steps: int = 100) -> None:
        alpha, sigma = signal_and_noise(betas)
        steps = whole_number(steps, "steps", 1)
        if steps > len(alpha) - 1:
            raise SettingError(f"{steps} steps between {len(alpha)} noise levels; use at most {len(alpha) - 1}")
        self.eps, self.dimension = eps, dimension
        phi = torch.atan2(sigma, alpha)
        wanted = torch.linspace(float(phi[0].sqrt()), float(phi[-1].sqrt()), steps + 1, dtype=torch.float64).square()
        index = torch.unique((phi - wanted[:, None]).abs().argmin(1))
        self.times, self.angles = index.tolist(), phi[index].tolist()
        self.pairs = list(itertools.pairwise(range(len(index))))

    def sample(self, n: int, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
        """n draws (n, d) of the distribution at t = 0: the ODE from noise back."""
        x = torch.randn((n, self.dimension), generator=generator, dtype=dtype)
        with torch.no_grad():
            for there, here in reversed(self.pairs):
                step = self.angles[there] - self.angles[here]
                slope = self._velocity(x, here)
                x = x + step / 2 * (slope + self._velocity(x + step * slope, there))
        return x

    def log_density(self, x: Tensor) -> Tensor:
        """log p (n,) float64 of points x (n, d) at t = 0."""
        total = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        x = x.detach()
        for here, there in self.pairs:
            step = self.angles[there] - self.angles[here]
            slope, first = self._velocity_and_divergence(x, here)
            ahead, second = self._velocity_and_divergence(x + step * slope, there)
            x, total = x + step / 2 * (slope + ahead), total + step / 2 * (first + second)
        return total - (x.double().square().sum(1) + self.dimension * math.log(2 * math.pi)) / 2

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
