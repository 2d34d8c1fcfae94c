"""Schedules: values along a run, given by any callable from the table of a target to a tensor (T,)."""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Any, TypeAlias

import torch
from torch import Tensor

from casal.errors import SettingError

Schedule: TypeAlias = Callable[[Any], Tensor]
"""``schedule(table)`` -> (T,) float64; the built-in ones look only at ``len(table)``."""


def constant(value: float) -> Schedule:
    """The same value at every step."""
    return lambda table: torch.full((len(table),), float(value), dtype=torch.float64)


def linear(first: float, last: float) -> Schedule:
    """From ``first`` to ``last`` in equal steps.

    >>> linear(2.0, 20.0)(range(3))
    tensor([ 2., 11., 20.], dtype=torch.float64)
    """
    return lambda table: torch.linspace(float(first), float(last), len(table), dtype=torch.float64)


def geometric(first: float, last: float) -> Schedule:
    """From ``first`` to ``last`` in equal ratios (the paper's "logarithmic" schedule).

    >>> geometric(0.1, 10.0)(range(3))
    tensor([ 0.1000,  1.0000, 10.0000], dtype=torch.float64)
    """
    if first <= 0 or last <= 0:
        raise SettingError(f"a geometric schedule needs two positive ends, got {first} and {last}")
    return lambda table: _equal_ratios(float(first), float(last), len(table))


def inverse_variance(factor: float = 1.0) -> Schedule:
    """Ties the coupling to the noise left in the state of a diffusion or flow target: factor / (sigma / alpha)^2."""

    def values(table: Any) -> Tensor:
        if getattr(table, "alpha", None) is None:
            raise SettingError("inverse_variance needs the noise levels of a diffusion or flow target")
        return factor * (table.alpha / table.sigma).square()

    return values


def constant_gain(kappa: float) -> Schedule:
    """Pulls x towards z by the same share kappa / (1 + kappa) at every row: kappa / b."""

    def values(table: Any) -> Tensor:
        if not hasattr(table, "b"):
            raise SettingError("constant_gain needs the table of a target")
        return kappa / table.b

    return values


def _equal_ratios(first: float, last: float, steps: int) -> Tensor:
    values = first * (last / first) ** torch.linspace(0.0, 1.0, steps, dtype=torch.float64)
    if steps > 1:
        values[-1] = last
    return values


def evaluate(value: float | Schedule, table: Sized, name: str, *, positive: bool = True) -> Tensor:
    """Turn a number or a schedule into its values (T,), checked: finite and, if asked, positive."""
    values = value(table) if callable(value) else constant(value)(table)
    values = torch.as_tensor(values, dtype=torch.float64)
    if tuple(values.shape) != (len(table),):
        raise SettingError(f"the schedule of {name} gave shape {tuple(values.shape)} for {len(table)} steps")
    bad = ~torch.isfinite(values) | ((values <= 0) if positive else (values < 0))
    if bool(bad.any()):
        step = int(torch.nonzero(bad)[0])
        limit = "> 0" if positive else ">= 0"
        raise SettingError(f"{name} must be finite and {limit}; it is {float(values[step]):g} at step {step}")
    return values
