"""A Gaussian prior, whose look ahead is known: x0 given x = x0 + s noise is N(D, C) with C = s^2 P (P + s^2)^-1."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

import casal
from casal.methods import Problem
from casal.methods.look_ahead.features import Features, features_of
from casal.methods.look_ahead.look import Ahead, Looks, look, moments, probes
from casal.methods.look_ahead.potential import potential

DIRECTIONS = 4


def stream(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=stream(seed), dtype=torch.float64)


@dataclasses.dataclass(frozen=True)
class Prior:
    """N(mean, covariance)."""

    mean: Tensor
    covariance: Tensor

    @property
    def size(self) -> int:
        return len(self.mean)

    def gain(self, s: float) -> Tensor:
        """J = P (P + s^2)^-1, (d, d)."""
        return torch.linalg.solve(self.covariance + s**2 * torch.eye(self.size, dtype=torch.float64), self.covariance)

    def spread(self, s: float) -> Tensor:
        """C, (d, d)."""
        return s**2 * self.gain(s)

    def denoise(self, x: Tensor, s: Tensor) -> Tensor:
        """D."""
        centred = x.flatten(1) - self.mean.to(x)
        return (self.mean.to(x) + centred @ self.gain(float(s)).to(x)).reshape(x.shape)

    def target(self, term: Callable[[Tensor], Tensor] | None = None, steps: int = 20) -> casal.Target:
        """As a diffusion."""
        levels = casal.karras_sigmas(steps, 0.02, 20.0)
        found = casal.edm(self.denoise, levels, shape=self.size, churn=1.0, dtype=torch.float64)
        return dataclasses.replace(found, log_weight=term)


def diagonal(d: int) -> Prior:
    """Independent coordinates of variances 0.2 to 2, with a mean far from zero: traces by signs are exact."""
    mean = 2.0 + normal(1, d)
    return Prior(mean, torch.diag(torch.linspace(0.2, 2.0, d, dtype=torch.float64)))


def correlated(d: int) -> Prior:
    root = normal(2, d, d) / d**0.5
    return Prior(normal(3, d), root @ root.T + 0.1 * torch.eye(d, dtype=torch.float64))


def round_one(d: int) -> Prior:
    """The same variance in all directions."""
    return Prior(normal(4, d), 0.7 * torch.eye(d, dtype=torch.float64))


def problem_for(
    prior: Prior,
    constraint: casal.Constraint,
    decoder: casal.Decoder | None = None,
    term: Callable[[Tensor], Tensor] | None = None,
) -> Problem:
    like = torch.zeros((0, prior.size), dtype=torch.float64)
    return Problem(prior.target(term), constraint, (decoder or casal.Identity()).to(like), like)


class Seen(NamedTuple):
    """A look from some points."""

    problem: Problem
    features: Features
    looks: Looks
    ahead: Ahead


def looked(problem: Problem, x: Tensor, s: float, *, count: int = 2, directions: int = DIRECTIONS) -> Seen:
    """The look from x, and what all chains make of it."""
    features = features_of(problem, directions)
    seen = look(problem, features, x, s, probes(count, problem))
    found = moments(seen, features)
    slopes = found.factor[..., None] * seen.slopes
    ahead = Ahead(slopes, found.mean, found.linear, found.bent, found.factor, seen.tilt, seen.stiff)
    return Seen(problem, features, seen, ahead)


def log_psi(seen: Seen) -> Tensor:
    """log psi, (n,), its constants left out."""
    ahead = seen.ahead
    value = potential(ahead.mean, ahead.linear + ahead.bent, seen.features, ahead.tilt, ahead.stiff).value
    return value + seen.looks.level + seen.looks.log_area


def close(found: Tensor, wanted: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(found, wanted.expand_as(found), rtol=tolerance, atol=tolerance)
