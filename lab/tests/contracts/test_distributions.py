"""Every method that promises the distribution, on a table of distributions with two references each."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import casal
from casal_lab.problems.small import Reference

from .distributions import ROWS, Row, sixteen_rows

pytestmark = pytest.mark.statistical

SEED = 1
LARGEST = 4.0
"""Standard errors that a statistic may be off."""

LARGEST_INFLATION = 6.0
"""Standard error of a run over that of independent draws: a run of fewer ancestors is judged as if it had this."""

BIAS = 2e-3
"""What the second reference may be off besides its Monte Carlo error (the width of a layer, digits), in units of sd."""

ATOM = 1e-9
"""A sample nearer to the edge than this has been put there."""

RUNS = [pytest.param(row, method, id=f"{row.case.name}-{method}") for row in ROWS for method in row.methods]
SETS = {row.case.name.rpartition(",")[0] or row.case.name: row for row in ROWS}


def off(row: Row, method: Any) -> list[str]:
    """The statistics that are off, with the numbers; and samples on the edge."""
    case = row.case
    found = case.sample(SEED, method, check=False, **({"start": row.start} if row.start else {}))
    (mean, sd), n = case.exact, len(found.samples)
    value, error = found.expect(case.statistics)
    least = sd / math.sqrt(n)
    least[6:] = least[6:].clamp_min(1.0 / n)  # shares
    z = (value - mean) / error.clamp(least, LARGEST_INFLATION * least)
    far = torch.nonzero((sd > 1e-9) & (z.abs() > LARGEST)).flatten().tolist()
    wrong = [f"statistic {k}: {float(z[k]):.1f} standard errors" for k in far]
    atoms = 0.0 if row.edge is None else float((row.edge(found.samples.to(torch.float64)) < ATOM).double().mean())
    return wrong + ([f"{atoms:.1%} on the edge"] if atoms else [])


@pytest.mark.parametrize(("row", "method"), RUNS)
def test_the_distribution_is_right(row: Row, method: str) -> None:
    assert not off(row, row.methods[method])


def test_weights_of_modes_that_are_not_known_are_not_trusted() -> None:
    (row,) = sixteen_rows("density", methods=("auto",))
    found = row.case.sample(SEED, "auto")
    assert found.fidelity.verdict == "suspect" and "modes" in " ".join(found.fidelity.reasons)


@pytest.mark.parametrize("row", [row for row in ROWS if not row.start], ids=lambda row: row.case.name)
def test_a_wrong_distribution_is_found(row: Row) -> None:
    """Power: one final projection, by other statistics than samples on the edge."""
    assert [text for text in off(row, casal.FinalProjection()) if text.startswith("statistic")]


def moments(reference: Reference, values: Tensor, draws: bool) -> tuple[Tensor, Tensor]:
    """Means of statistics and their standard errors."""
    mean = reference.weights @ values
    error = (reference.weights.square() @ (values - mean).square()).sqrt()
    return mean, error if draws else torch.zeros_like(error)


@pytest.mark.parametrize("row", SETS.values(), ids=SETS)
def test_two_references_agree(row: Row) -> None:
    first, second = row.case.reference(), row.second()
    (one, its), (other, error) = (
        moments(reference, row.case.statistics(reference.points), draws)
        for reference, draws in ((first, row.draws), (second, True))
    )
    sd = row.case.exact[1]
    assert bool(((one - other).abs() <= 4.0 * (its.square() + error.square()).sqrt() + BIAS * sd + 1e-9).all())


@pytest.mark.parametrize("row", SETS.values(), ids=SETS)
def test_a_reference_lies_in_its_set(row: Row) -> None:
    points, weights = row.case.reference()
    some = torch.nonzero(weights).flatten()
    points = points[some[:: max(1, len(some) // 500)]]
    assert abs(float(weights.sum()) - 1) < 1e-9
    assert float(row.case.constraint.violation(points).max()) < 1e-12
