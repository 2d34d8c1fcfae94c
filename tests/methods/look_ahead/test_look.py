"""The look ahead on a Gaussian prior, where mean and covariance of f(x0) given x are known."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import casal
from casal.errors import SettingError
from casal.methods.look_ahead.features import features_of
from casal.methods.look_ahead.look import (
    FLOOR,
    LEAST,
    MOST_SKEWED,
    Derivative,
    look,
    moments,
    probes,
)

from .gaussian import Prior, close, correlated, diagonal, log_psi, looked, normal, problem_for

D, N, S = 7, 9, 0.8


def points(prior: Prior, seed: int = 0, n: int = N) -> Tensor:
    """Noisy points of the prior at the level S."""
    root = torch.linalg.cholesky(prior.covariance + S**2 * torch.eye(prior.size, dtype=torch.float64))
    return prior.mean + normal(10 + seed, n, prior.size) @ root.T


def clean(prior: Prior, x: Tensor) -> Tensor:
    return prior.denoise(x, torch.tensor(S, dtype=torch.float64))


# ------------------------------------------------------------------ linear rows


def test_linear_rows_have_their_exact_mean_covariance_and_slopes() -> None:
    prior, A, b = correlated(D), normal(5, 3, D), normal(6, 3)
    x = points(prior)
    seen = looked(problem_for(prior, casal.Affine(A, b)), x, S)
    rows = torch.linalg.svd(A, full_matrices=False)[2]  # the same set with orthonormal rows, up to their signs
    slopes, matrix = seen.ahead.slopes, seen.features.slopes(x)[0]
    close(matrix @ matrix.T, torch.eye(3, dtype=torch.float64))
    close(matrix.T @ matrix, rows.T @ rows)
    turn = A @ matrix.T  # A = turn matrix
    close(seen.ahead.mean @ turn.T, clean(prior, x) @ A.T - b)
    close(turn @ seen.ahead.linear @ turn.T, A @ prior.spread(S) @ A.T)
    close(slopes, matrix @ prior.gain(S))
    assert not bool(seen.ahead.bent.any()) and bool((seen.ahead.factor == 1).all())
    assert torch.equal(seen.looks.estimate, clean(prior, x))


def test_dependent_rows_are_taken_once() -> None:
    prior, A = correlated(D), normal(5, 2, D)
    twice = casal.Affine(torch.cat([A, A.sum(0, keepdim=True)]), torch.tensor([1.0, -2.0, -1.0]))
    x = points(prior)
    once, both = (looked(problem_for(prior, c), x, S) for c in (casal.Affine(A, torch.tensor([1.0, -2.0])), twice))
    assert both.features.count == 2
    close(log_psi(both), log_psi(once))


def test_a_level_for_every_chain() -> None:
    prior, A, levels = correlated(D), normal(5, 2, D), normal(7, N, 2)
    x = points(prior)
    together = looked(problem_for(prior, casal.Affine(A, casal.PerChain(levels))), x, S)
    for i in range(N):
        alone = looked(problem_for(prior, casal.Affine(A, levels[i])), x[i : i + 1], S)
        close(together.ahead.mean[i : i + 1], alone.ahead.mean)
        close(together.ahead.linear[i : i + 1], alone.ahead.linear)
        close(together.ahead.slopes[i : i + 1], alone.ahead.slopes)


def test_rows_behind_a_linear_decoder_are_rows_of_the_product() -> None:
    prior, B, a = correlated(D), normal(8, 5, D), normal(9, 2, 5)
    x, level = points(prior), torch.tensor([0.3, -1.0], dtype=torch.float64)
    behind = looked(problem_for(prior, casal.Affine(a, level), casal.Linear(B)), x, S)
    plain = looked(problem_for(prior, casal.Affine(a @ B, level)), x, S)
    assert not behind.features.curved
    one, other = (log_psi(seen) for seen in (behind, plain))
    close(one - one[0], other - other[0])  # rows in another unit: psi up to a constant
    slopes, same = behind.ahead.slopes, plain.ahead.slopes
    close(slopes.mT @ torch.linalg.pinv(slopes.mT), same.mT @ torch.linalg.pinv(same.mT))


# ------------------------------------------------------------------ norms and other quadratics


def quadratic_moments(prior: Prior, x: Tensor, H: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of x0.H x0 / 2 - offset given x: exact for any Gaussian."""
    D0, C = clean(prior, x), prior.spread(S)
    mean = (D0 @ H * D0).sum(1) / 2 + (H @ C).trace() / 2 - offset
    slope = D0 @ H
    return mean, (slope @ C * slope).sum(1) + (H @ C @ H @ C).trace() / 2


def test_a_norm_before_its_cube_root_is_a_quadratic() -> None:
    prior = diagonal(D)
    x = points(prior)
    seen = looked(problem_for(prior, casal.Sphere(3.0)), x, S)
    mean, variance = quadratic_moments(prior, x, torch.eye(D, dtype=torch.float64), torch.tensor(4.5))
    looks = seen.looks
    close(looks.values + looks.shifts[:, 0], mean[:, None])
    close(looks.values + looks.shifts[:, 1], mean[:, None])
    close((looks.linear + looks.bent)[:, 0, 0], variance)
    close(looks.bent[:, 0, 0], prior.spread(S).square().trace() / 2)
    close(looks.slopes[:, 0], clean(prior, x) @ prior.gain(S))
    assert not bool(looks.log_area.any())


def test_a_norm_goes_through_its_cube_root() -> None:
    prior = diagonal(D)
    x = points(prior)
    seen = looked(problem_for(prior, casal.Sphere(3.0)), x, S)
    half, variance = quadratic_moments(prior, x, torch.eye(D, dtype=torch.float64), torch.tensor(0.0))
    M, V = 2 * half, 4 * variance
    close(seen.ahead.mean[:, 0], M ** (1 / 3) * (1 - V / (9 * M**2)) - 9.0 ** (1 / 3))
    factor = 2 / 3 * M ** (-2 / 3)
    close(seen.ahead.factor[:, 0], factor)
    close((seen.ahead.linear + seen.ahead.bent)[:, 0, 0], factor**2 * variance)
    close(seen.ahead.slopes, factor[:, None, None] * seen.looks.slopes)


def test_the_cube_root_has_half_the_error_of_the_square() -> None:
    """Against draws of |x0|^2 given x: the log density at a radius three deviations out."""
    prior = diagonal(24)
    x = prior.mean[None] * 1.0
    centre, C = prior.denoise(x, torch.tensor(S, dtype=torch.float64))[0], prior.spread(S).diagonal()
    M, V = float((centre.square() + C).sum()), float((4 * C * centre.square() + 2 * C.square()).sum())
    square = M + 3 * math.sqrt(V)
    draws = (centre + normal(20, 400_000, 24) * C.sqrt()).square().sum(1)
    width = 0.1 * math.sqrt(V)
    exact = math.log(float(((draws - square).abs() < width).double().mean()) / (2 * width))
    seen = looked(problem_for(prior, casal.Sphere(math.sqrt(square))), x, S)
    per_square = square ** (-2 / 3) / 3  # d |x|^(2/3) / d |x|^2
    through_root = float(log_psi(seen)) - math.log(2 * math.pi) / 2 + math.log(per_square)
    straight = -4.5 - math.log(2 * math.pi * V) / 2
    assert abs(through_root - exact) < abs(straight - exact) / 2


def test_general_equations_of_a_norm_are_looked_at_as_the_norm_is() -> None:
    prior = diagonal(D)
    x = points(prior)
    norm = looked(problem_for(prior, casal.Sphere(3.0)), x, S).looks
    general = looked(
        problem_for(prior, casal.Implicit(lambda z: (z.square().sum(1, keepdim=True) - 9.0) / 2)), x, S
    ).looks
    for name in ("estimate", "slopes", "values", "shifts", "linear", "bent", "largest"):
        close(getattr(general, name), getattr(norm, name))
    close(general.log_area, clean(prior, x).norm(dim=1).log())  # constant on a sphere, so a norm leaves it out


def test_two_quadratics_have_their_exact_covariance() -> None:
    prior = diagonal(D)
    x, q = points(prior), torch.stack([torch.linspace(0.5, 1.5, D), torch.linspace(-1.0, 2.0, D)]).to(torch.float64)
    a = normal(11, 2, D)
    seen = looked(problem_for(prior, casal.Implicit(lambda z: z.square() @ q.T / 2 + z @ a.T - 1.0)), x, S)
    C, slope = prior.spread(S), clean(prior, x)[:, None] * q + a
    H = torch.diag_embed(q)
    bent = torch.stack([torch.stack([(H[i] @ C @ H[j] @ C).trace() / 2 for i in range(2)]) for j in range(2)])
    close(seen.ahead.bent, bent)
    close(seen.ahead.linear, slope @ C @ slope.mT)
    close(seen.ahead.slopes, slope @ prior.gain(S))
    D0 = clean(prior, x)
    close(seen.ahead.mean, D0.square() @ q.T / 2 + D0 @ a.T - 1.0 + torch.diagonal(H @ C, dim1=1, dim2=2).sum(1) / 2)
    close(seen.looks.log_area, torch.linalg.slogdet(slope @ slope.mT)[1] / 2)


def test_rows_behind_a_nonlinear_decoder_bend() -> None:
    """a . x^2 is a quadratic of x, so its moments are exact."""
    prior, a = diagonal(D), torch.linspace(0.5, 1.5, D, dtype=torch.float64)
    x = points(prior)
    decoder = casal.Nonlinear(lambda v: v.square(), shape=(D,))
    seen = looked(problem_for(prior, casal.Affine(a, 2.0), decoder), x, S)
    mean, variance = quadratic_moments(prior, x, torch.diag(2 * a) / a.norm(), 2.0 / a.norm())
    sign = torch.sign(seen.features.values(torch.zeros_like(x[:1])))[0, 0] * -1.0  # of the unit row
    close(sign * seen.ahead.mean[:, 0], mean)
    close((seen.ahead.linear + seen.ahead.bent)[:, 0, 0], variance)


def test_a_norm_behind_a_diagonal_decoder_and_a_radius_for_every_chain() -> None:
    prior, scale = diagonal(D), torch.linspace(0.5, 2.0, D, dtype=torch.float64)
    x, radius = points(prior), 2.0 + normal(12, N).abs()
    problem = problem_for(prior, casal.Sphere(casal.PerChain(radius)), casal.Linear(torch.diag(scale)))
    looks = looked(problem, x, S).looks
    mean, variance = quadratic_moments(prior, x, torch.diag(scale**2), radius.square() / 2)
    close((looks.values + looks.shifts[:, 0])[:, 0], mean)
    close((looks.linear + looks.bent)[:, 0, 0], variance)


def test_equations_and_a_norm_together() -> None:
    prior, A = diagonal(D), normal(5, 2, D)
    x = points(prior)
    seen = looked(problem_for(prior, casal.Affine(A, 0.5) & casal.Sphere(3.0)), x, S)
    assert (seen.features.equal, seen.features.norm, seen.features.curved) == (3, 2, True)
    C, rows = prior.spread(S), seen.features.blocks[0].slopes(x)[0]
    looks = seen.looks
    close(looks.linear[:, :2, :2], rows @ C @ rows.T)
    close(looks.linear[:, 2, :2], clean(prior, x) @ C @ rows.T)
    close(looks.bent, torch.nn.functional.pad(C.square().trace().reshape(1, 1) / 2, (2, 0, 2, 0)))
    assert not bool(looks.shifts[:, :, :2].any())
    close(seen.ahead.factor[:, :2], torch.ones(2, dtype=torch.float64))


# ------------------------------------------------------------------ soft terms


def observed(B: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
    """-|B x - y|^2 / 2."""
    return lambda x: -(x @ B.T.to(x) - y.to(x)).square().sum(1) / 2


def log_integral(prior: Prior, x: Tensor, B: Tensor, y: Tensor) -> Tensor:
    """log E exp(-|B x0 - y|^2 / 2) given x."""
    whole = torch.eye(len(B), dtype=torch.float64) + B @ prior.spread(S) @ B.T
    off = clean(prior, x) @ B.T - y
    return -(off @ torch.linalg.inv(whole) * off).sum(1) / 2 - torch.linalg.slogdet(whole)[1] / 2


FREE = casal.HalfSpace(torch.ones(D, dtype=torch.float64), 1e6)
"""A set that every sample meets: a look needs one."""


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_quadratic_soft_term_has_its_exact_integral(rank: int) -> None:
    prior, B, y = correlated(D), normal(13, rank, D), normal(14, rank)
    x = points(prior)
    seen = looked(problem_for(prior, FREE, term=observed(B, y)), x, S, directions=rank)
    close(log_psi(seen), log_integral(prior, x, B, y))
    close(seen.ahead.linear[:, 1:, 1:], torch.eye(rank, dtype=torch.float64))
    assert not bool(seen.ahead.mean[:, 1:].any())


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_directions_beyond_the_rank_of_a_soft_term_change_nothing(rank: int) -> None:
    prior, B, y = correlated(D), normal(13, rank, D), normal(14, rank)
    x = points(prior)
    seen = looked(problem_for(prior, FREE, term=observed(B, y)), x, S, directions=5)
    close(log_psi(seen), log_integral(prior, x, B, y))
    close(seen.ahead.linear[:, 1:, 1:], torch.eye(5, dtype=torch.float64))


def test_a_linear_soft_term_has_its_exact_integral() -> None:
    prior, a = correlated(D), normal(15, D)
    x = points(prior)
    seen = looked(problem_for(prior, FREE, term=lambda v: v @ a.to(v)), x, S)
    close(log_psi(seen), clean(prior, x) @ a + a @ prior.spread(S) @ a / 2)


def test_a_soft_term_beside_equations_has_its_exact_integral() -> None:
    """N(0; r, A C A^T) E[exp t | A x0 = b]: the integral of a Gaussian of more observations."""
    prior, A, b = correlated(D), normal(5, 2, D), normal(6, 2)
    B, y = normal(13, 2, D), normal(14, 2)
    x = points(prior)
    seen = looked(problem_for(prior, casal.Affine(A, b), term=observed(B, y)), x, S, directions=2)
    matrix = seen.features.slopes(x)[0]
    both, C = torch.cat([matrix, B]), prior.spread(S)
    whole = both @ C @ both.T + torch.diag(torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=torch.float64))
    off = torch.cat([seen.ahead.mean[:, :2], clean(prior, x) @ B.T - y], 1)
    exact = -(off @ torch.linalg.inv(whole) * off).sum(1) / 2 - torch.linalg.slogdet(whole)[1] / 2
    close(log_psi(seen), exact)


def test_a_soft_term_that_bends_upwards_counts_as_straight() -> None:
    prior = correlated(D)
    x = points(prior)
    up = looked(problem_for(prior, FREE, term=lambda v: v.square().sum(1)), x, S)
    assert not bool(up.ahead.stiff.any())
    gradient = 2 * clean(prior, x)
    close(log_psi(up), clean(prior, x).square().sum(1) + (gradient @ prior.spread(S) * gradient).sum(1) / 2)


# ------------------------------------------------------------------ many equations


# ------------------------------------------------------------------ cost


def test_a_look_costs_one_evaluation_and_one_product_for_every_row_and_probe() -> None:
    prior, A = diagonal(D), normal(5, 3, D)
    term = lambda v: v.sum(1)  # noqa: E731
    for constraint, count, soft in (
        (casal.Affine(A, 0.5), 1 + 3, None),
        (casal.Sphere(3.0), 1 + 1 + 3, None),  # three probes
        (casal.Affine(A, 0.5) & casal.Sphere(3.0), 1 + 4 + 3, None),
        (casal.HalfSpace(A[0], 0.5), 1 + 1, None),
        (casal.Affine(A, 0.5), 1 + 3 + 4, term),  # four directions
    ):
        seen = looked(problem_for(prior, constraint, term=soft), points(prior), S, count=3)
        assert seen.problem.usage.scores == N * count


def test_a_general_curved_row_costs_one_product_more_for_every_probe() -> None:
    """C f'' u is known without one only where f'' u is a multiple of u."""
    prior, q = diagonal(D), torch.linspace(0.5, 1.5, D, dtype=torch.float64)
    given = problem_for(prior, casal.Implicit(lambda z: z.square() @ q[:, None] - 1.0))
    seen = looked(given, points(prior), S, count=3)
    assert seen.problem.usage.scores == N * (1 + 1 + 2 * 3)


# ------------------------------------------------------------------ safeguards


def test_variances_have_a_floor_and_covariances_are_positive() -> None:
    prior = correlated(D)
    problem = problem_for(prior, casal.Affine(normal(5, 2, D), 0.5))
    features = features_of(problem, 1)
    seen = look(problem, features, points(prior), S, probes(2, problem))
    assert torch.equal(moments(seen, features).linear, seen.linear)
    broken = seen.linear.clone()
    broken[0, 0, 0], broken[1] = -1.0, torch.tensor([[1.0, 3.0], [3.0, 1.0]])
    mended = moments(seen._replace(linear=broken), features).linear
    assert float(mended[0, 0, 0]) >= FLOOR * float(broken[:, 0, 0].median()) * (1 - 1e-12)
    least = torch.linalg.eigvalsh(mended).min(1).values
    assert bool((least >= LEAST * seen.largest.amin(1) * (1 - 1e-6)).all())
    close(mended[2:], seen.linear[2:])


def test_noisy_traces_are_drawn_to_the_median() -> None:
    """Probes that agree are kept; probes that say nothing of a chain give the median."""
    prior = diagonal(D)
    problem = problem_for(prior, casal.Implicit(lambda z: z.square().sum(1, keepdim=True) - 1.0))
    features = features_of(problem, 1)
    seen = look(problem, features, points(prior), S, probes(2, problem))
    agreed = torch.linspace(1.0, 2.0, N, dtype=torch.float64)[:, None, None].expand(-1, 2, 1)
    close(moments(seen._replace(shifts=agreed), features).mean, seen.values + agreed[:, 0])
    torn = torch.stack([agreed[:, 0] + 5.0, agreed[:, 0] - 5.0], 1)
    close(moments(seen._replace(shifts=torn), features).mean, seen.values + 1.5)


def test_the_correction_of_a_skewed_norm_is_bounded() -> None:
    prior = Prior(torch.zeros(2, dtype=torch.float64), 4.0 * torch.eye(2, dtype=torch.float64))
    seen = looked(problem_for(prior, casal.Sphere(1.0)), torch.zeros(3, 2, dtype=torch.float64), 20.0)
    M = 2 * prior.spread(20.0)[0, 0]  # V / (9 M^2) = 1/9 here: below the bound
    close(seen.ahead.mean[:, 0], M ** (1 / 3) * (1 - 1 / 9) - 1.0)
    looks, features = seen.looks, seen.features
    wide = moments(looks._replace(bent=100 * looks.bent), features)
    close(wide.mean[:, 0], M ** (1 / 3) * (1 - MOST_SKEWED) - 1.0)


def test_probes_are_signs_and_the_same_in_every_run() -> None:
    problem = problem_for(diagonal(D), casal.Sphere(1.0))
    first = probes(3, problem)
    assert torch.equal(first, probes(3, problem)) and torch.equal(first.abs(), torch.ones(3, D, dtype=torch.float64))
    assert len(first.unique(dim=0)) == 3


def test_the_inverse_root_of_the_derivative() -> None:
    """J^(-1/2) w against eigenvectors; with as many steps as dimensions it is exact, and J = I needs one."""
    for prior, s in ((correlated(8), 0.7), (diagonal(9), 2.0), (diagonal(5), 1e-6)):
        problem, w = problem_for(prior, casal.Sphere(3.0)), normal(1, 6, prior.size)
        values, axes = torch.linalg.eigh(prior.gain(s))
        found = Derivative(problem, normal(2, 6, prior.size), s).inverse_root(w)
        close(found, (w @ axes * values.rsqrt()) @ axes.T, 1e-6)


def test_a_denoiser_without_derivative_is_refused() -> None:
    @torch.no_grad()  # type: ignore[untyped-decorator,unused-ignore]
    def denoise(x: Tensor, s: Tensor) -> Tensor:
        return x / (1 + s.to(x) ** 2)

    target = casal.edm(denoise, casal.karras_sigmas(20, 0.02, 20.0), shape=D, churn=1.0, dtype=torch.float64)
    problem = problem_for(diagonal(D), casal.Sphere(1.0)).replace(target=target)
    with pytest.raises(SettingError, match="autograd cannot differentiate through the denoiser"):
        looked(problem, points(diagonal(D)), S)
