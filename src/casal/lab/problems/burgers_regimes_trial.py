"""Set-up C, one truth: its set, its posterior as methods want it, the law they should find, and how far they are."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from casal.constraints import Constraint
from casal.diagnostics import directions
from casal.errors import CasalWarning
from casal.lab.problems.burgers_regimes_learned import Learned, LearnedPosterior, Training
from casal.lab.problems.burgers_regimes_prior import DECODER, DIMENSION, Case, Posterior, Reference, case, reference
from casal.lab.problems.conditional_base import AnyMethod
from casal.methods import SplitGibbs, WeightedCASAL
from casal.sampling import SampleResult, sample
from casal.targets import Target

STEP = 0.2
DIRECTIONS = 48


class Scale(NamedTuple):
    """How much is run.

    Attributes:
        truths: Fresh ones, for the table.
        n: Chains.
        steps: Of the diffusion.
        ladder: Steps of the ladder in rho.
        tuning: Other truths, for the settings of baselines.
        stride: Every how manyth setting is tried.
        draws: Of every regime, for the exact law.
        learned: Of the network.
    """

    truths: int
    n: int
    steps: int
    ladder: int
    tuning: int
    stride: int
    draws: int
    learned: Training


class Model(Protocol):
    """A posterior: as a diffusion, as a denoiser for a ladder, as a fixed density."""

    def diffusion(self, steps: int) -> Target: ...
    def refined(self, steps: int) -> Target: ...
    def static(self, steps: int, step_size: float) -> Target: ...


@dataclass(frozen=True, eq=False)
class Trial:
    """One truth.

    Attributes:
        case: The truth and what is known of it.
        posterior: The exact one.
        model: What methods sample from: the exact one, or a network's.
        exact: The law on C under the exact prior.
        law: The law on C under the prior of ``model``.
        constraint: C.
    """

    case: Case
    posterior: Posterior
    model: Model
    exact: Reference
    law: Reference
    constraint: Constraint

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

    def target(self, method: AnyMethod, scale: Scale) -> Target:
        """The posterior in the form that a method wants."""
        if isinstance(method, WeightedCASAL):
            return self.model.static(scale.ladder, STEP)
        return self.model.refined(scale.steps) if isinstance(method, SplitGibbs) else self.model.diffusion(scale.steps)

    def draw(self, method: AnyMethod, scale: Scale, seed: int) -> SampleResult:
        """One run; few ancestors are in the table, not in a warning."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CasalWarning)
            target = self.target(method, scale)
            return sample(target, self.constraint, method, scale.n, decoder=DECODER, seed=seed, threads=1)

    def scores(self, result: SampleResult) -> dict[str, float]:
        """Distances to the law under the prior in use and to the exact one, reconstruction, violation, ancestors."""
        x, weights = DECODER.pinv(result.samples.to(torch.float64), (DIMENSION,)), result.weights.to(torch.float64)
        nearest = torch.cdist(x, self.posterior.means).argmin(1)  # the regimes are far apart
        shares = torch.zeros(len(self.exact.modes), dtype=torch.float64).index_add_(0, nearest, weights)
        found = {
            "reconstruction": self.reconstruction(weights @ x),
            "violation": float(result.certificate.violation.max()),
            "ancestors": float(len(torch.unique(result.ancestors))),
        }
        laws = {"": self.law} if self.law is self.exact else {"": self.law, "_exact": self.exact}
        for name, law in laws.items():
            found[f"modes{name}"] = float((shares - law.modes).abs().sum()) / 2
            found[f"sw1{name}"] = sliced(x, weights, law)
        return found

    def reconstruction(self, mean: Tensor) -> float:
        """Relative error of the mean field."""
        field = self.case.field
        return float((DECODER(mean[None])[0] - field).norm() / field.norm())


def sliced(x: Tensor, weights: Tensor, law: Reference) -> float:
    """Mean over directions of the W1 distance of the projections, in units of the spread of the law."""
    theta = directions(DIMENSION, DIRECTIONS, torch.Generator().manual_seed(0))
    values, order = torch.cat([x @ theta.T, law.x @ theta.T]).sort(dim=0)
    steps = torch.cat([weights, -law.weights])[order].cumsum(0)[:-1].abs()
    spread = float((law.weights @ (law.x - law.weights @ law.x).square()).mean().sqrt())
    return float((steps * values.diff(dim=0)).sum(0).mean()) / spread
