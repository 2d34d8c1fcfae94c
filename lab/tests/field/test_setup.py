"""The exact answer of the field problem against rejection and independent figures; the decoder of its pictures."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from casal_lab.field.grid import TAUS
from casal_lab.field.setup import OURS, SCRIPT, script_ramp
from casal_lab.problems import double_well
from casal_lab.problems.field import (
    EXPECTED,
    STIFF,
    WELLS,
    Setup,
    conditional,
    quantile_distance,
    sampling_floor,
    share_right,
    squares_density,
)


@pytest.mark.parametrize("energy", [15.0, 12.0, 10.0, 8.0])
def test_the_share_of_the_right_well(energy: float) -> None:
    assert share_right(STIFF, energy) == pytest.approx(EXPECTED[energy], abs=2e-4)


def test_moments_and_quantiles() -> None:
    grid, cdf = conditional(STIFF, 15.0)
    mass = np.diff(cdf)
    middle = (grid[1:] + grid[:-1]) / 2
    mean = float((mass * middle).sum())
    assert mean == pytest.approx(-2.6120, abs=2e-4)
    assert float(np.sqrt((mass * (middle - mean) ** 2).sum())) == pytest.approx(0.7016, abs=2e-4)
    quantiles = np.interp([0.05, 0.25, 0.5, 0.75, 0.95], cdf, grid)
    np.testing.assert_allclose(quantiles, [-3.336, -2.960, -2.704, -2.424, -1.850], atol=2e-3)


def test_the_density_of_a_weighted_chi_square_integrates_to_its_moments() -> None:
    weights = np.array([0.3, 0.3, 0.7, 1.1])
    s, density = squares_density(weights, top=64.0)
    spacing = s[1] - s[0]
    assert density.sum() * spacing == pytest.approx(1.0, abs=1e-6)
    assert (s * density).sum() * spacing == pytest.approx(weights.sum(), abs=1e-3)
    assert (s**2 * density).sum() * spacing == pytest.approx(weights.sum() ** 2 + 2 * (weights**2).sum(), abs=1e-2)


def by_rejection(setup: Setup, energy: float, within: float, n: int) -> tuple[float, int]:
    """P(x1 > 0) among unconstrained draws whose energy is near the level, and how many there are."""
    rng = np.random.default_rng(0)
    grid = np.linspace(-6.0, 5.0, 20001)
    density = np.exp(-double_well.potential(grid))
    wells = np.interp(rng.random((n, WELLS)), np.cumsum(density) / density.sum(), grid)
    rest = sum(rng.normal(scale=v**0.5, size=n) ** 2 for v in setup.variances()[WELLS:])
    near = np.abs((wells**2).sum(1) + rest - energy) < within
    return float((wells[near, 0] > 0).mean()), int(near.sum())


def test_the_exact_law_is_what_rejection_gives() -> None:
    found, count = by_rejection(STIFF, 10.0, 0.05, 400_000)
    exact = share_right(STIFF, 10.0)
    assert count > 500
    assert abs(found - exact) < 4 * (exact * (1 - exact) / count) ** 0.5


def test_the_field_is_the_sum_of_its_waves_and_keeps_the_energy() -> None:
    x = torch.randn((3, 50), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    fields = STIFF.decoded(x)
    torch.testing.assert_close(fields.square().sum((1, 2, 3)), x.square().sum(1))
    s, c = np.arange(100), x[0].numpy().reshape(5, 5, 2)
    direct = sum(
        (c[i, j, 0] + 1j * c[i, j, 1]) * np.exp(2j * np.pi * (i * s[:, None] + j * s[None, :]) / 100) / 100
        for i in range(5)
        for j in range(5)
    )
    np.testing.assert_allclose(fields[0, 0].numpy(), np.real(direct), atol=1e-12)
    np.testing.assert_allclose(fields[0, 1].numpy(), np.imag(direct), atol=1e-12)
    assert float(fields[0, 0].mean()) * 100 == pytest.approx(float(x[0, 0]))


def test_the_step_sizes_are_stable() -> None:
    for tau in TAUS:
        assert tau * float(1 / STIFF.variances()[WELLS:].min() + STIFF.rho[1]) < 2.0
        assert tau * STIFF.rho[1] <= 1.0


def test_the_quantiles_of_the_law_are_those_of_its_density() -> None:
    grid, cdf = conditional(STIFF, 15.0)
    assert cdf[0] == 0.0
    assert cdf[-1] == pytest.approx(1.0)
    assert (np.diff(cdf) >= 0).all()
    assert float(np.interp(0.5, cdf, grid)) == pytest.approx(-2.704, abs=2e-3)


def test_the_floor_is_what_exact_draws_reach() -> None:
    grid = np.linspace(0, 1, 2001)
    assert sampling_floor(grid, grid, 1000) == pytest.approx(np.sqrt(np.pi / 32 / 1000) * 1.0, rel=0.1)
    assert quantile_distance((np.arange(100) + 0.5) / 100, grid, grid) == pytest.approx(0.0, abs=1e-12)


def test_the_ramp_of_the_script() -> None:
    """rho is zero for 1000 of 10,000 steps (burn_in), then the index divided by 100, rounded down."""
    values = script_ramp(range(10_000)).numpy()
    np.testing.assert_array_equal(values[1000:], np.arange(1000, 10_000) // 100)
    assert (SCRIPT.burn_in, SCRIPT.steps, SCRIPT.largest) == (0.1, 10_000, values[-1])


def test_the_condition_of_the_proposition_is_met_by_no_settings() -> None:
    """4 tau (beta + 4 rho) with tau = 1e-3, beta = 443, rho = 99 and 20."""
    beta = 10.0 * (1 + 32**0.5) ** 2
    assert SCRIPT.condition()[0] == pytest.approx(4e-3 * (beta + 4 * 99))
    assert OURS.condition()[0] == pytest.approx(4e-3 * (beta + 4 * 20))
    assert min(min(means.condition()) for means in (SCRIPT, OURS)) > 1.0
