"""``method="auto"``: the method that measurements recommend for a model, a set and a decoder."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torch import Tensor

from casal.errors import SettingError
from casal.methods.base import Method
from casal.methods.coupling import has_edge
from casal.methods.hmc import HMC
from casal.methods.matheron import Matheron
from casal.methods.population import groups_of
from casal.methods.problem import Problem
from casal.methods.restricted import draws_inside, sides_of
from casal.methods.split_gibbs import SplitGibbs
from casal.methods.weighted import WeightedCASAL

INNER_STEPS = 20
"""Evaluations of the denoiser in one move: with half of them mode weights were off by 0.02 on a circle."""

SURFACE_LEVELS, EDGE_LEVELS = 40, 50
"""Levels of a ladder for a set of equations alone, and for one with inequalities. The latter goes on to small noise,
where a move takes few evaluations."""

OWN_LEVEL = 0.4
"""Noise level of level moves, in units of the spread of the model's samples."""

MOST_NOISE = 1 << 28
"""Numbers of noise that level moves may keep: one for each chain, row and coordinate."""

LADDER_DIMENSION = 16
"""Below it a ladder of couplings is taken for a model, and for a density whose potential is not known; in more
dimensions it loses its ancestors (error over floor 9.9 for 1.0 on 16 increasing coordinates), and independent chains
and chains that stay in the set do not. On curved equations in just as many dimensions it is taken, too: Matheron
has the weights of three modes on a sphere wrong by 6 standard errors."""

SLICE_LEVELS = 90
"""Levels where Matheron takes slices: with 30 of them the errors that all chains share leave a mean that is
off by 1.4 times the error of exact draws, with 90 by 1.1 times."""

TRAINED_LEVELS = 52
"""Levels of Matheron for a network that is not exact, four of them the last one again: with 30 the p-values of
``casal.calibrate`` are lower."""

OWN_LEVELS = 20
"""Rungs of a ladder of level moves, each of which runs the model's table from that level down."""


class Choice(NamedTuple):
    """What was chosen.

    Attributes:
        method: The method with its settings.
        reason: What it is and what it will take, in a sentence.
    """

    method: Method[Any]
    reason: str


def choose(
    problem: Problem,
    n: int,
    *,
    integrable: bool = True,
    undefined: float = 0.0,
    inexact: float | None = None,
) -> Choice:
    """Choose the method that measurements recommend (docs/methods.md has the figures).

    - a fixed density: HMC on the sets that it takes, where ``inside`` says so, and where the density is not defined or
      not integrable off the set; otherwise WeightedCASAL;
    - a diffusion or flow model with a soft term: Matheron;
    - one whose chains have sets of their own, of which they cannot be resampled: as in many dimensions;
    - in fewer than LADDER_DIMENSION dimensions: SplitGibbs, with level moves for a network that errs at small noise;
    - in more: what ``_many_dimensions`` says.

    The ladders find where they end from the chains themselves, and resample.

    Args:
        problem: Model, set and decoder.
        n: Chains.
        integrable: Whether a fixed density has a finite integral off the set. If not, chains must not run free before
            the ladder.
        undefined: Share of the points off the set at which a fixed density is not defined. If there are some, chains
            stay inside where they can.
        inexact: Spread of the model's samples where the denoiser carries an error of its own at small noise, or its
            derivative is no covariance because it is not symmetric, as those of trained networks.
    """
    rows, size = len(problem.table), math.prod(problem.latent)
    if problem.table.static:
        off = "not defined" if undefined else "" if integrable else "not integrable"
        if off and HMC().fits(problem):
            return Choice(
                HMC(),
                f"HMC, whose chains stay inside the set, since the density is {off} outside: at most {rows} model "
                "calls per chain",
            )
        method = WeightedCASAL(hold=not integrable)
        return Choice(method, f"WeightedCASAL with adaptive levels of rho: {rows} model calls per chain")
    if problem.target.log_weight is not None:
        soft = Matheron(SLICE_LEVELS, modes=inexact is None)
        count = soft.evaluations(problem, n)
        return Choice(soft, f"Matheron for a soft term: about {count} model calls per chain")
    if size >= LADDER_DIMENSION or _own_sets(problem, n):
        found = _many_dimensions(problem, n, size, inexact)
        if found is not None:
            return found
    if inexact is not None and size < LADDER_DIMENSION and n * rows * size <= MOST_NOISE:
        own = SplitGibbs(moves="level", level=OWN_LEVEL * inexact, levels=OWN_LEVELS)
        count = rows + own.levels * own.sweeps * own.moves_for(problem).evaluations
        return Choice(own, f"SplitGibbs, moves at noise {own.level:.3g}: about {count} model calls per chain")
    ladder = SplitGibbs(inner_steps=INNER_STEPS, levels=EDGE_LEVELS if has_edge(problem) else SURFACE_LEVELS)
    count = rows + ladder.inner_steps * SURFACE_LEVELS
    return Choice(ladder, f"SplitGibbs with adaptive levels of rho: about {count} model calls per chain")


def inside(problem: Problem, n: int, x: Tensor) -> Choice | None:
    """HMC for a fixed density on a set that it takes, where that is known before any chain runs; else None.

    With a potential always. A score alone does not give modes their weights inside the set, while a ladder that starts
    from samples of p does. So without a potential HMC is taken from LADDER_DIMENSION dimensions on; in fewer, for
    a constant or Gaussian density on a flat set, which has one mode, and where chains with sets of their own cannot be
    resampled.

    Args:
        problem: Model, set and decoder.
        n: Chains.
        x: Some starting points.
    """
    if not HMC().fits(problem):
        return None
    rows, size = len(problem.table), math.prod(problem.latent)
    told = f"at most {rows} model calls per chain"
    if problem.target.potential is not None or size >= LADDER_DIMENSION:
        return Choice(HMC(), f"HMC for {HMC().told(problem)}: {told}")
    if HMC().one_mode(problem, x):
        return Choice(HMC(), f"HMC, since the density has one mode on a flat set: {told}")
    if _own_sets(problem, n):
        return Choice(HMC(), f"HMC, whose chains need not be resampled, since they have sets of their own: {told}")
    return None


def _own_sets(problem: Problem, n: int) -> bool:
    """Whether chains have sets or conditions of their own, too few of each to be resampled."""
    try:
        groups_of(problem, n)
    except SettingError:
        return True
    return False


def _many_dimensions(problem: Problem, n: int, size: int, inexact: float | None) -> Choice | None:
    """Matheron with the settings that measurements recommend; None where it does not take the set.

    Exact networks:

    - linear equations; curved ones, above LADDER_DIMENSION; flat inequalities: the defaults, error over floor 0.9 to
      1.4 at 180 to 260 evaluations on ten problems of the benchmark; LookAhead and BoundedHMC, which it replaces, had
      0.7 to 1.7 at 270 to 3800;
    - other inequalities: slices, with SLICE_LEVELS.

    Networks that are not exact: inequalities act through the last projection alone. Draws of N(D, S) inside the set
    were measured on exact networks only.
    """
    exact = inexact is None
    method = Matheron() if exact else Matheron(TRAINED_LEVELS, flows=0)
    found, edge, within = method.equations(problem), has_edge(problem), draws_inside(problem)
    if found is None or (exact and not within and not found.count):
        return None
    if found.curved and size <= LADDER_DIMENSION and not _own_sets(problem, n):
        return None
    if exact and within and sides_of(problem) is None:
        method = Matheron(SLICE_LEVELS)
    told = "" if exact else ", since the network is not exact"
    told += "; the inequalities act through the last projection alone" if edge and not (exact and within) else ""
    count = method.evaluations(problem, n)
    return Choice(method, f"Matheron for {size} dimensions{told}: about {count} model calls per chain")
