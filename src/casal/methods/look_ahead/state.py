"""The state of ``LookAhead``: particles on their way down the noise levels, and how they are cut and joined."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from casal.methods.look_ahead.features import Features
from casal.methods.look_ahead.look import Ahead, Looks
from casal.methods.problem import Problem


class AheadState(NamedTuple):
    """Particles on their way down the noise levels; every chain holds ``width`` of them (dim 1).

    Attributes:
        x: Noisy points (n, width, *latent).
        estimate: D(x).
        before: The estimate of the step before.
        slopes, values, shifts, linear, bent, largest, log_area, level, tilt, stiff: What was seen from x, see
            ``Looks``.
        mean, covariance, rest, factor: What all chains together make of it: mean of f, covariance that goes with the
            slopes and the rest of it, and the factor of the slopes of every row; see ``Ahead``.
        log_psi: (n, width).
        paid: log b - log proposal of the last step, or of a whole path.
        logs: Logarithms of the weights.
        lines: Starting particle each particle descends from.
        path: Points of the path that a move compares with, (n, levels, *latent); none between moves.
        log_weight: Logarithm of the weight of a chain, (n,).
        ancestor: Starting particle of the chain, (n,).
        wide: Scale of the data in a leading direction; zero before it is known.
        grain: Scale of a coordinate.
        inner: Smallest level below the middle one at which J is below one half on average; zero if there is none.
        even: One if the soft term is quadratic, else zero.
    """

    x: Tensor
    estimate: Tensor
    before: Tensor
    slopes: Tensor
    values: Tensor
    shifts: Tensor
    linear: Tensor
    bent: Tensor
    largest: Tensor
    log_area: Tensor
    level: Tensor
    tilt: Tensor
    stiff: Tensor
    mean: Tensor
    covariance: Tensor
    rest: Tensor
    factor: Tensor
    log_psi: Tensor
    paid: Tensor
    logs: Tensor
    lines: Tensor
    path: Tensor
    log_weight: Tensor
    ancestor: Tensor
    wide: Tensor
    grain: Tensor
    inner: Tensor
    even: Tensor

    @property
    def clean(self) -> Tensor:
        """Estimates of the clean samples, (n, *latent)."""
        return self.estimate[:, 0]


class Clean(NamedTuple):
    """Samples.

    Attributes:
        x: Clean points (n, *latent).
        log_weight: Equal.
        ancestor: Starting particle of every sample, (n,).
    """

    x: Tensor
    log_weight: Tensor
    ancestor: Tensor

    @property
    def clean(self) -> Tensor:
        """The samples."""
        return self.x


SEEN = Looks._fields
PARTICLES = AheadState._fields[: AheadState._fields.index("path")]
"""Fields that every particle has; the others belong to a chain, or to all."""


def trusted(state: AheadState, s: float) -> float:
    """tr J / d, the share of noise that the chains keep: E|x - D|^2 = s^2 (d - tr J), over all particles."""
    away = (state.x - state.estimate).to(torch.float64)
    return 1.0 - float(away.square().mean()) / s**2


def widened(problem: Problem, width: int) -> Problem:
    """The problem of the particles of all chains: each has the set and the condition of its chain."""
    if width == 1 or problem.chains is None:
        return problem
    return problem.take(torch.arange(problem.chains).repeat_interleave(width))


def flat(value: Tensor) -> Tensor:
    """(n, width, ...) -> (n width, ...)."""
    return value.flatten(0, 1)


def fold(value: Tensor, width: int) -> Tensor:
    """(n width, ...) -> (n, width, ...)."""
    return value.unflatten(0, (-1, width))


def ahead_of(state: AheadState, features: Features) -> Ahead:
    """What the particles know of f."""
    factor = flat(state.factor)
    return Ahead(
        factor[..., None] * flat(state.slopes),
        flat(state.mean),
        flat(state.covariance),
        flat(state.rest),
        factor,
        flat(state.tilt),
        flat(state.stiff),
    )


def columns(state: AheadState, some: slice) -> AheadState:
    """Some particles of every chain."""
    return state._replace(**{name: getattr(state, name)[:, some] for name in PARTICLES})


def with_pair(kept: Tensor, both: Tensor) -> Tensor:
    """The particle that stays, and the same value for both paths of a move."""
    return torch.cat([kept[:, :1], both[:, None], both[:, None]], 1)
