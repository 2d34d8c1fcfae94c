"""Trained networks: the reference is the network's own samples without a constraint, in the set or in a thin layer.

Samplers of one network differ as far as the network is wrong, so "the distribution of the model" is a convention. Here
it is that of ancestral sampling in STEPS steps. A solid set keeps those samples that lie in it, which is exact. On a
surface the samples within WIDTH of it are projected; their distribution differs from that on the surface by terms of
second order in WIDTH.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

import casal
from casal_lab.artifacts import network, points
from casal_lab.nets import MLP, train_ddpm
from casal_lab.problems.families import BETAS
from casal_lab.problems.three_modes import MIXTURE

F64 = torch.float64
REFERENCE_SEED = 123
"""Of samples without a constraint."""

ITERATIONS, STEPS, FREE = 2000, 200, 100_000
"""Updates of a network in training, steps of its sampler, and samples without a constraint."""

WIDTH = 0.05
"""Of the layer about a surface."""

HELD = 5
"""Every fifth sample is kept out of the reference, for the row "exact draws"."""

LARGEST, SMALLEST = (float(((1 - kept) / kept).sqrt()) for kept in (1 - BETAS).cumprod(0)[[-1, 0]])
"""Noise levels of the networks, in units of the data."""


def spiral(n: int, generator: torch.Generator) -> Tensor:
    """Points about two arms of a spiral, (n, 2): no mixture of a few Gaussians."""
    u = torch.rand((2, n), generator=generator, dtype=F64)
    angle = 1.2 * math.pi * (0.15 + 0.85 * u[0].sqrt())
    radius = 0.3 + 1.7 * angle / (1.2 * math.pi)
    sign = torch.where(u[1] < 0.65, 1.0, -1.0)
    arm = torch.stack([sign * radius * angle.cos(), sign * radius * angle.sin()], 1)
    return arm + 0.15 * torch.randn((n, 2), generator=generator, dtype=F64)


DATA: dict[str, Callable[[int, torch.Generator], Tensor]] = {"mixture": MIXTURE.sample, "spiral": spiral}
"""What the networks learn: the three modes, and the spiral."""


def trained(name: str, iterations: int) -> nn.Module:
    """The noise predictor of DATA[name], from the cache or trained now."""

    def train() -> nn.Module:
        net = MLP(2)
        data = DATA[name](50_000, torch.Generator().manual_seed(0)).float()
        train_ddpm(net, data, BETAS.float(), iterations=iterations, batch_size=1024, progress=False)
        return net

    return network(f"{name}_mlp_{iterations}", train)


def model(eps: Callable[[Tensor, Tensor], Tensor], steps: int) -> casal.Target:
    """Ancestral sampling with a noise predictor, in float64."""
    return casal.ddpm(eps, BETAS, shape=2, steps=steps, dtype=F64)


def free_samples(name: str, iterations: int = ITERATIONS, steps: int = STEPS, count: int = FREE) -> Tensor:
    """Samples of a network without a constraint, (count, 2), from the cache or drawn now."""

    def make() -> Tensor:
        target = casal.ddpm(trained(name, iterations), BETAS, shape=2, steps=steps)
        everywhere = casal.Box(-math.inf, math.inf)
        return casal.sample(target, everywhere, casal.Unconstrained(), count, seed=REFERENCE_SEED, check=False).samples

    return points(f"{name}_mlp_{iterations}_{steps}_{count}", make)


def on_set(free: Tensor, constraint: casal.Constraint) -> Tensor:
    """Samples that lie in a solid set; or those within WIDTH of a surface, projected."""
    if constraint.solid:
        return free[constraint.violation(free) == 0.0]
    feet = constraint.project(free)
    return feet[(free - feet).norm(dim=1) < WIDTH]
