"""A Gaussian and a line: every variant is a linear recursion, so its distribution is known without sampling.

f is the potential of N((1, -1), [[2, 0.6], [0.6, 0.5]]), C the line x1 + x2 = 1. In coordinates normal (n) and
tangential (t) to the line the state is (x_n, x_t, z_t, lambda_n, lambda_t).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from casal_lab.experiment import Array

ROTATION = np.array([[1.0, 1.0], [1.0, -1.0]]) / np.sqrt(2.0)
"""Rows: the normal and the tangent of the line."""
MEAN = ROTATION @ np.array([1.0, -1.0])
PRECISION = ROTATION @ np.linalg.inv(np.array([[2.0, 0.6], [0.6, 0.5]])) @ ROTATION.T
LEVEL = 1.0 / np.sqrt(2.0)
"""Normal coordinate of the line."""
ALPHA, BETA = (float(v) for v in np.linalg.eigvalsh(PRECISION))

TANGENT = float(MEAN[1] - PRECISION[1, 0] / PRECISION[1, 1] * (LEVEL - MEAN[0]))
CONDITIONAL = np.array([LEVEL, TANGENT])
"""Mean of p_C."""
VARIANCE = float(1.0 / PRECISION[1, 1])
"""Variance of p_C along the line; that of x1 is half of it."""


class Variant(NamedTuple):
    """How a variant moves."""

    full: bool  # z = P(x + mu), else the damped step of the print
    implicit: bool  # whether the coupling of x is implicit
    dual: Callable[[Array, float], Array]  # step of mu from (tau, rho)
    common: bool = False  # one multiplier for infinitely many chains, driven by their mean; else one per chain


VARIANTS = {
    "Algorithm 1": Variant(False, False, lambda tau, rho: tau / rho),
    "Algorithm 2": Variant(False, False, lambda tau, rho: tau),
    "Algorithm 1, common dual": Variant(False, False, lambda tau, rho: tau / rho, common=True),
    "released code": Variant(True, False, lambda tau, rho: np.full_like(tau, 0.01)),
    "CASAL": Variant(True, True, lambda tau, rho: tau),
    "CASAL, common dual": Variant(True, True, lambda tau, rho: tau, common=True),
}
"""The published variants, the default of the library, and two in which the multiplier is a number, as in the theory."""

Recursion = tuple[Array, Array, Array]


def recursion(variant: Variant, tau: Array, rho: float) -> Recursion:
    """(F, G, c) of state' = F state + G noise + c, one for each step size: (T, 5, 5), (T, 5, 2), (T, 5)."""
    k, eta = tau * rho, variant.dual(tau, rho)
    F, G, c = np.zeros((len(tau), 5, 5)), np.zeros((len(tau), 5, 2)), np.zeros((len(tau), 5))
    free, shake = np.eye(2) - tau[:, None, None] * PRECISION, np.sqrt(2 * tau)
    drift = tau[:, None] * (PRECISION @ MEAN)
    pull = 1 + k if variant.implicit else np.ones_like(k)
    F[:, 0, :2] = free[:, 0] / pull[:, None]
    F[:, 1, :2] = free[:, 1]
    G[:, 0, 0], G[:, 1, 1] = shake / pull, shake
    c[:, 0], c[:, 1] = (drift[:, 0] + k * LEVEL) / pull, drift[:, 1]
    F[:, 0, 3] = -tau / pull
    if not variant.implicit:
        F[:, 0, 0] -= k
        F[:, 1, 1], F[:, 1, 2], F[:, 1, 4] = F[:, 1, 1] - k, k, -tau
    damping = np.ones_like(k) if variant.full else k
    F[:, 2] = damping[:, None] * F[:, 1]
    F[:, 2, 2] += 1 - damping
    F[:, 2, 4] += damping / rho
    G[:, 2], c[:, 2] = damping[:, None] * G[:, 1], damping * c[:, 1]
    step = (rho * eta)[:, None]
    F[:, 3], G[:, 3], c[:, 3] = step * F[:, 0], step * G[:, 0], step[:, 0] * (c[:, 0] - LEVEL)
    F[:, 4], G[:, 4], c[:, 4] = step * (F[:, 1] - F[:, 2]), step * (G[:, 1] - G[:, 2]), step[:, 0] * (c[:, 1] - c[:, 2])
    F[:, 3, 3] += 1
    F[:, 4, 4] += 1
    if variant.full:  # z_t = x_t + mu_t and x_t does not feel mu_t: the tangential multiplier stays at zero
        F[:, 4], F[:, :, 4], G[:, 4], c[:, 4] = 0.0, 0.0, 0.0, 0.0
        F[:, 1, 1], F[:, 1, 2] = free[:, 1, 1], 0.0
        F[:, 2] = F[:, 1]
    return F, G, c


def spread(variant: Variant, F: Array, G: Array) -> tuple[Array, Array]:
    """The part of (F, G) that moves the covariance: a common multiplier has none."""
    if not variant.common:
        return F, G
    F, G = F.copy(), G.copy()
    F[..., 3:], F[..., 3:, :], G[..., 3:, :] = 0.0, 0.0, 0.0
    return F, G


def stationary(variant: Variant, tau: float, rho: float) -> tuple[Array, Array]:
    """Mean and covariance of the state in the long run."""
    F, G, c = (part[0] for part in recursion(variant, np.array([tau]), rho))
    mean = np.linalg.solve(np.eye(5) - F, c)
    power, noise = spread(variant, F, G)
    total = noise @ noise.T
    for _ in range(60):  # sum of F^k G G^T F^kT by doubling
        total, power = total + power @ total @ power.T, power @ power
    return mean, total


def optimum(rho: float) -> tuple[Array, Array]:
    """Mean and covariance of x under q*, the solution of (P)."""
    return CONDITIONAL, np.linalg.inv(PRECISION + rho * np.diag([1.0, 0.0]))


def divergence(mean: Array, covariance: Array, other_mean: Array, other: Array) -> Array:
    """D(N(mean, covariance) | N(other_mean, other)), batched over leading dimensions."""
    inverse = np.linalg.inv(other)
    offset = mean - other_mean
    trace = np.trace(inverse @ covariance, axis1=-2, axis2=-1)
    square = np.einsum("...i,ij,...j->...", offset, inverse, offset)
    logs = np.linalg.slogdet(other)[1] - np.linalg.slogdet(covariance)[1]
    return np.asarray(0.5 * (trace + square - offset.shape[-1] + logs))


def without_dual(rho: float) -> float:
    """Mean of z1 if mu = 0: z = P(x) with x ~ p exp(-rho/2 d^2)."""
    weight = rho * np.diag([1.0, 0.0])
    x = np.linalg.solve(PRECISION + weight, PRECISION @ MEAN + weight @ CONDITIONAL)
    return first(float(x[1]))


def first(tangential: float) -> float:
    """The coordinate x1 of a point on the line."""
    return float((ROTATION.T @ np.array([LEVEL, tangential]))[0])
