"""The proof that comes with every result: how far each sample is from the definition of its set."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from casal.checks import Event, Tolerance
from casal.constraints import Constraint
from casal.errors import SettingError, ShapeError
from casal.methods import few_chains

NAMED_ROWS = 6
"""Rows that a message lists by name."""


@dataclass(frozen=True, repr=False)
class Certificate:
    """Whether every sample satisfies the constraint, and by how much it misses.

    Recomputed in float64 from the definition of the set, on the very tensor that is returned.

    The rows are the equations, inequalities and bounds of the definition. The violation of a row is what it misses, in
    units of that row: relative to its own terms or to a length of its own (see ``Constraint.violation``), or in the
    units that were asked for. Each sample is judged by its worst row.

    Attributes:
        violation: (n,) float64, of the worst row; infinity for a chain that was lost.
        tolerance: What counts as feasible. One if there was a tolerance for each row: then they are the units.
        row: (n,) which row is the worst; -1 in a set without rows, which is all of space.
        excess: (n,) by how much it is missed, in the unit in which the set is written.
        worst: The worst row of all samples in words.
        units: What counted as one in each row, (m,) or (1,); None for the units of the rows themselves.
        note: What else a reader should know of it, such as why a loaded one was not computed again.
    """

    violation: Tensor
    tolerance: float
    row: Tensor
    excess: Tensor
    worst: str = ""
    units: Tensor | None = None
    note: str = ""

    @property
    def feasible(self) -> Tensor:
        """(n,) bool: which samples meet the tolerance."""
        return self.violation <= self.tolerance

    def __repr__(self) -> str:
        return f"Certificate({self})"

    def __str__(self) -> str:
        good, n = int(self.feasible.sum()), len(self.violation)
        if not n:
            return "no samples"
        last = int(self.violation.argmax())
        value, off = float(self.violation[last]), float(self.excess[last])
        judged = f"violation {value:.2g}, tolerance {self.tolerance:.0e}"
        worst = f"worst: {self.worst}, off by {off:.2g} ({judged})" if value > 0 and self.worst else f"largest {judged}"
        return "; ".join(text for text in (f"{good} of {n} feasible", worst, self.note) if text)


class Measure(NamedTuple):
    """What samples are judged by: tolerance and units.

    Attributes:
        tolerance: What counts as feasible.
        units: (m,) or (1,), what counts as one in each row; None for the units of the rows themselves.
    """

    tolerance: float
    units: Tensor | None

    @classmethod
    def of(cls, tol: Tolerance, units: Tolerance | None) -> Measure:
        """From the arguments of ``casal.sample``: tolerances for each row become the units, and the tolerance one."""
        size, common = _numbers(tol, "tol"), isinstance(tol, int | float) or torch.as_tensor(tol).ndim == 0
        unit = None if units is None else _numbers(units, "units")
        if unit is not None and not bool((unit > 0).all()):
            raise SettingError(
                f"units must be > 0, got {float(unit.min()):g}; they say what counts as one in each component"
            )
        if common:
            return cls(float(size), unit)
        return cls(1.0, size if unit is None else size * unit)

    def plain(self) -> dict[str, Any]:
        """As JSON data; ``Measure.of(**data)`` reads it back."""
        return {"tol": self.tolerance, "units": None if self.units is None else self.units.tolist()}


def certify(constraint: Constraint, samples: Tensor, tol: Tolerance, units: Tolerance | None = None) -> Certificate:
    """Measure every sample against the definition of the set, never through its projection; some chains at a time.

    Args:
        constraint: The set.
        samples: (n, *event).
        tol: See ``casal.sample``.
        units: Likewise.
    """
    measure, event = Measure.of(tol, units), tuple(samples.shape[1:])
    few = few_chains(samples, share=16)  # near the cache: a definition is many passes over them
    parts = [_judge(constraint.take(some), samples[some], measure) for some in few]
    violation, row, excess = (torch.cat(columns) for columns in zip(*parts, strict=True))
    broken = int(row[violation.argmax()]) if len(row) else -1
    worst = constraint.component_name(event, broken) if broken >= 0 else ""
    return Certificate(violation, measure.tolerance, row, excess, worst, measure.units)


def _judge(constraint: Constraint, z: Tensor, measure: Measure) -> tuple[Tensor, Tensor, Tensor]:
    """Violation, worst row and what is missed there, chain by chain."""
    found = constraint.excess(z)
    missed = found.given()
    if measure.units is None:
        each = found.violation()
    else:
        units = measure.units.to(missed)
        if units.numel() not in (1, missed.shape[1]):
            raise ShapeError(_rows_expected(constraint, tuple(z.shape[1:]), units.numel(), missed.shape[1]))
        each = torch.where(missed > 0, missed / units.clamp_min(torch.finfo(torch.float64).tiny), 0.0)
    if not missed.shape[1]:
        nothing = missed.new_zeros(len(z))
        return nothing, nothing.long() - 1, nothing
    each = torch.where(torch.isinf(found.amount), torch.inf, each)
    violation, row = each.max(1)
    return violation, row, missed.gather(1, row[:, None]).squeeze(1)


def _rows_expected(constraint: Constraint, event: Event, given: int, count: int) -> str:
    names = [constraint.component_name(event, row) for row in range(min(count, NAMED_ROWS))]
    more = ", ..." if count > NAMED_ROWS else ""
    return (
        f"{given} tolerances or units for a set of {count} components ({'; '.join(names)}{more}); give one number, or "
        f"{count}"
    )


def _numbers(given: Any, name: str) -> Tensor:
    """A number or several, finite and >= 0, as (m,)."""
    try:
        numbers = torch.as_tensor(given, dtype=torch.float64).reshape(-1)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SettingError(f"{name} must be a number, or one for each component of the set, got {given!r}") from error
    if not numbers.numel() or not bool((numbers >= 0).all()):
        worst = float(numbers.min()) if numbers.numel() else math.nan
        raise SettingError(f"{name} must be >= 0, got {worst:g}")
    return numbers
