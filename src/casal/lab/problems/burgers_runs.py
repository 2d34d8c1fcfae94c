"""All methods on set-ups A and B: the same truths, the same noise, paired differences."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from casal.errors import DivergedError
from casal.lab.problems.burgers_cycle import MEMBERS, Analyse, Gaussian3DVar, Window, assimilate, diffusion
from casal.lab.problems.burgers_kalman import INFLATIONS, kalman
from casal.lab.problems.burgers_scores import Scores
from casal.lab.problems.burgers_sets import least_conserving, nearest_field
from casal.lab.problems.burgers_setup import BASIS, DIMENSION, POINTS, TUNING_SEED, Model, Truth, truths
from casal.methods import CASAL, FinalProjection, Method, Penalty, Projected, Unconstrained

Tell = Callable[[str], None]
RHO = 10.0

REFERENCE = "unconstrained"
TUNED = ("penalty, tuned", "penalty, tuned + projection")
CLASSICAL = ("3D-Var", "3D-Var, 5 draws", "3D-Var + projection", "3D-Var, constrained", "EnKF", "EnKF + projection")

DIFFUSION: dict[str, tuple[Method[Any], bool]] = {
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
    """How much is run.

    Attributes:
        trajectories: In each of the seeds.
        seeds: Of truths, observations and noise.
        networks: Trained from different starts.
        steps: Of the diffusion.
        tuning: Other trajectories, for the settings of baselines.
        stride: Every how manyth penalty weight is tried.
    """

    trajectories: int
    seeds: int
    networks: int
    steps: int
    tuning: int
    stride: int


@dataclass
class Runs:
    """What is kept of one method on one set-up.

    Attributes:
        values: Each of SCORES, (networks, n).
        curve: Error in every window, (5, n), mean over networks.
        first: Scores of the first network, for pictures and conservation.
        seconds: Of one network.
        setting: What was tuned.
    """

    first: Scores
    values: dict[str, Tensor]
    curve: Tensor
    seconds: float
    setting: str = ""
    figures: dict[str, float | None] = field(default_factory=dict)


def _summary(parts: Sequence[Scores], seconds: float, setting: str) -> Runs:
    values = {key: torch.stack([getattr(part, key) for part in parts]) for key in SCORES}
    figures: dict[str, float | None] = {
        "member_mass": max(float(p.member_errors[0].mean()) for p in parts),
        "member_energy": max(float(p.member_errors[1].mean()) for p in parts),
        "mean_energy": sum(float(p.mean_errors[1].mean()) for p in parts) / len(parts),
        "worst": max(p.worst for p in parts),
        "worst_projected": max(p.worst_projected for p in parts),
        "out_of_range": max(p.out_of_range for p in parts),
        "spread_skill": parts[0].spread_skill,
        "spectrum": sum(p.spectrum_error() for p in parts) / len(parts),
    }
    curve = torch.stack([part.curve for part in parts]).mean(0)
    return Runs(parts[0], values, curve, seconds, setting, figures)


def classical(label: str, variational: Gaussian3DVar, truth: Truth, seed: int, inflation: float) -> Tensor:
    """Members of a method without a network, (5, m, n, points)."""
    if label.startswith("EnKF"):
        return kalman(variational, truth, inflation, seed, project=label.endswith("projection"))
    root = torch.linalg.cholesky(variational.covariance)
    generator = torch.Generator().manual_seed(seed)

    def drawn(window: Window, truth: Truth, number: int) -> Tensor:
        w = torch.randn((MEMBERS, len(truth), DIMENSION), generator=generator, dtype=torch.float64)
        return (window.mean + w @ root.T) @ BASIS.T

    def constrained(window: Window, truth: Truth, number: int) -> Tensor:
        c = least_conserving(variational.precision, window.mean, truth.mass, truth.energy, POINTS)
        return (c @ BASIS.T)[None]

    def projected(window: Window, truth: Truth, number: int) -> Tensor:
        return nearest_field(window.mean @ BASIS.T, truth.mass, truth.energy)[None]

    ways: dict[str, Analyse] = {
        "3D-Var": lambda window, truth, number: (window.mean @ BASIS.T)[None],
        "3D-Var, 5 draws": drawn,
        "3D-Var + projection": projected,
        "3D-Var, constrained": constrained,
    }
    return assimilate(variational, truth, ways[label])


def tuned_inflation(variational: Gaussian3DVar, truth: Truth, label: str) -> float:
    """Model error of the EnKF with the smallest error on other trajectories."""
    loss = {q: float(_scored(classical(label, variational, truth, 0, q), truth).l2.mean()) for q in INFLATIONS}
    return min(loss, key=lambda q: loss[q])


def tuned_penalties(model: Model, truth: Truth, label: str, scale: Scale, tell: Tell) -> list[float]:
    """Weights by their error on other trajectories, the best first; they grow until a run diverges."""
    variational = Gaussian3DVar(model.setup, model.sigma)
    losses: dict[float, float] = {}
    for weight in WEIGHTS[:: scale.stride]:
        tell(f"set-up {model.setup.name}: {label}, weight {weight:.3g}")
        try:
            members = assimilate(variational, truth, diffusion(model, penalty(label, weight), scale.steps, 0))
        except DivergedError:
            break
        losses[weight] = float(_scored(members, truth).l2.mean())
    return sorted(losses, key=lambda weight: losses[weight])


def penalty(label: str, weight: float) -> Method[Any]:
    """Guidance, with or without one projection at the end."""
    return FinalProjection(Penalty(weight)) if label.endswith("projection") else Penalty(weight)


def _scored(members: Tensor, truth: Truth, amplitude: float = 1.0) -> Scores:
    return Scores(members, truth, amplitude)


def compare(models: Sequence[Model], truth: Truth, labels: Sequence[str], scale: Scale, tell: Tell) -> dict[str, Runs]:
    """Every method on the same truths; diffusion methods once for each network, with the same noise."""
    setup, variational = models[0].setup, Gaussian3DVar(models[0].setup, models[0].sigma)
    other = truths(setup, scale.tuning, TUNING_SEED)
    found: dict[str, Runs] = {}
    for label in labels:
        tell(f"set-up {setup.name}: {label}")
        if label in CLASSICAL:
            inflation = tuned_inflation(variational, other, label) if label.startswith("EnKF") else 0.0
            began = time.perf_counter()
            parts = [_scored(classical(label, variational, truth, 0, inflation), truth, setup.amplitude)]
            setting = f"model error {inflation:g} sigma" if label.startswith("EnKF") else ""
            found[label] = _summary(parts, time.perf_counter() - began, setting)
            continue
        began = time.perf_counter()
        if label in DIFFUSION:
            method, in_latent = DIFFUSION[label]
            parts = _each(models, truth, method, scale.steps, in_latent)
            found[label] = _summary(parts, (time.perf_counter() - began) / len(models), "")
            continue
        for weight in tuned_penalties(models[0], other, label, scale, tell):
            began = time.perf_counter()
            try:
                parts = _each(models, truth, penalty(label, weight), scale.steps)
            except DivergedError:  # stable on the few trajectories it was tuned on, not on these
                continue
            found[label] = _summary(parts, (time.perf_counter() - began) / len(models), f"weight {weight:.3g}")
            break
    return found


def _each(
    models: Sequence[Model], truth: Truth, method: Method[Any], steps: int, in_latent: bool = False
) -> list[Scores]:
    """One assimilation for each network."""
    variational = Gaussian3DVar(models[0].setup, models[0].sigma)
    analyses = [diffusion(model, method, steps, 0, in_latent=in_latent) for model in models]
    amplitude = models[0].setup.amplitude
    return [_scored(assimilate(variational, truth, analyse), truth, amplitude) for analyse in analyses]


def difference(one: Runs, other: Runs, key: str = "l2") -> tuple[float, float]:
    """one - other, paired: mean over trajectories (networks averaged first) and its standard error."""
    gap = one.values[key].mean(0) - other.values[key].mean(0)
    return float(gap.mean()), float(gap.std() / math.sqrt(len(gap)))


def row(label: str, found: Mapping[str, Runs]) -> dict[str, Any]:
    """A line of the table."""
    runs = found[label]
    line: dict[str, Any] = {"method": label, **runs.figures, "setting": runs.setting}
    for key in SCORES:
        each = runs.values[key].mean(0)
        line[key], line[f"{key}_se"] = float(each.mean()), float(each.std() / math.sqrt(len(each)))
    if REFERENCE in found and label != REFERENCE:
        line["gap"], line["gap_se"] = difference(runs, found[REFERENCE])
    if REFERENCE in found and label not in CLASSICAL:
        line["seconds"] = runs.seconds / found[REFERENCE].seconds
    return line
