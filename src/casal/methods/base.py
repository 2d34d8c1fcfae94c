"""The base class of methods: settings, stages, a start, and the returned samples.

A method is a frozen dataclass. A run is one stage after the other, and there are two kinds of stage:

    Each        rows that every chain takes on its own (``step``), batch beside batch
    Together    what all chains do at once (``do``): resample, average a multiplier, place the next levels

A step is a pure function of (problem, state, row, noise): the noise is a tensor and an argument, so two methods can be
compared under the same noise, a step can be compiled and a run replayed.

The state is a NamedTuple of tensors (n, ...) of all chains; a batch is a slice of it. Its first field is the point x
that moves. A population of weighted chains also has the fields ``log_weight`` (n,) and ``ancestor`` (n,), which the
result reads. Numbers that all chains share are in ``control``, a NamedTuple of plain numbers that ``Together`` returns.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from casal.errors import SettingError
from casal.methods.problem import Problem, move
from casal.streams import stream

State = TypeVar("State", bound=tuple[Any, ...])

Step: TypeAlias = Callable[[Problem, Any, Any, Tensor], Any]
"""``step(problem, state, row, noise) -> state``: one step of all chains of the state, each on its own."""

Do: TypeAlias = Callable[[Problem, Any, Any, torch.Generator], tuple[Any, Any, Mapping[str, float]]]
"""``do(problem, state, control, generator) -> (state, control, scalars for the trace)``, for all chains of a run."""


class Noise(Protocol):
    """The randomness of one step of n chains, as a tensor; written into ``out`` where that is possible."""

    def __call__(self, problem: Problem, n: int, generator: torch.Generator, out: Tensor | None = None) -> Tensor: ...


def gaussian(problem: Problem, n: int, generator: torch.Generator, out: Tensor | None = None) -> Tensor:
    """Standard normal numbers (n, *latent), drawn in float32, which is several times faster, and widened."""
    if out is None:
        out = torch.empty((n, *problem.latent), dtype=torch.float32, device=generator.device)
    return out.normal_(generator=generator).to(problem.like.dtype)


def uniform(problem: Problem, n: int, generator: torch.Generator, out: Tensor | None = None) -> Tensor:
    """One number in [0, 1) per chain, float64."""
    return torch.rand(n, generator=generator, dtype=torch.float64, device=generator.device)


def key(problem: Problem, n: int, generator: torch.Generator, out: Tensor | None = None) -> Tensor:
    """One whole number that seeds a generator: for draws by rejection, which need an unknown number of numbers.

    It is a number of the host on every device, for it is read. The state of a generator is known to the host, too: off
    the host the number is a digest of it, and a draw moves it on.
    """
    if generator.device.type == "cpu":
        return torch.randint(1 << 62, (), generator=generator)
    torch.empty(1, device=generator.device).uniform_(generator=generator)
    digest = hashlib.blake2b(generator.get_state().numpy().tobytes(), digest_size=8).digest()
    return torch.tensor(int.from_bytes(digest, "little") >> 2)


def generator_of(number: Tensor, like: Tensor) -> torch.Generator:
    """The generator that a ``key`` stands for, on the device of a tensor."""
    return stream(int(number), device=like.device)


class Each(NamedTuple):
    """Rows that every chain takes on its own, batch beside batch.

    Attributes:
        rows: One row per step.
        step: Takes a row.
        noise: Draws the noise of a step.
    """

    rows: Sequence[Any]
    step: Step
    noise: Noise = gaussian


class Together(NamedTuple):
    """What all chains do at once.

    Attributes:
        do: Returns the state, the control record, and scalars for the trace.
    """

    do: Do


class Recall(NamedTuple):
    """What a row needs beside a, b, s and t if rows of its table look back.

    Attributes:
        alpha: Scale of the clean sample before the row.
        sigma: Size of the noise before it.
        gains: Gains (p,) of the estimates of the rows before, the nearest first.
    """

    alpha: Tensor
    sigma: Tensor
    gains: Tensor


def advance(problem: Problem, state: Any, score: Tensor, row: Any, noise: Tensor) -> Any:
    """The state after a row of the table: x' = a x + b score + m_1 D_1 + ... + m_p D_p + s w.

    Where rows look back, ``state.past`` (n, p, *latent) holds the estimates D_1 ... D_p, and that of this row, which is
    (x + sigma^2 score) / alpha, takes its place among them.
    """
    x, recall = move(problem, state.x, score, row, noise), getattr(row, "recall", None)
    if recall is None:
        return state._replace(x=x)
    clean = (state.x + recall.sigma**2 * score) / recall.alpha
    for j in range(len(recall.gains)):
        x.addcmul_(state.past[:, j], recall.gains[j])
    return state._replace(x=x, past=torch.cat([clean[:, None], state.past[:, :-1]], 1))


def nothing_past(problem: Problem, x: Tensor) -> Tensor | None:
    """The estimates of rows before the first, zero and never used; None if no row looks back."""
    memory = problem.table.memory
    return None if memory is None else x.new_zeros((len(x), memory.shape[1], *x.shape[1:]))


def free_step(problem: Problem, state: Any, row: Any, noise: Tensor) -> Any:
    """x' = a x + b score(x) + s w: one row of the table, without any constraint."""
    return advance(problem, state, problem.score(state.x, row.t), row, noise)


def no_step(problem: Problem, state: Any, row: Any, noise: Tensor) -> Any:
    """The step of a stage without rows."""
    return state


class Method(ABC, Generic[State]):
    """Base class of all methods: how a constraint enters the loop.

    Attributes:
        name: What tables, traces and pictures call it.
        strict: Its samples lie in the set.
        promises_distribution: Its samples follow p restricted to the set, up to an error that its docstring states,
            on all sets that it takes.
        bounds_moves: It keeps its moves near the set small by itself, so that a step need not fit the bend of the set.
        adapts: Its chains stay in the set and find their own step: what a pilot run sees off the set, and a given step
            that does not fit, change nothing. They go on long after they were resampled for the last time, so that a
            run does not stop early, however few starts have descendants.
        tilts: It takes account of a soft term of a model with noise levels (``casal.tilted``).
        remembers: It can take rows that look back (``Table.memory``). Others get rows of first order instead.

    >>> import casal
    >>> isinstance(casal.Projected(), casal.Method), casal.Projected().strict, casal.Projected().promises_distribution
    (True, True, False)
    """

    name: ClassVar[str]
    strict: ClassVar[bool] = True
    promises_distribution: ClassVar[bool] = False
    bounds_moves: ClassVar[bool] = False
    adapts: ClassVar[bool] = False
    tilts: ClassVar[bool] = False
    remembers: ClassVar[bool] = False

    def control(self, problem: Problem, n: int) -> Any:
        """Check the settings against model, set and number of chains; the first shared numbers of a run.

        A NamedTuple of plain numbers, which ``Together`` stages replace. Here: the stages themselves, as all of them
        are known before the run.
        """
        return tuple(self.stages(problem, n))

    def next(self, problem: Problem, control: Any, stage: int) -> Each | Together | None:
        """What comes after so many stages; None at the end."""
        found: Each | Together | None = control[stage] if stage < len(control) else None
        return found

    def steps(self, problem: Problem, control: Any) -> int:
        """Steps of a chain in the whole run, from its first shared numbers.

        Here: the rows of all stages, if later numbers change what the rows hold and not how many there are.
        """
        total = number = 0
        while (stage := self.next(problem, control, number)) is not None:
            total, number = total + (len(stage.rows) if isinstance(stage, Each) else 0), number + 1
        return total

    def stages(self, problem: Problem, n: int) -> Sequence[Each | Together]:
        """All stages, where they are known before the run."""
        raise NotImplementedError(f"{type(self).__name__} has neither stages nor control and next")

    def promises(self, problem: Problem, control: Any) -> bool:
        """Whether a run that ended with these shared numbers promises the distribution."""
        return self.promises_distribution

    @abstractmethod
    def start(self, problem: Problem, x: Tensor, generator: torch.Generator) -> State:
        """The state of chains that start at x."""

    @abstractmethod
    def samples(self, problem: Problem, state: State) -> Tensor:
        """The samples in decoded space; float64 and projected if the method is ``strict``."""

    def monitor(self, problem: Problem, state: State) -> Mapping[str, Tensor]:
        """Per-chain diagnostics (n,) for the trace."""
        return {"violation": problem.constraint.violation(self.samples(problem, state))}

    def decoded_parts(self) -> tuple[str, ...] | None:
        """Fields of the state in decoded space, if steps may be taken in coordinates of the range of the decoder.

        They may where the steps use no more of the set than its projection. None: they may not.
        """
        return None

    def start_note(self, problem: Problem) -> str | None:
        """What a reader of the result must know about the start of a run; None if there is nothing."""
        return None

    def first_points(self, problem: Problem, x: Tensor) -> Tensor:
        """Where chains that start at x ask for the density first: inside the set, if they never leave it."""
        return x

    def advice(self, state: State, row: Any) -> str:
        """What to say when chains diverge in a row: the numbers of the step, and what to change."""
        return "with these settings; check the model at large arguments, or use smaller steps"


class TableRow(NamedTuple):
    """The plain row: a, b, s, t of the table as scalars."""

    a: Tensor
    b: Tensor
    s: Tensor
    t: Tensor
    recall: Recall | None = None


def step_advice(row: Any) -> str:
    """The advice for a Langevin step that is too large."""
    return f"(tau = {float(row.b):.3g}); use a smaller step_size or a preconditioner"


def table_rows(
    problem: Problem, kind: Any = TableRow, host: Sequence[Any] | None = None, **columns: Tensor
) -> list[Any]:
    """One row per step: a, b, s, t of the table and the method's own columns (T,), as scalars of the run's device.

    Scalars are zero-dimensional tensors, float64 unless steps are compiled: they do not widen float32 states, and a
    compiled step does not specialise on their values. Rows of a table that looks back also have ``recall``, those of
    methods that decide by numbers ``host``: what a step reads must not be on a device, which it would wait for.
    """
    table = problem.table
    every = {"a": table.a, "b": table.b, "s": table.s, "t": table.t, **columns}
    device, dtype = problem.like.device, problem.row_dtype
    scalars: dict[str, Sequence[Any]] = {name: _scalars(v.to(device, dtype)) for name, v in every.items()}
    if table.memory is not None and table.alpha is not None and table.sigma is not None:
        looks = (column.to(device, dtype).unbind() for column in (table.alpha, table.sigma, table.memory))
        scalars["recall"] = [Recall(*parts) for parts in zip(*looks, strict=True)]
    if host is not None:
        scalars["host"] = host
    return [kind(**dict(zip(scalars, values, strict=True))) for values in zip(*scalars.values(), strict=True)]


def _scalars(column: Tensor) -> Sequence[Tensor]:
    """The entries of a column; one and the same if they are equal, since making a tensor takes microseconds."""
    return [column[0]] * len(column) if bool((column == column[0]).all()) else column.unbind()


def refuse_own_sets(problem: Problem, setting: str) -> None:
    """SettingError where chains that share a multiplier have sets or conditions of their own."""
    if problem.chains is not None:
        raise SettingError(
            f"{setting} shares one multiplier among all chains; they need a common set, not PerChain, and no condition"
        )


def burn_in_steps(burn_in: float, steps: int) -> int:
    """Number of burn-in rows: a whole number >= 1 counts steps, a number below 1 is a fraction of the run."""
    count = round(burn_in * steps) if 0 <= burn_in < 1 else burn_in
    if not math.isfinite(count) or count != int(count) or not 0 <= count < steps:
        raise SettingError(f"burn_in = {burn_in} leaves none of {steps} steps; give a fraction < 1 or fewer steps")
    return int(count)


def zero_before(values: Tensor, first: int) -> Tensor:
    """``values`` with the first entries set to zero."""
    out = values.clone()
    out[:first] = 0.0
    return out


def split_records(problem: Problem, x: Tensor, z: Tensor, lam: Tensor | None = None) -> dict[str, Tensor]:
    """The gap |A x - z|, the violation of z and, if there is a multiplier, its size, chain by chain."""
    gap = (problem.decode(x) - z).reshape(len(z), -1)
    records = {"gap": torch.linalg.vector_norm(gap, dim=1), "violation": problem.constraint.violation(z)}
    if lam is not None:
        records["dual_norm"] = torch.linalg.vector_norm(lam.reshape(len(z), -1), dim=1)
    return records
