"""Tune a baseline on validation chains before it is reported on fresh ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

from casal.constraints import Constraint
from casal.errors import DivergedError
from casal.methods import FinalProjection, Method, Penalty
from casal.sampling import SampleResult, sample
from casal.schedules import geometric
from casal.targets import Target

VALIDATION_SEED = 1_000_003
"""Seeds of reported runs are small numbers; this one is kept for choosing settings."""

Case = tuple[Target, Method[Any]]


def best(cases: Iterable[Case], constraint: Constraint, loss: Callable[[SampleResult], float], n: int) -> Case:
    """The case with the smallest loss on validation chains; settings that diverge are out."""
    scored: list[tuple[float, int, Case]] = []
    for k, (target, method) in enumerate(cases):
        try:
            value = loss(sample(target, constraint, method, n, seed=VALIDATION_SEED))
        except DivergedError:
            value = math.inf
        scored.append((value, k, (target, method)))
    return min(scored, key=lambda entry: entry[:2])[2]


def penalty_ramps(targets: Iterable[Target], lows: Iterable[float], highs: Iterable[float]) -> list[Case]:
    """Penalties whose weight climbs geometrically, each followed by one projection."""
    return [
        (target, FinalProjection(Penalty(geometric(low, high), burn_in=0.1)))
        for target, low, high in product(targets, lows, highs)
        if low < high
    ]
