"""What the paper and our own targets say about assimilation, beside what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from casal.lab.burgers.comparison import TUNED, Runs, difference
from casal.lab.burgers.regime_runs import BEST
from casal.lab.burgers.setup import Model
from casal.lab.experiment import FAILS, HOLDS, PARTLY, Claim, mean_and_error, verdict

STRICT = 1e-12
EQUAL = 1e-5
"""Losses whose ratio is that near to 1 are the same; where noise is all there is they differ by rounding."""

FEASIBLE = ("final projection", "projected, A+ P A", "Algorithm 1", "Algorithm 2", "CASAL", "CASAL, dual 1")
PUBLISHED = ("Algorithm 1", "Algorithm 2")

Found = Mapping[str, Mapping[str, Runs]]


def _gap(found: Found, one: str, other: str) -> dict[str, tuple[float, float, float]]:
    """Paired difference, its error, and its size relative to ``other``; for each set-up."""
    out = {}
    for name, runs in found.items():
        gap, error = difference(runs[one], runs[other])
        out[name] = gap, error, gap / float(runs[other].values["l2"].mean())
    return out


def _told(gaps: Mapping[str, tuple[float, float, float]]) -> str:
    return "; ".join(f"{name}: {gap:+.3f} ± {error:.3f} ({share:+.1%})" for name, (gap, error, share) in gaps.items())


def _below(found: Found, other: str, least: float) -> Claim:
    gaps = _gap(found, "CASAL", other)
    holds = [-share >= least and gap + 2 * error < 0 for gap, error, share in gaps.values()]
    return Claim(f"CASAL (full z-step) against {other}", f"at least {least:.0%} below", _told(gaps), verdict(*holds))


def claims(found: Found, models: Sequence[Model], members: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """Set-ups A and B."""
    feasible = [runs[label].figures for runs in found.values() for label in FEASIBLE]
    worst = max(figures["worst"] or 0.0 for figures in feasible)
    again = max(each.figures["worst_projected"] or 0.0 for runs in found.values() for each in runs.values())
    clean, outside = max(worst, again), max(figures["out_of_range"] or 0.0 for figures in feasible)
    drift = {name: runs["unconstrained"].figures["member_energy"] or 0.0 for name, runs in found.items()}
    rough = {
        name: [runs[label].figures["spectrum"] or 0.0 for label in ("unconstrained", "projected, A+ P A")]
        for name, runs in found.items()
    }
    gaussian = _gap(found, "unconstrained", "3D-Var, 5 draws")
    printed = {label: _gap(found, label, "unconstrained") for label in PUBLISHED}
    best = [gap + 2 * error < 0 for gaps in printed.values() for gap, error, _ in gaps.values()]
    kept = "Every z and every re-projected mean has its mass and energy"
    return [
        Claim(kept, "1e-12", f"{clean:.0e}", verdict(clean <= STRICT)),
        Claim("z stays in the range of the decoder", "1e-12", f"{outside:.0e}", verdict(outside <= STRICT)),
        Claim(
            "The diffusion prior regularises better than the Gaussian prior",
            "lower error than 3D-Var",
            f"against as many draws of 3D-Var, {_told(gaussian)}",
            verdict(*(gap + 2 * error < 0 for gap, error, _ in gaussian.values())),
        ),
        Claim(
            "Unconstrained diffusion deviates in energy",
            "significant",
            "; ".join(f"{name}: {value:.0%} a member" for name, value in drift.items()),
            verdict(*(value > 0.05 for value in drift.values())),
        ),
        Claim(
            "Projected diffusion has high-frequency artifacts",
            "implausible states",
            "; ".join(
                f"{name}: log10 of the power off by {p:.2f}, unconstrained {u:.2f}" for name, (u, p) in rough.items()
            ),
            verdict(*(p > 1.5 * u for u, p in rough.values())),
        ),
        Claim(
            "The printed algorithms have a lower error than unconstrained diffusion",
            "significantly lower",
            "; ".join(f"{label}, {_told(gaps)}" for label, gaps in printed.items()),
            verdict(*best),
        ),
        _below(found, "unconstrained", 0.08),
        _below(found, TUNED[0], 0.05),
        _below(found, "projected, A+ P A", 0.03),
        _plain(found, "final projection"),
        _plain(found, "projected, exact in the latent"),
        _plain(found, "3D-Var, constrained"),
        _against_variational(found, members),
        *(_learned(model) for model in models),
    ]


def _plain(found: Found, other: str) -> Claim:
    """A comparison without a target: is CASAL better, equal within two standard errors, or worse?"""
    gaps = _gap(found, "CASAL", other)
    holds = [gap - 2 * error <= 0 for gap, error, _ in gaps.values()]
    return Claim(f"CASAL (full z-step) is not worse than {other}", "stated plainly", _told(gaps), verdict(*holds))


def _against_variational(found: Found, members: Sequence[Mapping[str, Any]]) -> Claim:
    """The best method of the library in B: any diffusion method with five members, or CASAL with more."""
    runs, other = found["B"], "3D-Var, constrained"
    ours = [label for label in runs if not label.startswith(("3D-Var", "EnKF"))]
    label = min(ours, key=lambda name: float(runs[name].values["l2"].mean()))
    gap, error = difference(runs[label], runs[other])
    told, holds = [f"{label}: {gap:+.3f} ± {error:.3f}"], [gap - 2 * error <= 0]
    more = [row for row in members if row["setup"] == "B"]
    if more:
        row = max(more, key=lambda each: each["members"])
        told.append(f"CASAL with {row['members']} members: {row['gap l2']:+.3f} ± {row['gap l2_se']:.3f}")
        holds.append(row["gap l2"] - 2 * row["gap l2_se"] <= 0)
    text = "In B the best diffusion method is not worse than constrained 3D-Var"
    return Claim(text, "<= 0", "; ".join(told), HOLDS if any(holds) else FAILS)


def _learned(model: Model) -> Claim:
    """Better by two standard errors where there is something to learn, and nowhere worse by more than one."""
    ratio, error = model.losses.ratio, model.losses.ratio_error
    better, worse = ratio + 2 * error < 1, ratio - error > 1 + EQUAL
    levels, lost = (", ".join(f"{t:.0f}" for t in model.losses.levels[which].tolist()) for which in (better, worse))
    return Claim(
        f"Set-up {model.setup.name}: the network beats the Gaussian score on held-out loss",
        "beats it",
        f"better at {int(better.sum())} of {len(ratio)} levels (t = {levels}), worse at {lost or 'none'}; best ratio "
        f"{model.losses.best:.3f}",
        HOLDS if model.losses.learned and not bool(worse.any()) else PARTLY if model.losses.learned else FAILS,
    )


def regime_claims(name: str, data: Mapping[str, Any]) -> list[Claim]:
    """Set-up C, against the law under the prior in use."""
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
                verdict(mine <= limit, mine <= theirs / 2),
            )
        )
    mine, exact = scores[BEST]["reconstruction"], data["exact"]
    rival = min(rivals, key=lambda label: scores[label]["reconstruction"].mean())
    gain, error = mean_and_error(scores[rival]["reconstruction"] - mine)
    ratio = float(np.mean(mine) / np.mean(exact))
    out.append(
        Claim(
            f"{name}: {BEST}, reconstruction",
            "at most 1.15 times that of the law, and a gain beyond 2 standard errors",
            f"{ratio:.2f} times; {gain:+.3f} ± {error:.3f} over {rival}",
            verdict(ratio <= 1.15, gain > 2 * error),
        )
    )
    return out
