"""Shapes of points, and one number per chain."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from casal.checks import whole_number
from casal.errors import ShapeError


def event_shape(event: int | Sequence[int]) -> tuple[int, ...]:
    """The shape of one point, from a number or a sequence of numbers."""
    sizes = (event,) if isinstance(event, int) else tuple(event)
    return tuple(whole_number(size, "each size of the event", 1) for size in sizes)


def check_event(x: Tensor, event: tuple[int, ...]) -> None:
    """ShapeError unless x is (n, *event)."""
    if tuple(x.shape[1:]) != event:
        raise ShapeError(f"got a tensor {tuple(x.shape)}; this model was made for (n, {', '.join(map(str, event))})")


def over_events(value: Tensor | float, x: Tensor, name: str = "t") -> Tensor:
    """A time or noise level as (1,) or (n,), in the dtype and on the device of x (n, *event).

    Args:
        value: A number, a tensor with one element, or one per chain; whole or floating.
        x: What it belongs to.
        name: For the message.
    """
    tensor = torch.as_tensor(value, dtype=x.dtype, device=x.device)
    if tensor.numel() == 1:
        return tensor.reshape(1)
    if tuple(tensor.shape) not in {(len(x),), (len(x), 1)}:
        raise ShapeError(
            f"{name} has shape {tuple(tensor.shape)} for {len(x)} chains; give one number or a tensor ({len(x)},)"
        )
    return tensor.reshape(len(x))


def beside(value: Tensor, x: Tensor) -> Tensor:
    """(1,) or (n,) with dimensions added, so that it multiplies x (n, *event)."""
    return value.view(-1, *(1,) * (x.ndim - 1))


def all_digits(x: Tensor) -> torch.autocast:
    """Inside, what is computed on the device of x keeps its dtype, whatever autocast says outside."""
    return torch.autocast(x.device.type, enabled=False)
