"""The protocol of a method: plan the run, start a state, take a step, hand out samples.

A method is a frozen dataclass. Its ``step`` is a pure function of (problem, state, row, noise): the noise is an
argument, so two methods can be compared under the same noise, a step can be compiled and a run replayed.
The state is a NamedTuple of tensors; those with a leading chain dimension are cut into tiles by the loop.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from casal.errors import SettingError
from casal.methods.problem import Problem

State = TypeVar("State", bound=tuple[Any, ...])
Row = TypeVar("Row", bound=tuple[Any, ...])


class Segment(NamedTuple):
    """Rows that every chain can take on its own, and what all chains do together before them.

    Attributes:
        rows: One row a step.
        rung: Handed to ``Method.exchange`` before the rows; None if the chains have nothing to exchange.
    """

    rows: Sequence[Any]
    rung: Any = None


class TableRow(NamedTuple):
    """The plain row: a, b, s, t of the table as scalars."""

    a: Tensor
    b: Tensor
    s: Tensor
    t: Tensor


class Method(ABC, Generic[State, Row]):
    """How a constraint enters the loop. One file a method, one ``step`` with the paper's equation in it."""

    name: ClassVar[str]

    @abstractmethod
    def plan(self, problem: Problem) -> Sequence[Segment]:
        """Check the settings against the problem and lay out all rows, before any work is done."""

    @abstractmethod
    def init(self, problem: Problem, x: Tensor, generator: torch.Generator) -> State:
        """The state of chains that start at x."""

    @abstractmethod
    def step(self, problem: Problem, state: State, row: Row, noise: Any) -> State:
        """One step of all chains of the state, each on its own."""

    def noise(self, problem: Problem, row: Row, n: int, generator: torch.Generator, out: Tensor | None = None) -> Any:
        """The randomness of one step of n chains: standard normal (n, *latent), unless a row needs another.

        Drawn in float32, which is several times faster, and widened; into ``out`` if there is one.
        """
        if out is None:
            out = torch.empty((n, *problem.latent), dtype=torch.float32, device=generator.device)
        return out.normal_(generator=generator).to(problem.like.dtype)

    def exchange(
        self, problem: Problem, state: State, rung: Any, generator: torch.Generator
    ) -> tuple[State, Mapping[str, float]]:
        """What all chains do together (resample, average a dual), and scalars for the trace."""
        raise NotImplementedError(f"{self.name} plans no exchange")

    @abstractmethod
    def output(self, problem: Problem, state: State) -> Tensor:
        """The samples in decoded space; float64 and projected if the method promises feasibility."""

    def decoded_parts(self) -> tuple[str, ...] | None:
        """Fields of the state in decoded space, if steps may be taken in coordinates of the range of the decoder.

        They may where ``step`` uses no more of the set than its projection. None: they may not.
        """
        return None

    def monitor(self, problem: Problem, state: State) -> Mapping[str, Tensor]:
        """Per-chain diagnostics (n,) for the trace."""
        return {"violation": problem.constraint.violation(self.output(problem, state))}


def split_records(problem: Problem, x: Tensor, z: Tensor, lam: Tensor | None = None) -> dict[str, Tensor]:
    """The gap |A x - z|, the violation of z and, if there is a multiplier, its size, chain by chain."""
    gap = (problem.decode(x) - z).reshape(len(z), -1)
    records = {"gap": torch.linalg.vector_norm(gap, dim=1), "violation": problem.constraint.violation(z)}
    if lam is not None:
        records["dual_norm"] = torch.linalg.vector_norm(lam.reshape(len(z), -1), dim=1)
    return records


def table_rows(problem: Problem, kind: Any = TableRow, **columns: Tensor) -> list[Any]:
    """One row per step: a, b, s, t of the table and the method's own columns (T,), as scalars of the run's device.

    Scalars are zero-dimensional tensors, float64 unless steps are compiled: they do not widen float32 states, and a
    compiled step does not specialise on their values.
    """
    table = problem.table
    every = {"a": table.a, "b": table.b, "s": table.s, "t": table.t, **columns}
    device, dtype = problem.like.device, problem.row_dtype
    scalars = {name: _scalars(column.to(device, dtype)) for name, column in every.items()}
    return [kind(**dict(zip(scalars, values, strict=True))) for values in zip(*scalars.values(), strict=True)]


def _scalars(column: Tensor) -> Sequence[Tensor]:
    """The entries of a column; one and the same if they are equal, since making a tensor takes microseconds."""
    return [column[0]] * len(column) if bool((column == column[0]).all()) else column.unbind()


def burn_in_steps(burn_in: float, steps: int) -> int:
    """Number of burn-in rows: a whole number >= 1 counts steps, a number below 1 is a fraction of the run."""
    count = round(burn_in * steps) if 0 <= burn_in < 1 else burn_in
    if not math.isfinite(count) or count != int(count) or not 0 <= count < steps:
        raise SettingError(f"burn_in = {burn_in} leaves none of {steps} steps; give a fraction < 1 or fewer steps")
    return int(count)


def masked(values: Tensor, first: int) -> Tensor:
    """``values`` with the first entries set to zero."""
    out = values.clone()
    out[:first] = 0.0
    return out
