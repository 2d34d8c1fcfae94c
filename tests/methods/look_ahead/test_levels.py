"""The noise levels: where they begin and end, and the scales that place them."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

import casal
from casal.methods.look_ahead.levels import CAP, GRAIN, MIDDLE, Levels, between, scales
from casal.methods.look_ahead.method import LookAhead

from .gaussian import Prior, diagonal, normal, problem_for

UPPER, LOWER = 12, 8


def levels(
    first: float = 80.0, finest: float = 0.002, wide: float = 1.0, grain: float = 0.5, upper: int = UPPER
) -> Levels:
    return Levels(first, finest, upper, LOWER, wide, grain)


PLACES = list(itertools.product([0.5, 80.0, 1e4], [1e-4, 0.02, 0.2], [1e-6, 0.01, 1.0, 100.0], [1e-6, 0.1, 1.0]))


@pytest.mark.parametrize(("first", "finest", "wide", "grain"), PLACES)
def test_levels_fall_from_the_first_to_the_last(first: float, finest: float, wide: float, grain: float) -> None:
    placed = levels(first, finest, wide, grain)
    values = [placed[k] for k in range(UPPER + LOWER + 1)]
    assert values[0] == first
    assert all(here > there for here, there in itertools.pairwise(values))
    assert values[UPPER] == pytest.approx(placed.middle, rel=1e-12)
    assert values[-1] == pytest.approx(placed.last, rel=1e-12)
    assert values[-1] >= finest * (1 - 1e-12)
    assert placed.last <= placed.middle <= 0.7 * placed.top <= 0.7 * max(first, 2 * finest)


def test_levels_are_placed_by_the_scales() -> None:
    placed = levels()
    assert (placed.top, placed.middle, placed.last) == (CAP * 1.0, MIDDLE * 1.0, pytest.approx(GRAIN * 0.5))
    assert levels(first=5.0).top == 5.0  # the model starts lower
    assert levels(finest=0.05).last == 0.05  # the model ends higher
    assert levels(grain=100.0).last == 0.5 * MIDDLE  # one mode alone


def test_levels_are_equally_spaced_in_the_power_one_seventh() -> None:
    placed = levels()
    for some in (range(1, UPPER + 1), range(UPPER, UPPER + LOWER + 1)):
        roots = torch.tensor([placed[k] for k in some], dtype=torch.float64) ** (1 / 7)
        steps = roots.diff()
        torch.testing.assert_close(steps, steps.mean().expand_as(steps), rtol=1e-9, atol=1e-12)
    karras = casal.karras_sigmas(30, 0.02, 10.0)
    mine = [between(10.0, 0.02, k / 29) for k in range(30)]
    torch.testing.assert_close(
        karras[:30].to(torch.float64), torch.tensor(mine, dtype=torch.float64), rtol=1e-6, atol=0
    )


def test_a_move_climbs_from_the_last_to_the_middle_level() -> None:
    placed = levels()
    values = [placed.climb(k, 9) for k in range(10)]
    assert values[0] == pytest.approx(placed.last) and values[-1] == pytest.approx(placed.middle)
    assert all(low < high for low, high in itertools.pairwise(values))


def test_a_move_climbs_half_the_way_from_the_scale_within_a_mode() -> None:
    placed = levels()
    low, middle = 4.0 * placed.last, placed.middle
    for inner, top in (
        (low**2 / middle, low),
        (2.0 * middle, middle),
        (placed.last**2 / middle, 2.0 * placed.last),
    ):
        assert dataclasses.replace(placed, inner=inner).climb(9, 9) == pytest.approx(top)


def test_scales_of_a_gaussian() -> None:
    """wide^2 = tr C^2 / tr C and grain^2 = tr C / d."""
    prior, first = diagonal(7), 20.0
    problem = problem_for(prior, casal.Sphere(3.0))
    trace, square = LookAhead()._traces(problem, normal(1, 5, 7), first)
    C = prior.spread(first)
    wide, grain = scales(trace, square, 7, first)
    assert wide == pytest.approx(float(C.square().trace() / C.trace()) ** 0.5, rel=1e-10)
    assert grain == pytest.approx(float(C.trace() / 7) ** 0.5, rel=1e-10)
    round_prior = Prior(prior.mean, 4.0 * torch.eye(7, dtype=torch.float64))
    trace, square = LookAhead()._traces(problem_for(round_prior, casal.Sphere(3.0)), normal(1, 5, 7), 1e4)
    assert scales(trace, square, 7, 1e4) == (pytest.approx(2.0, rel=1e-6), pytest.approx(2.0, rel=1e-6))


@pytest.mark.parametrize("broken", [0.0, -1.0, float("nan")])
def test_scales_that_fail_are_taken_from_the_first_level(broken: float) -> None:
    bad, good = torch.full((3,), broken), torch.ones(3)
    for trace, square in ((bad, good), (good, bad)):
        assert scales(trace, square, 7, 80.0) == (80.0 / CAP, 80.0 / CAP)
