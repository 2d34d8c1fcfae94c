"""Compiled steps: a few rows of a stage in one call of ``torch.compile``'s.

What lies between two steps of a call is never written to memory, and its noise is drawn in one go. The numbers of a row
are tensors, so that no value is compiled in; what else a row holds (a flag, a set) makes it a kind of its own. Compiled
code rounds differently from eager code: one step agrees to about 1e-6 (float32), not bit for bit.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from casal.errors import CasalWarning
from casal.methods import Each, Problem, Uncounted, Usage, key
from casal.sampling.loop import Walk, Work, step_once
from casal.sampling.prepare import Prepared

BLOCK = 4
"""Rows in one call: more gain nothing, and take longer to compile."""

FEW = 2
"""Chains on which a step is tried eagerly, to count what it uses."""

_numbers = itertools.count()


class CompiledWalk(Walk):
    """Rows in blocks of four, each a compiled call; rows that fill no block are taken one by one.

    Where torch cannot compile a step, all steps are eager, with one ``CasalWarning``.

    Args:
        prepared: The run. Projections with a budget and steps that draw their own random numbers are not compiled.
    """

    def __init__(self, prepared: Prepared) -> None:
        problem = prepared.inside.problem
        _ = problem.diagonal, problem.root, problem.noiseless  # worked out before, not inside the graph
        self._context, self._name = problem.replace(usage=Uncounted()), prepared.method.name
        self._calls, self._used = dict[Hashable, Callable[..., Any]](), dict[Hashable, Usage]()
        self._lock = Lock()
        self._failed: str | None = None
        self._told = False

    @property
    def compiles(self) -> bool:
        return self._failed is None

    @property
    def note(self) -> str | None:
        return None if self._failed is None else f"{self._failed}, so the steps were eager"

    def __call__(
        self, prepared: Prepared, problem: Problem, stage: Each, work: Work, generator: torch.Generator
    ) -> Iterator[tuple[int, Any]]:
        own = stage.noise is key  # a step that draws its own random numbers
        if own or self._failed is not None or prepared.options.run.budget is not None:
            if own and not self._told:
                self._told = True
                text = f"steps of {self._name} that draw their own random numbers; they are taken one by one"
                warnings.warn(f"compile=True has no effect on {text}", CasalWarning, stacklevel=2)
            yield from super().__call__(prepared, problem, stage, work, generator)
            return
        state, taken, run = work.state, work.first, prepared.options.run
        every = math.gcd(run.record_every, run.snapshots)
        while taken < len(stage.rows):
            rows = _block(stage.rows, taken, work.done, every)
            noise = torch.empty(
                (len(rows), len(work.batch), *problem.latent), dtype=torch.float32, device=generator.device
            )
            drawn = [stage.noise(problem, len(work.batch), generator, page) for page in noise]
            new = self._take(problem, stage, state, rows, drawn) if len(rows) == BLOCK else None
            if new is None:
                for row, w in zip(rows, drawn, strict=True):
                    state = step_once(problem, stage, state, row, w)
            else:
                state = new
            taken += len(rows)
            yield taken, state

    def _take(self, problem: Problem, stage: Each, state: Any, rows: Sequence[Any], noise: Sequence[Tensor]) -> Any:
        """The state after a block; None if it cannot be compiled."""
        kind = (getattr(stage.step, "__qualname__", repr(stage.step)), len(state[0]), _kind(rows[0]))
        columns = _columns(rows)
        with self._lock:
            if self._failed is None and kind not in self._calls:
                self._compile(kind, problem, stage, state, rows, columns, noise)
        if self._failed is not None:
            return None
        problem.usage.absorb(self._used[kind])
        return self._calls[kind](state, columns, *noise)

    def _compile(
        self,
        kind: Hashable,
        problem: Problem,
        stage: Each,
        state: Any,
        rows: Sequence[Any],
        columns: Any,
        noise: Sequence[Tensor],
    ) -> None:
        """Compile a kind of block, and count what it uses on a few chains."""
        inside = self._context

        def steps(state: Any, columns: Any, *noise: Tensor) -> Any:
            for k, drawn in enumerate(noise):
                state = stage.step(inside, state, _row(columns, k), drawn)
            return state

        # torch counts recompilations by code object; every kind is one of its own.
        steps.__code__ = steps.__code__.replace(co_name=f"steps_{next(_numbers)}")
        call = torch.compile(steps, dynamic=False, fullgraph=True)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's own deprecations
                call(state, columns, *noise)
        except Exception as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            said = f"{type(error).__name__}: {' '.join(lines[:2])}"[:300]
            self._failed = f"torch.compile cannot take a step of {self._name} ({said})"
            text = f"compile=True has no effect: {self._failed}; the run goes on with eager steps"
            warnings.warn(text, CasalWarning, stacklevel=2)
            return
        tried = Usage()
        few = type(state)(*(part[:FEW] if part.ndim else part for part in state))
        stage.step(problem.take(slice(0, FEW)).replace(usage=tried), few, rows[0], noise[0][:FEW])
        share = len(noise) * len(state[0]) / len(few[0])
        self._used[kind] = Usage(round(tried.scores * share), round(tried.projections * share))
        self._calls[kind] = call


def _block(rows: Sequence[Any], first: int, done: int, every: int) -> Sequence[Any]:
    """The rows of the next call: of one kind, and up to where something is recorded."""
    stop, kind = first + 1, _kind(rows[first])
    while (
        stop < len(rows)
        and stop - first < BLOCK
        and not (every and (done + stop) % every == 0)
        and _kind(rows[stop]) == kind
    ):
        stop += 1
    return rows[first:stop]


def _kind(row: Any) -> Hashable:
    """What makes rows share a graph: their type, and whatever in them is not a number. A part may be a row itself.

    A number that some rows lack (None) makes them another kind.
    """
    parts = (Tensor if isinstance(part, Tensor) else _kind(part) if _is_row(part) else part for part in row)
    return (type(row), *parts)


def _is_row(part: Any) -> bool:
    """Whether a part of a row is a row: a NamedTuple."""
    return isinstance(part, tuple) and hasattr(part, "_fields")


def _columns(rows: Sequence[Any]) -> Any:
    """Rows of one kind as a row of columns (k,)."""

    def column(parts: Sequence[Any]) -> Any:
        first = parts[0]
        return torch.stack(list(parts)) if isinstance(first, Tensor) else _columns(parts) if _is_row(first) else first

    return type(rows[0])(*(column(parts) for parts in zip(*rows, strict=True)))


def _row(columns: Any, k: int) -> Any:
    """Row k of a row of columns."""
    parts = [p[k] if isinstance(p, Tensor) else _row(p, k) if _is_row(p) else p for p in columns]
    return type(columns)(*parts)
