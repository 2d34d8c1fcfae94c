"""What makes two runs the same run: their settings, the numbers of their plan, and what their functions are and do.

A function has no name that can be trusted: two lambdas with another radius look the same, and the same one has another
address in the next process. So a function is known by its code, by the values it uses, and by what it returns on a few
points that are always the same. Nothing here depends on addresses, on hash seeds, or on the number of threads.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from casal.constraints import Budget, Constraint
from casal.sampling.certificate import Measure
from casal.sampling.function_code import CodeParts
from casal.sampling.plan import Plan
from casal.sampling.result import set_data
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
        **({"snapshots": plan.options.snapshots} if plan.options.snapshots else {}),
        "budget": _budget(plan),
        **_schedule(plan),
        "model": _behaviour_of_model(plan),
        "code": _code_of_run(plan),
        "rows": _rows_digest(plan),
    }


def _plain(value: Any) -> Any:
    """Text without addresses in memory, which differ from process to process."""
    return ADDRESS.sub("", value) if isinstance(value, str) else value


def _identity_of_set(plan: Plan) -> dict[str, Any]:
    """The set as data where it can be written so; the code and the behaviour of the user's own part of it."""
    constraint = plan.constraint
    data = _plain(set_data(constraint))
    if not isinstance(data, str) and not CodeParts(constraint, values=False).own:
        return {"constraint": data}
    before = CodeParts(constraint, values=True)
    behaviour = _behaviour_of_set(plan)
    after = CodeParts(constraint, values=True)
    return {"constraint": data, "constraint_code": before.digest(after), "constraint_values": behaviour}


def _schedule(plan: Plan) -> dict[str, Any]:
    """The earlier sets of a run whose set changes, each as the last one."""
    sets = plan.options.sets
    if sets is None:
        return {}
    told = []
    for share, constraint in sets.stages:
        with_set = replace(plan, context=plan.context.replace(constraint=constraint), constraint=constraint)
        told.append([share, _identity_of_set(with_set)])
    return {"schedule": told}


def _code_of_run(plan: Plan) -> str:
    """A checksum of the code of model, start, decoder and method; the values they use show in what they return."""
    target = plan.target
    functions = [
        target.score,
        target.potential,
        target.denoise,
        target.init,
        plan.context.decoder,
        plan.method,
        target.log_weight,
    ]
    code = CodeParts(functions, values=False)
    return code.digest(code)


def _budget(plan: Plan) -> str:
    """The budget, or what a function of the progress gives on the way."""
    budget = plan.options.budget
    return repr([budget(k / 4) for k in range(5)] if callable(budget) else budget)


def _rows_digest(plan: Plan) -> str:
    """A checksum of all numbers of a plan: what functions among the settings came to."""
    total = hashlib.sha256()
    for leg in plan.legs:
        for stage in leg.stages:
            total.update(getattr(stage.step, "__qualname__", "").encode())
            for row in stage.rows:
                total.update(type(row).__name__.encode())
                for part in row:
                    total.update(_plain(repr(_numbers(part))).encode())
    return total.hexdigest()[:16]


def _numbers(part: Any) -> Any:
    """A part of a row as plain numbers; the parts of a row that looks back are inside it."""
    if isinstance(part, tuple):
        return [_numbers(inner) for inner in part]
    return part.tolist() if isinstance(part, Tensor) else part


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
    """A checksum of the table, all starting points and conditions that are given, and functions of model and decoder.

    Every probe has as many chains as ``plan.probe``, which the score is known to take.
    """
    target, table = plan.target, plan.target.table
    total = hashlib.sha256()
    given = [target.init] if isinstance(target.init, Tensor) else []
    given += [target.condition[name] for name in sorted(target.condition)]
    columns = (table.a, table.b, table.s, table.t, table.preconditioner, table.alpha, table.sigma, table.memory)
    for part in (*given, *(column for column in columns if column is not None)):
        total.update(_bytes(part))
    with _repeatable():
        start = plan.probe()
        known = functools.partial(_given, target.take(slice(0, len(start))).condition)
        levels = _levels(table)
        for call in range(max(len(levels), len(SCALES))):
            level = levels[call % len(levels)]
            x, t = _around(_noise_size(table, level) * start, call), table.t[level]
            _absorb(total, functools.partial(_at_time, known(target.score), t), x, start)
            if call < len(SCALES):
                _absorb(total, plan.context.decode, x)
                if plan.offset is not None:
                    total.update(_bytes(plan.offset))
                for function in (None if target.potential is None else known(target.potential), target.log_weight):
                    if function is not None:
                        _absorb(total, function, x)
        if target.denoise is not None and table.sigma is not None and table.alpha is not None:
            for call, level in enumerate(_spread(levels, FEW_LEVELS)):
                sigma = table.sigma[level] / table.alpha[level]
                _absorb(total, functools.partial(_at_time, known(target.denoise), sigma), _around(start, call))
                if target.log_weight is not None:
                    noisy = _around(_noise_size(table, level) * start, call) / table.alpha[level].to(start)
                    at = functools.partial(_at_estimate, target.log_weight, known(target.denoise), sigma)
                    _absorb(total, at, noisy)
    return total.hexdigest()[:16]


def _given(condition: Mapping[str, Tensor], function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of the model with the condition of the chains that it is probed on."""
    return functools.partial(function, **condition)


def _at_time(function: Callable[[Tensor, Tensor], Tensor], t: Tensor, x: Tensor) -> Tensor:
    return function(x, t.to(x.device))


def _at_estimate(
    term: Callable[[Tensor], Tensor], denoise: Callable[[Tensor, Tensor], Tensor], sigma: Tensor, x: Tensor
) -> Tensor:
    """A soft term where it is used: at the clean samples that noisy points stand for."""
    return term(_at_time(denoise, sigma, x))


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
