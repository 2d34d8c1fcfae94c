"""Points as networks see them: their shape, the noise level beside each of them, the statistics of the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from casal.checks import one_of
from casal.errors import SettingError, ShapeError

Per = Literal["coordinate", "channel", "all"]


def arguments(net: nn.Module, *names: str) -> dict[str, Any]:
    """Constructor arguments of a network that it keeps under their names, as plain JSON."""
    found = {name: getattr(net, name) for name in names}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def check_event(x: Tensor, event: tuple[int, ...]) -> None:
    """ShapeError unless x is (n, *event)."""
    if tuple(x.shape[1:]) != event:
        raise ShapeError(f"got a tensor {tuple(x.shape)}; this model was made for (n, {', '.join(map(str, event))})")


def over_events(value: Tensor | float, x: Tensor, name: str = "t") -> Tensor:
    """A time or noise level as (1,) or (n,), in the dtype and on the device of x (n, *event); ``name`` for messages."""
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


def signal_and_noise(betas: Tensor) -> tuple[Tensor, Tensor]:
    """alpha_t = sqrt(abar_t) and sigma_t = sqrt(1 - abar_t), abar_t = prod_{s <= t} (1 - beta_s), (T,) float64."""
    beta = torch.as_tensor(betas, dtype=torch.float64)
    if beta.ndim != 1 or not len(beta) or not bool(((beta > 0) & (beta < 1)).all()):
        raise SettingError("betas must be (T,) numbers between 0 and 1, as in torch.linspace(1e-4, 0.02, 1000)")
    abar = torch.cumprod(1 - beta, dim=0)
    return abar.sqrt(), (1 - abar).sqrt()


def noise_range(sigmas: Sequence[float]) -> tuple[float, float]:
    """The two ends, checked."""
    ends = tuple(float(sigma) for sigma in sigmas)
    if len(ends) != 2 or not 0 < ends[0] < ends[1] < float("inf"):
        raise SettingError(f"sigmas must be two numbers 0 < low < high, got {ends}")
    return ends[0], ends[1]


class Standardise(nn.Module):
    """x = (raw - mean) / scale.

    A network works on standardised x and never calls this itself: it carries the two numbers so that they travel in
    its checkpoint. Identity until ``fit`` is called.

    >>> standardise = Standardise((1,))
    >>> standardise.fit(torch.tensor([[1.0], [3.0]])).flatten()
    tensor([-1.,  1.])
    >>> standardise.restore(torch.zeros(1, 1))
    tensor([[2.]])
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, event: Sequence[int]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(tuple(event)))
        self.register_buffer("scale", torch.ones(tuple(event)))

    def fit(self, raw: Tensor, per: Per = "coordinate") -> Tensor:
        """Take mean and standard deviation from ``raw`` (n, *event), and return it standardised.

        One pair of numbers ``per`` "coordinate", per "channel" (the first event dimension), or one for "all".
        """
        check_event(raw, tuple(self.mean.shape))
        first = {"coordinate": raw.ndim, "channel": 2, "all": 1}[one_of(per, "per", ("coordinate", "channel", "all"))]
        over = (0, *range(first, raw.ndim))
        mean = raw.double().mean(over, keepdim=True)
        scale = raw.double().sub(mean).square().mean(over, keepdim=True).sqrt()
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        self.mean.copy_(mean[0].expand_as(self.mean))
        self.scale.copy_(scale[0].expand_as(self.scale))
        return self(raw)

    def forward(self, raw: Tensor) -> Tensor:
        return (raw - self.mean) / self.scale

    def restore(self, x: Tensor) -> Tensor:
        """raw = mean + scale x."""
        return self.mean + self.scale * x
