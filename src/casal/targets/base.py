"""A generative model is a score and a table.

One row of the table is one step of the sampler,

    x' = a_t x + b_t D score(x, t) + s_t D^(1/2) w,      w ~ N(0, I),

so Langevin dynamics, annealed Langevin, ancestral diffusion and probability-flow samplers differ only in the
numbers a, b, s (and the optional diagonal preconditioner D). A constraint couples to x as one more term of the
log-density: it is added to the score, and every row carries it in the same way.

Solvers of second order and multistep solvers have memory. Their rows also use the denoised estimates of rows before,

    x' = a_t x + b_t score(x, t) + m_1 D_1 + ... + m_p D_p + s_t w,      D = (x + sigma^2 score(x, t)) / alpha,

where D_j belongs to the j-th row before this one (``multistep.py``).

A conditional network is called as ``eps(x, t, **condition)``: keyword tensors such as class labels and text embeddings,
each with one row for each row of x. A run cuts them with its batches, so that a call gets the rows of its own chains.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from casal.checks import Init, ScoreFunction
from casal.errors import CasalError, DtypeError, FunctionError, SettingError, ShapeError


@dataclass(frozen=True)
class Table:
    """The coefficients of every step of a model, each (T,) float64.

    Attributes:
        a: Factor of x.
        b: Gain of the score; the step size tau of a Langevin row.
        s: Size of the noise.
        t: The second argument of the score: a time, an index or a noise level.
        preconditioner: Diagonal D > 0, broadcastable to an event; None for the identity.
        static: The same density at every row (Langevin on a fixed potential).
        alpha: Scale of the clean sample in x before each row, where there is one: x = alpha x0 + sigma noise.
        sigma: Size of the noise in x before each row, likewise.
        memory: Gains (T, p) of the denoised estimates of the p rows before, the nearest first; None if no row has
            memory. The estimate of a row is the one that its step used, moved by the constraint or not.

    >>> import casal
    >>> import torch
    >>> target = casal.langevin(lambda x: x, steps=3, step_size=0.5, init=torch.zeros(1, 2))
    >>> isinstance(target.table, casal.Table), target.table.b.tolist(), target.table.s.tolist()
    (True, [0.5, 0.5, 0.5], [1.0, 1.0, 1.0])
    """

    a: Tensor
    b: Tensor
    s: Tensor
    t: Tensor
    preconditioner: Tensor | None = None
    static: bool = False
    alpha: Tensor | None = None
    sigma: Tensor | None = None
    memory: Tensor | None = None

    def __post_init__(self) -> None:
        shapes = {tuple(v.shape) for v in (self.a, self.b, self.s, self.t)}
        if len(shapes) != 1 or self.a.ndim != 1 or not len(self.a):
            raise ShapeError(f"a, b, s and t of a table must be (T,) with T >= 1, got {sorted(shapes)}")
        if self.memory is None:
            return
        if self.memory.ndim != 2 or len(self.memory) != len(self.a) or not self.memory.shape[1]:
            raise ShapeError(f"memory of a table must be ({len(self.a)}, p), got {tuple(self.memory.shape)}")
        if self.alpha is None or self.sigma is None or self.preconditioner is not None:
            raise SettingError("rows with memory need alpha and sigma, and do not support a preconditioner")

    def __len__(self) -> int:
        return len(self.a)

    def __repr__(self) -> str:
        rows = f"{len(self)} steps of {'a fixed density' if self.static else 'a diffusion or flow'}"
        diagonal = "" if self.preconditioner is None else f", preconditioner {tuple(self.preconditioner.shape)}"
        return f"Table({rows}{diagonal})"

    @property
    def tau(self) -> Tensor:
        """The paper's step size s^2 / 2, which is b for Langevin rows and less for diffusion rows."""
        return self.s.square() / 2


@dataclass(frozen=True)
class Tuning:
    """The settings of a fixed density that were left open ("auto").

    ``casal.sample`` finds them on a pilot run before anything else. Until then the table holds no numbers in their
    place: its b and s are nan if the step size is open, its preconditioner is None if the preconditioner is.

    Attributes:
        step_size: Whether the step size is open.
        preconditioner: Whether the preconditioner is open.
    """

    step_size: bool
    preconditioner: bool


@dataclass(frozen=True)
class Target:
    """What to sample: a score, the table of its steps, and where to start.

    A conditional target has a ``condition``: tensors with one row per chain. Its score, potential and denoiser are
    called with the rows of the chains they are asked for, ``score(x, t, **rows)``.

    Attributes:
        score: ``score(x, t)``, the gradient of log p.
        table: The steps.
        init: Starting points (n, *event), or a callable (n, generator) -> points.
        potential: f = -log p + constant, (n, *event) -> (n,), where it is known.
        denoise: ``denoise(y, sigma)`` = E[x0 | x0 + sigma noise = y], for models trained on noise.
        log_weight: A soft term of the clean sample, (n, *event) -> (n,): the distribution is p(x0) exp(log_weight(x0)).
            The score does not contain it; see ``casal.tilted``.
        finest: The smallest noise at which ``denoise`` may be asked; that of the last row of the table if None.
        name: For messages and provenance.
        init_evaluations: Evaluations of the network before the first step, a chain: those that ``init`` spends, and
            those of a pilot run shared out among the chains. Part of the cost of a run.
        tune: The settings of the table that are open; None if it is complete.
        condition: Names to tensors (n, ...), one row per chain; empty if all chains sample the same density.
        conditional_init: Whether ``init`` evaluates the network and is called as ``init(n, generator, **rows)``.
        notes: What a reader of every result must know of the model; the certificate of the distribution says it.
        clip: The model's samples are cut off at plus and minus this number by a setting that nobody confirmed; None if
            they are not, or if it is meant.

    >>> import casal
    >>> import torch
    >>> target = casal.langevin(lambda x: x, steps=3, step_size=0.5, init=torch.zeros(1, 2))
    >>> isinstance(target, casal.Target), target.score(torch.ones(1, 2), target.table.t[0]).tolist()
    (True, [[-1.0, -1.0]])
    """

    score: ScoreFunction
    table: Table
    init: Init
    potential: Callable[..., Tensor] | None = None
    denoise: Callable[..., Tensor] | None = None
    log_weight: Callable[[Tensor], Tensor] | None = None
    finest: float | None = None
    name: str = "target"
    init_evaluations: float = 0
    tune: Tuning | None = None
    condition: Mapping[str, Tensor] = field(default_factory=dict)
    conditional_init: bool = False
    notes: tuple[str, ...] = ()
    clip: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "condition", checked(self.condition))
        if not (isinstance(self.init, Tensor) or callable(self.init) or self.init is None):
            object.__setattr__(self, "init", _points(self.init, self.name))

    @property
    def chains(self) -> int | None:
        """How many chains the condition is for; None if there is none."""
        return next((len(value) for value in self.condition.values()), None)

    def take(self, index: slice | Tensor) -> Target:
        """The target of some chains, with their rows of the condition: a slice, or their numbers (k,)."""
        return replace(self, condition=take_rows(self.condition, index)) if self.condition else self

    def on(self, device: torch.device) -> Target:
        """The same with the condition on a device."""
        moved = {name: value.to(device) for name, value in self.condition.items()}
        return replace(self, condition=moved) if moved else self

    @cached_property
    def groups(self) -> Tensor | None:
        """(n,) labels, equal for chains whose rows of the condition are equal to the bit; None if there is none."""
        if not self.condition:
            return None
        columns = torch.stack([_labels(value.cpu()) for value in self.condition.values()], 1)
        return columns[:, 0] if columns.shape[1] == 1 else torch.unique(columns, dim=0, return_inverse=True)[1]

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """n starting points from a callable ``init``, one for each row of the condition if it asks for them."""
        if not callable(self.init):
            raise SettingError(f"the starting points of {self.name} are given as a tensor; nothing is drawn")
        given = self.condition if self.conditional_init else {}
        try:
            return self.init(n, generator, **given)
        except CasalError:
            raise
        except Exception as error:
            raise FunctionError(
                f"init({n}, generator) of {self.name} fails: {_said(error)}. It is a function of the number of chains "
                "and a random generator that returns their starting points, such as "
                "lambda n, generator: torch.randn(n, 2, generator=generator) or casal.GaussianStart(2)"
            ) from error

    def __repr__(self) -> str:
        init = f"init {tuple(self.init.shape)}" if isinstance(self.init, Tensor) else "init from a function"
        return f"Target({self.name}, {self.table!r}, {init})"


def checked(condition: Any) -> dict[str, Tensor]:
    """Names to tensors (n, ...), all of one n; lists and arrays become tensors. None is no condition."""
    if condition is None:
        return {}
    if not isinstance(condition, Mapping) or not all(isinstance(name, str) for name in condition):
        kind = type(condition).__name__
        raise SettingError(f"condition is a mapping of names to tensors with one row per chain, got {kind}")
    found = {name: _tensor(name, value) for name, value in condition.items()}
    if len({len(value) for value in found.values()}) > 1:
        each = ", ".join(f"{len(value)} in {name}" for name, value in found.items())
        raise ShapeError(f"the condition has different numbers of rows: {each}; give each one row per chain")
    return found


def _tensor(name: str, value: Any) -> Tensor:
    try:
        found = torch.as_tensor(value).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise SettingError(f"condition[{name!r}] is not a tensor: {type(value).__name__} ({error})") from error
    if found.ndim < 1 or not len(found):
        raise ShapeError(
            f"condition[{name!r}] has shape {tuple(found.shape)}; give one row per chain, (n, ...): expand one row by "
            "value.expand(n, *value.shape)"
        )
    return found


def take_rows(condition: Mapping[str, Tensor], index: slice | Tensor) -> dict[str, Tensor]:
    """The rows of some chains: a slice, or their numbers (k,)."""
    if isinstance(index, slice):
        return {name: value[index] for name, value in condition.items()}
    return {name: value[index.to(value.device)] for name, value in condition.items()}


def fitted(condition: Mapping[str, Tensor], x: Tensor) -> dict[str, Tensor]:
    """On the device of x, floating-point numbers in its dtype; labels stay whole numbers."""
    return {name: value.to(x) if value.is_floating_point() else value.to(x.device) for name, value in condition.items()}


# ------------------------------------------------------------------------------------ functions that were handed over


def _points(given: Any, name: str) -> Tensor:
    """Starting points as a tensor, from a list or an array of NumPy."""
    try:
        return torch.as_tensor(given).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise SettingError(
            f"init of {name} must be starting points (n, *event) or a function (n, generator), got "
            f"{type(given).__name__} ({error})"
        ) from error


def returned(out: Any, x: Tensor, name: str) -> Tensor:
    """What a function returned at x, as a tensor: lists and arrays of NumPy get the dtype and the device of x."""
    if isinstance(out, Tensor):
        return out
    if isinstance(out, list) or hasattr(out, "__array__"):
        try:
            return torch.as_tensor(out, dtype=x.dtype, device=x.device)
        except (TypeError, ValueError, RuntimeError):
            pass
    hints = {"NoneType": ": does it say return?", "tuple": ": take the entry that is meant, out[0]"}
    hint = ": take out.sample" if hasattr(out, "sample") else hints.get(type(out).__name__, "")
    raise ShapeError(
        f"{name} returned {type(out).__name__} at x of shape {tuple(x.shape)}; it must return a tensor of that shape"
        f"{hint}"
    )


NO_GRADIENT = (
    "torch sees no derivative there. casal.energy(f, ...) differentiates f = -log p by itself, where f works in torch "
    "throughout (no detach, item, numpy or no_grad); casal.langevin takes a gradient that needs no autograd, or that "
    "begins with x = x.detach().requires_grad_() under torch.enable_grad()"
)
"""What to do about a function without a derivative."""


MIXED_DTYPES = ("same dtype", "expected scalar type", "should be the same")
"""What torch says where a network and its argument have different dtypes."""


def failed(name: str, x: Tensor, error: Exception) -> CasalError:
    """The error of a function that raised one of its own at x: which function, on how many rows, and what helps."""
    said = str(error)
    if isinstance(error, RuntimeError) and "in-place operation" in said:
        return SettingError(f"{name} edits its argument in place; return a new tensor (work on x.clone(), not on x)")
    rows = "1 row" if len(x) == 1 else f"{len(x)} rows"
    what = f"{name} fails on {rows} (x {tuple(x.shape)}, {x.dtype}): {_said(error)}"
    if "does not require grad" in said:
        return FunctionError(f"{what}; {NO_GRADIENT}")
    if isinstance(error, RuntimeError) and any(part in said for part in MIXED_DTYPES):
        other = torch.float64 if x.dtype != torch.float64 else torch.float32
        return DtypeError(
            f"{what}; the chains are {x.dtype}, so convert the network, network.to({x.dtype}), or run the chains in "
            f"its dtype, run=casal.Run(dtype={other})"
        )
    if "out of memory" in said:
        return FunctionError(f"{what}; ask it for fewer rows at once: run=casal.Run(batch={max(1, len(x) // 4)})")
    if "more than 1 value per channel when training" in said:
        return FunctionError(f"{what}; the network is in training mode, where chains see each other: network.eval()")
    return FunctionError(what)


def _said(error: Exception) -> str:
    """The name of an error and the beginning of its message."""
    return f"{type(error).__name__}: {str(error)[:400]}"


def _labels(value: Tensor) -> Tensor:
    """(n,) numbers that are equal where the rows of one tensor are equal to the bit."""
    rows = value.reshape(len(value), -1).contiguous()
    if rows.shape[1] == 1 and not rows.is_complex() and rows.dtype != torch.bool:
        return torch.unique(rows[:, 0], return_inverse=True)[1]
    seen = dict[bytes, int]()
    bits = rows.view(torch.uint8).numpy()
    return torch.tensor([seen.setdefault(hashlib.blake2b(row).digest(), len(seen)) for row in bits])
