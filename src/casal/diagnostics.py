"""Distances between samples and a law, and warnings when a population has lost its diversity."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from torch import Tensor

from casal.errors import CasalWarning

FEWEST_ANCESTORS = 0.02


def warn_if_degenerate(trace: Mapping[str, Tensor], n: int) -> None:
    """Warn when the samples descend from so few starting chains that they say little about the law."""
    if "ancestors" not in trace:
        return
    alive = int(trace["ancestors"][-1])
    if alive < max(2.0, FEWEST_ANCESTORS * n):
        warnings.warn(
            f"only {alive} of {n} starting chains have descendants among the samples (smallest effective size "
            f"{float(trace['ess'].min()):.0f}): take more steps, more chains, or a preconditioner",
            CasalWarning,
            stacklevel=4,
        )
