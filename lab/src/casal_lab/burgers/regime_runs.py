"""Set-up C, where the distribution decides: does each method find the right regime once the constraint is known?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import casal
from casal.errors import DivergedError
from casal_lab.burgers.learned import Learned, LearnedPosterior, Training, losses
from casal_lab.burgers.regimes import DECODER, DIMENSION, Case, Posterior, Reference, case, reference
from casal_lab.distances import directions
from casal_lab.experiment import AnyMethod, Array, ResultTable, Tell
from casal_lab.study import VALIDATION_SEED, mean_entry, runs, tune

BEST = "WeightedCASAL"
TOP = 1e5
STEP = 0.2
DIRECTIONS = 48


class Scale(NamedTuple):
    """How much is run."""

    truths: int  # fresh ones, for the table
    n: int  # chains
    steps: int  # of the diffusion
    ladder: int  # steps of the ladder in rho
    tuning: int  # other truths, for the settings of baselines
    stride: int  # every how manyth setting is tried
    draws: int  # of every regime, for the exact distribution
    learned: Training  # of the network


Model = Posterior | LearnedPosterior
"""A posterior: as a diffusion, as a denoiser for a ladder, as a fixed density."""


class Entry(NamedTuple):
    """A method, the form in which it wants the posterior, and the name of its setting."""

    method: AnyMethod
    form: Callable[[Model, Scale], casal.Target] = lambda model, scale: model.diffusion(scale.steps)
    setting: str = ""


@dataclass(frozen=True, eq=False)
class Trial:
    """One truth."""

    case: Case  # the truth and what is known of it
    posterior: Posterior  # the exact one
    model: Model  # what methods sample from: the exact one, or a network's
    exact: Reference  # the distribution on C under the exact prior
    own: Reference  # the distribution on C under the prior of ``model``
    constraint: casal.Constraint  # C

    @classmethod
    def of(cls, seed: int, draws: int) -> Trial:
        """The trial of this seed, with the exact prior."""
        found = case(seed)
        posterior = Posterior(found.value)
        exact = reference(found, posterior, draws)
        return cls(found, posterior, posterior, exact, exact, found.constraint)

    def under(self, learned: Learned) -> Trial:
        """The same truth with a learned prior."""
        model = LearnedPosterior(learned, self.case.value)
        return Trial(self.case, self.posterior, model, self.exact, learned.reference(self.exact), self.constraint)

    def scores(self, entry: Entry, scale: Scale, seed: int) -> dict[str, float]:
        """Of one run: distances to the distribution under the prior in use and to the exact one, and how it went."""
        target = entry.form(self.model, scale)
        (result,) = runs(
            target, self.constraint, entry.method, scale.n, [seed], decoder=DECODER, run=casal.Run(threads=1)
        )
        x, weights = DECODER.pinv(result.samples.to(torch.float64), (DIMENSION,)), result.weights.to(torch.float64)
        nearest = torch.cdist(x, self.posterior.means).argmin(1)  # the regimes are far apart
        shares = torch.zeros(len(self.exact.modes), dtype=torch.float64).index_add_(0, nearest, weights)
        found = {
            "reconstruction": self.reconstruction(weights @ x),
            "violation": float(result.certificate.violation.max()),
            "ancestors": float(len(torch.unique(result.ancestors))),
        }
        known = {"": self.own} if self.own is self.exact else {"": self.own, "_exact": self.exact}
        for name, at in known.items():
            found[f"modes{name}"] = float((shares - at.modes).abs().sum()) / 2
            found[f"sw1{name}"] = sliced(x, weights, at)
        return found

    def reconstruction(self, mean: Tensor) -> float:
        """Relative error of the mean field."""
        field = self.case.field
        return float((DECODER(mean[None])[0] - field).norm() / field.norm())


def sliced(x: Tensor, weights: Tensor, exact: Reference) -> float:
    """Mean over directions of the W1 distance of the projections, in units of the spread of the distribution."""
    theta = directions(DIMENSION, DIRECTIONS, torch.Generator().manual_seed(0))
    values, order = torch.cat([x @ theta.T, exact.x @ theta.T]).sort(dim=0)
    steps = torch.cat([weights, -exact.weights])[order].cumsum(0)[:-1].abs()
    spread = float((exact.weights @ (exact.x - exact.weights @ exact.x).square()).mean().sqrt())
    return float((steps * values.diff(dim=0)).sum(0).mean()) / spread


TUNED: dict[str, Sequence[Entry]] = {
    label: [Entry(casal.FinalProjection(kind(10.0**k)), setting=f"weight {10.0**k:.3g}") for k in powers]
    for label, kind, powers in (
        ("penalty, tuned + projection", casal.Penalty, [k / 4 for k in range(-18, 3)]),
        ("DPS, tuned + projection", casal.DPS, [k / 5 for k in range(-10, 11)]),
    )
}
"""21 weights each, up to divergence; chosen on other truths by mode error + SW1."""


def methods(scale: Scale) -> dict[str, Entry | None]:
    """All methods in the order of the table; None for those with a setting to tune."""
    gibbs = casal.SplitGibbs(TOP**-0.5, levels=max(8, scale.ladder // 12), moves="metropolis", inner_steps=10)
    weighted = casal.WeightedCASAL(TOP, burn_in=1)
    return {
        "final projection": Entry(casal.FinalProjection()),
        "projected": Entry(casal.Projected()),
        "CASAL, dual 1": Entry(casal.CASAL(10.0, dual_step=1.0)),
        **dict.fromkeys(TUNED),
        "SplitGibbs": Entry(gibbs, lambda model, scale: model.refined(scale.steps)),
        BEST: Entry(weighted, lambda model, scale: model.static(scale.ladder, STEP)),
    }


def run(scale: Scale, tell: Tell) -> tuple[list[ResultTable], dict[str, Any], dict[str, Any]]:
    """All methods on fresh truths, with the exact prior and with a learned one: tables, and scores of every truth."""
    tell("set-up C: references")
    trials = [Trial.of(seed, scale.draws) for seed in range(scale.truths)]
    others = [Trial.of(VALIDATION_SEED + seed, scale.draws) for seed in range(scale.tuning)]
    table, exact = _compare("exact scores", trials, others, scale, tell)
    tell("set-up C: a network of the regimes (trained now unless cached), the distribution that it stands for")
    learned = Learned.of(scale.learned)
    given, tuning = ([trial.under(learned) for trial in each] for each in (trials, others))
    second, found = _compare("learned prior", given, tuning, scale, tell)
    return [table, losses(learned), second], exact, found


def _compare(
    name: str, trials: Sequence[Trial], others: Sequence[Trial], scale: Scale, tell: Tell
) -> tuple[ResultTable, dict[str, Any]]:
    found: dict[str, dict[str, Array]] = {}
    settings: dict[str, str] = {}

    def loss(entry: Entry) -> float:
        scores = [trial.scores(entry, scale, VALIDATION_SEED) for trial in others]
        return sum(score["modes"] + score["sw1"] for score in scores)

    def scored(entry: Entry) -> dict[str, Array]:
        scores = [trial.scores(entry, scale, k) for k, trial in enumerate(trials)]
        return {key: np.array([score[key] for score in scores]) for key in scores[0]}

    for label, plain in methods(scale).items():
        tell(f"set-up C, {name}: {label}")
        if plain is None:
            chosen, _ = tune(TUNED[label][:: scale.stride], loss, scored)
            if chosen is not None:
                settings[label], found[label] = chosen[0].setting, chosen[1]
        else:
            with suppress(DivergedError):
                found[label] = scored(plain)
    data = {
        "scores": found,
        "exact": np.array([t.reconstruction(t.own.weights @ t.own.x) for t in trials]),
        "before": np.stack([t.posterior.weights.numpy() for t in trials]),
        "after": np.stack([t.own.modes.numpy() for t in trials]),
        "apart": np.array([float((t.own.modes - t.exact.modes).abs().sum()) / 2 for t in trials]),
    }
    return _table(name, data, settings, scale), data


def _table(name: str, data: Mapping[str, Any], settings: Mapping[str, str], scale: Scale) -> ResultTable:
    learned = any("modes_exact" in scores for scores in data["scores"].values())
    keys = ("modes", "sw1", "reconstruction", *(("modes_exact", "sw1_exact") if learned else ()))
    rows: list[dict[str, Any]] = []
    for label, scores in data["scores"].items():
        line: dict[str, Any] = {"method": label, "setting": settings.get(label, "")}
        for key in keys:
            line |= mean_entry(key, scores[key])
        line["violation"] = float(scores["violation"].max())
        line["ancestors"] = float(scores["ancestors"].mean())
        rows.append(line)
    right = {"modes": 0.0, "sw1": 0.0, **mean_entry("reconstruction", data["exact"])}
    if learned:
        right |= mean_entry("modes_exact", data["apart"])
    rows.append({"method": "distribution of the network" if learned else "exact distribution", **right})
    turned = int((data["after"].argmax(1) != data["before"].argmax(1)).sum())
    note = (
        "Mode error and SW1 are to the distribution on the set under the network: points of the exact distribution "
        "weighted by the network's density, which the probability-flow ODE gives. Two more columns are to the exact "
        "distribution. Guidance by moment matching; both ladders start from samples of the network weighted by the "
        "likelihood."
        if learned
        else "Exact scores."
    )
    return ResultTable.of(
        f"Set-up C, {name}: three regimes, one sensor, mass, energy and bounds known; {scale.truths} truths, {scale.n} "
        "chains",
        (
            "method | modes: mode error, .3f | sw1: SW1, .3f | reconstruction, .3f",
            *(
                ["modes_exact: mode error, exact distribution, .3f | sw1_exact: SW1, exact distribution, .3f"]
                if learned
                else []
            ),
            "ancestors, .0f | violation: largest violation, .0e | setting",
        ),
        rows,
        note=f"{note} The constraint overturns the likeliest regime of {turned} of {scale.truths} truths. Mode error: "
        "total variation of the regimes' weights; SW1 in units of the spread of the distribution; reconstruction: "
        f"relative error of the mean field. Tuned settings are chosen on {scale.tuning} other truths against their "
        "distribution.",
    )
