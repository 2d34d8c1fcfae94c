"""Set-up C, where the law decides: does each method find which regime is right once the constraint is known?"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from casal.constraints import Constraint
from casal.diagnostics.transport import directions
from casal.errors import CasalWarning, DivergedError, SettingError
from casal.methods import CASAL, DPS, FinalProjection, Penalty, Projected, SplitGibbs, WeightedCASAL
from casal.problems.base import Array, Column, ResultTable
from casal.problems.burgers_regimes_prior import DECODER, DIMENSION, Case, Posterior, Reference, case, reference
from casal.problems.conditional_base import AnyMethod
from casal.problems.tuning import VALIDATION_SEED
from casal.result import SampleResult
from casal.sampling import sample
from casal.targets import Target

Tell = Callable[[str], None]

BEST = "WeightedCASAL"
TOP, STEP = 1e5, 0.2
DIRECTIONS = 48
DPS_WEIGHTS = tuple(10.0 ** (k / 5) for k in range(-10, 11))
PENALTY_WEIGHTS = tuple(10.0 ** (k / 4) for k in range(-18, 3))
TUNED: dict[str, Sequence[AnyMethod]] = {
    "penalty, tuned + projection": [FinalProjection(Penalty(weight)) for weight in PENALTY_WEIGHTS],
    "DPS, tuned + projection": [FinalProjection(DPS(weight)) for weight in DPS_WEIGHTS],
}
"""21 weights each, up to divergence; chosen on other truths."""


class Scale(NamedTuple):
    """Truths, chains, steps of the diffusion, steps of the ladder, truths for tuning, stride, draws of a regime."""

    truths: int
    n: int
    steps: int
    ladder: int
    tuning: int
    stride: int
    draws: int


def methods(scale: Scale) -> dict[str, AnyMethod]:
    """Those without a setting to tune."""
    return {
        "final projection": FinalProjection(),
        "projected": Projected(),
        "CASAL, dual 1": CASAL(10.0, dual_step=1.0),
        "SplitGibbs": SplitGibbs(TOP**-0.5, levels=max(8, scale.ladder // 12), moves="metropolis", inner_steps=10),
        BEST: WeightedCASAL(TOP, burn_in=1),
    }


LABELS = ("final projection", "projected", "CASAL, dual 1", *TUNED, "SplitGibbs", BEST)


@dataclass(frozen=True, eq=False)
class Trial:
    """One truth: its set, its posterior, its exact law."""

    case: Case
    posterior: Posterior
    exact: Reference
    constraint: Constraint

    @classmethod
    def of(cls, seed: int, draws: int) -> Trial:
        """The trial of this seed."""
        found = case(seed)
        posterior = Posterior(found.value)
        return cls(found, posterior, reference(found, posterior, draws), found.constraint)

    def target(self, method: AnyMethod, scale: Scale) -> Target:
        """The posterior: as a fixed density for the ladder in rho, else as a diffusion."""
        if isinstance(method, WeightedCASAL):
            return self.posterior.static(scale.ladder, STEP)
        return self.posterior.diffusion(scale.steps)

    def draw(self, method: AnyMethod, scale: Scale, seed: int) -> SampleResult:
        """One run; few ancestors are in the table, not in a warning."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CasalWarning)
            target = self.target(method, scale)
            return sample(target, self.constraint, method, scale.n, decoder=DECODER, seed=seed, threads=1)

    def scores(self, result: SampleResult) -> dict[str, float]:
        """Mode error (total variation), SW1 in units of the spread of the exact law, reconstruction, ancestors."""
        x = DECODER.pinv(result.samples.to(torch.float64), (DIMENSION,))
        weights = result.weights
        exact, mass = self.exact.x, self.exact.weights
        centre = mass @ exact
        spread = float((mass @ (exact - centre).square()).mean().sqrt())
        return {
            "modes": float((_shares(self.posterior, x, weights) - self.exact.modes).abs().sum()) / 2,
            "sw1": _sliced(x, weights, exact, mass) / spread,
            "reconstruction": self.reconstruction(weights @ x),
            "violation": float(result.certificate.violation.max()),
            "ancestors": float(len(torch.unique(result.ancestors))),
        }

    def reconstruction(self, mean: Tensor) -> float:
        """Relative error of the mean field."""
        field = self.case.field
        return float((DECODER(mean[None])[0] - field).norm() / field.norm())


def _shares(posterior: Posterior, x: Tensor, weights: Tensor) -> Tensor:
    """Share of the samples nearest to each regime; the regimes are far apart."""
    nearest = torch.cdist(x, posterior.means).argmin(1)
    return torch.zeros(len(posterior.means), dtype=torch.float64).index_add_(0, nearest, weights.to(torch.float64))


def _sliced(x: Tensor, a: Tensor, y: Tensor, b: Tensor) -> float:
    """Mean over directions of the W1 distance of the projections."""
    theta = directions(DIMENSION, DIRECTIONS, torch.Generator().manual_seed(0))
    values, order = torch.cat([x @ theta.T, y @ theta.T]).sort(dim=0)
    steps = torch.cat([a.to(b), -b])[order].cumsum(0)[:-1].abs()
    return float((steps * values.diff(dim=0)).sum(0).mean())


def tuned(label: str, scale: Scale, trials: Sequence[Trial], tell: Tell) -> list[AnyMethod]:
    """Settings by mode error + SW1 on other truths, the best first; those that lose a chain are out."""
    scored: list[tuple[float, int]] = []
    settings = TUNED[label][:: scale.stride]
    for k, method in enumerate(settings):
        tell(f"set-up C: {label}, {k + 1} of {len(settings)}")
        with suppress(SettingError, DivergedError):
            found = [trial.scores(trial.draw(method, scale, VALIDATION_SEED)) for trial in trials]
            scored.append((sum(score["modes"] + score["sw1"] for score in found), k))
    return [settings[k] for _, k in sorted(scored)]


def _weight(method: AnyMethod) -> float:
    inner = method.inner if isinstance(method, FinalProjection) else method
    return float(getattr(inner, "weight", math.nan))


def run(scale: Scale, tell: Tell) -> tuple[ResultTable, dict[str, Any]]:
    """All methods on fresh truths; data: every score of every truth, and the shares of one truth."""
    tell("set-up C: references")
    trials = [Trial.of(seed, scale.draws) for seed in range(scale.truths)]
    others = [Trial.of(VALIDATION_SEED + seed, scale.draws) for seed in range(scale.tuning)]
    plain, settings = methods(scale), dict[str, str]()
    found: dict[str, dict[str, Array]] = {}
    for label in LABELS:
        for method in [plain[label]] if label in plain else tuned(label, scale, others, tell):
            tell(f"set-up C: {label}")
            with suppress(DivergedError):  # a tuned setting may still lose a chain on fresh truths; then the next one
                scores = [trial.scores(trial.draw(method, scale, k)) for k, trial in enumerate(trials)]
                found[label] = {key: np.array([score[key] for score in scores]) for key in scores[0]}
                settings[label] = "" if label in plain else f"weight {_weight(method):.3g}"
                break
    exact = np.array([t.reconstruction(t.exact.weights @ t.exact.x) for t in trials])
    before = np.stack([t.posterior.weights.numpy() for t in trials])
    after = np.stack([t.exact.modes.numpy() for t in trials])
    data = {"scores": found, "exact": exact, "before": before, "after": after}
    return _table(found, exact, settings, scale, trials), data


def _table(
    found: Mapping[str, Mapping[str, Array]],
    exact: Array,
    settings: Mapping[str, str],
    scale: Scale,
    trials: Sequence[Trial],
) -> ResultTable:
    rows: list[dict[str, Any]] = []
    for label, scores in found.items():
        line: dict[str, Any] = {"method": label, "setting": settings.get(label, "")}
        for key in ("modes", "sw1", "reconstruction"):
            line[key], line[f"{key}_se"] = _mean(scores[key])
        line["violation"] = float(scores["violation"].max())
        line["ancestors"] = float(scores["ancestors"].mean())
        rows.append(line)
    value, error = _mean(exact)
    rows.append({"method": "exact law", "modes": 0.0, "sw1": 0.0, "reconstruction": value, "reconstruction_se": error})
    turned = sum(int(t.exact.modes.argmax()) != int(t.posterior.weights.argmax()) for t in trials)
    return ResultTable(
        f"Set-up C: three regimes, one sensor, mass, energy and bounds known; {scale.truths} truths, {scale.n} chains",
        (
            Column("method", "method"),
            Column("modes", "mode error", ".3f"),
            Column("sw1", "SW1", ".3f"),
            Column("reconstruction", "reconstruction", ".3f"),
            Column("ancestors", "ancestors", ".0f"),
            Column("violation", "largest violation", ".0e"),
            Column("setting", "setting"),
        ),
        rows,
        note=f"Exact scores. The constraint overturns the likeliest regime of {turned} of {scale.truths} truths. Mode "
        "error: total variation of the regimes' weights to the exact ones; SW1 in units of the spread of the exact law;"
        " reconstruction: relative error of the mean field. Tuned settings are chosen on "
        f"{scale.tuning} other truths against their exact law.",
    )


def _mean(values: Array) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan
