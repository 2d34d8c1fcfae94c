"""What the paper says about assimilation and what we ask of ourselves, beside what was measured.

Published claims are judged with the paper's network and the paper's algorithms; our targets with our network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from casal_lab.burgers.comparison import TUNED, Runs, average, difference, log_ratio
from casal_lab.burgers.observed import GLUED, STRICT, Observed
from casal_lab.burgers.regime_runs import BEST
from casal_lab.burgers.setup import Model
from casal_lab.experiment import FAILS, MET, MISSED, PARTLY, PARTLY_MET, Array, Claim, reached, verdict
from casal_lab.study import mean_and_error

EXACTLY = 1e-12
SIGNIFICANT = 0.05
"""Relative error of mass and energy from which on it counts as significant."""

EQUAL = 1e-5
"""Losses whose ratio is that near to 1 are the same; where noise is all there is they differ by rounding."""

FLAT, STEEP = 1.1, 1.5
"""Growth of the error with the start of lambda: at most this up to sigma = 20, and at least this at sigma = 100."""

LATE = slice(3, 5)
"""The last two windows."""

PROJECTED, CASAL_PRINTED = "projected, A+ P A", "Algorithm 2"
FEASIBLE = ("final projection", PROJECTED, "Algorithm 1", CASAL_PRINTED, "CASAL", "CASAL, dual 1")
SECTION, COST, ABLATION = "section 5.2", "table of computational times (C.6)", "table of the influence of lambda (C.7)"

Found = Mapping[str, Mapping[str, Runs]]
Gap = tuple[float, float, float]
"""A paired difference, its standard error, and its size relative to the other."""


def _gap(found: Found, one: str, other: str) -> dict[str, Gap]:
    """For each set-up."""
    out = {}
    for name, runs in found.items():
        gap, error = difference(runs[one], runs[other])
        out[name] = gap, error, gap / float(runs[other].values["l2"].mean())
    return out


def _told(gaps: Mapping[str, Gap]) -> str:
    return "; ".join(f"{name}: {gap:+.3f} ± {error:.3f} ({share:+.1%})" for name, (gap, error, share) in gaps.items())


def published(
    found: Found, observed: Mapping[str, Observed], ratios: Mapping[str, Array], starts: Sequence[Mapping[str, Any]]
) -> list[Claim]:
    """What the paper says of set-ups like A and B."""
    return [
        *section(found),
        *(claim for other in RIVALS for claim in _other_ways(observed, other)),
        _artifacts(found, observed),
        _cost(ratios),
        _overhead(ratios),
        _starts(starts),
    ]


def section(found: Found, where: str = "") -> list[Claim]:
    """What section 5.2 says, with the Gaussian posterior, variant by variant; ``where`` ends the sentences."""
    variants = {
        variant: label for variant, label in VARIANT_OF.items() if all(label in runs for runs in found.values())
    }
    return [
        *(_lower(found, variant, label, other, where) for other in RIVALS for variant, label in variants.items()),
        _regularises(found, where),
        _drifts(found, where),
        *(_conserves(found, variant, label, where) for variant, label in variants.items()),
    ]


RIVALS = ("unconstrained", PROJECTED, "3D-Var", TUNED[0])
VARIANT_OF = {"printed": CASAL_PRINTED, "released": "released code", "ours": "CASAL"}
WAYS = {GLUED: "by PSLD", STRICT: "as a strict constraint"}
"""The other two ways of section C.3 for the observations."""


def _lower(found: Found, variant: str, label: str, other: str, where: str) -> Claim:
    """With the Gaussian posterior, section 5.2's own way, on all trajectories."""
    gaps = _gap(found, label, other)
    holds = [gap + 2 * error < 0 for gap, error, _ in gaps.values()]
    return Claim(
        f"CASAL (rho = 10) has a lower error than {other}{where}",
        "significantly lower",
        _told(gaps),
        verdict(*holds),
        SECTION,
        "a paired difference on the other side of minus two standard errors, in one of the set-ups",
        variant,
        plain=f"{_count(holds)} with the Gaussian posterior, the way of section 5.2.",
    )


def _other_ways(observed: Mapping[str, Observed], other: str) -> list[Claim]:
    """Algorithm 2 with the ways of C.3, on some trajectories; empty if the other was not run with them."""
    told, others = list[str](), list[bool]()
    for way, words in WAYS.items():
        entered: dict[str, Gap] = {}
        for name, each in observed.items():
            if (way, other) in each and (way, other) != (STRICT, "unconstrained"):
                gap, error = average(each[way, CASAL_PRINTED].l2 - each[way, other].l2)
                entered[name] = gap, error, gap / float(each[way, other].l2.mean())
        if entered:
            told.append(f"observations {words}, {_told(entered)}")
            others += [gap + 2 * error < 0 for gap, error, _ in entered.values()]
    if not told:
        return []
    return [
        Claim(
            f"the same against {other}, with observations by diffusion posterior sampling or as a constraint",
            "lower (baselines of C.3)",
            "; ".join(told),
            verdict(*others),
            "section C.3, baselines",
            "a paired difference on the other side of minus two standard errors, in any of the cases",
            "printed",
            plain=f"{_count(others)} with the other ways to use observations.",
        )
    ]


def _count(holds: Sequence[bool]) -> str:
    return f"Lower in {sum(holds)} of {len(holds)} cases"


def _regularises(found: Found, where: str) -> Claim:
    """Against 3D-Var itself, as in the paper; five draws of its posterior, as many as there are members, are beside."""
    gaps, draws = _gap(found, "unconstrained", "3D-Var"), _gap(found, "unconstrained", "3D-Var, 5 draws")
    late, holds = [], []
    for name, runs in found.items():
        apart = runs["unconstrained"].curve - runs["3D-Var"].curve
        (end, error), (trend, spread) = average(apart[LATE].mean(0)), average(apart[LATE].mean(0) - apart[:2].mean(0))
        late.append(f"{name}: {end:+.3f} ± {error:.3f}, {trend:+.3f} ± {spread:.3f} against the first two")
        holds += [gaps[name][0] + 2 * gaps[name][1] < 0, trend + 2 * spread < 0]
    return Claim(
        f"The diffusion prior regularises better than the Gaussian prior, especially for longer times{where}",
        "a lower error of unconstrained diffusion than of 3D-Var, the more so later",
        f"{_told(gaps)}; last two windows {'; '.join(late)}; against five draws of 3D-Var {_told(draws)}",
        verdict(*holds),
        SECTION,
        "a difference to 3D-Var below minus two standard errors over all windows, and one that falls with time",
        plain=f"Lower than 3D-Var, and more so later, in {sum(holds)} of {len(holds)} comparisons.",
    )


def _drifts(found: Found, where: str) -> Claim:
    figures = {name: runs["unconstrained"].figures for name, runs in found.items()}
    parts = {name: [each[key] or 0.0 for key in ("member_mass", "member_energy")] for name, each in figures.items()}
    return Claim(
        f"Unconstrained diffusion has significant deviations in mass and energy{where}",
        "significant",
        "; ".join(f"{name}: mass {m:.1%}, energy {e:.1%} of a member" for name, (m, e) in parts.items()),
        verdict(*(value > SIGNIFICANT for pair in parts.values() for value in pair)),
        SECTION,
        f"a mean error below {SIGNIFICANT:.0%} of mass or energy",
        exact="0 %",
        plain="Without the constraint a sample misses mass and energy by many per cent.",
    )


def _artifacts(found: Found, observed: Mapping[str, Observed]) -> Claim:
    """More power than the truth, and than unconstrained diffusion, where the latent ends."""
    told, holds = [], []
    for name, runs in found.items():
        for words, mine in (("", runs[PROJECTED].first), (", strict observations", observed[name][STRICT, PROJECTED])):
            free = runs["unconstrained"].first.high[: len(mine.high), 0]
            high, error = log_ratio(mine.high[:, 0], mine.high[:, 1])
            more, spread = log_ratio(mine.high[:, 0], free)
            holds.append((mine.figures["worst"] or 0.0) <= EXACTLY and high - 2 * error > 0 and more - 2 * spread > 0)
            told.append(f"{name}{words}: {high:+.2f} ± {error:.2f} and {more:+.2f} ± {spread:.2f}")
    return Claim(
        "Projected diffusion is strict but has high-frequency artifacts",
        "implausible states",
        "log10 of the power in modes 7 to 9 over the truth's and over that of unconstrained diffusion, "
        + "; ".join(told),
        verdict(*holds),
        SECTION,
        "power in modes 7 to 9 within two standard errors of the truth's or of unconstrained diffusion's",
        exact="the truth's power",
        plain="More power than the truth at the end of the spectrum, most of all where observations are strict.",
    )


def _conserves(found: Found, variant: str, label: str, where: str) -> Claim:
    worst = max(runs[label].figures["worst"] or 0.0 for runs in found.values())
    mean = {name: runs[label].figures["mean_energy"] or 0.0 for name, runs in found.items()}
    off = "; ".join(f"{name}: {value:.1%}" for name, value in mean.items())
    return Claim(
        f"CASAL respects conservation{where}",
        "mass and energy kept",
        f"every sample to {worst:.0e}; the energy of the mean of five is off by {off}",
        verdict(worst <= EXACTLY),
        SECTION,
        f"a sample whose relative error is above {EXACTLY:g}",
        variant,
        "0",
        "Every sample has its mass and energy; the mean of five has not.",
    )


def _cost(ratios: Mapping[str, Array]) -> Claim:
    """Within a factor of two for the projection, of 1.5 for CASAL; both by alternating projections, as in the paper."""
    mean = {label: float(np.mean(each)) for label, each in ratios.items()}
    through = next(value for label, value in mean.items() if label.endswith("through the decoder"))
    holds = [7.2 <= through <= 29, 1.2 <= mean["Algorithm 2, sweeps on the grid"] <= 2.7]
    return Claim(
        "Time of a step over that of unconstrained sampling: penalty, projected through the decoder, CASAL",
        "1.5, 14.5, 1.8",
        "; ".join(f"{label} {value:.2f}" for label, value in mean.items() if label != "unconstrained"),
        verdict(*holds),
        COST,
        "with alternating projections, a projected step outside 7.2 to 29 or a step of Algorithm 2 inside 1.2 to 2.7",
    )


def _overhead(ratios: Mapping[str, Array]) -> Claim:
    """By the paper's alternating projections and in closed form: at most half of the step without a constraint."""
    ways = {"alternating projections": "Algorithm 2, sweeps on the grid", "closed form": "Algorithm 2, closed form"}
    mean = {way: float(np.mean(ratios[label])) for way, label in ways.items()}
    return Claim(
        "the overhead of projections is small compared to evaluations of the score",
        "small, no figure",
        "step of Algorithm 2 over an unconstrained one with the paper's network: "
        + ", ".join(f"{value:.2f} by {way}" for way, value in mean.items()),
        verdict(*(value <= 1.5 for value in mean.values())),
        "section C.6",
        "a ratio on the other side of 1.5; with a larger network all ratios tend to 1",
    )


def _starts(rows: Sequence[Mapping[str, Any]]) -> Claim:
    """At most partly: sigma is in units of the root mean square, rho in those of a decoder of norm one."""
    growth = {float(row["sigma"]): float(row["ratio"]) for row in rows}
    flat = max(value for sigma, value in growth.items() if sigma <= 20.0)
    return Claim(
        "The error does not depend on the start of lambda up to sigma = 20, and grows beyond",
        "0.56 0.56 0.56 0.57 0.58 0.79 1.34, or 1 1 1 1.02 1.04 1.41 2.39 times that of sigma = 0",
        " ".join(f"{float(row['printed']):.2f}" for row in rows)
        + ", or "
        + " ".join(f"{value:.2f}" for value in growth.values())
        + " times",
        PARTLY if flat <= FLAT and growth[100.0] >= STEEP else FAILS,
        ABLATION,
        f"growth above {FLAT:g} times up to sigma = 20, or below {STEEP:g} times at sigma = 100",
        "printed",
        plain="Flat, then growing, with sigma in units of the root mean square of a field; where the decoder has norm "
        "one the same sigma is larger, and the error grows earlier.",
    )


def targets(found: Found, models: Sequence[Model], members: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """What we ask of the library on set-ups A and B."""
    feasible = [runs[label].figures for runs in found.values() for label in FEASIBLE]
    worst = max(figures["worst"] or 0.0 for figures in feasible)
    again = max(each.figures["worst_projected"] or 0.0 for runs in found.values() for each in runs.values())
    clean, outside = max(worst, again), max(figures["out_of_range"] or 0.0 for figures in feasible)
    kept = "Every z and every re-projected mean has its mass and energy"
    return [
        Claim(kept, "1e-12", f"{clean:.0e}", reached(clean <= EXACTLY), flips="one that is off by more"),
        Claim(
            "z stays in the range of the decoder",
            "1e-12",
            f"{outside:.0e}",
            reached(outside <= EXACTLY),
            flips="a sample with more beyond mode 9",
        ),
        _below(found, "unconstrained", 0.08),
        _below(found, TUNED[0], 0.05),
        _below(found, PROJECTED, 0.03),
        _below(found, "3D-Var", 0.0),
        _plain(found, CASAL_PRINTED),
        _plain(found, "final projection"),
        _plain(found, "projected, exact in the latent"),
        _plain(found, "3D-Var, constrained"),
        _against_variational(found, members),
        *(_learned(model) for model in models),
    ]


def _below(found: Found, other: str, least: float) -> Claim:
    gaps = _gap(found, "CASAL", other)
    holds = [-share >= least and gap + 2 * error < 0 for gap, error, share in gaps.values()]
    asked = f"at least {least:.0%} below" if least else "below"
    flips = "a smaller difference, or one within two standard errors of zero"
    return Claim(f"CASAL (full z-step) against {other}", asked, _told(gaps), reached(*holds), flips=flips)


def _plain(found: Found, other: str) -> Claim:
    """A comparison without a target: is CASAL better, equal within two standard errors, or worse?"""
    gaps = _gap(found, "CASAL", other)
    holds = [gap - 2 * error <= 0 for gap, error, _ in gaps.values()]
    flips = "a difference on the other side of two standard errors"
    text = f"CASAL (full z-step) is not worse than {other}"
    return Claim(text, "stated plainly", _told(gaps), reached(*holds), flips=flips)


def _against_variational(found: Found, members: Sequence[Mapping[str, Any]]) -> Claim:
    """The best method of the library in B: any diffusion method with five members, or CASAL with more."""
    runs, other = found["B"], "3D-Var, constrained"
    ours = [label for label in runs if not label.startswith(("floor", "3D-Var", "EnKF"))]
    label = min(ours, key=lambda name: float(runs[name].values["l2"].mean()))
    gap, error = difference(runs[label], runs[other])
    told, holds = [f"{label}: {gap:+.3f} ± {error:.3f}"], [gap - 2 * error <= 0]
    more = [row for row in members if row["setup"] == "B"]
    if more:
        row = max(more, key=lambda each: each["members"])
        told.append(f"CASAL with {row['members']} members: {row['gap l2']:+.3f} ± {row['gap l2_se']:.3f}")
        holds.append(row["gap l2"] - 2 * row["gap l2_se"] <= 0)
    text = "In B the best diffusion method is not worse than constrained 3D-Var"
    flips = "a difference above two standard errors for both"
    return Claim(text, "<= 0", "; ".join(told), MET if any(holds) else MISSED, flips=flips)


def _learned(model: Model) -> Claim:
    """Better by two standard errors where there is something to learn, and nowhere worse by more than one."""
    ratio, error = model.losses.ratio, model.losses.ratio_error
    better, worse = ratio + 2 * error < 1, ratio - error > 1 + EQUAL
    levels, lost = (", ".join(f"{t:.0f}" for t in model.losses.levels[which].tolist()) for which in (better, worse))
    return Claim(
        f"Set-up {model.setup.name}: our network beats the Gaussian score on held-out loss",
        "beats it",
        f"better at {int(better.sum())} of {len(ratio)} levels (t = {levels}), worse at {lost or 'none'}; best ratio "
        f"{model.losses.best:.3f}",
        MET if model.losses.learned and not bool(worse.any()) else PARTLY_MET if model.losses.learned else MISSED,
        flips="a level at which its loss is higher by more than one standard error",
    )


def regime_targets(name: str, data: Mapping[str, Any]) -> list[Claim]:
    """Set-up C, against the distribution under the prior in use."""
    scores, out = data["scores"], []
    rivals = [label for label in scores if label not in (BEST, "SplitGibbs")]
    for key, title, limit in (("modes", "mode error", 0.06), ("sw1", "SW1", 0.25)):
        mine = float(scores[BEST][key].mean())
        rival = min(rivals, key=lambda label: scores[label][key].mean())
        theirs = float(scores[rival][key].mean())
        out.append(
            Claim(
                f"{name}: {BEST}, {title}",
                f"at most {limit:g} and half the best baseline's",
                f"{mine:.3f}; {rival} {theirs:.3f}",
                reached(mine <= limit, mine <= theirs / 2),
                flips=f"more than {limit:g}, or a baseline below twice as much",
            )
        )
    mine, exact = scores[BEST]["reconstruction"], data["exact"]
    rival = min(rivals, key=lambda label: scores[label]["reconstruction"].mean())
    gain, error = mean_and_error(scores[rival]["reconstruction"] - mine)
    ratio = float(np.mean(mine) / np.mean(exact))
    out.append(
        Claim(
            f"{name}: {BEST}, reconstruction",
            "at most 1.15 times that of the distribution, and a gain beyond 2 standard errors",
            f"{ratio:.2f} times; {gain:+.3f} ± {error:.3f} over {rival}",
            reached(ratio <= 1.15, gain > 2 * error),
            flips="a ratio above 1.15, or a gain within two standard errors of zero",
        )
    )
    return out
