"""Parameters of sets: float64 tensors (1, ...) common to all chains, or (n, ...) with one value for each chain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from casal.checks import Event, broadcasts_to
from casal.devices import beside, placed
from casal.errors import SettingError, ShapeError

MOST_SHOWN = 60
"""Characters of an argument that a message repeats."""

MOST_LISTED = 6
"""Members that a repr names; of more the first three and the last."""


class PerChain:
    """A parameter of a set with a value for each chain: ``casal.MassEnergy(casal.PerChain(M), casal.PerChain(E))``.

    Only what is marked so belongs to single chains; a plain tensor is one parameter common to all, whatever its shape.
    Constructors of sets read the mark; inside a set every parameter is a tensor (1 or n, ...).

    Args:
        values: (n, *shape): chain i has the parameter ``values[i]``. They are copied, here and by every set.

    >>> from casal import Sphere
    >>> Sphere(PerChain([1.0, 2.0])).project(torch.tensor([[3.0, 4.0], [3.0, 4.0]]))
    tensor([[0.6000, 0.8000],
            [1.2000, 1.6000]])
    """

    def __init__(self, values: Any) -> None:
        given = values.values if isinstance(values, PerChain) else values
        self.values: Tensor = real(given).detach().clone()
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

    def take(self, index: slice | Tensor) -> PerChain:
        """The values of these chains: a slice, or their numbers (k,)."""
        if not isinstance(index, slice) and (not isinstance(index, Tensor) or index.dtype != torch.long):
            raise SettingError(f"chains are taken by a slice or by a tensor of their numbers (int64), got {index!r}")
        return PerChain(self.values[index if isinstance(index, slice) else beside(index, self.values)])


# ------------------------------------------------------------------ from arguments to parameters


def real(value: Any) -> Tensor:
    """The numbers of Python, NumPy or torch as a float64 tensor, or SettingError."""
    try:
        return torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise SettingError(
            "a set is written in real numbers: a number, a list of equally long lists, a NumPy array or a tensor; "
            f"got {shown(value)} ({error})"
        ) from None


def copied(value: Any) -> Any:
    """An argument of a set, for it to keep: PerChain, None, or a float64 tensor of its own."""
    if value is None:
        return None
    return PerChain(value) if isinstance(value, PerChain) else real(value).clone()


def one_number(value: Any, name: str) -> float | PerChain:
    """An argument that is one number, or one for each chain, for a set to keep."""
    if not isinstance(value, PerChain):
        try:
            if not isinstance(value, str | bytes):
                return float(value)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            pass
        raise SettingError(f"{name} is one number, or PerChain for one per chain; got {shown(value)}")
    if value.values.ndim != 1:
        raise ShapeError(f"{name} is one number for each chain, PerChain of shape (n,), got {tuple(value.shape)}")
    return PerChain(value)


def parameter(value: Any) -> Tensor:
    """The numbers of an argument, float64 (1, *shape) or (n, *shape).

    >>> parameter(3.0), parameter(PerChain([1.0, 2.0]))
    (tensor([3.], dtype=torch.float64), tensor([1., 2.], dtype=torch.float64))
    """
    return value.values if isinstance(value, PerChain) else real(value)[None]


def argument(values: Tensor, own: bool = False) -> Any:
    """What a constructor takes for a parameter (1 or n, *shape): the one value, or PerChain (if n = 1, if ``own``).

    >>> argument(torch.zeros(1, 3)).shape, argument(torch.zeros(2, 3))
    (torch.Size([3]), PerChain(2, 3))
    """
    return PerChain(values) if own or len(values) > 1 else values[0]


def common_chains(**parts: Any) -> int | None:
    """How many chains the arguments or members (by name) are for; None if they are common to all.

    Raises:
        ShapeError: They are for different numbers of chains.
    """
    found = {name: part.chains for name, part in parts.items() if getattr(part, "chains", None) is not None}
    if len(set(found.values())) > 1:
        each_count = ", ".join(f"{count} in {name}" for name, count in found.items())
        raise ShapeError(f"parameters for different numbers of chains: {each_count}")
    return next(iter(found.values()), None)


# ------------------------------------------------------------------ parameters and points


def over(values: Tensor, z: Tensor) -> Tensor:
    """A parameter (1 or n, *shape) in the dtype and on the device of z (n, ...), shaped to broadcast over it.

    Raises:
        ShapeError: z has another number of points than there are chains.

    >>> over(torch.ones(2), torch.zeros(2, 3, 4)).shape, over(torch.ones(1, 4), torch.zeros(2, 3, 4)).shape
    (torch.Size([2, 1, 1]), torch.Size([1, 1, 4]))
    """
    if len(values) > 1:
        check_count(z, len(values))
    there = placed(_shaped(values, tuple(z.shape[1:])), z)
    return there.reshape(len(there), *[1] * (z.ndim - there.ndim), *there.shape[1:])


def _shaped(values: Tensor, event: Event) -> Tensor:
    """A parameter that was given for flattened events, (1 or n, d), in the shape of an event; others as they are."""
    if values.ndim == 2 and len(event) > 1 and values.shape[1] == torch.Size(event).numel():
        return values.reshape(len(values), *event)
    return values


def over_flattened(values: Tensor, event: Event) -> Tensor:
    """A parameter (1 or n, *shape) spread over flattened events, (1 or n, d)."""
    values = _shaped(values, event)
    shape = values.shape[1:]
    return values.reshape(len(values), *[1] * (len(event) - len(shape)), *shape).expand(-1, *event).flatten(1)


def check_count(z: Tensor, chains: int) -> None:
    """ShapeError unless z has one point for each of the chains."""
    if len(z) != chains:
        raise ShapeError(
            f"{len(z)} points for a set with parameters for {chains} chains; "
            "constraint.take(index) is the set of some of them"
        )


def check_fits(values: Tensor, event: Event, name: str) -> None:
    """ShapeError unless a parameter (1 or n, *shape) broadcasts to an event without enlarging it."""
    shape = values.shape[1:]
    if not broadcasts_to(shape, event):
        raise ShapeError(
            f"{name} of shape {tuple(shape)} do not broadcast to events {tuple(event)}; "
            f"give one number, or a tensor of shape {tuple(event)}"
        )


def together(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Two parameters (1 or n, *shape) broadcast to each other, shapes aligned from the right."""
    bare = [torch.empty(()).expand(side.shape[1:]) for side in (first, second)]
    try:
        shape = torch.broadcast_tensors(*bare)[0].shape
    except RuntimeError:
        shapes = f"{tuple(first.shape[1:])} and {tuple(second.shape[1:])}"
        raise ShapeError(f"parameters of shapes {shapes} do not broadcast to one event") from None
    wide = [side.reshape(len(side), *[1] * (len(shape) + 1 - side.ndim), *side.shape[1:]) for side in (first, second)]
    count = max(len(first), len(second))
    return wide[0].expand(count, *shape), wide[1].expand(count, *shape)


def join(*levels: Tensor) -> Tensor:
    """Lists of numbers (1 or n, m) as one, for each chain if one of them is."""
    count = max(len(level) for level in levels)
    return torch.cat([level.expand(count, -1) for level in levels], dim=1)


# ------------------------------------------------------------------ checks and words


def first_failure(good: Tensor) -> int | None:
    """The first chain (0 for common values) that fails a test (1 or n,), or None."""
    bad = torch.nonzero(~good.reshape(-1))
    return int(bad[0]) if len(bad) else None


def shown(value: object) -> str:
    """An argument for a message, cut where it is long.

    >>> shown([1.0] * 100)
    '[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, ...'
    """
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # thousands of digits, or of lists in lists
        text = f"a {type(value).__name__} that is too long to show"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]} ..."


def show(values: Tensor | None, chain: int, form: str = "g") -> str:
    """A number for a message, in six digits: the common one, or that of one chain of a parameter (1 or n,)."""
    if values is None:
        return "None"
    if len(values) > 1:
        return f"{values[chain].item():{form}} (chain {chain})"
    return f"{values[0].item():{form}}"


def brief(value: Tensor | PerChain) -> str:
    """An argument for a repr: its number where all are equal, else its shape and range.

    >>> brief(torch.zeros(3, 4)), brief(torch.arange(400.0))
    ('0', '(400,) in [0, 399]')
    """
    own = isinstance(value, PerChain)
    numbers = value.values if isinstance(value, PerChain) else value
    if not numbers.numel():
        return str(tuple(numbers.shape))
    low, high = float(numbers.min()), float(numbers.max())
    if low == high and not own:
        return f"{low:g}"
    return f"{'PerChain' if own else ''}{tuple(numbers.shape)} in [{low:g}, {high:g}]"


def listed(parts: Sequence[object], between: str) -> str:
    """Members for a repr; of many the first and the last.

    >>> listed(range(100), " & ")
    '0 & 1 & 2 & ... 96 more ... & 99'
    """
    words = [repr(part) for part in (parts if len(parts) <= MOST_LISTED else (*parts[:3], parts[-1]))]
    if len(parts) > MOST_LISTED:
        words.insert(3, f"... {len(parts) - 4} more ...")
    return between.join(words)
