"""The models that are compared on one latent: the Gaussian of the data, and a network trained on them.

Both are denoisers D(x, sigma) = E[x0 | x0 + sigma w = x], so both run with the noise levels of every family.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from casal import Target, ddpm, edm, karras_sigmas
from casal_lab.artifacts import network
from casal_lab.experiment import ResultTable
from casal_lab.nets import Gaussian, LevelLosses, WienerUNet, compare_denoiser, signal_and_noise, train_denoiser
from casal_lab.pde.prior import Prior

LOWEST = 0.003
"""Last noise level of a run; latents are of unit size."""

START = 5.5
"""First noise level, in units of the largest standard deviation of a latent direction."""

BETAS = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
"""The noise levels of the paper's models."""

ALPHA, SIGMA = signal_and_noise(BETAS)

TRAINED = (0.01, 3.0)
"""Noise levels that networks are trained on; above them a network stands back, and its Wiener filter answers."""

HELD_OUT = 0.1
GAUSSIAN, NETWORK = "Gaussian score", "network"


@dataclass(frozen=True, eq=False)
class Model:
    """A diffusion model of the latents.

    Attributes:
        label: For tables.
        denoiser: D(x, sigma) for x (n, d).
        size: d.
        dtype: That of its chains.
        highest: First noise level of a run.
        iterations: Of the conjugate gradients of moment matching, with the Gaussian as a preconditioner.
    """

    label: str
    denoiser: Callable[[Tensor, Tensor], Tensor]
    size: int
    dtype: torch.dtype
    highest: float
    iterations: int

    def flow(self, levels: int, churn: float = 0.0) -> Target:
        """The probability-flow ODE, or ancestral sampling (churn 1), on noise levels that are dense near the data."""
        sigmas = karras_sigmas(levels, LOWEST, self.highest)
        return edm(self.denoiser, sigmas, shape=self.size, churn=churn, dtype=self.dtype)

    def ancestral(self, steps: int) -> Target:
        """The paper's sampler (DDPM) on ``steps`` of its 1000 noise levels."""

        def clean(x: Tensor, t: Tensor) -> Tensor:
            alpha, sigma = ALPHA.to(x)[t], SIGMA.to(x)[t]
            return self.denoiser(x / (alpha[:, None] if alpha.ndim else alpha), sigma / alpha)

        return ddpm(clean, BETAS, shape=self.size, steps=steps, prediction="x0", dtype=self.dtype)


def gaussian_model(prior: Prior) -> Model:
    """The score of the Gaussian: its answers are those of kriging."""
    return Model(GAUSSIAN, prior.gaussian, prior.size, torch.float64, _highest(prior), 1)


def network_model(prior: Prior, net: WienerUNet, iterations: int = 3) -> Model:
    """A trained network, in float32; its Wiener filter above the noise levels that it was trained on."""
    net.requires_grad_(False)

    def denoiser(x: Tensor, sigma: Tensor) -> Tensor:
        if float(sigma.max()) <= TRAINED[1]:
            return net(x, sigma)
        if sigma.ndim:
            return torch.cat([denoiser(x[k : k + 1], level) for k, level in enumerate(sigma)])
        return net.wiener(x, sigma)

    return Model(NETWORK, denoiser, prior.size, torch.float32, _highest(prior), iterations)


def _highest(prior: Prior) -> float:
    return START * float(prior.gaussian.variances.max().sqrt())


def split(prior: Prior) -> tuple[Tensor, Tensor]:
    """Latents to train on, and latents that are held out: the last ones drawn."""
    held = round(HELD_OUT * len(prior.latents))
    return prior.latents[:-held].float(), prior.latents[-held:].float()


def trained(
    prior: Prior,
    grid: Sequence[int],
    lift: Tensor,
    *,
    iterations: int,
    kind: type[WienerUNet] = WienerUNet,
    widths: Sequence[int] = (16, 24, 32),
    padding: str = "zeros",
    positions: int = 0,
    copies: int = 1,
    seed: int = 0,
) -> WienerUNet:
    """The network of an experiment, from the cache or trained now.

    Args:
        prior: The latents and their symmetries.
        grid: (channels, height, width) that the network works on.
        lift: Orthonormal columns (pixels, d), from latents to that grid.
        iterations: Updates, each on 64 latents.
        kind: The class of the network.
        widths: Channels at each resolution.
        padding: "circular" for periodic fields.
        positions: Learned channels that tell the network where it is.
        copies: Symmetric copies of the latents that its Wiener filter is fitted to.
        seed: Of weights and batches.
    """

    def make() -> WienerUNet:
        x, held_out = split(prior)
        every = x
        if prior.augment is not None and copies > 1:
            generator = torch.Generator().manual_seed(seed)
            every = torch.cat([x, *(prior.augment(x, generator) for _ in range(copies - 1))])
        settings = {"widths": widths, "padding": padding, "positions": positions, "sigmas": TRAINED, "seed": seed}
        net = kind.fit(every, grid=grid, lift=lift.float(), **settings)
        train_denoiser(
            net, x, TRAINED, iterations=iterations, held_out=held_out, augment=prior.augment, progress=False, seed=seed
        )
        return net

    name = f"{prior.name}_wiener_{'x'.join(map(str, widths))}_{len(prior.latents)}_{iterations}"
    return network(name, make, classes=[kind])  # type: ignore[return-value]


def losses(prior: Prior, net: WienerUNet, levels: int = 8) -> LevelLosses:
    """Held-out losses of the network beside those of the Gaussian of all training latents."""
    gaussian = Gaussian(prior.gaussian.event, prior.gaussian.rank)
    gaussian.load_state_dict({name: value.float() for name, value in prior.gaussian.state_dict().items()})
    return compare_denoiser(net, gaussian, split(prior)[1], levels=levels, sigmas=TRAINED)


def loss_table(found: LevelLosses, title: str) -> ResultTable:
    """The losses as a table."""
    columns = zip(found.levels, found.network, found.gaussian, found.ratio, found.ratio_error, strict=True)
    rows = [
        dict(zip(("sigma", "network", "gaussian", "ratio", "ratio_se"), map(float, column), strict=True))
        for column in columns
    ]
    return ResultTable.of(
        title,
        "sigma: noise level, .3f | network: network, .3e | gaussian: Gaussian, .3e | ratio: network / Gaussian, .3f",
        rows,
        note="Mean squared error of the denoised latent (unit size) on held-out fields. Below one the network knows "
        "more than mean and covariance.",
    )
