"""z ~ N(y, sigma^2 I) restricted to C: moments against exact ones, feasibility, normalisers against quadrature."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats
from torch import Tensor

import casal
from casal.errors import ProjectionError, SettingError, ShapeError

N = 40_000


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def near(constraint: casal.Constraint, y: Tensor, sigma: float, n: int = N, seed: int = 0) -> Tensor:
    drawn = constraint.sample_near(y.expand(n, *y.shape), sigma, generator(seed))
    assert drawn is not None
    return drawn


def projected(constraint: casal.Constraint, y: Tensor, sigma: float, n: int = N) -> Tensor:
    """What a sampler without the exact draw would do: the projection of the perturbed point."""
    noise = torch.randn((n, *y.shape), generator=generator(1), dtype=torch.float64)
    return constraint.project(y + sigma * noise)


def z_score(values: Tensor, exact: float) -> float:
    """How many Monte Carlo standard errors the mean is off."""
    return abs(float(values.mean()) - exact) / (float(values.std()) / math.sqrt(len(values)))


SETS: dict[str, tuple[casal.Constraint, Tensor]] = {
    "affine": (casal.Affine([[1.0, 2.0, 0.0], [0.0, 1.0, -1.0]], [1.0, 0.5]), tensor(0.3, -1.0, 2.0)),
    "half-space": (casal.HalfSpace([1.0, -2.0], 0.3), tensor(1.5, 0.2)),
    "sphere": (casal.Sphere(2.0, center=[1.0, 0.0, -1.0]), tensor(0.3, -1.0, 2.0)),
    "circle": (casal.Sphere(2.0), tensor(0.3, -1.0)),
    "point pair": (casal.Sphere(2.0), tensor(0.1)),
    "point": (casal.Sphere(0.0), tensor(0.3, -1.0)),
    "mass and energy": (casal.MassEnergy(1.0, 4.0), tensor(0.3, -1.0, 2.0, 0.1)),
    "mass and energy, two": (casal.MassEnergy(1.0, 4.0), tensor(0.3, -1.0)),
    "mass and energy, one": (casal.MassEnergy(2.0, 4.0), tensor(0.3)),
    "box": (casal.Box([-1.0, 0.0, 2.0], [1.0, math.inf, 2.0]), tensor(3.0, -0.5, 1.0)),
    "image": (casal.Box(0.0, 1.0), torch.zeros(2, 3, dtype=torch.float64)),
    "shifted": (casal.Sphere(1.0).shifted(tensor(3.0, 1.0)), tensor(3.5, 1.0)),
    "scaled": (casal.Box(-1.0, 1.0).scaled(3.0), tensor(4.0, 1.0)),
    "product": (
        casal.Product(casal.Sphere(1.0), None, casal.Box(0.0, 1.0), sizes=[2, 1, 1]),
        tensor(1.0, 1.0, 5.0, 2.0),
    ),
}


@pytest.mark.parametrize("sigma", [1e-8, 0.05, 1.0, 1e6])
@pytest.mark.parametrize("name", SETS)
def test_draws_lie_in_the_set_and_repeat(name: str, sigma: float) -> None:
    constraint, y = SETS[name]
    drawn = near(constraint, y, sigma, 300)
    assert drawn.shape == (300, *y.shape) and drawn.dtype == torch.float64
    assert float(constraint.violation(drawn).max()) <= 1e-12
    assert torch.equal(drawn, near(constraint, y, sigma, 300))
    mass = constraint.log_normaliser(y.expand(3, *y.shape).to(torch.float32), sigma)
    assert mass is not None and mass.shape == (3,) and mass.dtype == torch.float64 and bool(torch.isfinite(mass).all())


def test_sets_without_a_closed_form_say_none() -> None:
    y = torch.zeros(2, 3)
    for constraint in (casal.Ball(1.0), casal.Simplex(), casal.Sphere(1.0) & casal.Box(0.0, 1.0)):
        assert not constraint.samples_near
        assert constraint.sample_near(y, 1.0, generator()) is None
        assert constraint.log_normaliser(y, 1.0) is None
    assert not casal.Product(casal.Sphere(1.0), casal.Ball(1.0), sizes=[2, 1]).samples_near
    assert casal.Sphere(1.0).scaled(2.0).samples_near


def test_bad_arguments_are_named() -> None:
    sphere = casal.Sphere(1.0, center=[0.0, 0.0])
    with pytest.raises(SettingError, match="sigma must be finite and > 0, got 0"):
        sphere.sample_near(torch.zeros(1, 2), 0.0, generator())
    with pytest.raises(SettingError, match="got nan"):
        sphere.log_normaliser(torch.zeros(1, 2), math.nan)
    with pytest.raises(ProjectionError, match="sample_near got non-finite"):
        sphere.sample_near(torch.full((1, 2), math.nan), 1.0, generator())
    with pytest.raises(ShapeError):
        sphere.sample_near(torch.zeros(1, 3), 1.0, generator())


# Spheres: cosine, and its square, by ratios of Bessel functions


def cosine_moments(dimension: int, kappa: float) -> tuple[float, float]:
    """E cos = A_d = I_(d/2) / I_(d/2-1), E cos^2 = 1 - (d - 1) A_d / kappa."""
    ratio = special.ive(dimension / 2, kappa) / special.ive(dimension / 2 - 1, kappa)
    return float(ratio), float(1.0 - (dimension - 1) * ratio / kappa)


def cosine_is_right(draw: Callable[..., Tensor], dimension: int, kappa: float) -> bool:
    """On a sphere of radius 2 around y at distance 0.5 of its centre, sigma^2 = 1 / kappa."""
    y = torch.zeros(dimension, dtype=torch.float64)
    y[-1] = 0.5
    cosine = draw(casal.Sphere(2.0), y, kappa**-0.5)[:, -1] / 2.0
    first, second = cosine_moments(dimension, kappa)
    return z_score(cosine, first) < 4.0 and z_score(cosine.square(), second) < 4.0


CASES = [(2, 0.1), (2, 3.0), (2, 200.0), (3, 1e-8), (3, 1.0), (3, 50.0), (5, 10.0), (50, 1.0), (50, 500.0), (400, 30.0)]


@pytest.mark.parametrize(("dimension", "kappa"), CASES)
def test_angles_on_a_sphere(dimension: int, kappa: float) -> None:
    n = N if dimension < 100 else 8_000
    assert cosine_is_right(lambda *a: near(*a, n=n), dimension, kappa)


@pytest.mark.parametrize(("dimension", "kappa"), [(2, 3.0), (3, 1.0), (5, 10.0), (50, 500.0)])
def test_the_angle_test_has_power(dimension: int, kappa: float) -> None:
    """Projecting y + sigma xi, with |y| far from R, gives other angles."""
    assert not cosine_is_right(projected, dimension, kappa)


@pytest.mark.parametrize("dimension", [2, 3, 10])
def test_sharp_angles_keep_their_digits(dimension: int) -> None:
    """kappa = 1e12: kappa (1 - cos) is half a chi-square; the chord, not the cosine, carries the digits."""
    y = torch.ones(dimension, dtype=torch.float64) / math.sqrt(dimension)
    chord = (near(casal.Sphere(1.0), y, 1e-6) - y).square().sum(1) * 1e12
    assert z_score(chord, dimension - 1.0) < 4.0
    assert stats.kstest(chord.numpy(), stats.chi2(dimension - 1).cdf).pvalue > 1e-3


def test_directions_around_the_mean_are_uniform() -> None:
    drawn = near(casal.Sphere(1.0), tensor(0.0, 0.0, 2.0), 1.0)
    azimuth = torch.atan2(drawn[:, 1], drawn[:, 0]).numpy()
    assert stats.kstest(azimuth, stats.uniform(-math.pi, 2 * math.pi).cdf).pvalue > 1e-3
    assert abs(np.corrcoef(np.abs(azimuth), drawn[:, 2].numpy())[0, 1]) < 4.0 / math.sqrt(N)


def test_point_pair() -> None:
    share = (near(casal.Sphere(2.0), tensor(0.1), 1.0) > 0).to(torch.float64)
    assert z_score(share, float(special.expit(0.4))) < 4.0


def test_mass_energy_angles() -> None:
    constraint, y = SETS["mass and energy"]
    inside = y - y.mean()
    radius, distance = math.sqrt(4.0 - 0.25), float(inside.norm())
    first, second = cosine_moments(3, radius * distance / 0.7**2)

    def right(drawn: Tensor) -> bool:
        cosine = drawn @ inside / (radius * distance)
        return z_score(cosine, first) < 4.0 and z_score(cosine.square(), second) < 4.0

    assert right(near(constraint, y, 0.7))
    assert not right(projected(constraint, y, 0.7))


# Flat sets and boxes


def test_affine_mean_and_covariance() -> None:
    constraint, y = SETS["affine"]
    A = torch.tensor([[1.0, 2.0, 0.0], [0.0, 1.0, -1.0]], dtype=torch.float64)
    along = torch.eye(3, dtype=torch.float64) - torch.linalg.pinv(A) @ A
    drawn = near(constraint, y, 0.5)
    assert torch.allclose(drawn.mean(0), constraint.project(y[None])[0], atol=4 * 0.5 / math.sqrt(N))
    assert torch.allclose(torch.cov(drawn.T), 0.25 * along, atol=4 * 0.25 * math.sqrt(2.0 / N))


@pytest.mark.parametrize(
    ("low", "high"), [(-1.0, 2.0), (0.5, 0.6), (2.0, math.inf), (-math.inf, -5.0), (6.0, 6.5), (-0.01, 40.0)]
)
def test_truncated_normal_moments(low: float, high: float) -> None:
    """Mean 0.3, sigma 2; the exact moments are SciPy's."""
    a, b = (low - 0.3) / 2.0, (high - 0.3) / 2.0
    law = stats.truncnorm(a, b, loc=0.3, scale=2.0)
    box, y = casal.Box(low, high), tensor(0.3)
    drawn = near(box, y, 2.0)[:, 0]
    assert z_score(drawn, law.mean()) < 4.0
    assert stats.kstest(drawn.numpy(), law.cdf).pvalue > 1e-3
    if low > -1.0:
        assert z_score(projected(box, y, 2.0)[:, 0], law.mean()) > 10.0


def test_half_space_is_a_cut_gaussian() -> None:
    constraint, y = SETS["half-space"]
    normal = tensor(1.0, -2.0) / math.sqrt(5.0)
    across = tensor(2.0, 1.0) / math.sqrt(5.0)
    drawn, height = near(constraint, y, 0.8), float(y @ normal)
    law = stats.truncnorm(-math.inf, (0.3 / math.sqrt(5.0) - height) / 0.8, loc=height, scale=0.8)
    assert stats.kstest((drawn @ normal).numpy(), law.cdf).pvalue > 1e-3
    assert stats.kstest((drawn @ across).numpy(), stats.norm(float(y @ across), 0.8).cdf).pvalue > 1e-3
    assert z_score(projected(constraint, y, 0.8) @ normal, law.mean()) > 10.0


# Normalisers


@pytest.mark.parametrize("sigma", [0.1, 1.0, 30.0])
def test_normalisers_against_quadrature(sigma: float) -> None:
    def density(*z: float, y: Tensor) -> float:
        return float(np.prod(stats.norm.pdf(np.array(z), y.numpy(), sigma)))

    def same(name: str, exact: float) -> None:
        constraint, y = SETS[name]
        value = constraint.log_normaliser(y[None], sigma)
        assert value is not None and float(value[0]) == pytest.approx(math.log(exact), abs=1e-8), name

    y = SETS["circle"][1]
    angles = np.linspace(0.0, 2 * np.pi, 2000, endpoint=False)
    same("circle", 4 * np.pi * np.mean([density(2 * np.cos(a), 2 * np.sin(a), y=y) for a in angles]))

    center, y = np.array([1.0, 0.0, -1.0]), SETS["sphere"][1]
    nodes, weights = np.polynomial.legendre.leggauss(300)
    turn = np.linspace(0.0, 2 * np.pi, 500, endpoint=False)
    height, angle = np.meshgrid(nodes, turn, indexing="ij")
    ring = np.sqrt(1 - height**2)
    points = center + 2.0 * np.stack([ring * np.cos(angle), ring * np.sin(angle), height], axis=-1)
    values = stats.norm.pdf(points, y.numpy(), sigma).prod(-1).mean(1)
    same("sphere", 4.0 * 2 * np.pi * float(weights @ values))

    constraint, y = SETS["mass and energy"][0], tensor(0.3, -1.0, 2.0)
    first, second = np.array([1.0, -1.0, 0.0]) / np.sqrt(2), np.array([1.0, 1.0, -2.0]) / np.sqrt(6)
    radius = math.sqrt(4.0 - 1.0 / 3.0)
    loop = 1.0 / 3.0 + radius * (np.cos(angles)[:, None] * first + np.sin(angles)[:, None] * second)
    exact = 2 * np.pi * radius * float(stats.norm.pdf(loop, y.numpy(), sigma).prod(1).mean())
    value = constraint.log_normaliser(y[None], sigma)
    assert value is not None and float(value[0]) == pytest.approx(math.log(exact), abs=1e-8)

    y = SETS["half-space"][1]
    if sigma == 1.0:
        low, high = lambda a: (a - 0.3) / 2.0, lambda a: 20.0
        exact, _ = integrate.dblquad(lambda b, a: density(a, b, y=y), -8.0, 11.0, low, high)
        same("half-space", exact)
    same("point pair", density(2.0, y=SETS["point pair"][1]) + density(-2.0, y=SETS["point pair"][1]))
    same("point", density(0.0, 0.0, y=SETS["point"][1]))


def test_normalisers_of_compound_sets() -> None:
    y = tensor(1.0, 1.0, 5.0, 2.0)[None]
    product = SETS["product"][0].log_normaliser(y, 0.7)
    sphere, box = casal.Sphere(1.0).log_normaliser(y[:, :2], 0.7), casal.Box(0.0, 1.0).log_normaliser(y[:, 3:], 0.7)
    assert product is not None and sphere is not None and box is not None
    assert torch.allclose(product, sphere + box)
    two = torch.stack([tensor(4.0, 1.0), tensor(-2.0, 7.0)])
    direct, scaled = casal.Sphere(3.0).log_normaliser(two, 0.7), casal.Sphere(1.0).scaled(3.0).log_normaliser(two, 0.7)
    shifted = casal.Sphere(3.0).shifted(tensor(1.0, 0.0)).log_normaliser(two + tensor(1.0, 0.0), 0.7)
    assert direct is not None and scaled is not None and shifted is not None
    assert torch.allclose(direct[0] - direct[1], scaled[0] - scaled[1])
    assert torch.allclose(direct, shifted)


def test_affine_normaliser_is_the_density_of_the_values() -> None:
    """N(y, sigma^2) seen through orthonormal rows is N(A y, sigma^2); redundant rows change nothing."""
    y, sigma = tensor(0.3, -1.0, 2.0), 0.4
    exact = stats.norm.logpdf([0.0, 1.0], [0.3, -1.0], sigma).sum()
    plain = ([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [0.0, 1.0])
    redundant = ([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 0.0]], [0.0, 1.0, 1.0])
    for rows, right in (plain, redundant):
        value = casal.Affine(rows, right).log_normaliser(y[None], sigma)
        assert value is not None and float(value[0]) == pytest.approx(exact, rel=1e-12)
