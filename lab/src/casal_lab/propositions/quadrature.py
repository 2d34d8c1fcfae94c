"""By quadrature: the projection of a distribution onto a set, why penalties fail, and the relaxed problem (P)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from casal_lab.experiment import FAILS, HOLDS, NOT_APPLICABLE, PARTLY, Array, Claim, ResultTable, reached
from casal_lab.problems import double_well
from casal_lab.propositions import setup

RHOS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1e3, 3e3, 1e4)
WEIGHTS = np.geomspace(0.1, 1e6, 71)
FINE = 80001
"""Points on the line: the largest weight makes a border layer of width 1e-3."""

TABULATED = (0.3, 1.0, 1.3, 3.0, 10.0, 100.0)


def information(quick: bool) -> setup.Check:
    """D(q | p) of distributions on C: smallest at p_C, where it is -log P(C)."""
    case = setup.well_on_interval()
    x, inside = case.points[:, 0], case.inside > 0
    on_set = case.mass * inside / (case.mass * inside).sum()
    tilts = np.linspace(-8.0, 8.0, 81)
    shapes = {"tilt": x, "spread": 2 * x**2, "wave": np.sin(9 * x)}
    curves, worst = {}, 0.0
    for name, shape in shapes.items():
        values = []
        for tilt in tilts:
            q = np.zeros_like(on_set)
            q[inside] = setup.normalised(np.log(on_set[inside]) + tilt * shape[inside])
            values.append(setup.kullback(q, case.mass))
            worst = max(worst, abs(values[-1] - setup.kullback(q, on_set) - case.divergence))
        curves[name] = np.array(values)
    share = float(np.exp(-case.divergence))
    lowest = min(float(v.min()) for v in curves.values())
    return setup.Check(
        "p_C is the distribution on C that is nearest to p in D(q | p).",
        f"D(q | p) = D(q | p_C) - log P(C) for 243 distributions on C, to {worst:.0e}; the smallest value is "
        f"{lowest:.4f} = -log P(C), at p_C. The printed proof gives P(C) = {share:.4f} for this value: a logarithm is "
        "missing, the conclusion stands.",
        HOLDS if worst < 1e-10 and abs(lowest - case.divergence) < 1e-12 else PARTLY,
        (),
        {"tilts": tilts, "curves": curves, "least": case.divergence, "share": share},
        source="proposition 3.1 (`proposition:projection`)",
        number="3.1",
        flips="a distribution on C with D(q | p) below -log P(C)",
    )


def _penalised(case: setup.Case, cost: Array, weight: float) -> tuple[Array, float]:
    """p_lambda ~ p exp(-lambda c) and the dual function -log E_p exp(-lambda c)."""
    factor = np.exp(-weight * cost)
    total = float((case.mass * factor).sum())
    return np.asarray(case.mass * factor / total), -float(np.log(total))


def unattained(quick: bool) -> setup.Check:
    """The dual function stays below its supremum for every multiplier."""
    case = setup.well_on_interval(FINE)
    distance = np.linalg.norm(case.points - case.project(case.points), axis=1)
    costs = {"indicator of the outside": 1.0 - case.inside, "squared distance": distance**2}
    gaps = {
        name: np.array([case.divergence - _penalised(case, cost, weight)[1] for weight in WEIGHTS])
        for name, cost in costs.items()
    }
    # The indicator's gap is log(1 + (1/P(C) - 1) e^-lambda): take it from there once the difference rounds to zero.
    odds = np.expm1(case.divergence)
    gaps["indicator of the outside"] = np.log1p(odds * np.exp(-np.minimum(WEIGHTS, 700.0)))
    distant = float(gaps["squared distance"][-1])
    return setup.Check(
        "The supremum of the dual function of the projection problem is not attained.",
        f"log 1/P(C) - g(lambda) > 0 at all {len(WEIGHTS)} multipliers up to 1e6. With the indicator as cost it "
        "falls like e^-lambda "
        f"(but has no gradient to sample with), with the squared distance like lambda^(-1/2): {distant:.1e} at 1e6.",
        HOLDS if all(bool((gap > 0).all()) for gap in gaps.values()) else PARTLY,
        (),
        {"weights": WEIGHTS, "gaps": gaps},
        source="proposition 3.2 (`proposition:unattained_duality`)",
        number="3.2",
        flips="a finite multiplier at which the dual function equals -log P(C)",
    )


def penalty(quick: bool) -> setup.Check:
    """P(C) and P(C_eps) under p exp(-lambda d^2)."""
    curves: dict[str, dict[str, Array]] = {}
    rows: list[dict[str, Any]] = []
    for case in (setup.well_on_interval(FINE), setup.gaussian_on_circle(4001, setup.ANGLES[::30])):
        distance = np.linalg.norm(case.points - case.project(case.points), axis=1)
        sets = {f"within {eps:g}": (distance <= eps).astype(np.float64) for eps in (0.1, 0.01, 0.001)}
        if not case.thin:
            sets["in C"] = case.inside
        penalised = [_penalised(case, distance**2, weight)[0] for weight in WEIGHTS]
        curves[case.name] = {
            name: np.array([float((q * (1.0 - member)).sum()) for q in penalised]) for name, member in sets.items()
        }
        for k in range(0, len(WEIGHTS), 10):
            outside = {name: float(values[k]) for name, values in curves[case.name].items()}
            rows.append(
                {"case": case.name, "weight": float(WEIGHTS[k]), **({"in C": 1.0} if case.thin else {}), **outside}
            )
    least = float(curves[setup.well_on_interval().name]["in C"].min())
    table = ResultTable.of(
        "Penalty c = d^2: probability to be outside",
        "case | weight: lambda, .3g | in C: of C, .5f | within 0.001: of C widened by 0.001, .5f | "
        "within 0.01: by 0.01, .5f | within 0.1: by 0.1, .2e",
        rows,
        note="A circle has no mass under any distribution with a density, so nothing is ever on it.",
    )
    return setup.Check(
        "Penalty methods cannot enforce P(C) = 1.",
        f"Under p exp(-lambda d^2) the mass outside an interval is still {least:.2%} at lambda = 1e6 (it falls like "
        "lambda^(-1/2)); on a circle it is 100 % for every lambda. A step of size tau is stable for lambda up to about "
        "1/tau only, so a run at tau = 1e-3 stops near lambda = 1e3.",
        HOLDS if least > 0 else PARTLY,
        [table],
        {"weights": WEIGHTS, "curves": curves},
        source="corollary (`corollary:penalty`)",
        number="corollary",
        flips="a finite weight of a finite cost that leaves no mass outside C",
    )


def split(quick: bool) -> setup.Check:
    """The problem with a copy z = x: the values and the dual function stay the same, so no multiplier either."""
    case = setup.well_on_interval()
    x, inside = case.points[:, 0], case.inside > 0
    onto = case.mass * inside / (case.mass * inside).sum()
    rng = np.random.default_rng(0)
    worst, least, outside = 0.0, np.inf, 0
    count = 50 if quick else 500
    for _ in range(count):
        bumps = rng.normal(size=4) @ np.stack([np.sin((k + 1) * 3 * x) for k in range(4)])
        for support in (inside, np.ones_like(inside)):
            q = np.zeros_like(x)
            q[support] = setup.normalised(np.log(case.mass[support]) + bumps[support])
            if q[~inside].sum() > 0:  # P(x = z) = 1, so z is outside C too: the characteristic function is infinite
                outside += 1
                continue
            value = setup.kullback(q, case.mass)
            worst = max(worst, abs(value - setup.kullback(q, onto) - case.divergence))
            least = min(least, value)
    best = setup.kullback(onto, case.mass)
    # With a multiplier k on P(x != z), each x outside C pays k for any z in C, each x inside copies itself.
    multipliers = np.geomspace(0.1, 700.0, 80)
    share = float(np.exp(-case.divergence))
    gaps = np.log1p((1 / share - 1) * np.exp(-multipliers))
    direct = np.array([case.divergence - _penalised(case, 1.0 - case.inside, float(k))[1] for k in multipliers])
    agreement = float(np.abs(gaps - direct).max())
    at = setup.relaxed(case, 3.0)
    return setup.Check(
        "The projection of p onto distributions on C is equivalent to minimising D(q^x | p) + E chi_C(z) over joint "
        "distributions with P(x = z) = 1.",
        f"{count} joint distributions on the diagonal with z in C: the value is D(q^x | p_C) - log P(C), to "
        f"{worst:.0e}; the smallest is {least:.4f}, and that of p_C copied {best:.4f} = -log P(C). The {outside} "
        "diagonal distributions with mass outside C have an infinite value. Splitting alone does not help duality: "
        f"with a multiplier on P(x != z) the dual function is that of proposition 3.2 (to {agreement:.0e}), below its "
        f"supremum everywhere. What makes it attained is the relaxation (P): E x = E z and a price on |x - z|^2 "
        f"(value {at.primal:.4f} at rho = 3).",
        HOLDS if worst < 1e-12 and least >= best and abs(best - case.divergence) < 1e-12 else PARTLY,
        (),
        {"multipliers": multipliers, "gaps": gaps, "rho": RHOS, "values": [setup.relaxed(case, r).primal for r in RHOS]}
        | {"best": best},
        source="proposition 3.3 (`proposition:split`)",
        number="3.3",
        flips="a joint distribution on the diagonal with z in C and a value below -log P(C)",
    )


def thin_sets(quick: bool) -> setup.Check:
    """Sets of probability zero: -log P(C) is infinite, so three propositions are silent; (P) itself is not."""
    case = setup.gaussian_on_circle(4001, setup.ANGLES[::30])
    distance = np.linalg.norm(case.points - case.project(case.points), axis=1)
    widths = np.array([1e-1, 1e-2, 1e-3])
    bounds = np.array([-np.log((case.mass * (distance <= width)).sum()) for width in widths])
    coarse = setup.gaussian_on_circle()
    rhos = RHOS[-1:-4:-2][::-1] if quick else RHOS[::2]
    values = np.array([setup.relaxed(coarse, rho).primal for rho in rhos])
    slope = float((values[-1] - values[-2]) / np.log(rhos[-1] / rhos[-2]))
    rows: list[dict[str, Any]] = [{"set": f"within {w:g}", "bound": b} for w, b in zip(widths, bounds, strict=True)]
    table = ResultTable.of(
        "A circle and its tubes: D(p_C given p) = -log P(C)",
        "set | bound: D(p_C given p), .3f",
        [*rows, {"set": "the circle", "bound": float("inf")}],
        note="A tenfold thinner tube adds log 10 = 2.303. The energy sphere (5.1, C.1), mass and energy (5.2) and "
        "every other equality of C.5 have probability zero too; only the obstacles of 5.3 have not.",
    )
    steps = np.diff(bounds)
    return setup.Check(
        "Propositions 3.1 and 3.2 assume 0 < P(C) < 1, and the bounds of 4.2 are multiples of D(p_C | p) = -log P(C).",
        "Sets of probability zero lie outside: the energy sphere of sections 5.1 and C.1, mass and energy of 5.2, the "
        "equations of C.5. There every distribution on C has D(q | p) = infinity, so that none is nearest, and the "
        f"bounds are infinite. On a circle -log P grows by {steps.mean():.2f} for each tenfold thinner tube. Problem "
        f"(P) is still finite there (its value grows like {slope:.2f} log rho), and proposition 4.1 still holds, with "
        "the surface distribution in place of p_C: check 'recovery'.",
        NOT_APPLICABLE if np.allclose(steps, np.log(10.0), atol=0.02) else PARTLY,
        [table],
        {"widths": widths, "bounds": bounds, "rho": np.array(rhos), "values": values},
        source="propositions 3.1, 3.2 and 4.2, on the sets of sections 5.1 and 5.2",
        number="3.1, 3.2, 4.2",
        flips="a distribution on the sphere with a finite D(q | p): there is none while p has a density",
    )


def _random_joints(quick: bool) -> list[tuple[setup.Case, setup.Joint, float, Array]]:
    """Cases, distributions of (x, z), couplings and multipliers for the identities of the Lagrangian."""
    rng = np.random.default_rng(2)
    made = []
    for case in (setup.well_on_interval(), setup.well_in_disc(), setup.three_bumps()):
        for q in setup.joints(case, 3 if quick else 20):
            lam = np.asarray(3 * rng.normal(size=case.points.shape[1]))
            made.append((case, q, float(np.exp(rng.uniform(-1, 4))), lam))
    return made


def lagrangian(quick: bool) -> setup.Check:
    """The integral form of the Lagrangian is its definition with the square completed."""
    worst, cases = 0.0, _random_joints(quick)
    for case, q, rho, lam in cases:
        mu = lam / rho
        square = np.square(case.points + mu - q.z).sum(-1)
        form = setup.kullback(q.x, case.mass) + 0.5 * rho * q.expect(square) - 0.5 * rho * float(mu @ mu)
        value = setup.lagrangian(case, q, lam, rho)
        worst = max(worst, abs(form - value) / max(1.0, abs(value)))
    return setup.Check(
        "L(q, lambda) = D(q^x | p) + integral of [g(z) + rho/2 |x + mu - z|^2] dq - rho/2 |mu|^2, mu = lambda / rho.",
        f"{len(cases)} distributions of (x, z) on an interval and a disc, neither optimal nor feasible, with z drawn "
        f"given x: both sides agree to {worst:.0e}. g is not defined in the paper; it is chi_C.",
        HOLDS if worst < 1e-12 else FAILS,
        source="lemma 1 (`lemma:Lagrangian`)",
        number="lemma 1",
        flips="a distribution and a multiplier for which the two sides differ by more than rounding",
    )


def saddle_gap(quick: bool) -> setup.Check:
    """L(q, lambda*) - L(q*, lambda) is the divergence plus what z loses against the projection."""
    pairs, drift, error = [], 0.0, 0.0
    solved: dict[tuple[str, float], setup.Relaxed] = {}
    for case, q, _, lam in _random_joints(quick):
        for rho in (1.0, 10.0):
            if (case.name, rho) not in solved:
                solved[case.name, rho] = setup.relaxed(case, rho)
            at = solved[case.name, rho]
            optimum = setup.Joint(at.x, at.z[None], np.ones((1, len(at.x))))
            low, other = (setup.lagrangian(case, optimum, value, rho) for value in (rho * at.mu, lam))
            drift = max(drift, abs(low - other))
            gap = setup.lagrangian(case, q, rho * at.mu, rho) - other
            least = setup.kullback(q.x, at.x)
            moved = case.points + at.mu
            lost = np.square(moved - q.z).sum(-1) - np.square(moved - case.project(moved)).sum(-1)
            error = max(error, abs(gap - least - 0.5 * rho * q.expect(lost)) / max(1.0, gap))
            pairs.append((least, gap))
    found = np.array(pairs)
    slack = float((found[:, 1] - found[:, 0]).min())
    return setup.Check(
        "L(q, lambda*) - L(q*, lambda) >= D(q^x | q*^x) for all (q, lambda).",
        f"{len(found)} distributions of (x, z) off the optimum, with any multiplier: smallest difference {slack:.1e}. "
        "It is an identity: the gap is D(q^x | q*^x) + rho/2 E[|x + mu* - z|^2 - d^2(x + mu*)], to "
        f"{error:.0e}; the second term is zero for z = P(x + mu*) alone. L(q*, lambda) does not depend on lambda (to "
        f"{drift:.0e}). In the proof the second integral of the first display has the wrong sign.",
        HOLDS if slack >= -1e-9 and error < 1e-9 and drift < 1e-9 else PARTLY,
        (),
        {"pairs": found},
        source="lemma 8 (`lemma:saddle-gap`)",
        number="lemma 8",
        flips="a distribution and a multiplier with a gap below the divergence",
    )


def strong_duality(quick: bool) -> setup.Check:
    """Primal value = dual value at the saddle point, so both are optimal."""
    rows, worst = [], 0.0
    for case in (setup.well_on_interval(), setup.well_in_disc(), setup.three_bumps()):
        for rho in (0.3, 3.0, 30.0):
            at = setup.relaxed(case, rho)
            rows.append({"case": case.name, "rho": rho, "primal": at.primal, "dual": at.dual, "bound": case.divergence})
            worst = max(worst, abs(at.primal - at.dual))
    case, mus = setup.well_on_interval(), np.linspace(-1.5, 2.0, 141)
    values = np.array([setup.tilted(case, 3.0, np.array([mu]))[2] for mu in mus])
    best = setup.relaxed(case, 3.0)
    table = ResultTable.of(
        "Strong duality of the split problem",
        "case | rho, g | primal: primal value, .8f | dual: dual value, .8f | bound: D(p_C given p), .4f",
        rows,
    )
    return setup.Check(
        "Strong duality holds and is attained for the relaxed split problem (P).",
        f"Newton on the dual function, 9 cases by quadrature in 1-2-D: largest gap {worst:.1e}. Every value lies below "
        "D(p_C | p), the value of the unrelaxed problem. The Slater point of the printed proof, z ~ N(x, I) given x, "
        "is not in C; moving x instead of z repairs it.",
        HOLDS if worst < 1e-8 else PARTLY,
        [table],
        {"mu": mus, "values": values, "best": (float(best.mu[0]), best.dual), "primal": best.primal},
        source="proposition 3.4 (`proposition:strong_duality`)",
        number="3.4",
        flips="a case with a gap between the primal and the dual value above 1e-8",
    )


def optimum(quick: bool) -> setup.Check:
    """No feasible competitor beats the printed form, and the dual value proves that none can."""
    case, rho = setup.well_on_interval(), 3.0
    at = setup.relaxed(case, rho)
    rng, excess = np.random.default_rng(0), []
    x = case.points[:, 0]
    for size in np.geomspace(0.02, 1.0, 40 if quick else 200):
        bumps = rng.normal(size=3) @ np.stack([np.sin((k + 1) * x) for k in range(3)])
        q = setup.normalised(np.log(np.maximum(at.x, 1e-300)) + size * bumps)
        excess.append((setup.kullback(q, at.x), _value(case, q, rho) - at.primal))
    pairs = np.array(excess)
    bare = setup.relaxed(case, rho, dual=False)
    return setup.Check(
        "The optimum is q^x(x) ~ exp(-f(x) - rho/2 d^2(x + mu)), z = P(x + mu).",
        f"The value of the printed form equals the dual value to {abs(at.primal - at.dual):.0e}, so nothing is better. "
        f"Of {len(pairs)} other distributions, each with its best z of the same mean, the nearest in value is "
        f"{pairs[:, 1].min():.1e} above; each exceeds it by at least its divergence (saddle-gap lemma; smallest "
        f"difference {(pairs[:, 1] - pairs[:, 0]).min():.1e}). Without the multiplier E x - E z = "
        f"{float((bare.x * (x - bare.z[:, 0])).sum()):.3f}. The printed last line has lambda where mu is meant.",
        HOLDS if abs(at.primal - at.dual) < 1e-8 and (pairs[:, 1] - pairs[:, 0]).min() > -1e-8 else PARTLY,
        (),
        {"x": x, "p": case.mass, "q": at.x, "bare": bare.x, "mu": float(at.mu[0]), "pairs": pairs, "set": (-0.6, 0.4)},
        source="proposition D.1 (`proposition:optimum_characterization`)",
        number="D.1",
        flips="a feasible distribution whose value lies below that of the printed form",
    )


def _value(case: setup.Case, q: Array, rho: float) -> float:
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
    return setup.kullback(q, case.mass) + 0.5 * rho * pull


def first_distance(a: Array, weight_a: Array, b: Array, weight_b: Array) -> float:
    """W1 of two weighted samples on the line."""
    values = np.concatenate([a, b])
    order = np.argsort(values, kind="stable")
    rise = np.cumsum(np.concatenate([weight_a, -weight_b])[order])
    return float((np.abs(rise[:-1]) * np.diff(values[order])).sum())


def on_set(case: setup.Case) -> tuple[Array, Array]:
    """First coordinate and masses of p_C; on the circle, of the surface distribution."""
    if not case.thin:
        mass = case.mass * case.inside
        return case.points[:, 0], mass / mass.sum()
    z = setup.RADIUS * np.stack([np.cos(setup.ANGLES), np.sin(setup.ANGLES)], axis=1)
    return z[:, 0], setup.normalised(-setup.off_centre(z))


def recovery(quick: bool) -> setup.Check:
    """W1 of q^x and q^z to p_C against rho."""
    rows: list[dict[str, Any]] = []
    curves: dict[str, dict[str, list[float]]] = {}
    for case in (setup.well_on_interval(), setup.well_in_disc(), setup.gaussian_on_circle()):
        target = on_set(case)
        for rho in RHOS[::2] if quick else RHOS:
            at = setup.relaxed(case, rho)
            x = first_distance(case.points[:, 0], at.x, *target)
            z = first_distance(at.z[:, 0], at.x, *target)
            rows.append({"case": case.name, "rho": rho, "x": x, "z": z, "mu": float(np.linalg.norm(at.mu))})
        mine = [row for row in rows if row["case"] == case.name]
        curves[case.name] = {key: [row[key] for row in mine] for key in ("rho", "x", "z")}
    ends = {name: [np.log(c[key][-1] / c[key][-2]) for key in ("z", "rho")] for name, c in curves.items()}
    slopes = {name: float(z / rho) for name, (z, rho) in ends.items()}
    last = max(max(c["x"][-1], c["z"][-1]) / c["x"][0] for c in curves.values())
    table = ResultTable.of(
        "Recovery: W1 of the first coordinate to p_C",
        "case | rho, g | x: W1(q^x, p_C), .5f | z: W1(q^z, p_C), .5f | mu: size of mu, .4f",
        rows,
        note="On the circle, which has no mass under p, p_C is the surface distribution.",
    )
    return setup.Check(
        "q^x and q^z of (P) tend to p_C in distribution as rho grows.",
        f"Quadrature on an interval, a disc and a circle: at rho = 1e4 what is left is at most {last:.1%} of the "
        "distance at rho = 0.1. Slopes of log W1(q^z, p_C) at the end: "
        + ", ".join(f"{name} {slope:.2f}" for name, slope in slopes.items())
        + ". A set with an interior keeps an atom on its border of order rho^(-1/2), a thin set has an error of order "
        "1/rho: the weights of WeightedCASAL remove both.",
        HOLDS if last < 0.05 else PARTLY,
        [table],
        {"curves": curves, "slopes": slopes},
        source="proposition 4.1 (`proposition:problem_approximation`)",
        number="4.1",
        flips="a W1 that stops falling as rho grows",
    )


def relaxation(quick: bool) -> setup.Check:
    """D(q^x | p) <= D(p_C | p), and rho W2^2 against the printed D(p_C | p) and the provable twice of it."""
    rows: list[dict[str, Any]] = []
    curves: dict[str, dict[str, list[float]]] = {}
    value = 0.0
    for case in (setup.well_on_interval(), setup.well_in_disc(), setup.three_bumps()):
        curve: dict[str, list[float]] = {"rho": [], "divergence": [], "transport": []}
        count = 41 if case.points.shape[1] == 1 else 2 if quick else 21
        for rho in sorted({*TABULATED, *np.geomspace(0.03, 1e3, count).tolist()}):
            at = setup.relaxed(case, rho)
            value = max(value, at.primal / case.divergence)
            row = {"divergence": at.divergence / case.divergence, "transport": rho * at.transport / case.divergence}
            if rho in TABULATED:
                rows.append({"case": case.name, "rho": rho, "bound": case.divergence, **row})
            for key, entry in {"rho": rho, **row}.items():
                curve[key].append(entry)
        curves[case.name] = curve
    highest = {name: max(c["transport"]) for name, c in curves.items()}
    first = max(max(c["divergence"]) for c in curves.values())
    worst = max(highest, key=lambda name: highest[name])
    table = ResultTable.of(
        "Relaxation error, in units of D(p_C given p)",
        "case | rho, .3g | bound: D(p_C given p), .4f | divergence: D(q^x given p), bound 1, .4f | "
        "transport: rho W2^2(q^x, q^z), printed bound 1, proved 2, .4f",
        rows,
    )
    return setup.Check(
        "D(q^x | p) <= D(p_C | p), q^z(C) = 1 and W2^2(q^x, q^z) <= D(p_C | p) / rho.",
        f"The first two hold (largest ratio {first:.4f}). The lemma behind the third (lemma 2, without a label; "
        f"largest value over its bound {value:.4f}) has rho/2, so it proves W2^2 <= 2 "
        f"D / rho; the printed 1 / rho does not follow from it and fails: on '{worst}' rho W2^2 reaches "
        f"{highest[worst]:.2f} D, where the printed bound is 1 D and the proved one 2 D. On the other cases it stays "
        f"below {max(v for k, v in highest.items() if k != worst):.2f} D.",
        HOLDS if highest[worst] <= 1.0 else PARTLY,
        [table],
        {"curves": curves, "worst": worst},
        source="proposition 4.2 (`proposition:relaxation_error`)",
        number="4.2",
        flips="rho W2^2 at most D(p_C | p) on the three bumps at every rho",
        more=[
            Claim(
                "relaxation error with the factor of the lemma",
                "W2^2 <= 2 D(p_C | p) / rho",
                f"largest rho W2^2 / D(p_C | p) {highest[worst]:.2f}",
                reached(highest[worst] <= 2.0),
                flips="a case with rho W2^2 above 2 D(p_C | p)",
            )
        ],
    )


def optimal_value(quick: bool) -> setup.Check:
    """Lemma 2: the value of (P) is at most D(p_C | p), at every coupling."""
    rows: list[dict[str, Any]] = []
    for case in (setup.well_on_interval(), setup.well_in_disc(), setup.three_bumps()):
        for rho in RHOS[::3] if quick else RHOS:
            at = setup.relaxed(case, rho)
            rows.append({"case": case.name, "rho": rho, "value": at.primal, "bound": case.divergence})
    largest = max(row["value"] / row["bound"] for row in rows)
    return setup.Check(
        "D(q*^x | p) + rho/2 E|x - z|^2 <= D(p_C | p) at the optimum q* of (P).",
        f"{len(rows)} saddle points by quadrature, rho from {RHOS[0]:g} to {RHOS[-1]:g}: largest value over its bound "
        f"{largest:.6f}. It is approached as rho grows.",
        HOLDS if largest <= 1 + 1e-9 else FAILS,
        [
            ResultTable.of(
                "Lemma 2: the value of (P) and its bound",
                "case | rho, g | value: value of (P), .6f | bound: D(p_C given p), .6f",
                rows,
            )
        ],
        source="lemma 2 (without a label)",
        number="lemma 2",
        flips="a coupling at which the value is above the bound",
    )


DECODERS: dict[str, Callable[[Array], Array]] = {
    "linear, x -> (x, x / 2)": lambda x: np.stack([x, 0.5 * x], axis=1),
    "nonlinear, x -> (x, x^2 / 2)": lambda x: np.stack([x, 0.5 * x**2], axis=1),
    "nonlinear and folded, x -> (sin 2x, x)": lambda x: np.stack([np.sin(2 * x), x], axis=1),
}
"""From a latent number to the plane: each range is a curve, which the projection leaves."""


def _off_range(z: Array, curve: Array) -> Array:
    """Distance of points (n, 2) to the nearest of the points (m, 2) of a curve."""
    found = np.empty(len(z))
    for first in range(0, len(z), 500):
        part = slice(first, first + 500)
        found[part] = np.sqrt(np.square(z[part, None] - curve[None]).sum(2).min(1))
    return found


def latent(quick: bool) -> setup.Check:
    """Sampling in a latent space with the constraint on decoded points, A(x) = z, projected in decoded space alone."""
    x = np.linspace(-5.0, 3.0, 801 if quick else 1601)
    mass = setup.normalised(-double_well.potential(x))
    rows: list[dict[str, Any]] = []
    for name, decode in DECODERS.items():
        y = decode(x)
        centre, radius = decode(np.array([-0.4]))[0] + np.array([0.1, -0.1]), 0.6
        offset = y - centre
        length = np.linalg.norm(offset, axis=1)
        distance = np.maximum(length - radius, 0.0)
        z = np.where((length > radius)[:, None], centre + offset * (radius / np.maximum(length, radius))[:, None], y)
        exact = mass * (distance == 0) / (mass * (distance == 0)).sum()
        for rho in (1.0, 10.0, 100.0, 1e3, 1e4, 1e5):
            q = setup.normalised(np.log(mass) - 0.5 * rho * distance**2)
            rows.append(
                {
                    "decoder": name,
                    "rho": rho,
                    "w1": first_distance(x, q, x, exact),
                    "outside": float(np.maximum(np.linalg.norm(z - centre, axis=1) - radius, 0.0).max()),
                    "off": float((q * _off_range(z, y)).sum()),
                }
            )
    ends = {name: [row for row in rows if row["decoder"] == name] for name in DECODERS}
    falls = max(found[-1]["w1"] / found[0]["w1"] for found in ends.values())
    strict = max(row["outside"] for row in rows)
    off = {name: next(row["off"] for row in found if row["rho"] == 10.0) for name, found in ends.items()}
    table = ResultTable.of(
        "Latent sampling: the relaxed distribution of a latent x coupled to z in a disc by A(x) = z, mu = 0",
        "decoder | rho, g | w1: W1(q^x, p_C), .5f | outside: largest distance of z to C, .0e | "
        "off: mean distance of z to the range of A, .5f",
        rows,
        note="p_C is that of (3.7): p restricted to latents whose image is in the disc. Only the projection onto the "
        "disc is used; no decoder is inverted.",
    )
    return setup.Check(
        "With A x = z for x = z the projection happens in physical space alone, without inverting the decoder, and "
        "(3.7) is sampled.",
        f"Three decoders, one linear, two not: z is in C to {strict:.0e}, and W1(q^x, p_C) falls to at most "
        f"{falls:.1%} of its value at rho = 1 as rho grows to 1e5, for each of them. At a finite rho z is not the "
        "image of any latent: at rho = 10 its mean distance to the range of A is "
        + ", ".join(f"{value:.4f} ({name.split(',')[0]})" for name, value in off.items())
        + ". The paper writes A as a matrix; nothing in the argument needs that.",
        HOLDS if strict < 1e-12 and falls < 0.02 and max(off.values()) < 1e-6 else PARTLY,
        [table],
        source="section 3.3, latent space sampling, (3.7)",
        number="3.7",
        flips="samples z that are images of latents at a finite rho, or a distance that stops falling",
    )
