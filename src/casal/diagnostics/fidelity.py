"""The second certificate of a result: how far the distribution of its samples can be trusted, in numbers.

The first certificate says that samples lie in the set. This one asks whether they follow p on the set, by checks that
need no exact answer. A check is a function from what a run left (``Evidence``) to what it has seen (``Check``), in the
file of its concept; ``CHECKS`` lists them, and ``verdict_of`` makes a verdict of what they have seen. What no check can
know: a mode that neither a chain nor a climb has found, and a model that is itself wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch

from casal.diagnostics.chain_mixing import inside, remembered, unforgotten
from casal.diagnostics.check import FEWEST, LARGEST_DETECTABLE, SHARE_OF_EVALUATIONS, Check, Evidence, NotAvailable
from casal.diagnostics.ladder import (
    atoms,
    correction,
    crossings,
    decoder_range,
    displacement,
    lines,
    resolution,
    slack,
    statistics,
)
from casal.diagnostics.modes import jump
from casal.diagnostics.peaks import peaks
from casal.diagnostics.renoised import by_model
from casal.diagnostics.unseen_modes import unseen_modes
from casal.errors import CasalError
from casal.methods.population import advice, population

Verdict = Literal["trusted", "suspect", "too few", "unchecked", "not promised"]

LEAST_SHARE = 1.0 / 3.0
"""Samples are too few if they are worth fewer than FEWEST ancestors, and less than this share of the chains asked for:
the first is what error bars need, the second lets small runs pass, whose error bars are wide. Right ladders of 64
chains are worth 0.35 to 0.5 of them."""


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
        figures: Name to number, explained in the table of the page *Is it right?*; NaN for what was not measured.
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


class Look(NamedTuple):
    """A check in the list.

    Attributes:
        at: What it looks at.
        find: From what a run left to what it has seen; it may raise ``NotAvailable``.
        spends: Whether it evaluates the score, and asks what only the promise of a distribution makes sense of.
    """

    at: str
    find: Callable[[Evidence], Iterator[Check]]
    spends: bool = False


def degenerate(evidence: Evidence) -> Iterator[Check]:
    """What the weights along the run say (``methods/population.py``): an objection if chains are in two groups."""
    sentences, split = advice(evidence.run), population(evidence.run).split
    for sentence in sentences:
        yield Check(1.0, 0.0, sentence) if split else Check(notes=(sentence,))


def genealogy(evidence: Evidence) -> Iterator[Check]:
    """How many independent starting chains the samples are worth: figures that the verdict is made with."""
    lineage, offset = evidence.lineage, evidence.offset
    figures = {
        "effective_ancestors": evidence.everyone.effective,
        "inflation": lineage.inflation(statistics(evidence)),
    }
    if len(evidence.chains) < len(evidence.index):  # several draws of a chain
        figures["effective_samples"] = len(evidence.run.samples) / max(1.0, figures["inflation"])
    if offset is not None:
        spread = lineage.weights @ (evidence.flat - evidence.mean.flatten()).square().sum(1)
        figures["moved"] = math.sqrt(float(lineage.weights @ offset.square().sum(1)) / max(float(spread), 1e-300))
    yield Check(figures=figures)


CHECKS = (
    Look("whether the chains resolve the set", resolution),
    Look("samples on the edge of the set", atoms),
    Look("how far samples are from what the decoder can produce", decoder_range),
    Look("how many chains carry the weights of the last correction", correction),
    Look("whether draws on curved equations had points to choose from", lines),
    Look("samples near a crossing of two pieces of a union", crossings),
    Look("what chains inside a set remember", remembered),
    Look("what chains inside a set say of themselves, and a second kind of move", inside),
    Look("how weights and ancestors fared along the run", degenerate),
    Look("how many independent chains the samples are worth", genealogy),
    Look("the bias of a coupling that ends at a finite value", slack),
    Look("samples in modes of the model that its free samples did not show", unseen_modes, True),
    Look("samples against the network under noise, or the score, and the score against the potential", by_model, True),
    Look("whether a start that is remembered follows the score", unforgotten, True),
    Look("how far the last projection moved samples, by the model", displacement, True),
    Look("samples around peaks of the density against their mass", peaks, True),
    Look("the weights of separate modes", jump, True),
)
"""What is looked at, in the order in which it is said."""


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
    found = [Check(notes=notes), *(Check(1.0, 0.0, sentence) for sentence in objections)]
    lost = int((~torch.isfinite(evidence.flat)).any(1).sum())
    if lost:
        found.append(Check(1.0, 0.0, f"{lost} of {len(evidence.z)} samples are not finite", "use smaller steps"))
    elif len(evidence.z) > 1:
        found += [check for look in CHECKS if not look.spends or (promised and spend) for check in seen(look, evidence)]
        if not spend:
            call = f"casal.sample(..., check=True), at most {100 * SHARE_OF_EVALUATIONS:.0f} % more model calls"
            found.append(Check(missing=(f"the samples were not compared with the score (check=False): {call}",)))
    said = f"{method} does not promise the distribution; {way_out}"
    return verdict_of(evidence, found, "" if promised else said)


def seen(look: Look, evidence: Evidence) -> Iterator[Check]:
    """What a check has seen, up to where it could not go on."""
    with suppress(NotAvailable, CasalError):
        yield from look.find(evidence)


def verdict_of(evidence: Evidence, found: list[Check], not_promised: str = "") -> Fidelity:
    """The rule: one objection is enough for "suspect"; silence counts as trust if a check could have objected.

    Figures, reasons and what is missing are those of all checks. ``detectable`` is that of the best check; what one
    finds within separate modes counts if their weights are known.

    Args:
        evidence: The run.
        found: What all checks have seen.
        not_promised: A sentence if the method does not promise the distribution.
    """
    objections = tuple(check.objection for check in found if check.objection)
    missing = tuple(sentence for check in found for sentence in check.missing)
    notes = tuple(sentence for check in found for sentence in check.notes)
    figures = {name: float(value) for check in found for name, value in check.figures.items()}
    known = [name for name in ("jump_p", "mode_error") if math.isfinite(figures.get(name, math.nan))]
    weighed = bool(known) or figures.get("peaks", 0.0) >= figures.get("modes", math.inf)
    least = min(min(check.detectable, check.within if weighed else math.inf) for check in found)
    n, ancestors, figures["detectable"] = len(evidence.run.samples), figures.get("effective_ancestors", 0.0), least
    needed = min(FEWEST, LEAST_SHARE * n)
    if not_promised:
        return Fidelity("not promised", (not_promised, *objections, *missing, *notes), figures)
    if objections:
        return Fidelity("suspect", (*objections, *missing, *notes), figures)
    if ancestors < needed:
        shown = min(round(ancestors, 1), math.ceil(needed) - 0.1)
        said = f"{shown:g} effective sample{'s' * (shown != 1.0)} of {n} chains, {math.ceil(needed)} needed"
        more = evidence.more_chains(FEWEST / max(ancestors, 1.0))
        if ancestors < 2.0 < n:
            more = (
                "nearly all samples descend from one start, so more chains alone will not help; use more steps, or "
                "starting points nearer to the set (init=)"
            )
        return Fidelity("too few", (f"{said}: {more}", *missing, *notes), figures)
    if not least <= LARGEST_DETECTABLE:
        if math.isfinite(least):
            more = evidence.more_chains((least / LARGEST_DETECTABLE) ** 2)
            said = f"the checks find errors of a mean above {least:.2g} standard deviations only"
            missing = (f"{said}, {LARGEST_DETECTABLE:g} are needed: {more}", *missing)
        elif not missing:
            missing = (f"samples were checked within modes of unknown weights: {evidence.more_chains(2.0)}",)
        return Fidelity("unchecked", missing + notes, figures)
    return Fidelity("trusted", missing + notes, figures)
