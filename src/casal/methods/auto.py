"""``method="auto"``: the method that measurements recommend for a model, a set and a decoder."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from casal.methods.base import Method
from casal.methods.context import Context
from casal.methods.split_gibbs import SplitGibbs
from casal.methods.weighted import WeightedCASAL

SLACK = 0.04
"""Where the ladder ends: the distance to C in units of the spread of a coordinate times the root of their number.

The error that is left is of the order of its square. Less would cost ancestors: in 256 dimensions (images of blobs,
192 chains) a slack of 1 left 90 of them and 0.3 left 40."""


def choose(context: Context, x: Tensor) -> Method[Any]:
    """WeightedCASAL on a fixed density, SplitGibbs on a diffusion or flow model (see docs/methods.md for figures).

    Both resample. Where every chain has a set of its own there is nobody to resample with. That is refused: no other
    method promises the distribution.

    Args:
        context: Model, set and decoder.
        x: A few starting points; on a fixed density their spread sets the scale. A diffusion model has scale one.
    """
    if context.table.static:
        return WeightedCASAL()
    return SplitGibbs(inner_steps=20)
