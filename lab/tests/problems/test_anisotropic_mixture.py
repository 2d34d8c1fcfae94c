"""Anisotropic mixtures: the denoiser against autograd, exact distributions against quadrature and rejection."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import Tensor

from casal.errors import InfeasibleSet, SettingError, ShapeError
from casal_lab.problems.anisotropic_mixture import (
    AnisotropicMixture,
    box_moments,
    sphere_draws,
    sphere_moments,
)
from casal_lab.problems.gaussian_mixture import GaussianMixture
from casal_lab.problems.modes import ModeDistribution

D = 12


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def orthogonal(d: int, seed: int) -> Tensor:
    return torch.linalg.qr(random(d, d, seed=seed))[0]


def reflection(d: int, seed: int) -> Tensor:
    v = random(d, seed=seed)
    return torch.eye(d, dtype=torch.float64) - 2 * torch.outer(v, v) / (v @ v)


def mixture() -> AnisotropicMixture:
    """One mode with each kind of axes."""
    return AnisotropicMixture(
        torch.tensor([1.0, 2.0, 3.0, 4.0]),
        random(4, D, seed=1),
        [None, reflection(D, 2) @ reflection(D, 3), orthogonal(D, 4), (orthogonal(3, 5), orthogonal(4, 6))],
        random(4, D, seed=7).square() + 0.1,
    )


def in_space() -> AnisotropicMixture:
    """Two modes in three dimensions, for quadrature."""
    return AnisotropicMixture(
        torch.tensor([0.6, 0.4]),
        torch.tensor([[0.8, 0.1, 0.4], [-0.5, 0.6, 0.2]]),
        [orthogonal(3, 0), orthogonal(3, 1)],
        torch.tensor([[0.5, 0.2, 0.1], [0.3, 0.6, 0.15]]),
    )


def densities(prior: AnisotropicMixture, points: np.ndarray) -> np.ndarray:
    """w_k N(x; m_k, C_k), (n, m), by scipy."""
    return np.stack(
        [
            float(w) * stats.multivariate_normal(m.numpy(), prior.covariance(k).numpy()).pdf(points)
            for k, (w, m) in enumerate(zip(prior.weights, prior.means, strict=True))
        ],
        axis=1,
    )


# ------------------------------------------------------------------ denoiser and density


@pytest.mark.parametrize("sigma", [0.02, 0.7, 30.0])
def test_denoiser_is_tweedie(sigma: float) -> None:
    prior, x = mixture(), (3 * random(5, D, seed=9)).requires_grad_()
    (score,) = torch.autograd.grad(prior.log_density(x, sigma).sum(), x)
    torch.testing.assert_close(prior.denoise(x, sigma), x + sigma**2 * score, rtol=1e-8, atol=1e-8)


def test_density_is_that_of_scipy() -> None:
    prior, x = mixture(), random(5, D, seed=9)
    joint = densities(prior, x.numpy())
    np.testing.assert_allclose(prior.log_density(x).numpy(), np.log(joint.sum(1)), rtol=1e-10)
    np.testing.assert_allclose(prior.responsibilities(x).numpy(), joint / joint.sum(1, keepdims=True), atol=1e-10)


def test_denoiser_has_the_posterior_covariance_as_jacobian() -> None:
    """sigma^2 dD/dx is symmetric and positive."""
    prior, x, sigma = mixture(), random(1, D, seed=3), 0.8
    jacobian = torch.autograd.functional.jacobian(lambda y: prior.denoise(y[None], sigma)[0], x[0])
    torch.testing.assert_close(jacobian, jacobian.T)
    assert float(torch.linalg.eigvalsh(jacobian).min()) > 0


def test_denoiser_of_round_modes_is_the_known_one() -> None:
    weights, means, spreads = torch.tensor([0.3, 0.7]), random(2, D), torch.tensor([0.5, 1.5])
    round_prior = GaussianMixture(weights, means, spreads)
    prior = AnisotropicMixture(weights, means, [None, orthogonal(D, 1)], spreads.square()[:, None].expand(2, D))
    x = random(6, D, seed=2)
    torch.testing.assert_close(prior.denoise(x, 0.4), round_prior.denoise(x, 1.0, 0.4))


def test_dtype_and_noise_levels_per_point() -> None:
    prior, x, levels = mixture(), random(3, D), torch.tensor([0.1, 1.0, 5.0])
    each = torch.cat([prior.denoise(x[i : i + 1], levels[i]) for i in range(3)])
    torch.testing.assert_close(prior.denoise(x, levels), each)
    single = prior.denoise(x.float(), levels)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single, each.float(), rtol=1e-4, atol=1e-4)


def test_axes_are_applied_as_their_matrices() -> None:
    prior, x = mixture(), random(4, D)
    for turn in prior.turns:
        Q = turn.matrix(D)
        torch.testing.assert_close(Q.T @ Q, torch.eye(D, dtype=torch.float64))
        torch.testing.assert_close(turn.into(x), x @ Q)
        torch.testing.assert_close(turn.back(turn.into(x)), x)
    Q = prior.axes[1]
    assert isinstance(Q, Tensor)
    torch.testing.assert_close(prior.turns[1].matrix(D), Q)


@pytest.mark.statistical
def test_draws_have_the_moments_of_the_mixture() -> None:
    prior, n = mixture(), 40_000
    x = prior.sample(n, torch.Generator().manual_seed(0))
    shares = prior.responsibilities(x).mean(0)
    assert float((shares - prior.weights).abs().max()) < 4 * math.sqrt(0.25 / n)
    mean = prior.weights @ prior.means
    second = sum(
        w * (prior.covariance(k) + torch.outer(m, m))
        for k, (w, m) in enumerate(zip(prior.weights, prior.means, strict=True))
    )
    covariance = second - torch.outer(mean, mean)
    assert float(((x.mean(0) - mean) / (covariance.diagonal() / n).sqrt()).abs().max()) < 4
    assert float((torch.cov(x.T) - covariance).abs().max()) < 0.08 * float(covariance.diagonal().max())


def test_bad_parameters_are_refused() -> None:
    one, d = torch.ones(1), torch.eye(D)
    with pytest.raises(ShapeError, match="weights"):
        AnisotropicMixture(torch.ones(2), torch.zeros(1, D), [None], torch.ones(1, D))
    with pytest.raises(ShapeError, match="as many axes"):
        AnisotropicMixture(one, torch.zeros(1, D), [], torch.ones(1, D))
    with pytest.raises(ShapeError, match="square matrices"):
        AnisotropicMixture(one, torch.zeros(1, D), [d[:5, :5]], torch.ones(1, D))
    with pytest.raises(SettingError, match="orthogonal"):
        AnisotropicMixture(one, torch.zeros(1, D), [2 * d], torch.ones(1, D))
    with pytest.raises(SettingError, match="> 0"):
        AnisotropicMixture(one, torch.zeros(1, D), [None], torch.zeros(1, D))
    with pytest.raises(SettingError, match="together"):
        mixture().restricted_to(A=torch.eye(D))
    with pytest.raises(SettingError, match="independent"):
        mixture().restricted_to_box(0.0, 1.0)


# ------------------------------------------------------------------ equations and norms


@pytest.mark.parametrize(
    ("d", "spread", "length", "radius"), [(3, 0.5, 1.0, 1.7), (16, 0.3, 2.2, 2.6), (64, 0.4, 3, 2)]
)
def test_round_gaussian_on_a_sphere_is_von_mises_fisher(d: int, spread: float, length: float, radius: float) -> None:
    mean = np.zeros(d)
    mean[0] = length
    log_density, means, variances = sphere_moments(mean, np.full(d, spread**2), radius**2)
    order, kappa = d / 2 - 1, radius * length / spread**2
    ratio = special.ive(order + 1, kappa) / special.ive(order, kappa)
    exact = (
        (d - 1) * math.log(radius)
        - d * math.log(spread)
        - (radius**2 + length**2) / (2 * spread**2)
        + math.log(special.ive(order, kappa))
        + kappa
        - order * math.log(kappa)
        - math.log(2 * radius)
    )
    assert log_density == pytest.approx(exact, rel=1e-12)
    assert means[0] == pytest.approx(radius * ratio, rel=1e-12)
    assert np.abs(means[1:]).max() == 0
    np.testing.assert_allclose(variances[1:], radius**2 * ratio / kappa, rtol=1e-12)
    assert variances[0] == pytest.approx(radius**2 * (1 - (d - 1) * ratio / kappa - ratio**2), rel=1e-10)


LENGTHS = np.array([1, 0.5, 0.3, 0.2, 0.1, 0.05])
CENTRE = np.array([0.5, -0.3, 0.2, 0.0, 0.0, 0.1])


@pytest.mark.statistical
@pytest.mark.parametrize("square", [0.8, 4.0])
def test_anisotropic_gaussian_on_a_sphere_against_shell_rejection(square: float) -> None:
    rng = np.random.default_rng(0)
    x = CENTRE + np.sqrt(LENGTHS) * rng.standard_normal((1_000_000, 6))
    level = (x**2).sum(1)
    kept = np.abs(level - square) < 0.02 * square
    x = x[kept] * np.sqrt(square / level[kept])[:, None]
    log_density, means, variances = sphere_moments(CENTRE, LENGTHS, square)
    error = 4 / math.sqrt(kept.sum())
    assert log_density == pytest.approx(math.log(kept.mean() / (0.04 * square)), abs=error + 0.001)
    assert (np.abs(x.mean(0) - means) / np.sqrt(variances)).max() < error
    assert np.abs(x.var(0) / variances - 1).max() < 2 * error
    # Power: the moments off the sphere are not these.
    assert np.abs(variances / LENGTHS - 1).max() > 4 * error


@pytest.mark.statistical
@pytest.mark.parametrize("square", [0.8, 4.0])
def test_draws_on_a_sphere(square: float) -> None:
    mean, variance, n = torch.from_numpy(CENTRE), torch.from_numpy(LENGTHS).clone(), 20_000
    variance[4] = 0.0
    x = sphere_draws(mean, variance, square, n, torch.Generator().manual_seed(0))
    torch.testing.assert_close(x.square().sum(1), torch.full((n,), square, dtype=torch.float64))
    _, means, variances = (torch.as_tensor(v) for v in sphere_moments(mean.numpy(), variance.numpy(), square))
    free = variance > 0
    assert bool((x[:, ~free] == mean[~free]).all())
    assert float(((x.mean(0) - means) / variances.sqrt())[free].abs().max()) < 4 / math.sqrt(n)
    assert float((x.var(0) / variances - 1)[free].abs().max()) < 8 / math.sqrt(n)


@pytest.mark.parametrize("square", [20.0, 40.0, 80.0])
def test_moments_on_a_sphere_add_up(square: float) -> None:
    """sum E[x_i^2] = square, with many coordinates of very different variances, where a bad contour overflows."""
    rng = np.random.default_rng(0)
    lam = 1.6**2 * np.arange(1.0, 65.0) ** -1.6
    _, means, variances = sphere_moments(rng.standard_normal(64) * 0.7, lam, square)
    assert (variances + means**2).sum() == pytest.approx(square, rel=1e-12)
    assert (variances > 0).all()


def test_norm_out_of_reach_is_refused() -> None:
    with pytest.raises(InfeasibleSet, match="already have 4"):
        sphere_moments(np.array([2.0, 0.0]), np.array([0.0, 1.0]), 3.0)


def check(prior: AnisotropicMixture, found: ModeDistribution, points: np.ndarray, weights: np.ndarray) -> None:
    """Mode weights and moments by quadrature with these nodes."""
    joint = densities(prior, points) * weights[:, None]
    np.testing.assert_allclose(found.weights.numpy(), joint.sum(0) / joint.sum(), rtol=1e-8)
    for k, basis in enumerate(found.bases):
        assert basis is not None
        share, u = joint[:, k] / joint[:, k].sum(), points @ basis.numpy()
        mean = share @ u
        np.testing.assert_allclose(found.means[k].numpy(), mean, atol=1e-8)
        np.testing.assert_allclose(found.variances[k].numpy(), share @ (u - mean) ** 2, atol=1e-8)


def test_line_in_space_against_quadrature() -> None:
    prior, A, y = in_space(), random(2, 3, seed=5), torch.tensor([0.3, -0.2], dtype=torch.float64)
    foot = np.linalg.lstsq(A.numpy(), y.numpy(), rcond=None)[0]
    along = np.linalg.svd(A.numpy())[2][2]
    t = np.linspace(-9, 9, 4001)
    check(prior, prior.restricted_to(A, y), foot + t[:, None] * along, np.ones_like(t))


def test_sphere_in_space_against_quadrature() -> None:
    prior = in_space()
    height, weight = np.polynomial.legendre.leggauss(120)
    angle = np.linspace(0, 2 * np.pi, 241)[:-1]
    h, a = (v.ravel() for v in np.meshgrid(height, angle, indexing="ij"))
    flat = np.sqrt(1 - h**2)
    points = 1.3 * np.stack([flat * np.cos(a), flat * np.sin(a), h], axis=1)
    check(prior, prior.restricted_to(square=1.69), points, np.repeat(weight, len(angle)))


def test_circle_in_space_against_quadrature() -> None:
    prior, A, y = in_space(), random(1, 3, seed=5), torch.tensor([0.3], dtype=torch.float64)
    frame = np.linalg.svd(A.numpy())[2]
    foot = (A.T @ torch.linalg.solve(A @ A.T, y)).numpy()
    radius = math.sqrt(1.5 - foot @ foot)
    angle = np.linspace(0, 2 * np.pi, 801)[:-1]
    points = foot + radius * (np.cos(angle)[:, None] * frame[1] + np.sin(angle)[:, None] * frame[2])
    check(prior, prior.restricted_to(A, y, 1.5), points, np.ones_like(angle))


@pytest.mark.statistical
@pytest.mark.parametrize("square", [None, 14.0])
def test_draws_on_equations(square: float | None) -> None:
    prior, A = mixture(), random(3, D, seed=8)
    y = A @ prior.means.mean(0)
    found, n = prior.restricted_to(A, y, square), 6000
    x = found.draw(n, torch.Generator().manual_seed(1))
    torch.testing.assert_close(x @ A.T, y.expand(n, 3))
    if square is not None:
        torch.testing.assert_close(x.square().sum(1), torch.full((n,), square, dtype=torch.float64))
    assert found.total_variation(x) < 4 * found.floor(n)
    mean = x.mean(0) - found.mean
    assert float((mean / (x.var(0) / n).sqrt()).abs().max()) < 4


# ------------------------------------------------------------------ slabs and boxes


def test_one_slab_is_a_truncated_normal() -> None:
    prior, a = mixture(), random(D, seed=3)
    found = prior.restricted_to_slabs(a, 1.0, math.inf)
    for k in range(4):
        centre, spread = float(a @ prior.means[k]), float((a @ prior.covariance(k) @ a).sqrt())
        exact = stats.truncnorm((1.0 - centre) / spread, math.inf, centre, spread)
        assert float(found.log_masses[k].exp()) == pytest.approx(
            float(prior.weights[k]) * stats.norm(centre, spread).sf(1.0), rel=1e-10
        )
        basis = found.bases[k]
        assert basis is not None
        assert float(a @ basis @ found.means[k]) == pytest.approx(exact.mean(), rel=1e-9)


def test_slabs_across_the_axes_against_quadrature() -> None:
    prior = in_space()
    A = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    found = prior.restricted_to_slabs(A, torch.tensor([0.2, -math.inf]), torch.tensor([1.0, 0.5]))
    node, weight = np.polynomial.legendre.leggauss(80)

    def scaled(low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
        return low + (high - low) * (node + 1) / 2, weight * (high - low) / 2

    sides = [scaled(0.2, 1.0), scaled(-5.0, 0.5), scaled(-4.5, 4.5)]
    points = np.stack([v.ravel() for v in np.meshgrid(*[s[0] for s in sides], indexing="ij")], axis=1)
    weights = np.einsum("a,b,c->abc", *[s[1] for s in sides]).ravel()
    joint = densities(prior, points) * weights[:, None]
    np.testing.assert_allclose(found.log_masses.exp().numpy(), joint.sum(0), rtol=1e-4)
    for k in range(2):
        share, basis = joint[:, k] / joint[:, k].sum(), found.bases[k]
        assert basis is not None
        u = points @ basis.numpy()
        np.testing.assert_allclose(found.means[k].numpy(), share @ u, atol=1e-4)
        np.testing.assert_allclose(found.variances[k].numpy(), share @ (u - share @ u) ** 2, rtol=1e-3)


def test_four_correlated_bounds_against_scipy() -> None:
    factor = random(4, 4, seed=2)
    covariance = factor @ factor.T + 0.2 * torch.eye(4, dtype=torch.float64)
    spread = covariance.diagonal().sqrt()
    log_mass, mean, inner = box_moments(covariance, 0.5 * spread, 1.5 * spread)
    exact = stats.multivariate_normal(np.zeros(4), covariance.numpy(), seed=1, maxpts=4_000_000, releps=1e-6).cdf(
        1.5 * spread.numpy(), lower_limit=0.5 * spread.numpy()
    )
    assert math.exp(log_mass) == pytest.approx(float(exact), rel=1e-4)
    assert bool(((mean > 0.5 * spread) & (mean < 1.5 * spread)).all())
    assert float(torch.linalg.eigvalsh(inner).min()) > 0


def test_independent_bounds_factorise() -> None:
    low, high = torch.tensor([-1.0, 2.0, 0.0]).double(), torch.tensor([0.5, math.inf, 0.3]).double()
    scale = torch.tensor([1.0, 0.5, 2.0]).double()
    log_mass, mean, inner = box_moments(torch.diag(scale.square()), low, high)
    each = [
        stats.truncnorm(float(a / s), float(b / s), 0.0, float(s)) for a, b, s in zip(low, high, scale, strict=True)
    ]
    np.testing.assert_allclose(mean.numpy(), [prior.mean() for prior in each], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(inner.numpy(), np.diag([prior.var() for prior in each]), rtol=1e-3, atol=1e-5)
    masses = [
        stats.norm.cdf(float(b / s)) - stats.norm.cdf(float(a / s)) for a, b, s in zip(low, high, scale, strict=True)
    ]
    assert log_mass == pytest.approx(float(np.log(masses).sum()), abs=1e-5)


@pytest.mark.statistical
def test_draws_on_slabs() -> None:
    prior, A, n = mixture(), random(2, D, seed=3), 6000
    low, high = torch.tensor([1.0, -1.0]).double(), torch.tensor([math.inf, 0.5]).double()
    found = prior.restricted_to_slabs(A, low, high)
    x = found.draw(n, torch.Generator().manual_seed(0))
    h = x @ A.T
    assert bool(((h >= low - 1e-12) & (h <= high + 1e-12)).all())
    assert found.total_variation(x) < 4 * found.floor(n)
    assert float(((x.mean(0) - found.mean) / (x.var(0) / n).sqrt()).abs().max()) < 4


def test_box_of_independent_modes() -> None:
    weights, means, variances = torch.tensor([0.9, 0.1]), random(2, 5), random(2, 5, seed=1).square() + 0.1
    prior = AnisotropicMixture(weights, means, [None, None], variances)
    found = prior.restricted_to_box(0.0, math.inf)
    masses = prior.weights * torch.special.ndtr(means / variances.sqrt()).prod(1)
    torch.testing.assert_close(found.weights, masses / masses.sum())
    assert found.log_probability == pytest.approx(float(masses.sum().log()))
    exact = stats.truncnorm((-means / variances.sqrt()).numpy(), math.inf, means.numpy(), variances.sqrt().numpy())
    np.testing.assert_allclose(found.means.numpy(), exact.mean(), rtol=1e-9)
    np.testing.assert_allclose(found.variances.numpy(), exact.var(), rtol=1e-7)
