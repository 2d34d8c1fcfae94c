"""Compiled steps against eager ones, on the kinds of models that experiments and users have.

A gradient that closes over arrays in another dtype, an autograd energy, constants behind ``lru_cache``, a method of an
object, a network; and all of it made anew for every call, as a function that sets a problem up does. The benchmark of
the field alone hides what such code costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import lru_cache

import torch
from torch import Tensor, nn

import casal
from benchmarks.timing import Case, Race, Table

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


KINDS: dict[str, Callable[[], casal.Target]] = {
    "closure over float64": closure,
    "lru_cached constants": cached,
    "autograd energy": energy,
    "method of an object": method,
    "network 50-64-50": network,
}


def run(make: Callable[[], casal.Target], compile: bool) -> Case:
    """Processor seconds of a run whose target, set and method are made for it."""

    def timed() -> float:
        target, ball, kind = make(), casal.Sphere(15.0**0.5), casal.CASAL(casal.linear(2.0, 20.0))
        began = time.process_time()
        casal.sample(target, ball, kind, CHAINS, threads=1, compile=compile, check=False)
        return time.process_time() - began

    return timed


def tables(quick: bool) -> Iterator[Table]:
    """Microseconds of processor time per step of 1000 chains; the base of each kind is its eager run."""
    for name, make in KINDS.items():
        race = Race(
            f"Compiled steps: {name}, {CHAINS} chains x {SIZE}, {STEPS} steps, CASAL, made anew for each call",
            1e-6 * STEPS * CHAINS / 1000,
            "us of processor time a step of 1000 chains",
            ("eager",),
            repeats=3 if quick else 7,
            note="Made anew for each call: what is compiled is found again by its code and values.",
        )
        race.cases = {"eager": run(make, False), "compiled": run(make, True)}
        yield race.table()
