"""Mixtures of Gaussians on sets and under noise, against quadrature and autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import special
from torch import Tensor

import casal
from casal.errors import SettingError, ShapeError
from casal_lab.problems.gaussian_mixture import GaussianMixture, log_bessel_ratio
from casal_lab.problems.three_modes import MIXTURE

Array = npt.NDArray[np.float64]
IN_SPACE = GaussianMixture(
    torch.tensor([0.5, 0.3, 0.2]),
    torch.tensor([[1.0, 0.0, 0.5], [-1.0, 0.5, 0.0], [0.0, 0.0, 0.0]]),
    torch.tensor([0.4, 0.6, 0.8]),
)


def mode_densities(mixture: GaussianMixture, points: Array) -> Array:
    """w_k N(x; m_k, s_k^2), (n, m), written out anew."""
    m, s, w = (v.numpy() for v in (mixture.means, mixture.spreads, mixture.weights))
    squares = ((points[:, None, :] - m) ** 2).sum(2)
    return w * np.exp(-squares / (2 * s**2)) / (2 * np.pi * s**2) ** (mixture.dimension / 2)


def circle(radius: float, centre: tuple[float, float] = (0.0, 0.0)) -> tuple[Array, Array]:
    """Points and weights of the trapezoid rule on a circle."""
    angle = np.linspace(0, 2 * np.pi, 4001)[:-1]
    points = np.asarray(centre) + radius * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return points, np.full(len(angle), radius * 2 * np.pi / len(angle))


def sphere(radius: float) -> tuple[Array, Array]:
    """Gauss-Legendre in the height, trapezoid in the angle."""
    height, weight = np.polynomial.legendre.leggauss(200)
    angle = np.linspace(0, 2 * np.pi, 401)[:-1]
    h, a = (v.ravel() for v in np.meshgrid(height, angle, indexing="ij"))
    flat = np.sqrt(1 - h**2)
    points = radius * np.stack([flat * np.cos(a), flat * np.sin(a), h], axis=1)
    return points, radius**2 * np.repeat(weight, len(angle)) * 2 * np.pi / len(angle)


def line(normal: tuple[float, float], level: float) -> tuple[Array, Array]:
    a = np.asarray(normal)
    along = np.array([-a[1], a[0]]) / np.linalg.norm(a)
    t = np.linspace(-9, 9, 9001)
    return level * a / (a @ a) + t[:, None] * along, np.full(len(t), t[1] - t[0])


def box(low: tuple[float, float], high: tuple[float, float]) -> tuple[Array, Array]:
    node, weight = np.polynomial.legendre.leggauss(160)
    x, y = (lo + (hi - lo) * (node + 1) / 2 for lo, hi in zip(low, high, strict=True))
    area = (high[0] - low[0]) * (high[1] - low[1]) / 4
    return np.stack([v.ravel() for v in np.meshgrid(x, y, indexing="ij")], axis=1), area * np.outer(
        weight, weight
    ).ravel()


SETS: dict[str, tuple[GaussianMixture, casal.Constraint, tuple[Array, Array]]] = {
    "circle": (MIXTURE, casal.Sphere(2.0), circle(2.0)),
    "inner circle": (MIXTURE, casal.Sphere(1.2), circle(1.2)),
    "shifted circle": (MIXTURE, casal.Sphere(0.7, [-1.2, 0.5]), circle(0.7, (-1.2, 0.5))),
    "circle about a mean": (MIXTURE, casal.Sphere(0.7, [-1.5, 1.0]), circle(0.7, (-1.5, 1.0))),
    "sphere in space": (IN_SPACE, casal.Sphere(1.3), sphere(1.3)),
    "line": (MIXTURE, casal.Affine([[2.0, 1.0]], 0.0), line((2.0, 1.0), 0.0)),
    "line, written twice": (MIXTURE, casal.Affine([[1.0, 1.0], [2.0, 2.0]], [1.0, 2.0]), line((1.0, 1.0), 1.0)),
    "half-plane": (MIXTURE, casal.HalfSpace([2.0, 0.0], 1.0), box((-6.5, -6.0), (0.5, 6.0))),
}


@pytest.mark.parametrize("name", SETS)
def test_mode_weights_by_quadrature(name: str) -> None:
    mixture, constraint, (points, weight) = SETS[name]
    assert float(constraint.violation(torch.from_numpy(points)).max()) < 1e-12
    masses = weight @ mode_densities(mixture, points)
    exact = mixture.restricted(constraint)
    np.testing.assert_allclose(exact.weights.numpy(), masses / masses.sum(), atol=1e-6)
    assert float(exact.log_masses.logsumexp(0)) == pytest.approx(np.log(masses.sum()), abs=1e-6)
    soft = (weight[:, None] * mode_densities(mixture, points)).sum(1) @ mixture.responsibilities(
        torch.from_numpy(points)
    ).numpy()
    np.testing.assert_allclose(soft / soft.sum(), exact.weights.numpy(), atol=1e-6)


def features(z: Array) -> Array:
    """First and second moments."""
    first, last = z[:, 0], z[:, -1]
    return np.stack([first, last, first**2, last**2, first * last], axis=1)


def follows(z: Tensor, mixture: GaussianMixture, points: Array, weight: Array) -> bool:
    """Moments of draws as by quadrature, to four standard errors."""
    density = weight * mode_densities(mixture, points).sum(1)
    expected = density @ features(points) / density.sum()
    found = features(z.numpy())
    return bool((np.abs(found.mean(0) - expected) < 4 * found.std(0) / np.sqrt(len(z)) + 1e-12).all())


@pytest.mark.statistical
@pytest.mark.parametrize("name", SETS)
def test_exact_draws(name: str) -> None:
    mixture, constraint, (points, weight) = SETS[name]
    z = mixture.restricted(constraint).draw(40_000, torch.Generator().manual_seed(1))
    assert z.shape == (40_000, mixture.dimension)
    assert float(constraint.violation(z).max()) < 1e-12
    assert follows(z, mixture, points, weight)


@pytest.mark.statistical
@pytest.mark.parametrize("name", [name for name in SETS if name != "circle about a mean"])
def test_the_test_of_draws_notices_wider_modes(name: str) -> None:
    """(On a circle about its mean a mode is uniform whatever its width.)"""
    mixture, constraint, (points, weight) = SETS[name]
    wider = GaussianMixture(mixture.weights, mixture.means, 1.2 * mixture.spreads)
    assert not follows(
        wider.restricted(constraint).draw(40_000, torch.Generator().manual_seed(1)), mixture, points, weight
    )


def test_the_order_of_draws_says_nothing() -> None:
    z = MIXTURE.restricted(casal.Sphere(2.0)).draw(4000, torch.Generator().manual_seed(0))
    halves = [MIXTURE.responsibilities(part).mean(0) for part in z.split(2000)]
    torch.testing.assert_close(halves[0], halves[1], atol=0.06, rtol=0)


@pytest.mark.parametrize("order", [0.0, 0.5, 7.0, 127.0])
def test_bessel_ratio_by_its_series(order: float) -> None:
    kappa = np.array([0.0, 1e-9, 1e-3, 0.5, 50.0, 1500.0])
    k = np.arange(4000)[:, None]
    terms = special.xlogy(2 * k, kappa / 2) - special.gammaln(k + 1) - special.gammaln(k + order + 1)
    expected = special.logsumexp(terms, axis=0) - order * np.log(2.0)
    np.testing.assert_allclose(log_bessel_ratio(order, kappa), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mixture", [MIXTURE, IN_SPACE], ids=["plane", "space"])
@pytest.mark.parametrize(("alpha", "sigma"), [(1.0, 0.0), (0.6, 0.8), (1.0, 40.0), (0.01, 0.99995)])
def test_the_score_is_the_gradient_of_the_log_density(mixture: GaussianMixture, alpha: float, sigma: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = alpha * mixture.sample(50, generator) + (sigma + 0.1) * torch.randn(50, mixture.dimension, generator=generator)
    x.requires_grad_()
    density = mixture.log_density(x, alpha, sigma)
    (gradient,) = torch.autograd.grad(density.sum(), x)
    torch.testing.assert_close(mixture.score(x.detach(), alpha, sigma), gradient, rtol=1e-9, atol=1e-9)
    noisy = GaussianMixture(
        mixture.weights, alpha * mixture.means, ((alpha * mixture.spreads).square() + sigma**2).sqrt()
    )
    by_hand = np.log(mode_densities(noisy, x.detach().numpy()).sum(1))
    np.testing.assert_allclose(density.detach().numpy(), by_hand, rtol=1e-9, atol=1e-9)


def test_one_noise_level_a_chain() -> None:
    x = MIXTURE.sample(6, torch.Generator().manual_seed(3))
    alpha, sigma = torch.linspace(0.2, 1.0, 6), torch.linspace(2.0, 0.1, 6)
    one_by_one = [MIXTURE.score(x[k : k + 1], alpha[k], sigma[k]) for k in range(6)]
    torch.testing.assert_close(MIXTURE.score(x, alpha, sigma), torch.cat(one_by_one))
    assert MIXTURE.score(x.float(), alpha, sigma).dtype == torch.float32


def test_the_denoiser_is_the_posterior_mean() -> None:
    points, weight = box((-6.0, -6.0), (6.0, 6.0))
    x, alpha, sigma = np.array([0.3, -0.8]), 0.7, 0.6
    joint = weight * mode_densities(MIXTURE, points).sum(1)
    joint *= np.exp(-((x - alpha * points) ** 2).sum(1) / (2 * sigma**2))
    found = MIXTURE.denoise(torch.from_numpy(x)[None], alpha, sigma)[0].numpy()
    np.testing.assert_allclose(found, joint @ points / joint.sum(), atol=1e-8)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: GaussianMixture(torch.ones(2), torch.zeros(3, 2), torch.ones(3)), ShapeError),
        (lambda: GaussianMixture(torch.tensor([1.0, -1.0]), torch.zeros(2, 2), torch.ones(2)), SettingError),
        (lambda: MIXTURE.restricted(casal.Ball(1.0)), SettingError),
    ],
)
def test_bad_input(make: Callable[[], Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        make()
