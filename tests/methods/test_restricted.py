"""Draws of a Gaussian inside a set, its integrals, and whole runs, each against a closed form."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import casal
from casal.errors import SettingError
from casal.methods import Problem
from casal.methods.curved_draw import MEASURES, Lines, log_integral
from casal.methods.equations import equations_of
from casal.methods.restricted import Sides, inside, log_probability, redrawn, sides_of, slices

F64 = torch.float64


def gaussian_model(variances: Tensor) -> casal.Target:
    """N(0, diag variances) as a diffusion model."""
    sigmas = casal.karras_sigmas(40, 0.005, 40.0)
    return casal.edm(
        lambda x, s: x * variances.to(x) / (variances.to(x) + s.to(x) ** 2), sigmas, shape=(len(variances),), churn=1.0,
        dtype=F64,
    )  # fmt: skip


def problem_of(target: casal.Target, constraint: casal.Constraint) -> Problem:
    return Problem(target, constraint, casal.Identity(), torch.zeros(0, 2, dtype=F64))


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=stream(seed), dtype=F64)


# ------------------------------------------------------------------------------------------- draws


def test_draws_inside_a_quadrant_have_the_moments_of_quadrature() -> None:
    """x >= 0 of a correlated pair, with a third coordinate that follows them: all by Matheron's rule."""
    C = torch.tensor([[1.0, 0.6, 0.3], [0.6, 2.0, 0.5], [0.3, 0.5, 1.0]], dtype=F64)
    mean, n, G = torch.tensor([-0.5, 0.4, 0.2], dtype=F64), 20_000, torch.eye(3, dtype=F64)[:2]
    sides = Sides(G, torch.zeros(1, 2, dtype=F64), torch.full((1, 2), math.inf, dtype=F64))
    e = normal(n, 3, seed=1) @ torch.linalg.cholesky(C).T
    kept = torch.ones(n, 3, dtype=F64)
    x = inside(sides, mean.expand(n, -1), mean + e, (C @ G.T).T, kept, 6, 1e-12, stream(2))
    assert bool((x[:, :2] >= -1e-9).all())
    axis = torch.linspace(0.0, 12.0, 2401, dtype=F64)
    grid = torch.cartesian_prod(axis, axis)
    inverse = torch.linalg.inv(C[:2, :2])
    away = grid - mean[:2]
    weight = torch.exp(-0.5 * ((away @ inverse) * away).sum(1))
    weight = weight / weight.sum()
    exact = weight @ grid
    third = mean[2] + C[2, :2] @ inverse @ (exact - mean[:2])
    wanted = torch.cat([exact, third[None]])
    error = x.std(0) / math.sqrt(n)
    assert bool(((x.mean(0) - wanted).abs() < 5 * error + 1e-3).all())
    assert bool(((mean - wanted).abs() > 20 * error).any())  # the plain Gaussian would be seen


def test_slices_leave_a_weighted_gaussian_as_it_is() -> None:
    """N(1, 1) exp(-(x + 1)^2 / 2) = N(0, 1/2), from a start that is far off."""
    n = 20_000
    draw = iter(range(10_000))
    x = slices(
        lambda x: -0.5 * (x[:, 0] + 1.0).square(),
        torch.ones(n, 1, dtype=F64),
        lambda: normal(n, 1, seed=next(draw)),
        torch.full((n, 1), 5.0, dtype=F64),
        25,
        stream(3),
    )
    assert abs(float(x.mean())) < 5 * math.sqrt(0.5 / n)
    assert abs(float(x.var()) - 0.5) < 5 * 0.5 * math.sqrt(2 / n)


def test_slices_never_leave_the_set() -> None:
    n, count = 500, iter(range(10_000))

    def inside_ball(x: Tensor) -> Tensor:
        return torch.where(x.square().sum(1) <= 1.0, 0.0, -math.inf)

    x = slices(inside_ball, torch.full((n, 3), 2.0, dtype=F64), lambda: normal(n, 3, seed=next(count)),
               torch.zeros(n, 3, dtype=F64), 5, stream(4))  # fmt: skip
    assert bool((x.square().sum(1) <= 1.0).all()) and float(x.std()) > 0.05


# ------------------------------------------------------------------------------------------- integrals


@pytest.mark.parametrize("correlation", [-0.7, 0.0, 0.9])
def test_the_probability_of_a_quadrant(correlation: float) -> None:
    """P(x > 0, y > 0) = 1/4 + asin(r) / (2 pi)."""
    C = torch.tensor([[1.0, correlation], [correlation, 1.0]], dtype=F64)
    zero = torch.zeros(1, 2, dtype=F64)
    found = log_probability(Sides(torch.eye(2, dtype=F64), zero, zero + math.inf), zero[0], C, stream(5))
    assert found == pytest.approx(math.log(0.25 + math.asin(correlation) / (2 * math.pi)), abs=0.05)


def test_the_probability_of_a_box_of_independent_coordinates_is_exact() -> None:
    low, high = torch.tensor([[-1.0, 8.0, -math.inf]], dtype=F64), torch.tensor([[0.5, 9.0, -7.0]], dtype=F64)
    found = log_probability(Sides(torch.eye(3, dtype=F64), low, high), torch.zeros(3, dtype=F64), torch.eye(3).to(F64),
                            stream(6))  # fmt: skip
    tail = torch.special.log_ndtr(torch.tensor([-8.0, -9.0, -7.0], dtype=F64))
    middle = math.log(0.5 * (math.erf(0.5 / math.sqrt(2)) + math.erf(1.0 / math.sqrt(2))))
    exact = middle + float(tail[0] + torch.log1p(-(tail[1] - tail[0]).exp())) + float(tail[2])
    assert found == pytest.approx(exact, abs=1e-6)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("offset", [0.0, 1.0, 2.5])
def test_the_integral_over_a_circle(offset: float, measure: str) -> None:
    """Of N(m, I) over |x| = R: R exp(-(R^2 + m^2) / 2) I0(R m), by lines through both sides; co-area by 1 / (2 R)."""
    radius, n = 2.0, 2000
    problem: Problem = problem_of(gaussian_model(torch.ones(2, dtype=F64)), casal.Sphere(radius))
    found, mean = equations_of(problem), torch.tensor([[offset, 0.0]], dtype=F64)
    slopes = torch.eye(2, dtype=F64)[:, None, None]

    def estimates(count: int) -> Tensor:
        """log of the integral by lines of so many directions, ten times."""
        lines, e = [Lines.of(v, v) for v in slopes[:count]], normal(10, n, 2, seed=7)
        return torch.tensor([log_integral(problem, found, mean, lines, part, stream(), measure) for part in e])

    exact = radius * math.exp(-(radius**2 + offset**2) / 2) * float(torch.special.i0(torch.tensor(radius * offset)))
    exact = exact if measure == "surface" else exact / float(equations_slope(problem, radius))
    two, one = (estimates(count).exp() / math.sqrt(2 * math.pi) for count in (2, 1))
    assert abs(float(two.mean()) - exact) < 5 * float(two.std()) / math.sqrt(10) + 1e-4
    assert float(two.std()) < 0.03 * exact
    assert offset > radius or float(one.std()) > 1.5 * float(two.std())  # lines that touch the circle


def equations_slope(problem: Problem, radius: float) -> Tensor:
    """|grad h| on the circle."""
    return equations_of(problem).slopes(problem, torch.tensor([[radius, 0.0]], dtype=F64))[0].norm()


def test_draws_with_new_values_along_wide_directions_keep_their_covariance() -> None:
    """e + C Q^T (Q C Q^T)^-1 (z - Q e): exact for any Q, and a direction without variance is left alone."""
    n, d = 20_000, 5
    root = normal(d, d, seed=1) @ torch.diag(torch.tensor([2.0, 1.0, 0.5, 0.1, 0.0], dtype=F64))
    C, Q = root @ root.T, torch.linalg.qr(normal(d, d, seed=2))[0][:3]
    e = normal(n, d, seed=3) @ root.T
    new = redrawn(e, Q, Q @ C, stream(4))
    both = (e @ Q.T).T @ (new @ Q.T) / n
    assert float(both.abs().max()) < 5 * float(C.max()) / math.sqrt(n)  # along Q they are independent of the old
    assert float(new.T.cov().sub(C).abs().max()) < 5 * float(C.max()) * math.sqrt(2 / n)
    null = torch.linalg.eigh(C)[1][:, :1].T
    torch.testing.assert_close(redrawn(e, null, null @ C, stream(4)) @ C, e @ C, atol=1e-6, rtol=0)


# ------------------------------------------------------------------------------------------- runs


SPREADS = torch.tensor([2.0, 1.0, 0.5, 0.25], dtype=F64)


def restricted_mean(low: float, deviation: float) -> float:
    """Of N(0, deviation^2) above low."""
    t = low / deviation
    log_tail = float(torch.special.log_ndtr(torch.tensor(-t, dtype=F64)))
    return deviation * math.exp(-0.5 * t * t - 0.5 * math.log(2 * math.pi) - log_tail)


@pytest.mark.statistical
def test_bounds_of_independent_coordinates() -> None:
    target, n = gaussian_model(SPREADS.square()), 400
    result = casal.sample(target, casal.Box(0.3, math.inf), casal.Matheron(), n, seed=1, check=False)
    assert bool((result.samples > 0.3).all())  # no sample is moved onto the bound
    exact = torch.tensor([restricted_mean(0.3, float(s)) for s in SPREADS], dtype=F64)
    error = result.samples.std(0) / math.sqrt(n)
    assert bool(((result.samples.mean(0) - exact).abs() < 4.5 * error).all())


@pytest.mark.statistical
def test_every_chain_may_have_its_own_bounds() -> None:
    low = torch.linspace(0.0, 1.0, 400, dtype=F64)[:, None].expand(-1, 4)
    result = casal.sample(
        gaussian_model(SPREADS.square()), casal.Box(casal.PerChain(low), math.inf), casal.Matheron(), 400, seed=2,
        check=False,
    )  # fmt: skip
    assert bool((result.samples >= low).all())
    exact = torch.tensor([[restricted_mean(float(v[0]), float(s)) for s in SPREADS] for v in low], dtype=F64)
    gap = result.samples - exact
    assert bool((gap.mean(0).abs() < 4.5 * gap.std(0) / 20).all())


@pytest.mark.statistical
def test_a_soft_term_and_an_equation() -> None:
    """A Gaussian with precision C^-1 + v v^T / r^2 given 1.x = 1."""
    C, v, n = SPREADS.square(), torch.tensor([1.0, -1.0, 0.5, 0.0], dtype=F64), 500
    target = casal.tilted(gaussian_model(C), lambda x: -(x @ v.to(x) - 1.0).square() / (2 * 0.5**2))
    ones = torch.ones(1, 4, dtype=F64)
    method = casal.Matheron(90)
    result = casal.sample(target, casal.Affine(ones, [1.0]), method, n, seed=3, check=False)
    S = torch.linalg.inv(torch.diag(1 / C) + v[:, None] * v / 0.25)
    mean = S @ v / 0.25
    gain = S @ ones.T / (ones @ S @ ones.T)
    exact, left = mean + (gain * (1.0 - ones @ mean))[:, 0], S - gain @ ones @ S
    error = left.diagonal().sqrt() / math.sqrt(n)
    assert bool(((result.samples.mean(0) - exact).abs() < 5 * error).all())
    assert float((result.samples.var(0).sum() / left.trace() - 1.0).abs()) < 5 * math.sqrt(2 / n)
    plain = gain[:, 0]  # the mean without the term, if S were the prior's: it would be seen
    assert bool(((plain - exact).abs() > 10 * error).any())


@pytest.mark.statistical
def test_a_soft_term_and_inequalities_on_a_circle() -> None:
    """N(0, I) on a circle, above a line and weighted by exp(2 x): the angle by quadrature."""
    target = casal.tilted(gaussian_model(torch.ones(2, dtype=F64)), lambda x: 2.0 * x[:, 0])
    constraint, n = casal.Sphere(1.0) & casal.HalfSpace([0.0, -1.0], 0.0), 200
    result = casal.sample(target, constraint, casal.Matheron(20, candidates=4), n, seed=4, check=False)
    angle = torch.linspace(0.0, math.pi, 4001, dtype=F64)
    weight = torch.exp(2.0 * angle.cos())
    exact = torch.stack([(weight * f).sum() / weight.sum() for f in (angle.cos(), angle.sin())])
    error = result.samples.std(0) / math.sqrt(n)
    assert bool((result.samples[:, 1] >= -1e-12).all())
    assert bool(((result.samples.mean(0) - exact).abs() < 5 * error).all())


def test_rows_are_those_of_the_latent() -> None:
    A = torch.tensor([[2.0, 0.0], [1.0, 1.0]], dtype=F64)
    problem = problem_of(gaussian_model(torch.ones(2, dtype=F64)), casal.Box(-1.0, 3.0))
    sides = sides_of(problem.replace(decoder=casal.Linear(A)))
    assert sides is not None
    torch.testing.assert_close(sides.matrix, A / A.norm(dim=1, keepdim=True))
    torch.testing.assert_close(sides.high, 3.0 / A.norm(dim=1)[None])


def test_what_it_does_not_take_is_refused() -> None:
    target = gaussian_model(torch.ones(4, dtype=F64))
    with pytest.raises(SettingError, match="union"):
        casal.sample(target, casal.Sphere(1.0) | casal.Sphere(2.0), casal.Matheron(), 32)
    with pytest.raises(SettingError, match="slices"):
        casal.Matheron(slices=0)
    soft = casal.tilted(target, lambda x: x[:, 0])
    with pytest.raises(SettingError, match="a soft term needs"):
        casal.sample(soft, casal.Ball(casal.PerChain(torch.linspace(1.0, 2.0, 8))), casal.Matheron(), 8)
    density = casal.langevin(lambda x: x, steps=5, step_size=0.1, init=torch.zeros(8, 4))
    with pytest.raises(SettingError, match="denoiser"):
        casal.sample(density, casal.Box(0.0, 1.0), casal.Matheron(), 8)
