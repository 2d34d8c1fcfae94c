"""The saddle point of the relaxed problem (P), by quadrature."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from casal.lab.problems.base import Array
from casal.lab.problems.propositions_base import Case, kullback, normalised


class Relaxed(NamedTuple):
    """The saddle point of (P) on a case.

    Attributes:
        rho: Coupling.
        mu: lambda / rho.
        x: (N,) masses of q^x on the points of the case.
        z: (N, d) where each point sends its z = P(x + mu).
        primal: D(q^x | p) + rho/2 E|x - z|^2.
        dual: The dual function at mu.
        divergence: D(q^x | p).
        transport: W2^2(q^x, q^z) = E|x - z|^2, because x -> P(x + mu) is the gradient of a convex function.
    """

    rho: float
    mu: Array
    x: Array
    z: Array
    primal: float
    dual: float
    divergence: float
    transport: float


def tilted(case: Case, rho: float, mu: Array) -> tuple[Array, Array, float]:
    """q(x) ~ p(x) exp(-rho/2 d^2(x + mu)), z = P(x + mu), and the dual function at mu."""
    moved = case.points + mu
    z = case.project(moved)
    with np.errstate(divide="ignore"):
        log_density = np.log(case.mass) - 0.5 * rho * np.square(moved - z).sum(1)
    top = log_density.max()
    evidence = top + np.log(np.exp(log_density - top).sum())
    return normalised(log_density), z, float(-evidence - 0.5 * rho * (mu @ mu))


def relaxed(case: Case, rho: float, *, dual: bool = True) -> Relaxed:
    """Maximise the dual function by Newton's method; its gradient is rho E[x - P(x + mu)]. Without the dual, mu = 0."""
    mu = np.zeros(case.points.shape[1])

    def gap(at: Array) -> Array:
        q, z, _ = tilted(case, rho, at)
        return np.asarray((q[:, None] * (case.points - z)).sum(0))

    for _ in range(60 if dual else 0):
        residual = gap(mu)
        if np.abs(residual).max() < 1e-12:
            break
        small = 1e-6
        slope = np.stack([(gap(mu + small * e) - gap(mu - small * e)) / (2 * small) for e in np.eye(len(mu))], axis=1)
        step, value = np.linalg.solve(slope, residual), tilted(case, rho, mu)[2]
        while tilted(case, rho, mu - step)[2] < value - 1e-12 and np.abs(step).max() > 1e-14:
            step = step / 2
        mu = mu - step
    q, z, bound = tilted(case, rho, mu)
    divergence = kullback(q, case.mass)
    transport = float((q * np.square(case.points - z).sum(1)).sum())
    return Relaxed(rho, mu, q, z, divergence + 0.5 * rho * transport, bound, divergence, transport)
