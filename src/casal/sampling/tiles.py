"""Chains in tiles of a fixed size, each with its own stream of random numbers.

The size depends on the event and on the kind of device, and the stream on (seed, tile), so a result does not depend on
how many threads, workers or restarts it took.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from casal.checks import Event
from casal.devices import DEVICE_NUMBERS
from casal.methods import Usage
from casal.sampling.freed_memory import give_back
from casal.sampling.trace import Trace

CPU = torch.device("cpu")

TILE_NUMBERS = 1 << 17
"""Numbers in one tensor of a tile: 0.5 MB of float32, so that a state of a few of them stays near the L2 cache."""

LARGEST_TILE = 4096

LARGE = 1 << 24
"""Numbers in a field of all chains from which on its memory in tiles is given back when they are joined."""

NETWORK_CHAINS, NETWORK_NUMBERS = 64, 1 << 14
"""Chains in a call of a network, and numbers of its argument, beyond which a larger batch gains nothing. A UNet of 0.9
million parameters on 16 x 16 fields takes 1.8 times as long for a sample in a batch of 4 as in one of 64, and 1.2 times
in one of 16; 256 are no better than 64."""


def tile_size(*events: Event, device: torch.device = CPU) -> int:
    """Chains in a tile: as many as keep the largest tensor, latent or decoded, near TILE_NUMBERS; a power of two.

    Off the host it is near DEVICE_NUMBERS.
    """
    numbers, most = (TILE_NUMBERS, LARGEST_TILE) if device.type == "cpu" else (DEVICE_NUMBERS, DEVICE_NUMBERS)
    wanted = numbers // max(1, *(torch.Size(event).numel() for event in events))
    return min(most, 1 << max(0, wanted.bit_length() - 1))


def network_batch(latent: Event) -> int:
    """Chains that a network wants in one call: up to NETWORK_CHAINS, fewer where its argument is large anyway."""
    return max(1, min(NETWORK_CHAINS, NETWORK_NUMBERS // max(1, torch.Size(latent).numel())))


def generator(seed: int, stream: int, device: torch.device) -> torch.Generator:
    """The random stream number ``stream`` of a run."""
    state = np.random.SeedSequence([seed, stream]).generate_state(2, np.uint32)
    return torch.Generator(device).manual_seed(int(state[0]) << 31 ^ int(state[1]))


@dataclass
class Tile:
    """Some chains of a run, how far they are, what they used, what was recorded of them, and samples on the way."""

    index: int
    start: int
    stop: int
    generator: torch.Generator
    state: Any = None
    steps: int = 0
    usage: Usage = field(default_factory=Usage)
    trace: Trace = field(default_factory=Trace)
    snapshots: dict[int, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.stop - self.start

    def replace_by(self, other: Tile) -> None:
        """Take over how far a copy of this tile has come elsewhere."""
        self.state, self.steps, self.usage, self.trace = other.state, other.steps, other.usage, other.trace
        self.snapshots = other.snapshots
        self.generator.set_state(other.generator.get_state())


def even_size(n: int, size: int) -> int:
    """A size at most ``size`` that cuts n chains into tiles of nearly the same size, so that threads end together.

    Several tiles are made an even number of tiles, many (more than 32) a multiple of eight.
    """
    count = -(-n // size)
    unit = 1 if count <= 1 else 2 if count <= 32 else 8
    return -(-n // (unit * -(-count // unit)))


def cut(n: int, size: int, seed: int, device: torch.device) -> list[Tile]:
    """All tiles of a run of n chains. Stream 0 belongs to what all chains do together, stream k + 1 to tile k."""
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


def join(tiles: list[Tile]) -> Any:
    """One state of all chains, taken away from the tiles; fields without a chain dimension are common to all.

    Field after field, so that no more than one of them is there twice.
    """
    states = [tile.state for tile in tiles]
    for tile in tiles:
        tile.state = None
    if len(states) == 1:
        return states[0]
    kind = type(states[0])
    fields = [list(parts) for parts in zip(*states, strict=True)]
    del states
    whole = []
    while fields:
        parts = fields.pop(0)
        whole.append(torch.cat(parts) if parts[0].ndim else parts[0])
        large = whole[-1].numel() > LARGE and whole[-1].device == CPU
        del parts
        if large:
            give_back()
    return kind(*whole)


def numbers(tiles: list[Tile]) -> Any:
    """One state of all chains without their events: fields of events hold the numbers (n,) of the chains.

    The tiles keep their states.
    """
    first = tiles[0].state
    chains = torch.arange(tiles[-1].stop, device=first[0].device)
    fields = zip(*(tile.state for tile in tiles), strict=True)
    return type(first)(
        *(torch.cat(parts) if parts[0].ndim == 1 else chains if parts[0].ndim else parts[0] for parts in fields)
    )


def hand_back(state: Any, before: Any, tiles: list[Tile]) -> None:
    """Give the tiles what a meeting made of ``before``, which is from ``numbers``.

    Chains that others take the place of are moved field after field, so that no more than one field is there twice.
    """
    fields = type(state)._fields
    for name, was, now in zip(fields, before, state, strict=True):
        if now is not was and getattr(tiles[0].state, name).ndim > 1:
            parts = moved([getattr(tile.state, name) for tile in tiles], now, tiles)
            for tile in tiles:
                tile.state = tile.state._replace(**{name: parts[tile.index]})
    flat = {
        name: now
        for name, was, now in zip(fields, before, state, strict=True)
        if now is not was and getattr(tiles[0].state, name).ndim < 2
    }
    for tile in tiles:
        own = {name: now[tile.start : tile.stop] if now.ndim else now for name, now in flat.items()}
        tile.state = tile.state._replace(**own)


def moved(parts: list[Tensor], index: Tensor, tiles: list[Tile]) -> list[Tensor]:
    """Of a field in tiles, the chains with the numbers ``index`` (n,), in tiles again.

    Numbers that ascend, as those of a systematic draw do, are found in a few neighbouring tiles.
    """
    if len(parts) == 1:
        return [parts[0][index]]
    if bool((index.diff() < 0).any()):
        whole = torch.cat(parts)
        return [whole[index[tile.start : tile.stop]] for tile in tiles]
    size = len(tiles[0])
    ends = [(int(index[tile.start]) // size, int(index[tile.stop - 1]) // size) for tile in tiles]
    return [
        torch.cat(parts[lo : hi + 1])[index[tile.start : tile.stop] - lo * size]
        if hi > lo
        else parts[lo][index[tile.start : tile.stop] - lo * size]
        for tile, (lo, hi) in zip(tiles, ends, strict=True)
    ]


def shared_on_host(state: Any) -> Any:
    """The state with the numbers that all chains share in host memory, so that a step reads them without waiting."""
    return type(state)(*(part if part.ndim else part.to(CPU) for part in state))


def split(state: Any, tiles: list[Tile]) -> list[Any]:
    """The reverse of ``join``."""
    if len(tiles) == 1:
        return [state]
    kind = type(state)
    return [kind(*(part[t.start : t.stop] if part.ndim else part for part in state)) for t in tiles]
