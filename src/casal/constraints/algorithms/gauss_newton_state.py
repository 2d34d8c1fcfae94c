"""What a Gauss-Newton descent carries from step to step, and how a point is looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from casal.constraints.base import Projection, norm

EPSILON = torch.finfo(torch.float64).eps
CRAWL = 100
"""Steps without progress after which a chain gives up coming nearer, and only goes to the set if it can."""
VANISHING = 1e-100
"""A gradient shorter than this, relative to c / (1 + |z|), counts as zero."""
NUDGE = 1e-3
"""Share of the first step that goes aside, so that symmetry cannot hold a chain at a maximum of the distance."""


class System(Protocol):
    """Rows c(z), their derivatives, and their violation; points are (n, d)."""

    def one_sided(self, like: Tensor) -> Tensor:
        """(r,) bool: which of the rows of ``like`` (n, r) ask for c <= 0 instead of c = 0."""

    def values(self, z: Tensor) -> Tensor:
        """c(z), (n, r)."""

    def linearise(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """c(z), (n, r), and its Jacobian, (n, r, d)."""

    def curvature(self, z: Tensor, weights: Tensor) -> Callable[[Tensor], Tensor]:
        """v -> (sum_j weights_j Hess c_j) v at z, weights (n, r)."""

    def violation(self, values: Tensor, lengths: Tensor, z: Tensor) -> Tensor:
        """(n,), from c(z) and the lengths (n, r) of its gradients."""


class Point(NamedTuple):
    """A point and its linearisation; ``gap`` is c in units of the lengths of its gradients."""

    z: Tensor
    gap: Tensor
    unit: Tensor
    lengths: Tensor
    violation: Tensor


class Tangent(NamedTuple):
    """What the linearised problem says at a point.

    Attributes:
        active: (n, r) bool, rows that take part.
        factor: L with L L^T = U U^T over the active rows.
        basis: L^-1 U: an orthonormal basis of the normal space, (n, r, d), zero for other rows.
        normal: n, (n, d), no longer than 0.9 radii.
        forces: (n, r), -normal = U^T forces.
        pull: (z - y) / scale, (n, d).
        slide: Its tangential part, (n, d).
        angle: |slide| / |pull|, (n,), or the relative slack of an active row if that is larger.
        error: (n,), the larger of the angle and the relative size of the gap.
    """

    active: Tensor
    factor: Tensor
    basis: Tensor
    normal: Tensor
    forces: Tensor
    pull: Tensor
    slide: Tensor
    angle: Tensor
    error: Tensor


class Chains(NamedTuple):
    """The chains at work.

    Attributes:
        chain: Number in the batch.
        y: Anchor.
        scale: 1 + |y|, the unit in which distances enter the merit.
        radius: Of the trust region.
        weight: mu, of the gap in the merit.
        best: Least error so far.
        moved: Whether the last step went anywhere.
        stale: Steps at a feasible point without a lesser error or a move.
        slow: Steps without a lesser error, wherever.
    """

    chain: Tensor
    y: Tensor
    scale: Tensor
    radius: Tensor
    weight: Tensor
    best: Tensor
    moved: Tensor
    stale: Tensor
    slow: Tensor


class Step(NamedTuple):
    """A step, H applied to it, and the multipliers in H."""

    step: Tensor
    bent: Tensor
    multipliers: Tensor


Parts = TypeVar("Parts", Point, Tangent, Chains, Projection)


def take(parts: Parts, index: Tensor) -> Parts:
    """The chains ``index`` of a tuple of tensors."""
    return type(parts)(*(part[index] for part in parts))


def choose(mask: Tensor, one: Parts, other: Parts) -> Parts:
    """``one`` where the mask of chains is true, else ``other``, part by part."""
    return type(one)(
        *(torch.where(mask.reshape(-1, *([1] * (a.ndim - 1))), a, b) for a, b in zip(one, other, strict=True))
    )


def look(system: System, z: Tensor) -> Point:
    """Evaluate; a point where anything is not finite gets an infinite violation and harmless numbers."""
    values, rows = system.linearise(z)
    lengths = norm(rows.reshape(-1, rows.shape[2])).reshape(values.shape)
    finite = torch.isfinite(values).all(1) & torch.isfinite(lengths).all(1)
    values = torch.where(finite[:, None], values, torch.ones_like(values))
    lengths = torch.where(finite[:, None], lengths, torch.zeros_like(lengths))
    lengths = torch.where(lengths * (1.0 + norm(z))[:, None] > VANISHING * values.abs(), lengths, 0.0)
    safe = torch.where(lengths > 0, lengths, 1.0)
    unit = torch.where((finite[:, None] & (lengths > 0))[:, :, None], rows, 0.0) / safe[:, :, None]
    violation = system.violation(values, lengths, z)
    violation = torch.where(finite & torch.isfinite(violation), violation, torch.full_like(violation, torch.inf))
    return Point(z, values / safe, unit, lengths, violation)


def aside_direction(like: Tensor) -> Tensor:
    """A fixed direction (d,) without symmetry."""
    number = torch.arange(1, like.shape[1] + 1, dtype=like.dtype, device=like.device)
    direction = torch.cos(2.3999632297286533 * number.square()) + 0.1
    return direction / torch.linalg.vector_norm(direction)


def open_part(gap: Tensor, one_sided: Tensor) -> Tensor:
    """The part of a gap that has to be closed."""
    return torch.where(one_sided, gap.clamp_min(0.0), gap)
