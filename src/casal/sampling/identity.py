"""What makes two runs the same run: their settings, the numbers of their plan, and what their functions are and do.

A function has no name that can be trusted: two lambdas with another radius look the same, and the same one has another
address in the next process. So a function is known by its code, by the values it uses, and by what it returns on a few
points that are always the same. Nothing here depends on addresses, on hash seeds, or on the number of threads.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import json
import re
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from casal.constraints import Budget, Constraint
from casal.errors import SettingError
from casal.sampling.certificate import Measure
from casal.sampling.plan import Plan
from casal.sampling.tiles import one_thread
from casal.targets import Table

SCALES = (0.0, 0.1, 1.0, 10.0)
"""How far probe points lie from the starting points, in units of their root mean square."""

MOST_LEVELS = 64
"""Levels of a table at which the score is probed. A longer table is probed at so many of them, spread evenly over it,
the first and the last included. Each takes one evaluation of as many chains as ``plan.probe`` has, and there are at
least as many evaluations as SCALES. They are no part of the cost of a run."""

FEW_LEVELS = 4
"""Levels at which the denoiser is probed beside the score, which is made from it in most models."""

PROBE_BUDGET = Budget(iterations=50)
"""How hard an iterative projection tries on probe points: the same is found again, near or not."""

PROBE_SEED = 20_011
"""Of the noise in the probe points, and of functions that draw random numbers themselves."""

MOST_PARTS = 20_000
"""Functions, objects and values that are followed from one function; what lies beyond counts by its type."""

LIBRARIES = frozenset(sys.stdlib_module_names) - {"__main__"} | {"casal", "numpy", "torch"}
"""Modules whose code is known by its name and version."""

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def identity(plan: Plan, compiled: bool) -> dict[str, Any]:
    """What a store must agree with to be continued, as JSON data."""
    about = {name: value for name, value in plan.about().items() if name != "python"}  # which changes no bit
    return {
        **{name: _plain(value) for name, value in about.items()},
        **_identity_of_set(plan),
        "settings": _plain(repr(plan.method)),
        "compile": compiled,
        **Measure.of(plan.options.tol, plan.options.units).plain(),
        "record_every": plan.options.record_every,
        "budget": _plain(repr(plan.options.budget)),
        **_identity_of_model(plan),
        "rows": _rows_digest(plan),
    }


def _plain(value: Any) -> Any:
    """Text without addresses in memory, which differ from process to process."""
    return ADDRESS.sub("", value) if isinstance(value, str) else value


def _identity_of_set(plan: Plan) -> dict[str, Any]:
    """The set as data where it can be written so; the code and the behaviour of the user's own part of it."""
    constraint = plan.context.constraint
    try:
        data, by_value = constraint.spec(), False
    except SettingError:  # a set of functions
        data, by_value = _plain(repr(constraint)), True
    before = _Parts(constraint, values=by_value)
    if not by_value and not before.own:
        return {"constraint": data}
    behaviour = _behaviour_of_set(plan)
    after = _Parts(constraint, values=by_value)
    return {"constraint": data, "constraint_code": before.digest(after), "constraint_values": behaviour}


def _identity_of_model(plan: Plan) -> dict[str, Any]:
    """What the model returns on probe points, and its code; the values it uses show in what it returns."""
    target = plan.target
    code = _Parts([target.score, target.potential, target.denoise, plan.context.decoder], values=False)
    return {"model": _behaviour_of_model(plan), "model_code": code.digest(code)}


def _rows_digest(plan: Plan) -> str:
    """A checksum of all numbers of a plan: what functions among the settings came to."""
    total = hashlib.sha256()
    for leg in plan.legs:
        for stage in leg.stages:
            total.update(getattr(stage.step, "__qualname__", "").encode())
            for row in stage.rows:
                total.update(type(row).__name__.encode())
                for part in row:
                    total.update(_plain(repr(part.tolist() if isinstance(part, Tensor) else part)).encode())
    return total.hexdigest()[:16]


# ------------------------------------------------------------------------------------------- behaviour


def _behaviour_of_set(plan: Plan) -> str:
    """A checksum of violations, residuals and projections at probe points around the starting points."""
    total = hashlib.sha256()
    with _repeatable():
        start = plan.context.decode(plan.probe()).to(torch.float64)
        constraint = plan.context.constraint.take(slice(0, len(start)))
        for call in range(len(SCALES)):
            for function in _functions_of_set(constraint):
                _absorb(total, function, _around(start, call))
    return total.hexdigest()[:16]


def _functions_of_set(constraint: Constraint) -> Iterator[Callable[[Tensor], Tensor]]:
    yield constraint.violation
    yield lambda z: constraint.project(z, budget=PROBE_BUDGET)
    if constraint.smooth:
        yield constraint.residual


def _behaviour_of_model(plan: Plan) -> str:
    """A checksum of the table, of all given starting points, and of score, potential, denoiser and decoder at probes.

    Every probe has as many chains as ``plan.probe``, which the score is known to take.
    """
    target, table = plan.target, plan.target.table
    total = hashlib.sha256()
    given = [target.init] if isinstance(target.init, Tensor) else []
    columns = (table.a, table.b, table.s, table.t, table.preconditioner, table.alpha, table.sigma)
    for part in (*given, *(column for column in columns if column is not None)):
        total.update(_bytes(part))
    with _repeatable():
        start = plan.probe()
        levels = _levels(table)
        for call in range(max(len(levels), len(SCALES))):
            level = levels[call % len(levels)]
            x, t = _around(_noise_size(table, level) * start, call), table.t[level]
            _absorb(total, functools.partial(_at_time, target.score, t), x, start)
            if call < len(SCALES):
                _absorb(total, plan.context.decode, x)
                if target.potential is not None:
                    _absorb(total, target.potential, x)
        if target.denoise is not None and table.sigma is not None and table.alpha is not None:
            for call, level in enumerate(_spread(levels, FEW_LEVELS)):
                sigma = table.sigma[level] / table.alpha[level]
                _absorb(total, functools.partial(_at_time, target.denoise, sigma), _around(start, call))
    return total.hexdigest()[:16]


def _at_time(function: Callable[[Tensor, Tensor], Tensor], t: Tensor, x: Tensor) -> Tensor:
    return function(x, t.to(x.device))


def _levels(table: Table) -> list[int]:
    """Rows of a table with different second arguments of the score, at most MOST_LEVELS of them."""
    first: dict[float, int] = {}
    for row, t in enumerate(table.t.tolist()):
        first.setdefault(t, row)
    return _spread(sorted(first.values()), MOST_LEVELS)


def _spread(rows: list[int], most: int) -> list[int]:
    """At most so many of the rows, evenly, the first and the last included."""
    if len(rows) <= most:
        return rows
    return [rows[round(k * (len(rows) - 1) / (most - 1))] for k in range(most)]


def _noise_size(table: Table, row: int) -> float:
    """The size of x before a row in units of that at the start, for models that say it; one for others."""
    if table.alpha is None or table.sigma is None:
        return 1.0
    size = torch.hypot(table.alpha, table.sigma).tolist()
    ratio = size[row] / size[0] if size[0] else 1.0
    return float(ratio) if 0.0 < ratio < float("inf") else 1.0


def _around(start: Tensor, call: int) -> Tensor:
    """Probe points, one for each starting point: the first of them as far away as SCALES say, the others less."""
    noise = torch.randn(start.shape, generator=torch.Generator().manual_seed(PROBE_SEED + call), dtype=torch.float64)
    rms = float(start.to(torch.float64).square().mean().sqrt())
    scale = torch.tensor([SCALES[(call + k) % len(SCALES)] for k in range(len(start))], dtype=torch.float64)
    by = (rms or 1.0) * scale.reshape(-1, *[1] * (start.ndim - 1)) * noise
    return start + by.to(start)


def _absorb(total: Any, function: Callable[[Tensor], Tensor], *tries: Tensor) -> None:
    """Add what a function returns at the first points that it takes, or what it raises at the last."""
    for x in tries:
        try:
            total.update(_bytes(function(x.clone())))
            return
        except Exception as error:  # a user's function; the run itself says so if it matters
            refused = type(error).__name__
    total.update(refused.encode())


def _bytes(part: Tensor) -> bytes:
    """The numbers of a tensor, with one bit pattern for what is not a number."""
    wide = part.detach().cpu().to(torch.float64)
    array = np.ascontiguousarray(torch.where(wide.isnan(), torch.nan, wide).numpy())
    return f"{tuple(array.shape)}".encode() + array.tobytes()


@contextmanager
def _repeatable() -> Iterator[None]:
    """One thread, and random numbers that are always the same and leave those of the caller as they were."""
    with torch.random.fork_rng(devices=list(range(torch.cuda.device_count()))), one_thread(), torch.no_grad():
        torch.manual_seed(PROBE_SEED)
        yield


# ------------------------------------------------------------------------------------------- code


class _Parts:
    """The code of functions and objects, and the values they use, each with a checksum.

    Followed are closures, defaults, globals that the code names, attributes of objects, and the classes of objects; of
    libraries the names alone. Of objects, private attributes that the class declares too are left out: caches.

    Args:
        value: Functions, objects, or lists of them.
        values: Whether numbers, text and tensors count; if not, the code alone does.

    Attributes:
        found: Where in ``value`` to checksum.
        own: Whether code was found that is of no library.
    """

    def __init__(self, value: Any, *, values: bool) -> None:
        self.found: dict[str, str] = {}
        self.own = False
        self._values, self._seen = values, dict[int, Any]()
        self._follow("", value)

    def digest(self, later: _Parts) -> str:
        """One checksum of what is the same later: what a call changes is a counter or a cache, not a setting."""
        same = sorted((place, sum_) for place, sum_ in self.found.items() if later.found.get(place) == sum_)
        return hashlib.sha256(json.dumps(same).encode()).hexdigest()[:16]

    def _follow(self, place: str, value: Any) -> None:
        if value is None or isinstance(value, bool | int | float | complex | str | bytes | torch.dtype | torch.device):
            self._keep(place, repr(value).encode())
        elif isinstance(value, Tensor | np.ndarray | np.generic):
            self._keep(place, _numbers(value))
        elif isinstance(value, types.ModuleType):
            self.found[place] = value.__name__
        elif id(value) not in self._seen and len(self._seen) < MOST_PARTS:
            self._seen[id(value)] = value  # kept, so that no other object gets its number
            self._follow_object(place, value)

    def _keep(self, place: str, content: bytes) -> None:
        if self._values:
            self.found[place] = hashlib.sha256(content).hexdigest()[:16]

    def _follow_object(self, place: str, value: Any) -> None:
        if isinstance(value, list | tuple):
            for k, item in enumerate(value):
                self._follow(f"{place}[{k}]", item)
        elif isinstance(value, dict):
            for key, item in value.items():
                self._follow(f"{place}[{_key(key)}]", item)
        elif isinstance(value, set | frozenset):
            self._keep(place, json.dumps(sorted(map(_key, value))).encode())
        elif isinstance(value, types.FunctionType):
            self._follow_function(place, value)
        elif isinstance(value, types.MethodType):
            self._follow(f"{place}.self", value.__self__)
            self._follow(place, value.__func__)
        elif isinstance(value, functools.partial):
            self._follow(place, [value.func, value.args, value.keywords])
        elif isinstance(value, type):
            self._follow_class(place, value)
        elif isinstance(value, staticmethod | classmethod):
            self._follow(place, value.__func__)
        elif isinstance(value, property | functools.cached_property):
            self._follow(place, value.fget if isinstance(value, property) else value.func)
        elif isinstance(value, torch.nn.Module):
            self._follow_module(place, value)
        else:
            self._follow_instance(place, value)

    def _follow_function(self, place: str, function: types.FunctionType) -> None:
        code = function.__code__
        self.found[f"{place}()"] = function.__name__
        if not _is_library(function.__module__):
            self.own = True
            self.found[f"{place}()"] = _code_digest(code)
            for name in sorted(_globals_of(code) & function.__globals__.keys()):
                self._follow(f"{place}:{name}", function.__globals__[name])
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # an empty cell
                self._follow(f"{place}.{name}", cell.cell_contents)
        self._follow(f"{place}.defaults", [function.__defaults__, function.__kwdefaults__])
        self._follow(f"{place}.wrapped", getattr(function, "__wrapped__", None))

    def _follow_class(self, place: str, kind: type) -> None:
        self.found[f"{place}<>"] = kind.__qualname__
        for base in kind.__mro__:
            if _is_library(base.__module__):
                continue
            self.own = True
            for name, member in sorted(vars(base).items()):
                if not name.startswith(("__", "_abc_")) or isinstance(member, types.FunctionType):
                    self._follow(f"{place}<{base.__qualname__}>.{name}", member)

    def _follow_module(self, place: str, network: torch.nn.Module) -> None:
        for name, part in network.named_modules():
            self._follow(f"{place}/{name}", type(part))
        if self._values:
            for name, tensor in network.state_dict().items():
                self._follow(f"{place}/{name}=", tensor)

    def _follow_instance(self, place: str, value: Any) -> None:
        kind = type(value)
        self._follow(f"{place}<>", kind)
        self.found[f"{place}<>"] = kind.__qualname__
        self._follow(f"{place}.wrapped", getattr(value, "__wrapped__", None))
        if _is_library(kind.__module__) and not kind.__module__.startswith("casal"):
            return
        for name, part in sorted(getattr(value, "__dict__", {}).items()):
            if not (name.startswith("_") and hasattr(kind, name)):
                self._follow(f"{place}.{name}", part)


def _is_library(module: str | None) -> bool:
    """Whether the code of a module is known by its name: it was installed, not written for the run."""
    if module is None or module.partition(".")[0] in LIBRARIES:
        return True
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


def _code_digest(code: types.CodeType) -> str:
    """A checksum of bytecode, constants and names; neither of files and lines nor of names of local variables."""
    total = hashlib.sha256(code.co_code)
    total.update(repr((code.co_argcount, code.co_kwonlyargcount, code.co_flags, code.co_names)).encode())
    for constant in code.co_consts:
        total.update(_constant(constant).encode())
    return total.hexdigest()[:16]


def _constant(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return _code_digest(value)
    if isinstance(value, frozenset):
        return f"frozenset{sorted(map(_constant, value))}"
    return f"({', '.join(map(_constant, value))})" if isinstance(value, tuple) else repr(value)


def _globals_of(code: types.CodeType) -> set[str]:
    """Names of the globals that a function and the functions inside it use."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inside = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return names.union(*map(_globals_of, inside))


def _key(value: Any) -> str:
    """A key or a member of a set as text, the same in every process."""
    return repr(value) if isinstance(value, bool | int | float | complex | str | bytes | None) else type(value).__name__


def _numbers(value: Any) -> bytes:
    """dtype, shape and bytes of a tensor or an array."""
    tensor = value.detach().cpu().contiguous() if isinstance(value, Tensor) else None
    if tensor is not None:
        plain = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
        return f"{tensor.dtype} {tuple(tensor.shape)} ".encode() + plain.resolve_conj().numpy().tobytes()
    array = np.asarray(value)
    return f"{array.dtype} {array.shape} ".encode() + (b"" if array.dtype.hasobject else array.tobytes())
