"""Classifier-free guidance of a conditional model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from casal.errors import SettingError, ShapeError
from casal.targets.base import Target


def guided(target: Target, scale: float, unconditional: Mapping[str, Any]) -> Target:
    """Apply classifier-free guidance to a model, with a condition c and the value u for no condition:

        score_g(x, t) = score(x, t; u) + scale (score(x, t; c) - score(x, t; u)),

    and the same for the denoiser. What the network predicts (noise, clean sample, velocity) does not matter, since the
    score is linear in it at every x and t. Both halves are one call of the network with twice the chains; it counts as
    one evaluation. scale = 1 is the model itself, and scale = 0 the model without its condition.

    Guidance changes the model: with scale != 1 the scores of different noise levels belong to no common density, so
    that samples follow the guided sampler and not p(x0 | c) to some power. A method that promises the distribution of
    a model on a set promises it for a model, which this is not; the result says so in ``fidelity.reasons``. A fixed
    density is the exception: it becomes p(x; u)^(1 - scale) p(x; c)^scale, and the promise holds.

    Args:
        target: A target with a ``condition``.
        scale: Strength. In diffusers' words it is ``guidance_scale``; papers that write (1 + w) c - w u mean w + 1.
        unconditional: What stands for no condition: names of the condition to a value of one row, such as a null label
            or the embedding of an empty text. Names that are left out keep the value that the chain has.

    References:
        Ho and Salimans (2022), Classifier-free diffusion guidance, eq. 6.

    >>> from casal.targets import edm
    >>> network = lambda x, s, label: label[:, None] * torch.ones_like(x)
    >>> target = edm(network, [2.0, 1.0], shape=2, condition={"label": torch.tensor([1, 3])})
    >>> stronger = guided(target, 2.0, {"label": 0})
    >>> stronger.denoise(torch.zeros(2, 2), torch.tensor(1.0), **stronger.condition)
    tensor([[2., 2.],
            [6., 6.]])
    """
    if not target.condition:
        raise SettingError(f"{target.name} has no condition to be guided by; give its family condition={{...}}")
    if not isinstance(scale, int | float) or not -float("inf") < scale < float("inf"):
        raise SettingError(f"scale must be a finite number, got {scale!r}; 1 is no guidance")
    none = unconditional_rows(target.condition, unconditional, target.name)
    if scale == 1:
        return target
    note = () if target.table.static else (guidance_note(scale),)
    return replace(
        target,
        score=_Guided(target.score, scale, none),
        potential=None if target.potential is None else _Guided(target.potential, scale, none),
        denoise=None if target.denoise is None else _Guided(target.denoise, scale, none),
        init=_GuidedStart(target.init, scale, none)
        if target.conditional_init and callable(target.init)
        else target.init,
        name=f"guided {target.name}",
        notes=target.notes + note,
    )


def guidance_note(scale: float) -> str:
    """What a reader of a result must know of a guided model."""
    return (
        f"classifier-free guidance with scale {scale:g} changes the model: its scores belong to no common density, so "
        "what the samples follow on the set is the guided sampler, not the density given the condition"
    )


def unconditional_rows(condition: Mapping[str, Tensor], unconditional: Any, owner: str) -> dict[str, Tensor]:
    """What stands for no condition, (1, ...) each; ``owner`` is who has the condition, for messages."""
    if not isinstance(unconditional, Mapping) or not unconditional:
        raise SettingError(
            f"unconditional maps names of the condition to their values for no condition, got {unconditional!r}"
        )
    rows = dict[str, Tensor]()
    for name, value in unconditional.items():
        if name not in condition:
            known = ", ".join(condition)
            raise SettingError(f"unconditional has {name!r}, which the condition of {owner} does not have: {known}")
        like = condition[name]
        row = torch.as_tensor(value, dtype=like.dtype, device=like.device).detach()
        row = row[None] if row.ndim < like.ndim else row
        if row.shape != (1, *like.shape[1:]):
            raise ShapeError(
                f"unconditional[{name!r}] has shape {tuple(torch.as_tensor(value).shape)}; give one row, "
                f"{tuple(like.shape[1:])}"
            )
        rows[name] = row
    return rows


class _Guided:
    """out(u) + scale (out(c) - out(u)) for a function of points, more arguments, and a condition: both in one call."""

    def __init__(self, function: Callable[..., Tensor], scale: float, none: Mapping[str, Tensor]) -> None:
        self.function, self.scale, self.none = function, scale, none

    def __call__(self, x: Tensor, /, *more: Tensor, **condition: Tensor) -> Tensor:
        both = {name: torch.cat([_like(self.none, name, value), value]) for name, value in condition.items()}
        times = [torch.cat([t, t]) if isinstance(t, Tensor) and t.ndim else t for t in more]
        without, given = self.function(torch.cat([x, x]), *times, **both).chunk(2)
        return without + self.scale * (given - without)


class _GuidedStart:
    """The same for starting points that evaluate the network: both from the same random numbers."""

    def __init__(self, init: Callable[..., Tensor], scale: float, none: Mapping[str, Tensor]) -> None:
        self.init, self.scale, self.none = init, scale, none

    def __call__(self, n: int, generator: torch.Generator, /, **condition: Tensor) -> Tensor:
        before = generator.get_state()
        without = self.init(n, generator, **{name: _like(self.none, name, v) for name, v in condition.items()})
        generator.set_state(before)
        return without + self.scale * (self.init(n, generator, **condition) - without)


def _like(none: Mapping[str, Tensor], name: str, value: Tensor) -> Tensor:
    """What stands for no condition, as many rows as ``value`` has; its own rows where nothing stands for it."""
    return none[name].to(value).expand_as(value) if name in none else value
