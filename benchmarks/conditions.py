"""Many conditions in one call: 32 conditions with 100 chains each, against one call of 3200 chains of one condition.

And the step of CASAL with a set for each chain, against that with one set for all.

Times are those of the processor, not of the clock, so that a busy machine counts less. The cases of a group take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

import casal
from benchmarks.implicit import loop
from benchmarks.timing import Case, Race, Table, steps_in_turn
from casal.methods import Method

SIZE, WIDTH = 64, 256


class Labelled(nn.Module):
    """A denoiser of 64 numbers with a residual network, given a label or an embedding of one."""

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(labels, WIDTH)
        self.first, self.middle, self.last = nn.Linear(SIZE + 1, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, SIZE)

    def forward(self, x: Tensor, sigma: Tensor, label: Tensor) -> Tensor:
        level = (sigma.log() / 4).reshape(-1, 1).expand(len(x), 1)
        scale = (1 + sigma**2).rsqrt()
        h = torch.relu(self.first(torch.cat([scale * x, level], 1)) + self.embed(label))
        out: Tensor = scale**2 * x + 0.1 * sigma * scale * self.last(torch.relu(self.middle(h)))
        return out


def tables(quick: bool = False) -> Iterator[Table]:
    """Seconds of a whole call; ``quick`` takes fewer rounds and conditions."""
    conditions, repeats = (8, 2) if quick else (32, 5)
    yield _race("CASAL", casal.CASAL(10.0), conditions, repeats)
    yield _race("SplitGibbs", casal.SplitGibbs(0.1, levels=8, inner_steps=6), conditions, repeats)
    for chains, size in ((1000, 10),) if quick else ((1000, 10), (4096, 50)):
        for dtype in (torch.float32, torch.float64):
            title = f"A step of CASAL with {{}}, {chains} chains x {size}, {str(dtype)[6:]}"
            for name, (common, own) in _sets(chains, size).items():
                runs = {"common": loop(common, size, chains, dtype, 1e-2, 10.0)}
                runs["for each chain"] = loop(own, size, chains, dtype, 1e-2, 10.0)
                yield steps_in_turn(title.format(name), runs, "common", 3 * repeats)


def _sets(chains: int, size: int) -> dict[str, tuple[casal.Constraint, casal.Constraint]]:
    """The same set for all chains, and with parameters that are given for each."""
    draw = torch.Generator().manual_seed(0)
    rows, middle = (torch.randn(k, size, generator=draw, dtype=torch.float64) for k in (3, 1))

    def each(value: float | Tensor) -> casal.PerChain:
        known = torch.as_tensor(value, dtype=torch.float64)
        return casal.PerChain(known.expand(chains, *known.shape))

    center, level, low, high = middle[0], torch.ones(3), -torch.ones(size), torch.ones(size)
    return {
        "Sphere": (casal.Sphere(2.0), casal.Sphere(each(2.0))),
        "Sphere around a point": (casal.Sphere(2.0, center), casal.Sphere(each(2.0), each(center))),
        "Ball": (casal.Ball(2.0), casal.Ball(each(2.0))),
        "Box": (casal.Box(low, high), casal.Box(each(low), each(high))),
        "Affine": (casal.Affine(rows, level), casal.Affine(rows, each(level))),
        "HalfSpace": (casal.HalfSpace(center, 1.0), casal.HalfSpace(center, each(1.0))),
        "MassEnergy": (casal.MassEnergy(1.0, 3.0), casal.MassEnergy(each(1.0), each(3.0))),
    }


def _race(name: str, method: Method[object], conditions: int, repeats: int) -> Table:
    torch.manual_seed(0)
    network, each = Labelled(conditions), 100
    n = conditions * each
    label = torch.arange(conditions).repeat_interleave(each)
    level = torch.linspace(-1.0, 1.0, conditions, dtype=torch.float64).repeat_interleave(each)
    rows = torch.ones(1, SIZE)

    def model(label: Tensor) -> casal.Target:
        sigmas = casal.karras_sigmas(20, 0.05, 10.0)
        return casal.edm(network, sigmas, shape=SIZE, churn=1.0, time="scalar", condition={"label": label})

    def bare(x: Tensor, sigma: Tensor) -> Tensor:
        return network(x, sigma, torch.zeros(len(x), dtype=torch.long))  # type: ignore[no-any-return]

    plain = casal.edm(bare, casal.karras_sigmas(20, 0.05, 10.0), shape=SIZE, churn=1.0, time="scalar")
    common = casal.Affine(rows, 0.5)
    own = casal.Affine(rows, casal.PerChain(level[:, None]))

    def call(target: casal.Target, constraint: casal.Constraint, chains: int) -> object:
        return casal.sample(target, constraint, method, chains, check=False, run=casal.Run(threads=1))

    def one_by_one() -> None:
        for k in range(conditions):
            call(model(torch.full((each,), k)), common, each)

    base = f"one call of {n}, no condition"
    cases: dict[str, Callable[[], object]] = {
        base: lambda: call(plain, common, n),
        f"{conditions} conditions x {each}, one call": lambda: call(model(label), common, n),
        f"{conditions} conditions and sets x {each}, one call": lambda: call(model(label), own, n),
        f"{conditions} calls of {each}": one_by_one,
    }

    def timed(run: Callable[[], object]) -> Case:
        def case() -> float:
            began = time.process_time()
            run()
            return time.process_time() - began

        return case

    title = f"{conditions} conditions in one call, {name}, {SIZE} dimensions"
    return Race(title, 1.0, "s", (base,), repeats, "", {key: timed(run) for key, run in cases.items()}).table()
