"""A cluster whose workers are all gone for a while, and a run that the exception of a signal ends."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch

import casal
from casal.errors import CasalError
from casal.sampling import workers


class Cluster:
    """A client whose workers are there again after some seconds of a clock that only ``sleep`` moves."""

    def __init__(self, away: float, refusals: int = 0) -> None:
        self.now, self.away, self.refusals, self.sent = 0.0, away, refusals, 0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def scheduler_info(self) -> dict[str, Any]:
        return {"workers": {"a": {}, "b": {}} if self.now >= self.away else {}}

    def scatter(self, thing: object, **_: object) -> str:
        self.sent += 1
        if self.sent <= self.refusals:
            raise OSError("Timed out trying to connect" if self.sent % 2 else "closed")
        return "there"


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[Cluster], workers.Dask]:
    def made(cluster: Cluster) -> workers.Dask:
        monkeypatch.setattr(workers, "time", cluster)
        dask = workers.Dask.__new__(workers.Dask)
        dask.client, dask._parcel = cluster, None  # type: ignore[assignment]
        return dask

    return made


@pytest.mark.parametrize("away", [4.0, 100.0])
def test_new_workers_are_waited_for(away: float, on: Callable[[Cluster], workers.Dask]) -> None:
    cluster = Cluster(away)
    assert on(cluster)._scatter() == "there"
    assert away <= cluster.now < away + 1.0


def test_workers_that_are_listed_and_gone_are_tried_for_longer_than_a_few_attempts(
    on: Callable[[Cluster], workers.Dask],
) -> None:
    cluster = Cluster(0.0, refusals=40)
    assert on(cluster)._scatter() == "there"
    assert cluster.sent == 41


@pytest.mark.parametrize(
    ("cluster", "reason"), [(Cluster(1e9), "it has no workers"), (Cluster(0.0, refusals=10**9), "OSError")]
)
def test_after_a_while_the_run_gives_up_and_says_why(
    cluster: Cluster, reason: str, on: Callable[[Cluster], workers.Dask]
) -> None:
    with pytest.raises(CasalError, match=rf"for 180 s \({reason}.*A store keeps what is done"):
        on(cluster)._scatter()
    assert workers.PATIENCE < cluster.now < workers.PATIENCE + 1.0


class Alarm(BaseException):
    """Raised by a signal."""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timers")
def test_an_exception_of_a_signal_stops_the_threads() -> None:
    """Without it they would take all their steps before the exception arrives."""
    steps, taken = 100_000, 0

    def score(x: torch.Tensor) -> torch.Tensor:
        nonlocal taken
        taken += 1
        if taken == 20:
            signal.setitimer(signal.ITIMER_REAL, 1e-3)
        return x

    def ring(*_: object) -> None:
        raise Alarm

    def start(n: int, generator: torch.Generator) -> torch.Tensor:
        return torch.randn(n, 2, generator=generator)

    target = casal.langevin(score, steps=steps, step_size=0.1, init=start)
    before = signal.signal(signal.SIGALRM, ring)
    try:
        with pytest.raises(Alarm):
            run = casal.Run(batch=8, threads=2)
            casal.sample(target, casal.Sphere(1.0), casal.Unconstrained(), 32, run=run)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert taken < steps / 10
