"""What the cases of the conditional experiment share: runs over seeds, rows of figures, verdicts."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from casal.constraints import Constraint
from casal.decoders import Decoder
from casal.errors import CasalWarning, DivergedError, SettingError
from casal.lab.problems.base import Claim, Column, ResultTable, mean_and_error
from casal.lab.problems.tuning import VALIDATION_SEED
from casal.methods import Method, SplitGibbs, Twisted, systematic
from casal.sampling import SampleResult, sample
from casal.targets import Target

Tell = Callable[[str], None]
AnyMethod = Method[Any]

SIGMA = 0.02
"""The last noise level of the weighted methods; rho = 1 / SIGMA^2."""

HEALTH = (
    Column("ess", "least ESS", ".0f"),
    Column("ancestors", "ancestors", ".0f"),
    Column("feasible", "feasible", ".1%"),
    Column("violation", "largest violation", ".0e"),
    Column("evaluations", "score evaluations", ".0f"),
)
"""The columns every case ends with."""


class Dot(NamedTuple):
    """One mark of the picture of all cases: a distance in units of its floor."""

    case: str
    method: str
    ratio: float


@dataclass(frozen=True)
class Part:
    """What one case leaves behind.

    Attributes:
        tables: Its tables.
        claims: Targets and verdicts.
        dots: Distances over floors.
        data: Arrays of its picture.
    """

    tables: Sequence[ResultTable]
    claims: Sequence[Claim] = ()
    dots: Sequence[Dot] = ()
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Setup:
    """A model, a set, and how many chains are drawn how often."""

    target: Target
    constraint: Constraint
    n: int
    seeds: Sequence[int]
    decoder: Decoder | None = None

    def draw(self, method: AnyMethod, n: int, seed: int) -> SampleResult:
        """One run. Warnings of few ancestors are left out: the table has the number."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CasalWarning)
            return sample(self.target, self.constraint, method, n, decoder=self.decoder, seed=seed)

    def runs(self, method: AnyMethod) -> list[SampleResult]:
        """One run a seed."""
        return [self.draw(method, self.n, seed) for seed in self.seeds]

    def tuned(
        self, settings: Sequence[tuple[str, AnyMethod]], loss: Callable[[SampleResult], float], n: int
    ) -> tuple[str, list[SampleResult]]:
        """Runs with the setting of smallest loss on validation chains; those refused or that lose a chain are out."""
        scored = []
        for k, (_, method) in enumerate(settings):
            with suppress(SettingError, DivergedError):
                scored.append((loss(self.draw(method, n, VALIDATION_SEED)), k))
        for _, k in sorted(scored):
            with suppress(DivergedError):
                return settings[k][0], self.runs(settings[k][1])
        raise SettingError(f"all {len(settings)} settings are refused or diverge")


def weighted(quick: bool) -> dict[str, AnyMethod]:
    """The two engines for laws with exact or small networks, as they come; with fewer rungs if ``quick``."""
    levels, moves = (12, 8) if quick else (40, 30)
    return {
        "SplitGibbs, gibbs": SplitGibbs(SIGMA, levels=levels, moves="gibbs"),
        "SplitGibbs, metropolis": SplitGibbs(SIGMA, levels=levels, moves="metropolis", inner_steps=20),
        "Twisted": Twisted(SIGMA**-2, moves=moves),
    }


def figures(label: str, results: Sequence[SampleResult], **distances: Sequence[float]) -> dict[str, Any]:
    """A row: each distance with its standard error over seeds, then the columns of HEALTH."""
    row: dict[str, Any] = {"method": label}
    for key, values in distances.items():
        row[key], row[f"{key}_se"] = mean_and_error(values)
    if "ess" in results[0].trace:
        row["ess"] = float(np.mean([float(r.trace["ess"].min()) for r in results]))
        row["ancestors"] = float(np.mean([len(torch.unique(r.ancestors)) for r in results]))
    row["feasible"] = float(np.mean([float(r.certificate.feasible.double().mean()) for r in results]))
    row["violation"] = max(float(r.certificate.violation.max()) for r in results)
    row["evaluations"] = results[0].cost.score_evaluations
    return row


def equally_weighted(result: SampleResult, values: Tensor) -> Tensor:
    """Values of the chains (n, ...), drawn anew by their weights."""
    index = systematic(result.weights, torch.Generator().manual_seed(0))
    return values[index]


def at_most(text: str, value: float, limit: float, style: str = ".3f") -> Claim:
    """A target from above, and whether it is met."""
    verdict = "reproduced" if value <= limit else "not reproduced"
    return Claim(text, f"at most {limit:g}", format(value, style), verdict)


def within(text: str, value: float, centre: float, slack: float) -> Claim:
    """A target with a tolerance."""
    verdict = "reproduced" if abs(value - centre) <= slack else "not reproduced"
    return Claim(text, f"{centre:.2f} ± {slack:.2f}", f"{value:.3f}", verdict)


def dots(case: str, rows: Sequence[Mapping[str, Any]], key: str, floor: float) -> list[Dot]:
    """Distances of the rows that have one, over their floor."""
    return [Dot(case, row["method"], row[key] / floor) for row in rows if key in row]
