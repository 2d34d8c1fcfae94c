"""All methods on set-ups A and B: the same truths, the same noise, paired differences.

First what is measured of a run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from casal import CASAL, FinalProjection, Penalty, Projected, Unconstrained
from casal_lab.burgers import cycle
from casal_lab.burgers.cycle import CYCLES, WINDOW
from casal_lab.burgers.setup import (
    BASIS,
    DIMENSION,
    FIELD_MODES,
    MODES,
    POINTS,
    SOLVER,
    TUNING_SEED,
    Model,
    Setup,
    Truth,
    errors,
    least_conserving,
    nearest_field,
    truths,
)
from casal_lab.experiment import AnyMethod, ResultTable, Tell
from casal_lab.study import tune, with_error

SPECTRUM = 2 * FIELD_MODES + 1
"""Modes 0 .. 40 are looked at, twice as many as the data have."""

HIGH = slice(MODES - MODES // 3, MODES)
"""The highest third of the modes of the latent: 7, 8, 9."""


def analysed(truth: Truth) -> Tensor:
    """The true fields at the first time of each window, (5, n, points)."""
    return truth.fields[: WINDOW * CYCLES : WINDOW]


@dataclass(frozen=True, eq=False)
class Scores:
    """Figures of members (5 windows, m, n, points); each of shape (n,), the mean over the windows."""

    members: Tensor  # the fields
    truth: Truth  # what they should be
    amplitude: float = 1.0  # the unit of CRPS and spread

    @cached_property
    def mean(self) -> Tensor:
        """The analysis, (5, n, points)."""
        return self.members.mean(1)

    @cached_property
    def projected(self) -> Tensor:
        """The analysis brought to its mass and energy."""
        return nearest_field(self.mean, self.truth.mass, self.truth.energy)

    @cached_property
    def curve(self) -> Tensor:
        """|mean - u| / |u|, (5, n)."""
        return _relative(self.mean, analysed(self.truth))

    @cached_property
    def violation(self) -> Tensor:
        """sqrt(mass error^2 + energy error^2), both relative, of a member on average, (5, n)."""
        return _violation(self.members, self.truth).mean(1)

    @property
    def l2(self) -> Tensor:
        """Relative error of the mean of the members."""
        return self.curve.mean(0)

    @cached_property
    def l2_projected(self) -> Tensor:
        """Relative error of the re-projected mean."""
        return _relative(self.projected, analysed(self.truth)).mean(0)

    @cached_property
    def l2_member(self) -> Tensor:
        """Relative error of one member, on average."""
        return _relative(self.members, analysed(self.truth)[:, None]).mean((0, 1))

    @cached_property
    def crps(self) -> Tensor:
        """E|X - u| - E|X - X'| / 2 per point, in units of the amplitude; the fair estimate from m members."""
        m = self.members.shape[1]
        apart = (self.members - analysed(self.truth)[:, None]).abs().mean((1, 3))
        if m > 1:
            order = self.members.sort(dim=1).values
            rank = 2.0 * torch.arange(m, dtype=torch.float64) - (m - 1)
            # sum over pairs |x_i - x_j| = sum over ranks (2 i - m + 1) x_(i)
            apart = apart - torch.einsum("wmnp,m->wn", order, rank) / (m * (m - 1) * order.shape[-1])
        return apart.mean(0) / self.amplitude

    @cached_property
    def spectrum(self) -> Tensor:
        """Power of modes 0 .. 40 of a member in the last window, (n, 41)."""
        return power(self.members[-1]).mean(0)

    @cached_property
    def high(self) -> Tensor:
        """Power in the highest third of the latent's modes over the truth's: its log10, trajectory by trajectory.

        (n, 2): power of a member and of the truth, in all windows together. ``log_ratio`` makes a number of them.
        """
        return torch.stack([power(u)[..., HIGH].sum(-1).mean((0, 1)) for u in (self.members, self._exact)], dim=1)

    @property
    def _exact(self) -> Tensor:
        return analysed(self.truth)[:, None]

    @cached_property
    def figures(self) -> dict[str, float | None]:
        """Numbers of all trajectories together.

        Relative errors of mass and energy of a member on average, and of the energy of the mean; the largest violation
        of any member and of any re-projected mean; the largest |z - F F^T z| / |z|; spread / skill, which is
        sqrt((1 + 1/m) mean variance) / root mean square error of the mean, 1 for a calibrated ensemble; the mean over
        modes 1 .. 9 of |log10 (power / true power)| in the last window; log10 of the power in modes 7 to 9 over the
        truth's, with its standard error; and the share of the energy beyond mode 20, where no truth has any.
        """
        truth, m = self.truth, self.members.shape[1]
        mass, energy = errors(self.members, truth.mass, truth.energy)
        off = self.members - (self.members @ BASIS) @ BASIS.T
        skill = float((self.mean - analysed(truth)).square().mean())
        ratio = self.spectrum.mean(0) / power(analysed(truth)[-1]).mean(0)
        beyond = 1.0 - SOLVER.cut(self.members).square().sum(-1) / self.members.square().sum(-1)
        high, error = log_ratio(self.high[:, 0], self.high[:, 1])
        return {
            "member_mass": float(mass.mean((0, 1)).mean()),
            "member_energy": float(energy.mean((0, 1)).mean()),
            "mean_energy": float(errors(self.mean, truth.mass, truth.energy)[1].mean(0).mean()),
            "worst": float(torch.maximum(mass, energy).max()),
            "worst_projected": float(torch.maximum(*errors(self.projected, truth.mass, truth.energy)).max()),
            "out_of_range": float((_length(off) / _length(self.members)).max()),
            "spread_skill": math.sqrt(float(self.members.var(1).mean()) * (1 + 1 / m) / skill) if m > 1 else None,
            "spectrum": float(ratio[1:MODES].log10().abs().mean()),
            "high": high,
            "high_se": error,
            "beyond": max(0.0, float(beyond.mean())),
        }


def _length(u: Tensor) -> Tensor:
    return torch.linalg.vector_norm(u, dim=-1)


def average(values: Tensor) -> tuple[float, float]:
    """Mean over trajectories (n,) and its standard error."""
    return float(values.mean()), float(values.std() / math.sqrt(len(values)))


def _relative(u: Tensor, exact: Tensor) -> Tensor:
    return _length(u - exact) / _length(exact)


def _violation(fields: Tensor, truth: Truth) -> Tensor:
    return torch.hypot(*errors(fields, truth.mass, truth.energy))


def power(fields: Tensor) -> Tensor:
    """|rfft|^2 / N of fields (..., points), modes 0 .. 40."""
    return torch.fft.rfft(fields)[..., :SPECTRUM].abs().square() / POINTS


def log_ratio(one: Tensor, other: Tensor) -> tuple[float, float]:
    """log10 of (mean of one / mean of other), both (n,) and paired, and its standard error (delta method)."""
    share = one / one.mean() - other / other.mean()
    return float((one.mean() / other.mean()).log10()), float(share.std() / math.sqrt(len(one)) / math.log(10))


# ------------------------------------------------------------------ methods and runs

RHO = 10.0
"""The paper's, in the assimilation."""

ETA = 0.01
"""Dual step of the released update, that of the authors' script of the particle; the one of the field is a tenth."""

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
    "released code": (CASAL.released(RHO, ETA), False),
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


def table(setup: Setup, kind: str, found: Mapping[str, Runs], scale: Scale) -> ResultTable:
    """A line per method on one set-up with one kind of network."""
    return ResultTable.of(
        f"Set-up {setup.name}, {kind}: amplitude {setup.amplitude:g}, noise {setup.noise:g}, H = {setup.horizon:g}; "
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
