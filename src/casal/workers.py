"""Threads that take tiles: each tile is one job, done by one thread from its first row to its last.

A tile has its own random stream, counters and records, and torch works on it with a single thread of its own, so every
number is the same for any number of threads. Kernels release Python's lock, which is what makes threads worth it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from threading import Lock

import torch

from casal.tiles import Tile, one_thread

NOWHERE = -1
"""No tile may go on."""


class Workers:
    """Some threads for the tiles of a run; use it as a context.

    Args:
        threads: How many; None for as many as torch uses. Devices other than the CPU get one.
        tiles: The tiles of the run.
        device: Where the chains live.
    """

    def __init__(self, threads: int | None, tiles: Sequence[Tile], device: torch.device) -> None:
        wanted = torch.get_num_threads() if threads is None else threads
        self.threads = min(wanted, len(tiles)) if device.type == "cpu" else 1
        self._pinned = len(tiles) > 1 or threads is not None
        self._device = device
        self._pool: ThreadPoolExecutor | None = None
        self._stack = ExitStack()
        self._last = len(tiles)
        self._lock = Lock()

    def __enter__(self) -> Workers:
        if self._pinned:
            self._stack.enter_context(one_thread())
        if self.threads > 1:
            # A new thread starts with torch's own default, not with what this one has set.
            pool = ThreadPoolExecutor(self.threads, "casal", initializer=torch.set_num_threads, initargs=(1,))
            self._pool = self._stack.enter_context(pool)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def may_go_on(self, tile: Tile) -> bool:
        """Whether nothing has happened that stops this tile: an interrupt, or an error in an earlier tile."""
        return tile.index <= self._last

    def each(self, work: Callable[[Tile], None], tiles: Sequence[Tile]) -> None:
        """Do ``work`` for all tiles. Of several errors the one of the first tile is raised, as one thread would."""
        if self._pool is None or len(tiles) == 1:
            for tile in tiles:
                work(tile)
            return
        context = _surroundings(self._device)
        jobs: list[Future[None]] = []
        try:
            jobs += [self._pool.submit(self._job, work, tile, context) for tile in tiles]
            wait(jobs)
        except KeyboardInterrupt:
            self._stop(NOWHERE)
            wait(jobs)
            raise
        errors = [error for error in (job.exception() for job in jobs) if error is not None]
        for error in sorted(errors, key=lambda error: not isinstance(error, KeyboardInterrupt)):
            raise error

    def _job(self, work: Callable[[Tile], None], tile: Tile, context: Callable[[], Iterator[None]]) -> None:
        if not self.may_go_on(tile):
            return
        try:
            with contextmanager(context)():
                work(tile)
        except KeyboardInterrupt:
            self._stop(NOWHERE)
            raise
        except BaseException:
            self._stop(tile.index)
            raise

    def _stop(self, last: int) -> None:
        with self._lock:
            self._last = min(self._last, last)


class Alone:
    """One thread and nobody to stop it: the workers of a run that is itself a task on a cluster."""

    threads = 1

    def __enter__(self) -> Alone:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def may_go_on(self, tile: Tile) -> bool:
        """Always."""
        return True

    def each(self, work: Callable[[Tile], None], tiles: Sequence[Tile]) -> None:
        """One after the other."""
        for tile in tiles:
            work(tile)


def _surroundings(device: torch.device) -> Callable[[], Iterator[None]]:
    """The caller's autocast, which torch keeps for each thread, and no gradients."""
    autocast, dtype = torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)

    def context() -> Iterator[None]:
        with torch.no_grad(), torch.autocast(device.type, dtype=dtype, enabled=autocast):
            yield

    return context
