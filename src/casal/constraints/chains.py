"""Arguments that are PerChain or plain, for round.py and conserved.py until they use ``parameters``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from casal.checks import Event
from casal.constraints.parameters import PerChain, check_count, common_chains, listed, whole
from casal.devices import placed
from casal.errors import SettingError, ShapeError

__all__ = ["PerChain", "check_count", "common_chains", "listed", "whole"]

Number: TypeAlias = float | PerChain
"""One number, or one for each chain (n,)."""


def number(value: Any, name: str) -> Number:
    """A parameter as a float, or as PerChain of shape (n,)."""
    if not isinstance(value, PerChain):
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError):
            raise SettingError(f"{name} is one number, or PerChain for one a chain; got {value!r}") from None
    if value.values.ndim != 1:
        raise ShapeError(f"{name} is one number for each chain, PerChain of shape (n,), got {tuple(value.shape)}")
    return PerChain(value)


def each(value: Number, like: Tensor) -> float | Tensor:
    """A number, or (n,) in the dtype of ``like`` (n, ...)."""
    return value if isinstance(value, float) else value.like(like).reshape(-1)


def column(value: Number, like: Tensor) -> float | Tensor:
    """A number, or (n, 1) in the dtype of ``like`` (n, ...)."""
    return value if isinstance(value, float) else value.like(like).reshape(-1, 1)


def derive(function: Callable[..., Any], *values: Number) -> Number:
    """function(*values), for numbers or chain by chain; the function gets floats or tensors (n,)."""
    if not any(isinstance(value, PerChain) for value in values):
        return float(function(*values))
    return PerChain(function(*(value.values if isinstance(value, PerChain) else value for value in values)))


def root(value: Any) -> Any:
    """sqrt(max(value, 0)) of a float or a tensor."""
    return value.clamp_min(0.0).sqrt() if isinstance(value, Tensor) else max(value, 0.0) ** 0.5


def first_failure(good: Callable[..., Tensor], *values: Number) -> int | None:
    """The first chain whose values fail a test written for tensors (0 for common values), or None."""
    wide = (v.values if isinstance(v, PerChain) else torch.tensor(v, dtype=torch.float64) for v in values)
    bad = torch.nonzero(~good(*wide).reshape(-1))
    return int(bad[0]) if len(bad) else None


def share(good: Callable[..., Tensor], *values: Number) -> float:
    """Share of the chains whose values pass a test written for tensors; one or zero for common values."""
    wide = (v.values if isinstance(v, PerChain) else torch.tensor(v, dtype=torch.float64) for v in values)
    return float(good(*wide).reshape(-1).to(torch.float64).mean())


def show(value: Number | None, chain: int, form: str = "g") -> str:
    """A number for a message, in six digits: the common one, or that of one chain."""
    if isinstance(value, PerChain):
        return f"{value.values[chain].item():{form}} (chain {chain})"
    return "None" if value is None else f"{value:{form}}"


Bound: TypeAlias = Tensor | PerChain
"""A tensor common to all chains, or (n, *shape) for each."""


def bound(value: Any) -> Bound:
    """A parameter as a float64 tensor of its own, or as PerChain of its own."""
    return PerChain(value) if isinstance(value, PerChain) else torch.as_tensor(value, dtype=torch.float64).clone()


def check_fits(value: Bound, event: Event, name: str) -> None:
    """ShapeError unless a parameter (of one chain) broadcasts to an event without enlarging it."""
    shape = event_shape(value)
    try:
        fits = torch.broadcast_shapes(shape, event) == torch.Size(event)
    except RuntimeError:
        fits = False
    if not fits:
        raise ShapeError(
            f"{name} of shape {tuple(shape)} do not broadcast to events {tuple(event)}; "
            f"give one number, or a tensor of shape {tuple(event)}"
        )


def spread(value: Bound, z: Tensor) -> Tensor:
    """A parameter in the dtype of z (n, *event), to broadcast over it."""
    return value.like(z) if isinstance(value, PerChain) else placed(value, z)


def raw(value: Bound) -> Tensor:
    """All numbers of a parameter."""
    return value.values if isinstance(value, PerChain) else value


def brief(value: Bound) -> str:
    """A parameter for a repr: its number where all are equal, else its shape and range.

    >>> brief(torch.zeros(3, 4)), brief(torch.arange(400.0))
    ('0', '(400,) in [0, 399]')
    """
    numbers = raw(value)
    if not numbers.numel():
        return str(tuple(numbers.shape))
    low, high = float(numbers.min()), float(numbers.max())
    own = "PerChain" if isinstance(value, PerChain) else ""
    if low == high and not own:
        return f"{low:g}"
    return f"{own}{tuple(numbers.shape)} in [{low:g}, {high:g}]"


def event_shape(value: Bound) -> torch.Size:
    """Shape of a parameter of one chain."""
    return value.shape[1:] if isinstance(value, PerChain) else value.shape


def together(first: Bound, second: Bound) -> tuple[Bound, Bound]:
    """Two parameters of one shape, both for each chain if one is."""
    try:
        shape = torch.broadcast_shapes(event_shape(first), event_shape(second))
    except RuntimeError:
        shapes = f"{tuple(event_shape(first))} and {tuple(event_shape(second))}"
        raise ShapeError(f"parameters of shapes {shapes} do not broadcast to one event") from None
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return first.expand(shape), second.expand(shape)
    chains = common_chains(first=first, second=second)

    def widen(side: Bound) -> PerChain:
        own = event_shape(side)
        count = side.chains if isinstance(side, PerChain) else 1
        rows = raw(side).reshape(count, *[1] * (len(shape) - len(own)), *own)
        return PerChain(rows.expand(chains or 1, *shape))

    return widen(first), widen(second)


def as_rows(level: Number) -> Bound:
    """The level of one equation as a list of one, (1,) or PerChain (n, 1)."""
    return (
        PerChain(level.values[:, None]) if isinstance(level, PerChain) else torch.tensor([level], dtype=torch.float64)
    )


def marked(values: Tensor, own: bool) -> Bound:
    """Values (n, *shape) for each chain if they are its own; else those of the first, common to all."""
    return PerChain(values) if own else values[0]


def join(first: Bound, second: Bound) -> Bound:
    """Two lists of numbers as one, for each chain if one of them is."""
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return torch.cat([first, second])
    n = common_chains(first=first, second=second) or 1
    return PerChain(torch.cat([raw(level).expand(n, -1) for level in (first, second)], dim=1))
