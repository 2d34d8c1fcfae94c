"""What a check is; densities and sets as points with masses, on which every integral is a sum; the saddle of (P)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from casal_lab.experiment import Array, Claim, Origin, ResultTable
from casal_lab.problems import double_well


@dataclass(frozen=True)
class Check:
    """One proposition or lemma."""

    statement: str  # what the paper says, with its label
    computed: str  # what was computed and found; where the print departs, in which sense
    verdict: str  # HOLDS, PARTLY, FAILS or NOT_APPLICABLE
    tables: Sequence[ResultTable] = ()  # the figures
    data: Mapping[str, Any] = field(default_factory=dict)  # arrays of the picture
    source: str = ""  # number and label in the paper
    number: str = ""  # the number alone: propositions are counted by section, lemmas through
    flips: str = ""  # what would change the verdict
    more: Sequence[Claim] = ()  # targets of ours: what would be right
    name: str = ""  # as in ``casal run propositions --method NAME``
    plain: str = ""  # what was found, in one sentence

    @property
    def claims(self) -> list[Claim]:
        """What the paper says, then what we ask for beside it."""
        first = Claim(self.name, self.statement, self.computed, self.verdict, self.source, self.flips, plain=self.plain)
        return [first, *self.more]


SMALL = "the paper gives no example; one and two dimensions make every integral a sum"
RADIUS = 1.5
ANGLES = np.linspace(-np.pi, np.pi, 1081)[:-1]
"""Directions of the quadrature on the plane around a circle, and of the surface distribution on it."""


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
    """D(q | p) of two distributions on the same points."""
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


class Joint(NamedTuple):
    """A distribution of (x, z): masses of x on the points of a case, and for each x a few z with their masses."""

    x: Array  # (N,)
    z: Array  # (K, N, d)
    chance: Array  # (K, N), sums to one over K

    def expect(self, values: Array) -> float:
        """The expectation of a function of (x, z), given as (K, N)."""
        return float((self.x * (self.chance * values).sum(0)).sum())


def joints(case: Case, count: int) -> list[Joint]:
    """Distributions neither optimal nor feasible: x ~ p tilted, z in C one of two projections of x moved, by chance.

    Their means of x and z differ; a fixed seed draws the tilts, the moves and the chances.
    """
    rng = np.random.default_rng(1)
    made = []
    with np.errstate(divide="ignore"):
        log_mass = np.log(case.mass)
    for _ in range(count):
        size = case.points.shape[1]
        tilt = np.sin(case.points @ rng.normal(size=size)) * rng.uniform(0.0, 2.0)
        places = [case.project(case.points * rng.uniform(0.5, 1.5) + rng.normal(size=size)) for _ in range(2)]
        first = 1 / (1 + np.exp(-case.points @ rng.normal(size=size)))
        made.append(Joint(normalised(log_mass + tilt), np.stack(places), np.stack([first, 1 - first])))
    return made


def lagrangian(case: Case, q: Joint, lam: Array, rho: float) -> float:
    """L(q, lambda) = D(q^x | p) + lambda E[x - z] + rho/2 E|x - z|^2, for z in C."""
    apart = case.points - q.z
    return kullback(q.x, case.mass) + q.expect(apart @ lam) + 0.5 * rho * q.expect(np.square(apart).sum(-1))


ORIGINS = (
    Origin("densities and sets", "double well, three bumps, Gaussians; interval, disc, circle", "ours", SMALL),
    Origin(
        "Gaussian and line",
        "N((1, -1), [[2, 0.6], [0.6, 0.5]]), x1 + x2 = 1",
        "ours",
        "correlated, with an exact answer",
    ),
    Origin(
        "coupling of checks of the algorithm", "rho = 2", "ours", "the lower end of the paper's field schedule (C.2)"
    ),
    Origin("couplings of checks of (P)", "rho from 0.03 to 1e4", "ours", "both limits show"),
    Origin("step sizes", "tau_0 / sqrt(t + 1)", "paper", "proposition 4.4, which has tau_0 = 1"),
    Origin("largest step size", "tau_0 = 1 / (4 (beta + 4 rho))", "paper", "condition of proposition D.2"),
    Origin("number of steps", "200,000", "ours", "the slope of the rate has settled"),
    Origin(
        "curvature, step size of the field problem", "443, 1e-3", "script", "example_field.py, for the remark on D.2"
    ),
    Origin("largest rho of the field problem", "20", "paper", "C.2, for the same remark"),
    Origin(
        "largest rho of the field script", "99", "script", "example_field.py (330c997, 904d4d2), for the same remark"
    ),
)
"""Where the constants of this experiment come from."""
