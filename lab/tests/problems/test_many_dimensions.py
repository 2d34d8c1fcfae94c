"""The problems in many dimensions: their sets, weights and probabilities are what they say, fresh for every seed."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from casal import Affine
from casal.errors import SettingError
from casal_lab.problems.many_dimensions import (
    HEADROOM,
    HIGH,
    LAST,
    LEVELS,
    Problem,
    box_on_four,
    four_equations,
    four_equations_and_norm,
    half_space,
    mass_energy,
    nonnegative,
    nonnegative_field,
    nonnegative_modes,
    norm,
    observed_and_norm,
)

D, N = 64, 200

PROBLEMS: dict[str, Callable[[int], Problem]] = {
    "four equations": lambda seed: four_equations(D, seed),
    "mass and energy": lambda seed: mass_energy(D, seed),
    "four equations and norm": lambda seed: four_equations_and_norm(D, seed),
    "norm above": lambda seed: norm(D, seed, 4.0),
    "norm below": lambda seed: norm(D, seed, -2.0),
    "half-space": lambda seed: half_space(D, seed),
    "box on four": lambda seed: box_on_four(D, seed),
    "values and norm": lambda seed: observed_and_norm(256, seed, 2.5),
    "nonnegative": lambda seed: nonnegative(D, seed),
    "nonnegative field": lambda seed: nonnegative_field(16, seed, False),
    "nonnegative field of given sum": lambda seed: nonnegative_field(16, seed, True),
    "nonnegative modes": lambda seed: nonnegative_modes(D, seed),
}


@pytest.mark.statistical
@pytest.mark.parametrize("name", PROBLEMS)
def test_exact_draws_are_on_the_set_and_score_one(name: str) -> None:
    problem = PROBLEMS[name](3)
    generator = torch.Generator().manual_seed(0)
    runs = [problem.exact.draw(N, generator) for _ in range(4)]
    for x in runs:
        assert float(problem.constraint.violation(x).max()) < 1e-11
    score = problem.exact.score(runs)
    assert 0.75 < score.z < 1.25
    assert 0.93 < score.variance_ratio < 1.07
    assert score.pooled_total_variation <= 4 * problem.exact.floor(4 * N)
    # Power: draws of the prior are elsewhere.
    prior = problem.prior.sample(N, generator)
    assert float(problem.constraint.violation(prior).max()) > 1e-3


@pytest.mark.parametrize("name", PROBLEMS)
def test_instances_follow_the_seed(name: str) -> None:
    first, again, other = (PROBLEMS[name](seed) for seed in (1, 1, 2))
    assert first.name == again.name
    torch.testing.assert_close(first.prior.means, again.prior.means, rtol=0, atol=0)
    torch.testing.assert_close(first.prior.variances, again.prior.variances, rtol=0, atol=0)
    assert not torch.equal(first.prior.variances, other.prior.variances) or not torch.equal(
        first.prior.means, other.prior.means
    )


@pytest.mark.parametrize("make", [four_equations, mass_energy, four_equations_and_norm, nonnegative_modes])
def test_every_mode_keeps_weight(make: Callable[[int, int], Problem]) -> None:
    for seed in range(6):
        assert float(make(D, seed).exact.weights.min()) >= 0.03


def test_changed_weights_belong_to_the_changed_prior() -> None:
    problem = four_equations(D, 2)
    assert float(problem.prior.weights.max()) not in (0.2, 0.3) and float(problem.exact.weights.min()) == pytest.approx(
        0.05
    )
    assert isinstance(problem.constraint, Affine)
    anew = problem.prior.restricted_to(problem.constraint.A, problem.constraint.b.reshape(-1))
    torch.testing.assert_close(problem.exact.log_masses, anew.log_masses)
    x = problem.prior.sample(5, torch.Generator().manual_seed(0))
    torch.testing.assert_close(problem.exact.responsibilities(x), anew.responsibilities(x))


@pytest.mark.parametrize("name", ["mass and energy", "values and norm", "nonnegative field"])
def test_target_is_the_diffusion_of_the_prior(name: str) -> None:
    problem = PROBLEMS[name](0)
    sigma = problem.target.table.sigma
    assert sigma is not None
    assert len(sigma) == LEVELS and float(sigma[-1]) == pytest.approx(LAST)
    expected = HIGH if "nonnegative" in name else HEADROOM * problem.largest_spread
    assert float(sigma[0]) == pytest.approx(expected)
    x = problem.prior.sample(3, torch.Generator().manual_seed(0))
    level = sigma[LEVELS // 2]
    assert problem.target.denoise is not None
    torch.testing.assert_close(problem.target.denoise(x, level), problem.prior.denoise(x, level))


def test_largest_spread_is_at_most_that_of_the_covariance_and_its_modes() -> None:
    problem = four_equations(D, 0)
    x = problem.prior.sample(20_000, torch.Generator().manual_seed(0))
    total = float(torch.linalg.eigvalsh(torch.cov(x.T))[-1].sqrt())
    assert 0.97 * total < problem.largest_spread < 2 * total


def test_probabilities_are_those_of_the_names() -> None:
    for seed in range(2):
        assert half_space(D, seed).exact.log_probability == pytest.approx(math.log(0.00621), abs=1e-3)
        assert box_on_four(D, seed).exact.log_probability == pytest.approx(math.log(2e-4), abs=1e-3)
        prior, after = nonnegative_modes(D, seed).prior.weights, nonnegative_modes(D, seed).exact.weights
        assert float(prior[0] / prior[1] * after[1] / after[0]) == pytest.approx(math.exp(3), rel=1e-6)
        assert 1 <= float(after[0] / after[1]) <= 2


@pytest.mark.statistical
@pytest.mark.parametrize("deviations", [4.0, -2.0])
def test_norm_is_that_far_out(deviations: float) -> None:
    problem = norm(D, 5, deviations)
    squares = problem.prior.sample(40_000, torch.Generator().manual_seed(0)).square().sum(1)
    radius = problem.constraint.radius  # type: ignore[attr-defined]
    assert float((radius**2 - squares.mean()) / squares.std()) == pytest.approx(deviations, abs=0.1)


def test_truth_fits_values_and_norm() -> None:
    problem = observed_and_norm(256, 0, -2.0)
    assert problem.truth is not None
    assert float(problem.constraint.violation(problem.truth[None])) < 1e-11
    # It is as far from the exact mean as the variances say.
    ratio = (problem.truth - problem.exact.mean).square().sum() / problem.exact.variances.sum()
    assert 0.5 < float(ratio) < 2


def test_impossible_problems_are_refused() -> None:
    with pytest.raises(SettingError, match="square number"):
        observed_and_norm(200, 0, 2.5)
    with pytest.raises(SettingError, match="deviations below its mean"):
        norm(D, 0, -30.0)
