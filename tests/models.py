"""Small models with known answers, for the tests of the library: written here, so that they check the library alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import casal

RADIUS = 3.0
SIGMA_Y = 0.1


def well(m: Tensor) -> Tensor:
    """V(m) = ((m+1)^4 / 4 - 0.7 (m+1)^3 / 3 - 0.85 (m+1)^2) / 2: two wells, of which a circle of radius 3 meets one."""
    u = m + 1.0
    return 0.5 * (u**4 / 4 - 0.7 / 3 * u**3 - 0.85 * u**2)


def particle_potential(x: Tensor) -> Tensor:
    """A particle in the double well, held near y = 0."""
    return well(x[:, 0]) + 0.5 * (x[:, 1] / SIGMA_Y) ** 2


def particle_gradient(x: Tensor) -> Tensor:
    """Of ``particle_potential``."""
    u = x[:, 0] + 1.0
    return torch.stack([0.5 * (u**3 - 0.7 * u**2 - 1.7 * u), x[:, 1] / SIGMA_Y**2], dim=1)


def particle_start(n: int, generator: torch.Generator) -> Tensor:
    """Standard normal."""
    return torch.randn((n, 2), generator=generator, dtype=torch.float64)


def particle(steps: int, step_size: float = 1e-2) -> casal.Target:
    """Langevin dynamics of the particle."""
    return casal.langevin(particle_gradient, steps=steps, step_size=step_size, init=particle_start)


def preconditioned_particle(steps: int, step_size: float = 0.1) -> casal.Target:
    """The same with one step size per coordinate, so that both relax at the same pace."""
    diagonal = torch.tensor([0.5, SIGMA_Y**2], dtype=torch.float64)
    return casal.langevin(
        particle_gradient, steps=steps, step_size=step_size, init=particle_start, preconditioner=diagonal
    )


def particle_answer() -> dict[str, float]:
    """P(x > 0), E x and the standard deviation of y on the circle, by quadrature over the angle."""
    angle = torch.linspace(-math.pi, math.pi, 20001, dtype=torch.float64)[:-1]
    points = RADIUS * torch.stack([torch.cos(angle), torch.sin(angle)], dim=1)
    weight = torch.softmax(-particle_potential(points), 0)
    x, y = points.T
    return {
        "wrong": float(weight[x > 0].sum()),
        "mean_x": float((weight * x).sum()),
        "sd_y": float(((weight * y**2).sum() - (weight * y).sum() ** 2).sqrt()),
    }


MODES = torch.tensor([[1.2, 0.0], [-1.5, 1.0], [0.2, -2.2]], dtype=torch.float64)
MODE_WEIGHTS = torch.tensor([0.6, 0.2, 0.2], dtype=torch.float64)
MODE_SCALES = torch.tensor([0.35, 0.5, 0.3], dtype=torch.float64)


def _mode_logits(y: Tensor, variance: Tensor) -> Tensor:
    distance = (y[:, None] - MODES.to(y)).square().sum(2)
    return torch.log(MODE_WEIGHTS.to(y) / variance) - distance / (2 * variance)


def mode_shares(z: Tensor) -> Tensor:
    """P(mode | z), (n, 3)."""
    return torch.softmax(_mode_logits(z, MODE_SCALES.square().to(z)), 1)


def mode_weights_on_circle(radius: float) -> Tensor:
    """Weights of the three modes on a circle about the origin, by quadrature."""
    angle = torch.linspace(-math.pi, math.pi, 20001, dtype=torch.float64)[:-1]
    points = radius * torch.stack([torch.cos(angle), torch.sin(angle)], dim=1)
    mass = torch.exp(_mode_logits(points, MODE_SCALES.square())).sum(0)
    return mass / mass.sum()


def modes_denoiser(y: Tensor, sigma: Tensor) -> Tensor:
    """E[x0 | x0 + sigma noise = y] of the mixture of three Gaussians."""
    variance = MODE_SCALES.square().to(y) + sigma.to(y) ** 2
    gain = (MODE_SCALES.square().to(y) / variance)[:, None]
    means = MODES.to(y) + gain * (y[:, None] - MODES.to(y))
    return (torch.softmax(_mode_logits(y, variance), 1)[..., None] * means).sum(1)


def modes_ddpm(steps: int) -> casal.Target:
    """The mixture as a DDPM of some steps."""
    betas = torch.linspace(1e-4 * 1000 / steps, 0.02 * 1000 / steps, steps, dtype=torch.float64)
    kept = (1.0 - betas).cumprod(0)

    def eps(x: Tensor, t: Tensor) -> Tensor:
        alpha, sigma = kept[t.long()].sqrt().to(x), (1.0 - kept[t.long()]).sqrt().to(x)
        return (x - alpha * modes_denoiser(x / alpha, sigma / alpha)) / sigma

    return casal.ddpm(eps, betas, shape=2, dtype=torch.float64)


class Network(nn.Module):
    """eps(x, t): two layers, random weights that depend on the width alone."""

    def __init__(self, width: int, horizon: int) -> None:
        super().__init__()
        self.horizon = horizon
        self.layers = nn.Sequential(nn.Linear(5, width), nn.SiLU(), nn.Linear(width, 4))
        stream = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.2, generator=stream)
        self.requires_grad_(False)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        time = (t.to(x) / self.horizon).expand(len(x), 1)
        return self.layers(torch.cat([x, time], dim=1)).to(x.dtype)


def network_ddpm(steps: int, width: int = 16) -> casal.Target:
    """A small network as a DDPM in four dimensions."""
    return casal.ddpm(Network(width, steps), torch.linspace(0.02, 0.3, steps), shape=4)
