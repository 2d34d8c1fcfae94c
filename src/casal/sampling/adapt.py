"""What is measured and chosen before a run: open settings, the density of the start, and the method of "auto".

A fixed density gets a pilot run (``pilot.py``) where its step is open or may be wrong. A diffusion or flow model has
its denoiser tested where "auto" has to choose: a trained network is worst at small noise, and a method that moves clean
points by the denoiser at small noise then leaves the model's own distribution. The test draws a few samples by the
model's own table and calibrates the denoiser on them (``casal.diagnostics.calibration``). The result says what was
found.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from casal.diagnostics import calibration
from casal.methods import (
    HMC,
    LADDER_DIMENSION,
    RANGE,
    Method,
    Problem,
    Usage,
    centred,
    choose,
    data_floor,
    gaussian,
    inside,
    move,
    table_rows,
)
from casal.methods.matheron import SYMMETRIC, asymmetry
from casal.sampling.pilot import PILOT_CHAINS, Pilot, run_pilot
from casal.sampling.threads import one_thread
from casal.streams import stream as keyed
from casal.targets import Target, Tuning, fit_start, with_settings

FAR_OFF = 10.0
"""Factor between a given step size and the one that a pilot run finds, from which on the given one is wrong."""

PILOT_EVALUATIONS, PILOT_SHARE = 80, 0.05
"""Evaluations of a pilot chain, about, and the share of the run's that a check of a given step size may take."""

LOOKED, FAR = 16, (3.0, 30.0)
"""Starting points from which to look whether the density grows, and how many times as far from their mean as they are:
near enough that a density which holds its chains is seen to, and beyond modes that lie apart."""

CHECK_CHAINS, CHECK_NUMBERS, FEWEST_CHAINS = (32, 512), 1 << 14, 16
"""Samples that are drawn: at least and at most, and so many that they have about so many coordinates in all, over which
the calibration is a regression; and chains of a run below which none are drawn."""

Points: TypeAlias = Callable[[Tensor, torch.Generator], Tensor]
"""``points(chains, generator)``: the starting points of chains with these numbers (k,)."""


class Adapted(NamedTuple):
    """A run with nothing left open.

    Attributes:
        problem: Model, set and decoder; the target with its final table, the density of the start where it is known.
        method: The method, chosen if "auto" was asked for.
        pilot: What the pilot run found, if there was one.
        choice: What "auto" chose and what it will take, in a sentence; None if a method was given.
        notes: What is worth saying in the certificate of the distribution.
        objections: Reasons not to trust the distribution.
        checked: Evaluations a chain of a pilot run that only looked at the given step size.
    """

    problem: Problem
    method: Method[Any]
    pilot: Pilot | None
    choice: str | None
    notes: tuple[str, ...]
    objections: tuple[str, ...]
    checked: float


def adapt(problem: Problem, method: Method[Any] | str, n: int, points: Points, *, seed: int, check: bool) -> Adapted:
    """Measure what is open or uncertain, and choose.

    Args:
        problem: Model, set and decoder.
        method: The method, or "auto".
        n: Chains.
        points: Starting points.
        seed: Of the run.
        check: Whether evaluations may be spent on a given step size of a named method.
    """
    if problem.table.static and problem.target.potential is not None and not _starts_apart(problem.target):
        stream = keyed(seed, "density of the start", device=problem.like.device)
        with one_thread():
            start = fit_start(problem.target.init, problem.latent, n, stream)
        problem = problem.replace(start=start)
    given, choice = method if isinstance(method, Method) else None, None
    notes, objections = list[str](), list[str]()
    if given is None and problem.table.static:
        probe = problem.replace(usage=Usage())
        early = inside(probe, n, points(_some(n), keyed(seed, "pilot", device=problem.like.device)))
        if early is not None:
            given, choice = early
            problem = _paid(problem, probe.usage.scores / n)
    problem, pilot, checked = _adapt_steps(problem, given, n, points, seed, check, notes, objections)
    if given is None:
        inexact, told, evaluations = _check_denoiser(problem, n, points, seed)
        problem = _paid(problem, evaluations / n)
        notes += [told] if told else []
        given, choice = choose(
            problem,
            n,
            integrable=pilot is None or pilot.integrable,
            undefined=0.0 if pilot is None else pilot.undefined,
            inexact=inexact,
        )
    if given.adapts:
        notes, objections = [], []
    if choice is not None and _grows(problem, n, points, seed) if pilot is None else pilot.outward:
        notes.append(
            "the density grows without bound off the set, so that unconstrained chains run away: is the sign right, f "
            "= -log p in casal.energy and its gradient in casal.langevin?"
        )
    start_note = given.start_note(problem)
    notes += [] if start_note is None else [start_note]
    return Adapted(problem, given, pilot, choice, (*notes, *problem.target.notes), tuple(objections), checked)


def _some(n: int) -> Tensor:
    """Numbers of the chains of a pilot run, among n."""
    return torch.linspace(0, n - 1, min(n, PILOT_CHAINS), dtype=torch.float64).round().long()


def _paid(problem: Problem, evaluations: float) -> Problem:
    """The same with more evaluations a chain spent before the run."""
    target: Target = problem.target
    return problem.replace(target=replace(target, init_evaluations=target.init_evaluations + evaluations))


# ------------------------------------------------------------------------------------------- steps of a fixed density


def _adapt_steps(
    problem: Problem,
    method: Method[Any] | None,
    n: int,
    points: Points,
    seed: int,
    check: bool,
    notes: list[str],
    objections: list[str],
) -> tuple[Problem, Pilot | None, float]:
    """Fill in open settings, and check a given step size; None for "auto", which replaces one that is far off.

    Returns:
        Problem, pilot, and evaluations a chain that were only a check; notes and objections are added to the lists.
    """
    target, auto, steps = problem.target, method is None, len(problem.table)
    tune = target.tune
    if method is not None and method.adapts:  # it finds its own steps, and asks the density inside the set only
        if tune is not None:
            target = with_settings(target, step_size=1.0 if tune.step_size else None)
        return problem.replace(target=target), None, 0.0
    pays = PILOT_EVALUATIONS * min(n, PILOT_CHAINS) / n <= PILOT_SHARE * steps
    checks = target.table.static and (auto or (method is not None and method.promises_distribution and check and pays))
    checks = checks and not target.condition  # a few chains may miss the condition whose density is stiffest
    if tune is None and not checks:
        return problem, None, 0.0
    pilot = pilot_run(problem, n, points, seed)
    found, ratio = pilot.free_step_size, pilot.ratio
    if not 1.0 / FAR_OFF <= ratio <= FAR_OFF:
        off = f"{ratio:.3g} times too large" if ratio > 1.0 else f"{1.0 / ratio:.3g} times too small"
        if auto:
            tune = Tuning(step_size=True, preconditioner=False)
            notes.append(f"step_size was {off}; {found:.3g} was used instead")
        elif tune is None:
            objections.append(f"step_size is {off}: use step_size='auto' or step_size={found:.3g}")
    if not pilot.integrable and not pilot.outward:
        notes.append(
            "the density seems to have no finite integral off the set: unconstrained chains run away, and the result "
            "depends on starting points near the set"
        )
    if pilot.undefined:
        inside = "use casal.HMC(), whose chains stay in the set, or " if HMC().fits(problem) else ""
        lost = f"the density of {target.name} is not a number at {100 * pilot.undefined:.3g} % of the points that"
        objections.append(f"{lost} unconstrained chains visit: {inside}let f be finite off the set too")
    spent = pilot.evaluations / n
    if tune is not None:
        free = method is None or method.bounds_moves
        size = pilot.step_sizes(steps, free=free) if tune.step_size else None
        diagonal = pilot.preconditioner if tune.preconditioner else None
        problem = problem.replace(target=with_settings(target, step_size=size, preconditioner=diagonal))
    elif not auto:
        return problem, pilot, spent
    return _paid(problem, spent), pilot, 0.0


def _starts_apart(target: Target) -> bool:
    """Whether chains of different conditions may start from different densities, of which one fit says nothing."""
    return bool(target.condition) and (isinstance(target.init, Tensor) or target.conditional_init)


def pilot_run(problem: Problem, n: int, points: Points, seed: int) -> Pilot:
    """A pilot run: finds what is open, and compares a given step size with what it would choose."""
    chains, stream = _some(n), keyed(seed, "pilot", device=problem.like.device)
    x = points(chains, stream)
    with torch.no_grad(), one_thread():
        return run_pilot(problem, x, chains, problem.target.tune, stream)


def _grows(problem: Problem, n: int, points: Points, seed: int) -> bool:
    """Whether the score of a fixed density pushes away from the mean of the starting points, all around and far out.

    For methods without a pilot run, whose chains stay in the set. Nothing is asked off the set if all starting points
    lie in it: the density may not be known elsewhere, whatever it does there instead.
    """
    if not problem.table.static or problem.chains is not None or problem.target.condition or n < FEWEST_CHAINS:
        return False
    chains = torch.linspace(0, n - 1, LOOKED, dtype=torch.float64).round().long()
    x = points(chains, keyed(seed, "pilot", device=problem.like.device))
    away, probe = x - x.mean(0), problem.replace(usage=Usage())
    if not bool((probe.constraint.violation(probe.decode(x).to(torch.float64)) > 0.0).any()):
        return False
    try:
        with torch.no_grad(), one_thread():
            far = [probe.score(x.mean(0) + k * away, problem.table.t[0].to(x.device)) for k in FAR]
    except Exception:
        return False
    return all(bool(((away * score).flatten(1).sum(1) > 0.0).all()) for score in far)


# ------------------------------------------------------------------------------------------- a model with a denoiser


def _check_denoiser(problem: Problem, n: int, points: Points, seed: int) -> tuple[float | None, str, int]:
    """Whether the denoiser and the model's own sampler agree near the data.

    A few samples are drawn by the model's own table, and the denoiser is calibrated on them. It is not exact if its
    score is wrong at a noise level that the moves of a ladder would use, or if its derivative is no covariance.

    Returns:
        The largest spread of a coordinate of the samples if it is not exact, or else None; a sentence about what is
        wrong, or nothing; and evaluations of the network, each for one chain.
    """
    if problem.target.denoise is None or n < FEWEST_CHAINS:
        return None, "", 0
    stream, size = keyed(seed, "pilot", device=problem.like.device), math.prod(problem.latent)
    least, most = CHECK_CHAINS
    few = min(n, max(least, min(most, CHECK_NUMBERS // size)))
    chains = torch.arange(few) if problem.target.chains is None else torch.arange(few) * n // few
    with torch.no_grad():
        own = problem.take(chains).replace(usage=Usage())
        x = points(chains, stream)
        for row in table_rows(own):
            x = move(own, x, own.score(x, row.t), row, gaussian(own, len(x), stream))
        floor, _ = data_floor(own, x, stream)
        spread = _spread(x, own.groups())
        found = calibration(own.target, x, seed=seed)
        used = found.levels >= RANGE * floor  # reverse processes from small noise end below the floor
        uneven = asymmetry(own, x, spread, stream) if size >= LADDER_DIMENSION else math.nan  # no method uses it there
    spent = own.usage.scores + found.evaluations * len(x)
    if bool((found.erroneous & used).any()):
        worst = int(torch.where(used, found.slope, torch.inf).argmin())
        return (
            spread,
            f"the score at noise {float(found.levels[worst]):.3g} has slope {float(found.slope[worst]):.2f} on the "
            "model's own samples, where 1 is right (casal.diagnostics.calibration): the network is not exact there",
            spent,
        )
    if uneven > SYMMETRIC:
        return (
            spread,
            f"the derivative of the denoiser is not symmetric ({uneven:.2f} of its size, 0 is right): the network is "
            "not exact",
            spent,
        )
    return None, "", spent


def _spread(x: Tensor, labels: Tensor | None) -> float:
    """Largest standard deviation of a coordinate, within groups of the same distribution if chains differ."""
    if labels is None or len(labels.unique()) > len(x) // 2:
        return float(x.std(0).max())
    labels = labels.to(x.device)
    free = 1.0 - len(labels.unique()) / len(x)
    return float((centred(x.flatten(1), labels).square().mean(0) / free).max().sqrt())
