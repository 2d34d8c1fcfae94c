"""The field problem of the paper: 50 coefficients, a double well in two of them, a fixed energy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import casal
from benchmarks.timing import Case, Race, Table

SIZE, STEPS = 50, 200
SPHERE = casal.Sphere(15.0**0.5)
_LENGTH = torch.hypot(*torch.meshgrid(torch.arange(5.0), torch.arange(5.0), indexing="ij")).reshape(-1)
_CURVATURE = (10.0 * (1.0 + _LENGTH) ** 2).repeat_interleave(2)[2:]

METHODS: dict[str, casal.Method[Any]] = {
    "unconstrained": casal.Unconstrained(),
    "projected": casal.Projected(),
    "penalty": casal.Penalty(0.1),
    "CASAL": casal.CASAL(casal.linear(2.0, 20.0)),
    "WeightedCASAL": casal.WeightedCASAL(20.0),
}


def gradient(x: Tensor) -> Tensor:
    u = x[:, :2] + 1.0
    return torch.cat([0.5 * u * (u * (u - 0.7) - 1.7), _CURVATURE * x[:, 2:]], dim=1)


def start(n: int, generator: torch.Generator) -> Tensor:
    scale = torch.cat([torch.full((2,), 1.5), _CURVATURE.rsqrt()])
    return torch.randn((n, SIZE), generator=generator) * scale


def target(steps: int) -> casal.Target:
    return casal.langevin(gradient, steps=steps, step_size=1e-3, init=start)


def noise(n: int, steps: int) -> Case:
    """Nothing but the random numbers of a run, batch by batch."""
    generator, batch = torch.Generator().manual_seed(0), 4096

    def draw() -> None:
        for first in range(0, n, batch):
            for _ in range(steps):
                torch.randn((min(batch, n - first), SIZE), generator=generator)

    return draw


def run(model: casal.Target, method: casal.Method[Any], n: int, **options: Any) -> Case:
    """A whole call, by its own clock."""
    return lambda: casal.sample(model, SPHERE, method, n, run=casal.Run(**options)).cost.seconds


def tables(quick: bool) -> Iterator[Table]:
    """Microseconds per step of 1000 chains, one thread; eager and compiled."""
    for n in (1000, 4096) if quick else (1000, 4096, 100_000, 1_000_000):
        yield methods(n, quick)
    yield per_chain((4096, 40_960) if quick else (4096, 1_048_576))
    yield threads(20_000, quick)


def methods(n: int, quick: bool) -> Table:
    steps = STEPS if n < 50_000 else 20
    race = Race(
        f"Field problem, {n} chains x {SIZE}, float32, {steps} steps, one thread",
        1e-6 * steps * n / 1000,
        "us a step of 1000 chains",
        ("noise draw", "unconstrained", "unconstrained, compiled"),
        repeats=2 if n > 50_000 else 5 if quick else 9,
    )
    model = target(steps)
    race.cases["noise draw"] = noise(n, steps)
    for compile in (False, True):
        for name, method in METHODS.items():
            if n < 1_000_000 or name in ("unconstrained", "CASAL", "WeightedCASAL"):
                label = f"{name}, compiled" if compile else name
                race.cases[label] = run(model, method, n, threads=1, compile=compile)
    return race.table()


def per_chain(sizes: tuple[int, int]) -> Table:
    """The cost of one chain and step must not grow with their number."""
    small, large = sizes
    model = target(20)
    repeats = large // small
    race = Race(f"CASAL, {large} chains against {small}", 1e-9 * 20 * large, "ns a chain and step", (f"{small}",), 3)

    def again() -> float:
        return sum(float(run(model, METHODS["CASAL"], small, threads=1)()) for _ in range(repeats))  # type: ignore[arg-type]

    race.cases |= {f"{small}": again, f"{large}": run(model, METHODS["CASAL"], large, threads=1)}
    return race.table()


def threads(n: int, quick: bool) -> Table:
    race = Race(
        f"Threads, {n} chains x {SIZE}, {STEPS} steps",
        1e-6 * STEPS * n / 1000,
        "us a step of 1000 chains",
        tuple(f"{name}, 1 thread" for name in ("unconstrained", "CASAL", "CASAL compiled")),
        repeats=2 if quick else 5,
        note="Two threads count only on a machine with two idle cores.",
    )
    model = target(STEPS)
    for count in (1, 2) if (torch.get_num_threads() < 4) else (1, 2, 4):
        label = f"{count} thread{'s' if count > 1 else ''}"
        for name in ("unconstrained", "CASAL"):
            race.cases[f"{name}, {label}"] = run(model, METHODS[name], n, threads=count)
        race.cases[f"CASAL compiled, {label}"] = run(model, METHODS["CASAL"], n, threads=count, compile=True)
    return race.table()
