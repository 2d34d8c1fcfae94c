"""Ellipsoids against a nonlinear solver and their own equation, and distances that come with a foot."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from casal.constraints import Ball, Box, Constraint, Ellipsoid, PerChain, Sphere

from .closed_form_cases import form, ramp
from .points import normal, one

Q = form(5, 50.0, 0).numpy()
CENTER = ramp(5)


@pytest.mark.parametrize("seed", range(6))
def test_ellipsoids_agree_with_a_nonlinear_solver(seed: int) -> None:
    z, center = 3.0 * normal(5, seed=seed).numpy(), CENTER.numpy()
    answer = minimize(
        lambda x: ((x - z) ** 2).sum(),
        center,
        jac=lambda x: 2 * (x - z),
        constraints={
            "type": "ineq",
            "fun": lambda x: 1 - (x - center) @ Q @ (x - center),
            "jac": lambda x: -2 * Q @ (x - center),
        },
        options={"ftol": 1e-16, "maxiter": 500},
    )
    np.testing.assert_allclose(one(Ellipsoid(Q, CENTER), z), answer.x, rtol=0, atol=1e-6)


@pytest.mark.parametrize("aspect", [1.0, 1e3, 1e9, 1e60])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e5, 1e40])
def test_ellipsoid_satisfies_the_secular_equation(aspect: float, size: float) -> None:
    axes = torch.logspace(-math.log10(aspect), 0, 6, dtype=torch.float64)
    z = size * normal(200, 6, seed=11)
    z = z[(z / axes).square().sum(1) > 1]
    if not len(z):
        return
    foot = Ellipsoid(axes).project(z)
    gauge = (foot / axes).square().sum(1).sqrt()
    assert float((gauge - 1).abs().max()) <= 1e-14
    # z - p = mu p / s^2 with one mu >= 0 for all coordinates; it is read from the coordinate that shows it best.
    biggest = ((z - foot) / z).abs().argmax(1, keepdim=True)
    mu = ((z - foot) * axes.square() / foot).gather(1, biggest)
    assert bool((mu >= 0).all())
    gap = (z - foot - mu * (foot / axes) / axes).abs()
    assert bool((gap <= 1e-13 * (z.abs() + foot.abs() + (mu * foot / axes / axes).abs())).all())


def test_ellipsoid_nearly_touched_and_far_away() -> None:
    ellipsoid = Ellipsoid([1.0, 2.0], torch.tensor([5.0, -5.0]))
    for offset in (1e-15, 1e-12, 1e-6, 1.0, 1e6, 1e150, 1e300):
        np.testing.assert_allclose(one(ellipsoid, [6.0 + offset, -5.0]), [6.0, -5.0], rtol=0, atol=2e-15)
    inside = torch.tensor([[5.3, -4.0]], dtype=torch.float64)
    assert torch.equal(ellipsoid.project(inside), inside) and float(ellipsoid.violation(inside)) == 0.0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize(
    "constraint",
    [
        Sphere(2.0),
        Sphere(0.5, torch.tensor([1.0, -2.0, 0.5])),
        Sphere(PerChain(torch.linspace(0.5, 3.0, 20))),
        Ball(1.0),
        Box(-0.5, 0.5),
    ],
    ids=repr,
)
def test_a_foot_comes_with_its_distance(constraint: Constraint, dtype: torch.dtype) -> None:
    z = 2.0 * torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    foot, half = constraint.project_fast_half(z)
    assert torch.equal(foot, constraint.project_fast(z)) and half.dtype == torch.float64
    exact = (z.double() - constraint.project(z.double())).square().sum(1) / 2
    close = 1e-13 if dtype == torch.float64 else 2e-6
    torch.testing.assert_close(half, exact, rtol=close, atol=close)
