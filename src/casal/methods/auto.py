"""``method="auto"``: the method that measurements recommend for a model, a set and a decoder."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from casal.methods.base import Method
from casal.methods.context import Context
from casal.methods.smc import has_edge
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


def choose(context: Context, n: int, *, integrable: bool = True, erroneous: float | None = None) -> Choice:
    """WeightedCASAL on a fixed density, SplitGibbs on a diffusion or flow model (see docs/methods.md for figures).

    Both find where their ladder ends from the chains themselves. Both resample. Where every chain has a set of its own
    there is nobody to resample with. That is refused: no other method promises the distribution.

    Args:
        context: Model, set and decoder.
        n: Chains.
        integrable: Whether a fixed density has a finite integral off the set. If not, chains must not run free before
            the ladder.
        erroneous: Spread of the model's samples where the denoiser carries an error of its own at small noise, as
            trained networks do. Then the chains move at a noise level where it can be trusted (``level_moves.py``).
    """
    rows = len(context.table)
    if context.table.static:
        method = WeightedCASAL(hold=not integrable)
        return Choice(method, f"WeightedCASAL, whose ladder ends where the chains say: {rows} evaluations a chain")
    if erroneous is not None and n * rows * math.prod(context.latent) <= MOST_NOISE:
        own = SplitGibbs(moves="level", level=OWN_LEVEL * erroneous, levels=OWN_LEVELS)
        count = rows + own.levels * own.sweeps * own.moves_for(context).evaluations
        return Choice(
            own, f"SplitGibbs with moves at the noise level {own.level:.3g}: about {count} evaluations a chain"
        )
    ladder = SplitGibbs(inner_steps=INNER_STEPS, levels=EDGE_LEVELS if has_edge(context) else SURFACE_LEVELS)
    count = rows + ladder.inner_steps * SURFACE_LEVELS
    return Choice(ladder, f"SplitGibbs, whose ladder ends where the chains say: about {count} evaluations a chain")
