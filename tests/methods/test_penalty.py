"""Penalty on the distance to a set: by hand, and equal to the residual's where the two penalties are the same."""

from __future__ import annotations

import pytest
import torch

import casal
from casal.errors import SettingError

N, STEPS, TAU, WEIGHT = 6, 4, 0.05, 3.0
F64 = torch.float64


def target(size: int, steps: int = STEPS) -> casal.Target:
    start = torch.randn((N, size), generator=torch.Generator().manual_seed(1), dtype=F64)
    return casal.langevin(lambda x: x - 0.3, steps=steps, step_size=TAU, init=start)


def test_a_step_pulls_towards_the_foot() -> None:
    """x' - x'_free = -2 tau weight A^T (A x - P(A x))."""
    A = torch.randn((5, 3), generator=torch.Generator().manual_seed(2), dtype=F64)
    constraint, decoder = casal.Obstacles(intervals=[(0, 5, -1.0, 2.0)]), casal.Linear(A)
    free, pulled = (
        casal.sample(target(3, 1), constraint, method, N, decoder=decoder).state.x
        for method in (casal.Unconstrained(), casal.Penalty(WEIGHT, of="distance"))
    )
    x = target(3, 1).init
    start = x if isinstance(x, torch.Tensor) else x(N, torch.Generator())
    offset = start @ A.T - constraint.project(start @ A.T)
    assert float(offset.abs().max()) > 0.1
    torch.testing.assert_close(pulled, free - 2 * TAU * WEIGHT * offset @ A, atol=1e-12, rtol=0)


def test_equations_of_orthonormal_rows_have_one_penalty() -> None:
    rows = torch.linalg.qr(torch.randn((6, 2), generator=torch.Generator().manual_seed(3), dtype=F64))[0].T
    constraint = casal.Affine(rows, [1.0, -0.5])
    a, b = (
        casal.sample(target(6), constraint, casal.Penalty(WEIGHT, of=of), N).state.x for of in ("residual", "distance")
    )
    torch.testing.assert_close(a, b, atol=1e-12, rtol=0)


def test_sets_without_a_residual_have_a_distance() -> None:
    boxes = casal.Obstacles(boxes=[([-1.0, -1.0], [1.0, 1.0])])
    start = torch.zeros((N, 3, 2), dtype=F64)
    model = casal.langevin(lambda x: x, steps=2, step_size=TAU, init=start)
    with pytest.raises(SettingError, match="no smooth residual"):
        casal.sample(model, boxes, casal.Penalty(WEIGHT), N)
    assert casal.sample(model, boxes, casal.Penalty(WEIGHT, of="distance"), N).cost.projections == 2
    with pytest.raises(SettingError, match="of"):
        casal.Penalty(WEIGHT, of="square")


def test_repeats_share_the_weight_after_the_free_step() -> None:
    """One row by hand; a linear penalty gradient taken k times at the share 1/k is (1 - 2 tau w / k)^k."""
    constraint = casal.Affine(torch.eye(1, 4, dtype=F64), [0.0])
    free, pulled = (
        casal.sample(target(4, 1), constraint, method, N).state.x
        for method in (casal.Unconstrained(), casal.Penalty(WEIGHT, repeats=5))
    )
    expected = free.clone()
    expected[:, 0] *= (1 - 2 * TAU * WEIGHT / 5) ** 5
    torch.testing.assert_close(pulled, expected, atol=1e-12, rtol=0)
