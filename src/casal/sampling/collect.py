"""The chains of a run, collected into one result."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from casal.diagnostics import Evidence, Fidelity, assess, warn_if_degenerate
from casal.methods import Context, Usage
from casal.sampling.certificate import certify
from casal.sampling.executors import Executor
from casal.sampling.loop import Chains
from casal.sampling.on_the_way import gather_snapshots, settled_after
from casal.sampling.plan import Plan
from casal.sampling.result import Cost, SampleResult
from casal.sampling.stepping import Stepper
from casal.sampling.tiles import Tile, join, one_thread
from casal.sampling.trace import Trace


def collect(
    plan: Plan, chains: Chains, executor: Executor, stepper: Stepper, began: float, interrupted: bool
) -> SampleResult:
    """All tiles that took a step, tile by tile, so that no tensor is held twice.

    Args:
        plan: The run.
        chains: Its chains.
        executor: Who took them.
        stepper: How.
        began: When the call began, by ``time.perf_counter``.
        interrupted: Whether it was.

    Raises:
        KeyboardInterrupt: No tile took a step.
    """
    begun = [tile for tile in chains.tiles if tile.state is not None and tile.steps > 0]
    if not begun:
        raise KeyboardInterrupt("interrupted before any chain took a step; nothing to return")
    last = max(tile.steps for tile in begun)
    samples = _samples(plan, begun)
    n = len(samples)
    for tile in begun:
        tile.trace.steps.pop(last, None)  # the state may have been resampled since
        plan.record(tile, last)
    usage, records = Usage(), Trace()
    for used, trace in [(chains.usage, chains.trace), *((tile.usage, tile.trace) for tile in chains.tiles)]:
        usage.absorb(used)
        records.absorb(trace)
    which = torch.cat([torch.arange(tile.start, tile.stop) for tile in begun])
    steps = torch.cat([torch.full((len(tile),), tile.steps) for tile in begun])
    state, series = _decoded(plan, join(begun)), records.series()
    warn_if_degenerate(series, n, getattr(state, "log_weight", None))
    about = {**plan.about(), "asked": len(plan.target.table), "threads": executor.threads, "compile": stepper.compiles}
    if stepper.note is not None:
        about["compile_note"] = stepper.note
    snapshots = gather_snapshots(plan, begun)
    if snapshots is not None:
        about["settled_after"] = settled_after(plan)
    context = plan.context if len(begun) == len(chains.tiles) else plan.context.take(which)
    constraint = plan.constraint.take(which)
    result = SampleResult(
        samples=samples,
        certificate=certify(constraint, samples, plan.options.tol, plan.options.units),
        trace=series,
        cost=Cost(usage.scores / n + plan.target.init_evaluations, usage.projections / n, 0.0),
        state=state,
        provenance=about,
        constraint=constraint,
        steps=steps,
        partial=interrupted,
        snapshots=snapshots,
        latents=None if plan.undecoded else state[0],
        gap=plan.gap(state, samples),
    )
    spent = Usage()
    seen = result if plan.offset is None else replace(result, samples=samples - plan.offset.to(samples.device))
    fidelity = _fidelity(plan, seen, context.replace(usage=spent))
    looked = spent.scores / n + plan.checked
    checks = {"check_evaluations": looked, "check_projections": spent.projections / n}
    cost = replace(result.cost, seconds=time.perf_counter() - began, **checks)
    return replace(result, fidelity=fidelity, cost=cost)


def _fidelity(plan: Plan, result: SampleResult, context: Context) -> Fidelity:
    """The certificate of the distribution; an interrupted run is not worth evaluations."""
    doubts = plan.doubts
    if result.partial:
        done = int(result.steps.min())
        doubts += (f"the run was interrupted after {done} of {plan.steps} steps; run it to the end",)
    with one_thread():
        return assess(
            Evidence(result, context, result.cost.score_evaluations, result.cost.projections),
            promised=plan.method.promises_distribution,
            method=plan.method.name,
            spend=False if result.partial else plan.options.check,
            notes=plan.notes,
            doubts=doubts,
        )


def _samples(plan: Plan, tiles: list[Tile]) -> Tensor:
    first = plan.output(tiles[0], tiles[0].usage)
    if len(tiles) == 1:
        return first
    samples = first.new_empty((sum(len(tile) for tile in tiles), *first.shape[1:]))
    done = len(first)
    samples[:done] = first
    for tile in tiles[1:]:
        samples[done : done + len(tile)] = plan.output(tile, tile.usage)
        done += len(tile)
    return samples


def _decoded(plan: Plan, state: Any) -> Any:
    """The state as a reader expects it: in decoded space, in the dtype of the run."""
    wide = plan.inside.lift(state)
    return type(state)(*(new.to(old.dtype) for new, old in zip(wide, state, strict=True)))
