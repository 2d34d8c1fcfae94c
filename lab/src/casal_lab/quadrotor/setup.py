"""Vehicles, the Fourier latent of their inputs, its decoder, and the networks trained on obstacle-free flights.

The inputs of a flight, each of S = 200 samples, have Fourier modes 0 .. 9: 19 real numbers an input. The latent x is
these numbers, each divided by its standard deviation in the data; for the planar vehicle, whose two forces must nearly
balance lest it tumbles, it is their principal components, each divided by its standard deviation. The decoder is
linear: inputs from their modes, and outputs from their inputs by the exact response G of the vehicle,

    (y, u) = (G F x, F x)      in units of the standard deviations of y and u,

so that every decoded flight obeys the dynamics, and only obstacles and |u| <= u_max are left to satisfy.

Then the scenes: obstacles that a flight must avoid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor, nn

from casal import LinearDynamics, Obstacles, Target, ddpm
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


# ------------------------------------------------------------------ scenes

WINDOWS = ((57, 62), (107, 112), (157, 162))
"""Samples at which the walls stand."""

FAR = 4.0
"""Metres: an end of a wall beyond every path."""

RANDOM = 1717
"""Keeps the numbers of random scenes apart from all other seeds."""

LEAST_PASSING, LEAST_MARGIN = 0.003, 0.1
"""Share of obstacle-free flights that pass a random scene at least, and room that its best class leaves, in metres."""

ALLOWED = 0.01
"""Metres: a path this deep in an obstacle still counts as a solution."""


class Wall(NamedTuple):
    """low < y < high is forbidden, in metres, for start <= s < stop."""

    start: int
    stop: int
    low: float
    high: float


class Disc(NamedTuple):
    """A disc in the (x, z) plane, in metres, that always stands."""

    x: float
    z: float
    radius: float


SCENES = ("hard", "slalom", "random", "discs")

DISCS = (
    Disc(0.7, 0.15, 0.55), Disc(-0.7, -0.15, 0.55), Disc(0.15, 0.7, 0.5), Disc(-0.15, -0.7, 0.5),
    Disc(1.6, -0.6, 0.5), Disc(-1.6, 0.6, 0.5),
)  # fmt: skip
"""A ring around the start with gaps, and two more discs behind them: 3 of 100 obstacle-free flights pass."""


@dataclass(frozen=True)
class Scene:
    """Obstacles for one vehicle: walls for the tilting one, discs for the planar one."""

    name: str
    walls: tuple[Wall, ...] = ()
    discs: tuple[Disc, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.walls) == bool(self.discs):
            raise SettingError("a scene has walls or discs, at least one and not both")

    @property
    def vehicle(self) -> Vehicle:
        """The vehicle that flies here."""
        return vehicle("tilting" if self.walls else "planar")

    @cached_property
    def obstacles(self) -> Obstacles:
        """The set of whole events (S, channels) that keep clear, in the vehicle's units."""
        unit = self.vehicle.scales
        if self.walls:
            rows = [(w.start, w.stop, w.low / float(unit[0]), w.high / float(unit[0])) for w in self.walls]
            return Obstacles(intervals=rows, channels=0)
        return Obstacles(discs=self._discs, channels=(0, 1))

    @property
    def _discs(self) -> list[tuple[list[float], float]]:
        unit = float(self.vehicle.scales[0])
        return [([d.x / unit, d.z / unit], d.radius / unit) for d in self.discs]

    @cached_property
    def rows(self) -> Tensor:
        """Indices into a flat event of the numbers that the obstacles see."""
        steps, channels = self.vehicle.event
        place = torch.arange(steps * channels).reshape(steps, channels)
        if self.walls:
            return torch.cat([place[w.start : w.stop, 0] for w in self.walls])
        return place[:, :2].reshape(-1)

    @cached_property
    def seen(self) -> Obstacles:
        """The obstacles as a set of those numbers alone."""
        if self.discs:
            return Obstacles(discs=self._discs)
        unit, rows, first = self.vehicle.scales, [], 0
        for w in self.walls:
            last = first + w.stop - w.start
            rows.append((first, last, w.low / float(unit[0]), w.high / float(unit[0])))
            first = last
        return Obstacles(intervals=rows)

    @property
    def seen_event(self) -> tuple[int, ...]:
        """Shape of those numbers."""
        return (len(self.rows),) if self.walls else (self.vehicle.event[0], 2)

    def depth(self, positions: Tensor) -> Tensor:
        """How deep paths (n, S, outputs) get into an obstacle, metres; zero or less if they keep clear."""
        worst = torch.full_like(positions[:, 0, 0], -torch.inf)
        for w in self.walls:
            part = positions[:, w.start : w.stop, 0]
            worst = torch.maximum(worst, torch.minimum(part - w.low, w.high - part).amax(1))
        for d in self.discs:
            away = torch.linalg.vector_norm(positions[..., :2] - positions.new_tensor([d.x, d.z]), dim=2)
            worst = torch.maximum(worst, (d.radius - away).amax(1))
        return worst

    def classes(self, positions: Tensor) -> Tensor:
        """The class (n,) of paths (n, S, outputs): bits, the first obstacle's the highest."""
        label = torch.zeros(len(positions), dtype=torch.long)
        for w in self.walls:
            label = 2 * label + (positions[:, (w.start + w.stop) // 2, 0] > (w.low + w.high) / 2)
        for d in self.discs:
            away = positions[..., :2] - positions.new_tensor([d.x, d.z])
            angle = torch.atan2(away[..., 1], away[..., 0])
            turn = torch.remainder(angle.diff(dim=1) + np.pi, 2 * np.pi) - np.pi
            label = 2 * label + (turn.sum(1) > 0)
        return label

    def margins(self, u_max: float = physics.TILT) -> dict[int, float]:
        """The margin of every class of walls in metres, by linear programmes; negative where it cannot be flown."""
        return {label: self.margin(label, u_max) for label in range(2 ** len(self.walls))}

    def margin(self, label: int, u_max: float = physics.TILT) -> float:
        """The margin of one class."""
        sides = [bool(label >> k & 1) for k in reversed(range(len(self.walls)))]
        return _margin(self.vehicle.with_limit(u_max), self.walls, sides)


def _margin(model: LinearDynamics, walls: Sequence[Wall], sides: Sequence[bool]) -> float:
    """The largest m with which a path passes each wall above (True) or below."""
    steps = model.steps
    unit = torch.eye(steps, dtype=torch.float64)[:, :, None]
    response = model.rollout(unit)[:, :, 0].numpy().T  # column j: the path after one unit of u in interval j
    matrix, level = [], []
    for wall, above in zip(walls, sides, strict=True):
        part = response[wall.start : wall.stop]
        matrix.append(np.hstack([-part if above else part, np.ones((len(part), 1))]))
        level.append(np.full(len(part), -wall.high if above else wall.low))
    limit = float(model.u_max[0])
    found = linprog(
        np.r_[np.zeros(steps), -1.0],
        A_ub=np.vstack(matrix),
        b_ub=np.concatenate(level),
        bounds=[(-limit, limit)] * steps + [(None, None)],
        method="highs",
    )
    return float(found.x[-1])


def scene(name: str, *, r: float = 0.8, seed: int = 0) -> Scene:
    """A scene by name.

    Args:
        name: "hard", "slalom" (its middle wall can be passed on both sides), "random", or "discs" (planar vehicle).
        r: Half height of the last wall of "hard" and "slalom", metres.
        seed: Of "random".
    """
    if name in ("hard", "slalom"):
        if not 0.0 < r < np.inf:
            raise SettingError(f"r must be > 0 and finite, got {r}")
        middle = (-FAR, 0.3) if name == "hard" else (-0.8, 0.3)
        bounds = [(-0.1, 0.5), middle, (0.5 - r, 0.5 + r)]
        return Scene(f"{name}, r = {r:g}", tuple(Wall(*w, *b) for w, b in zip(WINDOWS, bounds, strict=True)))
    if name == "random":
        return random(seed)
    if name == "discs":
        return Scene(name, discs=DISCS)
    raise SettingError(f"there are the scenes {', '.join(SCENES)}; got {name!r}")


def random(seed: int) -> Scene:
    """Three walls drawn at random: at least 3 in 1000 obstacle-free flights pass, and some class leaves 10 cm.

    The middle of a wall is uniform within one standard deviation of y at its time, its half height between 0.5 and 1.5
    of them; one wall in four has one end beyond every path.
    """
    rng = np.random.default_rng([RANDOM, seed])
    paths = flights()
    while True:
        walls = []
        for start, stop in WINDOWS:
            size = float(paths[:, (start + stop) // 2, 0].std())
            middle, half = size * rng.uniform(-1, 1), size * rng.uniform(0.5, 1.5)
            low, high, end = middle - half, middle + half, rng.uniform()
            walls.append(Wall(start, stop, -FAR if end < 1 / 8 else low, FAR if end > 7 / 8 else high))
        found = Scene(f"random, seed {seed}", tuple(walls))
        passing = float((found.depth(paths) <= 0).double().mean())
        if passing >= LEAST_PASSING and max(found.margins().values()) >= LEAST_MARGIN:
            return found
