"""Who takes the batches: the threads of this process, or the workers of a Dask cluster. One ``map`` for both.

A batch has a random stream of its own, and torch works on it with a single thread. So every number is the same for any
number of threads or workers.
"""

from __future__ import annotations

import ast
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock
from types import FrameType
from typing import Any, TypeAlias, TypeGuard

import torch

from casal.errors import CasalError, SettingError, missing_extra
from casal.sampling.loop import Advanced, StepView, Walk, Watch, Work
from casal.sampling.prepare import Batch, Prepared
from casal.sampling.progress import Progress
from casal.sampling.threads import one_thread

NOWHERE = -1
"""No batch may go on."""

AWAKE = 0.1
"""Seconds after which whoever waits for threads wakes up: only then Python handles a signal that another thread got."""

Task: TypeAlias = Callable[[Prepared, Work, Watch, Walk], Advanced]
"""A function at the top of a module, so that it can be sent to a worker."""


class Workers(Watch, ABC):
    """Something that does work for every batch; use it as a context.

    Attributes:
        prepared: The run.
        bar: Shows the progress.
        threads: Batches that are worked on at the same time.
        interrupted: Whether the run was stopped: by Ctrl-C, or by a callback.
    """

    threads: int

    def __init__(self, prepared: Prepared, bar: Progress) -> None:
        self.prepared, self.bar, self.callback = prepared, bar, prepared.options.run.callback
        self.interrupted = False
        self._calls, self._lock = Lock(), Lock()
        self._stack = ExitStack()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def advance(self, steps: int, evaluations: int) -> None:
        with self._lock:
            self.bar.advance(steps, evaluations)

    def tell(self, known: Mapping[str, float]) -> None:
        with self._lock:
            self.bar.tell(known)

    @property
    def shows(self) -> bool:
        return self.callback is not None

    def show(self, view: StepView) -> None:
        """Call the callback. If it asks for an end, the run is interrupted as by Ctrl-C."""
        if self.callback is None:
            return
        with self._calls:
            if not self.interrupted and self.callback(view):
                raise KeyboardInterrupt("the callback ended the run")

    @abstractmethod
    def map(self, task: Task, works: Sequence[Work], walk: Walk) -> Iterator[Advanced]:
        """Do all work, in any order. Of several errors the one of the first batch is raised, as one thread would.

        After an interrupt, ``interrupted`` is true, and batches come as far as they are.
        """


class Threads(Workers):
    """Some threads of this process. Kernels release Python's lock, which is what makes threads worth it.

    There are as many as ``Run.threads`` says, as torch uses if it says nothing. Devices other than the CPU get one.
    """

    def __init__(self, prepared: Prepared, bar: Progress) -> None:
        super().__init__(prepared, bar)
        batches, threads = len(prepared.batches), prepared.options.run.threads
        wanted = torch.get_num_threads() if threads is None else threads
        self.threads = min(wanted, batches) if prepared.device.type == "cpu" else 1
        self._pinned = batches > 1 or threads is not None
        self._pool: ThreadPoolExecutor | None = None
        self._last = batches

    def __enter__(self) -> Threads:
        if self._pinned:
            self._stack.enter_context(one_thread())
        if self.threads > 1:
            # A new thread starts with torch's own default, not with what this one has set.
            pool = ThreadPoolExecutor(self.threads, "casal", initializer=torch.set_num_threads, initargs=(1,))
            self._pool = self._stack.enter_context(pool)
        return self

    def may_go_on(self, batch: Batch) -> bool:
        return batch.index <= self._last

    def map(self, task: Task, works: Sequence[Work], walk: Walk) -> Iterator[Advanced]:
        if self._pool is None or len(works) <= 1:
            for work in works:
                came = task(self.prepared, work, self, walk)
                self.interrupted = self.interrupted or came.interrupted
                yield came
                if self.interrupted:
                    return
            return
        context = _surroundings(self.prepared.device)
        pending, failed = dict[Future[Advanced | None], int](), dict[int, BaseException]()
        try:
            for work in works:
                pending[self._pool.submit(self._guarded, task, work, walk, context)] = work.batch.index
            yield from self._arrivals(pending, failed)
        except BaseException:  # whoever asked was interrupted, or an exception of a signal came while waiting here
            self._stop(NOWHERE)
            wait(pending)
            raise
        if failed:
            raise failed[min(failed)]

    def _arrivals(
        self, pending: dict[Future[Advanced | None], int], failed: dict[int, BaseException]
    ) -> Iterator[Advanced]:
        """What comes back, as it comes, and is then let go. After Ctrl-C, as far as it is."""
        while pending:
            try:
                done, _ = wait(pending, timeout=AWAKE, return_when=FIRST_COMPLETED)
            except KeyboardInterrupt:
                self.interrupted = True
                self._stop(NOWHERE)
                continue
            while done:
                job = done.pop()
                index, error = pending.pop(job), job.exception()
                if error is not None:
                    failed[index] = error
                elif (came := job.result()) is not None:
                    yield came

    def _guarded(self, task: Task, work: Work, walk: Walk, context: Callable[[], Iterator[None]]) -> Advanced | None:
        if not self.may_go_on(work.batch):
            return None
        try:
            with contextmanager(context)():
                came = task(self.prepared, work, self, walk)
        except BaseException:
            self._stop(work.batch.index)
            raise
        if came.interrupted and not (0 <= self._last < work.batch.index):  # by a callback, not by an error elsewhere
            self.interrupted = True
            self._stop(NOWHERE)
        return came

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
"""How often in a row a run is sent to a cluster that loses all of it."""

PATIENCE = 180.0
"""Seconds for which a run waits for workers, and tries to reach them, before it gives up on a cluster."""

PAUSE = 0.25
"""Seconds between two attempts; a worker that was killed is still listed for a moment."""


class Dask(Workers):
    """The workers of a Dask cluster: each batch is one task, and the run travels once to every worker.

    A batch whose worker is lost is run again by the scheduler. If the run was lost with the worker, it is sent again,
    and the batches that waited for it too. If no worker is left, new ones are waited for (``PATIENCE``).

    Args:
        prepared: The run.
        bar: Shows the progress.
        client: A ``distributed.Client``, of whatever cluster (this machine, SLURM, Kubernetes).
    """

    def __init__(self, prepared: Prepared, bar: Progress, client: Any) -> None:
        if not hasattr(client, "submit") or not hasattr(client, "scatter"):
            raise SettingError(f"client must be a distributed.Client, got {type(client).__name__}")
        super().__init__(prepared, bar)
        self.client = client
        self.threads = max(1, len(client.scheduler_info().get("workers", {})))
        options = prepared.options
        alone = options._replace(run=replace(options.run, client=None))  # a client stays here
        self._parcel = replace(prepared, options=alone)
        self._sent: Any = None

    def _scatter(self) -> Any:
        """The run on every worker. One that dies meanwhile closes the connection; the others get it again.

        Where all workers are gone, new ones are waited for: ``PATIENCE`` seconds, counted from the first attempt.
        """
        began, reason = time.monotonic(), "it has no workers"
        cause: Exception | None = None
        while True:
            if self.client.scheduler_info().get("workers"):
                try:
                    return self.client.scatter(self._parcel, broadcast=True, hash=False)
                except (OSError, KeyError) as error:  # a closed connection, no worker in time, or one that just left
                    reason, cause = f"{type(error).__name__}: {error}", error
            if time.monotonic() - began > PATIENCE:
                raise CasalError(
                    f"the run could not be sent to the cluster for {PATIENCE:g} s ({reason}); see whether its workers "
                    "are there (client.scheduler_info()). A store keeps what is done, and the same call goes on from "
                    "there"
                ) from cause
            time.sleep(PAUSE)

    def __enter__(self) -> Dask:
        self._sent = self._scatter()
        return self

    def map(self, task: Task, works: Sequence[Work], walk: Walk) -> Iterator[Advanced]:
        waiting, losses = list(works), 0
        while waiting:
            lost = list[Work]()
            yield from self._once(task, waiting, walk, lost)
            losses = losses + 1 if len(lost) == len(waiting) else 0
            if losses == SCATTERS:
                raise CasalError(
                    f"the cluster lost the run {SCATTERS} times in a row; {len(lost)} batches are not done. "
                    "See the logs of its workers; a store keeps what is done, and the same call goes on from there"
                )
            if lost:
                self._sent = self._scatter()
            waiting = lost

    def _once(self, task: Task, works: Sequence[Work], walk: Walk, lost: list[Work]) -> Iterator[Advanced]:
        """Run the batches once. Those that were not run, because the run was lost with a worker, go to ``lost``."""
        from distributed import as_completed as arrivals

        submit = self.client.submit
        waiting = {submit(_remotely, self._sent, task, work, walk, pure=False): work for work in works}
        failed: list[tuple[int, BaseException]] = []
        try:
            for future in arrivals(list(waiting)):  # type: ignore[no-untyped-call]
                work = waiting[future]
                try:
                    error: BaseException | None = future.exception()
                    came: Any = None if error is not None else future.result()
                except CancelledError:  # lost with a worker, before or after it ended
                    lost.append(work)
                    continue
                if error is not None:
                    failed.append((work.batch.index, error))
                    continue
                self.advance(came.rows - work.first, came.usage.scores)
                yield came
        except KeyboardInterrupt:
            self.interrupted = True
            raise
        finally:
            self.client.cancel(list(waiting))
        for index, error in sorted(failed, key=lambda entry: entry[0]):
            if isinstance(error, CasalError):
                raise error
            raise CasalError(f"batch {index} failed on its worker: {type(error).__name__}: {error}") from error


def _remotely(prepared: Prepared, task: Task, work: Work, walk: Walk) -> Advanced:
    """On the worker."""
    with torch.no_grad(), one_thread():
        return task(prepared, work, Watch(), walk)


@contextmanager
def cluster_client(client: Any, workers: int | None) -> Iterator[Any]:
    """The client of the caller's cluster, or of one of ``workers`` processes of this machine; None for no cluster."""
    if workers is None:
        yield client
        return
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
