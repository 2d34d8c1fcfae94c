"""Metropolis-adjusted moves and the tempered start, against closed forms and quadrature."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import casal
from casal.methods import Problem
from casal.methods.adjusted import AdjustedRow, AdjustedState, Start, adjusted_noise, adjusted_step, begin, next_start
from casal.methods.population import Groups

from ..models import MODES, mode_shares, mode_weights_on_circle


def quartic(x: Tensor) -> Tensor:
    return x.pow(4).sum(1) / 4


def problem_for(target: casal.Target, constraint: casal.Constraint, size: int, **more: Any) -> Problem:
    return Problem(target, constraint, casal.Identity(), torch.zeros(0, size, dtype=torch.float64), **more)


def moved(problem: Problem, x: Tensor, tau: float, moves: int, rho: float = 0.0) -> AdjustedState:
    state, stream = begin(problem, x), torch.Generator().manual_seed(1)
    row = AdjustedRow(tau, torch.zeros((), dtype=torch.float64), 1.0, rho, 1.0)
    for _ in range(moves):
        state = adjusted_step(problem, state, row, adjusted_noise(problem, len(x), stream))
    return state


def quartic_moment() -> float:
    x = torch.linspace(-6.0, 6.0, 20001, dtype=torch.float64)
    return float((torch.softmax(-quartic(x[:, None]), 0) * x.square()).sum())


def test_a_coarse_step_leaves_the_density_as_it_is() -> None:
    """E x^2 of exp(-x^4 / 4)."""
    grad = lambda x: x.pow(3)  # noqa: E731
    target = casal.langevin(grad, steps=1, step_size=0.3, init=torch.zeros(1, 1), potential=quartic)
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(20_000, 1, generator=stream, dtype=torch.float64)
    found = float(moved(problem_for(target, casal.Ball(10.0), 1), x, 0.3, 60).x.square().mean())
    assert found == pytest.approx(quartic_moment(), abs=0.02)
    plain = x
    for _ in range(60):
        plain = plain - 0.3 * plain.pow(3) + math.sqrt(0.6) * torch.randn(plain.shape, generator=stream, dtype=x.dtype)
        plain = plain.clamp(-3.0, 3.0)
    assert abs(float(plain.square().mean()) - quartic_moment()) > 0.15, "the test has no power"


def test_the_pull_towards_the_set_is_part_of_the_density() -> None:
    """N(0, 1) with exp(-rho/2 (x - 1)^2): mean rho / (1 + rho), variance 1 / (1 + rho)."""
    target = casal.energy(lambda x: x.square().sum(1) / 2, steps=1, step_size=0.5, init=torch.zeros(1, 1))
    problem = problem_for(target, casal.Affine([[1.0]], [1.0]), 1)
    x = moved(problem, torch.zeros(20_000, 1, dtype=torch.float64), 0.5, 40, rho=3.0).x
    assert float(x.mean()) == pytest.approx(0.75, abs=0.015)
    assert float(x.var()) == pytest.approx(0.25, rel=0.05)


def test_a_level_of_the_start_weighs_by_p_over_q() -> None:
    start = casal.GaussianStart(2, std=3.0, dtype=torch.float64)
    target = casal.energy(lambda x: x.square().sum(1) / 2, steps=1, step_size=0.1, init=start)
    problem = problem_for(target, casal.Sphere(1.0), 2, start=start)
    x = start(40, torch.Generator().manual_seed(0))
    new, at, info = next_start(problem, begin(problem, x), Start(), 5, 1e-9, Groups(), torch.Generator())
    half = (x.norm(dim=1) - 1.0).square() / 2
    rho = 0.5 / float(half.mean())
    gain = -x.square().sum(1) / 2 - rho * half - start.log_density(x)
    assert 0.0 < info["share"] < 1.0
    torch.testing.assert_close(new.log_weight, info["share"] * gain)
    assert info["rho"] == pytest.approx(info["share"] * rho) and at.rho_0 == pytest.approx(rho)
    end, at, info = next_start(problem, new, at, 1, 1e-9, Groups(), torch.Generator())
    assert at.share == info["share"] == 1.0
    torch.testing.assert_close(end.log_weight, gain)


def test_a_start_inside_the_set_is_weighed_once() -> None:
    """All starts lie in the ball, so that rho_0 is zero: the weights are p / q at the end, and not more."""
    start = casal.GaussianStart(2, std=3.0, dtype=torch.float64)
    target = casal.energy(lambda x: x.square().sum(1) / 2, steps=1, step_size=0.1, init=start)
    problem = problem_for(target, casal.Ball(100.0), 2, start=start)
    state, at = begin(problem, x := start(40, torch.Generator().manual_seed(0))), Start()
    for left in (3, 2, 1):
        state, at, _ = next_start(problem, state, at, left, 1e-9, Groups(), torch.Generator())
    assert at.rho_0 == 0.0
    torch.testing.assert_close(state.log_weight, -x.square().sum(1) / 2 - start.log_density(x))


def mixture(x: Tensor) -> Tensor:
    scale = torch.tensor([0.35, 0.5, 0.3], dtype=torch.float64)
    weight = torch.tensor([0.6, 0.2, 0.2], dtype=torch.float64)
    square = (x[:, None] - MODES).square().sum(2) / (2 * scale**2)
    return -torch.logsumexp(torch.log(weight / scale**2) - square, 1)


def distance_of_modes(std: float, temper: bool) -> float:
    start = casal.GaussianStart(2, std=std, dtype=torch.float64)
    target = casal.energy(mixture, steps=300, step_size=0.02, init=start)
    samples = casal.sample(
        target, casal.Sphere(2.0), casal.WeightedCASAL(temper=temper), 2000, seed=3, check=False
    ).samples
    return float((mode_shares(samples).mean(0) - mode_weights_on_circle(2.0)).abs().sum() / 2)


@pytest.mark.parametrize("std", [2.0, 10.0, 300.0])
def test_modes_have_their_weights_from_any_start(std: float) -> None:
    """Over 12 seeds the distance is 0.021 with a standard deviation of 0.010 (std 10)."""
    assert distance_of_modes(std, True) < 0.06


def test_without_tempering_the_start_decides() -> None:
    """Power."""
    assert distance_of_modes(2.0, False) > 0.15
