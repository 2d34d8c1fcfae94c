"""Runs that several tests store, stop and continue; also a script, so that a test can kill it."""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from torch import Tensor

import casal

N, BATCH = 90, 20


def gradient(x: Tensor) -> Tensor:
    """Of a Gaussian."""
    return x - 0.5


def slow_gradient(x: Tensor) -> Tensor:
    """The same, with time to be killed in."""
    time.sleep(0.003)
    return gradient(x)


def denoiser(x: Tensor, sigma: Tensor) -> Tensor:
    """Of N(0, I)."""
    return x / (1.0 + sigma.to(x) ** 2)


def slow_denoiser(x: Tensor, sigma: Tensor) -> Tensor:
    """The same, slowly."""
    time.sleep(0.001)
    return denoiser(x, sigma)


def start(n: int, generator: torch.Generator) -> Tensor:
    """Standard normal."""
    return torch.randn((n, 3), generator=generator, dtype=torch.float64)


METHODS: dict[str, casal.Method[Any]] = {
    "casal": casal.CASAL(casal.geometric(1.0, 50.0)),
    "final projection": casal.FinalProjection(),
    "weighted": casal.WeightedCASAL(50.0),
    "split": casal.SplitGibbs(0.2, levels=4, inner_steps=3),
    "mean dual": casal.CASAL(10.0, dual="mean", dual_step=0.5),
}


def run(name: str, *, slow: bool = False, seed: int = 3, n: int = N, **options: Any) -> casal.SampleResult:
    """One of the runs, in five batches; ``options`` are fields of ``casal.Run``."""
    if name == "split":
        sigmas = casal.karras_sigmas(20, 0.05, 10.0)
        target = casal.edm(slow_denoiser if slow else denoiser, sigmas, shape=3, churn=1.0, dtype=torch.float64)
    else:
        target = casal.langevin(slow_gradient if slow else gradient, steps=40, step_size=0.05, init=start)
    how = casal.Run(**{"batch": BATCH, "record_every": 10, **options})
    return casal.sample(target, casal.Sphere(1.5), METHODS[name], n, seed=seed, run=how)


if __name__ == "__main__":
    import casal.store.run_store as place

    place.CHECKPOINT_SECONDS = 0.05
    run(sys.argv[1], slow=True, store=sys.argv[2])
