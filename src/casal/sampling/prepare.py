"""From a call to a run before its first step: check, measure, choose, and cut the chains into batches."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from casal.checks import Event
from casal.constraints import Box, Constraint, geometry
from casal.devices import DEVICE_NUMBERS
from casal.errors import CasalWarning, SettingError
from casal.methods import Each, Method, Problem, Together, Unconstrained, Uncounted, Usage, few_chains
from casal.sampling.adapt import adapt
from casal.sampling.coordinates import Coordinates, coordinates
from casal.sampling.inspect import check_call, method_of, place_of, starting_points, try_out, with_start
from casal.sampling.pilot import Pilot
from casal.sampling.run import Options
from casal.store import stored_batch
from casal.streams import stream
from casal.targets import Target, first_order

FIRST_ORDER_NOTE = (
    "the multistep rule of the model's scheduler was replaced by steps of first order between the same noise levels, "
    "which this method needs"
)

BATCH_NUMBERS = 1 << 17
"""Numbers in one tensor of a batch: 0.5 MB of float32, so that a state of a few of them stays near the L2 cache."""

LARGEST_BATCH = 4096

NETWORK_CHAINS, NETWORK_NUMBERS = 64, 1 << 14
"""Chains in a call of a network, and numbers of its argument, beyond which a larger batch gains nothing. A UNet of 0.9
million parameters on 16 x 16 fields takes 1.8 times as long for a sample in a batch of 4 as in one of 64, and 1.2 times
in one of 16; 256 are no better than 64."""


@dataclass(frozen=True)
class Batch:
    """Some chains of a run: their number, the first one, and the one after the last."""

    index: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def chains(self) -> slice:
        """Their place among all chains."""
        return slice(self.start, self.stop)


def cut(n: int, size: int) -> list[Batch]:
    """All batches of n chains."""
    return [Batch(k, start, min(start + size, n)) for k, start in enumerate(range(0, n, size))]


def batch_size(n: int, problem: Problem, event: Event) -> int:
    """Chains in a batch, from the sizes of events, latent and decoded, and the device; a network gets what it wants.

    Several batches are made an even number of nearly equal ones, many (more than 32) a multiple of eight, so that
    threads end together.
    """
    on_host = problem.like.device.type == "cpu"
    numbers, most = (BATCH_NUMBERS, LARGEST_BATCH) if on_host else (DEVICE_NUMBERS, DEVICE_NUMBERS)
    latent = torch.Size(problem.latent).numel()
    size = min(most, 1 << max(0, (numbers // max(1, latent, torch.Size(event).numel())).bit_length() - 1))
    if not problem.table.static:
        size = max(size, min(NETWORK_CHAINS, NETWORK_NUMBERS // max(1, latent)))
    count = -(-n // size)
    unit = 1 if count <= 1 else 2 if count <= 32 else 8
    return -(-n // (unit * -(-count // unit)))


# ------------------------------------------------------------------------------------------------ before the first step


@dataclass(frozen=True, eq=False)
class Prepared:
    """A run before its first step. It can be pickled, and goes to every worker once.

    Attributes:
        target: Score, table and start.
        method: The method, chosen if "auto" was asked for.
        n: Chains.
        constraint: The set C that the samples lie in.
        problem: What steps and monitors may use, for all chains. Behind an affine decoder z = A x + c it holds A and
            the set C - c, so that methods see linear decoders only.
        inside: Where the steps are taken.
        control: The first shared numbers of the method.
        steps: Steps of a chain in the whole run.
        batch: Chains in a batch.
        options: The settings of the call.
        points: The starting points of some chains.
        offset: c in float64, broadcastable to an event; None for zero.
        pilot: What the pilot run found, if there was one.
        choice: What "auto" chose and what it will take, in a sentence; None if a method was given.
        notes: What is known before the run and worth saying in the certificate of the distribution.
        objections: Reasons, known before the run, not to trust the distribution.
        checked: Evaluations a chain of a pilot run that only tested the given step size.
    """

    target: Target
    method: Method[Any]
    n: int
    constraint: Constraint
    problem: Problem
    inside: Coordinates
    control: Any
    steps: int
    batch: int
    options: Options
    points: Callable[[Target, int, int, torch.Generator], Tensor]
    offset: Tensor | None = None
    pilot: Pilot | None = None
    choice: str | None = None
    notes: tuple[str, ...] = ()
    objections: tuple[str, ...] = ()
    checked: float = 0.0

    @property
    def device(self) -> torch.device:
        """Where the chains live."""
        return self.problem.like.device

    @property
    def batches(self) -> list[Batch]:
        """All batches."""
        return cut(self.n, self.batch)

    @property
    def undecoded(self) -> bool:
        """Whether the samples are the points that move: there is no decoder, or it does nothing."""
        return self.problem.identity and self.offset is None

    def stream(self, *key: int | str) -> torch.Generator:
        """A random stream of the run."""
        return stream(self.options.seed, *key, device=self.device)

    def stage(self, control: Any, number: int) -> Each | Together | None:
        """Stage ``number`` of the run; None after the last."""
        return self.method.next(self.inside.problem, control, number)

    def independent_stages(self) -> list[Each] | None:
        """All stages, where chains never exchange anything; None where they do."""
        found = list[Each]()
        while (stage := self.stage(self.control, len(found))) is not None:
            if isinstance(stage, Together):
                return None
            found.append(stage)
        return found

    def starts(self, chains: Tensor) -> Tensor:
        """The starting points of the chains with these numbers, drawn again: streams have keys."""
        found = list[Tensor]()
        number, place = torch.unique(chains.cpu(), return_inverse=True)
        for batch in self.batches:
            own = number[(number >= batch.start) & (number < batch.stop)] - batch.start
            if len(own):
                x = self.points(self.target, batch.start, batch.stop, self.stream("start", batch.index))
                found.append(x[own.to(x.device)])
        return torch.cat(found)[place.to(self.device)]

    def start(self, batch: Batch, usage: Usage) -> Any:
        """The first state of a batch."""
        generator = self.stream("start", batch.index)
        x = self.points(self.target, batch.start, batch.stop, generator)
        problem = self.inside.problem.of_chains(batch.start, batch.stop, usage)
        state = self.method.start(problem, x, generator)
        return type(state)(*(part if part.ndim else part.cpu() for part in state))

    def samples(self, batch: Batch, state: Any, usage: Usage) -> Tensor:
        """The samples of a batch: what the method returns, plus the offset of the decoder.

        What that sum rounds away is mended by the projection onto C itself.
        """
        problem = self.problem.of_chains(batch.start, batch.stop, usage)
        z = self.method.samples(problem, self.inside.lift(state))
        if self.offset is None:
            return z
        z = z.to(torch.float64) + self.offset.to(z.device)
        if not self.method.strict:
            return z
        usage.add_projections(len(z))
        return self.constraint.take(batch.chains).project(z, warm=z)

    def gap(self, state: Any, samples: Tensor) -> Tensor:
        """|z - decode(x)| of samples z with latents x, (n,) float64; zero without a decoder."""
        x = state[0]
        if self.undecoded:
            return samples.new_zeros(len(samples), dtype=torch.float64)
        z = samples if self.offset is None else samples - self.offset.to(samples.device)
        parts = [z[some] - self.problem.decode(x[some]).to(z) for some in few_chains(x, z)]
        return torch.cat([torch.linalg.vector_norm(part.flatten(1), dim=1) for part in parts]).to(torch.float64)

    def monitor(self, batch: Batch, state: Any) -> Mapping[str, Tensor]:
        """What the method monitors of a batch; it counts as no use."""
        problem = self.problem.of_chains(batch.start, batch.stop, Uncounted())
        return self.method.monitor(problem, self.inside.lift(state))


def prepare(
    target: Target, constraint: Constraint | None, method: Method[Any] | str, n: int, options: Options
) -> Prepared:
    """Check what was asked for on a few chains, choose what was left open, and work out the first shared numbers.

    Raises:
        CasalError: Settings, shapes or sets that cannot work.
    """
    if constraint is None:  # the model alone
        constraint, method = Box(-math.inf, math.inf), Unconstrained() if method == "auto" else method
    method = method_of(method) or "auto"
    if isinstance(target, Target) and isinstance(constraint, Constraint):
        target = with_start(target, constraint, n, options)
    check_call(target, constraint, method, n, options)
    target = target.on(place_of(target, options))
    given, how = target, options.run
    if not (isinstance(method, Method) and method.remembers):
        target = first_order(target)
    tried = try_out(target, constraint, method, n, options)
    if tried.clipped is not None:
        warnings.warn(tried.clipped, CasalWarning, stacklevel=3)

    def points(chains: Tensor, generator: torch.Generator) -> Tensor:
        init = target.init
        some = replace(target.take(chains), init=init[chains.to(init.device)] if isinstance(init, Tensor) else init)
        return starting_points(some, 0, len(chains), generator, how.dtype)

    ready = adapt(tried.problem, method, n, points, seed=options.seed, check=bool(options.check))
    problem, chosen = ready.problem, ready.method
    if chosen.promises_distribution:
        geometry.check_dimensions(constraint, tried.event)
    inside = coordinates(problem, chosen, tried.decoder)
    control = chosen.control(inside.problem, n)
    steps = chosen.steps(inside.problem, control)
    if how.snapshots > steps:
        raise SettingError(f"snapshots = {how.snapshots} steps apart, but the run has {steps}; give a smaller number")
    stored = None if how.store is None or how.batch is not None else stored_batch(how.store, n)
    draws = getattr(control, "draws", 1)  # of a chain: a batch has all of them
    wanted = how.batch or stored or draws * batch_size(-(-n // draws), problem, tried.event)
    return Prepared(
        target=problem.target,
        method=chosen,
        n=n,
        constraint=constraint,
        problem=problem,
        inside=inside,
        control=control,
        steps=steps,
        batch=min(draws * -(-wanted // draws), n),
        options=options,
        points=partial(starting_points, dtype=how.dtype),
        offset=tried.offset,
        pilot=ready.pilot,
        choice=ready.choice,
        notes=ready.notes
        + ((FIRST_ORDER_NOTE,) if target is not given else ())
        + (() if tried.clipped is None else (tried.clipped,)),
        objections=ready.objections,
        checked=ready.checked,
    )
