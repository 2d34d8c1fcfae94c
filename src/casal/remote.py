"""Tiles on the workers of a Dask cluster: each tile is one task, and the model travels once to every worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from casal.errors import CasalError, SettingError
from casal.tiles import Tile, one_thread


@contextmanager
def cluster(workers: int) -> Iterator[Any]:
    """A client of an embedded cluster: that many processes of this machine, one thread each."""
    try:
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise SettingError("workers= needs the dask extra: pip install 'casal[dask]'") from error
    with (
        LocalCluster(  # type: ignore[no-untyped-call]
            n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None
        ) as local,
        Client(local) as client,  # type: ignore[no-untyped-call]
    ):
        yield client


class RemoteWorkers:
    """Does the work of ``Workers`` on a cluster; use it as a context.

    A tile carries its state, its random stream and its counters to a worker and back, so its numbers are those of a
    serial run. A tile whose worker is lost is run again by the scheduler, from where it was sent.

    Args:
        client: A ``distributed.Client``, of whatever cluster (this machine, SLURM, Kubernetes).
        job: ``job(tile, segment)`` advances a tile by the rows of a segment; anything that can be pickled.
    """

    def __init__(self, client: Any, job: Callable[[Tile, int], None]) -> None:
        if not hasattr(client, "submit") or not hasattr(client, "scatter"):
            raise SettingError(f"client must be a distributed.Client, got {type(client).__name__}")
        self.client, self._job = client, job
        self.threads = max(1, len(client.scheduler_info().get("workers", {})))
        self._sent: Any = None

    def __enter__(self) -> RemoteWorkers:
        self._sent = self.client.scatter(self._job, broadcast=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._sent = None

    def advance(self, tiles: Sequence[Tile], segment: int, done: Callable[[Tile], None]) -> None:
        """Advance all tiles by one segment; ``done`` is called for each as it comes back, in any order."""
        from distributed import as_completed

        waiting = {self.client.submit(_remotely, self._sent, tile, segment, pure=False): tile for tile in tiles}
        failed: list[tuple[int, BaseException]] = []
        try:
            for future in as_completed(list(waiting)):  # type: ignore[no-untyped-call]
                tile = waiting[future]
                error = future.exception()
                if error is not None:
                    failed.append((tile.index, error))
                    continue
                _copy(future.result(), tile)
                done(tile)
        finally:
            self.client.cancel(list(waiting))
        for index, error in sorted(failed, key=lambda entry: entry[0]):
            if isinstance(error, CasalError):
                raise error
            raise CasalError(f"tile {index} failed on its worker: {type(error).__name__}: {error}") from error


def _remotely(job: Callable[[Tile, int], None], tile: Tile, segment: int) -> Tile:
    """On the worker."""
    with torch.no_grad(), one_thread():
        job(tile, segment)
    return tile


def _copy(came_back: Tile, tile: Tile) -> None:
    tile.state, tile.steps = came_back.state, came_back.steps
    tile.usage, tile.trace = came_back.usage, came_back.trace
    tile.generator.set_state(came_back.generator.get_state())
