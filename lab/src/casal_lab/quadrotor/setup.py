"""Vehicles, the Fourier latent of their inputs, its decoder, and the networks trained on obstacle-free flights.

The inputs of a flight, each of S = 200 samples, have Fourier modes 0 .. 9: 19 real numbers an input. The latent x is
these numbers, each divided by its standard deviation in the data; for the planar vehicle, whose two forces must nearly
balance lest it tumbles, it is their principal components, each divided by its standard deviation. The decoder is
linear: inputs from their modes, and outputs from their inputs by the exact response G of the vehicle,

    (y, u) = (G F x, F x)      in units of the standard deviations of y and u,

so that every decoded flight obeys the dynamics, and only obstacles and |u| <= u_max are left to satisfy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from casal import LinearDynamics, Target, ddpm
from casal.errors import SettingError
from casal_lab.artifacts import network
from casal_lab.experiment import Array
from casal_lab.nets import MLP, Gaussian, LevelLosses, WienerMLP, compare_ddpm, train_ddpm
from casal_lab.physics import quadrotor as physics
from casal_lab.problems.families import BETAS

MODES = 10
TRAINING_SEED, HELD_OUT_SEED = 0, 8002
FLIGHTS, HELD_OUT = 10_000, 2_000
RATE = 2e-3
LEAST_VARIANCE = 1e-5
"""Principal components with a smaller share of the largest variance are left out."""


class Training(NamedTuple):
    """Epochs over the 10,000 flights, and the network."""

    epochs: int = 200
    net: str = "MLP"  # the paper's, or "WienerMLP": the same as a correction of the Gaussian


class Kind(NamedTuple):
    """How a vehicle and its data are made."""

    model: Callable[..., LinearDynamics]  # for a limit and scales
    inputs: Callable[[int, int], Array]  # (n, S, q) for a count and a seed
    principal: bool  # whether the latent is made of principal components of the modes


KINDS = {
    "tilting": Kind(physics.tilting, lambda n, seed: physics.tilt_inputs(n, seed)[:, :, None], False),
    "planar": Kind(physics.planar, physics.force_inputs, True),
}


def modes_of(u: Array) -> Array:
    """Real and imaginary parts of the first modes of signals (n, S, q): (n, q (2 MODES - 1))."""
    spectrum = np.fft.rfft(u, axis=1)[:, :MODES].transpose(0, 2, 1)
    return np.concatenate([spectrum.real, spectrum[:, :, 1:].imag], axis=2).reshape(len(u), -1)


def signals_of(modes: Array, channels: int, steps: int) -> Array:
    """The signals (n, S, q) that have these modes and no others."""
    parts = modes.reshape(len(modes), channels, 2 * MODES - 1)
    imaginary = np.concatenate([np.zeros((len(modes), channels, 1)), parts[:, :, MODES:]], axis=2)
    signals = np.fft.irfft(parts[:, :, :MODES] + 1j * imaginary, n=steps, axis=2)
    return np.ascontiguousarray(signals.transpose(0, 2, 1))


@dataclass(frozen=True, eq=False)
class Vehicle:
    """A quadrotor model in standardised units, and the latent of its inputs."""

    name: str
    dynamics: LinearDynamics  # events (S, outputs + inputs), each channel in units of its standard deviation
    basis: Tensor  # (numbers, d): Fourier numbers of the inputs = basis x

    @property
    def dimension(self) -> int:
        """d, the size of the latent."""
        return self.basis.shape[1]

    @property
    def event(self) -> tuple[int, int]:
        """(S, outputs + inputs)."""
        return self.dynamics.steps, len(self.dynamics.outputs) + self.dynamics.B.shape[1]

    @property
    def scales(self) -> Tensor:
        """The physical unit of every channel."""
        return torch.cat([self.dynamics.scale_y, self.dynamics.scale_u])

    @cached_property
    def decoder(self) -> Tensor:
        """(S (outputs + inputs), d): from latents to events, flat."""
        channels = self.dynamics.B.shape[1]
        u = signals_of(self.basis.T.numpy(), channels, self.dynamics.steps)
        return self.dynamics.trajectory(torch.from_numpy(u)).reshape(self.dimension, -1).T.contiguous()

    def decode(self, x: Tensor) -> Tensor:
        """Events (n, S, channels) of latents (n, d), float64."""
        return (x.to(torch.float64) @ self.decoder.T).reshape(len(x), *self.event)

    def encode(self, u: Array) -> Tensor:
        """Latents (n, d) of physical inputs (n, S, q)."""
        return torch.linalg.lstsq(self.basis, torch.from_numpy(modes_of(u)).T).solution.T

    def with_limit(self, u_max: float) -> LinearDynamics:
        """The same vehicle with another bound of its inputs."""
        model = KINDS[self.name].model
        return model(u_max, scale_y=self.dynamics.scale_y, scale_u=self.dynamics.scale_u)


@cache
def vehicle(name: str = "tilting") -> Vehicle:
    """The paper's model with one input ("tilting"), or the one with two rotors ("planar"); units from its data."""
    if name not in KINDS:
        raise SettingError(f"there are the vehicles {', '.join(KINDS)}; got {name!r}")
    kind = KINDS[name]
    u = kind.inputs(FLIGHTS, TRAINING_SEED)
    events = kind.model().trajectory(torch.from_numpy(u))
    outputs = events.shape[2] - u.shape[2]
    sizes = events.square().mean((0, 1)).sqrt()
    sizes[: min(outputs, 2)] = (
        sizes[: min(outputs, 2)].square().mean().sqrt()
    )  # one unit of length, so discs stay discs
    dynamics = kind.model(scale_y=sizes[:outputs], scale_u=sizes[outputs:])
    modes = torch.from_numpy(modes_of(u))
    if not kind.principal:
        return Vehicle(name, dynamics, torch.diag(modes.std(0, correction=0)))
    values, vectors = torch.linalg.eigh(modes.T.cov())
    kept = values > LEAST_VARIANCE * values[-1]
    return Vehicle(name, dynamics, vectors[:, kept] * values[kept].sqrt())


@cache
def flights(name: str = "tilting") -> Tensor:
    """Outputs (10,000, S, o) in metres and rad of the flights that the network learns, as the decoder has them."""
    machine = vehicle(name)
    x = machine.encode(KINDS[name].inputs(FLIGHTS, TRAINING_SEED))
    return machine.dynamics.physical(machine.decode(x))[0]


@dataclass(frozen=True, eq=False)
class Prior:
    """A vehicle and a diffusion model of its latents."""

    name: str  # of its file, after all that went into it
    vehicle: Vehicle
    net: nn.Module  # the noise predictor
    losses: LevelLosses  # held-out losses beside those of the Gaussian model

    def diffusion(self, steps: int = 1000) -> Target:
        """Ancestral sampling of latents."""
        return ddpm(self.net, BETAS, shape=self.vehicle.dimension, steps=steps)


def prior(name: str = "tilting", training: Training | None = None, seed: int = 0) -> Prior:
    """The paper's network, trained on flights without obstacles: from the cache, or now (a minute)."""
    return _prior(name, training or Training(), seed)


@cache
def _prior(name: str, training: Training, seed: int) -> Prior:
    machine, kind = vehicle(name), KINDS[name]
    x = machine.encode(kind.inputs(FLIGHTS, TRAINING_SEED)).float()
    held_out = machine.encode(kind.inputs(HELD_OUT, HELD_OUT_SEED)).float()

    def train() -> nn.Module:
        net = MLP(machine.dimension, seed=seed) if training.net == "MLP" else WienerMLP.fit(x, BETAS, seed=seed)
        options = {"epochs": training.epochs, "learning_rate": RATE, "seed": seed}
        train_ddpm(net, x, BETAS.float(), held_out=held_out, progress=False, **options)
        return net

    title = f"quadrotor_{name}_{training.net}_{training.epochs}_{seed}"
    net = network(title, train).requires_grad_(False)
    return Prior(title, machine, net, compare_ddpm(net, Gaussian.fit(x), held_out, BETAS))
