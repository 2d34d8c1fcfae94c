"""Approximate projections: the set they are tried on, its exact distribution, and what they save."""

from __future__ import annotations

import numpy as np
import torch

import casal
from casal_lab.field.cost import FLOW, budgets, marginal_with_flow, members, tightening_study
from casal_lab.problems import double_well
from casal_lab.problems.field import STIFF, WELLS


def test_the_law_with_a_known_flow_is_what_rejection_gives() -> None:
    """x1 from the line x1 + x2 = FLOW, the others from their prior, energies near 8; a wrong flow is found out."""
    rng = np.random.default_rng(0)
    n, grid = 600_000, np.linspace(-7.0, 7.0, 20001)

    def quantiles(flow: float) -> tuple[np.ndarray, int]:
        density = np.exp(-double_well.potential(grid) - double_well.potential(flow - grid))
        x1 = np.interp(rng.random(n), np.cumsum(density) / density.sum(), grid)
        rest = sum(rng.normal(scale=v**0.5, size=n) ** 2 for v in STIFF.variances()[WELLS:])
        near = np.abs(x1**2 + (flow - x1) ** 2 + rest - 8.0) < 0.03
        return x1[near], int(near.sum())

    points, cdf = marginal_with_flow(8.0)
    found, count = quantiles(FLOW)
    assert count > 300
    distance = np.abs((found[:, None] < points[None, ::40]).mean(0) - cdf[::40]).max()
    assert distance < 1.95 / count**0.5  # Kolmogorov, one in a thousand
    other, count = quantiles(FLOW + 0.5)
    assert np.abs((other[:, None] < points[None, ::40]).mean(0) - cdf[::40]).max() > 1.95 / count**0.5


def test_the_iterative_projection_ends_where_the_closed_form_does() -> None:
    plane, sphere = members()
    z = torch.randn((20, 50), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    opaque = (casal.FromProjection(part.project, part.violation) for part in (plane, sphere))
    both = casal.Intersection(*opaque, way="alternating")
    torch.testing.assert_close(both.project(z), (plane & sphere).project(z), atol=1e-8, rtol=0)


def test_loose_projections_at_first_save_work_and_end_strict() -> None:
    table, data = tightening_study(20, 20, 1, lambda line: None)
    rows = {(row["method"], row["budget"]): row for row in data["tight"]}
    tight, *loose = budgets()
    for method in ("CASAL", "released code", "projected"):
        assert all(rows[method, name]["projections"] < 0.8 * rows[method, tight]["projections"] for name in loose)
        assert all(row["feasible"] == 1.0 for key, row in rows.items() if key[0] == method)
    assert len(table.rows) == 3 * (len(budgets()) + 1) + 1
