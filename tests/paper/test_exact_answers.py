"""The exact answers the experiments are measured against, checked against figures found independently."""

from __future__ import annotations

import numpy as np
import pytest

from casal.lab.problems import field, particle
from casal.lab.problems.base import quantile_distance, sampling_floor, share


def test_particle() -> None:
    exact = particle.exact_answer()
    assert exact["wrong"] == pytest.approx(7.06e-8, rel=2e-3)
    assert exact["mean_x"] == pytest.approx(-2.99831, abs=1e-5)
    assert exact["sd_y"] == pytest.approx(0.10067, abs=1e-5)


@pytest.mark.parametrize("energy", [15.0, 12.0, 10.0, 8.0])
def test_field_share_of_the_right_well(energy: float) -> None:
    assert field.exact_right(energy) == pytest.approx(field.EXPECTED[energy], abs=2e-4)


def test_field_moments_and_quantiles() -> None:
    grid, cdf = field.exact_law(15.0)
    mass = np.diff(cdf)
    middle = (grid[1:] + grid[:-1]) / 2
    mean = float((mass * middle).sum())
    assert mean == pytest.approx(-2.6120, abs=2e-4)
    assert float(np.sqrt((mass * (middle - mean) ** 2).sum())) == pytest.approx(0.7016, abs=2e-4)
    quantiles = np.interp([0.05, 0.25, 0.5, 0.75, 0.95], cdf, grid)
    np.testing.assert_allclose(quantiles, [-3.336, -2.960, -2.704, -2.424, -1.850], atol=2e-3)


def test_the_density_of_a_weighted_chi_square_integrates_to_its_moments() -> None:
    weights = np.array([0.3, 0.3, 0.7, 1.1])
    s, density = field.squares_density(weights, top=64.0)
    spacing = s[1] - s[0]
    assert density.sum() * spacing == pytest.approx(1.0, abs=1e-6)
    assert (s * density).sum() * spacing == pytest.approx(weights.sum(), abs=1e-3)
    assert (s**2 * density).sum() * spacing == pytest.approx(weights.sum() ** 2 + 2 * (weights**2).sum(), abs=1e-2)


def test_the_gradient_is_that_of_the_potential() -> None:
    import torch

    from casal.lab.problems import double_well

    x = torch.linspace(-3, 2, 11, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(double_well.potential(x).sum(), x)
    torch.testing.assert_close(slope, double_well.slope(x.detach()))


def test_the_floor_is_what_exact_draws_reach() -> None:
    grid = np.linspace(0, 1, 2001)
    assert sampling_floor(grid, grid, 1000) == pytest.approx(np.sqrt(np.pi / 32 / 1000) * 1.0, rel=0.1)
    assert quantile_distance((np.arange(100) + 0.5) / 100, grid, grid) == pytest.approx(0.0, abs=1e-12)


def test_a_share_of_zero_has_an_error() -> None:
    assert share(0, 1000)[0] == 0.0
    assert 0 < share(0, 1000)[1] < 0.005
