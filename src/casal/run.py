"""One call of ``casal.sample``: its tiles, their states, and what is made of them at the end."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from casal.blocks import Block, compiled_blocks, plain_blocks, spans, steps_together
from casal.certificate import certify
from casal.checks import PROBE, check_decoder, check_problem, starting_points
from casal.compiled import CompiledSteps, compiled_steps
from casal.constraints import Budget, Constraint
from casal.decoders import Decoder
from casal.diagnostics import warn_if_degenerate
from casal.divergence import diverged, finite
from casal.errors import ProjectionError
from casal.methods import Method, Problem, Segment, Uncounted, Usage, choose, coordinates
from casal.progress import Progress, Silent
from casal.remote import RemoteWorkers
from casal.result import Cost, SampleResult
from casal.store.identity import fingerprint, plain_repr, rows_digest, set_of
from casal.store.run_store import RunStore
from casal.targets import Target
from casal.tiles import Tile, cut, evened, generator, joined, numbered, one_thread, split, tile_size
from casal.trace import Trace
from casal.workers import Alone, Workers

SPREAD_PROBE = 64
"""Starting points from which ``method="auto"`` reads the scale of a fixed density."""


class Options(NamedTuple):
    """The settings of ``casal.sample`` beyond target, set, method and n; see there."""

    decoder: Decoder | None
    seed: int
    dtype: torch.dtype | None
    device: torch.device | str | None
    tol: float
    record_every: int
    budget: Budget | Callable[[float], Budget] | None
    tile: int | None
    threads: int | None
    compile: bool
    store: str | Path | None = None
    client: Any = None


class Run:
    """Tiles of chains that take the rows of a method's plan."""

    def __init__(
        self, target: Target, constraint: Constraint, method: Method[Any, Any] | str, n: int, options: Options
    ) -> None:
        self.target, self.n, self.options = target, n, options
        place = torch.device(options.device) if options.device is not None else _device_of(target)
        probe = self._points(Tile(0, 0, min(n, PROBE), generator(options.seed, 1, place)))
        row_dtype = probe.dtype if options.compile else torch.float64
        decoder = check_decoder(options.decoder)
        self.problem = Problem(target, constraint, decoder.to(probe), probe[:0], row_dtype=row_dtype)
        check_problem(self.problem, probe, options.tol)
        size = options.tile or evened(n, tile_size(self.problem.latent, self.problem.decoder.event(probe)))
        self.tiles = cut(n, size, options.seed, place)
        self.common = generator(options.seed, 0, place)
        self.method = method if isinstance(method, Method) else self._choice()
        self.inside = coordinates(self.problem, self.method, decoder)
        self.segments: Sequence[Segment] = self.method.plan(self.inside.problem)
        self.steps = sum(len(segment.rows) for segment in self.segments)
        self.total_steps = self.steps * len(self.tiles)
        self.workers: Workers | Alone = Workers(options.threads, self.tiles, place)
        self.compiled: CompiledSteps | None = None
        if options.compile:
            made_from = (target, constraint, options.decoder)
            self.compiled = compiled_steps(
                self.method, self.inside.problem, len(self.tiles[0]), self.workers.threads, made_from
            )
        self.blocks = self._blocks()
        self.trace = Trace()
        self.seconds = 0.0
        self.meets = any(segment.rung is not None for segment in self.segments)
        self.store = None if options.store is None else RunStore(options.store, self._identity(probe), self.tiles)
        self.remote = None if options.client is None else RemoteWorkers(options.client, Job(self))

    def _blocks(self) -> list[list[Block]]:
        """The rows of each segment as tiles take them."""
        if self.compiled is None:
            return [plain_blocks(segment.rows) for segment in self.segments]
        blocks, done = list[list[Block]](), 0
        together = steps_together(len(self.tiles[0]) * torch.Size(self.problem.latent).numel())
        for segment in self.segments:
            blocks.append(compiled_blocks(segment.rows, done, self.options.record_every, together))
            done += len(segment.rows)
        return blocks

    def go(self, bar: Progress) -> SampleResult:
        """Run all segments and collect; Ctrl-C keeps what there is."""
        with self.workers, self.remote or nullcontext():
            interrupted = self._all_segments(bar)
            if self.store is not None and self.meets and not interrupted:
                for tile in self.tiles:
                    self._keep(tile)
            result = self._result(interrupted)
        if self.store is not None:
            self.store.finish(result, self.trace, self.problem.usage)
        return result

    def _all_segments(self, bar: Progress) -> bool:
        """Whether the run was interrupted."""
        began, first = time.perf_counter(), self._restored(bar)
        try:
            for k, segment in list(enumerate(self.segments))[first:]:
                if self.store is not None and self.meets and k > 0:
                    self.store.checkpoint(k, self.trace, self.problem.usage, self.common)
                if segment.rung is not None:
                    info = self._exchange(segment.rung)
                    for name in info.keys() & {"rho", "ess"}:
                        bar.tell(name, info[name])
                self._advance_all(k, bar)
        except KeyboardInterrupt:
            return True
        finally:
            self.seconds = time.perf_counter() - began
        return False

    def _advance_all(self, segment: int, bar: Progress) -> None:
        """Take the rows of one segment with all tiles that are not finished; keep tiles that are."""
        blocks, last = self.blocks[segment], segment == len(self.segments) - 1
        waiting = [tile for tile in self.tiles if self.meets or tile.steps < self.steps]

        def done(tile: Tile) -> None:
            if self.store is not None and last and not self.meets and tile.steps == self.steps:
                self._keep(tile)

        def work(tile: Tile) -> None:
            self._advance(tile, blocks, bar)
            done(tile)

        if self.remote is None:
            self.workers.each(work, waiting)
            return

        def came_back(tile: Tile) -> None:
            bar.advance(len(self.segments[segment].rows))
            done(tile)

        self.remote.advance(waiting, segment, came_back)

    def _restored(self, bar: Progress) -> int:
        """Bring back what the store has; the segment to begin with."""
        if self.store is None:
            return 0
        done = self.store.done()
        if not self.meets or len(done) == len(self.tiles):
            kind = self._kind() if done else None
            for index in done:
                self.store.restore(self.tiles[index], kind)
                bar.advance(self.steps)
            trace, usage = self.store.exchanges()
            self.trace.absorb(trace)
            self.problem.usage.absorb(usage)
            return 0 if not self.meets else len(self.segments)
        segment = self.store.resume(self._kind, self.trace, self.problem.usage, self.common)
        bar.advance(sum(tile.steps for tile in self.tiles))
        return segment

    def _kind(self) -> Any:
        """The class of the method's states."""
        one = Tile(0, 0, 1, generator(self.options.seed, 1, self.problem.like.device))
        problem = self.inside.problem.with_usage(Uncounted())
        return type(self.method.init(problem, self._points(one), one.generator))

    def _keep(self, tile: Tile) -> None:
        """Put a finished tile into the store."""
        assert self.store is not None
        tile.trace.steps.pop(tile.steps, None)
        self._record(tile, tile.steps)
        samples = self._output(tile.state, Uncounted())
        self.store.write(tile, samples, self.problem.constraint.violation(samples))

    def _identity(self, probe: Tensor) -> dict[str, Any]:
        """What a store must agree with to be continued."""
        about = dict(self._provenance())
        for name in ("threads", "python"):  # they change no bit
            del about[name]
        about["constraint"] = set_of(self.problem.constraint)
        about["settings"] = plain_repr(self.method)
        return {
            **about,
            "tol": self.options.tol,
            "record_every": self.options.record_every,
            "budget": plain_repr(self.options.budget),
            "model": fingerprint(self.problem, probe),
            "rows": rows_digest(self.segments),
        }

    def _result(self, interrupted: bool) -> SampleResult:
        """Collect the states of all tiles that took a step, tile by tile: nothing is there more often than need be."""
        begun = [tile for tile in self.tiles if tile.state is not None and tile.steps > 0]
        if not begun:
            raise KeyboardInterrupt("interrupted before any chain took a step; nothing to return")
        last = max(tile.steps for tile in begun)
        samples = self._samples(begun)
        chains = len(samples)
        for tile in begun:
            tile.trace.steps.pop(last, None)  # the state may have been resampled since
            self._record(tile, last)
        usage, records = Usage(), Trace()
        for part_usage, part_trace in (
            (self.problem.usage, self.trace),  # of the exchanges
            *((tile.usage, tile.trace) for tile in self.tiles),
        ):
            usage.absorb(part_usage)
            records.absorb(part_trace)
        state, trace = self._decoded(joined(begun)), records.collected()
        warn_if_degenerate(trace, chains, getattr(state, "log_weight", None))
        return SampleResult(
            samples=samples,
            certificate=certify(self.problem.constraint, samples, self.options.tol),
            trace=trace,
            cost=Cost(usage.scores / chains + self.target.init_evaluations, usage.projections / chains, self.seconds),
            state=state,
            provenance=self._provenance(),
            steps=torch.cat([torch.full((len(tile),), tile.steps) for tile in begun]),
            partial=interrupted,
        )

    def _samples(self, tiles: list[Tile]) -> Tensor:
        first = self._output(tiles[0].state, tiles[0].usage)
        if len(tiles) == 1:
            return first
        samples = first.new_empty((sum(len(tile) for tile in tiles), *first.shape[1:]))
        done = len(first)
        samples[:done] = first
        for tile in tiles[1:]:
            samples[done : done + len(tile)] = self._output(tile.state, tile.usage)
            done += len(tile)
        return samples

    def _output(self, state: Any, usage: Usage) -> Tensor:
        return self.method.output(self.problem.with_usage(usage), self.inside.lifted(state))

    def _decoded(self, state: Any) -> Any:
        """The state as a reader expects it: in decoded space, in the dtype of the run."""
        lifted = self.inside.lifted(state)
        return type(state)(*(new.to(old.dtype) for new, old in zip(lifted, state, strict=True)))

    def _choice(self) -> Method[Any, Any]:
        few = Tile(0, 0, min(self.n, SPREAD_PROBE), generator(self.options.seed, 1, self.problem.like.device))
        return choose(self.problem, self._points(few))

    def _points(self, tile: Tile) -> Tensor:
        x = starting_points(self.target, len(tile), tile.start, self.n, tile.generator)
        return x.to(device=tile.generator.device, dtype=self.options.dtype or x.dtype)

    def _start(self, tile: Tile) -> None:
        if tile.state is None:
            problem = self.inside.problem.with_usage(tile.usage)
            tile.state = numbered(self.method.init(problem, self._points(tile), tile.generator), tile.start)

    def _exchange(self, rung: Any) -> Mapping[str, float]:
        self.workers.each(self._start, self.tiles)
        whole = joined(self.tiles)
        with one_thread():
            whole, info = self.method.exchange(self.inside.problem, whole, rung, self.common)
        self.trace.exchanged(self.tiles[0].steps, info)
        for tile, state in zip(self.tiles, split(whole, self.tiles), strict=True):
            tile.state = state
        return info

    def _advance(self, tile: Tile, blocks: Sequence[Block], bar: Progress) -> None:
        self._start(tile)
        problem = self.inside.problem.with_usage(tile.usage)
        for some in spans(blocks):
            before, stream, taken = tile.state, tile.generator.get_state(), tile.steps
            for block in some:
                if not self._compiled(problem, tile, block, bar):
                    for row in block.rows:
                        if not self.workers.may_go_on(tile):
                            return
                        self._step(problem, tile, row)
                        self._record_if_due(tile, bar)
            if not finite(tile.state):
                self._locate(problem, tile, before, stream, taken, [row for block in some for row in block.rows])
            bar.advance(tile.steps - taken)

    def _compiled(self, problem: Problem, tile: Tile, block: Block, bar: Progress) -> bool:
        """Take a block in one compiled call, if there is one for it."""
        if self.compiled is None or not self.workers.may_go_on(tile):
            return False
        state = self.compiled(problem, tile.state, block, tile.generator)
        if state is None:
            return False
        tile.state = state
        tile.steps += len(block.rows)
        self._record_if_due(tile, bar)
        return True

    def _record_if_due(self, tile: Tile, bar: Progress) -> None:
        every = self.options.record_every
        if every and tile.steps % every == 0 and finite(tile.state):
            self._record(tile, tile.steps)
            bar.tell("violation", tile.trace.latest("violation"))

    def _step(self, problem: Problem, tile: Tile, row: Any) -> None:
        noise = self.method.noise(problem, row, len(tile), tile.generator)
        budget = self.options.budget
        if budget is not None:
            problem = problem.with_budget(budget(tile.steps / self.steps) if callable(budget) else budget)
        try:
            tile.state = self.method.step(problem, tile.state, row, noise)
        except ProjectionError as error:
            if error.chains:
                raise diverged(tile, row, tile.steps + 1, self.steps, error.chains) from error
            raise
        tile.steps += 1

    def _locate(
        self, problem: Problem, tile: Tile, state: Any, stream: Tensor, taken: int, rows: Sequence[Any]
    ) -> None:
        """Replay the last few steps with the same noise, to say at which of them the first chain was lost."""
        tile.generator.set_state(stream)
        tile.state, tile.steps = state, taken
        for row in rows:
            self._step(problem, tile, row)
            if not finite(tile.state):
                lost = ~torch.isfinite(tile.state[0]).flatten(1).all(1)
                raise diverged(tile, row, tile.steps, self.steps, torch.nonzero(lost).flatten().tolist())

    def _record(self, tile: Tile, step: int) -> None:
        problem, state = self.problem.with_usage(Uncounted()), self.inside.lifted(tile.state)
        tile.trace.record(step, self.method.monitor(problem, state))

    def _provenance(self) -> Mapping[str, Any]:
        from casal import __version__

        return {
            "casal": __version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
            "target": self.target.name,
            "constraint": repr(self.problem.constraint),
            "decoder": type(self.problem.decoder).__name__,
            "method": self.method.name,
            "settings": repr(self.method),
            "n": self.n,
            "steps": self.steps,
            "seed": self.options.seed,
            "tile": len(self.tiles[0]),
            "threads": self.workers.threads,
            "compile": self.compiled is not None and not self.compiled.eager,
            "dtype": str(self.problem.like.dtype),
        }


class Job:
    """What a worker elsewhere needs of a run to advance a tile: it can be pickled."""

    def __init__(self, run: Run) -> None:
        core = copy(run)
        core.tiles, core.store, core.remote = [], None, None
        core.workers = Alone()
        core.compiled = None
        core.options = run.options._replace(client=None, store=None)
        self.core = core

    def __call__(self, tile: Tile, segment: int) -> None:
        """Take the rows of a segment."""
        self.core._advance(tile, self.core.blocks[segment], Silent())


def _device_of(target: Target) -> torch.device:
    return target.init.device if isinstance(target.init, Tensor) else torch.device("cpu")
