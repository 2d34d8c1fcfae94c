"""The samplers that come with the benchmark: ours, plain baselines, and those of mici and azula where installed.

A sampler is a function ``sample(problem, n, budget) -> points (n, d)``. ``Sampler`` gives it a name and says on which
problems it cannot run. Tuned ones choose their setting on validation chains by the exact answer, which flatters them;
evaluations spent on that are not counted.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

import casal
from casal.errors import CasalWarning, DivergedError, SettingError
from casal.integrations.azula import as_azula
from casal.methods import systematic
from casal_lab.benchmark.answer import F64
from casal_lab.benchmark.interface import Problem
from casal_lab.experiment import AnyMethod
from casal_lab.study import SETTINGS, VALIDATION_SEED, Named, require, tune

Sample = Callable[[Problem, int, int], Tensor]
"""``sample(problem, n, budget)`` -> points (n, d); the budget is evaluations of the model for each sample."""

TUNING = 200
"""Validation chains."""

NOISY: Sequence[Named] = [
    *((f"tau rho = {gain:g}", casal.CASAL.algorithm2(casal.constant_gain(gain))) for gain in (0.005, 0.015, 0.025)),
    ("rho = 0.1 alpha^2 / sigma^2", casal.CASAL.algorithm2(casal.inverse_variance(0.1))),
]
"""More settings of Algorithm 2, for diffusion models: their noise starts at 40 times the spread, unlike the paper's,
and most of its other settings are unstable there."""


@dataclass(frozen=True)
class Sampler:
    """A sampler of the benchmark."""

    name: str
    draw: Sample
    refuses: Callable[[Problem], str] = lambda problem: ""  # why it cannot run on a problem; empty if it can
    about: str = ""


# ------------------------------------------------------------------ our methods


def casal_run(problem: Problem, method: AnyMethod | str, n: int, budget: int, *, seed: int | None = None) -> Tensor:
    """Samples of a method of the library, of equal weight; the table takes at most half of the budget."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CasalWarning)
        result = casal.sample(
            problem.target(max(2, min(problem.steps, budget // 2))),
            problem.constraint,
            method,
            n,
            seed=problem.seed if seed is None else seed,
            run=casal.Run(threads=1),
        )
    problem.claim(result.fidelity.verdict, next(iter(result.fidelity.reasons), ""))
    return result.samples[systematic(result.weights, torch.Generator().manual_seed(problem.seed))]


def ours(method: AnyMethod | str) -> Sample:
    """A method as it comes."""
    return lambda problem, n, budget: casal_run(problem, method, n, budget)


def tuned(settings: Sequence[Named]) -> Sample:
    """The best of some settings on validation chains by the error over the floor; the next one if it loses a chain.

    On sets given by functions, whose projection takes long, every third setting is tried.
    """

    @cache
    def validation(name: str, budget: int, k: int) -> float | SettingError | DivergedError:
        problem = _BY_NAME[name].fresh(VALIDATION_SEED)
        try:
            return error_over_floor(problem, casal_run(problem, settings[k][1], TUNING, budget))
        except (SettingError, DivergedError) as error:
            return error

    def sample(problem: Problem, n: int, budget: int) -> Tensor:
        _BY_NAME[problem.name] = problem

        def loss(k: int) -> float:
            found = validation(problem.name, budget, k)
            if isinstance(found, Exception):
                raise found
            return found

        some = range(0, len(settings), 3 if isinstance(problem.constraint, casal.Implicit) else 1)
        return require(tune(some, loss, lambda k: casal_run(problem, settings[k][1], n, budget)))[1]

    return sample


_BY_NAME: dict[str, Problem] = {}

_ON_DENSITIES, _ON_NOISE = tuned(SETTINGS["Algorithm 2"]), tuned([*SETTINGS["Algorithm 2"], *NOISY])


def algorithm2(problem: Problem, n: int, budget: int) -> Tensor:
    """The paper's Algorithm 2, tuned; with more settings on diffusion models."""
    return (_ON_DENSITIES if problem.kind == "density" else _ON_NOISE)(problem, n, budget)


def error_over_floor(problem: Problem, points: Tensor) -> float:
    """Mean over the distances of each over its floor: 1 on average for exact draws; infinite where a point is lost."""
    if not bool(torch.isfinite(points).all()):
        return float("inf")
    floor, found = problem.answer.floor(len(points)), problem.answer.distances(points.to(F64))
    return sum(found[key] / floor[key] for key in floor) / len(floor)


def needs_density(problem: Problem) -> str:
    """Refuses models that are not densities."""
    return "" if problem.kind == "density" else "for densities"


def needs_denoiser(problem: Problem) -> str:
    """Refuses models without a denoiser."""
    return "for diffusion models" if problem.kind == "density" else ""


def needs_equations(problem: Problem) -> str:
    """Refuses sets that are not given by smooth equations alone."""
    x = torch.zeros((1, problem.dimension), dtype=F64)
    if not problem.constraint.smooth or not problem.equations(x).shape[1]:
        return "for smooth equations"
    return "for equations without inequalities" if problem.inequalities(x).shape[1] else ""


def needs_residual(problem: Problem) -> str:
    """Refuses sets without a smooth residual."""
    return needs_denoiser(problem) or ("" if problem.constraint.smooth else "for smooth sets")


# ------------------------------------------------------------------ other libraries


def mici(problem: Problem, n: int, budget: int) -> Tensor:
    """mici's constrained HMC: CHAINS chains of LEAPFROGS steps a sample, the step size adapted in a warm-up.

    It runs on one point at a time in Python, so it is given far less than the budget.
    """
    from mici.integrators import ConstrainedLeapfrogIntegrator
    from mici.samplers import StaticMetropolisHMC
    from mici.systems import DenseConstrainedEuclideanMetricSystem

    def one(function: Callable[[Tensor], Tensor]) -> Callable[[Any], Any]:
        return lambda q: function(torch.from_numpy(np.array(q))[None])[0].detach().numpy()

    def slope(q: Any) -> tuple[Any, Any]:
        values, found = problem.linearised(torch.from_numpy(np.array(q))[None])
        return found[0].numpy(), values[0].numpy()

    system = DenseConstrainedEuclideanMetricSystem(
        neg_log_dens=lambda q: float(one(problem.potential)(q)),
        grad_neg_log_dens=one(lambda x: -problem.score(x)),
        constr=one(problem.equations),
        jacob_constr=slope,
        dens_wrt_hausdorff=True,
    )
    draws = -(-n // CHAINS)
    sampler = StaticMetropolisHMC(
        system,
        ConstrainedLeapfrogIntegrator(system, step_size=None),
        np.random.default_rng(problem.seed),
        n_step=LEAPFROGS,
    )
    starts = problem.project(problem.start(CHAINS)).numpy()
    found = mici_chains(sampler, WARM_UP, draws, starts)
    return torch.from_numpy(np.stack(found).swapaxes(0, 1).reshape(-1, problem.dimension)[:n])


def mici_chains(
    sampler: Any, warm_up: int, draws: int, starts: Any, seen: Callable[[], None] = lambda: None
) -> list[Any]:
    """Draws (draws, d) of each chain of a sampler of mici, which finds its step size in a warm-up.

    Args:
        sampler: Of mici.
        warm_up: Draws before the first one that counts.
        draws: Of each chain.
        starts: One point of the set for each chain, (chains, d).
        seen: Called at every draw that counts.
    """
    from mici.adapters import DualAveragingStepSizeAdapter

    def trace(state: Any) -> dict[str, Any]:
        seen()
        return {"q": state.pos}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = sampler.sample_chains(
            warm_up,
            draws,
            list(starts),
            adapters=[DualAveragingStepSizeAdapter(0.8)],
            trace_funcs=[trace],
            display_progress=False,
        )
    return list(found.traces["q"])


CHAINS, LEAPFROGS, WARM_UP = 20, 5, 20
"""Of mici: chains, steps of a draw, and draws before the first one that counts."""


def azula(kind: str) -> Sample:
    """azula's guidance by the equations of the set, observed as zero, then one projection."""

    def sample(problem: Problem, n: int, budget: int) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # azula uses functions that torch is about to drop
            return guided_run(problem, n, budget)

    def guided_run(problem: Problem, n: int, budget: int) -> Tensor:
        from azula.guidance import DPSSampler, MMPSDenoiser
        from azula.linalg.covariance import IsotropicCovariance
        from azula.sample import DDPMSampler

        steps = max(2, min(problem.steps, budget // 4))
        denoiser = as_azula(problem.target(steps))
        start = torch.zeros((n, problem.dimension), dtype=F64)
        seen = torch.zeros_like(problem.equations(start))
        torch.manual_seed(problem.seed)
        if kind == "MMPS":
            covariance = IsotropicCovariance(torch.tensor(NOISE**2, dtype=F64))
            rounds = min(seen.shape[1], SOLVER)
            guided: Any = MMPSDenoiser(denoiser, seen, problem.equations, covariance, iterations=rounds)
            sampler = DDPMSampler(guided, steps=steps - 1, silent=True, dtype=F64)
        else:
            sampler = DPSSampler(denoiser, seen, problem.equations, steps=steps - 1, silent=True, dtype=F64)
        x = sampler(sampler.init((n, problem.dimension), dtype=F64))
        return problem.project(denoiser.finish(x.detach()).to(F64))

    return sample


NOISE, SOLVER = 0.02, 4
"""Of azula's guidance: standard deviation with which the equations are observed, and iterations of its linear solver,
at most; one for each equation up to there."""


def installed(library: str, refuses: Callable[[Problem], str]) -> Callable[[Problem], str]:
    """Refuses every problem if a library is missing."""
    return lambda problem: refuses(problem) if find_spec(library) else f"{library} is not installed"


def _both(*reasons: Callable[[Problem], str]) -> Callable[[Problem], str]:
    return lambda problem: next((said for reason in reasons if (said := reason(problem))), "")


SAMPLERS: dict[str, Sampler] = {
    sampler.name: sampler
    for sampler in (
        Sampler(
            "exact draws",
            lambda problem, n, budget: problem.answer.draws(n, problem.seed),
            about="Independent draws of the exact distribution: what 1 means.",
        ),
        Sampler("auto", ours("auto"), about='``casal.sample(..., "auto")``.'),
        Sampler("WeightedCASAL", ours(casal.WeightedCASAL()), needs_density, "Sequential Monte Carlo over couplings."),
        Sampler("SplitGibbs", ours(casal.SplitGibbs()), needs_denoiser, "Sequential Monte Carlo over noise levels."),
        Sampler("CASAL", tuned(SETTINGS["CASAL"]), about="The paper's method with our repairs, coupling tuned."),
        Sampler("Algorithm 2", algorithm2, about="The paper's Algorithm 2, coupling tuned."),
        Sampler("projected", ours(casal.Projected()), about="A projection after every step."),
        Sampler("final projection", ours(casal.FinalProjection()), about="No constraint, then one projection."),
        Sampler(
            "DPS + projection",
            tuned(SETTINGS["DPS, tuned + projection"][::2]),
            needs_residual,
            "Guidance by the residual of the denoised estimate, weight tuned, then one projection.",
        ),
        Sampler(
            "mici",
            mici,
            installed("mici", _both(needs_density, needs_equations)),
            f"Constrained HMC, {CHAINS} chains of {LEAPFROGS} leapfrog steps a sample.",
        ),
        Sampler(
            "azula MMPS",
            azula("MMPS"),
            installed("azula", _both(needs_denoiser, needs_equations)),
            "Moment-matching guidance by the equations, then one projection.",
        ),
        Sampler(
            "azula DPS",
            azula("DPS"),
            installed("azula", _both(needs_denoiser, needs_equations)),
            "Guidance with azula's default weight, then one projection.",
        ),
    )
}
"""By name, in the order of the tables; a module of yours may add to it."""
