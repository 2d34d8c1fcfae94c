"""Distributions on sets that are known exactly, each with a model and a method that should get them right.

The exact mean of a statistic is its mean over a reference: nodes of a quadrature with respect to the surface measure of
the set, or many exact draws. Cases that are held out were not run while thresholds were set.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

import casal
from casal.diagnostics import Evidence, Fidelity, assess
from casal.methods import Problem
from casal_lab.experiment import AnyMethod
from casal_lab.problems import double_well
from casal_lab.problems.anisotropic_mixture import AnisotropicMixture
from casal_lab.problems.three_modes import MIXTURE
from casal_lab.twisted import Twisted

F64 = torch.float64
SMALL = 1e-3
"""Noise at which the score of a mixture is read off its denoiser: small beside its modes, large beside rounding."""

DRAWS = 100_000
"""Draws of a reference that is not a quadrature."""

Map = Callable[[Tensor], Tensor]
Start = Callable[[int, torch.Generator], Tensor]


class Reference(NamedTuple):
    """Points of the set and their weights, which sum to one."""

    points: Tensor  # (m, d)
    weights: Tensor  # (m,)


class Model:
    """A fixed density, or a diffusion model with an exact network; ``target`` may break it on purpose."""

    def __init__(
        self,
        mixture: AnisotropicMixture | None = None,
        family: str = "density",
        *,
        steps: int = 200,
        log_density: Map | None = None,
        start: Start | None = None,
        unit: float | Tensor | None = None,
        known: bool = True,
        dtype: torch.dtype = F64,
    ) -> None:
        self.mixture, self.family, self.steps, self.known, self.dtype = mixture, family, steps, known, dtype
        self._log_density, self._start, self._unit = log_density, start, unit

    @property
    def diffusion(self) -> bool:
        """Whether it has noise levels."""
        return self.family != "density"

    @property
    def cools(self) -> bool:
        """Whether half its temperature is a model again: a density, or one Gaussian."""
        return not self.diffusion or (self.mixture is not None and len(self.mixture.weights) == 1)

    def log_density(self, x: Tensor) -> Tensor:
        """log p up to a constant, (n,)."""
        if self._log_density is not None:
            return self._log_density(x)
        assert self.mixture is not None
        return self.mixture.log_density(x)

    def target(
        self, temperature: float = 1.0, step: float = 1.0, steeper: float = 1.0, start: Start | None = None
    ) -> casal.Target:
        """The model.

        Args:
            temperature: p^(1 / temperature) in its place.
            step: Factor of the step size.
            steeper: Factor of the score, and not of the potential.
            start: Other starting points.
        """
        if self.diffusion:
            return self._diffusion(temperature)
        begin = start or self._start
        if begin is None:
            assert self.mixture is not None
            begin = self.mixture.sample
        unit = self._unit
        if unit is None:
            assert self.mixture is not None
            unit = float(self.mixture.variances.min())

        def potential(x: Tensor) -> Tensor:
            return -self.log_density(x) / temperature

        def gradient(x: Tensor) -> Tensor:
            if self._log_density is None and self.mixture is not None:
                return steeper / temperature * (x - self.mixture.denoise(x, SMALL)) / SMALL**2
            with torch.enable_grad():
                leaf = x.detach().requires_grad_()
                (found,) = torch.autograd.grad(potential(leaf).sum(), leaf)
            return steeper * found

        return casal.langevin(
            gradient,
            steps=self.steps,
            step_size=0.2 * step,
            init=begin,
            preconditioner=unit,
            potential=potential if self.known and steeper == 1.0 else None,
        )

    def _diffusion(self, temperature: float) -> casal.Target:
        assert self.mixture is not None
        mixture = self.mixture
        if temperature != 1.0:
            mixture = AnisotropicMixture(mixture.weights, mixture.means, mixture.axes, temperature * mixture.variances)
        size = mixture.dimension
        widest = float((mixture.means.square().sum(1) + mixture.variances.amax(1)).max().sqrt())
        finest = 0.02 * float(mixture.variances.min().sqrt())
        levels = casal.karras_sigmas(self.steps, finest, 40.0 * widest)

        def clean(x: Tensor, alpha: Tensor, sigma: Tensor) -> Tensor:
            return mixture.denoise(x / alpha.to(x), (sigma / alpha).to(x))

        if self.family == "edm":
            return casal.edm(lambda x, s: mixture.denoise(x, s.to(x)), levels, shape=size, churn=0.5, dtype=self.dtype)
        if self.family == "ddpm":
            kept = 1 / (1 + levels.flip(0).square())
            betas = 1 - kept / torch.cat([torch.ones(1, dtype=F64), kept[:-1]])

            def eps(x: Tensor, t: Tensor) -> Tensor:
                alpha, sigma = kept[t].sqrt(), (1.0 - kept[t]).sqrt()
                return (x - alpha.to(x) * clean(x, alpha, sigma)) / sigma.to(x)

            return casal.ddpm(eps, betas, shape=size, dtype=self.dtype, time="scalar")
        mean = mixture.weights @ mixture.means

        def velocity(x: Tensor, t: Tensor) -> Tensor:
            if not bool(t.any()):
                return mean.to(x) - x
            return (clean(x, t, 1 - t) - x) / (1 - t).to(x)

        return casal.flow(velocity, steps=self.steps, shape=size, noise=0.5, dtype=self.dtype)


@dataclass(frozen=True, eq=False)
class Case:
    """A distribution on a set, a model of it and a method that promises it."""

    name: str
    constraint: casal.Constraint
    model: Model
    method: AnyMethod | str
    reference: Callable[[], Reference]
    decoder: casal.Decoder | None = None
    held: bool = False  # not run while thresholds were set
    edge: bool = False
    implicit: bool = False
    shares: Map | None = None  # weights of modes, (n, d) -> (n, k), among the statistics
    n: int = 600  # chains of a run

    def statistics(self, z: Tensor) -> Tensor:
        """The first three coordinates and their squares, and the weights of modes: (n, k) float64."""
        first = z.to(F64)[:, :3]
        return torch.cat([first, first.square(), *([] if self.shares is None else [self.shares(z.to(F64))])], dim=1)

    @cached_property
    def exact(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of every statistic, (k,) each."""
        points, weights = self.reference()
        values = self.statistics(points)
        mean = weights @ values
        return mean, (weights @ (values - mean).square()).sqrt()

    def sample(self, seed: int, method: AnyMethod | str | None = None, **options: Any) -> casal.SampleResult:
        """A run; ``options`` of ``Model.target``, and ``check``."""
        check = options.pop("check", True)
        return casal.sample(
            self.model.target(**options),
            self.constraint,
            method or self.method,
            self.n,
            decoder=self.decoder,
            seed=seed,
            check=check,
            run=casal.Run(dtype=self.model.dtype, threads=1),
        )

    def certify(self, result: casal.SampleResult) -> Fidelity:
        """What the checks say of samples that were made in another way than they claim."""
        target = self.model.target()
        size = result.samples.shape[1] if self.decoder is None else int(self.decoder.latent_size or 0)
        like = torch.zeros((0, size), dtype=self.model.dtype)
        problem = Problem(target, self.constraint, self.decoder or casal.Identity(), like)
        evidence = Evidence(result, problem, result.cost.score_evaluations, result.cost.projections)
        with torch.no_grad():
            return assess(evidence, promised=True, method="the run")

    def errors(self, result: casal.SampleResult) -> Tensor:
        """Error of every statistic, in standard errors: those of the run, at least those of independent draws."""
        mean, spread = self.exact
        value, error = result.expect(self.statistics)
        told = spread > 1e-9
        least = spread / math.sqrt(len(result.samples))
        return ((value - mean) / torch.maximum(error, least))[told]

    def error(self, result: casal.SampleResult) -> float:
        """The largest of them, without its sign."""
        return float(self.errors(result).abs().max())


# ------------------------------------------------------------------------------------------------- references


def numbers(*values: Any) -> Tensor:
    """A float64 tensor."""
    return torch.tensor(values, dtype=F64)


def middles(low: float, high: float, count: int) -> Tensor:
    """Middles of equal intervals."""
    return low + (high - low) * (torch.arange(count, dtype=F64) + 0.5) / count


def grid(*lines: Tensor) -> Tensor:
    """All points with coordinates on the given lines, one column a line."""
    return torch.cartesian_prod(*lines)


def weighted(points: Tensor, log_weight: Tensor) -> Reference:
    """Points with weights given by their logarithms."""
    return Reference(points, torch.softmax(log_weight, 0))


def drawn(points: Tensor) -> Reference:
    """Draws of equal weight."""
    return Reference(points, torch.full((len(points),), 1.0 / len(points), dtype=F64))


def ring(radius: float = 1.0, count: int = 4000) -> Tensor:
    """Points at equal distances on a circle about the origin."""
    angle = middles(-math.pi, math.pi, count)
    return radius * torch.stack([angle.cos(), angle.sin()], 1)


def ball_surface(count: int = 200) -> Tensor:
    """Nodes of equal weight on the unit sphere in three dimensions."""
    height, angle = grid(middles(-1.0, 1.0, count), middles(-math.pi, math.pi, 2 * count)).T
    flat = (1 - height.square()).sqrt()
    return torch.stack([flat * angle.cos(), flat * angle.sin(), height], 1)


def gaussian(mean: Any, covariance: Any) -> AnisotropicMixture:
    """N(mean, covariance)."""
    values, axes = torch.linalg.eigh(torch.as_tensor(covariance, dtype=F64))
    return AnisotropicMixture(numbers(1.0), torch.as_tensor(mean, dtype=F64)[None], [axes], values[None])


def aligned(means: Any, sds: Any, weights: Any) -> AnisotropicMixture:
    """Modes with axes along the coordinates."""
    means = torch.as_tensor(means, dtype=F64)
    spread = torch.as_tensor(sds, dtype=F64).square().expand(means.shape)
    return AnisotropicMixture(torch.as_tensor(weights, dtype=F64), means, [None] * len(means), spread.contiguous())


def given(
    mixture: AnisotropicMixture, A: Tensor, b: Tensor, n: int = DRAWS, generator: torch.Generator | None = None
) -> Tensor:
    """Draws of a Gaussian given A x = b: x - K (A x - b), K = S A^T (A S A^T)^-1."""
    x, S = mixture.sample(n, generator or torch.Generator().manual_seed(0)), mixture.covariance(0)
    return x - torch.linalg.solve(A @ S @ A.T, (x @ A.T - b).T).T @ (A @ S)


def kept(points: Tensor, constraint: casal.Constraint) -> Reference:
    """Those draws that are in the set."""
    return drawn(points[constraint.violation(points) == 0.0])


def responsibilities(mixture: AnisotropicMixture) -> Map:
    """Weights of the modes of a mixture."""
    return lambda z: mixture.responsibilities(z)


# ------------------------------------------------------------------------------------------------- models and sets

THREE = aligned(MIXTURE.means, MIXTURE.spreads[:, None], MIXTURE.weights)
TILTED = gaussian([0.0, 0.0], [[1.0, 0.5], [0.5, 1.0]])
POLE = gaussian([1.2, 0.8, -0.5], [[0.6, 0.2, 0.0], [0.2, 0.5, 0.1], [0.0, 0.1, 0.8]])
FOUR = gaussian(
    [0.5, -0.5, 0.0, 1.0],
    [[0.8, 0.2, 0.1, 0.0], [0.2, 0.6, -0.1, 0.2], [0.1, -0.1, 0.7, 0.1], [0.0, 0.2, 0.1, 0.5]],
)
OVAL = gaussian([0.8, 0.4], [[0.7, 0.2], [0.2, 0.4]])
SLICE = gaussian([0.5, 0.2, 0.3], [[0.09, 0.02, 0.0], [0.02, 0.12, 0.01], [0.0, 0.01, 0.16]])
ROWS_4, SIDE_4 = numbers([1.0, 1.0, -1.0, 0.5]), numbers(1.5)
FAR = AnisotropicMixture(
    numbers(0.4, 0.6),
    torch.cat([numbers([0.6, 0.5]), torch.zeros(1, 62, dtype=F64)], 1).repeat(2, 1) * numbers(1.0, -1.0)[:, None],
    [None, None],
    torch.linspace(0.3, 0.6, 64, dtype=F64).square().repeat(2, 1),
)
FIVE = gaussian(
    [0.6, -0.3, 0.4, 0.0, 0.8], torch.diag(numbers(0.5, 0.8, 0.6, 1.0, 0.7)) + 0.1 * torch.ones(5, 5, dtype=F64)
)
PAIR = aligned([[1.0, 0.2, 0.0], [-0.8, 0.0, 0.6]], 0.4, [0.35, 0.65])
ROWS_3, SIDE_3 = numbers([0.3, 1.0, 0.5]), numbers(0.3)
WIDE = numbers([1.0, 0.5, -0.3, 0.2], [0.0, 0.8, 0.6, -0.5])
LATENT = aligned([[0.5, 0.2, -0.5, 0.3]], [[1.2, 0.4, 0.3, 0.3]], [1.0])
SEEN = gaussian(WIDE @ LATENT.means[0], WIDE @ LATENT.covariance(0) @ WIDE.T)


def on_ellipse(z: Tensor) -> Tensor:
    """(x/2)^2 + y^2 = 1."""
    return (z[:, :1] / 2) ** 2 + z[:, 1:] ** 2 - 1


def between_curves(z: Tensor) -> Tensor:
    """x^2 - 1 <= y <= 1/2."""
    return torch.stack([z[:, 0] ** 2 - 1 - z[:, 1], z[:, 1] - 0.5], 1)


def ellipse_reference() -> Reference:
    """Over arc length."""
    angle = middles(-math.pi, math.pi, 8000)
    points = torch.stack([2 * angle.cos(), angle.sin()], 1)
    speed = (4 * angle.sin().square() + angle.cos().square()).sqrt()
    return weighted(points, OVAL.log_density(points) + speed.log())


def region_reference() -> Reference:
    """In coordinates that fit the curves."""
    x, share = grid(middles(-math.sqrt(1.5), math.sqrt(1.5), 400), middles(0.0, 1.0, 400)).T
    height = 1.5 - x**2
    points = torch.stack([x, x**2 - 1 + share * height], 1)
    return weighted(points, OVAL.log_density(points) + height.log())


def cylinder_reference() -> Reference:
    """Over the angle and the height."""
    angle, height = grid(middles(-math.pi, math.pi, 600), middles(0.0, 1.0, 200)).T
    points = torch.stack([angle.cos(), angle.sin(), height], 1)
    return weighted(points, POLE.log_density(points))


def triangle_reference() -> Reference:
    """Of the simplex in three dimensions."""
    u, v = grid(middles(0.0, 1.0, 400), middles(0.0, 1.0, 400)).T
    points = torch.stack([u, (1 - u) * v, (1 - u) * (1 - v)], 1)
    return weighted(points, SLICE.log_density(points) + (1 - u).log())


def uniform_on_sphere(size: int, radius: float) -> Tensor:
    """Draws of equal weight on a sphere about the origin."""
    drawn = torch.randn((4 * DRAWS, size), generator=torch.Generator().manual_seed(0), dtype=F64)
    return radius * drawn / torch.linalg.vector_norm(drawn, dim=1, keepdim=True)


def plane_reference() -> Reference:
    """A square about the foot of the origin that holds all but a negligible share of the modes."""
    axes, line = torch.linalg.svd(ROWS_3)[2][1:], middles(-4.0, 4.0, 400)
    foot = ROWS_3[0] * SIDE_3 / ROWS_3.square().sum()
    points = foot + grid(line, line) @ axes
    return weighted(points, PAIR.log_density(points))


def disc_reference() -> Reference:
    """In polar coordinates."""
    radius, angle = grid(middles(0.0, 1.0, 300), middles(-math.pi, math.pi, 600)).T
    points = radius[:, None] * torch.stack([angle.cos(), angle.sin()], 1)
    return weighted(points, OVAL.log_density(points) + radius.log())


def mass_energy_reference() -> Reference:
    """sum z = 0.3 and |z| = 1 in three dimensions: a circle."""
    basis = torch.linalg.svd(torch.ones(1, 3, dtype=F64))[2][1:]
    points = 0.1 + math.sqrt(1.0 - 0.03) * ring() @ basis
    return weighted(points, POLE.log_density(points))


def on_nodes(points: Tensor, mixture: AnisotropicMixture) -> Callable[[], Reference]:
    """Nodes of equal volume."""
    return lambda: weighted(points, mixture.log_density(points))


BOX = (numbers(0.3, -1.0), numbers(2.0, 0.3))
SPLIT = aligned([[2.0, 0.3], [-2.0, 0.3]], 0.25, [0.5, 0.5])
"""Two modes so far apart that no chain goes from one to the other."""
ORTHANT = casal.Box(torch.zeros(64, dtype=F64), torch.full((64,), math.inf, dtype=F64))


def particle_log_density(x: Tensor) -> Tensor:
    """Minus a double well in x, and y ~ N(0, 0.1^2): the paper's particle."""
    return -double_well.potential(x[:, 0]) - 0.5 * (x[:, 1] / 0.1).square()


def particle_start(n: int, generator: torch.Generator) -> Tensor:
    """Standard normal."""
    return torch.randn((n, 2), generator=generator, dtype=F64)


def particle_reference() -> Reference:
    """Over the angle."""
    points = ring(3.0, 20_000)
    return weighted(points, particle_log_density(points))


def cases() -> list[Case]:
    """All distributions."""
    circle, sphere, box = casal.Sphere(2.0), casal.Sphere(1.0), casal.Box(*BOX)
    inside_box = on_nodes(grid(middles(0.3, 2.0, 300), middles(-1.0, 0.3, 300)), TILTED)
    plane, on_plane = casal.Affine(ROWS_4, SIDE_4), lambda: drawn(given(FOUR, ROWS_4, SIDE_4))
    corner = casal.Box([-2.0, -2.0], [-1.0, -1.0]) | casal.Box([0.5, 0.5], [2.0, 1.0])
    corners = torch.cat(
        [grid(middles(-2.0, -1.0, 200), middles(-2.0, -1.0, 200)), grid(middles(0.5, 2.0, 300), middles(0.5, 1.0, 100))]
    )  # squares of equal area
    first = torch.eye(64, dtype=F64)[:1]
    diamond = casal.L1Ball(1.0)
    particle = Model(
        log_density=particle_log_density,
        start=particle_start,
        unit=numbers(1.0 / double_well.CURVATURE, 0.01),
        steps=400,
    )
    flat = responsibilities(THREE)
    return [
        Case(
            "three modes on a circle",
            circle,
            Model(THREE),
            casal.WeightedCASAL(),
            on_nodes(ring(2.0), THREE),
            shares=flat,
        ),
        Case("Gaussian on a sphere", sphere, Model(POLE), casal.WeightedCASAL(), on_nodes(ball_surface(), POLE)),
        Case("Gaussian in a box", box, Model(TILTED), casal.WeightedCASAL(), inside_box, edge=True),
        Case("simplex", casal.Simplex(1.0), Model(SLICE), casal.WeightedCASAL(), triangle_reference, edge=True),
        Case("mass and energy", casal.MassEnergy(0.3, 1.0), Model(POLE), casal.WeightedCASAL(), mass_energy_reference),
        Case("plane in 4-D", plane, Model(FOUR), casal.WeightedCASAL(), on_plane),
        Case(
            "ellipse (implicit)",
            casal.Implicit(on_ellipse),
            Model(OVAL, steps=60),
            casal.WeightedCASAL(),
            ellipse_reference,
            implicit=True,
            n=300,
        ),
        Case(
            "region between curves (implicit)",
            casal.Implicit(None, between_curves),
            Model(OVAL, steps=80),
            casal.WeightedCASAL(),
            region_reference,
            implicit=True,
            edge=True,
            n=300,
        ),
        Case("two boxes", corner, Model(TILTED), casal.WeightedCASAL(), on_nodes(corners, TILTED), edge=True),
        Case(
            "orthant in 64-D",
            ORTHANT,
            Model(aligned(torch.zeros(1, 64), 1.0, [1.0]), steps=200),
            casal.HMC(),
            lambda: drawn(torch.randn((DRAWS, 64), generator=torch.Generator().manual_seed(0), dtype=F64).abs()),
            edge=True,
        ),
        Case(
            "decoded circle",
            casal.Sphere(1.5),
            Model(LATENT),
            casal.WeightedCASAL(),
            on_nodes(ring(1.5), SEEN),
            decoder=casal.Linear(WIDE),
        ),
        Case(
            "three modes on a circle, edm",
            circle,
            Model(THREE, "edm", steps=100),
            casal.SplitGibbs(0.03, levels=20),
            on_nodes(ring(2.0), THREE),
            shares=flat,
        ),
        Case("plane in 4-D, ddpm", plane, Model(FOUR, "ddpm", steps=100), casal.SplitGibbs(0.02, levels=20), on_plane),
        Case(
            "Gaussian in a box, flow",
            box,
            Model(TILTED, "flow", steps=100),
            casal.SplitGibbs(0.02, levels=20),
            inside_box,
            edge=True,
        ),
        Case(
            "Gaussian on a sphere, edm",
            sphere,
            Model(POLE, "edm", steps=100),
            Twisted(2500.0),
            on_nodes(ball_surface(), POLE),
        ),
        Case(
            "two modes, first coordinate given, 64-D, edm",
            casal.Affine(first, numbers(0.3)),
            Model(FAR, "edm", steps=60),
            "auto",
            far_reference,
            shares=responsibilities(FAR),
        ),
        Case("particle on a circle", casal.Sphere(3.0), particle, casal.WeightedCASAL(400.0), particle_reference),
        Case(
            "circle x interval",
            casal.Product(casal.Sphere(1.0), casal.Box(0.0, 1.0), sizes=(2, 1)),
            Model(POLE),
            casal.WeightedCASAL(),
            cylinder_reference,
            edge=True,
        ),
        Case(
            "diamond, edm",
            diamond,
            Model(POLE, "edm", steps=100),
            casal.SplitGibbs(moves="metropolis", levels=20),
            lambda: kept(POLE.sample(40 * DRAWS // 10, torch.Generator().manual_seed(0)), diamond),
            edge=True,
        ),
        Case(
            "three modes on a circle, flow, float32",
            circle,
            Model(THREE, "flow", steps=100, dtype=torch.float32),
            casal.SplitGibbs(0.03, levels=20),
            on_nodes(ring(2.0), THREE),
            shares=flat,
        ),
        Case(
            "Gaussian on a sphere in 5-D",
            casal.Sphere(1.5),
            Model(FIVE),
            casal.WeightedCASAL(),
            lambda: weighted(on := uniform_on_sphere(5, 1.5), FIVE.log_density(on)),
            held=True,
        ),
        Case(
            "two modes on a plane in 3-D, ddpm",
            casal.Affine(ROWS_3, SIDE_3),
            Model(PAIR, "ddpm", steps=100),
            casal.SplitGibbs(0.03, levels=20),
            plane_reference,
            shares=responsibilities(PAIR),
            held=True,
        ),
        Case(
            "Gaussian in a disc, flow",
            casal.Ball(1.0),
            Model(OVAL, "flow", steps=100),
            casal.SplitGibbs(moves="metropolis", levels=20),
            disc_reference,
            edge=True,
            held=True,
        ),
    ]


def far_reference() -> Reference:
    """Each mode given its first coordinate: the others keep their normal distributions."""
    stream = torch.Generator().manual_seed(0)
    variance = FAR.variances[:, 0]
    log_weight = FAR.weights.log() - 0.5 * ((0.3 - FAR.means[:, 0]).square() / variance + variance.log())
    which = torch.multinomial(torch.softmax(log_weight, 0), DRAWS, replacement=True, generator=stream)
    noise = torch.randn((DRAWS, 64), generator=stream, dtype=F64)
    points = FAR.means[which] + FAR.variances[which].sqrt() * noise
    points[:, 0] = 0.3
    return drawn(points)


def without_potential(mixture: AnisotropicMixture) -> Case:
    """A mixture on the circle of radius 2 whose score alone is known: no tempered start gives its modes weights."""
    return Case(
        "modes on a circle, no potential",
        casal.Sphere(2.0),
        Model(mixture, known=False),
        casal.WeightedCASAL(),
        on_nodes(ring(2.0), mixture),
        shares=responsibilities(mixture),
    )


def smaller(case: Case, steps: int, method: AnyMethod | str, n: int) -> Case:
    """The same with fewer steps and chains."""
    model = case.model
    fewer = Model(
        model.mixture, model.family, steps=steps, log_density=model._log_density, start=model._start, unit=model._unit
    )
    return replace(case, model=fewer, method=method, n=n)
