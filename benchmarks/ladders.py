"""What ladders cost beside their network: runs with a UNet of 0.9 million parameters, and with one that costs nothing.

An evaluation of a run without the network is all that a method does beside it: moves, projections, weights, meetings,
certificates. Times are those of the processor. Derivatives of the network count as the network.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import casal
from benchmarks.diffusers_steps import SIDE, unet
from benchmarks.timing import Table

BATCHES = (1, 4, 16, 64, 256)
TOTAL = casal.Affine(torch.ones(1, SIDE * SIDE), 20.0)

METHODS: dict[str, tuple[casal.Method[Any], casal.Constraint]] = {
    "SplitGibbs": (casal.SplitGibbs(0.5, levels=4, inner_steps=4, moves="metropolis"), TOTAL),
    "Matheron inside": (casal.Matheron(levels=5), casal.Box(-2.0, 2.0)),
}


class Nothing(nn.Module):
    """A denoiser that costs nothing and that autograd sees through: the one of a standard normal distribution."""

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        return x / (1.0 + sigma.reshape(-1, *[1] * (x.ndim - 1)) ** 2)


class Denoiser(nn.Module):
    """The same with a UNet beside it, small enough to leave the distribution near the normal one."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.plain = network, Nothing()

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        level = (sigma.log() / 4).reshape(-1).expand(len(x))
        found: Tensor = self.network(x, level).sample
        out: Tensor = self.plain(x, sigma) + 1e-3 * found
        return out


def model(network: nn.Module) -> casal.Target:
    sigmas = casal.karras_sigmas(8, 0.05, 10.0)
    return casal.edm(network, sigmas, shape=(1, SIDE, SIDE), churn=1.0, time="scalar")


def seconds_an_evaluation(network: nn.Module, name: str, n: int) -> tuple[float, float]:
    """Seconds of the processor for an evaluation of n chains in a whole call, and the evaluations of a chain."""
    method, constraint = METHODS[name]
    began = time.process_time()
    result = casal.sample(model(network), constraint, method, n, check=False, run=casal.Run(threads=1))
    spent, cost = time.process_time() - began, result.cost
    evaluations = cost.score_evaluations + cost.check_evaluations
    return spent / evaluations, evaluations


def tables(quick: bool = False) -> Iterator[Table]:
    """Overheads of whole calls, and what a sample costs the network in batches of several sizes."""
    n, repeats = (16, 1) if quick else (64, 3)
    network = unet()
    real, nothing = Denoiser(network), Nothing()
    yield batches(network, repeats)
    rows = []
    for name in METHODS:
        found = [
            (seconds_an_evaluation(nothing, name, n), seconds_an_evaluation(real, name, n)) for _ in range(repeats)
        ]
        free, whole = ([time for time, _ in column] for column in zip(*found, strict=True))
        shares = [a / b for a, b in zip(free, whole, strict=True)]
        rows.append(
            {
                "method": name,
                "evaluations": found[0][1][1],
                "ms an evaluation": 1e3 * min(whole),
                "of it the method, ms": 1e3 * min(free),
                "/ network alone": 1.0 / (1.0 - median(shares)),
                "from": 1.0 / (1.0 - min(shares)),
                "to": 1.0 / (1.0 - max(shares)),
            }
        )
    count = sum(part.numel() for part in network.parameters())
    note = f"{n} fields of {SIDE} x {SIDE}, {count:,} parameters, one thread; ratios are medians over {repeats} rounds."
    yield Table("Ladders beside their network evaluations", rows, note)


def batches(network: Any, repeats: int) -> Table:
    """What one sample costs the network."""
    spent = {size: list[float]() for size in BATCHES}
    with torch.no_grad():
        for _ in range(repeats + 1):
            for size, times in spent.items():
                x, t = torch.zeros(size, 1, SIDE, SIDE), torch.ones(size)
                began = time.process_time()
                network(x, t)
                times.append((time.process_time() - began) / size)
    rows = [{"batch": size, "us a sample": 1e6 * min(times[1:])} for size, times in spent.items()]
    return Table("The UNet by its batch", rows)
