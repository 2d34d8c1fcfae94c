"""Many dimensions: Matheron beside others on mixtures and fields with exact answers.

Every instance is drawn from its seed (``casal_lab.problems.many_dimensions``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from casal import FinalProjection, Matheron, SampleResult, SplitGibbs, posterior
from casal_lab.conditional.common import (
    HEALTH,
    SIGMA,
    UNTUNED,
    at_least,
    at_most,
    between,
    dots,
    equally_weighted,
    figures,
)
from casal_lab.experiment import AnyMethod, Claim, Outcome, ResultTable, Tell
from casal_lab.problems.many_dimensions import (
    Problem,
    box_on_four,
    four_equations,
    four_equations_and_norm,
    half_space,
    mass_energy,
    nonlinear_observation,
    nonnegative,
    nonnegative_field,
    nonnegative_modes,
    norm,
    observed_and_norm,
)
from casal_lab.study import runs
from casal_lab.twisted import Twisted

FIRST = 100
"""Seed of the first instance. The methods were designed on others."""

EDGE = 1e-9
"""A value this close to zero lies on its bound."""


class Scale(NamedTuple):
    """Dimensions and chains, at most; instances of every problem, and for the ladders; levels and moves in them."""

    d: int
    n: int
    instances: int
    few: int
    ladder: int
    inner_steps: int
    twisted: int


SHORT = 4
"""Instances of problems on which a run takes long."""

FULL = Scale(1024, 1000, 10, 3, 40, 20, 30)
QUICK = Scale(16, 32, 1, 1, 2, 2, 1)


class Bar(NamedTuple):
    """What our method must reach, over all instances; None where nothing is asked."""

    z: float | None = None  # mean, at most
    tv: float | None = None  # mean, at most
    worst: float | None = None  # TV of the worst instance, at most
    variance: tuple[float, float] | None = None  # ratio, from and to
    ancestors: float | None = None  # mean, at least
    evaluations: float | None = None  # at most
    edge: float | None = None  # share of values on a bound, at most
    violation: float | None = None  # largest, at most
    error: float | None = None  # of the mean to the truth, over that of the exact mean, at most
    skill: tuple[float, float] | None = None  # spread of the samples / error of the mean, from and to


INSIDE = Bar(z=1.3, variance=(0.95, 1.05), evaluations=1000, edge=0.0, violation=1e-12)
"""With bounds on all coordinates."""


@dataclass(frozen=True)
class Case:
    """A problem of the comparison: how an instance is made, what is asked of our method, and the size of a full run."""

    make: Callable[[int, int], Problem]  # of the dimension and a seed
    bar: Bar
    d: int = 256
    n: int = 256
    bounds: bool = False  # on all coordinates
    slow: bool = False  # The reference takes half a second or more; not in a quick run.
    few: int | None = None  # Instances, if a run takes long; then without the ladders.
    many: bool = False  # Many equations: independent chains.


CASES = (
    Case(four_equations, Bar(z=1.2, tv=0.05, variance=(0.95, 1.06), evaluations=700)),
    Case(mass_energy, Bar(z=1.2, tv=0.055, worst=0.12)),
    Case(four_equations_and_norm, Bar(z=1.2, tv=0.075, worst=0.16)),
    Case(partial(norm, deviations=4.0), Bar(z=1.3)),
    Case(partial(norm, deviations=-2.0), Bar(z=1.3)),
    Case(half_space, Bar(z=1.3)),
    Case(box_on_four, Bar(z=1.5), slow=True),
    Case(nonlinear_observation, Bar(z=1.3, tv=0.06), d=64),
    Case(nonnegative, INSIDE, d=64, n=400, bounds=True),
    Case(partial(nonnegative_field, total=False), INSIDE, d=64, n=400, bounds=True, slow=True),
    Case(partial(nonnegative_field, total=True), INSIDE, d=64, n=400, bounds=True, slow=True),
    Case(partial(nonnegative_field, total=False), INSIDE, n=400, bounds=True, slow=True, few=SHORT),
    Case(partial(nonnegative_field, total=True), INSIDE, n=400, bounds=True, slow=True, few=SHORT),
    Case(nonnegative_modes, Bar(tv=0.06), d=64, n=1000, bounds=True),
    *(
        Case(
            partial(observed_and_norm, deviations=deviations),
            Bar(z=1.3, error=1.03, skill=(0.93, 1.07)),
            d=1024,
            slow=True,
            few=SHORT,
            many=True,
        )
        for deviations in (2.5, -2.0)
    ),
)


def run(quick: bool, tell: Tell) -> Outcome:
    """Mode weights, means and variances within modes, for our method and the others."""
    scale = QUICK if quick else FULL
    rows, claims, marks = list[dict[str, Any]](), list[Claim](), []
    for case in CASES:
        if not (quick and case.slow):
            mine, floor = compare(case, scale, tell)
            rows += [*mine, floor]
            claims += _claims(case.bar, mine[0])
            key = "tv" if "tv" in floor else "z"
            marks += dots(floor["problem"], mine, key, floor[key])
    table = ResultTable.of(
        f"Many dimensions: fresh problems, {scale.instances} of each kind",
        (
            "problem | method | n: chains, d | tv: TV of mode weights, .3f | worst: worst TV, .3f",
            "z, .2f | variance: variance / exact, .2f | edge: on a bound, .1%",
            "error: error of the mean / exact, .3f | skill: spread / skill, .2f",
            HEALTH,
        ),
        rows,
        note="Every instance is another problem of its kind. z: error of the means within modes, over that of as many "
        f"exact draws. SplitGibbs and Twisted: {scale.few} instances. A product with the derivative of the network is "
        "one evaluation, except in moment matching. Only Matheron takes the observation that is not linear. "
        f"{SHORT} instances of the fields in 256 and 1024 dimensions. Spread / skill: root mean square distance of "
        "samples to their mean, over that of the mean to the truth, over all instances.",
    )
    return Outcome("dimensions", [table], claims, {"dots": marks})


def compare(case: Case, scale: Scale, tell: Tell) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A row for each method, ours first, and one for exact draws."""
    d, n = min(case.d, scale.d), min(case.n, scale.n)
    problems = [case.make(d, FIRST + i) for i in range(case.few or scale.instances)]
    name, modes = problems[0].name, len(problems[0].exact.log_masses) > 1
    rows = []
    for label, method in _methods(case, problems[0], scale).items():
        tell(f"{name}: {label}")
        some = problems[: scale.few] if label.startswith(("SplitGibbs", "Twisted")) else problems
        given = label.startswith("moment")
        results = [_run(problem, method, n, FIRST + i, given) for i, problem in enumerate(some)]
        rows.append({"problem": name, "n": n, **_row(label, case, some, results, modes)})
    floor: dict[str, Any] = {"problem": name, "n": n, "method": "exact draws", "z": 1.0, "variance": 1.0}
    if modes:
        floor["tv"] = sum(problem.exact.floor(n) for problem in problems) / len(problems)
    return rows, floor


def _methods(case: Case, problem: Problem, scale: Scale) -> dict[str, AnyMethod]:
    """Ours first."""
    quick = scale is QUICK
    levels = 5 if quick else 30 if problem.log_weight is None else 90
    ours: dict[str, AnyMethod] = {"Matheron": Matheron(levels)}
    if problem.log_weight is not None:
        return ours
    plain: dict[str, AnyMethod] = {"final projection": FinalProjection(), **UNTUNED}
    if problem.equations is not None:
        plain["moment matching + projection"] = FinalProjection()
    if case.few is not None:
        return {**ours, **plain}
    return {
        **ours,
        "SplitGibbs, metropolis": SplitGibbs(levels=scale.ladder, inner_steps=scale.inner_steps, moves="metropolis"),
        "Twisted": Twisted(SIGMA**-2, moves=scale.twisted),
        **plain,
    }


def _run(problem: Problem, method: AnyMethod, n: int, seed: int, given: bool) -> SampleResult:
    """A run; of the model given the equations by moment matching, if ``given``."""
    target = problem.target
    if given and problem.equations is not None:
        target = posterior(target, *problem.equations, 0.0)
    return runs(target, problem.constraint, method, n, [seed])[0]


def _row(
    label: str, case: Case, problems: Sequence[Problem], results: Sequence[SampleResult], modes: bool
) -> dict[str, Any]:
    samples = [equally_weighted(result, result.samples) for result in results]
    scores = [problem.exact.score(x) for problem, x in zip(problems, samples, strict=True)]
    distances = {"z": [score.z for score in scores], "variance": [score.variance_ratio for score in scores]}
    if modes:
        distances["tv"] = [score.total_variation for score in scores]
    row = figures(label, results, **distances)
    if modes:
        row["worst"] = max(distances["tv"])
    if problems[0].truth is not None:
        row |= forecast(problems, samples)
    if case.bounds:
        row["edge"] = sum(float((x < EDGE).double().mean()) for x in samples) / len(samples)
    return row


def forecast(problems: Sequence[Problem], samples: Sequence[Tensor]) -> dict[str, float]:
    """Error of the mean to the truth over that of the exact mean, and spread over error, over all instances."""
    ours = exact = spread = 0.0
    for problem, x in zip(problems, samples, strict=True):
        if problem.truth is not None:
            ours += float((x.mean(0) - problem.truth).square().sum())
            exact += float((problem.exact.mean - problem.truth).square().sum())
            spread += float(x.var(0).sum())
    return {"error": math.sqrt(ours / exact), "skill": math.sqrt(spread / ours)}


def _claims(bar: Bar, row: Mapping[str, Any]) -> list[Claim]:
    """The targets of our method, and whether they are met."""
    text = f"{row['problem']}: {row['method']}"
    words = {
        "tv": ("TV of mode weights", ".3f"),
        "worst": ("TV of the worst instance", ".3f"),
        "z": ("z", ".2f"),
        "evaluations": ("evaluations", ".0f"),
        "edge": ("share of values on a bound", ".1%"),
        "violation": ("largest violation", ".0e"),
        "error": ("error of the mean / exact", ".3f"),
    }
    claims = [
        at_most(f"{text}, {name}", row[key], limit, style)
        for key, (name, style) in words.items()
        if (limit := getattr(bar, key)) is not None
    ]
    for limits, key, name in ((bar.variance, "variance", "variance / exact"), (bar.skill, "skill", "spread / skill")):
        if limits is not None:
            (low, high), ours = limits, row[key]
            claims.append(between(f"{text}, {name}", ours, low, high))
    if bar.ancestors is not None:
        claims.append(at_least(f"{text}, ancestors", row["ancestors"], bar.ancestors))
    return claims
