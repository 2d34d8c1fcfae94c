"""The only loop: stage after stage; within a stage, batch beside batch.

    Each        every batch takes the rows of the stage on its own, with the random stream (seed, stage, batch)
    Together    all chains at once, with the random stream (seed, stage)

There is one state for all chains, and a batch is a slice of it, written back when the stage is over. Streams have keys
and no memory, so a stage of a batch can be taken again at any time, here or in another process, to the same bits: to
find the step at which a chain was lost, or to show that a stored run is this run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from casal.errors import DivergedError, ProjectionError
from casal.methods import Each, Problem, Together, Uncounted, Usage
from casal.sampling.prepare import Batch, Prepared
from casal.sampling.threads import one_thread
from casal.sampling.trace import Trace

# ------------------------------------------------------------------------------------------------ on the way


class StepView:
    """What a ``callback`` is shown: some chains of the run after a step. Nothing in it is live.

    Attributes:
        step: Steps that these chains have taken.
        steps: Steps of the whole run.
        chains: Which chains they are, as a slice of all n.
    """

    def __init__(self, prepared: Prepared, batch: Batch, step: int, state: Any) -> None:
        self._prepared, self._batch, self._state = prepared, batch, state
        self.step, self.steps, self.chains = step, prepared.steps, batch.chains

    def __repr__(self) -> str:
        return f"StepView(step {self.step} of {self.steps}, chains {self.chains.start} to {self.chains.stop})"

    @property
    def samples(self) -> Tensor:
        """What the run would return now, (chains, *event), projected where the method is strict; worked out on use."""
        return self._prepared.samples(self._batch, self._state, Uncounted()).clone()

    @property
    def state(self) -> Any:
        """A copy of the state of the method: x, z, multipliers ..."""
        lifted = self._prepared.inside.lift(self._state)
        return type(lifted)(*(part.clone() for part in lifted))


class Watch:
    """What a batch at work asks and tells. This one lets it go on and does not listen."""

    def may_go_on(self, batch: Batch) -> bool:
        """Whether nothing has happened that stops this batch: an interrupt, or an error in an earlier batch."""
        return True

    def advance(self, steps: int, evaluations: int) -> None:
        """So many steps more were taken, with so many evaluations of single chains."""

    def tell(self, known: Mapping[str, float]) -> None:
        """Scalars worth showing."""

    def show(self, view: StepView) -> None:
        """A batch has taken a step, and its state is finite."""

    @property
    def shows(self) -> bool:
        """Whether ``show`` does anything."""
        return False


class Walk:
    """How rows of a stage are taken: one by one. ``compile.py`` has one that takes several in one call."""

    @property
    def compiles(self) -> bool:
        """Whether steps are compiled."""
        return False

    @property
    def note(self) -> str | None:
        """What a reader of the result should know of how the steps were taken; None if there is nothing."""
        return None

    def __call__(
        self, prepared: Prepared, problem: Problem, stage: Each, work: Work, generator: torch.Generator
    ) -> Iterator[tuple[int, Any]]:
        """The number of rows taken and the state, whenever it is complete."""
        state, budget = work.state, prepared.options.run.budget
        for k, row in enumerate(stage.rows[work.first :], work.first):
            if budget is not None:
                share = (work.done + k) / prepared.steps
                problem = problem.replace(budget=budget(share) if callable(budget) else budget)
            state = step_once(problem, stage, state, row, stage.noise(problem, len(work.batch), generator))
            yield k + 1, state


def step_once(problem: Problem, stage: Each, state: Any, row: Any, noise: Tensor) -> Any:
    """One step of the chains of a batch."""
    return stage.step(problem, state, row, noise)


class Work(NamedTuple):
    """The rows of a stage that a batch has to take.

    Attributes:
        stage: Number of the stage.
        control: Shared numbers of the stage; None for the first ones.
        batch: The chains.
        state: Of these chains.
        done: Steps that they took in earlier stages.
        first: The first row to take.
        stop: The row after the last one to take; None for all.
        generator: State of the generator before the first row; None for that of the stream.
        replayed: Rows at the ends and in the middle that another run may take again to compare; None for none.
    """

    stage: int
    control: Any
    batch: Batch
    state: Any
    done: int
    first: int = 0
    stop: int | None = None
    generator: Tensor | None = None
    replayed: int | None = None


class Mark(NamedTuple):
    """Where a batch stood: the rows it had taken, its state, and the state of its generator."""

    row: int
    state: Any
    generator: Tensor


class Advanced(NamedTuple):
    """What became of a batch.

    Attributes:
        batch: The chains.
        state: Their state.
        rows: Rows of the stage that they have taken.
        usage: What they used.
        trace: What was recorded of them.
        snapshots: Their samples by step.
        marks: Where it stood before and after some rows, by name, if asked for.
        interrupted: Whether they were stopped before the end of the stage.
    """

    batch: Batch
    state: Any
    rows: int
    usage: Usage
    trace: Trace
    snapshots: dict[int, Tensor]
    marks: Mapping[str, tuple[Mark, Mark]]
    interrupted: bool = False


CHECK_EVERY = 16
"""Steps between two tests for chains that are no longer finite."""


def begin(prepared: Prepared, work: Work, watch: Watch, walk: Walk) -> Advanced:
    """The first state of a batch."""
    usage = Usage()
    return Advanced(work.batch, prepared.start(work.batch, usage), 0, usage, Trace(), {}, {})


def advance(prepared: Prepared, work: Work, watch: Watch, walk: Walk, check_every: int = CHECK_EVERY) -> Advanced:
    """Take the rows of a stage with one batch. Replays and workers elsewhere call it too.

    Every few rows it tests whether all chains are finite. If not, it takes the same rows again with the same noise, and
    tests after every row.
    """
    batch, usage, run = work.batch, Usage(), prepared.options.run
    stage = prepared.stage(prepared.control if work.control is None else work.control, work.stage)
    assert isinstance(stage, Each)
    problem = prepared.inside.problem.of_chains(batch.start, batch.stop, usage)
    generator = prepared.stream(work.stage, batch.index + 1)
    if work.generator is not None:
        generator.set_state(work.generator)
    state, taken, told, count = work.state, work.first, work.first, len(stage.rows) if work.stop is None else work.stop
    trace, snapshots, interrupted, counted = Trace(), dict[int, Tensor](), False, 0
    marks = None if work.replayed is None else Marks(state, generator, count, work.replayed)
    try:
        for taken, state in walk(prepared, problem, stage, work, generator):
            step, last = work.done + taken, taken == count
            if last or taken // check_every > told // check_every:
                if not finite(state):
                    break
                watch.advance(taken - told, usage.scores - counted)
                told, counted = taken, usage.scores
            if marks is not None:
                marks.pass_by(taken, state, generator)
            record = run.record_every and step % run.record_every == 0
            snapshot = run.snapshots and step % run.snapshots == 0
            if (record or snapshot or watch.shows) and finite(state):
                if record:
                    trace.record(step, prepared.monitor(batch, state))
                    watch.tell({"violation": trace.latest("violation")})
                if snapshot:
                    snapshots[step] = prepared.samples(batch, state, Uncounted()).detach().clone()
                watch.show(StepView(prepared, batch, step, state))
            if last:
                break
            if not watch.may_go_on(batch):
                interrupted = True
                break
    except ProjectionError as error:
        if not error.chains:
            raise
        raise lost(prepared, work, state, stage.rows[taken], taken + 1, error.chains) from error
    except KeyboardInterrupt:
        interrupted = True
    if not finite(state):
        if check_every > 1:
            return advance(prepared, work, Watch(), Walk(), check_every=1)
        gone = torch.nonzero(~torch.isfinite(state[0]).flatten(1).all(1)).flatten().tolist()
        raise lost(prepared, work, state, stage.rows[taken - 1], taken, gone)
    return Advanced(batch, state, taken, usage, trace, snapshots, {} if marks is None else marks.kept, interrupted)


class Marks:
    """Where a batch stands before and after some rows: at the beginning of a stage, half-way, and at its end.

    Args:
        state: Before the first row.
        generator: Before the first row.
        rows: Rows of the stage.
        replayed: Rows from before to after.
    """

    def __init__(self, state: Any, generator: torch.Generator, rows: int, replayed: int) -> None:
        begin = Mark(0, type(state)(*(part.clone() for part in state)), generator.get_state())
        self._replayed, self._rows = replayed, rows
        self._pairs = {"first steps": [begin], "middle steps": list[Mark](), "last steps": [begin]}

    def pass_by(self, row: int, state: Any, generator: torch.Generator) -> None:
        """So many rows are taken."""
        here = Mark(row, state, generator.get_state())
        first, middle, last = self._pairs.values()
        if len(first) == 1 and row >= self._replayed:
            first.append(here)
        if len(middle) == 1 and row >= middle[0].row + self._replayed:
            middle.append(here)
        if not middle and row >= self._rows // 2:
            middle.append(here)
        if row <= self._rows - self._replayed:
            last[:] = [here]
        elif row == self._rows:
            last.append(here)

    @property
    def kept(self) -> dict[str, tuple[Mark, Mark]]:
        """Before and after, by name."""
        return {name: (pair[0], pair[1]) for name, pair in self._pairs.items() if len(pair) == 2}


def finite(state: Any) -> bool:
    """Whether the points of a state are finite. A sum is one cheap pass; if it overflows, all points are tested."""
    x = state[0]
    return math.isfinite(float(x.sum())) or bool(torch.isfinite(x).all())


def lost(prepared: Prepared, work: Work, state: Any, row: Any, taken: int, chains: Sequence[int]) -> DivergedError:
    """The error for some chains of a batch that were lost in a row; the method says what to change."""
    step = work.done + taken
    return DivergedError(
        f"{len(chains)} of {len(work.batch)} chains diverged at step {step} of {prepared.steps} "
        f"{prepared.method.advice(state, row)}",
        step=step,
        steps=prepared.steps,
        chains=[work.batch.start + chain for chain in chains],
    )


# ------------------------------------------------------------------------------------------------ the loop


@dataclass
class Job:
    """A run on its way.

    Attributes:
        control: Shared numbers.
        state: Of all chains; None before the start.
        stage: Number of the next stage.
        done: Steps of the stages before it.
        taken: Steps of the chains of each batch.
        usage: What was used.
        trace: What was recorded.
        snapshots: Samples by step and batch.
        begun: What the start of each batch used.
        interrupted: Whether the run was stopped.
        stopped: Why, if it stopped by itself.
        ended: Whether all stages are done.
    """

    control: Any
    taken: list[int]
    state: Any = None
    stage: int = 0
    done: int = 0
    usage: Usage = field(default_factory=Usage)
    trace: Trace = field(default_factory=Trace)
    snapshots: dict[int, dict[int, Tensor]] = field(default_factory=dict)
    begun: dict[int, Usage] = field(default_factory=dict)
    interrupted: bool = False
    stopped: str = ""
    ended: bool = False

    def part(self, batch: Batch) -> Any:
        """The state of a batch: a slice of that of all chains.

        It counts its own versions (``data``): what another batch writes beside it is no change of its points.
        """
        if len(self.taken) == 1:
            return self.state
        return type(self.state)(*(part.data[batch.chains] if part.ndim else part for part in self.state))

    def absorb(self, came: Advanced) -> None:
        """What a batch used and what was recorded of it."""
        self.usage.absorb(came.usage)
        self.trace.absorb(came.trace)
        for step, samples in came.snapshots.items():
            self.snapshots.setdefault(step, {})[came.batch.index] = samples


class Whole:
    """The state of all chains, from the states of batches as they come.

    Written over the state before it, if one is given and has the same fields: those of a state may change their shapes
    from stage to stage.
    """

    def __init__(self, n: int, before: Any) -> None:
        self.n, self.state = n, before

    def write(self, batch: Batch, part: Any) -> None:
        """Put the state of a batch in its place."""
        if len(batch) == self.n:
            self.state = part
            return
        if not self._fits(part):
            self.state = type(part)(*(p.new_empty((self.n, *p.shape[1:])) if p.ndim else p for p in part))
        shared = {name: p for name, p in zip(part._fields, part, strict=True) if not p.ndim}
        for whole, piece in zip(self.state, part, strict=True):
            if piece.ndim:
                whole[batch.chains] = piece
        if shared:
            self.state = self.state._replace(**shared)

    def _fits(self, part: Any) -> bool:
        if type(self.state) is not type(part):
            return False
        pairs = zip(self.state, part, strict=True)
        return all(w.dtype == p.dtype and w.shape[1:] == p.shape[1:] and w.ndim == p.ndim for w, p in pairs)


class Keeper:
    """What is kept of a run while it goes on: nothing. ``resume.py`` has one with a store."""

    def resume(self, job: Job) -> None:
        """Bring back what is there of an earlier run."""

    def checkpoint(self, job: Job) -> None:
        """All chains are about to begin a stage."""

    def replayed(self, batch: Batch) -> int | None:
        """Rows at the ends and in the middle of a stage that another run may take again to compare; None for none."""
        return None

    def keep(self, job: Job, came: Advanced) -> None:
        """A batch has ended a stage."""

    def end(self, job: Job) -> None:
        """All chains have ended the last stage."""

    def on_interrupt(self, n: int, taken: Tensor, steps: int) -> str:
        """What to say of an interrupted run of n chains, of which some took so many steps."""
        complete = int((taken == steps).sum())
        return (
            f"interrupted: of {n} chains {complete} took all {steps} steps, {len(taken) - complete} fewer (at least "
            f"{int(taken.min())}), and the result holds these {len(taken)}; pass run=casal.Run(store=...) to be able "
            "to go on where a run was stopped"
        )

    def finish(self, result: Any) -> None:
        """The result of all chains was collected."""

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, *_: object) -> None:
        """The run is over, however it ended."""


def run(prepared: Prepared, job: Job, workers: Any, walk: Walk, keeper: Keeper) -> None:
    """Take all stages with all chains. Ctrl-C keeps what there is.

    Where chains exchange something, batches that stand at different rows go back to the end of the last stage;
    independent chains keep all their steps.
    """
    batches, independent = prepared.batches, prepared.independent_stages() is not None
    try:
        keeper.resume(job)
        waiting = [batch for batch in batches if job.state is None or (independent and not job.taken[batch.index])]
        start(prepared, job, waiting, workers, walk)
        while not (job.interrupted or job.ended):
            stage = prepared.stage(job.control, job.stage)
            if stage is None:
                keeper.end(job)
                job.ended = True
                continue
            if prepared.options.run.stop_early and not prepared.method.adapts and (told := collapsed(prepared, job)):
                job.interrupted, job.stopped = True, told
                continue
            keeper.checkpoint(job)
            if isinstance(stage, Together):
                together(prepared, job, stage, workers)
            else:
                each(prepared, job, stage, batches, workers, walk, keeper, independent)
    except KeyboardInterrupt:
        job.interrupted = True


LEAST_LEFT, ENOUGH_LEFT = 0.05, 50
"""A run of chains that are resampled stops where fewer than this share of the starts, and fewer than this number of
them, have descendants: what follows would be paid for copies."""


def collapsed(prepared: Prepared, job: Job) -> str:
    """Why a run whose chains descend from hardly any start is not worth going on with; empty if it is."""
    known = job.trace.exchanges[-1][1] if job.trace.exchanges else {}
    left = known.get("ancestors")
    if not job.done or left is None or "finish_ess" in known or left >= min(LEAST_LEFT * prepared.n, ENOUGH_LEFT):
        return ""
    return (
        f"the run stopped after {job.done} of {prepared.steps} steps: {left:.0f} of {prepared.n} starts have "
        "descendants, and what follows would be copies of these; use more steps or starting points nearer to the set "
        "(init=), or go on with casal.sample(..., run=casal.Run(stop_early=False))"
    )


def start(prepared: Prepared, job: Job, batches: Sequence[Batch], workers: Any, walk: Walk) -> None:
    """The first states of some batches."""
    whole = Whole(prepared.n, job.state)
    works = [Work(0, None, batch, None, 0) for batch in batches]
    for came in workers.map(begin, works, walk):
        whole.write(came.batch, came.state)
        job.absorb(came)
        job.begun[came.batch.index] = came.usage
    job.state, job.interrupted = whole.state, workers.interrupted


def together(prepared: Prepared, job: Job, stage: Together, workers: Any) -> None:
    """A stage of all chains."""
    problem = prepared.inside.problem.replace(usage=job.usage, batch=prepared.batch)
    generator = prepared.stream(job.stage, 0)
    with one_thread():
        job.state, job.control, known = stage.do(problem, job.state, job.control, generator)
    job.trace.record_exchange(job.done, known)
    workers.tell(known)
    job.stage += 1


def each(
    prepared: Prepared,
    job: Job,
    stage: Each,
    batches: Sequence[Batch],
    workers: Any,
    walk: Walk,
    keeper: Keeper,
    independent: bool,
) -> None:
    """A stage of every chain on its own."""
    rows, whole = len(stage.rows), Whole(prepared.n, job.state if independent else None)
    control = None if job.control is prepared.control else job.control  # a worker knows the first one
    works = [
        Work(job.stage, control, batch, job.part(batch), job.done, replayed=keeper.replayed(batch))
        for batch in batches
        if job.taken[batch.index] < job.done + rows
    ]
    reached = [0] * len(batches)
    for came in workers.map(advance, works, walk):
        index = came.batch.index
        job.taken[index] = 0  # nothing, should it be stopped while it is written
        whole.write(came.batch, came.state)
        reached[index] = job.taken[index] = job.done + came.rows
        job.absorb(came)
        if not came.interrupted:
            keeper.keep(job, came)
    job.interrupted = workers.interrupted
    if independent or not job.interrupted or len(set(reached)) == 1:
        job.state = whole.state
    else:  # chains at different rows cannot be weighed against each other: back to the end of the last stage
        job.taken = [job.done] * len(batches)
    if not job.interrupted:
        job.stage, job.done = job.stage + 1, job.done + rows
