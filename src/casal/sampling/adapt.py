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
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from casal.diagnostics import calibration
from casal.methods import (
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
from casal.sampling.pilot import PILOT_CHAINS, Pilot, run_pilot
from casal.sampling.threads import one_thread
from casal.streams import stream as keyed
from casal.targets import Target, Tuning, fit_start, with_settings

FAR_OFF = 10.0
"""Factor between a given step size and the one that a pilot run finds, from which on the given one is wrong."""

PILOT_EVALUATIONS, PILOT_SHARE = 80, 0.05
"""Evaluations of a pilot chain, about, and the share of the run's that a look at a given step size may take."""

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
    if given is None:
        probe, stream = problem.replace(usage=Usage()), keyed(seed, "pilot", device=problem.like.device)
        chains = torch.linspace(0, n - 1, min(n, PILOT_CHAINS), dtype=torch.float64).round().long()
        early = inside(probe, n, points(chains, stream)) if problem.table.static else None
        if early is not None:
            given, choice = early
            problem = _paid(problem, probe.usage.scores / n)
    problem, pilot, corrected, notes, checked = _adapt_steps(problem, given, n, points, seed, check)
    if given is None:
        network = _check_denoiser(problem, n, points, seed)
        given, choice = choose(
            problem,
            n,
            integrable=pilot is None or pilot.integrable,
            undefined=0.0 if pilot is None else pilot.undefined,
            inexact=network.spread if network is not None and (network.erroneous or network.uneven) else None,
        )
        if network is not None:
            problem = _paid(problem, network.evaluations / n)
            notes += _network_notes(network)
    objections = _step_objections(pilot, corrected) + _support_objections(pilot, problem.target)
    if given.adapts:
        notes, objections = (), ()
    notes += _sign_question(choice is not None and _grows(problem, n, points, seed) if pilot is None else pilot.outward)
    start_note = given.start_note(problem)
    notes += (() if start_note is None else (start_note,)) + problem.target.notes
    return Adapted(problem, given, pilot, choice, notes, objections, checked)


# ------------------------------------------------------------------------------------------- steps of a fixed density


def _adapt_steps(
    problem: Problem, method: Method[Any] | None, n: int, points: Points, seed: int, check: bool
) -> tuple[Problem, Pilot | None, bool, tuple[str, ...], float]:
    """Fill in open settings, and look at a given step size; None for "auto", which replaces one that is far off.

    Returns:
        Problem, pilot, whether the step size is that of the pilot, notes, and evaluations that were only a check.
    """
    target, auto = problem.target, method is None
    if method is not None and method.adapts:  # it finds its own steps, and asks the density inside the set only
        step = 1.0 if target.tune is not None and target.tune.step_size else None
        settled = target if target.tune is None else with_settings(target, step_size=step)
        return problem.replace(target=settled), None, False, (), 0.0
    promises = method is None or method.promises_distribution
    checks = target.table.static and promises and (auto or (check and _pilot_pays(len(target.table), n)))
    checks = checks and not target.condition  # a few chains may miss the condition whose density is stiffest
    if target.tune is None and not checks:
        return problem, None, False, (), 0.0
    pilot = pilot_run(problem, n, points, seed)
    replaced = auto and _far_off(pilot)
    tune = Tuning(step_size=True, preconditioner=False) if replaced else target.tune
    notes = _pilot_notes(pilot, replaced)
    if tune is None:
        if auto:
            return _paid(problem, pilot.evaluations / n), pilot, False, notes, 0.0
        return problem, pilot, False, notes, pilot.evaluations / n
    free = method is None or method.bounds_moves
    size = pilot.step_sizes(len(target.table), free=free) if tune.step_size else None
    diagonal = pilot.preconditioner if tune.preconditioner else None
    tuned = problem.replace(target=with_settings(target, step_size=size, preconditioner=diagonal))
    return _paid(tuned, pilot.evaluations / n), pilot, True, notes, 0.0


def _starts_apart(target: Target) -> bool:
    """Whether chains of different conditions may start from different densities, of which one fit says nothing."""
    return bool(target.condition) and (isinstance(target.init, Tensor) or target.conditional_init)


def _pilot_pays(steps: int, n: int) -> bool:
    """Whether a look at the given step size takes few evaluations beside the run."""
    return PILOT_EVALUATIONS * min(n, PILOT_CHAINS) / n <= PILOT_SHARE * steps


def pilot_run(problem: Problem, n: int, points: Points, seed: int) -> Pilot:
    """A pilot run: finds what is open, and compares a given step size with what it would choose."""
    few = min(n, PILOT_CHAINS)
    chains = torch.linspace(0, n - 1, few, dtype=torch.float64).round().long()
    stream = keyed(seed, "pilot", device=problem.like.device)
    x = points(chains, stream)
    with torch.no_grad(), one_thread():
        return run_pilot(problem, x, chains, problem.target.tune, stream)


def _far_off(pilot: Pilot) -> bool:
    return not 1.0 / FAR_OFF <= pilot.ratio <= FAR_OFF


def _off(ratio: float) -> str:
    return f"{ratio:.3g} times too large" if ratio > 1.0 else f"{1.0 / ratio:.3g} times too small"


def _pilot_notes(pilot: Pilot, replaced: bool) -> tuple[str, ...]:
    """What the pilot found that a reader of the result should know."""
    notes = list[str]()
    if replaced:
        notes.append(f"step_size was {_off(pilot.ratio)}; {pilot.free_step_size:.3g} was used instead")
    if not pilot.integrable and not pilot.outward:
        notes.append(
            "the density seems to have no finite integral off the set: unconstrained chains run away, and the result "
            "depends on starting points near the set"
        )
    return tuple(notes)


def _step_objections(pilot: Pilot | None, corrected: bool) -> tuple[str, ...]:
    if pilot is None or corrected or not _far_off(pilot):
        return ()
    return (f"step_size is {_off(pilot.ratio)}: use step_size='auto' or step_size={pilot.free_step_size:.3g}",)


def _support_objections(pilot: Pilot | None, target: Target) -> tuple[str, ...]:
    """What chains do that leave the set where p is not defined off it."""
    if pilot is None or not pilot.undefined:
        return ()
    return (
        f"the density of {target.name} is not a number at {100 * pilot.undefined:.3g} % of the points that "
        "unconstrained chains visit, where they are lost. Use casal.HMC(), whose chains stay in the set, or "
        "let f be finite off the set too",
    )


LOOKED, FAR = 16, (3.0, 30.0)
"""Starting points from which to look whether the density grows, and how many times as far from their mean as they are:
near enough that a density which holds its chains is seen to, and beyond modes that lie apart."""


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


def _sign_question(outward: bool) -> tuple[str, ...]:
    """A question: only the reader knows whether a density that grows without bound is meant."""
    if not outward:
        return ()
    return (
        "the density grows without bound off the set, so that unconstrained chains run away: is the sign right, f = "
        "-log p in "
        "casal.energy and its gradient in casal.langevin?",
    )


# ------------------------------------------------------------------------------------------- a model with a denoiser


def _check_denoiser(problem: Problem, n: int, points: Points, seed: int) -> NetworkTest | None:
    """Whether the denoiser and the model's own sampler agree near the data; None if that cannot be seen."""
    if problem.target.denoise is None or n < FEWEST_CHAINS:
        return None
    stream = keyed(seed, "pilot", device=problem.like.device)
    few = check_chains(n, torch.Size(problem.latent).numel())
    chains = torch.arange(few) if problem.target.chains is None else torch.arange(few) * n // few
    x = points(chains, stream)
    with torch.no_grad():
        return check_network(problem.take(chains).replace(usage=Usage()), x, seed, stream)


def _network_notes(network: NetworkTest) -> tuple[str, ...]:
    if not network.erroneous:
        if not network.uneven:
            return ()
        return (
            f"the derivative of the denoiser is not symmetric ({network.asymmetry:.2f} of its size, 0 is right): the "
            "network is not exact",
        )
    return (
        f"the score at noise {network.level:.3g} has slope {network.slope:.2f} on the model's own samples, where 1 is "
        "right (casal.diagnostics.calibration): the network is not exact there",
    )


def _paid(problem: Problem, evaluations: float) -> Problem:
    """The same with more evaluations a chain spent before the run."""
    target: Target = problem.target
    return problem.replace(target=replace(target, init_evaluations=target.init_evaluations + evaluations))


CHECK_CHAINS, CHECK_NUMBERS, FEWEST_CHAINS = (32, 512), 1 << 14, 16
"""Samples that are drawn: at least and at most, and so many that they have about so many coordinates in all, over which
the calibration is a regression; and chains of a run below which none are drawn."""


SYMMETRIC = 0.1
"""Asymmetry up to which the derivative of a denoiser passes for a covariance."""


def check_chains(n: int, size: int) -> int:
    """Samples to draw for a run of n chains of so many coordinates."""
    least, most = CHECK_CHAINS
    return min(n, max(least, min(most, CHECK_NUMBERS // size)))


@dataclass(frozen=True)
class NetworkTest:
    """What was found.

    Attributes:
        erroneous: The score carries an error of its own at a noise level that the moves of a ladder would use.
        spread: Largest standard deviation of a coordinate of the model's own samples.
        slope: Smallest slope of the calibration at these levels.
        level: The level it belongs to.
        asymmetry: Of the derivative of the denoiser, see ``asymmetry``; nan where autograd finds no derivative,
            and in few dimensions, where no method uses it.
        evaluations: Evaluations of the network, each for one chain.
    """

    erroneous: bool
    spread: float
    slope: float
    level: float
    asymmetry: float
    evaluations: int

    @property
    def uneven(self) -> bool:
        """Whether the derivative is not to be used as a covariance."""
        return self.asymmetry > SYMMETRIC


def check_network(problem: Problem, x: Tensor, seed: int, generator: torch.Generator) -> NetworkTest:
    """Draw samples from starting points x by the model's own table, and calibrate its denoiser on them."""
    before = problem.usage.scores
    for row in table_rows(problem):
        x = move(problem, x, problem.score(x, row.t), row, gaussian(problem, len(x), generator))
    floor, _ = data_floor(problem, x, generator)
    spread = _spread(x, problem.groups())
    found = calibration(problem.target, x, seed=seed)
    used = found.levels >= RANGE * floor  # reverse processes from small noise end below the floor
    wrong = bool((found.erroneous & used).any())
    worst = int(torch.where(used, found.slope, torch.inf).argmin())
    many = x[0].numel() >= LADDER_DIMENSION
    uneven = asymmetry(problem, x, spread, generator) if many else math.nan
    evaluations = problem.usage.scores - before + found.evaluations * len(x)
    return NetworkTest(wrong, spread, float(found.slope[worst]), float(found.levels[worst]), uneven, evaluations)


def _spread(x: Tensor, labels: Tensor | None) -> float:
    """Largest standard deviation of a coordinate, within groups of the same distribution if chains differ."""
    if labels is None or len(labels.unique()) > len(x) // 2:
        return float(x.std(0).max())
    labels = labels.to(x.device)
    free = 1.0 - len(labels.unique()) / len(x)
    return float((centred(x.flatten(1), labels).square().mean(0) / free).max().sqrt())


def asymmetry(problem: Problem, x: Tensor, spread: float, generator: torch.Generator) -> float:
    """How far the derivative J of the denoiser is from symmetric, at the noise levels ``spread`` and 3 ``spread``:

        rms of u.J v - v.J u  over  rms of |J u|,     u and v of random signs, at noisy samples x0 + s w.

    s^2 J is the covariance of x0 given the noisy point, so it is symmetric for an exact denoiser. Networks had 0.15 to
    0.43 (16 x 16 images, a small UNet). The larger of both levels counts; nan if autograd cannot see through it.
    """
    worst = 0.0
    for s in (spread, 3.0 * spread):
        y = x + s * torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
        u, v = (
            2.0 * torch.randint(0, 2, x.shape, generator=generator, device=x.device).to(x.dtype) - 1.0 for _ in range(2)
        )
        with torch.enable_grad():
            leaf = y.detach().requires_grad_()
            clean = problem.denoise(leaf, s)
            if not clean.requires_grad:
                return math.nan
            pulled_u, pulled_v = (torch.autograd.grad(clean, leaf, w, retain_graph=True)[0] for w in (u, v))
        problem.usage.add_scores(2 * len(x))
        gap = ((pulled_u * v).flatten(1).sum(1) - (pulled_v * u).flatten(1).sum(1)).square().mean().sqrt()
        size = torch.stack([pulled_u, pulled_v]).square().flatten(2).sum(2).mean().sqrt()
        worst = max(worst, float(gap / size.clamp_min(torch.finfo(x.dtype).tiny)))
    return worst
