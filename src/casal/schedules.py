"""Schedules: values along a run, given by any callable from the table of a target to a tensor (T,)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from casal.errors import SettingError

F64 = torch.float64

Schedule: TypeAlias = Callable[[Any], Tensor]
"""``schedule(table)`` -> (T,) float64; most built-in ones need only ``len(table)``."""


@dataclass(frozen=True)
class NamedSchedule:
    """A schedule that can be printed, compared and saved by its name and arguments.

    Attributes:
        name: The function of this module that made it.
        arguments: What it was called with.
        values: (table, *arguments) -> (T,).
    """

    name: str
    arguments: tuple[float, ...]
    values: Callable[..., Tensor] = field(compare=False)

    def __call__(self, table: Any) -> Tensor:
        return self.values(table, *self.arguments)

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{value:g}' for value in self.arguments)})"

    def spec(self) -> dict[str, Any]:
        """The schedule as plain JSON data; ``schedule_from_spec`` reads it back."""
        return {"schedule": self.name, "arguments": list(self.arguments)}


def constant(value: float) -> Schedule:
    """The same value at every step.

    >>> import casal
    >>> import torch
    >>> target = casal.langevin(lambda x: x, steps=3, step_size=0.5, init=torch.zeros(1, 2))
    >>> casal.constant(10.0)(target.table).tolist()
    [10.0, 10.0, 10.0]
    """
    return NamedSchedule("constant", (float(value),), lambda table, v: torch.full((len(table),), v, dtype=F64))


def linear(first: float, last: float) -> Schedule:
    """From ``first`` to ``last`` in equal steps.

    >>> linear(2.0, 20.0)(range(3))
    tensor([ 2., 11., 20.], dtype=torch.float64)
    """
    ends = float(first), float(last)
    return NamedSchedule("linear", ends, lambda table, a, b: torch.linspace(a, b, len(table), dtype=F64))


def geometric(first: float, last: float) -> Schedule:
    """From ``first`` to ``last`` in equal ratios (the paper's "logarithmic" schedule).

    >>> geometric(0.1, 10.0)(range(3))
    tensor([ 0.1000,  1.0000, 10.0000], dtype=torch.float64)
    """
    if first <= 0 or last <= 0:
        raise SettingError(f"a geometric schedule needs two positive ends, got {first} and {last}")

    def values(table: Any, a: float, b: float) -> Tensor:
        found = a * (b / a) ** torch.linspace(0.0, 1.0, len(table), dtype=F64)
        if len(table) > 1:
            found[-1] = b
        return found

    return NamedSchedule("geometric", (float(first), float(last)), values)


def inverse_variance(factor: float = 1.0) -> Schedule:
    """Ties the coupling to the noise left in the state of a diffusion or flow target: factor / (sigma / alpha)^2."""

    def values(table: Any, factor: float) -> Tensor:
        if getattr(table, "alpha", None) is None:
            raise SettingError("inverse_variance needs the noise levels of a diffusion or flow target")
        return factor * (table.alpha / table.sigma).square()

    return NamedSchedule("inverse_variance", (float(factor),), values)


def constant_gain(kappa: float) -> Schedule:
    """The same product kappa of coupling and step size at every row: kappa / b.

    b is the step size that multiplies rho: the gain of the score, or s^2 / 2 in the published variants of CASAL. An
    implicit step then goes the share kappa / (1 + kappa) of the way to z, an explicit one the share kappa. A row
    without a step (the last one of a DDPM has s = 0) takes the largest value of the others.
    """

    def values(table: Any, kappa: float) -> Tensor:
        if not hasattr(table, "b"):
            raise SettingError("constant_gain needs the table of a target")
        b: Tensor = table.b
        return kappa / torch.where(b > 0, b, b[b > 0].min()) if bool(b.any()) else torch.full_like(b, kappa)

    return NamedSchedule("constant_gain", (float(kappa),), values)


SCHEDULES: Mapping[str, Callable[..., Schedule]] = {
    made.__name__: made for made in (constant, linear, geometric, inverse_variance, constant_gain)
}
"""Every schedule by name."""


def schedule_from_spec(spec: Mapping[str, Any]) -> Schedule:
    """Build a schedule from ``spec()``.

    >>> schedule_from_spec({"schedule": "linear", "arguments": [2.0, 20.0]})
    linear(2, 20)
    """
    if spec.get("schedule") not in SCHEDULES:
        raise SettingError(f"no schedule named {spec.get('schedule')!r}; there are {sorted(SCHEDULES)}")
    return SCHEDULES[spec["schedule"]](*spec["arguments"])


def evaluate(value: float | Schedule, table: Sized, name: str, *, positive: bool = True) -> Tensor:
    """Turn a number or a schedule into its values (T,), checked: finite and, if asked, positive."""
    try:
        values = torch.as_tensor((value if callable(value) else constant(value))(table), dtype=F64)
    except (TypeError, ValueError) as error:
        raise SettingError(
            f"{name} must be a number or a schedule such as casal.constant(10.0), got {value!r}"
        ) from error
    if tuple(values.shape) != (len(table),):
        raise SettingError(f"the schedule of {name} gave shape {tuple(values.shape)} for {len(table)} steps")
    bad = ~torch.isfinite(values) | ((values <= 0) if positive else (values < 0))
    if bool(bad.any()):
        step = int(torch.nonzero(bad)[0])
        limit = "> 0" if positive else ">= 0"
        raise SettingError(f"{name} must be finite and {limit}; it is {float(values[step]):g} at step {step}")
    return values
