"""Every method that promises the distribution, on every row of the table of exact distributions."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import casal
from casal.constraints import geometry

from .distributions import ROWS, Distribution, Mixture, Reference, Row, exact, scores

pytestmark = pytest.mark.statistical

LARGEST = 4.0
"""Standard errors that a statistic may be off."""

BIAS = 2e-3
"""What the second reference may be off besides its Monte Carlo error (the width of a layer, digits), in units of sd."""

SETS = {row.name.rpartition(",")[0] or row.name: row.distribution for row in ROWS}
RUNS = [pytest.param(row, method, id=f"{row.name}-{method}") for row in ROWS for method in row.methods]


def off(row: Row, method: object) -> dict[str, str]:
    """The statistics that are off, with the numbers."""
    return {
        name: f"{score.value:.5g} instead of {score.exact:.5g}: {score.z:.1f} standard errors"
        for name, score in scores(row, method, row.n).items()
        if not abs(score.z) <= LARGEST
    }


@pytest.mark.parametrize(("row", "method"), RUNS)
def test_the_distribution_is_right(row: Row, method: str) -> None:
    assert not off(row, method)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_wrong_distribution_is_found(row: Row) -> None:
    """Power: one final projection, by other statistics than atoms."""
    assert off(row, row.wrong).keys() - {"atoms"}


@pytest.mark.parametrize("distribution", SETS.values(), ids=SETS)
def test_two_references_agree(distribution: Distribution) -> None:
    right, second = exact(distribution), distribution.second()
    if isinstance(second, Reference):
        values = distribution.values(second.points).items()
        found = {name: second.exact(value)[:2] for name, value in values}
        assert found.keys() == right.keys()
    else:
        found = {name: (value, 0.0) for name, value in second.items()}
    for name, (value, error) in found.items():
        one = right[name]
        assert abs(value - one.value) <= 4.0 * (error**2 + one.error**2) ** 0.5 + BIAS * one.sd, name


@pytest.mark.parametrize("distribution", SETS.values(), ids=SETS)
def test_a_reference_lies_in_its_set(distribution: Distribution) -> None:
    reference = distribution.reference()
    some = torch.nonzero(reference.weights).flatten()
    points = reference.points[some[:: max(1, len(some) // 500)]]
    points = points[: len(points) // 2 * 2]
    assert abs(float(reference.weights.sum()) - 1) < 1e-9
    constraint = distribution.constraint(len(points))
    violation = constraint.violation(points) if geometry.groups(constraint) is None else own_violation(points)
    assert float(violation.max()) < 1e-12


def own_violation(points: torch.Tensor) -> torch.Tensor:
    """For a circle for each chain: the reference has first one, then the other."""
    half = len(points) // 2
    return torch.cat([casal.Sphere(1.0).violation(points[:half]), casal.Sphere(2.0).violation(points[half:])])


MODELS = [pytest.param(row.target, row.mixture, id=row.name) for row in ROWS if row.mixture is not None]


@pytest.mark.parametrize(("target", "mixture"), MODELS)
def test_a_model_without_the_set_is_right(target: Callable[[], casal.Target], mixture: Mixture) -> None:
    """The steps of a diffusion model leave an error; it must be small beside what a row can see."""
    everything = casal.Box(-math.inf, math.inf)
    x = casal.sample(target(), everything, casal.Unconstrained(), 4000, run=casal.Run(threads=1)).samples.to(
        torch.float64
    )
    right = mixture.draw(100_000, torch.Generator().manual_seed(1))
    assert float(((x.mean(0) - right.mean(0)) / right.std(0)).abs().max()) < 0.08
    assert float((x.var(0) / right.var(0) - 1).abs().max()) < 0.15


def test_the_table_is_wide() -> None:
    assert len(ROWS) >= 28 and len({row.name for row in ROWS}) == len(ROWS)
    assert all(row.methods for row in ROWS)
