"""What is compared: every method with the settings that it is tuned over.

All methods get the same set. Each tuned one has as many settings, and half of them run on the noise levels of the
paper (DDPM), half on levels that are dense near the data (EDM, ancestral). kappa is rho times the step size that
multiplies it (``casal.constant_gain``), in units in which the decoder has norm one; explicit coupling is stable up to
kappa = 1. A setting at an end of its list that could be passed says so in its name.

Where a task leaves what is seen out of the set (``Task.guided``), it enters by diffusion posterior sampling in every
method, with one weight for all of them, the best for a run with one projection at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from casal import (
    CASAL,
    FinalProjection,
    Penalty,
    Projected,
    Table,
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
SETTINGS = 12
"""Settings that every tuned method has."""

BURN_INS = (0.0, 0.15, 0.3, 0.45, 0.6, 0.8)
"""Shares of a run after which projected methods begin."""

STABLE = 1.0
"""Largest kappa of explicit coupling."""

ROUNDING = 1e-5
"""By how much a constant rho stays below the limit: step sizes of a network are in single precision."""

WHOLE = 1e5
"""kappa of implicit coupling at which a step goes the whole way to z, but for the share 1e-5: no larger one differs."""

LARGEST_DUAL = 1.6
"""Largest eta: ADMM's dual step converges below (1 + sqrt 5) / 2 on convex problems."""

UNCONSTRAINED, FINAL = "unconstrained", "final projection"
DPS, DPS_PROJECTED = "DPS", "DPS + projection"
MOMENT, MOMENT_PROJECTED = "moment matching", "moment matching + projection"
MATCHED, MATCHED_PROJECTED = "covariance matching", "covariance matching + projection"
MATCHED_MANY = "covariance matching + projection, more samples"
PENALTY, PENALTY_PROJECTED = "penalty", "penalty + projection"
PROJECTED, INNER_PROJECTED = "projected", f"projected, {INNER} inner"
EXACT_PROJECTED = "projected, exact"
PRINTED, RELEASED, REPAIRED = "CASAL, printed", "CASAL, released update", "CASAL"

LABELS = (
    UNCONSTRAINED, FINAL, PENALTY, PENALTY_PROJECTED, PROJECTED, INNER_PROJECTED, EXACT_PROJECTED, PRINTED, RELEASED,
    REPAIRED, DPS, DPS_PROJECTED, MATCHED, MATCHED_PROJECTED, MOMENT, MOMENT_PROJECTED,
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
        inside: Whether the set is that of the latents, and samples are made strict after decoding.
    """

    label: str
    options: Sequence[Option]
    before: str | None = None
    passes: int = 0
    inside: bool = False


@dataclass(frozen=True)
class LargestGain:
    """A constant rho, as in the paper: kappa at the row of the largest step, less at the others."""

    kappa: float

    def __call__(self, table: Table) -> Tensor:
        return torch.full_like(table.b, self.kappa / float(table.b.max()))


def ends(values: Sequence[float], *limits: float) -> list[str]:
    """What is added to the name of each value: those at an end that is no natural limit say that they are one."""
    outer = {k for k in (0, len(values) - 1) if values[k] not in limits}
    return [", an end of its list" if k in outer else "" for k in range(len(values))]


def entries(task: Task, model: Model, guide: Weight | None = None) -> dict[str, Entry]:
    """Every method that the task allows, by label; ``guide`` is the weight of what is seen on a guided task."""
    unit = task.prior.decoder.norm() ** -2  # kappa = 1 in units in which |A| = 1
    free = {family: _free(family, guide) for family in FAMILIES}

    def both(*settings: tuple[str, AnyMethod]) -> list[Option]:
        return [Option(f"{family}, {name}", free[family], method) for family in FAMILIES for name, method in settings]

    def gains(make: Callable[[float], AnyMethod], kappas: Sequence[float], *limits: float) -> list[Option]:
        names = zip(kappas, ends(kappas, *limits), strict=True)
        return both(*((f"kappa {kappa:g}{end}", make(kappa * unit)) for kappa, end in names))

    lists = [[weight for weight in task.weights if weight.power == power] for power in (0, 1)]
    guided = [
        Option(f"{family}, {weight}{end}", _dps(family, weight, True), FinalProjection())
        for weights in lists
        for weight, end in zip(weights, ends([weight.size for weight in weights]), strict=True)
        for family in FAMILIES
    ]

    def projected(repeats: int = 1) -> list[Option]:
        starts = zip(BURN_INS, ends(BURN_INS, 0.0), strict=True)
        return both(*((f"from {burn:.0%} on{end}", Projected(burn_in=burn, repeats=repeats)) for burn, end in starts))

    denoised = CASAL(inverse_variance(10.0 * unit), couple="denoised")
    etas = (0.3, 1.0, LARGEST_DUAL)
    released = [
        (f"kappa {kappa:g}, eta {eta:g}{end}", CASAL.released(constant_gain(kappa * unit), eta))
        for kappa in (0.5, STABLE)
        for eta, end in zip(etas, ends(etas, LARGEST_DUAL), strict=True)
    ]
    penalties = (0.03, 0.1, 0.3, 0.6, 0.9, 1.5)
    found = [
        Entry(FINAL, [Option("", free["DDPM"], FinalProjection(Unconstrained()))], UNCONSTRAINED),
        Entry(
            PENALTY_PROJECTED,
            gains(lambda kappa: FinalProjection(Penalty(constant_gain(kappa), of="distance")), penalties),
            PENALTY,
        ),
        Entry(PROJECTED, projected()),
        Entry(
            PRINTED,
            gains(lambda kappa: CASAL.algorithm2(constant_gain(kappa)), (0.1, 0.3, 0.6, 0.8, 0.9, STABLE), STABLE),
        ),
        Entry(RELEASED, both(*released)),
        Entry(
            REPAIRED,
            [
                *gains(lambda kappa: CASAL(constant_gain(kappa)), (1.0, 10.0, 100.0, 1e3, WHOLE), WHOLE),
                *both(("denoised, 10 / sigma^2", denoised)),
            ],
        ),
        Entry(DPS_PROJECTED, guided, DPS, passes=1),
        Entry(MATCHED_PROJECTED, [Option("", covariance, FinalProjection())], MATCHED),
        Entry(MOMENT_PROJECTED, [Option("", moment, FinalProjection())], MOMENT, passes=model.iterations + 1),
    ]
    if task.guided:  # every evaluation of the others has the backward pass of the guidance, too
        extra = {DPS_PROJECTED, MATCHED_PROJECTED, MOMENT_PROJECTED}
        return {entry.label: entry if entry.label in extra else replace(entry, passes=1) for entry in found}
    if task.budget is None:  # projections in closed form
        found.insert(3, Entry(INNER_PROJECTED, projected(INNER)))
    else:  # the last projection takes longer than the run, so the run is timed by itself
        found[0] = Entry(FINAL, found[0].options)
        found.insert(0, Entry(UNCONSTRAINED, [Option("", free["DDPM"], Unconstrained())]))
    if task.inside is not None:
        found.insert(4, Entry(EXACT_PROJECTED, projected(), inside=True))
    return {entry.label: entry for entry in found}


def as_printed(task: Task, guide: Weight | None) -> dict[str, Entry]:
    """The paper's methods with a constant rho, kappa at most 1, and one projection a step from the first one on.

    The penalty has the same weight; its gradient needs a projection, too.
    """
    unit, free = task.prior.decoder.norm() ** -2, _free("DDPM", guide)
    rho = LargestGain((1.0 - ROUNDING) * STABLE * unit)
    methods: dict[str, AnyMethod] = {
        PENALTY: Penalty(rho, of="distance"),
        PROJECTED: Projected(),
        PRINTED: CASAL.algorithm2(rho),
        RELEASED: CASAL.released(rho, 1.0),
        REPAIRED: CASAL(rho),
    }
    return {label: Entry(label, [Option("constant rho", free, method)]) for label, method in methods.items()}


def moment(task: Task, model: Model, cases: Cases, effort: Effort) -> Target:
    """The probability-flow ODE given what is seen and known, by moment matching with the truncation covariance."""
    return _matched(task, model, cases, model.flow(effort.levels))


def covariance(task: Task, model: Model, cases: Cases, effort: Effort) -> Target:
    """The same with the covariance of the Gaussian in place of the model's derivative: no backward passes."""
    return _matched(task, model, cases, model.flow(effort.levels), way="gaussian")


def _matched(task: Task, model: Model, cases: Cases, plain: Target, way: str = "moment") -> Target:
    """The model given all rows, those that are known exactly among them."""
    rows, values = task.rows, task.given(cases)
    values = values[0] if len(values) == 1 else values  # one case, for any number of chains
    return posterior(
        plain,
        rows.matrix,
        values,
        rows.noise,
        way=way,
        iterations=model.iterations,
        covariance=task.prior.covariance,
    )


def _free(family: str, guide: Weight | None) -> Build:
    """Ancestral sampling; guided by what is seen where there is a weight for that."""

    def target(task: Task, model: Model, cases: Cases, effort: Effort) -> Target:
        return model.ancestral(effort.steps) if family == "DDPM" else model.flow(effort.steps, 1.0)

    return target if guide is None else _dps(family, guide, False)


def _dps(family: str, weight: Weight, known: bool) -> Build:
    """Guidance along the gradient of |y - H D|; with ``known`` the rows that hold exactly are among them."""

    def target(task: Task, model: Model, cases: Cases, effort: Effort) -> Target:
        plain = _free(family, None)(task, model, cases, effort)
        rows, values = task.rows.points, cases.values
        if known:
            rows = torch.cat([task.known, rows])
            values = torch.cat([cases.latents @ task.known.T, values], 1)
        return posterior(plain, rows, values, 1.0, way="dps", weight=weight.at)  # its noise only scales the weight

    return target
