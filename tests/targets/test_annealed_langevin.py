"""Annealed Langevin dynamics: the rows of its table."""

from __future__ import annotations

import torch

from casal.targets import annealed

from .gaussian import F64, model


def test_annealed_rows() -> None:
    table = annealed(model, [2.0, 0.5], steps_per_level=3, step_size=0.1, init=torch.zeros(1, 2)).table
    assert table.t.tolist() == [2.0] * 3 + [0.5] * 3
    torch.testing.assert_close(table.b, torch.tensor([0.4] * 3 + [0.025] * 3, dtype=F64))
    torch.testing.assert_close(table.s**2, 2 * table.b)
    assert table.a.tolist() == [1.0] * 6
