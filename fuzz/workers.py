"""Workers: Dask workers killed at random moments; the run goes on and ends with the bits of a serial one."""

from __future__ import annotations

import atexit
import functools
import logging
import os
import signal
import threading
import time
import traceback
import warnings
from typing import Any

import distributed
import numpy as np
import torch
from tests.sampling.runs import run

from casal.errors import CasalError
from fuzz.limits import TooLong, limit
from fuzz.report import Failure, Report

CHAINS = 200
DURATION = 3.0
"""Seconds that the run takes with two workers, about."""

LONGEST = 120
"""Seconds after which a run counts as hanging."""

RUNS = ("casal", "weighted", "final projection")


def trial(seed: int, number: int) -> Report:
    """One run during which one to three workers are killed."""
    rng, report = np.random.default_rng([seed, 3, number]), Report()
    name = str(rng.choice(RUNS))
    moments = np.sort(rng.uniform(0.0, DURATION, size=int(rng.integers(1, 4)))).tolist()
    report.count("workers", name)
    stop, kills = threading.Event(), []

    def kill() -> None:
        began = time.monotonic()
        for moment in moments:
            if stop.wait(max(0.0, began + moment - time.monotonic())):
                return
            pids = sorted(_cluster_pids())
            if pids:
                victim = pids[int(rng.integers(len(pids)))]
                os.kill(victim, signal.SIGKILL)
                kills.append(victim)

    killer = threading.Thread(target=kill)
    command = f"python -m fuzz --only workers --seed {seed} --trial {number}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        client = _ready()
        expected = _serial(name)
        killer.start()
        try:
            with limit(LONGEST):
                found = run(name, slow=True, n=CHAINS, client=client)
            if not torch.equal(found.samples, expected):
                report.failures.append(Failure("other bits", name, f"{len(kills)} workers killed", "", command))
        except (Exception, TooLong) as error:
            raw = "" if isinstance(error, CasalError) else "raw "
            message = traceback.format_exc().splitlines()[-1]
            report.failures.append(Failure(f"{raw}{type(error).__name__}", name, message, "", command))
        finally:
            stop.set()
            killer.join()
    report.count("operation", *["worker killed"] * len(kills))
    return report


@functools.cache
def _serial(name: str) -> Any:
    return run(name, n=CHAINS, threads=1).samples


@functools.cache
def _client() -> Any:
    """One cluster for all trials: its nannies start a new worker for each that is killed."""
    os.environ["DASK_LOGGING__DISTRIBUTED"] = "critical"  # for the workers: they are expected to lose connections
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    cluster = distributed.LocalCluster(  # type: ignore[no-untyped-call]
        n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=logging.CRITICAL
    )
    client = distributed.Client(cluster)  # type: ignore[no-untyped-call]
    atexit.register(cluster.close)
    atexit.register(client.close)
    return client


def _ready() -> Any:
    """The client once two workers are there; of a new cluster if those that were killed before do not come back."""
    try:
        _client().wait_for_workers(2, timeout=30)
    except TimeoutError:
        _client().cluster.close()
        _client().close()
        _client.cache_clear()
        _client().wait_for_workers(2, timeout=60)
    return _client()


def _cluster_pids() -> list[int]:
    """Processes of the workers that are alive; one that is killed while it starts would not be started again."""
    nannies = _client().cluster.workers.values()
    return [nanny.pid for nanny in nannies if nanny.pid and nanny.status.name == "running"]
