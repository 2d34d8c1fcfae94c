"""Densities that are known up to a constant, sampled by Langevin Monte Carlo (paper, eq. langevin_gradient-step)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from casal.checks import whole_number
from casal.errors import SettingError, ShapeError
from casal.targets.base import Table, Target
from casal.typing import Init


def langevin(
    grad: Callable[[Tensor], Tensor],
    *,
    steps: int,
    step_size: float | Tensor,
    init: Init,
    preconditioner: Tensor | float | None = None,
) -> Target:
    """Langevin dynamics on a potential f = -log p, given its gradient:

        x' = x - tau D grad f(x) + sqrt(2 tau D) w.

    Args:
        grad: Gradient of the potential, (n, *event) -> (n, *event).
        steps: How many steps; each costs one evaluation of ``grad``.
        step_size: tau, a number or one per step.
        init: Starting points, or a callable (n, generator) -> points.
        preconditioner: Diagonal D, roughly the variance of each coordinate (one over the curvature of f).

    >>> target = langevin(lambda x: x, steps=10, step_size=0.1, init=torch.zeros(4, 2))
    >>> len(target.table)
    10
    """
    return Target(lambda x, t: -grad(x), _langevin_table(steps, step_size, preconditioner), init, name="langevin")


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

    return Target(score, _langevin_table(steps, step_size, preconditioner), init, potential=f, name="energy")


def _langevin_table(steps: int, step_size: float | Tensor, preconditioner: Tensor | float | None) -> Table:
    """Rows (1, tau, sqrt(2 tau)) with an optional diagonal preconditioner, checked."""
    steps = whole_number(steps, "steps", 1)
    tau = torch.as_tensor(step_size, dtype=torch.float64)
    tau = tau.expand(steps) if tau.ndim == 0 else tau
    if tuple(tau.shape) != (steps,):
        raise ShapeError(f"step_size has shape {tuple(tau.shape)}; give a number or one value per step ({steps},)")
    if not _all_positive(tau):
        raise SettingError(f"step_size must be finite and > 0; its smallest value is {float(tau.min()):g}")
    diagonal = None if preconditioner is None else torch.as_tensor(preconditioner, dtype=torch.float64)
    if diagonal is not None and not _all_positive(diagonal):
        raise SettingError(
            f"the preconditioner is a diagonal of finite numbers > 0; its smallest is {float(diagonal.min()):g}"
        )
    time = torch.arange(steps, dtype=torch.float64)
    return Table(torch.ones_like(tau), tau, (2 * tau).sqrt(), time, preconditioner=diagonal, static=True)


def _all_positive(values: Tensor) -> bool:
    return bool((torch.isfinite(values) & (values > 0)).all())
