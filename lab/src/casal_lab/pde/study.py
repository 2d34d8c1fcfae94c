"""A whole study: every task with every model, the paper's table beside ours, and the verdicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from casal_lab.experiment import (
    Claim,
    Origin,
    Outcome,
    ResultTable,
    Tell,
    reached,
    stamp,
    verdict,
)
from casal_lab.nets import LevelLosses, WienerUNet
from casal_lab.pde.compare import (
    DRAWS_PROJECTED,
    KRIGING_PROJECTED,
    Scale,
    Scores,
    by_evaluations,
    compare,
    constant_rho,
    paired,
    records,
    references,
    table,
)
from casal_lab.pde.methods import (
    DPS_PROJECTED,
    MATCHED,
    MATCHED_MANY,
    MATCHED_PROJECTED,
    MOMENT,
    MOMENT_PROJECTED,
    PENALTY,
    PRINTED,
    PROJECTED,
    RELEASED,
    REPAIRED,
    SETTINGS,
    UNCONSTRAINED,
)
from casal_lab.pde.models import (
    BETAS,
    GAUSSIAN,
    LOWEST,
    NETWORK,
    TRAINED,
    Model,
    gaussian_model,
    loss_table,
    losses,
    network_model,
)
from casal_lab.pde.prior import Prior, Training
from casal_lab.pde.task import Task

LIMIT = 1e-12
"""Largest violation of a strict sample, relative: 1e-10 %."""

NEAR = 1.06
"""Error of the best method over that of the exact answer."""

LEARNED = 0.9
"""Loss of a network over the Gaussian's, at its best level."""

NOT_STRICT = ("kriging", UNCONSTRAINED, PENALTY, "DPS", MATCHED, MOMENT)


class Published(NamedTuple):
    """A line of the paper's table: error and violation in per cent, seconds if it has them."""

    error: float
    violation: float
    seconds: float | None = None


@dataclass(frozen=True)
class Study:
    """What was found: by task and model, the scores of every method."""

    found: Mapping[tuple[str, str], Mapping[str, Scores]]
    tables: Sequence[ResultTable]

    @property
    def records(self) -> dict[str, Any]:
        """Case by case, for the JSON file."""
        return {f"{task}, {model}": records(scores) for (task, model), scores in self.found.items()}

    def of(self, model: str, task: int = 0) -> Mapping[str, Scores]:
        """The scores of a model on one of the tasks."""
        names = list(dict.fromkeys(name for name, _ in self.found))
        return self.found[names[task], model]


def study(
    tasks: Sequence[Task],
    models: Sequence[Model],
    scales: Sequence[Mapping[str, Scale]],
    seed: int,
    labels: Sequence[str] | None,
    note: str,
    tell: Tell,
) -> Study:
    """Every task with every model; ``scales`` are by task, and by the label of the model."""
    found, tables = dict[tuple[str, str], Mapping[str, Scores]](), list[ResultTable]()
    for task, by_model in zip(tasks, scales, strict=True):
        for model in models:
            scale = by_model[model.label]
            tell(f"{task.name}, {model.label}: closed forms")
            here = {**references(task, scale, seed), **compare(task, model, scale, seed, labels, tell)}
            found[task.name, model.label] = here
            title = (
                f"{task.name}, {model.label}: {scale.cases} cases x {scale.samples} samples, "
                f"{scale.effort.steps} steps, {scale.effort.levels} levels of moment matching"
            )
            tables.append(table(title, here, f"{note} {_how(scale)}"))
    return Study(found, tables)


def _how(scale: Scale) -> str:
    tried = len(range(0, SETTINGS, scale.stride))
    return (
        "± is one standard error over cases; differences are paired. Samples before and after the last projection have "
        f"a line each. Tuned methods: each the best of {tried} settings on {scale.tuning_cases} other cases x "
        f"{scale.tuning_samples} samples; moment and covariance matching have no setting. Exact draws: "
        f"{scale.samples} draws of the Gaussian given all that is seen, what a perfect sampler of the Gaussian "
        "gives. Spread / skill is that of the latents, before the last projection; one for samples of the "
        "posterior. Points seen are the same in all cases. Times are those of the processor. Memory is what the run of "
        f"all chains adds to that of the process, in pages of the system."
    )


def beside_the_paper(
    found: Study, published: Mapping[str, Published], ratios: Mapping[str, float], note: str
) -> ResultTable:
    """The lines of the paper's table with ours; ``ratios`` are times of a step over projection's."""
    labels = {"projected diffusion": PROJECTED, "penalty": PENALTY}
    rows = []
    for name, line in published.items():
        for label in (PRINTED, RELEASED, REPAIRED) if name == "CASAL" else (labels[name],):
            row: dict[str, Any] = {"method": label, "paper": line.error, "paper_violation": line.violation}
            row["paper_time"] = _ratio(line.seconds, published["projected diffusion"].seconds)
            row["time"] = ratios.get(label)
            for key, model in (("gaussian", GAUSSIAN), ("network", NETWORK)):
                scores = found.of(model).get(label)
                if scores is not None:
                    row[key] = 100 * float(scores.error.mean())
                    row["violation"] = max(row.get("violation", 0.0), 100 * float(scores.violation.max()))
            rows.append(row)
    return ResultTable.of(
        "The paper's table and ours",
        "method | paper: error in the paper (%), .0f | gaussian: ours with the Gaussian score (%), .1f | "
        "network: ours with the network (%), .1f | paper_violation: violation in the paper (%), .0e | "
        "violation: ours (%), .0e | paper_time: time / projected in the paper, .2f | time: ours, step over step, .2f",
        rows,
        note=note,
    )


def _ratio(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other


# ------------------------------------------------------------------ verdicts


COMPARABLE = 1.5
"""Ratio of times up to which two methods cost about as much."""


def _errors(scores: Mapping[str, Scores], label: str) -> tuple[str, tuple[bool, bool]]:
    """The error of a method beside those of projection and penalty, and whether it is below either.

    Below means by two standard errors of the paired difference: methods may tie.
    """
    ours = {name: 100 * float(scores[name].error.mean()) for name in (label, PROJECTED, PENALTY)}
    gaps = [paired(scores[label], scores[other])[:2] for other in (PROJECTED, PENALTY)]
    told = ", ".join(f"{100 * mean:+.2f} ± {100 * error:.2g}" for mean, error in gaps)
    shown = f"{ours[label]:.1f} % against {ours[PROJECTED]:.1f} and {ours[PENALTY]:.1f} % (paired {told} %)"
    first, second = (mean + 2 * error < 0 for mean, error in gaps)
    return shown, (first, second)


VARIANT_OF = {"printed": PRINTED, "released": RELEASED, "ours": REPAIRED}
"""The label of every variant of CASAL."""


def paper_claims(
    found: Study,
    published: Mapping[str, Published],
    source: str,
    ratios: Mapping[str, float],
    judged: Sequence[int] = (0,),
) -> list[Claim]:
    """What the paper says of this equation, beside what the network gives here, variant by variant.

    ``ratios`` are times of a step over projection's, with the network; ``judged`` tasks that the paper's words allow.
    """
    names = list(dict.fromkeys(name for name, _ in found.found))
    every = {names[k]: found.of(NETWORK, k) for k in judged}
    line, other, loose = published["CASAL"], published["projected diffusion"], published["penalty"]
    projected = max(float(scores[PROJECTED].violation.max()) for scores in every.values())
    left = max(100 * float(scores[PENALTY].violation.max()) for scores in every.values())
    claims = []
    for variant, label in VARIANT_OF.items():
        told = {name: _errors(scores, label) for name, scores in every.items()}
        answers = {name: found.of(GAUSSIAN, k)[KRIGING_PROJECTED].error for k, name in enumerate(names)}
        strict = max(float(scores[label].violation.max()) for scores in every.values())
        smaller = verdict(*(better for _, both in told.values() for better in both))
        places = "; ".join(f"{name}, below {('neither', 'one', 'both')[sum(two)]}" for name, (_, two) in told.items())
        known = ", ".join(f"{name} {100 * float(answers[name].mean()):.1f} %" for name in told)
        claims += [
            Claim(
                "CASAL has a smaller error than projected diffusion and penalty",
                f"{line.error:g} % against {other.error:g} and {loose.error:g} %",
                "; ".join(f"{name}: {shown}" for name, (shown, _) in told.items()),
                smaller,
                source,
                "the order of these three errors; a network, observations or fields that the paper does not specify",
                variant,
                f"kriging + projection, {known}",
                f"With equal tuning, by two standard errors: {places}.",
            ),
            Claim(
                "projected diffusion and CASAL satisfy the constraint to high precision",
                f"{line.violation:g} %",
                f"{100 * strict:.0e} % (projected {100 * projected:.0e} %)",
                verdict(100 * max(strict, projected) <= line.violation),
                source,
                f"one sample that violates the constraint by more than {line.violation:g} %",
                variant,
                "0 %",
                "Every sample satisfies the constraint to rounding.",
            ),
            Claim(
                "CASAL takes about as long as projected diffusion (ratio of times)",
                f"{line.seconds / other.seconds:.2f}" if line.seconds and other.seconds else "similar",
                f"{ratios[label]:.2f}",
                verdict(ratios[label] <= COMPARABLE),
                source,
                f"a ratio on the other side of {COMPARABLE:g}",
                variant,
                plain="A step costs about as much as a step of projection, at one projection a step each."
                if ratios[label] <= COMPARABLE
                else "A step costs more than a step of projection.",
            ),
        ]
    return [
        *claims,
        Claim(
            "the penalty leaves a large violation",
            f"{loose.violation:g} %",
            f"{left:.3g} %",
            verdict(left > 1.0),
            source,
            "a tuned penalty whose largest violation is at most 1 %",
            exact="0 %",
            plain="Samples of the tuned penalty miss the constraint."
            if left > 1.0
            else "The tuned penalty, measured on the constraint alone, misses it by little.",
        ),
    ]


def targets(found: Study, losses: LevelLosses, limit: float = LIMIT) -> list[Claim]:
    """What we ask of ourselves; ``limit`` is the largest violation of a strict sample."""
    every = [(name, scores) for here in found.found.values() for name, scores in here.items() if name not in NOT_STRICT]
    worst, at = max((float(scores.violation.max()), name) for name, scores in every)
    shown, better = _errors(found.of(NETWORK), REPAIRED)
    claims = [
        Claim(
            f"our variant ({REPAIRED}) has a smaller error than projected diffusion and penalty",
            "below both",
            shown,
            reached(*better),
            flips="the order of these three errors",
        ),
        Claim(
            f"every sample of a strict method violates its set by at most {100 * limit:.0e} %",
            f"at most {100 * limit:.0e} %",
            f"{100 * worst:.0e} % ({at})",
            reached(worst <= limit),
            flips="one sample beyond it",
        ),
        Claim(
            "the network beats the Gaussian on held-out fields at some noise level (ratio of squared errors)",
            f"at most {LEARNED:g}",
            f"{losses.best:.3f}",
            reached(losses.best <= LEARNED),
            flips=f"a best ratio above {LEARNED:g}: then the tables say nothing about learned models",
        ),
    ]
    names = list(dict.fromkeys(name for name, _ in found.found))
    for k, name in enumerate(names):
        scores = found.of(GAUSSIAN, k)
        every_case = len(scores[KRIGING_PROJECTED].error)
        strict = {
            label: s
            for label, s in scores.items()
            if label not in NOT_STRICT and s.evaluations and len(s.error) == every_case
        }
        as_many = [label for label in strict if label != MATCHED_MANY]
        for exact, words, among in (
            (KRIGING_PROJECTED, "kriging + projection", list(strict)),
            (DRAWS_PROJECTED, "that of as many exact draws, projected", as_many),
        ):
            best = min(among, key=lambda label: float(strict[label].error.mean()))
            ratio = float(strict[best].error.mean() / scores[exact].error.mean())
            claims.append(
                Claim(
                    f"{name}, Gaussian score: error of the best strict method over {words}",
                    f"at most {NEAR:g}",
                    f"{ratio:.3f} ({best})",
                    reached(ratio <= NEAR),
                    flips=f"a ratio on the other side of {NEAR:g}",
                )
            )
        value = scores[MOMENT_PROJECTED].calibration if MOMENT_PROJECTED in scores else math.nan
        claims.append(
            Claim(
                f"{name}, Gaussian score: spread / skill of moment matching in the latent",
                "0.9 to 1.1",
                f"{value:.2f}",
                reached(0.9 <= value <= 1.1),
                flips="a ratio on the other side of 0.9 or 1.1",
            )
        )
        trained = found.of(NETWORK, k)
        for label in (label for label in (MOMENT_PROJECTED, MATCHED_PROJECTED) if label in trained):
            mean, error, wins = paired(trained[label], trained[DPS_PROJECTED])
            claims.append(
                Claim(
                    f"{name}, network: {label} below DPS + projection, paired",
                    "below 0 by two standard errors",
                    f"{100 * mean:+.2f} ± {100 * error:.2g} %, better in {wins:.0%} of cases",
                    reached(mean + 2 * error < 0),
                    flips="a paired difference on the other side of minus two standard errors, over fresh cases",
                )
            )
    return claims


# ------------------------------------------------------------------ the whole run of an experiment

ON_CURVES = (DPS_PROJECTED, MOMENT_PROJECTED, PROJECTED, REPAIRED)
"""Methods whose error is shown against evaluations."""


class Plan(NamedTuple):
    """How much is run.

    Attributes:
        scales: For each task, that of the Gaussian score and that of the network.
        steps: Of the curves of error against evaluations.
        curve_cases: Cases of the curves.
        training: Of prior and network.
        curve_samples: Samples of a case there; as many as on the first task if None.
        constant: Steps of the runs with a constant rho, as in the paper.
    """

    scales: Sequence[tuple[Scale, Scale]]
    steps: Sequence[int]
    curve_cases: int
    training: Training
    curve_samples: int | None = None
    constant: Sequence[int] = (100, 1000)


def _nothing(known: Prior, model: Model, scale: Scale, seed: int, tell: Tell) -> Sequence[ResultTable]:
    return ()


@dataclass(frozen=True)
class Reconstruction:
    """An experiment that reconstructs fields.

    Attributes:
        name: Of the experiment.
        plans: Full (False) and quick (True).
        prior: What is known of the fields.
        net: The trained network.
        tasks: The tasks of a seed, the paper's first.
        residual: What the pictures show of a mean beside its error.
        paper: The paper's table.
        source: Where the paper has it.
        note: How errors and violations are measured.
        beside: Note of the table that has the paper's figures beside ours.
        limit: Largest violation of a strict sample, relative.
        counted: What the training data are called.
        more: Further tables of the Gaussian score, at the scale of the curves.
        judged: Tasks that the paper's words allow; its claims are judged on these.
    """

    name: str
    plans: Mapping[bool, Plan]
    prior: Callable[[Training], Prior]
    net: Callable[[Training], WienerUNet]
    tasks: Callable[[Prior, int], Sequence[Task]]
    residual: Callable[..., Tensor]
    paper: Mapping[str, Published]
    source: str
    note: str
    beside: str
    limit: float = LIMIT
    counted: str = "training fields"
    more: Callable[[Prior, Model, Scale, int, Tell], Sequence[ResultTable]] = _nothing
    judged: Sequence[int] = (0,)

    def run(self, quick: bool, labels: Sequence[str] | None, tell: Tell) -> Outcome:
        """The run of seed 0."""
        return self.run_seed(0, quick, labels, tell)

    def run_seed(self, seed: int, quick: bool, labels: Sequence[str] | None, tell: Tell) -> Outcome:
        """Where fields are seen and which are reconstructed is drawn from the seed."""
        return stamp(partial(self._run, seed))(quick, labels, tell)

    def _run(self, seed: int, quick: bool, labels: Sequence[str] | None, tell: Tell) -> Outcome:
        plan = self.plans[quick]
        tell("training fields")
        known = self.prior(plan.training)
        tell("training the network")
        trained = self.net(plan.training)
        learned = losses(known, trained)
        models = [gaussian_model(known), network_model(known, trained)]
        scales = [{GAUSSIAN: gaussian, NETWORK: network} for gaussian, network in plan.scales]
        every, first = self.tasks(known, seed), plan.scales[0][0]
        found = study(every, models, scales, seed, labels, self.note, tell)
        losses_by_level = loss_table(learned, "Held-out loss of the network and of the Gaussian, by noise level")
        tables, verdicts = [*found.tables, losses_by_level], list[Claim]()
        truth = every[0].cases(1, seed).fields[0].numpy()
        data: dict[str, Any] = {"study": found, "truth": truth, "residual": self.residual}
        few = first._replace(cases=plan.curve_cases, samples=plan.curve_samples or first.samples)
        if {PROJECTED, PENALTY, *VARIANT_OF.values()} <= set(found.of(NETWORK)):  # all that the paper compares
            constant = [
                constant_rho(every[k], models[0], models[1], few, seed, plan.constant, tell) for k in self.judged
            ]
            ratios = constant[0][1]
            tables.insert(0, beside_the_paper(found, self.paper, ratios, self.beside))
            tables += [rows for rows, _ in constant]
            if not quick:
                verdicts = paper_claims(found, self.paper, self.source, ratios, self.judged)
        if labels is None:
            here = found.of(GAUSSIAN)
            tuned = {label: here[label].setting for label in ON_CURVES if label in here}
            data["curve cases"] = few.cases
            data["curves"] = by_evaluations(every[0], models[0], few, seed, tuned, plan.steps, tell)
            tables += self.more(known, models[0], few, seed, tell)
            verdicts += [] if quick else targets(found, learned, self.limit)
        settings = {
            "seed": seed,
            "cases": first.cases,
            "samples": first.samples,
            self.counted: plan.training.fields,
            "updates of the network": plan.training.iterations,
        }
        return Outcome(self.name, tables, verdicts, data, settings, records=found.records)


# ------------------------------------------------------------------ where constants come from


def shared(plan: Plan, training: Training, samples: Origin) -> tuple[Origin, ...]:
    """Of a full run of one equation; ``samples`` is the number of samples of a case."""
    gaussian, network = plan.scales[0]
    return (
        samples,
        Origin("cases", f"{gaussian.cases}", "ours", "the paper gives no number; differences are paired"),
        Origin("diffusion steps", f"{gaussian.effort.steps} (Gaussian), {network.effort.steps} (network)", "ours", "-"),
        Origin("beta", f"{float(BETAS[0]):g} to {float(BETAS[-1]):g}, {len(BETAS)} levels", "ours", "usual for DDPM"),
        Origin("noise of a DDPM step", "posterior variance", "ours", "(B.6) prints sigma^2 = beta"),
        Origin("noise levels near the data", f"down to {LOWEST:g}", "ours", "half of the settings of a tuned method"),
        Origin("settings of a tuned method", f"{SETTINGS}", "ours", "chosen on other cases; the paper gives none"),
        Origin("rho", "by the pull of a step, tuned", "ours", "the paper gives none for these experiments"),
        Origin("network", "UNet that corrects a Wiener filter", "ours", "the paper says: all methods share a network"),
        Origin("training fields", f"{training.fields}", "ours", "the paper gives no number"),
        Origin("updates of the network", f"{training.iterations}", "ours", "a minute of one core"),
        Origin("noise levels of training", f"{TRAINED[0]:g} to {TRAINED[1]:g}", "ours", "latents are of unit size"),
    )
