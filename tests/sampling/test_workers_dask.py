"""Batches on a Dask cluster: the bits of a serial run, also when a worker dies."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import casal
from casal.errors import CasalError, DivergedError, SettingError
from casal.sampling.workers import Dask

from .runs import N, run, start

distributed = pytest.importorskip("distributed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # the cluster's own, on shutting down
]


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.mark.parametrize("name", ["casal", "split"])
def test_threads_and_workers_give_the_bits_of_a_serial_run(name: str, client: Any, tmp_path: Path) -> None:
    serial = run(name, threads=1)
    for other in (run(name, threads=2), run(name, client=client), run(name, client=client, store=tmp_path / "a.zarr")):
        assert torch.equal(serial.samples, other.samples)
        assert serial.cost.score_evaluations == other.cost.score_evaluations
        assert all(torch.equal(serial.trace[key], other.trace[key]) for key in serial.trace)
    assert torch.equal(serial.samples, casal.load(tmp_path / "a.zarr").samples)


def test_a_killed_worker_loses_nothing(client: Any) -> None:
    serial = run("casal", slow=True, n=200)
    victim = next(iter(client.run(os.getpid).values()))

    def kill() -> None:
        time.sleep(0.4)
        os.kill(victim, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    result = run("casal", slow=True, n=200, client=client)
    killer.join()
    assert torch.equal(serial.samples, result.samples)


def test_a_run_that_is_lost_with_its_workers_is_sent_again(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    scatter, scattered = Dask._scatter, []

    def and_die(executor: Dask) -> Any:
        sent = scatter(executor)
        scattered.append(sent)
        if len(scattered) == 1:
            for pid in client.run(os.getpid).values():
                os.kill(pid, signal.SIGKILL)
        return sent

    monkeypatch.setattr(Dask, "_scatter", and_die)
    assert torch.equal(run("casal").samples, run("casal", client=client).samples)
    assert len(scattered) == 2


def test_a_cluster_that_keeps_losing_the_run_is_named(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(dask: Dask, task: Any, works: list[Any], walk: Any, lost: list[Any]) -> Iterator[Any]:
        lost.extend(works)
        return iter(())

    monkeypatch.setattr(Dask, "_once", lose)
    with pytest.raises(CasalError, match=r"lost the run 5 times in a row; 5 batches"):
        run("casal", client=client)


def test_errors_come_back_with_their_names(client: Any) -> None:
    target = casal.langevin(lambda x: -1e9 * x**3, steps=40, step_size=1.0, init=start)
    with pytest.raises(DivergedError):
        casal.sample(target, casal.Sphere(1.0), casal.Unconstrained(), N, run=casal.Run(batch=20, client=client))
    with pytest.raises(SettingError, match=r"distributed\.Client"):
        run("casal", client="cluster")
    with pytest.raises(SettingError, match="not both"):
        run("casal", client=client, workers=2)


def test_an_embedded_cluster() -> None:
    assert torch.equal(run("final projection").samples, run("final projection", workers=1).samples)
