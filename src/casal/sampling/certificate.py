"""The proof that comes with every result: how far each sample is from the definition of its set."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from casal.constraints import Constraint
from casal.methods import few_chains


@dataclass(frozen=True)
class Certificate:
    """Recomputed in float64 from the definition of the set, on the very tensor that is returned.

    Attributes:
        violation: (n,) float64, in the unit the set states; infinity for a chain that was lost.
        tolerance: What counts as feasible.
        note: What else a reader should know of it, such as why a loaded one was not computed again.
    """

    violation: Tensor
    tolerance: float
    note: str = ""

    @property
    def feasible(self) -> Tensor:
        """(n,) bool: which samples meet the tolerance."""
        return self.violation <= self.tolerance

    def __str__(self) -> str:
        good, n = int(self.feasible.sum()), len(self.violation)
        worst = float(self.violation.max()) if n else 0.0
        text = f"{good} of {n} samples feasible; largest violation {worst:.2e} (tolerance {self.tolerance:.0e})"
        return f"{text}; {self.note}" if self.note else text


def certify(constraint: Constraint, samples: Tensor, tolerance: float) -> Certificate:
    """Measure every sample against the definition of the set, never through its projection; some chains at a time."""
    parts = [constraint.take(some).violation(samples[some]) for some in few_chains(samples)]
    return Certificate(torch.cat(parts), tolerance)
