"""Distributions, means and averages of every variant on a Gaussian and a line, in closed form."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from casal_lab.experiment import HOLDS, NOT_APPLICABLE, PARTLY, Array, Claim, ResultTable, reached
from casal_lab.problems import gaussian_line as gaussian
from casal_lab.propositions.setup import Check

COUPLING = 2.0
TABULATED = (2.0, 20.0, 1000.0)
CHUNK = 2000
VACUITY = (
    "As stated it does not apply: it assumes |x_t - z_t + mu_t| <= M for all t, and with Gaussian noise every chain "
    "exceeds every M with probability one. "
)
"""Of the three propositions under the assumptions of section 4.2."""


def consistency(quick: bool) -> Check:
    """Means and variances of z1 against rho, with and without the dual, and of every variant."""
    rhos = np.geomspace(0.1, 1e3, 21 if quick else 61)
    tau = 1e-4
    rows: list[dict[str, Any]] = []
    curves: dict[str, Array] = {}
    error = 0.0
    for name, variant in gaussian.VARIANTS.items():
        found = [gaussian.stationary(variant, tau, float(rho)) for rho in rhos]
        error = max(error, *(np.abs(mean[[0, 2]] - gaussian.CONDITIONAL).max() for mean, _ in found))
        curves[name] = np.array([cov[2, 2] / gaussian.VARIANCE for _, cov in found])
        row: dict[str, Any] = {"variant": name}
        for rho in TABULATED:
            mean, cov = gaussian.stationary(variant, tau, rho)
            row |= {f"mean {rho:g}": gaussian.first(float(mean[2])), f"var {rho:g}": cov[2, 2] / gaussian.VARIANCE}
        rows.append(row)
    bare = np.array([gaussian.without_dual(float(rho)) for rho in rhos])
    rows.append({"variant": "without the dual", **{f"mean {rho:g}": gaussian.without_dual(rho) for rho in TABULATED}})
    rows.append({"variant": "p_C", **{f"mean {rho:g}": gaussian.first(gaussian.TANGENT) for rho in TABULATED}})
    table = ResultTable.of(
        "Gaussian and a line: z1 in the long run, tau = 1e-4",
        (
            "variant",
            *(f"mean {rho:g}: E z1, rho = {rho:g}, .5f" for rho in TABULATED),
            *(f"var {rho:g}: Var z1 / exact, rho = {rho:g}, .3f" for rho in TABULATED),
        ),
        rows,
        note="A common dual is one multiplier for all chains, driven by their mean: a number, as in the theory.",
    )
    return Check(
        "For a Gaussian and an affine set E x = E z = E under p_C, whatever rho.",
        f"All variants, closed form, rho from 0.1 to 1000: largest error of a mean {error:.0e}. Without the dual E z1 "
        f"is {gaussian.without_dual(2.0):.4f} at rho = 2 where {gaussian.first(gaussian.TANGENT):.4f} is right. "
        f"It is a statement about means only: Algorithm 1 as printed has {rows[0]['var 1000']:.2f} times the right "
        f"variance at rho = 1000, because its z-step halves the temperature; the full z-step has "
        f"{rows[4]['var 1000']:.2f} times.",
        HOLDS if error < 1e-8 else PARTLY,
        [table],
        {"rho": rhos, "without": bare, "exact": gaussian.first(gaussian.TANGENT), "variance": curves},
        source="proposition 4.3 (`proposition:Gaussian_consistency`)",
        number="4.3",
        flips="a coupling at which a mean with the dual is off by more than 1e-8",
    )


def allowed(rho: float) -> float:
    """The largest step size with 4 tau (beta + 4 rho) <= 1."""
    return 1.0 / (4.0 * (gaussian.BETA + 4.0 * rho))


def resting(variant: gaussian.Variant, tau: float, rho: float) -> float:
    """D(q^x | q*^x) of the distribution at which the variant rests."""
    mean, cov = gaussian.stationary(variant, tau, rho)
    return float(gaussian.divergence(mean[:2], cov[:2, :2], *gaussian.optimum(rho)))


class Moments(NamedTuple):
    """Mean and covariance at every step; the two coordinates of x come first."""

    mean: Array  # (T, n)
    cov: Array  # (T, n, n)


def multiplier() -> Array:
    """lambda* = -grad f at the mean of q*."""
    return np.asarray(-gaussian.PRECISION @ (gaussian.CONDITIONAL - gaussian.MEAN))


def moments(variant: gaussian.Variant, taus: Array, rho: float, *, solved: bool = False) -> Moments:
    """The distribution before each step, of (x_n, x_t, z_t, lambda_n, lambda_t, sums of x_n and of x_t so far).

    x starts at N(0, I), z at its projection and lambda at zero; or, ``solved``, at q* and lambda*. Step t has the size
    ``taus[t]``.
    """
    mean, cov = np.zeros(7), np.zeros((7, 7))
    start = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])  # (x_n, x_t, z_t) from x
    at, spread = gaussian.optimum(rho) if solved else (np.zeros(2), np.eye(2))
    mean[:3], cov[:3, :3] = start @ at, start @ spread @ start.T
    if solved:
        mean[3:5] = multiplier()
    means, covs = np.zeros((len(taus), 7)), np.zeros((len(taus), 7, 7))
    for begin in range(0, len(taus), CHUNK):
        part = taus[begin : begin + CHUNK]
        F, G, c = gaussian.recursion(variant, part, rho)
        wide = np.zeros((len(part), 7, 7))
        wide[:, :5, :5] = F
        wide[:, 5:, :2] = wide[:, 5:, 5:] = np.eye(2)
        shaken = wide.copy()
        shaken[:, :5, :5], noise = gaussian.spread(variant, F, G)
        heat = np.zeros((len(part), 7, 7))
        heat[:, :5, :5] = noise @ noise.swapaxes(1, 2)
        offset = np.concatenate([c, np.zeros((len(part), 2))], axis=1)
        for k in range(len(part)):
            means[begin + k], covs[begin + k] = mean, cov
            mean = wide[k] @ mean + offset[k]
            cov = shaken[k] @ cov @ shaken[k].T + heat[k]
    return Moments(means, covs)


def trajectory(variant: gaussian.Variant, steps: int, rho: float) -> dict[str, Array]:
    """D of the distribution at step t, its average over time, and D of the averaged iterate, all to q*.

    The step sizes are tau_t = tau_0 / sqrt(t + 1), with tau_0 the largest that the step-size condition allows.
    """
    count = np.arange(1, steps + 1)
    at = moments(variant, allowed(rho) / np.sqrt(np.arange(steps + 1) + 1.0), rho)
    best = gaussian.optimum(rho)
    every = gaussian.divergence(at.mean[:-1, :2], at.cov[:-1, :2, :2], *best)
    kept = np.unique(np.geomspace(1, steps, 120).astype(int)) - 1
    average = at.mean[1:, 5:][kept] / count[kept, None], at.cov[1:, 5:, 5:][kept] / count[kept, None, None] ** 2
    return {
        "t": count[kept].astype(np.float64),
        "law": every[kept],
        "averaged law": (np.cumsum(every) / count)[kept],
        "averaged iterate": gaussian.divergence(*average, *best),
    }


def mixing(quick: bool) -> Check:
    """The averages of every variant against ln t / sqrt t."""
    steps = 20_000 if quick else 200_000
    curves = {name: trajectory(variant, steps, COUPLING) for name, variant in gaussian.VARIANTS.items()}
    rows: list[dict[str, Any]] = []
    for name, curve in curves.items():
        bound = np.log(curve["t"][-1]) / np.sqrt(curve["t"][-1])
        late = curve["t"] > steps / 10
        slope = np.polyfit(np.log(curve["t"][late]), np.log(curve["averaged law"][late]), 1)[0]
        end = {key: float(values[-1]) for key, values in curve.items()}
        limit = resting(gaussian.VARIANTS[name], 1e-6, COUPLING)
        rows.append(
            {"variant": name, **end, "slope": float(slope), "ratio": end["averaged law"] / bound, "limit": limit}
        )
    settled = [row["variant"] for row in rows if row["limit"] < 1e-8]
    stuck = {row["variant"]: row["limit"] for row in rows if row["limit"] >= 1e-8}
    best = curves["CASAL, common dual"]
    by = {row["variant"]: row for row in rows}
    early = float(np.interp(steps / 10, best["t"], best["averaged iterate"]))
    table = ResultTable.of(
        f"Mixing on a Gaussian and a line, rho = {COUPLING:g}, after {steps} steps tau_t = tau_0 / sqrt(t + 1)",
        "variant | limit: D at rest, tau = 1e-6, .1e | law: D(distribution at t), .2e | "
        "averaged law: average of D over time, .2e | slope: its slope in log t, .2f | "
        "ratio: its ratio to ln t / sqrt t, .2f | averaged iterate: D(distribution of the averaged iterate), .2f",
        rows,
        note="All divergences are to q*^x, in closed form. The average of D over time bounds D of the averaged "
        "distribution from above.",
    )
    return Check(
        "With tau_t = 1 / sqrt(t + 1) the distribution of the time-averaged iterate has D = O(ln t / sqrt t) to q*^x.",
        VACUITY
        + "Without that condition, read to the letter it is false: the averaged iterate is one point that settles on "
        f"the mean, and D of its distribution grows without bound (best variant: {early:.2f} at t = {steps // 10}, "
        f"{best['averaged iterate'][-1]:.2f} at {steps}). Read as the proof has it, for the average of D over time, it "
        f"goes to zero for: {', '.join(settled)}. It does not for "
        + ", ".join(f"{name} (D ends at {value:.4f})" for name, value in stuck.items())
        + ": the printed z-step cools z, and a multiplier of its own keeps every chain's lambda moving at the pace of "
        "x, where the theory has one number.",
        NOT_APPLICABLE,
        [table],
        {"curves": curves, "coupling": COUPLING},
        source="proposition 4.4 (`proposition:average_rate`)",
        number="4.4",
        flips="noise with bounded support would meet the condition; the verdict would then be 'not reproduced' unless "
        "D of the distribution of the averaged iterate fell",
        more=[
            Claim(
                "the average of D over time, with z = P(x + mu) and one common multiplier",
                "at most ln t / sqrt t at the end of the run",
                f"{by['CASAL, common dual']['ratio']:.2f} of it after {steps} steps",
                reached(by["CASAL, common dual"]["ratio"] <= 1.0),
                flips="a ratio above one",
            )
        ],
    )
