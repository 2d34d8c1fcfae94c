"""Runs of all methods on the same cases, their scores case by case, and tables.

The error of a case is |mean of the samples - truth| / |truth|, in decoded space; the truth has parts that no latent
reaches. The spread is compared with the skill in the latent, before the last projection:

    sqrt(mean over cases of (1 + 1/n) tr cov(x))  /  sqrt(mean over cases of |mean x - x0|^2),

one for samples of the posterior.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import casal
from casal import Constraint, SampleResult, sample
from casal.errors import CasalWarning
from casal_lab.experiment import Array, ResultTable, Tell
from casal_lab.pde.methods import (
    DPS_PROJECTED,
    FINAL,
    LABELS,
    MATCHED_MANY,
    MATCHED_PROJECTED,
    PENALTY,
    PROJECTED,
    UNCONSTRAINED,
    Effort,
    Entry,
    Option,
    as_printed,
    entries,
)
from casal_lab.pde.models import Model
from casal_lab.pde.task import DRAWS, Cases, Measure, Task, Weight, krige, least_squares, stream
from casal_lab.study import VALIDATION_SEED, mean_and_error, mean_entry, require, tune, with_error, with_peak

KRIGING, KRIGING_PROJECTED = "kriging", "kriging + projection"
LEAST_SQUARES, PIXELS = "least squares + projection", "kriging of the pixels"
DRAWS_PROJECTED = "exact draws + projection"
REFERENCES = (LEAST_SQUARES, KRIGING, KRIGING_PROJECTED, DRAWS_PROJECTED, PIXELS)
"""Answers in closed form. Exact draws are those of the Gaussian given all rows, as many as a method has samples: what
a perfect sampler of the Gaussian gives."""

RIDGE = 1e-8
"""Of kriging on pixels, in units of their variance."""


class Scale(NamedTuple):
    """How much is run."""

    cases: int  # test cases
    samples: int  # of each
    effort: Effort
    tuning_cases: int  # validation cases
    tuning_samples: int  # of each
    stride: int  # every how manyth setting is tried
    many: int = 0  # samples of one more run of covariance matching, whose mean is nearer to that of the distribution


@dataclass(frozen=True)
class Scores:
    """A method on all cases.

    Attributes:
        error: Relative error of the mean, case by case.
        single: Relative error of one sample.
        violation: Largest violation of a sample, case by case.
        calibration: Spread / skill in the latent; nan without samples.
        seconds: Of the processor, for sampling, a chain.
        evaluations: Of the model, a chain.
        passes: With backward passes counted as evaluations.
        setting: The best one.
        mean, spread, one: Mean, standard deviation and first sample of the first case, for pictures.
        others: Errors of the mean of other fields, case by case, by name.
        memory: By how many megabytes it grew at most while all chains were run; None if not known.
    """

    error: Array
    single: Array
    violation: Array
    calibration: float
    seconds: float
    evaluations: float
    passes: float
    setting: str
    mean: Array
    spread: Array
    one: Array
    others: Mapping[str, Array] = field(default_factory=dict)
    memory: float | None = None


def relative(fields: Tensor, truth: Tensor) -> Tensor:
    """|u - truth| / |truth|, (n,)."""
    return (fields - truth).flatten(1).norm(dim=1) / truth.flatten(1).norm(dim=1)


def compare(
    task: Task, model: Model, scale: Scale, seed: int, labels: Sequence[str] | None, tell: Tell
) -> dict[str, Scores]:
    """Every method of a model on the cases of a seed, tuned on other cases; references are added by ``references``."""
    cases = task.cases(scale.cases, seed)
    others = task.cases(scale.tuning_cases, VALIDATION_SEED + seed)
    found: dict[str, Scores] = {}
    for entry in entries(task, model, guide(task, model, scale, seed)).values():
        wanted = {entry.label, entry.before}
        if labels is None or wanted & set(labels):
            tell(f"{task.name}, {model.label}: {entry.label}")
            found |= _best(task, model, entry, cases, others, scale)
            if scale.many and entry.label == MATCHED_PROJECTED:
                option = entry.options[0]._replace(setting=f"{scale.many} samples")
                more = run(task, model, entry, option, cases, scale.many, scale.effort)
                found[MATCHED_MANY] = more[MATCHED_PROJECTED]
    return {label: found[label] for label in (*LABELS, MATCHED_MANY) if label in found}


def guide(task: Task, model: Model, scale: Scale, seed: int) -> Weight | None:
    """The weight of what is seen that all methods of a guided task share; None on others.

    The best, on validation cases, for a run with one projection at its end, on the noise levels of the paper.
    """
    if not task.guided:
        return None
    others = task.cases(scale.tuning_cases, VALIDATION_SEED + seed)

    def loss(weight: Weight) -> float:
        entry = entries(task, model, weight)[FINAL]
        found = run(task, model, entry, entry.options[0], others, scale.tuning_samples, scale.effort)[FINAL]
        value = float(found.error.mean())
        return value if math.isfinite(value) else math.inf

    return require(tune(task.weights[:: max(1, scale.stride // 2)], loss, lambda weight: None))[0]


def _best(task: Task, model: Model, entry: Entry, cases: Cases, others: Cases, scale: Scale) -> dict[str, Scores]:
    """The method with its best setting, and the same chains before their projection; empty if all are refused.

    A penalty is tuned before its projection: that is the paper's baseline, and after it runs that diverge look sane.
    """
    options = entry.options[:: scale.stride] if len(entry.options) > 1 else entry.options
    tuned = PENALTY if entry.before == PENALTY else entry.label

    def loss(option: Option) -> float:
        found = run(task, model, entry, option, others, scale.tuning_samples, scale.effort)[tuned]
        value = float(found.error.mean())
        return value if math.isfinite(value) else math.inf

    def fresh(option: Option) -> dict[str, Scores]:
        return run(task, model, entry, option, cases, scale.samples, scale.effort)

    best, _ = tune(options, loss if len(options) > 1 else lambda option: 0.0, fresh)
    return {} if best is None else best[1]


def run(
    task: Task, model: Model, entry: Entry, option: Option, cases: Cases, n: int, effort: Effort, seed: int = 0
) -> dict[str, Scores]:
    """n samples of every case with one setting, scored; and before the last projection, if that has a label."""
    parts = [cases.take(slice(k, k + 1)) for k in range(len(cases))]
    parts = parts if task.one_by_one else [cases]
    whole = task.constraint(cases.repeated(n))

    def sampled() -> tuple[list[SampleResult], Tensor, float]:
        """The runs, their samples, and seconds of the processor."""
        began, results = time.process_time(), []
        for part in parts:
            chains = part.repeated(n)
            results.append(
                sample(
                    option.target(task, model, chains, effort),
                    task.latents(chains) if entry.inside else task.constraint(chains),
                    option.method,
                    len(chains),
                    decoder=None if entry.inside else task.prior.decoder,
                    seed=seed,
                    check=False,
                    run=casal.Run(budget=task.budget),
                )
            )
        samples = torch.cat([result.samples.double() for result in results])
        samples = whole.project(task.prior.decode(samples)) if entry.inside else samples
        return results, samples, time.process_time() - began

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CasalWarning)
        (results, samples, seconds), memory = with_peak(sampled)
    latents = torch.cat([result.state.x.detach().double() for result in results])
    made = _scores(task, entry, option, cases, latents, results, seconds, memory, n)
    found = {entry.label: made(samples, whole)}
    if entry.before is not None:
        found[entry.before] = made(task.prior.decode(latents), whole)
    return found


def _scores(
    task: Task,
    entry: Entry,
    option: Option,
    cases: Cases,
    latents: Tensor,
    results: Sequence[SampleResult],
    seconds: float,
    memory: float | None,
    n: int,
) -> Callable[[Tensor, Constraint], Scores]:
    x = latents.reshape(len(cases), n, -1)
    skill = (x.mean(1) - cases.latents).square().sum(1).mean()
    spread = x.var(1).sum(1).mean() * (1 + 1 / n) if n > 1 else x.new_full((), math.nan)
    evaluations = float(np.mean([result.cost.score_evaluations for result in results]))
    passes, measures = evaluations * (1 + entry.passes), task.measures

    def made(samples: Tensor, constraint: Constraint) -> Scores:
        z = samples.reshape(len(cases), n, *cases.fields.shape[1:])
        every = cases.fields.repeat_interleave(n, 0)
        first, *more = [_errors(measure, samples.reshape(every.shape), cases.fields) for measure in measures.values()]
        worst = constraint.violation(samples).reshape(len(cases), n).amax(1)
        return Scores(
            error=first[0].numpy(),
            single=first[1].numpy(),
            violation=worst.numpy(),
            calibration=float((spread / skill).sqrt()),
            seconds=seconds / len(latents),
            evaluations=evaluations,
            passes=passes,
            setting=option.setting,
            mean=z[0].mean(0).numpy(),
            spread=z[0].std(0).numpy(),
            one=z[0, 0].numpy(),
            others={name: errors[0].numpy() for name, errors in zip(list(measures)[1:], more, strict=True)},
            memory=memory,
        )

    return made


def _errors(measure: Measure, samples: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """Errors of the mean of a field over the samples of a case, and of one sample, (cases,) both."""
    fields, exact = measure(samples), measure(truth)
    n = len(fields) // len(exact)
    mean = fields.reshape(len(exact), n, *exact.shape[1:]).mean(1)
    single = relative(fields, exact.repeat_interleave(n, 0)).reshape(len(exact), n).mean(1)
    return relative(mean, exact), single


# ------------------------------------------------------------------ answers in closed form


def references(task: Task, scale: Scale, seed: int) -> dict[str, Scores]:
    """Least squares, kriging, the same projected, exact draws projected, kriging of the pixels, on the same cases."""
    cases = task.cases(scale.cases, seed)
    constraint, prior = task.constraint(cases), task.prior
    known = cases.latents @ task.known.T
    exact = krige(prior.gaussian, task.rows, task.given(cases))
    skill = float((exact.mean - cases.latents).square().sum(1).mean())
    fields = {KRIGING: prior.decode(exact.mean)}
    if task.pixels:
        fields[PIXELS] = constraint.project(pixel_kriging(task, cases))
    fields[KRIGING_PROJECTED] = constraint.project(fields[KRIGING])
    draws, many = exact.draw(scale.samples, stream(seed, DRAWS)), task.constraint(cases.repeated(scale.samples))
    fields[DRAWS_PROJECTED] = many.project(prior.decode(draws))
    plain = least_squares(task.rows, cases.values, known)
    if plain is not None:
        fields[LEAST_SQUARES] = constraint.project(prior.decode(plain))
    found = {}
    for label in (label for label in REFERENCES if label in fields):
        u = fields[label]
        n = len(u) // len(cases)
        first = u[:n]  # the first case
        calibration = math.sqrt(max(0.0, float(exact.covariance.trace())) / skill) if label == KRIGING else math.nan
        (error, single), *more = [_errors(measure, u, cases.fields) for measure in task.measures.values()]
        sets = many if label == DRAWS_PROJECTED else constraint
        found[label] = Scores(
            error=error.numpy(),
            single=single.numpy() if n > 1 else np.full(len(cases), math.nan),
            violation=sets.violation(u).reshape(len(cases), n).amax(1).numpy(),
            calibration=calibration,
            seconds=0.0,
            evaluations=0.0,
            passes=0.0,
            setting="",
            mean=first.mean(0).numpy(),
            spread=(first.std(0) if n > 1 else torch.zeros_like(first[0])).numpy(),
            one=first[0].numpy(),
            others={name: errors[0].numpy() for name, errors in zip(list(task.measures)[1:], more, strict=True)},
        )
    return found


def pixel_kriging(task: Task, cases: Cases) -> Tensor:
    """Kriging with the covariance of whole fields, which knows what the latent leaves out, (n, *event).

    E[u | u_o = y] = m + U^T U_o (U_o^T U_o + ridge)^-1 (y - m_o) with centred training fields U (k, N); what is known
    counts as seen.
    """
    left = task.prior.residuals.flatten(1).double()
    U = task.prior.decode(task.prior.latents[: len(left)]).flatten(1) + left
    exact = task.prior.latents[: len(left)] @ task.known.T
    mean, level = U.mean(0), exact.mean(0)
    U, root = (U - mean) / math.sqrt(len(U)), math.sqrt(len(U))
    seen = torch.cat([(exact - level) / root, U[:, task.index]], 1)
    C = seen.T @ seen
    noise = torch.cat([torch.zeros_like(level), torch.full_like(task.rows.mean, task.noise**2)])
    gap = torch.cat([cases.latents @ task.known.T - level, cases.values - mean[task.index]], 1)
    weights = torch.linalg.solve(C + torch.diag(RIDGE * C.diagonal().mean() + noise), gap.T)
    return (mean + (seen @ weights).T @ U).reshape(cases.fields.shape)


# ------------------------------------------------------------------ tables


def differences(one: Scores, other: Scores) -> Array:
    """Error of one - other, on the cases that both have run."""
    few = min(len(one.error), len(other.error))
    return one.error[:few] - other.error[:few]


def paired(one: Scores, other: Scores) -> tuple[float, float, float]:
    """Mean difference of the errors over cases, its standard error, and the share of cases in which one is better."""
    difference = differences(one, other)
    return (*mean_and_error(difference), float((difference < 0).mean()))


def table(title: str, found: Mapping[str, Scores], note: str) -> ResultTable:
    """A line per method."""
    rows = []
    base, guided = found.get(UNCONSTRAINED), found.get(DPS_PROJECTED)
    for label, scores in found.items():
        row: dict[str, Any] = {"method": label, **mean_entry("error", 100 * scores.error), "setting": scores.setting}
        for name, errors in scores.others.items():
            row |= mean_entry(name, 100 * errors)
        row["single"] = 100 * float(scores.single.mean()) if math.isfinite(scores.single.mean()) else None
        row["violation"] = 100 * float(scores.violation.max())
        row["calibration"] = scores.calibration if math.isfinite(scores.calibration) else None
        if guided is not None and label != DPS_PROJECTED:
            mean, error, wins = paired(scores, guided)
            row |= {**with_error("gap", 100 * mean, 100 * error), "wins": wins}
        if scores.evaluations:
            row |= {"evaluations": scores.evaluations, "passes": scores.passes}
            row["time"] = scores.seconds / base.seconds if base is not None else None
            row["memory"] = scores.memory
        rows.append(row)
    names = next(iter(found.values())).others
    also = "".join(f"{name}: error of {name} (%), .3g | " for name in names)
    return ResultTable.of(
        title,
        f"method | error: error of the mean (%), .2f | {also}"
        "gap: minus DPS + projection, +.2f | wins: better in, .0% | "
        "single: one sample (%), .2f | violation: largest violation (%), .0e | calibration: spread / skill, .2f | "
        "evaluations, .0f | passes: with backward passes, .0f | time: time / unconstrained, .1f | "
        "memory: peak memory (MB), .0f | setting",
        rows,
        note=note,
    )


def records(found: Mapping[str, Scores]) -> dict[str, Any]:
    """Error, violation and paired difference (to DPS + projection) of every case, for the JSON file."""
    guided = found.get(DPS_PROJECTED)
    return {
        label: {
            "error": scores.error.tolist(),
            "violation": scores.violation.tolist(),
            **{f"error of {name}": errors.tolist() for name, errors in scores.others.items()},
            "minus_dps_projection": None if guided is None else differences(scores, guided).tolist(),
        }
        for label, scores in found.items()
    }


def by_evaluations(
    task: Task, model: Model, scale: Scale, seed: int, tuned: Mapping[str, str], steps: Sequence[int], tell: Tell
) -> dict[str, list[tuple[float, float]]]:
    """(evaluations with backward passes, mean error) at several numbers of steps, of methods with these settings."""
    cases, curves = task.cases(scale.cases, seed), dict[str, list[tuple[float, float]]]()
    every = entries(task, model, guide(task, model, scale, seed))
    for label, setting in tuned.items():
        entry = every[label]
        option = next(option for option in entry.options if option.setting == setting)
        curves[label] = []
        for count in steps:
            tell(f"{task.name}, {model.label}: {label}, {count} steps")
            scores = run(task, model, entry, option, cases, scale.samples, Effort(count, count))[label]
            curves[label].append((scores.passes, float(scores.error.mean())))
    return curves


ROUNDS = 3
"""Rounds of the comparison of times, in each of which the methods take turns."""


def constant_rho(
    task: Task, model: Model, timed: Model, scale: Scale, seed: int, steps: Sequence[int], tell: Tell
) -> tuple[ResultTable, dict[str, float]]:
    """The paper's methods as printed, rho constant, at several numbers of steps; and time a step over projection's.

    Every one of them projects once a step from the first step on (the explicit and the repaired update, too), so the
    times compare a step with a step. The last strict projection is in all of them. Errors are those of ``model``, times
    also those of ``timed``, the network, as in the paper.
    """
    cases = task.cases(scale.cases, seed)
    every = as_printed(task, guide(task, model, scale, seed))
    rows = {label: dict[str, Any](method=label) for label in every}

    def taken(label: str, by: Model, count: int) -> Scores:
        tell(f"{task.name}, {by.label}: {label}, constant rho, {count} steps")
        return run(task, by, every[label], every[label].options[0], cases, scale.samples, Effort(count, 0))[label]

    for count, (label, row) in product(steps, rows.items()):
        row |= mean_entry(str(count), 100 * taken(label, model, count).error)
    ratios = dict[str, float]()
    for by in (model, timed):
        spent = [{label: taken(label, by, steps[0]).seconds for label in every} for _ in range(ROUNDS)]
        ratios = {label: float(np.median([each[label] / each[PROJECTED] for each in spent])) for label in every}
        for label, row in rows.items():
            row[f"ratio {by.label}"] = ratios[label]
    return ResultTable.of(
        f"{task.name}, {model.label}, constant rho as in the paper: {scale.cases} cases x {scale.samples} samples",
        (
            "method",
            *(f"{count}: error at {count} steps (%), .2f" for count in steps),
            *(f"ratio {by.label}: time a step / projected, {by.label}, .2f" for by in (model, timed)),
        ),
        list(rows.values()),
        note="DDPM. rho is constant, with kappa = rho times the largest step size = 1, the limit of explicit coupling; "
        f"eta = 1. Nothing is tuned here. Times are those of the processor at {steps[0]} steps, the median of {ROUNDS} "
        "rounds in which the methods take turns; each projects once a step.",
    ), ratios
