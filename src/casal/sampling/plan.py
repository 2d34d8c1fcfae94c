"""The plan of a run: everything that is known before its first step. It can be pickled."""

from __future__ import annotations

import itertools
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from casal.checks import whole_number
from casal.constraints import Budget, Constraint
from casal.decoders import Decoder, Identity
from casal.errors import DivergedError, DtypeError, ProjectionError, SettingError, ShapeError
from casal.methods import Context, Method, Stage, Uncounted, Usage
from casal.sampling.certificate import Measure, Tolerance, certify
from casal.sampling.coordinates import Coordinates, coordinates
from casal.sampling.looks import settle
from casal.sampling.pilot import Pilot
from casal.sampling.tiles import Tile, cut, even_size, generator, tile_size
from casal.targets import Target
from casal.version import __version__

PROBE = 2
"""Chains on which the score and the projection are tried."""

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
    check: bool = True


class Leg(NamedTuple):
    """Stages that a tile takes in one go: only the first of them may have a meeting.

    Attributes:
        stages: The stages.
        end: Steps that a chain has taken after them, from the start of the run.
    """

    stages: Sequence[Stage]
    end: int


@dataclass(frozen=True, eq=False)
class Plan:
    """One run, laid out.

    Attributes:
        target: Score, table and start.
        method: The method, chosen if "auto" was asked for.
        n: Chains.
        context: What steps, outputs and monitors may use, for all chains.
        inside: Where the steps are taken.
        legs: All stages.
        tile: Chains in a tile.
        options: The settings of the call.
        pilot: What the pilot run found, if there was one.
        choice: What "auto" chose and what it will take, in a sentence; None if a method was given.
        notes: What is known before the run and worth saying in the certificate of the distribution.
        doubts: Reasons, known before the run, not to trust the distribution.
        checked: Evaluations a chain of a pilot run that only looked at the given step size.
    """

    target: Target
    method: Method[Any]
    n: int
    context: Context
    inside: Coordinates
    legs: Sequence[Leg]
    tile: int
    options: Options
    pilot: Pilot | None = None
    choice: str | None = None
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    checked: float = 0.0

    @property
    def steps(self) -> int:
        """Steps of a chain."""
        return self.legs[-1].end

    @cached_property
    def meets(self) -> bool:
        """Whether chains meet."""
        return any(leg.stages[0].meet is not None for leg in self.legs)

    @property
    def device(self) -> torch.device:
        """Where the chains live."""
        return self.context.like.device

    def tiles(self) -> list[Tile]:
        """All tiles, before their first step."""
        return cut(self.n, self.tile, self.options.seed, self.device)

    def common_generator(self) -> torch.Generator:
        """The random stream of what all chains do together."""
        return generator(self.options.seed, 0, self.device)

    def points(self, start: int, stop: int, stream: torch.Generator) -> Tensor:
        """The starting points of some chains."""
        return _starting_points(self.target, start, stop, stream, self.options.dtype)

    def probe(self) -> Tensor:
        """The starting points on which things are tried."""
        return self.points(0, min(self.n, PROBE), generator(self.options.seed, 1, self.device))

    def steps_context(self, tile: Tile) -> Context:
        """What the steps of a tile may use."""
        return self.inside.context.of_chains(tile.start, tile.stop, tile.usage)

    def output(self, tile: Tile, usage: Usage) -> Tensor:
        """The samples of a tile."""
        context = self.context.of_chains(tile.start, tile.stop, usage)
        return self.method.output(context, self.inside.lift(tile.state))

    def record(self, tile: Tile, step: int) -> None:
        """Put what the method monitors into the trace of a tile; it counts as no use."""
        context = self.context.of_chains(tile.start, tile.stop, Uncounted())
        tile.trace.record(step, self.method.monitor(context, self.inside.lift(tile.state)))

    def about(self) -> Mapping[str, Any]:
        """Settings and versions."""
        found = {} if self.pilot is None else {"step_size": self.pilot.step_size, "integrable": self.pilot.integrable}
        return {
            "casal": __version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
            "target": self.target.name,
            "constraint": repr(self.context.constraint),
            "decoder": type(self.context.decoder).__name__,
            "method": self.method.name,
            "settings": repr(self.method),
            "n": self.n,
            "steps": self.steps,
            "seed": self.options.seed,
            "tile": self.tile,
            "dtype": str(self.context.like.dtype),
            **found,
            **({} if self.choice is None else {"choice": self.choice}),
        }


def make_plan(target: Target, constraint: Constraint, method: Method[Any] | str, n: int, options: Options) -> Plan:
    """Check what was asked for on a few chains, choose what was left open, and lay out all stages.

    Raises:
        CasalError: Settings, shapes or sets that cannot work.
    """
    n, options = _check_numbers(n, options)
    _check_call(target, constraint, method, n, options)
    place = torch.device(options.device) if options.device is not None else _device_of(target)
    stream = generator(options.seed, 1, place)
    probe = _starting_points(target, 0, min(n, PROBE), stream, options.dtype)
    decoder = options.decoder or Identity()
    row_dtype = probe.dtype if options.compile else torch.float64
    context = Context(target, constraint, decoder.to(probe), probe[:0], row_dtype=row_dtype)
    _check_context(context, probe, options)

    def points(few: int, stream: torch.Generator) -> Tensor:
        return _starting_points(target, 0, few, stream, options.dtype)

    ready = settle(context, method, n, points, seed=options.seed, check=options.check)
    context, chosen = ready.context, ready.method
    if chosen.promises_distribution:
        constraint.check_measure(context.decoder.event(probe))
    inside = coordinates(context, chosen, decoder)
    legs, end = list[Leg](), 0
    for stages in _legs(chosen.plan(inside.context, n)):
        end += sum(len(stage.rows) for stage in stages)
        legs.append(Leg(stages, end))
    size = options.tile or even_size(n, tile_size(context.latent, context.decoder.event(probe)))
    return Plan(
        target=context.target,
        method=chosen,
        n=n,
        context=context,
        inside=inside,
        legs=legs,
        tile=min(size, n),
        options=options,
        pilot=ready.pilot,
        choice=ready.choice,
        notes=ready.notes,
        doubts=ready.doubts,
        checked=ready.checked,
    )


def _legs(stages: Sequence[Stage]) -> list[list[Stage]]:
    """Stages up to the next meeting."""
    number = itertools.accumulate(int(stage.meet is not None) for stage in stages)
    groups = itertools.groupby(zip(number, stages, strict=True), key=lambda pair: pair[0])
    return [[stage for _, stage in group] for _, group in groups]


def _device_of(target: Target) -> torch.device:
    return target.init.device if isinstance(target.init, Tensor) else torch.device("cpu")


# ------------------------------------------------------------------- what is refused before the first step


def _check_numbers(n: int, options: Options) -> tuple[int, Options]:
    """Counts as whole numbers."""
    given = {"seed": 0, "record_every": 0, "tile": 1, "threads": 1}
    values = {name: getattr(options, name) for name in given}
    whole: dict[str, Any] = {name: whole_number(v, name, given[name]) for name, v in values.items() if v is not None}
    return whole_number(n, "n", 1), options._replace(**whole)


def _check_call(target: Target, constraint: Constraint, method: Method[Any] | str, n: int, options: Options) -> None:
    """What ``casal.sample`` was handed, before anything is tried."""
    if not isinstance(constraint, Constraint):
        raise SettingError(f"constraint must be a casal set such as casal.Sphere(1.0), got {constraint!r}")
    if not isinstance(method, Method) and method != "auto":
        raise SettingError(f"method must be a casal method such as casal.CASAL(rho=10), or 'auto', got {method!r}")
    Measure.of(options.tol, options.units)
    if options.dtype is not None and not options.dtype.is_floating_point:
        raise DtypeError(f"chains are floating-point numbers, got dtype={options.dtype}")
    if options.decoder is not None and not isinstance(options.decoder, Decoder):
        got = type(options.decoder).__name__
        raise SettingError(f"decoder must be a casal decoder such as casal.Linear(A), got {got}")
    if options.compile and constraint.chains is not None:
        raise SettingError("compile=True needs a set that is common to all chains; leave it out")
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


def _starting_points(
    target: Target, start: int, stop: int, stream: torch.Generator, dtype: torch.dtype | None
) -> Tensor:
    n = stop - start
    if isinstance(target.init, Tensor):
        x = target.init[start:stop]
    else:
        x = target.init(n, stream)
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


def _check_context(context: Context, probe: Tensor, options: Options) -> None:
    """Try the score, the decoder and the projection on the first few starting points."""
    _check_preconditioner(context, probe)
    _check_score(context.target, probe)
    _check_potential(context.target, probe)
    decoded = context.decode(probe)
    context.constraint.validate(tuple(decoded.shape[1:]))
    _check_projection(context.constraint.take(slice(0, len(probe))), decoded.to(torch.float64), options)


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


def _check_score(target: Target, x: Tensor) -> None:
    score = target.score(x, target.table.t[0].to(x.device))
    if not isinstance(score, Tensor) or score.shape != x.shape:
        got = tuple(score.shape) if isinstance(score, Tensor) else type(score).__name__
        raise ShapeError(f"the gradient of {target.name} has shape {got} at points of shape {tuple(x.shape)}")
    if score.dtype != x.dtype or score.device != x.device:
        raise DtypeError(
            f"the gradient of {target.name} is {score.dtype} on {score.device}, the chains are {x.dtype} on "
            f"{x.device}; pass dtype= and device= to casal.sample, or cast inside the gradient"
        )
    if not bool(torch.isfinite(score).all()):
        lost = torch.nonzero(~torch.isfinite(score).flatten(1).all(1)).flatten().tolist()
        raise DivergedError(
            f"the gradient of {target.name} is not finite at {len(lost)} of the {len(x)} starting points tried",
            step=0,
            steps=len(target.table),
            chains=lost,
        )


def _check_potential(target: Target, x: Tensor) -> None:
    """Whether potential and gradient belong together: f(x + v) - f(x - v) is minus the integral of the score.

    The line goes along the score and is so short that f changes by about 2 DIFFERENCE on it. It says nothing where
    the score is not nearly constant on it, where f is not finite, and where f is too large for the change to be seen.
    """
    f = target.potential
    if f is None:
        return
    here = f(x)
    if not isinstance(here, Tensor) or here.numel() != len(x):
        got = tuple(here.shape) if isinstance(here, Tensor) else type(here).__name__
        raise ShapeError(
            f"the potential of {target.name} is {got} at points of shape {tuple(x.shape)}; give ({len(x)},)"
        )
    t = target.table.t[0].to(x.device)
    score = target.score(x, t).flatten(1).to(torch.float64)
    v = DIFFERENCE * score / score.square().sum(1, keepdim=True)
    ahead, behind = (x + sign * v.reshape(x.shape).to(x.dtype) for sign in (1.0, -1.0))
    upper, lower = (f(end).reshape(len(x)).to(torch.float64) for end in (ahead, behind))
    slopes = torch.stack([(target.score(end, t).flatten(1).to(torch.float64) * v).sum(1) for end in (ahead, behind)])
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
    onto = constraint.project(z)
    if onto.shape != z.shape:
        raise ShapeError(f"{constraint!r}.project returned {tuple(onto.shape)} for {tuple(z.shape)}")
    found = certify(constraint, onto, options.tol, options.units)
    if constraint.exact and not bool(found.feasible.all()):
        worst = int(found.violation.argmax())
        violation, missed = float(found.violation[worst]), float(found.excess[worst])
        raise ProjectionError(
            f"{constraint!r}.project leaves the set: violation {violation:.3g} > tol = {found.tolerance:g} at the "
            f"starting points ({found.worst} is missed by {missed:.3g}); "
            "fix the projection, declare it exact=False, raise tol, or give units="
        )
