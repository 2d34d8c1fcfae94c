"""The methods of the comparison, each with its fixed setting: one for all scenes, sizes and networks."""

from __future__ import annotations

from typing import NamedTuple

from casal import CASAL, DPS, FinalProjection, Penalty, Projected, SplitGibbs, Twisted, Unconstrained
from casal.lab.experiment import AnyMethod

STEPS, RHO = 1000, 100.0
"""Of the paper."""


class Recipe(NamedTuple):
    """A method and how it meets the scene.

    Attributes:
        method: None for a start without a model.
        steps: Of the diffusion.
        rows: Whether the constraint is coupled to the numbers that obstacles see, or to the whole flight.
        unit_norm: Whether the decoded numbers are rescaled such that the decoder has norm one.
        noise: Standard deviation of a start without a model.
    """

    method: AnyMethod | None
    steps: int = STEPS
    rows: bool = True
    unit_norm: bool = False
    noise: float = 0.0


METHODS: dict[str, Recipe] = {
    "zero": Recipe(None),
    "noise": Recipe(None, noise=1.0),
    "unconstrained": Recipe(Unconstrained()),
    "penalty": Recipe(Penalty(100.0, of="distance")),
    "projected": Recipe(Projected(repeats=2), rows=False),
    "dps": Recipe(FinalProjection(DPS(10.0))),
    "algorithm1": Recipe(CASAL.algorithm1(RHO), rows=False, unit_norm=True),
    "algorithm2": Recipe(CASAL.algorithm2(RHO), rows=False, unit_norm=True),
    "casal": Recipe(CASAL(RHO)),
    "splitgibbs": Recipe(SplitGibbs(0.03)),
    "twisted": Recipe(Twisted(1000.0), steps=250),
}
"""By name, as ``solve`` takes them."""
