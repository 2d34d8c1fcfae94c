"""Small networks trained on the fields: multilayer perceptrons and UNets, as flows and as DDPMs.

An MLP predicts the clean field, since the noise of hundreds of pixels does not pass through its layers; a UNet predicts
the velocity of a flow or the noise of a DDPM. All are trained on the CPU in one to two minutes, so they are rough: what
a sampler makes of a rough network is the question of this study.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import casal
from casal_lab.artifacts import network
from casal_lab.nets import MLP, UNet, compare_ddpm, compare_denoiser, signal_and_noise
from casal_lab.nets.events import beside
from casal_lab.nets.gaussian import Gaussian
from casal_lab.nets.streams import normal_like
from casal_lab.nets.training import train
from casal_lab.networks.fields import FIELDS, Fields

BETAS = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
"""The schedule of Ho et al. (2020)."""

ALPHA, SIGMA = signal_and_noise(BETAS)
LEVEL = SIGMA / ALPHA
DRAWS, HELD_OUT = 20_000, 500
SEED = 3
"""Of the fields that networks are trained on. Cases have others."""

LEAST = 0.05
"""Time to the end of a flow below which the loss of a clean field is no longer weighted up."""


class Spec(NamedTuple):
    """Which network: of what fields, of what shape, of what family, and how long it is trained.

    Attributes:
        fields: Name of the fields.
        shape: "MLP" or "UNet".
        family: "flow" or "DDPM".
        iterations: Updates.
        batch: Fields in an update.
    """

    fields: str
    shape: str
    family: str
    iterations: int
    batch: int

    @property
    def title(self) -> str:
        """As in the tables."""
        return f"{self.fields}, {self.shape}, {self.family}"


SPECS = (
    Spec("heat", "MLP", "flow", 5000, 256),
    Spec("burgers", "UNet", "DDPM", 2500, 64),
    Spec("burgers", "MLP", "DDPM", 5000, 256),
    Spec("reaction", "UNet", "flow", 2500, 64),
    Spec("navier-stokes", "UNet", "DDPM", 2500, 64),
)
"""The networks of a full run."""


@dataclass(frozen=True, eq=False)
class Model:
    """A trained network.

    Attributes:
        spec: Which one.
        net: Its weights.
    """

    spec: Spec
    net: nn.Module

    @property
    def fields(self) -> Fields:
        """What it was trained on."""
        return FIELDS[self.spec.fields]

    def target(self, steps: int, last: float = 0.0) -> casal.Target:
        """The model's own sampler in so many steps; the last of them starts at the noise level ``last`` or above."""
        call, kind = caller(self.spec, self.net), "x0" if self.spec.shape == "MLP" else None
        shape = self.fields.event
        if self.spec.family == "flow":
            times = torch.arange(steps, dtype=torch.float64) / steps
            times = times[: int((times * (1 + last) <= 1).sum())]
            return casal.flow(call, shape=shape, times=times, prediction=kind or "flow", time="scalar")
        index = torch.arange(len(BETAS), 0, -len(BETAS) / steps).round().long() - 1  # as spacing="trailing"
        index = index[LEVEL[index] >= last]
        return casal.ddpm(call, BETAS, shape=shape, times=index, prediction=kind or "eps", time="scalar")


def caller(spec: Spec, net: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """The network as a function of x and t: the step of a DDPM, or the time of a flow from 0 (noise) to 1 (data)."""
    return partial(_mlp if spec.shape == "MLP" else _unet, net, spec.family == "flow")


def _mlp(net: nn.Module, flow: bool, x: Tensor, t: Tensor) -> Tensor:
    found: Tensor = net(x, t.to(x.dtype))
    return found


def _unet(net: nn.Module, flow: bool, x: Tensor, t: Tensor) -> Tensor:
    level = ((1 - t) / t.clamp_min(1e-3)).clamp_min(1e-3) if flow else LEVEL.to(x.device)[t.long()]
    found: Tensor = net(x, level.to(x.dtype))
    return found


def made(spec: Spec) -> nn.Module:
    """The network before training."""
    fields = FIELDS[spec.fields]
    if spec.shape == "MLP":
        return MLP(fields.event, width=384, depth=3, horizon=1.0 if spec.family == "flow" else 1000.0, seed=SEED)
    channels, *grid = fields.event
    periodic = spec.fields == "navier-stokes"
    return UNet(
        channels,
        channels,
        grid,
        widths=(24, 32, 48),
        padding="circular" if periodic else "zeros",
        positions=0 if periodic else 4,
        sigmas=(0.003, 150.0),
        seed=SEED,
    )


def trained(spec: Spec, tell: Callable[[str], None] = lambda text: None) -> Model:
    """The network of a spec, from the cache or trained now."""

    def make() -> nn.Module:
        tell(f"{spec.title}: training")
        net = made(spec)
        fit(spec, net)
        return net

    name = f"fields_{spec.fields}_{spec.shape}_{spec.family}_{spec.iterations}_{spec.batch}".lower()
    return Model(spec, network(name, make).requires_grad_(False))


def fit(spec: Spec, net: nn.Module) -> Any:
    """Train in place. The loss of a network F with answer z (velocity, noise, or clean field) is E |F - z|^2.

    That of a clean field is divided by the square of the noise, no less than LEAST: the loss of the noise itself.
    """
    fields, call = FIELDS[spec.fields], caller(spec, net)
    data = fields.draw(DRAWS + HELD_OUT, torch.Generator().manual_seed(SEED)).float()
    clean = spec.shape == "MLP"

    def loss_flow(_: Gaussian, x: Tensor, generator: torch.Generator) -> Tensor:
        t = torch.rand(len(x), generator=generator).to(x)
        w, at = normal_like(x, generator), beside(t, x)
        found = call(at * x + (1 - at) * w, t)
        error = (found - x) / (1 - at).clamp_min(LEAST) if clean else found - (x - w)
        return error.square().mean()

    def loss_ddpm(_: Gaussian, x: Tensor, generator: torch.Generator) -> Tensor:
        t = torch.randint(len(ALPHA), (len(x),), generator=generator).to(x.device)
        w, a, s = normal_like(x, generator), beside(ALPHA.to(x)[t], x), beside(SIGMA.to(x)[t], x)
        found = call(a * x + s * w, t)
        error = (found - x) * (a / s).clamp_max(1 / LEAST) if clean else found - w
        return error.square().mean()

    def denoise(y: Tensor, sigma: Tensor) -> Tensor:
        t = 1 / (1 + torch.as_tensor(sigma, dtype=y.dtype))
        x = t * y
        return call(x, t) if clean else x + (1 - t) * call(x, t)

    def noise(x: Tensor, t: Tensor) -> Tensor:
        found = call(x, t)
        return (x - ALPHA.to(x)[t] * found) / SIGMA.to(x)[t] if clean else found

    def compare(gaussian: Gaussian, test: Tensor, **how: Any) -> Any:
        if spec.family == "flow":
            return compare_denoiser(denoise, gaussian, test, sigmas=(0.02, 10.0), **how)
        return compare_ddpm(noise, gaussian, test, BETAS, **how)

    return train(
        net,
        data[:DRAWS],
        loss_flow if spec.family == "flow" else loss_ddpm,
        compare,
        {"loss": spec.title},
        iterations=spec.iterations,
        batch_size=spec.batch,
        learning_rate=2e-3 if spec.shape == "UNet" else 1e-3,
        held_out=data[DRAWS:],
        seed=SEED,
        progress=False,
    )
