"""The rows of a run in blocks: what a tile takes in one go, and between two looks at its chains."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

CHECK_EVERY = 16
"""Steps between two looks for chains that are no longer finite."""

TOGETHER = 8
"""Steps in one compiled call, at most: a call costs a tenth of a step, and what lies between steps is never written."""

NOISE_NUMBERS = 1 << 19
"""Numbers in the noise of one call, about: 2 MB of float32; what leaves the cache before it is read is slow."""


class Block(NamedTuple):
    """Rows that a tile takes in one go.

    Attributes:
        rows: The rows.
        columns: A row of columns (k,) instead of numbers, for one compiled call; None if the rows are taken one by one.
        kind: Blocks of one kind share a graph.
    """

    rows: Sequence[Any]
    columns: Any = None
    kind: Hashable = None


def plain_blocks(rows: Sequence[Any]) -> list[Block]:
    """All rows in blocks of some rows, one by one."""
    return [Block(rows[first : first + CHECK_EVERY]) for first in range(0, len(rows), CHECK_EVERY)]


def steps_together(numbers: int) -> int:
    """Steps in one compiled call of a tile with so many numbers of noise a step: a power of two."""
    return max(1, min(TOGETHER, 1 << max(0, (NOISE_NUMBERS // max(1, numbers)).bit_length() - 1)))


def compiled_blocks(rows: Sequence[Any], done: int, every: int, together: int) -> list[Block]:
    """All rows in blocks for one compiled call each; rows that fill none are taken one by one.

    A block ends where the kind of row changes, and where something is recorded.

    Args:
        rows: Of one segment.
        done: Steps before it.
        every: Steps between two records; 0 for none.
        together: Steps in one call, a power of two.
    """
    size = math.gcd(together, every)
    while size > max(1, len(rows)):
        size //= 2
    blocks, step = list[Block](), done
    for kind, group in itertools.groupby(rows, _kind):
        same, first = list(group), 0
        columns = _columns(same)
        for stop in range(1, len(same) + 1):
            step += 1
            if stop == len(same) or stop - first == size or (every and step % every == 0):
                some, whole = same[first:stop], stop - first == size
                blocks.append(Block(some, _part(columns, first, stop), (size, kind)) if whole else Block(some))
                first = stop
    return blocks


def spans(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """Blocks of about CHECK_EVERY rows together."""
    some, rows = list[Block](), 0
    for block in blocks:
        some.append(block)
        rows += len(block.rows)
        if rows >= CHECK_EVERY:
            yield some
            some, rows = [], 0
    if some:
        yield some


def _kind(row: Any) -> Hashable:
    """What makes rows share a graph: their type, and whatever in them is not a number."""
    return (type(row), *(None if isinstance(part, Tensor) else part for part in row))


def _columns(rows: Sequence[Any]) -> Any:
    """Rows of one kind as a row of columns. A number that stays the same is there once."""
    parts = zip(*rows, strict=True)
    return type(rows[0])(*(_column(part) if isinstance(part[0], Tensor) else part[0] for part in parts))


def _column(numbers: Sequence[Tensor]) -> Tensor:
    first = numbers[0]
    return first.expand(len(numbers)) if all(number is first for number in numbers) else torch.stack(list(numbers))


def _part(columns: Any, first: int, stop: int) -> Any:
    """Some rows of a row of columns."""
    return type(columns)(*(part[first:stop] if isinstance(part, Tensor) else part for part in columns))


def numbered_row(columns: Any, k: int) -> Any:
    """Row k of a row of columns."""
    return type(columns)(*[part[k] if isinstance(part, Tensor) else part for part in columns])
