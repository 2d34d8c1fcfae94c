"""The plan of a run: everything that is known before its first step. It can be pickled."""

from __future__ import annotations

import itertools
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from casal import __version__
from casal.checks import Event
from casal.constraints import Constraint
from casal.errors import SettingError
from casal.methods import Context, Method, Stage, Uncounted, Usage, few_chains
from casal.sampling.coordinates import Coordinates, coordinates
from casal.sampling.first_calls import (
    PROBE,
    WHOLE_NOTE,
    Options,
    all_chains_only,
    check_call,
    check_numbers,
    check_whole,
    place_of,
    starting_points,
    try_out,
    try_schedule,
)
from casal.sampling.function_code import CodeParts
from casal.sampling.looks import settle
from casal.sampling.pilot import Pilot
from casal.sampling.tiles import Tile, cut, even_size, generator, network_batch, tile_size
from casal.targets import Target, first_order

__all__ = ["Leg", "Options", "Plan", "make_plan"]


FIRST_ORDER_NOTE = (
    "the steps of the model look back at earlier estimates; this method took steps of first order between the same "
    "noise levels instead"
)


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
        constraint: The set C that the samples lie in.
        context: What steps and monitors may use, for all chains. Behind an affine decoder z = A x + c it holds A and
            the set C - c, so that methods see linear decoders only.
        offset: c in float64, broadcastable to an event; None for zero.
        inside: Where the steps are taken.
        legs: All stages.
        tile: Chains in a tile.
        options: The settings of the call.
        pilot: What the pilot run found, if there was one.
        choice: What "auto" chose and what it will take, in a sentence; None if a method was given.
        notes: What is known before the run and worth saying in the certificate of the distribution.
        doubts: Reasons, known before the run, not to trust the distribution.
        checked: Evaluations a chain of a pilot run that only looked at the given step size.
        whole: Whether model, decoder and set may be called with all n chains only, one row a chain in their order.
    """

    target: Target
    method: Method[Any]
    n: int
    constraint: Constraint
    context: Context
    inside: Coordinates
    legs: Sequence[Leg]
    tile: int
    options: Options
    offset: Tensor | None = None
    pilot: Pilot | None = None
    choice: str | None = None
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    checked: float = 0.0
    whole: bool = False

    @property
    def steps(self) -> int:
        """Steps of a chain."""
        return self.legs[-1].end

    @cached_property
    def meets(self) -> bool:
        """Whether chains meet."""
        return any(leg.stages[0].meet is not None for leg in self.legs)

    @property
    def undecoded(self) -> bool:
        """Whether the samples are the points that move: there is no decoder, or it does nothing."""
        return self.context.identity and self.offset is None

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
        return starting_points(self.target, start, stop, stream, self.options.dtype)

    def probe(self) -> Tensor:
        """The starting points on which things are tried: a few, or those of all chains if the run is ``whole``."""
        few = self.n if self.whole else min(self.n, PROBE)
        return self.points(0, few, generator(self.options.seed, 1, self.device))

    def steps_context(self, tile: Tile) -> Context:
        """What the steps of a tile may use."""
        return self.inside.context.of_chains(tile.start, tile.stop, tile.usage)

    def context_now(self, context: Context, tile: Tile) -> Context:
        """The context of the next step of a tile: with the set that is in force, where sets change along the run."""
        sets = self.options.sets
        if sets is None:
            return context
        return context.replace(constraint=sets.at(tile.steps / self.steps).take(slice(tile.start, tile.stop)))

    def output(self, tile: Tile, usage: Usage) -> Tensor:
        """The samples of a tile: what the method returns, plus the offset of the decoder.

        What that sum rounds away is mended by the projection onto C itself.
        """
        context = self.context.of_chains(tile.start, tile.stop, usage)
        z = self.method.output(context, self.inside.lift(tile.state))
        if self.offset is None:
            return z
        z = z.to(torch.float64) + self.offset.to(z.device)
        if not self.method.strict:
            return z
        usage.add_projections(len(z))
        return self.constraint.take(slice(tile.start, tile.stop)).project(z, warm=z)

    def gap(self, state: Any, samples: Tensor) -> Tensor:
        """|z - decode(x)| of samples z with latents x, (n,) float64; zero without a decoder."""
        x = state[0]
        if self.undecoded:
            return samples.new_zeros(len(samples), dtype=torch.float64)
        z = samples if self.offset is None else samples - self.offset.to(samples.device)
        parts = [z[some] - self.context.decode(x[some]).to(z) for some in few_chains(x, z)]
        return torch.cat([torch.linalg.vector_norm(part.flatten(1), dim=1) for part in parts]).to(torch.float64)

    def record(self, tile: Tile, step: int) -> None:
        """Put what the method monitors into the trace of a tile; it counts as no use."""
        context = self.context.of_chains(tile.start, tile.stop, Uncounted())
        tile.trace.record(step, self.method.monitor(context, self.inside.lift(tile.state)))

    def _condition(self) -> str:
        """Names and shapes of the condition."""
        return ", ".join(f"{name} {tuple(value.shape)}" for name, value in self.target.condition.items())

    def about(self) -> Mapping[str, Any]:
        """Settings and versions."""
        found = {} if self.pilot is None else {"step_size": self.pilot.step_size, "integrable": self.pilot.integrable}
        return {
            "casal": __version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
            "target": self.target.name,
            **({"condition": self._condition()} if self.target.condition else {}),
            "constraint": repr(self.constraint),
            "decoder": type(self.options.decoder).__name__ if self.options.decoder is not None else "Identity",
            "method": self.method.name,
            "settings": repr(self.method),
            "n": self.n,
            "steps": self.steps,
            "seed": self.options.seed,
            "tile": self.tile,
            "dtype": str(self.context.like.dtype),
            **found,
            **({} if self.choice is None else {"choice": self.choice}),
            **({} if self.options.sets is None else {"schedule": repr(self.options.sets)}),
        }


def make_plan(target: Target, constraint: Constraint, method: Method[Any] | str, n: int, options: Options) -> Plan:
    """Check what was asked for on a few chains, choose what was left open, and lay out all stages.

    Raises:
        CasalError: Settings, shapes or sets that cannot work.
    """
    n, options = check_numbers(n, options)
    check_call(target, constraint, method, n, options)
    target = target.on(place_of(target, options))
    given = target
    if not (isinstance(method, Method) and method.remembers):
        target = first_order(target)
    tried = try_out(target, constraint, n, options)
    context = tried.context
    if tried.whole:
        options = check_whole(tried, method, n, options)
        context = context.replace(target=all_chains_only(target, n))

    def points(chains: Tensor, stream: torch.Generator) -> Tensor:
        given = target.init
        some = replace(target.take(chains), init=given[chains.to(given.device)] if isinstance(given, Tensor) else given)
        return starting_points(some, 0, len(chains), stream, options.dtype)

    ready = settle(context, method, n, points, seed=options.seed, check=options.check is not False)
    context, chosen = ready.context, ready.method
    if chosen.promises_distribution:
        constraint.check_measure(tried.event)
    inside = coordinates(context, chosen, tried.decoder)
    if options.sets is not None:
        if context.constraint is not constraint:
            raise SettingError("casal.Scheduled needs the sets as they are given; take a decoder without an offset")
        few = points(torch.arange(min(n, PROBE)), generator(options.seed, 1, context.like.device))
        try_schedule(options.sets, context, few, options)
        inside = Coordinates(context)
    legs, end = list[Leg](), 0
    for stages in _legs(chosen.plan(inside.context, n)):
        end += sum(len(stage.rows) for stage in stages)
        legs.append(Leg(stages, end))
    if options.snapshots > end:
        raise SettingError(f"snapshots = {options.snapshots} steps apart, but the run has {end}; give a smaller number")
    size = options.tile or options.stored_tile or even_size(n, _tile(context, tried.event))
    return Plan(
        target=context.target,
        method=chosen,
        n=n,
        constraint=constraint,
        context=context,
        inside=inside,
        legs=legs,
        tile=min(size, n),
        options=options,
        offset=tried.offset,
        pilot=ready.pilot,
        choice=ready.choice,
        notes=ready.notes
        + ((WHOLE_NOTE,) if tried.whole else ())
        + ((FIRST_ORDER_NOTE,) if target is not given else ()),
        doubts=ready.doubts,
        checked=ready.checked,
        whole=tried.whole,
    )


def _tile(context: Context, event: Event) -> int:
    """Chains in a tile: by the size of events, and by the model. A network gets the batch that it wants."""
    size, wanted = tile_size(context.latent, event, device=context.like.device), network_batch(context.latent)
    if size >= wanted:
        return size
    model = CodeParts([context.target.score, context.target.denoise], values=False)
    return wanted if model.parameters else size


def _legs(stages: Sequence[Stage]) -> list[list[Stage]]:
    """Stages up to the next meeting."""
    number = itertools.accumulate(int(stage.meet is not None) for stage in stages)
    groups = itertools.groupby(zip(number, stages, strict=True), key=lambda pair: pair[0])
    return [[stage for _, stage in group] for _, group in groups]
