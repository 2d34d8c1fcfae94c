"""Who takes the tiles: the threads of this process, or the workers of a Dask cluster. One interface for both.

A tile has its own random stream, counters and records, and torch works on it with a single thread of its own. So every
number is the same for any executor and any number of threads or workers.
"""

from __future__ import annotations

import ast
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Lock
from types import FrameType
from typing import Any, TypeGuard

import torch

from casal.checks import Callback, whole_number
from casal.errors import CasalError, SettingError, missing_extra
from casal.sampling.on_the_way import StepView
from casal.sampling.plan import Plan
from casal.sampling.progress import Progress
from casal.sampling.tiles import Tile, one_thread

NOWHERE = -1
"""No tile may go on."""

SHOWN = ("rho", "ess", "violation")
"""What the progress bar shows of what is known on the way."""


class Watch:
    """What a tile at work asks and tells. This one lets it go on and does not listen."""

    def may_go_on(self, tile: Tile) -> bool:
        """Whether nothing has happened that stops this tile: an interrupt, or an error in an earlier tile."""
        return True

    def advance(self, steps: int) -> None:
        """So many steps more were taken."""

    def tell(self, known: Mapping[str, float]) -> None:
        """What is known on the way."""

    def show(self, plan: Plan, tile: Tile) -> None:
        """A tile has taken a step, and its state is whole and finite."""

    @property
    def looks(self) -> bool:
        """Whether ``show`` does anything."""
        return False


Work = Callable[..., None]
"""``work(plan, tile, watch, *arguments)``: a function at the top of a module, so that it can be sent to a worker."""

Done = Callable[[Tile], None]


class Executor(Watch, ABC):
    """Something that does work for every tile; use it as a context.

    Attributes:
        plan: The run.
        bar: Shows the progress.
        threads: Tiles that are worked on at the same time.
        callback: What is called after the steps of a tile, one call at a time; None for nothing.
    """

    threads: int

    def __init__(self, plan: Plan, bar: Progress, callback: Callback | None = None) -> None:
        self.plan, self.bar, self.callback = plan, bar, callback
        self._calls = Lock()
        self._stack = ExitStack()

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def advance(self, steps: int) -> None:
        self.bar.advance(steps)

    def tell(self, known: Mapping[str, float]) -> None:
        for name in SHOWN:
            if name in known:
                self.bar.tell(name, known[name])

    @property
    def looks(self) -> bool:
        return self.callback is not None

    def show(self, plan: Plan, tile: Tile) -> None:
        """Call the callback. If it asks for an end, the run is interrupted as by Ctrl-C."""
        if self.callback is None:
            return
        with self._calls:
            if self.may_go_on(tile) and self.callback(StepView(plan, tile)):
                raise KeyboardInterrupt("the callback ended the run")

    @abstractmethod
    def each(self, work: Work, tiles: Sequence[Tile], args: tuple[Any, ...] = (), done: Done | None = None) -> None:
        """Do ``work`` for all tiles, then ``done``, in any order.

        Of several errors the one of the first tile is raised, as one thread would.
        """


class Threads(Executor):
    """Some threads of this process. Kernels release Python's lock, which is what makes threads worth it.

    There are ``threads`` of them, as many as torch uses if left out. Devices other than the CPU get one.
    """

    def __init__(self, plan: Plan, bar: Progress, callback: Callback | None = None) -> None:
        super().__init__(plan, bar, callback)
        tiles, threads = -(-plan.n // plan.tile), plan.options.threads
        wanted = torch.get_num_threads() if threads is None else threads
        self.threads = min(wanted, tiles) if plan.device.type == "cpu" else 1
        self._pinned = tiles > 1 or threads is not None
        self._pool: ThreadPoolExecutor | None = None
        self._last = tiles
        self._lock = Lock()

    def __enter__(self) -> Threads:
        if self._pinned:
            self._stack.enter_context(one_thread())
        if self.threads > 1:
            # A new thread starts with torch's own default, not with what this one has set.
            pool = ThreadPoolExecutor(self.threads, "casal", initializer=torch.set_num_threads, initargs=(1,))
            self._pool = self._stack.enter_context(pool)
        return self

    def may_go_on(self, tile: Tile) -> bool:
        return tile.index <= self._last

    def each(self, work: Work, tiles: Sequence[Tile], args: tuple[Any, ...] = (), done: Done | None = None) -> None:
        def job(tile: Tile) -> None:
            work(self.plan, tile, self, *args)
            if done is not None and self.may_go_on(tile):
                done(tile)

        if self._pool is None or len(tiles) <= 1:
            for tile in tiles:
                job(tile)
            return
        context = _surroundings(self.plan.device)
        jobs: list[Future[None]] = []
        try:
            jobs += [self._pool.submit(self._guarded, job, tile, context) for tile in tiles]
            wait(jobs)
        except KeyboardInterrupt:
            self._stop(NOWHERE)
            wait(jobs)
            raise
        errors = [error for error in (job.exception() for job in jobs) if error is not None]
        for error in sorted(errors, key=lambda error: not isinstance(error, KeyboardInterrupt)):
            raise error

    def _guarded(self, job: Callable[[Tile], None], tile: Tile, context: Callable[[], Iterator[None]]) -> None:
        if not self.may_go_on(tile):
            return
        try:
            with contextmanager(context)():
                job(tile)
        except KeyboardInterrupt:
            self._stop(NOWHERE)
            raise
        except BaseException:
            self._stop(tile.index)
            raise

    def _stop(self, last: int) -> None:
        with self._lock:
            self._last = min(self._last, last)


def _surroundings(device: torch.device) -> Callable[[], Iterator[None]]:
    """The caller's autocast, which torch keeps for each thread, and no gradients."""
    autocast, dtype = torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)

    def context() -> Iterator[None]:
        with torch.no_grad(), torch.autocast(device.type, dtype=dtype, enabled=autocast):
            yield

    return context


# ---------------------------------------------------------------------------------------------------------- Dask


SCATTERS = 5
"""How often in a row the plan is sent to a cluster that loses workers."""


class Dask(Executor):
    """The workers of a Dask cluster: each tile is one task, and the plan travels once to every worker.

    A tile carries its state, its random stream and its counters to a worker and back. A tile whose worker is lost is
    run again by the scheduler, from where it was sent. If the plan was lost with the worker, it is sent again, and
    the tiles that waited for it too.

    Args:
        plan: The run.
        bar: Shows the progress.
        client: A ``distributed.Client``, of whatever cluster (this machine, SLURM, Kubernetes).
    """

    def __init__(self, plan: Plan, bar: Progress, client: Any) -> None:
        if not hasattr(client, "submit") or not hasattr(client, "scatter"):
            raise SettingError(f"client must be a distributed.Client, got {type(client).__name__}")
        super().__init__(plan, bar)
        self.client = client
        self.threads = max(1, len(client.scheduler_info().get("workers", {})))
        self._sent: Any = None

    def _scatter(self) -> Any:
        """The plan on every worker. One that dies meanwhile closes the connection; the others get it again."""
        for attempt in range(SCATTERS):
            try:
                return self.client.scatter(self.plan, broadcast=True, hash=False)
            except (OSError, KeyError) as error:  # a closed connection, no worker in time, or one that just left
                if attempt == SCATTERS - 1:
                    raise CasalError(
                        f"the plan of the run could not be sent to the cluster in {SCATTERS} attempts ({error}); see "
                        "whether its workers are there (client.scheduler_info())"
                    ) from error
        raise AssertionError("the last attempt returns or raises")

    def __enter__(self) -> Dask:
        self._sent = self._scatter()
        return self

    def each(self, work: Work, tiles: Sequence[Tile], args: tuple[Any, ...] = (), done: Done | None = None) -> None:
        waiting, losses = list(tiles), 0
        while waiting:
            lost = self._send(work, waiting, args, done)
            losses = losses + 1 if len(lost) == len(waiting) else 0
            if losses == SCATTERS:
                raise CasalError(
                    f"the cluster lost the plan of the run {SCATTERS} times in a row; {len(lost)} tiles are not done. "
                    "See the logs of its workers; a store keeps what is done, and the same call goes on from there"
                )
            if lost:
                self._sent = self._scatter()
            waiting = lost

    def _send(self, work: Work, tiles: Sequence[Tile], args: tuple[Any, ...], done: Done | None) -> list[Tile]:
        """Run the tiles once. Returns those that were not run, because the plan was lost with a worker."""
        from distributed import as_completed

        submit = self.client.submit
        waiting = {submit(_remotely, self._sent, work, tile, args, pure=False): tile for tile in tiles}
        failed: list[tuple[int, BaseException]] = []
        lost: list[Tile] = []
        try:
            for future in as_completed(list(waiting)):  # type: ignore[no-untyped-call]
                tile = waiting[future]
                steps = tile.steps
                try:
                    error: BaseException | None = future.exception()
                    came: Any = None if error is not None else future.result()
                except CancelledError:  # lost with a worker, before or after it ended
                    lost.append(tile)
                    continue
                if error is not None:
                    failed.append((tile.index, error))
                    continue
                tile.replace_by(came)
                self.advance(tile.steps - steps)
                if done is not None:
                    done(tile)
        finally:
            self.client.cancel(list(waiting))
        for index, error in sorted(failed, key=lambda entry: entry[0]):
            if isinstance(error, CasalError):
                raise error
            raise CasalError(f"tile {index} failed on its worker: {type(error).__name__}: {error}") from error
        return lost


def _remotely(plan: Plan, work: Work, tile: Tile, arguments: tuple[Any, ...]) -> Tile:
    """On the worker."""
    with torch.no_grad(), one_thread():
        work(plan, tile, Watch(), *arguments)
    return tile


@contextmanager
def cluster_client(client: Any, workers: int | None, compiled: bool) -> Iterator[Any]:
    """The client of the caller's cluster, or of one of ``workers`` processes of this machine; None for no cluster."""
    if client is not None and workers is not None:
        raise SettingError("give client= or workers=, not both")
    if compiled and (client is not None or workers is not None):
        raise SettingError("compile=True works in this process only; leave out client= and workers=")
    if workers is None:
        yield client
        return
    whole_number(workers, "workers", 1)
    try:
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise SettingError(missing_extra("workers=", "dask", "dask.distributed")) from error
    refuse_unguarded_script()
    with (
        LocalCluster(  # type: ignore[no-untyped-call]
            n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None
        ) as local,
        Client(local) as own,  # type: ignore[no-untyped-call]
    ):
        yield own


def refuse_unguarded_script() -> None:
    """SettingError where new processes would run the script that started them again.

    A new process imports the main script. A line of it that starts processes, and that no ``if __name__ ==
    "__main__":`` guards, would start them without end.
    """
    frame: FrameType | None = sys._getframe()
    while frame and not (frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__"):
        frame = frame.f_back
    path = frame.f_globals.get("__file__") if frame else None
    if frame is None or path is None:  # an interactive session has no script
        return
    line = frame.f_lineno
    try:
        tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return
    if not any(_guards(node) and node.lineno <= line <= (node.end_lineno or line) for node in tree.body):
        raise SettingError(
            f"workers= starts processes that import {Path(path).name} again, and line {line} would start them once "
            "more in each; put the call under if __name__ == '__main__':, or leave out workers= and use threads="
        )


def _guards(node: ast.stmt) -> TypeGuard[ast.If]:
    """Whether a statement is ``if __name__ == "__main__":``."""
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test) and "__main__" in ast.unparse(node.test)
