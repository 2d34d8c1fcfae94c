"""Steps through ``torch.compile``: a few passes where the eager step makes many, and several steps in one call."""

from __future__ import annotations

import itertools
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from threading import Lock, local
from typing import Any, NamedTuple

import torch
from torch import Tensor

from casal.blocks import Block, numbered_row
from casal.errors import CasalWarning, SettingError
from casal.methods import Method, Problem, Uncounted, Usage

KEPT = 16
"""Compiled steps that are kept for later runs on the same objects."""

FEW = 2
"""Chains on which a step is tried eagerly, to count what it uses."""

_numbers = itertools.count()
_kept: OrderedDict[Hashable, CompiledSteps] = OrderedDict()


class Kind(NamedTuple):
    """What is known of a compiled kind of block.

    Attributes:
        used: By all its steps.
        keeps_noise: Whether the state holds on to the noise, so that no other may be written over it.
    """

    used: Usage
    keeps_noise: bool


class CompiledSteps:
    """Steps of a method compiled for tiles of one size, once for every kind of row.

    The numbers of a row are tensors, so that no value is compiled in; what else a row holds (a flag, a set) makes it a
    kind of its own. Tiles of another size (the last one) run eagerly. Where torch cannot compile the step all of them
    do, with one ``CasalWarning``.

    Compiled code rounds otherwise than eager code: one step agrees to about 1e-6 (float32), not bit for bit.

    Args:
        method: The method.
        problem: What its steps use. Only projections without a budget can be compiled.
        chains: Chains in a tile.
        threads: How many will call it. torch's own call of a kernel keeps Python's lock, so that threads would wait for
            each other; for several of them the call is compiled too, which takes a few seconds more.
    """

    def __init__(self, method: Method[Any, Any], problem: Problem, chains: int, threads: int = 1) -> None:
        self.method, self.chains = method, chains
        silent = problem.with_usage(Uncounted())
        _ = silent.diagonal, silent.root, silent.noiseless

        def steps(state: Any, columns: Any, noise: Sequence[Tensor]) -> Any:
            for k, drawn in enumerate(noise):
                state = method.step(silent, state, numbered_row(columns, k), drawn)
            return state

        # torch counts recompilations by code object; all compiled steps of a run are one of their own.
        steps.__code__ = steps.__code__.replace(co_name=f"steps_{next(_numbers)}")
        self._steps = steps
        self._shared = threads > 1 and problem.like.device.type == "cpu"
        self._run = self._compile()
        self._kinds: dict[Hashable, Kind] = {}
        self._own = local()
        self._lock = Lock()
        self.eager = False
        self.holds: tuple[object, ...] = ()

    def _compile(self) -> Callable[..., Any]:
        options: dict[str, Any] | None = {"cpp_wrapper": True} if self._shared else None
        return torch.compile(self._steps, dynamic=False, fullgraph=True, options=options)

    def __call__(self, problem: Problem, state: Any, block: Block, generator: torch.Generator) -> Any:
        """All steps of a block; None if they are to be taken one by one."""
        if self.eager or block.columns is None or len(state[0]) != self.chains:
            return None
        kind = self._kinds.get(block.kind)
        if kind is None:
            with self._lock:
                kind = self._kinds.get(block.kind) or self._compiled(problem, state, block, generator)
            if kind is None:
                return None
            self._kinds[block.kind] = kind
        noise = self._noise(problem, block, generator, kind.keeps_noise)
        problem.usage.absorb(kind.used)
        return self._run(state, block.columns, noise)

    def _noise(self, problem: Problem, block: Block, generator: torch.Generator, fresh: bool) -> list[Any]:
        """The noise of all steps, in the same memory every time: what a step has just read is still in the cache."""
        pages: list[Tensor] = [] if fresh else self._own.__dict__.setdefault("pages", [])
        while len(pages) < len(block.rows):
            pages.append(torch.empty((self.chains, *problem.latent), dtype=torch.float32, device=generator.device))
        drawn = zip(block.rows, pages, strict=False)
        return [self.method.noise(problem, row, self.chains, generator, page) for row, page in drawn]

    def _compiled(self, problem: Problem, state: Any, block: Block, generator: torch.Generator) -> Kind | None:
        """Compile a kind of block, or None if its steps must stay eager."""
        if self.eager:
            return None
        before = generator.get_state()
        noise = self._noise(problem, block, generator, fresh=True)
        generator.set_state(before)
        try:
            if not all(isinstance(drawn, Tensor) for drawn in noise):
                raise SettingError("its noise is more than one tensor")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's own deprecations
                after = self._run(state, block.columns, noise)
        except Exception as error:
            if self._shared:  # not all that torch can compile can be called without Python
                self._shared = False
                self._run = self._compile()
                return self._compiled(problem, state, block, generator)
            self.eager = True
            warnings.warn(
                f"compile=True has no effect: torch.compile cannot take a step of {self.method.name} "
                f"({_reason(error)}); the run goes on with eager steps",
                CasalWarning,
                stacklevel=2,
            )
            return None
        tried = Usage()
        few = type(state)(*(part[:FEW] if part.ndim else part for part in state))
        self.method.step(problem.with_usage(tried), few, block.rows[0], noise[0][:FEW])
        share = len(noise) * self.chains / len(few[0])
        memory = {part.data_ptr() for part in after}
        return Kind(
            Usage(round(tried.scores * share), round(tried.projections * share)),
            any(drawn.data_ptr() in memory for drawn in noise),
        )


def compiled_steps(
    method: Method[Any, Any], problem: Problem, chains: int, threads: int, made_from: tuple[object, ...]
) -> CompiledSteps:
    """The compiled steps of an earlier run on the same objects, or a new one.

    Args:
        method: The method; an equal one will do.
        problem: What its steps use.
        chains: Chains in a tile.
        threads: How many will call them.
        made_from: Objects that the problem was made from.
    """
    try:
        hash(method)
        which: Hashable = method
    except TypeError:
        which = id(method)
    key = (
        which,
        chains,
        threads > 1,
        problem.latent,
        problem.like.dtype,
        problem.like.device,
        *(id(thing) for thing in made_from),
    )
    steps = _kept.pop(key, None)
    if steps is None or steps.eager:
        steps = CompiledSteps(method, problem, chains, threads)
        steps.holds = made_from  # an id is that of the same object only while the object lives
    _kept[key] = steps
    while len(_kept) > KEPT:
        _kept.popitem(last=False)
    return steps


def _reason(error: Exception) -> str:
    """The first lines of what torch says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])}"[:300]
