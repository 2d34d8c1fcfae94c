"""Chains that are lost: seeing it, and saying where and with which settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from casal.errors import DivergedError
from casal.tiles import Tile


def diverged(tile: Tile, row: Any, step: int, steps: int, chains: Sequence[int]) -> DivergedError:
    """The error for some chains of a tile that were lost in a row, the given step of all ``steps``."""
    tau = float(getattr(row, "b", 0.0))
    rho = getattr(row, "rho", None)
    if rho is None and hasattr(row, "kappa"):
        rho = float(row.kappa) / tau if tau else 0.0
    if rho is None:
        rho = getattr(tile.state, "rho", None)
    strength = "" if rho is None else f", rho = {float(rho):.3g}, tau rho = {tau * float(rho):.3g}"
    return DivergedError(
        f"{len(chains)} of {len(tile)} chains diverged at step {step} of {steps} "
        f"(tau = {tau:.3g}{strength}); take a smaller step_size, a preconditioner, or coupling='implicit'",
        step=step,
        steps=steps,
        chains=[tile.start + chain for chain in chains],
    )


def finite(state: Any) -> bool:
    """Whether the points of a state are finite. A sum is one cheap pass; an overflowing one is looked at again."""
    x = state[0]
    return math.isfinite(float(x.sum())) or bool(torch.isfinite(x).all())
