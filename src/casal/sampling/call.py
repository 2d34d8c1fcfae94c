"""The public call: prepare, run, collect."""

from __future__ import annotations

import logging
import time
import warnings
from dataclasses import fields, replace
from typing import Any

import torch

from casal.checks import Check, Tolerance, whole_number
from casal.constraints import Constraint
from casal.decoders import Decoder
from casal.errors import CasalWarning, SettingError
from casal.methods import Method
from casal.sampling.compile import CompiledWalk
from casal.sampling.loop import Job, Keeper, Walk
from casal.sampling.loop import run as carry_out
from casal.sampling.prepare import prepare
from casal.sampling.progress import progress_bar
from casal.sampling.result import SampleResult, collect
from casal.sampling.resume import StoreKeeper
from casal.sampling.run import Options, Run
from casal.sampling.workers import Dask, Threads, Workers, cluster_client
from casal.targets import Target

logger = logging.getLogger("casal")

RENAMED = {"tile": "batch"}
"""Keywords of ``sample`` whose field of ``Run`` has another name."""


def sample(
    target: Target,
    constraint: Constraint | None = None,
    method: Method[Any] | str = "auto",
    n: int = 1,
    *,
    decoder: Decoder | None = None,
    seed: int = 0,
    tol: Tolerance = 1e-8,
    units: Tolerance | None = None,
    check: Check = True,
    run: Run | None = None,
    **old: Any,
) -> SampleResult:
    """Draw n samples that lie in the set, with a certificate of that, and one of their distribution.

    Score, potential, denoiser, decoder and set are functions of any number of rows, each row on its own; they return
    new tensors and never edit their argument. They are tried on copies of a few starting points first, and their
    results are checked at every call. Sets of their own for each chain are ``casal.PerChain``, and labels, embeddings
    or other data of its own go to the model by ``condition=`` of its family: both are cut with the batches of chains.

    Args:
        target: Score, table and start, from ``casal.langevin``, ``casal.energy`` ...
        constraint: The set C, in decoded space; None for samples of the model alone.
        method: How the constraint enters each step: a method such as ``casal.CASAL(10.0)``, or the name of one that
            needs no settings. "auto" takes what measurements recommend (``methods/auto.py``).
        n: Number of chains; each gives one sample.
        decoder: A, if the model lives in another space than the constraint; the identity if left out.
        seed: One number for all randomness. The result does not depend on the number of threads.
        tol: Violation up to which a sample counts as feasible. A number is relative: each component of the definition
            of the set (equation, inequality, bound) is measured by its own terms, see ``Constraint.violation``. A list
            or tensor holds one absolute tolerance a component, in the unit in which the set is written. A method that
            promises feasible samples warns of those that are not.
        units: What counts as one in each component, a number or one a component, in the unit in which the set is
            written; ``tol`` is then in these units. ``units=1.0`` makes a single ``tol`` absolute.
        check: Whether checks of the distribution may evaluate the score: at most 8 % more evaluations, counted
            apart in ``result.cost``. Methods that promise the distribution compare samples and score; others draw a few
            samples of a diffusion or flow model alone, to see whether model and set are in the same units. A number
            is another share: ``check=0.5`` for up to half as many evaluations again. Checks without evaluations are
            always made.
        run: How the run is carried out: threads, workers, batches, a store, compiled steps, progress, snapshots ...
            (``casal.Run``).
        old: Fields of ``Run`` as keywords of their own, as in earlier versions; deprecated.

    Returns:
        Samples, certificate, fidelity, trace, cost, last state, provenance. If interrupted by Ctrl-C, or stopped early
        because nearly all chains descend from a few starts (``casal.Run(stop_early=True)``), it returns the
        chains that have taken at least one step, marked ``partial``, with a warning.

    Raises:
        CasalError: Settings, shapes or sets that cannot work (before the first step), or chains that diverged.
    """
    began = time.perf_counter()
    how = _with_old(run, old)
    options = Options(decoder, whole_number(seed, "seed", 0), tol, units, check, how)
    n = whole_number(n, "n", 1)
    with torch.no_grad(), cluster_client(how.client, how.workers) as client:
        prepared = prepare(target, constraint, method, n, options)
        if prepared.choice is not None:
            logger.info('method="auto": %s', prepared.choice)
        job = Job(prepared.control, [0] * len(prepared.batches))
        total = prepared.steps * len(job.taken)
        with progress_bar(how.progress, total, prepared.method.name, n, prepared.choice) as bar:
            workers: Workers = Threads(prepared, bar) if client is None else Dask(prepared, bar, client)
            walk = CompiledWalk(prepared) if how.compile else Walk()
            keeper = Keeper() if how.store is None else StoreKeeper(how.store, prepared, bar, walk)
            with keeper, workers:
                carry_out(prepared, job, workers, walk, keeper)
                result = collect(prepared, job, workers.threads, walk, began)
                if not result.partial:
                    keeper.finish(result)
                else:
                    told = job.stopped or keeper.on_interrupt(n, result.steps, prepared.steps)
                    warnings.warn(told, CasalWarning, stacklevel=2)
    if prepared.method.strict:
        _warn_if_infeasible(result)
    return replace(result, cost=replace(result.cost, seconds=time.perf_counter() - began))


def _with_old(run: Run | None, old: dict[str, Any]) -> Run:
    """How the run is carried out, with keywords that earlier versions of ``sample`` had."""
    if run is not None and not isinstance(run, Run):
        raise SettingError(f"run must be a casal.Run such as casal.Run(threads=1), got {run!r}")
    given = {RENAMED.get(name, name): value for name, value in old.items()}
    known = {field.name for field in fields(Run)}
    unknown = [name for name in old if RENAMED.get(name, name) not in known]
    if unknown:
        raise SettingError(
            f"sample has no keyword {', '.join(unknown)}; how a run is carried out is run=casal.Run(...), with "
            f"{', '.join(sorted(known))}"
        )
    if given:
        told = ", ".join(f"{name}=..." for name in given)
        warnings.warn(
            f"{', '.join(old)} as keywords of casal.sample are deprecated; write run=casal.Run({told})",
            DeprecationWarning,
            stacklevel=3,
        )
    return replace(run or Run(), **given)


def _warn_if_infeasible(result: SampleResult) -> None:
    """A method that promises feasible samples has not kept its promise."""
    certificate = result.certificate
    lost = int((~certificate.feasible).sum())
    if lost:
        warnings.warn(
            f"{lost} of {len(certificate.violation)} samples are not feasible: the largest violation is "
            f"{float(certificate.violation.max()):.3g}, tol = {certificate.tolerance:g}; result.certificate.feasible "
            "says which. Raise tol= if that is accurate enough; otherwise check that the set is not empty, and start "
            "nearer to it (init=)",
            CasalWarning,
            stacklevel=3,
        )
