"""Strong duality of the relaxed problem (P) and the form of its optimum, by quadrature."""

from __future__ import annotations

import numpy as np

from casal.lab.problems.base import Array, Column, ResultTable
from casal.lab.problems.propositions_base import (
    HOLDS,
    PARTLY,
    Case,
    Check,
    kullback,
    normalised,
    three_bumps,
    well_in_disc,
    well_on_interval,
)
from casal.lab.problems.propositions_saddle import relaxed, tilted


def strong_duality(quick: bool) -> Check:
    """Primal value = dual value at the saddle point, so both are optimal."""
    rows, worst = [], 0.0
    for case in (well_on_interval(), well_in_disc(), three_bumps()):
        for rho in (0.3, 3.0, 30.0):
            at = relaxed(case, rho)
            rows.append({"case": case.name, "rho": rho, "primal": at.primal, "dual": at.dual, "bound": case.divergence})
            worst = max(worst, abs(at.primal - at.dual))
    mus, values = _dual_curve(well_on_interval(), 3.0)
    best = relaxed(well_on_interval(), 3.0)
    table = ResultTable(
        "Strong duality of the split problem",
        (
            Column("case", "case"),
            Column("rho", "rho", "g"),
            Column("primal", "primal value", ".8f"),
            Column("dual", "dual value", ".8f"),
            Column("bound", "D(p_C given p)", ".4f"),
        ),
        rows,
    )
    return Check(
        4,
        "strong duality",
        "Strong duality holds and is attained for the split problem (P) (proposition strong_duality; its equivalence "
        "to the projection for x = z is proposition split).",
        f"Newton on the dual function, 9 cases by quadrature in 1-2-D: largest gap {worst:.1e}. Every value lies below "
        "D(p_C | p), the value of the unrelaxed problem. The Slater point of the printed proof, z ~ N(x, I) given x, "
        "is "
        "not "
        "in C; moving x instead of z repairs it.",
        HOLDS if worst < 1e-8 else PARTLY,
        [table],
        {"mu": mus, "values": values, "best": (float(best.mu[0]), best.dual), "primal": best.primal},
    )


def _dual_curve(case: Case, rho: float) -> tuple[Array, Array]:
    mus = np.linspace(-1.5, 2.0, 141)
    return mus, np.array([tilted(case, rho, np.array([mu]))[2] for mu in mus])


def optimum(quick: bool) -> Check:
    """No feasible competitor beats the printed form, and the dual value proves that none can."""
    case, rho = well_on_interval(), 3.0
    at = relaxed(case, rho)
    rng, excess = np.random.default_rng(0), []
    x = case.points[:, 0]
    for size in np.geomspace(0.02, 1.0, 40 if quick else 200):
        bumps = rng.normal(size=3) @ np.stack([np.sin((k + 1) * x) for k in range(3)])
        q = normalised(np.log(np.maximum(at.x, 1e-300)) + size * bumps)
        excess.append((kullback(q, at.x), _value(case, q, rho) - at.primal))
    pairs = np.array(excess)
    bare = relaxed(case, rho, dual=False)
    return Check(
        8,
        "optimum",
        "The optimum is q^x(x) ~ exp(-f(x) - rho/2 d^2(x + mu)), z = P(x + mu) (proposition optimum_characterization).",
        f"The value of the printed form equals the dual value to {abs(at.primal - at.dual):.0e}, so nothing is "
        "better. Of "
        f"{len(pairs)} other laws, each with its best z of the same mean, the nearest in value is "
        f"{pairs[:, 1].min():.1e} "
        f"above; each exceeds it by at least its divergence (saddle-gap lemma; smallest difference "
        f"{(pairs[:, 1] - pairs[:, 0]).min():.1e}). Without the multiplier E x - E z = "
        f"{float((bare.x * (x - bare.z[:, 0])).sum()):.3f}. The printed last line has lambda where mu is meant.",
        HOLDS if abs(at.primal - at.dual) < 1e-8 and (pairs[:, 1] - pairs[:, 0]).min() > -1e-8 else PARTLY,
        (),
        {"x": x, "p": case.mass, "q": at.x, "bare": bare.x, "mu": float(at.mu[0]), "pairs": pairs, "set": (-0.6, 0.4)},
    )


def _value(case: Case, q: Array, rho: float) -> float:
    """The least value of (P) among joints with x-marginal q: its inner dual over mu, maximised by bisection.

    min over z of rho/2 E|x - z|^2 with E z = E x is max over mu of rho/2 E d^2(x + mu) - rho/2 mu^2 (1-D).
    """
    low, high = -6.0, 6.0
    for _ in range(60):
        mu = (low + high) / 2
        moved = case.points + mu
        if float((q * (case.points - case.project(moved))[:, 0]).sum()) > 0:
            low = mu
        else:
            high = mu
    moved = case.points + (low + high) / 2
    pull = float((q * np.square(moved - case.project(moved)).sum(1)).sum()) - ((low + high) / 2) ** 2
    return kullback(q, case.mass) + 0.5 * rho * pull
