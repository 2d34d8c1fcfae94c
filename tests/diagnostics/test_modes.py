"""Modes are told apart, and their weights are right if as much jumps out of each as into it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import casal
from casal.diagnostics import Lineage
from casal.diagnostics.modes import find_modes, jump_flow, line_integral, path_dependence

from .populations import generator

MEANS = torch.tensor([[1.5, 0.0], [-1.0, 1.2], [0.0, -1.6]], dtype=torch.float64)
SHARES = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
SPREAD = 0.3


def log_density(x: Tensor) -> Tensor:
    square = (x[:, None] - MEANS).square().sum(2)
    return torch.logsumexp(SHARES.log() - square / (2 * SPREAD**2), dim=1)


def score(x: Tensor) -> Tensor:
    square = (x[:, None] - MEANS).square().sum(2)
    return (torch.softmax(SHARES.log() - square / (2 * SPREAD**2), 1) @ MEANS - x) / SPREAD**2


def mixture(n: int, seed: int, shares: Tensor = SHARES) -> Tensor:
    stream = generator(seed)
    which = torch.multinomial(shares, n, replacement=True, generator=stream)
    return MEANS[which] + SPREAD * torch.randn((n, 2), generator=stream, dtype=torch.float64)


def test_three_modes_are_found() -> None:
    z = mixture(1000, seed=0)
    modes = find_modes(z)
    assert modes.number == 3
    nearest = torch.cdist(modes.centres, MEANS)
    assert float(nearest.amin(1).max()) < 0.1 and sorted(nearest.argmin(1).tolist()) == [0, 1, 2]
    torch.testing.assert_close(modes.radius, torch.full((3,), SPREAD * 2**0.5).double(), rtol=0.15, atol=0.0)


@pytest.mark.parametrize("d", [1, 2, 10, 300])
def test_one_gaussian_is_one_mode(d: int) -> None:
    """Also with more coordinates than a fit could see through."""
    z = torch.randn((400, d), generator=generator(d), dtype=torch.float64)
    assert find_modes(z).number == 1


def flow(z: Tensor, log_ratio_by_line: bool = False) -> Tensor:
    modes = find_modes(z)

    def rise(here: Tensor, there: Tensor) -> Tensor:
        if log_ratio_by_line:
            return line_integral(score, here, there)
        return log_density(there) - log_density(here)

    return jump_flow(z, modes, modes.centres, lambda y: torch.ones(len(y), dtype=torch.bool), rise)


@pytest.mark.parametrize("by_line", [False, True])
def test_right_weights_are_in_balance_and_wrong_ones_are_not(by_line: bool) -> None:
    n = 2000
    lineage = Lineage(torch.ones(n), torch.arange(n))
    for seed in range(5):
        mean, error = lineage.mean(flow(mixture(n, seed), by_line))
        assert float((mean / error).abs().max()) < 4.0
        wrong = mixture(n, seed, torch.tensor([0.4, 0.2, 0.4], dtype=torch.float64))
        mean, error = lineage.mean(flow(wrong, by_line))
        assert float((mean / error).abs().max()) > 6.0


def test_nothing_jumps_out_of_the_set() -> None:
    z = mixture(500, seed=1)
    modes = find_modes(z)
    none = jump_flow(z, modes, modes.centres, lambda y: torch.zeros(len(y), dtype=torch.bool), lambda a, b: a[:, 0])
    assert not bool(none.any())


def test_reflections_between_feet_stay_on_a_sphere() -> None:
    """The plane half-way between two points of a sphere goes through its centre."""
    sphere = casal.Sphere(1.5, center=torch.tensor([0.2, -0.1]))
    z, seen = sphere.project(mixture(500, seed=2)), []
    modes = find_modes(z)

    def inside(y: Tensor) -> Tensor:
        seen.append(float(sphere.violation(y).max()))
        return torch.ones(len(y), dtype=torch.bool)

    jump_flow(z, modes, sphere.project(modes.centres), inside, lambda a, b: a[:, 0])
    assert modes.number == 3 and seen[0] < 1e-12


def test_the_line_integral_is_the_difference_of_the_potential() -> None:
    z, y = mixture(200, seed=3), mixture(200, seed=4)
    found, exact = line_integral(score, z, y), log_density(y) - log_density(z)
    sure = torch.isfinite(found)
    assert float(sure.double().mean()) > 0.7
    assert float((found - exact)[sure].abs().max()) < 0.1
    assert torch.equal(torch.isfinite(line_integral(score, y, z)), sure)


def test_a_valley_too_sharp_for_the_points_is_refused() -> None:
    z = torch.zeros((3, 1), dtype=torch.float64)
    steep = line_integral(lambda x: torch.where(x > 0.511, 1e3, -1e3), z, z + 1.0)
    assert float(steep.max()) == -math.inf


def test_a_gradient_does_not_depend_on_the_path_and_a_swirl_does() -> None:
    z, y = MEANS[:1] + 0.1 * mixture(100, seed=5), MEANS[1:2] + 0.1 * mixture(100, seed=6)

    def swirl(x: Tensor) -> Tensor:
        return score(x) + 4.0 * torch.stack([-x[:, 1], x[:, 0]], dim=1)

    assert path_dependence(score, z, y) < 0.1
    assert path_dependence(swirl, z, y) > 0.4
