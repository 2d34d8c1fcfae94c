"""The double well of the particle and field problems."""

from __future__ import annotations

import torch

from casal_lab.problems import double_well


def test_the_gradient_is_that_of_the_potential() -> None:
    x = torch.linspace(-3, 2, 11, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(double_well.potential(x).sum(), x)
    torch.testing.assert_close(slope, double_well.slope(x.detach()))
