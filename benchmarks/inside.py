"""Densities inside a set: ``casal.HMC()`` against references that are not made by it, hopsy and mici.

Every problem is written as a user writes it. z is the largest error of an observable (coordinates and squares, unless
its docstring says otherwise) in standard errors. The effective size is that of the samples, smallest over observables,
from the correlations of the draws of a chain where chains give several; seconds are those of the processor for all of
``casal.sample``: reduction, warm-up and checks included.

References: closed forms; quadrature; rejection; independent draws in internal coordinates with the surface factor; long
hit-and-run chains on the walls of our own reduction. Models of metabolism are read from the files that the package
``cobra`` brings; without it, and without hopsy and mici, their rows say so.
"""

from __future__ import annotations

import gzip
import importlib.util
import math
import time
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import casal
from benchmarks.timing import Table
from casal.constraints import Reduction, analytic_centre
from casal.diagnostics.chain_mixing import FEWEST_DRAWS, mixing
from casal.errors import CasalWarning

F = torch.float64
INF = math.inf

Observe = Callable[[Tensor], Tensor]
"""Points (n, *event) -> observables (n, q)."""


def squares(z: Tensor) -> Tensor:
    """Coordinates and their squares."""
    flat = z.flatten(1)
    return torch.cat([flat, flat.square()], 1)


@dataclass
class Problem:
    """A density on a set with what is known of it.

    Attributes:
        target: n -> the model, steps and start left to the library where it can find them.
        constraint: The set.
        reference: Expectations of the observables and their standard errors.
        observe: The observables.
        n: Samples asked for.
        bar: What the row has to show besides z < 4 and a trusted verdict.
    """

    target: Callable[[int], casal.Target]
    constraint: casal.Constraint
    reference: Callable[[], tuple[Tensor, Tensor]]
    observe: Observe = squares
    n: int = 400
    bar: str = ""


def exactly(values: Tensor) -> tuple[Tensor, Tensor]:
    """A reference without an error."""
    return values, torch.zeros_like(values)


def averaged(observed: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Mean and standard error of independent draws (n, q), with weights (n,)."""
    w = torch.full((len(observed),), 1.0 / len(observed), dtype=F) if weight is None else weight / weight.sum()
    mean = w @ observed
    return mean, (w.square() @ (observed - mean).square()).sqrt()


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F)


def uniform(seed: int, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=F)


# ------------------------------------------------------------------------------------------------- metabolism


@cache
def metabolism(name: str) -> tuple[Tensor, Tensor, Tensor, list[str]] | None:
    """S, lower and upper bounds, and names of the fluxes, of a model that comes with cobra; None without it."""
    found = importlib.util.find_spec("cobra")
    if found is None or found.origin is None:
        return None
    file = Path(found.origin).parent / "data" / f"{name}.xml.gz"
    root = ElementTree.fromstring(gzip.decompress(file.read_bytes()))
    sbml = "{" + root.tag[1:].split("}")[0] + "}"
    fbc = "{http://www.sbml.org/sbml/level3/version1/fbc/version2}"
    value = {p.get("id"): float(p.get("value") or "nan") for p in root.iter(f"{sbml}parameter")}
    boundary = {s.get("id") for s in root.iter(f"{sbml}species") if s.get("boundaryCondition") == "true"}
    species = [s.get("id") for s in root.iter(f"{sbml}species") if s.get("id") not in boundary]
    row, reactions = {s: i for i, s in enumerate(species)}, list(root.iter(f"{sbml}reaction"))
    S = torch.zeros(len(species), len(reactions), dtype=F)
    for j, reaction in enumerate(reactions):
        for part, sign in (("listOfReactants", -1.0), ("listOfProducts", 1.0)):
            for one in reaction.iterfind(f"{sbml}{part}/{sbml}speciesReference"):
                if one.get("species") in row:
                    S[row[one.get("species")], j] += sign * float(one.get("stoichiometry") or 1.0)
    low, high = (
        torch.tensor([value[r.get(f"{fbc}{side}FluxBound")] for r in reactions], dtype=F) for side in ("lower", "upper")
    )
    return S, low, high, [str(r.get("id")).removeprefix("R_") for r in reactions]


def _truncated(mean: Tensor, sd: Tensor, low: Tensor, high: Tensor, t: Tensor) -> Tensor:
    """N(mean, sd^2) on [low, high] at the share t of its mass, in its tails too."""
    a, b = (low - mean) / sd, (high - mean) / sd
    right = a > 0  # turned to the lower tail, where the distribution function is exact
    a, b = torch.where(right, -b, a), torch.where(right, -a, b)
    below, above = torch.special.ndtr(a), torch.special.ndtr(b)
    u = torch.special.ndtri(below + (above - below) * t)
    rate = -b  # beyond all digits of it the density is exponential
    tail = b + torch.log1p(-t * (1.0 - torch.exp(-rate.clamp_min(1.0) * (b - a)))) / rate.clamp_min(1.0)
    u = torch.where(b < -30.0, tail, u)
    return torch.minimum(torch.maximum(mean + sd * torch.where(right, -u, u), low), high)


def hit_and_run(
    flat: Reduction, near: Tensor, gaussian: tuple[Tensor, Tensor] | None, chains: int, draws: int, thin: int, seed: int
) -> Tensor:
    """Points (draws, chains, d) of a constant density, or of N with precision P and P m (in x): exact draws on chords.

    Chains begin next to ``near``. Directions are those of the barrier's ellipsoid, then of the covariance of its draws.
    """
    g, C, c = torch.Generator().manual_seed(seed), flat.walls, flat.room[0]
    basis = torch.eye(C.shape[1], dtype=F) if flat.basis is None else flat.basis
    y, kept = (0.9 * flat.inward(near)).expand(chains, -1), list[Tensor]()
    around = analytic_centre(C, c, torch.zeros_like(y[0]))
    scale = torch.eye(C.shape[1], dtype=F) if around is None else around.scale
    for block in (200, 400, 800, 1600, draws * thin):
        kept = []
        for k in range(block):
            v = torch.randn(chains, C.shape[1], generator=g, dtype=F) @ scale.T
            speed, slack = v @ C.T, c - y @ C.T
            high = torch.where(speed > 1e-300, slack / speed.clamp_min(1e-300), INF).amin(1)
            low = torch.where(speed < -1e-300, slack / speed.clamp_max(-1e-300), -INF).amax(1)
            t = torch.rand(chains, generator=g, dtype=F)
            if gaussian is None:
                step = low + (high - low) * t
            else:
                P, Pm = gaussian
                x, w = flat.outward(y), v @ basis.T
                curve, slope = ((w @ P) * w).sum(1), (w * (Pm - x @ P)).sum(1)
                middle = slope / curve.clamp_min(1e-12)
                step = _truncated(middle, curve.clamp_min(1e-12).rsqrt(), low, high, t)
                step = torch.where(curve > 1e-12, step, low + (high - low) * t)
            y = y + step[:, None] * v
            if k % thin == thin - 1:
                kept.append(y)
        rest = torch.cat(kept[len(kept) // 2 :])
        scale = torch.linalg.cholesky(torch.cov(rest.T) + 1e-14 * torch.cov(rest.T).trace() * torch.eye(len(scale)))
    return torch.stack([flat.outward(y) for y in kept])


def _by_hit_and_run(constraint: casal.Constraint, near: Tensor, gaussian: Any) -> tuple[Tensor, Tensor]:
    flat = constraint.reduction((len(near),))  # walls that the reference shares with the library
    assert flat is not None
    draws = hit_and_run(flat, constraint.project(near[None]), gaussian, 1000, 80, 80, 5)[10:]
    observed = torch.stack([squares(z) for z in draws]).mean(0)
    return observed.mean(0), observed.std(0) / math.sqrt(len(observed))  # over independent chains


def fluxes(kind: str) -> Problem | None:
    """E. coli core: uniform, Gaussian around zero, or five measured fluxes with errors."""
    model = metabolism("textbook")
    if model is None:
        return None
    S, low, high, names = model
    d, constraint = S.shape[1], casal.Affine(S, torch.zeros(len(S), dtype=F)) & casal.Box(low, high)
    precision, mean = torch.zeros(d, dtype=F), torch.zeros(d, dtype=F)
    if kind == "Gaussian":
        precision += 1.0 / 400.0
    if kind == "measured":
        for flux, value, error in (
            ("EX_glc__D_e", -9.0, 0.5), ("EX_o2_e", -15.0, 2.0), ("EX_co2_e", 16.0, 2.0), ("EX_ac_e", 2.0, 1.0),
            ("PGI", 5.0, 2.0),
        ):  # fmt: skip
            precision[names.index(flux)], mean[names.index(flux)] = error**-2, value
    gaussian = None if kind == "uniform" else (torch.diag(precision), precision * mean)

    def target(n: int) -> casal.Target:
        return casal.langevin(
            lambda x: precision * (x - mean), potential=lambda x: (precision * (x - mean).square()).sum(1) / 2,
            init=torch.zeros(d, dtype=F),
        )  # fmt: skip

    return Problem(target, constraint, lambda: _by_hit_and_run(constraint, mean, gaussian), bar="< 3 s")


# ------------------------------------------------------------------------------------------------- flat sets


def _gaussian(mean: Tensor, precision: Tensor) -> Callable[[int], casal.Target]:
    return lambda n: casal.langevin(
        lambda x: (x - mean) @ precision, potential=lambda x: (((x - mean) @ precision) * (x - mean)).sum(1) / 2,
        init=casal.GaussianStart(len(mean), dtype=F),
    )  # fmt: skip


def markov(d: int, phi: float, low: float) -> Problem:
    """A stationary AR(1) field, all coordinates at least ``low``: by quadrature of the transfer operator."""

    def reference() -> tuple[Tensor, Tensor]:
        x, w = np.polynomial.legendre.leggauss(600)
        a, b = low, max(low + 6.0, 7.0)
        x, w = a + (x + 1) * (b - a) / 2, w * (b - a) / 2
        kernel = np.exp(-((x[None] - phi * x[:, None]) ** 2) / (2 * (1 - phi * phi)))
        first, last = [np.exp(-x * x / 2)], [np.ones_like(x)]
        for _ in range(d - 1):
            f, g = (first[-1] * w) @ kernel, kernel @ (w * last[-1])
            first.append(f / f.max())
            last.append(g / g.max())
        p = np.array([first[i] * last[d - 1 - i] * w for i in range(d)])
        p /= p.sum(1, keepdims=True)
        return exactly(torch.as_tensor(np.r_[p @ x, p @ (x * x)]))

    steps = torch.arange(d, dtype=F)
    precision = torch.linalg.inv(phi ** (steps[:, None] - steps).abs())
    return Problem(_gaussian(torch.zeros(d, dtype=F), precision), casal.Box(low, INF), reference)


def smooth_field(nugget: float, d: int = 50) -> Problem:
    """A Gaussian process with a squared exponential kernel, positive everywhere: by rejection."""
    t = torch.linspace(0, 1, d, dtype=F)
    kernel = (torch.exp(-((t[:, None] - t) ** 2) / 0.08) + nugget * torch.eye(d, dtype=F)) / (1 + nugget)

    def reference() -> tuple[Tensor, Tensor]:
        root, kept = torch.linalg.cholesky(kernel), []
        for seed in range(60):
            x = normal(1000 + seed, 50_000, d) @ root.T
            kept += [x[(x >= 0).all(1)], -x[(x <= 0).all(1)]]
        return averaged(squares(torch.cat(kept)))

    return Problem(_gaussian(torch.zeros(d, dtype=F), torch.linalg.inv(kernel)), casal.Box(0.0, INF), reference)


def _constant(d: int) -> Callable[[int], casal.Target]:
    return lambda n: casal.langevin(lambda x: 0 * x, potential=lambda x: 0 * x.sum(1), init=torch.zeros(d, dtype=F))


def capped_simplex(d: int = 30) -> Problem:
    """Uniform on sum z = 1, 0 <= z <= .1: volumes by inclusion and exclusion over the caps, in exact fractions."""

    def reference() -> tuple[Tensor, Tensor]:
        cap, moments = Fraction(1, 10), []
        for power in range(3):
            total = Fraction(0)
            for k in range(d):
                top = 1 - k * cap
                if top <= 0:
                    break
                rest = top - min(cap, top)  # of x^power (top - x)^(d-2) over [0, cap], with y = top - x
                for i in range(power + 1):
                    term = (-1) ** i * math.comb(power, i) * top ** (power - i)
                    part = (top ** (d - 1 + i) - rest ** (d - 1 + i)) / (d - 1 + i)
                    total += (-1) ** k * math.comb(d - 1, k) * term * part
            moments.append(total)
        means = [float(m / moments[0]) for m in moments[1:]]
        return exactly(torch.tensor(means, dtype=F).repeat_interleave(d))

    return Problem(_constant(d), casal.Simplex(1.0) & casal.Box(0.0, 0.1), reference)


def random_polytope(d: int = 5, walls: int = 40) -> Problem:
    """Uniform on {G z <= 1.5} in a box: by rejection."""
    G = normal(70, walls, d)

    def reference() -> tuple[Tensor, Tensor]:
        kept = [z[(z @ G.T <= 1.5).all(1)] for z in (4.0 * uniform(200 + k, 400_000, d) - 2.0 for k in range(30))]
        return averaged(squares(torch.cat(kept)))

    return Problem(
        _constant(d), casal.Polytope(G, torch.full((walls,), 1.5, dtype=F)) & casal.Box(-2.0, 2.0), reference
    )


def thin_box(d: int = 10) -> Problem:
    """Uniform in a rotated box with widths 1e-6 to 1; observables along its edges, in units of them."""
    turn, width = torch.linalg.qr(normal(2, d, d)).Q, torch.logspace(-6, 0, d, dtype=F)
    box = casal.Polytope(torch.cat([turn.T, -turn.T]), torch.cat([width, torch.zeros(d, dtype=F)]))
    right = torch.tensor([0.5, 1 / 3], dtype=F).repeat_interleave(d)
    return Problem(_constant(d), box, lambda: exactly(right), lambda z: squares(z @ turn / width))


def increasing(d: int = 50) -> Problem:
    """Uniform on 0 <= z_1 <= ... <= z_d <= 1: order statistics."""
    k = torch.arange(1, d + 1, dtype=F)
    right = torch.cat([k / (d + 1), k * (k + 1) / ((d + 1) * (d + 2))])
    return Problem(_constant(d), casal.Monotone() & casal.Box(0.0, 1.0), lambda: exactly(right))


def dirichlet(a: float, d: int = 10) -> Problem:
    """Dirichlet(a, ..., a): infinite at the walls for a < 1, zero there for a > 1."""
    m = 1.0 / d
    second = m * (a + 1) / (d * a + 1)
    right = torch.tensor([m, second], dtype=F).repeat_interleave(d)

    def target(n: int) -> casal.Target:
        return casal.energy(lambda x: -(a - 1) * x.log().sum(1), init=torch.full((d,), 1.0 / d, dtype=F))

    return Problem(target, casal.Simplex(1.0), lambda: exactly(right))


def stiff(kind: str, d: int = 20) -> Problem:
    """N(m, C) with variances from 1e-4 to 1, turned off the axes, in a box, a ball, a half-space or an L1 ball."""
    turn, variance = torch.linalg.qr(normal(7, d, d)).Q, torch.logspace(-4, 0, d, dtype=F)
    mean = 0.5 * turn[:, -1]
    precision = turn @ torch.diag(1.0 / variance) @ turn.T
    inside: Callable[[Tensor], Tensor]
    if kind == "box":
        constraint, inside = casal.Box(-0.5, 0.5), lambda z: (z.abs() <= 0.5).all(1)
    elif kind == "ball":
        constraint, inside = casal.Ball(1.0), lambda z: z.square().sum(1) <= 1.0
    elif kind == "half-space":
        constraint, inside = casal.HalfSpace(turn[:, -1], 0.0), lambda z: z @ turn[:, -1] <= 0.0
    else:
        constraint, inside = casal.L1Ball(3.0), lambda z: z.abs().sum(1) <= 3.0

    def reference() -> tuple[Tensor, Tensor]:
        kept = []
        for seed in range(40):
            z = mean + (normal(3000 + seed, 50_000, d) * variance.sqrt()) @ turn.T
            kept.append(z[inside(z)])
        return averaged(squares(torch.cat(kept) @ turn))

    return Problem(_gaussian(mean, precision), constraint, reference, lambda z: squares(z @ turn))


# ------------------------------------------------------------------------------------------------- curved sets


def bessel_ratio(d: int, k: float) -> float:
    """I_{d/2}(k) / I_{d/2-1}(k) by its continued fraction."""
    ratio = 0.0
    for j in range(2000, -1, -1):
        ratio = 1.0 / ((d + 2 * j) / k + ratio)
    return ratio


def _linear(a: Tensor, start: Callable[[int, torch.Generator], Tensor] | None = None) -> Callable[[int], casal.Target]:
    """log p = a . z."""
    init = casal.GaussianStart(len(a), dtype=F) if start is None else start
    return lambda n: casal.langevin(lambda x: -a.expand_as(x), potential=lambda x: -x @ a, init=init)


def sphere(d: int) -> Problem:
    """von Mises-Fisher with k = d: E x_1 = A, E x_1^2 = 1 - (d - 1) A / k."""
    A = bessel_ratio(d, float(d))
    second = 1 - (d - 1) * A / d
    rest = torch.full((d - 1,), (1 - second) / (d - 1), dtype=F)
    right = torch.cat([torch.tensor([A], dtype=F), torch.zeros(d - 1, dtype=F), torch.tensor([second], dtype=F), rest])
    a = torch.zeros(d, dtype=F)
    a[0] = d
    return Problem(_linear(a), casal.Sphere(1.0), lambda: exactly(right))


def torus_equation(z: Tensor) -> Tensor:
    return ((z[..., :2].square().sum(-1).sqrt() - 1.0).square() + z[..., 2].square() - 0.25)[..., None]


def torus() -> Problem:
    """log p = x; surface measure (1 + cos(v) / 2) du dv by quadrature."""
    angle = (torch.arange(1000, dtype=F) + 0.5) * 2 * math.pi / 1000
    radius = 1.0 + 0.5 * angle.cos()[:, None]
    x, y, z = radius * angle.cos(), radius * angle.sin(), 0.5 * angle.sin()[:, None].expand(1000, 1000)
    weight = radius * torch.exp(x)
    right = torch.stack([(weight * v).sum() / weight.sum() for v in (x, y, z, x**2, y**2, z**2)])
    return Problem(_linear(torch.eye(3, dtype=F)[0]), casal.Implicit(torus_equation), lambda: exactly(right))


def mass_energy(d: int = 64, mass: float = 8.0, energy: float = 80.0) -> Problem:
    """sum z = M, |z|^2 = E, log p = a . z: von Mises-Fisher on a sphere of d - 2 dimensions."""
    rho = math.sqrt(energy - mass**2 / d)
    a = 3.0 * torch.cos(2 * math.pi * torch.arange(d, dtype=F) / d)
    along = a - a.mean()
    k, mu = float(along.norm()) * rho, along / along.norm()
    A = bessel_ratio(d - 1, k)
    second = 1 - (d - 2) * A / k
    mean = mass / d + rho * A * mu
    variance = rho**2 * ((second - A * A) * mu**2 + (1 - second) / (d - 2) * (1 - 1 / d - mu**2))
    right = torch.cat([mean, mean**2 + variance])
    return Problem(_linear(a), casal.MassEnergy(mass, energy), lambda: exactly(right))


def stiefel(n: int = 8, p: int = 3, k: float = 4.0) -> Problem:
    """X^T X = I, log p = k X_11: the first column is von Mises-Fisher. Observables: X_11, squares of column and row."""
    A = bessel_ratio(n, k)
    second = 1 - (n - 1) * A / k
    right = torch.tensor([A, second, *[(1 - second) / (n - 1)] * (n + p - 2)], dtype=F)
    upper = torch.triu_indices(p, p)

    def equations(z: Tensor) -> Tensor:
        X = z.view(-1, n, p)
        return (X.mT @ X - torch.eye(p, dtype=F))[:, upper[0], upper[1]] / 2

    def observe(z: Tensor) -> Tensor:
        X = z.view(-1, n, p)
        return torch.cat([X[:, 0, :1], X[:, :, 0] ** 2, X[:, 0, 1:] ** 2], 1)

    a = torch.zeros(n * p, dtype=F)
    a[0] = k
    return Problem(_linear(a), casal.Implicit(equations), lambda: exactly(right), observe)


def ellipsoid() -> Problem:
    """Uniform on the surface with axes 1 : 10 : 100, by quadrature."""
    axes = torch.tensor([1.0, 10.0, 100.0], dtype=F)
    c, w = (torch.as_tensor(v) for v in np.polynomial.legendre.leggauss(2000))
    u = (torch.arange(2000, dtype=F) + 0.5) * math.pi / 1000
    s = (1 - c.square()).sqrt()
    unit = torch.stack([c.expand(2000, 2000), s * u.cos()[:, None], s * u.sin()[:, None]])
    weight = (unit / axes[:, None, None]).square().sum(0).sqrt() * w
    seconds = [(weight * (unit[i] * axes[i]) ** 2).sum() / weight.sum() for i in range(3)]
    right = torch.cat([torch.zeros(3, dtype=F), torch.stack(seconds)])
    egg = casal.Implicit(lambda z: ((z / axes).square().sum(-1, keepdim=True) - 1.0) / 2)
    start = casal.GaussianStart(3, std=axes.tolist(), dtype=F)
    return Problem(_linear(torch.zeros(3, dtype=F), start), egg, lambda: exactly(right))


def beads(atoms: int, bend: float = 2.0, reach: float = 0.3) -> Problem:
    """A chain of atoms with bonds of length one, stiff angles, and ends that attract each other.

    Reference: independent bonds, cosines of the angles exactly from exp(bend c), the rest and sqrt(det J J^T) by
    weights; J J^T is tridiagonal. Observables: end to end squared, cosines, squared radius of gyration, the centre.
    """
    bonds = atoms - 1

    def shape(u: Tensor) -> tuple[Tensor, Tensor]:
        cosine = (u[:, 1:] * u[:, :-1]).sum(2)
        place = torch.cat([torch.zeros_like(u[:, :1]), u.cumsum(1)], 1)
        ends = place[:, -1].square().sum(1)
        gyration = (place - place.mean(1, keepdim=True)).square().sum(2).mean(1)
        return torch.cat([ends[:, None], cosine, gyration[:, None]], 1), bend * cosine.sum(1) - reach * ends / 2

    def steps(z: Tensor) -> Tensor:
        X = z.view(-1, atoms, 3)
        return X[:, 1:] - X[:, :-1]

    def energy(z: Tensor) -> Tensor:
        u = steps(z)
        return -shape(u / u.norm(dim=2, keepdim=True))[1] + z.view(-1, atoms, 3).mean(1).square().sum(1) / 2

    def observe(z: Tensor) -> Tensor:
        centre = z.view(-1, atoms, 3).mean(1)
        return torch.cat([shape(steps(z))[0], centre, centre.square()], 1)

    def reference() -> tuple[Tensor, Tensor]:
        n, seen, weight = 400_000, [], []
        for block in range(4):
            q, phi = uniform(40 + block, n // 4, bonds - 1), 2 * math.pi * uniform(50 + block, n // 4, bonds - 1)
            c = torch.log(math.exp(-bend) + q * 2 * math.sinh(bend)) / bend
            u = [torch.tensor([0.0, 0.0, 1.0], dtype=F).expand(n // 4, 3)]
            side = torch.tensor([1.0, 0.0, 0.0], dtype=F).expand(n // 4, 3)
            for i in range(bonds - 1):
                one = torch.nn.functional.normalize(side - (side * u[-1]).sum(1, keepdim=True) * u[-1], dim=1)
                two, ci, p = torch.linalg.cross(u[-1], one), c[:, i : i + 1], phi[:, i : i + 1]
                new = ci * u[-1] + (1 - ci**2).clamp_min(0).sqrt() * (p.cos() * one + p.sin() * two)
                side = u[-1] + 0.1 * one
                u.append(torch.nn.functional.normalize(new, dim=1))
            observed, log_p = shape(torch.stack(u, 1))
            before, now = torch.ones(n // 4, dtype=F), torch.full((n // 4,), 2.0, dtype=F)
            for i in range(bonds - 1):
                before, now = now, 2 * now - observed[:, 1 + i] ** 2 * before
            seen.append(observed)
            weight.append(torch.exp(log_p - bend * observed[:, 1:bonds].sum(1)) * now.sqrt())
        mean, error = averaged(torch.cat(seen), torch.cat(weight))
        centre = torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 1.0], dtype=F)
        return torch.cat([mean, centre]), torch.cat([error, torch.zeros(6, dtype=F)])

    def start(n: int, generator: torch.Generator) -> Tensor:
        u = torch.nn.functional.normalize(torch.randn(n, bonds, 3, generator=generator, dtype=F), dim=2)
        X = torch.cat([torch.zeros(n, 1, 3, dtype=F), u.cumsum(1)], 1)
        return (X - X.mean(1, keepdim=True)).reshape(n, -1)

    rods = casal.Implicit(lambda z: (steps(z).square().sum(2) - 1) / 2)
    return Problem(lambda n: casal.energy(energy, init=start), rods, reference, observe, bar="1000 in 10 s")


def dihedral(X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Bonds (n, 3, 3), cosines of the two angles between them (n, 2), and the dihedral angle (n,)."""
    b = X[:, 1:] - X[:, :-1]
    one, two = torch.linalg.cross(b[:, 0], b[:, 1]), torch.linalg.cross(b[:, 1], b[:, 2])
    angle = torch.atan2((torch.linalg.cross(one, two) * b[:, 1]).sum(1) / b[:, 1].norm(dim=1), (one * two).sum(1))
    unit = b / b.norm(dim=2, keepdim=True)
    return b, (unit[:, 1:] * unit[:, :-1]).sum(2), angle


def butane(twist: float = 1.0) -> Problem:
    """Four atoms, bonds of length one and the dihedral angle fixed, angles stiff (energy 25 (c - .4)^2 each).

    At straight angles the dihedral angle is not defined; the energy keeps away from them. Reference: quadrature over
    the two angles with sin a sin b sqrt(det J J^T). Observables: both cosines, their squares and product, the squared
    distance of the ends.
    """

    def equations(z: Tensor) -> Tensor:
        b, _, angle = dihedral(z.view(-1, 4, 3))
        return torch.cat([(b.square().sum(2) - 1) / 2, angle[:, None] - twist], 1)

    def energy(z: Tensor) -> Tensor:
        X = z.view(-1, 4, 3)
        return 25.0 * (dihedral(X)[1] - 0.4).square().sum(1) + X.mean(1).square().sum(1) / 2

    def observe(z: Tensor) -> Tensor:
        X = z.view(-1, 4, 3)
        c = dihedral(X)[1]
        return torch.cat([c, c.square(), c.prod(1, keepdim=True), (X[:, 3] - X[:, 0]).square().sum(1, keepdim=True)], 1)

    def bent(first: Tensor, second: Tensor) -> Tensor:
        """Atoms (n, 4, 3) with these angles between bonds."""
        b1 = torch.stack([first.sin(), torch.zeros_like(first), first.cos()], 1)
        b3 = torch.stack([second.sin() * math.cos(twist), second.sin() * math.sin(twist), second.cos()], 1)
        b1 = b1 * torch.tensor([-1.0, 1.0, 1.0], dtype=F)
        axis = torch.tensor([0.0, 0.0, 1.0], dtype=F).expand_as(b1)
        X = torch.stack([torch.zeros_like(b1), b1, b1 + axis, b1 + axis + b3], 1)
        off = (dihedral(X)[2] - twist).abs() > 1e-6
        return torch.where(off[:, None, None], X * torch.tensor([1.0, -1.0, 1.0], dtype=F), X)

    def reference() -> tuple[Tensor, Tensor]:
        x, w = (torch.as_tensor(v) for v in np.polynomial.legendre.leggauss(120))
        first, second = (v.flatten() for v in torch.meshgrid(*[(x + 1) * math.pi / 2] * 2, indexing="ij"))
        X = bent(first, second)
        assert float((dihedral(X)[2] - twist).abs().max()) < 1e-6
        leaf = X.flatten(1).requires_grad_()
        h = equations(leaf)
        J = torch.stack([torch.autograd.grad(h[:, i].sum(), leaf, retain_graph=True)[0] for i in range(4)], 1)
        factor = first.sin() * second.sin() * torch.linalg.det(J @ J.mT).sqrt()
        weight = torch.outer(w, w).flatten() * factor * torch.exp(-25.0 * (dihedral(X)[1] - 0.4).square().sum(1))
        return exactly((weight / weight.sum()) @ observe(X.flatten(1)))

    def start(n: int, generator: torch.Generator) -> Tensor:
        angle = torch.full((n,), math.acos(0.4), dtype=F)
        return bent(angle, angle).flatten(1) + 0.05 * torch.randn(n, 12, generator=generator, dtype=F)

    return Problem(
        lambda n: casal.energy(energy, init=start), casal.Implicit(equations), reference, observe, bar="1000 in 10 s"
    )


def water(molecules: int = 3) -> Problem:
    """Rigid molecules of three atoms that repel each other in a harmonic trap.

    Reference: centres and orientations at random, accepted by the repulsion; J J^T does not depend on the place. The
    trap |x|^2 / 2 of all atoms is 3 |centre|^2 / 2. Observables: squared distances of first atoms, centres, squares.
    """
    rigid = torch.tensor([[0.0, 0.0, 0.0], [0.8, 0.6, 0.0], [-0.8, 0.6, 0.0]], dtype=F)
    rigid = rigid - rigid.mean(0)
    pairs = torch.triu_indices(3, 3, 1)
    lengths = (rigid[pairs[0]] - rigid[pairs[1]]).square().sum(1)
    others = torch.triu_indices(molecules, molecules, 1)

    def equations(z: Tensor) -> Tensor:
        X = z.view(-1, molecules, 3, 3)
        return ((X[:, :, pairs[0]] - X[:, :, pairs[1]]).square().sum(3) - lengths).flatten(1) / 2

    def repulsion(X: Tensor) -> Tensor:
        between = (X[:, others[0], :, None] - X[:, others[1], None, :]).square().sum(-1)
        return 2.0 * torch.exp(-between).sum((1, 2, 3))

    def energy(z: Tensor) -> Tensor:
        return repulsion(z.view(-1, molecules, 3, 3)) + z.square().sum(1) / 2

    def observe(z: Tensor) -> Tensor:
        X = z.view(-1, molecules, 3, 3)
        apart = (X[:, others[0], 0] - X[:, others[1], 0]).square().sum(2)
        centre = X.mean(2).flatten(1)
        return torch.cat([apart, centre, centre.square()], 1)

    def reference() -> tuple[Tensor, Tensor]:
        n = 300_000
        quaternion = torch.nn.functional.normalize(normal(60, n * molecules, 4), dim=1)
        w, x, y, z = quaternion.T
        turn = torch.stack(
            [
                1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
                2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
                2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
            ], 1,
        ).view(-1, 3, 3)  # fmt: skip
        X = (rigid @ turn.mT + normal(61, n * molecules, 1, 3) / math.sqrt(3.0)).view(n, molecules, 3, 3)
        return averaged(observe(X.flatten(1)), torch.exp(-repulsion(X)))

    def start(n: int, generator: torch.Generator) -> Tensor:
        centre = 1.5 * torch.randn(n, molecules, 1, 3, generator=generator, dtype=F)
        return (rigid + centre + 0.1 * torch.randn(n, molecules, 3, 3, generator=generator, dtype=F)).flatten(1)

    return Problem(
        lambda n: casal.energy(energy, init=start), casal.Implicit(equations), reference, observe, bar="1000 in 10 s"
    )


GRIDS = {
    9: (
        "1-4 0 .0576 0;4-5 .017 .092 .158;5-6 .039 .17 .358;3-6 0 .0586 0;6-7 .0119 .1008 .209;7-8 .0085 .072 .149;"
        "8-2 0 .0625 0;8-9 .032 .161 .306;9-4 .01 .085 .176",
        {5: (0.9, 0.3), 7: (1.0, 0.35), 9: (1.25, 0.5)},
        {1: (1.0, 0.0), 2: (1.0, 1.63), 3: (1.0, 0.85)},
    ),
    14: (
        "1-2 .01938 .05917 .0528;1-5 .05403 .22304 .0492;2-3 .04699 .19797 .0438;2-4 .05811 .17632 .034;"
        "2-5 .05695 .17388 .0346;3-4 .06701 .17103 .0128;4-5 .01335 .04211 0;4-7 0 .20912 0;4-9 0 .55618 0;"
        "5-6 0 .25202 0;6-11 .09498 .1989 0;6-12 .12291 .25581 0;6-13 .06615 .13027 0;7-8 0 .17615 0;7-9 0 .11001 0;"
        "9-10 .03181 .0845 0;9-14 .12711 .27038 0;10-11 .08205 .19207 0;12-13 .22092 .19988 0;13-14 .17093 .34802 0",
        {
            2: (0.217, 0.127), 3: (0.942, 0.19), 4: (0.478, -0.039), 5: (0.076, 0.016), 6: (0.112, 0.075),
            9: (0.295, 0.166), 10: (0.09, 0.058), 11: (0.035, 0.018), 12: (0.061, 0.016), 13: (0.135, 0.058),
            14: (0.149, 0.05),
        },
        {1: (1.06, 0.0), 2: (1.045, 0.4), 3: (1.01, 0.0), 6: (1.07, 0.0), 8: (1.09, 0.0)},
    ),
}  # fmt: skip
"""The grids of 9 and 14 buses of WSCC and IEEE, transformers at their nominal ratio: lines (r, x, b), loads (P, Q) and
generators (V, P), in units of 100 MVA. The first bus balances the grid."""


def grid(buses: int, spread: float = 0.3, low: float = 0.95) -> Problem:
    """Voltages (V, angle) at buses and factors l of the loads, l_i ~ N(1, spread^2), that satisfy the power flow.

    Buses with loads alone have V >= low. Reference: draws of l, Newton's method for the state x, weights
    sqrt(det(I + D^T D)), D = dx/dl. Observables: coordinates and squares.
    """
    lines, loads, generators = GRIDS[buses]
    Y = torch.zeros(buses, buses, dtype=torch.complex128)
    for line in lines.split(";"):
        place, *values = line.split()
        i, j = (int(v) - 1 for v in place.split("-"))
        r, x, b = map(float, values)
        y = 1.0 / complex(r, x)
        Y[i, j] -= y
        Y[j, i] -= y
        Y[i, i] += y + 0.5j * b
        Y[j, j] += y + 0.5j * b
    G, B = Y.real, Y.imag
    free_angle = list(range(1, buses))
    free_size = [i for i in range(buses) if i + 1 not in generators]
    loaded = sorted(loads)
    size0 = torch.ones(buses, dtype=F)
    for bus, (volt, _) in generators.items():
        size0[bus - 1] = volt
    P0, L = torch.zeros(buses, dtype=F), torch.zeros(2, buses, len(loaded), dtype=F)
    for bus, (_, power) in generators.items():
        P0[bus - 1] = power
    for k, bus in enumerate(loaded):
        L[0, bus - 1, k], L[1, bus - 1, k] = loads[bus]
    a, s, m = len(free_angle), len(free_size), len(loaded)

    def equations(z: Tensor) -> Tensor:
        angle = torch.cat([torch.zeros_like(z[:, :1]), z[:, :a]], 1)
        size = size0.expand(len(z), -1).clone()
        size = size.index_copy(1, torch.tensor(free_size), z[:, a : a + s])
        load = z[:, a + s :]
        re, im = size * angle.cos(), size * angle.sin()
        ire, iim = re @ G - im @ B, re @ B + im @ G
        active = re * ire + im * iim - P0 + load @ L[0].T
        reactive = im * ire - re * iim + load @ L[1].T
        return torch.cat([active[:, free_angle], reactive[:, free_size]], 1)

    def solved(load: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.cat([torch.zeros(len(load), a), torch.ones(len(load), s)], 1).to(F)
        for _ in range(8):
            leaf = torch.cat([x, load], 1).requires_grad_()
            h = equations(leaf)
            J = torch.stack([torch.autograd.grad(h[:, i].sum(), leaf, retain_graph=True)[0] for i in range(a + s)], 1)
            x = x - torch.linalg.solve(J[:, :, : a + s], h.detach()[..., None])[..., 0]
        return torch.cat([x, load], 1), -torch.linalg.solve(J[:, :, : a + s], J[:, :, a + s :])

    def reference() -> tuple[Tensor, Tensor]:
        seen, weight = [], []
        for block in range(10):
            z, D = solved(1.0 + spread * normal(80 + block, 4000, m))
            ok = torch.isfinite(z).all(1) & (z[:, a : a + s] >= low).all(1)
            seen.append(squares(z[ok]))
            weight.append(torch.linalg.det(torch.eye(m, dtype=F) + D.mT @ D)[ok].sqrt())
        return averaged(torch.cat(seen), torch.cat(weight))

    def target(n: int) -> casal.Target:
        first = solved(torch.full((1, m), 0.8, dtype=F))[0][0].detach()
        return casal.energy(lambda z: (z[:, a + s :] - 1.0).square().sum(1) / (2 * spread**2), init=first)

    bound = torch.full((a + s + m,), -INF, dtype=F)
    bound[a : a + s] = low
    return Problem(target, casal.Implicit(equations) & casal.Box(bound, INF), reference, bar="< 10 s")


# ------------------------------------------------------------------------------------------- once wrong and trusted


def slow(d: int, ratio: float, shift: float, kind: str) -> Problem:
    """N(m, C), variances 1 / ratio to 1 off the axes, m = ``shift`` along the slowest direction, a start near zero.

    The half-space has that direction as its normal; the plane the third one. In turned coordinates all but the cut one
    are independent, so the answers are closed forms.
    """
    turn, variance = torch.linalg.qr(normal(90 + d, d, d)).Q, torch.logspace(-math.log10(ratio), 0, d, dtype=F)
    mean = shift * turn[:, -1]
    precision = turn @ torch.diag(1.0 / variance) @ turn.T
    first, second = shift * torch.eye(d, dtype=F)[-1], variance + shift**2 * torch.eye(d, dtype=F)[-1]
    constraint: casal.Constraint
    if kind == "half-space":  # the last coordinate is N(shift, 1) below zero
        constraint = casal.HalfSpace(turn[:, -1], 0.0)
        hazard = math.exp(-(shift**2) / 2) / math.sqrt(2 * math.pi) / (0.5 * math.erfc(shift / math.sqrt(2)))
        first[-1] = shift - hazard
        second[-1] = 1 + shift**2 - shift * hazard
    else:
        constraint, second[2] = casal.Affine(turn[:, 2][None], torch.zeros(1, dtype=F)), 0.0

    def target(n: int) -> casal.Target:
        return casal.langevin(
            lambda x: (x - mean) @ precision, steps=300, init=lambda k, g: 0.3 * torch.randn(k, d, generator=g, dtype=F)
        )

    right = torch.cat([first, second])
    return Problem(target, constraint, lambda: exactly(right), lambda z: squares(z @ turn), n=500)


def _line(f: Callable[[Tensor], Tensor], low: float, high: float) -> tuple[Tensor, Tensor]:
    """E x and E x^2 of exp(-f) on an interval, by quadrature."""
    x = low + (high - low) * (torch.arange(400_000, dtype=F) + 0.5) / 400_000
    w = torch.softmax(-f(x), 0)
    return exactly(torch.stack([(w * x).sum(), (w * x.square()).sum()]))


def on_a_line(f: Callable[[Tensor], Tensor], low: float, high: float, start: casal.GaussianStart) -> Problem:
    """exp(-f) on an interval."""
    end = min(high, 60.0)
    return Problem(
        lambda n: casal.energy(lambda x: f(x[:, 0]), init=start, steps=500), casal.Box([low], [high]),
        lambda: _line(f, low, end), n=500,
    )  # fmt: skip


def stepped() -> Problem:
    """x^2 / 2 + 2 (x_0 > 0) with x_1 >= 0. Observable: the share of x_0 > 0."""
    return Problem(
        lambda n: casal.energy(
            lambda x: x.square().sum(1) / 2 + 2.0 * (x[:, 0] > 0), init=casal.GaussianStart(2, dtype=F), steps=500
        ),
        casal.HalfSpace([0.0, -1.0], 0.0),
        lambda: exactly(torch.tensor([1 / (1 + math.exp(2.0))], dtype=F)),
        lambda z: (z[:, :1] > 0).to(F),
        n=500,
    )


def from_a_point() -> Problem:
    """N(0, C), variances .05 to 4 off the axes, 60 steps from zero, on a plane: a Gaussian on it, in closed form."""
    turn, variance = torch.linalg.qr(normal(95, 4, 4)).Q, torch.tensor([0.05, 0.2, 1.0, 4.0], dtype=F)
    C, a = turn @ torch.diag(variance) @ turn.T, torch.tensor([[1.0, 1.0, 1.0, 1.0]], dtype=F)
    P = torch.linalg.inv(C)
    mean = torch.tensor([0.5, -0.5, 1.0, 0.0], dtype=F)
    gain = C @ a.T / (a @ C @ a.T)
    on_plane, left = mean + gain[:, 0] * (0.3 - float(a @ mean)), C - gain @ a @ C
    right = torch.cat([on_plane, on_plane.square() + left.diagonal()])
    return Problem(
        lambda n: casal.energy(
            lambda x: (((x - mean) @ P) * (x - mean)).sum(1) / 2, init=torch.zeros(4, dtype=F), steps=60
        ),
        casal.Affine(a, [0.3]), lambda: exactly(right), n=500,
    )  # fmt: skip


PROBLEMS: dict[str, Callable[[], Problem | None]] = {
    "E. coli core, uniform": lambda: fluxes("uniform"),
    "E. coli core, Gaussian": lambda: fluxes("Gaussian"),
    "E. coli core, five fluxes measured": lambda: fluxes("measured"),
    "orthant 10": lambda: markov(10, 0.8, 0.0),
    "orthant 50": lambda: markov(50, 0.9, 0.0),
    "orthant 200": lambda: markov(200, 0.95, 0.0),
    "tail 10": lambda: markov(10, 0.8, 2.0),
    "tail 50": lambda: markov(50, 0.9, 2.0),
    "smooth field, nugget 1e-2": lambda: smooth_field(1e-2),
    "smooth field, nugget 1e-4": lambda: smooth_field(1e-4),
    "smooth field, nugget 1e-6": lambda: smooth_field(1e-6),
    "increasing 50": increasing,
    "capped simplex 30": capped_simplex,
    "random polytope 5": random_polytope,
    "thin box 10": thin_box,
    "Dirichlet(2) 10": lambda: dirichlet(2.0),
    "Dirichlet(.5) 10": lambda: dirichlet(0.5),
    "stiff in a box 20": lambda: stiff("box"),
    "stiff in a ball 20": lambda: stiff("ball"),
    "stiff in a half-space 20": lambda: stiff("half-space"),
    "stiff in an L1 ball 20": lambda: stiff("L1 ball"),
    "torus": torus,
    "sphere 3": lambda: sphere(3),
    "sphere 16": lambda: sphere(16),
    "sphere 64": lambda: sphere(64),
    "sphere 256": lambda: sphere(256),
    "mass + energy 64": mass_energy,
    "Stiefel 8 x 3": stiefel,
    "ellipsoid 1:10:100": ellipsoid,
    "beads 6": lambda: beads(6),
    "beads 20": lambda: beads(20),
    "butane, dihedral fixed": butane,
    "water, 3 molecules": water,
    "AC grid 9": lambda: grid(9),
    "AC grid 14": lambda: grid(14),
    "slow 10, 1:3000, half-space": lambda: slow(10, 3000.0, 3.0, "half-space"),
    "slow 12, 1:1000, plane": lambda: slow(12, 1000.0, 2.0, "plane"),
    "from a point, 60 steps": from_a_point,
    "gamma, not defined outside": lambda: on_a_line(
        lambda x: x - 2.0 * x.log(), 0.0, INF, casal.GaussianStart(1, mean=2.0, dtype=F)
    ),
    "cosine, many modes": lambda: on_a_line(
        lambda x: 3.0 * torch.cos(2.0 * x) + 0.02 * (x - 5.0) ** 2, -9.0, 2.5, casal.GaussianStart(1, std=4.0, dtype=F)
    ),
    "a step of the energy": stepped,
}


LARGE, LARGE_RUNS = 4000, ("E. coli core, uniform", "orthant 50", "torus", "sphere 3", "sphere 16")
"""Samples of the runs whose effective samples a second are compared, and what they are of."""


def row(name: str, problem: Problem, seed: int, n: int | None = None) -> dict[str, Any]:
    """One run: error, verdict, seconds, effective size a second."""
    n = problem.n if n is None else n
    target = problem.target(n)
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CasalWarning)
        result = casal.sample(target, problem.constraint, casal.HMC(), n, seed=seed)
    seconds = time.process_time() - began
    right, error = _reference(name, problem)
    seen = problem.observe(result.samples)
    live = seen.var(0) > 1e-18
    estimate = result.expect(problem.observe)
    z = (estimate.value - right) / (estimate.standard_error.square() + error.square()).sqrt().clamp_min(1e-300)
    effective = _of_one_run(result, seen[:, live])
    return {
        "problem": name,
        "n": n,
        "z": float(z[live].abs().max()),
        "verdict": result.fidelity.verdict,
        "R-hat": result.fidelity.figures.get("r_hat", math.nan),
        "seconds": seconds,
        "effective": effective,
        "effective/s": effective / seconds,
        "evaluations": float(result.cost.score_evaluations),
        "violation": float(result.certificate.violation.max()),
    }


KNOWN: dict[str, tuple[Tensor, Tensor]] = {}
"""References that were made."""


def _reference(name: str, problem: Problem) -> tuple[Tensor, Tensor]:
    if name not in KNOWN:
        KNOWN[name] = problem.reference()
    return KNOWN[name]


# ------------------------------------------------------------------------------------------------- other samplers


def _effective(draws: Tensor, observe: Observe) -> float:
    """Smallest effective size of draws (chains, draws, d)."""
    seen = torch.stack([observe(chain) for chain in draws])
    found = mixing(seen)
    assert found is not None
    return float(found.ess[seen.var((0, 1)) > 1e-18].min())


def _of_one_run(result: casal.SampleResult, seen: Tensor) -> float:
    """Smallest effective size of observables (n, q): n, if every sample is of a chain of its own, and at most that.

    Chains with too few draws to measure their correlation count once.
    """
    n, K = len(seen), int(result.state.draw.max()) + 1
    if K < FEWEST_DRAWS:
        return float(n // K)
    return min(float(n), _effective(seen[: n - n % K].reshape(n // K, K, -1), lambda x: x))


def hopsy(draws: int, thin: int = 100) -> dict[str, Any]:
    """Coordinate hit-and-run of hopsy on E. coli core, uniform. It is given our walls, rounded by our samples.

    Its own reduction calls this model infeasible. So its set-up is not compared.
    """
    model = metabolism("textbook")
    if model is None or importlib.util.find_spec("hopsy") is None:
        return {"sampler": "hopsy", "problem": "E. coli core, uniform", "effective/s": "not installed"}
    import hopsy as library

    S, low, high, _ = model
    constraint = casal.Affine(S, torch.zeros(len(S), dtype=F)) & casal.Box(low, high)
    flat = constraint.reduction((S.shape[1],))
    assert flat is not None
    y = flat.inward(casal.sample(casal.langevin(lambda x: 0 * x), constraint, casal.HMC(), 1000, check=False).samples)
    scale, centre = torch.linalg.cholesky(torch.cov(y.T)), y.mean(0)
    problem = library.Problem((flat.walls @ scale).numpy(), (flat.room[0] - flat.walls @ centre).numpy())
    kind = library.UniformCoordinateHitAndRunProposal
    start = np.zeros(flat.dimension)
    chains = [library.MarkovChain(problem, proposal=kind, starting_point=start) for _ in range(4)]
    random = [library.RandomNumberGenerator(7, i) for i in range(4)]
    library.sample(chains, random, n_samples=50, thinning=thin, n_procs=1)
    began = time.process_time()
    _, found = library.sample(chains, random, n_samples=draws, thinning=thin, n_procs=1)
    seconds = time.process_time() - began
    z = torch.stack([flat.outward(centre + chain @ scale.T) for chain in torch.as_tensor(np.asarray(found)).to(F)])
    effective = _effective(z, squares)
    said = {"sampler": f"hopsy, thinning {thin}", "problem": "E. coli core, uniform"}
    return said | {"effective": effective, "seconds": seconds, "effective/s": effective / seconds}


def mici(name: str, draws: int) -> dict[str, Any]:
    """One chain of constrained HMC of mici with gradients in NumPy; its warm-up does not count."""
    said = {"sampler": "mici", "problem": name}
    if importlib.util.find_spec("mici") is None:
        return said | {"effective/s": "not installed"}
    from mici.integrators import ConstrainedLeapfrogIntegrator
    from mici.samplers import DynamicMultinomialHMC
    from mici.systems import DenseConstrainedEuclideanMetricSystem

    from casal_lab.benchmark.samplers import mici_chains

    d = 3 if name == "torus" else int(name.split()[1])
    slope = np.zeros(d)
    slope[0] = 1.0 if name == "torus" else d

    def equation(q: Any) -> Any:
        if name != "torus":
            return np.array([(q @ q - 1) / 2])
        return np.array([(math.hypot(q[0], q[1]) - 1) ** 2 + q[2] ** 2 - 0.25])

    def gradient(q: Any) -> Any:
        if name != "torus":
            return q[None].copy()
        r = math.hypot(q[0], q[1])
        return np.array([[2 * (r - 1) * q[0] / r, 2 * (r - 1) * q[1] / r, 2 * q[2]]])

    system = DenseConstrainedEuclideanMetricSystem(
        neg_log_dens=lambda q: -float(q @ slope), grad_neg_log_dens=lambda q: -slope, constr=equation,
        jacob_constr=gradient, dens_wrt_hausdorff=True,
    )  # fmt: skip
    start = np.zeros(d)
    start[0] = 1.5 if name == "torus" else 1.0
    marks = list[float]()
    sampler = DynamicMultinomialHMC(system, ConstrainedLeapfrogIntegrator(system), np.random.default_rng(0))
    (found,) = mici_chains(sampler, 60, draws, start[None], lambda: marks.append(time.process_time()))
    seconds = marks[-1] - marks[-draws]
    effective = _effective(torch.as_tensor(np.asarray(found))[None].to(F), squares)
    return said | {"effective": effective, "seconds": seconds, "effective/s": effective / seconds}


def genome(n: int, steps: int, seed: int) -> dict[str, Any]:
    """iJO1366, uniform: 2583 fluxes of E. coli. There is no reference; what counts is what the run says of itself.

    Not among the tables. 400 chains (``genome(400, 150, 11)``) take 51 s of a processor, 7 of them for the reduction,
    and end after 33 flows each; equations are missed by 5e-15 of the bounds, memory is .17, no more than chance, and
    R-hat 1.05. With ``check=True`` the verdict is "unchecked": 400 samples in 582 dimensions show errors above 11
    standard deviations only.
    """
    model = metabolism("iJO1366")
    if model is None:
        return {"problem": "iJO1366, uniform", "verdict": "cobra is not installed"}
    S, low, high, _ = model
    constraint = casal.Affine(S, torch.zeros(len(S), dtype=F)) & casal.Box(low, high)
    began = time.process_time()
    flat = constraint.reduction((S.shape[1],))
    assert flat is not None
    reduced = time.process_time() - began
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CasalWarning)
        target = casal.langevin(lambda x: 0 * x, steps=steps)
        result = casal.sample(target, constraint, casal.HMC(), n, seed=seed, check=False)
    scale = float(torch.maximum(low.abs(), high.abs()).max())
    z = result.samples
    missed = max(float((z @ S.T).abs().max()), float((low - z).max()), float((z - high).max()), 0.0)
    return {
        "problem": f"iJO1366, uniform: {flat.told()}", "n": n, "reduction, s": reduced,
        "seconds": time.process_time() - began, "flows per chain": steps, "missed / bounds": missed / scale,
        "memory": float(result.trace["memory"][-1]), "R-hat": float(result.trace["r_hat"][-1]),
        "verdict": result.fidelity.verdict,
    }  # fmt: skip


def tables(quick: bool = False) -> Iterator[Table]:
    """Every problem by ``HMC``, then hopsy and mici; ``quick`` takes few of them."""
    names = ["orthant 10", "Dirichlet(.5) 10", "sphere 16", "stiff in an L1 ball 20"] if quick else list(PROBLEMS)
    rows = []
    for k, name in enumerate(names):
        problem = PROBLEMS[name]()
        if problem is None:
            rows.append({"problem": name, "verdict": "cobra is not installed"})
            continue
        one = row(name, problem, 1000 + k)
        many = row(name, problem, 2000 + k, LARGE) if name in LARGE_RUNS and not quick else None
        large = {} if many is None else {f"{key}, n = {LARGE}": many[key] for key in ("effective/s", "z", "verdict")}
        rows.append(one | large)
        print(rows[-1], flush=True)
    note = (
        "z: largest error in standard errors. Seconds of the processor for all of casal.sample, set-up and checks "
        "included. Samples are independent where the verdict is trusted, so they are effective samples."
    )
    yield Table("Densities inside a set", rows, note)
    peers = [hopsy(500 if quick else 10_000)] + [mici(name, 300) for name in ("torus", "sphere 3", "sphere 16")]
    yield Table("The same by others", peers, "Without set-up and warm-up.")
