"""Twenty distributions on sets whose exact statistics are known, and how far the samples of a method are from them.

A row of ``ROWS`` is a model, a set, a few statistics of a sample with their exact means and deviations, and the methods
that promise the distribution. On curved sets the reference measure is the surface measure, the limit of
p(x) exp(-rho/2 dist(x, C)^2) as rho grows; behind a decoder A it is that of the distribution of A x. The numbers are
closed forms or come from quadrature along the set; ``test_distributions.py`` compares them with draws of the model in
the set, or in a thin layer about it. The laboratory has more (``lab/tests/contracts``).

``scores(row, method)`` runs a method and gives value, exact value and standard error of every statistic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

import casal
from casal import Affine, Box, Constraint, HalfSpace, Implicit, MassEnergy, PerChain, Simplex, Sphere

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

Statistics = Callable[[Tensor], Mapping[str, Tensor]]
"""Numbers of every sample (n, d) -> name: (n,); truth values for shares."""


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
        constraint: The set, or a function that makes it for n chains.
        draw: Draws of the model without the set, in the space of the set.
        statistics: What is measured.
        exact: Mean and standard deviation of every statistic.
        edge: Distance of every sample to the edge of the set, relative to its size, (n,); None without an edge.
        width: Of a thin layer about the set that stands for it; the error is of second order.
    """

    constraint: Constraint | Callable[[int], Constraint]
    draw: Callable[[int, torch.Generator], Tensor]
    statistics: Statistics
    exact: Mapping[str, tuple[float, float]]
    edge: Callable[[Tensor], Tensor] | None = None
    width: float = 0.01

    def set_for(self, n: int) -> Constraint:
        """The set of n chains."""
        return self.constraint if isinstance(self.constraint, Constraint) else self.constraint(n)

    def values(self, z: Tensor) -> dict[str, Tensor]:
        """All statistics of samples (n, d); with an edge, the share near it is one of them."""
        close = {} if self.edge is None else {"near the edge": self.edge(z) < 0.05}
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


def scores(row: Row, method: Any, n: int = 4000, seed: int = 0) -> dict[str, Score]:
    """Run a method on a row and compare every statistic with its exact value.

    The standard error of a mean over samples that descend from common ancestors g is

        se^2 = sum over g of (sum over i in g of W_i (v_i - vbar))^2,

    at least that of independent draws of the exact distribution, and at most LARGEST_INFLATION times that. A set with
    an edge has the score "atoms" too: the share of samples on the edge, of which there must be none.

    Args:
        row: A row of the table.
        method: A method, "auto", or the name of a method of the row.
        n: Samples.
        seed: Of the run.

    Returns:
        By statistic: (value, exact, error), with ``.z`` in standard errors.
    """
    chosen = row.methods.get(method, method) if isinstance(method, str) else method
    known, constraint = row.distribution, row.distribution.set_for(n)
    how = casal.Run(threads=1)
    found = casal.sample(row.target(), constraint, chosen, n, decoder=row.decoder, seed=seed, check=False, run=how)
    z, weights = found.samples.to(F64), found.weights
    compared = {}
    for name, values in known.values(z).items():
        v, (right, sd) = values.to(F64), known.exact[name]
        mean = (weights * v).sum()
        family = torch.zeros(n, dtype=F64).index_add(0, found.ancestors, weights * (v - mean))
        least = max(sd**2, 1.0 / n) if values.dtype == torch.bool else sd**2
        spread = min(max(float(family.square().sum()), least / n), LARGEST_INFLATION**2 * least / n)
        compared[name] = Score(float(mean), right, math.sqrt(spread))
    if known.edge is not None:
        compared["atoms"] = Score(float((known.edge(z) < ATOM).to(F64).mean()), 0.0, ATOM)
    return compared


# ------------------------------------------------------------------ models


def numbers(*values: Any) -> Tensor:
    """A float64 tensor."""
    return torch.tensor(values, dtype=F64)


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


# ------------------------------------------------------------------ statistics, edges, methods


def moments(*index: int) -> Statistics:
    """Mean and mean square of some coordinates."""

    def of(z: Tensor) -> Mapping[str, Tensor]:
        return {f"x{k}": z[:, k] for k in index} | {f"x{k}^2": z[:, k].square() for k in index}

    return of


def between(low: Any, high: Any) -> Callable[[Tensor], Tensor]:
    """Distance to the nearest side of a box, relative to its width; negative outside."""
    low, high = torch.as_tensor(low, dtype=F64), torch.as_tensor(high, dtype=F64)
    return lambda z: torch.minimum(z - low, high - z).div(high - low).amin(1)


def smallest(z: Tensor) -> Tensor:
    """The smallest coordinate, the distance to the edge of an orthant."""
    return z.amin(1)


def on_density(rho: float) -> dict[str, Any]:
    """The methods that promise the distribution of a fixed density; "auto" is HMC where HMC takes the set."""
    return {"WeightedCASAL": casal.WeightedCASAL(rho), "auto": "auto"}


def on_diffusion(sigma: float, gibbs: bool = True, unit: float = 1.0) -> dict[str, Any]:
    """The methods that promise the distribution of a diffusion model of data of scale ``unit``.

    gibbs needs a set with closed forms.
    """
    exactly = {"gibbs": casal.SplitGibbs(sigma, moves="gibbs")} if gibbs else {}
    return {
        **exactly,
        "metropolis": casal.SplitGibbs(sigma, moves="metropolis"),
        "auto": "auto",
    }


# ------------------------------------------------------------------ solid sets

LINE = Mixture([[0.0]], 1.0)
THIN = 1e-3
THIN_BOX = Distribution(
    Box([0.0], [THIN]),
    LINE.draw,
    lambda z: {"x0": z[:, 0], "x0^2": z[:, 0].square(), "first quarter": z[:, 0] < THIN / 4},
    {
        "x0": (THIN / 2, THIN / math.sqrt(12)),
        "x0^2": (THIN**2 / 3, THIN**2 * math.sqrt(4 / 45)),
        "first quarter": (0.25, 0.433),
        "near the edge": (0.1, 0.3),
    },
    between([0.0], [THIN]),
)
"""N(0, 1) on [0, 0.001]: uniform to 1e-7."""

TAIL = Distribution(
    HalfSpace([-1.0], -4.0),
    LINE.draw,
    moments(0),
    {"x0": (4.22561, 0.216039), "x0^2": (17.9024, 1.91029), "near the edge": (0.191417, 0.393417)},
    lambda z: z[:, 0] - 4.0,
)
"""N(0, 1) beyond four standard deviations: E x = 4 + phi(4) / Phi(-4) - 4, E x^2 = 1 + 4 E x."""

TILTED = Mixture.gaussian([0.0, 0.0], [[1.0, 0.5], [0.5, 1.0]])
BOX = Distribution(
    Box([0.5, -1.0], [2.0, 0.3]),
    TILTED.draw,
    moments(0, 1),
    {
        "x0": (0.971847, 0.359516),
        "x1": (-0.209268, 0.34636),
        "x0^2": (1.07374, 0.812157),
        "x1^2": (0.163758, 0.23065),
        "near the edge": (0.207426, 0.405463),
    },
    between([0.5, -1.0], [2.0, 0.3]),
)

EIGHT = Mixture.gaussian(torch.linspace(-1.0, 1.0, 8, dtype=F64), 0.3 * torch.eye(8, dtype=F64) + 0.2)
NORMAL = torch.linspace(1.0, 0.3, 8, dtype=F64)
NORMAL_SD = float((NORMAL @ EIGHT.covariance @ NORMAL).sqrt())
WALL = float(NORMAL @ EIGHT.means[0]) - 2 * NORMAL_SD
HALF_SPACE = Distribution(
    HalfSpace(NORMAL, WALL),
    EIGHT.draw,
    moments(0, 7),
    {
        "x0": (-2.24326, 0.507236),
        "x7": (-0.0466474, 0.571637),
        "x0^2": (5.2895, 2.32163),
        "x7^2": (0.328945, 0.469342),
        "near the edge": (0.113048, 0.316651),
    },
    lambda z: (WALL - z @ NORMAL) / NORMAL_SD,
)
"""Two standard deviations below the mean."""

TEN = Mixture(torch.zeros(1, 10), 1.0)
ORTHANT = Distribution(
    Box(0.0, math.inf),
    lambda n, generator: TEN.draw(n, generator).abs(),
    lambda z: {"mean": z.mean(1), "mean square": z.square().mean(1), "x0 < .5": z[:, 0] < 0.5},
    {
        "mean": (math.sqrt(2 / math.pi), math.sqrt((1 - 2 / math.pi) / 10)),
        "mean square": (1.0, math.sqrt(0.2)),
        "x0 < .5": (math.erf(0.5 / math.sqrt(2)), 0.4861),
        "near the edge": (1.0 - math.erfc(0.05 / math.sqrt(2)) ** 10, 0.4727),
    },
    smallest,
)
"""N(0, I) in an orthant of ten dimensions."""

TWO_BOXES = Distribution(
    Box([-2.0, -2.0], [-1.0, -1.0]) | Box([0.5, 0.5], [2.0, 1.0]),
    TILTED.draw,
    lambda z: {**moments(0, 1)(z), "first box": z[:, 0] < 0},
    {
        "x0": (0.0812951, 1.25981),
        "x1": (-0.109729, 1.07648),
        "x0^2": (1.59372, 0.958935),
        "x1^2": (1.17084, 0.912534),
        "first box": (0.394969, 0.488844),
        "near the edge": (0.186539, 0.389541),
    },
    lambda z: torch.maximum(between([-2.0, -2.0], [-1.0, -1.0])(z), between([0.5, 0.5], [2.0, 1.0])(z)),
)

CURVED = Mixture.gaussian([0.5, -0.5], [[0.5, 0.2], [0.2, 0.4]])


def between_curves(z: Tensor) -> Tensor:
    """x^2 - 1 <= y <= 1/2."""
    return torch.stack([z[:, 0] ** 2 - 1 - z[:, 1], z[:, 1] - 0.5], 1)


REGION = Distribution(
    Implicit(None, between_curves),
    CURVED.draw,
    moments(0, 1),
    {
        "x0": (0.272944, 0.40436),
        "x1": (-0.28503, 0.367771),
        "x0^2": (0.238006, 0.272712),
        "x1^2": (0.216498, 0.234761),
        "near the edge": (0.0763679, 0.265586),
    },
    lambda z: -between_curves(z).amax(1),
)

# ------------------------------------------------------------------ thin sets


def gaussian_on_plane(mixture: Mixture, A: Tensor, b: Tensor, width: float) -> Distribution:
    """A Gaussian given A x = b: mean m + K (b - A m), covariance S - K A S, K = S A^T (A S A^T)^-1."""
    S, m = mixture.covariance, mixture.means[0]
    gain = torch.linalg.solve(A @ S @ A.T, A @ S).T
    mean, variance = (m + gain @ (b - A @ m)).tolist(), (S - gain @ A @ S).diagonal().tolist()
    exact = {f"x{k}": (u, math.sqrt(v)) for k, (u, v) in enumerate(zip(mean, variance, strict=True))}
    exact |= {
        f"x{k}^2": (u**2 + v, math.sqrt(2 * v**2 + 4 * u**2 * v))
        for k, (u, v) in enumerate(zip(mean, variance, strict=True))
    }
    return Distribution(Affine(A, b), mixture.draw, moments(*range(mixture.size)), exact, width=width)


SLOPED = Mixture.gaussian([1.0, -1.0], [[2.0, 0.6], [0.6, 0.5]])
ON_LINE = gaussian_on_plane(SLOPED, torch.ones(1, 2, dtype=F64), numbers(1.0), 0.01)


def scaled(scale: float) -> Mixture:
    """Correlated data of a given scale in three dimensions."""
    shape = numbers([1.0, 0.0, 0.7], [0.0, 0.3, 0.1], [0.7, 0.1, 1.0])
    return Mixture.gaussian(scale * numbers(1.0, -1.0, 0.5), scale**2 * shape)


def scaled_plane(scale: float) -> Distribution:
    """The same on x0 + x1 = scale / 2."""
    return gaussian_on_plane(scaled(scale), numbers([1.0, 1.0, 0.0]), numbers(0.5 * scale), 0.01 * scale)


CONCENTRATED = Mixture([[0.5, 0.0, 0.0]], math.sqrt(0.1))
COSINE = 1 / math.tanh(5.0) - 1 / 5.0
FISHER = Distribution(
    Sphere(1.0),
    CONCENTRATED.draw,
    moments(0, 1),
    {
        "x0": (COSINE, 0.199545),
        "x1": (0.0, 0.400023),
        "x0^2": (1 - 2 * COSINE / 5.0, 0.252902),
        "x1^2": (COSINE / 5.0, 0.191801),
    },
)
"""Von Mises-Fisher, concentration 5: E cos = coth 5 - 1/5."""

THREE = Mixture(MODES, MODE_SCALES[:, None], MODE_WEIGHTS)
MODES_ON_CIRCLE = Distribution(
    Sphere(2.0),
    THREE.draw,
    lambda z: {**{f"mode {k}": share for k, share in enumerate(THREE.modes(z).T)}, **moments(0)(z)},
    {
        "mode 0": (0.154836, 0.361723),
        "mode 1": (0.372585, 0.483493),
        "mode 2": (0.472579, 0.499229),
        "x0": (-0.211765, 1.261),
        "x0^2": (1.63496, 1.58868),
    },
)

PARTICLE = Distribution(
    Sphere(RADIUS),
    lambda n, generator: numbers(-2.0, 0.0) + numbers(0.6, SIGMA_Y) * wide(1.0, 2)(n, generator),
    lambda z: {"x0": z[:, 0], "x1^2": z[:, 1].square(), "wrong mode": z[:, 0] > 0},
    {"x0": (-2.99831, 0.00287477), "x1^2": (0.0101354, 0.014333), "wrong mode": (7.06e-8, 0.000265695)},
)
"""The particle of ``models.py``; the values are the published ones."""

PAIR = Mixture(torch.stack([torch.ones(64, dtype=F64), -torch.ones(64, dtype=F64)]), 0.3)
GIVEN = Distribution(
    Affine(torch.eye(64, dtype=F64)[:1], 0.8),
    PAIR.draw,
    lambda z: {
        "mean": z[:, 1:].mean(1),
        "x1": z[:, 1],
        "spread": (z[:, 1:] - 1).square().mean(1),
        "wrong mode": z[:, 1:].mean(1) < 0,
    },
    {
        "mean": (1.0, 0.3 / math.sqrt(63)),
        "x1": (1.0, 0.3),
        "spread": (0.09, 0.09 * math.sqrt(2 / 63)),
        "wrong mode": (0.0, 0.0),
    },
)
"""Two modes at 1 and -1 in all of 64 coordinates, x0 = .8 given: the other mode has 2e-8 of the weight."""

FOUR = Mixture([[0.2, 0.5, 0.9, 0.4]], [0.5, 0.3, 0.6, 0.4])
MASS_ENERGY = Distribution(
    MassEnergy(2.0, 1.0 + 0.36),
    FOUR.draw,
    moments(0, 1, 2),
    {
        "x0": (0.368263, 0.287542),
        "x1": (0.510934, 0.255067),
        "x2": (0.672073, 0.287165),
        "x0^2": (0.218298, 0.270165),
        "x1^2": (0.326113, 0.268094),
        "x2^2": (0.534147, 0.331457),
    },
    width=0.03,
)

WIDE_PAIR = Mixture([[0.3, -0.5]], [0.6, 0.9])
TWO_CIRCLES = Distribution(
    Sphere(1.2, [-1.5, 0.0]) | Sphere(0.3, [1.2, 0.5]),
    WIDE_PAIR.draw,
    lambda z: {"first circle": z[:, 0] < 0.3, **moments(0, 1)(z)},
    {
        "first circle": (0.701383, 0.457651),
        "x0": (0.0094338, 0.737039),
        "x1": (0.0113192, 0.535332),
        "x0^2": (0.543315, 0.568236),
        "x1^2": (0.286709, 0.303292),
    },
)

OVAL = Mixture.gaussian([0.5, 0.4], [[0.5, 0.2], [0.2, 0.4]])


def on_ellipse(z: Tensor) -> Tensor:
    """(x / 2)^2 + y^2 = 1."""
    return (z[:, :1] / 2) ** 2 + z[:, 1:] ** 2 - 1


ELLIPSE = Distribution(
    Implicit(on_ellipse),
    OVAL.draw,
    moments(0, 1),
    {
        "x0": (0.65547, 0.701415),
        "x1": (0.615835, 0.624773),
        "x0^2": (0.921624, 0.919949),
        "x1^2": (0.769594, 0.229987),
    },
)

FOUR_TO_TWO = numbers([1.0, 0.5, -0.3, 0.2], [0.0, 0.8, 0.6, -0.5])
LATENT = Mixture([[0.5, 0.2, -0.5, 0.3]], [1.2, 0.4, 0.3, 0.3])
DECODED_CIRCLE = Distribution(
    Sphere(1.5),
    lambda n, generator: LATENT.draw(n, generator) @ FOUR_TO_TWO.T,
    moments(0, 1),
    {
        "x0": (0.879112, 1.07669),
        "x1": (-0.352184, 0.440315),
        "x0^2": (1.93209, 0.414554),
        "x1^2": (0.317911, 0.414554),
    },
)


def by_circle(z: Tensor) -> Mapping[str, Tensor]:
    """Moments on the inner and on the outer circle."""
    inner = (z.norm(dim=1) < 1.5).to(F64)
    return {
        f"{name}, {where}": values * share
        for where, share in (("inner", inner), ("outer", 1 - inner))
        for name, values in moments(0, 1)(z).items()
    }


SLANTED = Mixture.gaussian([0.6, 0.3], [[0.8, 0.4], [0.4, 0.6]])
OWN_CIRCLES = Distribution(
    lambda n: Sphere(PerChain(numbers(1.0, 2.0).repeat(n // 2))),
    SLANTED.draw,
    by_circle,
    {
        "x0, inner": (0.186834, 0.498755),
        "x1, inner": (0.0505937, 0.46236),
        "x0^2, inner": (0.283664, 0.371989),
        "x1^2, inner": (0.216336, 0.323592),
        "x0, outer": (0.653098, 0.93449),
        "x1, outer": (0.391528, 0.739525),
        "x0^2, outer": (1.29981, 1.48494),
        "x1^2, outer": (0.700192, 1.0029),
    },
)
"""Every other chain on a circle of radius 1, the others on one of radius 2."""

# ------------------------------------------------------------------ thin sets with an edge

SLICE = Mixture([[0.6, 0.1, 0.3]], [0.3, 0.4, 0.5])
SIMPLEX = Distribution(
    Simplex(1.0),
    SLICE.draw,
    moments(0, 1, 2),
    {
        "x0": (0.471247, 0.20496),
        "x1": (0.234862, 0.169217),
        "x2": (0.293891, 0.193832),
        "x0^2": (0.264082, 0.197446),
        "x1^2": (0.0837949, 0.109154),
        "x2^2": (0.123943, 0.143726),
        "near the edge": (0.223905, 0.416859),
    },
    smallest,
)

BOX_AND_EQUATION = Distribution(
    Box(0.0, 1.0) & Affine(torch.ones(1, 4, dtype=F64), 1.5),
    FOUR.draw,
    moments(0, 1, 2),
    {
        "x0": (0.293498, 0.209236),
        "x1": (0.403523, 0.213612),
        "x2": (0.460872, 0.249317),
        "x0^2": (0.12992, 0.164636),
        "x1^2": (0.208461, 0.192877),
        "x2^2": (0.274562, 0.246564),
        "near the edge": (0.245148, 0.430175),
    },
    between(torch.zeros(4), torch.ones(4)),
)

CYLINDER = Mixture.gaussian([0.5, 0.3, 0.2], [[0.8, 0.2, 0.4], [0.2, 0.6, 0.3], [0.4, 0.3, 0.7]])
CIRCLE_TIMES_INTERVAL = Distribution(
    casal.Product(Sphere(1.0), Box(0.0, 1.0), sizes=(2, 1)),
    CYLINDER.draw,
    moments(0, 1, 2),
    {
        "x0": (0.459804, 0.580194),
        "x1": (0.314096, 0.59439),
        "x2": (0.445818, 0.276647),
        "x0^2": (0.548045, 0.348894),
        "x1^2": (0.451955, 0.348894),
        "x2^2": (0.275287, 0.273149),
        "near the edge": (0.0903189, 0.286638),
    },
    lambda z: torch.minimum(z[:, 2], 1 - z[:, 2]),
)


# ------------------------------------------------------------------ the table


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
    methods: Sequence[str] = ("WeightedCASAL", "gibbs", "metropolis", "auto"),
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
    """
    targets: dict[str, Callable[[], casal.Target]] = {
        "energy": lambda: mixture.energy(steps),
        "edm": mixture.edm,
        "ddpm": mixture.ddpm,
        "flow": mixture.flow,
    }

    def promised(model: str) -> dict[str, Any]:
        every = on_density(sigma**-2) if model == "energy" else on_diffusion(sigma, gibbs, unit)
        return {kind: method for kind, method in every.items() if kind in methods}

    def build(model: str) -> Row:
        free = None if model == "energy" else mixture
        return Row(f"{name}, {model}", distribution, targets[model], promised(model), decoder, free)

    return [build(model) for model in models]


FEW = ("metropolis", "auto")
A_PARTICLE = numbers(0.5, SIGMA_Y**2)
DECODER = casal.Linear(FOUR_TO_TWO)

ROWS: list[Row] = [
    # solid
    *rows("thin box 1-D", THIN_BOX, LINE, 0.02, "energy", "edm"),
    *rows("tail 1-D", TAIL, LINE, 0.02, "energy", "edm", gibbs=False),
    *rows("box 2-D", BOX, TILTED, 0.02, "energy", "flow"),
    *rows("half-space 8-D", HALF_SPACE, EIGHT, 0.02, "energy", "edm", gibbs=False),
    *rows("orthant 10-D", ORTHANT, TEN, 0.05, "energy", "edm"),
    *rows("two boxes", TWO_BOXES, TILTED, 0.02, "energy", "edm", gibbs=False),
    *rows("region between curves", REGION, CURVED, 0.02, "energy", "edm", gibbs=False, steps=80, methods=FEW),
    # thin
    *rows("line", ON_LINE, SLOPED, 0.03, "energy", "edm"),
    *rows("scale .1", scaled_plane(0.1), scaled(0.1), 0.003, "energy", "ddpm", unit=0.1),
    *rows("scale 50", scaled_plane(50.0), scaled(50.0), 1.5, "energy", "edm", unit=50.0),
    *rows("von Mises-Fisher", FISHER, CONCENTRATED, 0.02, "energy", "flow"),
    *rows("three modes on a circle", MODES_ON_CIRCLE, THREE, 0.03, "energy", "ddpm", "flow"),
    *rows("two modes, x0 given, 64-D", GIVEN, PAIR, 0.03, "edm"),
    *rows("mass and energy 4-D", MASS_ENERGY, FOUR, 0.02, "energy", "edm"),
    *rows("two circles", TWO_CIRCLES, WIDE_PAIR, 0.03, "energy", "edm", gibbs=False),
    *rows("ellipse", ELLIPSE, OVAL, 0.02, "energy", "edm", gibbs=False, steps=80, methods=FEW),
    *rows("decoded circle", DECODED_CIRCLE, LATENT, 0.02, "energy", "edm", decoder=DECODER),
    *rows("a circle for each chain", OWN_CIRCLES, SLANTED, 0.03, "energy", "edm"),
    # thin with an edge
    *rows("simplex 3-D", SIMPLEX, SLICE, 0.02, "energy", "edm", gibbs=False),
    *rows("box and equation 4-D", BOX_AND_EQUATION, FOUR, 0.02, "energy", "edm", gibbs=False),
    *rows("circle x interval", CIRCLE_TIMES_INTERVAL, CYLINDER, 0.02, "energy", "edm"),
    # starts and steps
    Row(
        "particle on a circle",
        PARTICLE,
        lambda: casal.energy(
            particle_potential, steps=500, step_size=0.1, init=particle_start, preconditioner=A_PARTICLE
        ),
        on_density(400.0),
    ),
    Row(
        "von Mises-Fisher, step auto",
        FISHER,
        lambda: CONCENTRATED.energy(500, "auto", wide(1.0, 3), 1.0),
        {"auto": "auto"},
    ),
]
