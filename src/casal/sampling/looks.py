"""What is looked at and settled before a run: open settings, the density of the start, and the method of "auto".

A fixed density gets a pilot run (``pilot.py``) where its step is open or may be wrong. A diffusion or flow model gets a
look at its denoiser (``network.py``) where "auto" has to choose. What they find is said in the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from casal.methods import Context, Method, Usage, choose
from casal.sampling.network import FEWEST_CHAINS, NetworkLook, look_at_network, look_chains
from casal.sampling.pilot import PILOT_CHAINS, Pilot, run_pilot
from casal.sampling.tiles import generator, one_thread
from casal.targets import Target, Tuning, fit_start, settled

PILOT_STREAM, START_STREAM = 1 << 40, 1 << 41
"""Random streams of the looks, and of the draws by which the starting points are known; no tile comes so far."""

FAR_OFF = 10.0
"""Factor between a given step size and the one that a pilot run finds, from which on the given one is wrong."""

PILOT_EVALUATIONS, PILOT_SHARE = 80, 0.05
"""Evaluations of a pilot chain, about, and the share of the run's that a look at a given step size may take."""

Points: TypeAlias = Callable[[Tensor, torch.Generator], Tensor]
"""``points(chains, generator)``: the starting points of chains with these numbers (k,)."""


class Settled(NamedTuple):
    """A run with nothing left open.

    Attributes:
        context: Model, set and decoder; the target with its final table, the density of the start where it is known.
        method: The method, chosen if "auto" was asked for.
        pilot: What the pilot run found, if there was one.
        choice: What "auto" chose and what it will take, in a sentence; None if a method was given.
        notes: What is worth saying in the certificate of the distribution.
        doubts: Reasons not to trust the distribution.
        checked: Evaluations a chain of a pilot run that only looked at the given step size.
    """

    context: Context
    method: Method[Any]
    pilot: Pilot | None
    choice: str | None
    notes: tuple[str, ...]
    doubts: tuple[str, ...]
    checked: float


def settle(context: Context, method: Method[Any] | str, n: int, points: Points, *, seed: int, check: bool) -> Settled:
    """Look at the model where something is open or in doubt, and settle it.

    Args:
        context: Model, set and decoder.
        method: The method, or "auto".
        n: Chains.
        points: Starting points.
        seed: Of the run.
        check: Whether evaluations may be spent on a given step size of a named method.
    """
    given = method if isinstance(method, Method) else None
    context, pilot, corrected, notes, checked = _settle_steps(context, given, n, points, seed, check)
    if context.table.static and context.target.potential is not None and not _starts_apart(context.target):
        stream = generator(seed, START_STREAM, context.like.device)
        with one_thread():
            start = fit_start(context.target.init, context.latent, n, stream)
        context = context.replace(start=start)
    choice = None
    if given is None:
        network = _look_at_denoiser(context, n, points, seed)
        given, choice = choose(
            context,
            n,
            integrable=pilot is None or pilot.integrable or context.start is not None,
            erroneous=network.spread if network is not None and network.erroneous else None,
            uneven=network.spread if network is not None and network.uneven else None,
            gaussian=network is not None and network.gaussian,
        )
        if network is not None:
            context = _paid(context, network.evaluations / n)
            notes += _network_notes(network)
    doubts = _step_doubts(pilot, corrected)
    if given.adapts:
        notes, doubts = (), ()
    start_note = given.start_note(context)
    notes += (() if start_note is None else (start_note,)) + context.target.notes
    return Settled(context, given, pilot, choice, notes, doubts, checked)


# ------------------------------------------------------------------------------------------- steps of a fixed density


def _settle_steps(
    context: Context, method: Method[Any] | None, n: int, points: Points, seed: int, check: bool
) -> tuple[Context, Pilot | None, bool, tuple[str, ...], float]:
    """Fill in open settings, and look at a given step size; None for "auto", which replaces one that is far off.

    Returns:
        Context, pilot, whether the step size is that of the pilot, notes, and evaluations that were only a check.
    """
    target, auto = context.target, method is None
    promises = method is None or method.promises_distribution
    fixed = method is not None and not method.adapts
    looks = target.table.static and promises and (auto or (fixed and check and _pilot_pays(len(target.table), n)))
    looks = looks and not target.condition  # a few chains may miss the condition whose density is stiffest
    if target.tune is None and not looks:
        return context, None, False, (), 0.0
    pilot = look_ahead(context, n, points, seed)
    replaced = auto and _far_off(pilot)
    tune = Tuning(step_size=True, preconditioner=False) if replaced else target.tune
    notes = _pilot_notes(pilot, replaced)
    if tune is None:
        if auto:
            return _paid(context, pilot.evaluations / n), pilot, False, notes, 0.0
        return context, pilot, False, notes, pilot.evaluations / n
    free = method is None or method.bounds_moves
    size = pilot.step_sizes(len(target.table), free=free) if tune.step_size else None
    diagonal = pilot.preconditioner if tune.preconditioner else None
    tuned = context.replace(target=settled(target, step_size=size, preconditioner=diagonal))
    return _paid(tuned, pilot.evaluations / n), pilot, True, notes, 0.0


def _starts_apart(target: Target) -> bool:
    """Whether chains of different conditions may start from different densities, of which one fit says nothing."""
    return bool(target.condition) and (isinstance(target.init, Tensor) or target.conditional_init)


def _pilot_pays(steps: int, n: int) -> bool:
    """Whether a look at the given step size takes few evaluations beside the run."""
    return PILOT_EVALUATIONS * min(n, PILOT_CHAINS) / n <= PILOT_SHARE * steps


def look_ahead(context: Context, n: int, points: Points, seed: int) -> Pilot:
    """A pilot run: finds what is open, and compares a given step size with what it would choose."""
    few = min(n, PILOT_CHAINS)
    chains = torch.linspace(0, n - 1, few, dtype=torch.float64).round().long()
    stream = generator(seed, PILOT_STREAM, context.like.device)
    x = points(chains, stream)
    with torch.no_grad(), one_thread():
        return run_pilot(context, x, chains, context.target.tune, stream)


def _far_off(pilot: Pilot) -> bool:
    return not 1.0 / FAR_OFF <= pilot.ratio <= FAR_OFF


def _off(ratio: float) -> str:
    return f"{ratio:.3g} times too large" if ratio > 1.0 else f"{1.0 / ratio:.3g} times too small"


def _pilot_notes(pilot: Pilot, replaced: bool) -> tuple[str, ...]:
    """What the pilot found that a reader of the result should know."""
    notes = list[str]()
    if replaced:
        notes.append(f"step_size was {_off(pilot.ratio)}; {pilot.free_step_size:.3g} was taken in its place")
    if not pilot.integrable:
        notes.append(
            "the density does not seem to have a finite integral off the set: nothing holds free chains back; "
            "the result depends on starting points near the set"
        )
    return tuple(notes)


def _step_doubts(pilot: Pilot | None, corrected: bool) -> tuple[str, ...]:
    if pilot is None or corrected or not _far_off(pilot):
        return ()
    return (f"step_size is {_off(pilot.ratio)}: take step_size='auto' or {pilot.free_step_size:.3g}",)


# ------------------------------------------------------------------------------------------- a model with a denoiser


def _look_at_denoiser(context: Context, n: int, points: Points, seed: int) -> NetworkLook | None:
    """Whether the denoiser and the model's own sampler agree near the data; None if that cannot be seen."""
    if context.target.denoise is None or n < FEWEST_CHAINS:
        return None
    stream = generator(seed, PILOT_STREAM, context.like.device)
    few = look_chains(n, torch.Size(context.latent).numel())
    chains = torch.arange(few) if context.target.chains is None else torch.arange(few) * n // few
    x = points(chains, stream)
    with torch.no_grad():
        return look_at_network(context.take(chains).replace(usage=Usage()), x, seed, stream)


def _network_notes(network: NetworkLook) -> tuple[str, ...]:
    if not network.erroneous:
        if not network.uneven:
            return ()
        return (
            f"the derivative of the denoiser is not symmetric ({network.asymmetry:.2f} of its size, 0 is right), so it "
            "is not used to look ahead in many dimensions",
        )
    return (
        f"the score at noise {network.level:.3g} has slope {network.slope:.2f} on the model's own samples, where 1 is "
        "right (casal.diagnostics.calibration): the chains move at a higher noise level",
    )


def _paid(context: Context, evaluations: float) -> Context:
    """The same with more evaluations a chain spent before the run."""
    target: Target = context.target
    return context.replace(target=replace(target, init_evaluations=target.init_evaluations + evaluations))
