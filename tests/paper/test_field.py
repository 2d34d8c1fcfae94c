"""The field problem: its exact law, its pictures' decoder, the methods and the ablations in small."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from casal.constraints import Sphere
from casal.lab.problems import double_well, field
from casal.lab.problems.base import Outcome, quantile_distance
from casal.lab.problems.field_ablations import DualScale, _settled, dual_ablation, schedules, variants
from casal.lab.problems.field_setup import EXPECTED, SOFT, STIFF, WELLS, Setup, conditional, share_right
from casal.sampling import sample


def by_rejection(setup: Setup, energy: float, within: float, n: int) -> tuple[float, int]:
    """P(x1 > 0) among unconstrained draws whose energy is near the level, and how many there are."""
    rng = np.random.default_rng(0)
    grid = np.linspace(-6.0, 5.0, 20001)
    density = np.exp(-double_well.potential(grid))
    wells = np.interp(rng.random((n, WELLS)), np.cumsum(density) / density.sum(), grid)
    rest = sum(rng.normal(scale=v**0.5, size=n) ** 2 for v in setup.variances()[WELLS:])
    near = np.abs((wells**2).sum(1) + rest - energy) < within
    return float((wells[near, 0] > 0).mean()), int(near.sum())


@pytest.mark.parametrize(("setup", "energy"), [(STIFF, 10.0), (SOFT, 12.0)], ids=["paper", "less stiff"])
def test_the_exact_law_is_what_rejection_gives(setup: Setup, energy: float) -> None:
    found, count = by_rejection(setup, energy, 0.05, 400_000)
    exact = share_right(setup, energy)
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


@pytest.mark.parametrize("energy", EXPECTED)
def test_weighted_casal_follows_the_exact_law_on_every_level(energy: float) -> None:
    target, method = field.cases(energy, 500)["WeightedCASAL"]
    result = sample(target, Sphere(energy**0.5), method, 1500, seed=0)
    x = result.samples[:, 0].numpy()
    assert quantile_distance(x, *field.exact_law(energy)) < 0.12
    exact = EXPECTED[energy]
    assert abs(float((x > 0).mean()) - exact) < 6 * (exact * (1 - exact) / 1500) ** 0.5
    assert bool(result.certificate.feasible.all())


def test_on_the_less_stiff_set_up_annealing_is_enough_and_a_small_constant_is_not() -> None:
    shares = {}
    for name in ("constant, small", "linear"):
        method = variants(SOFT, schedules(SOFT)[name])["released code"]
        result = sample(SOFT.plain(1000), Sphere(SOFT.energy**0.5), method, 400, seed=0)
        shares[name] = float((result.samples[:, 0] > 0).double().mean())
    assert shares["constant, small"] > 0.3
    assert shares["linear"] < 0.1


def test_the_step_sizes_are_stable() -> None:
    for setup in (STIFF, SOFT):
        assert setup.step_size * float(1 / setup.variances()[WELLS:].min()) < 2.0
        assert setup.step_size * setup.rho[1] <= 1.0


def test_a_large_start_of_the_dual_takes_longer_to_forget() -> None:
    table, data = dual_ablation(DualScale((0.0, 1.0, 5.0), 1200), lambda line: None)
    steps = [row["0.01"] for row in table.rows]
    assert steps[0] < steps[1] < steps[2]
    assert set(data["dual"][0.01]) == {0.0, 1.0, 5.0}


def test_settled() -> None:
    steps, norms = np.array([10.0, 20.0, 30.0, 40.0]), np.array([3.0, 0.5, 2.0, 0.5])
    assert _settled(steps, norms, 1.0) == 40
    assert _settled(steps, norms, 4.0) == 10
    assert _settled(steps, norms, 0.4) is None


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return field.run(True, ["projected", "WeightedCASAL"], lambda line: None)


def test_a_run_of_two_methods(outcome: Outcome) -> None:
    assert len(outcome.tables) == len(field.ENERGIES) + 1
    for table in outcome.tables[:-1]:
        rows = {row["method"]: row for row in table.rows}
        assert rows["WeightedCASAL"]["w1"] < rows["projected"]["w1"]
        assert rows["projected"]["violation"] < 1e-8
    assert outcome.claims == []


def test_its_pictures(outcome: Outcome) -> None:
    pytest.importorskip("matplotlib")
    from casal.lab.report.figures.field import figures
    from casal.lab.report.style import styled

    with styled():
        names = set(figures(outcome))
    assert {"field_snapshots", "field_energy", "field_curves", "field_first_15", "field_first_8"} <= names


def test_the_quantiles_of_the_law_are_those_of_its_density() -> None:
    grid, cdf = conditional(STIFF, 15.0)
    assert cdf[0] == 0.0
    assert cdf[-1] == pytest.approx(1.0)
    assert (np.diff(cdf) >= 0).all()
    assert float(np.interp(0.5, cdf, grid)) == pytest.approx(-2.704, abs=2e-3)
