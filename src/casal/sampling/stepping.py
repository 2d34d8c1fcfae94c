"""How a tile takes the rows of a leg: one by one, or several in one call of ``torch.compile``'s."""

from __future__ import annotations

import itertools
import math
import time
import warnings
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from threading import Lock, local
from typing import Any, NamedTuple

import torch
from torch import Tensor

from casal.errors import CasalWarning
from casal.methods import Alone, Context, Stage, Uncounted, Usage, gaussian, key
from casal.sampling.fast_noise import fast_normal
from casal.sampling.function_code import CodeParts
from casal.sampling.plan import Plan
from casal.sampling.tiles import Tile

CHECK_EVERY = 16
"""Steps between two looks for chains that are no longer finite."""


class Block(NamedTuple):
    """Rows of one stage that a tile takes in one go.

    Attributes:
        stage: The stage.
        rows: The rows.
        columns: A row of columns (k,) instead of numbers, for one compiled call; None if the rows are taken one by one.
        kind: Blocks of one kind share a graph.
        alone: What the tile does before the rows instead of a meeting; None for nothing.
    """

    stage: Stage
    rows: Sequence[Any]
    columns: Any = None
    kind: Hashable = None
    alone: Alone | None = None


class Stepper(ABC):
    """How rows are taken.

    Attributes:
        compiles: Whether steps are compiled.
    """

    compiles: bool = False

    @property
    def note(self) -> str | None:
        """What a reader of the result should know of how the steps were taken; None if there is nothing."""
        return None

    @abstractmethod
    def blocks(self, plan: Plan, k: int) -> list[Block]:
        """All rows of leg k, in order."""

    def take(self, plan: Plan, context: Context, tile: Tile, block: Block) -> Iterator[None]:
        """Take the rows of a block; yields whenever the state of the tile is whole."""
        for row in block.rows:
            step_once(plan, context, tile, block.stage, row)
            yield


def step_once(plan: Plan, context: Context, tile: Tile, stage: Stage, row: Any) -> None:
    """One step of the chains of a tile."""
    noise = stage.noise(context, len(tile), tile.generator)
    budget = plan.options.budget
    if budget is not None:
        context = context.replace(budget=budget(tile.steps / plan.steps) if callable(budget) else budget)
    tile.state = stage.step(plan.context_now(context, tile), tile.state, row, noise)
    tile.steps += 1


class Eager(Stepper):
    """One row after the other."""

    def blocks(self, plan: Plan, k: int) -> list[Block]:
        return [
            Block(stage, stage.rows[first : first + CHECK_EVERY])
            for stage in plan.legs[k].stages
            for first in range(0, len(stage.rows), CHECK_EVERY)
        ]


# ---------------------------------------------------------------------------------------------- compiled steps

TOGETHER = 8
"""Steps in one compiled call, at most: a call costs a tenth of a step, and what lies between steps is never written."""

NOISE_NUMBERS = 1 << 20
"""Numbers in the noise of one call, at most: 4 MB of float32; what leaves the cache before it is read is slow."""

KEPT = 16
"""Compiled steps that are kept for later runs on the same objects."""

FEW = 2
"""Chains on which a step is tried eagerly, to count what it uses."""

TRIALS = 3
"""Blocks that are also taken eagerly, to see whether compiled steps are faster; what the eager ones give is dropped."""

WORTH_A_TRIAL = 50
"""Blocks of a run for each trial, at least: trials take some percent of its time."""

CODE_ERRORS = ("Unsupported", "UserError")
"""Errors of ``torch._dynamo.exc`` that the code of a step is the reason of, and not a compiler or a full disk."""

_numbers = itertools.count()
_kept: OrderedDict[Hashable, tuple[Graphs, tuple[object, ...]]] = OrderedDict()
"""Compiled steps by the objects that they were asked for with. These are held: an id is theirs while they live."""


class Kind(NamedTuple):
    """What is known of a compiled kind of block.

    Attributes:
        used: By all its steps.
        keeps_noise: Whether the state holds on to the noise, so that no other may be written over it.
    """

    used: Usage
    keeps_noise: bool


class Graphs:
    """Compiled steps of a method for tiles of one size, kept for later runs on the same objects or on equal ones.

    The numbers of a row are tensors, so that no value is compiled in; what else a row holds (a flag, a set) makes it a
    kind of its own. Where torch cannot compile a step, all steps are eager, with one ``CasalWarning``; so are
    they where the first blocks show that compiled steps are slower.

    Args:
        plan: The run. Only projections without a budget can be compiled.
        threads: How many will call it. torch's own call of a kernel keeps Python's lock, so that threads would wait for
            each other; for several of them the call is compiled too, which takes a few seconds more.
        alike: What equal objects have in common (``_alike``).

    Attributes:
        eager: Whether torch could not compile a step.
        lasting: Whether that is so because of the code of the step, so that it is not tried again on equal objects.
        slowdown: Time of compiled steps over that of eager ones where that is above one; None before it is known.
    """

    def __init__(self, plan: Plan, threads: int, alike: Hashable) -> None:
        self.name, self.chains, self.alike = plan.method.name, plan.tile, alike
        self._few = plan.n if plan.whole else FEW
        context = plan.inside.context
        _ = context.diagonal, context.root, context.noiseless
        self._context = context.replace(usage=Uncounted())
        self._shared = threads > 1 and plan.device.type == "cpu"
        self._runs: dict[str, Callable[..., Any]] = {}
        self._kinds: dict[Hashable, Kind] = {}
        self._own = local()
        self._lock = Lock()
        self.eager = self.lasting = False
        self._why = ""
        self.slowdown: float | None = None
        self._times: list[tuple[float, float]] | None = []

    @classmethod
    def of(cls, plan: Plan, threads: int) -> Graphs:
        """Those of an earlier run on the same objects, or on equal ones, or new ones."""
        which: Hashable = plan.method
        try:
            hash(which)
        except TypeError:
            which = id(plan.method)
        made_from = (plan.method, plan.target, plan.constraint, plan.options.decoder)
        like = plan.context.like
        same = (plan.tile, threads > 1, plan.context.latent, like.dtype, like.device)
        key = (which, *same, *(id(thing) for thing in made_from[1:]))
        graphs, _ = _kept.pop(key, (None, ()))
        if graphs is None:
            alike = (*same, _alike(plan))
            others = [known for known, _ in _kept.values() if known.alike == alike]
            graphs = next((known for known in others if known.lasting or known.agrees(plan)), None)
            graphs = graphs or cls(plan, threads, alike)
        elif graphs.eager and not graphs.lasting:
            graphs = cls(plan, threads, graphs.alike)
        if graphs.lasting:
            graphs._say_why()
        _kept[key] = graphs, made_from
        while len(_kept) > KEPT:
            _kept.popitem(last=False)
        return graphs

    def agrees(self, plan: Plan) -> bool:
        """Whether score, set and decoder of a run are to the bit those of these steps, at a few starting points.

        Equal code and values make it likely; a network whose weights were changed in place would not agree.
        """
        if self.eager:
            return False
        mine, other = self._context, plan.inside.context.replace(usage=Uncounted())
        x = plan.probe().to(other.like)
        for row in {0, len(other.table) // 2, len(other.table) - 1}:
            t = other.table.t[row].to(x.device)
            if not torch.equal(mine.score(x, t), other.score(x, t)):
                return False
        z = other.decode(x)
        return torch.equal(mine.decode(x), z) and torch.equal(mine.project(z), other.project(z))

    def __call__(self, context: Context, state: Any, block: Block, generator: torch.Generator, trials: bool) -> Any:
        """All steps of a block; None if they are to be taken one by one.

        Args:
            context: Of the chains.
            state: Of the chains.
            block: The rows.
            generator: Of the tile.
            trials: Whether the run is long enough to see whether compiled steps are faster.
        """
        if self.eager or self.slowdown is not None or block.columns is None or len(state[0]) != self.chains:
            return None
        kind = self._kinds.get(block.kind)
        if kind is None:
            with self._lock:
                kind = self._kinds.get(block.kind) or self._compiled(context, state, block, generator)
            if kind is None:
                return None
            self._kinds[block.kind] = kind
        context.usage.absorb(kind.used)
        if trials and self._times is not None and self._lock.acquire(blocking=False):
            try:
                return self._in_a_race(context, state, block, generator, kind)
            finally:
                self._lock.release()
        noise = self._noise(context, block, generator, kind.keeps_noise)
        return self._run(block)(state, block.columns, noise)

    def _in_a_race(self, context: Context, state: Any, block: Block, generator: torch.Generator, kind: Kind) -> Any:
        """The same, and once more eagerly; after a few blocks it is known which is faster, noise included."""
        aside = torch.Generator(generator.device).manual_seed(0)
        began = time.thread_time()
        noise = self._noise(context, block, generator, kind.keeps_noise)
        after = self._run(block)(state, block.columns, noise)
        between = time.thread_time()
        for row in block.rows:
            drawn = block.stage.noise(context, self.chains, aside)
            state = block.stage.step(self._context, state, row, drawn)
        end = time.thread_time()
        if self._times is not None:
            self._times.append((between - began, end - between))
            if len(self._times) == TRIALS:
                compiled, eager = (min(times) for times in zip(*self._times, strict=True))
                self._times = None
                if compiled > eager:
                    self.slowdown = compiled / max(eager, 1e-9)
                    warnings.warn(f"{self._words()}; the run goes on with eager steps", CasalWarning, stacklevel=2)
        return after

    def _words(self) -> str:
        return f"compiled steps of {self.name} take {self.slowdown:.2f} times as long as eager ones here"

    @property
    def note(self) -> str | None:
        """Why steps are eager although compiled ones were asked for; None if they are not."""
        if self.slowdown is not None:
            return f"{self._words()}, so the steps after the first few blocks were eager"
        return f"{self._why}, so the steps were eager" if self.eager else None

    def _say_why(self) -> None:
        text = f"compile=True has no effect: {self._why}; the run goes on with eager steps"
        warnings.warn(text, CasalWarning, stacklevel=2)

    def _run(self, block: Block) -> Callable[..., Any]:
        """The compiled steps of a stage."""
        name = _name(block.stage)
        if name not in self._runs:
            self._runs[name] = self._compile(block.stage)
        return self._runs[name]

    def _compile(self, stage: Stage) -> Callable[..., Any]:
        context = self._context

        def steps(state: Any, columns: Any, noise: Sequence[Tensor]) -> Any:
            for k, drawn in enumerate(noise):
                state = stage.step(context, state, _row(columns, k), drawn.to(context.like.dtype))
            return state

        # torch counts recompilations by code object; all compiled steps of a run are one of their own.
        steps.__code__ = steps.__code__.replace(co_name=f"steps_{next(_numbers)}")
        options: dict[str, Any] | None = {"cpp_wrapper": True} if self._shared else None
        return torch.compile(steps, dynamic=False, fullgraph=True, options=options)

    def _noise(self, context: Context, block: Block, generator: torch.Generator, fresh: bool) -> list[Tensor]:
        """The noise of all steps, in the same memory every time: what a step has just read is still in the cache.

        Gaussian noise stays in float32; steps widen it.
        """
        count, pages = len(block.rows), getattr(self._own, "pages", None)
        if fresh or pages is None or len(pages) < count:
            shape = (count, self.chains, *context.latent)
            pages = torch.empty(shape, dtype=torch.float32, device=generator.device)
        if not fresh:
            self._own.pages = pages
        pages = pages[:count]
        fill = fast_normal(pages[0].numel(), pages.device) if block.stage.noise is gaussian else None
        if fill is None:
            return [block.stage.noise(context, self.chains, generator, page) for page in pages]
        fill(pages, generator)
        return list(pages)

    def _compiled(self, context: Context, state: Any, block: Block, generator: torch.Generator) -> Kind | None:
        """Compile a kind of block, or None if its steps must stay eager."""
        if self.eager:
            return None
        before = generator.get_state()
        noise = self._noise(context, block, generator, fresh=True)
        generator.set_state(before)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's own deprecations
                after = self._run(block)(state, block.columns, noise)
        except Exception as error:
            if self._shared:  # not all that torch can compile can be called without Python
                self._shared = False
                self._runs.clear()
                return self._compiled(context, state, block, generator)
            self.eager = True
            self.lasting = type(error).__name__ in CODE_ERRORS
            self._why = f"torch.compile cannot take a step of {self.name} ({_reason(error)})"
            self._say_why()
            return None
        tried = Usage()
        few = type(state)(*(part[: self._few] if part.ndim else part for part in state))
        drawn = noise[0][: self._few].to(context.like.dtype)
        block.stage.step(context.replace(usage=tried), few, block.rows[0], drawn)
        share = len(noise) * self.chains / len(few[0])
        memory = {part.data_ptr() for part in after}
        return Kind(
            Usage(round(tried.scores * share), round(tried.projections * share)),
            any(drawn.data_ptr() in memory for drawn in noise),
        )


class Compiled(Stepper):
    """Several rows in one compiled call. Tiles of another size (the last one) run eagerly.

    Compiled code rounds differently from eager code: one step agrees to about 1e-6 (float32), not bit for bit.

    Args:
        plan: The run.
        graphs: The compiled steps.
    """

    def __init__(self, plan: Plan, graphs: Graphs) -> None:
        self.graphs = graphs
        self._legs, done = list[list[Block]](), 0
        if any(stage.noise is key and stage.rows for leg in plan.legs for stage in leg.stages):
            warnings.warn(
                f"compile=True has no effect on steps of {plan.method.name} that draw their own random numbers; they "
                "are taken one by one",
                CasalWarning,
                stacklevel=2,
            )
        together = steps_together(plan.tile * torch.Size(plan.context.latent).numel())
        for leg in plan.legs:
            blocks = list[Block]()
            for stage in leg.stages:
                every = math.gcd(plan.options.record_every, plan.options.snapshots)
                blocks += compiled_blocks(stage, done, every, together)
                done += len(stage.rows)
            self._legs.append(blocks)
        tiles = plan.n // plan.tile
        self._trials = plan.device.type == "cpu" and tiles * plan.steps >= TRIALS * WORTH_A_TRIAL * together

    @property
    def compiles(self) -> bool:  # type: ignore[override]
        return not self.graphs.eager and self.graphs.slowdown is None

    @property
    def note(self) -> str | None:
        return self.graphs.note

    def blocks(self, plan: Plan, k: int) -> list[Block]:
        return self._legs[k]

    def take(self, plan: Plan, context: Context, tile: Tile, block: Block) -> Iterator[None]:
        state = self.graphs(context, tile.state, block, tile.generator, self._trials)
        if state is None:
            yield from super().take(plan, context, tile, block)
            return
        tile.state = state
        tile.steps += len(block.rows)
        yield


def _alike(plan: Plan) -> str:
    """A checksum of all that is compiled into a step: code and values of model, set, decoder and method."""
    target = plan.target
    table = (target.table.preconditioner, target.table.static, target.table.memory is None, plan.context.noiseless)
    made_of = [target.name, target.score, plan.constraint, plan.context.decoder, plan.method, table]
    parts = CodeParts(made_of, values=True)
    return parts.digest(parts)


def _name(stage: Stage) -> str:
    """What tells the steps of one method apart."""
    return getattr(stage.step, "__qualname__", repr(stage.step))


def steps_together(numbers: int) -> int:
    """Steps in one compiled call of a tile with so many numbers of noise a step: a power of two."""
    return max(1, min(TOGETHER, 1 << max(0, (NOISE_NUMBERS // max(1, numbers)).bit_length() - 1)))


def compiled_blocks(stage: Stage, done: int, every: int, together: int) -> list[Block]:
    """All rows in blocks for one compiled call each; rows that fill none are taken one by one, as are those with a key.

    A block ends where the kind of row changes, and where something is recorded.

    Args:
        stage: Its rows.
        done: Steps before it.
        every: Steps between two records or snapshots; 0 for none.
        together: Steps in one call, a power of two.
    """
    rows = stage.rows
    if stage.noise is key:
        return [Block(stage, [row]) for row in rows]
    size = math.gcd(together, every)
    while size > max(1, len(rows)):
        size //= 2
    blocks, step = list[Block](), done
    for kind, group in itertools.groupby(rows, _kind):
        same, first = list(group), 0
        columns = _columns(same)
        for stop in range(1, len(same) + 1):
            step += 1
            if stop == len(same) or stop - first == size or (every and step % every == 0):
                some, whole = same[first:stop], stop - first == size
                columns_of = _part(columns, first, stop) if whole else None
                blocks.append(Block(stage, some, columns_of, (_name(stage), size, kind)))
                first = stop
    return blocks


def _kind(row: Any) -> Hashable:
    """What makes rows share a graph: their type, and whatever in them is not a number. A part may be a row itself."""
    return (type(row), *(None if isinstance(part, Tensor) else _kind(part) if _is_row(part) else part for part in row))


def _is_row(part: Any) -> bool:
    """Whether a part of a row is a row: a NamedTuple."""
    return isinstance(part, tuple) and hasattr(part, "_fields")


def _columns(rows: Sequence[Any]) -> Any:
    """Rows of one kind as a row of columns. A number that stays the same is there once."""
    return type(rows[0])(*(_column(part) for part in zip(*rows, strict=True)))


def _column(numbers: Sequence[Any]) -> Any:
    first = numbers[0]
    if not isinstance(first, Tensor):
        return _columns(numbers) if _is_row(first) else first
    return first.expand(len(numbers)) if all(number is first for number in numbers) else torch.stack(list(numbers))


def _part(columns: Any, first: int, stop: int) -> Any:
    """Some rows of a row of columns."""
    return _each(lambda part: part[first:stop], columns)


def _row(columns: Any, k: int) -> Any:
    """Row k of a row of columns."""
    return _each(lambda part: part[k], columns)


def _each(take: Callable[[Tensor], Tensor], columns: Any) -> Any:
    """A row of columns with something taken from each of them."""
    parts = [take(p) if isinstance(p, Tensor) else _each(take, p) if _is_row(p) else p for p in columns]
    return type(columns)(*parts)


def _reason(error: Exception) -> str:
    """The first lines of what torch says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])}"[:300]
