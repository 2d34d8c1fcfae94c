"""What makes a run repeatable. Random numbers have an address: the stream is a function of (seed, purpose, index).

Iteration 731 of a training run draws the same batch and the same noise whether the run was unbroken or continued
from a file. The global generator is neither read nor moved.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

SPLIT, ORDER, ITERATION, HELD_OUT, MODULE = range(5)
"""What the numbers are for."""


def address(seed: int, purpose: int, index: int = 0) -> int:
    """A seed for torch out of the three numbers."""
    high, low = np.random.SeedSequence([seed, purpose, index]).generate_state(2, np.uint32)
    return int(high) << 31 ^ int(low)


def stream(seed: int, purpose: int, index: int = 0) -> torch.Generator:
    """The generator at an address. It lives on the CPU: what is drawn does not depend on the device used."""
    return torch.Generator().manual_seed(address(seed, purpose, index))


def normal_like(x: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal numbers of the shape of x: drawn in float32 on the CPU, widened and moved."""
    return torch.randn(x.shape, generator=generator, dtype=torch.float32).to(x)


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Inside, torch computes with ``count`` threads: sums shared out among more or fewer of them round differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, the global CPU generator starts at ``seed``; afterwards it is where it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
