"""The moves through a denoiser, without sampling: a Gaussian model makes them linear and their laws known."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import casal
from casal.methods import Problem
from casal.methods.moves import (
    RANGE,
    SHORT,
    GibbsMoves,
    MetropolisMoves,
    MetropolisState,
    Reverse,
    Rung,
    _variance,
    data_floor,
    multistep_share,
    reverse_levels,
    with_nearest,
)

COVARIANCE = torch.tensor([[1.0, 0.8, 0.1], [0.8, 1.0, 0.3], [0.1, 0.3, 0.5]], dtype=torch.float64)
MEAN = torch.tensor([0.3, -0.5, 0.2], dtype=torch.float64)
MOVES = MetropolisMoves(10)
A = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]], dtype=torch.float64)


def denoiser(x: Tensor, sigma: Tensor) -> Tensor:
    gain = COVARIANCE @ torch.linalg.inv(COVARIANCE + sigma**2 * torch.eye(3, dtype=torch.float64))
    return MEAN + (x - MEAN) @ gain.T


def problem_of(constraint: casal.Constraint, decoder: casal.Decoder) -> Problem:
    target = casal.edm(denoiser, casal.karras_sigmas(10, 1e-3, 10.0), shape=3, churn=1.0, dtype=torch.float64)
    return Problem(target, constraint, decoder, torch.zeros(0, 3, dtype=torch.float64))


def rung(rho: float, size: float = 1.0) -> Rung:
    floor = RANGE * float(torch.linalg.eigvalsh(COVARIANCE)[0].sqrt())
    return Rung(edge=False, corrected=True, rho=rho, size=size, floor=floor, blur=1.0)


def at(problem: Problem, x: Tensor) -> MetropolisState:
    state: MetropolisState = with_nearest(problem, MOVES.start(problem, x))
    return state


def moments(map_: Callable[[Tensor, list[Tensor]], Tensor], draws: int) -> tuple[Tensor, Tensor, Tensor]:
    """x' = M y + m and the covariance of x' given y, read off a map that is linear in y and in all of its noise."""
    zero, eye = torch.zeros(3, 3, dtype=torch.float64), torch.eye(3, dtype=torch.float64)
    offset = map_(zero, [zero] * draws)[0]
    matrix = (map_(eye, [zero] * draws) - offset).T
    parts = [map_(zero, [eye if k == j else zero for k in range(draws)]) - offset for j in range(draws)]
    return matrix, offset, sum((part.T @ part for part in parts), torch.zeros_like(matrix))


def reverse(problem: Problem, y: Tensor, noise: list[Tensor], sigma: float) -> Tensor:
    state, here = at(problem, y), rung(sigma**-2.0)
    steps = len(noise)
    for j in range(steps):
        state = MOVES.reverse(problem, state, Reverse(j, steps, 1e-4, here), noise[j])
    return state.x


@pytest.mark.parametrize("sigma", [0.1, 0.7, 2.0])
def test_the_reverse_process_tends_to_the_posterior(sigma: float) -> None:
    problem = problem_of(casal.Sphere(1.0), casal.Identity())
    gain = COVARIANCE @ torch.linalg.inv(COVARIANCE + sigma**2 * torch.eye(3, dtype=torch.float64))
    spread = COVARIANCE - gain @ COVARIANCE

    def errors(steps: int) -> tuple[float, float]:
        matrix, offset, covariance = moments(lambda y, noise: reverse(problem, y, noise, sigma), steps)
        mean = max(float((matrix - gain).abs().max()), float((offset - MEAN + gain @ MEAN).abs().max()))
        return mean, float((covariance - spread).abs().max() / spread.abs().max())

    coarse, fine = errors(10), errors(20)
    assert coarse[0] < 1e-12 and fine[0] < 1e-12
    assert coarse[1] < 0.1
    assert fine[1] < 0.04


@pytest.mark.parametrize("scale", [0.02, 1.0, 50.0])
def test_the_floor_is_a_share_of_the_finest_scale_of_the_data(scale: float) -> None:
    """On a Gaussian with one narrow coordinate, whatever the unit."""
    spread = scale * torch.tensor([1.0, 0.1, 1.0], dtype=torch.float64)

    def exact(x: Tensor, sigma: Tensor) -> Tensor:
        return x * spread**2 / (spread**2 + sigma**2)

    levels = casal.karras_sigmas(10, 1e-3 * scale, 10.0 * scale)
    target = casal.edm(exact, levels, shape=3, churn=1.0, dtype=torch.float64)
    problem = Problem(target, casal.Sphere(1.0), casal.Identity(), torch.zeros(0, 3, dtype=torch.float64))
    stream = torch.Generator().manual_seed(0)
    x = spread * torch.randn(1000, 3, generator=stream, dtype=torch.float64)
    floor, blur = data_floor(problem, x, stream)
    assert floor == pytest.approx(RANGE * 0.1 * scale, rel=0.1)
    assert blur == pytest.approx(1.0, abs=0.05)


def gaussian_log_density(x: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    return torch.distributions.MultivariateNormal(mean, covariance).log_prob(x)


@pytest.mark.parametrize(
    ("constraint", "decoder"),
    [
        (casal.Sphere(1.0), casal.Identity()),
        (casal.Ball(0.7), casal.Linear(A)),
        (casal.Sphere(1.5), casal.Nonlinear(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh()).double())),
    ],
    ids=["identity", "linear", "nonlinear"],
)
def test_the_acceptance_ratio_is_that_of_detailed_balance(constraint: casal.Constraint, decoder: casal.Decoder) -> None:
    """pi(x') q(x' -> y -> x) / (pi(x) q(x -> y -> x')), every density written out."""
    torch.manual_seed(3)
    problem = problem_of(constraint, decoder.to(torch.zeros(2, 3, dtype=torch.float64)))
    x, w, after = (torch.randn(40, 3, dtype=torch.float64) for _ in range(3))
    rho, scale = 7.0, 0.8
    here = rung(rho, scale)
    state = MOVES.renoise(problem, at(problem, x), here, w)
    s = scale / (math.sqrt(rho) * problem.decoder.norm())
    new = with_nearest(problem, state._replace(x=after))
    y, eye = state.start, torch.eye(3, dtype=torch.float64)

    def log_flow(start: Tensor, end: Tensor) -> Tensor:
        """log pi(start) + log N(y; start + g(start), s^2) + log p(end | y)."""
        decoded = problem.decode(start)
        gap = decoded - constraint.project(decoded)
        base = MOVES.renoise(problem, at(problem, start), here, torch.zeros_like(start)).start
        posterior = gaussian_log_density(end, MEAN, COVARIANCE) + gaussian_log_density(y, end, s**2 * eye)
        return (
            gaussian_log_density(start, MEAN, COVARIANCE)
            - rho / 2 * gap.square().flatten(1).sum(1)
            + gaussian_log_density(y, base, s**2 * eye)
            + posterior  # p(end | y) up to log p_s(y), which both directions share
        )

    expected = log_flow(after, x) - log_flow(x, after)
    torch.testing.assert_close(MOVES.log_ratio(problem, state, new, here), expected, rtol=1e-9, atol=1e-9)


def test_a_gibbs_sweep_leaves_the_conditional_law_as_it_is() -> None:
    """x ~ p(x | A x + sigma noise = z) before, and after: c is drawn by the method, x given c in closed form."""
    sigma, z = 0.4, torch.tensor([0.7, -0.2], dtype=torch.float64)
    problem = problem_of(casal.Sphere(1.0), casal.Linear(A))
    moves = GibbsMoves(10)
    eye = torch.eye(3, dtype=torch.float64)

    def centre(x: Tensor, noise: list[Tensor]) -> Tensor:
        state = moves.start(problem, x)._replace(z=z.expand(len(x), 2))
        return moves.centre(problem, state, rung(sigma**-2.0), noise[0]).x

    matrix, offset, spread = moments(centre, 1)
    s = sigma / problem.decoder.norm()
    gain = COVARIANCE @ torch.linalg.inv(COVARIANCE + s**2 * eye)
    kriging = COVARIANCE @ A.T @ torch.linalg.inv(A @ COVARIANCE @ A.T + sigma**2 * torch.eye(2, dtype=torch.float64))
    mean, covariance = MEAN + kriging @ (z - A @ MEAN), COVARIANCE - kriging @ A @ COVARIANCE
    after = MEAN + gain @ (matrix @ mean + offset - MEAN)
    around = gain @ (matrix @ covariance @ matrix.T + spread) @ gain.T + COVARIANCE - gain @ COVARIANCE
    torch.testing.assert_close(after, mean, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(around, covariance, rtol=1e-10, atol=1e-10)
    wrong = gain @ (matrix @ covariance @ matrix.T) @ gain.T + COVARIANCE - gain @ COVARIANCE  # power: without spread
    assert float((wrong - covariance).abs().max()) > 0.01


@pytest.mark.parametrize("steps", [10, 20])
@pytest.mark.parametrize("s", [0.03, 0.3, 1.0, 10.0, 100.0])
def test_the_share_of_the_multistep_term_makes_the_variance_exact(s: float, steps: int) -> None:
    levels = reverse_levels(s, RANGE, 1e-6, steps)
    exact = s**2 / (1.0 + s**2)
    assert _variance(levels, 1.0, multistep_share(levels, 1.0, False), False) == pytest.approx(exact, rel=2e-3)
    assert _variance(levels, 1.0, 0.0, False) < 0.95 * exact  # power


def test_near_the_data_fewer_steps_do() -> None:
    assert len(reverse_levels(1.0, RANGE, 1e-6, 20)) == 20
    assert len(reverse_levels(1e-3, RANGE, 1e-6, 20)) == SHORT
    assert reverse_levels(1e-7, RANGE, 1e-6, 20) == (1e-7,)
    assert reverse_levels(5.0, RANGE, 1e-6, 20)[-1] == pytest.approx(RANGE)
