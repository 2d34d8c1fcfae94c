"""Methods on trained networks beside exact draws, at equal evaluations; the self-check; a forecast of many members."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import casal
from casal.errors import DivergedError
from casal_lab.experiment import AnyMethod, Claim, Origin, Outcome, ResultTable, Tell, reached, stamp
from casal_lab.networks.forecast import rollout
from casal_lab.networks.models import DRAWS, SPECS, Model, Spec, trained
from casal_lab.networks.power import self_check
from casal_lab.study import mean_and_error, mean_entry

F64 = torch.float64

FIRST_CONDITION = 100
"""Seeds of the conditions that are reported; settings were looked at with the seeds 0 to 35."""

STEPS = 50
"""Steps of the model's own sampler, from which Matheron starts. The other methods take all evaluations as steps."""

USUAL = 150
"""Evaluations of the others where Matheron diverged."""

MATHERON = "Matheron"


def matheron(calls: int) -> tuple[int, AnyMethod]:
    """Its evaluations are what the others get."""
    return STEPS, casal.Matheron()


PEERS: Mapping[str, Callable[[int], tuple[int, AnyMethod]]] = {
    "final projection": lambda calls: (calls, casal.FinalProjection()),
    "PCFM": lambda calls: (calls, casal.PCFM()),
    "ECI": lambda calls: (calls // 5, casal.ECI(mixing=5, resample=5)),
    "predict-project-renoise": lambda calls: (calls, casal.ProjectRenoise()),
}
"""From a number of evaluations to the steps of the model and the method. ECI(1, 1) is predict-project-renoise."""


SHOWN = (MATHERON, "predict-project-renoise", "final projection")
"""In the picture of the fields."""


class Scale(NamedTuple):
    """How much is run.

    Attributes:
        networks: Which.
        conditions: Fields whose values are given, for each network.
        chains: Samples for each condition.
        reference: Exact draws for each condition.
        checks: Self-checks of each network and way to break a method.
        cycles: Of the forecast.
    """

    networks: Sequence[Spec]
    conditions: int
    chains: int
    reference: int
    checks: int
    cycles: int


FULL = Scale(SPECS, 10, 32, 2000, 8, 50)
QUICK = Scale([SPECS[2]._replace(iterations=200)], 2, 16, 200, 2, 2)

PARTS = ("comparison", "self-check", "forecast")
"""What ``--method`` takes."""

ORIGINS = (
    Origin("fields", "heat, Burgers, reaction-diffusion, Navier-Stokes", "ours", "exact draws given known values"),
    Origin(
        "networks",
        ", ".join(f"{spec.title} ({spec.iterations} updates)" for spec in SPECS),
        "ours",
        "one to three minutes on one core each",
    ),
    Origin("training fields", f"{DRAWS}", "ours", "solved in a second or two"),
    Origin("conditions, chains", f"{FULL.conditions}, {FULL.chains}", "ours", "seeds not used to set anything"),
    Origin("settings of ECI", "mixing 5, new noise at every fifth evaluation", "ours", "as on the other pages"),
)


class Score(NamedTuple):
    """One method on one condition: squared errors per pixel of the mean and of the standard deviation, variance ratio.

    Attributes:
        mmse: Of the mean over the samples to that of the exact draws.
        smse: Of the standard deviation.
        variance: Mean variance of the samples over that of the exact draws.
        evaluations: Of the network, for each sample.
        feasible: Share of the samples.
    """

    mmse: float
    smse: float
    variance: float
    evaluations: float
    feasible: float


def judged(samples: Tensor, reference: Tensor, evaluations: float = 0.0, feasible: float = 1.0) -> Score:
    """Samples (n, *event) beside exact draws."""
    x = samples.to(F64)
    return Score(
        float((x.mean(0) - reference.mean(0)).square().mean()),
        float((x.std(0) - reference.std(0)).square().mean()),
        float(x.var(0).mean() / reference.var(0).mean()),
        evaluations,
        feasible,
    )


Family = Callable[[Tensor], casal.Constraint]


def sampled(
    model: Model, family: Family, method: AnyMethod, steps: int, field: Tensor, n: int, seed: int
) -> casal.SampleResult | None:
    """n samples given what is known of one field; None if chains diverged."""
    constraint = family(field[None].expand(n, *field.shape))
    try:
        return casal.sample(model.target(steps), constraint, method, n, seed=seed, check=False)
    except DivergedError:
        return None


def condition(model: Model, k: int, reference: int) -> tuple[Tensor, Tensor, torch.Generator]:
    """The field of condition k, exact draws given its known values, and a stream for more of them."""
    generator = torch.Generator().manual_seed(FIRST_CONDITION + k)
    field = model.fields.draw(1, generator)[0]
    return field, model.fields.given(field, reference, generator), generator


def compared(model: Model, family: Family, scale: Scale, tell: Tell) -> dict[str, list[Score | None]]:
    """Every method on every condition; None where its chains diverged."""
    found = dict[str, list[Score | None]]()
    for k in range(scale.conditions):
        tell(f"{model.spec.title}: condition {k + 1} of {scale.conditions}")
        field, reference, more = condition(model, k, scale.reference)
        found.setdefault("exact draws", []).append(judged(model.fields.given(field, scale.chains, more), reference))
        calls = USUAL
        for label, of in {MATHERON: matheron, **PEERS}.items():
            steps, method = of(calls)
            result = sampled(model, family, method, steps, field, scale.chains, k)
            found.setdefault(label, []).append(None if result is None else judged_result(result, reference))
            if label == MATHERON and result is not None:
                calls = round(result.cost.score_evaluations)
    return found


def judged_result(result: casal.SampleResult, reference: Tensor) -> Score:
    """The samples of a run beside exact draws."""
    feasible = float(result.certificate.feasible.double().mean())
    return judged(result.samples, reference, result.cost.score_evaluations, feasible)


def row(title: str, label: str, scores: Sequence[Score | None], ours: Sequence[Score | None]) -> dict[str, Any]:
    """A row of the table: means over conditions, and the paired ratio of a method's errors to Matheron's."""
    good = [score for score in scores if score is not None]
    out: dict[str, Any] = {"network": title, "method": label, "diverged": len(scores) - len(good)}
    if not good:
        return out
    for key in ("mmse", "smse"):
        out |= mean_entry(key, [getattr(score, key) for score in good])
        pairs = [
            math.log(getattr(score, key) / getattr(own, key))
            for score, own in zip(scores, ours, strict=True)
            if score is not None and own is not None
        ]
        if label not in (MATHERON, "exact draws") and pairs:
            mean, error = mean_and_error(pairs)
            out |= {f"{key}_ratio": math.exp(mean), f"{key}_ratio_se": math.exp(mean) * error}
            out[f"{key}_worse"] = f"{sum(pair > 0 for pair in pairs)} of {len(scores)}"
    out["variance"] = float(np.mean([score.variance for score in good]))
    out["evaluations"] = float(np.mean([score.evaluations for score in good]))
    out["feasible"] = float(np.mean([score.feasible for score in good]))
    return out


def comparison(rows: Sequence[Mapping[str, Any]], scale: Scale) -> ResultTable:
    """The table of all methods on all networks."""
    return ResultTable.of(
        f"Errors against exact draws: {scale.conditions} conditions, {scale.chains} samples each",
        "network | method | mmse: MMSE, .3g | smse: SMSE, .3g | "
        "mmse_ratio: MMSE / Matheron's, .3g | mmse_worse: larger in | smse_ratio: SMSE / Matheron's, .3g | "
        "smse_worse: larger in | variance: variance / exact, .3g | evaluations, .0f | feasible, .1% | "
        "diverged: conditions diverged, d",
        rows,
        note="Squared errors per pixel of the mean and of the standard deviation over the samples of a condition, to "
        f"{scale.reference} exact draws; means over conditions with standard errors. Ratios are geometric means over "
        "conditions, paired. The exact draws are of the equation, not of the network.",
    )


def claims_of(rows: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """Whether Matheron has smaller errors than each peer, network by network: the mean paired ratio is above 1."""
    out = []
    for title in dict.fromkeys(row["network"] for row in rows):
        mine = [row for row in rows if row["network"] == title and "mmse_ratio" in row]
        lost = [row for row in rows if row["network"] == title and row["method"] == MATHERON and row["diverged"]]
        ratios = {row["method"]: (row["mmse_ratio"], row["smse_ratio"]) for row in mine}
        won = [min(pair) > 1 for pair in ratios.values()]
        told = "; ".join(f"{label} {a:.3g}, {b:.3g}" for label, (a, b) in ratios.items())
        out.append(
            Claim(
                f"{title}: Matheron is below every peer in MMSE and SMSE",
                "paired ratios above 1",
                told or "diverged",
                reached(*won, not lost) if won else reached(False),
                flips="a peer with a smaller mean logarithm of either error over the conditions",
            )
        )
    return out


@stamp
def run(quick: bool, labels: Sequence[str] | None, tell: Tell) -> Outcome:
    """All parts, or those named."""
    scale, wanted = QUICK if quick else FULL, PARTS if labels is None else labels
    models = [trained(spec, tell) for spec in scale.networks]
    tables, claims, data = list[ResultTable](), list[Claim](), dict[str, Any]()
    seconds = dict[str, float]()
    if "comparison" in wanted:
        began, rows = time.perf_counter(), list[dict[str, Any]]()
        for model in models:
            for known, family in model.fields.sets.items():
                title, found = f"{model.spec.title}: {known}", compared(model, family, scale, tell)
                rows += [row(title, label, scores, found[MATHERON]) for label, scores in found.items()]
        tables.append(comparison(rows, scale))
        claims += claims_of(rows)
        data["comparison"], data["pictures"] = rows, pictures(models, scale)
        seconds["comparison"] = time.perf_counter() - began
    if "self-check" in wanted:
        began = time.perf_counter()
        table, more_claims = self_check(models, scale.checks, tell)
        tables.append(table)
        claims += more_claims
        seconds["self-check"] = time.perf_counter() - began
    if "forecast" in wanted:
        began = time.perf_counter()
        table, more_claims = rollout(scale.cycles, tell)
        tables.append(table)
        claims += more_claims
        seconds["forecast"] = time.perf_counter() - began
    about = {"quick": quick, "seconds": {name: round(value, 1) for name, value in seconds.items()}}
    return Outcome("networks", tables, [] if quick else claims, data, about)


def pictures(models: Sequence[Model], scale: Scale) -> dict[str, dict[str, Any]]:
    """Mean and standard deviation of the first condition of each network, by method, for the picture."""
    found = dict[str, dict[str, Any]]()
    shown = {label: {MATHERON: matheron, **PEERS}[label] for label in SHOWN}
    for model in models:
        field, reference, _ = condition(model, 0, scale.reference)
        family = next(iter(model.fields.sets.values()))
        maps = {"exact draws": (reference.mean(0), reference.std(0))}
        for label, of in shown.items():
            steps, method = of(USUAL)
            result = sampled(model, family, method, steps, field, scale.chains, 0)
            if result is not None:
                maps[label] = (result.samples.mean(0), result.samples.std(0))
        found[model.spec.title] = {
            label: tuple(part[-1].float().numpy() for part in parts) for label, parts in maps.items()
        }
    return found
