"""What a check is; densities and sets as points with masses, on which every integral is a sum; the saddle of (P)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from casal.lab.experiment import Array, ResultTable
from casal.lab.laws import double_well


@dataclass(frozen=True)
class Check:
    """One proposition, numbered."""

    statement: str  # what the paper says, with its label
    computed: str  # what was computed and found; where the print departs, in which sense
    verdict: str  # HOLDS, PARTLY or FAILS
    tables: Sequence[ResultTable] = ()  # the figures
    data: Mapping[str, Any] = field(default_factory=dict)  # arrays of the picture
    number: int = 0  # place in the list of checks
    name: str = ""  # as in ``casal run propositions --method NAME``


RADIUS = 1.5
ANGLES = np.linspace(-np.pi, np.pi, 1081)[:-1]
"""Directions of the quadrature on the plane around a circle, and of the surface law on it."""


class Case(NamedTuple):
    """A density and a set."""

    name: str  # for tables and pictures
    points: Array  # (N, d) quadrature points
    mass: Array  # (N,) mass of p at each point, sums to one
    project: Callable[[Array], Array]  # P, on points (N, d)
    thin: bool = False  # whether C has no mass under p

    @property
    def inside(self) -> Array:
        """(N,) one where the point is in C, else zero."""
        return (np.linalg.norm(self.points - self.project(self.points), axis=1) < 1e-12).astype(np.float64)

    @property
    def divergence(self) -> float:
        """D(p_C | p) = -log P(C); infinite on a thin set."""
        return float("inf") if self.thin else float(-np.log((self.mass * self.inside).sum()))


def normalised(log_density: Array) -> Array:
    """Masses that sum to one."""
    mass = np.exp(log_density - log_density.max())
    return np.asarray(mass / mass.sum())


def kullback(q: Array, p: Array) -> float:
    """D(q | p) of two laws on the same points."""
    kept = q > 0
    return float((q[kept] * np.log(q[kept] / p[kept])).sum())


def _onto_disc(x: Array) -> Array:
    """Projection onto the disc of radius 0.7 around (-0.5, 0.5)."""
    centre, radius = np.array([-0.5, 0.5]), 0.7
    offset = x - centre
    length = np.linalg.norm(offset, axis=1, keepdims=True)
    return np.asarray(np.where(length > radius, centre + offset * (radius / np.maximum(length, radius)), x))


def _onto_circle(x: Array) -> Array:
    """Projection onto the circle of radius RADIUS around the origin, which itself goes to (RADIUS, 0)."""
    angle = np.arctan2(x[:, 1], x[:, 0])
    return RADIUS * np.stack([np.cos(angle), np.sin(angle)], axis=1)


def well_on_interval(points: int = 4001) -> Case:
    """The double well of the field problem, and an interval between its wells."""
    x = np.linspace(-5.0, 3.0, points)
    mass = normalised(-double_well.potential(x))
    return Case("double well, interval", x[:, None], mass, lambda z: np.clip(z, -0.6, 0.4))


def well_in_disc() -> Case:
    """The double well times a Gaussian, and a disc off both axes of symmetry."""
    x, y = np.meshgrid(np.linspace(-5.0, 3.0, 401), np.linspace(-2.5, 2.5, 251), indexing="ij")
    points = np.stack([x.ravel(), y.ravel()], axis=1)
    energy = double_well.potential(points[:, 0]) + 0.5 * (points[:, 1] / 0.6) ** 2
    return Case("double well x Gaussian, disc", points, normalised(-energy), _onto_disc)


def three_bumps() -> Case:
    """Almost all of the mass far from C on both sides, a little of it inside: C is rare but not unlikely nearby."""
    x = np.linspace(-6.0, 6.0, 4001)
    share = 1e-3

    def bump(centre: float) -> Array:
        return np.asarray(np.exp(-0.5 * ((x - centre) / 0.3) ** 2))

    density = share * bump(0.0) + 0.5 * (1 - share) * (bump(-4.0) + bump(4.0))
    return Case("three bumps, interval", x[:, None], density / density.sum(), lambda z: np.clip(z, -1.0, 1.0))


def gaussian_on_circle(radial: int = 151, angle: Array = ANGLES) -> Case:
    """A Gaussian off the centre of a circle: a thin, curved set. The points are dense near it."""
    offset = np.sinh(np.linspace(-9.0, 9.0, radial)) / np.sinh(9.0)
    r = RADIUS + offset * np.where(offset > 0, 4.0, RADIUS)
    width = np.gradient(r)
    rr, aa = np.meshgrid(r, angle, indexing="ij")
    points = np.stack([(rr * np.cos(aa)).ravel(), (rr * np.sin(aa)).ravel()], axis=1)
    log_area = np.log(np.maximum((rr * width[:, None]).ravel(), 1e-300))
    return Case("Gaussian, circle", points, normalised(log_area - off_centre(points)), _onto_circle, thin=True)


def off_centre(points: Array) -> Array:
    """Potential of the Gaussian of ``gaussian_on_circle``."""
    return np.asarray(0.5 * (points[:, 0] - 0.6) ** 2 / 0.8 + 0.5 * (points[:, 1] - 0.3) ** 2 / 0.2)


class Relaxed(NamedTuple):
    """The saddle point of (P) on a case."""

    mu: Array  # lambda / rho
    x: Array  # (N,) masses of q^x on the points of the case
    z: Array  # (N, d) where each point sends its z = P(x + mu)
    primal: float  # D(q^x | p) + rho/2 E|x - z|^2
    dual: float  # the dual function at mu
    divergence: float  # D(q^x | p)
    transport: float  # W2^2(q^x, q^z) = E|x - z|^2, because x -> P(x + mu) is the gradient of a convex function


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
    return Relaxed(mu, q, z, divergence + 0.5 * rho * transport, bound, divergence, transport)
