"""All methods on set-ups A and B: the same truths, the same noise, paired differences."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from casal import CASAL, FinalProjection, Penalty, Projected, Unconstrained
from casal_lab.burgers import cycle
from casal_lab.burgers.conserved import least_conserving, nearest_field
from casal_lab.burgers.scores import Scores, analysed, average
from casal_lab.burgers.setup import BASIS, DIMENSION, POINTS, SETUPS, TUNING_SEED, Model, Truth, truths
from casal_lab.experiment import AnyMethod, ResultTable, Tell
from casal_lab.study import tune, with_error

RHO = 10.0
"""The paper's, in the assimilation."""

REFERENCE = "unconstrained"
TUNED = ("penalty, tuned", "penalty, tuned + projection")
FLOORS = ("floor: the truth in 10 modes", "floor: with mass and energy")
"""What no field of the latent can be better than: the truth cut to 10 modes, and the nearest such field in C."""

CLASSICAL = (
    *FLOORS,
    "3D-Var",
    "3D-Var, 5 draws",
    "3D-Var + projection",
    "3D-Var, constrained",
    "EnKF",
    "EnKF + projection",
)

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
PRINTED = (*FLOORS, "3D-Var", "3D-Var, 5 draws", "3D-Var, constrained", *DIFFUSION, TUNED[0])
"""Methods that are run with the paper's network."""

WEIGHTS = tuple(10.0 ** (k / 2) for k in range(-4, 5))
"""Penalty weights, 0.01 to 100; those that diverge are out."""

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
    violation: Tensor  # likewise, of mass and energy of a member
    seconds: float  # of one network
    setting: str  # what was tuned
    figures: dict[str, float | None]  # conservation, calibration, spectrum


def classical(label: str, variational: cycle.Gaussian3DVar, truth: Truth, inflation: float) -> Tensor:
    """Members of a method without a network, (5, m, n, points)."""
    if label in FLOORS:
        fields = analysed(truth) @ BASIS @ BASIS.T
        return (nearest_field(fields, truth.mass, truth.energy) if label == FLOORS[1] else fields)[:, None]
    if label.startswith("EnKF"):
        return cycle.kalman(variational, truth, inflation, 0, project=label.endswith("projection"))
    root = torch.linalg.cholesky(variational.covariance)
    generator = torch.Generator().manual_seed(0)

    def analyse(window: cycle.Window, truth: Truth) -> Tensor:
        mean = window.mean
        if label == "3D-Var, 5 draws":
            w = torch.randn((cycle.MEMBERS, len(truth), DIMENSION), generator=generator, dtype=torch.float64)
            return (mean + w @ root.T) @ BASIS.T
        if label == "3D-Var, constrained":
            mean = least_conserving(variational.precision, mean, truth.mass, truth.energy, POINTS)
        fields = mean @ BASIS.T
        return (nearest_field(fields, truth.mass, truth.energy) if label.endswith("projection") else fields)[None]

    return cycle.assimilate(variational, truth, analyse)


def _settings(label: str, stride: int) -> tuple[Sequence[float], str]:
    """What a method is tuned over, and how a reader is told."""
    if label.startswith("EnKF"):
        return cycle.INFLATIONS, "model error {:g} sigma"
    return (WEIGHTS[::stride], "weight {:.3g}") if label in TUNED else ((0.0,), "")


def _each(label: str, setting: float, models: Sequence[Model], truth: Truth, steps: int) -> list[Scores]:
    """Scores of a method: one for each network, or one if it needs none."""
    if label in CLASSICAL:
        variational = cycle.Gaussian3DVar(models[0].setup, models[0].sigma)
        return [Scores(classical(label, variational, truth, setting), truth, variational.setup.amplitude)]
    method, in_latent = DIFFUSION.get(label) or (Penalty(setting), False)
    if label == TUNED[1]:
        method = FinalProjection(method)
    return [scores(model, truth, steps, method, in_latent=in_latent) for model in models]


def compare(models: Sequence[Model], truth: Truth, labels: Sequence[str], scale: Scale, tell: Tell) -> dict[str, Runs]:
    """Every method on the same truths; diffusion methods once for each network, with the same noise."""
    other = truths(models[0].setup, scale.tuning, TUNING_SEED)
    found = {label: _run_best(label, models, truth, other, scale, tell) for label in labels}
    return {label: runs for label, runs in found.items() if runs is not None}


def _run_best(label: str, models: Sequence[Model], truth: Truth, other: Truth, scale: Scale, tell: Tell) -> Runs | None:
    """The method with the setting that has the smallest error on other trajectories; None if all diverge."""
    settings, text = _settings(label, scale.stride)

    def loss(setting: float) -> float:
        tell(f"set-up {models[0].setup.name}: {label}, {text.format(setting)}")
        return float(_each(label, setting, models[:1], other, scale.steps)[0].l2.mean())

    def run(setting: float) -> Runs:
        tell(f"set-up {models[0].setup.name}: {label}")
        began = time.process_time()  # of the processor: others may be at work beside
        parts = _each(label, setting, models, truth, scale.steps)
        seconds = (time.process_time() - began) / len(parts)
        values = {key: torch.stack([getattr(part, key) for part in parts]) for key in SCORES}
        figures = dict(parts[0].figures)  # of all networks the largest error, or the mean
        for key in ("member_mass", "member_energy", "worst", "worst_projected", "out_of_range"):
            figures[key] = max(part.figures[key] or 0.0 for part in parts)
        for key in ("mean_energy", "spectrum"):
            figures[key] = sum(part.figures[key] or 0.0 for part in parts) / len(parts)
        curve, violation = (torch.stack([getattr(p, key) for p in parts]).mean(0) for key in ("curve", "violation"))
        return Runs(parts[0], values, curve, violation, seconds, text.format(setting), figures)

    if len(settings) == 1:
        return run(settings[0])
    best, _ = tune(settings, loss, run)
    return best[1] if best else None


def scores(model: Model, truth: Truth, steps: int, method: AnyMethod, **options: Any) -> Scores:
    """One assimilation with a network; the options are those of ``cycle.diffusion``."""
    variational = cycle.Gaussian3DVar(model.setup, model.sigma)
    members = cycle.assimilate(variational, truth, cycle.diffusion(model, method, steps, 0, **options))
    return Scores(members, truth, model.setup.amplitude)


def difference(one: Runs, other: Runs) -> tuple[float, float]:
    """Error of one - other, paired: mean over trajectories (networks averaged first) and its standard error."""
    return average(one.values["l2"].mean(0) - other.values["l2"].mean(0))


def row(label: str, found: Mapping[str, Runs]) -> dict[str, Any]:
    """A line of the table."""
    runs = found[label]
    line: dict[str, Any] = {"method": label, **runs.figures, "setting": runs.setting}
    for key in SCORES:
        line |= with_error(key, *average(runs.values[key].mean(0)))
    if REFERENCE in found and label not in (REFERENCE, *FLOORS):
        line |= with_error("gap", *difference(runs, found[REFERENCE]))
    if REFERENCE in found and label not in CLASSICAL:
        line["seconds"] = runs.seconds / found[REFERENCE].seconds
    return line


COLUMNS = (
    "method | l2: error of the mean, .3f | gap: minus unconstrained, +.3f | l2_projected: re-projected mean, .3f | "
    "l2_member: one member, .3f | member_mass: mass error, .0e | member_energy: energy error, .0e | "
    "mean_energy: of the mean, .0e | worst_projected: of the re-projected mean, .0e | crps: CRPS, .3f | "
    "spread_skill: spread / skill, .2f | spectrum, .2f | high: modes 7-9, +.2f | seconds: time, .2f | setting"
)


def table(name: str, kind: str, found: Mapping[str, Runs], scale: Scale) -> ResultTable:
    """A line per method on one set-up with one kind of network."""
    setup = SETUPS[name]
    return ResultTable.of(
        f"Set-up {name}, {kind}: amplitude {setup.amplitude:g}, H = {setup.horizon:g}; "
        f"{scale.seeds * scale.trajectories} trajectories, {scale.steps} steps",
        COLUMNS,
        [row(label, found) for label in found],
        note="Errors are relative l2, averaged over five windows; standard errors over trajectories, differences "
        "paired. Floors: no field of the latent is nearer to the truth. Mass and energy: mean relative error of a "
        "member. CRPS in units of the amplitude; spread / skill is 1 for a calibrated ensemble; spectrum: mean |log10 "
        "power ratio| of modes 1 to 9 in the last window; modes 7-9: log10 of the power of a member over the truth's, "
        "all windows; time of the processor over that of unconstrained sampling. Algorithm 1 and 2 are the paper's, "
        "rho = 10; CASAL is ours, the full z-step with the paper's dual step tau.",
    )
