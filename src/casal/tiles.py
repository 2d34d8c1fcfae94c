"""Chains in tiles of a fixed size, each with its own stream of random numbers.

The size depends on the event alone and the stream on (seed, tile), so a result does not depend on how many
threads, workers or restarts it took.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from casal.typing import Event

TILE_NUMBERS = 1 << 18
"""Numbers in one tensor of a tile: 1 MB of float32, so that a state of a few of them stays in the L2 cache."""

LARGEST_TILE = 4096


def tile_size(event: Event) -> int:
    """Chains in a tile: as many as keep one tensor near TILE_NUMBERS, a power of two."""
    wanted = TILE_NUMBERS // max(1, torch.Size(event).numel())
    return min(LARGEST_TILE, 1 << max(0, wanted.bit_length() - 1))


def generator(seed: int, stream: int, device: torch.device) -> torch.Generator:
    """The random stream number ``stream`` of a run."""
    state = np.random.SeedSequence([seed, stream]).generate_state(2, np.uint32)
    return torch.Generator(device).manual_seed(int(state[0]) << 31 ^ int(state[1]))


@dataclass
class Tile:
    """Some chains of a run, and how far they are."""

    index: int
    start: int
    stop: int
    generator: torch.Generator
    state: Any = None
    steps: int = 0

    def __len__(self) -> int:
        return self.stop - self.start


def cut(n: int, size: int, seed: int, device: torch.device) -> list[Tile]:
    """All tiles of a run of n chains. Stream 0 belongs to exchanges, stream k + 1 to tile k."""
    starts = range(0, n, size)
    return [Tile(k, lo, min(lo + size, n), generator(seed, k + 1, device)) for k, lo in enumerate(starts)]


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums over all chains in one fixed order: shared out among threads they would round differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def joined(states: list[Any]) -> Any:
    """One state of all chains; fields without a chain dimension are common to all tiles."""
    if len(states) == 1:
        return states[0]
    kind = type(states[0])
    return kind(*(torch.cat(parts) if parts[0].ndim else parts[0] for parts in zip(*states, strict=True)))


def split(state: Any, tiles: list[Tile]) -> list[Any]:
    """The reverse of ``joined``."""
    if len(tiles) == 1:
        return [state]
    kind = type(state)
    return [kind(*(part[t.start : t.stop] if part.ndim else part for part in state)) for t in tiles]
