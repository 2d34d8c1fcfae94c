"""Small vector helpers that know no set: shapes, safe norms, shells, what rounding may spoil."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from casal.devices import on_host
from casal.errors import ProjectionError

Made = TypeVar("Made")

EPSILON = torch.finfo(torch.float64).eps
"""Rounding of one operation in float64, relative."""

ROUNDING = 1e-12
"""Relative error granted to the parameters of a set before they count as contradictory, and to a point on its edge.

Parameters come out of someone's sums in float64: a few thousand roundings, with a margin.
"""

GRANTED = 16.0
"""Roundings of its terms that a row may be off, where its violation is measured by a length of its own."""

LARGE = 1e100
"""Numbers beyond this are added in a unit of their own, so that their sums stay finite."""

LARGEST = 1e300
"""Lengths beyond this overflow in sums of squares even after scaling."""

SHORT = 16
"""Numbers in a row up to which a product with ones adds them faster than a sum."""


def flat(z: Tensor) -> Tensor:
    """(n, *event) -> (n, d)."""
    return z.flatten(1)


def squarable(dtype: torch.dtype) -> float:
    """The length beyond which squares of lengths are out of the range of a dtype, and below whose inverse too."""
    return float(torch.finfo(dtype).max ** 0.5)


def floating(z: Tensor) -> Tensor:
    """z itself, or in float64 if it holds whole numbers (an integer or bool dtype)."""
    return z if z.is_floating_point() else z.to(torch.float64)


def over_events(values: Tensor, z: Tensor) -> Tensor:
    """(n,) shaped to broadcast over the events of z."""
    return values.reshape(-1, *([1] * (z.ndim - 1)))


def peak(v: Tensor) -> Tensor:
    """Largest |coordinate| of the rows of (n, d), (n, 1); one for a row of zeros, so that it can be divided by."""
    top = v.abs().amax(1, keepdim=True) if v.shape[1] else v.new_zeros(len(v), 1)
    return torch.where(top > 0, top, torch.ones_like(top))


def norm(v: Tensor) -> Tensor:
    """Euclidean norm of the rows of (n, d), safe from overflow and underflow of the squares."""
    scale = peak(v)
    return (scale * torch.linalg.vector_norm(v / scale, dim=1, keepdim=True)).squeeze(1)


def unit(v: Tensor, fallback: Tensor) -> Tensor:
    """Rows of (n, d) scaled to length one; a zero row becomes ``fallback`` (d,)."""
    top = v.abs().amax(1, keepdim=True)
    scaled = v / torch.where(top > 0, top, torch.ones_like(top))
    scaled = torch.where(top > 0, scaled, fallback.expand_as(v))
    return scaled / torch.linalg.vector_norm(scaled, dim=1, keepdim=True)


def half_square(v: Tensor) -> Tensor:
    """|v|^2 / 2 of every chain of (n, *event), (n,) float64; summed in the dtype of v, whose rounding is larger."""
    return torch.linalg.vector_norm(v.flatten(1), dim=1).to(torch.float64).square() / 2


def axis(like: Tensor, *numbers: float) -> Tensor:
    """(d,) for rows (n, d): these numbers in the first coordinates, zero in the others."""
    out = torch.zeros(like.shape[1], dtype=like.dtype, device=like.device)
    for place, number in enumerate(numbers):
        out[place] = number
    return out


def relative(excess: Tensor, scale: float | Tensor) -> Tensor:
    """``excess / scale`` with 0/0 = 0: a violation in units of the numbers it was computed from."""
    tiny = torch.finfo(torch.float64).tiny
    unit = max(scale, tiny) if isinstance(scale, float) else scale.clamp_min(tiny)
    return torch.where(excess > 0, excess / unit, torch.zeros_like(excess))


def gaussian(like: Tensor, generator: torch.Generator) -> Tensor:
    """Standard Gaussian numbers of the shape, dtype and device of a tensor."""
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)


def tangent(y: Tensor, basis: Tensor) -> Tensor:
    """The part of y (n, d) orthogonal to the rows of ``basis``: exactly zero where it is nothing but rounding.

    Without that, the nearest point to one on the normal of a set through the origin would be noise, and its relative
    violation one, however small the noise.
    """
    scale = peak(y)
    scaled = y / scale
    part = scaled - (scaled @ basis.T) @ basis
    part = part - (part @ basis.T) @ basis
    noise = norm(part) <= 1e-14 * norm(scaled)
    return scale * torch.where(noise[:, None], torch.zeros_like(part), part)


def refuse_overflow(point: Tensor, owner: object) -> Tensor:
    """The point, unless its nearest member of the set ``owner`` lies beyond the largest float.

    Off the host it comes out not finite, without a look.
    """
    finite = torch.isfinite(point).flatten(1).all(1)
    if on_host(point) and not bool(finite.all()):
        lost = torch.nonzero(~finite).flatten().tolist()
        raise ProjectionError(
            f"{type(owner).__name__}.project overflows for {len(lost)} of {len(point)} points: coordinates are close "
            "to the largest float 1.8e308; check the score and the step size that produced them",
            chains=lost,
        )
    return point


# ------------------------------------------------------------------ short vectors


def dots(one: Tensor, other: Tensor) -> Tensor:
    """Sums of products over the last dimension; a product with ones is faster where that is short."""
    product = one * other
    size = product.shape[-1]
    if size == 1:
        return product.squeeze(-1)
    return product @ constant(_ones, size, product) if size <= SHORT else product.sum(-1)


def lengths(v: Tensor) -> Tensor:
    """Euclidean lengths over the last dimension, likewise; squares may overflow, unlike those of ``norm``."""
    return dots(v, v).sqrt_() if v.shape[-1] <= SHORT else torch.linalg.vector_norm(v, dim=-1)


def _ones(size: int, like: Tensor) -> Tensor:
    return like.new_ones(size)


def constant(make: Callable[[int, Tensor], Tensor], size: int, like: Tensor) -> Tensor:
    """make(size, like), a small vector that depends on a size, a dtype and a device alone, made once for each.

    Not kept: what is made for a subclass of tensors, such as torch's fake ones, or by a compiler.
    """
    if type(like) is not Tensor or _compiled():
        return make(size, like)
    key = make, size, like.dtype, like.device
    if key not in _constants:
        with torch.inference_mode(False):
            _constants[key] = make(size, like.detach())
    return _constants[key]


_constants: dict[object, Tensor] = {}


# ------------------------------------------------------------------ shells, in the dtype of the chains


def shortest(dtype: torch.dtype) -> float:
    """The length below which squares lose digits."""
    return 10.0 * float(torch.finfo(dtype).tiny ** 0.5)


def shell_factor(offset: Tensor, radius: float | Tensor) -> tuple[Tensor, Tensor]:
    """R / |v| for rows v of (n, d), and |v|, both (n, 1); |v| is taken to be at least ``shortest``.

    A row of zeros gets R / shortest, so that v + shortest e comes out as R e for any direction e. Where |v|^2 overflows
    the factor is not a number: a chain that far out is lost, and must not come back as the centre.

    Args:
        offset: v.
        radius: R, a number or (n, 1).
    """
    length = torch.linalg.vector_norm(offset, dim=1, keepdim=True).clamp_min(shortest(offset.dtype))
    return length.pow(-2).mul_(length * radius), length


def nudge(part: Tensor, factor: Tensor, by: Tensor) -> None:
    """Add ``factor by`` in place: the shortest step off the centre, from where all of a shell is equally near."""
    part.addcmul_(factor, by)


def once(made: dict[tuple[torch.dtype, torch.device], Made], z: Tensor, make: Callable[[], Made]) -> Made:
    """Constants in the dtype of z, made once for each dtype and device and kept in ``made``."""
    if _compiled():
        return make()
    key = z.dtype, z.device
    if key not in made:
        made[key] = make()
    return made[key]


def _compiled() -> bool:
    """Whether a compiler reads this: a compiled graph must not keep its tensors in a dictionary."""
    return torch.compiler.is_dynamo_compiling()
