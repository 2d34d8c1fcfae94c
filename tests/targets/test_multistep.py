"""Rows that look back: read off linear samplers, run by the loop, and replaced by rows of first order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import casal
from casal.errors import SettingError, ShapeError
from casal.targets import Recursion, Table, Target, first_order, multistep_table, recursion

F64 = torch.float64
MEAN, VARIANCE = 0.3, 0.25
SIGMAS = torch.tensor([4.0, 2.0, 2.0, 0.5, 0.5, 0.1], dtype=F64)


def clean(x: Tensor, sigma: Tensor | float) -> Tensor:
    """E[x0 | x0 + sigma noise = x] for data N(MEAN, VARIANCE)."""
    return MEAN + VARIANCE / (VARIANCE + sigma**2) * (x - MEAN)


def heun_rows() -> Recursion:
    """Its rows: an Euler step; then x + (1 - r) / (2 r) (D - D_1) with r the ratio of the levels."""
    state, now, before = torch.ones(6, dtype=F64), torch.zeros(6, dtype=F64), torch.zeros(6, dtype=F64)
    for k in (0, 2, 4):
        ratio = SIGMAS[k + 1] / SIGMAS[k]
        state[k], now[k] = ratio, 1 - ratio
        now[k + 1], before[k + 1] = (1 - ratio) / (2 * ratio), -(1 - ratio) / (2 * ratio)
    state[5], now[5], before[5] = 0.0, 1.0, 0.0
    return Recursion(state[:6], now, before[:, None])


def heun_target() -> Target:
    """4 -> 2 -> 0.5 by Heun, then 0.5 -> 0.1 by Euler, then 0."""
    rows = heun_rows()
    rows.state[4], rows.clean[4] = 0.2, 0.8
    one, index = torch.ones(6, dtype=F64), torch.arange(6, dtype=F64)
    table = multistep_table(rows, torch.zeros(6, dtype=F64), index, one, SIGMAS)

    def score(x: Tensor, t: Tensor) -> Tensor:
        sigma = SIGMAS[t.long()]
        return (clean(x, sigma) - x) / sigma**2

    def init(n: int, generator: torch.Generator) -> Tensor:
        return 4.0 * torch.randn((n, 3), generator=generator, dtype=F64)

    return Target(score, table, init, name="heun")


def by_hand(x: Tensor) -> Tensor:
    """The same steps, written with slopes."""
    for here, there in ((4.0, 2.0), (2.0, 0.5)):
        slope = (x - clean(x, here)) / here
        y = x + (there - here) * slope
        x = x + (there - here) * (slope + (y - clean(y, there)) / there) / 2
    x = 0.2 * x + 0.8 * clean(x, 0.5)
    return clean(x, 0.1)


def test_the_loop_takes_rows_that_look_back() -> None:
    target, box = heun_target(), casal.Box(-100.0, 100.0)
    start = torch.randn(5, 3, dtype=F64) * 4
    fixed = Target(target.score, target.table, start, name="heun")
    result = casal.sample(fixed, box, casal.Unconstrained(), 5)
    torch.testing.assert_close(result.samples, by_hand(start), rtol=1e-13, atol=1e-13)
    assert result.cost.score_evaluations == 6
    assert tuple(result.state.past.shape) == (5, 1, 3)


def test_a_forgotten_memory_is_seen() -> None:
    """Power of the test above: the same rows without their memory end elsewhere."""
    target = heun_target()
    table = target.table
    start = torch.randn(5, 3, dtype=F64) * 4
    plain = Table(table.a, table.b, table.s, table.t, alpha=table.alpha, sigma=table.sigma)
    wrong = casal.sample(Target(target.score, plain, start), casal.Box(-100.0, 100.0), casal.Unconstrained(), 5)
    assert float((wrong.samples - by_hand(start)).abs().max()) > 1e-2


def test_recursion_finds_the_rows_of_heun() -> None:
    """From states as they are, the older state written out, the rows above come back."""
    unit = torch.eye(7, dtype=F64)
    first = 0.5 * unit[0] + 0.5 * unit[1]  # Euler, 4 -> 2
    slope = ((unit[0] - unit[1]) / 4 + (first - unit[2]) / 2) / 2
    second = unit[0] - 2.0 * slope
    third = 0.25 * second + 0.75 * unit[3]
    found = recursion(torch.stack([unit[0], first, second, third]))
    assert tuple(found.memory.shape) == (3, 1)
    torch.testing.assert_close(found.state, torch.tensor([0.5, 1.0, 0.25], dtype=F64))
    torch.testing.assert_close(found.clean, torch.tensor([0.5, 0.5, 0.75], dtype=F64))
    torch.testing.assert_close(found.memory[:, 0], torch.tensor([0.0, -0.5, 0.0], dtype=F64))


def test_recursion_refuses_a_long_memory() -> None:
    """Every state looks at the first estimate."""
    steps = 7
    unit = torch.eye(1 + 2 * steps, dtype=F64)
    states = [unit[0]]
    for k in range(steps):
        states.append(0.5 * states[-1] + 0.3 * unit[1 + k] + 0.2 * unit[1])
    with pytest.raises(SettingError, match="more than x and the estimates of the 3 steps before"):
        recursion(torch.stack(states))


def test_the_constraint_moves_the_estimates_that_are_remembered() -> None:
    """With a very large rho every estimate is in the set before it is used, so the remembered one is."""
    plane = casal.Affine(torch.ones(1, 3), 2.0)
    result = casal.sample(heun_target(), plane, casal.CASAL(1e12), 4, run=casal.Run(record_every=1))
    assert float(plane.violation(result.state.past[:, 0]).max()) < 1e-9
    assert bool(result.certificate.feasible.all())


@pytest.mark.parametrize("method", [casal.Projected(), casal.FinalProjection(casal.Penalty(0.01)), casal.CASAL(1.0)])
def test_methods_run_rows_that_look_back(method: casal.Method) -> None:
    plane = casal.Affine(torch.ones(1, 3), 2.0)
    result = casal.sample(heun_target(), plane, method, 4)
    assert float(result.certificate.violation.max()) < 1e-12


def test_first_order_rows_are_those_of_euler() -> None:
    """Levels that are visited twice are visited once, by Euler steps."""
    table = first_order(heun_target()).table
    assert table.memory is None
    same = casal.edm(clean, [4.0, 2.0, 0.5, 0.1], shape=3).table
    torch.testing.assert_close(table.a, same.a)
    torch.testing.assert_close(table.b, same.b)
    assert table.t.tolist() == [0.0, 1.0, 3.0, 5.0]


def test_methods_that_cannot_look_back_say_what_they_take() -> None:
    target, plane = heun_target(), casal.Affine(torch.ones(1, 3), 2.0)
    given = Target(target.score, target.table, target.init, denoise=clean, name="heun")
    result = casal.sample(given, plane, casal.SplitGibbs(0.2, levels=4), 40)
    assert any("first order" in reason for reason in result.fidelity.reasons)


def test_a_first_row_without_signal_keeps_its_step() -> None:
    """alpha = 0: the row is x' = 0.4 D + 0.9 x whatever stands for the score."""
    rows = Recursion(torch.tensor([0.9, 0.0], dtype=F64), torch.tensor([0.4, 1.0], dtype=F64), torch.zeros(2, 0))
    alpha, sigma = torch.tensor([0.0, 0.4], dtype=F64), torch.tensor([1.0, 0.9], dtype=F64)
    table = multistep_table(rows, torch.zeros(2, dtype=F64), torch.arange(2, dtype=F64), alpha, sigma)
    assert table.alpha is not None and table.memory is None
    x, estimate = torch.randn(5, dtype=F64), torch.randn(5, dtype=F64)
    score = (table.alpha[0] * estimate - x) / sigma[0] ** 2
    torch.testing.assert_close(table.a[0] * x + table.b[0] * score, 0.4 * estimate + 0.9 * x)


def test_tables_check_their_memory() -> None:
    one = torch.ones(3, dtype=F64)
    with pytest.raises(ShapeError, match=r"memory of a table must be \(3, p\)"):
        Table(one, one, one, one, alpha=one, sigma=one, memory=torch.ones(2, 1))
    with pytest.raises(SettingError, match="need alpha and sigma"):
        Table(one, one, one, one, memory=torch.ones(3, 1))
