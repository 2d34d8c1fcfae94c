"""The second certificate of a result: how far the distribution of its samples can be trusted, in numbers.

The first certificate says that samples lie in the set. This one asks whether they follow p on the set, by checks that
need no exact answer. Each check returns figures, objections (reasons against trust) and notes (what it could not see).
What no check can know: a mode that neither a chain nor a climb has found, and a model that is itself wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from casal.constraints import Constraint, geometry
from casal.diagnostics.behind import View, inner_view, view
from casal.diagnostics.edges import has_hidden_edge, on_edge, parts_of
from casal.diagnostics.model_score import NotAvailable, finest, level_score, refuse_wrong_network, scores_at
from casal.diagnostics.modes import (
    LINE_POINTS,
    MOST_MODES,
    Modes,
    find_modes,
    jump_flow,
    line_integral,
    path_dependence,
)
from casal.diagnostics.peaks import (
    CLIMBS,
    DRAWS,
    MOST_PEAKS,
    ROUNDS,
    Misplaced,
    around,
    climb,
    find_peaks,
    misplaced,
    weigh,
    with_bulk,
)
from casal.diagnostics.renoised import Group, found_again, price_of, spaced
from casal.diagnostics.stein import SteinTerms, projections_needed, stein_terms
from casal.errors import CasalError
from casal.methods import Memory, Problem, chain_findings, few_chains, growing_share, memory
from casal.methods.equations import equations_of
from casal.methods.matheron import FIRST, SYMMETRIC, denoised_rows
from casal.methods.population import Lineage, WeightedRun, advice, population, student_quantile

Verdict = Literal["trusted", "suspect", "too few", "unchecked", "not promised"]

FEWEST, LEAST_SHARE = 50.0, 1.0 / 3.0
"""Samples are too few if they are worth fewer ancestors than this, and less than this share of the chains asked for:
the first is what error bars need, the second lets small runs pass, whose error bars are wide. Right ladders of 64
chains are worth 0.35 to 0.5 of them."""

LARGEST_DETECTABLE = 1.5
"""Error of a mean, in standard deviations, that a check must be able to find before its silence counts as trust: some
20 independent samples of a Gaussian can, and 500 of modes that are ten times as far apart as they are wide."""

FEWEST_TESTED = 16
"""Effective ancestors that a t-test needs: with fewer, right samples are rejected more than three times in 100."""

FEWEST_TO_SCALE, MARGIN = 2.0, 1.3
"""Effective ancestors from which on more chains give more of them in proportion, and the margin beyond that proportion
in the number of chains that is recommended."""

REJECT, FOUND = 0.003, 1.645
"""Probability, over all functions of a test, below which right samples are no longer believed in; and the standard
normal quantile of 95 %, how often an error that counts as detectable is found."""

SMALL_BIAS = 0.05
"""Bias, in standard deviations, below which a test that rejects raises no objection."""

LARGEST_BIAS = 99.0
"""Where the estimate of a bias by Stein's identity is cut off: it holds for small ones."""

TINY_SET = 100.0
"""A set is tiny beside the model if chains end this many times its size away from it."""

MOST_ATOMS = 0.01
"""Share of samples on the edge that is let pass, beyond two standard errors."""

MOST_NEAR_CROSSINGS = 0.012
"""Share of samples near a crossing of two pieces of a union that is let pass."""

LARGEST_SLACK_BIAS = 0.05
"""Bias by the slack, in standard deviations, that is let pass; a larger one is an objection where its test rejects."""

LEAST_KEPT = 0.25
"""Effective share of the chains after the last correction, below which few chains carry most of its weights: the chains
that should carry the rest are missing, and the error bars, which see those that are there, are too small."""

FARTHEST_FROM_RANGE = 0.03
"""Distance of samples to the range of a decoder, in units of their norm, that is let pass."""

SHARE_OF_EVALUATIONS = 0.08
"""Of the run's score evaluations, what the checks may add, unless ``check=`` names another share."""

SHARE_OF_PROJECTIONS = 0.2
"""Of the run's projections, or of its evaluations if they are more, likewise."""

MOST_SAMPLES = 20_000
"""Samples that a check looks at: more would find biases that do not matter."""

ROUNDING = 16.0
"""Spread of samples, in units of the rounding of their largest coordinate, up to which they are one point."""

IN_THE_SET = 1e-8
"""Violation up to which a sample may be on the edge; one that is farther off was put there by no projection."""

SMALL_CHANGE = 0.02
"""Share of samples that a move between modes may shift."""

SMALLEST_FLOW = 8
"""Samples that must have somewhere to go."""

PATHS_AGREE, TRIED = 0.2, 5
"""Difference of log p along two paths between modes up to which a diffusion model's score is the gradient of something
there; and one in how many samples is tried."""

PAIRS, FEWEST_PAIRS, COARSE, FINE = 64, 8, 12, 97
"""Pairs of samples, at most and at least, between which the potential is compared with the integral of the score, by
Gauss's rule with so many points; and with so many where they differ. A prime number: two rules with few points may be
wrong by the same amount where modes are narrow."""

GRADIENT_ERROR, WRONG_PAIRS = 0.1, 0.03
"""Difference of log p by potential and by score that is let pass, beside rounding, or half of what it is by the coarse
rule; and the share of pairs that may exceed it."""

MOST_NOISE_LEVELS = 3
"""Noise levels, at most, at which samples are found again."""

BETWEEN_PEAKS = 401
"""Points of the line integral of the score from one peak to another: the score turns within a narrow valley."""

PEAK_ERRORS, SMALLEST_PEAK = 5.0, 0.05
"""Standard errors, and difference in shares, from which the samples around a peak are an objection: masses are means of
weights with long tails, and many regions are looked at."""

AXES, RANDOM_DIRECTIONS = 16, 6
"""Coordinates up to which the slack and the inflation are measured along the axes; above, along random directions."""

LARGEST_SHIFT, SHIFT_ERRORS = 0.1, 4.5
"""Shift of a mean in the last round of chains, in deviations, that is let pass beyond so many standard errors."""

FAR_MOVE = 1.0
"""Standard deviations of the model by which a last projection may move samples along a direction without a note: in 36
right runs of 12 small problems it was at most 0.44."""

FEWEST_ALONE = 2
"""Starting points that come to rest in a mode without samples, from which on it counts as lost."""

NOT_CHECKED = math.nan


@dataclass(frozen=True)
class Fidelity:
    """How far the distribution of samples can be trusted.

    Attributes:
        verdict: "trusted": a check that could have found an error found none, for the modes that were found and the
            model as it is. "suspect": a check found something. "too few": the samples are worth fewer than 50 ancestors
            and less than a third of the chains. "unchecked": no check of the distribution could be made, or none had
            the power to object. "not promised": by the method.
        reasons: Sentences with the number and what helps, the gravest first; then what could not be checked. One that
            ends with a question mark is for the reader to answer, and printed whatever the verdict.
        figures: Name to number; NaN for what was not measured. ``effective_ancestors`` and ``inflation`` (squared
            standard error over that of independent samples; see ``methods/population.py``), ``on_edge`` (share of
            samples), ``slack_bias`` (in standard deviations) and ``slack_p``, ``correction_kept`` (effective share of
            the chains after the last correction), ``moved`` (root mean square of |A x - z| over the spread of z),
            ``effective_samples`` (what samples are worth of which a chain gives several),
            ``moved_deviations`` (the same in standard deviations of the model along the move, the median),
            ``moved_most`` (along the one direction in which that is most), ``range_gap`` (the same
            over the norm of z, behind a decoder), ``stein_t``, ``stein_p`` and ``stein_bias`` (``stein.py``; the bias
            in standard deviations), ``detectable`` (the
            error of a mean, in standard deviations, that the checks find 95 times in 100, in the better of the widest
            and the narrowest direction), ``not_finite`` (share of samples at which the
            score is no number), ``not_gradient`` (share of pairs of samples between which potential and score
            disagree), ``peaks``, ``peak_t`` and ``peak_error`` (``peaks.py``: how many were found, and by how much the
            share of samples around one is off), ``modes`` (clusters found), ``jump_t``, ``jump_p`` and
            ``jump_change`` (``modes.py``; the share of samples that a move between modes would shift), ``mode_error``
            (largest error of the weight of a mode, after a second pass of ``HMC``), ``memory``
            (correlation of chains with where they, or their ancestors, were before), ``start_bias`` (what is left of a
            start that does not follow the density, where chains remember it: of a mean in standard deviations, or of a
            variance) and ``refused`` (share of their
            trajectories that met too many walls, or could not be taken back), ``crossing`` (share of samples
            near a crossing of two pieces of a union), ``inside`` (share of chains whose nearest point satisfied the
            inequalities at the end of the run).
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    figures: Mapping[str, float]

    def __str__(self) -> str:
        line, asked = f"distribution {self.verdict}", [reason for reason in self.reasons[1:] if reason.endswith("?")]
        if self.verdict == "trusted":
            line = f"{line} (missed modes and model error cannot be seen){self._numbers()}"
            asked = [reason for reason in self.reasons if reason.endswith("?")]
        elif self.reasons:
            more = f" ({len(self.reasons) - 1} more in fidelity.reasons)" if len(self.reasons) > 1 else ""
            line = f"{line}: {self.reasons[0]}{more}"
        return "; ".join([line, *asked])

    def _numbers(self) -> str:
        names = ("effective_ancestors", "effective_samples", "stein_p", "detectable")
        ancestors, samples, p, least = (self.figures.get(name, math.nan) for name in names)
        shown = [f"{ancestors:.0f} effective samples"] if math.isfinite(ancestors) else []
        shown = [f"{samples:.0f} effective samples of {ancestors:.0f} chains"] if math.isfinite(samples) else shown
        shown += [f"Stein test p = {p:.2g}"] if math.isfinite(p) else []
        shown += [f"finds errors above {least:.2g} standard deviations"] if math.isfinite(least) else []
        return f"; {', '.join(shown)}"

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        figures = {name: value if math.isfinite(value) else str(value) for name, value in self.figures.items()}
        return {"verdict": self.verdict, "reasons": list(self.reasons), "figures": figures}

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Fidelity:
        """The reverse of ``plain``."""
        figures = {name: float(value) for name, value in data["figures"].items()}
        return cls(data["verdict"], tuple(data["reasons"]), figures)


class Finding(NamedTuple):
    """What one check found.

    Attributes:
        figures: Name to number.
        objections: Reasons against trust.
        notes: What is worth knowing and no reason against trust.
        missing: Why the distribution could not be checked, and what it would take.
        detectable: For a check of the distribution: the error of a mean, in standard deviations, that it finds 95 times
            in 100. Infinite for the others, whose silence says nothing.
        within: The same within separate modes, in their standard deviations; it counts where their weights are known.
    """

    figures: Mapping[str, float] = {}
    objections: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    detectable: float = math.inf
    within: float = math.inf


@dataclass(frozen=True, eq=False)
class Evidence:
    """What the checks look at.

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
        return _evenly(n, min(n, some.stop, MOST_SAMPLES)).to(self.run.samples.device)

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
    def thin(self) -> bool:
        """Whether the set, or a piece of it, has equations."""
        event = tuple(self.z.shape[1:])
        parts = parts_of(self.constraint, event)
        return parts is None or parts.surface is not None

    @cached_property
    def mean(self) -> Tensor:
        """Of the samples, (*event)."""
        return torch.tensordot(self.lineage.weights, self.z, dims=1)

    @cached_property
    def modes(self) -> Modes:
        """Clusters of the samples; one where every chain has a set or a condition of its own."""
        return find_modes(self.flat, most=MOST_MODES if self.problem.chains is None else 1)

    @cached_property
    def statistics(self) -> Tensor:
        """Heights above the mean along fixed directions and their squares, (n, m), each of spread one."""
        height = (self.flat - self.mean.flatten()) @ _fixed_directions(self.flat).T
        columns = torch.cat([height, height.square()], dim=1)
        columns = columns - self.lineage.weights @ columns
        spread = (self.lineage.weights @ columns.square()).sqrt()
        half = height.shape[1]
        told = torch.cat([spread[:half] > 1e-6 * spread[:half].max(), spread[half:] > 1e-6 * spread[half:].max()])
        rounding = ROUNDING * torch.finfo(self.run.samples.dtype).eps * float(self.flat.abs().max())
        told &= torch.cat([spread[:half], spread[half:].sqrt()]) > rounding  # one point varies by rounding alone
        return columns[:, told] / spread[told]

    def view(self, index: Tensor) -> View:
        """Some of them, where their density is known (``behind.py``)."""
        x, own = getattr(self.run.state, "x", None), self.index[index]
        latents = None if x is None or len(x) != len(self.run.samples) else x[own]
        some, y = self.lineage.some(index).weights, getattr(self.run.state, "y", None)
        inner = None if y is None or x is None else inner_view(self.problem, y[own], self.run.state.anchor, some)
        return inner or view(self.problem, self.constraint.take(index), self.z[index], some, latents)

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
        x, moved_on = getattr(self.run.state, "x", None), hasattr(self.run.state, "anchor")  # to other ancestors
        if self.starts is None or moved_on or not self.problem.table.static:
            return None
        if x is None or len(x) != len(self.run.samples):
            return None
        (ancestors, chains), labels = self.families, self.problem.groups()
        before, after = (v.flatten(1).to(torch.float64) for v in (self.starts(ancestors), x[chains]))
        return memory(before, after, None if labels is None else labels.to(chains.device)[chains])

    @cached_property
    def rho(self) -> float | None:
        """The coupling at which a ladder ended; None for methods without one."""
        last, recorded = getattr(self.run.state, "rho", None), self.run.trace.get("rho")
        if last is None and recorded is not None and len(recorded):
            last = recorded[-1]
        return None if last is None or not float(last) > 0.0 else float(last)

    @cached_property
    def offset(self) -> Tensor | None:
        """A x - z for the last x and the samples z, (n, d); None where the state has no x of its own."""
        x = getattr(self.run.state, "x", None)
        if x is None or len(x) != len(self.run.samples):
            return None
        x = x[self.index]
        decoded = torch.cat([self.problem.decode(x[some]).flatten(1).to(torch.float64) for some in few_chains(x)])
        return decoded - self.flat if decoded.shape == self.flat.shape else None


def assess(
    evidence: Evidence,
    *,
    promised: bool,
    method: str = "the method",
    way_out: str = "use another one",
    spend: bool = True,
    notes: tuple[str, ...] = (),
    objections: tuple[str, ...] = (),
) -> Fidelity:
    """Run all checks and return the verdict.

    Args:
        evidence: The run.
        promised: Whether the method promises the distribution.
        method: Its name.
        way_out: What to do where it does not promise it.
        spend: Whether checks may evaluate the score.
        notes: What was known before the run and is worth saying.
        objections: Reasons against trust that were known before the run.
    """
    if len(evidence.z) < 2 or not bool(torch.isfinite(evidence.z).all()):
        lost = int((~torch.isfinite(evidence.flat)).any(1).sum())
        objections += (f"{lost} of {len(evidence.z)} samples are not finite; use smaller steps",) if lost else ()
        return _verdict(evidence, promised, method, way_out, 0.0, [Finding(objections=objections, notes=notes)])
    ancestors = evidence.everyone.effective
    found = [Finding(objections=objections, notes=notes)]
    found += [
        check(evidence)
        for check in (atoms, decoder_range, correction, crossings, remembered, inside, degenerate, genealogy)
    ]
    far = found[2].objections  # behind a decoder that cannot reach the set, no slack is small
    found.append(slack(evidence)._replace(objections=()) if far else slack(evidence))
    if not spend:
        share = 100 * SHARE_OF_EVALUATIONS
        call = f"casal.sample(..., check=True), at most {share:.0f} % more model calls"
        found.append(Finding(missing=(f"the samples were not compared with the score (check=False): {call}",)))
    elif promised:
        again = renoised(evidence)
        found += [again] if again else _by_potential(found, stein(evidence), gradient(evidence))
        found += [unforgotten(evidence), displacement(evidence), peaks(evidence)]
        found += [jump(evidence)] if ancestors >= FEWEST_TESTED else []
    return _verdict(evidence, promised, method, way_out, ancestors, found)


def _by_potential(before: list[Finding], by_score: Finding, agreement: Finding) -> list[Finding]:
    """Where potential and score disagree, and moves that need the potential alone leave the samples as they are.

    These follow the potential, and Stein's identity, which takes the score for its gradient, says nothing.
    """
    if not agreement.objections or min(found.detectable for found in before) > LARGEST_DETECTABLE:
        return [by_score, agreement]
    sentence = (
        f"{agreement.objections[0].partition(':')[0]}; the samples follow the potential, by moves that use it alone"
    )
    return [Finding(by_score.figures), Finding(agreement.figures, notes=(sentence,))]


def _verdict(
    evidence: Evidence, promised: bool, method: str, way_out: str, ancestors: float, found: list[Finding]
) -> Fidelity:
    objections = tuple(sentence for finding in found for sentence in finding.objections)
    missing = tuple(sentence for finding in found for sentence in finding.missing)
    notes = tuple(sentence for finding in found for sentence in finding.notes)
    figures = {name: float(value) for finding in found for name, value in finding.figures.items()}
    weighed = figures.get("peaks", 0.0) >= figures.get("modes", math.inf) or any(
        math.isfinite(figures.get(name, math.nan)) for name in ("jump_p", "mode_error")
    )
    figures["detectable"] = least = min(
        (min(finding.detectable, finding.within if weighed else math.inf) for finding in found), default=math.inf
    )
    if not promised:
        first = f"{method} does not promise the distribution; {way_out}"
        return Fidelity("not promised", (first, *objections, *missing, *notes), figures)
    if objections:
        return Fidelity("suspect", objections + missing + notes, figures)
    if ancestors < min(FEWEST, LEAST_SHARE * len(evidence.run.samples)):
        return Fidelity("too few", (_too_few(evidence, ancestors), *missing, *notes), figures)
    if not least <= LARGEST_DETECTABLE:
        weak = (_weak(evidence, least),) if math.isfinite(least) else ()
        return Fidelity("unchecked", weak + missing + notes, figures)
    return Fidelity("trusted", missing + notes, figures)


def _weak(evidence: Evidence, least: float) -> str:
    """What the checks could have found, and how many chains would be enough."""
    return (
        f"the checks find errors of a mean above {least:.2g} standard deviations only, {LARGEST_DETECTABLE:g} are "
        f"needed: {_more_chains(evidence, (least / LARGEST_DETECTABLE) ** 2)}"
    )


def _too_few(evidence: Evidence, ancestors: float) -> str:
    """How many effective samples there are, and how many chains would give enough; else what helps."""
    n = len(evidence.run.samples)
    needed = math.ceil(min(FEWEST, LEAST_SHARE * n))
    shown = min(round(ancestors, 1), needed - 0.1)
    said = f"{shown:g} effective sample{'s' * (shown != 1.0)} of {n} chains, {needed} needed"
    if ancestors < FEWEST_TO_SCALE < n:
        return (
            f"{said}: nearly all samples descend from one start, so more chains alone will not help; use more steps, "
            "or starting points nearer to the set (init=)"
        )
    return f"{said}: {_more_chains(evidence, FEWEST / max(ancestors, 1.0))}"


def _more_chains(evidence: Evidence, factor: float) -> str:
    """The call with enough chains, so many times as many and a margin, and what it costs."""
    factor *= MARGIN
    if evidence.problem.chains is not None:
        return f"repeat each PerChain value and condition {math.ceil(factor)} times as often"
    n = len(evidence.run.samples)
    digits = 10 ** max(0, math.floor(math.log10(n * factor)) - 1)
    many = math.ceil(n * factor / digits) * digits
    return f"casal.sample(..., n={many}), {many / n:.2g} times the model calls"


# ------------------------------------------------------------------------------------ checks without evaluations


def genealogy(evidence: Evidence) -> Finding:
    """How many independent starting chains the samples are worth."""
    lineage = evidence.lineage
    figures = {
        "effective_ancestors": evidence.everyone.effective,
        "inflation": lineage.inflation(evidence.statistics),
    }
    if len(evidence.chains) < len(evidence.index):  # several draws of a chain
        figures["effective_samples"] = len(evidence.run.samples) / max(1.0, figures["inflation"])
    offset = evidence.offset
    if offset is not None:
        spread = lineage.weights @ (evidence.flat - evidence.mean.flatten()).square().sum(1)
        figures["moved"] = math.sqrt(float(lineage.weights @ offset.square().sum(1)) / max(float(spread), 1e-300))
    return Finding(figures)


def degenerate(evidence: Evidence) -> Finding:
    """What the weights along the run say."""
    sentences = tuple(advice(evidence.run))
    if population(evidence.run).split:
        return Finding(objections=sentences)
    return Finding(notes=sentences)


def atoms(evidence: Evidence) -> Finding:
    """Share of samples on the edge of the set; right samples have none there. Samples outside are on no edge."""
    if hasattr(evidence.run.state, "refused"):  # chains that live inside, and are projected onto no edge
        return Finding({"on_edge": 0.0})
    edge = on_edge(evidence.constraint, evidence.z, evidence.mean)
    edge &= evidence.constraint.violation(evidence.z) <= IN_THE_SET
    share = evidence.lineage.mean(edge[:, None])
    value, error = float(share.value), float(share.standard_error)
    inside = evidence.run.trace.get("inside")
    figures = {"on_edge": value} if inside is None else {"on_edge": value, "inside": float(inside[-1])}
    if value <= MOST_ATOMS + 2.0 * error:
        return Finding(figures)
    return Finding(
        figures,
        objections=(
            f"{100 * value:.3g} % of the samples lie exactly on the edge of the set, which has "
            f"probability zero: the last projection put them there; {_against_atoms(evidence)}",
        ),
    )


def _against_atoms(evidence: Evidence) -> str:
    """What helps against samples on the edge: all of them at one point, or on a set that is tiny beside the model."""
    z = evidence.z.to(torch.float64).flatten(1)
    size = float((z - z.mean(0)).square().sum(1).mean().sqrt())
    left = 0.0 if evidence.offset is None else float(evidence.offset.square().sum(1).mean().sqrt())
    if len(z) > 1 and bool((z == z[0]).all()):
        return (
            f"all {len(z)} samples are the same point: the set lies far out in the tail of the model; start the chains "
            "in it (init=) and use more of them"
        )
    if 0.0 < TINY_SET * size < left:
        return (
            f"the set is about {size:.1g} wide, and chains end {left:.1g} away from it: it is tiny beside the model; "
            f"use casal.WeightedCASAL(rho={(10.0 / size) ** 2:.0e}) and more steps"
        )
    return _closer(evidence)


def _closer(evidence: Evidence, times: float = 4.0) -> str:
    """The call that ends closer to the set, and its cost: a ladder with so many times the rho, or another method."""
    n = len(evidence.run.samples)
    if evidence.rho is None:
        inside = "casal.HMC()" if evidence.problem.table.static else "casal.SplitGibbs()"
        return f"casal.sample(..., {inside}, n={n}), about as many model calls"
    rho, fixed = times * evidence.rho, evidence.problem.table.static
    method = f"casal.WeightedCASAL({rho:.2g})" if fixed else f"casal.SplitGibbs({rho**-0.5:.2g})"
    return f"casal.sample(..., {method}, n={2 * n}), twice the model calls"


def slack(evidence: Evidence) -> Finding:
    """Bias of a ladder that ends at a finite rho, from the population itself reweighted to a smaller rho:

        weight = exp((rho - rho/r)/2 |A x - z|^2),      bias = (E_{rho/r} f - E_rho f) / (r - 1),

    since the bias is proportional to 1/rho near its limit. A finish that corrects for rho leaves none: the offset
    A x - z is then independent of z, and weights that depend on it alone do not move the samples. A t-test over
    ancestors says whether they do.
    """
    rho, offset = evidence.rho, evidence.offset
    if rho is None or offset is None:
        return Finding()
    lineage, f = evidence.lineage, evidence.statistics
    half = offset.square().sum(1) / 2
    ratio = 1.0 + 0.5 / math.sqrt(max(1.0, 2.0 * rho * float(lineage.weights @ half)))
    change = torch.exp(rho * (1.0 - 1.0 / ratio) * (half - half.max()))
    change = change / (lineage.weights @ change)
    there = lineage.weights @ (change[:, None] * f)
    influence = change[:, None] * (f - there) - f
    bias = there.abs() / (ratio - 1.0)
    error = lineage.mean(influence).standard_error / (ratio - 1.0)
    if not len(bias):
        return Finding()
    t = bias / error.clamp_min(torch.finfo(torch.float64).tiny)
    p = (two_sided_p(t, lineage.effective - 1.0) * len(t)).clamp_max(1.0)
    told = (bias > LARGEST_SLACK_BIAS) & torch.isfinite(p)
    figures = {"slack_bias": float(bias.max()), "slack_p": float(p[told].min()) if bool(told.any()) else 1.0}
    if figures["slack_p"] >= REJECT:
        return Finding(figures)
    sure = float(bias[told & (p < REJECT)].max())
    closer = _closer(evidence, max(2.0, sure / LARGEST_SLACK_BIAS))
    return Finding(
        figures,
        objections=(
            f"the run ends at the coupling rho = {rho:.3g}, which shifts a mean by about {sure:.2g} standard "
            f"deviations (p = {figures['slack_p']:.1g}): {closer}",
        ),
    )


def correction(evidence: Evidence) -> Finding:
    """Whether the ladder ended so close to the set that chains could be weighted for the distance that is left.

    If not, ``slack`` and ``stein`` test what the distance does. The effective share of the chains that these weights
    leave is counted among those inside the set.
    """
    made = evidence.run.trace.get("corrected")
    if made is None:
        return Finding()
    if not float(made[-1]) > 0.0:
        return Finding(
            notes=(
                "the last correction, for the distance that is left between chains and set, was not made, because it "
                "would have left too few chains; what it leaves is tested by the slack and by the score",
            )
        )
    inside, size = (evidence.run.trace.get(name) for name in ("inside", "finish_ess"))
    if inside is None or size is None or not float(inside[-1]) > 0.0:
        return Finding()
    kept = min(1.0, float(size[-1]) / (len(evidence.run.samples) * float(inside[-1])))
    if kept >= LEAST_KEPT:
        return Finding({"correction_kept": kept})
    return Finding(
        {"correction_kept": kept},
        objections=(
            "the last correction, for the distance that is left between chains and set, leaves "
            f"{100 * kept:.2g} % of the chains: few carry most of the weight, and error bars are too small: "
            f"{_closer(evidence)}",
        ),
    )


def crossings(evidence: Evidence) -> Finding:
    """Share of samples near a crossing of two pieces of a union, where a ladder leaves a gap as wide as its slack."""
    share = evidence.run.trace.get("crossing")
    if share is None:
        return Finding()
    figures = {"crossing": float(share[-1])}
    if figures["crossing"] <= MOST_NEAR_CROSSINGS:
        return Finding(figures)
    return Finding(
        figures,
        objections=(
            f"{100 * figures['crossing']:.2g} % of the samples lie within 2 / sqrt(rho) of another piece of the union, "
            f"where pieces that cross are counted once: {_closer(evidence)}, or sample each piece alone",
        ),
    )


def remembered(evidence: Evidence) -> Finding:
    """Whether chains that move on their own have forgotten where they were, by their ``anchor`` (``HMC``).

    Of the chains of other methods, what they know of their start is a figure; ``unforgotten`` asks whether it matters.
    Where a second pass has weighed the modes, its chains follow p when adaptation ends, and their ancestors are its
    independent draws: they may stay in their modes, and move slowly.
    """
    anchor = getattr(evidence.run.state, "anchor", None)
    if anchor is None or len(anchor) != len(evidence.run.samples):
        return Finding() if evidence.since_start is None else Finding({"memory": evidence.since_start.value})
    trace, labels, chains = evidence.run.trace, evidence.problem.groups(), evidence.chains
    weighed = float(trace["weighed"][-1]) if "weighed" in trace else NOT_CHECKED
    if labels is not None:
        labels = labels.to(chains.device)[chains]
    elif weighed == 1.0:
        labels = evidence.run.state.part[chains]
    figures = {"mode_error": float(trace["mode_error"][-1])} if weighed == 1.0 else {}
    notes = _tempered_notes(trace) if weighed != 1.0 else ()
    found = memory(anchor[chains], evidence.run.state.y[chains], labels)
    if found is None:
        few = "too few chains to check whether they have forgotten their start"
        return Finding({"memory": NOT_CHECKED} | figures, notes=(few, *notes))
    figures |= {"memory": found.value} | ({"refused": float(trace["refused"][-1])} if "refused" in trace else {})
    draws, shift, objections = float(trace["mode_draws"][-1]) if weighed == 1.0 else math.inf, 0.0, list[str]()
    if draws < FEWEST:
        objections.append(
            f"the weights of separate modes have an error of {figures['mode_error']:.2g}, that of {draws:.0f} "
            "independent draws; use more chains or more steps"
        )
    if weighed == 0.0 and float(trace["alone"][-1]) >= FEWEST_ALONE:
        objections.append(
            f"{float(trace['alone'][-1]):.0f} starting points that were followed alone end in a mode where there is no "
            "sample, whose weight could not be found; use more chains or more steps"
        )
    if found.value > found.limit and weighed != 1.0:
        objections.append(
            f"the chains have not forgotten where they were when adaptation ended (correlation {found.value:.2f}): "
            "they move too slowly, or stay in their modes, whose weights are not known; "
            + _way_to_weights(evidence, weighed)
        )
    elif (grown := _grown(evidence)) is not None:
        objections.append(
            f"a cluster that held {100 * grown[0]:.2g} % of the samples when adaptation ended holds "
            f"{100 * grown[1]:.2g} %, and may still grow: {_longer(evidence.problem)}"
        )
    elif (shift := _last_shift(evidence)) > LARGEST_SHIFT:
        objections.append(
            f"a mean moved by {shift:.2g} standard deviations in the last half of the run: {_longer(evidence.problem)}"
        )
    return Finding(figures, objections=tuple(objections), notes=notes)


def _tempered_notes(trace: Mapping[str, Tensor]) -> tuple[str, ...]:
    """What a tempered start (``HMC``) that failed means."""
    if "tempered" not in trace or float(trace["tempered"][-1]):
        return ()
    return (
        f"the tempered start failed: {float(trace['tempered_ancestors'][-1]):.0f} effective samples are left, too few, "
        "or its chains are slow from the first; separate modes may have been missed; use more chains, more steps, or a "
        "start closer to the density",
    )


def inside(evidence: Evidence) -> Finding:
    """What chains inside a set say of themselves: R-hat, a second kind of move, walls (``methods/chain_memory.py``)."""
    found = chain_findings(evidence.run.trace)
    return Finding(found.figures, found.objections, found.notes, detectable=found.detectable)


def _way_to_weights(evidence: Evidence, weighed: float) -> str:
    """What gives the weights of modes between which chains do not cross."""
    if evidence.problem.target.potential is None:
        return "use casal.energy, or casal.langevin(..., potential=...)"
    if weighed == 0.0:
        return "a mixture of Gaussians around them missed a part of the samples; use more chains or more steps"
    return _longer(evidence.problem)


def _grown(evidence: Evidence) -> tuple[float, float] | None:
    """The share of a cluster of chains when adaptation ended and now, where it fills up."""
    if evidence.problem.groups() is not None or evidence.problem.chains is not None:
        return None
    return growing_share(*(getattr(evidence.run.state, name)[evidence.chains] for name in ("anchor", "before", "y")))


def _last_shift(evidence: Evidence) -> float:
    """How far the mean of a coordinate of the chains moved in their last round, beyond chance, in deviations."""
    before, after = (getattr(evidence.run.state, name)[evidence.chains] for name in ("before", "y"))
    spread = after.std(0).clamp_min(1e-300)
    chance = SHIFT_ERRORS * ((after - before).std(0) / spread) / math.sqrt(len(after))
    return float(((after - before).mean(0).abs() / spread - chance).max())


def decoder_range(evidence: Evidence) -> Finding:
    """|A x - z| / |z|: how far samples are from what the decoder can produce."""
    decoder, offset, latent = evidence.problem.decoder, evidence.offset, math.prod(evidence.problem.latent)
    if decoder.identity or offset is None or (decoder.linear and evidence.flat.shape[1] <= latent):
        return Finding()
    weights = evidence.lineage.weights
    size = float(weights @ evidence.flat.square().sum(1))
    gap = math.sqrt(float(weights @ offset.square().sum(1)) / max(size, 1e-300))
    figures = {"range_gap": gap}
    if gap <= FARTHEST_FROM_RANGE:
        return Finding(figures)
    return Finding(
        figures,
        objections=(
            f"the samples lie {100 * gap:.3g} % of their norm away from the decoder's range (|A x - z| / |z|): "
            f"{_closer(evidence)}, or a set that meets the decoder's range",
        ),
    )


# ------------------------------------------------------------------------------------ one or two evaluations


def stein(evidence: Evidence) -> Finding:
    """Whether Stein's identity holds for the samples (``stein.py``), by t-tests over ancestors."""
    figures = {"stein_t": NOT_CHECKED, "stein_p": NOT_CHECKED, "stein_bias": NOT_CHECKED}
    try:
        return _stein(evidence)
    except (NotAvailable, CasalError) as reason:
        return Finding(figures, missing=(f"the samples were not compared with the score: {reason}",))


def _stein(evidence: Evidence) -> Finding:
    problem, event = evidence.problem, tuple(evidence.z.shape[1:])
    if evidence.constraint.convex and geometry.codimension(evidence.constraint, event) == evidence.flat.shape[1]:
        return Finding(detectable=0.0)  # one point, where nothing can be wrong
    if bool((evidence.flat == evidence.flat[:1]).all()):
        raise NotAvailable("the samples are all equal")
    if has_hidden_edge(evidence.constraint, evidence.z, evidence.mean):
        raise NotAvailable("the set has an edge but gives no inequalities; write it with inequalities (casal.Implicit)")
    projections = projections_needed(evidence.flat.shape[1]) if evidence.thin else 0
    index = _affordable(evidence, 1.0 if problem.table.static else 2.0, projections)
    lineage, seen = evidence.lineage.some(index), evidence.view(index)
    points, nearest, factor = seen.points, seen.shape.project, seen.shape.factor
    found_at = scores_at(problem.take(evidence.index[index]), seen.latent(points), _left(evidence))
    score = [seen.pull(one).flatten(1) for one in found_at]
    known = torch.stack([torch.isfinite(one).all(1) for one in score]).all(0)
    if not bool(known.all()):
        return _no_number(evidence, 1.0 - float(lineage.weights @ known.to(torch.float64)))

    def project(y: Tensor) -> Tensor:
        assert nearest is not None
        problem.usage.add_projections(len(y))
        return nearest(y.reshape(points.shape)).flatten(1)

    edge = None if factor is None else lambda y: factor(y.reshape(points.shape))
    terms = partial(stein_terms, points.flatten(1), score, lineage, None if nearest is None else project)
    tests, modes = terms(edge), evidence.modes
    if not tests:
        raise NotAvailable(_not_known(problem))
    apart = list[SteinTerms]()
    if modes.number > 1 and seen.same:
        modes = modes._replace(label=modes.label[index])
        walls = modes.walls
        both = walls if edge is None else lambda y: torch.minimum(edge(y), walls(y))
        apart = terms(both, modes.centres[modes.label])
    every, tests = len(tests), [*tests, *apart]
    found = [_zero_test(test.lineage, test.values) for test in tests]
    count = sum(test.values.shape[1] for test in tests)
    p, t = torch.cat([one.p for one in found]), torch.cat([one.t for one in found])
    bias = torch.cat([one.mean.abs() * test.scale for one, test in zip(found, tests, strict=True)])
    told = (p * count < REJECT) & (bias >= SMALL_BIAS)
    worst = int(torch.where(told, p, torch.inf).argmin()) if bool(told.any()) else int(p.argmin())
    figures = {
        "stein_t": float(t[worst]),
        "stein_p": min(1.0, float(p[worst]) * count),
        "stein_bias": float(bias[worst].clamp_max(LARGEST_BIAS)),
    }
    needed = student_quantile(REJECT / count, lineage.effective - 1.0) + FOUND
    least, within = (
        needed * float((found[k].error * tests[k].scale)[:2].min()) if k < len(tests) else math.inf  # along two axes
        for k in (0, every)
    )
    if not bool(told.any()):
        return Finding(figures, detectable=least, within=within)
    refuse_wrong_network(problem, tests[0].levels, _left(evidence))
    return Finding(
        figures,
        objections=(
            f"the samples do not follow the score (Stein's identity fails by {figures['stein_t']:.1f} standard errors, "
            f"p = {figures['stein_p']:.1g}; a mean may be off by {figures['stein_bias']:.2g} standard deviations): "
            f"{_longer(problem)}{_or_closer(evidence)}{_or_model(problem)}",
        ),
        detectable=least,
        within=within,
    )


def renoised(evidence: Evidence) -> Finding | None:
    """Whether the network, told the equations, finds the samples again under noise (``renoised.py``).

    For chains that keep the samples of the model which they started from (``Matheron``), on linear equations.
    """
    problem, state, n = evidence.problem, evidence.run.state, len(evidence.run.samples)
    seen = {name: float(values[-1]) for name, values in evidence.run.trace.items() if len(values)}
    if not {"first level", "asymmetry"} <= seen.keys() or problem.target.condition or n < FEWEST_TESTED:
        return None
    found, kinds = equations_of(problem), state.kind.unique()
    if found.curved or not found.count:
        return None
    x = (evidence.run.samples if problem.identity else state.x).flatten(1).to(torch.float64)
    free = state.free.flatten(1).to(torch.float64)
    home = torch.where(torch.isin(state.home, kinds), state.home, state.kind.mode().values)
    groups = Group(x, found.level.expand(n, -1), state.kind), Group(free, found.times(free), home)
    price = price_of(found.count, state.kind)
    count = int(min(MOST_NOISE_LEVELS, _left(evidence) // price))
    if count < 1:
        share = math.ceil(100.0 * price / (evidence.evaluations * n) + 1.0) / 100.0
        call = f"casal.sample(..., check={share:g}), at most {100 * share:.0f} % more model calls"
        return Finding(missing=(f"the samples were not found again under noise: {call}",))
    last, stream, ask = finest(problem), torch.Generator(x.device).manual_seed(4251), partial(denoised_rows, problem)
    unknown = float(state.error.flatten(1).to(torch.float64).square().sum(1).mean())
    levels = [
        found_again(ask, *groups, found.matrix, s, unknown, stream)
        for s in spaced(max(last, seen["first level"] / FIRST), last, count)
    ]
    names = [f"{name}, at noise {one.level:.2g}" for one in levels for name in one.names]
    columns = zip(*((one.samples, one.free, one.allowed, one.local) for one in levels), strict=True)
    own, other, allowed, local = (torch.cat(part, -1) for part in columns)
    everyone, twin = evidence.everyone, Lineage(torch.full((n,), 1.0 / n).to(x), torch.arange(n, device=x.device))
    tests = [_zero_test(everyone, own, allowed)]
    if seen["asymmetry"] > SYMMETRIC:
        model = twin.mean(other)
        tests = [
            _zero_test(everyone, own, allowed, local),
            _zero_test(everyone, own - model.value, allowed, torch.hypot(local, model.standard_error)),
        ]
    p = torch.stack([test.p for test in tests]).amax(0)
    worst, chance = int(p.argmin()), min(1.0, float(p.min()) * len(p))
    figures = {"found_again_p": chance, "found_again_t": min(float(test.t[worst]) for test in tests)}
    figures |= {name: seen[name] for name in ("asymmetry", "mode_error") if name in seen}
    needed = student_quantile(REJECT / len(p), everyone.effective - 1.0) + FOUND
    if len(tests) == 1:
        levels = [one._replace(local=torch.zeros_like(one.local)) for one in levels]
    least = {"detectable" if len(kinds) == 1 else "within": min(one.finds(needed, len(tests)) for one in levels)}
    if chance >= REJECT:
        return Finding(figures, **least)
    return Finding(
        figures,
        objections=(
            "noised and denoised with the equations, the samples are not found again as those of the model are "
            f"({names[worst]}, p = {chance:.1g}): use more levels, or casal.calibrate(target, family, method, n=64), "
            "which says how far the method is off on this model",
        ),
        **least,
    )


def _not_known(problem: Problem) -> str:
    """Why no direction could be tested."""
    if problem.table.static:
        return "the samples do not vary"
    return (
        "the model's scores at neighbouring noise levels differ by more than 20 % along every direction, so its score "
        "without noise is not known; casal.calibrate(target, family, method, n=64) checks the method on this model, "
        "at the price of three such runs"
    )


def _no_number(evidence: Evidence, share: float) -> Finding:
    """What is wrong with a model whose score is no number at some of its samples."""
    figures = {"stein_t": NOT_CHECKED, "stein_p": NOT_CHECKED, "stein_bias": NOT_CHECKED, "not_finite": share}
    return Finding(
        figures,
        objections=(
            f"the score is not a finite number at {100 * share:.2g} % of the samples: the density ends inside the set, "
            "or a projection put them where it has no value; use a set on which the density is defined, or "
            "casal.sample(..., casal.HMC()), which moves inside it",
        ),
    )


def gradient(evidence: Evidence) -> Finding:
    """Whether the score is the gradient of the log-density: their rises between pairs of samples.

        log p(y) - log p(z) = integral of s . (y - z) along the line from z to y

    by Gauss's rule. A step in an energy, or a score of another potential, differs.
    """
    problem = evidence.problem
    if problem.target.potential is None or not problem.table.static:
        return Finding()
    pairs = int(min(PAIRS, len(evidence.z) // 2, _left(evidence) / (COARSE + 2)))
    if pairs < FEWEST_PAIRS:
        return Finding()
    try:
        some = _evenly(len(evidence.z), 2 * pairs).to(evidence.z.device)
        seen = evidence.view(some)
    except (NotAvailable, CasalError):
        return Finding()
    x = seen.latent(seen.points).to(problem.like.dtype)
    here, there = problem.take(evidence.index[some[:pairs]]), problem.take(evidence.index[some[pairs:]])
    z, y = x[:pairs], x[pairs:]
    height, other = here.log_density(z), there.log_density(y)
    rise = other - height
    rounding = 64.0 * torch.finfo(x.dtype).eps * (height.abs() + other.abs() + 1.0)
    gap = rise - _line_integral(here, z, y, COARSE)
    off = ~(gap.abs() <= GRADIENT_ERROR + rounding)
    some = torch.nonzero(off).flatten()
    if len(some) and float(len(some) * FINE) <= _left(evidence):  # a rule that is too coarse improves with its points
        finer = rise[some] - _line_integral(here.take(some), z[some], y[some], FINE)
        off[some] = ~(finer.abs() <= torch.maximum(GRADIENT_ERROR + rounding[some], gap[some].abs() / 2))
    elif len(some):
        return Finding()
    share = float(off.to(torch.float64).mean())
    figures = {"not_gradient": share}
    if share <= WRONG_PAIRS:
        return Finding(figures)
    return Finding(
        figures,
        objections=(
            f"the score is not the gradient of the log-density: between {100 * share:.2g} % of {pairs} pairs of "
            f"samples they differ by up to {float(gap[off].abs().max()):.2g}; an energy with a "
            "step has a gradient that does not know of it: smooth the step, or give potential= and grad of one density",
        ),
    )


def _line_integral(problem: Problem, z: Tensor, y: Tensor, points: int) -> Tensor:
    """The integral of the score along the lines from z to y, (n,), by Gauss's rule."""
    places, weights = np.polynomial.legendre.leggauss(points)
    total = torch.zeros(len(z), dtype=torch.float64, device=z.device)
    for place, weight in zip(((1.0 + places) / 2.0).tolist(), (weights / 2.0).tolist(), strict=True):
        slope = level_score(problem, z + place * (y - z))
        total += weight * (slope * (y - z)).flatten(1).sum(1)
    return total


def displacement(evidence: Evidence) -> Finding:
    """How far the last projection moved the samples, in standard deviations of the model: in all, and along directions.

        d^2 = -(x - z) . (s(x) - s(z)),       the squared length of x - z by the curvature of -log p between them,
        M   = -E[sym((x - z) (s(x) - s(z))^T)],       trace M = E d^2.

    Where moves and curvatures have the same directions, an eigenvalue of M is the mean square of the moves along one, a
    normal of the set, in units of the model's variance along it: so it is large where the model is narrow.
    """
    x = getattr(evidence.run.state, "x", None)
    if x is None or len(x) != len(evidence.run.samples) or _left(evidence) < 2.0:
        return Finding()
    try:
        index = _evenly(len(evidence.z), int(min(PAIRS, len(evidence.z), _left(evidence) / 2))).to(evidence.z.device)
        seen = evidence.view(index)
        if not (seen.pointwise and seen.same):
            return Finding()
        own = evidence.problem.take(evidence.index[index])
        z, moved = seen.latent(seen.points), x[evidence.index[index]].to(torch.float64)
        rise = (level_score(own, moved) - level_score(own, z)).flatten(1)
    except (NotAvailable, CasalError):
        return Finding()
    move = (moved - z).flatten(1)
    square = -(move * rise).sum(1)
    figures, known = {"moved_deviations": float(square.clamp_min(0.0).nanmedian().sqrt())}, torch.isfinite(square)
    if not bool(known.any()):
        return Finding(figures)
    basis = torch.linalg.qr(torch.cat([move[known], rise[known]]).T).Q
    product = -(move[known] @ basis).T @ (rise[known] @ basis) / int(known.sum())
    values, axes = torch.linalg.eigh((product + product.T) / 2.0)
    figures["moved_most"] = math.sqrt(max(0.0, float(values[-1])))
    if figures["moved_most"] <= FAR_MOVE:
        return Finding(figures)
    loads = (basis @ axes[:, -1]).square()
    event, most = tuple(moved.shape[1:]), int(loads.argmax())
    place = ", ".join(str(int(k)) for k in np.unravel_index(most, event))
    sentence = (
        f"the last projection moved the samples by {figures['moved_most']:.2g} standard deviations of the model along "
        f"one direction, {100 * float(loads[most]):.0f} % of it coordinate [{place}]"
    )
    return Finding(figures, notes=(sentence,))


def unforgotten(evidence: Evidence) -> Finding:
    """Whether chains remember a start that is no draw of p, by Stein's identity at the starting points x0.

    Let v be the direction in which they remember most, h = v . x of variance one over the chains x, and w = cov(x) v,
    so that v . w = 1. Then for draws x0 of p

        E[s(x0) . w] = 0   and   E[(s(x0) . w) (h(x0) - E h(x0)) + 1] = 0.

    If p is Gaussian, these are off by the shift of the mean of h and by the excess of its variance at the start, of
    which chains keep the shares b and b^2, b their regression on the start. A right start may be remembered.
    """
    found, problem, starts = evidence.since_start, evidence.problem, evidence.starts
    if found is None or starts is None or found.value <= found.limit or problem.chains is not None:
        return Finding()
    count = int(min(len(evidence.index), max(0.0, _left(evidence))))
    if count < FEWEST_TESTED:
        return Finding()
    (ancestors, chains), x = evidence.families, starts(evidence.index[_evenly(len(evidence.index), count)])
    x0, begun, ended = (v.flatten(1).to(torch.float64) for v in (x, starts(ancestors), evidence.run.state.x[chains]))
    begun, ended = (x - x.mean(0) for x in (begun, ended))
    first, last = begun @ found.direction, ended @ found.direction
    b, w = float(first @ last / first.square().sum()), last @ ended / last.square().sum()
    slope, h = level_score(problem, x).flatten(1).to(torch.float64) @ w, x0 @ found.direction
    known = torch.isfinite(slope)
    columns = torch.stack([b * slope, b**2 * (slope * (h - h.mean()) + 1.0)], 1)[known]
    if len(columns) < FEWEST_TESTED:
        return Finding()
    off = _zero_test(Lineage(torch.ones_like(h[known]), torch.arange(len(columns), device=h.device)), columns)
    told = off.p * 2 < REJECT
    figures = {"start_bias": float(torch.where(told, off.mean.abs(), 0.0).max().clamp_max(LARGEST_BIAS))}
    remembers = f"the chains remember where they began (correlation {found.value:.2f} along one direction)"
    if figures["start_bias"] <= LARGEST_SHIFT:
        return Finding(figures, notes=(f"{remembers}; the score at the start objects to nothing along it",))
    return Finding(
        figures,
        objections=(
            f"{remembers}, and the start does not follow the density along it (Stein's identity fails there by "
            f"{float(off.t[told].max()):.1f} standard errors): {_longer(problem)}, or start from samples of the "
            "density (init=)",
        ),
    )


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


def _zero_test(lineage: Lineage, values: Tensor, allowed: Tensor | float = 0.0, more: Tensor | float = 0.0) -> ZeroTest:
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


def _longer(problem: Problem, times: int = 3) -> str:
    """The call with more steps, and what it costs."""
    steps, name = times * len(problem.table), problem.target.name
    if problem.table.static:
        return f"casal.sample(casal.{name}(..., steps={steps}), ...), {times} times the model calls"
    return f"give the model {steps} noise levels, {times} times the model calls"


def _or_closer(evidence: Evidence) -> str:
    """What else may help a ladder that was not corrected for the distance that is left."""
    corrected = evidence.run.trace.get("corrected")
    if evidence.rho is None or (corrected is not None and float(corrected[-1]) > 0.0):
        return ""
    return f"; or {_closer(evidence)}"


def _or_model(problem: Problem) -> str:
    if problem.table.static:
        return ""
    return ", or check the model's score at small noise (casal.diagnostics.calibration)"


def jump(evidence: Evidence) -> Finding:
    """Whether the weights of the modes are right (``modes.py``), by a t-test over ancestors."""
    figures = {"modes": float(evidence.modes.number)}
    if evidence.modes.number < 2:
        return Finding(figures)
    try:
        return _jump(evidence)
    except (NotAvailable, CasalError) as reason:
        figures |= {"jump_t": NOT_CHECKED, "jump_p": NOT_CHECKED, "jump_change": NOT_CHECKED}
        if float(evidence.run.trace.get("weighed", torch.zeros(1))[-1]) == 1.0:  # by fresh draws (``HMC``)
            return Finding(figures)
        return Finding(figures, notes=(f"the weights of the {evidence.modes.number} modes were not checked: {reason}",))


def _jump(evidence: Evidence) -> Finding:
    problem = evidence.problem
    potential = problem.target.potential
    points = LINE_POINTS * (1.0 if problem.table.static else 1.0 + 2.0 / TRIED)
    index = _affordable(evidence, 2.0 if potential is not None else points)
    lineage, seen = evidence.lineage.some(index), evidence.view(index)
    if not seen.pointwise:
        raise NotAvailable("the density behind a decoder is not known at the samples")
    z, event = seen.points.flatten(1), tuple(seen.points.shape[1:])
    modes = evidence.modes._replace(label=evidence.modes.label[index]) if seen.same else find_modes(z)
    if modes.number < 2:
        raise NotAvailable("the latents have one mode")
    slope = _slope(problem, seen)

    def inside(y: Tensor) -> Tensor:
        return seen.inside(y.reshape(len(y), *event))

    def rise(z: Tensor, y: Tensor) -> Tensor:
        if potential is not None:
            return _potential_rise(problem, seen, z, y)
        if not problem.table.static:
            some = _evenly(len(z), min(len(z), len(index) // TRIED)).to(z.device)
            off = path_dependence(slope, z[some], y[some])
            if off > PATHS_AGREE:
                raise NotAvailable(f"the model's score is not a gradient between them (two paths differ by {off:.2g})")
        return line_integral(slope, z, y)

    nearest = seen.shape.nearest(modes.centres.reshape(-1, *event)).flatten(1)
    flow = jump_flow(z, modes, nearest, inside, rise)
    moved = float((flow.abs().sum(1) > 0.0).to(torch.float64).mean())
    if moved * len(flow) < SMALLEST_FLOW:
        raise NotAvailable("no reflection maps the set and two of them to each other, or the valley is too deep")
    found = _zero_test(lineage, flow)
    figures = {
        "modes": float(modes.number),
        "jump_t": float(found.t.max()),
        "jump_p": min(1.0, float(found.p.min()) * len(found.p)),
        "jump_change": float(found.mean.abs().max()),
    }
    if figures["jump_p"] >= REJECT or figures["jump_change"] < SMALL_CHANGE:
        return Finding(figures)
    return Finding(
        figures,
        objections=(
            f"the weights of the {modes.number} modes that were found are wrong: one move between them would shift "
            f"{100 * figures['jump_change']:.2g} % of the samples (p = {figures['jump_p']:.1g}); start from samples of "
            "the unconstrained distribution, or use more chains and more steps",
        ),
    )


def peaks(evidence: Evidence) -> Finding:
    """Whether the samples are where the density is (``peaks.py``): in sets with an interior, of a fixed density."""
    problem, lineage, d = evidence.problem, evidence.lineage, evidence.flat.shape[1]
    if not problem.table.static or problem.chains is not None or lineage.effective < max(FEWEST_TESTED, 2 * d):
        return Finding()
    try:
        seen = evidence.view(torch.arange(len(evidence.z), device=evidence.z.device))
        if not seen.pointwise or seen.shape.project is not None:
            return Finding()
        worst = _peaks(evidence, seen)
    except (NotAvailable, CasalError):
        return Finding()
    if worst is None:
        return Finding()
    figures = {"peaks": float(worst.peaks), "peak_t": worst.t, "peak_error": worst.share - worst.expected}
    if abs(worst.t) < PEAK_ERRORS or abs(figures["peak_error"]) < SMALLEST_PEAK:
        return Finding(figures)
    return Finding(
        figures,
        objections=(
            f"around a peak of the density there are {100 * worst.share:.2g} % of the samples, where its mass asks for "
            f"{100 * worst.expected:.2g} % ({abs(worst.t):.1f} standard errors): chains have missed a mode, or pass "
            f"over a narrow one; start in all modes (init=), or {_longer(problem)}",
        ),
    )


def _peaks(evidence: Evidence, seen: View) -> Misplaced | None:
    problem, lineage = evidence.problem, evidence.lineage
    z, event = seen.points.flatten(1), tuple(seen.points.shape[1:])
    mean, d, potential = lineage.weights @ z, z.shape[1], problem.target.potential
    root, failed = torch.linalg.cholesky_ex(((z - mean) * lineage.weights[:, None]).T @ (z - mean))
    each = DRAWS * (1 if potential is not None else COARSE)
    spare = _left(evidence) - (MOST_PEAKS + 1) * each - 2 * MOST_PEAKS * 2 * d
    spare -= len(z) if potential is not None else MOST_PEAKS * BETWEEN_PEAKS
    count = int(min(CLIMBS, spare / (ROUNDS + 1)))
    if int(failed) or count < FEWEST_TESTED:
        return None
    slope = _slope(problem, seen)

    def out(u: Tensor) -> Tensor:
        return mean + u @ root.T

    def score(u: Tensor) -> Tensor:
        return slope(out(u)) @ root

    def inside(u: Tensor) -> Tensor:
        return seen.inside(out(u).reshape(len(u), *event))

    def log_p(u: Tensor) -> Tensor:
        return problem.log_density(seen.latent(out(u).reshape(len(u), *event)).to(problem.like.dtype))

    u = torch.linalg.solve_triangular(root, (z - mean).T, upper=False).T
    first = _evenly(len(u), count // 3).to(u.device) if potential is None else log_p(u).argsort(descending=True)
    starts = [u[first[: count // 3]], u[_evenly(len(u), count // 3).to(u.device)], around(u, inside, count // 3)]
    x, g = climb(torch.cat(starts), score)
    order = log_p(x).argsort(descending=True) if potential is not None else g.square().sum(1).argsort()
    found = with_bulk(find_peaks(x, g, order, score, inside), d)
    if len(found) < 2:
        return None
    origin = found[0].centre

    def height(centre: Tensor, y: Tensor) -> Tensor:
        if potential is not None:
            return log_p(y)
        here = centre.expand_as(y)
        total = line_integral(score, origin[None], centre[None], points=BETWEEN_PEAKS)
        places, weights = np.polynomial.legendre.leggauss(COARSE)
        for place, weight in zip(((1.0 + places) / 2.0).tolist(), (weights / 2.0).tolist(), strict=True):
            total = total + weight * (score(here + place * (y - here)) * (y - here)).sum(1)
        return total

    return misplaced(weigh(found, u, lineage, height, inside), lineage.effective)


def _slope(problem: Problem, seen: View) -> Callable[[Tensor], Tensor]:
    """The score of points of a view, (n, d) -> (n, d)."""
    event = tuple(seen.points.shape[1:])
    return lambda v: seen.pull(level_score(problem, seen.latent(v.reshape(len(v), *event)))).flatten(1)


def _potential_rise(problem: Problem, seen: View, z: Tensor, y: Tensor) -> Tensor:
    """log p(y) - log p(z) of points of a view, by the potential."""
    event = tuple(seen.points.shape[1:])
    here, there = (seen.latent(v.reshape(len(v), *event)).to(problem.like.dtype) for v in (z, y))
    return problem.log_density(there) - problem.log_density(here)


def _affordable(evidence: Evidence, evaluations: float, projections: int = 0) -> Tensor:
    """Numbers of samples on which so many evaluations and projections each may be spent."""
    n, share = len(evidence.run.samples), evidence.share
    count = min(float(len(evidence.z)), _left(evidence) / evaluations)
    if projections:
        most = max(SHARE_OF_PROJECTIONS, share) * max(evidence.projections, evidence.evaluations) * n
        count = min(count, most / projections)
    index = _evenly(len(evidence.z), max(0, math.floor(count))).to(evidence.z.device)
    if len(index) >= FEWEST_TESTED and evidence.lineage.some(index).effective >= FEWEST_TESTED:
        return index
    if evidence.lineage.effective < FEWEST_TESTED:
        ancestors = evidence.lineage.effective
        more = _more_chains(evidence, FEWEST / max(ancestors, 1.0))
        raise NotAvailable(f"{ancestors:.2g} effective samples, {FEWEST_TESTED} needed: {more}")
    needed = math.ceil(100.0 * share * FEWEST / max(len(index), 1.0)) / 100.0
    raise NotAvailable(
        f"{100 * share:.0f} % of the run's model calls, what checks may use, are enough for {len(index)} samples only: "
        f"casal.sample(..., check={needed:g}), at most {100 * needed:.0f} % more model calls"
    )


def _left(evidence: Evidence) -> float:
    """Evaluations that checks may still use, of all chains together."""
    return evidence.share * evidence.evaluations * len(evidence.run.samples) - evidence.problem.usage.scores


def _evenly(n: int, count: int) -> Tensor:
    """``count`` of n numbers, evenly spaced: copies of one ancestor are neighbours, so they are spread out."""
    return torch.arange(count) * n // max(count, 1)


def two_sided_p(t: Tensor, degrees: float) -> Tensor:
    """P(|T| > |t|) for Student's T, by Wallace's normal approximation (1959), good to 1 % from 10 degrees on:

        z = (8 v + 1) / (8 v + 3) sqrt(v log(1 + t^2 / v)).

    >>> [round(float(two_sided_p(torch.tensor(t), 20.0)), 4) for t in (2.086, 3.850)]
    [0.05, 0.001]
    """
    v = max(degrees, 1.0)
    z = (8 * v + 1) / (8 * v + 3) * (v * torch.log1p(t.to(torch.float64).square() / v)).sqrt()
    return torch.erfc(z / math.sqrt(2.0))


def _fixed_directions(z: Tensor) -> Tensor:
    """Unit vectors (m, d): the axes, or a few fixed random directions where there are many."""
    size = z.shape[1]
    if size <= AXES:
        return torch.eye(size, dtype=z.dtype, device=z.device)
    drawn = torch.randn((size, RANDOM_DIRECTIONS), generator=torch.Generator().manual_seed(4242), dtype=torch.float64)
    return torch.linalg.qr(drawn)[0].T.contiguous().to(z)
