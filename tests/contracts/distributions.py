"""Distributions on sets that are known exactly, and how far the samples of a method are from them.

A row of ``ROWS`` is a model, a set, a few statistics of a sample, and the methods that promise the distribution. The
exact value of a statistic is its mean over a reference: weighted points of the set, nodes of a quadrature (no error) or
draws (with their own standard error). On curved sets the reference measure is the surface measure, the limit of
p(x) exp(-rho/2 dist(x, C)^2) as rho grows; behind a decoder A it is that of the distribution of A x. Every row has a
second reference, found in another way, and ``test_distributions.py`` compares the two.

``scores(row, method)`` runs a method and gives value, exact value and standard error of every statistic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import torch
from scipy.special import ive
from torch import Tensor

import casal
from casal import Affine, Ball, Box, Constraint, HalfSpace, Implicit, MassEnergy, PerChain, Polytope, Simplex, Sphere

from ..models import (
    MODE_SCALES,
    MODE_WEIGHTS,
    MODES,
    RADIUS,
    SIGMA_Y,
    particle_potential,
    particle_start,
)

F64 = torch.float64
DRAWS = 400_000
"""Draws of a reference that is not a quadrature."""

Statistics = Mapping[str, Tensor]


# ---------------------------------------------------------------------------------------------------- rows and scores


class Reference(NamedTuple):
    """Points of a set and their weights, which sum to one.

    Attributes:
        points: (m, d).
        weights: (m,).
        quadrature: Whether the points are the nodes of a quadrature, so that there is no Monte Carlo error.
    """

    points: Tensor
    weights: Tensor
    quadrature: bool

    def exact(self, values: Tensor) -> Exact:
        """Mean of a statistic, its standard error, and the standard deviation of one sample."""
        v = values.to(F64)
        mean = (self.weights * v).sum()
        off = (v - mean).square()
        error = 0.0 if self.quadrature else float((self.weights.square() * off).sum().sqrt())
        return Exact(float(mean), error, float((self.weights * off).sum().sqrt()))


class Exact(NamedTuple):
    """Exact mean of a statistic, the standard error of that mean, and the standard deviation of one sample."""

    value: float
    error: float
    sd: float


class Score(NamedTuple):
    """Mean of a statistic over samples, its exact value, and the standard error of the difference."""

    value: float
    exact: float
    error: float

    @property
    def z(self) -> float:
        """The difference in standard errors."""
        return (self.value - self.exact) / self.error


@dataclass(frozen=True, eq=False)
class Distribution:
    """A distribution on a set, what is measured of it, and the right values.

    Attributes:
        constraint: Makes the set for n chains.
        statistics: Numbers of every sample (n, d) -> name: (n,); truth values for shares.
        reference: Makes the reference.
        second: Makes another one in another way, or gives the values of some statistics in closed form.
        edge: Distance of every sample to the edge of the set, relative to its size, (n,); None without an edge.
        margin: Distance that counts as near the edge.
    """

    constraint: Callable[[int], Constraint]
    statistics: Callable[[Tensor], Statistics]
    reference: Callable[[], Reference]
    second: Callable[[], Reference | Mapping[str, float]]
    edge: Callable[[Tensor], Tensor] | None = None
    margin: float = 0.05

    def values(self, z: Tensor) -> dict[str, Tensor]:
        """All statistics of samples (n, d); with an edge, the share near it is one of them."""
        close = {} if self.edge is None else {"near the edge": self.edge(z) < self.margin}
        return {**self.statistics(z), **close}


@dataclass(frozen=True, eq=False)
class Row:
    """A model of a distribution, and the methods that promise it.

    Attributes:
        name: In the table.
        distribution: What samples must follow.
        target: Makes the model.
        methods: By name; "auto" for ``method="auto"``.
        decoder: If the model lives in another space than the set.
        mixture: The model without the set, where it is given by a denoiser.
        n: Samples in the tests.
        wrong: A method whose distribution is wrong and must be found to be so.
    """

    name: str
    distribution: Distribution
    target: Callable[[], casal.Target]
    methods: Mapping[str, Any]
    decoder: casal.Decoder | None = None
    mixture: Mixture | None = None
    n: int = 1000
    wrong: Any = field(default_factory=casal.FinalProjection)


ATOM = 1e-9
"""A sample nearer to the edge than this, relative to the size of the set, has been put there."""


LARGEST_INFLATION = 6.0
"""Standard error of a run over that of independent draws: a run of fewer ancestors is judged as if it had this."""


@cache
def exact(distribution: Distribution) -> Mapping[str, Exact]:
    """The exact values of all statistics."""
    reference = distribution.reference()
    return {name: reference.exact(values) for name, values in distribution.values(reference.points).items()}


def scores(row: Row, method: Any, n: int = 4000, seed: int = 0) -> dict[str, Score]:
    """Run a method on a row and compare every statistic with its exact value.

    The standard error of a mean over samples that descend from common ancestors g is

        se^2 = sum over g of (sum over i in g of W_i (v_i - vbar))^2,

    at least that of independent draws of the exact distribution, and at most LARGEST_INFLATION times that, plus that of
    the reference. A set with an edge has the score "atoms" too: the share of samples on the edge, of which there must
    be none.

    Args:
        row: A row of the table.
        method: A method, "auto", or the name of a method of the row.
        n: Samples.
        seed: Of the run.

    Returns:
        By statistic: (value, exact, error), with ``.z`` in standard errors.
    """
    chosen = row.methods.get(method, method) if isinstance(method, str) else method
    law, constraint = row.distribution, row.distribution.constraint(n)
    found = casal.sample(row.target(), constraint, chosen, n, decoder=row.decoder, seed=seed, run=casal.Run(threads=1))
    z, weights, right = found.samples.to(F64), found.weights, exact(law)
    compared = {}
    for name, values in law.values(z).items():
        v, one = values.to(F64), right[name]
        mean = (weights * v).sum()
        family = torch.zeros(n, dtype=F64).index_add(0, found.ancestors, weights * (v - mean))
        least = max(one.sd**2, 1.0 / n) if values.dtype == torch.bool else one.sd**2
        spread = min(max(float(family.square().sum()), least / n), LARGEST_INFLATION**2 * least / n)
        error = math.sqrt(spread + one.error**2)
        compared[name] = Score(float(mean), one.value, error)
    if law.edge is not None:
        compared["atoms"] = Score(float((law.edge(z) < ATOM).to(F64).mean()), 0.0, ATOM)
    return compared


# ---------------------------------------------------------------------------------------------------- models


def numbers(*values: Any) -> Tensor:
    """A float64 tensor."""
    return torch.tensor(values, dtype=F64)


def stream(seed: int = 0) -> torch.Generator:
    """Random numbers of a reference."""
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(shape, generator=stream(seed), dtype=F64)


def wide(spread: float, size: int) -> Callable[[int, torch.Generator], Tensor]:
    """Starting points N(0, spread^2 I)."""
    return lambda n, generator: spread * torch.randn((n, size), generator=generator, dtype=F64)


class Mixture:
    """A mixture of Gaussians whose covariances have common axes: density, draws, denoiser and mode shares.

    Args:
        means: (K, d).
        sds: Standard deviations along the axes; broadcast to (K, d).
        weights: (K,); equal if left out.
        axes: Orthonormal columns (d, d); those of the coordinates if left out.
    """

    def __init__(self, means: Any, sds: Any, weights: Any = None, axes: Tensor | None = None) -> None:
        self.means = torch.as_tensor(means, dtype=F64)
        count, self.size = self.means.shape
        self.variances = torch.as_tensor(sds, dtype=F64).square().expand(count, self.size)
        self.weights = torch.full((count,), 1.0 / count, dtype=F64) if weights is None else torch.as_tensor(weights)
        self.axes = axes

    @classmethod
    def gaussian(cls, mean: Any, covariance: Any) -> Mixture:
        """N(mean, covariance)."""
        values, axes = torch.linalg.eigh(torch.as_tensor(covariance, dtype=F64))
        return cls(torch.as_tensor(mean, dtype=F64)[None], values.sqrt()[None], axes=axes)

    @property
    def covariance(self) -> Tensor:
        """Of the first component."""
        axes = torch.eye(self.size, dtype=F64) if self.axes is None else self.axes
        return (axes * self.variances[0]) @ axes.T

    def _along(self, x: Tensor) -> Tensor:
        return x if self.axes is None else x @ self.axes

    def _logits(self, x: Tensor, alpha: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
        """Log-density of every component of alpha x0 + sigma noise, (n, K), and x - alpha mean along the axes."""
        variance = alpha**2 * self.variances + sigma**2
        off = self._along(x)[:, None] - alpha * self._along(self.means)
        return self.weights.log() - 0.5 * (off.square() / variance + variance.log()).sum(2), off

    def log_density(self, x: Tensor) -> Tensor:
        """log p(x) up to a constant, (n,)."""
        return torch.logsumexp(self._logits(x, numbers(1.0), numbers(0.0))[0], 1)

    def potential(self, x: Tensor) -> Tensor:
        """-log p(x), (n,)."""
        return -self.log_density(x)

    def modes(self, x: Tensor) -> Tensor:
        """P(component | x), (n, K)."""
        return torch.softmax(self._logits(x, numbers(1.0), numbers(0.0))[0], 1)

    def clean(self, x: Tensor, alpha: Tensor, sigma: Tensor) -> Tensor:
        """E[x0 | alpha x0 + sigma noise = x]; alpha and sigma are numbers, or one a chain."""
        alpha, sigma = alpha.reshape(-1, 1, 1), sigma.reshape(-1, 1, 1)
        logits, off = self._logits(x, alpha, sigma)
        gain = alpha * self.variances / (alpha**2 * self.variances + sigma**2)
        mean = (torch.softmax(logits, 1)[..., None] * (self._along(self.means) + gain * off)).sum(1)
        return mean if self.axes is None else mean @ self.axes.T

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """n draws."""
        which = torch.multinomial(self.weights, n, replacement=True, generator=generator)
        off = torch.randn((n, self.size), generator=generator, dtype=F64) * self.variances[which].sqrt()
        return self.means[which] + (off if self.axes is None else off @ self.axes.T)

    def energy(self, steps: int = 400, step_size: Any = 0.2, start: Any = None, preconditioner: Any = None) -> Any:
        """As a fixed density; steps in units of ``preconditioner``, the (smallest) variance if left out."""
        aligned = self.axes is None and len(self.means) == 1
        scale = preconditioner
        if preconditioner is None:
            scale = self.variances[0] if aligned else float(self.variances.min())
        init = self.draw if start is None else start
        return casal.energy(self.potential, steps=steps, step_size=step_size, init=init, preconditioner=scale)

    def levels(self, steps: int) -> Tensor:
        """Noise levels from far above the data to far below their smallest spread."""
        widest = (self.means.square().sum(1) + self.variances.amax(1)).max().sqrt()
        return casal.karras_sigmas(steps, 0.01 * float(self.variances.min().sqrt()), 80.0 * float(widest))

    def edm(self, steps: int = 300) -> casal.Target:
        """As a denoiser; half of the noise of each step is fresh."""
        return casal.edm(
            lambda x, s: self.clean(x, torch.ones_like(s), s),
            self.levels(steps),
            shape=self.size,
            churn=0.5,
            dtype=F64,
        )

    def ddpm(self, steps: int = 300) -> casal.Target:
        """As a DDPM on the same levels."""
        kept = 1 / (1 + self.levels(steps).flip(0).square())
        betas = 1 - kept / torch.cat([numbers(1.0), kept[:-1]])

        def eps(x: Tensor, t: Tensor) -> Tensor:
            alpha, sigma = kept[t].sqrt(), (1.0 - kept[t]).sqrt()
            return (x - alpha * self.clean(x, alpha, sigma)) / sigma

        return casal.ddpm(eps, betas, shape=self.size, dtype=F64, time="scalar")

    def flow(self, steps: int = 200) -> casal.Target:
        """As a flow model with its exact velocity; half of the noise of each step is fresh."""
        return casal.flow(
            lambda x, t: (self.clean(x, t, 1 - t) - x) / (1 - t), steps=steps, shape=self.size, noise=0.5, dtype=F64
        )


# ---------------------------------------------------------------------------------------------------- references


def weighted(points: Tensor, log_weight: Tensor, quadrature: bool = True) -> Reference:
    """Points with weights given by their logarithms."""
    return Reference(points, torch.softmax(log_weight, 0), quadrature)


def nodes(make: Callable[[], Tensor], log_weight: Callable[[Tensor], Tensor]) -> Callable[[], Reference]:
    """Makes a quadrature: its nodes, and the logarithm of density times volume at each."""

    def build() -> Reference:
        points = make()
        return weighted(points, log_weight(points))

    return build


def drawn(points: Tensor) -> Reference:
    """Draws of equal weight."""
    return Reference(points, torch.full((len(points),), 1.0 / len(points), dtype=F64), False)


def middles(low: float, high: float, count: int) -> Tensor:
    """Middles of equal intervals."""
    return low + (high - low) * (torch.arange(count, dtype=F64) + 0.5) / count


def grid(*lines: Tensor) -> Tensor:
    """All points with coordinates on the given lines."""
    return torch.cartesian_prod(*lines).reshape(-1, len(lines))


def circle(radius: float, center: Tensor, count: int = 20_000) -> Tensor:
    """Points at equal distances on a circle."""
    angle = middles(-math.pi, math.pi, count)
    return center + radius * torch.stack([angle.cos(), angle.sin()], 1)


def directions(n: int, size: int, seed: int = 0) -> Tensor:
    """Uniform unit vectors."""
    return torch.nn.functional.normalize(normal(n, size, seed=seed), dim=1)


def unit_sphere(count: int = 500) -> Tensor:
    """Nodes of equal weight on the unit sphere in three dimensions."""
    height, angle = grid(middles(-1.0, 1.0, count), middles(-math.pi, math.pi, 2 * count)).T
    flat = (1 - height.square()).sqrt()
    return torch.stack([flat * angle.cos(), flat * angle.sin(), height], 1)


def basis(rows: Tensor) -> Tensor:
    """Orthonormal columns that span the null space of some rows."""
    return torch.linalg.svd(torch.atleast_2d(rows))[2][torch.linalg.matrix_rank(torch.atleast_2d(rows)) :].T


def near(points: Tensor, distance: Tensor, width: float) -> Reference:
    """Draws of p in a thin layer about a surface, by their (signed) distance to it; error O(width^2)."""
    return drawn(points[distance.abs() < width])


def conditioned(mixture: Mixture, A: Tensor, b: Tensor, n: int, seed: int = 0) -> Tensor:
    """Draws of a Gaussian given A x = b (kriging): x - K (A x - b) of draws x, K = S A^T (A S A^T)^-1."""
    x, S = mixture.draw(n, stream(seed)), mixture.covariance
    return x - torch.linalg.solve(A @ S @ A.T, (x @ A.T - b).T).T @ (A @ S)


def inside(points: Tensor, edge: Callable[[Tensor], Tensor]) -> Reference:
    """Those draws that are inside (rejection)."""
    return drawn(points[edge(points) > 0])


def cosine_line(kappa: float, size: int, count: int = 200_000) -> tuple[Tensor, Tensor]:
    """Cosines t and log-weights of exp(kappa t) on the unit sphere: (1 - t^2)^((d - 3) / 2) exp(kappa t)."""
    t = middles(-1.0, 1.0, count)
    return t, kappa * t + 0.5 * (size - 3) * torch.log1p(-t.square())


def fisher_draws(mean: Tensor, kappa: float, n: int, seed: int = 0) -> Tensor:
    """Draws of density exp(kappa mean . u) on the unit sphere: the cosine from its quadrature, the rest uniform."""
    t, log_weight = cosine_line(kappa, len(mean))
    height = t[torch.multinomial(torch.softmax(log_weight, 0), n, replacement=True, generator=stream(seed))][:, None]
    side = normal(n, len(mean), seed=seed + 1)
    side = torch.nn.functional.normalize(side - (side @ mean)[:, None] * mean, dim=1)
    return height * mean + (1 - height.square()).sqrt() * side


# ---------------------------------------------------------------------------------------------------- statistics


def moments(*index: int) -> Callable[[Tensor], Statistics]:
    """Mean and mean square of some coordinates."""

    def of(z: Tensor) -> Statistics:
        return {f"x{k}": z[:, k] for k in index} | {f"x{k}^2": z[:, k].square() for k in index}

    return of


def pooled(z: Tensor) -> Statistics:
    """Mean and mean square over all coordinates, and the share of the first below one half."""
    return {"mean": z.mean(1), "mean square": z.square().mean(1), "x0 < .5": z[:, 0] < 0.5}


def shares(mixture: Mixture) -> Callable[[Tensor], Statistics]:
    """Weights of the modes."""
    return lambda z: {f"mode {k}": share for k, share in enumerate(mixture.modes(z).T)}


def all_of(*parts: Callable[[Tensor], Statistics]) -> Callable[[Tensor], Statistics]:
    """Several statistics."""
    return lambda z: {name: value for part in parts for name, value in part(z).items()}


# ---------------------------------------------------------------------------------------------------- methods


def on_density(rho: float, bounds: bool = False) -> dict[str, Any]:
    """The methods that promise the distribution of a fixed density, one of them inside bounds alone."""
    inside = {"ReflectedHMC": casal.ReflectedHMC()} if bounds else {}
    return {"WeightedCASAL": casal.WeightedCASAL(rho), **inside, "auto": "auto"}


def on_diffusion(sigma: float, gibbs: bool = True, unit: float = 1.0) -> dict[str, Any]:
    """The methods that promise the distribution of a diffusion model of data of scale ``unit``.

    gibbs needs a set with closed forms.
    """
    exactly = {"gibbs": casal.SplitGibbs(sigma, moves="gibbs")} if gibbs else {}
    return {
        **exactly,
        "metropolis": casal.SplitGibbs(sigma, moves="metropolis"),
        "Twisted": casal.Twisted(sigma**-2, twist=unit**-2),
        "auto": "auto",
    }


# ---------------------------------------------------------------------------------------------------- distributions


def common(constraint: Constraint) -> Callable[[int], Constraint]:
    """The same set for any number of chains."""
    return lambda n: constraint


def between(low: Tensor, high: Tensor) -> Callable[[Tensor], Tensor]:
    """Distance to the nearest side of a box, relative to its width; negative outside."""
    return lambda z: torch.minimum(z - low, high - z).div(high - low).amin(1)


def smallest(z: Tensor) -> Tensor:
    """The smallest coordinate, the distance to the edge of an orthant."""
    return z.amin(1)


# Solid sets: exact draws, or quadrature inside, against rejection.

LINE = Mixture([[0.0]], 1.0)
THIN = 1e-3


def thin_box() -> Distribution:
    """N(0, 1) on [0, 0.001], nearly uniform: quadrature against the inverse of the cumulative function."""

    def inverse() -> Reference:
        u = torch.rand(DRAWS, generator=stream(), dtype=F64) * math.erf(THIN / math.sqrt(2))
        return drawn(math.sqrt(2) * torch.erfinv(u)[:, None])

    return Distribution(
        common(Box([0.0], [THIN])),
        lambda z: {"x0": z[:, 0], "x0^2": z[:, 0].square(), "first quarter": z[:, 0] < THIN / 4},
        nodes(lambda: middles(0.0, THIN, 20_000)[:, None], LINE.log_density),
        inverse,
        between(numbers(0.0), numbers(THIN)),
    )


TAIL = 4.0


def tail() -> Distribution:
    """N(0, 1) beyond four standard deviations: quadrature against an exponential proposal with weights."""

    def proposal() -> Reference:
        t = -torch.rand(DRAWS, generator=stream(), dtype=F64).log() / TAIL
        return weighted(TAIL + t[:, None], -t.square() / 2, quadrature=False)

    return Distribution(
        common(HalfSpace([-1.0], -TAIL)),
        moments(0),
        nodes(lambda: middles(TAIL, 12.0, 100_000)[:, None], LINE.log_density),
        proposal,
        lambda z: z[:, 0] - TAIL,
    )


TILTED = Mixture.gaussian([0.0, 0.0], [[1.0, 0.5], [0.5, 1.0]])


def boxed(
    first: tuple[float, float],
    second: tuple[float, float],
    log_density: Callable[[Tensor], Tensor],
    draw: Callable[[], Tensor],
) -> Distribution:
    """A density of the plane in a box: quadrature against rejection from draws."""
    low, high = numbers(first[0], second[0]), numbers(first[1], second[1])
    edge = between(low, high)
    return Distribution(
        common(Box(low, high)),
        moments(0, 1),
        nodes(lambda: grid(middles(*first, 600), middles(*second, 600)), log_density),
        lambda: inside(draw(), edge),
        edge,
    )


def box() -> Distribution:
    """A correlated Gaussian in a box: quadrature against rejection."""
    return boxed((0.5, 2.0), (-1.0, 0.3), TILTED.log_density, lambda: TILTED.draw(2_000_000, stream()))


OFF_CENTRE = Mixture([[1.0, 0.5, 0.0]], [1.0, 0.7, 1.2])


def ball() -> Distribution:
    """A Gaussian in a ball: quadrature in spherical coordinates against rejection."""

    def spherical() -> Reference:
        radius = middles(0.0, 1.2, 200).repeat_interleave(80 * 160)
        points = radius[:, None] * unit_sphere(80).repeat(200, 1)
        return weighted(points, OFF_CENTRE.log_density(points) + 2 * radius.log())

    def edge(z: Tensor) -> Tensor:
        return 1.0 - z.norm(dim=1) / 1.2

    return Distribution(
        common(Ball(1.2)),
        moments(0, 1),
        spherical,
        lambda: inside(OFF_CENTRE.draw(1_000_000, stream()), edge),
        edge,
    )


EIGHT = Mixture.gaussian(torch.linspace(-1.0, 1.0, 8, dtype=F64), 0.3 * torch.eye(8, dtype=F64) + 0.2)
NORMAL = torch.linspace(1.0, 0.3, 8, dtype=F64)
NORMAL_MEAN, NORMAL_SD = float(NORMAL @ EIGHT.means[0]), float((NORMAL @ EIGHT.covariance @ NORMAL).sqrt())
WALL = NORMAL_MEAN - 2 * NORMAL_SD


def half_space() -> Distribution:
    """An 8-D Gaussian two standard deviations below its mean: truncated along the normal, against rejection."""

    def along_the_normal() -> Reference:
        u = torch.rand(DRAWS, generator=stream(1), dtype=F64) * 0.5 * math.erfc(math.sqrt(2))
        height = NORMAL_MEAN + NORMAL_SD * torch.special.ndtri(u)
        return drawn(conditioned(EIGHT, NORMAL[None], height[:, None], DRAWS))

    def edge(z: Tensor) -> Tensor:
        return (WALL - z @ NORMAL) / NORMAL_SD

    return Distribution(
        common(HalfSpace(NORMAL, WALL)),
        moments(0, 7),
        along_the_normal,
        lambda: inside(EIGHT.draw(1_000_000, stream()), edge),
        edge,
    )


OPPOSED = Mixture.gaussian([0.0, 0.0], [[1.0, -0.8], [-0.8, 1.0]])


def orthant_2() -> Distribution:
    """A Gaussian of correlation -.8 in the quadrant: quadrature against rejection."""
    return Distribution(
        common(Box(0.0, math.inf)),
        moments(0, 1),
        nodes(lambda: grid(middles(0.0, 5.0, 1000), middles(0.0, 5.0, 1000)), OPPOSED.log_density),
        lambda: inside(OPPOSED.draw(2_000_000, stream()), smallest),
        smallest,
    )


def orthant(size: int) -> Distribution:
    """N(0, I) in an orthant: absolute values of draws (by symmetry) against closed forms."""

    def closed() -> Mapping[str, float]:
        return {
            "mean": math.sqrt(2 / math.pi),
            "mean square": 1.0,
            "x0 < .5": math.erf(0.5 / math.sqrt(2)),
            "near the edge": 1.0 - math.erfc(0.05 / math.sqrt(2)) ** size,
        }

    return Distribution(
        common(Box(0.0, math.inf)), pooled, lambda: drawn(normal(100_000, size).abs()), closed, smallest
    )


def standard(size: int) -> Mixture:
    """N(0, I)."""
    return Mixture(torch.zeros(1, size), 1.0)


SIDES, HEIGHTS = numbers([-1, 0, 0], [0, -1, 0], [0, 0, -1], [1, 2, 1.5]), numbers(0.0, 0.0, 0.0, 2.0)
SKEW = Mixture([[0.5, 0.2, -0.3]], [0.8, 0.6, 1.0])


def polytope() -> Distribution:
    """A Gaussian in a tetrahedron: uniform draws with weights against rejection."""
    corners = numbers([0, 0, 0], [2, 0, 0], [0, 1, 0], [0, 0, 4 / 3])

    def uniform() -> Reference:
        points = barycentric(DRAWS, 4) @ corners
        return weighted(points, SKEW.log_density(points), quadrature=False)

    def edge(z: Tensor) -> Tensor:
        return ((HEIGHTS - z @ SIDES.T) / SIDES.norm(dim=1)).amin(1)

    return Distribution(
        common(Polytope(SIDES, HEIGHTS)),
        moments(0, 1, 2),
        uniform,
        lambda: inside(SKEW.draw(1_000_000, stream()), edge),
        edge,
    )


def barycentric(n: int, size: int, seed: int = 5) -> Tensor:
    """Uniform draws of the simplex of total one."""
    weight = -torch.rand((n, size), generator=stream(seed), dtype=F64).log()
    return weight / weight.sum(1, keepdim=True)


BOXES = ((numbers(-2.0, -2.0), numbers(-1.0, -1.0)), (numbers(0.5, 0.5), numbers(2.0, 1.0)))


def two_boxes() -> Distribution:
    """A correlated Gaussian in two boxes: quadrature against rejection."""

    def quadrature() -> Reference:
        parts = [
            grid(*(middles(float(a), float(b), 400) for a, b in zip(low, high, strict=True))) for low, high in BOXES
        ]
        points = torch.cat(parts)
        area = torch.cat([torch.full((160_000,), float((high - low).prod()), dtype=F64) for low, high in BOXES])
        return weighted(points, TILTED.log_density(points) + area.log())

    def edge(z: Tensor) -> Tensor:
        return torch.stack([between(low, high)(z) for low, high in BOXES]).amax(0)

    return Distribution(
        common(Box(*BOXES[0]) | Box(*BOXES[1])),
        lambda z: {**moments(0, 1)(z), "first box": z[:, 0] < 0},
        quadrature,
        lambda: inside(TILTED.draw(2_000_000, stream()), edge),
        edge,
    )


CURVED = Mixture.gaussian([0.5, -0.5], [[0.5, 0.2], [0.2, 0.4]])


def between_curves(z: Tensor) -> Tensor:
    """x^2 - 1 <= y <= 1/2."""
    return torch.stack([z[:, 0] ** 2 - 1 - z[:, 1], z[:, 1] - 0.5], 1)


def curved_region() -> Distribution:
    """A Gaussian between a parabola and a line: quadrature in fitted coordinates against rejection."""

    def fitted() -> Reference:
        x, share = grid(middles(-math.sqrt(1.5), math.sqrt(1.5), 800), middles(0.0, 1.0, 800)).T
        height = 1.5 - x**2
        points = torch.stack([x, x**2 - 1 + share * height], 1)
        return weighted(points, CURVED.log_density(points) + height.log())

    def edge(z: Tensor) -> Tensor:
        return -between_curves(z).amax(1)

    return Distribution(
        common(Implicit(None, between_curves)),
        moments(0, 1),
        fitted,
        lambda: inside(CURVED.draw(1_000_000, stream()), edge),
        edge,
    )


THREE_TO_TWO = numbers([1.0, 0.5, -0.3], [0.0, 0.8, 0.6])
THROUGH = Mixture([[1.0, 0.2, -0.5]], [0.7, 0.9, 0.5])


def through() -> Distribution:
    """{z : |A z| <= 1}, A of two rows, in three dimensions: polar quadrature of A z against rejection."""

    def image(z: Tensor) -> Tensor:
        return z @ THREE_TO_TWO.T

    def edge(z: Tensor) -> Tensor:
        return 1.0 - image(z).norm(dim=1)

    def polar() -> Reference:
        radius = middles(0.0, 1.0, 600).repeat_interleave(1000)
        points = radius[:, None] * circle(1.0, numbers(0.0, 0.0), 1000).repeat(600, 1)
        lifted = points @ torch.linalg.pinv(THREE_TO_TWO).T
        return weighted(lifted, decoded(THROUGH, THREE_TO_TWO).log_density(points) + radius.log())

    return Distribution(
        common(Implicit(None, lambda w: w.square().sum(1, keepdim=True) - 1.0).through(THREE_TO_TWO)),
        lambda z: moments(0, 1)(image(z)),
        polar,
        lambda: inside(THROUGH.draw(1_000_000, stream()), edge),
        edge,
        margin=0.02,
    )


def decoded(mixture: Mixture, A: Tensor) -> Mixture:
    """The distribution of A x for a Gaussian x."""
    return Mixture.gaussian(mixture.means[0] @ A.T, A @ mixture.covariance @ A.T)


# Thin sets: quadrature along the set, against draws of p in a thin layer or against kriging.


def gaussian_on_plane(mixture: Mixture, A: Tensor, b: Tensor) -> Distribution:
    """A Gaussian on linear equations: draws by kriging against its closed form."""
    every = range(mixture.size)

    def closed() -> Mapping[str, float]:
        S, m = mixture.covariance, mixture.means[0]
        gain = torch.linalg.solve(A @ S @ A.T, A @ S).T
        mean, variance = m + gain @ (b - A @ m), (S - gain @ A @ S).diagonal()
        return {f"x{k}": float(mean[k]) for k in every} | {f"x{k}^2": float(mean[k] ** 2 + variance[k]) for k in every}

    return Distribution(common(Affine(A, b)), moments(*every), lambda: drawn(conditioned(mixture, A, b, DRAWS)), closed)


SLOPED = Mixture.gaussian([1.0, -1.0], [[2.0, 0.6], [0.6, 0.5]])
SUM_2 = torch.ones(1, 2, dtype=F64)


def scaled(scale: float) -> Mixture:
    """Correlated data of a given scale in three dimensions."""
    shape = numbers([1.0, 0.0, 0.7], [0.0, 0.3, 0.1], [0.7, 0.1, 1.0])
    return Mixture.gaussian(scale * numbers(1.0, -1.0, 0.5), scale**2 * shape)


def scaled_plane(scale: float) -> Distribution:
    """The same on x0 + x1 = scale / 2."""
    return gaussian_on_plane(scaled(scale), numbers([1.0, 1.0, 0.0]), numbers(0.5 * scale))


FLAT = Mixture([[0.2, 0.1, 0.0]], [1.0, 0.1, 0.01])


def flat_plane() -> Distribution:
    """Standard deviations 1, .1 and .01 on x0 + x1 + x2 = .8."""
    return gaussian_on_plane(FLAT, torch.ones(1, 3, dtype=F64), numbers(0.8))


STIFF = Mixture(torch.zeros(1, 6), 10.0 ** torch.linspace(0.0, -3.0, 6, dtype=F64))


def stiff_plane() -> Distribution:
    """Variances from 1 to 1e-6 on sum x = .5."""
    return gaussian_on_plane(STIFF, torch.ones(1, 6, dtype=F64), numbers(0.5))


CONCENTRATED = Mixture([[0.5, 0.0, 0.0]], math.sqrt(0.1))


def von_mises_fisher() -> Distribution:
    """Concentration 5 on the unit sphere, mean cosine .800: quadrature against the closed form."""

    def closed() -> Mapping[str, float]:
        cosine = 1 / math.tanh(5.0) - 1 / 5.0
        return {"x0": cosine, "x0^2": 1 - 2 * cosine / 5.0, "x1": 0.0, "x1^2": cosine / 5.0}

    return Distribution(common(Sphere(1.0)), moments(0, 1), nodes(unit_sphere, CONCENTRATED.log_density), closed)


THREE = Mixture(MODES, MODE_SCALES[:, None], MODE_WEIGHTS)


def three_modes() -> Distribution:
    """The mixture of ``models.py`` on the circle of radius 2: quadrature against draws in a thin layer."""

    def layer() -> Reference:
        x = THREE.draw(3_000_000, stream())
        return near(x, x.norm(dim=1) - 2.0, 0.02)

    return Distribution(
        common(Sphere(2.0)),
        all_of(shares(THREE), moments(0)),
        nodes(lambda: circle(2.0, numbers(0.0, 0.0)), THREE.log_density),
        layer,
    )


def particle() -> Distribution:
    """The particle of ``models.py`` on its circle: quadrature against the published values."""
    return Distribution(
        common(Sphere(RADIUS)),
        lambda z: {"x0": z[:, 0], "x1^2": z[:, 1].square(), "wrong mode": z[:, 0] > 0},
        nodes(lambda: circle(RADIUS, numbers(0.0, 0.0), 100_000), lambda x: -particle_potential(x)),
        lambda: {"x0": -2.99831, "x1^2": 0.10067**2, "wrong mode": 7.06e-8},
    )


def sixteen() -> tuple[Mixture, Tensor, Tensor]:
    """Three isotropic modes in 16-D, their unit directions, and their lengths."""
    unit = torch.linalg.qr(normal(16, 3, seed=3))[0].T
    unit = torch.nn.functional.normalize(unit + 0.3 * unit.roll(1, 0), dim=1)
    length = numbers(2.1, 1.5, 0.8)
    return Mixture(length[:, None] * unit, numbers(0.3, 0.35, 0.4)[:, None], numbers(0.6, 0.25, 0.15)), unit, length


SIXTEEN, UNITS, LENGTHS = sixteen()


def sphere_16() -> Distribution:
    """Three modes on a sphere of radius 2 in 16-D: von Mises-Fisher draws by mode, with Bessel normalisers.

    The second reference has its normalisers from quadrature over the cosine, and the closed form of E u.
    """
    radius, variance = 2.0, SIXTEEN.variances[:, 0]
    kappa = radius * LENGTHS / variance
    outside = SIXTEEN.weights.log() - 8 * variance.log() - (radius**2 + LENGTHS**2) / (2 * variance)

    def draws() -> Reference:
        bessel = torch.tensor([ive(7.0, float(k)) for k in kappa], dtype=F64)
        mass = torch.softmax(outside + kappa + bessel.log() - 7.0 * kappa.log(), 0)
        parts = [radius * fisher_draws(UNITS[k], float(kappa[k]), 100_000, seed=2 * k) for k in range(3)]
        return weighted(torch.cat(parts), mass.log().repeat_interleave(100_000), quadrature=False)

    def quadrature() -> Mapping[str, float]:
        lines = [cosine_line(float(k), 16) for k in kappa]
        mass = torch.softmax(outside + torch.stack([torch.logsumexp(log_weight, 0) for _, log_weight in lines]), 0)
        cosine = torch.stack([(torch.softmax(log_weight, 0) * t).sum() for t, log_weight in lines])
        mean = radius * (mass * cosine) @ UNITS
        return {**{f"mode {k}": float(mass[k]) for k in range(3)}, "x0": float(mean[0]), "x1": float(mean[1])}

    return Distribution(common(Sphere(2.0)), all_of(shares(SIXTEEN), moments(0, 1)), draws, quadrature)


LONG = Mixture(torch.zeros(1, 64), torch.cat([numbers(2.0), torch.ones(63, dtype=F64)]))
LONG_RADIUS = 9.0


def sphere_64() -> Distribution:
    """N(0, diag(4, 1, ..., 1)) on a sphere in 64-D: quadrature over x0 against directions of draws with weights."""

    def line() -> Reference:
        x = middles(-LONG_RADIUS, LONG_RADIUS, 20_000)
        rest = LONG_RADIUS**2 - x.square()
        side = rest.sqrt()[:, None] * directions(len(x), 63)
        return weighted(torch.cat([x[:, None], side], 1), 0.375 * x.square() + 30.5 * rest.log())

    def radial() -> Reference:
        x = LONG.draw(200_000, stream())
        unit = x / x.norm(dim=1, keepdim=True)
        angular = 32 * (unit.square() / LONG.variances).sum(1).log()  # one over the density of the directions of draws
        return weighted(LONG_RADIUS * unit, LONG.log_density(LONG_RADIUS * unit) + angular, quadrature=False)

    return Distribution(
        common(Sphere(LONG_RADIUS)),
        lambda z: {"x0": z[:, 0], "x0^2": z[:, 0].square(), "x0 > 2": z[:, 0] > 2.0},
        line,
        radial,
    )


PAIR = Mixture(torch.stack([torch.ones(64, dtype=F64), -torch.ones(64, dtype=F64)]), 0.3)


def given() -> Distribution:
    """Two modes at 1 and -1 in all of 64 coordinates, x0 = .8 given: draws by mode against closed forms."""

    def draws() -> Reference:
        x = PAIR.draw(100_000, stream())
        x = x * x.mean(1, keepdim=True).sign()  # the other mode has 2e-8 of the weight
        return drawn(torch.cat([torch.full((len(x), 1), 0.8, dtype=F64), x[:, 1:]], 1))

    return Distribution(
        common(Affine(torch.eye(64, dtype=F64)[:1], 0.8)),
        lambda z: {
            "mean": z[:, 1:].mean(1),
            "x1": z[:, 1],
            "spread": (z[:, 1:] - 1).square().mean(1),
            "wrong mode": z[:, 1:].mean(1) < 0,
        },
        draws,
        lambda: {"mean": 1.0, "x1": 1.0, "spread": 0.09, "wrong mode": 0.0},
    )


FOUR = Mixture([[0.2, 0.5, 0.9, 0.4]], [0.5, 0.3, 0.6, 0.4])
ONES_4, ONES_8 = torch.ones(1, 4, dtype=F64), torch.ones(1, 8, dtype=F64)


def on_mass_energy(rows: Tensor, mass: float, radius: float, unit: Tensor) -> Tensor:
    """Points of {sum = mass} at a distance from the constant field, in the given directions of the hyperplane."""
    return mass / rows.shape[1] + radius * unit @ basis(rows).T


def hyperplane_layer(mixture: Mixture, rows: Tensor, mass: float, radius: float, width: float, n: int) -> Tensor:
    """Draws given the sum (kriging) whose distance to the constant field is about ``radius``, brought to it."""
    off = conditioned(mixture, rows, numbers(mass), n) - mass / rows.shape[1]
    length = off.norm(dim=1, keepdim=True)
    close = (length[:, 0] - radius).abs() < width
    return mass / rows.shape[1] + radius * off[close] / length[close]


def mass_energy() -> Distribution:
    """Sum 2 and a sphere of radius .6 about it in 4-D: quadrature on the sphere against a thin layer."""
    return Distribution(
        common(MassEnergy(2.0, 1.0 + 0.36)),
        moments(0, 1, 2),
        nodes(lambda: on_mass_energy(ONES_4, 2.0, 0.6, unit_sphere()), FOUR.log_density),
        lambda: drawn(hyperplane_layer(FOUR, ONES_4, 2.0, 0.6, 0.02, 2_000_000)),
    )


BOX_8 = Mixture([[0.1, 0.3, 0.5, 0.7, 0.9, 0.4, 0.6, 0.2]], [0.4, 0.5, 0.3, 0.4, 0.6, 0.5, 0.3, 0.4])
unit_box_4, unit_box_8 = (between(torch.zeros(k, dtype=F64), torch.ones(k, dtype=F64)) for k in (4, 8))


def mass_energy_box_4() -> Distribution:
    """The same with 0 <= z <= 1: quadrature on the sphere against a thin layer, both cut by the bounds."""

    def cut() -> Reference:
        points = on_mass_energy(ONES_4, 2.0, 0.6, unit_sphere(1000))
        points = points[unit_box_4(points) > 0]
        return weighted(points, FOUR.log_density(points))

    return Distribution(
        common(MassEnergy(2.0, 1.0 + 0.36) & Box(0.0, 1.0)),
        moments(0, 1, 2),
        cut,
        lambda: inside(hyperplane_layer(FOUR, ONES_4, 2.0, 0.6, 0.02, 2_000_000), unit_box_4),
        unit_box_4,
    )


def mass_energy_box_8() -> Distribution:
    """Sum 4, radius .9, 0 <= z <= 1 in 8-D: uniform directions with weights against a thin layer."""

    def uniform() -> Reference:
        points = on_mass_energy(ONES_8, 4.0, 0.9, directions(1_000_000, 7))
        points = points[unit_box_8(points) > 0]
        return weighted(points, BOX_8.log_density(points), quadrature=False)

    return Distribution(
        common(MassEnergy(4.0, 2.0 + 0.81) & Box(0.0, 1.0)),
        moments(0, 4),
        uniform,
        lambda: inside(hyperplane_layer(BOX_8, ONES_8, 4.0, 0.9, 0.03, 1_500_000), unit_box_8),
        unit_box_8,
    )


CIRCLES = ((1.2, numbers(-1.5, 0.0)), (0.3, numbers(1.2, 0.5)))
WIDE_PAIR = Mixture([[0.3, -0.5]], [0.6, 0.9])


def circles(*pieces: tuple[float, Tensor]) -> Tensor:
    """Nodes of circles, 20,000 each."""
    return torch.cat([circle(radius, center) for radius, center in pieces])


def lengths(*pieces: tuple[float, Tensor]) -> Tensor:
    """Logarithms of the lengths of circles, at their nodes."""
    return torch.tensor([radius for radius, _ in pieces], dtype=F64).log().repeat_interleave(20_000)


def two_circles() -> Distribution:
    """A Gaussian on two circles: quadrature against draws in a thin layer."""

    def layer() -> Reference:
        x = WIDE_PAIR.draw(2_000_000, stream())
        distance = torch.stack([((x - center).norm(dim=1) - radius).abs() for radius, center in CIRCLES]).amin(0)
        return near(x, distance, 0.02)

    return Distribution(
        common(Sphere(*CIRCLES[0]) | Sphere(*CIRCLES[1])),
        lambda z: {"first circle": z[:, 0] < 0.3, **moments(0, 1)(z)},
        nodes(lambda: circles(*CIRCLES), lambda x: WIDE_PAIR.log_density(x) + lengths(*CIRCLES)),
        layer,
    )


NESTED = ((0.02, numbers(0.0, 0.0)), (1.5, numbers(0.0, 0.0)))
ROUND = Mixture([[0.3, 0.0]], 1.0)


def nested_circles() -> Distribution:
    """Circles of radius .02 and 1.5: quadrature against draws in a thin layer."""

    def layer() -> Reference:
        x = ROUND.draw(8_000_000, stream())
        length = x.norm(dim=1)
        return near(x, torch.minimum((length - 0.02).abs(), (length - 1.5).abs()), 0.01)

    return Distribution(
        common(Sphere(0.02) | Sphere(1.5)),
        lambda z: {"small circle": z.norm(dim=1) < 0.5, **moments(0)(z)},
        nodes(lambda: circles(*NESTED), lambda x: ROUND.log_density(x) + lengths(*NESTED)),
        layer,
    )


OVAL = Mixture.gaussian([0.5, 0.4], [[0.5, 0.2], [0.2, 0.4]])


def on_ellipse(z: Tensor) -> Tensor:
    """(x / 2)^2 + y^2 = 1."""
    return (z[:, :1] / 2) ** 2 + z[:, 1:] ** 2 - 1


def ellipse() -> Distribution:
    """A Gaussian on an ellipse: quadrature over arc length against draws in a thin layer."""

    def arc() -> Reference:
        angle = middles(-math.pi, math.pi, 20_000)
        points = torch.stack([2 * angle.cos(), angle.sin()], 1)
        speed = (4 * angle.sin().square() + angle.cos().square()).sqrt()
        return weighted(points, OVAL.log_density(points) + speed.log())

    def layer() -> Reference:
        x = OVAL.draw(3_000_000, stream())
        slope = torch.stack([x[:, 0] / 2, 2 * x[:, 1]], 1).norm(dim=1)
        return near(x, on_ellipse(x)[:, 0] / slope, 0.01)

    return Distribution(common(Implicit(on_ellipse)), moments(0, 1), arc, layer)


FOUR_TO_TWO = numbers([1.0, 0.5, -0.3, 0.2], [0.0, 0.8, 0.6, -0.5])
LATENT = Mixture([[0.5, 0.2, -0.5, 0.3]], [1.2, 0.4, 0.3, 0.3])
SEEN = decoded(LATENT, FOUR_TO_TWO)


def decoded_circle() -> Distribution:
    """A x on a circle, A of two rows and four columns: quadrature of its distribution against a thin layer."""

    def layer() -> Reference:
        x = LATENT.draw(3_000_000, stream()) @ FOUR_TO_TWO.T
        return near(x, x.norm(dim=1) - 1.5, 0.01)

    return Distribution(
        common(Sphere(1.5)), moments(0, 1), nodes(lambda: circle(1.5, numbers(0.0, 0.0)), SEEN.log_density), layer
    )


def decoded_box() -> Distribution:
    """A x in a box: quadrature of its distribution against rejection."""
    return boxed((0.5, 1.5), (-0.5, 0.3), SEEN.log_density, lambda: LATENT.draw(1_000_000, stream()) @ FOUR_TO_TWO.T)


RADII = (1.0, 2.0)


def own_circles() -> Distribution:
    """Every other chain on a circle of radius 1, the others on one of radius 2: quadrature against thin layers."""

    def statistics(z: Tensor) -> Statistics:
        inner = (z.norm(dim=1) < 1.5).to(F64)
        return {
            f"{name}, {where}": values * share
            for where, share in (("inner", inner), ("outer", 1 - inner))
            for name, values in moments(0, 1)(z).items()
        }

    def halves(parts: list[Reference]) -> Reference:
        return Reference(
            torch.cat([part.points for part in parts]),
            torch.cat([part.weights for part in parts]) / len(parts),
            all(part.quadrature for part in parts),
        )

    def quadrature() -> Reference:
        points = [circle(radius, numbers(0.0, 0.0)) for radius in RADII]
        return halves([weighted(some, SLANTED.log_density(some)) for some in points])

    def layers() -> Reference:
        x = SLANTED.draw(3_000_000, stream())
        return halves([near(x, x.norm(dim=1) - radius, 0.01) for radius in RADII])

    def constraint(n: int) -> Constraint:
        return Sphere(PerChain(numbers(*RADII).repeat(n // 2)))

    return Distribution(constraint, statistics, quadrature, layers)


SLANTED = Mixture.gaussian([0.6, 0.3], [[0.8, 0.4], [0.4, 0.6]])


# Thin sets with an edge.

SLICE = Mixture([[0.6, 0.1, 0.3]], [0.3, 0.4, 0.5])


def simplex_3() -> Distribution:
    """A Gaussian on the simplex in 3-D: quadrature on the triangle against kriging and rejection."""

    def triangle() -> Reference:
        u, v = grid(middles(0.0, 1.0, 1000), middles(0.0, 1.0, 1000)).T
        points = torch.stack([u, (1 - u) * v, (1 - u) * (1 - v)], 1)
        return weighted(points, SLICE.log_density(points) + (1 - u).log())

    return Distribution(
        common(Simplex(1.0)),
        moments(0, 1, 2),
        triangle,
        lambda: inside(conditioned(SLICE, torch.ones(1, 3, dtype=F64), numbers(1.0), 1_000_000), smallest),
        smallest,
    )


TEN = Mixture(torch.linspace(0.3, -0.1, 10, dtype=F64)[None], torch.linspace(0.2, 0.35, 10, dtype=F64))


def exchanged(mixture: Mixture, chains: int, sweeps: int) -> Tensor:
    """Gibbs sampling on the simplex: pairs of coordinates exchange mass, each time by an exact truncated Gaussian."""
    z, (mean,), (variance,) = barycentric(chains, mixture.size, seed=6), mixture.means, mixture.variances
    generator = stream(7)
    for k in range(sweeps * mixture.size):
        i, j = k % mixture.size, int(torch.randint(1, mixture.size, (), generator=generator) + k) % mixture.size
        total, precision = z[:, i] + z[:, j], 1 / variance[i] + 1 / variance[j]
        center = (mean[i] / variance[i] + (total - mean[j]) / variance[j]) / precision
        low, high = (torch.special.ndtr((end - center) * precision.sqrt()) for end in (0 * total, total))
        u = low + (high - low) * torch.rand(chains, generator=generator, dtype=F64)
        z[:, i] = (center + torch.special.ndtri(u) / precision.sqrt()).clamp(0 * total, total)
        z[:, j] = total - z[:, i]
    return z


def simplex_10() -> Distribution:
    """A Gaussian on the simplex in 10-D: uniform draws with weights against Gibbs sampling."""

    def uniform() -> Reference:
        points = barycentric(DRAWS, 10)
        return weighted(points, TEN.log_density(points), quadrature=False)

    return Distribution(
        common(Simplex(1.0)),
        moments(0, 5, 9),
        uniform,
        lambda: drawn(exchanged(TEN, 20_000, 30)),
        smallest,
        margin=0.01,
    )


def box_and_equation() -> Distribution:
    """0 <= z <= 1 and sum z = 1.5 in 4-D: kriging and rejection against uniform draws with weights."""

    def uniform() -> Reference:
        first = torch.rand((2_000_000, 3), generator=stream(), dtype=F64)
        points = torch.cat([first, 1.5 - first.sum(1, keepdim=True)], 1)
        points = points[unit_box_4(points) > 0]
        return weighted(points, FOUR.log_density(points), quadrature=False)

    return Distribution(
        common(Box(0.0, 1.0) & Affine(ONES_4, 1.5)),
        moments(0, 1, 2),
        lambda: inside(conditioned(FOUR, ONES_4, numbers(1.5), 2_000_000), unit_box_4),
        uniform,
        unit_box_4,
    )


CHORD = Mixture([[0.3, 0.9, 0.2]], [0.5, 0.3, 0.4])
CHORD_ROWS, CHORD_SIDES = numbers([1.0, 1.0, 1.0], [1.0, -1.0, 0.0]), numbers(1.5, 0.2)


def segment() -> Distribution:
    """Two equations in the unit cube: z = (t + .2, t, 1.3 - 2 t), quadrature against kriging and rejection."""

    def points() -> Tensor:
        t = middles(0.15, 0.65, 20_000)
        return torch.stack([t + 0.2, t, 1.3 - 2 * t], 1)

    edge = between(torch.zeros(3, dtype=F64), torch.ones(3, dtype=F64))
    return Distribution(
        common(Box(0.0, 1.0) & Affine(CHORD_ROWS, CHORD_SIDES)),
        moments(1),
        nodes(points, CHORD.log_density),
        lambda: inside(conditioned(CHORD, CHORD_ROWS, CHORD_SIDES, 1_000_000), edge),
        edge,
    )


def disc() -> Distribution:
    """|z| <= 1 and sum z = .5 in 3-D: polar quadrature against kriging and rejection."""
    rows, reach = torch.ones(1, 3, dtype=F64), math.sqrt(1 - 0.25 / 3)

    def polar() -> Reference:
        radius = middles(0.0, reach, 600).repeat_interleave(1000)
        points = 0.5 / 3 + radius[:, None] * (circle(1.0, numbers(0.0, 0.0), 1000).repeat(600, 1) @ basis(rows).T)
        return weighted(points, CHORD.log_density(points) + radius.log())

    def edge(z: Tensor) -> Tensor:
        return 1.0 - z.norm(dim=1)

    return Distribution(
        common(Ball(1.0) & Affine(rows, 0.5)),
        moments(0, 1),
        polar,
        lambda: inside(conditioned(CHORD, rows, numbers(0.5), 1_000_000), edge),
        edge,
    )


CYLINDER = Mixture.gaussian([0.5, 0.3, 0.2], [[0.8, 0.2, 0.4], [0.2, 0.6, 0.3], [0.4, 0.3, 0.7]])


def circle_times_interval() -> Distribution:
    """A correlated Gaussian on circle x interval: quadrature against a thin layer and rejection."""

    def quadrature() -> Reference:
        angle, height = grid(middles(-math.pi, math.pi, 1200), middles(0.0, 1.0, 500)).T
        points = torch.stack([angle.cos(), angle.sin(), height], 1)
        return weighted(points, CYLINDER.log_density(points))

    def edge(z: Tensor) -> Tensor:
        return torch.minimum(z[:, 2], 1 - z[:, 2])

    def layer() -> Reference:
        x = CYLINDER.draw(4_000_000, stream())
        x = x[edge(x) > 0]
        return near(x, x[:, :2].norm(dim=1) - 1.0, 0.01)

    return Distribution(
        common(casal.Product(Sphere(1.0), Box(0.0, 1.0), sizes=(2, 1))), moments(0, 1, 2), quadrature, layer, edge
    )


# ---------------------------------------------------------------------------------------------------- the table


def rows(
    name: str,
    distribution: Distribution,
    mixture: Mixture,
    sigma: float,
    *models: str,
    gibbs: bool = True,
    decoder: casal.Decoder | None = None,
    unit: float = 1.0,
    steps: int = 400,
    methods: Sequence[str] = ("WeightedCASAL", "ReflectedHMC", "gibbs", "metropolis", "Twisted", "auto"),
    bounds: bool = False,
) -> list[Row]:
    """A row for each kind of model of the same distribution.

    Args:
        name: Of the distribution.
        distribution: What samples must follow.
        mixture: The model without the set.
        sigma: Where ladders end whose end is given: well below the spread of the data along the set's normals.
        models: "energy", "edm", "ddpm", "flow".
        gibbs: Whether the set has closed forms, which moves="gibbs" needs.
        decoder: If the model lives in another space than the set.
        unit: Scale of the data, for the guide of Twisted.
        steps: Of "energy".
        methods: Which of the methods to run, fewer where a projection takes long.
        bounds: Whether the set is of bounds on the coordinates, with at most one equation.
    """
    targets: dict[str, Callable[[], casal.Target]] = {
        "energy": lambda: mixture.energy(steps),
        "edm": mixture.edm,
        "ddpm": mixture.ddpm,
        "flow": mixture.flow,
    }

    def promised(model: str) -> dict[str, Any]:
        every = on_density(sigma**-2, bounds) if model == "energy" else on_diffusion(sigma, gibbs, unit)
        return {kind: method for kind, method in every.items() if kind in methods}

    def build(model: str) -> Row:
        free = None if model == "energy" else mixture
        return Row(f"{name}, {model}", distribution, targets[model], promised(model), decoder, free)

    return [build(model) for model in models]


def row(name: str, distribution: Distribution, target: Callable[[], casal.Target], **more: Any) -> Row:
    """A row of a fixed density for "auto" alone."""
    return Row(name, distribution, target, {"auto": "auto"}, **more)


FEW = ("metropolis", "auto")
A_PARTICLE = numbers(0.5, SIGMA_Y**2)
DECODER = casal.Linear(FOUR_TO_TWO)
MODES_ON_CIRCLE, TWO_CIRCLES, FISHER = three_modes(), two_circles(), von_mises_fisher()

ROWS: list[Row] = [
    # solid
    *rows("thin box 1-D", thin_box(), LINE, 0.02, "energy", "edm", bounds=True),
    *rows("tail 1-D", tail(), LINE, 0.02, "energy", "edm", gibbs=False, bounds=True),
    *rows("box 2-D", box(), TILTED, 0.02, "energy", "flow", bounds=True),
    *rows("ball 3-D", ball(), OFF_CENTRE, 0.02, "energy", "edm", gibbs=False),
    *rows("half-space 8-D", half_space(), EIGHT, 0.02, "energy", "edm", gibbs=False),
    *rows("orthant 2-D", orthant_2(), OPPOSED, 0.02, "energy", "edm", bounds=True),
    *rows("orthant 10-D", orthant(10), standard(10), 0.05, "energy", "edm", bounds=True),
    *rows("orthant 20-D", orthant(20), standard(20), 0.05, "energy", "edm", bounds=True),
    # WeightedCASAL has 45 to 75 ancestors left here and says "too few": it promises nothing
    *rows("orthant 50-D", orthant(50), standard(50), 0.05, "energy", bounds=True, methods=("ReflectedHMC", "auto")),
    *rows("polytope 3-D", polytope(), SKEW, 0.02, "energy", "edm", gibbs=False, steps=80, methods=FEW),
    *rows("two boxes", two_boxes(), TILTED, 0.02, "energy", "edm", gibbs=False),
    *rows("region between curves", curved_region(), CURVED, 0.02, "energy", "edm", gibbs=False, steps=80, methods=FEW),
    *rows("inequality through A", through(), THROUGH, 0.02, "energy", "edm", gibbs=False, steps=80, methods=FEW),
    *rows("decoded box", decoded_box(), LATENT, 0.02, "energy", "edm", decoder=DECODER),
    # thin
    *rows("line", gaussian_on_plane(SLOPED, SUM_2, numbers(1.0)), SLOPED, 0.03, "energy", "edm"),
    *rows("scale .1", scaled_plane(0.1), scaled(0.1), 0.003, "energy", "ddpm", unit=0.1),
    *rows("scale .02", scaled_plane(0.02), scaled(0.02), 0.0006, "energy", "edm", unit=0.02),
    *rows("scale 50", scaled_plane(50.0), scaled(50.0), 1.5, "energy", "edm", unit=50.0),
    *rows("scales 1:100", flat_plane(), FLAT, 0.003, "energy", "edm"),
    *rows("von Mises-Fisher", FISHER, CONCENTRATED, 0.02, "energy", "flow"),
    *rows("three modes on a circle", MODES_ON_CIRCLE, THREE, 0.03, "energy", "ddpm", "flow"),
    *rows("three modes on a 16-D sphere", sphere_16(), SIXTEEN, 0.03, "energy", "ddpm", "flow"),
    *rows("64-D sphere", sphere_64(), LONG, 0.05, "energy", "edm"),
    *rows("two modes, x0 given, 64-D", given(), PAIR, 0.03, "edm"),
    *rows("mass and energy 4-D", mass_energy(), FOUR, 0.02, "energy", "edm"),
    *rows("two circles", TWO_CIRCLES, WIDE_PAIR, 0.03, "energy", "edm", gibbs=False),
    *rows("small and large circle", nested_circles(), ROUND, 0.005, "energy", "edm", gibbs=False),
    *rows("ellipse", ellipse(), OVAL, 0.02, "energy", "edm", gibbs=False, steps=80, methods=FEW),
    *rows("decoded circle", decoded_circle(), LATENT, 0.02, "energy", "edm", decoder=DECODER),
    *rows("a circle for each chain", own_circles(), SLANTED, 0.03, "energy", "edm"),
    # thin with an edge
    *rows("simplex 3-D", simplex_3(), SLICE, 0.02, "energy", "edm", gibbs=False, bounds=True),
    *rows("simplex 10-D", simplex_10(), TEN, 0.02, "energy", "edm", gibbs=False, bounds=True),
    *rows("box and equation 4-D", box_and_equation(), FOUR, 0.02, "energy", "edm", gibbs=False, bounds=True),
    *rows("segment", segment(), CHORD, 0.02, "energy", "edm", gibbs=False, steps=80, methods=FEW),
    *rows("disc in a plane", disc(), CHORD, 0.02, "energy", "edm", gibbs=False),
    *rows("circle x interval", circle_times_interval(), CYLINDER, 0.02, "energy", "edm"),
    *rows("mass, energy and bounds 4-D", mass_energy_box_4(), FOUR, 0.02, "energy", "edm", gibbs=False),
    *rows("mass, energy and bounds 8-D", mass_energy_box_8(), BOX_8, 0.02, "energy", "edm", gibbs=False),
    # starts and steps
    Row(
        "particle on a circle",
        particle(),
        lambda: casal.energy(
            particle_potential, steps=500, step_size=0.1, init=particle_start, preconditioner=A_PARTICLE
        ),
        on_density(400.0),
    ),
    row("three modes from N(0, 4 I)", MODES_ON_CIRCLE, lambda: THREE.energy(500, start=wide(2.0, 2))),
    row("three modes from N(0, 100 I)", MODES_ON_CIRCLE, lambda: THREE.energy(500, start=wide(10.0, 2))),
    row("two circles from 300 times too far", TWO_CIRCLES, lambda: WIDE_PAIR.energy(500, start=wide(300.0, 2))),
    row("von Mises-Fisher, step auto", FISHER, lambda: CONCENTRATED.energy(500, "auto", wide(1.0, 3), 1.0)),
    row("variances 1 to 1e-6, step auto", stiff_plane(), lambda: STIFF.energy(1000, "auto", wide(1.0, 6), "auto")),
]
