"""Samplers of others beside ours: error of the distribution per second and per evaluation of the model.

Three problems of ``casal_lab.benchmark`` whose exact distributions are known. Each is an ambient density exp(-f) and a
surface {c = 0}, and what is sampled is the density exp(-f) with respect to the surface measure. Conditioning on the
value of c (co-area) would weigh points by 1 / |grad c|. That length is constant on each of the three surfaces, so both
readings are one distribution here, and all samplers have the same goal:

- WeightedCASAL and CASAL of this library in float32 on one thread; on the torus with its projection in closed form, and
  once more with ``casal.Implicit``, which like mici is given the function c alone;
- the iteration of the authors' released code, written out in NumPy;
- mici's constrained HMC (dynamic, multinomial) with gradients in NumPy and the metric that our preconditioner is:
  one chain from an exact draw, so that it has no way to go first; the adaptation of its step size is counted;
- PCFM and ECI on the exact denoiser of the same density: published updates that promise feasibility and no
  distribution.

Seconds are those of the processor. Samplers take turns, seed after seed, so that a busy machine slows all alike.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import casal
from benchmarks.timing import Table
from casal.errors import CasalWarning
from casal.methods import systematic
from casal_lab.benchmark import Problem, catalogue, problem
from casal_lab.benchmark.samplers import mici_chains
from casal_lab.experiment import AnyMethod, Array
from casal_lab.problems import double_well, field, small

F64 = torch.float64
CHAINS = 1000
"""Of the samplers that move many chains at once."""

WANTED = 0.05
"""W1 of the first coordinate to which seconds are compared."""

TITLE = "Peers"
"""How titles of these tables begin."""


class Run(NamedTuple):
    """What a sampler gave after some effort."""

    effort: int  # steps of every chain, or draws of mici's one
    points: Array  # (n, d)
    seconds: float  # of the processor
    evaluations: int  # points at which f or its gradient, or the denoiser, was asked for


@dataclass(frozen=True)
class Case:
    """A density and a surface, for every sampler in its own form."""

    name: str
    exact: Problem  # of the benchmark: the set, and the exact distribution
    constraint: casal.Constraint  # the set with a projection in closed form
    gradient: Callable[[Tensor], Tensor]  # of f
    potential: Callable[[Tensor], Tensor]  # f, (n, d) -> (n,)
    array_gradient: Callable[[Array], Array]  # of f, in NumPy; one point or many
    array_potential: Callable[[Array], Any]  # f at one point, in NumPy
    equation: Callable[[Array], Any]  # c at one point
    normal: Callable[[Array], Array]  # gradient of c at one point, (d,)
    project: Callable[[Array], Array]  # onto the surface, many points, in NumPy
    start: Callable[[int, torch.Generator], Tensor]
    denoiser: Callable[[Tensor, Tensor], Tensor]
    levels: tuple[float, float]
    unit: Tensor  # preconditioner D, (d,)
    step_size: float  # tau of the authors' iteration, which has no preconditioner
    draws: int = 800  # of mici's chain
    first: tuple[Array, Array] | None = None  # grid and distribution function of x1, where known beside the reference


def gaussian_case(name: str, exact: Problem, **surface: Any) -> Case:
    """The correlated Gaussian ``POLE`` on a surface."""
    pole = small.POLE
    turn = pole.turns[0].matrix(pole.dimension)
    precision = (turn / pole.variances[0]) @ turn.T
    centre, spread = pole.means[0], float(pole.variances.min())
    P, m = precision.numpy(), centre.numpy()
    made = catalogue.as_diffusion(pole)
    return Case(
        name,
        exact,
        gradient=lambda x: (x - centre.to(x)) @ precision.to(x),
        potential=lambda x: 0.5 * ((x - centre.to(x)) @ precision.to(x) * (x - centre.to(x))).sum(1),
        array_gradient=lambda q: (q - m) @ P,
        array_potential=lambda q: 0.5 * float((q - m) @ P @ (q - m)),
        start=pole.sample,
        denoiser=made["denoiser"],
        levels=made["levels"],
        unit=torch.full((pole.dimension,), spread, dtype=F64),
        step_size=0.1 * spread,
        **surface,
    )


def sphere() -> Case:
    """|x| = 1 in three dimensions."""
    exact = problem("Gaussian on a sphere")
    assert isinstance(exact.constraint, casal.Sphere)
    radius = float(torch.as_tensor(exact.constraint.radius))
    return gaussian_case("sphere, 3-D", exact, **round_surface(radius))


def round_surface(radius: float) -> dict[str, Any]:
    """|x|^2 = radius^2 for mici and in NumPy."""
    return {
        "constraint": casal.Sphere(radius),
        "equation": lambda q: q @ q - radius**2,
        "normal": lambda q: 2 * q,
        "project": lambda v: radius * v / np.linalg.norm(v, axis=1, keepdims=True),
    }


def torus() -> Case:
    """(sqrt(x^2 + y^2) - 1)^2 + z^2 = 0.4^2."""

    def equation(q: Array) -> Any:
        return (np.hypot(q[0], q[1]) - 1.0) ** 2 + q[2] ** 2 - 0.16

    def normal(q: Array) -> Array:
        radius = np.hypot(q[0], q[1])
        out = 2 * (radius - 1.0) / radius
        return np.array([out * q[0], out * q[1], 2 * q[2]])

    def project(v: Array) -> Array:
        circle = v * np.array([1.0, 1.0, 0.0])
        circle /= np.linalg.norm(circle, axis=1, keepdims=True)
        away = v - circle
        return circle + 0.4 * away / np.linalg.norm(away, axis=1, keepdims=True)

    exact = problem("torus, 3-D")
    own = casal.FromProjection(
        lambda z: torch.from_numpy(project(z.numpy())), exact.constraint.violation, residual=catalogue.on_torus
    )
    return gaussian_case("torus, 3-D", exact, constraint=own, equation=equation, normal=normal, project=project)


def paper_field() -> Case:
    """The paper's field: two double wells, 48 Gaussian coefficients, |x|^2 = 15."""
    setup, wells = field.STIFF, field.WELLS
    curvature = setup.curvatures.numpy()

    def array_gradient(q: Array) -> Array:
        return np.concatenate([double_well.slope(q[..., :wells]), curvature * q[..., wells:]], axis=-1)

    def array_potential(q: Array) -> Any:
        return double_well.potential(q[:wells]).sum() + 0.5 * (curvature * q[wells:] ** 2).sum()

    exact = problem("field of given energy, 50-D")
    assert exact.log_density is not None
    return Case(
        "field, 50-D",
        exact,
        gradient=setup.gradient,
        potential=lambda x: -exact.log_density(x),  # type: ignore[misc]
        array_gradient=array_gradient,
        array_potential=array_potential,
        start=setup.start,
        denoiser=FieldDenoiser(),
        levels=(100.0, 0.02 / float(curvature.max()) ** 0.5),
        unit=setup.preconditioner(),
        step_size=setup.step_size,
        draws=4800,
        first=field.conditional(setup, setup.energy),
        **round_surface(setup.energy**0.5),
    )


class FieldDenoiser:
    """E[x0 | x0 + sigma noise = x] of the field's density: quadrature in the wells, closed form elsewhere."""

    def __init__(self, nodes: int = 600) -> None:
        self.grid = torch.linspace(-6.0, 5.0, nodes, dtype=F64)
        self.log_prior = -double_well.potential(self.grid)
        self.variance = 1.0 / field.STIFF.curvatures

    def __call__(self, x: Tensor, sigma: Tensor) -> Tensor:
        noise = torch.as_tensor(sigma, dtype=x.dtype).reshape(-1, 1)
        wells, others = x[:, : field.WELLS], x[:, field.WELLS :]
        # Below the spacing of the nodes the density is flat beside the noise: E = x - sigma^2 V'(x).
        wide = noise.clamp_min(2 * float(self.grid[1] - self.grid[0]))[..., None]
        logs = self.log_prior - (wells[..., None] - self.grid).square() / (2 * wide.square())
        mean = torch.softmax(logs, 2) @ self.grid
        near = wells - noise.square() * double_well.slope(wells)
        mean = torch.where(noise < wide[..., 0], near, mean)
        return torch.cat([mean, others * (self.variance / (self.variance + noise.square()))], 1)


CASES = {"sphere": sphere, "torus": torus, "field": paper_field}


# ------------------------------------------------------------------ samplers


def ours(method: AnyMethod, tau: float, functions_only: bool = False) -> Callable[[Case, int, int], Iterator[Run]]:
    """A method of this library with steps of tau in units of the preconditioner."""

    def sampler(case: Case, effort: int, seed: int) -> Iterator[Run]:
        constraint, count = case.exact.constraint if functions_only else case.constraint, _Count()

        def start(n: int, generator: torch.Generator) -> Tensor:
            return case.start(n, generator).float()

        target = casal.langevin(
            count(case.gradient),
            steps=effort,
            step_size=tau,
            init=start,
            preconditioner=case.unit,
            potential=count(case.potential),
        )
        yield _timed(effort, count, lambda: _samples(target, constraint, method, seed))

    return sampler


def denoised(method: AnyMethod, rounds: int) -> Callable[[Case, int, int], Iterator[Run]]:
    """A method on the exact denoiser, ``rounds`` evaluations for each noise level."""

    def sampler(case: Case, effort: int, seed: int) -> Iterator[Run]:
        constraint, count, (high, low) = case.constraint, _Count(), case.levels
        levels = casal.karras_sigmas(max(2, effort // rounds), low, high)
        size = case.exact.dimension
        target = casal.edm(count(case.denoiser), levels, shape=size, dtype=F64)
        yield _timed(effort, count, lambda: _samples(target, constraint, method, seed))

    return sampler


def authors(case: Case, effort: int, seed: int) -> Iterator[Run]:
    """The released iteration: rho = 0 for a tenth of the run, then 2 to 20 over all of it; eta = tau.

        x' = x - tau (grad f(x) + rho (x - z + mu)) + sqrt(2 tau) w,   z' = P(x' + mu),   mu' = mu + tau (x' - z')

    Equal to ``CASAL.released`` on the same noise. The ramp is the paper's, which is better here than the script's.
    """
    x = case.start(CHAINS, torch.Generator().manual_seed(seed)).numpy()
    rng, tau, count = np.random.default_rng(seed), case.step_size, _Count()

    def loop() -> Array:
        rho = np.linspace(2.0, 20.0, effort)
        rho[: effort // 10] = 0.0
        point, z, mu = x, case.project(x), np.zeros_like(x)
        for k in range(effort):
            w = rng.standard_normal(x.shape)
            pull = case.array_gradient(point) + rho[k] * (point - z + mu)
            point = point - tau * pull + math.sqrt(2 * tau) * w
            z = case.project(point + mu)
            mu = mu + tau * (point - z)
        count.points += effort * CHAINS
        return z

    yield _timed(effort, count, loop)


def mici(case: Case, effort: int, seed: int) -> Iterator[Run]:
    """One chain of constrained HMC from an exact draw: the first k of its draws, of which there are ``case.draws``.

    Draws that adapt its step size come first. ``effort`` bounds that number.
    """
    from mici.integrators import ConstrainedLeapfrogIntegrator
    from mici.samplers import DynamicMultinomialHMC
    from mici.systems import DenseConstrainedEuclideanMetricSystem

    count, draws = _Count(), min(effort, case.draws)

    def asked(function: Callable[[Array], Any]) -> Callable[[Array], Any]:
        def call(q: Array) -> Any:
            count.points += 1
            return function(q)

        return call

    system = DenseConstrainedEuclideanMetricSystem(
        neg_log_dens=asked(case.array_potential),
        grad_neg_log_dens=asked(case.array_gradient),
        constr=lambda q: np.array([case.equation(q)]),
        jacob_constr=lambda q: case.normal(q)[None],
        dens_wrt_hausdorff=True,
        metric=1.0 / case.unit.numpy(),
    )
    integrator = ConstrainedLeapfrogIntegrator(system)
    sampler = DynamicMultinomialHMC(system, integrator, np.random.default_rng(seed))
    start = case.exact.answer.draws(1, seed).numpy()
    spent: list[tuple[float, int]] = []

    began = time.process_time()
    (found,) = mici_chains(
        sampler, WARM_UP, draws, start, lambda: spent.append((time.process_time() - began, count.points))
    )
    points = np.asarray(found)
    spent = spent[-draws:]
    for k in prefixes(draws):
        yield Run(k, points[:k], *spent[k - 1])


WARM_UP = 100
"""Draws with which mici finds its step size."""


def prefixes(draws: int) -> list[int]:
    """50, 100, 200, ... up to all of them."""
    return [*[50 * 2**k for k in range(30) if 50 * 2**k < draws], draws]


def _samples(target: casal.Target, constraint: casal.Constraint, method: AnyMethod, seed: int) -> Array:
    """Samples of equal weight."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CasalWarning)
        result = casal.sample(target, constraint, method, CHAINS, seed=seed, check=False, run=casal.Run(threads=1))
    return result.samples[systematic(result.weights, torch.Generator().manual_seed(seed))].double().numpy()


class _Count:
    """Points at which functions were evaluated."""

    def __init__(self) -> None:
        self.points = 0

    def __call__(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def counted(x: Tensor, *more: Any) -> Tensor:
            self.points += len(x)
            return function(x, *more)

        return counted


def _timed(effort: int, count: _Count, run: Callable[[], Array]) -> Run:
    began = time.process_time()
    points = run()
    return Run(effort, points, time.process_time() - began, count.points)


class Peer(NamedTuple):
    """A sampler of the comparison."""

    run: Callable[[Case, int, int], Iterator[Run]]
    efforts: Sequence[int]  # steps of every chain; of mici the longest run, of which the first draws count too
    colour: str
    seeds: int = 8  # runs at every effort
    needs: str = ""  # a library that must be installed
    only: str = ""  # a problem, if it is of interest on no other


def peers(quick: bool) -> dict[str, Peer]:
    """All samplers by name."""
    short = (10, 25, 50) if quick else (10, 25, 50, 100, 200, 400)
    long = (100, 300) if quick else (100, 300, 1000, 3000, 10_000)
    weighted = casal.WeightedCASAL(400.0)
    return {
        "WeightedCASAL": Peer(ours(weighted, 0.3), short, "#117733", 24),
        "WeightedCASAL, Implicit": Peer(ours(weighted, 0.3, True), short[:4], "#44AA99", 3, only="torus"),
        "CASAL": Peer(ours(casal.CASAL(casal.linear(2.0, 20.0), burn_in=0.1), 0.1), short, "#332288"),
        "authors' iteration, NumPy": Peer(authors, long, "#999933", 3),
        "mici": Peer(mici, (200 if quick else 10**9,), "#CC6677", 8, "mici"),
        "PCFM": Peer(denoised(casal.PCFM(), 1), short[1:-1], "#DDCC77", 3),
        "ECI": Peer(denoised(casal.ECI(mixing=5, resample=5), 5), short[1:-1], "#88CCEE", 3),
    }


# ------------------------------------------------------------------ errors, tables, picture


def first_w1(case: Case) -> Callable[[Array], float]:
    """W1 between the first coordinate of points and its exact distribution, in units of x."""
    if case.first is None:
        reference = case.exact.answer.reference
        order = torch.argsort(reference.points[:, 0])
        grid, weights = reference.points[order, 0].numpy(), reference.weights[order].numpy()
        levels = np.cumsum(weights) - weights / 2
    else:
        grid, levels = case.first
    return lambda x: field.quantile_distance(x[:, 0], grid, levels)


def floor(case: Case, error: Callable[[Array], float], n: int) -> float:
    """The same of n exact draws, mean over 40 sets of them."""
    return float(np.mean([error(case.exact.answer.draws(n, seed).numpy()) for seed in range(40)]))


def measured(case: Case, quick: bool) -> dict[str, dict[int, list[Run]]]:
    """Every sampler at every effort, over seeds; the samplers take turns. A first short run of each is not counted."""
    some = {
        name: peer
        for name, peer in peers(quick).items()
        if case.name.startswith(peer.only) and (not peer.needs or find_spec(peer.needs))
    }
    for peer in some.values():
        list(peer.run(case, 10, 0))
    found: dict[str, dict[int, list[Run]]] = {}
    for seed in range(2 if quick else max(peer.seeds for peer in some.values())):
        for name, peer in some.items():
            for effort in peer.efforts if seed < peer.seeds else ():
                for run in peer.run(case, effort, seed):
                    found.setdefault(name, {}).setdefault(run.effort, []).append(run)
    return found


def tables(quick: bool) -> Iterator[Table]:
    """Errors, seconds and evaluations on each problem, and seconds to W1 = WANTED on each."""
    reached: list[dict[str, Any]] = []
    for make in CASES.values():
        case = make()
        found, error = measured(case, quick), first_w1(case)
        least, rows = floor(case, error, CHAINS), list[dict[str, Any]]()
        for name, efforts in found.items():
            for effort, runs in efforts.items():
                row = {"sampler": name, "evaluations of a chain, or draws": effort, "seeds": len(runs)}
                rows.append(row | _row(case, runs, error))
        yield Table(
            f"{TITLE}: {case.name}, {CHAINS} chains; mici: one",
            rows,
            f"W1 of the first coordinate, mean over seeds and standard error; {CHAINS} exact draws have {least:.3f}. "
            f"Over floor: mean of the distances of casal_lab.benchmark, each over that of {CHAINS} exact draws.",
        )
        reached += [{"problem": case.name, "sampler": name} | _reach(runs, error) for name, runs in found.items()]
    for row in reached:
        base = next(other for other in reached if other["problem"] == row["problem"])["seconds"]
        row["/ WeightedCASAL"] = row["seconds"] / base if base and row["seconds"] else None
    yield Table(
        f"{TITLE}: processor seconds to W1 = {WANTED} of the first coordinate",
        reached,
        "Mean W1 over seeds by seconds, log-linear between efforts. Empty: not reached in the longest run. The "
        "range is the middle 80 % when seeds are drawn with replacement.",
    )


def _row(case: Case, runs: Sequence[Run], error: Callable[[Array], float]) -> dict[str, Any]:
    w1 = np.array([error(run.points) for run in runs])
    answer = case.exact.answer
    least = answer.floor(CHAINS)
    distances = [answer.distances(torch.from_numpy(run.points)) for run in runs]
    over = [sum(each[key] / least[key] for key in least) / len(least) for each in distances]
    worst = max(float(case.exact.violation(torch.from_numpy(run.points)).max()) for run in runs)
    modes = [each["modes"] for each in distances if "modes" in each]
    return {
        "seconds": float(np.median([run.seconds for run in runs])),
        "evaluations": int(np.median([run.evaluations for run in runs])),
        "W1": float(w1.mean()),
        "se": float(w1.std(ddof=1) / len(w1) ** 0.5),
        "over floor": float(np.mean(over)),
        **({"TV of modes": float(np.mean(modes))} if modes and answer.modes is not None else {}),
        "largest violation": worst,
    }


def _reach(efforts: dict[int, list[Run]], error: Callable[[Array], float]) -> dict[str, Any]:
    """Seconds and evaluations at which the mean W1 falls to WANTED."""
    runs = list(efforts.values())
    w1 = np.array([[error(run.points) for run in some] for some in runs])
    cost = np.array([[(run.seconds, run.evaluations) for run in some] for some in runs], dtype=float)
    rng, count = np.random.default_rng(0), w1.shape[1]
    seconds, evaluations = _crossing(w1.mean(1), np.median(cost, 1))
    again = [rng.integers(count, size=count) for _ in range(200)]
    spread = [_crossing(w1[:, some].mean(1), np.median(cost[:, some], 1))[0] for some in again]
    low, high = np.quantile([math.inf if one is None else one for one in spread], [0.1, 0.9], method="nearest")
    return {
        "seconds": seconds,
        "range": "" if seconds is None else f"{low:.3g} to {high:.3g}",
        "evaluations": None if evaluations is None else round(evaluations),
        "smallest W1": float(w1.mean(1).min()),
        "longest run, seconds": float(np.median(cost, 1)[:, 0].max()),
    }


def _crossing(w1: Array, cost: Array) -> tuple[float | None, float | None]:
    """Costs at the first effort whose error is at most WANTED, between it and the effort before."""
    below = np.flatnonzero(w1 <= WANTED)
    if not len(below):
        return None, None
    k = int(below[0])
    if k == 0:
        return float(cost[0, 0]), float(cost[0, 1])
    share = math.log(w1[k - 1] / WANTED) / math.log(w1[k - 1] / w1[k])
    between = np.exp((1 - share) * np.log(cost[k - 1]) + share * np.log(cost[k]))
    return float(between[0]), float(between[1])


def draw(done: Sequence[Table], folder: Path) -> Path | None:
    """Error by seconds and by evaluations, one column a problem; None if no table is of this comparison."""
    chosen = [table for table in done if table.title.startswith(TITLE) and "W1" in table.rows[0]]
    if not chosen:
        return None
    from casal_lab.drawing import FAINT, INK, headline, label, legend_below, panels, styled

    with styled():
        figure, axes = panels(2, len(chosen), 3.3 * len(chosen), 6.2, sharey="row")
        for column, table in enumerate(chosen):
            least = float(table.note.split(" exact draws have ")[1].split(". ")[0].split("; ")[0])
            for line, key in enumerate(("seconds", "evaluations")):
                axis = axes[line, column]
                axis.axhline(least, color=INK, linewidth=1, linestyle=":")
                axis.axhline(WANTED, color=FAINT, linewidth=1)
                for name, peer in peers(False).items():
                    rows = [row for row in table.rows if row["sampler"] == name]
                    if rows:
                        x, y, bars = ([row[k] for row in rows] for k in (key, "W1", "se"))
                        axis.errorbar(x, y, bars, color=peer.colour, marker="o", markersize=3.5, label=name)
                axis.set(xscale="log", yscale="log")
                title = table.title.removeprefix(f"{TITLE}: ").split(f", {CHAINS}")[0] if line == 0 else ""
                words = {"seconds": "processor seconds", "evaluations": "evaluations of the model"}
                label(axis, title, xlabel=words[key], ylabel="W1 of the first coordinate" if column == 0 else "")
        headline(figure, "Error of the distribution per second and per evaluation")
        legend_below(figure, max(axes[0], key=lambda axis: len(axis.get_legend_handles_labels()[1])), 4)
        path = folder / "peers.png"
        figure.savefig(path, dpi=160)
    return path
