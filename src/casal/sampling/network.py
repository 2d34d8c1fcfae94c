"""A look at a diffusion or flow model before a run: do its denoiser and its own sampler agree near the data?

A trained network is worst at small noise. A ladder that moves clean points by the denoiser at small noise then leaves
the model's own distribution. The look draws a few samples by the model's own table and calibrates the denoiser on them
(``casal.diagnostics.calibration``).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from casal.diagnostics import calibration
from casal.methods import RANGE, Context, data_floor, gaussian, move, table_rows

LOOK_CHAINS, FEWEST_CHAINS = 512, 16
"""Samples that are drawn, and chains of a run below which none are."""


@dataclass(frozen=True)
class NetworkLook:
    """What was found.

    Attributes:
        erroneous: The score carries an error of its own at a noise level that the moves of a ladder would use.
        spread: Largest standard deviation of a coordinate of the model's own samples.
        slope: Smallest slope of the calibration at these levels.
        level: The level it belongs to.
        evaluations: Evaluations of the network, each for one chain.
    """

    erroneous: bool
    spread: float
    slope: float
    level: float
    evaluations: int


def look_at_network(context: Context, x: Tensor, seed: int, generator: torch.Generator) -> NetworkLook:
    """Draw samples from starting points x by the model's own table, and calibrate its denoiser on them."""
    before = context.usage.scores
    for row in table_rows(context):
        x = move(context, x, context.score(x, row.t), row, gaussian(context, len(x), generator))
    floor, _ = data_floor(context, x, generator)
    spread = float(x.std(0).max())
    found = calibration(context.target, x, seed=seed)
    used = found.levels >= RANGE * floor  # reverse processes from small noise end below the floor
    wrong = bool((found.erroneous & used).any())
    worst = int(torch.where(used, found.slope, torch.inf).argmin())
    evaluations = context.usage.scores - before + found.evaluations * len(x)
    return NetworkLook(wrong, spread, float(found.slope[worst]), float(found.levels[worst]), evaluations)
