"""What is refused, and what is tried on a few chains, before the first step of a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import MISSING, fields, replace
from difflib import get_close_matches
from typing import Any, NamedTuple

import torch
from torch import Tensor

from casal.checks import Event, broadcasts_to
from casal.constraints import Constraint, geometry, squarable
from casal.decoders import Decoder, Identity
from casal.diagnostics import clipped_units
from casal.errors import CasalError, DivergedError, DtypeError, ProjectionError, SettingError, ShapeError
from casal.methods import HMC, METHODS, Method, Problem, Uncounted
from casal.sampling.certificate import Measure, certify
from casal.sampling.run import Options
from casal.streams import stream
from casal.targets import FromSet, Target

PROBE = 2
"""Chains on which the score and the projection are tried."""

SAME_ROW = 1e-3
"""Relative difference of the score at one point in two rows, from which on it depends on the row."""

COMPANY = 0.02
"""The same where other rows are added to a call. Iterative solvers inside a score (posterior) stop by all rows of a
call, which changed scores by 1.4e-3."""

DIFFERENCE, DISAGREEMENT = 0.02, 0.2
"""Half the change of a potential over which it is compared with its gradient, and the share they may differ by."""


def place_of(target: Target, options: Options) -> torch.device:
    """Where the chains live."""
    given = options.run.device
    if given is not None:
        try:
            return torch.empty(0, device=given).device
        except (RuntimeError, AssertionError, TypeError) as error:
            said = str(error).partition("\n")[0][:200]
            raise SettingError(f"device={given!r} cannot be used here ({said}); leave it out, or use 'cpu'") from error
    return target.init.device if isinstance(target.init, Tensor) else torch.device("cpu")


# ------------------------------------------------------------------- what is tried before the first step

ANY_ROWS = (
    "model, decoder and set are functions of any number of rows, each row on its own. Data of its own for each chain "
    "goes to the model by condition= of its family and to a set by casal.PerChain"
)
"""What ``casal.sample`` asks of the functions it is given."""


class Tried(NamedTuple):
    """What the first calls of the model, the decoder and the set have shown.

    Attributes:
        problem: Of the run.
        event: Shape of a decoded event.
        decoder: The decoder without its offset, in all its digits; that of the problem has the dtype of the run.
        offset: The offset c of the decoder in float64: the set of the problem is C - c. None for zero.
        clipped: What to say if the model's samples are clipped although decoder or set are in other units.
    """

    problem: Problem
    event: Event
    decoder: Decoder
    offset: Tensor | None
    clipped: str | None


def with_start(target: Target, constraint: Constraint, n: int, options: Options) -> Target:
    """A fixed density with a starting point for every chain: one point, a few, or none may have been given.

    Chains take the given points in turn. Without any, they start at an interior point of a flat set, and on other sets
    at projections of N(0, I).

    Raises:
        SettingError: No point was given, and neither the set nor a decoder says how many coordinates there are.
    """
    init = target.init
    if not target.table.static or not isinstance(init, Tensor | FromSet):
        return target
    if isinstance(init, Tensor):
        if init.ndim == 1 and len(init):
            init = init[None]
        several = 0 < len(init) < n if init.ndim else False
        return replace(target, init=init[torch.arange(n, device=init.device) % len(init)]) if several else target
    size = constraint.written_for
    if size is None or options.decoder is not None:
        why = "behind a decoder" if options.decoder is not None else f"{constraint!r} takes any number of coordinates"
        raise SettingError(f"{target.name} has no init: {why}; give one point, init=torch.zeros(d), to say how many")
    like = torch.zeros((0, size), dtype=options.run.dtype or torch.float64, device=place_of(target, options))
    found = constraint.reduction((size,))
    if found is not None:
        return replace(target, init=found.origin.to(like).expand(n, -1))

    def projected(count: int, generator: torch.Generator) -> Tensor:
        return constraint.project(torch.randn((count, size), generator=generator, dtype=like.dtype, device=like.device))

    return replace(target, init=projected)


def try_out(target: Target, constraint: Constraint, method: Method[Any] | str, n: int, options: Options) -> Tried:
    """Try everything on a few chains. If it fails there but not on all chains at once, say what is asked for.

    Where chains will live inside the set, so do these: the density need not be defined elsewhere.
    """

    def attempt(count: int) -> Tried:
        generator = stream(options.seed, "probe", device=place_of(target, options))
        probe = starting_points(target, 0, count, generator, options.run.dtype)
        row_dtype = probe.dtype if options.run.compile else torch.float64
        centred, offset = (options.decoder or Identity()).centred(probe)
        inside = constraint if offset is None else constraint.shifted(-offset)
        problem = Problem(target, inside, centred.to(probe), probe[:0], row_dtype=row_dtype)
        mover, start = HMC() if method == "auto" else method, [probe]
        if isinstance(mover, Method) and mover.adapts and target.table.static:
            probe = mover.first_points(problem.replace(usage=Uncounted()).take(slice(0, count)), probe)
            flat = problem.identity and inside.chains is None and inside.reduction(problem.latent) is not None
            start = [] if flat else start  # its chains are never projected
        event = _check_problem(problem.replace(usage=Uncounted()), probe, start, n, options)
        clipped = clipped_units(target, constraint, options.decoder or Identity(), problem.latent)
        return Tried(problem, event, centred, offset, clipped)

    few = min(n, PROBE)
    try:
        return attempt(few)
    except Exception as failure:
        if few == n or not _of_a_function(failure):
            raise
        try:
            attempt(n)
        except Exception:  # the number of rows is not what is wrong
            raise failure from failure.__cause__
        said = str(failure).partition("\n")[0][:200]
        raise SettingError(
            f"model, decoder or set work on all {n} chains at once, and fail on {few} of them ({said}): {ANY_ROWS}"
        ) from failure


def _of_a_function(error: Exception) -> bool:
    """Whether an error may come from a function that cannot take a few chains."""
    return isinstance(error, ShapeError) or not isinstance(error.__cause__ or error, CasalError)


# ------------------------------------------------------------------- what is refused before the first step


def check_call(target: Target, constraint: Constraint, method: Method[Any] | str, n: int, options: Options) -> None:
    """What ``casal.sample`` was handed, before anything is tried."""
    if not isinstance(target, Target):
        raise SettingError(
            f"target must be a casal.Target, got {type(target).__name__}: wrap a pipeline or network of diffusers by "
            "casal.from_diffusers(pipeline, steps=50), a potential by casal.energy, a score by casal.langevin"
        )
    if not isinstance(constraint, Constraint):
        raise SettingError(f"constraint must be a casal set such as casal.Sphere(1.0), got {_hint_for_set(constraint)}")
    if isinstance(method, Method) and target.log_weight is not None and not method.tilts:
        raise SettingError(
            f"{method.name} ignores the soft term of {target.name} (casal.tilted); use casal.Matheron(), "
            "or method='auto'"
        )
    if not isinstance(options.check, bool | int | float) or not 0.0 <= options.check < math.inf:
        raise SettingError(
            f"check must be True, False, or the share of the run's model calls that checks may use, such as 0.2; got "
            f"{options.check!r}"
        )
    Measure.of(options.tol, options.units)
    run = options.run
    if options.decoder is not None and not isinstance(options.decoder, Decoder):
        got = type(options.decoder).__name__
        raise SettingError(f"decoder must be a casal decoder such as casal.Linear(A), got {got}")
    if run.compile and constraint.chains is not None:
        raise SettingError("compile=True needs a set that is common to all chains; leave it out")
    if run.compile and target.condition:
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
            raise SettingError(
                f"init must be a tensor (n, *event), or a callable (n, generator) such as casal.GaussianStart(2), got "
                f"{kind}"
            )
        return
    if init.ndim >= 1 and len(init) != n:
        raise ShapeError(f"init has {len(init)} rows for n = {n} chains; give one row per chain")
    _check_points(init, 0, len(target.table))


def _hint_for_set(given: object) -> str:
    """What was given in place of a set, and what to write instead."""
    if isinstance(given, type) and issubclass(given, Constraint):
        return f"the class {given.__name__}: give a set of it, such as casal.{given.__name__}(...)"
    if callable(given):
        return (
            "a function: casal.Implicit(fn) is the set {fn(z) = 0}, casal.Implicit(fn, inequality=g) has g(z) <= 0 "
            "too, and casal.FromProjection(project, violation) takes a projection"
        )
    return repr(given)


def method_of(given: Method[Any] | str | type | None) -> Method[Any] | None:
    """The method that was asked for, by itself or by its name; None for "auto".

    Raises:
        SettingError: There is none of that name, or it needs settings.
    """
    if isinstance(given, Method):
        return given
    if isinstance(given, type) and issubclass(given, Method):
        raise SettingError(f"method is the class {given.__name__}; add its settings: {_example(given)}")
    if not isinstance(given, str):
        raise SettingError(f"method must be a casal method such as casal.CASAL(rho=10), or 'auto', got {given!r}")
    if given == "auto":
        return None
    classes = {type(row.example).__name__: type(row.example) for row in METHODS.values()}
    plain = {_letters(name): kind for name, kind in classes.items()}
    plain |= {_letters(name): type(row.example) for name, row in METHODS.items()}
    found = plain.get(_letters(given))
    if found is None:
        near = get_close_matches(_letters(given), plain, n=1)
        hint = f"did you mean {plain[near[0]].__name__!r}? " if near else ""
        raise SettingError(f"there is no method {given!r}; {hint}There are 'auto', {', '.join(map(repr, classes))}")
    try:
        return found()
    except TypeError as error:
        raise SettingError(f"{found.__name__} needs settings: method={_example(found)}") from error


def _letters(name: str) -> str:
    """The letters and numbers of a name, in lower case."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _example(kind: type) -> str:
    """How a method of this class is written."""
    rows = [row.example for row in METHODS.values() if type(row.example) is kind]
    changed = (
        []
        if not rows
        else [
            f"{field.name}={getattr(rows[-1], field.name)!r}"
            for field in fields(rows[-1])  # type: ignore[arg-type]
            if field.default is MISSING
        ]
    )
    return f"casal.{kind.__name__}({', '.join(changed)})"


def starting_points(
    target: Target, start: int, stop: int, stream: torch.Generator, dtype: torch.dtype | None
) -> Tensor:
    """The points from which chains start .. stop go, as the model gives them, checked."""
    n = stop - start
    if isinstance(target.init, Tensor):
        x = target.init[start:stop]
    else:
        x = target.take(slice(start, stop)).draw(n, stream)
        with suppress(TypeError, ValueError, RuntimeError):
            x = torch.as_tensor(x)  # lists and arrays of NumPy
        if not isinstance(x, Tensor) or x.ndim < 1 or len(x) != n:
            got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ShapeError(f"init({n}, generator) returned {got}; it must return a tensor ({n}, *event)")
    _check_points(x, start, len(target.table))
    return x.to(device=stream.device, dtype=dtype or x.dtype)


def _check_points(x: Tensor, first: int, steps: int) -> None:
    if x.ndim < 2:
        raise ShapeError(f"starting points have shape {tuple(x.shape)}; dim 0 is the chain, give (n, *event)")
    if not x.is_floating_point():
        raise DtypeError(f"starting points are {x.dtype}; give a floating-point tensor, init.to(torch.float32)")
    bad = torch.nonzero(~torch.isfinite(x).flatten(1).all(1)).flatten()
    if len(bad):
        raise DivergedError(
            f"{len(bad)} starting points are not finite, first chain {first + int(bad[0])}",
            step=0,
            steps=steps,
            chains=(first + bad).tolist(),
        )


def _check_problem(problem: Problem, probe: Tensor, starts: list[Tensor], n: int, options: Options) -> Event:
    """Try the potential, the score and the decoder on points where the chains will be, the projection on their starts.

    Returns:
        The shape of a decoded event.
    """
    _check_preconditioner(problem, probe)
    few = problem.target.take(slice(0, len(probe)))
    _check_potential(problem.replace(target=few), probe)
    chains = _repeated(len(probe), n, probe.shape[1]).to(probe.device)
    rows = probe[chains]
    score = _check_score(problem.replace(target=few.take(chains)), rows, len(probe))
    decoded = _probed("the decoder", problem.decode, rows)
    if len(rows) > len(probe) and not _close(decoded[0], decoded[-1]):
        raise SettingError(
            f"the decoder depends on the place of a chain in the batch, not on its point alone: {ANY_ROWS}"
        )
    problem.constraint.validate(tuple(decoded.shape[1:]))
    geometry.check_nonempty(problem.constraint, decoded)
    for start in starts:
        onto = _probed("the decoder", problem.decode, start)
        _check_projection(problem.constraint.take(slice(0, len(probe))), onto, options)
    if n > 1:
        _check_company(problem.replace(target=few.take(chains)), rows, score)
    return tuple(decoded.shape[1:])


def _repeated(count: int, n: int, columns: int) -> Tensor:
    """Numbers of points with the first of them in the last row too, to see whether a function depends on the row.

    There are never as many rows as columns, so that a transposed result is seen as well.
    """
    every = torch.arange(count)
    if count == n:
        return every
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
        raise SettingError(edits) from None
    if not all(torch.allclose(*pair, rtol=0, atol=0, equal_nan=True) for pair in zip(copies, (x, *more), strict=True)):
        raise SettingError(edits)
    return out


def _check_preconditioner(problem: Problem, x: Tensor) -> None:
    diagonal = problem.table.preconditioner
    if diagonal is None:
        return
    if problem.metric is not None:
        off = float((diagonal - diagonal.T).abs().max() / diagonal.abs().max())
        least = float(torch.linalg.eigvalsh(diagonal).min())
        if off > 1e-9 or not least > 0.0:
            raise SettingError(
                f"a preconditioner that is a matrix is a covariance: symmetric (it is off by {off:.2g}) and with "
                f"eigenvalues > 0 (the smallest is {least:.2g})"
            )
        return
    if not broadcasts_to(diagonal.shape, x.shape[1:]):
        raise ShapeError(
            f"preconditioner {tuple(diagonal.shape)} does not broadcast to events {tuple(x.shape[1:])}, and is no "
            f"matrix of all {x[0].numel()} coordinates"
        )


def _check_score(problem: Problem, rows: Tensor, points: int) -> Tensor:
    """Try the score on rows of which the first ones are starting points, and the first of them is the last row too."""
    target = problem.target
    t, name = target.table.t[0].to(rows.device), f"the gradient of {target.name}"
    score = _probed(name, problem.score, rows, t)
    lost = torch.nonzero(~torch.isfinite(score[:points]).flatten(1).all(1)).flatten().tolist()
    if lost:
        raise DivergedError(
            f"{name} is not finite at {len(lost)} of the {points} starting points tried",
            step=0,
            steps=len(target.table),
            chains=lost,
        )
    if len(rows) <= points or _close(score[0], score[-1]):
        return score
    if _close(score, _probed(name, problem.score, rows, t)):  # else it is random
        raise SettingError(f"{name} depends on the place of a chain in the batch, not on its point alone: {ANY_ROWS}")
    return score


def _check_company(problem: Problem, rows: Tensor, alone: Tensor) -> None:
    """Whether the score at some rows changes with other rows of a call, as batch normalisation does in training."""
    target, count = problem.target, len(rows)
    t, twice = target.table.t[0].to(rows.device), torch.arange(2 * count, device=rows.device) % count
    others = rows + 0.5 * (1 + (rows - rows.mean()).abs().max())  # some other points of that size
    try:
        beside = problem.replace(target=target.take(twice)).score(torch.cat([rows, others]), t)[:count]
    except CasalError:  # it need not be defined at the others
        return
    if _close(alone, beside, COMPANY) or not _close(alone, problem.score(rows, t)):  # else it is random
        return
    raise SettingError(
        f"the gradient of {target.name} at a chain changes with the other chains of a call (by "
        f"{float((beside - alone).abs().max()):.3g}, its size is {float(alone.abs().max()):.3g}): each row must be on "
        "its own. A network in training mode (batch normalisation) couples them: call network.eval() first"
    )


def _close(one: Tensor, other: Tensor, share: float = SAME_ROW) -> bool:
    """Whether two scores are the same up to rounding in batches of another size."""
    apart, size = (one - other).abs().max(), torch.maximum(one.abs().max(), other.abs().max())
    return bool(apart <= max(share, 10 * torch.finfo(one.dtype).eps) * size)


def _check_potential(problem: Problem, x: Tensor) -> None:
    """Whether potential and gradient belong together: f(x + v) - f(x - v) is minus the integral of the score.

    The line goes along the score and is so short that f changes by about 2 DIFFERENCE on it. It says nothing where
    the score is not nearly constant on it, where f is not finite, and where f is too large for the change to be seen.
    """
    target = problem.target
    if target.potential is None:
        return
    t = target.table.t[0].to(x.device)

    def f(x: Tensor) -> Tensor:
        return _probed(f"the potential of {target.name}", problem.potential, x)

    def score(x: Tensor) -> Tensor:
        return _probed(f"the gradient of {target.name}", problem.score, x, t).flatten(1).to(torch.float64)

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


def _check_projection(constraint: Constraint, decoded: Tensor, options: Options) -> None:
    z = decoded.to(torch.float64)
    onto = _probed(f"the projection of {constraint!r}", constraint.project, z)
    if onto.shape != z.shape:
        raise ShapeError(f"{constraint!r}.project returned {tuple(onto.shape)} for {tuple(z.shape)}")
    farthest, most = float((onto - z).abs().max()), squarable(decoded.dtype)
    if not farthest < most:
        raise SettingError(
            f"{constraint!r} is {farthest:.3g} away from the starting points, and the squares of lengths beyond "
            f"{most:.1e} are out of the range of {decoded.dtype}: write model and set in "
            "another unit, constraint.scaled(1 / unit)"
        )
    _probed(f"the violation of {constraint!r}", constraint.violation, onto)
    found = certify(constraint, onto, options.tol, options.units)
    if constraint.exact and not bool(found.feasible.all()):
        worst = int(found.violation.argmax())
        violation, missed = float(found.violation[worst]), float(found.excess[worst])
        raise ProjectionError(
            f"{constraint!r}.project leaves the set: violation {violation:.3g} > tol = {found.tolerance:g} at the "
            f"starting points (worst: {found.worst}, off by {missed:.3g}); "
            "fix the projection, declare it exact=False, raise tol, or give units="
        )
