"""Every exact answer is found a second time, in another way: rejection, thin layers, closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from scipy import integrate
from torch import Tensor

import casal
from casal.errors import SettingError
from casal_lab.benchmark import PROBLEMS, Answer, Problem, problem
from casal_lab.benchmark.answer import F64, stream
from casal_lab.benchmark.catalogue import SIXTEEN
from casal_lab.problems import double_well, field, many_dimensions
from casal_lab.problems.truncated_gaussian import nonnegative_gibbs

pytestmark = pytest.mark.statistical


def light(name: str, chains: int = 100) -> Answer:
    """The answer of a problem with a smaller reference, where it is of draws."""
    answer = problem(name).answer
    return Answer(answer.exact, answer.features, answer.modes, chains)


def agrees(answer: Answer, points: Tensor) -> None:
    """Means of all statistics, and weights of modes, are equal within Monte Carlo error."""
    mean, spread = answer.moments
    own = 1 / len(answer.reference.points) if answer.reference.drawn else 0.0
    z = (answer.statistics(points).mean(0) - mean) / spread / math.sqrt(1 / len(points) + own)
    assert float(z.abs().max()) < 4.5, z
    if answer.modes is not None:
        share = answer.modes(points)
        error = (share.var(0) * (1 / len(points) + own)).sqrt()
        assert bool(((share.mean(0) - answer.mode_weights).abs() < 4.5 * error + 1e-9).all())


SOLID = [
    "interval, 1-D",
    "two intervals, 1-D",
    "Gaussian in a box",
    "two boxes",
    "diamond",
    "annulus, 2-D",
    "region between curves (implicit)",
    "path past an obstacle, 8-D",
]


@pytest.mark.parametrize("name", SOLID)
def test_solid_sets_against_rejection(name: str) -> None:
    one = problem(name)
    x = one.start(60_000, stream(5))
    inside = x[one.violation(x) == 0.0]
    assert len(inside) > 500
    agrees(light(name), inside)


THIN = [
    "three modes on a circle",
    "Gaussian on a sphere",
    "plane in 4-D",
    "ellipse (implicit)",
    "torus, 3-D",
    "simplex",
    "circle x interval",
]


@pytest.mark.parametrize("name", THIN)
def test_thin_sets_against_draws_in_a_layer(name: str) -> None:
    """p within a small distance of one equation, inside the inequalities; the error is of second order."""
    one = problem(name)
    x = one.start(300_000, stream(5))
    slope = one.jacobian(x)[:, 0].norm(dim=1)
    near = (one.equations(x)[:, 0].abs() < 0.02 * slope) & (one.inequalities(x) <= 0).all(1)
    assert int(near.sum()) > 500
    agrees(light(name), x[near])


def test_the_tail_against_the_closed_form() -> None:
    """E[x | x > a] = phi(a) / Q(a), E[x^2 | x > a] = 1 + a phi(a) / Q(a)."""
    points, weights, _ = problem("tail, 1-D").answer.reference
    a = 4.0
    mills = math.exp(-(a**2) / 2) / math.sqrt(2 * math.pi) / (0.5 * math.erfc(a / math.sqrt(2)))
    assert float(weights @ points[:, 0]) == pytest.approx(mills, abs=1e-6)
    assert float(weights @ points[:, 0].square()) == pytest.approx(1 + a * mills, abs=1e-5)


def test_mass_and_energy_against_shares_of_a_thin_tube() -> None:
    """Two equations: those draws that are within a small distance of both, counted by their projection."""
    one = problem("mass and energy")
    x = one.start(2_000_000, stream(5))
    z = one.project(x)
    near = (x - z).norm(dim=1) < 0.06
    agrees(light("mass and energy"), z[near])


def test_two_circles_against_draws_in_a_layer() -> None:
    one = problem("two circles, 2-D")
    x = one.start(400_000, stream(5))
    z = one.project(x)
    agrees(light("two circles, 2-D"), z[(x - z).norm(dim=1) < 0.02])


def test_increasing_numbers_are_order_statistics() -> None:
    """Largest of 16 normal numbers: mean 1.76599, variance 0.29 (tables of order statistics)."""
    points = light("increasing, 16-D", 500).reference.points
    assert float(points[:, -1].mean()) == pytest.approx(1.76599, abs=4.5 * 0.543 / math.sqrt(len(points)))
    assert float(points[:, 0].mean()) == pytest.approx(-1.76599, abs=4.5 * 0.543 / math.sqrt(len(points)))


def test_orthants_have_half_normal_coordinates() -> None:
    points = light("orthant, 64-D").reference.points
    assert float(points.mean()) == pytest.approx(math.sqrt(2 / math.pi), abs=4.5 * 0.603 / math.sqrt(points.numel()))


def test_double_wells_against_draws_near_the_sum() -> None:
    grid = torch.linspace(-6.0, 5.0, 20_001, dtype=F64)
    chances = torch.softmax(-double_well.potential(grid), 0).cumsum(0)
    u = torch.rand((200_000, 32), generator=stream(5), dtype=F64)
    x = grid[torch.searchsorted(chances, u).clamp_max(len(grid) - 1)]
    near = x[(x.sum(1) + 16.0).abs() < 0.3]
    assert len(near) > 500
    agrees(light("double wells of given sum, 32-D", 50), near)


def test_the_field_against_the_quadrature_of_its_experiment() -> None:
    points = light("field of given energy, 50-D", 50).reference.points
    share, exact = float((points[:, 0] > 0).double().mean()), field.share_right(field.STIFF, field.STIFF.energy)
    assert share == pytest.approx(exact, abs=4.5 * math.sqrt(exact / len(points)))
    grid, cdf = field.conditional(field.STIFF, field.STIFF.energy)
    distance = field.quantile_distance(points[:, 0].numpy(), grid, cdf)
    assert distance < 3 * field.sampling_floor(grid, cdf, len(points), 50)


def test_modes_on_a_sphere_against_closed_forms() -> None:
    """The mean of the shares of modes is their weight, from Bessel functions."""
    answer = light("three modes on a sphere, 16-D", 500)
    exact = SIXTEEN.restricted(casal.Sphere(2.0)).weights
    shares = SIXTEEN.responsibilities(answer.reference.points)
    error = shares.std(0) / math.sqrt(len(shares))
    assert bool(((shares.mean(0) - exact).abs() < 4.5 * error).all())


@pytest.mark.parametrize(
    ("name", "make", "size"),
    [
        ("four equations, 64-D, diffusion", many_dimensions.four_equations, 64),
        ("nonnegative, 64-D, diffusion", many_dimensions.nonnegative, 64),
        ("half-space, 256-D, diffusion", many_dimensions.half_space, 256),
    ],
)
def test_many_dimensions_against_closed_means(
    name: str, make: Callable[[int, int], many_dimensions.Problem], size: int
) -> None:
    exact, points = make(size, 7).exact, light(name, 100).reference.points
    z = (points.mean(0) - exact.mean) / points.std(0).clamp_min(1e-9) * math.sqrt(len(points))
    assert float(z.abs().max()) < 4.5


def given_square(mean: Tensor, variance: Tensor, square: float) -> tuple[float, Tensor, Tensor]:
    """log f(E), E[u | |u|^2 = E] and E[u^2 | |u|^2 = E] for independent u_j ~ N(m_j, v_j), by Fourier inversion.

    With c_j = 1 / (1 - 2 i t v_j), E[exp(i t |u|^2)] = prod_j c_j^1/2 exp(i t m_j^2 c_j). Under that weight u_j is
    normal with mean m_j c_j and variance v_j c_j.
    """
    scale = float((2 * variance.square() + 4 * variance * mean.square()).sum().sqrt())
    t = torch.linspace(-100.0, 100.0, 4001, dtype=F64)[:, None] / scale
    c = 1 / (1 - 2j * t * variance)
    log_phi = (c.log() / 2 + 1j * t * mean.square() * c).sum(1, keepdim=True) - 1j * t * square
    phi = log_phi.exp()
    assert float(phi[0].abs()) < 1e-9
    whole = phi.sum().real
    first = (phi * mean * c).sum(0).real / whole
    second = (phi * (variance * c + (mean * c).square())).sum(0).real / whole
    return math.log(float(whole) * float(t[1] - t[0]) / (2 * math.pi)), first, second


def independent(points: Tensor, first: Tensor, second: Tensor) -> None:
    """Means and mean squares of the columns of draws are the given ones within Monte Carlo error."""
    for found, exact in ((points, first), (points.square(), second)):
        z = (found.mean(0) - exact) / found.std(0) * math.sqrt(len(points))
        assert float(z.abs().max()) < 4.7, z
        assert float(z.square().mean()) < 1.6, z


def rows(constraint: casal.Constraint) -> tuple[Tensor, Tensor]:
    """A and y of the linear equations of an intersection."""
    assert isinstance(constraint, casal.Intersection)
    plane = next(part for part in constraint.members if isinstance(part, casal.Affine))
    assert isinstance(plane.A, Tensor) and isinstance(plane.b, Tensor)
    return plane.A.to(F64), plane.b.to(F64)


def conditioned(mean: Tensor, covariance: Tensor, A: Tensor, y: Tensor) -> tuple[float, Tensor, Tensor, Tensor, Tensor]:
    """log density of A x = y, foot of the plane, axes (d, d - m), mean and variance along them given A x = y."""
    cross = covariance @ A.T
    gain = torch.linalg.solve(A @ cross, cross.T).T
    residual = y - A @ mean
    log_mass = float(torch.distributions.MultivariateNormal(A @ mean, A @ cross).log_prob(y))
    foot = torch.linalg.pinv(A) @ y
    values, axes = torch.linalg.eigh(covariance - gain @ cross.T)
    free = axes[:, len(y) :]
    return log_mass, foot, free, (mean + gain @ residual - foot) @ free, values[len(y) :]


def test_the_high_norm_against_fourier_inversion() -> None:
    name = "norm, 4 sd high, 256-D, diffusion"
    found = many_dimensions.norm(256, 7, deviations=4.0)
    prior, square = found.prior, float(problem(name).answer.draws(2, 0).square().sum(1)[0])
    Q = prior.turns[0].matrix(256)
    _, first, second = given_square(prior.means[0] @ Q, prior.variances[0], square)
    assert float(second.sum()) == pytest.approx(square, rel=1e-6)
    independent(light(name, 50).reference.points @ Q, first, second)


def test_four_equations_and_norm_against_fourier_inversion() -> None:
    """Weights of the modes w_k N(y; A m_k, A S_k A^T) f_k(E), and the mean they give."""
    name = "four equations and norm, 256-D, diffusion"
    found = many_dimensions.four_equations_and_norm(256, 7)
    points, prior = light(name, 50).reference.points, found.prior
    A, y, square = *rows(found.constraint), float(points[0].square().sum())
    logs, means = [], []
    for k in range(4):
        log_mass, foot, axes, mean, variance = conditioned(prior.means[k], prior.covariance(k), A, y)
        log_density, first, _ = given_square(mean, variance, square - float(foot.square().sum()))
        logs.append(log_mass + log_density + float(prior.weights[k].log()))
        means.append(foot + axes @ first)
    weights = torch.softmax(torch.tensor(logs, dtype=F64), 0)
    assert torch.allclose(found.exact.weights, weights, atol=1e-6)
    z = (points.mean(0) - weights @ torch.stack(means)) / points.std(0) * math.sqrt(len(points))
    assert float(z.abs().max()) < 4.7 and float(z.square().mean()) < 2.0, z


def test_the_field_on_a_grid_against_fourier_inversion() -> None:
    """1024-D: kriging with a dense matrix, then the norm of what is left."""
    name = "field of 64 known values and norm, 1024-D, diffusion"
    found = many_dimensions.observed_and_norm(1024, 7, deviations=2.5)
    points = light(name, 10).reference.points
    A, y = rows(found.constraint)
    _, foot, axes, mean, variance = conditioned(found.prior.means[0], found.prior.covariance(0), A, y)
    left = float(points[0].square().sum() - foot.square().sum())
    _, first, second = given_square(mean, variance, left)
    assert float(second.sum()) == pytest.approx(left, rel=1e-6)
    independent((points - foot) @ axes, first, second)


def test_bounds_on_four_of_256_coordinates_against_rejection() -> None:
    """The four coordinates by rejection; the others are linear in them on average."""
    name = "box on four coordinates, 256-D, diffusion"
    found = many_dimensions.box_on_four(256, 7)
    box, prior = found.constraint, found.prior
    assert isinstance(box, casal.Box)
    bounded = torch.isfinite(box.low).nonzero()[:, 0]
    mean, covariance = prior.means[0], prior.covariance(0)
    inner = covariance[bounded][:, bounded]
    noise = torch.randn((4_000_000, 4), generator=stream(5), dtype=F64)
    x = mean[bounded] + noise @ torch.linalg.cholesky(inner).T
    kept = x[((x > box.low[bounded]) & (x < box.high[bounded])).all(1)]
    assert len(kept) == pytest.approx(4_000_000 * 2e-4, abs=4.5 * math.sqrt(800))
    points = light(name, 50).reference.points
    error = (kept.var(0) / len(kept) + points[:, bounded].var(0) / len(points)).sqrt()
    assert bool(((points[:, bounded].mean(0) - kept.mean(0)).abs() < 4.5 * error).all())
    others = mean + covariance[:, bounded] @ torch.linalg.solve(inner, points[:, bounded].mean(0) - mean[bounded])
    z = (points.mean(0) - others) / points.std(0) * math.sqrt(len(points))
    assert float(z.abs().max()) < 4.7


def stein(x: Tensor, mean: Tensor, precision: Tensor, total: bool) -> Tensor:
    """A function of a point (n,) whose mean vanishes under N(m, P^-1) on x >= 0, or on x >= 0 of given sum.

    Integration by parts, with g = P (x - m): E[x_i g_i] = 1; with a given sum, along x_i + t, x_j - t,
    E[x_i^2 x_j (g_i - g_j)] = E[2 x_i x_j - x_i^2]. The mean over all i, with j on the other side of the ring.
    """
    g = (x - mean) @ precision
    if not total:
        return (x * g - 1).mean(1)
    half = x.shape[1] // 2
    y, h = x.roll(half, 1), g.roll(half, 1)
    return (x.square() * y * (g - h) - (2 * x * y - x.square())).mean(1)


@pytest.mark.parametrize("total", [False, True])
def test_gibbs_samplers_have_come_to_rest(total: bool) -> None:
    """The reference has 100 sweeps; after a single one the same check fails."""
    name = "nonnegative field" + (" of given sum" if total else "") + ", 64-D, diffusion"
    found = many_dimensions.nonnegative_field(64, 7, total)
    Q, prior = found.prior.turns[0].matrix(64), found.prior
    precision = (Q / prior.variances[0]) @ Q.T

    def z(points: Tensor) -> float:
        values = stein(points, prior.means[0], precision, total)
        return float(values.mean() / values.std()) * math.sqrt(len(points))

    assert abs(z(light(name, 50).reference.points)) < 4.0
    level = found.constraint.total if isinstance(found.constraint, casal.Simplex) else None
    assert level is None or isinstance(level, float)
    early = nonnegative_gibbs(prior.means[0], precision, level, replicas=1000, sweeps=1, warmup=0, seed=1)
    assert abs(z(early.points)) > 10.0


def test_the_particle_against_adaptive_quadrature() -> None:
    """Mean of y^2 and of x on the circle of radius 3, by scipy over the angle."""
    points, weights, _ = problem("particle on a circle").answer.reference

    def integral(value: Callable[[Tensor], Tensor]) -> float:
        def at(angle: float) -> float:
            x = 3 * torch.tensor([[math.cos(angle), math.sin(angle)]], dtype=F64)
            logs = -double_well.potential(x[:, 0]) - 50 * x[:, 1].square()
            return float((logs + 10).exp() * value(x))

        return integrate.quad(at, -0.5 * math.pi, 1.5 * math.pi, points=[0.0, math.pi], epsabs=0, epsrel=1e-9)[0]

    whole = integral(lambda x: torch.ones(1))
    values: list[Callable[[Tensor], Tensor]] = [lambda x: x[:, 1].square(), lambda x: x[:, 0]]
    for value in values:
        assert float(weights @ value(points)) == pytest.approx(integral(value) / whole, rel=1e-6)


CHEAP = [*SOLID, *THIN, "mass and energy", "two circles, 2-D", "tail, 1-D", "particle on a circle", "increasing, 16-D"]


@pytest.mark.parametrize("name", CHEAP)
def test_references_lie_in_their_sets(name: str) -> None:
    one, answer = problem(name), light(name, 20)
    points, weights, _ = answer.reference
    assert float(one.violation(points).max()) < 1e-12
    assert float(weights.sum()) == pytest.approx(1.0)
    assert points.shape[1] == one.dimension


@pytest.mark.parametrize("name", ["three modes on a circle", "torus, 3-D", "field of given energy, 50-D"])
def test_the_score_is_the_gradient_of_the_log_density(name: str) -> None:
    one = problem(name)
    x = one.start(5, stream(0)).requires_grad_()
    (slope,) = torch.autograd.grad(-one.potential(x).sum(), x)
    assert torch.allclose(one.score(x.detach()), slope, rtol=1e-4, atol=1e-3)


def test_the_catalogue_is_wide() -> None:
    endings = {kind: sum(name.endswith(kind) for name in PROBLEMS) for kind in ("diffusion", "trained")}
    assert len(PROBLEMS) >= 45
    assert endings["trained"] >= 2 and endings["diffusion"] >= 15
    assert len(PROBLEMS) - sum(endings.values()) >= 15
    for size in ("1-D", "16-D", "64-D", "256-D", "1024-D"):
        assert any(size in name for name in PROBLEMS), size
    with pytest.raises(SettingError, match="there is no problem 'nothing'"):
        problem("nothing")


def test_kinds_give_what_they_have() -> None:
    density, diffusion = problem("two boxes"), problem("two boxes, diffusion")
    x = density.start(4)
    assert density.score(x).shape == (4, 2) and density.potential(x).shape == (4,)
    assert diffusion.denoise(x, 0.5).shape == (4, 2)
    with pytest.raises(SettingError, match="no denoiser"):
        density.denoise(x, 0.5)
    with pytest.raises(SettingError, match="starts from noise"):
        diffusion.start(4)
    with pytest.raises(SettingError, match="no density"):
        diffusion.potential(x)


def test_evaluations_are_counted_forward_and_back() -> None:
    one = problem("two boxes, diffusion").fresh(3)
    x = torch.zeros((7, 2), dtype=F64, requires_grad=True)
    clean = one.denoise(x, 0.5)
    assert one.evaluations == 7
    torch.autograd.grad(clean.sum(), x)
    assert one.evaluations == 14
    assert one.fresh(4).evaluations == 0
    density: Problem = problem("two boxes").fresh(0)
    density.score(torch.zeros((5, 2), dtype=F64))
    assert density.evaluations == 5
