"""What is compared: every method with the settings that it is tuned over.

All methods get the same set. Each tuned one has as many settings, and half of them run on the noise levels of the
paper (DDPM), half on levels that are dense near the data (EDM, ancestral). kappa is the pull of a step towards the set,
in units in which the decoder has norm one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from casal import (
    CASAL,
    FinalProjection,
    LookAhead,
    Penalty,
    Projected,
    Target,
    Unconstrained,
    constant_gain,
    inverse_variance,
    posterior,
)
from casal_lab.experiment import AnyMethod
from casal_lab.pde.models import Model
from casal_lab.pde.task import Cases, Task, Weight

INNER = 8
"""Projections after a step of the second projected method."""

FAMILIES = ("DDPM", "EDM")
SETTINGS = 8
"""Settings that every tuned method has."""

BURN_INS = (0, 0.3, 0.6, 0.8)
"""Shares of a run after which projected methods begin."""

UNCONSTRAINED, FINAL = "unconstrained", "final projection"
DPS, DPS_PROJECTED = "DPS", "DPS + projection"
MOMENT, MOMENT_PROJECTED = "moment matching", "moment matching + projection"
MATCHED, MATCHED_PROJECTED = "covariance matching", "covariance matching + projection"
MATCHED_MANY = "covariance matching + projection, more samples"
PENALTY, PENALTY_PROJECTED = "penalty", "penalty + projection"
PROJECTED, INNER_PROJECTED = "projected", f"projected, {INNER} inner"
EXACT_PROJECTED = "projected, exact"
PRINTED, RELEASED, REPAIRED = "CASAL, printed", "CASAL, released update", "CASAL"
LOOK_AHEAD = "LookAhead"

LABELS = (
    UNCONSTRAINED, FINAL, PENALTY, PENALTY_PROJECTED, PROJECTED, INNER_PROJECTED, EXACT_PROJECTED, PRINTED, RELEASED,
    REPAIRED, DPS, DPS_PROJECTED, MATCHED, MATCHED_PROJECTED, MOMENT, MOMENT_PROJECTED, LOOK_AHEAD,
)  # fmt: skip
"""Methods with a model, in the order of the tables."""


class Effort(NamedTuple):
    """Steps of ancestral samplers, noise levels of moment matching."""

    steps: int
    levels: int


Build = Callable[[Task, Model, Cases, Effort], Target]
"""The target of these chains."""


class Option(NamedTuple):
    """A setting: its name, the model given what is seen, and what is run on it."""

    setting: str
    target: Build
    method: AnyMethod


@dataclass(frozen=True)
class Entry:
    """A method.

    Attributes:
        label: For tables.
        options: Settings; the best on validation cases is reported.
        before: Label of the same chains before their last projection; None if they have none.
        passes: Backward passes through the model, an evaluation.
        resamples: Whether its chains meet, so that cases must be run one by one.
        inside: Whether the set is that of the latents, and samples are made strict after decoding.
    """

    label: str
    options: Sequence[Option]
    before: str | None = None
    passes: int = 0
    resamples: bool = False
    inside: bool = False


def entries(task: Task, model: Model) -> dict[str, Entry]:
    """Every method that the task allows, by label."""
    unit = task.prior.decoder.norm() ** -2  # kappa = 1 in units in which |A| = 1

    def both(*settings: tuple[str, AnyMethod]) -> list[Option]:
        return [Option(f"{family}, {name}", FREE[family], method) for family in FAMILIES for name, method in settings]

    def gains(make: Callable[[float], AnyMethod], *kappas: float) -> list[Option]:
        return both(*((f"kappa {kappa:g}", make(kappa * unit)) for kappa in kappas))

    guided = [
        Option(f"{family}, {weight}", _dps(family, weight), FinalProjection())
        for family in FAMILIES
        for weight in task.weights
    ]

    def projected(repeats: int = 1) -> list[Option]:
        return both(*((f"from {burn:.0%} on", Projected(burn_in=burn, repeats=repeats)) for burn in BURN_INS))

    denoised = CASAL(inverse_variance(10.0 * unit), couple="denoised")
    found = [
        Entry(FINAL, [Option("", FREE["DDPM"], FinalProjection(Unconstrained()))], UNCONSTRAINED),
        Entry(
            PENALTY_PROJECTED,
            gains(lambda kappa: FinalProjection(Penalty(constant_gain(kappa), of="distance")), 0.9, 0.1, 0.3, 1.5),
            PENALTY,
        ),
        Entry(PROJECTED, projected()),
        Entry(PRINTED, gains(lambda kappa: CASAL.algorithm2(constant_gain(kappa)), 1.0, 0.1, 0.6, 0.3)),
        Entry(
            RELEASED,
            both(
                *(
                    (f"kappa {kappa:g}, eta {eta:g}", CASAL.released(constant_gain(kappa * unit), eta))
                    for kappa in (1.0, 0.3)
                    for eta in (1.0, 0.01)
                )
            ),
        ),
        Entry(
            REPAIRED,
            [
                *gains(lambda kappa: CASAL(constant_gain(kappa)), 10.0, 100.0, 1000.0),
                *both(("denoised, 10 / sigma^2", denoised)),
            ],
        ),
        Entry(DPS_PROJECTED, guided, DPS, passes=1),
        Entry(MATCHED_PROJECTED, [Option("", covariance, FinalProjection())], MATCHED),
        Entry(MOMENT_PROJECTED, [Option("", moment, FinalProjection())], MOMENT, passes=model.iterations + 1),
    ]
    if task.soft:  # what is seen enters everywhere by moment matching, and few rows are left to the methods
        ahead = Option("", seen_moment, LookAhead(levels=30, moves=1))
        few = {PENALTY_PROJECTED, PRINTED, RELEASED}
        return {
            **{entry.label: entry for entry in found if entry.label not in few},
            LOOK_AHEAD: Entry(LOOK_AHEAD, [ahead], None, model.iterations + 1, True),
        }
    if task.budget is None:  # projections in closed form
        found.insert(3, Entry(INNER_PROJECTED, projected(INNER)))
    else:  # the last projection takes longer than the run, so the run is timed by itself
        found[0] = Entry(FINAL, found[0].options)
        found.insert(0, Entry(UNCONSTRAINED, [Option("", FREE["DDPM"], Unconstrained())]))
    if task.inside is not None:
        found.insert(4, Entry(EXACT_PROJECTED, projected(), inside=True))
    return {entry.label: entry for entry in found}


def moment(task: Task, model: Model, cases: Cases, effort: Effort) -> Target:
    """The probability-flow ODE given what is seen and known, by moment matching with the truncation covariance."""
    return _matched(task, model, cases, model.flow(effort.levels), 0)


def covariance(task: Task, model: Model, cases: Cases, effort: Effort) -> Target:
    """The same with the covariance of the Gaussian in place of the model's derivative: no backward passes."""
    return _matched(task, model, cases, model.flow(effort.levels), 0, way="gaussian")


def seen_moment(task: Task, model: Model, cases: Cases, effort: Effort) -> Target:
    """The same given only what is seen."""
    return _matched(task, model, cases, model.flow(effort.levels), len(task.known))


def _matched(task: Task, model: Model, cases: Cases, plain: Target, first: int, way: str = "moment") -> Target:
    """Moment matching on the rows from the ``first`` one on; those before are known exactly."""
    rows, values = task.rows, task.given(cases)
    values = values[0] if len(values) == 1 else values  # one case, for any number of chains
    return posterior(
        plain,
        rows.matrix[first:],
        values[..., first:],
        rows.noise[first:],
        way=way,
        iterations=model.iterations,
        covariance=task.prior.covariance,
    )


def _free(family: str) -> Build:
    def target(task: Task, model: Model, cases: Cases, effort: Effort) -> Target:
        plain = model.ancestral(effort.steps) if family == "DDPM" else model.flow(effort.steps, 1.0)
        return _matched(task, model, cases, plain, len(task.known)) if task.soft else plain

    return target


FREE: Mapping[str, Build] = {family: _free(family) for family in FAMILIES}
"""Ancestral sampling. Values that the set leaves out enter by moment matching, the same for all methods."""


def _dps(family: str, weight: Weight) -> Build:
    """Guidance along the gradient of |y - H D|, the known rows among them."""

    def target(task: Task, model: Model, cases: Cases, effort: Effort) -> Target:
        plain = model.ancestral(effort.steps) if family == "DDPM" else model.flow(effort.steps, 1.0)
        rows = torch.cat([task.known, task.rows.points])
        values = torch.cat([cases.latents @ task.known.T, cases.values], 1)
        return posterior(plain, rows, values, 1.0, way="dps", weight=weight.at)  # its noise only scales the weight

    return target
