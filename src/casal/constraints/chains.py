"""Parameters that differ from chain to chain, marked as such: a shape is never guessed."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor

from casal.checks import Event, whole_number
from casal.constraints.vectors import once
from casal.devices import beside, placed
from casal.errors import SettingError, ShapeError

MOST_LISTED = 6
"""Members that a repr names; of more the first three and the last."""


class PerChain:
    """A parameter of a set with a value for each chain: ``casal.MassEnergy(casal.PerChain(M), casal.PerChain(E))``.

    Only what is marked so belongs to single chains; a plain tensor is one parameter common to all, whatever its shape.

    Args:
        values: (n, *shape): chain i has the parameter ``values[i]``. They are copied, here and by every set.

    >>> from casal import Sphere
    >>> Sphere(PerChain([1.0, 2.0])).project(torch.tensor([[3.0, 4.0], [3.0, 4.0]]))
    tensor([[0.6000, 0.8000],
            [1.2000, 1.6000]])
    """

    def __init__(self, values: Any) -> None:
        given = values.values if isinstance(values, PerChain) else values
        self.values: Tensor = torch.as_tensor(given, dtype=torch.float64).detach().clone()
        if self.values.ndim < 1 or not len(self.values):
            raise ShapeError(f"PerChain takes (n, ...), one value for each of n >= 1 chains, got {tuple(self.shape)}")

    def __repr__(self) -> str:
        return f"PerChain{tuple(self.shape)}"

    def __format__(self, form: str) -> str:
        return repr(self)

    @property
    def chains(self) -> int:
        """How many chains there are values for."""
        return len(self.values)

    @property
    def shape(self) -> torch.Size:
        """(n, *shape)."""
        return self.values.shape

    @property
    def rows(self) -> Tensor:
        """(n, k), the values of a chain flattened."""
        return self.values.reshape(len(self.values), -1)

    def take(self, index: slice | Tensor) -> PerChain:
        """The values of these chains: a slice, or their numbers (k,)."""
        if not isinstance(index, slice) and (not isinstance(index, Tensor) or index.dtype != torch.long):
            raise SettingError(f"chains are taken by a slice or by a tensor of their numbers (int64), got {index!r}")
        return PerChain(self.values[index if isinstance(index, slice) else beside(index, self.values)])

    def like(self, z: Tensor) -> Tensor:
        """The values in the dtype of z (n, *event), shaped (n, ...) to broadcast over its events.

        Raises:
            ShapeError: z has another number of points than there are chains.
        """
        check_count(z, self.chains)
        return once(self._shaped.setdefault(z.ndim, {}), z, lambda: self._over_events(z))

    def _over_events(self, z: Tensor) -> Tensor:
        with torch.inference_mode(False):  # what is kept may be differentiated later
            values = placed(self.values, z)
            return values.reshape(len(z), *[1] * (z.ndim - values.ndim), *values.shape[1:])

    @cached_property
    def _shaped(self) -> dict[int, dict[tuple[torch.dtype, torch.device], Tensor]]:
        """The values for points of so many dimensions, in the dtypes that were asked for: a loop asks in every step."""
        return {}


def check_count(z: Tensor, chains: int) -> None:
    """ShapeError unless z has one point for each of the chains."""
    if len(z) != chains:
        raise ShapeError(
            f"{len(z)} points for a set with parameters for {chains} chains; "
            "constraint.take(index) is the set of some of them"
        )


def whole(value: Any, name: str, least: int) -> int:
    """A whole number >= ``least`` of Python, NumPy or torch, or SettingError."""
    with contextlib.suppress(TypeError):  # a float is no index, but it may be whole
        value = operator.index(value)
    return whole_number(value, name, least)


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


def listed(parts: Sequence[object], between: str) -> str:
    """Members for a repr; of many the first and the last.

    >>> listed(range(100), " & ")
    '0 & 1 & 2 & ... 96 more ... & 99'
    """
    words = [repr(part) for part in (parts if len(parts) <= MOST_LISTED else (*parts[:3], parts[-1]))]
    if len(parts) > MOST_LISTED:
        words.insert(3, f"... {len(parts) - 4} more ...")
    return between.join(words)


def event_shape(value: Bound) -> torch.Size:
    """Shape of a parameter of one chain."""
    return value.shape[1:] if isinstance(value, PerChain) else value.shape


def common_chains(**parts: Any) -> int | None:
    """How many chains the parameters or members (by name) are for; None if they are common to all.

    Raises:
        ShapeError: They are for different numbers of chains.
    """
    found = {name: part.chains for name, part in parts.items() if getattr(part, "chains", None) is not None}
    if len(set(found.values())) > 1:
        each_count = ", ".join(f"{count} in {name}" for name, count in found.items())
        raise ShapeError(f"parameters for different numbers of chains: {each_count}")
    return next(iter(found.values()), None)


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
