"""LookAhead with soft terms: on a Gaussian, linear and quadratic terms give a Gaussian, on any set, in closed form."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import casal
from casal.methods.look_ahead.look import quadratic
from casal_lab.problems.anisotropic_mixture import AnisotropicMixture
from casal_lab.problems.many_dimensions import Problem, reward
from casal_lab.problems.modes import ModeDistribution

D, N = 16, 256
METHOD = casal.LookAhead(levels=40, moves=1)

LARGEST_Z = 1.0 + 3 * 0.18 + 0.2
"""z of exact draws is 1 with a standard deviation of 1 / sqrt(2 D); 0.2 is what weighted chains may lose."""

VARIANCE = 4 * math.sqrt(2 / (N * D))
"""Four standard errors of the mean variance ratio."""


def far_half_space(problem: Problem) -> tuple[casal.Constraint, ModeDistribution]:
    """A half-space that one in 15 samples of the weighted Gaussian is in, and the distribution there."""
    whole, basis = problem.exact, problem.exact.bases[0]
    assert basis is not None
    weighted = AnisotropicMixture(torch.ones(1), (basis @ whole.means[0])[None], [basis], whole.variances)
    a = torch.randn(D, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    level = float(a @ weighted.means[0] + 1.5 * (a @ weighted.covariance(0) @ a).sqrt())
    return casal.HalfSpace(-a, -level), weighted.restricted_to_slabs(a, level, math.inf)


def samples(problem: Problem, constraint: casal.Constraint | None = None) -> Tensor:
    constraint = problem.constraint if constraint is None else constraint
    result = casal.sample(problem.target, constraint, METHOD, N, seed=1, check=False)
    assert bool(result.certificate.feasible.all())
    return result.samples


@pytest.mark.statistical
@pytest.mark.parametrize("equation", [False, True])
@pytest.mark.parametrize("bent", [False, True])
def test_means_and_variances_are_those_of_the_weighted_gaussian(bent: bool, equation: bool) -> None:
    problem = reward(D, 1, bent=bent, equation=equation)
    score = problem.exact.score(samples(problem))
    assert score.z < LARGEST_Z
    assert abs(score.variance_ratio - 1) < VARIANCE


@pytest.mark.statistical
def test_a_half_space_stays_strict_beside_the_term() -> None:
    problem = reward(D, 2, bent=True, equation=False)
    constraint, exact = far_half_space(problem)
    score = exact.score(samples(problem, constraint))
    assert score.z < LARGEST_Z
    assert abs(score.variance_ratio - 1) < VARIANCE


@pytest.mark.statistical
def test_leaving_the_term_out_is_seen() -> None:
    problem = reward(D, 1, bent=True, equation=True)
    score = problem.exact.score(samples(replace(problem, log_weight=None)))
    assert score.z > 2 * LARGEST_Z
    assert score.variance_ratio > 1 + 2 * VARIANCE


def test_two_terms_count_as_their_sum() -> None:
    problem, quick = reward(D, 1, bent=False, equation=True), casal.LookAhead(levels=8, moves=1, path=3)
    term = problem.log_weight
    assert term is not None
    half = replace(problem, log_weight=lambda x: term(x) / 2)
    twice = casal.tilted(half.target, lambda x: term(x) / 2)
    one, other = (casal.sample(t, problem.constraint, quick, 16, check=False).samples for t in (problem.target, twice))
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def gaussian_reward() -> casal.Target:
    """A standard Gaussian in 32 dimensions with a linear reward that moves its mean by 3 deviations."""
    levels = casal.karras_sigmas(20, 0.02, 20.0)
    prior = casal.edm(lambda x, s: x / (1 + s**2), levels, shape=32, churn=1.0, dtype=torch.float64)
    return casal.tilted(prior, lambda x: 3.0 * x.mean(1) * 32**0.5)


@pytest.mark.statistical
def test_a_linear_reward_keeps_the_ancestors() -> None:
    """The look at it is exact at every level, so that nothing is lost; softened it left fewer than half of them."""
    result = casal.sample(gaussian_reward(), casal.Box(-math.inf, math.inf), METHOD, N, seed=1, check=False)
    assert int(result.trace["ancestors"][-1]) > 0.8 * N
    error = (result.samples.mean(0) - 3.0 / 32**0.5) * N**0.5
    assert float(error.square().mean().sqrt()) < 1.0 + 4 / 8


def test_quadratic_terms_are_told_from_others() -> None:
    points = torch.randn((4, 5), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    a = torch.linspace(-1.0, 2.0, 5, dtype=torch.float64)
    for term in (lambda x: x @ a, lambda x: -((x @ a - 1.0) ** 2), lambda x: x.square().sum(1) - x[:, 0]):
        assert quadratic(term, points) and quadratic(lambda x, t=term: t(x.double()).float(), points.float())
    for term in (
        lambda x: -x.abs().sum(1),
        lambda x: x.sin().sum(1),
        lambda x: -x.pow(4).sum(1),
        lambda x: x.cosh().log().sum(1),
    ):
        assert not quadratic(term, points)
