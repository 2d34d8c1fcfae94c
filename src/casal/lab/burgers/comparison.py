"""All methods on set-ups A and B: the same truths, the same noise, paired differences."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from casal import CASAL, FinalProjection, Penalty, Projected, Unconstrained
from casal.errors import DivergedError
from casal.lab.burgers import cycle
from casal.lab.burgers.conserved import least_conserving, nearest_field
from casal.lab.burgers.scores import Scores, average
from casal.lab.burgers.setup import BASIS, DIMENSION, POINTS, SETUPS, TUNING_SEED, Model, Truth, truths
from casal.lab.experiment import AnyMethod, ResultTable, Tell, with_error

RHO = 10.0

REFERENCE = "unconstrained"
TUNED = ("penalty, tuned", "penalty, tuned + projection")
CLASSICAL = ("3D-Var", "3D-Var, 5 draws", "3D-Var + projection", "3D-Var, constrained", "EnKF", "EnKF + projection")

DIFFUSION: dict[str, tuple[AnyMethod, bool]] = {
    "unconstrained": (Unconstrained(), False),
    "final projection": (FinalProjection(), False),
    "projected, A+ P A": (Projected(), False),
    "projected, exact in the latent": (Projected(), True),
    "Algorithm 1": (CASAL.algorithm1(RHO), False),
    "Algorithm 2": (CASAL.algorithm2(RHO), False),
    "CASAL": (CASAL(RHO, dual_step="tau"), False),
    "CASAL, dual 1": (CASAL(RHO, dual_step="admm"), False),
}
"""Methods, and whether they see the set of latents instead of the decoder. CASAL has the paper's dual step."""

METHODS = (*CLASSICAL, *DIFFUSION, *TUNED)
WEIGHTS = tuple(10.0 ** (k / 4) for k in range(-14, 9))
"""Penalty weights, 0.0003 to 100; the search ends where a run diverges."""

SCORES = ("l2", "l2_projected", "l2_member", "crps")


class Scale(NamedTuple):
    """How much is run."""

    trajectories: int  # in each of the seeds
    seeds: int  # of truths, observations and noise
    networks: int  # trained from different starts
    steps: int  # of the diffusion
    tuning: int  # other trajectories, for the settings of baselines
    stride: int  # every how manyth penalty weight is tried


@dataclass
class Runs:
    """What is kept of one method on one set-up."""

    first: Scores  # scores of the first network, for pictures and conservation
    values: dict[str, Tensor]  # each of SCORES, (networks, n)
    curve: Tensor  # error in every window, (5, n), mean over networks
    seconds: float  # of one network
    setting: str = ""  # what was tuned
    figures: dict[str, float | None] = field(default_factory=dict)


def _summary(parts: Sequence[Scores], seconds: float, setting: str) -> Runs:
    values = {key: torch.stack([getattr(part, key) for part in parts]) for key in SCORES}
    figures = dict(parts[0].figures)  # of all networks the largest error, or the mean
    for key in ("member_mass", "member_energy", "worst", "worst_projected", "out_of_range"):
        figures[key] = max(part.figures[key] or 0.0 for part in parts)
    for key in ("mean_energy", "spectrum"):
        figures[key] = sum(part.figures[key] or 0.0 for part in parts) / len(parts)
    curve = torch.stack([part.curve for part in parts]).mean(0)
    return Runs(parts[0], values, curve, seconds, setting, figures)


def classical(label: str, variational: cycle.Gaussian3DVar, truth: Truth, seed: int, inflation: float) -> Tensor:
    """Members of a method without a network, (5, m, n, points)."""
    if label.startswith("EnKF"):
        return cycle.kalman(variational, truth, inflation, seed, project=label.endswith("projection"))
    root = torch.linalg.cholesky(variational.covariance)
    generator = torch.Generator().manual_seed(seed)

    def drawn(mean: Tensor) -> Tensor:
        w = torch.randn((cycle.MEMBERS, len(truth), DIMENSION), generator=generator, dtype=torch.float64)
        return (mean + w @ root.T) @ BASIS.T

    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "3D-Var": lambda mean: (mean @ BASIS.T)[None],
        "3D-Var, 5 draws": drawn,
        "3D-Var + projection": lambda mean: nearest_field(mean @ BASIS.T, truth.mass, truth.energy)[None],
        "3D-Var, constrained": lambda mean: (
            least_conserving(variational.precision, mean, truth.mass, truth.energy, POINTS) @ BASIS.T
        )[None],
    }
    return cycle.assimilate(variational, truth, lambda mean, truth, number: ways[label](mean))


def tune_inflation(variational: cycle.Gaussian3DVar, truth: Truth, label: str) -> float:
    """Model error of the EnKF with the smallest error on other trajectories."""
    loss = {q: float(Scores(classical(label, variational, truth, 0, q), truth).l2.mean()) for q in cycle.INFLATIONS}
    return min(loss, key=lambda q: loss[q])


def rank_penalties(model: Model, truth: Truth, label: str, scale: Scale, tell: Tell) -> list[float]:
    """Weights by their error on other trajectories, the best first; they grow until a run diverges."""
    losses: dict[float, float] = {}
    for weight in WEIGHTS[:: scale.stride]:
        tell(f"set-up {model.setup.name}: {label}, weight {weight:.3g}")
        try:
            losses[weight] = float(scores(model, truth, scale.steps, penalty(label, weight)).l2.mean())
        except DivergedError:
            break
    return sorted(losses, key=lambda weight: losses[weight])


def penalty(label: str, weight: float) -> AnyMethod:
    """Guidance, with or without one projection at the end."""
    return FinalProjection(Penalty(weight)) if label.endswith("projection") else Penalty(weight)


def compare(models: Sequence[Model], truth: Truth, labels: Sequence[str], scale: Scale, tell: Tell) -> dict[str, Runs]:
    """Every method on the same truths; diffusion methods once for each network, with the same noise."""
    setup, variational = models[0].setup, cycle.Gaussian3DVar(models[0].setup, models[0].sigma)
    other = truths(setup, scale.tuning, TUNING_SEED)
    found: dict[str, Runs] = {}
    for label in labels:
        tell(f"set-up {setup.name}: {label}")
        if label in CLASSICAL:
            filtered = label.startswith("EnKF")
            inflation = tune_inflation(variational, other, label) if filtered else 0.0
            parts = partial(_without_network, label, variational, truth, inflation)
            found[label] = _time(parts, f"model error {inflation:g} sigma" if filtered else "")
        elif label in DIFFUSION:
            found[label] = _time(partial(_each, models, truth, scale.steps, *DIFFUSION[label]))
        else:
            for weight in rank_penalties(models[0], other, label, scale, tell):
                with suppress(DivergedError):  # stable on the few trajectories it was tuned on, perhaps not on these
                    parts = partial(_each, models, truth, scale.steps, penalty(label, weight))
                    found[label] = _time(parts, f"weight {weight:.3g}")
                    break
    return found


def _time(parts: Callable[[], list[Scores]], setting: str = "") -> Runs:
    """Scores of each network, and the seconds of one."""
    began = time.perf_counter()
    found = parts()
    return _summary(found, (time.perf_counter() - began) / len(found), setting)


def _without_network(label: str, variational: cycle.Gaussian3DVar, truth: Truth, inflation: float) -> list[Scores]:
    return [Scores(classical(label, variational, truth, 0, inflation), truth, variational.setup.amplitude)]


def _each(
    models: Sequence[Model], truth: Truth, steps: int, method: AnyMethod, in_latent: bool = False
) -> list[Scores]:
    return [scores(model, truth, steps, method, in_latent=in_latent) for model in models]


def scores(model: Model, truth: Truth, steps: int, method: AnyMethod, **options: Any) -> Scores:
    """One assimilation with a network; the options are those of ``cycle.diffusion``."""
    variational = cycle.Gaussian3DVar(model.setup, model.sigma)
    members = cycle.assimilate(variational, truth, cycle.diffusion(model, method, steps, 0, **options))
    return Scores(members, truth, model.setup.amplitude)


def difference(one: Runs, other: Runs, key: str = "l2") -> tuple[float, float]:
    """one - other, paired: mean over trajectories (networks averaged first) and its standard error."""
    return average(one.values[key].mean(0) - other.values[key].mean(0))


def row(label: str, found: Mapping[str, Runs]) -> dict[str, Any]:
    """A line of the table."""
    runs = found[label]
    line: dict[str, Any] = {"method": label, **runs.figures, "setting": runs.setting}
    for key in SCORES:
        line |= with_error(key, *average(runs.values[key].mean(0)))
    if REFERENCE in found and label != REFERENCE:
        line |= with_error("gap", *difference(runs, found[REFERENCE]))
    if REFERENCE in found and label not in CLASSICAL:
        line["seconds"] = runs.seconds / found[REFERENCE].seconds
    return line


def table(name: str, found: Mapping[str, Runs], scale: Scale) -> ResultTable:
    """A line a method on one set-up."""
    setup = SETUPS[name]
    return ResultTable.of(
        f"Set-up {name}: amplitude {setup.amplitude:g}, H = {setup.horizon:g}; {scale.trajectories} trajectories x "
        f"{scale.seeds} seeds, {scale.networks} networks, {scale.steps} steps",
        "method | l2: error of the mean, .3f | gap: minus unconstrained, +.3f | l2_projected: re-projected mean, .3f | "
        "l2_member: one member, .3f | member_mass: mass error, .0e | member_energy: energy error, .0e | "
        "mean_energy: of the mean, .0e | worst_projected: of the re-projected mean, .0e | crps: CRPS, .3f | "
        "spread_skill: spread / skill, .2f | spectrum, .2f | seconds: time, .2f | setting",
        [row(label, found) for label in found],
        note="Errors are relative l2, averaged over five windows; standard errors over trajectories, differences "
        "paired. Mass and energy: mean relative error of a member. CRPS in units of the amplitude; spread / skill is 1 "
        "for a calibrated ensemble; spectrum: mean |log10 power ratio| of modes 1 to 9 in the last window; time over "
        "that of unconstrained sampling. CASAL is the full z-step with the paper's dual step tau.",
    )
