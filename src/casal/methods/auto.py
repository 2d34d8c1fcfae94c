"""``method="auto"``: the method that measurements recommend for a model, a set and a decoder."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torch import Tensor

from casal.errors import SettingError
from casal.methods.base import Method
from casal.methods.bounded_hmc import FEWEST_CHAINS, BoundedHMC
from casal.methods.coupling import has_edge
from casal.methods.hmc import HMC
from casal.methods.look_ahead import LookAhead
from casal.methods.population import groups_of
from casal.methods.problem import Problem
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
"""Up to here a ladder of couplings is taken for a model, and for a density whose potential is not known; in more
dimensions it loses its ancestors, and chains that stay in the set or look ahead do not."""

MOVES_ABOVE = 0.3
"""Noise level, in units of the spread, below which trajectories do not ask a network that errs there."""

WIDE_LEVELS, WIDE_STEPS = 30, 10
"""Rungs and evaluations of a move of a ladder that ends at the spread of a coordinate. On 16 x 16 images 104 of 192
ancestors are left, level moves leave one."""

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
    erroneous: float | None = None,
    uneven: float | None = None,
    gaussian: bool = False,
) -> Choice:
    """Choose the method that measurements recommend (docs/methods.md has the figures).

    - a fixed density: HMC on the sets that it takes, where ``inside`` says so, and where the density is not defined or
      not integrable off the set; otherwise WeightedCASAL;
    - a diffusion or flow model with a soft term, or in more than LADDER_DIMENSION dimensions: BoundedHMC for bounds on
      most coordinates, LookAhead for few equations and inequalities with gradients; for a network that errs at small
      noise or has an asymmetric derivative, SplitGibbs with a wide last level: it would be guided off the data;
    - otherwise: SplitGibbs.

    The ladders find where they end from the chains themselves. All of them resample. If every chain has its own set,
    resampling is impossible. That raises an error where HMC does not take the set either.

    Args:
        problem: Model, set and decoder.
        n: Chains.
        integrable: Whether a fixed density has a finite integral off the set. If not, chains must not run free before
            the ladder.
        undefined: Share of the points off the set at which a fixed density is not defined. If there are some, chains
            stay inside where they can.
        erroneous: Spread of the model's samples where the denoiser carries an error of its own at small noise, as
            trained networks do. Then the chains move at a noise level where it can be trusted.
        uneven: The same spread where the derivative of the denoiser is no covariance, because it is not symmetric.
        gaussian: Whether the denoiser is linear in x: then linear equations are taken into the model.
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
    if problem.target.log_weight is not None or size > LADDER_DIMENSION:
        found = _many_dimensions(problem, n, size, erroneous, uneven, gaussian)
        if found is not None:
            return found
    if erroneous is not None and n * rows * size <= MOST_NOISE:
        own = SplitGibbs(moves="level", level=OWN_LEVEL * erroneous, levels=OWN_LEVELS)
        count = rows + own.levels * own.sweeps * own.moves_for(problem).evaluations
        return Choice(
            own, f"SplitGibbs with moves at the noise level {own.level:.3g}: about {count} model calls per chain"
        )
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
    if not problem.table.static or not HMC().fits(problem):
        return None
    rows, size = len(problem.table), math.prod(problem.latent)
    told = f"at most {rows} model calls per chain"
    if problem.target.potential is not None or size >= LADDER_DIMENSION:
        return Choice(HMC(), f"HMC for {HMC().told(problem)}: {told}")
    if HMC().one_mode(problem, x):
        return Choice(HMC(), f"HMC, since the density has one mode on a flat set: {told}")
    try:
        groups_of(problem, n)
    except SettingError:
        return Choice(HMC(), f"HMC, whose chains need not be resampled, since they have sets of their own: {told}")
    return None


def _many_dimensions(
    problem: Problem, n: int, size: int, erroneous: float | None, uneven: float | None, gaussian: bool
) -> Choice | None:
    """What looks ahead through the derivative of the denoiser; None where set, decoder or network do not allow it."""
    wide = uneven if erroneous is None else erroneous
    ahead = LookAhead() if wide is None else LookAhead(calibrate=True, width=2, moves=4)
    if wide is None and gaussian and LookAhead(gaussian=True).conditions(problem):
        ahead = LookAhead(gaussian=True)
    where, tilted = f"for {size} dimensions", problem.target.log_weight is not None
    if tilted or (wide is None and ahead.fits(problem)):
        said = " and a soft term" if tilted else ""
        said += "" if wide is None else ", calibrated on the model's own samples"
        said += ", given the linear equations exactly since the model is Gaussian" if ahead.gaussian else ""
        return Choice(ahead, f"LookAhead {where}{said}: about {ahead.evaluations(problem, n)} model calls per chain")
    inside = BoundedHMC() if erroneous is None else BoundedHMC(sigma_moves=MOVES_ABOVE * erroneous)
    if n >= FEWEST_CHAINS and inside.fits(problem):
        return Choice(inside, f"BoundedHMC {where}: about {inside.evaluations} model calls per chain")
    if wide is not None:
        last = wide * problem.decoder.norm()  # the spread of the data, in units of decoded space
        ladder = SplitGibbs(last, levels=WIDE_LEVELS, inner_steps=WIDE_STEPS, moves="metropolis")
        count = len(problem.table) + ladder.levels * ladder.inner_steps
        return Choice(
            ladder,
            f"SplitGibbs {where}, down to the noise level {wide:.3g} (the spread of the data), since the network is "
            f"inaccurate below, then one projection: about {count} model calls per chain",
        )
    return None
