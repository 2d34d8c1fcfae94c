"""Energy-constrained fields (paper, section 5.1): 50 Fourier coefficients, a double well, a fixed energy.

The first two coefficients sit in the double well V, the other 48 are Gaussian with variances 0.1 / (1 + |k|)^2, k on a
5 x 5 lattice, two real numbers a mode. On the sphere |x|^2 = 15 the right well is nearly out of reach. The exact law
is known: given |x|^2 = E,

    p(x1, x2) ~ exp(-V(x1) - V(x2)) f(E - x1^2 - x2^2),

with f the density of the sum of squares of the other coefficients. Conditioning on the value of |x|^2 (co-area) and the
surface measure of the sphere agree here, because the gradient of |x|^2 has constant length on the sphere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from casal.constraints import Sphere
from casal.methods import (
    CASAL,
    Decoupled,
    FinalProjection,
    Method,
    Penalty,
    PrimalDual,
    Projected,
    Unconstrained,
    WeightedCASAL,
)
from casal.problems import double_well
from casal.problems.base import (
    Array,
    Column,
    Experiment,
    Outcome,
    ResultTable,
    mean_and_error,
    quantile_distance,
    sampling_floor,
    share,
)
from casal.problems.tuning import Case, best, penalty_ramps
from casal.result import SampleResult
from casal.sampling import sample
from casal.schedules import linear
from casal.targets import Target, langevin

MODES = 5
WELLS = 2
ENERGY = 15.0

EXPECTED = {15.0: 0.01956, 12.0: 0.1068, 10.0: 0.1923, 8.0: 0.2555}
"""P(x1 > 0) for each |x|^2."""


TUNED = "penalty, tuned + projection"


class Settings(NamedTuple):
    """Settings of the paper's run."""

    step_size: float
    dual_step: float
    steps: int
    rho: tuple[float, float]
    burn_in: float


PAPER = Settings(step_size=1e-3, dual_step=1e-3, steps=1000, rho=(2.0, 20.0), burn_in=0.1)


def variances() -> Array:
    """Prior variances 0.1 / (1 + |k|)^2 of the 50 coefficients (those of the wells are not used)."""
    k = np.arange(MODES)
    length = np.hypot(k[:, None], k[None, :]).ravel()
    return np.repeat(0.1 / (1.0 + length) ** 2, 2)


_CURVATURE = torch.as_tensor(1.0 / variances())


def gradient(x: Tensor) -> Tensor:
    """Gradient of f: the double well in the first two coefficients, Gaussian in the others."""
    well = double_well.slope(x[:, :WELLS])
    return torch.cat([well, _CURVATURE[WELLS:].to(x) * x[:, WELLS:]], dim=1)


def preconditioner() -> Tensor:
    """One over the curvature of each coefficient."""
    diagonal = 1.0 / _CURVATURE
    diagonal[:WELLS] = 1.0 / double_well.CURVATURE
    return diagonal


def start(n: int, generator: torch.Generator) -> Tensor:
    """Independent normal coefficients at the scale of their prior, wide enough to cover both wells."""
    scale = preconditioner().sqrt()
    scale[:WELLS] = 1.5
    return scale * torch.randn((n, len(scale)), generator=generator, dtype=torch.float64)


def plain(steps: int, step_size: float = PAPER.step_size) -> Target:
    """Langevin dynamics with one step size for all coefficients; the stiffest allows 4.5e-3 at most."""
    return langevin(gradient, steps=steps, step_size=step_size, init=start)


def preconditioned(steps: int, step_size: float = 0.1) -> Target:
    """Langevin dynamics in which all coefficients relax at the same pace."""
    return langevin(gradient, steps=steps, step_size=step_size, init=start, preconditioner=preconditioner())


def squares_density(weights: Array, top: float, points: int = 1 << 15) -> tuple[Array, Array]:
    """Density of sum_j weights_j N(0,1)^2 on [0, top), by inverting its characteristic function on a grid.

    phi(t) = prod (1 - 2 i t w_j)^(-1/2) falls off like t^(-24) here, so the fast Fourier transform is exact to rounding
    once ``top`` is far in the tail (aliasing) and the grid is fine (truncation).
    """
    spacing = top / points
    s = np.arange(points, dtype=np.float64) * spacing
    t = 2 * np.pi * np.fft.fftfreq(points, spacing)
    phi = np.exp(-0.5 * np.log(1 - 2j * t[:, None] * weights[None, :]).sum(1))
    return s, np.maximum(np.fft.fft(phi).real / top, 0.0).astype(np.float64)


@lru_cache
def exact_law(energy: float = ENERGY, points: int = 2001) -> tuple[Array, Array]:
    """Grid and distribution function of the first coefficient given |x|^2 = energy, by quadrature."""
    s, density = squares_density(variances()[WELLS:], top=64.0)
    grid = np.linspace(-np.sqrt(energy), np.sqrt(energy), points)
    x1, x2 = grid[:, None], grid[None, :]
    joint = np.exp(-double_well.potential(x1) - double_well.potential(x2))
    joint = joint * np.interp(energy - x1**2 - x2**2, s, density, left=0.0)
    marginal = joint.sum(1)
    cdf = np.concatenate([[0.0], np.cumsum((marginal[1:] + marginal[:-1]) / 2)])
    return grid, cdf / cdf[-1]


def exact_right(energy: float = ENERGY) -> float:
    """P(x1 > 0) under the exact law."""
    grid, cdf = exact_law(energy)
    return float(1.0 - np.interp(0.0, grid, cdf))


def cases(energy: float, steps: int) -> dict[str, tuple[Target, Method[Any, Any]]]:
    """Every method at the same number of score evaluations."""
    ramp, eta, burn = linear(*PAPER.rho), PAPER.dual_step, PAPER.burn_in
    paper, scaled = plain(steps), preconditioned(steps)
    return {
        "unconstrained": (paper, Unconstrained()),
        "final projection": (scaled, FinalProjection()),
        "projected": (paper, Projected(burn_in=burn)),
        "projected, preconditioned": (scaled, Projected(burn_in=burn)),
        "penalty": (paper, Penalty(0.5, burn_in=burn)),
        "primal-dual": (paper, PrimalDual(eta)),
        "decoupled": (paper, Decoupled(ramp, dual_step=eta)),
        "Algorithm 1": (paper, CASAL.algorithm1(ramp)),
        "Algorithm 2": (paper, CASAL.algorithm2(ramp)),
        "released code": (paper, CASAL.released(ramp, eta, burn_in=burn)),
        "CASAL": (scaled, CASAL(ramp, burn_in=burn)),
        "WeightedCASAL": (scaled, WeightedCASAL(400.0)),
    }


def penalties(steps: int) -> list[Case]:
    """Settings among which the penalty baseline is tuned: slow and fast ramps, small and large steps."""
    targets = (preconditioned(steps), preconditioned(steps, 0.03))
    return penalty_ramps(targets, (1e-4, 1e-3, 1e-2, 1e-1), (0.03, 0.1, 0.3, 1.0))


def _loss(result: SampleResult) -> float:
    return quantile_distance(result.samples[:, 0].double().numpy(), *exact_law(ENERGY))


def run(quick: bool, labels: Sequence[str] | None, tell: Callable[[str], None]) -> Outcome:
    """All methods at 1000 score evaluations; W1 of the first coefficient to the exact law, over several seeds."""
    began = time.perf_counter()
    n, seeds = (1000, 2) if quick else (4000, 5)
    grid, cdf = exact_law(ENERGY)
    floor = sampling_floor(grid, cdf, n)
    rows: list[dict[str, Any]] = []
    first: dict[str, Array] = {}
    every = cases(ENERGY, PAPER.steps)
    if labels is None or TUNED in labels:
        tell(f"tuning the penalty over {len(penalties(PAPER.steps))} settings")
        every[TUNED] = best(penalties(PAPER.steps), Sphere(ENERGY**0.5), _loss, 250 if quick else 1000)
    for label, (target, method) in every.items():
        if labels is None or label in labels:
            tell(label)
            results = [sample(target, Sphere(ENERGY**0.5), method, n, seed=seed) for seed in range(seeds)]
            rows.append(_row(label, results))
            first[label] = results[0].samples[:, 0].double().numpy()
    rows.append({"method": "exact (quadrature)", "w1": floor, "right": exact_right()})
    table = ResultTable(
        f"Fields with |x|^2 = {ENERGY:g}: {n} chains, {PAPER.steps} score evaluations, {seeds} seeds",
        (
            Column("method", "method"),
            Column("w1", "W1 of the first coefficient", ".3f"),
            Column("right", "share at x1 > 0", ".4f"),
            Column("violation", "largest violation", ".1e"),
            Column("ancestors", "ancestors", ".0f"),
            Column("seconds", "seconds", ".2f"),
        ),
        rows,
        note="The last row gives the mean W1 of as many exact draws: the floor of the first column. The tuned penalty "
        f"is the best of {len(penalties(PAPER.steps))} ramps and step sizes, chosen on other chains.",
    )
    data = {"first": first, "grid": grid, "cdf": cdf}
    return Outcome("field", [table], (), data, {"n": n, "seeds": seeds}, time.perf_counter() - began)


def _row(label: str, results: Sequence[SampleResult]) -> dict[str, Any]:
    grid, cdf = exact_law(ENERGY)
    firsts = [r.samples[:, 0].double().numpy() for r in results]
    w1, w1_se = mean_and_error([quantile_distance(x, grid, cdf) for x in firsts])
    pooled = np.concatenate(firsts)
    right, binomial = share(int((pooled > 0).sum()), len(pooled))
    right_se = max(binomial, mean_and_error([float((x > 0).mean()) for x in firsts])[1])
    return {
        "method": label,
        "w1": w1,
        "w1_se": w1_se,
        "right": right,
        "right_se": right_se,
        "violation": max(float(r.certificate.violation.max()) for r in results),
        "ancestors": float(np.mean([len(torch.unique(r.ancestors)) for r in results])),
        "seconds": float(np.mean([r.cost.seconds for r in results])),
    }


EXPERIMENT = Experiment(
    "field",
    "Given the energy of a field, which methods sample its first mode from the exact conditional law?",
    (*cases(ENERGY, PAPER.steps), TUNED),
    run,
)
