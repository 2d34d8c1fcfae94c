"""The Lyapunov function V and the Lagrangian L of Gaussians: the decrement of a step, and its sum over a run.

    V(q, lambda) = 1/2 W2^2(q^x, q*^x) + 1/2 W2^2(q^z, q*^z) + 1/2 E|lambda - lambda*|^2
    L(q, lambda) = D(q^x | p) + lambda E[x - z] + rho/2 E|x - z|^2

On a Gaussian and a line (``casal_lab.problems.gaussian_line``) both have closed forms at every step of a run.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from casal_lab.experiment import NOT_APPLICABLE, Array, Claim, ResultTable, reached
from casal_lab.problems import gaussian_line as gaussian
from casal_lab.propositions.line import COUPLING, VACUITY, Moments, allowed, moments, multiplier
from casal_lab.propositions.setup import Check

HORIZON, QUICK_HORIZON = 12.0, 4.0
"""Length of the runs of the decrement in units of time, tau times the number of steps."""
FRACTIONS = (1.0, 0.25, 0.0625)
"""Step sizes of the decrement, as parts of the largest that the condition allows."""
SEGMENT = 20.0
"""Half-length, in standard deviations, of a segment of the line that no projection ever leaves."""
FIELD_BETA, FIELD_TAU, FIELD_RHO = 443.0, 1e-3, (20.0, 99.0)
"""Largest curvature and step size of the released field problem; largest coupling in the text and in the script."""

REPAIRED = "Algorithm 1, full z-step, common dual"
PRINTED = "Algorithm 1, common dual"
RUNS = {**gaussian.VARIANTS, REPAIRED: gaussian.Variant(True, False, lambda tau, rho: tau / rho, common=True)}
"""Every variant, and the smallest repair of Algorithm 1: z = P(x + mu), and a multiplier driven by the mean."""


def stable_up_to(variant: gaussian.Variant, rho: float) -> float:
    """The largest step size at which the recursion settles, to one per cent."""
    taus = np.geomspace(1e-5, 10.0, 1389)
    radius = np.abs(np.linalg.eigvals(gaussian.recursion(variant, taus, rho)[0])).max(1)
    unstable = radius > 1.0 + 1e-9
    return float(taus[max(int(np.argmax(unstable)) - 1, 0)]) if unstable.any() else float("inf")


def transport(mean: Array, cov: Array, other_mean: Array, other: Array) -> Array:
    """W2^2 of two Gaussians, |m - m'|^2 + tr(S + S' - 2 (S S')^(1/2)), batched over leading dimensions."""
    roots = np.sqrt(np.maximum(np.linalg.eigvals(cov @ other).real, 0.0)).sum(-1)
    traces = np.trace(cov, axis1=-2, axis2=-1) + np.trace(other, axis1=-2, axis2=-1)
    return np.asarray(np.square(mean - other_mean).sum(-1) + np.maximum(traces - 2 * roots, 0.0))


def lyapunov(at: Moments, rho: float, *, with_z: bool = True) -> Array:
    """V(q, lambda; q*, lambda*) of every distribution of a run; without its z-part for the repaired algorithm."""
    mean, cov = gaussian.optimum(rho)
    primal = transport(at.mean[:, :2], at.cov[:, :2, :2], mean, cov)
    if with_z:
        # Along the line z is x + mu, and mu* has no part along the line.
        primal = primal + transport(at.mean[:, 2:3], at.cov[:, 2:3, 2:3], mean[1:], cov[1:, 1:])
    dual = np.square(at.mean[:, 3:5] - multiplier()).sum(1) + np.trace(at.cov[:, 3:5, 3:5], axis1=1, axis2=2)
    return np.asarray(0.5 * (primal + dual))


def gap(at: Moments, rho: float) -> Array:
    """L(q, lambda*) - L(q*, lambda*) of every distribution of a run; L(q*, lambda) is the same for every lambda."""

    def value(mean: Array, cov: Array) -> Array:
        free = gaussian.divergence(mean[:, :2], cov[:, :2, :2], gaussian.MEAN, np.linalg.inv(gaussian.PRECISION))
        apart = mean[:, :2] - np.stack([np.full(len(mean), gaussian.LEVEL), mean[:, 2]], axis=1)
        spread = cov[:, 0, 0] + cov[:, 1, 1] + cov[:, 2, 2] - 2 * cov[:, 1, 2]
        return np.asarray(free + apart @ multiplier() + 0.5 * rho * (np.square(apart).sum(1) + spread))

    mean, cov = gaussian.optimum(rho)
    pick = [0, 1, 1]  # z = x along the line
    return np.asarray(value(at.mean, at.cov) - value(mean[pick][None], cov[np.ix_(pick, pick)][None]))


class Decrement(NamedTuple):
    """One run with a constant step size."""

    time: Array  # tau t
    fall: Array  # (V_t - V_{t+1} + alpha/2 W2^2(q_t, q_{t+1})) / tau
    gap: Array  # L(q_{t+1}, lambda*) - L(q*, lambda_t)
    needed: Array  # the smallest C of the inequality at every step: (gap - fall) / tau
    apart: float  # largest E|x - z + mu|^2 on the way


def decrement_of(
    variant: gaussian.Variant, tau: float, rho: float, horizon: float, *, with_z: bool = True
) -> Decrement:
    """Follow the distribution from a start off rest and compare both sides of the proposition at every step."""
    steps = math.ceil(horizon / tau)
    at = moments(variant, np.full(steps + 1, tau), rho)
    values = lyapunov(at, rho, with_z=with_z)
    before, after = Moments(at.mean[:-1, :3], at.cov[:-1, :3, :3]), Moments(at.mean[1:, :3], at.cov[1:, :3, :3])
    slack = 0.5 * gaussian.ALPHA * transport(before.mean, before.cov, after.mean, after.cov) if with_z else 0.0
    fall, rise = (values[:-1] - values[1:] + slack) / tau, gap(at, rho)[1:]
    return Decrement(
        np.asarray(tau * np.arange(steps), dtype=np.float64),
        fall,
        rise,
        (rise - fall) / tau,
        float(apart(at, rho).max()),
    )


def apart(at: Moments, rho: float) -> Array:
    """E|x - z + mu|^2 of every distribution of a run: what the condition bounds by M^2 for every single chain."""
    normal, tangent = np.array([1.0, 0, 0, 1 / rho, 0]), np.array([0, 1.0, -1, 0, 1 / rho])
    mean, cov = at.mean[:, :5], at.cov[:, :5, :5]
    square = np.square(mean @ normal - gaussian.LEVEL) + np.square(mean @ tangent)
    return np.asarray(square + sum(np.einsum("i,tij,j->t", row, cov, row) for row in (normal, tangent)))


def uncoupled(tau: float, rho: float) -> dict[str, float]:
    """One step of Algorithm 1 from x and z independent, N(0, 1) each; f = x^2/2, C = [-8, 8], lambda = 0.

    q* has x ~ N(0, 1) and z = x (to 1e-15, the mass of N(0, 1) outside C), so V(q, 0) = 0 and the left side is at most
    alpha/2 W2^2(q, q+), while L(q, 0) - L(q*, 0) = rho.
    """
    k = tau * rho
    F = np.array([[1 - tau - k, k], [k * (1 - tau - k), 1 - k + k * k]])
    G = np.sqrt(2 * tau) * np.array([1.0, k])
    cov = F @ F.T + np.outer(G, G)
    apart = float(cov[0, 0] + cov[1, 1] - 2 * cov[0, 1])
    value = 0.5 * float(np.square(np.sqrt(np.diag(cov)) - 1).sum() + tau**2 * apart)
    moved = 0.5 * float(transport(np.zeros(2), np.eye(2), np.zeros(2), cov))
    rise = 0.5 * float(cov[0, 0] - 1 - np.log(cov[0, 0])) + 0.5 * rho * apart
    left = -value + moved
    return {"tau": tau, "left": left, "right": tau * rise, "needed": (tau * rise - left) / tau**2}


def explicit_constant(largest_gap: float, rho: float) -> float:
    """C = (beta + rho) d + 1/2 max |E x - E z|^2 of the repaired algorithm."""
    return (gaussian.BETA + rho) * 2 + 0.5 * largest_gap


def mean_gap(at: Moments) -> Array:
    """|E x - E z|^2 of every distribution of a run."""
    return np.asarray(np.square(at.mean[:, 0] - gaussian.LEVEL) + np.square(at.mean[:, 1] - at.mean[:, 2]))


def beyond(sigmas: float) -> float:
    """P(|N(0, 1)| > sigmas)."""
    return math.erfc(sigmas / math.sqrt(2.0))


def _condition() -> ResultTable:
    """How often |x - z + mu| exceeds M at one step of Algorithm 1 at rest: the part normal to the line alone."""
    _, cov = gaussian.stationary(RUNS["Algorithm 1"], allowed(COUPLING), COUPLING)
    row = np.array([1.0, 0, 0, 1 / COUPLING, 0])
    sd = float(np.sqrt(row @ cov @ row))
    rows = [{"M": k * sd, "sigmas": k, "chance": beyond(k)} for k in (2.0, 4.0, 6.0, 8.0)]
    return ResultTable.of(
        "The condition ‖x - z + mu‖ <= M: chance to break it at one step, Algorithm 1 at rest",
        "M, .2f | sigmas: M in standard deviations, g | chance: chance at one step, at least, .1e",
        rows,
        note="It is positive for every M, and every step draws fresh noise: sooner or later each chain breaks each M.",
    )


def decrement(quick: bool) -> Check:
    """V, L and the decrement along runs that start off rest; the step-size condition as one of stability."""
    rhos = np.geomspace(0.1, 100.0, 9 if quick else 25)
    limits = {
        name: np.array([stable_up_to(variant, float(rho)) for rho in rhos])
        for name, variant in gaussian.VARIANTS.items()
        if "common" not in name
    }
    condition = np.array([allowed(float(rho)) for rho in rhos])
    safe = {name: float((limit / condition).min()) for name, limit in limits.items()}
    horizon = QUICK_HORIZON if quick else HORIZON
    rows: list[dict[str, Any]] = []
    paths: dict[str, dict[float, Decrement]] = {PRINTED: {}, REPAIRED: {}}
    bounds = []
    for name, with_z in ((PRINTED, True), (REPAIRED, True), (REPAIRED, False)):
        for part in FRACTIONS:
            tau = part * allowed(COUPLING)
            run = decrement_of(RUNS[name], tau, COUPLING, horizon, with_z=with_z)
            at = moments(RUNS[name], np.full(len(run.time) + 1, tau), COUPLING)
            if with_z:
                paths[name][tau] = run
            else:
                bound = explicit_constant(float(mean_gap(at).max()), COUPLING)
                bounds.append((float(run.needed.max()), bound))
            early = run.time < 1.0
            rows.append(
                {
                    "variant": name,
                    "V": "as printed" if with_z else "without z",
                    "tau": tau,
                    "early": float(run.needed[early].max()),
                    "late": float(run.needed[-1]),
                    "gap": float(run.gap[-1]),
                    "apart": run.apart,
                }
            )
    ones = [uncoupled(part / 20.0, 1.0) for part in (1.0, 0.1, 0.01)]
    growth = rows[2]["late"] / rows[0]["late"]
    tables = [
        ResultTable.of(
            "Step-size condition: largest stable step over largest allowed step, smallest over rho in [0.1, 100]",
            "variant | margin, .2f",
            [{"variant": name, "margin": value} for name, value in safe.items()],
        ),
        ResultTable.of(
            f"Decrement off rest: smallest C that the inequality needs, Gaussian and line, rho = {COUPLING:g}",
            "variant | V | tau, .2e | early: C needed, largest in the first unit of time, .3g | "
            "late: C needed at the end, .3g | gap: L(q) - L(q*) at the end, .1e | apart: largest E‖x - z + mu‖^2, .2f",
            rows,
            note="The inequality holds with some C if the C needed stays bounded as tau falls. A common dual is a "
            "number, as lambda is in the proposition.",
        ),
        ResultTable.of(
            "Counterexample: x and z independent, N(0, 1) each; f = x^2/2, C = [-8, 8], rho = 1, lambda = nu = 0",
            "tau, g | left: V - E V+ + alpha/2 W2^2(q and q+), .2e | right: tau (L(q+) - L(q*)), .2e | "
            "needed: C needed, .1f",
            ones,
        ),
        _condition(),
    ]
    own = [4 * FIELD_TAU * (FIELD_BETA + 4 * rho) for rho in FIELD_RHO]
    return Check(
        "If 4 tau (beta + 4 rho) <= 1, a step lowers V by at least tau times the gap of the Lagrangian, up to C tau^2, "
        "for any reference pair.",
        VACUITY
        + "Without that condition it fails for every C: V compares the marginals of x and z and does not see how they "
        "are coupled, L does. Counterexample: x and z independent with the marginals of q*, so V = 0, but L(q) - L(q*) "
        f"= rho; C needed is {ones[0]['needed']:.0f}, {ones[1]['needed']:.0f}, {ones[2]['needed']:.0f} at tau = 1/20, "
        "1/200, 1/2000. On a run of the printed step from a start off rest it holds with room at first (C needed below "
        f"zero); at the end C needed grows {growth:.0f}-fold as tau falls 16-fold. The proof takes two separate "
        "transport plans, for x and for z, and reads the pair as coupled like the reference. What is right: the full "
        f"step z = P(x + mu), V without its z-part, a bounded second moment in place of M (largest E|x - z + mu|^2 "
        f"here {rows[-1]['apart']:.1f}). As a condition for stability 4 tau (beta + 4 rho) <= 1 is safe: every variant "
        f"settles, with a margin of at least {min(safe.values()):.1f}. The released field problem has {own[0]:.1f} "
        f"with the rho of the text (20) and {own[1]:.1f} with that of the script (99).",
        NOT_APPLICABLE,
        tables,
        {"rho": rhos, "limits": limits, "condition": condition, "paths": paths, "ones": ones},
        source="proposition D.2 (`proposition:primal_dual-decrement`)",
        number="D.2",
        flips="noise with bounded support would meet the condition; the verdict would then be 'not reproduced' unless "
        "the C needed by the counterexample stayed bounded as tau falls",
        more=[
            Claim(
                "the decrement with z = P(x + mu), one common multiplier and V without its z-part, at every step off "
                "rest",
                "C needed at most (beta + rho) d + 1/2 max |E x - E z|^2",
                "C needed, largest over the steps, and this bound: "
                + ", ".join(f"{needed:.2f} <= {bound:.1f}" for needed, bound in bounds)
                + " at the three step sizes",
                reached(all(needed <= bound for needed, bound in bounds)),
                flips="a step size within the condition at which one step needs more than this constant",
            )
        ],
    )


def weighted_sum(quick: bool) -> Check:
    """sum tau_t D(q_{t+1} | q*) + V_T against C sum tau_t^2 + V_0: the C needed, as the run grows.

    The run starts at (q*, lambda*), which Algorithm 1 allows: V_0 = 0, and C sum tau_t^2 is all that there is.
    """
    steps = 20_000 if quick else 200_000
    taus = allowed(COUPLING) / np.sqrt(np.arange(steps + 1) + 1.0)
    kept = np.unique(np.geomspace(1, steps, 120).astype(int))
    squares = np.cumsum(taus[:-1] ** 2)[kept - 1]
    curves: dict[str, Array] = {}
    rows: list[dict[str, Any]] = []
    mine, bound = np.zeros(0), 0.0
    for name, variant in RUNS.items():
        at = moments(variant, taus, COUPLING, solved=True)
        every = gaussian.divergence(at.mean[1:, :2], at.cov[1:, :2, :2], *gaussian.optimum(COUPLING))
        total, late = np.cumsum(taus[:-1] * every)[kept - 1], Moments(at.mean[kept], at.cov[kept])
        values = lyapunov(late, COUPLING)
        curves[name] = (total + values) / squares
        if name == REPAIRED:
            mine = (total + lyapunov(late, COUPLING, with_z=False)) / squares
            bound = explicit_constant(float(mean_gap(at).max()), COUPLING)
        tenth = int(np.searchsorted(kept, steps // 10))
        ends = {"sum": float(total[-1]), "end": float(values[-1]), "squares": float(squares[-1])}
        needed = {"early": float(curves[name][tenth]), "late": float(curves[name][-1])}
        rows.append({"variant": name, **ends, **needed})
    by = {row["variant"]: row for row in rows}
    printed, common, repaired = by["Algorithm 1"], by[PRINTED], by[REPAIRED]
    met_from = math.ceil((1.0 / allowed(COUPLING)) ** 2)
    table = ResultTable.of(
        f"Weighted sum on a Gaussian and a line, rho = {COUPLING:g}, tau_t = tau_0 / sqrt(t + 1), from (q*, lambda*)",
        f"variant | sum: sum of tau D, .4f | end: V_T, .4f | squares: sum of tau^2, .5f | "
        f"early: C needed at T = {steps // 10}, .3g | late: C needed at T = {steps}, .3g",
        rows,
        note="V_0 = 0, so C needed = (sum of tau D + V_T) / sum of tau^2. tau_0 is the largest step that the condition "
        "allows.",
    )
    return Check(
        "sum_t tau_t D(q_{t+1}^x | q*^x) + E V(q_T, lambda_T) <= C sum_t tau_t^2 + V(q_0, lambda_0) for some C.",
        VACUITY + f"Without that condition no C is enough for the printed step. Started at (q*, lambda*), where V_0 = "
        f"0, Algorithm 1 needs C = {printed['early']:.0f} after {steps // 10} steps and {printed['late']:.0f} after "
        f"{steps}; with a common multiplier {common['early']:.0f} and {common['late']:.0f}. The left side grows like "
        "sqrt(T) and the right one like ln T, because D does not tend to zero. With the full z-step and a common "
        f"multiplier C needed is {repaired['early']:.2g} and {repaired['late']:.2g}. A line is not bounded; on a "
        f"segment that reaches {SEGMENT:g} standard deviations to both sides the chance that a projection is ever cut "
        f"off is below {2 * steps * beyond(SEGMENT):.0e}, so that no distribution differs by more in total variation. "
        f"The printed tau_0 = 1 breaks 4 tau (beta + 4 rho) <= 1 here until t = {met_from}.",
        NOT_APPLICABLE,
        [table],
        {"T": kept.astype(np.float64), "curves": curves},
        source="proposition D.3 (`proposition:convergence_rate`)",
        number="D.3",
        flips="noise with bounded support would meet the condition; the verdict would then be 'not reproduced' unless "
        "the C needed by Algorithm 1 stayed bounded in T",
        more=[
            Claim(
                "the weighted sum with z = P(x + mu), one common multiplier and V without its z-part",
                "C needed at most (beta + rho) d + 1/2 max |E x - E z|^2 for every T",
                f"C needed, largest over T up to {steps}, and this bound: {float(mine.max()):.2g} <= {bound:.1f}",
                reached(float(mine.max()) <= bound),
                flips="a T at which the sum needs more than this constant",
            )
        ],
    )
