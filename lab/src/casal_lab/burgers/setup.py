"""Set-ups of the Burgers experiment: truths, the Fourier latent, its decoder, the trained networks.

Truths have 20 Fourier modes, as the paper says: the equation is cut to them, which keeps mass and energy.

A field u on N = 200 points has Fourier coefficients c = F^T u, modes 0 .. 9, 19 real numbers. The network works on
x_j = c_j / sigma_j, each standardised by its size in the training data; the decoder is A = F diag(sigma_j / s0) with
s0 = max sigma_j, so that |A| = 1 and A x = u / s0.

Then the sets of fields of given mass and energy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from casal import Constraint, Fourier, MassEnergy, PerChain, Target, ddpm
from casal.errors import InfeasibleSet
from casal_lab.artifacts import network, points
from casal_lab.nets import MLP, Gaussian, LevelLosses, WienerMLP, compare_ddpm, train_ddpm
from casal_lab.physics.burgers import Burgers, energy, mass, random_states
from casal_lab.problems.families import BETAS

POINTS = 200
FIELD_MODES = 20
"""Modes of the data beside the mean; the paper works in Fourier space with the first 20."""

MODES = 10
"""Modes of the latent, the mean among them."""

DIMENSION = 2 * MODES - 1
TIMES = 10
RECORDED, SNAPSHOTS = 4.0, 10
"""Time units of a training trajectory, and how often it is recorded. Assimilation goes on for twice as long."""

SITES = (0, 50, 100, 150)
BASIS = Fourier(MODES, POINTS).matrix((DIMENSION,), torch.zeros((0, DIMENSION), dtype=torch.float64))
"""F as a matrix (200, 19)."""

TRAINING_SEED, HELD_OUT_SEED, TUNING_SEED = 7001, 7002, 7003
"""Truths of these seeds are never reported."""


@dataclass(frozen=True)
class Setup:
    """Amplitude of the initial fields, horizon H, damping gamma of the forecast, noise of the observations."""

    name: str
    amplitude: float
    horizon: float = 8.0
    damping: float = 0.15
    noise: float = 0.1  # standard deviation, in units of the amplitude

    @property
    def spacing(self) -> float:
        """Time between two observations, H/10."""
        return self.horizon / TIMES

    @property
    def times(self) -> Tensor:
        """The ten observation times."""
        return torch.arange(1, TIMES + 1, dtype=torch.float64) * self.spacing


SETUPS = {"A": Setup("A", 0.05), "B": Setup("B", 0.1)}
"""The paper does not give the amplitude; B is steep and rich in shocks. All else is the same."""

PLAIN, WIENER = "the paper's network", "our network"
"""Kinds of networks: the MLP alone, or the same MLP as a correction of the Gaussian score."""

SOLVER = Burgers(POINTS, modes=FIELD_MODES)


class Training(NamedTuple):
    """Trajectories (ten snapshots each), epochs, decay of the averaged weights (None: one that suits short runs)."""

    trajectories: int = 1000
    epochs: int = 200
    ema: float | None = 0.999


class Truth(NamedTuple):
    """Trajectories and what is seen of them."""

    initial: Tensor  # fields at time zero, (n, points)
    fields: Tensor  # at the observation times, (10, n, points)
    observed: Tensor  # noisy values at the sites, (10, n, 4)
    mass: Tensor  # of the initial fields, (n,)
    energy: Tensor  # likewise

    def __len__(self) -> int:
        return len(self.mass)

    def first(self, n: int) -> Truth:
        """The first n trajectories."""
        return Truth(self.initial[:n], self.fields[:, :n], self.observed[:, :n], self.mass[:n], self.energy[:n])


def truths(setup: Setup, n: int, seed: int) -> Truth:
    """n trajectories with their observations."""
    generator = torch.Generator().manual_seed(seed)
    initial = random_states(n, setup.amplitude, generator, points=POINTS)
    fields = SOLVER.trajectory(initial, setup.times)
    noise = torch.randn((TIMES, n, len(SITES)), generator=generator, dtype=torch.float64)
    observed = fields[:, :, list(SITES)] + setup.noise * setup.amplitude * noise
    return Truth(initial, fields, observed, mass(initial), energy(initial))


def joined(parts: list[Truth]) -> Truth:
    """Trajectories side by side."""
    along = (0, 1, 1, 0, 0)
    return Truth(*(torch.cat(fields, dim) for fields, dim in zip(zip(*parts, strict=True), along, strict=True)))


def climatology(setup: Setup, trajectories: int, seed: int) -> Tensor:
    """Coefficients of ten snapshots of each of many trajectories, (10 trajectories, 19), from the cache or made now."""

    def make() -> Tensor:
        initial = random_states(trajectories, setup.amplitude, torch.Generator().manual_seed(seed), points=POINTS)
        times = torch.arange(1, SNAPSHOTS + 1, dtype=torch.float64) * (RECORDED / SNAPSHOTS)
        return (SOLVER.trajectory(initial, times) @ BASIS).reshape(-1, DIMENSION)

    return points(f"burgers_20modes_{setup.amplitude:g}_{trajectories}_{seed}", make)


@dataclass(frozen=True, eq=False)
class Model:
    """A latent and the diffusion model on it."""

    setup: Setup  # where the data come from
    sigma: Tensor  # size of every coefficient in the training data, (19,)
    scale: Tensor  # c_j = scale_j x_j: sigma, or one number for all
    net: nn.Module  # the noise predictor
    losses: LevelLosses  # held-out losses beside those of the Gaussian model of the same latent

    @property
    def unit(self) -> float:
        """s0: decoded fields are u / s0."""
        return float(self.scale.max())

    @cached_property
    def decoder(self) -> Fourier:
        """A = F diag(scale / s0)."""
        return Fourier(MODES, POINTS, scale=self.scale / self.unit)

    def prior(self, steps: int) -> Target:
        """Ancestral sampling of x."""
        return ddpm(self.net, BETAS, shape=DIMENSION, steps=steps)


def model(setup: Setup, training: Training, seed: int, *, kind: str = WIENER, per_mode: bool = True) -> Model:
    """The trained model, from the cache or trained now: the paper's MLP, alone or as a correction of a Gaussian score.

    Every coefficient is standardised by itself (``per_mode``), or all by one number.
    """
    data = climatology(setup, training.trajectories, TRAINING_SEED)
    fresh = climatology(setup, max(training.trajectories // 10, 10), HELD_OUT_SEED)
    sigma = data.square().mean(0).sqrt()
    scale = sigma if per_mode else torch.full_like(sigma, float(sigma.square().mean().sqrt()))
    x, held_out = (data / scale).float(), (fresh / scale).float()

    def train() -> nn.Module:
        net = MLP(DIMENSION, seed=seed) if kind == PLAIN else WienerMLP.fit(x, BETAS, seed=seed)
        epochs, ema = training.epochs, training.ema
        train_ddpm(net, x, BETAS.float(), epochs=epochs, ema=ema, seed=seed, held_out=held_out, progress=False)
        return net

    scaled = "mode" if per_mode else "global"
    word = "mlp" if kind == PLAIN else "wiener"
    name = f"burgers_20modes_{word}_{setup.amplitude:g}_{training.trajectories}_{training.epochs}_{scaled}_{seed}"
    net = network(name, train).requires_grad_(False)
    return Model(setup, sigma, scale, net, compare_ddpm(net, Gaussian.fit(x), held_out, BETAS))


# ------------------------------------------------------------------ sets of given mass and energy

SWEEPS = 60


def radius(mass: Tensor, energy: Tensor, size: int) -> Tensor:
    """r = sqrt(E - M^2 / N), (n,)."""
    square = energy - mass.square() / size
    if not bool((square > 0).all()):
        raise InfeasibleSet(f"energy {float(energy.min()):g} below mass^2 / N: no field has so little")
    return square.sqrt()


def nearest_field(u: Tensor, mass: Tensor, energy: Tensor) -> Tensor:
    """The nearest fields of mass M_i and energy E_i, for fields (..., n, N) with (n,) masses and energies."""
    fields = u.reshape(-1, u.shape[-1])
    copies = len(fields) // len(mass)
    inside = MassEnergy(PerChain(mass.repeat(copies)), PerChain(energy.repeat(copies)))
    return inside.project(fields).reshape(u.shape)


class Conserved(MassEnergy):
    """Mass and energy of each chain, its residual ((sum z - M) / sqrt(N), |z|^2 - E): both of the size of z.

    A penalty on the residual then weighs both alike.
    """

    def equations(self, z: Tensor) -> Tensor:
        return super().equations(z) * z.new_tensor([z.shape[1] ** -0.5, 1.0])

    def _residual_pull(self, z: Tensor, weights: Tensor) -> Tensor:
        return (z * (2.0 * weights[:, 1:])).add_(weights[:, :1] / math.sqrt(z.shape[1]))


def errors(z: Tensor, mass: Tensor, energy: Tensor) -> tuple[Tensor, Tensor]:
    """|sum z - M| / (sqrt(N E) + |M|) and | |z|^2 - E | / E, for fields (..., n, N)."""
    size = z.shape[-1]
    off = (z.sum(-1) - mass).abs() / ((size * energy).sqrt() + mass.abs())
    return off, (z.square().sum(-1) - energy).abs() / energy


def least_on_sphere(precision: Tensor, mean: Tensor, length: Tensor) -> Tensor:
    """argmin (v - m)^T K (v - m) over |v| = r: v = (K + nu I)^-1 K m, nu > -k_min with |v| = r.

    1/|v| grows with nu and is concave, so Newton's steps from the left of the one root never pass it; the root is the
    global minimum. If m has no part along the softest direction (the "hard case"), |v| may be below r for every nu;
    that part of v then makes up for it.

    Args:
        precision: K (d, d), positive definite.
        mean: m (n, d).
        length: r (n,), positive.

    References:
        More and Sorensen (1983), Computing a trust region step.
    """
    values, vectors = torch.linalg.eigh(precision)
    pull = (mean @ vectors) * values
    gaps = values - values[0]
    nu = (pull.abs() / length[:, None] - gaps).amax(1).clamp_min(1e-14 * float(values[0]))
    for _ in range(SWEEPS):
        v = pull / (gaps + nu[:, None])
        square = v.square().sum(1)
        slope = (v.square() / (gaps + nu[:, None])).sum(1)
        rise = (square / slope.clamp_min(1e-300)) * (square.sqrt() / length - 1.0)
        nu = nu + rise.clamp_min(0.0)
        if bool((rise <= 1e-15 * (nu + values[0])).all()):
            break
    found = pull / (gaps + nu[:, None])
    rest = (length.square() - found[:, 1:].square().sum(1)).clamp_min(0.0).sqrt()
    found[:, 0] = torch.where(pull[:, 0] < 0, -rest, rest)
    found = found * (length / torch.linalg.vector_norm(found, dim=1))[:, None]
    return found @ vectors.T


def least_conserving(precision: Tensor, mean: Tensor, mass: Tensor, energy: Tensor, size: int) -> Tensor:
    """argmin (c - m)^T K (c - m) over coefficients c (n, d) of the given mass and energy on ``size`` points.

    c_0 is fixed by the mass; what is left is a Gaussian given c_0, on a sphere.
    """
    first = mass / math.sqrt(size)
    inner = precision[1:, 1:]
    given = mean[:, 1:] - (first - mean[:, 0])[:, None] * torch.linalg.solve(inner, precision[1:, 0])
    return torch.cat([first[:, None], least_on_sphere(inner, given, radius(mass, energy, size))], dim=1)


class ConservedLatents(Constraint):
    """{x : the field with coefficients scale_j x_j has mass M_i and energy E_i}, its nearest point in x.

    Args:
        scale: (d,).
        mass: M_i, PerChain.
        energy: E_i, PerChain.
        size: N.
    """

    per_chain = ("mass", "energy")

    def __init__(self, scale: Tensor, mass: PerChain, energy: PerChain, size: int) -> None:
        self.scale, self.mass, self.energy, self.size = scale, mass, energy, size
        self.chains = mass.chains

    def _project(self, x: Tensor) -> Tensor:
        metric = torch.diag(self.scale.pow(-2))
        wanted = self.mass.values, self.energy.values
        return least_conserving(metric, x * self.scale, *wanted, self.size) / self.scale

    def _violation(self, x: Tensor) -> Tensor:
        c, M, E = x * self.scale, self.mass.values, self.energy.values
        off = (math.sqrt(self.size) * c[:, 0] - M).abs() / ((self.size * E).sqrt() + M.abs())
        return torch.maximum(off, (c.square().sum(1) - E).abs() / E)
