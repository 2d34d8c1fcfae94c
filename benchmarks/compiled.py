"""Compiled steps against eager ones, on the kinds of models that experiments and users have.

A gradient that closes over arrays in another dtype, an autograd energy, constants behind ``lru_cache``, a method of an
object, a network; and all of it made anew for every call, as a function that sets a problem up does. The benchmark of
the field alone hides what such code costs.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import casal
from benchmarks.timing import Case, Table, ratios
from casal.errors import CasalWarning
from casal_lab.particle import setup as particle
from casal_lab.problems import field
from casal_lab.problems.families import FAMILIES
from casal_lab.problems.three_modes import MIXTURE

SIZE, CHAINS, STEPS = 50, 4096, 200


def start(n: int, generator: torch.Generator) -> Tensor:
    return torch.randn((n, SIZE), generator=generator)


def closure() -> casal.Target:
    """A gradient that closes over a float64 array."""
    curvature = torch.linspace(1.0, 40.0, SIZE, dtype=torch.float64)

    def gradient(x: Tensor) -> Tensor:
        u = x[:, :2] + 1.0
        well = 0.5 * (u**3 - 0.7 * u**2 - 1.7 * u)
        return torch.cat([well, curvature[2:].to(x) * x[:, 2:]], dim=1)

    return casal.langevin(gradient, steps=STEPS, step_size=1e-3, init=start)


@lru_cache
def constants(size: int) -> Tensor:
    return torch.linspace(1.0, 40.0, size, dtype=torch.float64)


def cached() -> casal.Target:
    """Constants from a function that remembers them."""
    return casal.langevin(lambda x: constants(SIZE).to(x) * x, steps=STEPS, step_size=1e-3, init=start)


def energy() -> casal.Target:
    """An energy, differentiated by torch."""
    curvature = torch.linspace(1.0, 40.0, SIZE)
    return casal.energy(
        lambda x: 0.5 * (curvature * x.square()).sum(1) + torch.cos(x).sum(1), steps=STEPS, step_size=1e-3, init=start
    )


class Problem:
    """A gradient that is a method, as in the experiments."""

    def __init__(self) -> None:
        self.curvature = torch.linspace(1.0, 40.0, SIZE, dtype=torch.float64)

    def gradient(self, x: Tensor) -> Tensor:
        return self.curvature.to(x) * x + 0.1 * torch.sin(x)


def method() -> casal.Target:
    return casal.langevin(Problem().gradient, steps=STEPS, step_size=1e-3, init=start)


@lru_cache
def _network() -> nn.Module:
    net = nn.Sequential(nn.Linear(SIZE, 64), nn.SiLU(), nn.Linear(64, SIZE))
    return net.requires_grad_(False)


def network() -> casal.Target:
    return casal.langevin(_network(), steps=STEPS, step_size=1e-3, init=start)


def network_energy() -> casal.Target:
    """A network that gives an energy, differentiated by torch."""
    net = _network()
    return casal.energy(lambda x: net(x).square().sum(1), steps=STEPS, step_size=1e-3, init=start)


class Kind(NamedTuple):
    """A model with a set and a method, all made anew for each call."""

    make: Callable[[], casal.Target]
    constraint: Callable[[], casal.Constraint] = lambda: casal.Sphere(15.0**0.5)
    method: Callable[[], casal.Method[Any]] = lambda: casal.CASAL(casal.linear(2.0, 20.0))


def mixture(family: str) -> Kind:
    """A model of the mixture experiment on its circle."""
    return Kind(
        lambda: FAMILIES[family](MIXTURE, STEPS),
        lambda: casal.Sphere(2.0),
        lambda: casal.CASAL(casal.geometric(0.5, 50.0)),
    )


EXPERIMENTS: dict[str, Kind] = {
    "field experiment": Kind(lambda: field.STIFF.plain(STEPS)),
    "field experiment, preconditioned": Kind(lambda: field.STIFF.preconditioned(STEPS)),
    "particle experiment": Kind(
        lambda: particle.plain(particle.OURS._replace(steps=STEPS)),
        lambda: casal.Sphere(particle.RADIUS),
        lambda: casal.CASAL(particle.OURS.rho, burn_in=0.1),
    ),
    "mixture experiment, langevin": mixture("langevin"),
    "mixture experiment, annealed": mixture("annealed"),
    "mixture experiment, ddpm": mixture("ddpm"),
}
"""The gradients of the experiments as they are: float64 in the field and the particle, float32 in the mixture."""

USERS: dict[str, Kind] = {
    "closure over float64": Kind(closure),
    "lru_cached constants": Kind(cached),
    "autograd energy": Kind(energy),
    "energy of a network": Kind(network_energy),
    "method of an object": Kind(method),
    "network 50-64-50": Kind(network),
}
"""Kinds of gradients that users write, float32."""


def run(kind: Kind, compile: bool, told: list[str]) -> Case:
    """Processor seconds of the steps of a run after the first ones, in which they are compiled."""

    def timed() -> float:
        target, constraint, own = kind.make(), kind.constraint(), kind.method()
        clock = list[tuple[float, int]]()
        how = casal.Run(
            threads=1, compile=compile, callback=lambda view: clock.append((time.process_time(), view.step))
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CasalWarning)
            result = casal.sample(target, constraint, own, CHAINS, check=False, run=how)
        if compile:
            told.append(str(result.provenance.get("compile_note") or ""))
        steps = STEPS * -(-CHAINS // result.provenance["batch"])
        return (clock[-1][0] - clock[0][0]) * steps / (steps - clock[0][1])

    return timed


def tables(quick: bool) -> Iterator[Table]:
    """Milliseconds of the steps of a run, compiled and eager, and their ratio; what compiling takes in every run."""
    for title, kinds in (("gradients of the experiments", EXPERIMENTS), ("kinds of gradients that users write", USERS)):
        rows = []
        for name, kind in kinds.items():
            told: list[str] = []
            cases = {"eager": run(kind, False, told), "compiled": run(kind, True, told)}
            began = time.process_time()
            steps = cases["compiled"]()
            first = time.process_time() - began - float(str(steps))
            eager, compiled = ratios(name, cases, "eager", 3 if quick else ROUNDS).rows
            rows.append(
                {
                    "model": name,
                    "eager, ms": eager["median, ms"],
                    "compiled, ms": compiled["median, ms"],
                    "compiled / eager": compiled["/ eager, median"],
                    "middle half": compiled["middle half"],
                    "compiling, s": first,
                    "what the result says": told[-1],
                }
            )
        yield Table(
            f"Compiled steps: {title}, {CHAINS} chains, {STEPS} steps, CASAL, made anew for each call",
            rows,
            "Processor time of the steps after the first ones, in runs that take turns; median and middle half of the "
            "ratios within a round. Every run compiles anew.",
        )


ROUNDS = 11
"""Runs of each model, eager and compiled in turn."""
