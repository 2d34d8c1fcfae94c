"""How a run is carried out (``casal.Run``), and all that ``casal.sample`` was asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from casal.checks import Callback, Check, Tolerance, whole_number
from casal.constraints import Budget
from casal.decoders import Decoder
from casal.errors import DtypeError, SettingError


@dataclass(frozen=True)
class Run:
    """How a run is carried out: ``casal.sample(..., run=casal.Run(threads=4, store="run.zarr"))``.

    Nothing here changes the distribution of the samples. ``batch``, ``dtype``, ``device`` and ``compile`` change their
    bits; the rest changes none.

    Args:
        batch: Chains that are worked on at a time; if left out chosen from the size of an event, and for a network so
            that it gets up to 64.
        threads: Batches that run at the same time, each on one core; as many as torch has threads if left out. Score
            and decoder are then called from several threads at once: take 1 if yours cannot.
        workers: Processes of an embedded Dask cluster of this machine, instead of threads.
        client: A ``distributed.Client``: batches become tasks of its cluster.
        device: Of the chains; that of the starting points if left out.
        dtype: Of the chains; that of the starting points if left out. Iterative projections, the returned samples of
            strict methods and the certificate are float64 in any case.
        compile: Whether to compile steps with ``torch.compile``: seconds in every run, then up to twice as fast.
            Results agree with eager ones to rounding. Where there is no compiler, steps are eager, with a warning.
        store: A folder (zarr) that takes every batch as it ends. The same call with the same store goes on from what is
            there and ends in the same bits. Before that it takes a few steps of a stored batch again and compares bits:
            another model, set, method or start is refused. A larger n adds chains, if chains never exchange anything:
            full batches stay as they are, a last one that was not full is run again.
        run_id: A name of your own that is kept in the store and must be the same when it is continued.
        progress: Whether to show a progress bar (needs rich). None shows one on a terminal, and only there, after five
            seconds.
        callback: Called as ``callback(view)`` after every step of every batch (with compile, after every few steps)
            with a ``StepView``. Calls never overlap. If it returns something true, the run ends as by Ctrl-C.
        record_every: Steps between two records of the trace; 0 records the end only.
        snapshots: Steps between two snapshots of the samples, which ``result.snapshots`` keeps in memory; 0 for none.
        stop_early: Whether a run of chains that are resampled up to its end stops where nearly all of them descend from
            a few starts (fewer than 5 % and fewer than 50). The result is then ``partial``, and a warning says so.
            Chains that go on after the last resampling, as those of ``HMC``, do not stop.
        budget: How hard iterative projections try inside the loop: one budget, or a function of the progress in
            [0, 1] such as ``casal.tightening()``. If left out, sets of functions take quick steps, others all it takes.
            The samples that are returned get all it takes in any case.

    >>> import casal
    >>> casal.Run(batch=256, threads=1).batch
    256
    """

    batch: int | None = None
    threads: int | None = None
    workers: int | None = None
    client: Any = None
    device: torch.device | str | None = None
    dtype: torch.dtype | None = None
    compile: bool = False
    store: str | Path | None = None
    run_id: str | None = None
    progress: bool | None = None
    callback: Callback | None = None
    record_every: int = 0
    snapshots: int = 0
    stop_early: bool = True
    budget: Budget | Callable[[float], Budget] | None = None

    def __post_init__(self) -> None:
        for name, least in (("batch", 1), ("threads", 1), ("workers", 1), ("record_every", 0), ("snapshots", 0)):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, whole_number(value, name, least))
        object.__setattr__(self, "dtype", _dtype(self.dtype))
        if self.store is not None and not isinstance(self.store, str | Path):
            raise SettingError(f"store is the path of a folder, a string or a pathlib.Path, got {self.store!r}")
        if self.run_id is not None and not isinstance(self.run_id, str):
            raise SettingError(f"run_id is a text, got {self.run_id!r}")
        if self.callback is not None and not callable(self.callback):
            raise SettingError(f"callback is a function of a casal.StepView, got {self.callback!r}")
        if self.client is not None and self.workers is not None:
            raise SettingError("give client= or workers=, not both")
        elsewhere = self.client is not None or self.workers is not None
        if elsewhere and self.callback is not None:
            raise SettingError("callback= is called in this process; leave out client= and workers=")
        if elsewhere and self.compile:
            raise SettingError("compile=True works in this process only; leave out client= and workers=")


def _dtype(given: Any) -> torch.dtype | None:
    """The dtype of the chains: one of torch, or its name, such as "float32"; NumPy's have names, too."""
    name = given if isinstance(given, str) else getattr(given, "__name__", getattr(given, "name", None))
    found = getattr(torch, name, None) if isinstance(name, str) else given
    if found is not None and not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise DtypeError(f"chains are floating-point numbers; use torch.float32 or torch.float64, got dtype={given!r}")
    if found is None and given is not None:
        raise DtypeError(f"torch has no dtype {given!r}; use torch.float32 or torch.float64")
    return found


class Options(NamedTuple):
    """The settings of ``casal.sample`` beyond target, set, method and n; see there."""

    decoder: Decoder | None = None
    seed: int = 0
    tol: Tolerance = 1e-8
    units: Tolerance | None = None
    check: Check = True
    run: Run = Run()
