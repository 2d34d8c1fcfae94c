"""What a run was asked for, and what is refused or tried on a few chains before its first step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from casal.checks import Check, Event, Tolerance, whole_number
from casal.constraints import Budget, Constraint, Scheduled
from casal.decoders import Decoder, Identity
from casal.errors import CasalError, DivergedError, DtypeError, ProjectionError, SettingError, ShapeError
from casal.methods import Context, Method, Uncounted
from casal.sampling.certificate import Measure, certify
from casal.sampling.tiles import generator
from casal.targets import Target

PROBE = 2
"""Chains on which the score and the projection are tried."""

SAME_ROW = 1e-3
"""Relative difference of the score at one point in two rows, from which on it depends on the row."""

DIFFERENCE, DISAGREEMENT = 0.02, 0.2
"""Half the change of a potential over which it is compared with its gradient, and the share they may differ by."""


class Options(NamedTuple):
    """The settings of ``casal.sample`` beyond target, set, method and n; see there."""

    decoder: Decoder | None = None
    seed: int = 0
    dtype: torch.dtype | None = None
    device: torch.device | str | None = None
    tol: Tolerance = 1e-8
    units: Tolerance | None = None
    record_every: int = 0
    budget: Budget | Callable[[float], Budget] | None = None
    tile: int | None = None
    threads: int | None = None
    compile: bool = False
    check: Check = True
    snapshots: int = 0
    stored_tile: int | None = None
    sets: Scheduled | None = None


def place_of(target: Target, options: Options) -> torch.device:
    """Where the chains live."""
    if options.device is not None:
        return torch.device(options.device)
    return target.init.device if isinstance(target.init, Tensor) else torch.device("cpu")


# ------------------------------------------------------------------- what is tried before the first step

WHOLE_NOTE = "the model takes all chains at once only, so nothing was spent on checks of the distribution"


class Tried(NamedTuple):
    """What the first calls of the model, the decoder and the set have shown.

    Attributes:
        context: Of the run.
        event: Shape of a decoded event.
        by_row: What depends on the row in which a chain is; None if nothing does.
        reason: Why all chains must be in one call; None if any number of rows will do.
        decoder: The decoder without its offset, in all its digits; that of the context has the dtype of the run.
        offset: The offset c of the decoder in float64: the set of the context is C - c. None for zero.
    """

    context: Context
    event: Event
    by_row: str | None
    reason: str | None
    decoder: Decoder
    offset: Tensor | None

    @property
    def whole(self) -> bool:
        """Whether all chains must be in one call."""
        return self.reason is not None


def try_out(target: Target, constraint: Constraint, n: int, options: Options) -> Tried:
    """Try everything on a few chains, and on all n if that fails: a function may hold one row of data a chain."""
    place = place_of(target, options)
    decoder = options.decoder or Identity()

    def on(rows: int) -> Tried:
        probe = starting_points(target, 0, rows, generator(options.seed, 1, place), options.dtype)
        row_dtype = probe.dtype if options.compile else torch.float64
        centred, offset = decoder.centred(probe)
        inside = constraint if offset is None else constraint.shifted(-offset)
        context = Context(target, inside, centred.to(probe), probe[:0], row_dtype=row_dtype)
        event, by_row = _check_context(context.replace(usage=Uncounted()), probe, n, options)
        reason = None if by_row is None else f"{by_row} depends on the row of a chain"
        return Tried(context, event, by_row, reason, centred, offset)

    few = min(n, PROBE)
    try:
        return on(few)
    except Exception as failure:
        tried = None
        if n > few and _may_be_the_rows(failure):
            with suppress(Exception):  # then the number of rows is not what is wrong
                tried = on(n)
        if tried is None:
            raise
        said = str(failure).partition("\n")[0][:200]
        return tried._replace(reason=f"model, decoder or set fail on a few chains ({said}), but not on all {n}")


def _may_be_the_rows(failure: Exception) -> bool:
    """Whether a failure came from inside a function of the user's, or is about a shape."""
    return isinstance(failure, ShapeError) or not isinstance(failure, CasalError) or failure.__cause__ is not None


def check_whole(tried: Tried, method: Method[Any] | str, n: int, options: Options) -> Options:
    """Refuse what splits or mixes chains that must stay together; the options of a run in one tile, without checks."""
    any_rows = "or write all functions for any number of rows, each row on its own"
    if options.tile not in (None, n):
        raise SettingError(f"tile = {options.tile} splits the chains, but {tried.reason}; leave out tile=, {any_rows}")
    if tried.context.target.tune is not None:
        raise SettingError(
            f"a pilot run tries other numbers of chains, but {tried.reason}; give numbers and not 'auto', {any_rows}"
        )
    if not isinstance(method, Method):
        raise SettingError(
            f"method='auto' tries other numbers of chains, but {tried.reason}; name a method, {any_rows}"
        )
    if tried.by_row and method.promises_distribution:
        raise SettingError(
            f"{method.name} moves chains from row to row, but {tried.by_row} depends on the row of a chain; make that "
            "data part of x, or take a method without resampling such as casal.CASAL"
        )
    return options._replace(tile=n, check=False)


class _AllChains:
    """A function of the model that may be called with all n chains only, and says so."""

    def __init__(self, name: str, function: Callable[..., Tensor], n: int) -> None:
        self.name, self.function, self.n = name, function, n

    def __call__(self, x: Tensor, *more: Tensor, **condition: Tensor) -> Tensor:
        if len(x) != self.n:
            raise SettingError(
                f"{self.name} takes all n = {self.n} chains at once only, but {len(x)} are asked for here; write it "
                "for any number of rows, each row on its own, or take a method such as casal.CASAL"
            )
        return self.function(x, *more, **condition)


def all_chains_only(target: Target, n: int) -> Target:
    """The same target, whose functions refuse any other number of chains than n."""
    potential, denoise, log_weight = (
        None if function is None else _AllChains(f"the {name} of {target.name}", function, n)
        for name, function in (
            ("potential", target.potential),
            ("denoiser", target.denoise),
            ("soft term", target.log_weight),
        )
    )
    score = _AllChains(f"the gradient of {target.name}", target.score, n)
    return replace(target, score=score, potential=potential, denoise=denoise, log_weight=log_weight)


# ------------------------------------------------------------------- what is refused before the first step


def check_numbers(n: int, options: Options) -> tuple[int, Options]:
    """Counts as whole numbers."""
    given = {"seed": 0, "record_every": 0, "tile": 1, "threads": 1, "snapshots": 0}
    values = {name: getattr(options, name) for name in given}
    whole: dict[str, Any] = {name: whole_number(v, name, given[name]) for name, v in values.items() if v is not None}
    return whole_number(n, "n", 1), options._replace(**whole)


def check_call(target: Target, constraint: Constraint, method: Method[Any] | str, n: int, options: Options) -> None:
    """What ``casal.sample`` was handed, before anything is tried."""
    if not isinstance(constraint, Constraint):
        raise SettingError(f"constraint must be a casal set such as casal.Sphere(1.0), got {constraint!r}")
    if not isinstance(method, Method) and method != "auto":
        raise SettingError(f"method must be a casal method such as casal.CASAL(rho=10), or 'auto', got {method!r}")
    if isinstance(method, Method) and target.log_weight is not None and not method.tilts:
        raise SettingError(
            f"{method.name} takes no account of the soft term of {target.name} (casal.tilted); take casal.LookAhead(), "
            "or method='auto'"
        )
    if options.check not in (True, False, "drift"):
        raise SettingError(f"check must be True, False or 'drift', got {options.check!r}")
    Measure.of(options.tol, options.units)
    if options.sets is not None:
        _check_schedule(options.sets, method, n, options)
    if options.dtype is not None and not options.dtype.is_floating_point:
        raise DtypeError(f"chains are floating-point numbers, got dtype={options.dtype}")
    if options.decoder is not None and not isinstance(options.decoder, Decoder):
        got = type(options.decoder).__name__
        raise SettingError(f"decoder must be a casal decoder such as casal.Linear(A), got {got}")
    if options.compile and constraint.chains is not None:
        raise SettingError("compile=True needs a set that is common to all chains; leave it out")
    if options.compile and target.condition:
        raise SettingError("compile=True needs a model without conditions of single chains; leave it out")
    if target.chains not in (None, n):
        raise ShapeError(
            f"the condition of {target.name} ({', '.join(target.condition)}) has {target.chains} rows, but n = {n}; "
            "give one row to each chain: value.repeat_interleave(100, 0) makes 100 chains of every row"
        )
    if constraint.chains not in (None, n):
        raise ShapeError(f"the set has parameters for {constraint.chains} chains, but n = {n}; give one to each chain")
    init = target.init
    if not isinstance(init, Tensor):
        if not callable(init):
            kind = "None" if init is None else type(init).__name__
            raise SettingError(f"init must be a tensor (n, *event) or a callable (n, generator), got {kind}")
        return
    if init.ndim >= 1 and len(init) != n:
        raise ShapeError(f"init has {len(init)} rows for n = {n} chains; give one row a chain")
    _check_points(init, 0, len(target.table))


def _check_schedule(sets: Scheduled, method: Method[Any] | str, n: int, options: Options) -> None:
    """Refuse sets that change along the run where a step would not see them."""
    if not isinstance(method, Method) or not method.follows_sets:
        kind = method.name if isinstance(method, Method) else f"method={method!r}"
        raise SettingError(
            f"{kind} takes one set, not a schedule: give the last one, {sets.last!r}, or take casal.CASAL or "
            "casal.Projected (latent='pinv')"
        )
    if options.compile:
        raise SettingError("compile=True needs one set; leave it out with casal.Scheduled")
    if sets.chains not in (None, n):
        raise ShapeError(f"the sets have parameters for {sets.chains} chains, but n = {n}; give one to each chain")


def try_schedule(sets: Scheduled, context: Context, probe: Tensor, options: Options) -> None:
    """Try the earlier sets of a schedule on a few decoded points, as the last one was."""
    decoded = context.decode(probe)
    for _, constraint in sets.stages[:-1]:
        constraint.validate(tuple(decoded.shape[1:]))
        constraint.check_nonempty(decoded)
        _check_projection(constraint.take(slice(0, len(decoded))), decoded.to(torch.float64), options)


def starting_points(
    target: Target, start: int, stop: int, stream: torch.Generator, dtype: torch.dtype | None
) -> Tensor:
    """The points from which chains start .. stop go, as the model gives them, checked."""
    n = stop - start
    if isinstance(target.init, Tensor):
        x = target.init[start:stop]
    else:
        x = target.take(slice(start, stop)).draw(n, stream)
        if not isinstance(x, Tensor) or x.ndim < 1 or len(x) != n:
            got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ShapeError(f"init({n}, generator) returned {got}; it must return a tensor ({n}, *event)")
    _check_points(x, start, len(target.table))
    return x.to(device=stream.device, dtype=dtype or x.dtype)


def _check_points(x: Tensor, first: int, steps: int) -> None:
    if x.ndim < 2:
        raise ShapeError(f"starting points have shape {tuple(x.shape)}; dim 0 is the chain, give (n, *event)")
    if not x.is_floating_point():
        raise DtypeError(f"starting points are {x.dtype}; give a floating-point tensor")
    bad = torch.nonzero(~torch.isfinite(x).flatten(1).all(1)).flatten()
    if len(bad):
        raise DivergedError(
            f"{len(bad)} starting points are not finite, first chain {first + int(bad[0])}",
            step=0,
            steps=steps,
            chains=(first + bad).tolist(),
        )


def _check_context(context: Context, probe: Tensor, n: int, options: Options) -> tuple[Event, str | None]:
    """Try the potential, the score, the decoder and the projection on some starting points.

    Returns:
        The shape of a decoded event, and what depends on the row in which a chain is, if anything does.
    """
    _check_preconditioner(context, probe)
    few = context.target.take(slice(0, len(probe)))
    _check_potential(context.replace(target=few), probe)
    chains = _repeated(len(probe), n, probe.shape[1]).to(probe.device)
    rows = probe[chains]
    by_row = _check_score(context.replace(target=few.take(chains)), rows, len(probe))
    decoded = _probed("the decoder", context.decode, rows)
    if len(rows) > PROBE and not _close(decoded[0], decoded[-1]):
        by_row = "the decoder"
    context.constraint.validate(tuple(decoded.shape[1:]))
    context.constraint.check_nonempty(decoded)
    count = len(probe) if context.constraint.chains is None else min(len(probe), PROBE)  # marked sets can be cut
    z = decoded[:count].to(torch.float64)
    _check_projection(context.constraint.take(slice(0, count)), z, options)
    return tuple(decoded.shape[1:]), by_row


def _repeated(count: int, n: int, columns: int) -> Tensor:
    """Numbers of points with the first of them in the last row too, to see whether a function depends on the row.

    There are never as many rows as columns, so that a transposed result is seen as well.
    """
    every = torch.arange(count)
    if n <= PROBE:
        return every
    if n == count:
        return torch.cat([every[:-1], every[:1]])
    return torch.cat([every, every.new_zeros(1 + int(columns == count + 1))])


def _probed(name: str, function: Callable[..., Tensor], x: Tensor, *more: Tensor) -> Tensor:
    """``function(x, *more)`` on copies; SettingError if it edits them, also where torch does not see it (x.numpy())."""
    copies = [part.clone() for part in (x, *more)]
    edits = f"{name} edits its argument in place; return a new tensor (work on x.clone(), not on x)"
    try:
        out = function(*copies)
    except RuntimeError as error:
        if "in-place operation" not in str(error):
            raise
        raise SettingError(edits) from error
    if not all(torch.allclose(*pair, rtol=0, atol=0, equal_nan=True) for pair in zip(copies, (x, *more), strict=True)):
        raise SettingError(edits)
    return out


def _check_preconditioner(context: Context, x: Tensor) -> None:
    diagonal = context.table.preconditioner
    if diagonal is None:
        return
    try:
        fits = torch.broadcast_shapes(diagonal.shape, x.shape[1:]) == x.shape[1:]
    except RuntimeError:
        fits = False
    if not fits:
        raise ShapeError(f"preconditioner {tuple(diagonal.shape)} does not broadcast to events {tuple(x.shape[1:])}")


def _check_score(context: Context, rows: Tensor, points: int) -> str | None:
    """Try the score on rows of which the first ones are starting points; its name, if it depends on the row."""
    target = context.target
    t, name = target.table.t[0].to(rows.device), f"the gradient of {target.name}"
    score = _probed(name, context.score, rows, t)
    lost = torch.nonzero(~torch.isfinite(score[:points]).flatten(1).all(1)).flatten().tolist()
    if lost:
        raise DivergedError(
            f"{name} is not finite at {len(lost)} of the {points} starting points tried",
            step=0,
            steps=len(target.table),
            chains=lost,
        )
    if len(rows) <= PROBE or _close(score[0], score[-1]):
        return None
    return name if _close(score, _probed(name, context.score, rows, t)) else None  # else it is random


def _close(one: Tensor, other: Tensor) -> bool:
    """Whether two scores are the same up to rounding in batches of another size."""
    apart, size = (one - other).abs().max(), torch.maximum(one.abs().max(), other.abs().max())
    return bool(apart <= max(SAME_ROW, 10 * torch.finfo(one.dtype).eps) * size)


def _check_potential(context: Context, x: Tensor) -> None:
    """Whether potential and gradient belong together: f(x + v) - f(x - v) is minus the integral of the score.

    The line goes along the score and is so short that f changes by about 2 DIFFERENCE on it. It says nothing where
    the score is not nearly constant on it, where f is not finite, and where f is too large for the change to be seen.
    """
    target = context.target
    if target.potential is None:
        return
    t = target.table.t[0].to(x.device)

    def f(x: Tensor) -> Tensor:
        return _probed(f"the potential of {target.name}", context.potential, x)

    def score(x: Tensor) -> Tensor:
        return _probed(f"the gradient of {target.name}", context.score, x, t).flatten(1).to(torch.float64)

    here, up = f(x), score(x)
    v = DIFFERENCE * up / up.square().sum(1, keepdim=True)
    ahead, behind = (x + sign * v.reshape(x.shape).to(x.dtype) for sign in (1.0, -1.0))
    upper, lower = (f(end).to(torch.float64) for end in (ahead, behind))
    slopes = torch.stack([(score(end) * v).sum(1) for end in (ahead, behind)])
    steady = ((slopes / DIFFERENCE - 1).abs() < DISAGREEMENT / 2).all(0)
    rounding = 10 / DISAGREEMENT * torch.finfo(here.dtype).eps * torch.maximum(upper.abs(), lower.abs())
    off = ((lower - upper) / (2 * DIFFERENCE) - 1).abs()
    telling = steady & (rounding < DIFFERENCE) & torch.isfinite(off)
    if bool(telling.any()) and float(off[telling].min()) > DISAGREEMENT:
        change = float((upper - lower)[telling][0])
        raise SettingError(
            f"the potential of {target.name} changes by {change:.3g} along a line where its gradient says "
            f"{-2 * DIFFERENCE:.3g}; give f = -log p, whose gradient is grad, or no potential"
        )


def _check_projection(constraint: Constraint, z: Tensor, options: Options) -> None:
    onto = _probed(f"the projection of {constraint!r}", constraint.project, z)
    if onto.shape != z.shape:
        raise ShapeError(f"{constraint!r}.project returned {tuple(onto.shape)} for {tuple(z.shape)}")
    _probed(f"the violation of {constraint!r}", constraint.violation, onto)
    found = certify(constraint, onto, options.tol, options.units)
    if constraint.exact and not bool(found.feasible.all()):
        worst = int(found.violation.argmax())
        violation, missed = float(found.violation[worst]), float(found.excess[worst])
        raise ProjectionError(
            f"{constraint!r}.project leaves the set: violation {violation:.3g} > tol = {found.tolerance:g} at the "
            f"starting points ({found.worst} is missed by {missed:.3g}); "
            "fix the projection, declare it exact=False, raise tol, or give units="
        )
