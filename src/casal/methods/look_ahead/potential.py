"""log psi: the probability that a Gaussian f meets the equations and the inequalities.

With mean r and covariance S of f, its equations e and its inequalities i:

    log psi = log N(0; r_e, S_ee) + sum_i log(Phi(t_high) - Phi(t_low)),
    t = (bound - c_i) / sqrt(v_i),    c = r_i - S_ie S_ee^-1 r_e,    v = diag(S_ii - S_ie S_ee^-1 S_ei)

without the constants. A soft term of mean m and covariance S given the equations, exp(tilt.f - f.P f / 2) with P its
stiffness, adds

    tilt.m - m.P m / 2 + b.S (I + P S)^-1 b / 2 - log det(I + P S) / 2,    b = tilt - P m.

Inequalities and soft term count as independent given the equations. What is left out costs effective size, not the
distribution: the weights use the same psi at both ends of a step.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from casal.devices import cholesky
from casal.methods.look_ahead.features import Features

ROOT = math.sqrt(2.0 * math.pi)

NEAR_ONE = 1.0 - 1e-12
"""Largest ratio of two tail probabilities whose difference is taken."""


class Potential(NamedTuple):
    """log psi at a mean, to second order.

    Attributes:
        value: (n,).
        slope: Derivative in the mean, (n, m).
        curvature: Minus the second derivative, (n, m, m), positive semidefinite.
    """

    value: Tensor
    slope: Tensor
    curvature: Tensor


def potential(mean: Tensor, covariance: Tensor, features: Features, tilt: Tensor, stiff: Tensor) -> Potential:
    """log psi and its derivatives in the mean (n, m), the level of the soft term left out.

    Args:
        mean: Of f.
        covariance: Of f, (n, m, m).
        features: f.
        tilt: Of the soft term, whose rows come last, (n, r).
        stiff: P, (n, r, r).
    """
    e, m, sides = features.equal, mean.shape[1], features.count - features.equal
    value, slope, curvature = mean.new_zeros(len(mean)), torch.zeros_like(mean), torch.zeros_like(covariance)
    root = cholesky(covariance[:, :e, :e])
    if e:
        white = torch.linalg.solve_triangular(root, mean[:, :e, None], upper=False)[..., 0]
        value = -white.square().sum(1) / 2 - root.diagonal(dim1=1, dim2=2).log().sum(1)
        inverse = torch.cholesky_inverse(root)
        slope[:, :e] = -(inverse @ mean[:, :e, None])[..., 0]
        curvature[:, :e, :e] = inverse
    if e < m:
        gain = torch.cholesky_solve(covariance[:, :e, e:], root).mT if e else mean.new_zeros(len(mean), m, 0)
        centre = mean[:, e:] - (gain @ mean[:, :e, None])[..., 0]
        left = covariance[:, e:, e:] - gain @ covariance[:, :e, e:]
        turn = torch.cat([-gain, torch.eye(m - e, dtype=mean.dtype, device=mean.device).expand(len(mean), -1, -1)], 2)
        for part, rows in (
            (_bounds(centre[:, :sides], left[:, :sides, :sides], features), turn[:, :sides]),
            (_soft(centre[:, sides:], left[:, sides:, sides:], tilt, stiff), turn[:, sides:]),
        ):
            value = value + part.value
            slope = slope + (rows.mT @ part.slope[..., None])[..., 0]
            curvature = curvature + rows.mT @ part.curvature @ rows
    return Potential(value, slope, curvature)


def _bounds(centre: Tensor, covariance: Tensor, features: Features) -> Potential:
    """log of the probability that every row lies within its bounds, the rows independent."""
    variance = covariance.diagonal(dim1=1, dim2=2)
    spread = variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()
    part = log_between((features.low - centre) / spread, (features.high - centre) / spread)
    return Potential(part.value.sum(1), -part.slope / spread, torch.diag_embed(part.curvature / spread.square()))


def _soft(mean: Tensor, covariance: Tensor, tilt: Tensor, stiff: Tensor) -> Potential:
    """log E exp(tilt.f - f.P f / 2)."""
    eye = torch.eye(mean.shape[1], dtype=mean.dtype, device=mean.device)
    whole = eye + stiff @ covariance
    slope = tilt - (stiff @ mean[..., None])[..., 0]
    half = torch.linalg.solve(whole, slope[..., None])[..., 0]  # (I + P S)^-1 b
    value = (tilt * mean).sum(1) - (mean * (stiff @ mean[..., None])[..., 0]).sum(1) / 2
    value = value + (slope * (covariance @ half[..., None])[..., 0]).sum(1) / 2 - torch.linalg.slogdet(whole)[1] / 2
    curvature = torch.linalg.solve(whole, stiff)
    return Potential(value, half, (curvature + curvature.mT) / 2)


class Between(NamedTuple):
    """log(Phi(b) - Phi(a)), (phi(b) - phi(a)) / Z = -d/dt, and -d^2/dt^2 when both bounds move by -t."""

    value: Tensor
    slope: Tensor
    curvature: Tensor


def log_between(a: Tensor, b: Tensor) -> Between:
    """The probability of [a, b] under a standard normal, in logarithms, reflected to the side of the lower tail."""
    flip = a + b > 0
    low, high = torch.where(flip, -b, a), torch.where(flip, -a, b)
    log_high, log_low = torch.special.log_ndtr(high), torch.special.log_ndtr(low)
    value = log_high + torch.log1p(-torch.exp(log_low - log_high).clamp_max(NEAR_ONE))

    def density(t: Tensor) -> tuple[Tensor, Tensor]:
        """phi(t) / Z and t phi(t) / Z; zero at infinity."""
        there = torch.isfinite(t)
        safe = torch.where(there, t, 0.0)
        phi = torch.where(there, torch.exp(-safe.square() / 2 - value) / ROOT, 0.0)
        return phi, safe * phi

    (at_high, t_high), (at_low, t_low) = density(high), density(low)
    slope = at_high - at_low
    curvature = (slope.square() + t_high - t_low).clamp(0.0, 1.0)
    return Between(value, torch.where(flip, -slope, slope), curvature)
