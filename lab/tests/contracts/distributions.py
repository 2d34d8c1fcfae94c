"""Distributions on sets beside those of ``casal_lab.problems.small``: each with a second reference and a wrong method.

A row is a ``Case`` of the catalogue (a model, a set, a reference, statistics), the methods that promise its
distribution, and where the set has an edge the distance of a sample to it. On curved sets the reference measure is the
surface measure. The library's own tests have twenty more distributions, most of them in closed form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

import casal
from casal import Affine, Ball, Box, Constraint, Implicit, MassEnergy, Polytope, Simplex, Sphere
from casal_lab.problems.anisotropic_mixture import AnisotropicMixture
from casal_lab.problems.gaussian_mixture import GaussianMixture
from casal_lab.problems.small import (
    F64,
    LATENT,
    SEEN,
    THREE,
    WIDE,
    Case,
    Model,
    Reference,
    aligned,
    ball_surface,
    drawn,
    gaussian,
    given,
    grid,
    middles,
    numbers,
    on_nodes,
    responsibilities,
    ring,
    weighted,
)
from casal_lab.twisted import Twisted

Map = Callable[[Tensor], Tensor]
Make = Callable[[], Reference]
MANY = 1_000_000
"""Draws of a reference by rejection."""


@dataclass(frozen=True, eq=False)
class Row:
    """A case of the catalogue, and what is tried on it.

    Attributes:
        case: Model, set, reference and statistics; its own method is not used.
        methods: Those that promise the distribution, by name.
        second: Another reference, found in another way.
        edge: Distance of every sample to the edge of the set, (n,); None without an edge.
        draws: Whether the reference of the case is of draws too, with an error of its own.
        start: Starting points, if not draws of the model.
    """

    case: Case
    methods: Mapping[str, Any]
    second: Make
    edge: Map | None = None
    draws: bool = False
    start: Callable[[int, torch.Generator], Tensor] | None = None


def stream(seed: int = 0) -> torch.Generator:
    """Random numbers of a reference."""
    return torch.Generator().manual_seed(seed)


def wide(spread: float, size: int) -> Callable[[int, torch.Generator], Tensor]:
    """Starting points N(0, spread^2 I)."""
    return lambda n, generator: spread * torch.randn((n, size), generator=generator, dtype=F64)


def inside(points: Tensor, edge: Map) -> Reference:
    """Those draws that are inside (rejection)."""
    return drawn(points[edge(points) > 0])


def near(points: Tensor, distance: Tensor, width: float) -> Reference:
    """Draws of p in a thin layer about a surface, by their (signed) distance to it; error O(width^2)."""
    return drawn(points[distance.abs() < width])


def directions(n: int, size: int) -> Tensor:
    """Uniform unit vectors."""
    return torch.nn.functional.normalize(torch.randn((n, size), generator=stream(), dtype=F64), dim=1)


def barycentric(n: int, size: int, seed: int = 5) -> Tensor:
    """Uniform draws of the simplex of total one."""
    weight = -torch.rand((n, size), generator=stream(seed), dtype=F64).log()
    return weight / weight.sum(1, keepdim=True)


def smallest(z: Tensor) -> Tensor:
    """The smallest coordinate, the distance to the edge of an orthant."""
    return z.amin(1)


def unit_box(z: Tensor) -> Tensor:
    """Distance to the nearest side of [0, 1]^d; negative outside."""
    return torch.minimum(z, 1 - z).amin(1)


def close_to(edge: Map, margin: float = 0.05) -> Map:
    """Whether a sample is near the edge, as a statistic (n, 1)."""
    return lambda z: (edge(z) < margin).to(F64)[:, None]


# ------------------------------------------------------------------ rows


def rows(
    name: str,
    constraint: Constraint,
    mixture: AnisotropicMixture,
    sigma: float,
    reference: Make,
    second: Make,
    *models: str,
    gibbs: bool = True,
    unit: float = 1.0,
    steps: int = 400,
    methods: tuple[str, ...] = ("WeightedCASAL", "gibbs", "metropolis", "Twisted", "auto"),
    edge: Map | None = None,
    margin: float = 0.05,
    shares: Map | None = None,
    decoder: casal.Decoder | None = None,
    draws: bool = False,
) -> list[Row]:
    """A row for each kind of model of the same distribution.

    ``sigma`` is where a series of levels ends whose end is given, well below the spread of the data along the normals
    of the set; ``gibbs`` is for sets with closed forms, ``unit`` is the scale of the data; ``methods`` are fewer where
    a projection takes long. On densities "auto" is HMC.
    """
    every: dict[str, dict[str, Any]] = {"density": {"WeightedCASAL": casal.WeightedCASAL(sigma**-2), "auto": "auto"}}
    every["edm"] = every["ddpm"] = every["flow"] = {
        **({"gibbs": casal.SplitGibbs(sigma, moves="gibbs")} if gibbs else {}),
        "metropolis": casal.SplitGibbs(sigma, moves="metropolis"),
        "Twisted": Twisted(sigma**-2, twist=unit**-2),
        "auto": "auto",
    }
    extra = shares if edge is None or shares is not None else close_to(edge, margin)
    one = len(mixture.weights) == 1 and mixture.axes[0] is None
    found = []
    for model in models or ("density", "edm"):
        count = {"density": steps, "flow": 200}.get(model, 300)
        made = Model(
            mixture,
            model,
            steps=count,
            log_density=mixture.log_density,
            start=mixture.sample,
            unit=mixture.variances[0] if one else None,
        )
        case = Case(f"{name}, {model}", constraint, made, "auto", reference, decoder, shares=extra, n=1000)
        promised = {kind: method for kind, method in every[model].items() if kind in methods}
        found.append(Row(case, promised, second, edge, draws))
    return found


FEW = ("metropolis", "auto")

# ------------------------------------------------------------------ solid sets

OFF_CENTRE = aligned([[1.0, 0.5, 0.0]], [[1.0, 0.7, 1.2]], [1.0])


def ball_edge(z: Tensor) -> Tensor:
    return 1.0 - z.norm(dim=1) / 1.2


def ball_reference() -> Reference:
    radius = middles(0.0, 1.2, 200).repeat_interleave(80 * 160)
    points = radius[:, None] * ball_surface(80).repeat(200, 1)
    return weighted(points, OFF_CENTRE.log_density(points) + 2 * radius.log())


OPPOSED = gaussian([0.0, 0.0], [[1.0, -0.8], [-0.8, 1.0]])


def orthant(size: int, **more: Any) -> list[Row]:
    """N(0, I) in an orthant: absolute values of draws against the inverse of the distribution function."""

    def inverse() -> Reference:
        u = torch.rand((100_000, size), generator=stream(1), dtype=F64)
        return drawn(math.sqrt(2) * torch.erfinv(u))

    return rows(
        f"orthant {size}-D",
        Box(0.0, math.inf),
        aligned(torch.zeros(1, size), 1.0, [1.0]),
        0.05,
        lambda: drawn(torch.randn((100_000, size), generator=stream(), dtype=F64).abs()),
        inverse,
        *more.pop("models", ()),
        edge=smallest,
        draws=True,
        **more,
    )


SIDES, HEIGHTS = numbers([-1, 0, 0], [0, -1, 0], [0, 0, -1], [1, 2, 1.5]), numbers(0.0, 0.0, 0.0, 2.0)
SKEW = aligned([[0.5, 0.2, -0.3]], [[0.8, 0.6, 1.0]], [1.0])


def tetrahedron_edge(z: Tensor) -> Tensor:
    return ((HEIGHTS - z @ SIDES.T) / SIDES.norm(dim=1)).amin(1)


def tetrahedron() -> Reference:
    """Uniform draws with weights."""
    points = barycentric(400_000, 4) @ numbers([0, 0, 0], [2, 0, 0], [0, 1, 0], [0, 0, 4 / 3])
    return weighted(points, SKEW.log_density(points))


THREE_TO_TWO = numbers([1.0, 0.5, -0.3], [0.0, 0.8, 0.6])
THROUGH = aligned([[1.0, 0.2, -0.5]], [[0.7, 0.9, 0.5]], [1.0])


def through_edge(z: Tensor) -> Tensor:
    return 1.0 - (z @ THREE_TO_TWO.T).norm(dim=1)


def lifted() -> Reference:
    """Polar quadrature of A z; the rest of z has its mean given A z, and its square is no statistic."""
    radius = middles(0.0, 1.0, 600).repeat_interleave(1000)
    w = radius[:, None] * ring(1.0, 1000).repeat(600, 1)
    S, m = THROUGH.covariance(0), THROUGH.means[0]
    image = gaussian(m @ THREE_TO_TWO.T, THREE_TO_TWO @ S @ THREE_TO_TWO.T)
    gain = torch.linalg.solve(THREE_TO_TWO @ S @ THREE_TO_TWO.T, THREE_TO_TWO @ S).T
    left = torch.linalg.cholesky(S - gain @ THREE_TO_TWO @ S + 1e-14 * torch.eye(3, dtype=F64))
    points = m + (w - m @ THREE_TO_TWO.T) @ gain.T + torch.randn((len(w), 3), generator=stream(), dtype=F64) @ left.T
    return weighted(points, image.log_density(w) + radius.log())


def decoded_box_edge(z: Tensor) -> Tensor:
    low, high = numbers(0.5, -0.5), numbers(1.5, 0.3)
    return torch.minimum(z - low, high - z).div(high - low).amin(1)


# ------------------------------------------------------------------ thin sets


def gaussian_on_plane(
    name: str, mixture: AnisotropicMixture, A: Tensor, b: Tensor, sigma: float, *models: str, **more: Any
) -> list[Row]:
    """A Gaussian on linear equations: kriging of draws, against draws of its closed form."""

    def closed() -> Reference:
        S, m = mixture.covariance(0), mixture.means[0]
        gain = torch.linalg.solve(A @ S @ A.T, A @ S).T
        values, axes = torch.linalg.eigh(S - gain @ A @ S)
        noise = torch.randn((100_000, len(m)), generator=stream(3), dtype=F64) * values.clamp_min(0.0).sqrt()
        return drawn(m + gain @ (b - A @ m) + noise @ axes.T)

    more["draws"] = True
    return rows(name, Affine(A, b), mixture, sigma, lambda: drawn(given(mixture, A, b)), closed, *models, **more)


def scaled(scale: float) -> AnisotropicMixture:
    """Correlated data of a given scale in three dimensions."""
    shape = numbers([1.0, 0.0, 0.7], [0.0, 0.3, 0.1], [0.7, 0.1, 1.0])
    return gaussian(scale * numbers(1.0, -1.0, 0.5), scale**2 * shape)


FLAT = aligned([[0.2, 0.1, 0.0]], [[1.0, 0.1, 0.01]], [1.0])
STIFF = aligned(torch.zeros(1, 6), 10.0 ** torch.linspace(0.0, -3.0, 6, dtype=F64), [1.0])
ONES_3, ONES_4, ONES_8 = (torch.ones(1, k, dtype=F64) for k in (3, 4, 8))


def sixteen() -> GaussianMixture:
    """Three isotropic modes in 16-D."""
    unit = torch.linalg.qr(torch.randn((16, 3), generator=stream(3), dtype=F64))[0].T
    unit = torch.nn.functional.normalize(unit + 0.3 * unit.roll(1, 0), dim=1)
    return GaussianMixture(numbers(0.6, 0.25, 0.15), numbers([2.1], [1.5], [0.8]) * unit, numbers(0.3, 0.35, 0.4))


SIXTEEN = sixteen()
SIXTEEN_ALIGNED = aligned(SIXTEEN.means, SIXTEEN.spreads[:, None], SIXTEEN.weights)


def sixteen_by_mode() -> Reference:
    """Directions of draws of each mode, with one over their density."""
    modes = list(zip(SIXTEEN.means, SIXTEEN.spreads, strict=True))
    x = torch.cat([m + s * torch.randn((20_000, 16), generator=stream(4), dtype=F64) for m, s in modes])
    unit = torch.nn.functional.normalize(x, dim=1)
    density = torch.stack([_angular(unit @ (m / m.norm()), float(m.norm() / s), 16) for m, s in modes], 1)
    return weighted(2.0 * unit, SIXTEEN.log_density(2.0 * unit) - torch.logsumexp(density, 1))


def _angular(cosine: Tensor, a: float, size: int, count: int = 200) -> Tensor:
    """Log-density of the direction of a unit-variance Gaussian with mean of length a, up to a constant of ``size``."""
    r = middles(0.0, a + 12.0, count)
    logs = (size - 1) * r.log() - r.square() / 2 + a * r * cosine[:, None] - a**2 / 2
    return torch.logsumexp(logs, 1) + math.log((a + 12.0) / count)


LONG = aligned(torch.zeros(1, 64), torch.cat([numbers(2.0), torch.ones(63, dtype=F64)]), [1.0])
LONG_RADIUS = 9.0


def long_line() -> Reference:
    """Quadrature over x0; the other coordinates are uniform on their sphere."""
    x = middles(-LONG_RADIUS, LONG_RADIUS, 20_000)
    rest = LONG_RADIUS**2 - x.square()
    side = rest.sqrt()[:, None] * directions(len(x), 63)
    return weighted(torch.cat([x[:, None], side], 1), 0.375 * x.square() + 30.5 * rest.log())


def long_radial() -> Reference:
    """Directions of draws, with one over their density."""
    x = LONG.sample(200_000, stream())
    unit = x / x.norm(dim=1, keepdim=True)
    angular = 32 * (unit.square() / LONG.variances).sum(1).log()
    return weighted(LONG_RADIUS * unit, LONG.log_density(LONG_RADIUS * unit) + angular)


NESTED = (0.02, 1.5)
ROUND = aligned([[0.3, 0.0]], 1.0, [1.0])


def nested_circles() -> Reference:
    points = torch.cat([ring(radius, 20_000) for radius in NESTED])
    return weighted(points, ROUND.log_density(points) + numbers(*NESTED).log().repeat_interleave(20_000))


def nested_layer() -> Reference:
    x = ROUND.sample(8 * MANY, stream())
    length = x.norm(dim=1)
    return near(x, torch.minimum((length - NESTED[0]).abs(), (length - NESTED[1]).abs()), 0.01)


CIRCLES = ((1.2, numbers(-1.5, 0.0)), (0.3, numbers(1.2, 0.5)))
WIDE_PAIR = aligned([[0.3, -0.5]], [[0.6, 0.9]], [1.0])


def two_circles() -> Reference:
    points = torch.cat([center + ring(radius, 20_000) for radius, center in CIRCLES])
    lengths = numbers(*(radius for radius, _ in CIRCLES)).log().repeat_interleave(20_000)
    return weighted(points, WIDE_PAIR.log_density(points) + lengths)


def circles_layer() -> Reference:
    x = WIDE_PAIR.sample(2 * MANY, stream())
    away = torch.stack([((x - center).norm(dim=1) - radius).abs() for radius, center in CIRCLES]).amin(0)
    return near(x, away, 0.02)


def three_modes_layer() -> Reference:
    x = THREE.sample(3 * MANY, stream())
    return near(x, x.norm(dim=1) - 2.0, 0.02)


CONCENTRATED = aligned([[0.5, 0.0, 0.0]], math.sqrt(0.1), [1.0])


def concentrated_layer() -> Reference:
    x = CONCENTRATED.sample(4 * MANY, stream())
    return near(x, x.norm(dim=1) - 1.0, 0.01)


# ------------------------------------------------------------------ thin sets with an edge

TEN = aligned(torch.linspace(0.3, -0.1, 10, dtype=F64)[None], torch.linspace(0.2, 0.35, 10, dtype=F64), [1.0])


def exchanged(mixture: AnisotropicMixture, chains: int, sweeps: int) -> Tensor:
    """Gibbs sampling on the simplex: pairs of coordinates exchange mass, each time by an exact truncated Gaussian."""
    size = mixture.dimension
    z, (mean,), (variance,) = barycentric(chains, size, seed=6), mixture.means, mixture.variances
    generator = stream(7)
    for k in range(sweeps * size):
        i, j = k % size, int(torch.randint(1, size, (), generator=generator) + k) % size
        total, precision = z[:, i] + z[:, j], 1 / variance[i] + 1 / variance[j]
        center = (mean[i] / variance[i] + (total - mean[j]) / variance[j]) / precision
        low, high = (torch.special.ndtr((end - center) * precision.sqrt()) for end in (0 * total, total))
        u = low + (high - low) * torch.rand(chains, generator=generator, dtype=F64)
        z[:, i] = (center + torch.special.ndtri(u) / precision.sqrt()).clamp(0 * total, total)
        z[:, j] = total - z[:, i]
    return z


def simplex_uniform() -> Reference:
    points = barycentric(400_000, 10)
    return weighted(points, TEN.log_density(points))


CHORD = aligned([[0.3, 0.9, 0.2]], [[0.5, 0.3, 0.4]], [1.0])
CHORD_ROWS, CHORD_SIDES = numbers([1.0, 1.0, 1.0], [1.0, -1.0, 0.0]), numbers(1.5, 0.2)


def segment() -> Reference:
    """Two equations in the unit cube: z = (t + .2, t, 1.3 - 2 t)."""
    t = middles(0.15, 0.65, 20_000)
    points = torch.stack([t + 0.2, t, 1.3 - 2 * t], 1)
    return weighted(points, CHORD.log_density(points))


def disc_edge(z: Tensor) -> Tensor:
    return 1.0 - z.norm(dim=1)


def disc() -> Reference:
    """|z| <= 1 and sum z = .5 in 3-D: polar."""
    radius = middles(0.0, math.sqrt(1 - 0.25 / 3), 600).repeat_interleave(1000)
    points = 0.5 / 3 + radius[:, None] * (ring(1.0, 1000).repeat(600, 1) @ basis(ONES_3).T)
    return weighted(points, CHORD.log_density(points) + radius.log())


def basis(rows: Tensor) -> Tensor:
    """Orthonormal columns that span the null space of a row."""
    return torch.linalg.svd(rows)[2][1:].T


FOUR = aligned([[0.2, 0.5, 0.9, 0.4]], [[0.5, 0.3, 0.6, 0.4]], [1.0])
BOX_8 = aligned([[0.1, 0.3, 0.5, 0.7, 0.9, 0.4, 0.6, 0.2]], [[0.4, 0.5, 0.3, 0.4, 0.6, 0.5, 0.3, 0.4]], [1.0])


def on_mass_energy(rows: Tensor, mass: float, radius: float, unit: Tensor) -> Tensor:
    """Points of {sum = mass} at a distance from the constant field, in the given directions of the hyperplane."""
    return mass / rows.shape[1] + radius * unit @ basis(rows).T


def hyperplane_layer(
    mixture: AnisotropicMixture, rows: Tensor, mass: float, radius: float, width: float, n: int
) -> Tensor:
    """Draws given the sum (kriging) whose distance to the constant field is about ``radius``, brought to it."""
    off = given(mixture, rows, numbers(mass), n) - mass / rows.shape[1]
    length = off.norm(dim=1, keepdim=True)
    close = (length[:, 0] - radius).abs() < width
    return mass / rows.shape[1] + radius * off[close] / length[close]


def bounded_mass_energy(size: int) -> list[Row]:
    """Sum, sphere and 0 <= z <= 1: directions in the hyperplane with weights against a thin layer, both cut."""
    mixture, rows_of, mass, radius = {4: (FOUR, ONES_4, 2.0, 0.6), 8: (BOX_8, ONES_8, 4.0, 0.9)}[size]
    energy = mass**2 / size + radius**2

    def cut() -> Reference:
        unit = ball_surface(1000) if size == 4 else directions(MANY, 7)
        points = on_mass_energy(rows_of, mass, radius, unit)
        points = points[unit_box(points) > 0]
        return weighted(points, mixture.log_density(points))

    return rows(
        f"mass, energy and bounds {size}-D",
        MassEnergy(mass, energy) & Box(0.0, 1.0),
        mixture,
        0.02,
        cut,
        lambda: inside(hyperplane_layer(mixture, rows_of, mass, radius, 0.02, 2 * MANY), unit_box),
        gibbs=False,
        edge=unit_box,
        draws=size == 8,
    )


# ------------------------------------------------------------------ the table


def from_start(row: Row, name: str, start: Callable[[int, torch.Generator], Tensor]) -> Row:
    """A density from other starting points, for "auto" alone."""
    return replace(row, case=replace(row.case, name=name), methods={"auto": "auto"}, start=start)


CIRCLE_ROW = rows(
    "three modes on a circle",
    Sphere(2.0),
    THREE,
    0.03,
    on_nodes(ring(2.0), THREE),
    three_modes_layer,
    "density",
    shares=responsibilities(THREE),
    steps=500,
)[0]
CIRCLES_ROW = rows(
    "two circles",
    Sphere(*CIRCLES[0]) | Sphere(*CIRCLES[1]),
    WIDE_PAIR,
    0.03,
    two_circles,
    circles_layer,
    "density",
    gibbs=False,
    steps=500,
)[0]

sixteen_rows = partial(
    rows,
    "three modes on a 16-D sphere",
    Sphere(2.0),
    SIXTEEN_ALIGNED,
    0.03,
    lambda: drawn(SIXTEEN.restricted(Sphere(2.0)).draw(200_000, stream())),
    sixteen_by_mode,
    shares=responsibilities(SIXTEEN_ALIGNED),
    draws=True,
)

ROWS: list[Row] = [
    *rows(
        "ball 3-D",
        Ball(1.2),
        OFF_CENTRE,
        0.02,
        ball_reference,
        lambda: inside(OFF_CENTRE.sample(MANY, stream()), ball_edge),
        gibbs=False,
        edge=ball_edge,
    ),
    *rows(
        "orthant 2-D",
        Box(0.0, math.inf),
        OPPOSED,
        0.02,
        on_nodes(grid(middles(0.0, 5.0, 1000), middles(0.0, 5.0, 1000)), OPPOSED),
        lambda: inside(OPPOSED.sample(2 * MANY, stream()), smallest),
        edge=smallest,
    ),
    *orthant(20),
    # WeightedCASAL has 45 to 75 ancestors left here and says "too few": it promises nothing
    *orthant(50, models=("density",), methods=("auto",)),
    *rows(
        "polytope 3-D",
        Polytope(SIDES, HEIGHTS),
        SKEW,
        0.02,
        tetrahedron,
        lambda: inside(SKEW.sample(MANY, stream()), tetrahedron_edge),
        gibbs=False,
        steps=80,
        methods=FEW,
        edge=tetrahedron_edge,
        draws=True,
    ),
    *rows(
        "inequality through A",
        Implicit(None, lambda w: w.square().sum(1, keepdim=True) - 1.0).through(THREE_TO_TWO),
        THROUGH,
        0.02,
        lifted,
        lambda: inside(THROUGH.sample(MANY, stream()), through_edge),
        gibbs=False,
        steps=80,
        methods=FEW,
        edge=through_edge,
        margin=0.02,
        draws=True,
    ),
    *rows(
        "decoded box",
        Box([0.5, -0.5], [1.5, 0.3]),
        LATENT,
        0.02,
        on_nodes(grid(middles(0.5, 1.5, 600), middles(-0.5, 0.3, 600)), SEEN),
        lambda: inside(LATENT.sample(MANY, stream()) @ WIDE.T, decoded_box_edge),
        edge=decoded_box_edge,
        decoder=casal.Linear(WIDE),
    ),
    *gaussian_on_plane(
        "scale .02", scaled(0.02), numbers([1.0, 1.0, 0.0]), numbers(0.01), 6e-4, "density", "edm", unit=0.02
    ),
    *gaussian_on_plane("scales 1:100", FLAT, ONES_3, numbers(0.8), 0.003),
    # "auto" has the weights of these modes of a density right in 10 of 16 runs, and says "suspect" in the others
    *sixteen_rows("density", methods=("WeightedCASAL",)),
    *sixteen_rows("ddpm", "flow"),
    *rows(
        "64-D sphere",
        Sphere(LONG_RADIUS),
        LONG,
        0.05,
        long_line,
        long_radial,
        shares=lambda z: (z[:, :1] > 2.0).to(F64),
        draws=True,
    ),
    *rows(
        "small and large circle",
        Sphere(NESTED[0]) | Sphere(NESTED[1]),
        ROUND,
        0.005,
        nested_circles,
        nested_layer,
        gibbs=False,
        shares=lambda z: (z.norm(dim=1, keepdim=True) < 0.5).to(F64),
    ),
    *rows(
        "simplex 10-D",
        Simplex(1.0),
        TEN,
        0.02,
        simplex_uniform,
        lambda: drawn(exchanged(TEN, 20_000, 30)),
        gibbs=False,
        edge=smallest,
        margin=0.01,
        draws=True,
    ),
    *rows(
        "segment",
        Box(0.0, 1.0) & Affine(CHORD_ROWS, CHORD_SIDES),
        CHORD,
        0.02,
        segment,
        lambda: inside(given(CHORD, CHORD_ROWS, CHORD_SIDES, MANY), unit_box),
        gibbs=False,
        steps=80,
        methods=FEW,
        edge=unit_box,
    ),
    *rows(
        "disc in a plane",
        Ball(1.0) & Affine(ONES_3, 0.5),
        CHORD,
        0.02,
        disc,
        lambda: inside(given(CHORD, ONES_3, numbers(0.5), MANY), disc_edge),
        gibbs=False,
        edge=disc_edge,
    ),
    *bounded_mass_energy(4),
    *bounded_mass_energy(8),
    # starts
    from_start(CIRCLE_ROW, "three modes from N(0, 4 I)", wide(2.0, 2)),
    from_start(CIRCLE_ROW, "three modes from N(0, 100 I)", wide(10.0, 2)),
    from_start(CIRCLES_ROW, "two circles from 300 times too far", wide(300.0, 2)),
]
