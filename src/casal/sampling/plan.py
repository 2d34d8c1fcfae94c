"""The plan of a run: everything that is known before its first step. It can be pickled."""

from __future__ import annotations

import itertools
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from casal.checks import whole_number
from casal.constraints import Budget, Constraint
from casal.decoders import Decoder, Identity
from casal.errors import DivergedError, DtypeError, ProjectionError, SettingError, ShapeError
from casal.methods import Context, Method, Stage, Uncounted, Usage, choose
from casal.sampling.coordinates import Coordinates, coordinates
from casal.sampling.network import FEWEST_CHAINS, LOOK_CHAINS, NetworkLook, look_at_network
from casal.sampling.pilot import PILOT_CHAINS, Pilot, run_pilot
from casal.sampling.tiles import Tile, cut, even_size, generator, one_thread, tile_size
from casal.targets import Target, Tuning, fit_start, settled
from casal.version import __version__

PROBE = 2
"""Chains on which the score and the projection are tried."""

PILOT_STREAM, START_STREAM = 1 << 40, 1 << 41
"""Random streams of the pilot run, and of the draws by which the starting points are known; no tile comes so far."""

DIFFERENCE, DISAGREEMENT = 0.02, 0.2
"""Half the change of a potential over which it is compared with its gradient, and the share they may differ by."""

FAR_OFF = 10.0
"""Factor between a given step size and the one that a pilot run finds, from which on the given one is wrong."""

PILOT_EVALUATIONS, PILOT_SHARE = 80, 0.05
"""Evaluations of a pilot chain, about, and the share of the run's that a look at a given step size may take."""


class Options(NamedTuple):
    """The settings of ``casal.sample`` beyond target, set, method and n; see there."""

    decoder: Decoder | None = None
    seed: int = 0
    dtype: torch.dtype | None = None
    device: torch.device | str | None = None
    tol: float = 1e-8
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
    _check_context(context, probe, options.tol)
    pilot, notes = None, list[str]()
    open_settings, auto = target.tune, not isinstance(method, Method)
    promises = auto or (isinstance(method, Method) and method.promises_distribution)
    looks = target.table.static and promises and (auto or (options.check and _pilot_pays(len(target.table), n)))
    checked = 0.0
    if open_settings is not None or looks:
        pilot = look_ahead(context, n, options)
        wrong = not 1.0 / FAR_OFF <= pilot.ratio <= FAR_OFF
        if auto and wrong:
            open_settings = Tuning(step_size=True, preconditioner=False)
        if open_settings is None and not auto:
            checked = pilot.evaluations / n
        else:
            free, known = not isinstance(method, Method) or method.bounds_moves, Tuning(False, False)
            target = tuned(target, pilot, n, open_settings or known, free=free)
            context = context.replace(target=target)
        notes += _said(pilot, corrected=auto and wrong)
    if target.table.static and target.potential is not None:
        stream = generator(options.seed, START_STREAM, place)
        with one_thread():
            context = context.replace(start=fit_start(target.init, context.latent, n, stream))
    choice = None
    if not isinstance(method, Method):
        network = look_before(context, n, options) if target.denoise is not None and n >= FEWEST_CHAINS else None
        method, choice = choose(
            context,
            n,
            integrable=pilot is None or pilot.integrable or context.start is not None,
            erroneous=network.spread if network is not None and network.erroneous else None,
        )
        if network is not None:
            target = replace(target, init_evaluations=target.init_evaluations + network.evaluations / n)
            context = context.replace(target=target)
            notes += _heard(network)
    if method.promises_distribution:
        constraint.check_measure(context.decoder.event(probe))
    note = method.start_note(context)
    inside = coordinates(context, method, decoder)
    legs, end = list[Leg](), 0
    for stages in _legs(method.plan(inside.context, n)):
        end += sum(len(stage.rows) for stage in stages)
        legs.append(Leg(stages, end))
    size = options.tile or even_size(n, tile_size(context.latent, context.decoder.event(probe)))
    return Plan(
        target,
        method,
        n,
        context,
        inside,
        legs,
        min(size, n),
        options,
        pilot,
        choice,
        tuple(notes if note is None else [*notes, note]),
        _doubts(pilot, corrected=open_settings is not None),
        checked,
    )


def _pilot_pays(steps: int, n: int) -> bool:
    """Whether a look at the given step size takes few evaluations beside the run."""
    return PILOT_EVALUATIONS * min(n, PILOT_CHAINS) / n <= PILOT_SHARE * steps


def _said(pilot: Pilot, *, corrected: bool) -> list[str]:
    """What the pilot found that a reader of the result should know."""
    notes = []
    if corrected:
        notes.append(f"step_size was {_off(pilot.ratio)}; {pilot.free_step_size:.3g} was taken in its place")
    if not pilot.integrable:
        notes.append(
            "the density does not seem to have a finite integral off the set: nothing holds free chains back; "
            "the result depends on starting points near the set"
        )
    return notes


def _doubts(pilot: Pilot | None, *, corrected: bool) -> tuple[str, ...]:
    if pilot is None or corrected or 1.0 / FAR_OFF <= pilot.ratio <= FAR_OFF:
        return ()
    return (f"step_size is {_off(pilot.ratio)}: take step_size='auto' or {pilot.free_step_size:.3g}",)


def _off(ratio: float) -> str:
    return f"{ratio:.3g} times too large" if ratio > 1.0 else f"{1.0 / ratio:.3g} times too small"


def look_ahead(context: Context, n: int, options: Options) -> Pilot:
    """A pilot run on a fixed density: finds what is open, and compares a given step size with what it would choose."""
    few = min(n, PILOT_CHAINS)
    chains = torch.linspace(0, n - 1, few, dtype=torch.float64).round().long()
    stream = generator(options.seed, PILOT_STREAM, context.like.device)
    target = context.target
    if isinstance(target.init, Tensor):
        x = target.init[chains.to(target.init.device)].to(context.like)
    else:
        x = _starting_points(target, 0, few, stream, options.dtype)
    with torch.no_grad(), one_thread():
        return run_pilot(context, x, chains, target.tune, stream)


def look_before(context: Context, n: int, options: Options) -> NetworkLook:
    """Whether the denoiser of a model and its own sampler agree near the data, from a few samples."""
    stream = generator(options.seed, PILOT_STREAM, context.like.device)
    few = min(n, LOOK_CHAINS)
    x = _starting_points(context.target, 0, few, stream, options.dtype)
    with torch.no_grad():
        return look_at_network(context.replace(usage=Usage()), x, options.seed, stream)


def _heard(network: NetworkLook) -> list[str]:
    if not network.erroneous:
        return []
    return [
        f"the score at noise {network.level:.3g} has slope {network.slope:.2f} on the model's own samples, where 1 is "
        "right (casal.diagnostics.calibration): the chains move at a higher noise level"
    ]


def tuned(target: Target, pilot: Pilot, n: int, tune: Tuning, *, free: bool = False) -> Target:
    """The target with what the pilot found for the settings in ``tune``; all chains share its evaluations.

    Args:
        target: With or without open settings.
        pilot: What was found.
        n: Chains of the run.
        tune: What is to be replaced.
        free: Whether the method bounds its moves near the set by itself; see ``Pilot.step_sizes``.
    """
    size = pilot.step_sizes(len(target.table), free=free) if tune.step_size else None
    diagonal = pilot.preconditioner if tune.preconditioner else None
    spent = target.init_evaluations + pilot.evaluations / n
    return replace(settled(target, step_size=size, preconditioner=diagonal), init_evaluations=spent)


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
    if not options.tol >= 0:
        raise SettingError(f"tol must be >= 0, got {options.tol}")
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


def _check_context(context: Context, probe: Tensor, tol: float) -> None:
    """Try the score, the decoder and the projection on the first few starting points."""
    _check_preconditioner(context, probe)
    _check_score(context.target, probe)
    _check_potential(context.target, probe)
    decoded = context.decode(probe)
    context.constraint.validate(tuple(decoded.shape[1:]))
    _check_projection(context.constraint.take(slice(0, len(probe))), decoded.to(torch.float64), tol)


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


def _check_projection(constraint: Constraint, z: Tensor, tol: float) -> None:
    onto = constraint.project(z)
    if onto.shape != z.shape:
        raise ShapeError(f"{constraint!r}.project returned {tuple(onto.shape)} for {tuple(z.shape)}")
    worst = float(constraint.violation(onto).max())
    if constraint.exact and not worst <= tol:
        raise ProjectionError(
            f"{constraint!r}.project leaves the set: violation {worst:.3g} > tol = {tol:g} at the starting points; "
            "fix the projection, declare it exact=False, or raise tol"
        )
