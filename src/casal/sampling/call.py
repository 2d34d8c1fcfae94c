"""The public call: plan, run, collect."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from casal.checks import Callback, Check, Tolerance
from casal.constraints import Budget, Constraint, Scheduled
from casal.decoders import Decoder
from casal.errors import CasalWarning, SettingError
from casal.methods import Method
from casal.sampling.collect import collect
from casal.sampling.executors import Dask, Executor, Threads, cluster_client
from casal.sampling.keeping import StoreKeeper
from casal.sampling.loop import Chains, Keeper, run
from casal.sampling.plan import Options, make_plan
from casal.sampling.progress import progress_bar
from casal.sampling.result import SampleResult
from casal.sampling.stepping import Compiled, Eager, Graphs, Stepper
from casal.targets import Target

logger = logging.getLogger("casal")


def sample(
    target: Target,
    constraint: Constraint | Scheduled,
    method: Method[Any] | str,
    n: int,
    *,
    decoder: Decoder | None = None,
    seed: int = 0,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    tol: Tolerance = 1e-8,
    units: Tolerance | None = None,
    record_every: int = 0,
    budget: Budget | Callable[[float], Budget] | None = None,
    progress: bool = False,
    tile: int | None = None,
    threads: int | None = None,
    compile: bool = False,
    store: str | Path | None = None,
    client: Any = None,
    workers: int | None = None,
    check: Check = True,
    snapshots: int = 0,
    callback: Callback | None = None,
) -> SampleResult:
    """Draw n samples that lie in the set, with a certificate of that, and one of their distribution.

    Score, potential, denoiser, decoder and set are functions of any number of rows, each row on its own; they return
    new tensors and never edit their argument. They are tried on copies of a few starting points first, and their
    results are checked at every call. Chains run in tiles, so a function that holds data of its own for each chain
    (``lambda x: x - data`` with ``data`` of n rows) works only where all chains are in one tile, in their order. Such a
    function is found out, by its failure on a few rows or by a score that changes with the row; then tile = n is taken,
    nothing is spent on checks of the distribution, and settings that break it are refused: another ``tile``, "auto",
    and methods that resample the chains. Data that are cut to the rows of the call (``data[: len(x)]``) are those of
    the wrong chains in every tile but the first. Sets of their own for each chain are ``casal.PerChain``, and labels,
    embeddings or other data of its own go to the model by ``condition=`` of its family: both are cut with the tiles.

    Args:
        target: Score, table and start, from ``casal.langevin``, ``casal.energy`` ...
        constraint: The set C, in decoded space; or sets that change along the run, ``casal.Scheduled``, the last of
            which is C.
        method: How the constraint enters each step; "auto" takes what measurements recommend (``methods/auto.py``).
        n: Number of chains; each gives one sample.
        decoder: A, if the model lives in another space than the constraint; the identity if left out.
        seed: One number for all randomness. The result does not depend on the number of threads.
        dtype: Dtype of the chains; that of the starting points if left out. Iterative projections, the returned samples
            of strict methods and the certificate are float64 in any case.
        device: Device of the chains; that of the starting points if left out.
        tol: Violation up to which a sample counts as feasible. A number is relative: each row of the definition of the
            set (equation, inequality, bound) is measured by its own terms, see ``Constraint.violation``. A list or
            tensor holds one absolute tolerance a row, in the unit in which the set is written; ``constraint.row_name``
            names the rows. A method that promises feasible samples warns of those that are not.
        units: What counts as one in each row, a number or one a row, in the unit in which the set is written; ``tol``
            is then in these units. ``units=1.0`` makes a single ``tol`` absolute.
        record_every: Steps between two records of the trace; 0 records the end only.
        budget: How hard iterative projections try inside the loop: one budget, or a function of the progress in
            [0, 1] such as ``casal.tightening()``. If left out, sets of functions take quick steps, which are right to
            about a hundredth of the distance to the set, others all it takes; ``Budget()`` asks for all it takes. The
            samples that are returned get it in any case.
        progress: Whether to show a progress bar (needs rich).
        tile: Chains in a tile; if left out chosen from the size of an event, and for a network so that it gets a batch
            of up to 64. Changes the random numbers. It is n where a function needs all chains at once, see below.
        threads: Tiles that run at the same time, each on one core; as many as torch has threads if left out. Changes no
            bit of the result. Score and decoder are called from several threads at once: take 1 if yours cannot.
        compile: Whether to compile the step with ``torch.compile``: seconds once, then about twice as fast. Results
            agree with eager ones to rounding. Falls back to eager steps, with a warning, where there is no compiler.
        store: A folder (zarr) that takes every tile as it ends. The same call with the same store goes on from the
            tiles that are there and ends in the same bits; another run is refused. A larger n adds chains to the run,
            unless chains meet: full tiles stay as they are, a last one that was not full is run again.
        client: A ``distributed.Client``: tiles become tasks of its cluster. Changes no bit of the result.
        workers: The same on an embedded cluster of that many processes.
        check: Whether checks of the distribution may evaluate the score: at most 8 % more evaluations, for methods
            that promise the distribution, counted apart in ``result.cost``. "drift" adds a check by a few Metropolis
            moves, 15 % in all. Checks without evaluations are always made.

        snapshots: Steps between two snapshots of the samples, which ``result.snapshots`` keeps in memory; 0 keeps none.
        callback: Called as ``callback(view)`` after every step of every tile (with compile=True, after every few steps)
            with a ``StepView``: the step, which chains these are, and their samples, worked out on use. Calls never
            overlap. If it returns something true, the run ends as by Ctrl-C. Tiles that a store holds are not shown.

    Returns:
        Samples, certificate, fidelity, trace, cost, last state, provenance. If interrupted by Ctrl-C, it returns the
        chains that have taken at least one step, marked ``partial``, with a warning.

    Raises:
        CasalError: Settings, shapes or sets that cannot work (before the first step), or chains that diverged.
    """
    began = time.perf_counter()
    options = Options(
        decoder, seed, dtype, device, tol, units, record_every, budget, tile, threads, compile, check, snapshots
    )
    if not isinstance(target, Target):
        raise SettingError(
            f"target must be a casal.Target, got {type(target).__name__}: wrap a pipeline or network of diffusers by "
            "casal.from_diffusers(pipeline, steps=50), a potential by casal.energy, a score by casal.langevin"
        )
    if isinstance(constraint, Scheduled):
        options, constraint = options._replace(sets=constraint), constraint.last
    if store is not None and isinstance(n, int):
        options = options._replace(stored_tile=StoreKeeper.tile_of(store, n))
    if callback is not None and not callable(callback):
        raise SettingError(f"callback is a function of a casal.StepView, got {callback!r}")
    if callback is not None and (client is not None or workers is not None):
        raise SettingError("callback= is called in this process; leave out client= and workers=")
    with torch.no_grad(), cluster_client(client, workers, compile) as found:
        plan = make_plan(target, constraint, method, n, options)
        if plan.choice is not None:
            logger.info('method="auto": %s', plan.choice)
        chains = Chains(plan.tiles(), plan.common_generator())
        with progress_bar(progress, plan.steps * len(chains.tiles), plan.choice or plan.method.name) as bar:
            executor: Executor = Threads(plan, bar, callback) if found is None else Dask(plan, bar, found)
            stepper: Stepper = Compiled(plan, Graphs.of(plan, executor.threads)) if compile else Eager()
            keeper = Keeper() if store is None else StoreKeeper(store, plan, chains, stepper.compiles, bar)
            with closing(keeper), executor:
                interrupted = run(plan, chains, executor, stepper, keeper)
                result = collect(plan, chains, executor, stepper, began, interrupted)
                keeper.finish(result)
    if plan.method.strict:
        _warn_if_infeasible(result)
    return replace(result, cost=replace(result.cost, seconds=time.perf_counter() - began))


def _warn_if_infeasible(result: SampleResult) -> None:
    """A method that promises feasible samples has not kept its promise."""
    certificate = result.certificate
    lost = int((~certificate.feasible).sum())
    if lost:
        warnings.warn(
            f"{lost} of {len(certificate.violation)} samples are not feasible: the largest violation is "
            f"{float(certificate.violation.max()):.3g}, tol = {certificate.tolerance:g}; result.certificate says which "
            "ones. Raise tol= if that is near enough; else see whether the set is empty or its projection gives up "
            "early, and start nearer to the set",
            CasalWarning,
            stacklevel=3,
        )
