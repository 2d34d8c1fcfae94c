"""What a check of a distribution is, what it is given, what it may spend, and the calls that it recommends."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from casal.constraints import Constraint
from casal.methods import HMC, Memory, Problem, few_chains, memory
from casal.methods.population import Lineage, WeightedRun

FEWEST = 50.0
"""Independent samples that error bars need."""

FEWEST_TESTED = 16
"""Effective ancestors that a t-test needs: with fewer, right samples are rejected more than three times in 100."""

REJECT, FOUND = 0.003, 1.645
"""Probability, over all functions of a test, below which right samples are no longer believed in; and the standard
normal quantile of 95 %, how often an error that counts as detectable is found."""

LARGEST_DETECTABLE = 1.5
"""Error of a mean, in standard deviations, that a check must be able to find before its silence counts as trust: some
20 independent samples of a Gaussian can, and 500 of modes that are ten times as far apart as they are wide."""

SMALL_BIAS, LARGEST_BIAS = 0.05, 99.0
"""Bias, in standard deviations, below which a test that rejects raises no objection; and where the estimate of a bias
by Stein's identity is cut off, which holds for small ones."""

MARGIN = 1.3
"""Factor beyond proportion in the number of chains that is recommended."""

SHARE_OF_EVALUATIONS, SHARE_OF_PROJECTIONS = 0.08, 0.2
"""Of the run's score evaluations, what the checks may add, unless ``check=`` names another share; and of the run's
projections, or of its evaluations if they are more."""

MOST_SAMPLES = 4096
"""Samples that a check looks at, evenly from all: a mean that is off by a tenth of a deviation is found."""

NOT_CHECKED = math.nan


class NotAvailable(Exception):
    """Why a check cannot be made."""


class Check(NamedTuple):
    """What one look at a run has seen. It objects where its statistic is above its limit.

    Attributes:
        value: The statistic: the larger, the worse. That of a t-test is the error that is sure, zero where the test
            rejects nothing.
        limit: What is let pass.
        says: What is wrong, with the number.
        remedy: The call that helps, and its price.
        detectable: For a test of the distribution: the error of a mean, in standard deviations, that it finds 95 times
            in 100. Infinite for the others, whose silence says nothing.
        within: The same within separate modes, in their standard deviations; it counts where their weights are known.
        figures: Name to number.
        notes: What is worth knowing and no objection.
        missing: Why the distribution could not be checked, and what it would take.
    """

    value: float = 0.0
    limit: float = math.inf
    says: str = ""
    remedy: str = ""
    detectable: float = math.inf
    within: float = math.inf
    figures: Mapping[str, float] = {}
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def objection(self) -> str:
        """What is wrong, and what helps; empty if nothing is."""
        if not self.value > self.limit:
            return ""
        return f"{self.says}{self.remedy and ': '}{self.remedy}"


@dataclass(frozen=True, eq=False)
class Evidence:
    """What a run left, which the checks look at.

    Attributes:
        run: Samples, weights, ancestors, trace and last state.
        problem: Model, set and decoder of these samples; its usage counts what the checks spend.
        evaluations: Score evaluations a chain that the run took.
        projections: Projections a chain, likewise.
        share: Of these evaluations, what the checks may add.
        starts: From numbers of chains to the points at which they began, if these are known.
    """

    run: WeightedRun
    problem: Problem
    evaluations: float = math.inf
    projections: float = math.inf
    share: float = SHARE_OF_EVALUATIONS
    starts: Callable[[Tensor], Tensor] | None = None

    @cached_property
    def everyone(self) -> Lineage:
        """Weights and ancestors of all samples."""
        return Lineage(self.run.weights, self.run.ancestors)

    @cached_property
    def index(self) -> Tensor:
        """Numbers of the samples that are looked at: as many as are looked at together elsewhere."""
        n, some = len(self.run.samples), next(few_chains(self.run.samples), slice(0, 0))
        return evenly(n, min(n, some.stop, MOST_SAMPLES)).to(self.run.samples.device)

    @cached_property
    def chains(self) -> Tensor:
        """Numbers of samples that are the first draws of their chains (``HMC``), where chains give several."""
        draw = getattr(self.run.state, "draw", None)
        return self.index if draw is None else torch.nonzero(draw == 0).flatten()[: len(self.index)]

    @cached_property
    def z(self) -> Tensor:
        """These samples, float64."""
        return self.run.samples[self.index].to(torch.float64)

    @cached_property
    def flat(self) -> Tensor:
        """The same (n, d)."""
        return self.z.flatten(1)

    @cached_property
    def lineage(self) -> Lineage:
        """Their weights and ancestors."""
        return self.everyone.some(self.index)

    @cached_property
    def constraint(self) -> Constraint:
        """Their set."""
        return self.problem.constraint.take(self.index)

    @cached_property
    def mean(self) -> Tensor:
        """Of the samples, (*event)."""
        return torch.tensordot(self.lineage.weights, self.z, dims=1)

    @cached_property
    def latents(self) -> Tensor | None:
        """Where the model was when the samples were taken, (n, *latent); None where the state has no x of its own."""
        x = getattr(self.run.state, "x", None)
        return None if x is None or len(x) != len(self.run.samples) else x[self.index]

    @cached_property
    def offset(self) -> Tensor | None:
        """A x - z for these latents x and the samples z, (n, d)."""
        if self.latents is None:
            return None
        parts = [self.problem.decode(self.latents[some]).flatten(1) for some in few_chains(self.latents)]
        decoded = torch.cat(parts).to(torch.float64)
        return decoded - self.flat if decoded.shape == self.flat.shape else None

    @cached_property
    def families(self) -> tuple[Tensor, Tensor]:
        """Numbers of the ancestors of these samples, and of the first of the samples that descends from each."""
        own = self.run.ancestors[self.index]
        ancestors, family = torch.unique(own, return_inverse=True)
        first = torch.full_like(ancestors, len(own)).scatter_reduce_(0, family, torch.arange(len(own)).to(own), "amin")
        return ancestors, self.index[first]

    @cached_property
    def since_start(self) -> Memory | None:
        """What chains of a fixed density, one of each family, know of the points at which their ancestors began."""
        moved_on = hasattr(self.run.state, "anchor")  # to other ancestors
        if self.starts is None or moved_on or not self.problem.table.static or self.latents is None:
            return None
        (ancestors, chains), labels = self.families, self.problem.groups()
        before, after = (v.flatten(1).to(torch.float64) for v in (self.starts(ancestors), self.run.state.x[chains]))
        return memory(before, after, None if labels is None else labels.to(chains.device)[chains])

    @cached_property
    def last(self) -> dict[str, float]:
        """The last value of each series of the trace."""
        return {name: float(values[-1]) for name, values in self.run.trace.items() if len(values)}

    @property
    def one_mode(self) -> bool:
        """Whether the density was seen to be constant or Gaussian on a convex set (``HMC``)."""
        return self.last.get("one_mode", 0.0) == 1.0

    @cached_property
    def rho(self) -> float | None:
        """The coupling at which a ladder ended; None for methods without one."""
        own = getattr(self.run.state, "rho", None)
        rho = self.last.get("rho", 0.0) if own is None else float(own)
        return rho if rho > 0.0 else None

    # ------------------------------------------------------------------------------------ what checks may spend

    @property
    def left(self) -> float:
        """Evaluations that checks may still use, of all chains together."""
        return self.share * self.evaluations * len(self.run.samples) - self.problem.usage.scores

    def affordable(self, evaluations: float, projections: int = 0) -> Tensor:
        """Which samples so many evaluations and projections each may be spent on.

        Raises:
            NotAvailable: Too few, and what it would take.
        """
        count = min(float(len(self.z)), self.left / evaluations)
        if projections:
            most = max(SHARE_OF_PROJECTIONS, self.share) * max(self.projections, self.evaluations)
            count = min(count, most * len(self.run.samples) / projections)
        index = evenly(len(self.z), max(0, math.floor(count))).to(self.z.device)
        if len(index) >= FEWEST_TESTED and self.lineage.some(index).effective >= FEWEST_TESTED:
            return index
        if self.lineage.effective < FEWEST_TESTED:
            ancestors = self.lineage.effective
            more = self.more_chains(FEWEST / max(ancestors, 1.0))
            raise NotAvailable(f"{ancestors:.2g} effective samples, {FEWEST_TESTED} needed: {more}")
        needed = math.ceil(100.0 * self.share * FEWEST / max(len(index), 1.0)) / 100.0
        raise NotAvailable(
            f"{100 * self.share:.0f} % of the run's model calls, what checks may use, are enough for {len(index)} "
            f"samples only: casal.sample(..., check={needed:g}), at most {100 * needed:.0f} % more model calls"
        )

    # ------------------------------------------------------------------------------------ what helps

    def more_chains(self, factor: float) -> str:
        """The call with so many times as many chains and a margin, and what it costs."""
        factor *= MARGIN
        if self.problem.chains is not None:
            return f"repeat each PerChain value and condition {math.ceil(factor)} times as often"
        n = len(self.run.samples)
        digits = 10 ** max(0, math.floor(math.log10(n * factor)) - 1)
        many = math.ceil(n * factor / digits) * digits
        return f"casal.sample(..., n={many}), {many / n:.2g} times the model calls"

    def more_steps(self, times: int = 3) -> str:
        """The call with more steps, and what it costs."""
        steps, name = times * len(self.problem.table), self.problem.target.name
        if self.problem.table.static:
            return f"casal.sample(casal.{name}(..., steps={steps}), ...), {times} times the model calls"
        return f"give the model {steps} noise levels, {times} times the model calls"

    def closer(self, times: float = 4.0) -> str:
        """The call that ends closer to the set: a ladder with so many times the rho, or another method."""
        n, fixed = len(self.run.samples), self.problem.table.static
        if self.rho is None:
            inside = "HMC" if HMC().fits(self.problem) else "WeightedCASAL" if fixed else "SplitGibbs"
            return f"casal.sample(..., casal.{inside}(), n={n}), about as many model calls"
        rho = times * self.rho
        method = f"casal.WeightedCASAL({rho:.2g})" if fixed else f"casal.SplitGibbs({rho**-0.5:.2g})"
        return f"casal.sample(..., {method}, n={2 * n}), twice the model calls"


# ------------------------------------------------------------------------------------ means that should be zero


class ZeroTest(NamedTuple):
    """What is known of columns whose means should be zero.

    Attributes:
        mean: (m,).
        error: Their standard errors, (m,).
        t: |mean| / error, corrected for skewness, (m,).
        p: Two-sided probabilities, (m,).
    """

    mean: Tensor
    error: Tensor
    t: Tensor
    p: Tensor


def zero_test(lineage: Lineage, values: Tensor, allowed: Tensor | float = 0.0, more: Tensor | float = 0.0) -> ZeroTest:
    """t-tests over ancestors, with Hall's correction (1992) for the skewness k of a mean:

        t' = t + k t^2 / 3 + k^2 t^3 / 27 + k / 6.

    Squares are skewed: without it, 10 % of tests of 32 right samples have p < 0.003. Means up to ``allowed`` count as
    zero, and ``more`` is a standard error of what was subtracted from the values.
    """
    mean, own = lineage.mean(values)
    error, beyond = torch.hypot(own, torch.as_tensor(more).to(own)), (mean.abs() - allowed).clamp_min(0.0)
    t, k = mean.sign() * beyond / error.clamp_min(torch.finfo(torch.float64).tiny), lineage.skewness(values)
    t = (t + k * t.square() / 3.0 + k.square() * t.pow(3) / 27.0 + k / 6.0).abs()
    return ZeroTest(mean, error, t, two_sided_p(t, lineage.effective - 1.0))


def two_sided_p(t: Tensor, degrees: float) -> Tensor:
    """P(|T| > |t|) for Student's T, by Wallace's normal approximation (1959), good to 1 % from 10 degrees on:

        z = (8 v + 1) / (8 v + 3) sqrt(v log(1 + t^2 / v)).

    >>> [round(float(two_sided_p(torch.tensor(t), 20.0)), 4) for t in (2.086, 3.850)]
    [0.05, 0.001]
    """
    v = max(degrees, 1.0)
    z = (8 * v + 1) / (8 * v + 3) * (v * torch.log1p(t.to(torch.float64).square() / v)).sqrt()
    return torch.erfc(z / math.sqrt(2.0))


def evenly(n: int, count: int) -> Tensor:
    """``count`` of n numbers, evenly spaced: copies of one ancestor are neighbours, so they are spread out."""
    return torch.arange(count) * n // max(count, 1)
