"""Linear equations that are taken into a Gaussian model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import casal
from casal import LookAhead
from casal.errors import SettingError
from casal.methods.look_ahead.features import features_of
from casal.methods.look_ahead.given import straight
from casal.methods.look_ahead.look import Derivative

from .gaussian import DIRECTIONS, Prior, close, correlated, normal, problem_for

D, K, S = 20, 14, 0.8
PRIOR = correlated(D)
A = normal(11, K, D)
Y = A @ PRIOR.mean + normal(12, K)
EQUATIONS = casal.Affine(A, Y)
METHOD = LookAhead(levels=24, moves=1, path=5, gaussian=True)


def conditional(prior: Prior, A: Tensor, y: Tensor) -> Prior:
    """N(mean, covariance) given A x = y, by the textbook."""
    gain = torch.linalg.solve(A @ prior.covariance @ A.T, A @ prior.covariance)
    return Prior(prior.mean + (y - A @ prior.mean) @ gain, prior.covariance - prior.covariance @ A.T @ gain)


def modes(x: Tensor, s: Tensor) -> Tensor:
    """The denoiser of two modes at +-(1, ..., 1) of unit variance."""
    total = 1.0 + s.to(x) ** 2
    return (x + s.to(x) ** 2 * torch.tanh(x.sum(1, keepdim=True) / total)) / total


def two_modes() -> casal.Target:
    return casal.edm(modes, casal.karras_sigmas(20, 0.02, 20.0), shape=D, churn=1.0, dtype=torch.float64)


def test_the_denoiser_given_the_equations_and_its_derivative_are_those_of_the_conditional_gaussian() -> None:
    problem, x = problem_for(PRIOR, EQUATIONS), 2.0 * normal(13, 6, D)
    given = features_of(problem, DIRECTIONS, gaussian=True).given
    assert given is not None
    model, wanted = Derivative(problem, x, S, given), conditional(PRIOR, A, Y)
    close(model.estimate, wanted.denoise(x, torch.tensor(S, dtype=torch.float64)), 1e-9)
    v = normal(14, D)
    close(model.pull(v), v @ wanted.gain(S), 1e-9)
    close(given.start(problem, x, S), _at_zero(wanted, S) - _at_zero(PRIOR, S), 1e-9)


def _at_zero(prior: Prior, s: float) -> Tensor:
    return prior.denoise(torch.zeros(1, D, dtype=torch.float64), torch.tensor(s, dtype=torch.float64))


def test_every_chain_may_have_values_of_its_own() -> None:
    x, values = normal(13, 3, D), Y + normal(15, 3, K)
    problem = problem_for(PRIOR, casal.Affine(A, casal.PerChain(values)))
    given = features_of(problem, DIRECTIONS, gaussian=True).given
    found = Derivative(problem, x, S, given).estimate
    for point, value, own in zip(x, values, found, strict=True):
        close(own, conditional(PRIOR, A, value).denoise(point[None], torch.tensor(S, dtype=torch.float64))[0], 1e-9)


def test_the_other_rows_are_counted_without_them() -> None:
    both = EQUATIONS & casal.Sphere(9.0)
    whole, rest = (features_of(problem_for(PRIOR, both), DIRECTIONS, gaussian=c) for c in (False, True))
    assert (whole.count, whole.norm, whole.shared) == (K + 1, K, K)
    assert (rest.count, rest.norm, rest.shared, rest.equal) == (1, 0, 0, 1)


def test_a_model_that_is_not_gaussian_is_refused() -> None:
    with pytest.raises(SettingError, match="is not Gaussian"):
        casal.sample(two_modes(), EQUATIONS, METHOD, 32, check=False)
    assert straight(1e-8, torch.float64) and not straight(1e-4, torch.float64) and straight(1e-4, torch.float32)


@pytest.mark.statistical
def test_means_and_variances_given_the_equations() -> None:
    """400 chains; within 4.5 standard errors, which one projection of free samples misses by far."""
    law, n = conditional(PRIOR, A, Y), 400
    spread = law.covariance.diagonal().sqrt()

    def off(method: casal.Method) -> tuple[float, float]:
        result = casal.sample(PRIOR.target(), EQUATIONS, method, n, seed=5, check=False)
        assert float(result.certificate.violation.max()) < 1e-12
        centred = (result.samples - law.mean) / spread
        return float(centred.mean(0).abs().max()) * n**0.5, float((centred.square().mean(0) - 1).abs().max())

    mean, variance = off(METHOD)
    assert mean < 4.5 and variance < 4.5 * (2 / n) ** 0.5
    assert off(casal.FinalProjection())[0] > 9.0


def test_it_costs_what_is_said_and_keeps_its_ancestors() -> None:
    law = conditional(PRIOR, A, Y)
    square = float(law.mean.square().sum() + 1.5 * law.covariance.trace())
    constraint, n = EQUATIONS & casal.Sphere(square**0.5), 64
    result = casal.sample(PRIOR.target(), constraint, METHOD, n, check=False)
    said = METHOD.evaluations(problem_for(PRIOR, constraint), n)
    assert said - 1 < result.cost.score_evaluations <= said
    assert float(result.certificate.violation.max()) < 1e-12
    assert len(result.ancestors.unique()) > 0.7 * n


def test_auto_conditions_gaussian_models_only() -> None:
    assert "since the model is Gaussian" in _said(PRIOR.target(), EQUATIONS & casal.Sphere(9.0))
    assert "Matheron" in _said(PRIOR.target(), EQUATIONS)
    assert "since the model is Gaussian" not in _said(PRIOR.target(), casal.Sphere(9.0))
    assert "since the model is Gaussian" not in _said(two_modes(), casal.Affine(A[:2], Y[:2]))


def _said(target: casal.Target, constraint: casal.Constraint) -> str:
    from casal.methods import Problem
    from casal.sampling.adapt import adapt

    like = torch.zeros((0, D), dtype=torch.float64)
    problem = Problem(target, constraint, casal.Identity(), like)

    def points(chains: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return 20.0 * torch.randn((len(chains), D), generator=generator, dtype=torch.float64)

    return str(adapt(problem, "auto", 256, points, seed=0, check=False).choice)
