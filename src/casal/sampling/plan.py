"""The plan of a run: everything that is known before its first step. It can be pickled."""

from __future__ import annotations

import itertools
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from casal.constraints import Constraint
from casal.decoders import Identity
from casal.methods import Context, Method, Stage, Uncounted, Usage
from casal.sampling.coordinates import Coordinates, coordinates
from casal.sampling.first_calls import (
    PROBE,
    WHOLE_NOTE,
    Options,
    all_chains_only,
    check_call,
    check_numbers,
    check_whole,
    starting_points,
    try_out,
)
from casal.sampling.looks import settle
from casal.sampling.pilot import Pilot
from casal.sampling.tiles import Tile, cut, even_size, generator, tile_size
from casal.targets import Target
from casal.version import __version__

__all__ = ["Leg", "Options", "Plan", "make_plan"]


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
        whole: Whether model, decoder and set may be called with all n chains only, one row a chain in their order.
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
    n, options = check_numbers(n, options)
    check_call(target, constraint, method, n, options)
    tried = try_out(target, constraint, n, options)
    context = tried.context
    if tried.whole:
        options = check_whole(tried, method, n, options)
        context = context.replace(target=all_chains_only(target, n))

    def points(few: int, stream: torch.Generator) -> Tensor:
        return starting_points(target, 0, few, stream, options.dtype)

    ready = settle(context, method, n, points, seed=options.seed, check=options.check is not False)
    context, chosen = ready.context, ready.method
    if chosen.promises_distribution:
        constraint.check_measure(tried.event)
    inside = coordinates(context, chosen, options.decoder or Identity())
    legs, end = list[Leg](), 0
    for stages in _legs(chosen.plan(inside.context, n)):
        end += sum(len(stage.rows) for stage in stages)
        legs.append(Leg(stages, end))
    size = options.tile or even_size(n, tile_size(context.latent, tried.event))
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
        notes=ready.notes + ((WHOLE_NOTE,) if tried.whole else ()),
        doubts=ready.doubts,
        checked=ready.checked,
        whole=tried.whole,
    )


def _legs(stages: Sequence[Stage]) -> list[list[Stage]]:
    """Stages up to the next meeting."""
    number = itertools.accumulate(int(stage.meet is not None) for stage in stages)
    groups = itertools.groupby(zip(number, stages, strict=True), key=lambda pair: pair[0])
    return [[stage for _, stage in group] for _, group in groups]
