"""A whole study: every task with every model, the paper's table beside ours, and the verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from casal_lab.experiment import Claim, ResultTable, Tell, reached, verdict
from casal_lab.nets import LevelLosses
from casal_lab.reconstruction.compare import (
    DRAWS_PROJECTED,
    KRIGING_PROJECTED,
    Scale,
    Scores,
    compare,
    paired,
    records,
    references,
    table,
)
from casal_lab.reconstruction.methods import (
    DPS_PROJECTED,
    FINAL,
    LOOK_AHEAD,
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
from casal_lab.reconstruction.models import GAUSSIAN, NETWORK, Model
from casal_lab.reconstruction.task import Task

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
    looks = (
        f" LookAhead has 16 samples of the first {scale.looks} cases and is compared on these." if scale.looks else ""
    )
    return (
        "± is one standard error over cases; differences are paired. Samples before and after the last projection have "
        f"a line each. Tuned methods: each the best of {tried} settings on {scale.tuning_cases} other cases x "
        f"{scale.tuning_samples} samples; moment and covariance matching have no setting. Exact draws: "
        f"{scale.samples} draws of the Gaussian given all that is seen, what a perfect sampler of the Gaussian "
        "gives. Spread / skill is that of the latents, before the last projection; one for samples of the "
        "posterior. Points seen are the same in all cases. Times are those of the processor. Memory is what the run of "
        f"all chains adds to that of the process, in pages of the system.{looks}"
    )


def beside_the_paper(found: Study, published: Mapping[str, Published], note: str) -> ResultTable:
    """The lines of the paper's table with ours."""
    labels = {"projected diffusion": PROJECTED, "penalty": PENALTY}
    rows = []
    for name, line in published.items():
        for label in (PRINTED, RELEASED, REPAIRED) if name == "CASAL" else (labels[name],):
            row: dict[str, Any] = {"method": label, "paper": line.error, "paper_violation": line.violation}
            row["paper_time"] = _ratio(line.seconds, published["projected diffusion"].seconds)
            for key, model in (("gaussian", GAUSSIAN), ("network", NETWORK)):
                scores = found.of(model).get(label)
                if scores is not None:
                    row[key] = 100 * float(scores.error.mean())
                    row["violation"] = max(row.get("violation", 0.0), 100 * float(scores.violation.max()))
                    row["time"] = _ratio(scores.seconds, found.of(model)[PROJECTED].seconds)
            rows.append(row)
    return ResultTable.of(
        "The paper's table and ours",
        "method | paper: error in the paper (%), .0f | gaussian: ours with the Gaussian score (%), .1f | "
        "network: ours with the network (%), .1f | paper_violation: violation in the paper (%), .0e | "
        "violation: ours (%), .0e | paper_time: time / projected in the paper, .2f | time: ours (network), .2f",
        rows,
        note=note,
    )


def _ratio(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other


# ------------------------------------------------------------------ verdicts


COMPARABLE = 1.5
"""Ratio of times up to which two methods cost about as much."""


def _errors(scores: Mapping[str, Scores], label: str) -> tuple[str, tuple[bool, bool]]:
    """The error of a method beside those of projection and penalty, and whether it is below either."""
    ours = {name: 100 * float(scores[name].error.mean()) for name in (label, PROJECTED, PENALTY)}
    shown = f"{ours[label]:.1f} % against {ours[PROJECTED]:.1f} and {ours[PENALTY]:.1f} %"
    return shown, (ours[label] < ours[PROJECTED], ours[label] < ours[PENALTY])


def paper_claims(found: Study, published: Mapping[str, Published], source: str) -> list[Claim]:
    """What the paper says of this equation, beside what the network gives here."""
    scores = found.of(NETWORK)
    line, other, loose = published["CASAL"], published["projected diffusion"], published["penalty"]
    told = {label: _errors(scores, label) for label in (PRINTED, RELEASED)}
    strict = max(float(scores[name].violation.max()) for name in (PROJECTED, *told))
    left = 100 * float(scores[PENALTY].violation.max())
    ratio = scores[PRINTED].seconds / scores[PROJECTED].seconds
    return [
        Claim(
            "CASAL has a smaller error than projected diffusion and penalty",
            f"{line.error:g} % against {other.error:g} and {loose.error:g} %",
            "; ".join(f"{label}: {shown}" for label, (shown, _) in told.items()),
            verdict(*(better for _, both in told.values() for better in both)),
            source,
            "the order of these three errors; a network, observations or fields that the paper does not specify",
        ),
        Claim(
            "projected diffusion and CASAL satisfy the constraint to high precision",
            f"{line.violation:g} %",
            f"{100 * strict:.0e} %",
            verdict(100 * strict <= line.violation),
            source,
            f"one sample that violates the constraint by more than {line.violation:g} %",
        ),
        Claim(
            "the penalty leaves a large violation",
            f"{loose.violation:g} %",
            f"{left:.3g} %",
            verdict(left > 1.0),
            source,
            "a tuned penalty whose largest violation is at most 1 %",
        ),
        Claim(
            "CASAL takes about as long as projected diffusion (ratio of times)",
            f"{line.seconds / other.seconds:.2f}" if line.seconds and other.seconds else "similar",
            f"{ratio:.2f}",
            verdict(ratio <= COMPARABLE),
            source,
            f"a ratio on the other side of {COMPARABLE:g}",
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
        value = scores[MOMENT_PROJECTED].calibration
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
        for label in (MOMENT_PROJECTED, MATCHED_PROJECTED):
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
        if LOOK_AHEAD in trained:
            some = trained[LOOK_AHEAD].error
            ours, plain = 100 * float(some.mean()), 100 * float(trained[FINAL].error[: len(some)].mean())
            claims.append(
                Claim(
                    f"{name}, network: LookAhead, the weighted method, at most the error of one projection",
                    f"at most {plain:.2f} %",
                    f"{ours:.2f} %",
                    reached(ours <= plain),
                    flips="an error on the other side of that of one projection, over more cases",
                )
            )
    return claims
