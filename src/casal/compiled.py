"""A step through ``torch.compile``: one kernel where the eager step makes many passes."""

from __future__ import annotations

import itertools
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from casal.errors import CasalWarning
from casal.methods.base import Method
from casal.methods.problem import Problem, Uncounted, Usage

Step = Callable[[Problem, Any, Any, Any], Any]

KEPT = 16
"""Compiled steps that are kept for later runs on the same objects."""

FEW = 2
"""Chains on which a step is tried eagerly, to count what it uses."""

_numbers = itertools.count()
_kept: OrderedDict[Hashable, CompiledStep] = OrderedDict()


class CompiledStep:
    """``method.step`` compiled for tiles of one size, once for every kind of row.

    The numbers of a row are zero-dimensional tensors, so that no value is compiled in; what else a row holds (a flag, a
    set) makes it a kind of its own. Tiles of another size (the last one) run eagerly. Where torch cannot compile the
    step all of them do, with one ``CasalWarning``.

    Compiled code rounds otherwise than eager code: one step agrees to about 1e-6 (float32), not bit for bit.

    Args:
        method: The method.
        problem: What its steps use. Only projections without a budget can be compiled.
        chains: Chains in a tile.
    """

    def __init__(self, method: Method[Any, Any], problem: Problem, chains: int) -> None:
        self.method, self.chains = method, chains
        silent = problem.with_usage(Uncounted())
        _ = silent.diagonal, silent.root, silent.noiseless

        def step(state: Any, row: Any, noise: Tensor) -> Any:
            return method.step(silent, state, row, noise)

        # torch counts recompilations by code object; every compiled step is one of its own.
        step.__code__ = step.__code__.replace(co_name=f"step_{next(_numbers)}")
        self._run = torch.compile(step, dynamic=False, fullgraph=True)
        self._used: dict[Hashable, Usage] = {}
        self._lock = Lock()
        self.eager = False
        self.holds: tuple[object, ...] = ()

    def __call__(self, problem: Problem, state: Any, row: Any, noise: Any) -> Any:
        """One step, as ``method.step``."""
        if self.eager or len(state[0]) != self.chains or not isinstance(noise, Tensor):
            return self.method.step(problem, state, row, noise)
        kind = _kind(row)
        used = self._used.get(kind)
        if used is None:
            with self._lock:
                used = self._used.get(kind) or self._compiled(problem, state, row, noise)
                if used is None:
                    return self.method.step(problem, state, row, noise)
                self._used[kind] = used
        problem.usage.absorb(used)
        return self._run(state, row, noise)

    def _compiled(self, problem: Problem, state: Any, row: Any, noise: Tensor) -> Usage | None:
        """Compile a kind of row; what a step of it uses, or None if it must stay eager."""
        if self.eager:
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's own deprecations
                self._run(state, row, noise)
        except Exception as error:
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
        self.method.step(problem.with_usage(tried), few, row, noise[:FEW])
        share = self.chains / len(few[0])
        return Usage(round(tried.scores * share), round(tried.projections * share))


def compiled_step(method: Method[Any, Any], problem: Problem, chains: int, *made_from: object) -> CompiledStep:
    """The compiled step of an earlier run on the same objects, or a new one.

    Args:
        method: The method; an equal one will do.
        problem: What its steps use.
        chains: Chains in a tile.
        made_from: Objects that the problem was made from, beside its target and its set.
    """
    try:
        hash(method)
        which: Hashable = method
    except TypeError:
        which = id(method)
    objects = (problem.target, problem.constraint, *made_from)
    key = (which, chains, problem.latent, problem.like.dtype, problem.like.device, *(id(thing) for thing in objects))
    step = _kept.pop(key, None)
    if step is None or step.eager:
        step = CompiledStep(method, problem, chains)
        step.holds = objects  # an id is that of the same object only while the object lives
    _kept[key] = step
    while len(_kept) > KEPT:
        _kept.popitem(last=False)
    return step


def _reason(error: Exception) -> str:
    """The first lines of what torch says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])}"[:300]


def _kind(row: Any) -> Hashable:
    return (type(row), *(None if isinstance(part, Tensor) else part for part in row))
