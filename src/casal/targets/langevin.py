"""Langevin Monte Carlo on a static potential (paper, eq. langevin_gradient-step)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from casal.targets.base import Target, langevin_table
from casal.typing import Init


def langevin(
    grad: Callable[[Tensor], Tensor],
    *,
    steps: int,
    step_size: float | Tensor,
    init: Init,
    preconditioner: Tensor | float | None = None,
) -> Target:
    """x' = x - tau D grad f(x) + sqrt(2 tau D) w.

    Args:
        grad: Gradient of the potential f = -log p, (n, *event) -> (n, *event).
        steps: How many steps; each costs one evaluation of ``grad``.
        step_size: tau, a number or one per step.
        init: Starting points, or a callable (n, generator) -> points.
        preconditioner: Diagonal D, roughly the variance of each coordinate (one over the curvature of f).

    >>> target = langevin(lambda x: x, steps=10, step_size=0.1, init=torch.zeros(4, 2))
    >>> len(target.table)
    10
    """
    return Target(lambda x, t: -grad(x), langevin_table(steps, step_size, preconditioner), init, name="langevin")


def energy(
    f: Callable[[Tensor], Tensor],
    *,
    steps: int,
    step_size: float | Tensor,
    init: Init,
    preconditioner: Tensor | float | None = None,
) -> Target:
    """Langevin dynamics on an energy-based model f, its gradient by automatic differentiation.

    Args:
        f: Energy, (n, *event) -> (n,), one number per chain; any torch function or module.
        steps: How many steps.
        step_size: tau, a number or one per step.
        init: Starting points, or a callable (n, generator) -> points.
        preconditioner: Diagonal D, as in ``langevin``.
    """

    def score(x: Tensor, t: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(f(leaf).sum(), leaf)
        return -gradient

    return Target(score, langevin_table(steps, step_size, preconditioner), init, potential=f, name="energy")
