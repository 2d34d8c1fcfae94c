"""The whole run of an experiment: training, every task with both models, the paper's table, curves and verdicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from casal_lab.experiment import Outcome, ResultTable, Tell, stamp
from casal_lab.nets import WienerUNet
from casal_lab.reconstruction.compare import Scale, by_evaluations
from casal_lab.reconstruction.methods import DPS_PROJECTED, MOMENT_PROJECTED, PROJECTED, REPAIRED
from casal_lab.reconstruction.models import (
    GAUSSIAN,
    NETWORK,
    Model,
    gaussian_model,
    loss_table,
    losses,
    network_model,
)
from casal_lab.reconstruction.prior import Prior, Training
from casal_lab.reconstruction.study import LIMIT, Published, beside_the_paper, paper_claims, study, targets
from casal_lab.reconstruction.task import Task

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
    """

    scales: Sequence[tuple[Scale, Scale]]
    steps: Sequence[int]
    curve_cases: int
    training: Training
    curve_samples: int | None = None


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
        tables, verdicts = [*found.tables, losses_by_level], []
        truth = every[0].cases(1, seed).fields[0].numpy()
        data: dict[str, Any] = {"study": found, "truth": truth, "residual": self.residual}
        if labels is None:
            tables.insert(0, beside_the_paper(found, self.paper, self.beside))
            here = found.of(GAUSSIAN)
            tuned = {label: here[label].setting for label in ON_CURVES if label in here}
            few = first._replace(cases=plan.curve_cases, samples=plan.curve_samples or first.samples)
            data["curve cases"] = few.cases
            data["curves"] = by_evaluations(every[0], models[0], few, seed, tuned, plan.steps, tell)
            tables += self.more(known, models[0], few, seed, tell)
            verdicts = (
                [] if quick else [*paper_claims(found, self.paper, self.source), *targets(found, learned, self.limit)]
            )
        settings = {
            "seed": seed,
            "cases": first.cases,
            "samples": first.samples,
            self.counted: plan.training.fields,
            "updates of the network": plan.training.iterations,
        }
        return Outcome(self.name, tables, verdicts, data, settings, records=found.records)
