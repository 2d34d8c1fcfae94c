"""The problems of the benchmark: models, sets, and where the exact answer of each comes from.

A row of ``PROBLEMS`` makes a ``Problem``; nothing but names is computed before it is called. ``problem(name)`` keeps
what it has made. To add a problem write a function with ``@row("name")``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache, partial
from typing import Any

import torch
from torch import Tensor

import casal
from casal.errors import SettingError
from casal_lab.artifacts import points as kept_points
from casal_lab.benchmark.answer import F64, Answer, Exact, Map, Reference, along, coordinates, smallest, together
from casal_lab.benchmark.interface import Problem
from casal_lab.problems import double_well, field, networks, small
from casal_lab.problems import many_dimensions as many
from casal_lab.problems.anisotropic_mixture import AnisotropicMixture
from casal_lab.problems.gaussian_mixture import GaussianMixture
from casal_lab.problems.truncated_gaussian import nonnegative_gibbs

FEW = 256
"""Samples of a run in many dimensions, and where a projection takes long."""

SEED = 7
"""Of the random modes, spectra and rows of the problems in many dimensions; the experiments use others."""

PROBLEMS: dict[str, Callable[[], Problem]] = {}
"""What makes each problem, by name, in the order of the tables."""


def row(name: str, **options: Any) -> Callable[[Callable[..., Problem]], Callable[..., Problem]]:
    """Add a problem under a name; its function is called with the name and the options."""

    def add(make: Callable[..., Problem]) -> Callable[..., Problem]:
        if name in PROBLEMS:
            raise SettingError(f"there is a problem {name!r} already; take another name")
        PROBLEMS[name] = partial(make, name, **options)
        return make

    return add


@cache
def problem(name: str) -> Problem:
    """The problem of a name, made once.

    >>> problem("tail, 1-D").dimension
    1
    """
    if name not in PROBLEMS:
        raise SettingError(f"there is no problem {name!r}; there are: {', '.join(PROBLEMS)}")
    return PROBLEMS[name]()


# ------------------------------------------------------------------ models


def as_density(mixture: AnisotropicMixture, unit: float | Tensor | None = None) -> dict[str, Any]:
    """Fields of a problem whose model is a mixture, known by density and score; chains start as its draws."""
    least = float(mixture.variances.min()) if unit is None else unit

    def gradient(x: Tensor) -> Tensor:
        return (mixture.denoise(x, small.SMALL) - x) / small.SMALL**2

    return {
        "kind": "density",
        "log_density": mixture.log_density,
        "gradient": gradient,
        "init": mixture.sample,
        "unit": least,
    }


def as_diffusion(mixture: AnisotropicMixture, levels: tuple[float, float] | None = None) -> dict[str, Any]:
    """Fields of a problem whose model is the exact denoiser of a mixture."""
    if levels is None:
        widest = float((mixture.means.square().sum(1) + mixture.variances.amax(1)).max().sqrt())
        levels = 40.0 * widest, 0.02 * float(mixture.variances.min().sqrt())
    return {"kind": "diffusion", "denoiser": mixture.denoise, "levels": levels, "steps": 100}


MODELS = {"": as_density, ", diffusion": as_diffusion}
"""Endings of names, and the kind of model."""


def nodes(make: Callable[[], small.Reference]) -> Exact:
    """A quadrature."""
    return lambda count, generator: Reference.nodes(*make())


def on_points(make: Callable[[], Tensor], log_density: Map, log_volume: Map | None = None) -> Exact:
    """A quadrature: its nodes, the density there, and the volume of each node where volumes differ."""

    def exact(count: int, generator: torch.Generator) -> Reference:
        points = make()
        logs = log_density(points) + (0.0 if log_volume is None else log_volume(points))
        return Reference.nodes(points, torch.softmax(logs, 0))

    return exact


def drawn(draw: Callable[[int, torch.Generator], Tensor]) -> Exact:
    """Exact draws."""
    return lambda count, generator: Reference.draws(draw(count, generator))


def rejected(
    draw: Callable[[int, torch.Generator], Tensor], constraint: casal.Constraint, batch: int = 100_000
) -> Exact:
    """Those draws of the model that lie in the set."""

    def inside(count: int, generator: torch.Generator) -> Tensor:
        found, size = list[Tensor](), 0
        while size < count:
            x = draw(batch, generator)
            found.append(x[constraint.violation(x) == 0.0])
            size += len(found[-1])
        return torch.cat(found)[:count]

    return drawn(inside)


# ------------------------------------------------------------------ one dimension

LINE = small.gaussian([0.0], [[1.0]])
HUMPS = small.aligned([[-1.5], [1.0]], [[0.5], [0.3]], [0.7, 0.3])
TAIL = 4.0


@row("interval, 1-D")
def interval(name: str) -> Problem:
    """A narrow interval."""
    box = casal.Box([0.5], [0.6])
    exact = on_points(lambda: small.middles(0.5, 0.6, 20_000)[:, None], LINE.log_density)
    about = "N(0, 1) on [0.5, 0.6]: quadrature."
    answer = Answer(exact, coordinates(0))
    return Problem(name, about, shape="solid", dimension=1, constraint=box, answer=answer, **as_density(LINE))


def tail(name: str, model: Callable[..., dict[str, Any]]) -> Problem:
    """Beyond four standard deviations."""
    exact = on_points(lambda: small.middles(TAIL, 10.0, 60_000)[:, None], LINE.log_density)
    return Problem(
        name,
        "N(0, 1) beyond four standard deviations, of probability 3e-5: quadrature.",
        shape="solid",
        dimension=1,
        constraint=casal.HalfSpace([-1.0], -TAIL),
        answer=Answer(exact, coordinates(0)),
        **model(LINE),
    )


def two_intervals(name: str, model: Callable[..., dict[str, Any]]) -> Problem:
    """Two intervals, one for each mode."""
    pieces = ((-2.5, -1.7), (0.9, 1.2))

    def points() -> Tensor:
        return torch.cat([small.middles(*piece, round(20_000 * (piece[1] - piece[0]))) for piece in pieces])[:, None]

    return Problem(
        name,
        "Two modes on [-2.5, -1.7] and [0.9, 1.2]: quadrature. The weights of the two pieces must be right.",
        shape="solid",
        dimension=1,
        nonconvex=True,
        constraint=casal.Box([-2.5], [-1.7]) | casal.Box([0.9], [1.2]),
        answer=Answer(on_points(points, HUMPS.log_density), coordinates(0), modes=left_and_right),
        **model(HUMPS),
    )


def left_and_right(x: Tensor) -> Tensor:
    """Whether the first coordinate is negative, and whether not: (n, 2)."""
    left = (x[:, 0] < 0).to(F64)
    return torch.stack([left, 1 - left], 1)


# ------------------------------------------------------------------ two to four dimensions

CASES = {case.name: case for case in small.cases()}


def known(name: str, model: Callable[..., dict[str, Any]], case: str, about: str, **more: Any) -> Problem:
    """A problem of the experiment ``fidelity``: its set, its mixture, its reference."""
    found = CASES[case]
    mixture = found.model.mixture
    assert mixture is not None
    size = mixture.dimension
    answer = Answer(
        more.pop("exact", nodes(found.reference)),
        coordinates(*range(min(size, 4))),
        found.shares,
        chains=more.pop("chains", 1000),
        source=more.pop("source", "quadrature"),
    )
    fields = {"shape": "thin", **model(mixture), **more}
    return Problem(name, about, dimension=size, constraint=found.constraint, answer=answer, **fields)


SLOW: dict[str, Any] = {"chains": FEW, "steps": 80}
"""Where a projection takes long."""

KNOWN: dict[str, dict[str, Any]] = {
    "three modes on a circle": {"about": "Three modes in the plane on |x| = 2: quadrature over the angle."},
    "Gaussian on a sphere": {"about": "A correlated Gaussian on the unit sphere in 3-D: quadrature."},
    "mass and energy": {"about": "A correlated Gaussian given sum and sum of squares in 3-D: quadrature on a circle."},
    "plane in 4-D": {
        "about": "A correlated Gaussian on one equation in 4-D: kriging.",
        "exact": drawn(lambda n, generator: small.given(small.FOUR, small.ROWS_4, small.SIDE_4, n, generator)),
        "source": "closed form",
    },
    "ellipse (implicit)": {
        "about": "A Gaussian on an ellipse given by a function: quadrature over arc length.",
        **SLOW,
    },
    "Gaussian in a box": {"about": "A correlated Gaussian in a box in 2-D: quadrature.", "shape": "solid"},
    "region between curves (implicit)": {
        "about": "A Gaussian between a parabola and a line, given by functions: quadrature.",
        "shape": "solid",
        **SLOW,
    },
    "two boxes": {
        "about": "A correlated Gaussian in two boxes: quadrature. The weights of the two pieces must be right.",
        "shape": "solid",
        "nonconvex": True,
    },
    "diamond, edm": {
        "about": "A correlated Gaussian in |x|_1 <= 1 in 3-D: rejection.",
        "shape": "solid",
        "exact": rejected(small.POLE.sample, casal.L1Ball(1.0)),
        "source": "rejection",
    },
    "simplex": {"about": "A correlated Gaussian on the simplex in 3-D: quadrature.", "shape": "mixed"},
    "circle x interval": {"about": "A correlated Gaussian on circle times interval: quadrature.", "shape": "mixed"},
}

BOTH = {"three modes on a circle", "Gaussian on a sphere", "plane in 4-D", "Gaussian in a box", "two boxes", "simplex"}
"""Cases that are problems twice: as a density, and as a diffusion model."""


@row("particle on a circle")
def particle(name: str) -> Problem:
    """The paper's particle."""
    case = CASES["particle on a circle"]
    return Problem(
        name,
        "The paper's particle: a double well in x, N(0, 0.1^2) in y, on |x| = 3: quadrature over the angle.",
        kind="density",
        shape="thin",
        dimension=2,
        constraint=case.constraint,
        answer=Answer(nodes(case.reference), coordinates(0, 1)),
        log_density=small.particle_log_density,
        init=small.particle_start,
        unit=small.numbers(1.0 / double_well.CURVATURE, 0.01),
    )


RING = small.aligned([[0.3, 0.2]], [[0.9, 0.6]], [1.0])
INNER, OUTER = (1.0, (-0.5, 0.0)), (0.4, (1.3, 0.5))


def two_circles(name: str, model: Callable[..., dict[str, Any]]) -> Problem:
    """Two circles of different radius."""

    def points() -> Tensor:
        return torch.cat([small.numbers(*c) + small.ring(r, round(10_000 * r)) for r, c in (INNER, OUTER)])

    def which(x: Tensor) -> Tensor:
        first = ((x - small.numbers(*INNER[1])).norm(dim=1) < INNER[0] + 1e-6).to(F64)
        return torch.stack([first, 1 - first], 1)

    return Problem(
        name,
        "A Gaussian on two circles of different radius: quadrature over arc length. Their weights must be right.",
        shape="thin",
        dimension=2,
        nonconvex=True,
        constraint=casal.Sphere(INNER[0], list(INNER[1])) | casal.Sphere(OUTER[0], list(OUTER[1])),
        answer=Answer(on_points(points, RING.log_density), coordinates(0, 1), modes=which),
        **model(RING),
    )


def annulus_sides(z: Tensor) -> Tensor:
    """1.2 <= |z| <= 1.6, as functions that are <= 0."""
    square = z.square().sum(1)
    return torch.stack([1.2**2 - square, square - 1.6**2], 1)


def annulus(name: str, model: Callable[..., dict[str, Any]]) -> Problem:
    """A disc with a hole."""

    def points() -> Tensor:
        radius = small.middles(1.2, 1.6, 100).repeat_interleave(1000)
        return radius[:, None] * small.ring(1.0, 1000).repeat(100, 1)

    exact = on_points(points, small.THREE.log_density, lambda x: x.norm(dim=1).log())
    answer = Answer(exact, coordinates(0, 1), modes=small.THREE.responsibilities, chains=FEW)
    fields = {**model(small.THREE), "steps": 80}
    return Problem(
        name,
        "Three modes in an annulus 1.2 <= |x| <= 1.6, given by functions: polar quadrature.",
        shape="solid",
        dimension=2,
        nonconvex=True,
        constraint=casal.Implicit(None, annulus_sides),
        answer=answer,
        **fields,
    )


def on_torus(z: Tensor) -> Tensor:
    """(sqrt(x^2 + y^2) - 1)^2 + z^2 = 0.4^2."""
    across = z[:, :2].square().sum(1).sqrt() - 1.0
    return (across.square() + z[:, 2].square() - 0.16)[:, None]


@row("torus, 3-D")
def torus(name: str) -> Problem:
    """A surface with a hole."""

    def points() -> Tensor:
        around, tube = small.grid(small.middles(-math.pi, math.pi, 400), small.middles(-math.pi, math.pi, 200)).T
        radius = 1.0 + 0.4 * tube.cos()
        return torch.stack([radius * around.cos(), radius * around.sin(), 0.4 * tube.sin()], 1)

    exact = on_points(points, small.POLE.log_density, lambda x: x[:, :2].norm(dim=1).log())
    fields = {**as_density(small.POLE), "steps": 80}
    return Problem(
        name,
        "A correlated Gaussian on a torus given by a function: quadrature over both angles.",
        shape="thin",
        dimension=3,
        nonconvex=True,
        constraint=casal.Implicit(on_torus),
        answer=Answer(exact, coordinates(0, 1, 2), chains=FEW),
        **fields,
    )


# ------------------------------------------------------------------ eight to sixty-four dimensions

STEPS_8 = torch.arange(8, dtype=F64)
PATH = small.gaussian(torch.zeros(8, dtype=F64), torch.exp(-0.3 * (STEPS_8[:, None] - STEPS_8).abs()))
GATE = casal.Obstacles(intervals=[(3, 6, -0.6, 0.2)])


def trajectory(name: str, model: Callable[..., dict[str, Any]]) -> Problem:
    """A path above or below an obstacle."""

    def sides(x: Tensor) -> Tensor:
        above = (x[:, 3:6] > -0.2).to(F64).mean(1)
        return torch.stack([above, 1 - above], 1)

    return Problem(
        name,
        "A correlated path of 8 steps that avoids an interval at three of them, above or below: rejection.",
        shape="solid",
        dimension=8,
        nonconvex=True,
        constraint=GATE,
        answer=Answer(rejected(PATH.sample, GATE), coordinates(1, 3, 4, 5, 7), modes=sides, source="rejection"),
        **model(PATH),
    )


SIXTEEN = GaussianMixture(
    torch.tensor([0.5, 0.3, 0.2]),
    torch.cat([1.5 * torch.eye(3, dtype=F64), torch.zeros(3, 13, dtype=F64)], 1),
    torch.tensor([0.5, 0.4, 0.45]),
)


def sphere_16(name: str, model: Callable[..., dict[str, Any]]) -> Problem:
    """Three von Mises-Fisher distributions."""
    exact = SIXTEEN.restricted(casal.Sphere(2.0))
    mixture = small.aligned(SIXTEEN.means, SIXTEEN.spreads[:, None], SIXTEEN.weights)
    answer = Answer(drawn(exact.draw), coordinates(0, 1, 2, 8), modes=SIXTEEN.responsibilities, source="closed form")
    return Problem(
        name,
        "Three round modes on |x| = 2 in 16-D: each is von Mises-Fisher, with weights in closed form and exact draws.",
        shape="thin",
        dimension=16,
        constraint=casal.Sphere(2.0),
        answer=answer,
        **model(mixture),
    )


def increasing(name: str, model: Callable[..., dict[str, Any]], size: int) -> Problem:
    """Order statistics."""

    def draw(count: int, generator: torch.Generator) -> Tensor:
        return torch.randn((count, size), generator=generator, dtype=F64).sort(dim=1).values

    def gaps(x: Tensor) -> Tensor:
        return torch.stack([x.diff(dim=1).amin(1), x[:, 1] - x[:, 0]], 1)

    return Problem(
        name,
        f"N(0, I) on x_1 <= ... <= x_{size}: exact draws are sorted normal numbers. Of probability 1 / {size}!.",
        shape="solid",
        dimension=size,
        constraint=casal.Monotone(),
        answer=Answer(
            drawn(draw), together(coordinates(0, size // 4, size // 2, size - 1), gaps), source="closed form"
        ),
        **model(small.aligned(torch.zeros(1, size), 1.0, [1.0])),
    )


SPACING, LOW, HIGH = 0.02, -4.5, 3.5
"""The lattice on which double wells of a given sum are drawn."""


@row("double wells of given sum, 32-D", size=32, total=-16.0)
def wells(name: str, size: int, total: float) -> Problem:
    """Independent double wells given their sum, drawn one coordinate after the other.

    With c_k the k-fold convolution of p = exp(-V) on a lattice, x_1 has the probabilities p(x) c_{d-1}(total - x), and
    the others follow in the same way with what is left of the total.
    """

    def exact(count: int, generator: torch.Generator) -> Reference:
        place = torch.arange(round((HIGH - LOW) / SPACING) + 1)
        one = torch.exp(-double_well.potential(LOW + SPACING * place.to(F64)))
        one, width = one / one.sum(), len(place)
        sums = [one]
        for _ in range(size - 2):
            long = torch.fft.irfft(
                torch.fft.rfft(sums[-1], n=len(sums[-1]) + width) * torch.fft.rfft(one, n=len(sums[-1]) + width),
                n=len(sums[-1]) + width,
            )
            sums.append(long[: len(sums[-1]) + width - 1].clamp_min(0.0))
        left = torch.full((count,), round((total - size * LOW) / SPACING))
        columns = []
        for rest in reversed(sums):
            parts = []
            for some in left.split(2000):
                at = some[:, None] - place
                chances = one * torch.where((at >= 0) & (at < len(rest)), rest[at.clamp(0, len(rest) - 1)], 0.0)
                below = chances.cumsum(1)
                level = torch.rand((len(some), 1), generator=generator, dtype=F64) * below[:, -1:]
                parts.append(torch.searchsorted(below, level)[:, 0])
            columns.append(torch.cat(parts))
            left = left - columns[-1]
        lattice = torch.stack([*columns, left], 1)[:, torch.randperm(size, generator=generator)]
        points = LOW + SPACING * lattice.to(F64)
        return Reference.draws(points + (total - points.sum(1, keepdim=True)) / size)

    def right(x: Tensor) -> Tensor:
        return torch.stack([(x > -0.7).to(F64).mean(1), x.square().mean(1)], 1)

    return Problem(
        name,
        f"{size} independent double wells given their sum: convolutions on a lattice, drawn one after the other.",
        kind="density",
        shape="thin",
        dimension=size,
        constraint=casal.Affine(torch.ones(1, size, dtype=F64), total),
        answer=Answer(exact, together(coordinates(0, 1), right), chains=FEW, source="lattice"),
        log_density=lambda x: -double_well.potential(x).sum(1),
        gradient=lambda x: -double_well.slope(x),
        init=lambda n, generator: -0.5 + 1.5 * torch.randn((n, size), generator=generator, dtype=F64),
        unit=1.0 / double_well.CURVATURE,
    )


@row("field of given energy, 50-D")
def energy_field(name: str) -> Problem:
    """The paper's field: draws of a tilted distribution in a thin shell, put on the sphere.

    exp(t |x|^2) changes nothing on the sphere; t is such that the mean of |x|^2 is the energy. Draws with |x|^2 within
    a twentieth of its standard deviation are kept and rescaled; the error is of second order in that.
    """
    setup, energy, count = field.STIFF, field.STIFF.energy, field.WELLS
    variance = torch.as_tensor(setup.variances()[count:])
    grid = torch.linspace(-6.0, 5.0, 4001, dtype=F64)

    def tilted(t: float) -> tuple[Tensor, Tensor, float]:
        chances = torch.softmax(t * grid.square() - double_well.potential(grid), 0)
        spread = variance / (1 - 2 * t * variance)
        return chances, spread, count * float(chances @ grid.square()) + float(spread.sum())

    low, high = -5.0, 0.49 / float(variance.max())
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if tilted(middle)[2] > energy else (middle, high)
    chances, spread, _ = tilted(low)
    width = 0.05 * math.sqrt(
        count * float(chances @ grid.pow(4) - (chances @ grid.square()).square()) + 2 * float(spread.square().sum())
    )

    def draw(n: int, generator: torch.Generator) -> Tensor:
        kept, size = list[Tensor](), 0
        while size < n:
            some = torch.multinomial(chances, count * 50_000, replacement=True, generator=generator)
            jitter = (torch.rand(some.shape, generator=generator, dtype=F64) - 0.5) * float(grid[1] - grid[0])
            rest = spread.sqrt() * torch.randn((50_000, len(spread)), generator=generator, dtype=F64)
            x = torch.cat([(grid[some] + jitter).reshape(-1, count), rest], 1)
            square = x.square().sum(1)
            near = (square - energy).abs() < width
            kept.append(x[near] * (energy / square[near]).sqrt()[:, None])
            size += len(kept[-1])
        return torch.cat(kept)[:n]

    def log_density(x: Tensor) -> Tensor:
        return -double_well.potential(x[:, :count]).sum(1) - (x[:, count:].square() / variance).sum(1) / 2

    return Problem(
        name,
        "The paper's field: two double wells and 48 Gaussian coefficients of given energy: draws in a thin shell, "
        "checked against quadrature.",
        kind="density",
        shape="thin",
        dimension=count + len(variance),
        constraint=casal.Sphere(math.sqrt(energy)),
        answer=Answer(drawn(draw), coordinates(0, 1, 2, 20), modes=wells_of_two, source="thin shell"),
        log_density=log_density,
        gradient=lambda x: -setup.gradient(x),
        init=setup.start,
        unit=setup.preconditioner(),
    )


def wells_of_two(x: Tensor) -> Tensor:
    """In which wells the first two coordinates are: (n, 4)."""
    right = (x[:, :2] > 0).to(F64)
    first, second = right[:, :1], right[:, 1:]
    return torch.cat([first * second, first * (1 - second), (1 - first) * second, (1 - first) * (1 - second)], 1)


def orthant(name: str, model: Callable[..., dict[str, Any]], size: int) -> Problem:
    """Absolute values."""

    def draw(count: int, generator: torch.Generator) -> Tensor:
        return torch.randn((count, size), generator=generator, dtype=F64).abs()

    return Problem(
        name,
        f"N(0, I) in the positive orthant of {size} dimensions: absolute values of normal numbers.",
        shape="solid",
        dimension=size,
        constraint=casal.Box(0.0, math.inf),
        answer=Answer(
            drawn(draw),
            together(coordinates(0, 1), smallest),
            chains=1000 if size <= 64 else FEW,
            source="closed form",
        ),
        **model(small.aligned(torch.zeros(1, size), 1.0, [1.0])),
    )


# ------------------------------------------------------------------ many dimensions


def from_conditional(
    name: str, make: Callable[[int, int], many.Problem], size: int, shape: str, source: str, about: str
) -> Problem:
    """A problem in many dimensions, with the exact denoiser of its mixture."""
    found = make(size, SEED)
    exact = found.exact
    several = len(exact.log_masses) > 1
    stream = torch.Generator().manual_seed(0)
    directions = [torch.nn.functional.normalize(torch.randn((size, 2), generator=stream, dtype=F64), dim=0)]
    for k, basis in enumerate(exact.bases):
        columns = torch.eye(size, dtype=F64) if basis is None else basis
        directions.append(columns[:, exact.coordinates(k)[:3]])
    features = along(torch.cat(directions, 1))
    if isinstance(found.constraint, casal.Box):
        features = together(features, smallest)
    if isinstance(found.constraint, casal.HalfSpace):
        features = together(features, along(found.constraint.a.to(F64).reshape(-1, 1)))
    chains = FEW if size > 64 else 1000
    answer = Answer(drawn(exact.draw), features, exact.responsibilities if several else None, chains, source=source)
    high = found.first_level or many.HEADROOM * found.largest_spread
    fields = {**as_diffusion(found.prior, (high, many.LAST)), "steps": many.LEVELS}
    return Problem(name, about, shape=shape, dimension=size, constraint=found.constraint, answer=answer, **fields)  # type: ignore[arg-type]


def field_by_gibbs(name: str, size: int, total: bool) -> Problem:
    """A nonnegative field, whose reference is a Gibbs sampler of independent chains, kept on disk."""
    found = many.nonnegative_field(size, SEED, total)
    prior, constraint = found.prior, found.constraint

    def draw(count: int, generator: torch.Generator) -> Tensor:
        seed = generator.initial_seed()

        def make() -> Tensor:
            Q = prior.turns[0].matrix(size)
            level = constraint.total if isinstance(constraint, casal.Simplex) else None
            assert level is None or isinstance(level, float)
            precision = (Q / prior.variances[0]) @ Q.T
            replicas = max(count, 2)
            return nonnegative_gibbs(
                prior.means[0], precision, level, replicas=replicas, sweeps=1, warmup=SWEEPS, seed=seed % 2**31
            ).points

        ending = "sum" if total else "free"
        return constraint.project(kept_points(f"benchmark_field_{size}_{ending}_{count}_{seed}_{SWEEPS}", make))

    answer = Answer(drawn(draw), together(coordinates(0, 7), smallest), chains=FEW, source="Gibbs sampler")
    fields = {**as_diffusion(prior, (many.HIGH, many.LAST)), "steps": many.LEVELS}
    given = ", given its sum" if total else ""
    return Problem(
        name,
        f"A rough field on a ring of {size} points that is nonnegative{given}: {SWEEPS} sweeps of a Gibbs sampler in "
        "independent chains.",
        shape="mixed" if total else "solid",
        dimension=size,
        constraint=constraint,
        answer=answer,
        **fields,
    )


SWEEPS = 100
"""Of the Gibbs sampler, before its chains are used."""


# ------------------------------------------------------------------ trained networks


def of_network(name: str, net: str, constraint: casal.Constraint, **more: Any) -> Problem:
    """The distribution of a trained network on a set."""
    modes, few = more.pop("modes", None), 500

    @lru_cache(maxsize=1)
    def network() -> torch.nn.Module:
        return networks.trained(net, networks.ITERATIONS)

    def exact(count: int, generator: torch.Generator) -> Reference:
        free = networks.free_samples(net)
        return Reference.draws(networks.on_set(free[torch.arange(len(free)) % networks.HELD > 0], constraint))

    def held(count: int, generator: torch.Generator) -> Reference:
        points = networks.on_set(networks.free_samples(net)[:: networks.HELD], constraint)
        return Reference.draws(points[torch.randperm(len(points), generator=generator)[:count]])

    def make_target(problem: Problem, steps: int) -> casal.Target:
        def eps(x: Tensor, t: Tensor) -> Tensor:
            return problem.count(network(), x, t)

        return networks.model(eps, steps)

    def denoise(x: Tensor, sigma: Tensor) -> Tensor:
        found = networks.model(network(), 2).denoise
        assert found is not None
        return found(x, sigma)

    return Problem(
        name,
        kind="trained",
        dimension=2,
        constraint=constraint,
        answer=Answer(exact, coordinates(0, 1), modes, few, fresh=held, source="own samples"),
        denoiser=denoise,
        levels=(networks.LARGEST, networks.SMALLEST),
        make_target=make_target,
        steps=networks.STEPS,
        **more,
    )


# ------------------------------------------------------------------ the table


def add(make: Callable[..., Problem], name: str, kinds: str = "both", **options: Any) -> None:
    """Rows of a problem as a density, as a diffusion model, or as both."""
    for ending, model in MODELS.items():
        if kinds == "both" or kinds == {"": "density", ", diffusion": "diffusion"}[ending]:
            row(name + ending, model=model, **options)(make)


add(tail, "tail, 1-D")
add(two_intervals, "two intervals, 1-D")
for _case, _options in KNOWN.items():
    add(known, _case.removesuffix(", edm"), "both" if _case in BOTH else "density", case=_case, **_options)
add(two_circles, "two circles, 2-D")
add(annulus, "annulus, 2-D")
add(trajectory, "path past an obstacle, 8-D")
add(sphere_16, "three modes on a sphere, 16-D")
add(increasing, "increasing, 16-D", "both", size=16)
add(orthant, "orthant, 64-D", "density", size=64)
add(orthant, "orthant, 256-D", "density", size=256)

MANY: dict[str, tuple[Callable[[int, int], many.Problem], int, str, str, str]] = {
    "four equations": (
        many.four_equations,
        64,
        "thin",
        "closed form",
        "Four anisotropic modes on four linear equations: closed form.",
    ),
    "mass and energy": (
        many.mass_energy,
        256,
        "thin",
        "thin shell",
        "Four anisotropic modes given sum and sum of squares: weights by contour integrals, draws in a thin shell.",
    ),
    "four equations and norm": (
        many.four_equations_and_norm,
        256,
        "thin",
        "thin shell",
        "Four anisotropic modes on four equations and a sphere: the same.",
    ),
    "norm, 4 sd high": (
        partial(many.norm, deviations=4.0),
        256,
        "thin",
        "thin shell",
        "A Gaussian whose norm is four standard deviations above its mean: the same.",
    ),
    "half-space": (
        many.half_space,
        256,
        "solid",
        "closed form",
        "A Gaussian on a half-space of probability 0.006: closed form.",
    ),
    "box on four coordinates": (
        many.box_on_four,
        256,
        "solid",
        "closed form",
        "A Gaussian with bounds on four coordinates, of probability 2e-4: separation of variables.",
    ),
    "nonnegative": (many.nonnegative, 64, "solid", "closed form", "Independent coordinates given x >= 0: closed form."),
    "nonnegative, two modes": (
        many.nonnegative_modes,
        64,
        "solid",
        "closed form",
        "Two modes given x >= 0: closed form.",
    ),
    "field of 64 known values and norm": (
        partial(many.observed_and_norm, deviations=2.5),
        1024,
        "thin",
        "thin shell",
        "A Gaussian field on a 32 x 32 grid given 64 of its values and its norm.",
    ),
}
for _name, (_make, _size, _shape, _source, _about) in MANY.items():
    row(f"{_name}, {_size}-D, diffusion", make=_make, size=_size, shape=_shape, source=_source, about=_about)(
        from_conditional
    )
row("nonnegative field, 64-D, diffusion", size=64, total=False)(field_by_gibbs)
row("nonnegative field of given sum, 64-D, diffusion", size=64, total=True)(field_by_gibbs)

row(
    "three modes on a circle, trained",
    net="mixture",
    constraint=casal.Sphere(2.0),
    about="A network trained on the three modes, on |x| = 2: its own samples in a thin layer about the circle.",
    shape="thin",
    modes=small.THREE.responsibilities,
)(of_network)
row(
    "spiral in a box, trained",
    net="spiral",
    constraint=casal.Box([-1.0, -0.5], [1.5, 1.5]),
    about="A network trained on a spiral, in a box that cuts its arms: its own samples in the box.",
    shape="solid",
)(of_network)
row(
    "spiral on a line, trained",
    net="spiral",
    constraint=casal.Affine([[0.5, 1.0]], [0.3]),
    about="A network trained on a spiral, on a line through its arms: its own samples in a thin layer about it.",
    shape="thin",
)(of_network)
