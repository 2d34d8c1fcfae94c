"""A set that changes along a run: several sets, one after the other, of which the last one counts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from casal.constraints.base import Constraint
from casal.constraints.chains import common_chains, listed
from casal.errors import SettingError


class Scheduled:
    """Sets that hold one after the other along a run; samples and certificate are those of the last.

        casal.Scheduled([(0.0, wide), (0.5, narrow)])

    Step k of T projects onto the last set whose share is at most k / T, here ``wide`` in the first half of the run. An
    easier set at first leaves chains room to move. It is a way to reach the last set, not a distribution: it is for
    ``casal.CASAL`` and ``casal.Projected``, whose steps use no more of a set than its projection. Other methods refuse
    it. Violations in the trace are those of the last set.

    Args:
        stages: Pairs of a share of the run in [0, 1) and a set. The first share is 0, and they rise.

    Attributes:
        stages: These pairs.
        last: The last set.
        chains: How many chains the sets are for (``PerChain``); None if they are common to all.

    >>> from casal import Ball
    >>> Scheduled([(0.0, Ball(3.0)), (0.5, Ball(1.0))]).at(0.4)
    Ball(radius=3)
    """

    def __init__(self, stages: Sequence[tuple[float, Constraint]]) -> None:
        given = list(stages)
        if not given or not all(isinstance(part, tuple | list) and len(part) == 2 for part in given):
            raise SettingError(f"Scheduled takes a list of pairs such as [(0.0, casal.Ball(3.0)), ...], got {stages!r}")
        pairs = [(_share(share), constraint) for share, constraint in given]
        wrong = [part for _, part in pairs if not isinstance(part, Constraint)]
        if wrong:
            raise SettingError(f"Scheduled takes pairs of a share and a casal set, got the set {wrong[0]!r}")
        shares = [share for share, _ in pairs]
        if shares[0] != 0.0 or any(late <= early for early, late in itertools.pairwise(shares)):
            raise SettingError(f"the shares of Scheduled begin at 0 and rise, got {shares}")
        self.stages = tuple(pairs)
        self.last = pairs[-1][1]
        self.chains = common_chains(**{f"set {k}": part for k, (_, part) in enumerate(pairs)})

    def __repr__(self) -> str:
        return f"Scheduled([{listed(self.stages, ', ')}])"

    def at(self, progress: float) -> Constraint:
        """The set in force at a share of the run."""
        return next(constraint for share, constraint in reversed(self.stages) if share <= progress)


def _share(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < 1.0:
        raise SettingError(f"a share of the run is a number in [0, 1), got {value!r}")
    return float(value)
