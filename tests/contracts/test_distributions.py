"""Every method that promises the distribution, on every row of the table of exact distributions."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import casal
from casal.constraints import geometry

from .distributions import ATOM, ROWS, Distribution, Mixture, Row, scores

pytestmark = pytest.mark.statistical

LARGEST = 4.0
"""Standard errors that a statistic may be off."""

DRAWS = 400_000
"""Of the model, to be kept where they are in the set or near it."""

BIAS = 2e-3
"""What draws in a layer may be off besides their Monte Carlo error (its width, digits), in units of sd."""

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


UNSEEN = {"tail 1-D", "particle on a circle"}
"""So far out that draws of the model do not come there; both are known by more digits than a draw could check."""


@pytest.mark.parametrize("name", [name for name in SETS if name not in UNSEEN])
def test_draws_in_a_thin_layer_agree(name: str) -> None:
    """A second reference: draws of the model in the set, or within a small width of it, moved to the nearest point."""
    known = SETS[name]
    constraint = known.set_for(2)
    own = geometry.groups(constraint) is not None  # a circle for each chain
    each = [constraint.take(torch.full((DRAWS,), k)) for k in range(2)] if own else [constraint]
    drawn = [in_layer(known, one) for one in each]
    error = (sum(1.0 / len(z) for z in drawn) / len(drawn)) ** 0.5
    assert error < 0.1
    for statistic, (mean, sd) in known.exact.items():
        found = [float(known.values(z)[statistic].to(torch.float64).mean()) for z in drawn]
        assert abs(sum(found) / len(found) - mean) <= (4.0 * error + BIAS) * sd + 1e-12, statistic


def in_layer(known: Distribution, constraint: casal.Constraint) -> torch.Tensor:
    """Draws in a solid set; or near a thin one and not beyond its edge, moved to it.

    Only the tenth of least violation is projected: the last of them is not near.
    """
    x = known.draw(DRAWS, torch.Generator().manual_seed(0))
    violation = constraint.violation(x)
    if constraint.solid:
        return x[violation == 0.0]
    some = violation.argsort()[: DRAWS // 10]
    x, z = x[some], constraint.take(some).project(x[some])
    near = (x - z).norm(dim=1) < known.width
    assert not near[-100:].any()
    return z[near if known.edge is None else near & (known.edge(z) > ATOM)]


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
    assert len(ROWS) >= 40 and len({row.name for row in ROWS}) == len(ROWS)
    assert all(row.methods for row in ROWS)
