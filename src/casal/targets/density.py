"""Densities that are known up to a constant, sampled by Langevin Monte Carlo (paper, eq. langevin_gradient-step)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from casal.checks import Init, whole_number
from casal.errors import SettingError, ShapeError
from casal.targets.base import Table, Target, Tuning
from casal.targets.conditions import Given, checked

AUTO = "auto"
"""What stands for a setting that a pilot run is to find."""


def langevin(
    grad: Callable[..., Tensor],
    *,
    steps: int,
    step_size: float | Tensor | str,
    init: Init,
    preconditioner: Tensor | float | str | None = None,
    potential: Callable[..., Tensor] | None = None,
    condition: Mapping[str, Any] | None = None,
) -> Target:
    """Langevin dynamics on a potential f = -log p, given its gradient:

        x' = x - tau D grad f(x) + sqrt(2 tau D) w.

    With "auto" the step size, the preconditioner or both are found on a pilot run of at most 256 chains from the
    starting points (``sampling/pilot.py``): D from the curvature of f in each coordinate, tau from the largest
    curvature in units of D. Its evaluations are part of the cost of the run.

    Args:
        grad: Gradient of the potential, (n, *event) -> (n, *event).
        steps: How many steps; each costs one evaluation of ``grad``.
        step_size: tau, a number or one per step, or "auto".
        init: Starting points, or a callable (n, generator) -> points; ``casal.GaussianStart`` knows its own density.
        preconditioner: Diagonal D, roughly the variance of each coordinate (one over the curvature of f), or "auto".
        potential: f itself up to a constant, (n, *event) -> (n,), if it is known. Methods that weigh or accept moves
            by the density use it; without it the weights of separate modes are those of the starting points.
        condition: What ``grad`` and ``potential`` are called with besides, ``grad(x, **condition)``: names to tensors
            (n, ...), one row per chain; see ``docs/models.md``. Step size and preconditioner are then numbers, not
            "auto".

    >>> target = langevin(lambda x: x, steps=10, step_size=0.1, init=torch.zeros(4, 2))
    >>> len(target.table)
    10
    >>> langevin(lambda x: x, steps=10, step_size="auto", init=torch.zeros(4, 2)).tune
    Tuning(step_size=True, preconditioner=False)
    """
    if potential is not None and not callable(potential):
        raise SettingError(f"potential must be a function (n, *event) -> (n,), got {type(potential).__name__}")
    table, tune = _langevin_table(steps, step_size, preconditioner)
    gradient = Given(grad)
    return Target(
        lambda x, t, /, **given: -gradient(x, **given),
        table,
        init,
        potential=Given(potential) if potential is not None and condition else potential,
        name="langevin",
        tune=_tuned(tune, condition),
        condition=checked(condition),
    )


def energy(
    f: Callable[..., Tensor],
    *,
    steps: int,
    step_size: float | Tensor | str,
    init: Init,
    preconditioner: Tensor | float | str | None = None,
    condition: Mapping[str, Any] | None = None,
) -> Target:
    """Langevin dynamics on an energy-based model f, its gradient by automatic differentiation.

    Args:
        f: Energy, (n, *event) -> (n,), one number per chain; any torch function or module.
        steps: How many steps.
        step_size: tau, a number or one per step, or "auto", as in ``langevin``.
        init: Starting points, or a callable (n, generator) -> points.
        preconditioner: Diagonal D, or "auto", as in ``langevin``.
        condition: What ``f`` is called with besides, ``f(x, **condition)``, as in ``langevin``.
    """
    potential = Given(f) if condition else f

    def total(x: Tensor, given: Mapping[str, Tensor]) -> Tensor:
        return potential(x, **given).sum()

    def score(x: Tensor, t: Tensor, /, **given: Tensor) -> Tensor:
        if torch.compiler.is_compiling():  # a functional gradient is part of the graph; autograd's tape cannot be
            return -torch.func.grad(total)(x, given)
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(total(leaf, given), leaf)
        return -gradient

    table, tune = _langevin_table(steps, step_size, preconditioner)
    tune = _tuned(tune, condition)
    return Target(score, table, init, potential=potential, name="energy", tune=tune, condition=checked(condition))


def _tuned(tune: Tuning | None, condition: Mapping[str, Any] | None) -> Tuning | None:
    """What is open; SettingError for a conditional density, of which a pilot run could miss the stiffest condition."""
    if tune is not None and condition:
        raise SettingError(
            "'auto' finds one step size for all chains on a few of them, and may miss the condition whose density is "
            "stiffest; give step_size and preconditioner as numbers"
        )
    return tune


def settled(
    target: Target, *, step_size: float | Tensor | None = None, preconditioner: Tensor | float | None = None
) -> Target:
    """The same target with other settings of its Langevin steps, none of them open; None keeps what is there."""
    table = target.table
    if not table.static:
        raise SettingError(f"{target.name} is not a fixed density: its steps have no step size of their own")
    size = table.b if step_size is None else step_size
    diagonal = table.preconditioner if preconditioner is None else preconditioner
    return replace(target, table=_langevin_table(len(table), size, diagonal)[0], tune=None)


def _langevin_table(
    steps: int, step_size: float | Tensor | str, preconditioner: Tensor | float | str | None
) -> tuple[Table, Tuning | None]:
    """Rows (1, tau, sqrt(2 tau)) with an optional diagonal preconditioner, checked, and what is open of them."""
    steps = whole_number(steps, "steps", 1)
    tune = Tuning(_is_open(step_size, "step_size"), _is_open(preconditioner, "preconditioner"))
    tau = torch.as_tensor(float("nan") if isinstance(step_size, str) else step_size, dtype=torch.float64)
    tau = tau.expand(steps) if tau.ndim == 0 else tau
    if tuple(tau.shape) != (steps,):
        raise ShapeError(f"step_size has shape {tuple(tau.shape)}; give a number or one value per step ({steps},)")
    if not tune.step_size and not _all_positive(tau):
        raise SettingError(
            f"step_size must be finite and > 0; its smallest value is {float(tau.min()):g}; 'auto' finds one"
        )
    fixed = None if isinstance(preconditioner, str) else preconditioner
    diagonal = None if fixed is None else torch.as_tensor(fixed, dtype=torch.float64)
    if diagonal is not None and not _all_positive(diagonal):
        raise SettingError(
            f"the preconditioner is a diagonal of finite numbers > 0; its smallest is {float(diagonal.min()):g}"
        )
    time = torch.arange(steps, dtype=torch.float64)
    table = Table(torch.ones_like(tau), tau, (2 * tau).sqrt(), time, preconditioner=diagonal, static=True)
    return table, tune if tune.step_size or tune.preconditioner else None


def _is_open(value: object, name: str) -> bool:
    """Whether a setting is left to the pilot."""
    if isinstance(value, str) and value != AUTO:
        raise SettingError(f"{name} must be {AUTO!r} or made of numbers, got {value!r}")
    return isinstance(value, str)


def _all_positive(values: Tensor) -> bool:
    return bool((torch.isfinite(values) & (values > 0)).all())
