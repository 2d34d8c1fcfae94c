"""Intersections: what merges, what is empty, budgets."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import casal
from casal.constraints import (
    Affine,
    Ball,
    Box,
    Budget,
    Constraint,
    Ellipsoid,
    FromProjection,
    MassEnergy,
    Sphere,
    tightening,
)
from casal.errors import InfeasibleSet

from .small_sets import BALL, BOX, POINTS, SPHERE, SUM


@pytest.mark.slow
def test_closed_form_equals_the_iteration_it_replaces() -> None:
    for closed, parts in ((SUM & SPHERE, (SUM, SPHERE)), (MassEnergy(0.5, 4.0), (SUM, SPHERE))):
        y = POINTS
        for _ in range(3000):
            y = parts[1].project(parts[0].project(y))
        torch.testing.assert_close(closed.project(POINTS), y, atol=1e-10, rtol=0)


def test_equation_and_sphere_is_the_mass_energy_set() -> None:
    torch.testing.assert_close((SUM & SPHERE).project(POINTS), MassEnergy(0.5, 4.0).project(POINTS), atol=1e-12, rtol=0)
    x = POINTS
    ours, theirs = (c.log_tube_factor(x, c.project(x)) for c in (SUM & SPHERE, MassEnergy(0.5, 4.0)))
    assert ours is not None and theirs is not None
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: Sphere(1.0) & Affine([[1.0, 0.0]], 2.0), "2 away from the centre, beyond the radius 1"),
        (lambda: Ball(1.0) & Affine([[1.0, 0.0]], 2.0), "beyond the radius"),
        (lambda: Box(0, 1) & Box(2, 3), "low = 2, high = 1"),
        (lambda: Ball(1.0) & Ball(1.0, [3.0, 0.0]), "centres 3 apart"),
        (lambda: Sphere(1.0) & Sphere(2.0), "strictly inside"),
        (lambda: Affine([[1.0, 0.0]], 0.0) & Affine([[2.0, 0.0]], 1.0), "no solution"),
        (lambda: Box(0.0, 1.0) & Affine([[1.0, 1.0]], 3.0), "3"),
    ],
)
def test_empty_intersections_that_can_be_proved_empty_are_refused(build: Callable[[], Constraint], says: str) -> None:
    with pytest.raises(InfeasibleSet, match=says):
        build()


@pytest.mark.slow
def test_empty_intersections_that_cannot_be_proved_empty_flag_every_chain() -> None:
    apart = Ellipsoid([1.0, 1.0]) & FromProjection(
        lambda z: Ball(1.0, [3.0, 0.0]).project(z),
        lambda z: Ball(1.0, [3.0, 0.0]).violation(z),
        convex=True,
        exact=False,
    )
    found = apart.solve(torch.randn((5, 2), generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    assert not bool(found.converged.any())
    assert bool((found.residual > 0.05).all()) and bool((found.residual < 1.5).all())


def test_a_loose_budget_is_loose_and_says_so() -> None:
    pair = BALL & BOX
    rough, fine = pair.solve(POINTS, budget=Budget(1e-12, 2)), pair.solve(POINTS)
    assert not bool(rough.converged.all()) and bool(fine.converged.all())
    assert int(rough.iterations.max()) <= 2 < int(fine.iterations.max())


@pytest.mark.slow
def test_loose_projections_inside_the_loop_still_end_in_strict_samples() -> None:
    calls: list[int] = []

    def counted(z: torch.Tensor) -> torch.Tensor:
        calls.append(len(z))
        return BOX.project(z)

    pair = BALL & FromProjection(counted, BOX.violation, convex=True)
    target = casal.langevin(lambda x: x - 1.0, steps=60, step_size=0.02, init=POINTS)
    used = {}
    for name, budget in (("full", None), ("loose", tightening(1e-1, 1e-6)), ("three", Budget(1e-12, 3))):
        calls.clear()
        result = casal.sample(target, pair, casal.CASAL(20.0), len(POINTS), seed=0, budget=budget)
        assert float(result.certificate.violation.max()) <= 1e-10
        used[name] = sum(calls)
    assert used["loose"] < 0.7 * used["full"]
    assert used["three"] < 0.7 * used["full"]
