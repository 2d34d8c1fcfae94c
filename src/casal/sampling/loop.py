"""The only loop: the legs of a plan one after the other, the tiles of chains side by side.

    for each leg:  all chains meet (resample, average a dual), then each tile takes the rows of the leg alone

Where a stage says how, tiles pass by the meeting of the next leg and go on.

Threads and clusters are behind ``Executor``, compiled and eager steps behind ``Stepper``, stores and checkpoints behind
``Keeper``: the loop knows no more of them than that.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from casal.errors import CasalWarning, DivergedError, ProjectionError
from casal.methods import Context, Usage
from casal.sampling.executors import Executor, Watch
from casal.sampling.freed_memory import keep_freed_memory
from casal.sampling.on_the_way import take_snapshot
from casal.sampling.plan import Plan
from casal.sampling.result import SampleResult
from casal.sampling.stepping import CHECK_EVERY, Block, Stepper, step_once
from casal.sampling.tiles import Tile, hand_back, join, numbers, one_thread, shared_on_host, split
from casal.sampling.trace import Trace


@dataclass
class Chains:
    """All chains of a run: their tiles, and what was used and recorded where they met."""

    tiles: list[Tile]
    generator: torch.Generator
    usage: Usage = field(default_factory=Usage)
    trace: Trace = field(default_factory=Trace)


class Keeper:
    """What is kept of a run while it goes on: nothing. ``keeping.py`` has one with a store."""

    def resume(self) -> int:
        """Bring back what is there of an earlier run; the leg to begin with."""
        return 0

    def checkpoint(self, leg: int) -> None:
        """All chains are about to begin a leg."""

    def keep(self, tile: Tile) -> None:
        """A tile has ended a leg."""

    def end(self) -> None:
        """All tiles have ended the last leg."""

    def close(self) -> None:
        """The run is over, however it ended."""

    def finish(self, result: SampleResult) -> None:
        """The result was collected. An interrupted one is warned of: what is missing of it is lost."""
        if result.partial:
            about, steps = result.provenance, result.steps
            whole = int((steps == about["steps"]).sum())
            warnings.warn(
                f"interrupted: of {about['n']} chains {whole} took all {about['steps']} steps, {len(steps) - whole} "
                f"fewer (at least {int(steps.min())}), and the result holds these {len(steps)}; pass store= to be able "
                "to go on where a run was stopped",
                CasalWarning,
                stacklevel=3,
            )


def run(plan: Plan, chains: Chains, executor: Executor, stepper: Stepper, keeper: Keeper) -> bool:
    """Take all legs with all chains; whether the run was interrupted. Ctrl-C keeps what there is."""
    keep_freed_memory()
    try:
        k = keeper.resume()
        while k < len(plan.legs):
            keeper.checkpoint(k)
            meet(plan, chains, k, executor)
            waiting = [tile for tile in chains.tiles if tile.steps < plan.legs[k].end]
            executor.each(advance, waiting, (stepper, k), keeper.keep)
            k += 1
            while k < len(plan.legs) and plan.legs[k - 1].end < plan.legs[k].end <= chains.tiles[0].steps:
                k += 1  # its meeting was passed by
    except KeyboardInterrupt:
        begun = [tile for tile in chains.tiles if tile.state is not None]
        for tile, state in zip(begun, plan.method.levelled([tile.state for tile in begun]), strict=True):
            tile.state = state
        return True
    keeper.end()
    return False


def meet(plan: Plan, chains: Chains, k: int, executor: Executor) -> None:
    """What all chains do together before the rows of leg k."""
    stage = plan.legs[k].stages[0]
    if stage.meet is None:
        return
    executor.each(start, [tile for tile in chains.tiles if tile.state is None])
    context = plan.inside.context.replace(usage=chains.usage)
    known: Mapping[str, float] = {}
    if stage.by_number:
        with one_thread():
            before = numbers(chains.tiles)
            after, known = stage.meet(context, before, chains.generator)
            hand_back(shared_on_host(after), before, chains.tiles)
    else:
        whole: Any = join(chains.tiles)
        try:
            with one_thread():
                whole, known = stage.meet(context, whole, chains.generator)
        finally:  # an interrupted meeting leaves the states as they were
            for tile, state in zip(chains.tiles, split(shared_on_host(whole), chains.tiles), strict=True):
                tile.state = state
    chains.trace.record_meeting(chains.tiles[0].steps, known)
    executor.tell(known)


def start(plan: Plan, tile: Tile, watch: Watch) -> None:
    """Give a tile its first state."""
    if tile.state is None:
        x = plan.points(tile.start, tile.stop, tile.generator)
        state = plan.method.init(plan.context_now(plan.steps_context(tile), tile), x, tile.generator)
        tile.state = shared_on_host(state)


def advance(plan: Plan, tile: Tile, watch: Watch, stepper: Stepper, k: int) -> None:
    """Take the rows of leg k with the chains of one tile, and of the legs after it whose meetings it passes by.

    Every CHECK_EVERY rows or so it looks whether all chains are finite.
    """
    start(plan, tile, watch)
    context = plan.steps_context(tile)
    span = Span(tile)
    for block in route(plan, context, tile, stepper, k):
        if not watch.may_go_on(tile):
            return
        span.take(block)
        try:
            for _ in stepper.take(plan, context, tile, block):
                look(plan, tile, watch)
                if not watch.may_go_on(tile):
                    return
        except ProjectionError as error:
            if not error.chains:
                raise
            row = [row for block in span.blocks for row in block.rows][tile.steps - span.taken]
            raise diverged(plan, tile, row, tile.steps + 1, error.chains) from error
        if span.rows >= CHECK_EVERY:
            span.end(plan, context, tile, watch)
            span = Span(tile)
    span.end(plan, context, tile, watch)


def route(plan: Plan, context: Context, tile: Tile, stepper: Stepper, k: int) -> Iterator[Block]:
    """The blocks of leg k, then those of the legs after it, as long as the tile passes by their meetings."""
    yield from stepper.blocks(plan, k)
    for later in range(k + 1, len(plan.legs)):
        alone = plan.legs[later].stages[0].alone
        state = None if alone is None else alone(context, tile.state)
        if state is None:
            return
        tile.state = state
        first, *rest = stepper.blocks(plan, later)
        yield first._replace(alone=alone)
        yield from rest


class Span:
    """The blocks that a tile takes between two looks at its chains, and where it stood before."""

    def __init__(self, tile: Tile) -> None:
        self.state, self.stream, self.taken = tile.state, tile.generator.get_state(), tile.steps
        self.blocks, self.rows = list[Block](), 0

    def take(self, block: Block) -> None:
        """One block more."""
        self.blocks.append(block)
        self.rows += len(block.rows)

    def end(self, plan: Plan, context: Context, tile: Tile, watch: Watch) -> None:
        """Look whether all chains are finite; DivergedError if they are not."""
        if self.rows and not finite(tile.state):
            tile.generator.set_state(self.stream)
            tile.state, tile.steps = self.state, self.taken
            locate(plan, context, tile, self.blocks)
        watch.advance(tile.steps - self.taken)


def look(plan: Plan, tile: Tile, watch: Watch) -> None:
    """After a step: record what the method monitors, keep a snapshot, and show the chains, where that is due."""
    record = plan.options.record_every and tile.steps % plan.options.record_every == 0
    snapshot = plan.options.snapshots and tile.steps % plan.options.snapshots == 0
    if not (record or snapshot or watch.looks) or not finite(tile.state):
        return
    if record:
        plan.record(tile, tile.steps)
        watch.tell({"violation": tile.trace.latest("violation")})
    if snapshot:
        take_snapshot(plan, tile)
    watch.show(plan, tile)


# ------------------------------------------------------------------------------------------- chains that are lost


def finite(state: Any) -> bool:
    """Whether the points of a state are finite. A sum is one cheap pass; an overflowing one is looked at again."""
    x = state[0]
    return math.isfinite(float(x.sum())) or bool(torch.isfinite(x).all())


def locate(plan: Plan, context: Context, tile: Tile, blocks: Sequence[Block]) -> None:
    """Take the last few steps again with the same noise, to say at which of them the first chain was lost."""
    for block in blocks:
        if block.alone is not None:
            tile.state = block.alone(context, tile.state)
        for row in block.rows:
            step_once(plan, context, tile, block.stage, row)
            if not finite(tile.state):
                lost = ~torch.isfinite(tile.state[0]).flatten(1).all(1)
                raise diverged(plan, tile, row, tile.steps, torch.nonzero(lost).flatten().tolist())


def diverged(plan: Plan, tile: Tile, row: Any, step: int, chains: Sequence[int]) -> DivergedError:
    """The error for some chains of a tile that were lost in a row; the method says what to change."""
    return DivergedError(
        f"{len(chains)} of {len(tile)} chains diverged at step {step} of {plan.steps} "
        f"{plan.method.advice(tile.state, row)}",
        step=step,
        steps=plan.steps,
        chains=[tile.start + chain for chain in chains],
    )
