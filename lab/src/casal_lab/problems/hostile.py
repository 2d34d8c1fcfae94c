"""Calls of ``casal.sample`` that make it hard to be right, or hard to see that one is right, with exact answers.

Slow directions between the axes, units that differ, short runs, heavy tails, many modes, steps in an energy, a few
chains, sets thinner than the model. The exact answer is a set of exact draws, or the nodes of a quadrature.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

import casal
from casal.errors import CasalError

F64 = torch.float64
DRAWS = 200_000
"""Of a reference by draws: its error is 1/20 of that of 500 samples."""

WRONG, BIAS = 4.0, 0.1
"""A run is wrong if a statistic is off by so many standard errors of its effective samples, and so many deviations."""


class Call(NamedTuple):
    """What ``casal.sample`` is given, and points (m, d) of the exact distribution with weights (m,)."""

    target: casal.Target
    constraint: casal.Constraint
    points: Tensor
    weights: Tensor
    decoder: casal.Decoder | None = None


@dataclass(frozen=True)
class Hostile:
    """One of these calls.

    Attributes:
        name: Short.
        kind: What makes it hard.
        make: The call.
        n: Chains.
        modes: Whether a mode is missing from the start: no check can see one that no chain found.
    """

    name: str
    kind: str
    make: Callable[[], Call]
    n: int = 500
    modes: bool = False


class Judged(NamedTuple):
    """One run beside the exact answer.

    Attributes:
        verdict: Or the name of the error it ended with.
        z: Largest error of a statistic, in standard errors.
        bias: The same in standard deviations of the statistic.
        wrong: Whether both are large.
        reason: The first one.
        cost: Evaluations of the checks, as a share of those of the run.
    """

    verdict: str
    z: float
    bias: float
    wrong: bool
    reason: str
    cost: float


def judge(case: Hostile, seed: int, method: Any = "auto", n: int | None = None, **options: Any) -> Judged:
    """Run a case and compare means, variances and 10 % tails of coordinates and principal directions."""
    call = case.make()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = casal.sample(
                call.target, call.constraint, method, n or case.n, decoder=call.decoder, seed=seed, **options
            )
    except CasalError as error:
        return Judged(type(error).__name__, math.nan, math.nan, False, str(error), 0.0)
    z = result.samples.flatten(1).to(F64)
    effective = max(result.fidelity.figures.get("effective_ancestors", float(len(z))), 1.0)
    errors = torch.cat(
        [(here - there).abs() / there_spread for here, there, there_spread in _statistics(call, z, result)]
    )
    errors = torch.nan_to_num(errors, nan=math.inf)
    bias, told = float(errors.max()), result.fidelity
    score = bias * math.sqrt(effective)
    wrong = score > WRONG and bias > BIAS
    reason = told.reasons[0] if told.reasons else ""
    return Judged(
        told.verdict, score, bias, wrong, reason, result.cost.check_evaluations / result.cost.score_evaluations
    )


def _statistics(call: Call, z: Tensor, result: casal.SampleResult) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Means over samples and over the reference, and the standard deviation of each statistic."""
    points, weights = call.points.flatten(1), call.weights / call.weights.sum()
    mean = weights @ points
    scaled = (points - mean) * weights.sqrt()[:, None]
    spread = scaled.square().sum(0).sqrt()
    axes = torch.linalg.svd(scaled[:: max(1, len(scaled) // 20000)] / spread.clamp_min(1e-300), full_matrices=False)[2]
    directions = torch.cat([torch.eye(z.shape[1], dtype=F64), axes]) / spread.clamp_min(1e-300)
    moves = (scaled @ directions.T).square().sum(0) > 1e-10
    directions = directions[moves]
    exact, found = ((v - mean) @ directions.T for v in (points, z))
    order = exact.argsort(0)
    level = weights[order].cumsum(0)
    low, high = (
        exact.gather(0, order).gather(0, (level < q).sum(0, keepdim=True).clamp_max(len(points) - 1))
        for q in (0.1, 0.9)
    )
    out = []
    for f in (lambda u: u, torch.square, lambda u: (u < low).to(F64), lambda u: (u > high).to(F64)):
        there = weights @ f(exact)
        out.append((result.weights @ f(found), there, (weights @ (f(exact) - there).square()).sqrt().clamp_min(1e-300)))
    return out


# ------------------------------------------------------------------------------------------------ Gaussians


class Gaussian(NamedTuple):
    """N(mean, axes diag(variances) axes')."""

    mean: Tensor
    axes: Tensor
    variances: Tensor

    @property
    def covariance(self) -> Tensor:
        """(d, d)."""
        return self.axes * self.variances @ self.axes.T

    def gradient(self, x: Tensor) -> Tensor:
        """Of -log p."""
        axes = self.axes.to(x)
        return (x - self.mean.to(x)) @ axes / self.variances.to(x) @ axes.T

    def energy(self, x: Tensor) -> Tensor:
        """-log p."""
        u = (x - self.mean.to(x)) @ self.axes.to(x)
        return (u.square() / self.variances.to(x)).sum(1) / 2

    def draws(self, seed: int = 0) -> Tensor:
        """(DRAWS, d)."""
        w = torch.randn((DRAWS, len(self.mean)), generator=torch.Generator().manual_seed(seed), dtype=F64)
        return self.mean + (w * self.variances.sqrt()) @ self.axes.T

    def given(self, a: Tensor, values: Tensor, seed: int = 0) -> Tensor:
        """Draws given a . x = values (DRAWS,), by Matheron's rule."""
        x = self.draws(seed)
        gain = self.covariance @ a / (a @ self.covariance @ a)
        return x + (values - x @ a)[:, None] * gain

    def below(self, a: Tensor, b: float, seed: int = 0) -> Tensor:
        """Draws given a . x <= b."""
        mean, sd = float(a @ self.mean), float(a @ self.covariance @ a) ** 0.5
        u = torch.rand(DRAWS, generator=torch.Generator().manual_seed(seed + 1), dtype=F64)
        top = torch.special.ndtr(torch.tensor((b - mean) / sd, dtype=F64))
        return self.given(a, mean + sd * torch.special.ndtri(u * top), seed)


def rotated(variances: Tensor, mean: Tensor | None = None, slow: float = 0.0, seed: int = 0) -> Gaussian:
    """Variances along random axes; the mean is ``slow`` standard deviations out along the last, widest one."""
    d = len(variances)
    axes = torch.linalg.qr(torch.randn((d, d), generator=torch.Generator().manual_seed(seed), dtype=F64))[0]
    centre = slow * variances[-1].sqrt() * axes[:, -1] if mean is None else mean
    return Gaussian(centre, axes, variances)


def correlated(rho: float, mean: float) -> Gaussian:
    """Two coordinates of variance one."""
    axes = torch.tensor([[1.0, 1.0], [-1.0, 1.0]], dtype=F64) / math.sqrt(2.0)
    return Gaussian(torch.full((2,), mean, dtype=F64), axes, torch.tensor([1.0 - rho, 1.0 + rho], dtype=F64))


def near(scale: float, d: int) -> Callable[[int, torch.Generator], Tensor]:
    """Starting points: scale times standard normal ones."""
    return lambda n, generator: scale * torch.randn((n, d), generator=generator, dtype=F64)


def spectrum(low: float, d: int, high: float = 1.0) -> Tensor:
    """Variances in equal ratios."""
    return torch.logspace(math.log10(low), math.log10(high), d, dtype=F64)


def even(points: Tensor) -> Tensor:
    """Equal weights."""
    return torch.full((len(points),), 1.0 / len(points), dtype=F64)


def langevin(p: Gaussian, scale: float, steps: int = 300, energy: bool = False) -> casal.Target:
    """The density as a user would give it."""
    init = near(scale, len(p.mean))
    if energy:
        return casal.energy(p.energy, steps=steps, init=init)
    return casal.langevin(p.gradient, steps=steps, init=init)


def half_space(p: Gaussian, a: Tensor, b: float, *, units: Tensor | None = None, **how: Any) -> Call:
    """A Gaussian below a plane; ``units`` are those of the samples (``casal.Standardise``)."""
    points = p.below(a, b)
    if units is None:
        return Call(langevin(p, **how), casal.HalfSpace(a, b), points, even(points))
    decoder = casal.Standardise(torch.zeros_like(units), units)
    return Call(langevin(p, **how), casal.HalfSpace(a / units, b), points * units, even(points), decoder)


def plane(p: Gaussian, a: Tensor, b: float, *, units: Tensor | None = None, **how: Any) -> Call:
    """A Gaussian on a plane."""
    points = p.given(a, torch.full((DRAWS,), b, dtype=F64))
    if units is None:
        return Call(langevin(p, **how), casal.Affine(a[None], b), points, even(points))
    decoder = casal.Standardise(torch.zeros_like(units), units)
    return Call(langevin(p, **how), casal.Affine((a / units)[None], b), points * units, even(points), decoder)


def vector(*values: float) -> Tensor:
    """float64."""
    return torch.tensor(values, dtype=F64)


# ------------------------------------------------------------------------------------------------ others


def on_a_line(
    energy: Callable[[Tensor], Tensor], low: float, high: float, constraint: casal.Constraint, **how: Any
) -> Call:
    """A density of one coordinate, by quadrature between two ends."""
    x = torch.linspace(low, high, 40_001, dtype=F64)[1:-1, None]
    scale = how.pop("scale", 1.0)
    target = casal.energy(energy, init=near(scale, 1), **({"steps": 300} | how))
    return Call(target, constraint, x, torch.softmax(-energy(x), 0))


def in_a_plane(
    energy: Callable[[Tensor], Tensor],
    ends: tuple[float, float, float, float],
    constraint: casal.Constraint,
    **how: Any,
) -> Call:
    """A density of two coordinates, by quadrature on a rectangle."""
    x, y = (torch.linspace(a, b, 801, dtype=F64)[1:-1] for a, b in (ends[:2], ends[2:]))
    nodes = torch.cartesian_prod(x, y)
    nodes = nodes[constraint.violation(nodes) <= 1e-9]
    start = how.pop("start", near(how.pop("scale", 1.0), 2))
    target = casal.energy(energy, init=start, **({"steps": 300} | how))
    return Call(target, constraint, nodes, torch.softmax(-energy(nodes), 0))


def diffusion(
    sds: Tensor, finest: float, constraint_row: Tensor, b: float, units: Tensor | None = None, **how: Any
) -> Call:
    """An exact diffusion model of independent coordinates on a plane."""
    p = Gaussian(torch.zeros(len(sds), dtype=F64), torch.eye(len(sds), dtype=F64), sds.square())

    def denoise(x: Tensor, sigma: Tensor) -> Tensor:
        v = sds.square().to(x)
        return x * v / (v + sigma.to(x) ** 2)

    dtype = how.pop("dtype", F64)
    target = casal.edm(denoise, casal.karras_sigmas(40, finest, 40.0 * float(sds.max())), shape=len(sds), dtype=dtype)
    points = p.given(constraint_row, torch.full((DRAWS,), b, dtype=F64))
    if units is None:
        return Call(target, casal.Affine(constraint_row[None], b), points, even(points))
    decoder = casal.Standardise(torch.zeros_like(units), units)
    return Call(target, casal.Affine((constraint_row / units)[None], b), points * units, even(points), decoder)


def two_modes(weights: tuple[float, float], sds: tuple[float, float], apart: float) -> Callable[[Tensor], Tensor]:
    """Energy of two round Gaussians in the plane, at -apart and apart on the first axis."""

    def energy(x: Tensor) -> Tensor:
        parts = [
            math.log(w / s**2) - ((x - side * vector(apart, 0.0).to(x)).square().sum(1)) / (2 * s**2)
            for w, s, side in zip(weights, sds, (-1.0, 1.0), strict=True)
        ]
        return -torch.logsumexp(torch.stack(parts), 0)

    return energy


def banana(width: float, bend: float = 1.0) -> Callable[[Tensor], Tensor]:
    """A thin curved ridge."""
    return lambda x: x[:, 0].square() / 2 + (x[:, 1] - bend * x[:, 0].square()).square() / (2 * width**2)


def step_energy(x: Tensor) -> Tensor:
    """A step of two across x0 = 0, which the gradient does not know of."""
    return x.square().sum(1) / 2 + 2.0 * (x[:, 0] > 0).to(x)


def cauchy(x: Tensor) -> Tensor:
    """-log p of a Student distribution with one degree of freedom."""
    return (x.shape[1] + 1) / 2 * torch.log1p(x.square().sum(1))


def known() -> list[Hostile]:
    """Calls that were wrong and trusted, or right and never trusted, before whitened directions and five verdicts."""
    three = rotated(spectrum(1 / 1000, 3), slow=3.0, seed=3)
    ten, twelve = rotated(spectrum(1 / 3000, 10), slow=3.0, seed=10), rotated(spectrum(1 / 1000, 12), slow=2.0, seed=12)
    four, stiff = rotated(spectrum(0.05, 4, 4.0), seed=4), rotated(spectrum(1e-3, 4), seed=5)
    ones = torch.ones(4, dtype=F64)
    line = casal.HalfSpace(vector(1.0), 1.0)
    return [
        Hostile("slow_10d_3000", "slow", lambda: half_space(ten, ten.axes[:, 0], 0.0, scale=0.3)),
        Hostile("slow_12d", "slow", lambda: plane(twelve, twelve.axes[:, 2], 0.0, scale=0.3)),
        Hostile(
            "slow_2d_axis_45", "slow", lambda: half_space(correlated(0.998, 2.0), vector(1.0, -1.0), 0.02, scale=0.3)
        ),
        Hostile(
            "slow_units_1000",
            "slow",
            lambda: half_space(three, vector(1.0, 0.0, 0.0), 0.0, units=vector(1.0, 1e3, 1.0), scale=0.3),
        ),
        Hostile(
            "slow_units_400",
            "slow",
            lambda: half_space(
                correlated(0.99, 3.0), vector(1.0, -1.0), 0.1, units=vector(1.0, 400.0), scale=0.3, steps=60
            ),
        ),
        Hostile("start_point_few_steps", "start", lambda: plane(four, ones, 1.0, scale=0.0, steps=60, energy=True)),
        Hostile(
            "units_1000_edm_coarse",
            "units",
            lambda: diffusion(vector(0.1, 0.1), 0.3, vector(1.0, 1.0), 0.1, units=vector(1.0, 1e3)),
        ),
        Hostile(
            "step_in_energy",
            "odd",
            lambda: in_a_plane(step_energy, (-6.0, 6.0, -6.0, 6.0), casal.HalfSpace(vector(0.0, -1.0), 0.0)),
        ),
        Hostile(
            "gamma_nan_outside",
            "odd",
            lambda: on_a_line(lambda x: (x - 2.0 * x.log()).sum(1), 0.0, 40.0, casal.Box([0.0], [math.inf])),
        ),
        Hostile(
            "cosine_many_modes",
            "modes",
            lambda: on_a_line(
                lambda x: (3.0 * torch.cos(2.0 * x) + 0.02 * (x - 5.0).square()).sum(1),
                -9.0,
                2.5,
                casal.Box([-9.0], [2.5]),
            ),
        ),
        Hostile("cauchy_1d", "tails", lambda: on_a_line(cauchy, -3000.0, 1.0, line)),
        Hostile(
            "banana_halfspace",
            "slow",
            lambda: in_a_plane(banana(0.1), (-4.5, 4.5, -1.0, 2.0), casal.HalfSpace(vector(0.0, 1.0), 2.0)),
        ),
        Hostile(
            "modes_unequal_widths",
            "modes",
            lambda: in_a_plane(
                two_modes((0.7, 0.3), (0.6, 0.1), 2.0), (-5.0, 3.0, -3.0, 0.5), casal.HalfSpace(vector(0.0, 1.0), 0.5)
            ),
            modes=True,
        ),
        Hostile(
            "modes_start_in_one",
            "modes",
            lambda: in_a_plane(
                two_modes((0.5, 0.5), (0.3, 0.3), 3.0),
                (-5.0, 5.0, -2.0, 0.5),
                casal.HalfSpace(vector(0.0, 1.0), 0.5),
                start=lambda n, g: vector(-3.0, 0.0) + near(0.3, 2)(n, g),
            ),
            modes=True,
        ),
        Hostile("stiff_4d_1e3_affine", "stiff", lambda: plane(stiff, ones, 0.5, scale=1.0)),
        Hostile("few_16", "few", lambda: plane(four, ones, 1.0, scale=1.0, energy=True), n=16),
        Hostile("few_32", "few", lambda: plane(four, ones, 1.0, scale=1.0, energy=True), n=32),
        Hostile("few_64", "few", lambda: half_space(four, ones, 1.0, scale=1.0, energy=True), n=64),
        Hostile(
            "thin_box",
            "sets",
            lambda: in_a_plane(
                lambda x: x.square().sum(1) / 2, (-5.0, 5.0, 0.3, 0.301), casal.Box([-5.0, 0.3], [5.0, 0.301])
            ),
        ),
        Hostile(
            "edm_data_scale_100",
            "units",
            lambda: diffusion(vector(100.0, 60.0), 0.2, vector(1.0, 1.0), 30.0, dtype=torch.float32),
        ),
    ]


DIFFUSIONS = ("units_1000_edm_coarse", "edm_data_scale_100", "edm_narrow_and_wide", "edm_data_scale_1000", "edm_30d")
"""Calls of diffusion models, which ladders for densities do not take."""


def rejected(p: Gaussian, constraint: casal.Constraint, **how: Any) -> Call:
    """A Gaussian in a set with an interior, by rejection."""
    points = p.draws()
    points = points[constraint.violation(points) <= 0.0]
    return Call(langevin(p, **how), constraint, points, even(points))


def on_a_sphere(pull: Tensor, steps: int = 300) -> Call:
    """exp(pull . z) on the unit sphere in 3-D, by quadrature."""
    height = torch.linspace(-1.0, 1.0, 401, dtype=F64)[1:-1]
    angle = 2 * math.pi * torch.arange(200, dtype=F64) / 200
    h, a = torch.cartesian_prod(height, angle).unbind(1)
    round_ = (1 - h.square()).sqrt()
    nodes = torch.stack([round_ * a.cos(), round_ * a.sin(), h], 1)
    target = casal.langevin(lambda x: x - pull.to(x), steps=steps, init=near(1.0, 3))
    return Call(target, casal.Sphere(1.0), nodes, torch.softmax(nodes @ pull, 0))


def uniform_on_a_sphere(d: int) -> Call:
    """A round Gaussian on a sphere about its mean."""
    drawn = torch.randn((DRAWS // 10, d), generator=torch.Generator().manual_seed(0), dtype=F64)
    points = math.sqrt(d) * torch.nn.functional.normalize(drawn, dim=1)
    target = casal.langevin(lambda x: x, steps=300, init=near(1.0, d))
    return Call(target, casal.Sphere(math.sqrt(d)), points, even(points))


def funnel(x: Tensor) -> Tensor:
    """Neal's: the spread of the second coordinate is exp(half the first)."""
    return x[:, 0].square() / 2 + x[:, 1].square() * torch.exp(-x[:, 0]) / 2 + x[:, 0] / 2


def other_potential() -> Call:
    """A score of spread one with a potential of spread 1.5; the exact answer is that of the potential."""
    call = in_a_plane(
        lambda x: x.square().sum(1) / (2 * 1.5**2), (-7.0, 7.0, -7.0, 1.0), casal.HalfSpace(vector(0.0, 1.0), 1.0)
    )
    target = casal.langevin(
        lambda x: x, potential=lambda x: x.square().sum(1) / (2 * 1.5**2), steps=300, init=near(1.0, 2)
    )
    return call._replace(target=target)


def fresh() -> list[Hostile]:
    """Calls that were not run while the checks were built."""
    six, thirty = rotated(spectrum(1 / 500, 6), slow=2.0, seed=61), rotated(spectrum(1 / 200, 30), slow=2.5, seed=62)
    five, eight = rotated(spectrum(0.1, 5, 3.0), seed=63), rotated(spectrum(1 / 2000, 8), slow=-3.0, seed=64)
    three, row = rotated(spectrum(0.01, 3), slow=1.0, seed=65), torch.ones(8, dtype=F64)
    up, flat = casal.HalfSpace(vector(0.0, 1.0), 1.0), vector(1.0, 1.0, 1.0)
    far = lambda n, g: vector(6.0, -6.0) + near(0.1, 2)(n, g)  # noqa: E731
    return [
        Hostile("slow_6d", "slow", lambda: half_space(six, torch.ones(6, dtype=F64), 0.5, scale=0.2)),
        Hostile("slow_30d", "slow", lambda: plane(thirty, torch.ones(30, dtype=F64), 0.0, scale=0.3)),
        Hostile("slow_8d_150_steps", "slow", lambda: half_space(eight, row, 0.0, scale=0.1, steps=150)),
        Hostile("slow_in_a_ball", "slow", lambda: rejected(three, casal.Ball(2.0), scale=0.1, steps=100)),
        Hostile("ridge", "slow", lambda: in_a_plane(banana(0.3, 0.5), (-4.5, 4.5, -2.0, 3.0), casal.Ball(3.0))),
        Hostile("funnel", "slow", lambda: in_a_plane(funnel, (-5.0, 5.0, -9.0, 1.0), up)),
        Hostile(
            "units_1e4",
            "units",
            lambda: plane(three, flat, 0.3, units=vector(1e-4, 1.0, 1e4), scale=1.0),
        ),
        Hostile(
            "units_slow_1e4",
            "units",
            lambda: half_space(
                six, torch.ones(6, dtype=F64), 0.0, units=torch.logspace(-2, 2, 6, dtype=F64), scale=0.1
            ),
        ),
        Hostile("wide_start", "start", lambda: half_space(five, torch.ones(5, dtype=F64), 1.0, scale=12.0, steps=60)),
        Hostile(
            "far_start",
            "start",
            lambda: in_a_plane(lambda x: x.square().sum(1) / 2, (-6.0, 6.0, -6.0, 1.0), up, start=far, steps=30),
        ),
        Hostile(
            "steps_12", "start", lambda: plane(five, torch.ones(5, dtype=F64), 1.0, scale=0.0, steps=12, energy=True)
        ),
        Hostile(
            "step_in_a_box",
            "odd",
            lambda: in_a_plane(
                lambda x: x.abs().sum(1) + 1.0 * (x[:, 1] > 0.2),
                (-2.0, 2.0, -1.0, 1.0),
                casal.Box([-2.0, -1.0], [2.0, 1.0]),
            ),
        ),
        Hostile("kinks", "odd", lambda: in_a_plane(lambda x: 2.0 * x.abs().sum(1), (-8.0, 8.0, -8.0, 1.0), up)),
        Hostile("other_potential", "odd", other_potential),
        Hostile(
            "log_normal",
            "odd",
            lambda: on_a_line(
                lambda x: (x.log().square() / 2 + x.log()).sum(1), 0.0, 120.0, casal.Box([0.0], [math.inf]), scale=0.5
            ),
        ),
        Hostile(
            "student_3",
            "tails",
            lambda: on_a_line(
                lambda x: 2.0 * torch.log1p(x.square() / 3.0).sum(1), -500.0, 1.0, casal.HalfSpace(vector(1.0), 1.0)
            ),
        ),
        Hostile(
            "cauchy_2d",
            "tails",
            lambda: in_a_plane(
                cauchy,
                (-60.0, 60.0, -60.0, 1.0),
                casal.HalfSpace(vector(0.0, 1.0), 1.0) & casal.Box([-60.0, -60.0], [60.0, 60.0]),
            ),
        ),
        Hostile(
            "two_modes_both_found",
            "modes",
            lambda: in_a_plane(two_modes((0.2, 0.8), (0.4, 0.4), 1.5), (-5.0, 5.0, -3.0, 1.0), up, scale=2.0),
        ),
        Hostile(
            "egg_box",
            "modes",
            lambda: in_a_plane(
                lambda x: 2.0 * torch.cos(3.0 * x).sum(1) + 0.1 * x.square().sum(1),
                (-6.0, 6.0, -6.0, 1.0),
                up,
                scale=2.0,
            ),
        ),
        Hostile("peaked_on_a_sphere", "sets", lambda: on_a_sphere(vector(20.0, 10.0, -20.0))),
        Hostile("sphere_30d", "sets", lambda: uniform_on_a_sphere(30)),
        Hostile(
            "slab_1e-4",
            "sets",
            lambda: in_a_plane(
                lambda x: x.square().sum(1) / 2, (-5.0, 5.0, 1.0, 1.0001), casal.Box([-5.0, 1.0], [5.0, 1.0001])
            ),
        ),
        Hostile("few_24", "few", lambda: half_space(five, torch.ones(5, dtype=F64), 1.0, scale=1.0), n=24),
        Hostile("few_48", "few", lambda: plane(five, torch.ones(5, dtype=F64), 1.0, scale=1.0), n=48),
        Hostile("few_and_slow", "few", lambda: half_space(six, torch.ones(6, dtype=F64), 0.5, scale=0.2), n=48),
        Hostile("edm_narrow_and_wide", "units", lambda: diffusion(vector(3.0, 0.02, 1.0), 0.002, flat, 1.0)),
        Hostile(
            "edm_data_scale_1000",
            "units",
            lambda: diffusion(vector(1000.0, 500.0), 1.0, vector(1.0, -1.0), 300.0, dtype=torch.float32),
        ),
        Hostile(
            "edm_30d", "diffusion", lambda: diffusion(spectrum(0.1, 30, 2.0), 0.01, torch.ones(30, dtype=F64) / 30, 0.2)
        ),
    ]
