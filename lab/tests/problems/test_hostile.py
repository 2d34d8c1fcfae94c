"""Hostile calls: their exact answers, and that the verdict tells wrong runs from right ones."""

from __future__ import annotations

import math

import pytest
import torch

import casal
from casal_lab.problems.hostile import DIFFUSIONS, F64, Hostile, correlated, fresh, judge, known, rotated, spectrum

CALLS = [*known(), *fresh()]


def test_every_call_has_a_name_of_its_own() -> None:
    names = [case.name for case in CALLS]
    assert len(set(names)) == len(names) >= 45 and set(DIFFUSIONS) <= set(names)


@pytest.mark.parametrize("case", CALLS[::4], ids=lambda case: case.name)
def test_exact_answers_lie_in_their_sets(case: Hostile) -> None:
    call = case.make()
    some = call.points[:: max(1, len(call.points) // 500)]
    assert float(call.constraint.violation(some).max()) < 1e-6
    assert float(call.weights.min()) >= 0.0 and float(call.weights.sum()) == pytest.approx(1.0)


def test_a_gaussian_below_a_plane_has_its_closed_form() -> None:
    """E[a . x | a . x <= b] = m - s phi(t) / Phi(t), t = (b - m) / s, and the rest follows along C a."""
    p, a, b = rotated(spectrum(0.01, 3), slow=1.0, seed=65), torch.tensor([1.0, 2.0, -1.0], dtype=F64), 0.3
    m, s = float(a @ p.mean), float(a @ p.covariance @ a) ** 0.5
    t = (b - m) / s
    below = m - s * math.exp(-(t**2) / 2) / math.sqrt(2 * math.pi) / (0.5 * math.erfc(-t / math.sqrt(2)))
    exact = p.mean + (below - m) * p.covariance @ a / s**2
    drawn = p.below(a, b)
    assert float((drawn @ a).max()) <= b + 1e-9
    error = drawn.std(0) / len(drawn) ** 0.5
    assert bool(((drawn.mean(0) - exact).abs() < 4.5 * error).all())


def test_the_gradient_is_that_of_the_energy() -> None:
    p = correlated(0.9, 2.0)
    x = torch.randn((5, 2), generator=torch.Generator().manual_seed(0), dtype=F64).requires_grad_()
    (slope,) = torch.autograd.grad(p.energy(x).sum(), x)
    torch.testing.assert_close(p.gradient(x.detach()), slope)


def test_a_slow_direction_that_the_axes_hide_is_found() -> None:
    """By a ladder of Langevin steps, which does not reach it; the exact flow that "auto" takes does."""
    case = next(case for case in known() if case.name == "slow_2d_axis_45")
    wrong = judge(case, 0, casal.WeightedCASAL())
    assert wrong.wrong and wrong.bias > 1.0 and wrong.verdict == "suspect"
    right = judge(case, 0)
    assert not right.wrong and right.verdict == "trusted"


@pytest.mark.parametrize("name", ["slow_units_1000", "step_in_energy"])
def test_units_and_steps_in_an_energy_are_found(name: str) -> None:
    case = next(case for case in known() if case.name == name)
    found = judge(case, 0, casal.WeightedCASAL())
    assert found.wrong and found.verdict == "suspect"
